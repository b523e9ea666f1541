"""Tests with the oldest declared dependencies, as in an old distribution or a pinned environment."""

from __future__ import annotations

import faulthandler
import subprocess
import sys

import pytest

from tests.lowest import COSTLY, FILES, ROOT, declared, environment, installed


@pytest.mark.slow
def test_every_part_runs_with_the_oldest_versions_that_are_declared() -> None:
    """The generated code refused the declared grpcio, and a call of NVIDIA's binding failed; no test had run with them."""
    if problem := installed():
        pytest.skip(problem)
    code = "from importlib.metadata import version; import sys; print(*map(version, sys.argv[1:]))"
    versions = subprocess.run(
        [sys.executable, "-c", code, *declared()],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    ).stdout.split()
    for (name, oldest), version in zip(declared().items(), versions, strict=True):
        assert f"{version}.".startswith(f"{oldest}."), name
    # Over a thousand tests, and each of them has a guard of its own in that process.
    faulthandler.cancel_dump_traceback_later()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.lowest",
            *(f"--ignore={name}" for name in COSTLY),
            *(name for name in FILES if name not in COSTLY),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_list_is_of_files_that_are_there() -> None:
    """A renamed file would silently leave this list."""
    assert [name for name in (*FILES, *COSTLY) if not (ROOT / name).exists()] == []
    assert {"grpcio", "h2", "duckdb"} <= declared().keys()
