"""AdvisoryService and OutcomeService over the real engine on a local port; a test sets the faults of hosts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import grpc

from gangline.aggregator.advisories.advisory import Action, Advisory, Basis, Case, Price, Scope
from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits
from gangline.aggregator.advisories.engine import AdvisoryEngine
from gangline.aggregator.advisories.failure_domains import NOWHERE
from gangline.aggregator.advisories.messages import (
    CaseGone,
    CaseSeen,
    Event,
    FleetSize,
    Member,
    Tick,
    Well,
)
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.service.advisory import AdvisoryService
from gangline.aggregator.service.outcome import OutcomeService
from gangline.aggregator.service.status import ErrorInterceptor
from gangline.contract.wire.advisory_pb2_grpc import add_AdvisoryServiceServicer_to_server
from gangline.contract.wire.outcome_pb2_grpc import add_OutcomeServiceServicer_to_server
from gangline.executors.client import CHANNEL_OPTIONS, AggregatorClient
from gangline.executors.settings import NodeNames
from tests.aggregator.advisories.served import Known, Tables
from tests.processes import GUARD_SECONDS

TICK_SECONDS = 0.05
HOSTS = 100
#: Short enough that a test sees an advisory expire, and limits above the number of a test's
#: advisories.
LIMITS = AdvisoryLimits(
    gather_seconds=0.0, hold_seconds=60.0, verify_seconds=0.2, cluster_hosts_min=HOSTS, hosts_per_hour_max=10_000,
    rack_hosts_max=HOSTS, job_hosts_max=HOSTS, failures_max=1000, shared_unplaced_hosts_min=10**6,
)  # fmt: skip


def case_of(
    host: str,
    number: int,
    action: Action = Action.AVOID,
    *,
    job: str = "",
    checkpoint_seconds: float = 0.0,
    scope: Scope = Scope.HOST,
) -> Case:
    """Return a certain fault of *host*."""
    return Case(
        f"{host}/{number}", host, "XID", Basis.DETERMINISTIC, action, scope, "GPU 3: XID 79", time.time_ns(), place=NOWHERE,
        job=job, checkpoint_seconds=checkpoint_seconds, price=Price(100.0, 1.0), gpus=8,
    )  # fmt: skip


class LockedTables(Tables):
    """Advice and outcomes are written by two threads, and a connection of DuckDB is for one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()

    def in_transaction(self, work: Any, *, ahead: bool = False) -> Any:
        with self._lock:
            return super().in_transaction(work, ahead=ahead)

    @contextmanager
    def reading(self) -> Iterator[Any]:
        with self._lock, super().reading() as connection:
            yield connection


