"""Small packages with the real maintainer scripts, and a copy of this machine's root file system that they are installed into."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BUILD = Path(__file__).parent.parent.parent / "packaging" / "build"
PACKAGES = ("gangline-runtime", "gangline-agent", "gangline-aggregator")
#: rpm calls its scripts by other names.
SECTIONS = {"preinst": "pre", "postinst": "post", "prerm": "preun", "postrm": "postun"}
NEEDED = "needs root, or user namespaces with overlayfs (sysctl kernel.unprivileged_userns_clone=1)"


def scripts(version: str, store_version: int, folder: Path) -> dict[str, dict[str, str]]:
    """Return package -> kind -> text, as `make packages` puts them together."""
    sys.path.insert(0, str(BUILD))
    try:
        packages = importlib.import_module("packages")
        patched = pytest.MonkeyPatch()
        with patched.context() as patch:
            patch.setattr(packages, "full_version", lambda: version)
            patch.setattr(packages, "schema_version", lambda: store_version)
            folder.mkdir(parents=True, exist_ok=True)
            return {
                package: {
                    kind: script.read_text()
                    for kind in SECTIONS
                    if (script := packages.script(package, kind, folder)) is not None
                }
                for package in PACKAGES
            }
    finally:
        sys.path.remove(str(BUILD))
        for name in ("packages", "trees", "wheels", "sbom", "runtime", "sources"):
            sys.modules.pop(name, None)


def tree(package: str, version: str, root: Path) -> None:
    """Create a small copy of a package's files: a program that prints its version, and a file of each kind."""
    own = root / f"opt/gangline/packages/{package.removeprefix('gangline-')}"
    (own / "lib").mkdir(parents=True)
    (own / "lib" / f"{package}.txt").write_text(version)
    if package == "gangline-runtime":
        for folder in (own / "bin", root / "opt/gangline/bin"):
            folder.mkdir(parents=True)
        (own / "bin" / "gangline").write_text(f"#!/bin/sh\necho {version}\n")
        shutil.copy("/bin/sleep", own / "bin" / "sleep")
        (root / "opt/gangline/bin/gangline").symlink_to("../current/bin/gangline")
        clean = root / "opt/gangline/bin/remove-old-versions"
        shutil.copyfile(BUILD.parent / "scripts" / "remove_old_versions.sh", clean)
        for program in (own / "bin" / "gangline", clean):
            program.chmod(0o755)


def write_debs(version: str, folder: Path, store_version: int = 19) -> list[Path]:
    paths = []
    for package, texts in scripts(version, store_version, folder / "scripts").items():
        root = folder / f"{package}-{version}"
        tree(package, version, root)
        control = root / "DEBIAN"
        control.mkdir()
        needs = "" if package == PACKAGES[0] else f"Depends: gangline-runtime (= {version})\n"
        (control / "control").write_text(
            f"Package: {package}\nVersion: {version}\nArchitecture: all\nMaintainer: Nobody <n@localhost>\n"
            f"{needs}Description: stub\n"
        )
        for kind, text in texts.items():
            (control / kind).write_text(text)
            (control / kind).chmod(0o755)
        deb = folder / f"{package}_{version}.deb"
        subprocess.run(
            ["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", str(root), str(deb)], check=True, capture_output=True,
        )  # fmt: skip
        paths.append(deb)
    return paths


def write_rpms(version: str, folder: Path, store_version: int = 19) -> list[Path]:
    number, _, release = version.partition("-")
    paths = []
    for package, texts in scripts(version, store_version, folder / "scripts").items():
        root = folder / f"{package}-{version}"
        tree(package, version, root)
        needs = "" if package == PACKAGES[0] else f"Requires: gangline-runtime = {version}\n"
        head = {
            "Name": package,
            "Version": number,
            "Release": release,
            "Summary": "stub",
            "License": "MIT",
            "AutoReqProv": "no",
        }
        parts = [*(f"{name}: {value}" for name, value in head.items()), needs.strip()]
        parts += ["%description", "stub", "%install", f"cp -a {root}/. %{{buildroot}}/"]
        parts += ["%files", "/opt/gangline"]
        for kind, text in texts.items():
            parts.append(f"%{SECTIONS[kind]} -p /bin/sh\n{text.replace('%', '%%')}")
        spec = folder / f"{package}-{version}.spec"
        spec.write_text("\n".join(parts) + "\n")
        defines = [f"_topdir {folder}/rpm", "_build_id_links none", "__os_install_post %{nil}"]
        arguments = [word for define in defines for word in ("--define", define)]
        ended = subprocess.run(
            ["rpmbuild", "-bb", "--quiet", *arguments, str(spec)],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        (built_package,) = (folder / "rpm" / "RPMS").rglob(f"{package}-{number}-{release}.*.rpm")
        paths.append(built_package)
    return paths


class OverlaidRoot:
    """This machine's root file system, changed in a folder only; nothing of it outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"

    def run(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
        ended = subprocess.run(
            ["chroot", str(self.root), "/bin/sh", "-c", command],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip
        assert not check or ended.returncode == 0, f"{command}: {ended.stdout}"
        return ended


@contextmanager
def overlaid_root(folder: Path) -> Iterator[OverlaidRoot]:
    """Mount it. Skips where that is not allowed."""
    if os.geteuid():
        pytest.skip(NEEDED)
    layers = folder / "layers"
    layers.mkdir()
    for name in ("upper", "work", "root"):
        (folder / name if name == "root" else layers / name).mkdir()
    root = folder / "root"
    mounts = [
        ["mount", "-t", "tmpfs", "gangline-test", str(layers)],
        ["sh", "-c", f"mkdir {layers}/upper {layers}/work"],
        ["mount", "-t", "overlay", "-o", f"lowerdir=/,upperdir={layers}/upper,workdir={layers}/work", "gangline-test", str(root)],
        ["mount", "--rbind", "/proc", str(root / "proc")],
        ["mount", "-t", "tmpfs", "gangline-test", str(root / "run")],
    ]  # fmt: skip
    try:
        for command in mounts:
            ended = subprocess.run(command, check=False, capture_output=True, text=True)
            if ended.returncode:
                pytest.skip(f"{NEEDED}: {ended.stderr.strip()}")
        yield OverlaidRoot(folder)
    finally:
        for path in (root / "proc", root / "run", root, layers):
            subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)
