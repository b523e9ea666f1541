"""Builds the runtime: CPython with OpenSSL, libffi, zlib and SQLite, for every Linux from a chosen glibc on.

    python3 packaging/build/runtime.py --work FOLDER [--sources FOLDER]

It writes FOLDER/gangline-python-VERSION-ARCH.tar.xz, which `make packages RUNTIME=` uses on any machine, and prints its SHA-256.
The archive contains nothing from the build machine: compiler and glibc come from PyPI's `ziglang`, the sources are in pins.toml.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sources import BuildError, Pins, fetch, read_pins, sha256_of, unpack

PREFIX = "/opt/gangline"
#: pip's requirements, with hashes, of the tools: TOOLS run on this machine, COMPILE_TOOLS compile modules for the
#: runtime.
TOOLS, COMPILE_TOOLS = (Path(__file__).with_name(name) for name in ("tools.txt", "compile.txt"))
WITH_HASHES = ("--require-hashes", "--only-binary", ":all:", "--requirement")
#: Commands of this machine that the build needs -> Debian's package.
COMMANDS = {
    "make": "make",
    "perl": "perl",
    "patch": "patch",
    "xz": "xz-utils",
    "autoreconf": "autoconf",
    "automake": "automake",
    "libtoolize": "libtool",
    "tclsh": "tcl",
    "cc": "gcc",
}
#: Parts of OpenSSL that Gangline never calls.
OPENSSL_WITHOUT = [
    "shared",
    "apps",
    "tests",
    "docs",
    "engine",
    "legacy",
    "module",
    "comp",
    "quic",
    "ssl3",
    "dtls",
    "srp",
    "psk",
    "idea",
    "seed",
    "camellia",
]
#: Standard modules that need a further library and that a daemon does not need.
MODULES_WITHOUT = [
    "_bz2",
    "_curses",
    "_curses_panel",
    "_dbm",
    "_gdbm",
    "_lzma",
    "_tkinter",
    "_uuid",
    "nis",
    "readline",
]
#: Codecs of encodings that no driver and no kernel writes. The command uses UTF-8 mode in any locale.
CODECS_WITHOUT = [f"_codecs_{each}" for each in ("cn", "hk", "iso2022", "jp", "kr", "tw")] + [
    "_multibytecodec"
]
#: Parts of Python's library that a service never imports, or that do not work in this runtime.
LIBRARY_WITHOUT = [
    "__phello__",
    "_pyrepl",
    "curses",
    "dbm",
    # Code pages of DOS, mainframes and old Macintoshes, and encodings whose tables are in CODECS_WITHOUT.
    "encodings/big5*",
    "encodings/cp[0789]*",
    "encodings/cp1[01]*",
    "encodings/euc_*",
    "encodings/gb*",
    "encodings/hz.py",
    "encodings/iso2022_*",
    "encodings/johab.py",
    "encodings/mac_*",
    "encodings/shift_jis*",
    "ensurepip",
    "idlelib",
    "pydoc_data",
    "test",
    "tkinter",
    "turtle.py",
    "turtledemo",
    "venv",
    "wsgiref",
    "xmlrpc",
    "config-*",
    "site-packages/README.txt",
]


def architecture() -> str:
    """Return the machine's architecture, x86_64 or aarch64. Raises BuildError for another architecture."""
    found = platform.machine()
    if found not in ("x86_64", "aarch64"):
        raise BuildError(f"no packages for {found}: expected x86_64 or aarch64")
    return found


def check_commands() -> None:
    """Raise BuildError if a command of COMMANDS is missing, with the line that installs its package."""
    missing = sorted(package for name, package in COMMANDS.items() if shutil.which(name) is None)
    if missing:
        raise BuildError(
            f"the runtime needs commands that are missing; install them with: sudo apt-get install "
            f"{' '.join(missing)} libltdl-dev; or hand in a runtime: make packages RUNTIME=FILE RUNTIME_SHA256=HEX"
        )


def install_tools(work: Path) -> Path:
    """Install the tools of tools.txt from PyPI, checked against their SHA-256; return the folder of their commands."""
    folder = work / "tools"
    stamp = folder / "ready"
    if not stamp.exists() or stamp.read_text() != TOOLS.read_text():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "pip"), "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *WITH_HASHES, str(TOOLS)], check=True)
        stamp.write_text(TOOLS.read_text())
    return folder / "bin"


