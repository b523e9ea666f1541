"""Size of readings in Parquet, the CPU of moving them there, and the effect on commits.

Readings of a simulated world, stored by the store itself. Floor of the CPU: DuckDB's own COPY of
the same rows, sorted, as Parquet version 2 with zstd; it has no rollups, no fsync and no checks.
"""

from __future__ import annotations

import random
import resource
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.measure import Result, cpu_seconds
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.ingest.frame_reader import CATALOGUE
from gangline.aggregator.store.durability_mark import size_of
from gangline.aggregator.store.parquet.history import History
from gangline.aggregator.store.parquet.segment_store import StoreAccess
from gangline.aggregator.store.parquet.worker_client import PackerProcess
from gangline.aggregator.store.store import Store
from gangline.aggregator.store.store_folder import STORE_FILE, wal_of
from gangline.contract import frame as frames
from gangline.contract.frame import Stamp
from gangline.ext.intake import Reader, Received
from gangline.simulator.runner import LiveWorld
from gangline.simulator.world import World

HOSTS, SECONDS = 24, 300
NOW_NS = 1_795_168_800 * 10**9  # start of five minutes
PART_NS = 300 * 10**9
#: Tables with rows of their own in the report; the sum contains the others.
SHOWN = ("gpu_1s", "gpu_fast_1s", "rdma_1s", "nvlink_10s", "host_1s")
COMMITS, COMMIT_ROWS = 25, 8000
#: How often commits alone and commits during an export of five minutes of all tables alternate.
TURNS = 8


@dataclass
class SegmentHost:
    """A host's clocks: its second begins at its own moment, and its readings are slightly late."""

    offset_ns: int
    booted_ns: int


class Fed:
    """A store that receives the same readings repeatedly."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.now_ns = NOW_NS
        self._source = random.Random(seed)
        self._config = AggregatorConfig(
            data=folder, history_on=False, history_seconds=0.1, ops_seconds=3600.0, commit_rows=COMMIT_ROWS
        )  # fmt: skip
        self.store = Store.open(folder, self._config, lambda: self.now_ns)
        self.history = self._new_history()
        self._sequences = defaultdict[str, int](int)
        self.frames = list(self._simulate(seed))
        self._readers = dict[str, Reader]()  # one per stream, as in the service

    def _new_history(self) -> History:
        access = StoreAccess(self.store.in_transaction, self.store.reading)
        return History(
            self.store.folder, self._config, access, lambda _: None, self.store.retention_clock
        )

    def stop_history(self) -> None:
        """Stop the history's thread, and create a new thread."""
        self.history.stop()
        self.history = self._new_history()

    def _simulate(self, seed: int) -> Iterator[tuple[str, Stamp, tuple[Any, ...], int]]:
        live = LiveWorld(World("three", seed, hosts=HOSTS))
        draw = self._source
        hosts = {
            name: SegmentHost(draw.randrange(900_000_000), draw.randrange(10**14, 10**16))
            for name in live.names
        }
        for second in range(SECONDS):
            for name, blocks, _ in live.step(1.0):
                host = hosts[name]
                since = second * 10**9 + host.offset_ns + int(draw.gauss(0, 2e5))
                stamp = Stamp(b"r" * 16, b"b" * 16, 0, host.booted_ns + since, NOW_NS + since)
                frame = frames.decode(frames.encode(stamp, blocks, deflate=False))
                yield name, stamp, frame.blocks, NOW_NS - host.booted_ns

    def feed(self, later_ns: int, some: Sequence[Any] | None = None) -> int:
        """Store *some* frames (None: all) with stamps *later_ns* later; return the rows."""
        last = threading.Event()
        # Created first, so that no commit waits for this thread.
        fed = list(self._received(later_ns, self.frames if some is None else some))
        for index, (name, frame, offset_ns) in enumerate(fed, 1):
            done = (lambda _: last.set()) if index == len(fed) else (lambda _: None)
            while not self.store.submit_frame(name, frame, offset_ns, done):
                time.sleep(0.01)
        self.store.request_commit()
        assert last.wait(120), "not durable within two minutes"
        return sum(frame.rows for _, frame, _ in fed)

    def _received(self, later_ns: int, some: Sequence[Any]) -> Iterator[tuple[str, Received, int]]:
        for name, stamp, blocks, offset_ns in some:
            self._sequences[name] += 1  # without gaps: those would grow the ledger
            shifted = Stamp(
                stamp.run_id, stamp.boot_id, self._sequences[name], stamp.boottime_ns + later_ns,
                stamp.wall_ns + later_ns,
            )  # fmt: skip
            reader = self._readers.get(name) or Reader(CATALOGUE, frames.decode)
            self._readers[name] = reader
            yield name, reader.read(frames.encode(shifted, blocks, deflate=False)), offset_ns

    def close(self) -> None:
        self.history.stop()
        self.store.close()


@contextmanager
def fed(seed: int) -> Iterator[Fed]:
    """Yield an empty store, and readings for it."""
    with tempfile.TemporaryDirectory() as folder:
        fed_store = Fed(seed, Path(folder))
        try:
            yield fed_store
        finally:
            fed_store.close()


def _live_bytes(store: Store, table: str) -> float:
    """Return the bytes of a table's blocks; blocks shared by columns count once."""
    with store.reading() as cursor:
        result = cursor.execute(
            f"SELECT count(DISTINCT block_id) FROM pragma_storage_info('hours.{table}__202611201000') "
            "WHERE block_id >= 0"
        ).fetchone()
    assert result is not None
    return float(result[0]) * 262_144


