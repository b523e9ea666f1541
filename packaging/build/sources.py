"""Fetches the source archives named in pins.toml from Debian's source packages by apt, checks, unpacks and patches them.

python3 packaging/build/sources.py --update     # pin what Debian's suites have now
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).with_name("pins.toml")
#: A larger archive is refused.
ARCHIVE_BYTES_MAX = 128 << 20
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class BuildError(Exception):
    """The build failed; the message names the failure, its reason and the remedy."""


@dataclass(frozen=True)
class Source:
    """A source package: archive -> SHA-256, and glob patterns of the patches to apply."""

    name: str
    version: str
    archives: Mapping[str, str]
    patches: tuple[str, ...]

    @property
    def upstream(self) -> str:
        """The file name of the upstream archive."""
        return next(name for name in self.archives if ".orig.tar." in name)


@dataclass(frozen=True)
class Pins:
    """The contents of pins.toml."""

    suites: tuple[str, ...]
    tools: tuple[str, ...]
    glibc: str
    epoch: int
    sources: Mapping[str, Source]


def read_pins(path: Path = PINS) -> Pins:
    """Read the pins. Raises BuildError for an invalid SHA-256."""
    table = tomllib.loads(path.read_text())
    sources = {
        name: Source(name, row["version"], row["archives"], tuple(row.get("patches", ())))
        for name, row in table["source"].items()
    }
    for source in sources.values():
        for archive, digest in source.archives.items():
            if not re.fullmatch(r"[0-9a-f]{64}", digest):
                raise BuildError(f"{path}: {archive}: {digest!r} is no SHA-256 (64 hex digits)")
    return Pins(
        tuple(table["debian_suites"]),
        tuple(table["tools"]),
        table["glibc"],
        table["epoch"],
        sources,
    )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked(path: Path, digest: str) -> Path:
    """Return *path*.

    Raises BuildError if the file's SHA-256 is not *digest*, or the file is larger than ARCHIVE_BYTES_MAX.
    """
    size = path.stat().st_size
    if size > ARCHIVE_BYTES_MAX:
        raise BuildError(f"{path}: {size} bytes; at most {ARCHIVE_BYTES_MAX} are read")
    found = sha256_of(path)
    if found != digest:
        raise BuildError(
            f"{path}: its SHA-256 is {found}, not {digest}: damaged, or another file; remove it, or correct "
            f"the pin in {PINS.name}"
        )
    return path


def _apt(folder: Path) -> list[str]:
    """Return options that make apt keep its sources, lists and cache in *folder*."""
    for each in ("lists/partial", "cache/archives/partial"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    return [
        *("-o", f"Dir::Etc::SourceList={folder / 'sources.list'}"),
        *("-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={folder / 'lists'}"),
        *("-o", f"Dir::Cache={folder / 'cache'}"),
        *("-o", "APT::Sandbox::User=root"),
    ]


def _mirrors() -> list[str]:
    """Return the addresses of Debian's archives in this machine's apt configuration, Debian's main archive first."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"],
        check=True,
        capture_output=True,
        text=True,
    )
    rows = [line.rpartition(" ")[::2] for line in said.stdout.splitlines()]
    return sorted({uri.rstrip("/") for origin, uri in rows if origin == "Debian"}, key=len)


