"""The service as a process: gRPC on an event loop that owns the fleet.

The store has its own threads. This module connects, starts and stops the components.
`judge_loop.py` does the work of each second and restores state after a restart;
`service/grpc_server.py` makes the gRPC servers.
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
from prometheus_client.core import Metric

from ..contract.otlp_logs import OtlpLogExporter
from ..contract.server.http_server import HttpLimits, HttpServer, listener, metrics_routes
from . import metrics as descriptors
from .advisories.advisory import Advisory
from .advisories.advisory_limits import limits_of
from .advisories.engine import AdvisoryEngine
from .advisories.observer import Observer
from .advisories.workloads import ScheduledGangs, WorkloadLookup
from .auth.access import AccessControl
from .calibration_log import CalibrationLog
from .config import PORT_MAX, SCORES_AUTO, SCORES_OFF, AggregatorConfig, declared_path, parse_listen
from .declared_reload import DeclaredReloader
from .fleet.fleet import Fleet
from .hazard.models import ModelRegistry
from .ingest.clocks import ClockWriter
from .ingest.ingest import Ingest
from .judge_loop import ClockJumpDetector, JudgeLoop, SnapshotHolder, restore_from_store
from .metrics import CallCounters
from .monitoring.host_metrics import host_families
from .monitoring.log_export import FindingAndAdviceLog
from .monitoring.metrics import MetricSources
from .monitoring.monitor import AlarmChanges, MonitorThread, SelfMonitor, record_alarms
from .monitoring.probes import LoopLag, ResourceUsage, read_resource_usage
from .permits import Permits
from .recordings import RecordingExchange
from .reservations import Reservations
from .rule_catalogue import OVERRIDABLE_RULES
from .runs.interference_models import InterferenceModels
from .runs.run_log import RunLog
from .scoring.evaluate import Judgement
from .service.admin import AdminService, PermitService
from .service.advisory import AdvisoryService
from .service.decision import DecisionService
from .service.decision_log import DecisionLog
from .service.grpc_server import (
    ADMIN,
    ADVISORY,
    DECISION,
    INTERFERENCE,
    JOB,
    OUTCOME,
    PERMIT,
    PLACEMENT,
    QUERY,
    RECORDING,
    RECOVERY,
    RESERVATION,
    SCORE,
    TELEMETRY,
    make_server,
    serve_on,
)
from .service.interference import InterferenceService
from .service.job import JobService
from .service.outcome import OutcomeService
from .service.placement import PlacementService
from .service.query import QueryService
from .service.recording import RecordingService
from .service.recovery_report import RecoveryReportService
from .service.reservation import ReservationService
from .service.score import ScoreService
from .service.score_messages import verdict_of
from .service.score_process import ScoreProcess, ScoreProcessError
from .service.telemetry import AdmissionControl, TelemetryService
from .store.answer_journal import ANSWERS_FILE, AnswerJournal
from .store.store import Store
from .store.store_folder import folder_identity

log = logging.getLogger(__name__)

#: Logged if `listen_scores = "auto"` finds no free port.
NO_SCORES = "scores and plans are answered on `listen` alone, where they wait for judging:"
SCORES_REMEDY = (
    "To choose the port, set listen_scores to ADDRESS:PORT; to do without, set it to off"
)

#: Calls that still run this long after a stop request are cancelled.
GRACE_SECONDS = 3.0
METRICS_LIMITS = HttpLimits(connections_max=16)
#: Approximate duration of `close`, and the minimum share of the store.
CLOSE_SECONDS, STORE_CLOSE_SECONDS_MIN = 5.0, 1.0
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class StartError(Exception):
    """The service cannot start; the message says why, and the remedy."""


class Endpoint(NamedTuple):
    """An address to listen on. *option*: command-line prefix to choose another address."""

    address: str
    port: int
    option: str


def listen_endpoints(config: AggregatorConfig) -> list[Endpoint]:
    """Return the endpoints of `listen` and `listen_tokens`. Raises SettingsError."""
    named = [("listen", "--listen "), ("listen_tokens", "--set listen_tokens=")]
    return [_listen_endpoint(config, name, o) for name, o in named if getattr(config, name)]


def scores_endpoint(config: AggregatorConfig) -> Endpoint | None:
    """Return the endpoint of the score process, None to run without. Raises SettingsError.

    With `auto` and no usable port, the service starts without it, with a warning.
    """
    option = "--set listen_scores="
    if config.listen_scores in ("", SCORES_OFF):
        return None
    if config.listen_scores != SCORES_AUTO:
        return _listen_endpoint(
            config, "listen_scores", option, f", or {SCORES_AUTO}, or {SCORES_OFF}"
        )
    address, port, _ = _listen_endpoint(config, "listen", option)
    if port == PORT_MAX:
        log.warning("%s there is no port after %d: %s", NO_SCORES, port, SCORES_REMEDY)
        return None
    endpoint = Endpoint(address, port + 1 if port else 0, option)
    try:
        check_endpoint_free(endpoint)
    except StartError as error:
        log.warning("%s %s. %s", NO_SCORES, error, SCORES_REMEDY)
        return None
    return endpoint


def _listen_endpoint(
    config: AggregatorConfig, name: str, option: str, otherwise: str = ""
) -> Endpoint:
    beyond = config.listen_beyond_loopback or bool(config.tls_certificate_file)
    text = getattr(config, name)
    endpoint = parse_listen(text, beyond_loopback=beyond, name=name, otherwise=otherwise)
    return Endpoint(*endpoint, option)


def metrics_socket(config: AggregatorConfig) -> socket.socket | None:
    """Return the listening socket of /metrics, None if it is off. Raises StartError."""
    if not config.metrics_listen:
        if config.metrics_hosts:
            raise StartError(
                "metrics_hosts = true, but metrics_listen is empty. Set it, for example "
                'metrics_listen = "127.0.0.1:9477", or omit both'
            )
        return None
    address, port = parse_listen(config.metrics_listen, beyond_loopback=True)
    try:
        return listener(address, port)
    except OSError as error:
        raise StartError(
            f"metrics_listen = {config.metrics_listen!r} cannot be used: {error}. Name another "
            "address or port, or leave it empty"
        ) from error


def check_endpoint_free(endpoint: Endpoint) -> None:
    """Raise StartError unless a socket can listen there."""
    try:
        _probe(endpoint.address, endpoint.port)
    except OSError as error:
        raise listen_error(endpoint, error) from error


def listen_error(endpoint: Endpoint, error: Exception) -> StartError:
    """Return *error* of a failed listen as a StartError with a remedy."""
    address, port, option = endpoint
    number = getattr(error, "errno", None)
    if isinstance(error, socket.gaierror) or number == errno.EADDRNOTAVAIL:
        remedy = f"`ip address` lists the addresses of this machine. Name one with {option}ADDRESS:{port}"
    elif number == errno.EACCES:
        remedy = f"Ports below 1024 need root. Name a higher one with {option}{address}:PORT"
    else:
        remedy = (
            f"If another program has the port, `ss -tanp 'sport = :{port}'` names it. Stop that program, or choose another port "
            f"with {option}{address}:PORT. If it is an outgoing connection, reserve the port with "
            f"`sysctl net.ipv4.ip_local_reserved_ports={port}`"
        )
    return StartError(f"cannot listen on {address}:{port}: {error}. {remedy}")


def _probe(address: str, port: int) -> None:
    """Raise OSError unless a socket can listen there: gRPC would only print to stderr."""
    family, kind, _, _, socket_address = socket.getaddrinfo(
        address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(socket_address)
        probe.listen(1)


def _boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Aggregator:
    """The running service: `start`, then `close`."""

    def __init__(
        self,
        config: AggregatorConfig,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] | None = None,
    ) -> None:
        """*steady_ns*: None: the monotonic clock, or *wall_ns* if that is an injected clock."""
        if steady_ns is None and wall_ns is time.time_ns:
            self._jump_detector = ClockJumpDetector(wall_ns, time.monotonic_ns, _boottime_ns)
        else:
            self._jump_detector = ClockJumpDetector(wall_ns, steady_ns or wall_ns)
        # Node indexes start over with each process: the epoch is its start time.
        self.fleet = Fleet(epoch=wall_ns() // 1_000_000)
        self.snapshot_holder = SnapshotHolder()
        self.port = self.token_port = 0
        #: Port of /metrics; 0: off.
        self.metrics_port = 0
        self.scores: ScoreProcess | None = None
        self._config, self._wall_ns = config, wall_ns
        self._servers: list[grpc.aio.Server] = []
        self._calls, self._lag = CallCounters(), LoopLag()
        self._health: Any = cast(Any, health).aio.HealthServicer()

    async def start(self) -> None:
        """Open the store and serve.

        Raises SettingsError, StoreError or StartError after undoing all.
        """
        config = self._config
        self.access_control = AccessControl(config, lambda: self._wall_ns() / 1e9)
        endpoints = listen_endpoints(config)
        for endpoint in endpoints:
            check_endpoint_free(endpoint)  # before anything is written
        if (scores := scores_endpoint(config)) is not None:
            check_endpoint_free(scores)
            self.scores = ScoreProcess(config, scores[:2], self.access_control, self._calls)
        if warning := descriptors.open_files_warning(
            descriptors.raise_open_files_limit()[0], config.hosts_max
        ):
            log.warning("%s", warning)
        async with AsyncExitStack() as undo:
            metrics = metrics_socket(config)
            if metrics is not None:
                undo.callback(metrics.close)
                self.metrics_port = int(metrics.getsockname()[1])
            self._open(undo)
            self._make_services(undo)
            await self._listen(endpoints, undo)
            self._make_monitoring(metrics)
            undo.pop_all()
        await self._run()

    def _open(self, undo: AsyncExitStack) -> None:
        """Open the store, and restore the state in it."""
        config = self._config
        self.store = Store.open(config.data, config, self._wall_ns)
        undo.callback(self.store.close)
        self._ingest = Ingest(self.fleet, self.store, config, self._wall_ns)
        undo.callback(self._ingest.close)
        self._clocks = ClockWriter(self._ingest.clock_samples, self.store)
        self.declared = DeclaredReloader(
            declared_path(config), self.fleet, self.store, OVERRIDABLE_RULES
        )
        self.declared.begin(self._wall_ns())
        self.models = ModelRegistry(self.store, self._wall_ns)
        self.models.load()
        self.interference = InterferenceModels(self.store, self._wall_ns)
        self.interference.load()
        gangs = ScheduledGangs()
        self.fleet.jobs.scheduled = gangs.scheduled
        self.runs = RunLog(self.fleet, self.store, gangs.scheduled)
        self.runs.restore(self._wall_ns())
        self._workloads = WorkloadLookup(self.fleet, gangs)
        self._calibration = CalibrationLog(
            self.store, self._wall_ns(), config.outcomes_half_life_days
        )
        observer = Observer(lambda: self.fleet.declared, self._workloads)
        try:
            journal = AnswerJournal(config.data / ANSWERS_FILE)
            undo.callback(journal.close)
            self.advisory_engine = AdvisoryEngine(
                self.store, limits_of(config), observer, self._wall_ns(),
                shadow=config.advice_shadow, gangs=gangs,
                outcomes_half_life_days=config.outcomes_half_life_days, journal=journal,
                folder_identity=folder_identity(config.data),
            )  # fmt: skip
        except OSError as error:
            raise StartError(
                f"{config.data / ANSWERS_FILE}: cannot be used: {error.strerror}"
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise StartError(
                f"the advice that is stored in {config.data} cannot be read ({type(error).__name__}: "
                f"{error}): perhaps a later version wrote it. Start that version, or restore an "
                "earlier backup"
            ) from error

    def _make_services(self, undo: AsyncExitStack) -> None:
        config, wall_ns = self._config, self._wall_ns
        self._permits = Permits(
            config.data,
            config.permit_unhealthy_share_max,
            lambda: self.snapshot_holder.snapshot,
            wall_ns,
        )
        self.admission_control = AdmissionControl(self._ingest, self.store, self.fleet, config)
        undo.callback(self.admission_control.stop)
        recordings = RecordingExchange(time.monotonic)
        self._telemetry = TelemetryService(
            self._ingest, self.admission_control, self._permits.lease, self.access_control.rate_limit,
            lambda host: verdict_of(self.snapshot_holder.snapshot, self.fleet.index, host),
            recordings,
        )  # fmt: skip
        self.query = QueryService(config, wall_ns, refresh=self.store.refresh)
        undo.push_async_callback(self.query.close)
        restored = restore_from_store(self.fleet, self.store, self._ingest, wall_ns())
        self.store.release_restored_state()
        self._reservations = Reservations(
            config.data, wall_ns, has_login=self.access_control.tokens.has_login
        )
        self.judge_loop = self._make_judge_loop(restored)
        self._ingest.on_fatal_event = self.judge_loop.request_early_turn
        self.judge_loop.begin()
        self.decisions = DecisionLog(self.store, wall_ns)
        if self.scores is not None:
            self.scores.decisions = self.decisions
        placement = PlacementService(self.snapshot_holder, recorder=self.decisions.recorder)
        reservations = ReservationService(
            self._reservations, placement, wall_ns, self.decisions.choose
        )
        reservations.record_choices()
        self._services = {
            TELEMETRY: self._telemetry,
            SCORE: ScoreService(self.snapshot_holder, self._scores_port),
            PLACEMENT: placement,
            RECOVERY: RecoveryReportService(placement, self._calibration, wall_ns),
            INTERFERENCE: InterferenceService(self.snapshot_holder, self.fleet),
            RESERVATION: reservations,
            DECISION: DecisionService(self.decisions, self.store),
            JOB: JobService(self.runs, self.fleet, self.advisory_engine.open_advisories, wall_ns),
            PERMIT: PermitService(self._permits),
            ADVISORY: AdvisoryService(self.advisory_engine, wall_ns, self._workloads.member),
            OUTCOME: OutcomeService(
                self.advisory_engine, wall_ns, self._calibration, self.snapshot_holder
            ),
            QUERY: self.query,
            ADMIN: AdminService(
                self.store, config.backup_wal_bytes_max, self.models, self.interference
            ),
            RECORDING: RecordingService(
                recordings, self._ingest.sessions, self._telemetry.request_recordings, wall_ns
            ),
        }

    def _make_judge_loop(self, restored: Judgement) -> JudgeLoop:
        return JudgeLoop(
            self._config, self._wall_ns, self.fleet, self.store, self._ingest, self._clocks, self.access_control,
            self.declared, self.models, self.advisory_engine, self._telemetry, self.snapshot_holder, self.scores, self._health,
            lambda: self._self_monitor.messages, restored, self._jump_detector,
            self.runs, self._reservations, self._calibration, self.interference,
        )  # fmt: skip

    async def _listen(self, endpoints: list[Endpoint], undo: AsyncExitStack) -> None:
        """Listen on all endpoints, the score process first."""
        # The score process is first: gRPC keeps a port that it was bound to and does not serve.
        if self.scores is not None:
            await self._start_scores(self.scores)
            undo.push_async_callback(self.scores.close)
        self._servers = [self._bind(e, by_token=i > 0) for i, e in enumerate(endpoints)]
        self.access_control.watch_ports([self.port, self.token_port])
        for server in self._servers:
            await server.start()
            undo.push_async_callback(server.stop, None)

    def _bind(self, endpoint: Endpoint, *, by_token: bool) -> grpc.aio.Server:
        """Return a server bound to *endpoint*; *by_token*: its callers log in with tokens."""
        denied = {f"/{QUERY}/Query": self.query.log_denied}
        server = make_server(
            self._config, self.access_control, self._calls, refusals=self._ingest.refusals,
            by_token=by_token, denied=denied,
        )  # fmt: skip
        serve_on(server, self._services, self._health)
        try:
            self.token_port = self.access_control.bind(
                server, f"{endpoint.address}:{endpoint.port}", by_token=by_token
            )
        except RuntimeError as error:
            raise listen_error(endpoint, error) from error
        if not by_token:
            self.port = self.token_port
        return server

    async def _start_scores(self, scores: ScoreProcess) -> None:
        try:
            await scores.start()
        except (ScoreProcessError, OSError) as error:
            raise StartError(
                f"listen_scores = {self._config.listen_scores!r}: {error}. {SCORES_REMEDY}"
            ) from error
        log.info("scores and plans are also answered on %s:%d", scores.address, scores.port)

    def _scores_port(self) -> int:
        """Return the score process's port if it has the address of `listen`, else 0."""
        if self.scores is None or self.scores.address != self._config.listen.rpartition(":")[0]:
            return 0
        return self.scores.port

    def _make_monitoring(self, metrics: socket.socket | None) -> None:
        """Create the monitoring of the aggregator itself."""
        self._log_exporter: OtlpLogExporter | None = None
        try:
            if target := self._config.otlp_logs:
                name = socket.gethostname()
                self._log_exporter = OtlpLogExporter(target, "gangline-aggregator", name)
        except ValueError as error:
            raise StartError(str(error)) from error
        parts = MetricSources(
            self._config, self.fleet, self.store, self._ingest, self._calls, self._lag,
            self.access_control, self.admission_control, self.query.pool,
            lambda: self._telemetry.streams, lambda: self.judge_loop.turn_seconds, self.scores,
            lambda: self.advisory_engine.machine.state.fuse.position == "open",
            lambda: self._log_exporter.dropped_count if self._log_exporter else 0,
        )  # fmt: skip

        def resource_usage(now_ns: int) -> ResourceUsage:
            ports = {self.port, self.token_port, *([self.scores.port] if self.scores else ())}
            return read_resource_usage(self._config.data, ports, now_ns)

        hosts = self._host_families if self._config.metrics_hosts else lambda _: ()
        self._self_monitor = SelfMonitor(parts, resource_usage, self._wall_ns, hosts=hosts)
        loop = asyncio.get_running_loop()
        server = None
        if metrics is not None:
            server = HttpServer(metrics, metrics_routes(self._self_monitor.render), METRICS_LIMITS)
        self._monitor_thread = MonitorThread(
            self._self_monitor, lambda changes: self._on_alarm_changes(loop, changes), server, self._log_poll()
        )  # fmt: skip

    def _log_poll(self) -> Callable[[], None]:
        """Return a function that exports findings and advice, for the monitor's thread."""
        exporter = self._log_exporter
        if exporter is None:
            return lambda: None
        log_source = FindingAndAdviceLog(exporter, lambda: self.fleet.findings, self._advisories)
        return lambda: log_source.poll(self._wall_ns())

    def _advisories(self) -> list[Advisory]:
        if self.advisory_engine.shadow:
            return []
        return list(self.advisory_engine.machine.state.advisories.values())

    def _host_families(self, now_ns: int) -> list[Metric]:
        """Return the metrics of each host, for the thread that serves /metrics."""
        return host_families(self.snapshot_holder.snapshot, self._advisories(), now_ns)

    def _on_alarm_changes(self, loop: asyncio.AbstractEventLoop, changes: AlarmChanges) -> None:
        """Pass changes of alarms from the monitor's thread to the event loop."""
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: record_alarms(self.fleet, changes, self._wall_ns()))

    async def _run(self) -> None:
        """Start background tasks, and report that the service is serving."""
        self._lag.start()
        if self._log_exporter is not None:
            self._log_exporter.start()
        self._monitor_thread.start()
        for name in ("", TELEMETRY, QUERY):
            await self._health.set(name, _SERVING)
        has_snapshot = self.snapshot_holder.snapshot is not None
        for name in (SCORE, PLACEMENT, RECOVERY, INTERFERENCE):
            await self._health.set(name, _SERVING if has_snapshot else _NOT_SERVING)
        self._tasks = [
            asyncio.create_task(self.judge_loop.run()),
            asyncio.create_task(self.decisions.run()),
            asyncio.create_task(self.access_control.watch()),
        ]

    def reload(self) -> None:
        """Reload the declarations with the next judgement."""
        self.judge_loop.reload()

    async def close(self) -> str:
        """Stop accepting, commit, send receipts, close the store: 5 s, or 25 s if the disk hangs.

        Return a message on data that could not be stored, "" for none.
        """
        begin = time.monotonic()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self.judge_loop.close()
        await self.judge_loop.publisher.close()
        await self.runs.close(self._wall_ns())
        await self._calibration.close()
        self._lag.stop()
        self._monitor_thread.close()
        if self._log_exporter is not None:
            self._log_exporter.close()
        await self._health.enter_graceful_shutdown()
        self._telemetry.stop_reading()
        self.store.request_commit()
        await self.query.close()
        if self.scores is not None:
            await self.scores.close()
        await asyncio.gather(*(server.stop(GRACE_SECONDS) for server in self._servers))
        await self.decisions.settle()
        self._ingest.close()
        self.store.submit_findings(self._ingest.findings.changes(self._wall_ns()))
        rest = max(STORE_CLOSE_SECONDS_MIN, CLOSE_SECONDS - (time.monotonic() - begin))
        # A new thread: calls that wait for the store may occupy all of the loop's own threads.
        with ThreadPoolExecutor(1) as executor:
            return await asyncio.get_running_loop().run_in_executor(
                executor, self.store.close, rest
            )


async def serve(aggregator: Aggregator, stop: asyncio.Event, ready: Callable[[Any], None]) -> str:
    """Start, call *ready*, and close when *stop* is set; return the result of `close`."""
    await aggregator.start()
    try:
        ready(aggregator)
        await stop.wait()
    finally:
        unstored = await aggregator.close()
    return unstored
