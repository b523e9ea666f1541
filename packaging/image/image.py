"""`make image`: builds agent and aggregator images as OCI layouts, from Debian's packages and Gangline's, without a registry.

mmdebstrap makes the root file system and installs Gangline's debs in it; `oci.py` writes the layout. buildah could write the
layout too, but needs sixty packages, a storage driver and a lock, for a single layer and two JSON files.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from oci import Image, ImageError, write_layout

ROOT = Path(__file__).resolve().parent.parent.parent
SUITE = "trixie"
#: Program that passes capabilities to a user other than root: docs/security.md.
SETPRIV = "usr/lib/gangline/setpriv"
LEFT_OUT = ("doc", "info", "lintian", "locale", "man")


@dataclass(frozen=True)
class Kind:
    """An image: its package besides the runtime, its user, and the capabilities that its setpriv may pass on."""

    package: str
    user: str
    user_id: int
    state_folder: str
    capabilities: tuple[str, ...] = ()
    #: Debian packages that Gangline's packages load and that are not essential: protobuf, DuckDB, gRPC and Arrow are
    #: C++.
    include: tuple[str, ...] = ()


#: The user ids are the same as in the Helm chart, because kubelet starts containers by number.
KINDS = (
    Kind(
        "gangline-agent", "gangline", 47600, "/var/lib/gangline",
        ("syslog", "sys_ptrace", "dac_read_search", "sys_admin", "dac_override"),
        include=("libstdc++6",),
    ),
    Kind(
        "gangline-aggregator", "gangline-aggregator", 47601, "/var/lib/gangline-aggregator",
        include=("libstdc++6", "zlib1g"),
    ),
)  # fmt: skip


def deb_of(folder: Path, package: str) -> Path:
    """Return the only deb of *package* in *folder*. Raises ImageError unless *folder* has exactly one."""
    found = sorted(folder.glob(f"{package}_*.deb"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise ImageError(
            f"{folder}: expected one {package}_*.deb, found {names}; make packages builds it"
        )
    return found[0]


def field(deb: Path, name: str) -> str:
    """Return a field of a deb's control file."""
    command = ["dpkg-deb", "--field", str(deb), name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def default_epoch() -> int:
    """Return SOURCE_DATE_EPOCH, by default the time of the last commit, as in `make packages`."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)


def hooks(kind: Kind, debs: list[Path]) -> list[str]:
    """Return mmdebstrap's hooks after Debian's packages: add the user, install *debs*, remove build files."""
    identity = f"{kind.user_id}:{kind.user_id}"
    user = f"{kind.user}:x:{identity}::{kind.state_folder}:/usr/sbin/nologin"
    inside = [
        f"echo {shlex.quote(user)} >> /etc/passwd",
        f"echo {shlex.quote(f'{kind.user}:x:{kind.user_id}:')} >> /etc/group",
        "dpkg --install /var/tmp/*.deb",
        f"install -D -m 0755 /usr/bin/setpriv /{SETPRIV}",
        "rm -rf /var/tmp/* /var/log/* /var/cache/* /var/lib/apt /etc/machine-id /etc/hostname /etc/resolv.conf",
        "rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /var/lib/dpkg/*-old",
    ]
    if not kind.capabilities:
        inside.remove(inside[3])
    script = " && ".join(inside)
    return [
        f"--customize-hook=copy-in {' '.join(shlex.quote(str(each)) for each in debs)} /var/tmp",
        f'--customize-hook=chroot "$1" sh -ec {shlex.quote(script)}',
    ]


def make_root(kind: Kind, debs: list[Path], to: Path, options: argparse.Namespace) -> None:
    """Write the root file system as the tar *to*. Raises ImageError."""
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    command = ["mmdebstrap", "--quiet", "--variant=essential", *left_out, *hooks(kind, debs)]
    command += [f"--include={','.join(kind.include)}"] if kind.include else []
    command += [options.suite, str(to), *options.mirror]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(options.epoch), "LC_ALL": "C"}
    ended = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if ended.returncode:
        raise ImageError(f"mmdebstrap failed:\n{ended.stdout[-1000:]}{ended.stderr[-3000:]}")


def make(kind: Kind, options: argparse.Namespace) -> None:
    """Make an image, and print its folder, version, size and digest."""
    debs = [deb_of(options.debs, each).resolve() for each in ("gangline-runtime", kind.package)]
    image = Image(
        name=kind.package,
        version=field(debs[1], "Version").rpartition("-")[0],
        architecture=field(debs[1], "Architecture"),
        user=f"{kind.user_id}:{kind.user_id}",
        entrypoint=("/opt/gangline/bin/gangline",),
        working_folder=kind.state_folder,
    )
    capabilities = {SETPRIV: kind.capabilities} if kind.capabilities else {}
    with tempfile.TemporaryDirectory(dir=options.to) as work:
        root = Path(work) / "root.tar"
        make_root(kind, debs, root, options)
        folder = options.to / kind.package
        digest = write_layout(image, root, folder, options.epoch, capabilities)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {image.version} {image.architecture}, {size / 1e6:.0f} MB, {digest}")


def main(arguments: list[str]) -> int:
    """Make the images; return 1 after a failure, whose message is printed."""
    options = _parser().parse_args(arguments)
    missing = [each for each in ("mmdebstrap", "dpkg-deb") if shutil.which(each) is None]
    if missing:
        print(f"make image: needs {' and '.join(missing)}: apt-get install mmdebstrap dpkg", file=sys.stderr)  # fmt: skip
        return 1
    options.to.mkdir(parents=True, exist_ok=True)
    try:
        for kind in KINDS:
            if options.only in ("", kind.package):
                make(kind, options)
    except (ImageError, OSError, subprocess.CalledProcessError) as error:
        print(f"make image: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make image", description=__doc__)
    parser.add_argument("--debs", type=Path, default=ROOT / "dist", metavar="FOLDER", help="where make packages put them (dist)")  # fmt: skip
    parser.add_argument("--to", type=Path, default=ROOT / "dist" / "image", metavar="FOLDER", help="one layout for each image (dist/image)")  # fmt: skip
    parser.add_argument("--only", default="", choices=["", *(kind.package for kind in KINDS)])
    parser.add_argument("--suite", default=SUITE, help=f"of Debian ({SUITE})")
    parser.add_argument("--mirror", action="append", default=[], metavar="URL", help="a mirror or a snapshot of Debian")  # fmt: skip
    parser.add_argument("--epoch", type=int, default=default_epoch(), metavar="SECONDS", help="the date of every file; SOURCE_DATE_EPOCH, else of the last commit")  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
