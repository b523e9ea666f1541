"""The service as one process: gRPC on one loop, which owns the fleet; the store has its own threads.

Here its parts are wired, started and ended. What it does each second is `judge_loop.py`, where it listens `server.py`, what
a port answers `service/grpc_server.py`, and what it takes over from before a restart `judge_loop.py`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple, cast

import grpc
from grpc_health.v1 import health, health_pb2

from ..contract.metrics_http import Family
from . import metrics as descriptors
from .advisories.advisory import limits_of
from .advisories.engine import Book
from .advisories.observer import Observer
from .advisories.workloads import Gangs, Works
from .auth.access import Door
from .clock_jump import Leaps
from .config import AggregatorConfig, declared_path, parse_listen
from .declared.live import Live
from .fleet.fleet import Fleet
from .hazard.models import Models
from .ingest.clocks import ClockWriter
from .ingest.ingest import Ingest
from .judge_loop import Holder, Judging, remember
from .metrics import Calls
from .monitoring.host_metrics import host_families
from .monitoring.metrics import Parts
from .monitoring.monitor import Changes, MetricsServer, OwnHealth, Watch, listener, tell
from .monitoring.probes import LoopLag, Machine, look
from .permits import Permits
from .scoring.declared import rule_names
from .scoring.evaluate import FAULT_RULES
from .scoring.restart import Before
from .service.admin import AdminService, PermitService
from .service.advisory import AdvisoryService
from .service.grpc_server import (
    ADMIN,
    ADVISORY,
    OUTCOME,
    PERMIT,
    QUERY,
    SCORE,
    TELEMETRY,
    make_server,
    serve_on,
)
from .service.outcome import OutcomeService
from .service.query import QueryService
from .service.score import ScoreService
from .service.score_messages import verdict_of
from .service.score_process import ScoreProcess, ScoreProcessError
from .service.telemetry import TelemetryService, Turns
from .store.store import Store

# ----------------------------------------------------------------------
# Where the aggregator listens, by its settings; and in words why it cannot listen there, and what
# would be right.


class StartError(Exception):
    """The service cannot start; the words say why and what to do."""


class Place(NamedTuple):
    """Where something is to listen. *option*: what is written before an address to name another place."""

    address: str
    port: int
    option: str


def places(config: AggregatorConfig) -> list[Place]:
    """Return where to listen: for all, and for those with a token if that is another place. Raises SettingsError."""
    named = [("listen", "--listen "), ("listen_tokens", "--set listen_tokens=")]
    return [_place(config, name, option) for name, option in named if getattr(config, name)]


def scores_place(config: AggregatorConfig) -> Place | None:
    """Return where a process of its own is to answer for scores; None: nowhere. Raises SettingsError."""
    if not config.listen_scores:
        return None
    return _place(config, "listen_scores", "--set listen_scores=")


def _place(config: AggregatorConfig, name: str, option: str) -> Place:
    beyond = config.listen_beyond_loopback or bool(config.tls_certificate_file)
    return Place(*parse_listen(getattr(config, name), beyond_loopback=beyond, name=name), option)


def metrics_socket(config: AggregatorConfig) -> socket.socket | None:
    """Return what /metrics is served on, if it is. Raises StartError."""
    if not config.metrics_listen:
        if config.metrics_hosts:
            raise StartError(
                "metrics_hosts = true, and metrics_listen is empty: say where, such as metrics_listen = "
                '"127.0.0.1:9477", or leave both out'
            )
        return None
    address, port = parse_listen(config.metrics_listen, beyond_loopback=True)
    try:
        return listener(address, port)
    except OSError as error:
        raise StartError(
            f"metrics_listen = {config.metrics_listen!r} cannot be listened on: {error}; "
            "name another address or port, or leave it empty"
        ) from error


def refuse_taken(place: Place) -> None:
    """Raise StartError if nobody could listen there."""
    try:
        _probe(place.address, place.port)
    except OSError as error:
        raise cannot_listen(place, error) from error


def cannot_listen(place: Place, error: Exception) -> StartError:
    """Return *error*, of who tried to listen there, with what to do about it."""
    address, port, option = place
    number = getattr(error, "errno", None)
    if isinstance(error, socket.gaierror) or number == errno.EADDRNOTAVAIL:
        remedy = f"No address of this machine? `ip address` lists those: name one with {option}ADDRESS:{port}"
    elif number == errno.EACCES:
        remedy = f"Ports below 1024 are root's: name a higher one with {option}{address}:PORT"
    else:
        remedy = (
            f"If another program has the port, `ss -ltnp 'sport = :{port}'` names it: stop that one, or give "
            f"this one another port with {option}{address}:PORT"
        )
    return StartError(f"cannot listen on {address}:{port}: {error}. {remedy}")


def _probe(address: str, port: int) -> None:
    """Raise OSError if nobody could listen there: gRPC would write its own words to stderr."""
    family, kind, _, _, where = socket.getaddrinfo(
        address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
        probe.listen(1)


log = logging.getLogger(__name__)

#: Calls still running this long after we are told to stop are ended.
GRACE_SECONDS = 3.0
#: `close` takes about so long, and the store at least so much of it.
CLOSE_SECONDS, STORE_CLOSE_SECONDS_MIN = 5.0, 1.0
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def _boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Aggregator:
    """`start`, then `close`; between them it serves."""

    def __init__(
        self,
        config: AggregatorConfig,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] | None = None,
    ) -> None:
        """*steady_ns*: None: as the wall clock, where that is one that is handed in, and never set."""
        if steady_ns is None and wall_ns is time.time_ns:
            self._leaps = Leaps(wall_ns, time.monotonic_ns, _boottime_ns)
        else:
            self._leaps = Leaps(wall_ns, steady_ns or wall_ns)
        # Node indexes begin anew with each process, so that its epoch is the moment of its start.
        self.fleet = Fleet(epoch=wall_ns() // 1_000_000)
        self.holder = Holder()
        self.port = self.token_port = 0
        #: Where /metrics is served; 0: it is not.
        self.metrics_port = 0
        self.scores: ScoreProcess | None = None
        self._config, self._wall_ns = config, wall_ns
        self._servers: list[grpc.aio.Server] = []
        self._calls, self._lag = Calls(), LoopLag()
        self._health: Any = cast(Any, health).aio.HealthServicer()

    async def start(self) -> None:
        """Open the store and serve. Raises SettingsError, StoreError or StartError, with words; then nothing is left."""
        config = self._config
        self.door = Door(config, lambda: self._wall_ns() / 1e9)
        where, scores = places(config), scores_place(config)
        for place in (*where, *([scores] if scores else ())):
            refuse_taken(place)  # before anything is written
        if scores is not None:
            self.scores = ScoreProcess(config, scores[:2], self.door, self._calls)
        if few := descriptors.words(descriptors.raise_limit()[0], config.hosts_max):
            log.warning("%s", few)
        async with AsyncExitStack() as undo:
            metrics = metrics_socket(config)
            if metrics is not None:
                undo.callback(metrics.close)
                self.metrics_port = int(metrics.getsockname()[1])
            self._open(undo)
            self._make_services(undo)
            await self._listen(where, undo)
            self._look_after(metrics)
            undo.pop_all()
        await self._run()

    # Its parts, in the order in which each needs those before it ---------------------------------

    def _open(self, undo: AsyncExitStack) -> None:
        """Open the store, and take up what it has of before."""
        config = self._config
        self.store = Store.open(config.data, config, self._wall_ns)
        undo.callback(self.store.close)
        self._ingest = Ingest(self.fleet, self.store, config, self._wall_ns)
        undo.callback(self._ingest.close)
        self._clocks = ClockWriter(self._ingest.heard_clocks, self.store)
        self.declared = Live(declared_path(config), self.fleet, self.store, rule_names())
        self.declared.begin(self._wall_ns())
        self.models = Models(self.store, FAULT_RULES, self._wall_ns)
        self.models.load()
        gangs = Gangs()
        self._works = Works(self.fleet, gangs)
        observer = Observer(lambda: self.fleet.declared, self._works)
        try:
            self.book = Book(
                self.store, limits_of(config), observer, self._wall_ns(),
                shadow=config.advice_shadow, gangs=gangs,
                outcomes_half_life_days=config.outcomes_half_life_days,
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise StartError(
                f"the advice that is stored in {config.data} cannot be read ({type(error).__name__}: {error}): a later version "
                "wrote it? Start that version, or restore the backup of before"
            ) from error

    def _make_services(self, undo: AsyncExitStack) -> None:
        config, wall_ns = self._config, self._wall_ns
        self._permits = Permits(
            config.data, config.permit_unhealthy_share_max, lambda: self.holder.snapshot, wall_ns
        )
        self.turns = Turns(self._ingest, self.store, self.fleet, config)
        undo.callback(self.turns.stop)
        self._telemetry = TelemetryService(
            self._ingest, self.turns, self._permits.lease, self.door.pace,
            lambda host: verdict_of(self.holder.snapshot, self.fleet.index, host),
        )  # fmt: skip
        self.query = QueryService(config, wall_ns, refresh=self.store.refresh)
        undo.push_async_callback(self.query.close)
        before = remember(self.fleet, self.store, self._ingest.findings, wall_ns())
        self.store.forget_before()
        self.judging = self._make_judging(before)
        self.judging.begin()
        self._services = {
            TELEMETRY: self._telemetry,
            SCORE: ScoreService(self.holder),
            PERMIT: PermitService(self._permits),
            ADVISORY: AdvisoryService(self.book, wall_ns, self._works.member),
            OUTCOME: OutcomeService(self.book, wall_ns),
            QUERY: self.query,
            ADMIN: AdminService(self.store, config.backup_wal_bytes_max, self.models),
        }

    def _make_judging(self, before: Before) -> Judging:
        return Judging(
            self._config, self._wall_ns, self.fleet, self.store, self._ingest, self._clocks, self.door,
            self.declared, self.models, self.book, self._telemetry, self.holder, self.scores, self._health,
            lambda: self._own.words, before, self._leaps,
        )  # fmt: skip

    async def _listen(self, where: list[Place], undo: AsyncExitStack) -> None:
        """Answer in all places, the score process's among them."""
        if (
            self.scores is not None
        ):  # first: gRPC keeps a port that it was bound to and does not serve
            await self._start_scores(self.scores)
            undo.push_async_callback(self.scores.close)
        self._servers = [self._bind(place, by_token=at > 0) for at, place in enumerate(where)]
        self.door.listens([self.port, self.token_port])
        for server in self._servers:
            await server.start()
            undo.push_async_callback(server.stop, None)

    def _bind(self, place: Place, *, by_token: bool) -> grpc.aio.Server:
        """Return a server that is to answer there; behind the first of all places callers need no token."""
        denied = {f"/{QUERY}/Query": self.query.denied}
        server = make_server(self._config, self.door, self._calls, by_token=by_token, denied=denied)
        serve_on(server, self._services, self._health)
        try:
            self.token_port = self.door.bind(
                server, f"{place.address}:{place.port}", by_token=by_token
            )
        except RuntimeError as error:
            raise cannot_listen(place, error) from error
        if not by_token:
            self.port = self.token_port
        return server

    async def _start_scores(self, scores: ScoreProcess) -> None:
        try:
            await scores.start()
        except (ScoreProcessError, OSError) as error:
            raise StartError(f"listen_scores = {self._config.listen_scores!r}: {error}") from error

    def _look_after(self, metrics: socket.socket | None) -> None:
        """Make what looks at ourselves."""
        parts = Parts(
            self._config, self.fleet, self.store, self._ingest, self._calls, self._lag,
            self.door, self.turns, self.query.processes,
            lambda: self._telemetry.streams, lambda: self.judging.seconds, self.scores,
        )  # fmt: skip

        def machine(now_ns: int) -> Machine:
            ports = {self.port, self.token_port, *([self.scores.port] if self.scores else ())}
            return look(self._config.data, ports, now_ns)

        hosts = self._host_families if self._config.metrics_hosts else lambda _: ()
        self._own = OwnHealth(parts, machine, self._wall_ns, hosts=hosts)
        loop = asyncio.get_running_loop()
        server = MetricsServer(metrics, self._own.render) if metrics else None
        self._watch = Watch(self._own, lambda changes: self._hear(loop, changes), server)

    def _host_families(self, now_ns: int) -> list[Family]:
        """Return the series of each host. For the thread that answers /metrics."""
        advisories = [] if self.book.shadow else list(self.book.machine.memory.advisories.values())
        return host_families(self.holder.snapshot, advisories, now_ns)

    def _hear(self, loop: asyncio.AbstractEventLoop, changes: Changes) -> None:
        """Take changes of alarms over, from the watch's thread into the loop's."""
        with suppress(RuntimeError):  # the loop has ended: nobody is left to tell
            loop.call_soon_threadsafe(lambda: tell(self.fleet, changes, self._wall_ns()))

    # While it runs -------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Begin what goes on by itself, and say that we serve."""
        self._lag.start()
        self._watch.start()
        for name in ("", TELEMETRY, QUERY):
            await self._health.set(name, _SERVING)
        await self._health.set(SCORE, _SERVING if self.holder.snapshot else _NOT_SERVING)
        self._tasks = [
            asyncio.create_task(self.judging.run()),
            asyncio.create_task(self.door.watch()),
        ]

    def reload(self) -> None:
        """Read what people declared again, with the next judgement."""
        self.judging.reload()

    async def close(self) -> str:
        """Stop accepting, commit what waits, send its receipts, close the store: within 5 s, or 25 s of a disk that hangs.

        Returns words on what could not be stored, "" when all was.
        """
        begin = time.monotonic()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.judging.telling.end()
        self._lag.stop()
        self._watch.close()
        await self._health.enter_graceful_shutdown()
        self._telemetry.stop_reading()
        self.store.hurry()
        await self.query.close()
        if self.scores is not None:
            await self.scores.close()
        await asyncio.gather(*(server.stop(GRACE_SECONDS) for server in self._servers))
        self._ingest.close()
        self.store.submit_findings(self._ingest.findings.changes(self._wall_ns()))
        rest = max(STORE_CLOSE_SECONDS_MIN, CLOSE_SECONDS - (time.monotonic() - begin))
        # In each thread of the loop's own somebody may wait for the store.
        with ThreadPoolExecutor(1) as apart:
            return await asyncio.get_running_loop().run_in_executor(apart, self.store.close, rest)


async def serve(aggregator: Aggregator, stop: asyncio.Event, ready: Callable[[Any], None]) -> str:
    """Start, say that it is *ready*, and close when *stop* is set. Raises what `start` raises.

    Returns what `close` returns.
    """
    await aggregator.start()
    try:
        ready(aggregator)
        await stop.wait()
    finally:
        unstored = await aggregator.close()
    return unstored