class AdviceServer:
    """Started by `serving_advice`. Its methods are for other threads."""

    def __init__(self, limits: AdvisoryLimits) -> None:
        self._loop = asyncio.new_event_loop()
        self._tables = LockedTables()
        store: Any = self._tables
        self.engine = AdvisoryEngine(store, limits, Observer(), time.time_ns(), shadow=False)
        self.address = ""
        self._faults: dict[str, list[str]] = {}
        self._number = 0
        self._waiting: list[Event] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._ready = threading.Event()
        self._stopped: asyncio.Event | None = None
        self._restart: asyncio.Event | None = None
        self._port = 0

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(GUARD_SECONDS)

    def close(self) -> None:
        assert self._stopped is not None
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(GUARD_SECONDS)
        self._tables.close()

    def fault(
        self,
        host: str,
        action: Action = Action.AVOID,
        *,
        job: str = "",
        checkpoint_seconds: float = 0.0,
        scope: Scope = Scope.HOST,
        tell: bool = True,
    ) -> str:
        """Report a fault of *host*; return its key. With *tell*, propose the advisory before the return."""
        self._number += 1
        case = case_of(
            host, self._number, action, job=job, checkpoint_seconds=checkpoint_seconds, scope=scope
        )
        key, now_ns = case.key, case.since_ns
        self._faults.setdefault(host, []).append(key)
        if tell:
            self._do([*self._waiting, CaseSeen(now_ns, case)])
            self._waiting = []
        else:
            self._waiting.append(CaseSeen(now_ns, case))
        return key

    def tick(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._do(waiting)

    def heal(self, host: str) -> None:
        now_ns = time.time_ns()
        gone = [CaseGone(now_ns, key, "gone") for key in self._faults.pop(host, [])]
        self._do([*gone, Well(now_ns, host, True)])

    def advisories(self) -> dict[str, Advisory]:
        """Return open and ended advisories by name."""
        state = self.engine.machine.state
        return {**state.ended, **state.advisories}

    def of(self, host: str) -> Advisory | None:
        """Return the newest advisory of *host*."""
        matches = [advisory for advisory in self.advisories().values() if host in advisory.hosts]
        return max(matches, key=lambda one: int(one.name[1:]), default=None)

    def outcomes(self) -> list[tuple[Any, ...]]:
        """Return (workload, interrupted, end_reason, advice_followed) of each outcome."""
        query = "SELECT job, interrupted, end_reason, followed FROM outcomes ORDER BY ALL"
        rows: list[tuple[Any, ...]] = self._tables.in_transaction(
            lambda connection: connection.execute(query).fetchall()
        )
        return rows

    def gangs(self) -> dict[str, tuple[tuple[str, ...], int, float]]:
        """Return the gangs that schedulers reported: workload -> (hosts, GPUs, seconds between checkpoints)."""
        gangs = self.engine.gangs._gangs.values()
        return {
            gang.workload: (gang.hosts, gang.gpus, gang.checkpoint_seconds) for gang in list(gangs)
        }

    def unavailable(self) -> dict[str, list[str]]:
        """Return host -> the reasons why others report it as out of service."""
        absent = self.engine.machine.state.absent
        return {
            host: [report.message for report in reported.values()]
            for host, reported in absent.items()
        }

    @contextmanager
    def away(self) -> Iterator[None]:
        """Close the port for a while."""
        self._ask_async(self._server.stop(None))
        try:
            yield
        finally:
            self._ask_async(self._listen())

    def _do(self, events: list[Event]) -> None:
        async def step() -> None:
            for event in events:
                self.engine._step(event)
            self.engine._step(Tick(time.time_ns()))
            await self.engine.flush()

        self._ask_async(step())

    def _ask(self, work: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return work()

        return self._ask_async(call())

    def _ask_async(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(GUARD_SECONDS)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._work())
        finally:
            self._loop.close()

    async def _listen(self) -> None:
        self._server = grpc.aio.server(interceptors=[ErrorInterceptor(), Known()])
        members: Any = lambda host: Member(host)
        advisory = AdvisoryService(self.engine, time.time_ns, members)
        outcome = OutcomeService(self.engine, time.time_ns)
        add_AdvisoryServiceServicer_to_server(advisory, self._server)  # type: ignore[no-untyped-call]
        add_OutcomeServiceServicer_to_server(outcome, self._server)  # type: ignore[no-untyped-call]
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self.address = f"127.0.0.1:{self._port}"
        await self._server.start()

    async def _work(self) -> None:
        self._stopped = asyncio.Event()
        self.engine._step(FleetSize(time.time_ns(), HOSTS))
        await self._listen()
        self._ready.set()
        while not self._stopped.is_set():
            self.engine._step(Tick(time.time_ns()))
            await self.engine.flush()
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._stopped.wait()
            except TimeoutError:
                continue
        await self._server.stop(None)


@contextmanager
def serving_advice(limits: AdvisoryLimits = LIMITS) -> Iterator[AdviceServer]:
    server = AdviceServer(limits)
    server.start()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def connected_client(
    advice: AdviceServer, actor: str, wake: Callable[[], None]
) -> Iterator[AggregatorClient]:
    with grpc.insecure_channel(advice.address, options=CHANNEL_OPTIONS) as channel:
        client = AggregatorClient(channel, actor, wake, NodeNames().node_of)
        client.start()
        try:
            yield client
        finally:
            client.close()
