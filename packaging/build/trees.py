"""Assembles the files of each package, in a folder per package, from a runtime, the pinned wheels and this checkout.

The runtime package has CPython, the agent's wheels, and the code of Gangline that agent and aggregator share. The agent and
aggregator packages add their own code and wheels; no file is in two packages.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

from runtime import COMPILE_TOOLS, PREFIX, WITH_HASHES, Toolchain, architecture
from sources import BuildError, sha256_of
from wheels import ROOT, for_target, pip

#: Release number: counts the builds of a version. Packages of a build depend on packages of the same build.
RELEASE = os.environ.get("PACKAGE_RELEASE") or "1"
#: Path below the package's folder /opt/gangline/packages/NAME, which dpkg and rpm replace. Nothing runs from this
#: folder: each version runs from a folder of hard links, /opt/gangline/versions/VERSION
#: (packaging/scripts/functions.sh).
SITE = "lib/python3.13/site-packages"
#: Package -> folders of Gangline in this package; the runtime package has the other folders.
FOLDERS = {
    "gangline-agent": ("agent",),
    "gangline-aggregator": ("aggregator", "executors", "fingerprints", "simulator"),
}
#: Files of wheels that are left out: headers, tests and sources of C extensions, which nothing imports, and 70 MB of
#: Kubernetes' model classes, which executors do not load.
WHEELS_WITHOUT = (
    "bin", "pyarrow/include", "pyarrow/tests", "pyarrow/src", "numpy/_core/include", "numpy/*/tests", "numpy/tests",
    "numpy/distutils", "scipy/**/tests", "sklearn/**/tests", "psutil/tests", "kubernetes/aio", "kubernetes/client/api/[a-z]*.py", "kubernetes/client/models/[a-z]*.py",
    "**/*.pxd", "**/*.pyx", "**/*.c", "**/*.h", "**/*.hpp", "**/*.lib", "**/*.a",
    "*.dist-info/RECORD", "*.dist-info/INSTALLER", "*.dist-info/REQUESTED", "*.dist-info/direct_url.json",
)  # fmt: skip
#: Package -> file of the checkout -> its path in the package.
FILES = {
    "gangline-agent": {
        "packaging/systemd/gangline-agent.service": "lib/systemd/system/gangline-agent.service",
        "packaging/systemd/sysusers.d/gangline.conf": "usr/lib/sysusers.d/gangline.conf",
        "packaging/systemd/tmpfiles.d/gangline.conf": "usr/lib/tmpfiles.d/gangline.conf",
        "packaging/systemd/agent.toml": "etc/gangline/agent.toml",
    },
    "gangline-aggregator": {
        "packaging/systemd/gangline-aggregator.service": "lib/systemd/system/gangline-aggregator.service",
        "packaging/systemd/gangline-backup.service": "lib/systemd/system/gangline-backup.service",
        "packaging/systemd/gangline-backup.timer": "lib/systemd/system/gangline-backup.timer",
        "packaging/systemd/sysusers.d/gangline-aggregator.conf": "usr/lib/sysusers.d/gangline-aggregator.conf",
        "packaging/systemd/tmpfiles.d/gangline-aggregator.conf": "usr/lib/tmpfiles.d/gangline-aggregator.conf",
        "packaging/systemd/aggregator.toml": "etc/gangline/aggregator.toml",
        "packaging/prometheus/gangline.rules.yml": "usr/share/gangline/prometheus/gangline.rules.yml",
        "executors/slurm/plugin/gangline-executor.service": "usr/share/gangline/slurm/gangline-executor.service",
        "executors/slurm/plugin/gangline-mirror.service": "usr/share/gangline/slurm/gangline-mirror.service",
        "executors/slurm/plugin/job_submit.lua": "usr/share/gangline/slurm/job_submit.lua",
        "executors/slurm/plugin/mirror_reader.c": "usr/share/gangline/slurm/mirror_reader.c",
    },
}
PACKAGES = ("gangline-runtime", *FOLDERS)
#: The command `gangline`. It removes PYTHONHOME and PYTHONPATH: HPC modules set both for another Python. It names the
#: interpreter of its own version, so that its child processes have the same version. All processes use UTF-8 mode: the
#: runtime has no codec for a locale such as zh_CN.GB18030, and an interpreter without the codec of its locale does not
#: start.
LAUNCHER = f"""#!{PREFIX}/versions/{{version}}/bin/python3.13 -EsPXutf8
import os
import sys

for name in ("PYTHONHOME", "PYTHONPATH"):
    os.environ.pop(name, None)
os.environ["PYTHONUTF8"] = "1"

from gangline.cli import main

