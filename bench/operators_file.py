"""Cost of the snapshot file of 80,000 GPUs, and how long writing it holds the GIL: used by
`operator_sql`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa

from bench.fleet_store import FILES_SECONDS, GPUS, HOSTS, LAST_S, LINKS, OTHERS, TABLES
from bench.measure import Result, percentile
from gangline.aggregator.store.snapshot_file import OpsFile, taken_macro
from gangline.aggregator.store.writer import Writer

#: How `gangline sql` opens a file.
CONFIG: dict[str, str | bool | int | float | list[str]] = {"memory_limit": "1GB", "threads": 2}


def write_file(folder: Path) -> list[Result]:
    """Write the operators' file of such a fleet; return its cost, and how long it held the GIL."""
    writer = Writer(folder / "gangline.duckdb", retention_hours=24, history_days=14)
    now_ns = LAST_S * 10**9 + 10**9 // 2
    file = OpsFile(folder, writer.cursor, 200_000)
    first = _cost(lambda: file.write(now_ns - FILES_SECONDS * 10**9))
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _memory_bytes("VmRSS")
    with _Gil() as gil:
        again = _cost(lambda: file.write(now_ns))
    used_bytes = _memory_bytes("VmHWM") - before
    latest = _written(folder / "operators.duckdb")
    bare = _cost(lambda: _bare(folder / "bare.duckdb", latest))
    writer.transact(lambda connection: _show(connection, folder / "minutes"))
    writer.close()
    size = (folder / "operators.duckdb").stat().st_size / 1e6
    notes = (
        f"{HOSTS:,} hosts, {GPUS:,} GPUs, {HOSTS * (8 + LINKS + OTHERS):,} devices: {size:.0f} MB; with "
        f"its base file {first:.1f} s; waits for the GIL: {gil.worst_ms:.0f} ms at most, p99 "
        f"{gil.p99_ms:.1f} ms"
    )
    what = "operators' file rewritten, CPU"
    arrow = sum(table.nbytes for table in latest)
    return [
        Result(what, again, "s", "the same last readings alone by DuckDB", bare, notes),
        Result("memory while it is written, at most", used_bytes / 1e6, "MB", "those readings in Arrow", arrow / 1e6),
    ]  # fmt: skip


def _written(path: Path) -> list[pa.Table]:
    result = []
    with duckdb.connect(str(path), read_only=True, config=CONFIG) as connection:
        for table, each in TABLES.items():
            result.append(connection.sql(f"FROM latest.{table}").to_arrow_table())
            assert result[-1].num_rows == HOSTS * each, (table, result[-1].num_rows)
    return result


def _bare(path: Path, latest: list[pa.Table]) -> None:
    """Write the same tables straight from Arrow: the floor."""
    with duckdb.connect(str(path), config={"threads": 1}) as connection:
        for index, arrow in enumerate(latest):
            connection.register("new_rows", arrow)
            connection.execute(f"CREATE TABLE t{index} AS FROM new_rows")
        connection.execute("CHECKPOINT")


def _memory_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def _cost(work: Callable[[], Any]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


class _Gil:
    """Measures how late a thread wakes from a sleep of 1 ms, as ingest would."""

    def __enter__(self) -> Self:
        self._going, self._late = True, [0.0]
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self._going:
            begin = time.perf_counter()
            time.sleep(0.001)
            self._late.append(time.perf_counter() - begin - 0.001)

    def __exit__(self, *_: object) -> None:
        self._going = False
        self._thread.join()
        self.worst_ms, self.p99_ms = max(self._late) * 1e3, percentile(self._late, 0.99) * 1e3


def _show(connection: Any, folder: Path) -> None:
    """Make the views show these minutes and set the present to the last reading; a store's start
    recreates both.
    """
    for grain in ("1m", "1h"):
        view = f"rollups.gpu_1s_{grain} AS FROM read_parquet('{folder}/*.parquet')"
        connection.execute(f"CREATE OR REPLACE VIEW {view}")
    connection.execute(taken_macro(LAST_S * 1_000_000))
