"""Latency of accepting 100 advisories while disk and store are busy: by journal, by store, and a
bare fsync.

Other processes write and fsync; transactions insert rows into the store. All three alternate in the
same run. Each accept is compared with an append and fsync of the same number of bytes beside the
journal.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.measure import Result, percentile
from gangline.aggregator.advisories.advisory import AdvisoryState
from gangline.aggregator.advisories.engine import AdvisoryEngine
from gangline.aggregator.advisories.messages import Acked, CaseSeen, Tick
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.store.answer_journal import ANSWERS_FILE, AnswerJournal
from gangline.aggregator.store.store import Store
from tests.aggregator.executors.advice_server import LIMITS, case_of

ADVISORIES, TURNS = 100, 2
#: Fewer than by journal: by the store each accept takes seconds.
STORE_ADVISORIES = 20
DISK_WRITERS, DISK_BYTES = 2, 64 << 20
STORE_ROWS = 1_000_000
ANSWER_BYTES = 150
_DISK_WRITER = """
import os, sys
data = os.urandom(1 << 20)
while True:
    with open(sys.argv[1], "wb", buffering=0) as file:
        for _ in range(int(sys.argv[2]) >> 20):
            file.write(data)
        os.fsync(file.fileno())
"""


@contextmanager
def busy_disk(folder: Path) -> Iterator[None]:
    """Write and fsync in other processes."""
    with ExitStack() as stack:
        for number in range(DISK_WRITERS):
            command = [sys.executable, "-c", _DISK_WRITER, str(folder / f"noise{number}"), str(DISK_BYTES)]  # fmt: skip
            writer = stack.enter_context(subprocess.Popen(command))
            stack.callback(writer.kill)
        yield


@contextmanager
def busy_store(store: Store) -> Iterator[None]:
    is_over = threading.Event()

    def insert(connection: Any) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS noise (time TIMESTAMP, value DOUBLE)")
        connection.execute(f"INSERT INTO noise SELECT now(), random() FROM range({STORE_ROWS})")

    def run() -> None:
        while not is_over.is_set():
            store.in_transaction(insert)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def floor_seconds(file: int) -> float:
    begin = time.perf_counter()
    os.write(file, bytes(ANSWER_BYTES))
    os.fsync(file)
    return time.perf_counter() - begin


async def accept_all(
    engine: AdvisoryEngine, file: int, count: int
) -> tuple[list[float], list[float]]:
    """Propose ADVISORIES and accept *count*; return the seconds of each accept, and of its floor."""
    for number in range(ADVISORIES):
        engine._step(CaseSeen(time.time_ns(), case_of(f"host{number}", number)))
    engine._step(Tick(time.time_ns()))
    await engine.persisted()
    accepts, floors = list[float](), list[float]()
    for advisory in engine.open_advisories()[:count]:
        begin = time.perf_counter()
        await engine.answer(Acked(time.time_ns(), advisory.name, AdvisoryState.ACCEPTED, "bench"))
        accepts.append(time.perf_counter() - begin)
        floors.append(floor_seconds(file))
    assert len(accepts) == count, len(accepts)
    return accepts, floors


def measured(folder: Path, *, by_journal: bool) -> tuple[list[float], list[float]]:
    """Return the seconds of accepts and of their floors on a busy machine."""
    folder.mkdir()
    store = Store.open(folder, AggregatorConfig(data=folder, ops_seconds=0, history_on=False))
    journal = AnswerJournal(folder / ANSWERS_FILE) if by_journal else None
    engine = AdvisoryEngine(
        store, LIMITS, Observer(), time.time_ns(), shadow=False, journal=journal
    )
    file = os.open(folder / "floor", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    try:
        with busy_disk(folder), busy_store(store):
            count = ADVISORIES if by_journal else STORE_ADVISORIES
            return asyncio.run(accept_all(engine, file, count))
    finally:
        os.close(file)
        store.close()


def run(seed: int) -> list[Result]:
    """Return p50, p99 and maximum of accepts by journal and by store, against the floor."""
    del seed
    seconds: dict[str, list[float]] = {"journal": [], "store": []}
    floors = list[float]()
    with tempfile.TemporaryDirectory() as work:
        for turn in range(TURNS):
            for name in ("store", "journal"):
                accepts, bare = measured(Path(work) / f"{name}{turn}", by_journal=name == "journal")
                seconds[name] += accepts
                floors += bare
    results = []
    for name in ("journal", "store"):
        for label, share in (("p50", 0.5), ("p99", 0.99), ("maximum", 1.0)):
            value, floor = percentile(seconds[name], share), percentile(floors, share)
            notes = "before" if name == "store" else "limit 1 s" if share == 1.0 else ""
            results.append(Result(f"accept of an advisory by the {name}, {label}", 1000 * value, "ms", "append and fsync", 1000 * floor, notes))  # fmt: skip
    return results