sys.exit(main())
"""

#: Script with the arguments: folder, its installed path, a pattern of excluded paths, and "legacy" to write x.pyc next
#: to x.py ("": into __pycache__).
COMPILE = """
import compileall, py_compile, re, sys
folder, installed, without, legacy = sys.argv[1:]
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
sys.exit(not compileall.compile_dir(folder, stripdir=folder, prependdir=installed, rx=re.compile(without), legacy=bool(legacy),
    invalidation_mode=mode, quiet=1, force=True, workers=1, maxlevels=40))
"""


def version() -> str:
    """Return Gangline's version from pyproject.toml."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def full_version() -> str:
    """Return VERSION-RELEASE, the version of the deb and rpm packages."""
    return f"{version()}-{RELEASE}"


def schema_version() -> int:
    """Return the version of this aggregator's store: the number of the last migration."""
    return max(int(path.name[:4]) for path in (ROOT / "aggregator" / "sql").glob("[0-9]*_*.sql"))


def tree_of(package: str) -> str:
    """Return the folder into which dpkg and rpm unpack *package*, relative to the root."""
    return f"{PREFIX.lstrip('/')}/packages/{package.removeprefix('gangline-')}"


def unpack_wheel(wheel: Path, site: Path) -> None:
    """Unpack *wheel* into *site* as pip does, including `purelib` and `platlib`, but without scripts and headers.

    Raises BuildError for an entry outside *site*.
    """
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            name = entry.filename
            if (found := re.match(r"[^/]+\.data/([^/]+)/(.*)", name)) is not None:
                if found[1] not in ("purelib", "platlib"):
                    continue
                name = found[2]
            to = (site / name).resolve()
            if not to.is_relative_to(site.resolve()):
                raise BuildError(f"{wheel.name}: {entry.filename!r} leaves its folder")
            if not entry.is_dir():
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(archive.read(entry))


