"""Stores of earlier versions (made by `keep_store.py`), and opening a store with a kill at each step.

python -m tests.upgrade.kept_stores FOLDER WORK [all]

opens a copy of the store in FOLDER (none: an empty one) in WORK. Before each statement since which
the disk had changed, it keeps the files as a kill there leaves them, and opens them in another
process (`all`: repeated runs, killed before each statement). It prints the findings, a line each,
beginning with those without a kill.
"""

from __future__ import annotations

import signal
import sys
import tarfile
from pathlib import Path
from typing import Any

import duckdb

from gangline.aggregator.store import duckdb_file, store_folder
from tests.killed_processes import Killer, again, as_killed, dying, life, worth_killing

STORES = Path(__file__).parent / "kept_stores"
#: Frames times GPUs times hosts, as `keep_store.py` has them; and what else is in each.
GPU_ROWS, EVENTS, FINDINGS = 80, 6, 1


def unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


def opened(path: Path, at: int = -1, kept: Path | None = None) -> list[list[Any]]:
    """Open the store, killed before statement *at*; return the statements, and what was on disk before each (`Killer`)."""
    killer = Killer(path.parent, at, kept)
    duckdb.__dict__["connect"] = dying(duckdb.connect, killer)
    duckdb_file.open_store(path).close()
    return [killer.steps, killer.states]


def found(path: Path) -> str:
    """Open the store as the next start would, and return its contents."""
    connection = duckdb_file.open_store(path)
    counts = [
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        for table in ("events", "findings")
    ]
    hours = connection.execute(
        "SELECT sum(estimated_size)::BIGINT FROM duckdb_tables() WHERE schema_name = 'hours' "
        "AND starts_with(table_name, 'gpu_1s__')"
    ).fetchone()
    version = connection.execute("SELECT schema_version FROM gangline_store").fetchall()
    connection.close()
    return f"{version} {hours} {counts}"


def main() -> None:
    source, work = Path(sys.argv[1]), Path(sys.argv[2])
    path, kept = work / store_folder.STORE_FILE, work.with_name("kept")
    steps, states = again(source, work, lambda: opened(path, kept=kept))
    print(life(lambda: found(path)), flush=True)
    every = "all" in sys.argv
    for step in range(len(steps)) if every else worth_killing(states):
        if every:
            killed = again(source, work, lambda step=step: opened(path, step))  # type: ignore[misc]
        else:
            killed = as_killed(kept, step, work)
        assert killed == signal.SIGKILL, f"at statement {step}, {steps[step]}: {killed}"
        print(life(lambda: found(path)), flush=True)


if __name__ == "__main__":
    main()
