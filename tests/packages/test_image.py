# pyright: reportMissingImports=false
"""The images: their contents, and the agent run in an image as a pod runs it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests import sandboxed
from tests.packages.test_chart import ROOT
from tests.processes import GUARD_SECONDS
from tests.test_systemd_unit import UNIT

sys.path.insert(0, str(ROOT / "packaging" / "image"))
import image as image_module
import oci

FOLDER = os.environ.get("GANGLINE_IMAGES", "")
needs_images = pytest.mark.skipif(
    not FOLDER, reason="needs built images: make image, then GANGLINE_IMAGES=dist/image"
)
EPOCH = 1_790_000_000
PROGRAM = "usr/lib/gangline/setpriv"

IMAGE = oci.Image("gangline-agent", "1.2.3", "amd64", "47600:47600", ("/bin/x",), "/var/lib/x")
#: Runs the agent in $1 with a read-only root file system, as the chart's pod does. $2: its
#: capabilities.
AS_A_POD = """
set -e
mount --bind "$1" "$1"
mount -t tmpfs tmpfs "$1/run"
install -d -m 0755 -o 47600 -g 47600 "$1/run/gangline"
mount -t tmpfs -o mode=0700,uid=47600,gid=47600 tmpfs "$1/var/lib/gangline"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
mount --rbind /dev "$1/dev"
mount --rbind /proc "$1/proc"
mount --rbind /sys "$1/sys"
mount -o remount,ro,bind "$1"
exec chroot "$1" /usr/bin/setpriv --reuid=47600 --regid=47600 --clear-groups --inh-caps=-all --bounding-set=-all,$2 -- /bin/sh -c '
    touch /new 2>&1
    /usr/lib/gangline/setpriv --inh-caps='$2' --ambient-caps='$2' --no-new-privs \
        /opt/gangline/bin/gangline agent --config=/etc/gangline/agent.toml --set=host=node-1 2>/tmp/log &
    for turn in $(seq 120); do
        sleep 0.5
        /opt/gangline/bin/gangline agent status --run-folder=/run/gangline 2>/dev/null && break
    done
    grep -E "^(Uid|CapEff|CapBnd|NoNewPrivs)" /proc/$!/status
    kill $!; wait'
"""
#: The same for the aggregator, with a network of its own: port 7600 of this machine may be taken.
AGGREGATOR_AS_A_POD = """
set -e
ip link set lo up
mount --bind "$1" "$1"
mount -t tmpfs -o mode=0750,uid=47601,gid=47601 tmpfs "$1/var/lib/gangline-aggregator"
mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
mount --rbind /dev "$1/dev"
mount --rbind /proc "$1/proc"
mount -o remount,ro,bind "$1"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$1" /usr/bin/setpriv --reuid=47601 --regid=47601 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs -- /bin/sh -c '
    cd /var/lib/gangline-aggregator
    touch /new 2>&1
    program=/opt/gangline/bin/gangline
    $program admin backup --before-migration --data=$PWD --to=$PWD/backups
    $program aggregator --config=/etc/gangline/aggregator.toml >/tmp/log 2>&1 &
    for turn in $(seq 120); do
        sleep 0.5
        $program admin health >/tmp/health 2>&1 && echo healthy && break
    done
    $program admin backup --before-migration --data=$PWD --to=$PWD/backups
    grep -E "^(Uid|CapEff|NoNewPrivs)" /proc/$!/status
    kill $!; wait; cat /tmp/log /tmp/health'
"""


def root_tar(path: Path, seconds: int = EPOCH + 5, *, backwards: bool = False) -> Path:
    """A small root file system, as mmdebstrap writes one."""
    names = ["./", "./dev/", "./dev/null", "./etc/", "./etc/passwd", f"./{PROGRAM}", "./link", "./run/x"]  # fmt: skip
    with tarfile.open(path, "w") as tar:
        for name in reversed(names) if backwards else names:
            member = tarfile.TarInfo(name)
            member.mtime, member.mode = seconds, 0o755
            data = b""
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
            elif name == "./dev/null":
                member.type = tarfile.CHRTYPE
            elif name == "./link":
                member.type, member.linkname = tarfile.LNKTYPE, "./etc/passwd"
            else:
                data = name.encode()
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def blob(layout: Path, digest: str) -> bytes:
    """A blob, which is what its name says."""
    data = (layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes()
    assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
    return data


def test_the_layout_is_that_of_the_specification(tmp_path: Path) -> None:
    """image-layout.md: index, manifest, config and layer name each other by their hashes."""
    layout = tmp_path / "layout"
    digest = oci.write_layout(IMAGE, root_tar(tmp_path / "r.tar"), layout, EPOCH, {PROGRAM: ("syslog",)})  # fmt: skip
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((layout / "index.json").read_text())
    assert index["manifests"][0]["digest"] == digest
    manifest = json.loads(blob(layout, digest))
    config = json.loads(blob(layout, manifest["config"]["digest"]))
    packed = blob(layout, manifest["layers"][0]["digest"])
    assert manifest["layers"][0]["size"] == len(packed)
    content = gzip.decompress(packed)
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    assert (config["config"]["User"], config["created"]) == ("47600:47600", "2026-09-21T14:13:20Z")
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = {getmember.name: getmember for getmember in tar.getmembers()}
    assert list(members) == ["dev", "etc", "etc/passwd", PROGRAM, "link"]
    assert {member.mtime for member in members.values()} == {EPOCH}
    assert members["link"].linkname == "etc/passwd"
    assert "SCHILY.xattr.security.capability" in members[PROGRAM].pax_headers


def test_the_same_files_are_the_same_bytes(tmp_path: Path) -> None:
    """Another order and other times on the disk, the same image."""
    layers = [
        oci.write_layout(IMAGE, root_tar(tmp_path / "r.tar", EPOCH + index, backwards=bool(index)), tmp_path / f"{index}", EPOCH, {})
        for index in (0, 7)
    ]  # fmt: skip
    assert layers[0] == layers[1]


def test_a_program_that_is_not_there_gets_no_capabilities(tmp_path: Path) -> None:
    with pytest.raises(oci.ImageError, match="no file usr/bin/none"):
        oci.write_layout(IMAGE, root_tar(tmp_path / "r.tar"), tmp_path / "l", EPOCH, {"usr/bin/none": ("syslog",)})  # fmt: skip


def test_file_capabilities_are_those_of_the_kernel() -> None:
    """linux/capability.h: VFS_CAP_REVISION_2, permitted, none effective (getcap shows `cap_sys_admin,cap_syslog=p`)."""
    value = oci.file_capabilities(("syslog", "sys_admin")).encode("utf-8", "surrogateescape")
    assert value.hex() == "00000002" + "00002000" + "00000000" + "04000000" + "00000000"


def test_the_image_may_hand_on_what_the_unit_has() -> None:
    """And CAP_DAC_OVERRIDE, for agent.podResources; the pod's own set is the limit of both."""
    unit = {name.removeprefix("CAP_").lower() for name in sandboxed.words_of(UNIT, "CapabilityBoundingSet")}  # fmt: skip
    assert set(image_module.KINDS[0].capabilities) == unit | {"dac_override"}
    chart = (ROOT / "packaging" / "helm" / "gangline" / "templates").glob("*.yaml")
    users = {int(user) for path in chart for user in re.findall(r"runAsUser: (\d+)", path.read_text())}  # fmt: skip
    assert users == {0, *(kind.user_id for kind in image_module.KINDS)}


