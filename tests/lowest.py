"""The oldest versions that pyproject.toml declares: tests of every part run with them, and the newest of everything else.

    python -m tests.lowest [pytest's options and files]

They go to build/lowest, before the environment's own on the path of the tests; nothing else changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
INSTALL_SECONDS = 600.0
_DECLARED = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)(?:,.*)?")

#: Tests of all code that uses a dependency in a way that a newer version may have changed.
FILES = (
    "tests/agent/test_client.py",
    "tests/agent/test_exposition.py",
    "tests/agent/test_frame_builder.py",
    "tests/agent/test_grpc_http2.py",
    "tests/agent/test_inventory.py",
    "tests/agent/test_netlink.py",
    "tests/agent/test_registration.py",
    "tests/agent/test_tls.py",
    "tests/aggregator/auth",
    "tests/aggregator/commands",
    "tests/aggregator/monitoring",
    "tests/aggregator/parquet",
    "tests/aggregator/query/test_sql_command.py",
    "tests/aggregator/service/test_score_service.py",
    "tests/aggregator/service/test_status.py",
    "tests/aggregator/service/test_telemetry.py",
    "tests/aggregator/store/test_store.py",
    "tests/executors/test_kubernetes_login.py",
    "tests/executors/test_kubernetes_parsing.py",
    "tests/contract",
)
#: Files that the slow test leaves out: the rest uses their dependencies in the same way, or they have none.
COSTLY = (
    "tests/aggregator/auth/test_guard.py",
    "tests/aggregator/commands/test_sql_night.py",
    "tests/aggregator/commands/test_sql_views.py",
    "tests/aggregator/parquet/test_killed.py",
    "tests/aggregator/parquet/test_leftovers.py",
    "tests/aggregator/service/test_score_service.py",
    "tests/contract/test_frames.py",
    "tests/contract/test_streaming.py",
)
#: Newer names of NVIDIA's binding, which the agent does not need: it reads fields by number.
DESELECTED = "tests/contract/test_nvml_fields.py::test_ids_are_the_bindings"


def declared() -> dict[str, str]:
    """Return package -> the oldest version that any part declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest: dict[str, str] = {}
    for requirements in project["optional-dependencies"].values():
        for requirement in requirements:
            if requirement.startswith("gangline["):
                continue
            match = _DECLARED.fullmatch(requirement)
            assert match, f"{requirement}: expected NAME>=VERSION, so that the oldest is known"
            assert oldest.setdefault(match[1], match[2]) == match[2], (
                f"{match[1]} has two oldest versions"
            )
    return oldest


def folder() -> Path:
    """Return where they are installed; another folder once the declaration changes."""
    pins = " ".join(f"{name}=={version}" for name, version in sorted(declared().items()))
    return ROOT / "build" / f"lowest-{hashlib.sha256(pins.encode()).hexdigest()[:8]}"


def installed() -> str:
    """Install them if they are missing; return "" or the error."""
    if folder().exists():
        return ""
    unfinished = folder().with_suffix(f".{os.getpid()}")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    command += [
        "--target",
        str(unfinished),
        *(f"{name}=={version}" for name, version in declared().items()),
    ]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"pip did not install them within {INSTALL_SECONDS:g} s"
    if done.returncode:
        return f"pip does not install them: {done.stderr.strip()[-400:] or 'pip said nothing'}"
    unfinished.rename(folder())
    return ""


def environment() -> dict[str, str]:
    """Return the environment in which they are imported."""
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(folder()), before)))}


def main() -> int:
    if problem := installed():
        print(problem, file=sys.stderr)
        return 1
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        "--deselect",
        DESELECTED,
    ]
    chosen = sys.argv[1:] or list(FILES)
    return subprocess.run([*command, *chosen], check=False, cwd=ROOT, env=environment()).returncode


if __name__ == "__main__":
    sys.exit(main())