def _export(one: Fed) -> float:
    """Export everything that is closed.

    Return the CPU seconds of this process and of the packer, without the packer's start.
    """
    packing = one.history._packer
    assert isinstance(packing, PackerProcess)
    packing.start()
    packing.call("discard", "nothing")  # an answer shows that it has started
    begin = _spent_seconds() + cpu_seconds(packing.pid)
    one.history.turn(one.now_ns, 600)
    packing.release()  # its CPU is counted after its exit
    return _spent_seconds() - begin


def _spent_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _weights(one: Fed) -> tuple[list[Result], float]:
    """Return bytes a row in Parquet against the live file, and the CPU us a row of a bare COPY."""
    rows = one.feed(0)
    one.store.in_transaction(lambda _: None)
    with one.store.reading() as cursor:
        cursor.execute("CHECKPOINT")
        counts = dict(
            cursor.execute(
                "SELECT regexp_replace(table_name, '__.*', ''), estimated_size FROM duckdb_tables() "
                "WHERE schema_name = 'hours'"
            ).fetchall()
        )
        begin = time.process_time()
        for table in counts:
            cursor.execute(
                f"COPY (FROM hours.{table}__202611201000 ORDER BY host, device, time) TO "
                f"'{one.store._folder}/floor.parquet' (FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2)"
            )
        floor = (time.process_time() - begin) / rows * 1e6
    live = {table: _live_bytes(one.store, table) for table in counts}
    one.now_ns += PART_NS + 10 * 10**9
    spent = _export(one) / rows * 1e6
    assert not one.history.failing, one.history.failing
    with one.store.reading() as cursor:
        files = cursor.execute(
            "SELECT grain, table_name, bytes, rows FROM segments WHERE gone IS NULL"
        ).fetchall()
    raw = {table: size for grain, table, size, _ in files if grain == "raw"}
    minutes = sum(size for grain, _, size, _ in files if grain == "1m")
    results = [
        Result(
            f"a row of {table} in Parquet", raw[table] / counts[table], "bytes", "in the live file",
            live[table] / counts[table], f"{counts[table]} rows",
        )
        for table in SHOWN
    ]  # fmt: skip
    results.append(
        Result(
            "a row of all tables in Parquet", sum(raw.values()) / rows, "bytes", "in the live file",
            sum(live.values()) / rows,
            f"{rows} rows of {len(raw)} tables; their rollup by minute {minutes / rows:.2f} bytes more",
        )
    )  # fmt: skip
    cost = Result(
        "exporting a row, with its rollup by minute", spent, "µs CPU", "bare COPY", floor,
        "read, sorted, rolled up, written, fsynced, recorded, read again",
    )  # fmt: skip
    return [*results, cost], floor


def _commits(one: Fed, some: Sequence[Any], begin_ns: int) -> dict[bool, list[float]]:
    """Commit about COMMIT_ROWS rows COMMITS times; return ms, by whether the commit merged the WAL."""
    honest, wal = one.store._writer.commit, wal_of(one.store.folder / STORE_FILE)
    spent: dict[bool, list[float]] = {False: [], True: []}

    def timed(*arguments: Any) -> None:
        before, begin = size_of(wal), time.perf_counter()
        honest(*arguments)
        took_ms = (time.perf_counter() - begin) * 1e3
        spent[size_of(wal) < before].append(took_ms)

    one.store._writer.commit = timed  # type: ignore[method-assign,assignment]
    for index in range(COMMITS):
        one.feed(begin_ns + index * 10**9, some)
    one.store._writer.commit = honest  # type: ignore[method-assign]
    return spent


def _against(
    loaded: dict[bool, list[float]], alone: dict[bool, list[float]], percent: int, folding: bool
) -> tuple[float, str, str, float]:
    return (
        float(np.percentile(loaded[folding], percent)), "ms", "alone",
        float(np.percentile(alone[folding], percent)),
    )  # fmt: skip


def _felt(one: Fed) -> list[Result]:
    """Compare commits during an export by the history's own thread with commits alone, alternating.

    Commits that merge the WAL take twenty times as long, with or without an export: they are
    separate rows.
    """
    gpus = [
        (name, stamp, tuple(block for block in blocks if block.table == "gpu_1s"), offset_ns)
        for name, stamp, blocks, offset_ns in one.frames
    ]
    selected = gpus[: COMMIT_ROWS // 8]
    alone: dict[bool, list[float]] = {False: [], True: []}
    loaded: dict[bool, list[float]] = {False: [], True: []}
    exported, exported_seconds = 0, 0.0
    for turn in range(TURNS):
        at_ns = (turn + 1) * 10**13
        for folding, spent in _commits(one, selected, at_ns).items():
            alone[folding] += spent
        one.feed(at_ns + PART_NS, one.frames)
        one.now_ns += PART_NS + 10 * 10**9
        begin = time.perf_counter()
        one.history.start(lambda: one.now_ns)
        for folding, spent in _commits(one, selected, at_ns + 10**12).items():
            loaded[folding] += spent
        exported += one.history.exported_rows
        exported_seconds += time.perf_counter() - begin
        one.stop_history()
    note = f"{COMMIT_ROWS} rows each; beside them {exported / exported_seconds:.0f} rows/s were exported"
    folds = f"{len(loaded[True])} and {len(alone[True])} of {TURNS * COMMITS}"
    results = [
        Result(
            f"commit p{percent} beside an export", *_against(loaded, alone, percent, False), note
        )
        for percent in (50, 99)
    ]
    if loaded[True] and alone[True]:
        name = "commit that folds in the WAL, beside an export"
        results.append(Result(name, *_against(loaded, alone, 50, True), f"{folds}; p50"))
    return results


def run(seed: int) -> list[Result]:
    """Return bytes and CPU a row of an export, and the times of commits during an export."""
    with fed(seed) as fed_store:
        weights, _ = _weights(fed_store)
        return weights + _felt(fed_store)
