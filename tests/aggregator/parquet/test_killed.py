"""kill -9 between any two steps: every reading is there once, and nothing is left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Steps of each scenario.
STEPS = {
    "export": {"written", "synced", "revealed raw", "revealed 1m", "revealed 1h", "revealed tail",
               "recording", "recorded", "published", "unlinked", "forgotten"},
    "expire": {"retired", "unlinked", "forgotten"},
    "migrate": {"BEGIN", "COMMIT", "CHECKPOINT"},
}  # fmt: skip
#: Before these steps the disk has certainly changed, so each is killed.
CHANGED = {
    "export": {"written", "revealed raw", "revealed 1m", "revealed 1h", "revealed tail", "recorded",
               "published", "unlinked", "forgotten"},
    "expire": {"retired", "unlinked", "forgotten"},
    "migrate": {"BEGIN", "CHECKPOINT"},  # BEGIN: after a CHECKPOINT; CHECKPOINT: after a COMMIT
}  # fmt: skip


#: One kind of kill is enough; before a release all kinds run.
@pytest.mark.parametrize(
    "scenario",
    [
        "expire",
        pytest.param("export", marks=pytest.mark.slow),
        pytest.param("migrate", marks=pytest.mark.slow),
    ],
)
def test_killed_at_every_step(tmp_path: Path, scenario: str) -> None:
    """A power cut during an hour's merge left its readings twice after the start.

    Steps without a change on disk are skipped; `killing.py` with `all` kills there too.
    """
    program = "tests.aggregator.parquet.killing"
    out = subprocess.run(
        [sys.executable, "-m", program, scenario, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        # the `tests` package of this process
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert out.returncode == 0, out.stderr
    result = json.loads(out.stdout)
    assert STEPS[scenario] <= set(result["steps"])
    assert CHANGED[scenario] <= set(result["killed"])
    assert result["wrong"] == {}
