"""Builds the daemon: settings, collectors, spool, events, client, loop."""

from __future__ import annotations

import collections
import logging
import os
import random
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from ..contract.faults.table import builtin
from ..contract.settings import SettingsError
from ..contract.signals import BY_NAME
from ..contract.wire.telemetry_pb2 import IngestAck, RegisterNodeResponse
from . import inventory, service_manager
from . import registration as identity
from .clock import Clock, SystemClock
from .collector import Collector
from .config import AgentConfig, label_error
from .daemon import SECOND_NS, Daemon, LoopTimeouts
from .events import EventPublisher
from .frame_builder import FrameBuilder
from .gpu_release import CallbackQueue, GpuReleaser
from .hardware.nvidia import driver_gpus, pci_gpus
from .hardware.proc_files import boot_id as read_boot_id
from .latest import LatestReadings
from .local.attach import attach
from .local.host_status import HostStatus, judged_tables
from .local.self_status import SelfStatus
from .prefork import Prefork, disabled_collectors, prefork
from .recorder.recorder import FlightRecorder
from .recorder.storage import RecordingStorage
from .registration import InventoryCollector, Registration
from .release_state import ReleaseStateFile
from .sampler.abandoned import AbandonedProcessFile
from .sampler.pool import SamplerPool
from .self_metrics import ConnectionLog
from .service_manager import Reload
from .spool.event_queue import EventQueue
from .spool.spool import Spool
from .transport.client import Client, TargetError, on_loopback, parse_target
from .transport.credentials import Credentials
from .transport.protocol import PermitHandler
from .transport.recording_uploads import RecordingUploads

#: How long an ending agent waits for acknowledgments; the client may take a second more. No sample
#: is taken meanwhile, and an upgrade ends the agent too. Unacknowledged frames stay in the spool.
FLUSH_SECONDS_MAX = 1.0
#: Samplers start at the second and have sent by then, also those of eight GPUs (30 ms). An earlier
#: wake-up would need another one, which costs more than fresher readings are worth.
SAMPLER_GRACE_NS = 50_000_000
#: The inventory's child ends itself at its deadline; this much later its thread counts as hung.
INVENTORY_GRACE_SECONDS = 10.0

log = logging.getLogger(__name__)


