"""`make packages`: builds gangline-runtime, gangline-agent and gangline-aggregator as deb and rpm.

    python3 packaging/build/packages.py [--runtime FILE --runtime-sha256 HEX] [--sources FOLDER] [--work FOLDER] [--to FOLDER]

nFPM writes deb and rpm from the same description, without debhelper, rpmbuild or root. The packages are reproducible: all dates in
them are SOURCE_DATE_EPOCH, by default the date of the last commit.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deb
import rpm
from runtime import PREFIX, architecture, build_runtime, toolchain
from sbom import write_sbom
from sources import BuildError, checked, read_pins, sha256_of
from trees import (
    PACKAGES,
    RELEASE,
    SITE,
    assemble,
    full_version,
    schema_version,
    set_modes_and_dates,
    tree_of,
    version,
)
from wheels import ROOT, download_wheels

MAINTAINER = os.environ.get("PACKAGE_MAINTAINER") or "Gangline <gangline@localhost>"
SCRIPTS = ROOT / "packaging" / "scripts"
DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: dpkg's maintainer script -> its name in nFPM.
SCRIPT_NAMES = {
    "preinst": "preinstall",
    "postinst": "postinstall",
    "prerm": "preremove",
    "postrm": "postremove",
}
#: Package -> (section, short description, long description).
DESCRIPTIONS = {
    "gangline-runtime": (
        "libs",
        "Python runtime of Gangline",
        "CPython with OpenSSL and the pinned libraries that Gangline's agent and\naggregator run on, below /opt/gangline. It needs no Python of the system.",
    ),
    "gangline-agent": (
        "admin",
        "GPU host health agent of Gangline",
        "Samples GPUs, links, NICs, disks and the kernel log of a host each second,\nfinds faults, answers health checks of a scheduler, and reports to an\naggregator where there is one.",
    ),
    "gangline-aggregator": (
        "admin",
        "Health scores of a GPU cluster",
        "Stores what Gangline's agents report, scores every host and says why, in\nwords and in SQL. Brings the commands of operators too.",
    ),
}
#: Package -> system libraries that its wheels load, except glibc: Debian's package -> RHEL's package.
LIBRARIES = {
    "gangline-runtime": {"libstdc++6": "libstdc++"},
    "gangline-aggregator": {"libstdc++6": "libstdc++", "zlib1g": "zlib"},
}


def description(package: str) -> str:
    """Return the description that dpkg and rpm show."""
    _, short, long = DESCRIPTIONS[package]
    return f"{short}\n{long}"


def script(package: str, kind: str, folder: Path) -> Path | None:
    """Write a maintainer script from the build's versions, the shared functions and the package's own text.

    Return its path; None if the package has no script of this kind.
    """
    own = SCRIPTS / f"{package}.{kind}"
    if not own.exists():
        return None
    functions = (SCRIPTS / "functions.sh").read_text()
    to = folder / f"{package}.{kind}"
    build = f"version={full_version()}\nstore_version={schema_version()}\n"
    to.write_text(f"#!/bin/sh\nset -e\n\n{build}\n{functions}\n{own.read_text()}")
    to.chmod(0o755)
    return to


def changelog(package: str, epoch: int) -> bytes:
    """Return the compressed Debian changelog, which refers to CHANGELOG.md for the changes."""
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(epoch))
    text = (
        f"{package} ({full_version()}) unstable; urgency=medium\n\n"
        f"  * Gangline {version()}. What changed is in CHANGELOG.md of the source.\n\n"
        f" -- {MAINTAINER}  {date}\n"
    )
    return gzip.compress(text.encode(), 9, mtime=0)


def copyright_text(package: str, root: Path) -> str:
    """Return the Debian copyright file: Gangline's license, and the paths of the bundled components' licenses."""
    lines = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
        "Upstream-Name: gangline",
        "Source: the repository that this package was built from",
        "",
        "Files: *",
        "Copyright: 2026 the Gangline authors",
        "License: Apache-2.0",
        " On Debian systems the text of the Apache License 2.0 is in",
        " /usr/share/common-licenses/Apache-2.0.",
        " .",
        " What is bundled has licences of its own, in these files:",
    ]
    names = ("LICENSE*", "LICENCE*", "COPYING*", "NOTICE*", "AUTHORS*")
    bundled = {path for name in names for path in root.rglob(name) if path.is_file()}
    lines += [f" /{path.relative_to(root)}" for path in sorted(bundled)]
    return "\n".join(lines) + "\n"


def contents(package: str, root: Path) -> list[dict[str, object]]:
    """Return nFPM's list of a package's contents. An upgrade keeps changed files in /etc."""
    where = PREFIX if package == "gangline-runtime" else f"/{tree_of(package)}"
    tree = root / where.lstrip("/")
    found: list[dict[str, object]] = [{"src": str(tree), "dst": where, "type": "tree"}]
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name.startswith("opt/") or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink():
            found.append({"src": os.readlink(path), "dst": f"/{name}", "type": "symlink"})
        else:
            row: dict[str, object] = {"src": str(path), "dst": f"/{name}"}
            if name.startswith("etc/"):
                row["type"] = "config|noreplace"
            found.append(row)
    return found


def describe(package: str, stage: Path, work: Path, epoch: int) -> Path:
    """Write nFPM's description of a package, as JSON, which is valid YAML; return its path."""
    section, short, _ = DESCRIPTIONS[package]
    root = stage / package
    documents = root / "usr" / "share" / "doc" / package
    (documents / "copyright").write_text(copyright_text(package, root))
    (documents / "changelog.Debian.gz").write_bytes(changelog(package, epoch))
    write_sbom(
        package, full_version(), root / tree_of(package) / SITE,
        read_pins() if package == "gangline-runtime" else None, documents / "sbom.cdx.json", epoch,
    )  # fmt: skip
    overrides = ROOT / "packaging" / "lintian" / package
    if overrides.exists():
        to = root / "usr" / "share" / "lintian" / "overrides" / package
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(overrides.read_bytes())
    set_modes_and_dates(root, epoch)
    scripts = {SCRIPT_NAMES[kind]: script(package, kind, work) for kind in SCRIPT_NAMES}
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    exactly = [] if package == "gangline-runtime" else ["gangline-runtime"]
    # The agent's package has no program linked against glibc.
    glibc = [] if package == "gangline-agent" else [read_pins().glibc]
    libraries = LIBRARIES.get(package, {})
    table = {
        "name": package,
        "arch": DEBIAN_ARCHITECTURES[architecture()],
        "platform": "linux",
        "version": version(),
        "release": RELEASE,
        "section": section,
        "priority": "optional",
        "maintainer": MAINTAINER,
        "description": description(package),
        "license": "Apache-2.0",
        "homepage": "",
        "mtime": date,
        "contents": contents(package, root),
        "scripts": {name: str(path) for name, path in scripts.items() if path is not None},
        "overrides": {
            "deb": {
                "depends": [
                    *(f"{each} (= {full_version()})" for each in exactly),
                    *(f"libc6 (>= {each})" for each in glibc),
                    *libraries,
                ]
            },
            "rpm": {
                "depends": [
                    *(f"{each} = {full_version()}" for each in exactly),
                    *(f"glibc >= {each}" for each in glibc),
                    *libraries.values(),
                ]
            },
        },
        "deb": {"compression": "none"},
        "rpm": {
            "compression": "xz",
            "summary": short,
            "buildhost": "localhost",
            "group": "System Environment/Daemons",
        },
    }
    path = work / f"{package}.yaml"
    path.write_text(json.dumps(table, indent=1))
    return path