def test_missing_packages_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("mmdebstrap") is None:
        pytest.skip("needs: apt-get install mmdebstrap")
    assert image_module.main(["--debs", str(tmp_path), "--to", str(tmp_path / "to")]) == 1
    message = capsys.readouterr().err
    assert "expected one gangline-runtime_*.deb, found none; make packages builds it" in message


def layer_of(package: str) -> Path:
    """The layer of an image, which its manifest names."""
    layout = Path(FOLDER) / package
    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads(blob(layout, index["manifests"][0]["digest"]))
    digest: str = manifest["layers"][0]["digest"].removeprefix("sha256:")
    return layout / "blobs" / "sha256" / digest


@needs_images
@pytest.mark.slow
@pytest.mark.parametrize("kind", image_module.KINDS, ids=lambda kind: kind.package)
def test_what_runs_is_in_the_layer_once(kind: image_module.Kind) -> None:
    """/opt/gangline/versions is hard links to /opt/gangline/packages: copied, they would double what every node fetches."""
    with tarfile.open(layer_of(kind.package)) as tar:
        members = tar.getmembers()
    versions = [member for member in members if member.name.startswith("opt/gangline/versions/")]
    assert sum(version.islnk() for version in versions) > 1000
    assert sum(version.size for version in versions) == 0


def in_a_pod(package: str, script: str, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Unpack the image of *package* and run *script* over it, in namespaces of its own."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("needs root and: apt-get install util-linux")
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["tar", "--xattrs", "--xattrs-include=*", "-xpf", str(layer_of(package)), "-C", str(root)], check=True)  # fmt: skip
    spaces = ["--net"] if script is AGGREGATOR_AS_A_POD else []
    ended = subprocess.run(
        ["unshare", "--mount", *spaces, "--propagation", "private", "sh", "-c", script, "sh", str(root), *words],
        check=False, capture_output=True, text=True, timeout=10 * GUARD_SECONDS,
    )  # fmt: skip
    shutil.rmtree(root)
    return ended


@needs_images
@pytest.mark.slow
def test_the_aggregator_runs_in_it_without_root(tmp_path: Path) -> None:
    """Its root file system lacked libstdc++ once, and DuckDB did not load."""
    if shutil.which("ip") is None:
        pytest.skip("needs: apt-get install iproute2")
    ended = in_a_pod("gangline-aggregator", AGGREGATOR_AS_A_POD, tmp_path)
    output = ended.stdout
    assert "Read-only file system" in output and "no store yet" in output, ended
    assert "which this version does not migrate" in output and "healthy" in output, ended
    assert re.search(r"^Uid:\s47601\s", output, re.MULTILINE)
    assert dict(re.findall(r"^(CapEff|NoNewPrivs):\s(\w+)$", output, re.MULTILINE)) == {
        "CapEff": "0" * 16, "NoNewPrivs": "1",
    }  # fmt: skip


@needs_images
@pytest.mark.slow
def test_the_agent_runs_in_it_without_root(tmp_path: Path) -> None:
    """As containerd starts it: a user without capabilities, whose program may have those of the pod."""
    given = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in sandboxed.words_of(UNIT, "CapabilityBoundingSet"))  # fmt: skip
    ended = in_a_pod("gangline-agent", AS_A_POD, tmp_path, given)
    output = ended.stdout
    assert "Read-only file system" in output, ended
    assert "node-1: agent " in output, ended
    assert re.search(r"^Uid:\s47600\s", output, re.MULTILINE)
    assert dict(re.findall(r"^(\w+):\s(\w+)$", output, re.MULTILINE)) == {
        "CapEff": "0000000400280004", "CapBnd": "0000000400280004", "NoNewPrivs": "1",
    }  # fmt: skip