class ProcessSignals:
    """SIGTERM and SIGINT set `stop` and end the wait. SIGHUP does so too if the settings are valid.

    After SIGHUP the run starts over. A handler runs between two instructions of the main thread,
    which may hold the Event's lock: so it only stores the number, and Python writes a byte to the
    pipe that the wait polls.
    """

    def __init__(self, clock: Clock, reload: Callable[[], bool] | None = None) -> None:
        """*reload* is called on SIGHUP, in the main thread.

        None: SIGHUP ends the run, as for a process whose terminal is closed.
        """
        self.stop = threading.Event()
        self._clock = clock
        self._reload, self._restart = reload, False
        self._received: collections.deque[int] = collections.deque(maxlen=16)
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._descriptors: Callable[[], Sequence[int]] = tuple
        self._polled: list[int] = []
        self._poll = select.poll()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals within the context. For the main thread."""
        before = [
            signal.signal(number, lambda received, _: self._received.append(received))
            for number in service_manager.SIGNALS
        ]
        pipe = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        service_manager.unblock_signals()  # delivers signals that came while the last run ended
        try:
            yield
        finally:
            signal.set_wakeup_fd(pipe)
            for number, handler in zip(service_manager.SIGNALS, before, strict=True):
                signal.signal(number, handler)
            self._descriptors = tuple
            os.close(self._wake)
            os.close(self._waker)

    def watch_descriptors(self, descriptors: Callable[[], Sequence[int]]) -> None:
        """End the wait also if one of *descriptors* is readable; they are read at each wait."""
        self._descriptors = descriptors

    def wait(self, until_ns: int) -> list[int]:
        """Wait until that boot time, a signal or a message; return the readable descriptors.

        At a second's start the wait is SAMPLER_GRACE_NS longer. A signal may set `stop`.
        """
        descriptors = [self._wake, *self._descriptors()]
        if descriptors != self._polled:
            self._poll, self._polled = select.poll(), descriptors
            for descriptor in descriptors:
                self._poll.register(descriptor, select.POLLIN)
        if until_ns % SECOND_NS == 0:
            until_ns += SAMPLER_GRACE_NS
        left_ns = max(0, until_ns - self._clock.boottime_ns())
        ready = [descriptor for descriptor, _ in self._poll.poll(left_ns / 1e6)]
        if self._wake in ready:
            os.read(self._wake, 512)
        while self._received:
            self._handle(self._received.popleft())
        return ready

    def _handle(self, number: int) -> None:
        if number == signal.SIGHUP and self._reload is not None:
            if self.stop.is_set() or not self._reload():
                return
            self._restart = True
        else:
            log.info("stopping on %s", signal.Signals(number).name, extra={"cause": "agent.stop"})
            self._restart = False
        self.stop.set()

    def restart_requested(self) -> bool:
        """Return whether the run starts over, unless a later signal ends the agent."""
        return self._restart and not {signal.SIGTERM, signal.SIGINT} & set(self._received)


def check(config: AgentConfig) -> None:
    """Raise SettingsError for settings with which a run would fail, as far as known beforehand."""
    _ = config.host_name
    disabled_collectors(config)
    for message in filter(None, map(label_error, config.labels)):
        raise SettingsError(f"labels: {message}")
    try:
        secure = bool(config.tls_ca_file)
        parse_target(config.aggregator, allow_plaintext=config.allow_plaintext or secure)
        _credentials(config)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    refusals = () if config.policy_file else map(builtin().enforce_error, config.enforcing)
    for message in filter(None, refusals):
        raise SettingsError(f"enforcing: {message}")


def run(
    config: AgentConfig,
    read: Callable[[], AgentConfig] | None = None,
    preforked: Prefork | None = None,
) -> bool:
    """Sample and send until SIGTERM or SIGINT, then flush and return within 5 s.

    For the main thread. *preforked*: result of `prefork`; None: call it now. *read* returns the
    settings at a SIGHUP; None: SIGHUP ends the run too. Returns whether to start over
    (`service_manager.reexec`). Raises SettingsError, and FolderError if the folder of spool or
    events cannot be locked.
    """
    clock = SystemClock()
    notifier = service_manager.Notifier(clock.boottime_ns)
    signals = ProcessSignals(clock, Reload(read, check, notifier).try_reload if read else None)
    with signals.caught():
        with ExitStack() as stack:
            stack.callback(notifier.close)
            daemon = build(config, clock, stack, signals, notifier.heartbeat, preforked)
            template = "host %s, aggregator %s"
            log.info(template, config.host_name, config.aggregator, extra={"cause": "agent"})
            daemon.run(signals.stop, signals.wait)
            if not signals.restart_requested():
                notifier.stopping()
        # Signals now stay pending for the re-executed process, or the agent is ending anyway.
        service_manager.block_signals(*service_manager.SIGNALS)
        restart = signals.restart_requested()
        if not restart:
            service_manager.unblock_signals()
        return restart


def read_labels(labels: Iterable[str]) -> dict[str, str]:
    """Return name -> value of the labels that an aggregator accepts; log the others."""
    for message in filter(None, map(label_error, labels)):
        log.error("the label %s; it is left out", message, extra={"cause": "labels"})
    return dict(label.split("=", 1) for label in labels if not label_error(label))


def build(
    config: AgentConfig,
    clock: Clock,
    stack: ExitStack,
    signals: ProcessSignals | None = None,
    on_second: Callable[[], None] = lambda: None,
    preforked: Prefork | None = None,
) -> Daemon:
    """Open everything, start samplers and client, and return the daemon; *stack* closes all.

    Raises as `run` does. *signals*, if given, also wait for the samplers. *on_second* is called
    each second that the loop turns.
    """
    boot_id = read_boot_id(config.proc_root)
    spool = _spool(config, boot_id)
    stack.callback(spool.close)
    events = EventQueue.open(config.events_folder)
    stack.callback(events.close)
    registration = Registration(
        config.host_name, spool.run_id, boot_id, clock, read_labels(config.labels)
    )
    preforked = preforked or prefork(config, clock)
    samplers = _samplers(config, preforked, clock, registration)
    stack.callback(samplers.close)
    collectors = [*preforked.collectors]
    released = ReleaseStateFile(config.run_path, boot_id)
    samplers.start(released.until_ns(clock.boottime_ns()))  # before any thread is started
    latest = LatestReadings(judged_tables(config))
    host_status = _host_status(config, latest, clock, boot_id, registration, samplers)
    stack.callback(host_status.close)
    uploads = RecordingUploads()
    recorder = _recorder(config, samplers, uploads, clock, boot_id, host_status)
    on_response = _hand_to_each(host_status.on_response, recorder.on_response)
    client = _client(config, registration, spool, events, on_response, uploads)
    client.start()
    stack.callback(client.close, seconds_max=FLUSH_SECONDS_MAX)
    publisher = EventPublisher(clock, events, client.notify, boot_id=boot_id)
    publisher.observe(host_status.observe)
    publisher.observe(recorder.observe)
    samplers.publish_to(publisher)
    releaser, callbacks = attach(
        config,
        samplers,
        clock,
        publisher,
        stack,
        registration,
        released,
        host_status.health_check,
        latest,
    )
    if InventoryCollector.name in config.collectors_off:
        registration.stop_waiting()
    else:
        inventory = partial(_inventory, config, releaser)
        gpus = partial(latest.devices_with, BY_NAME["gpu.temperature_celsius"])
        reregister, request = client.reregister, publisher.request_inventory_after
        collectors.append(InventoryCollector(inventory, registration, reregister, request, gpus))
    host_status.post_with(callbacks.post)
    if signals:
        signals.watch_descriptors(_descriptors(samplers, callbacks))
    own = [collector for collector in collectors if collector.name not in samplers.collectors]
    _start_sources(own, publisher, stack)
    stack.callback(registration.stop_waiting)  # the client may wait for an inventory
    if config.metrics_listen:
        from .local import metrics  # imported only if enabled: its modules cost memory

        stack.callback(metrics.serve(config, latest, registration, clock, publisher).close)
    daemon = Daemon(
        collectors,
        clock=clock,
        spool=spool,
        events=events,
        client=client,
        frame_builder=FrameBuilder(spool.run_id, boot_id),
        publisher=publisher,
        samplers=samplers,
        latest=latest,
        timeouts=_loop_timeouts(config),
        on_wakeup=releaser.tick,
        blocking_findings=host_status.blocking_findings,
        on_second=_call_each(
            host_status.update,
            recorder.tick,
            _connection_log(client, spool, events).update,
            on_second,
        ),
    )
    host_status.self_status = SelfStatus(client, spool, events, daemon.last_results, clock)
    return daemon


def _recorder(
    config: AgentConfig,
    samplers: SamplerPool,
    uploads: RecordingUploads,
    clock: Clock,
    boot_id: bytes,
    host_status: HostStatus,
) -> FlightRecorder:
    return FlightRecorder(
        samplers,
        RecordingStorage(config.recordings_path, config.recordings_bytes_max),
        uploads,
        clock,
        host=config.host_name,
        boot_id=boot_id,
        findings=lambda: host_status.findings.findings,
    )


def _spool(config: AgentConfig, boot_id: bytes) -> Spool:
    spool = Spool.open(
        config.spool_folder,
        bytes_max=config.spool_bytes_max,
        boot_id=boot_id,
        owner=identity.machine_owner(config.sys_root, config.proc_root),
        memory_folder=config.spool_head_path,
    )
    if spool.notice:
        log.warning("%s", spool.notice, extra={"cause": "spool"})
    return spool


def _host_status(
    config: AgentConfig,
    latest: LatestReadings,
    clock: Clock,
    boot_id: bytes,
    registration: Registration,
    samplers: SamplerPool,
) -> HostStatus:
    """Return this host's status; its list restores the names of missing GPUs."""
    host_status = HostStatus(
        config, latest, clock, boot_id,
        gpus=registration.known_gpus, gpu_inventory=registration.gpu_inventory, devices=samplers.states,
    )  # fmt: skip
    registration.restore_gpus(host_status.gpu_list.expected)
    return host_status


