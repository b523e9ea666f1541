"""The contents of the packages: symbols of an old glibc, settings that are kept, nothing of the build machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.packages.built import (
    GLIBC_MAX,
    PACKAGES,
    field,
    glibc_needed,
    needs_packages,
    path_of,
    rpm,
    tar_of,
    text_of,
)

ROOT = Path(__file__).parent.parent.parent
pytestmark = needs_packages
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
FULL = f"{VERSION}-1"

#: Libraries of glibc, whose version each package names; and other libraries that a distribution's
#: packages provide.
GLIBC_LIBRARIES = {"libc", "libm", "libdl", "libpthread", "librt", "libutil", "libresolv", "ld-linux-x86-64", "ld-linux-aarch64"}  # fmt: skip
LIBRARIES = {
    "libstdc++": ("libstdc++6", "libstdc++"),
    "libgcc_s": ("libstdc++6", "libstdc++"),
    "libz": ("zlib1g", "zlib"),
}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_program_runs_on_glibc_2_28(package: str, tmp_path: Path) -> None:
    """One module of a wheel that needs GLIBC_2.34, and the package installs everywhere but starts nowhere on RHEL 8."""
    with tar_of(package) as tar:
        tar.extractall(tmp_path, filter="tar")
    needed = {}
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    needed[path.relative_to(tmp_path)] = glibc_needed(path)
    assert needed or package == "gangline-agent"
    assert {str(path): needs for path, needs in needed.items() if needs > GLIBC_MAX} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_each_library_of_the_system_is_a_dependency(package: str, tmp_path: Path) -> None:
    """An image made of essential packages alone has no libstdc++, and DuckDB did not load."""
    with tar_of(package) as tar:
        tar.extractall(tmp_path, filter="tar")
    inside = {path.name for path in tmp_path.rglob("*.so*")}
    needed: set[str] = set()
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF":
            command = ["readelf", "--dynamic", "--wide", str(path)]
            shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            needed.update(re.findall(r"\(NEEDED\).*\[(.+)\]", shown))
    systems = {name.partition(".so")[0] for name in needed - inside} - GLIBC_LIBRARIES
    for name in systems:
        debian, redhat = LIBRARIES[name]
        assert debian in field(package, "Depends").split(", "), name
        assert redhat in rpm(package, "--requires").splitlines(), name


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_of_the_machine_of_the_build_is_in_it(package: str) -> None:
    """A path of the builder's home in every package is a leak, and no two builds are the same."""
    with tar_of(package) as tar:
        members = tar.getmembers()
        assert {(m.uid, m.gid) for m in members} == {(0, 0)}
        assert not [m.name for m in members if m.mode & 0o6022]
        assert not [
            m.name
            for m in members
            if m.isfile() and not m.name.startswith(("./opt", "./usr", "./etc", "./lib"))
        ]
        for member in members:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                assert str(ROOT).encode() not in file.read(), member.name


def test_no_file_is_in_two_packages() -> None:
    """dpkg refuses to install the second."""
    seen: dict[str, str] = {}
    for package in PACKAGES:
        with tar_of(package) as tar:
            for member in tar.getmembers():
                if not member.isdir():
                    assert member.name not in seen, (member.name, package, seen[member.name])
                    seen[member.name] = package


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_each_needs_exactly_its_runtime(package: str) -> None:
    """Compiled modules and their libraries are of the same build."""
    assert f"gangline-runtime (= {FULL})" in field(package, "Depends").split(", ")
    assert f"gangline-runtime = {FULL}" in rpm(package, "--requires").splitlines()