def _remove(site: Path, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        for path in list(site.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _link_same_libraries(site: Path) -> None:
    """Replace copies of a library by links: a wheel cannot hold links, and has a copy for each name of the library."""
    seen: dict[bytes, Path] = {}
    for path in sorted(site.glob("pyarrow/*.so*"), key=lambda path: (len(path.name), path.name)):
        digest = hashlib.sha256(path.read_bytes()).digest()
        first = seen.setdefault(digest, path)
        if first is not path:
            path.unlink()
            path.symlink_to(first.name)


def build_gangline(python: Path, chain: Toolchain, tools: Path, work: Path) -> Path:
    """Compile this checkout for the runtime, and return the wheel.

    The source is a copy of the files that git does not ignore.
    """
    source = work / "gangline"
    shutil.rmtree(source, ignore_errors=True)
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    needed = work / f"build-site-{sha256_of(COMPILE_TOOLS)[:16]}"
    if not needed.exists():
        target = for_target(architecture())
        pip(tools, "install", "--quiet", *target, "--target", needed, *WITH_HASHES, COMPILE_TOOLS)
    log = work / "gangline.log"
    log.unlink(missing_ok=True)
    chain.run(
        [str(python), "setup.py", "bdist_wheel", "--dist-dir", str(work / "dist")],
        source, log,
        PYTHONPATH=str(needed), LDSHARED="gangline-cc -shared -Wl,-s", CFLAGS="-O2 -g0 -DNDEBUG -fwrapv -fPIC",
    )  # fmt: skip
    (wheel,) = (work / "dist").glob("gangline-*.whl")
    return wheel


def split_gangline(site: Path, stage: Path) -> None:
    """Move the folders of FOLDERS from *site*, the runtime's, into their own packages."""
    for package, folders in FOLDERS.items():
        to = stage / package / tree_of(package) / SITE / "gangline"
        to.mkdir(parents=True, exist_ok=True)
        for folder in folders:
            shutil.move(site / "gangline" / folder, to / folder)


def compile_bytecode(python: Path, tree: Path, epoch: int) -> None:
    """Compile all modules in a package's *tree*, as bytecode that Python never checks against the sources.

    A check is useless: only root can write the installed files, and all of them have the same date. Gangline keeps its
    sources, so that tracebacks quote them. Libraries are shipped as compiled modules alone: this halves the number of files,
    and dpkg syncs each file to the disk.
    """
    own = tree / SITE / "gangline"
    folders = [(tree / "lib", "/site-packages/gangline/", "legacy")]
    if own.exists():
        folders.append((own, "^$", ""))
    for folder, without, legacy in folders:
        installed = f"{PREFIX}/current/{folder.relative_to(tree)}"
        subprocess.run(
            [str(python), "-EsP", "-X", "no_debug_ranges", "-c", COMPILE, str(folder), installed, without, legacy],
            check=True,
            env={"PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C"},
        )  # fmt: skip
    for source in list((tree / "lib").rglob("*.py")):
        if not source.is_relative_to(own):
            source.unlink()


def write_manuals(
    python: Path, sites: list[Path], tools: Path, work: Path, stage: Path, epoch: int
) -> None:
    """Write man pages and shell completion of the installed commands. Raises BuildError."""
    (needed,) = tools.parent.glob("lib/python3*/site-packages")
    script = Path(__file__).with_name("manuals.py")
    said = subprocess.run(
        [str(python), "-sPB", str(script), str(stage), str(epoch)],
        env={"PYTHONPATH": ":".join(map(str, [*sites, needed])), "LC_ALL": "C.UTF-8", "COLUMNS": "80"},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if said.returncode:
        raise BuildError(f"the man pages cannot be made: {said.stderr[-2000:]}")


def _documents(stage: Path, package: str) -> None:
    """Copy the operations and security manuals into the package's Debian documentation folder."""
    folder = stage / package / "usr" / "share" / "doc" / package
    folder.mkdir(parents=True, exist_ok=True)
    if package != "gangline-runtime":
        for name in ("operations.md", "security.md"):
            shutil.copyfile(ROOT / "docs" / name, folder / name)


def assemble(
    runtime: Path,
    wheels: dict[str, list[Path]],
    chain: Toolchain,
    tools: Path,
    work: Path,
    epoch: int,
) -> Path:
    """Assemble all packages; return the folder that has a complete folder per package, with all dates set."""
    stage = work / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    for package in PACKAGES:
        (stage / package).mkdir(parents=True)
    whole = work / "python"
    shutil.rmtree(whole, ignore_errors=True)
    with tarfile.open(runtime) as archive:
        archive.extractall(whole, filter="tar")
    python = whole / PREFIX.lstrip("/") / "bin" / "python3.13"
    prefix = stage / "gangline-runtime" / PREFIX.lstrip("/")
    shutil.copytree(
        whole / PREFIX.lstrip("/"), stage / "gangline-runtime" / tree_of("runtime"), symlinks=True
    )
    shutil.rmtree(stage / "gangline-runtime" / tree_of("runtime") / "include")
    # OpenSSL has this path compiled in; its contents are the same in each version.
    shutil.move(stage / "gangline-runtime" / tree_of("runtime") / "ssl", prefix / "ssl")
    for package, files in wheels.items():
        site = stage / package / tree_of(package) / SITE
        site.mkdir(parents=True, exist_ok=True)
        for wheel in files:
            unpack_wheel(wheel, site)
        _remove(site, WHEELS_WITHOUT)
        _link_same_libraries(site)
    site = stage / "gangline-runtime" / tree_of("runtime") / SITE
    unpack_wheel(build_gangline(python, chain, tools, work), site)
    _remove(site, ("*.dist-info/RECORD", "gangline/ext/*.pxd", "gangline/**/*.proto"))
    write_manuals(
        python,
        [site, stage / "gangline-aggregator" / tree_of("aggregator") / SITE],
        tools,
        work,
        stage,
        epoch,
    )
    split_gangline(site, stage)
    _command(stage / "gangline-runtime")
    for package in PACKAGES:
        for source, to in FILES.get(package, {}).items():
            (stage / package / to).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / source, stage / package / to)
        compile_bytecode(python, stage / package / tree_of(package), epoch)
        _documents(stage, package)
        set_modes_and_dates(stage / package, epoch)
    return stage


def _command(root: Path) -> None:
    """Install this version's launcher, /opt/gangline/bin/gangline for the current version, and a link in /usr/bin."""
    launcher = root / tree_of("runtime") / "bin" / "gangline"
    launcher.write_text(LAUNCHER.format(version=full_version()))
    launcher.chmod(0o755)
    programs = root / PREFIX.lstrip("/") / "bin"
    programs.mkdir(parents=True)
    (programs / "gangline").symlink_to("../current/bin/gangline")
    shutil.copyfile(
        ROOT / "packaging" / "scripts" / "remove_old_versions.sh", programs / "remove-old-versions"
    )
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "usr" / "bin" / "gangline").symlink_to(f"{PREFIX}/bin/gangline")


def set_modes_and_dates(root: Path, epoch: int) -> None:
    """Set the date of every file and folder to *epoch*, and its mode to 0755 (folders and programs) or 0644."""
    prefix = root / PREFIX.lstrip("/")
    programs = (prefix / "bin", prefix / "packages" / "runtime" / "bin")
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            runs = path.is_dir() or path.parent in programs
            path.chmod(0o755 if runs else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


if __name__ == "__main__":
    sys.exit("run packaging/build/packages.py")