def _descriptors(samplers: SamplerPool, callbacks: CallbackQueue) -> Callable[[], Sequence[int]]:
    """Return a function that returns the descriptors that end a wait."""
    return lambda: [*samplers.descriptors(), callbacks.descriptor]


def _call_each(*callbacks: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        for callback in callbacks:
            callback()

    return call


def _hand_to_each(*handlers: PermitHandler) -> PermitHandler:
    """Return a function that passes a message to each of *handlers*."""

    def handle(message: RegisterNodeResponse | IngestAck) -> None:
        for handler in handlers:
            handler(message)

    return handle


def _inventory(config: AgentConfig, releaser: GpuReleaser) -> inventory.Inventory:
    """Read the inventory without the avoided GPUs; again if further GPUs are avoided meanwhile."""
    seconds_max = config.inventory_deadline_seconds
    result = inventory.read(config.roots, seconds_max, lambda: releaser.avoided)
    if inventory.is_within(releaser.avoided, result.left_out):
        return result
    return inventory.read(config.roots, seconds_max, lambda: releaser.avoided)


def _samplers(
    config: AgentConfig, preforked: Prefork, clock: Clock, registration: Registration
) -> SamplerPool:
    return SamplerPool(
        preforked.groups,
        preforked.fork_server,
        clock,
        deadline_seconds=config.probe_deadline_seconds,
        devices_of=lambda: driver_gpus(config.proc_root) or pci_gpus(config.sys_root),
        key_of=registration.gpu_key,
        abandoned_file=AbandonedProcessFile(config.state_folder, read_boot_id(config.proc_root)),
    )


def _start_sources(
    collectors: Sequence[Collector], publisher: EventPublisher, stack: ExitStack
) -> None:
    """Pass the publisher to each collector; a collector that fails does not affect others."""
    for collector in collectors:
        stack.callback(collector.close)
        try:
            collector.start(publisher)
        except Exception:
            cause = f"collector.{collector.name}.listen"
            log.exception(
                "collector %s cannot start listening", collector.name, extra={"cause": cause}
            )


def _client(
    config: AgentConfig,
    registration: Registration,
    spool: Spool,
    events: EventQueue,
    on_response: PermitHandler,
    uploads: RecordingUploads,
) -> Client:
    try:
        return Client(
            config.aggregator,
            registration.request,
            spool,
            events,
            random_source=random.Random(),
            allow_plaintext=config.allow_plaintext,
            on_permit=on_response,
            credentials=_credentials(config),
            uploads=uploads,
        )
    except TargetError as error:
        raise SettingsError(str(error)) from error


def _credentials(config: AgentConfig) -> Credentials:
    """Return the agent's credentials. Raises ValueError."""
    credentials = Credentials(
        config.tls_ca_file,
        config.tls_certificate_file,
        config.tls_key_file,
        config.tls_server_name,
        config.token_file,
    )
    credentials.check(beyond_loopback=not on_loopback(config.aggregator))
    return credentials


def _connection_log(client: Client, spool: Spool, events: EventQueue) -> ConnectionLog:
    return ConnectionLog(
        client,
        {
            "frames not written": lambda: spool.last_error,
            "events not written": lambda: events.last_error,
            "frames dropped": lambda: spool.last_drop,
            "frames refused": lambda: spool.last_refusal,
            "events dropped": lambda: events.last_drop,
            "events refused": lambda: events.last_refusal,
        },
        lambda: (
            spool.write_errors,
            events.write_errors,
            spool.dropped_frames,
            spool.refused_frames,
            events.dropped_events,
            events.refused_events,
        ),
    )


def _loop_timeouts(config: AgentConfig) -> LoopTimeouts:
    inventory_seconds = config.inventory_deadline_seconds + INVENTORY_GRACE_SECONDS
    return LoopTimeouts(
        inventory_deadline_ns=int(inventory_seconds * SECOND_NS),
        frame_wait_seconds=config.probe_linger_seconds,
    )
