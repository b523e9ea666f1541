"""Builds a signed repository for apt and dnf, and signed checksums, from built packages and a given key.

    python3 packaging/build/repository.py --packages dist --to FOLDER --key SECRET.asc [--minisign-key FILE] [--passphrase-file FILE]

Any web server or file system can then serve FOLDER. The key is imported into a temporary folder, which is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sources import BuildError, sha256_of

#: Command that the module needs -> Debian's package.
COMMANDS = {
    "apt-ftparchive": "apt-utils",
    "createrepo_c": "createrepo-c",
    "gpg": "gnupg",
    "rpmsign": "rpm",
}
KEY_NAME = "gangline.asc"
SUITE = "stable"
KEY_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class SigningKey:
    """A secret key, imported into a separate GnuPG folder."""

    home: Path
    fingerprint: str
    passphrase: tuple[str, ...]

    def gpg(self, *arguments: str | Path) -> bytes:
        """Run gpg with only this key; return its output. Raises BuildError."""
        command = ["gpg", "--homedir", str(self.home), "--batch", "--yes", *self.passphrase]
        return _run([*command, *map(str, arguments)])


def _run(command: list[str], where: Path | None = None, home: Path | None = None) -> bytes:
    environment = {**os.environ, "LC_ALL": "C", **({"GNUPGHOME": str(home)} if home else {})}
    ended = subprocess.run(command, cwd=where, check=False, capture_output=True, env=environment)
    if ended.returncode:
        reason = ended.stderr.decode(errors="replace").strip()[-500:]
        raise BuildError(f"{command[0]} failed: {reason}")
    return ended.stdout


@contextmanager
def imported(key: Path, passphrase_file: Path | None) -> Iterator[SigningKey]:
    """Import the secret key into a temporary folder for the duration of the block. Raises BuildError."""
    if not key.is_file() or key.stat().st_size > KEY_BYTES_MAX:
        raise BuildError(
            f"--key {key}: expected the file of a secret key: gpg --export-secret-keys --armor KEY > FILE"
        )
    with tempfile.TemporaryDirectory(prefix="gangline-key-") as name:
        home = Path(name)
        words: tuple[str, ...] = ("--pinentry-mode", "loopback")
        words += (
            ("--passphrase-file", str(passphrase_file)) if passphrase_file else ("--passphrase", "")
        )
        try:
            SigningKey(home, "", words).gpg("--import", key)
            listed = SigningKey(home, "", words).gpg(
                "--list-secret-keys", "--with-colons", "--fingerprint"
            )
            found = re.search(rb"^fpr:+([0-9A-F]{40}):", listed, re.MULTILINE)
            if found is None:
                raise BuildError(f"--key {key} holds no secret key: gpg --export-secret-keys")
            yield SigningKey(home, found[1].decode(), words)
        finally:
            subprocess.run(
                ["gpgconf", "--homedir", str(home), "--kill", "all"],
                check=False,
                capture_output=True,
            )


def write_apt(debs: list[Path], to: Path, key: SigningKey) -> None:
    """Write the apt repository: pool, index per architecture, Release, InRelease (signed inline), Release.gpg."""
    pool = to / "pool"
    pool.mkdir(parents=True)
    for deb in debs:
        shutil.copy(deb, pool)
    architectures = sorted({deb.stem.rpartition("_")[2] for deb in debs})
    for architecture in architectures:
        folder = to / "dists" / SUITE / "main" / f"binary-{architecture}"
        folder.mkdir(parents=True)
        index = _run(["apt-ftparchive", "--arch", architecture, "packages", "pool"], to)
        (folder / "Packages").write_bytes(index)
        _run(["xz", "--keep", "--force", str(folder / "Packages")])
    options = {
        "Origin": "Gangline",
        "Label": "Gangline",
        "Suite": SUITE,
        "Codename": SUITE,
        "Architectures": " ".join(architectures),
        "Components": "main",
    }
    words = [
        word
        for name, value in options.items()
        for word in ("-o", f"APT::FTPArchive::Release::{name}={value}")
    ]
    release = _run(["apt-ftparchive", *words, "release", f"dists/{SUITE}"], to)
    file = to / "dists" / SUITE / "Release"
    file.write_bytes(release)
    key.gpg(
        "--local-user",
        key.fingerprint,
        "--clearsign",
        "--output",
        file.with_name("InRelease"),
        file,
    )
    key.gpg(
        "--local-user", key.fingerprint, "--armor", "--detach-sign", "--output", file.with_name("Release.gpg"), file,
    )  # fmt: skip


def write_dnf(rpms: list[Path], to: Path, key: SigningKey) -> None:
    """Write the dnf repository: signed packages and signed metadata."""
    to.mkdir(parents=True)
    extra = " ".join(key.passphrase).replace('--passphrase ""', "").rstrip()
    if extra.endswith("--passphrase"):
        empty = key.home / "no-passphrase"
        empty.touch()
        extra = f"{extra}-file {empty}"
    for rpm in rpms:
        copy = Path(shutil.copy(rpm, to))
        _run(
            ["rpmsign", "--define", f"_gpg_name {key.fingerprint}", "--define", f"_gpg_path {key.home}",
             "--define", f"__gpg {shutil.which('gpg')}", "--define", f"_gpg_sign_cmd_extra_args --batch {extra}", "--addsign", str(copy)],
            home=key.home,
        )  # fmt: skip
    _run(["createrepo_c", "--quiet", str(to)])
    metadata = to / "repodata" / "repomd.xml"
    key.gpg("--local-user", key.fingerprint, "--armor", "--detach-sign", metadata)


def write_checksums(to: Path, minisign_key: Path | None) -> Path:
    """Write SHA256SUMS of all packages below *to*, and sign it with minisign if a key is given; return its path."""
    packages = sorted(path for path in to.rglob("*") if path.suffix in (".deb", ".rpm"))
    sums = to / "SHA256SUMS"
    sums.write_text("".join(f"{sha256_of(path)}  {path.relative_to(to)}\n" for path in packages))
    if minisign_key is not None:
        if shutil.which("minisign") is None:
            raise BuildError("minisign is missing; install it with: sudo apt-get install minisign")
        _run(["minisign", "-S", "-s", str(minisign_key), "-m", str(sums)])
    return sums


def make_repository(
    packages: Path,
    to: Path,
    key_file: Path,
    minisign_key: Path | None = None,
    passphrase_file: Path | None = None,
) -> None:
    """Write the complete repository to *to*, which must not exist.

    Raises BuildError, and then removes all partial files.
    """
    missing = sorted(package for name, package in COMMANDS.items() if shutil.which(name) is None)
    if missing:
        raise BuildError(
            f"commands are missing; install them with: sudo apt-get install {' '.join(missing)}"
        )
    debs, rpms = sorted(packages.glob("*.deb")), sorted(packages.glob("*.rpm"))
    if not debs or not rpms:
        raise BuildError(f"{packages} holds no packages: run make packages first")
    if to.exists():
        raise BuildError(
            f"{to} exists: name a new folder, and move it into its place once it is whole"
        )
    part = to.with_name(f".{to.name}.partial")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with imported(key_file, passphrase_file) as key:
            write_apt(debs, part / "apt", key)
            write_dnf(rpms, part / "dnf", key)
            (part / KEY_NAME).write_bytes(key.gpg("--armor", "--export", key.fingerprint))
        write_checksums(part, minisign_key)
        part.replace(to)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def main() -> int:
    """Make the repository, and print its contents."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packages", type=Path, required=True, help="folder of debs and rpms")
    parser.add_argument(
        "--to", type=Path, required=True, help="folder of the repository; must not exist"
    )
    parser.add_argument("--key", type=Path, required=True, help="OpenPGP secret key")
    parser.add_argument("--passphrase-file", type=Path, help="its passphrase; without: it has none")
    parser.add_argument("--minisign-key", type=Path, help="minisign's secret key, for SHA256SUMS")
    options = parser.parse_args()
    try:
        make_repository(
            options.packages, options.to.absolute(), options.key, options.minisign_key, options.passphrase_file,
        )  # fmt: skip
    except BuildError as error:
        print(f"repository: {error}", file=sys.stderr)
        return 1
    print(f"{options.to}: apt/ (suite {SUITE}, component main), dnf/, {KEY_NAME}, SHA256SUMS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
