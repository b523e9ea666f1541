"""A real aggregator in this process, and agents that speak to it through the generated stub."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import grpc
import pytest

from gangline.agent.frame_builder import signal_dictionary
from gangline.aggregator import server
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.server import Aggregator
from gangline.aggregator.store import duckdb_file, snapshot_file
from gangline.aggregator.store.snapshot_file import OpsFile
from gangline.aggregator.store.store import Store
from gangline.contract import frame
from gangline.contract.block import Block
from gangline.contract.wire import telemetry_pb2 as wire
from gangline.contract.wire.telemetry_pb2_grpc import TelemetryServiceStub
from tests.processes import GUARD_SECONDS, made_store

_WRITE = OpsFile.write
_CREATE_BASE = snapshot_file._create_base
_BASES: dict[str, bytes] = {}


@dataclass
class Agent:
    """An agent as the wire sees it: a run, a boot, clocks, and frames by sequence."""

    host: str = "host-1"
    run_id: bytes = b"r" * 16
    boot_id: bytes = b"b" * 16
    clock_error_ns: int = 0
    signals: list[wire.SignalDefinition] = field(default_factory=signal_dictionary)
    booted_ns: int = field(default_factory=lambda: time.time_ns() - 3600 * 10**9)

    def registration(self, **changes: Any) -> wire.RegisterNodeRequest:
        now = time.time_ns()
        request = wire.RegisterNodeRequest(
            protocol_version=1,
            node=self.host,
            run_id=self.run_id,
            boot_id=self.boot_id,
            agent_version="0.1",
            signals=self.signals,
            devices=[wire.Device(kind="gpu", key="GPU-0", attributes={"product": "H100"})],
            labels={"rack": "r1"},
            boottime_ns=now - self.booted_ns,
            wall_time_ns=now + self.clock_error_ns,
        )
        for name, value in changes.items():
            request.ClearField(name)
            if isinstance(value, list):
                getattr(request, name).extend(value)
            else:
                setattr(request, name, value)
        return request

    def block(self, sequence: int, gpus: int = 2) -> Block:
        """Rows whose power is the sequence, so that a lost or doubled frame shows."""
        block = Block("gpu_1s", [f"GPU-{gpu}" for gpu in range(gpus)])
        column = [s.column for s in _gpu_signals()].index("power_watts")
        for row in range(gpus):
            block.put_float(column, row, float(sequence))
        return block

    def frame(
        self, sequence: int, blocks: list[Block] | None = None, *, run_id: bytes = b""
    ) -> bytes:
        now = time.time_ns()
        stamp = frame.Stamp(
            run_id or self.run_id,
            self.boot_id,
            sequence,
            now - self.booted_ns,
            now + self.clock_error_ns,
        )
        return frame.encode(stamp, [self.block(sequence)] if blocks is None else blocks)

    def message(self, sequence: int, **changes: Any) -> wire.TelemetryBatch:
        return wire.TelemetryBatch(sequence=sequence, frame=self.frame(sequence, **changes))


def _gpu_signals() -> Any:
    from gangline.contract.signals import TABLES

    return TABLES["gpu_1s"]


class Connection:
    def __init__(self, port: int, agent: Agent) -> None:
        self.agent = agent
        # A connection of its own, as each host has: else all channels of this process share one.
        own = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own)
        self.stub: Any = TelemetryServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self.metadata: tuple[tuple[str, str], ...] = ()
        self.durable: set[int] = set()
        self.refused: dict[int, str] = {}
        self.stream: Any = None

    async def register(self, **changes: Any) -> wire.RegisterNodeResponse:
        answer: wire.RegisterNodeResponse = await self.stub.RegisterNode(
            self.agent.registration(**changes)
        )
        self.metadata = (("gangline-session", answer.session),)
        return answer

    def open(self) -> None:
        self.stream = self.stub.StreamTelemetry(metadata=self.metadata)

    async def send(self, *messages: wire.TelemetryBatch) -> None:
        if self.stream is None:
            self.open()
        waiting = {message.sequence for message in messages}
        stream: Any = self.stream
        for message in messages:
            await stream.write(message)
        async with asyncio.timeout(GUARD_SECONDS):
            while waiting:
                ack = await self.acknowledgement()
                waiting -= {refusal.sequence for refusal in ack.refused}
                for span in ack.durable:
                    waiting -= set(range(span.first, span.last + 1))

    async def acknowledgement(self) -> wire.IngestAck:
        ack = await self.stream.read()
        if ack is grpc.aio.EOF:
            await self.stream  # raises the status it ended with
            raise AssertionError("the stream ended without a status")
        for span in ack.durable:
            self.durable |= set(range(span.first, span.last + 1))
        self.refused |= {refusal.sequence: refusal.reason for refusal in ack.refused}
        return ack  # type: ignore[no-any-return]

    async def close(self) -> None:
        if self.stream is not None:
            self.stream.cancel()
        await self.channel.close()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the aggregator time to write the operators' file at its end; under time pressure it skips the file."""
    monkeypatch.setattr(server, "CLOSE_SECONDS", GUARD_SECONDS)


