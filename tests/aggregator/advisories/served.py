"""A store, an engine and its services behind a real server, for the tests of advice."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import grpc

from gangline.aggregator.advisories.advisory import AdvisoryState
from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits
from gangline.aggregator.advisories.engine import AdvisoryEngine
from gangline.aggregator.advisories.messages import Acked
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.advisories.workloads import Gang, ScheduledGangs, WorkloadLookup
from gangline.aggregator.model import TransactionalStore
from gangline.aggregator.principal import LOCAL, Principal, set_principal
from gangline.aggregator.service.advisory import AdvisoryService
from gangline.aggregator.service.outcome import OutcomeService
from gangline.aggregator.service.status import ErrorInterceptor
from gangline.aggregator.store.answer_journal import AnswerJournal
from gangline.aggregator.store.duckdb_file import migrations
from gangline.aggregator.store.store import Store
from gangline.contract.wire.advisory_pb2_grpc import (
    AdvisoryServiceStub,
    add_AdvisoryServiceServicer_to_server,
)
from gangline.contract.wire.outcome_pb2_grpc import (
    OutcomeServiceStub,
    add_OutcomeServiceServicer_to_server,
)
from tests.worlds import World, gpu_of

S = TypeVar("S", bound=TransactionalStore)
#: One of the world's four hosts may be out.
LIMITS = AdvisoryLimits(gather_seconds=0.0)


def dead_gpu() -> World:
    """Four hosts; a GPU of the third has lost data permanently (XID 95)."""
    world = World(gpus=2)
    world.run(10, last_seconds=1)
    world.event(world.hosts[2], 95, gpu_of(world.hosts[2], 0))
    world.run(20, last_seconds=1)
    return world


def book_of(
    store: TransactionalStore,
    world: World,
    *,
    shadow: bool = False,
    journal: AnswerJournal | None = None,
) -> AdvisoryEngine:
    """Return an engine of a fleet whose scheduler reports a gang of 32 GPUs on the third host."""
    gangs = ScheduledGangs()
    observer = Observer(work=WorkloadLookup(world.fleet, gangs))
    book = AdvisoryEngine(
        store, LIMITS, observer, world.now_ns, shadow=shadow, gangs=gangs, journal=journal
    )
    gangs.update(Gang("train-7", ("h2",), 32, 1800.0, world.now_ns * 2, "slurm", world.now_ns))
    return book


def observe(book: AdvisoryEngine, world: World) -> None:
    assert world.snapshot is not None
    book.observe(world.snapshot, world.fleet.gpus)


def observed(store: S) -> tuple[World, S, AdvisoryEngine]:
    """Return a world with a dead GPU, *store*, and an engine whose a1 is not flushed yet."""
    world = dead_gpu()
    book = book_of(store, world)
    observe(book, world)
    return world, store, book


@cache
def _migrated() -> Path:
    """Return a DuckDB file after all migrations, without views."""
    folder = Path(tempfile.mkdtemp(prefix="gangline-migrated-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with duckdb.connect(str(folder / "tables.duckdb")) as connection:
        for _, text in migrations():
            connection.execute(text)
    return folder / "tables.duckdb"


class Tables:
    """A store with only its tables, in memory: a tenth of the time of a store on disk."""

    def __init__(self) -> None:
        self.connection = duckdb.connect(":memory:")
        self.connection.execute(f"ATTACH '{_migrated()}' AS migrated (READ_ONLY)")
        self.connection.execute("COPY FROM DATABASE migrated TO memory; DETACH migrated")

    def in_transaction(self, work: Callable[[Any], Any], *, ahead: bool = False) -> Any:
        return work(self.connection)

    @contextmanager
    def reading(self) -> Iterator[Any]:
        yield self.connection

    def close(self) -> None:
        # otherwise the garbage collector closes it, in the thread of another store
        self.connection.close()


class Known(grpc.aio.ServerInterceptor):
    """Replaces the guard: each caller is *principal*."""

    def __init__(self, principal: Principal = LOCAL) -> None:
        self._principal = principal

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        set_principal(self._principal)
        return await continuation(handler_call_details)


@asynccontextmanager
async def served(
    book: AdvisoryEngine,
    world: World,
    addresses: list[str] | None = None,
    principal: Principal = LOCAL,
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield both services' stubs, called by *principal*; append their address to *addresses*."""
    server = grpc.aio.server(interceptors=[ErrorInterceptor(), Known(principal)])
    works = WorkloadLookup(world.fleet, book.gangs)
    advisory = AdvisoryService(book, lambda: world.now_ns, works.member)
    outcome = OutcomeService(book, lambda: world.now_ns)
    add_AdvisoryServiceServicer_to_server(advisory, server)  # type: ignore[no-untyped-call]
    add_OutcomeServiceServicer_to_server(outcome, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    if addresses is not None:
        addresses.append(f"127.0.0.1:{port}")
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield (
                AdvisoryServiceStub(channel),  # type: ignore[no-untyped-call]
                OutcomeServiceStub(channel),  # type: ignore[no-untyped-call]
            )
    finally:
        await server.stop(None)


async def _accept(folder: Path) -> None:
    world, _, book = observed(Store.open(folder))
    await book.flush()
    await book.answer(Acked(world.now_ns, "a1", AdvisoryState.ACCEPTED, "slurm"))
    print("accepted", flush=True)
    await asyncio.sleep(600)  # until it is killed


if __name__ == "__main__":
    asyncio.run(_accept(Path(sys.argv[1])))