def index(folder: Path, suites: Sequence[str]) -> list[str]:
    """Download the source indexes of *suites* with apt; return apt's options.

    Raises BuildError without apt or a Debian mirror.
    """
    if shutil.which("apt-get") is None or not (mirrors := _mirrors()):
        raise BuildError(
            "no apt with a mirror of Debian here; hand the archives in: make packages SOURCES=FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    key = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    lines = []
    for suite in suites:
        security = [uri for uri in mirrors if uri.endswith("-security")]
        uri = (
            (security or [mirrors[0] + "-security"])[0]
            if suite.endswith("-security")
            else mirrors[0]
        )
        lines.append(f"deb-src {key}{uri} {suite} main\n")
    (folder / "sources.list").write_text("".join(lines))
    options = _apt(folder)
    subprocess.run(["apt-get", *options, "-qq", "update"], check=True)
    return options


def fetch(pins: Pins, archives: Path, handed_in: Path | None, work: Path) -> None:
    """Put every pinned archive into *archives*, from *handed_in* or else with apt.

    Raises BuildError, which names an archive that is unavailable or has another SHA-256.
    """
    archives.mkdir(parents=True, exist_ok=True)
    options: list[str] = []
    for source in pins.sources.values():
        for archive, digest in source.archives.items():
            there = archives / archive
            if not there.exists() and handed_in is not None and (handed_in / archive).exists():
                shutil.copyfile(handed_in / archive, there)
            if not there.exists():
                options = options or index(work / "apt", pins.suites)
                package = f"{source.name}={source.version}"
                said = subprocess.run(
                    ["apt-get", *options, "-qq", "source", "--download-only", package],
                    cwd=archives,
                    check=False,
                    capture_output=True,
                    text=True,
                )
                if not there.exists():
                    raise BuildError(
                        f"{archive}: apt cannot fetch {package}: {said.stderr.strip()}\nDebian may have moved on: "
                        "python3 packaging/build/sources.py --update pins what it has now; or hand the archive in: "
                        "make packages SOURCES=FOLDER"
                    )
            checked(there, digest)


def unpack(source: Source, archives: Path, to: Path) -> Path:
    """Unpack the upstream archive into *to*, apply the pinned Debian patches, and return the folder of the source."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for archive in source.archives:
        with tarfile.open(archives / archive) as tar:
            tar.extractall(to / "debian-archive" if ".debian.tar." in archive else to, filter="tar")
    (folder,) = (path for path in to.iterdir() if path.name != "debian-archive")
    patches = to / "debian-archive" / "debian" / "patches"
    if source.patches:
        for line in (patches / "series").read_text().splitlines():
            name = line.strip().partition(" ")[0]
            if name and any(
                fnmatch.fnmatch(name.rpartition("/")[2], each) for each in source.patches
            ):
                _apply(patches / name, folder)
    return folder


def _apply(patch: Path, folder: Path) -> None:
    said = subprocess.run(
        ["patch", "--strip=1", "--batch", "--forward", "--quiet", "--input", str(patch)],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    if said.returncode:
        raise BuildError(f"{patch.name} does not apply to {folder.name}: {said.stdout.strip()}")


def _newest(name: str, options: list[str]) -> tuple[str, dict[str, str]]:
    """Return the newest version of a source package in the suites, and archive -> SHA-256."""
    said = subprocess.run(
        ["apt-cache", *options, "showsrc", "--only-source", name],
        check=True,
        capture_output=True,
        text=True,
    )
    newest, found = "", {}
    for paragraph in said.stdout.split("\n\n"):
        version = re.search(r"^Version: (\S+)$", paragraph, re.MULTILINE)
        if version is None:
            continue
        later = subprocess.run(
            ["dpkg", "--compare-versions", version[1], "gt", newest or "0~"], check=False
        )
        if later.returncode == 0:
            rows = re.findall(r"^ ([0-9a-f]{64}) \d+ (\S+)$", paragraph, re.MULTILINE)
            newest, found = version[1], {file: digest for digest, file in rows}
    return newest, found


def update(work: Path) -> None:
    """Rewrite the versions and hashes in pins.toml to those now in Debian's suites; apt verifies the signatures."""
    pins, text = read_pins(), PINS.read_text()
    options = index(work / "apt", pins.suites)
    for source in pins.sources.values():
        version, files = _newest(source.name, options)
        kinds = [r"\.orig\.tar\.\w+$"] + ([r"\.debian\.tar\.\w+$"] if source.patches else [])
        rows = [
            (file, files[file]) for kind in kinds for file in sorted(files) if re.search(kind, file)
        ]
        inline = ", ".join(f'"{file}" = "{digest}"' for file, digest in rows)
        old = ", ".join(f'"{file}" = "{digest}"' for file, digest in source.archives.items())
        text = text.replace(f'version = "{source.version}"', f'version = "{version}"')
        text = text.replace(f"archives = {{ {old} }}", f"archives = {{ {inline} }}")
        if version != source.version:
            print(f"{source.name}: {source.version} -> {version}")
    PINS.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", required=True)
    parser.parse_args()
    try:
        update(Path(os.environ.get("PACKAGES_WORK", "build/packages")).absolute())
    except (BuildError, subprocess.CalledProcessError) as error:
        print(f"sources: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