@dataclass
class Lab:
    """Aggregators over one data folder, and agents that connect to them."""

    folder: Path

    def config(self, **changes: Any) -> AggregatorConfig:
        values = {
            "listen": "127.0.0.1:0",
            "listen_scores": "off",
            "data": self.folder,
            "commit_seconds": 0.02,
            "judge_seconds": 0.1,
            "ops_seconds": 3600.0,
            # Queries go last at the processor: on a busy machine the ten of production are soon over.
            "query_seconds": GUARD_SECONDS,
        }
        return AggregatorConfig(**{**values, **changes})

    @asynccontextmanager
    async def aggregator(
        self, wall_ns: Any = time.time_ns, **changes: Any
    ) -> AsyncIterator[Aggregator]:
        aggregator = Aggregator(self.config(**changes), wall_ns)
        await aggregator.start()
        try:
            yield aggregator
        finally:
            await aggregator.close()

    @asynccontextmanager
    async def agent(self, to: Aggregator, agent: Agent | None = None) -> AsyncIterator[Connection]:
        connection = Connection(to.port, agent or Agent())
        try:
            await connection.register()
            yield connection
        finally:
            await connection.close()

    def rows(self, query: str, file: str = "gangline.duckdb") -> list[tuple[Any, ...]]:
        """Ask a file that no aggregator holds."""
        with duckdb.connect(str(self.folder / file), read_only=True) as connection:
            return connection.execute(query).fetchall()


@pytest.fixture(scope="module", autouse=True)
def no_operators_file() -> Iterator[None]:
    """Leave the operators' file out: a store writes it at its start and at its end, most of the cost of a store's life.

    `operators_file` and `operators_files` write it when a store ends; `live_operators_files` writes it as in production.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpsFile, "write", lambda *_: None)
        yield


@contextmanager
def with_operators_file(*, live: bool = False) -> Iterator[None]:
    """Write the operators' file when a store ends or a test asks for it, and with *live* also in between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpsFile, "write", _WRITE)
        if not live:
            patch.setattr(Store, "_write_ops", lambda _: None)
        yield


@pytest.fixture
def operators_file(no_operators_file: None) -> Iterator[None]:
    """This test has the operators' file of a store that has ended."""
    with with_operators_file():
        yield


@pytest.fixture(scope="module")
def operators_files(no_operators_file: None) -> Iterator[None]:
    """All tests of the module, and its fixtures, have the operators' files of stores that have ended."""
    with with_operators_file():
        yield


@pytest.fixture(scope="module")
def live_operators_files(no_operators_file: None) -> Iterator[None]:
    """All tests of the module have the operators' file as it is written in production."""
    with with_operators_file(live=True):
        yield


@pytest.fixture(scope="module", autouse=True)
def stores_are_copied() -> Iterator[None]:
    """Copy each new store, and the base of each new operators' file, from a prepared one: hundreds of tests
    would otherwise run all migrations and create all views.

    Other tests cover those (`test_store_opening.py`, `test_store.py` and `tests/upgrade`, which use real
    ones).
    """
    prepared = made_store()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duckdb_file, "_create", lambda path: shutil.copyfile(prepared, path))
        patch.setattr(snapshot_file, "_create_base", _copy_base)
        yield


def _copy_base(path: Path, tables: Mapping[str, tuple[Any, str]]) -> None:
    """Create a base without rows once for the same *tables*, and copy it."""
    key = repr(tables)
    if key not in _BASES:
        _CREATE_BASE(path, tables)
        _BASES[key] = path.read_bytes()
    path.write_bytes(_BASES[key])


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Return a data folder and the means to run an aggregator on it."""
    return Lab(tmp_path / "data")


@pytest.fixture
def make_agent() -> type[Agent]:
    return Agent


@pytest.fixture
def connect() -> type[Connection]:
    return Connection


async def wait_until(condition: Callable[[], Any]) -> Any:
    async with asyncio.timeout(GUARD_SECONDS):
        while not (value := condition()):
            await asyncio.sleep(0.005)
    return value


@pytest.fixture
def until() -> Callable[..., Any]:
    return wait_until
