"""Fetches the packages' wheels from PyPI for the runtime, each checked against its SHA-256 in wheels.txt.

python3 packaging/build/wheels.py --update     # pin the wheels of the versions in packaging/constraints.txt and pins.toml, of both architectures
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from runtime import COMPILE_TOOLS, TOOLS, architecture
from sources import BuildError, checked, read_pins, sha256_of

ROOT = Path(__file__).resolve().parent.parent.parent
HASHES = Path(__file__).with_name("wheels.txt")
ARCHITECTURES = ("aarch64", "x86_64")
#: glibc versions of manylinux platforms, the newest first, because pip prefers the first. None is later than 2.28.
PLATFORMS = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")


def extras() -> dict[str, list[str]]:
    """Return package -> its requirements in pyproject.toml: the runtime has the agent's, the aggregator executors', too."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    aggregator = table["aggregator"] + table["executor"]
    return {"gangline-runtime": table["agent"], "gangline-aggregator": aggregator}


def for_target(machine: str) -> list[str]:
    """Return pip's options for wheels of the runtime on the architecture *machine*, not of pip's own Python."""
    platforms = [f"manylinux_{each}_{machine}" for each in PLATFORMS]
    if machine == "x86_64":
        platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    else:
        platforms += ["manylinux2014_aarch64"]
    names = [word for each in platforms for word in ("--platform", each)]
    return ["--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.13", *names]


def pip(tools: Path, *arguments: str | Path) -> None:
    """Run pip of *tools*. Raises BuildError."""
    words = [str(tools / "pip"), "--disable-pip-version-check", *(str(each) for each in arguments)]
    said = subprocess.run(words, check=False, capture_output=True, text=True)
    if said.returncode:
        raise BuildError(f"pip {arguments[0]} failed:\n{said.stdout[-2000:]}{said.stderr[-2000:]}")


def read_hashes(path: Path = HASHES) -> dict[str, str]:
    """Return wheel -> SHA-256. Raises BuildError for an invalid line."""
    found = {}
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r"([0-9a-f]{64})  ([A-Za-z0-9._+-]+\.whl)", line)
        if match is None:
            raise BuildError(
                f"{path}: {line!r}: expected a SHA-256, two blanks, and a wheel's name"
            )
        found[match[2]] = match[1]
    return found


def fetch_wheels(tools: Path, folder: Path, machine: str, wanted: list[str]) -> list[Path]:
    """Download the wheels of *wanted* and their dependencies into *folder*, without a check of hashes."""
    shutil.rmtree(folder, ignore_errors=True)
    constraints = ROOT / "packaging" / "constraints.txt"
    pip(
        tools, "download", "--quiet", "-c", constraints, *for_target(machine), "-d", folder, *wanted
    )
    return sorted(folder.iterdir())


def download_wheels(tools: Path, work: Path) -> dict[str, list[Path]]:
    """Return package -> wheels pinned by constraints.txt, downloaded and checked against wheels.txt.

    Wheels of the runtime package are left out of the other package. Raises BuildError.
    """
    hashes = read_hashes()
    found: dict[str, list[Path]] = {}
    for package, wanted in extras().items():
        wheels = fetch_wheels(tools, work / "wheels" / package, architecture(), wanted)
        found[package] = [check_wheel(wheel, hashes) for wheel in wheels]
    shared = {path.name for path in found["gangline-runtime"]}
    found["gangline-aggregator"] = [p for p in found["gangline-aggregator"] if p.name not in shared]
    return found


def check_wheel(wheel: Path, hashes: dict[str, str]) -> Path:
    """Return *wheel*. Raises BuildError if wheels.txt lacks it, or has another SHA-256."""
    if wheel.name not in hashes:
        raise BuildError(
            f"{wheel.name} is not in {HASHES.name}: after a change of packaging/constraints.txt run "
            "python3 packaging/build/wheels.py --update, and read what it changed"
        )
    return checked(wheel, hashes[wheel.name])


def lock(wanted: list[str], to: Path, tools: Path, work: Path) -> None:
    """Write pip's requirements for *wanted* and dependencies, with the hashes for both architectures."""
    found: dict[str, set[str]] = {}
    for machine in ARCHITECTURES:
        for wheel in fetch_wheels(tools, work / "wheels", machine, wanted):
            name, version = wheel.name.split("-")[:2]
            found.setdefault(f"{name}=={version}", set()).add(f"--hash=sha256:{sha256_of(wheel)}")
    rows = [f"{pin} {' '.join(sorted(found[pin]))}\n" for pin in sorted(found, key=str.lower)]
    to.write_text("# Written by: python3 packaging/build/wheels.py --update\n" + "".join(rows))


def update(work: Path) -> None:
    """Rewrite wheels.txt, tools.txt and compile.txt with PyPI's wheels of the pinned versions."""
    subprocess.run([sys.executable, "-m", "venv", str(work / "tools")], check=True)
    tools = work / "tools" / "bin"
    found: dict[str, str] = {}
    for machine in ARCHITECTURES:
        for wanted in extras().values():
            for wheel in fetch_wheels(tools, work / "wheels", machine, wanted):
                found[wheel.name] = sha256_of(wheel)
    rows = [f"{digest}  {name}\n" for name, digest in sorted(found.items())]
    head = "# The wheels in the packages, of packaging/constraints.txt. Written by: python3 packaging/build/wheels.py --update\n"
    HASHES.write_text(head + "".join(rows))
    lock(list(read_pins().tools), TOOLS, tools, work)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock(project["build-system"]["requires"], COMPILE_TOOLS, tools, work)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", required=True)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        try:
            update(Path(work))
        except (BuildError, subprocess.CalledProcessError) as error:
            print(f"wheels: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
