"""The packages in an empty Debian that boots: install, sample, upgrade, go back, remove, purge."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packages.booted import Booted, booted, root_archive
from tests.packages.built import FOLDER, NEXT, needs_packages, path_of, repacked
from tests.processes import until

pytestmark = needs_packages


#: `make test-hosts` names all supported suites.
SUITES = os.environ.get("GANGLINE_SUITES", "bookworm").split()

AGGREGATOR = ("gangline-runtime", "gangline-aggregator")
DATA = "/var/lib/gangline-aggregator"


@pytest.fixture(scope="module", params=SUITES)
def host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Booted]:
    """A Debian with the packages, and later releases of them, in /packages."""
    archive = root_archive(request.param, Path(FOLDER).absolute().parent / "build" / "roots")
    folder = tmp_path_factory.mktemp("host")
    with booted(archive, folder) as machine:
        packages_folder = machine.root / "packages"
        packages_folder.mkdir()
        for package in ("gangline-runtime", "gangline-agent"):
            (packages_folder / f"{package}.deb").write_bytes(path_of(package, "deb").read_bytes())
            (packages_folder / f"{package}-later.deb").write_bytes(
                repacked(package, folder).read_bytes()
            )
        yield machine


def status(host: Booted) -> dict[str, Any]:
    text = host.run("cat", "/run/gangline/status.json", check=False)
    return dict(json.loads(text)["agent"]) if text.startswith("{") else {}


def running_version(host: Booted) -> str:
    pid = host.run("systemctl", "show", "--property=MainPID", "--value", "gangline-agent").strip()
    return host.run("readlink", f"/proc/{pid}/exe").split("/")[4]


def sampling(host: Booted, frames: int) -> dict[str, Any]:
    """Return the status once at least *frames* frames wait for an unreachable aggregator."""
    until(lambda: status(host).get("waiting_frames", 0) >= frames, f"{frames} frames")
    return status(host)


def install(host: Booted, *options: str, later: bool = False, **environment: str) -> str:
    names = [
        f"/packages/{name}{'-later' if later else ''}.deb"
        for name in ("gangline-runtime", "gangline-agent")
    ]
    return host.run("apt-get", "install", "--yes", *options, *names, environment=environment)


def test_from_install_to_purge(host: Booted) -> None:
    """A single test in an operator's order; each part needs the previous one."""
    assert not host.run("sh", "-c", "command -v python3 gcc cc", check=False)
    install(host)
    assert host.run("gangline", "--version").startswith("gangline ")
    assert "gangline" in host.run("getent", "passwd", "gangline")
    assert host.run("systemctl", "is-enabled", "gangline-agent", check=False).strip() == "disabled"

    host.run("systemctl", "enable", "--now", "gangline-agent")
    before = sampling(host, 3)
    assert running_version(host) == path_of("gangline-agent", "deb").name.split("_")[1]
    shown = host.run("gangline", "doctor", "--json", check=False)
    assert {"settings", "disk"} <= {load["check"] for load in json.loads(shown)["results"]}
    assert "gangline-doctor" in host.run("sh", "-c", "ls /usr/share/man/man1")
    host.run("sh", "-c", "echo '# ours' >> /etc/gangline/agent.toml")

    install(host, later=True)
    upgraded = sampling(host, before["waiting_frames"] + 3)
    assert upgraded["pid"] != before["pid"]
    assert running_version(host).endswith(f"-{NEXT}")
    assert host.run("ls", "/opt/gangline/versions").split() == [running_version(host)]
    assert "# ours" in host.run("cat", "/etc/gangline/agent.toml")

    install(host, "--allow-downgrades")
    back = sampling(host, upgraded["waiting_frames"] + 3)
    assert back["pid"] != upgraded["pid"] and back["lost_frames"] == 0

    output = install(host, later=True, GANGLINE_NO_RESTART="1")
    assert "systemctl restart gangline-agent.service" in output
    assert "stays until its last process ends" in output
    assert sampling(host, back["waiting_frames"] + 3)["pid"] == back["pid"]
    assert not running_version(host).endswith(f"-{NEXT}")
    assert len(host.run("ls", "/opt/gangline/versions").split()) == 2

    host.run("apt-get", "remove", "--yes", "gangline-agent", "gangline-runtime")
    assert host.run("systemctl", "is-active", "gangline-agent", check=False).strip() == "inactive"
    assert not host.run("sh", "-c", "ls -A /opt/gangline 2>/dev/null", check=False)
    assert host.run("sh", "-c", "ls -A /var/lib/gangline/spool")
    assert host.run("ls", "/etc/gangline").split() == ["agent.toml"]

    host.run("apt-get", "purge", "--yes", "gangline-agent", "gangline-runtime")
    left = (
        "ls -d /var/lib/gangline /etc/gangline /run/gangline /dev/shm/gangline-spool-* 2>/dev/null"
    )
    assert not host.run("sh", "-c", left, check=False)
    assert not host.run("getent", "passwd", "gangline", check=False)


def test_the_store_is_backed_up_before_it_is_migrated_and_going_back_needs_the_backup(
    host: Booted, tmp_path: Path
) -> None:
    """An upgrade that cannot be undone is found out about when it has to be undone."""
    folder = host.root / "packages"
    for package in AGGREGATOR:
        (folder / f"{package}.deb").write_bytes(path_of(package, "deb").read_bytes())
        later = repacked(package, tmp_path, store_version=9999)
        (folder / f"{package}-later.deb").write_bytes(later.read_bytes())
    old = [f"/packages/{name}.deb" for name in AGGREGATOR]
    new = [f"/packages/{name}-later.deb" for name in AGGREGATOR]
    apt = ("apt-get", "install", "--yes", "--allow-downgrades")
    host.run(*apt, *old)
    host.run("systemctl", "enable", "--now", "gangline-aggregator")
    note = f"{DATA}/store_version"
    until(lambda: host.run("cat", note, check=False).strip().isdigit(), "the store is made")
    version = host.run("cat", note).strip()
    # Until it answers it cannot be backed up, and an upgrade would be refused.
    healthy = ("sh", "-c", "gangline admin health && echo healthy")
    until(lambda: "healthy" in host.run(*healthy, check=False), "the aggregator answers")

    output = host.run(*apt, *new)
    assert f"before it is migrated from {version} to 9999" in output
    backup = host.run("cat", f"{DATA}/backup_before_9999").strip()
    assert backup.startswith("/var/backups/gangline/") and host.run("ls", backup)
    # When it answers it has written the note, and does not again.
    until(lambda: "healthy" in host.run(*healthy, check=False), "the new aggregator answers")

    host.run("sh", "-c", f"echo 9999 > {note}")  # as an aggregator that has migrated the store
    refused = host.run(*apt, *old, check=False)
    assert "Nothing was changed" in refused and f"--from {backup} --data {DATA} --force" in refused
    assert NEXT in host.run("readlink", "/opt/gangline/current")
    host.run("systemctl", "stop", "gangline-aggregator")
    restore = f"gangline admin restore --from {backup} --data {DATA} --force"
    host.run("runuser", "-u", "gangline-aggregator", "--", "sh", "-c", restore)
    host.run("sh", "-c", "dpkg --install " + " ".join(old))
    assert host.run("cat", note).strip() == version
    host.run("systemctl", "start", "gangline-aggregator")
    until(
        lambda: (
            host.run("systemctl", "is-active", "gangline-aggregator", check=False).strip()
            == "active"
        ),
        "the old aggregator runs on what was restored",
    )