@pytest.mark.parametrize("package", PACKAGES)
def test_old_dpkg_and_rpm_can_read_it(package: str) -> None:
    """Debian 11's dpkg and early RHEL 8's rpm read no zstd."""
    listed = subprocess.run(
        ["ar", "t", str(path_of(package, "deb"))], check=True, capture_output=True, text=True
    )
    assert {name for name in listed.stdout.split() if name.startswith("data.")} == {"data.tar.xz"}
    assert rpm(package, "--qf", "%{PAYLOADCOMPRESSOR}") == "xz"
    assert "Zstd" not in rpm(package, "--requires")


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_settings_are_kept_on_upgrade(package: str) -> None:
    """An upgrade that removed the aggregator's address would silence the agent."""
    name = f"/etc/gangline/{package.removeprefix('gangline-')}.toml"
    with tar_of(package, "--ctrl-tarfile") as control:
        assert text_of(control, "./conffiles").split() == [name]
    flags = rpm(package, "--qf", r"[%{FILENAMES} %{FILEFLAGS:fflags}\n]")
    assert dict(line.split(" ") for line in flags.splitlines())[name] == "cn"


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_the_scripts_are_in_it(package: str) -> None:
    """In the deb and in the rpm, and no script hides a failure."""
    with tar_of(package, "--ctrl-tarfile") as control:
        for kind in ("preinst", "postinst", "prerm", "postrm"):
            text = text_of(control, f"./{kind}")
            assert text.startswith("#!/bin/sh\nset -e\n")
            assert not re.search(r"\|\|\s*(true|:)", text)
    shown = rpm(package, "--scripts")
    assert shown.count("make_user()") == 4


def test_the_wheels_are_those_of_the_tests() -> None:
    """The shipped versions are the tested versions: those of packaging/constraints.txt."""
    pins = dict(
        line.split("==")
        for line in (ROOT / "packaging" / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    named = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    for package in PACKAGES:
        with tar_of(package) as tar:
            for name in tar.getnames():
                if (
                    match := re.search(r"site-packages/([^/]+)-([^-/]+)\.dist-info$", name)
                ) is None:
                    continue
                project = re.sub(r"[-_.]+", "-", match[1]).lower()
                assert match[2] == (VERSION if project == "gangline" else named[project]), name


def test_bytecode_is_in_it() -> None:
    """Root's folder is not writable: without bytecode every start compiles everything, for seconds of CPU.

    Libraries come without their sources: dpkg waits for the disk once per file.
    """
    for package in PACKAGES:
        with tar_of(package) as tar:
            names = set(tar.getnames())
        sources = [name for name in names if name.endswith(".py") and name.startswith("./opt/")]
        for name in sources:
            assert "/site-packages/gangline/" in name
            folder, _, file = name.rpartition("/")
            assert f"{folder}/__pycache__/{file.removesuffix('.py')}.cpython-313.pyc" in names
        compiled = [name for name in names if name.endswith(".pyc")]
        assert len(compiled) > len(sources) or package == "gangline-agent"


@pytest.mark.parametrize("package", PACKAGES)
def test_lintian(package: str) -> None:
    """Clean, except for the entries of packaging/lintian, each with its reason."""
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed: apt-get install lintian")
    shown = subprocess.run(
        ["lintian", "--fail-on", "error,warning", "--tag-display-limit", "0", "--allow-root", str(path_of(package, "deb"))],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (shown.returncode, shown.stdout) == (0, "")


@pytest.mark.parametrize("package", PACKAGES)
def test_rpmlint(package: str) -> None:
    """Clean, except for the entries of packaging/rpmlint.toml, each with its reason."""
    if shutil.which("rpmlint") is None:
        pytest.skip("rpmlint is not installed: apt-get install rpmlint")
    config = ROOT / "packaging" / "rpmlint.toml"
    shown = subprocess.run(
        ["rpmlint", "--config", str(config), str(path_of(package, "rpm"))],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    wrong = [line for line in shown.stdout.splitlines() if re.search(r": [EW]: ", line)]
    assert (shown.returncode, wrong) == (0, [])


def test_sizes() -> None:
    """The bars of the product: 15 MB to fetch and 60 MB installed for the agent, 130 and 450 for the aggregator."""
    installed = {}
    for package in PACKAGES:
        with tar_of(package) as tar:
            installed[package] = sum(member.size for member in tar.getmembers())
    runtime = "gangline-runtime"
    for package, fetch_max, installed_max in (
        ("gangline-agent", 15, 60),
        ("gangline-aggregator", 130, 450),
    ):
        for kind in ("deb", "rpm"):
            fetch = [path_of(name, kind).stat().st_size for name in (runtime, package)]
            assert sum(fetch) / 1e6 <= fetch_max, kind
        assert (installed[runtime] + installed[package]) / 1e6 <= installed_max