def write_packages(
    stage: Path, tools: Path, work: Path, to: Path, epoch: int, only: Sequence[str]
) -> list[Path]:
    """Write the packages *only* into *to* with nFPM; return their paths."""
    to.mkdir(parents=True, exist_ok=True)
    configs = {package: describe(package, stage, work, epoch) for package in only}
    # nFPM uses a single processor, for minutes for a large package, so the largest package comes first.
    jobs = [(package, kind) for package in reversed(only) for kind in ("deb", "rpm")]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(
            lambda job: _write(job[0], job[1], configs[job[0]], tools, to, epoch), jobs
        )
        return sorted(found, key=lambda path: (only.index(re.split("[_-][0-9]", path.name)[0]), path.name))  # fmt: skip


def _write(package: str, kind: str, config: Path, tools: Path, to: Path, epoch: int) -> Path:
    """Write a package with nFPM, and compress it again; return its path. Raises BuildError."""
    full = full_version()
    if kind == "deb":
        name = f"{package}_{full}_{DEBIAN_ARCHITECTURES[architecture()]}.deb"
    else:
        name = f"{package}-{full}.{architecture()}.rpm"
    said = subprocess.run(
        [str(tools / "nfpm"), "package", "--config", str(config), "--packager", kind, "--target", str(to / name)],
        check=False, capture_output=True, text=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
    )  # fmt: skip
    if said.returncode:
        raise BuildError(f"nfpm cannot write {name}: {said.stdout}{said.stderr}")
    if kind == "deb":
        deb.pack(to / name, epoch)
    else:
        rpm.pack(to / name)
    return to / name


