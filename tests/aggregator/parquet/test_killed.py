"""kill -9 between any two steps: every reading is there once, and nothing is left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: What each scenario goes through.
STEPS = {
    "export": {"written", "synced", "revealed raw", "revealed 1m", "revealed 1h", "revealed tail",
               "recording", "recorded", "published", "unlinked", "forgotten"},
    "expire": {"retired", "unlinked", "forgotten"},
    "migrate": {"BEGIN", "COMMIT", "CHECKPOINT"},
}  # fmt: skip
#: Before these something has changed on disk for certain: they are killed at.
CHANGED = {
    "export": {"written", "revealed raw", "revealed 1m", "revealed 1h", "revealed tail", "recorded",
               "published", "unlinked", "forgotten"},
    "expire": {"retired", "unlinked", "forgotten"},
    "migrate": {"BEGIN", "CHECKPOINT"},  # BEGIN: after a CHECKPOINT; CHECKPOINT: after a COMMIT
}  # fmt: skip


#: One kind of kill is enough each time; all of them before a release.
@pytest.mark.parametrize(
    "scenario",
    [
        "expire",
        pytest.param("export", marks=pytest.mark.slow),
        pytest.param("migrate", marks=pytest.mark.slow),
    ],
)
def test_killed_at_every_step(tmp_path: Path, scenario: str) -> None:
    """Power went while an hour was being merged: after the start its readings were there twice.

    Not killed where nothing has changed on disk since the step before; `killing.py` with `all` kills there too.
    """
    program = "tests.aggregator.parquet.killing"
    out = subprocess.run(
        [sys.executable, "-m", program, scenario, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # `tests`, as we have it
    )
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout)
    assert STEPS[scenario] <= set(found["steps"])
    assert CHANGED[scenario] <= set(found["killed"])
    assert found["wrong"] == {}