@dataclass(frozen=True)
class Toolchain:
    """The compiler for the pinned glibc: a folder of commands, and the environment with this folder in PATH."""

    folder: Path
    environment: dict[str, str]

    def run(self, command: Iterable[str], where: Path, log: Path, **more: str) -> None:
        """Run *command* in *where*, and append its output to *log*. Raises BuildError with the log's end."""
        words = list(command)
        with log.open("a") as file:
            print("+", *words, file=file, flush=True)
            said = subprocess.run(
                words,
                cwd=where,
                check=False,
                env={**self.environment, **more},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        if said.returncode:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
            raise BuildError(
                f"{words[0]} ended with {said.returncode} in {where}; all of it: {log}\n{end}"
            )


def toolchain(pins: Pins, work: Path, epoch: int) -> Toolchain:
    """Write `gangline-cc`, `-ar` and `-ranlib`, so that no path of this machine is compiled in."""
    tools = install_tools(work)
    zig = next(tools.parent.glob("lib/python3*/site-packages/ziglang/zig"))
    folder = work / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    target = f"{architecture()}-linux-gnu.{pins.glibc}"
    flags = f"-target {target} -Wno-date-time -ffile-prefix-map={work}=/usr/src/gangline"
    for name, call in (
        ("cc", f"cc {flags}"),
        ("c++", f"c++ {flags}"),
        ("ar", "ar"),
        ("ranlib", "ranlib"),
    ):
        script = folder / f"gangline-{name}"
        script.write_text(f'#!/bin/sh\nexec "{zig}" {call} "$@"\n')
        script.chmod(0o755)
    environment = {
        "PATH": f"{folder}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(work),
        "LC_ALL": "C",
        "TZ": "UTC",
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ZIG_GLOBAL_CACHE_DIR": str(work / "zig-cache"),
        "ZIG_LOCAL_CACHE_DIR": str(work / "zig-cache"),
        "CC": "gangline-cc",
        "CXX": "gangline-c++",
        "AR": "gangline-ar",
        "RANLIB": "gangline-ranlib",
        "PKG_CONFIG": "/bin/false",
    }
    return Toolchain(folder, environment)


@dataclass(frozen=True)
class Build:
    """A build of the runtime: pins, working folder and compiler."""

    pins: Pins
    work: Path
    tools: Toolchain

    @property
    def dependencies(self) -> Path:
        """The static libraries and their headers."""
        return self.work / "dependencies"

    @property
    def jobs(self) -> str:
        return f"-j{len(os.sched_getaffinity(0))}"

    def unpacked(self, name: str) -> Path:
        return unpack(self.pins.sources[name], self.work / "archives", self.work / "src" / name)

    def run(self, name: str, where: Path, *command: str, **more: str) -> None:
        self.tools.run(command, where, self.work / f"{name}.log", **more)


def build_zlib(build: Build) -> None:
    folder = build.unpacked("zlib")
    flags = {"CFLAGS": "-O3 -g0 -fPIC"}
    build.run("zlib", folder, "./configure", "--static", f"--prefix={build.dependencies}", **flags)
    build.run("zlib", folder, "make", build.jobs, "libz.a")
    build.run("zlib", folder, "make", "install")


def build_libffi(build: Build) -> None:
    folder = build.unpacked("libffi")
    build.run("libffi", folder, "autoreconf", "--force", "--install")
    options = (
        "--disable-shared --enable-static --disable-docs --disable-multi-os-directory --with-pic"
    )
    build.run(
        "libffi", folder, "./configure", *options.split(), f"--prefix={build.dependencies}",
        f"--libdir={build.dependencies}/lib", CFLAGS="-O2 -g0", CXX="gangline-cc", CXXCPP="gangline-cc -E",
    )  # fmt: skip
    build.run("libffi", folder, "make", build.jobs, "install")


def build_sqlite3(build: Build) -> None:
    """A static SQLite: pyroute2 imports it, and a store of its is never opened."""
    folder = build.unpacked("sqlite3")
    # Its own tools run here and now; only what they write is compiled for the target.
    own = {"CC": "cc", "AR": "ar", "RANLIB": "ranlib"}
    build.run("sqlite3", folder, "./configure", "--disable-tcl", "--disable-readline", **own)
    build.run("sqlite3", folder, "make", "sqlite3.c", **own)
    flags = "-O2 -g0 -fPIC -DSQLITE_OMIT_LOAD_EXTENSION -DSQLITE_THREADSAFE=1 -DSQLITE_ENABLE_COLUMN_METADATA"
    build.run("sqlite3", folder, "gangline-cc", *flags.split(), "-c", "sqlite3.c")
    build.run("sqlite3", folder, "gangline-ar", "rcs", "libsqlite3.a", "sqlite3.o")
    for name in ("sqlite3.h", "libsqlite3.a"):
        to = build.dependencies / ("lib" if name.endswith(".a") else "include")
        to.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, to)