def date_of_commit() -> int:
    """Return SOURCE_DATE_EPOCH: the caller's, else the last commit's, else the pins'."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        if not given.isdigit():
            raise BuildError(
                f"SOURCE_DATE_EPOCH={given}: expected seconds since 1970, such as {read_pins().epoch}"
            )
        return int(given)
    said = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    return int(said.stdout) if said.returncode == 0 else read_pins().epoch


def make(options: argparse.Namespace) -> list[Path]:
    """Build the packages; return their paths. Raises BuildError."""
    if not re.fullmatch(r"[0-9][0-9A-Za-z.~+]*", RELEASE):
        raise BuildError(f"PACKAGE_RELEASE={RELEASE}: expected a number, such as 1 or 1.bugfix2")
    work, epoch, pins = options.work.absolute(), date_of_commit(), read_pins()
    if options.runtime is not None:
        if not options.runtime_sha256:
            raise BuildError(
                f"RUNTIME={options.runtime} needs RUNTIME_SHA256, the hash that its builder printed"
            )
        if not options.runtime.is_file():
            raise BuildError(f"RUNTIME={options.runtime}: no such file")
        runtime = checked(options.runtime, options.runtime_sha256)
    else:
        # The runtime has the date of the pins, so that it does not change with each commit.
        runtime = build_runtime(work / "runtime", options.sources, pins.epoch)
    chain = toolchain(pins, work / "runtime", epoch)
    tools = work / "runtime" / "tools" / "bin"
    stage = assemble(runtime, download_wheels(tools, work), chain, tools, work, epoch)
    return write_packages(
        stage, tools, work, options.to.absolute(), epoch, options.only or PACKAGES
    )


def main() -> int:
    """Build the packages, and print the SHA-256, size and path of each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / "build" / "packages",
        help="folder of what is built on the way",
    )
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="folder of the packages")
    parser.add_argument(
        "--sources", type=Path, help="folder of source archives, instead of Debian's mirror"
    )
    parser.add_argument(
        "--only",
        choices=PACKAGES,
        action="append",
        help="write this package alone; may be repeated",
    )
    parser.add_argument(
        "--runtime", type=Path, help="a runtime that runtime.py built, instead of building it"
    )
    parser.add_argument("--runtime-sha256", default="", help="its SHA-256")
    try:
        found = make(parser.parse_args())
    except (BuildError, subprocess.CalledProcessError) as error:
        print(f"packages: {error}", file=sys.stderr)
        return 1
    for path in found:
        print(f"{sha256_of(path)}  {path.stat().st_size / 1e6:7.1f} MB  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
