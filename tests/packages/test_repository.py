"""The signed repository: made with a key that is thrown away, verified by apt and rpm themselves."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BUILD = Path(__file__).parent.parent.parent / "packaging" / "build"
TOOLS = ("apt-ftparchive", "createrepo_c", "gpg", "rpmsign", "rpmbuild", "dpkg-deb", "minisign")
MISSING = "needs: apt-get install apt-utils createrepo-c gnupg rpm dpkg-dev minisign"
SPEC = """Name: thing
Version: 1
Release: 1
Summary: A thing
License: MIT
BuildArch: noarch
%description
A thing.
%files
"""
CONTROL = "Package: thing\nVersion: 1-1\nArchitecture: amd64\nMaintainer: Nobody <n@localhost>\nDescription: thing\n"


@pytest.fixture
def repository() -> Iterator[ModuleType]:
    """The module of the build, which is a script beside others and no package."""
    sys.path.insert(0, str(BUILD))
    try:
        yield importlib.import_module("repository")
    finally:
        sys.path.remove(str(BUILD))
        for name in ("repository", "sources"):
            sys.modules.pop(name, None)


def run(*command: str | Path) -> str:
    ended = subprocess.run(
        list(map(str, command)), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def packages(folder: Path) -> Path:
    to = folder / "packages"
    tree = folder / "deb"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(CONTROL)
    to.mkdir()
    run("dpkg-deb", "--root-owner-group", "-b", tree, to / "thing_1-1_amd64.deb")
    spec = folder / "thing.spec"
    spec.write_text(SPEC)
    run("rpmbuild", "-bb", "--quiet", "--define", f"_topdir {folder / 'rpm'}", spec)
    (rpm,) = (folder / "rpm").rglob("thing-1-1.noarch.rpm")
    shutil.copy(rpm, to)
    return to


def secret_key(folder: Path) -> Path:
    """Return a new key without an owner."""
    home = folder / "home"
    home.mkdir(mode=0o700)
    gpg = (
        "gpg",
        "--homedir",
        home,
        "--batch",
        "--quiet",
        "--pinentry-mode",
        "loopback",
        "--passphrase",
        "",
    )
    run(*gpg, "--quick-generate-key", "Nobody <n@localhost>", "rsa2048", "sign", "never")
    file = folder / "secret.asc"
    file.write_text(run(*gpg, "--armor", "--export-secret-keys"))
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
    return file


@pytest.mark.slow
@pytest.mark.skipif(any(shutil.which(name) is None for name in TOOLS), reason=MISSING)
def test_apt_and_rpm_trust_what_the_key_signed(repository: ModuleType, tmp_path: Path) -> None:
    """And nothing else: a package that was changed on the mirror is refused."""
    package_files = packages(tmp_path)
    run("minisign", "-G", "-W", "-p", tmp_path / "m.pub", "-s", tmp_path / "m.key")
    to = tmp_path / "repository"
    repository.make_repository(package_files, to, secret_key(tmp_path), tmp_path / "m.key")

    apt = tmp_path / "apt"
    for name in ("lists/partial", "cache/archives/partial", "state"):
        (apt / name).mkdir(parents=True)
    key = to / "gangline.asc"
    (apt / "sources.list").write_text(f"deb [signed-by={key}] file:{to}/apt stable main\n")
    options = [
        *(
            "-o",
            f"Dir::Etc::SourceList={apt / 'sources.list'}",
            "-o",
            "Dir::Etc::SourceParts=/dev/null",
        ),
        *("-o", f"Dir::State::Lists={apt / 'lists'}", "-o", f"Dir::Cache={apt / 'cache'}"),
        *("-o", "APT::Sandbox::User=root", "-o", "APT::Architectures::=amd64"),
    ]
    assert "W:" not in run("apt-get", *options, "update")
    assert "thing" in run("apt-cache", *options, "show", "thing")

    database = tmp_path / "rpmdb"
    run("rpmkeys", "--dbpath", database, "--import", key)
    (rpm,) = (to / "dnf").glob("*.rpm")
    assert "digests signatures OK" in run("rpmkeys", "--dbpath", database, "-K", rpm)
    home = tmp_path / "verify"
    home.mkdir(mode=0o700)
    run("gpg", "--homedir", home, "--batch", "--import", key)
    metadata = to / "dnf" / "repodata" / "repomd.xml"
    run("gpg", "--homedir", home, "--batch", "--verify", f"{metadata}.asc", metadata)
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)
    run("minisign", "-V", "-p", tmp_path / "m.pub", "-m", to / "SHA256SUMS")
    assert run("sh", "-c", f"cd {to} && sha256sum --check SHA256SUMS").count(": OK") == 2

    release = to / "apt" / "dists" / "stable" / "InRelease"
    release.write_text(release.read_text().replace("Origin: Gangline", "Origin: Somebody"))
    shutil.rmtree(apt / "lists")
    (apt / "lists" / "partial").mkdir(parents=True)
    ended = subprocess.run(
        ["apt-get", *options, "update"], check=False, capture_output=True, text=True
    )
    assert "not signed" in ended.stderr or "BADSIG" in ended.stderr or "invalid" in ended.stderr
    with pytest.raises(repository.BuildError, match="exists: name a new folder"):
        repository.make_repository(package_files, to, tmp_path / "secret.asc")


@pytest.mark.parametrize("content", [None, "no key"])
def test_what_is_no_key_is_named(
    content: str | None, repository: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written without a signing key."""
    monkeypatch.setattr(repository, "COMMANDS", {})
    if shutil.which("gpg") is None:
        pytest.skip("needs: apt-get install gnupg")
    for name in ("a.deb", "a.rpm"):
        (tmp_path / name).touch()
    key = tmp_path / "key.asc"
    if content:
        key.write_text(content)
    monkeypatch.setattr(repository, "write_apt", lambda *arguments: pytest.fail("written"))
    with pytest.raises(repository.BuildError, match=r"--key|gpg failed"):
        repository.make_repository(tmp_path, tmp_path / "to", key)
    assert not (tmp_path / "to").exists()


def test_a_folder_without_packages_is_named(
    repository: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "COMMANDS", {})
    with pytest.raises(repository.BuildError, match="run make packages first"):
        repository.make_repository(tmp_path, tmp_path / "to", tmp_path / "key")
    monkeypatch.setattr(repository, "COMMANDS", {"no-such-command": "some-package"})
    with pytest.raises(repository.BuildError, match="apt-get install some-package"):
        repository.make_repository(tmp_path, tmp_path / "to", tmp_path / "key")