def build_openssl(build: Build) -> None:
    """A static OpenSSL with a folder of settings of its own: a distribution's openssl.cnf names what this one lacks."""
    folder = build.unpacked("openssl")
    target = {"x86_64": "linux-x86_64", "aarch64": "linux-aarch64"}[architecture()]
    build.run(
        "openssl", folder, "perl", "./Configure", target, "-O2", "-g0", "-fPIC",
        f"--prefix={PREFIX}", "--libdir=lib", f"--openssldir={PREFIX}/ssl",
        *(f"no-{part}" for part in OPENSSL_WITHOUT),
    )  # fmt: skip
    build.run("openssl", folder, "make", build.jobs, "build_libs")
    for name in ("libcrypto.a", "libssl.a"):
        shutil.copy(folder / name, build.dependencies / "lib")
    shutil.copytree(
        folder / "include" / "openssl",
        build.dependencies / "include" / "openssl",
        ignore=shutil.ignore_patterns("*.in"),
        dirs_exist_ok=True,
    )


def build_python(build: Build) -> None:
    """CPython, installed below `root`, with every library inside its modules."""
    folder = build.unpacked("python3.13")
    include, lib = build.dependencies / "include", build.dependencies / "lib"
    # Both hold OpenSSL: in the program it is there once.
    local = folder / "Modules" / "Setup.local"
    local.write_text(
        "*static*\n_ssl _ssl.c\n_hashlib _hashopenssl.c\n*disabled*\n"
        + "\n".join(CODECS_WITHOUT)
        + "\n"
    )
    settings = {
        "OPT": "-DNDEBUG -O3 -g0 -fwrapv -Wall",
        "CFLAGS": "-fomit-frame-pointer",
        "LDFLAGS": "-Wl,-s",
        "ZLIB_CFLAGS": f"-I{include}", "ZLIB_LIBS": f"{lib}/libz.a",
        "LIBFFI_CFLAGS": f"-I{include}", "LIBFFI_LIBS": f"{lib}/libffi.a",
        "LIBSQLITE3_CFLAGS": f"-I{include}", "LIBSQLITE3_LIBS": f"-L{lib} -lsqlite3 -lm",
        **{f"py_cv_module_{name}": "n/a" for name in MODULES_WITHOUT},
    }  # fmt: skip
    build.run(
        "python", folder, "./configure", f"--prefix={PREFIX}", "--without-ensurepip", "--disable-test-modules",
        "--without-readline", "--with-computed-gotos", f"--with-openssl={build.dependencies}",
        "--enable-ipv6", "--without-doc-strings", **settings,
    )  # fmt: skip
    build.run("python", folder, "make", build.jobs)
    root = build.work / "root"
    shutil.rmtree(root, ignore_errors=True)
    build.run("python", folder, "make", "install", f"DESTDIR={root}")


STAGES = {
    "zlib": build_zlib,
    "libffi": build_libffi,
    "sqlite3": build_sqlite3,
    "openssl": build_openssl,
    "python": build_python,
}


