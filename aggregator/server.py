"""The service as one process: gRPC on one loop, which owns the fleet; the store has its own threads."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ..fingerprints.wire import (
    admin_pb2,
    advisory_pb2,
    outcome_pb2,
    permit_pb2,
    query_pb2,
    score_pb2,
    telemetry_pb2,
)
from ..fingerprints.wire.admin_pb2_grpc import add_AdminServiceServicer_to_server
from ..fingerprints.wire.advisory_pb2_grpc import add_AdvisoryServiceServicer_to_server
from ..fingerprints.wire.outcome_pb2_grpc import add_OutcomeServiceServicer_to_server
from ..fingerprints.wire.permit_pb2_grpc import add_PermitServiceServicer_to_server
from ..fingerprints.wire.query_pb2_grpc import add_QueryServiceServicer_to_server
from ..fingerprints.wire.score_pb2_grpc import add_ScoreServiceServicer_to_server
from ..fingerprints.wire.telemetry_pb2_grpc import add_TelemetryServiceServicer_to_server
from .access.door import Door
from .advice.book import Book
from .advice.gangs import Gangs
from .advice.limits import limits_of
from .advice.observing import Observer
from .advice.works import Works
from .config import AggregatorConfig, declared_path, parse_listen
from .declared.live import Live
from .fleet.fleet import Fleet
from .hazard.events import EventsError
from .hazard.models import Models
from .hazard.recorded import incidents_of
from .health import descriptors
from .health.alarm_table import ALARMS
from .health.calls import Calls
from .health.figures import Parts
from .health.looplag import LoopLag
from .health.machine import Machine, look
from .health.watch import Changes, OwnHealth, Watch, tell
from .ingest.clocklog import ClockWriter
from .ingest.intake import Ingest
from .judgement.declared import rule_names
from .judgement.faults import Faults
from .judgement.judge import FAULT_RULES, JUDGED_FINDINGS, Judgement, judge
from .judgement.restart import Before, restore
from .permits import Permits
from .scores.supervisor import ScoreProcess, ScoreProcessError
from .service.admin import AdminService
from .service.advisory import AdvisoryService
from .service.metrics import MetricsServer, listener
from .service.outcome import OutcomeService
from .service.permit import PermitService
from .service.query import QueryService
from .service.score import ScoreService
from .service.serving import make_server
from .service.telemetry import TelemetryService
from .service.turns import Turns
from .store.known import NOT_LOOKED_AT
from .store.scorelog import ScoreLog
from .store.store import Store
from .verdicts import OURSELVES

log = logging.getLogger(__name__)

#: Calls still running this long after we are told to stop are ended.
GRACE_SECONDS = 3.0

#: What is wrong with certificates or tokens, as a finding of the aggregator itself.
ACCESS_FINDING = "access.trouble"

TELEMETRY: str = telemetry_pb2.DESCRIPTOR.services_by_name["TelemetryService"].full_name
ADMIN: str = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
ADVISORY: str = advisory_pb2.DESCRIPTOR.services_by_name["AdvisoryService"].full_name
OUTCOME: str = outcome_pb2.DESCRIPTOR.services_by_name["OutcomeService"].full_name
PERMIT: str = permit_pb2.DESCRIPTOR.services_by_name["PermitService"].full_name
QUERY: str = query_pb2.DESCRIPTOR.services_by_name["QueryService"].full_name
SCORE: str = score_pb2.DESCRIPTOR.services_by_name["ScoreService"].full_name
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class StartError(Exception):
    """The service cannot start; the words say why and what to do."""


class Holder:
    """What the API answers from: swapped whole, never changed."""

    def __init__(self) -> None:
        self.snapshot: Judgement | None = None


class Aggregator:
    """`start`, then `close`; between them it serves."""

    def __init__(
        self,
        config: AggregatorConfig,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        # Node indexes begin anew with each process, so that its epoch is the moment of its start.
        self.fleet = Fleet(epoch=wall_ns() // 1_000_000)
        self.holder = Holder()
        self.port = self.token_port = 0
        self._access_trouble, self._reload = "", False
        self._servers: list[grpc.aio.Server] = []
        self._config = config
        self._wall_ns = wall_ns
        self._scores = ScoreLog()
        self._calls, self._lag = Calls(), LoopLag()
        self._judge_seconds = 0.0
        #: Where /metrics is served; 0: it is not.
        self.metrics_port = 0
        self._health: Any = cast(Any, health).aio.HealthServicer()

    async def start(self) -> None:
        """Open the store and serve. Raises SettingsError, StoreError or StartError, with words."""
        self.door = Door(self._config, lambda: self._wall_ns() / 1e9)
        self._addresses = _addresses(self._config)
        self.scores = self._score_process()
        for address, port in self._addresses:
            _refuse_taken(address, port)  # before anything is written
        if self.scores is not None:
            _refuse_taken(self.scores.address, self.scores.port, "--set listen_scores=")
        metrics = self._metrics_socket()
        if few := descriptors.words(descriptors.raise_limit()[0], self._config.hosts_max):
            log.warning("%s", few)
        try:
            self.store = Store.open(self._config.data, self._config, self._wall_ns)
        except BaseException:
            _close(metrics)
            raise
        try:
            self._ingest = Ingest(self.fleet, self.store, self._config, self._wall_ns)
            self.declared = Live(declared_path(self._config), self.fleet, self.store, rule_names())
            self.declared.begin(self._wall_ns())
            self.models = Models(self.store, FAULT_RULES, self._wall_ns)
            self.models.load()
            self._begin_advice()
            self._remember()
            self._permits = Permits(
                self._config.data,
                self._config.permit_unhealthy_share_max,
                lambda: self.holder.snapshot,
                self._wall_ns,
            )
            self._clocks = ClockWriter(self._ingest.heard_clocks, self.store)
            self.turns = Turns(self._ingest, self.store, self.fleet, self._config)
            self._telemetry = TelemetryService(
                self._ingest, self.turns, self._permits.lease, self.door.pace
            )
            self.query = QueryService(self._config, self._wall_ns)
            ports = [self._bind(at, one) for at, one in enumerate(self._addresses)]
            self.port, self.token_port = ports[0], ports[-1]
            self.door.listens(ports)
            for server in self._servers:
                await server.start()
            await self._start_scores()
            self._watch = self._make_watch(metrics)
            self.query.start()
        except BaseException:
            _close(metrics)
            if self.scores is not None:
                await self.scores.close()
            self.store.close()
            raise
        self._lag.start()
        self._watch.start()
        await self._health.set("", _SERVING)
        await self._health.set(TELEMETRY, _SERVING)
        await self._health.set(QUERY, _SERVING)
        await self._health.set(SCORE, _SERVING if self.holder.snapshot else _NOT_SERVING)
        self._judge_task = asyncio.create_task(self._judge_always())
        self._door_task = asyncio.create_task(self.door.watch())

    def _score_process(self) -> ScoreProcess | None:
        """Return what is to answer on `listen_scores`, if anything. Raises SettingsError."""
        config = self._config
        if not config.listen_scores:
            return None
        beyond = _beyond_loopback(config)
        where = parse_listen(config.listen_scores, beyond_loopback=beyond, name="listen_scores")
        return ScoreProcess(config, where, self.door, self._calls)

    async def _start_scores(self) -> None:
        if self.scores is None:
            return
        try:
            await self.scores.start()
        except (ScoreProcessError, OSError) as error:
            raise StartError(f"listen_scores = {self._config.listen_scores!r}: {error}") from error
        if self.holder.snapshot is not None:
            self.scores.tell(self.holder.snapshot)

    def _remember(self) -> None:
        """Answer as before the restart, until the hosts have spoken."""
        now_ns = self._wall_ns()
        before = restore(self.fleet, self.store.last_scores, now_ns)
        self._before = before = replace(
            before, findings=self._remember_findings(now_ns), faults=self._remember_faults(now_ns)
        )
        if before.scores:
            self.holder.snapshot = self._judged(now_ns, None, before)
            self._scores.changed(self.holder.snapshot)  # they stand in the store already

    def _remember_faults(self, now_ns: int) -> Faults:
        """Return what is on record of each host, as training reads it."""
        try:
            with self.store.reading() as cursor:
                return Faults.of(incidents_of(cursor, FAULT_RULES, now_ns // 1000))
        except EventsError as error:
            log.error("hazards are told as if no host had failed before: %s", error)
            return Faults()

    def _begin_advice(self) -> None:
        """Take advice up where the store has it."""
        config, gangs = self._config, Gangs()
        self._works = Works(self.fleet, gangs)
        self.book = Book(
            self.store,
            limits_of(config),
            Observer(lambda: self.fleet.declared, self._works),
            self._wall_ns(),
            shadow=config.advice_shadow,
            gangs=gangs,
        )
        self._advice_trouble = ""
        self._advice_task: asyncio.Task[None] | None = None

    def _advise(self, snapshot: Judgement) -> None:
        """Give the machine what was judged; what it decides is written, and then told, beside judging."""
        try:
            self.book.observe(snapshot, self.fleet.gpus)
        except Exception:
            log.exception("advice failed; what was advised before stands")
            return
        if self._advice_task is None or self._advice_task.done():
            self._advice_task = asyncio.create_task(self._tell_advice())

    async def _tell_advice(self) -> None:
        try:
            await self.book.flush()
            self._advice_trouble = ""
        except Exception as error:  # noqa: BLE001 - the disk's, DuckDB's: it is tried again
            if str(error) != self._advice_trouble:
                log.warning("advice cannot be stored, and so is not given: %s", error)
            self._advice_trouble = str(error)

    def _remember_findings(self, now_ns: int) -> frozenset[tuple[str, str, str]]:
        """Take over what was found of hosts that are known still, and return what judging is to end."""
        judged: set[tuple[str, str, str]] = set()
        for one in self.store.open_findings:
            is_alarm = one.host == OURSELVES and one.name.startswith(
                ALARMS
            )  # found anew, if it is so
            if is_alarm or (one.host not in self.fleet.index and one.host != OURSELVES):
                gone = replace(one, cleared_ns=now_ns, clears_when=NOT_LOOKED_AT)
                self.store.submit_findings([gone])
                continue
            key = one.host, one.name, one.subject
            if one.name in JUDGED_FINDINGS:
                judged.add(key)
            expires = key not in judged and not one.name.startswith("clock.")
            self._ingest.findings.restore(one, now_ns, expires=expires)
        return frozenset(judged)

    def _metrics_socket(self) -> socket.socket | None:
        """Return what /metrics is served on, if it is. Raises StartError."""
        if not self._config.metrics_listen:
            return None
        address, port = parse_listen(self._config.metrics_listen, beyond_loopback=True)
        try:
            listening = listener(address, port)
        except OSError as error:
            raise StartError(
                f"metrics_listen = {self._config.metrics_listen!r} cannot be listened on: {error}; "
                "name another address or port, or leave it empty"
            ) from error
        self.metrics_port = int(listening.getsockname()[1])
        return listening

    def _make_watch(self, metrics: socket.socket | None) -> Watch:
        parts = Parts(
            self._config, self.fleet, self.store, self._ingest, self._calls, self._lag,
            self.door, self.turns, self.query.processes,
            lambda: self._telemetry.streams, lambda: self._judge_seconds, self.scores,
        )  # fmt: skip

        def machine(now_ns: int) -> Machine:
            ports = {self.port, self.token_port, *([self.scores.port] if self.scores else ())}
            return look(self._config.data, ports, now_ns)

        self._own = OwnHealth(parts, machine, self._wall_ns)
        loop = asyncio.get_running_loop()
        server = MetricsServer(metrics, self._own.render) if metrics else None
        return Watch(self._own, lambda changes: self._hear(loop, changes), server)

    def _hear(self, loop: asyncio.AbstractEventLoop, changes: Changes) -> None:
        """Take changes of alarms over, from the watch's thread into the loop's."""
        with suppress(RuntimeError):  # the loop has ended: nobody is left to tell
            loop.call_soon_threadsafe(lambda: tell(self.fleet, changes, self._wall_ns()))

    def _make_server(self, *, by_token: bool) -> grpc.aio.Server:
        server = make_server(
            self._config,
            self.door,
            self._calls,
            by_token=by_token,
            denied={f"/{QUERY}/Query": self.query.denied},
        )
        add_TelemetryServiceServicer_to_server(self._telemetry, server)  # type: ignore[no-untyped-call]
        add_PermitServiceServicer_to_server(PermitService(self._permits), server)  # type: ignore[no-untyped-call]
        add_ScoreServiceServicer_to_server(ScoreService(self.holder), server)  # type: ignore[no-untyped-call]
        advisory = AdvisoryService(self.book, self._wall_ns, self._works.member)
        add_AdvisoryServiceServicer_to_server(advisory, server)  # type: ignore[no-untyped-call]
        outcome = OutcomeService(self.book, self._wall_ns)
        add_OutcomeServiceServicer_to_server(outcome, server)  # type: ignore[no-untyped-call]
        add_QueryServiceServicer_to_server(self.query, server)  # type: ignore[no-untyped-call]
        admin = AdminService(self.store, self._config.backup_wal_bytes_max, self.models)
        add_AdminServiceServicer_to_server(admin, server)  # type: ignore[no-untyped-call]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (
            TELEMETRY, SCORE, PERMIT, ADVISORY, OUTCOME, QUERY, ADMIN, health.SERVICE_NAME, reflection.SERVICE_NAME,
        )  # fmt: skip
        reflection.enable_server_reflection(names, server)
        return server

    def _bind(self, at: int, where: tuple[str, int]) -> int:
        """Listen on one of the addresses, with a server of its own; behind the first one callers need a token."""
        address, port = where
        server = self._make_server(by_token=at > 0)
        self._servers.append(server)
        try:
            return self.door.bind(server, f"{address}:{port}", by_token=at > 0)
        except RuntimeError as error:
            raise _cannot_listen(address, port, error) from error

    async def _judge_always(self) -> None:
        while True:
            begin = time.monotonic()
            try:
                await self._judge()
            except Exception:
                log.exception("judging failed; the snapshot before stays")
            self._judge_seconds = time.monotonic() - begin
            rest = self._config.judge_seconds - self._judge_seconds
            await asyncio.sleep(max(0.01, rest))

    async def _judge(self) -> None:
        for _ in self.fleet.advance_ahead():
            await asyncio.sleep(0)  # frames and calls that came meanwhile
        now_ns = self._wall_ns()
        self._ingest.step(now_ns)
        self._clocks.step(now_ns)
        self._tell_of_access(now_ns)
        if self._reload:
            self.declared.ask()
        self._reload = False
        self.declared.step(now_ns)
        before = None if self.holder.snapshot else self._before
        snapshot = self._judged(now_ns, self.holder.snapshot, before)
        self._ingest.findings.say_not_stored(self.store.failing, now_ns)
        if trouble := self.store.trouble:
            self._telemetry.say_not_stored()
            reasons = filter(None, (snapshot.degraded_reason, trouble))
            snapshot = replace(snapshot, degraded_reason="; ".join(reasons))
        if alarms := (*self._own.words, *filter(None, (self.declared.trouble,))):
            snapshot = replace(snapshot, alarms=alarms)
        first, self.holder.snapshot = self.holder.snapshot is None, snapshot
        if self.scores is not None:
            self.scores.tell(snapshot)
        self.store.submit_scores(snapshot, self._scores.changed(snapshot))
        self.store.submit_findings(self._ingest.findings.changes(now_ns))
        self._advise(snapshot)
        if first:
            await self._health.set(SCORE, _SERVING)
        await self._health.set(TELEMETRY, _NOT_SERVING if self.store.failing else _SERVING)

    def _judged(self, now_ns: int, previous: Judgement | None, before: Before | None) -> Judgement:
        model, experience = self.models.in_use, self.book.experience
        return judge(self.fleet, now_ns, previous, before, model, experience)

    def reload(self) -> None:
        """Read what people declared again, with the next judgement."""
        self._reload = True

    def _tell_of_access(self, now_ns: int) -> None:
        """Keep what is wrong with certificates or tokens as a finding of the aggregator's own."""
        if self.door.trouble != self._access_trouble:
            self._ingest.findings.clear(OURSELVES, ACCESS_FINDING, now_ns)
            self._access_trouble = self.door.trouble
            if words := self._access_trouble:
                self._ingest.findings.find(OURSELVES, ACCESS_FINDING, words, now_ns, expires=False)

    async def close(self) -> str:
        """Stop accepting, commit what waits, send its receipts, close the store: within 5 s.

        Returns words on what could not be stored, "" when all was.
        """
        begin = time.monotonic()
        self._judge_task.cancel()
        if self._advice_task is not None:
            await asyncio.wait([self._advice_task], timeout=1.0)
        self._door_task.cancel()
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
        rest = max(1.0, 5.0 - (time.monotonic() - begin))
        return await asyncio.get_running_loop().run_in_executor(None, self.store.close, rest)


def _addresses(config: AggregatorConfig) -> list[tuple[str, int]]:
    """Return where to listen: for all, and for those with a token if that is another place. Raises SettingsError."""
    texts = filter(None, (config.listen, config.listen_tokens))
    return [parse_listen(text, beyond_loopback=_beyond_loopback(config)) for text in texts]


def _beyond_loopback(config: AggregatorConfig) -> bool:
    return config.listen_beyond_loopback or bool(config.tls_certificate_file)


def _close(listening: socket.socket | None) -> None:
    if listening is not None:
        listening.close()


def _refuse_taken(address: str, port: int, option: str = "--listen ") -> None:
    try:
        _probe(address, port)
    except OSError as error:
        raise _cannot_listen(address, port, error, option) from error


def _cannot_listen(
    address: str, port: int, error: Exception, option: str = "--listen "
) -> StartError:
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
