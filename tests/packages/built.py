"""The packages that `make packages` wrote, for tests; without them these are skipped."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

FOLDER = os.environ.get("GANGLINE_PACKAGES", "")
PACKAGES = ("gangline-runtime", "gangline-agent", "gangline-aggregator")
#: For tests of packages that are built: minutes, which `make test-packages` takes.
needs_packages = pytest.mark.skipif(
    not FOLDER, reason="needs built packages: make test-packages (or GANGLINE_PACKAGES=FOLDER)"
)
#: The C library of RHEL 8.
GLIBC_MAX = (2, 28)

#: The release of packages that `repacked` makes.
NEXT = "99"


def path_of(package: str, kind: str) -> Path:
    sign = "_" if kind == "deb" else "-"
    (path,) = Path(FOLDER).glob(f"{package}{sign}[0-9]*.{kind}")
    return path


def tar_of(package: str, part: str = "--fsys-tarfile") -> tarfile.TarFile:
    """Return the files that a deb installs, or with `--ctrl-tarfile` dpkg's control files."""
    command = ["dpkg-deb", part, str(path_of(package, "deb"))]
    return tarfile.open(
        fileobj=io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout)
    )


def text_of(tar: tarfile.TarFile, name: str) -> str:
    file = tar.extractfile(name)
    assert file is not None, name
    return file.read().decode()


def field(package: str, name: str) -> str:
    command = ["dpkg-deb", "--field", str(path_of(package, "deb")), name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def rpm(package: str, *query: str) -> str:
    """Return rpm's answer to *query* about the file."""
    command = ["rpm", "--query", "--package", *query, str(path_of(package, "rpm"))]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def glibc_needed(elf: Path) -> tuple[int, int]:
    """The newest version of glibc that an ELF file needs, by its version references."""
    command = ["readelf", "--version-info", "--wide", str(elf)]
    shown = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    versions = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", shown)
    return max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))


def repacked(package: str, folder: Path, store_version: int = 0) -> Path:
    """Repack the package as a later release: with equal contents it needs no second build.

    *store_version*: the store version that the package claims for its aggregator; 0: that of the
    package.
    """
    tree = folder / package
    subprocess.run(["dpkg-deb", "-R", str(path_of(package, "deb")), str(tree)], check=True)
    release = field(package, "Version")
    later = f"{release.rpartition('-')[0]}-{NEXT}"
    launcher = tree / "opt/gangline/packages/runtime/bin/gangline"
    for path in [*(tree / "DEBIAN").iterdir(), *([launcher] if launcher.exists() else [])]:
        text = path.read_text().replace(release, later)
        if store_version:
            text = re.sub(
                r"^store_version=.*$", f"store_version={store_version}", text, flags=re.MULTILINE
            )
        path.write_text(text)
    to = folder / f"{package}_{later}.deb"
    command = ["dpkg-deb", "-Zgzip", "-z1", "-b", str(tree), str(to)]
    subprocess.run(command, check=True, capture_output=True)
    return to