def _trim(root: Path) -> None:
    """Remove files that a service does not need, and files with paths of the build machine."""
    there = root / PREFIX.lstrip("/")
    for name in ("share", "lib/pkgconfig"):
        shutil.rmtree(there / name, ignore_errors=True)
    keep = re.compile(r"python3(\.\d+)?")
    for path in (there / "bin").iterdir():
        if not keep.fullmatch(path.name):
            path.unlink()
    for static in (there / "lib").glob("*.a"):
        static.unlink()
    (library,) = (there / "lib").glob("python3.*")
    for pattern in LIBRARY_WITHOUT:
        for path in library.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for cache in list(library.rglob("__pycache__")):
        shutil.rmtree(cache)


def _hide_folders(root: Path, work: Path) -> None:
    """Replace this machine's folders in shipped Python files (sysconfig records how modules were compiled)."""
    for path in root.rglob("*.py"):
        text = path.read_bytes()
        if str(work).encode() in text:
            path.write_bytes(text.replace(str(work).encode(), b"/usr/src/gangline"))


def _openssl_folder(root: Path) -> None:
    """Write OpenSSL's folder: an empty configuration, and links to the certificate authorities of the host."""
    folder = root / PREFIX.lstrip("/") / "ssl"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "openssl.cnf").write_text("# Empty on purpose: the defaults of OpenSSL.\n")
    for name, target in (("certs", "/etc/ssl/certs"), ("cert.pem", "/etc/pki/tls/cert.pem")):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)


def _licences(root: Path, sources: Path) -> None:
    """Copy the license file of each source."""
    for name in sorted(path.name for path in sources.iterdir()):
        (folder,) = (p for p in (sources / name).iterdir() if p.name != "debian-archive")
        found = [
            folder / each
            for each in ("LICENSE", "LICENSE.txt", "LICENSE.md")
            if (folder / each).exists()
        ]
        to = root / PREFIX.lstrip("/") / "share" / "licenses" / name
        to.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found[0], to / "LICENSE")


def write_archive(root: Path, to: Path, epoch: int) -> None:
    """Write *root* as a tar.xz that depends only on names, contents and modes of files, and on *epoch*."""
    plain = to.with_suffix("")
    with tarfile.open(plain, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            entry = tar.gettarinfo(path, str(path.relative_to(root)))
            entry.mtime, entry.uid, entry.gid = epoch, 0, 0
            entry.uname = entry.gname = "root"
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            if entry.isreg():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
    to.unlink(missing_ok=True)
    subprocess.run(["xz", "-9", "--threads=1", str(plain)], check=True)


def build_runtime(work: Path, handed_in: Path | None, epoch: int) -> Path:
    """Build the stages that changed since the last build; return the archive. Raises BuildError."""
    pins = read_pins()
    check_commands()
    work.mkdir(parents=True, exist_ok=True)
    fetch(pins, work / "archives", handed_in, work)
    build = Build(pins, work, toolchain(pins, work, epoch))
    recipe = repr((pins.tools, pins.glibc, epoch, inspect.getsource(toolchain)))
    for name, stage in STAGES.items():
        stamp = work / f"{name}.done"
        # A stage links the results of earlier stages, so its recipe includes all earlier recipes.
        source = pins.sources["python3.13" if name == "python" else name]
        recipe = hashlib.sha256(f"{recipe}{source}{inspect.getsource(stage)}".encode()).hexdigest()
        if not stamp.exists() or stamp.read_text() != recipe:
            print(f"  building {name} (its output: {work / name}.log)", flush=True)
            (work / f"{name}.log").unlink(missing_ok=True)
            stage(build)
            stamp.write_text(recipe)
    root = work / "archive-root"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(work / "root", root, symlinks=True)
    _trim(root)
    _licences(root, work / "src")
    _hide_folders(root, work)
    _openssl_folder(root)
    version = pins.sources["python3.13"].version.partition("-")[0]
    archive = work / f"gangline-python-{version}-{architecture()}.tar.xz"
    write_archive(root, archive, epoch)
    return archive


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of everything that is built"
    )
    parser.add_argument(
        "--sources", type=Path, help="folder of source archives, instead of Debian's mirror"
    )
    options = parser.parse_args()
    try:
        epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or read_pins().epoch)
        archive = build_runtime(options.work.absolute(), options.sources, epoch)
    except (BuildError, subprocess.CalledProcessError) as error:
        print(f"runtime: {error}", file=sys.stderr)
        return 1
    print(f"{sha256_of(archive)}  {archive}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
