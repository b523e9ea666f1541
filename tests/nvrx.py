"""NVIDIA's resiliency extension for tests: the real client of each version, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.processes import GUARD_SECONDS

VERSIONS = ("0.6.0", "0.7.0")
MISSING = (
    "NVIDIA's resiliency extension is not here: "
    "tests/rigs/nvrx.sh FOLDER fetches it; then export GANGLINE_NVRX=FOLDER"
)
CLIENT = Path(__file__).parent / "rigs" / "nvrx_client.py"


def has_nvrx() -> bool:
    """Say whether the folder of `tests/rigs/nvrx.sh` is named, and holds both versions."""
    folder = os.environ.get("GANGLINE_NVRX", "")
    return bool(folder) and all((Path(folder) / name).is_dir() for name in (*VERSIONS, "site"))


def run_nvrx(version: str, *words: object, **environment: str) -> dict[str, Any]:
    """Run the client (`tests/rigs/nvrx_client.py`) with *words* as arguments, and return its output."""
    folder = Path(os.environ["GANGLINE_NVRX"])
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PYTHON"))}
    ended = subprocess.run(
        [sys.executable, "-B", str(CLIENT), *map(str, words)], capture_output=True, text=True, check=False, timeout=GUARD_SECONDS,
        env={**inherited, "PYTHONPATH": f"{folder / version}:{folder / 'site'}", **environment},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    printed: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return printed
