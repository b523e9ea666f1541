"""A slice of `make test-duckdb2`: the store's own tests on the next DuckDB, which operators may have installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.duckdb2 import FILES, ROOT, SLICE, environment, installed


@pytest.mark.slow
def test_the_store_on_duckdb_2() -> None:
    """2.0 wants each result fetched to its end, and types statements another way: found before the fleet finds it."""
    if problem := installed():
        pytest.skip(problem)
    code = "import duckdb; print(duckdb.__version__)"
    version = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment()
    )
    assert version.stdout.startswith("2.")
    done = subprocess.run(
        [sys.executable, "-m", "tests.duckdb2", *SLICE], check=False, capture_output=True, text=True,
        cwd=ROOT, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


def test_the_list_is_of_files_that_are_there() -> None:
    """A renamed file would silently drop out of the tests with DuckDB 2."""
    files = [name.partition("::")[0] for name in (*FILES, *SLICE)]
    assert [name for name in files if not (ROOT / name).exists()] == []
