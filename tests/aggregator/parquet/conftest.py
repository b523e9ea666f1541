"""A store on a test clock, with readings, and history that takes turns on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import Finding
from gangline.aggregator.store.parquet.history import History
from gangline.aggregator.store.parquet.parquet_worker import Packer
from gangline.aggregator.store.parquet.segment_store import StoreAccess
from gangline.aggregator.store.parquet.worker_client import PackerError
from gangline.aggregator.store.store import Store
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.signals import TABLES
from tests.processes import GUARD_SECONDS

NOW_NS = 1_795_168_800 * 1_000_000_000  # 2026-11-20 10:00 UTC
SECOND_NS = 1_000_000_000
BOOTED_NS = NOW_NS - 10**17


class PacksHere:
    """A packer in this process, so that tests start no process; `test_packing.py` starts one."""

    is_behind = is_low_priority = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packer: Packer | None = None

    def start(self) -> None:
        self._packer = self._packer or Packer(self._folder, 64 << 20)

    def call(self, name: str, *arguments: Any, memory: int | None = None) -> Any:
        if self._packer is None:
            raise PackerError("has ended")
        arguments = tuple(json.loads(json.dumps(arguments)))
        descriptors = [] if memory is None else [memory]
        return json.loads(json.dumps(getattr(self._packer, name)(*arguments, *descriptors)))

    def kill(self) -> None: ...

    def release(self) -> None:
        if self._packer is not None:
            self._packer.close()
            self._packer = None


@dataclass
class Past:
    """A store in *folder*, as of `now_ns`."""

    folder: Path
    now_ns: int = NOW_NS
    jumped_ns: int = 0
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    disk: tuple[int, int] = (10**12, 10**12)
    findings: list[Finding] = field(default_factory=list[Finding])
    sequence: int = 0
    step: Callable[[str], None] = lambda _: None
    packing: Any = None
    store: Any = None
    history: Any = None

    def open(self) -> Past:
        values = {"commit_seconds": 0.01, "ops_seconds": 3600.0, "history_on": False}
        config = AggregatorConfig(data=self.folder, **{**values, **self.settings})
        self.store = Store.open(
            self.folder, config, lambda: self.now_ns, lambda: self.now_ns - self.jumped_ns
        )
        self.history = History(
            self.folder,
            config,
            StoreAccess(self.store.in_transaction, self.store.reading),
            self._take,
            self.store.retention_clock,
            free_bytes=lambda: self.disk,
            step=lambda name: self.step(name),
            packer=self.packing or PacksHere(self.folder),
        )
        return self

    def _take(self, found: Sequence[Finding]) -> None:
        self.findings += found

    def close(self) -> None:
        self.history.stop()
        self.store.close(GUARD_SECONDS)

    def again(self) -> Past:
        self.close()
        return self.open()

    def later(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND_NS)

    def jump(self, seconds: float) -> None:
        """Move the wall clock by *seconds*, like a clock step or a pause of the aggregator."""
        self.later(seconds)
        self.jumped_ns += int(seconds * SECOND_NS)

    def turn(self) -> list[str]:
        done: list[str] = self.history.turn(self.now_ns, 1e9)
        assert self.history.failing == ""
        return done

    def put(
        self,
        table: str = "gpu_1s",
        values: dict[str, float | int | None] | None = None,
        *,
        host: str = "a",
        devices: Sequence[str] = ("GPU-0",),
        time_ns: int | None = None,
        block: Block | None = None,
    ) -> None:
        """Store one reading of each device, at *time_ns* or at the present time."""
        self.sequence += 1
        time_ns = self.now_ns if time_ns is None else time_ns
        if block is None:
            block = Block(table, devices)
            columns = {s.column: (number, s.kind) for number, s in enumerate(TABLES[table])}
            for name, value in (values or {}).items():
                number, kind = columns[name]
                for row in range(len(devices)):
                    (block.put_float if kind == "gauge" else block.put_int)(number, row, value)  # type: ignore[arg-type]
        stamp = frames.Stamp(b"r" * 16, b"b" * 16, self.sequence, time_ns - BOOTED_NS, time_ns)
        committed = threading.Event()
        frame = read_frame(frames.encode(stamp, [block]))
        assert self.store.submit_frame(host, frame, BOOTED_NS, lambda _: committed.set())
        self.store.request_commit()
        assert committed.wait(GUARD_SECONDS)

    def ask(self, query: str) -> list[Any]:
        with self.store.reading() as cursor:
            rows: list[Any] = cursor.execute(query).fetchall()
            return rows

    def live_tables(self) -> list[str]:
        query = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'hours' ORDER BY 1"
        return [name for (name,) in self.ask(query)]

    def files(self) -> list[str]:
        paths = [
            p for top in ("segments", "rollups", "aside") for p in (self.folder / top).rglob("*")
        ]
        return sorted(str(path.relative_to(self.folder)) for path in paths if path.is_file())


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    """Return an empty, open store."""
    store = Past(tmp_path / "data").open()
    yield store
    store.close()


@pytest.fixture
def make_past() -> type[Past]:
    """Return the class, for tests that need settings, or several lives."""
    return Past
