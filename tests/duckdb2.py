"""`make test-duckdb2`: the tests of the store, on DuckDB 2.0.x while all other tests use 1.5.x.

python -m tests.duckdb2 [pytest's options and files]

The wheel is in build/duckdb2, before the environment's own on the path of the tests; nothing else
changes. Tests that cannot pass with both have a `skipif` by `duckdb.__version__`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "duckdb2"
WANTED = "duckdb>=2.0,<2.1"
INSTALL_SECONDS = 120.0

#: All tests that open a store, also those of operators' SQL.
FILES = (
    "tests/aggregator/test_counter_sql.py",
    "tests/aggregator/ingest/test_event_revisions.py",
    "tests/aggregator/fleet/test_event_times.py",
    "tests/aggregator/scoring/test_evidence_sql.py",
    "tests/aggregator/store/test_full_disk.py",
    "tests/aggregator/store/test_journal.py",
    "tests/aggregator/store/test_sequence_ranges.py",
    "tests/aggregator/store/test_store_opening.py",
    "tests/aggregator/scoring/test_restart.py",
    "tests/aggregator/store/test_rows.py",
    "tests/aggregator/scoring/test_score_rows.py",
    "tests/aggregator/commands/test_sql_views.py",
    "tests/aggregator/store/test_store.py",
    "tests/aggregator/test_survival.py",
    "tests/aggregator/service/test_telemetry.py",
    "tests/aggregator/store/test_maintenance.py",
    "tests/aggregator/store/test_views.py",
    "tests/aggregator/test_gpu_processes.py",
    "tests/survival/test_survival.py",
    "tests/upgrade/test_stores.py",
)
#: The part that `make test` runs: readings, and a path of an event, into the store and out again.
#: DuckDB does not read the journal's own file.
SLICE = (
    "tests/aggregator/store/test_store.py",
    "tests/aggregator/store/test_journal.py::test_an_event_sent_twice_is_stored_once",
)


def installed() -> str:
    """Install it if missing; return "" or the reason of the failure."""
    if (FOLDER / "duckdb" / "__init__.py").exists():
        return ""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--target", str(FOLDER), WANTED]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"pip did not install {WANTED} within {INSTALL_SECONDS:g} s"
    last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
    return f"pip does not install {WANTED}: {last}" if done.returncode else ""


def environment() -> dict[str, str]:
    """Return the environment in which `import duckdb` is of FOLDER."""
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(FOLDER), before)))}


def main() -> int:
    if problem := installed():
        print(problem, file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    chosen = sys.argv[1:] or [name for name in FILES if (ROOT / name).exists()]
    return subprocess.run([*command, *chosen], check=False, cwd=ROOT, env=environment()).returncode


if __name__ == "__main__":
    sys.exit(main())
