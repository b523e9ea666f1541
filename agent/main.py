"""Wires the daemon: settings, collectors, spool, events, client, loop."""

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

from ..contract.host_policy import builtin
from ..contract.settings import SettingsError
from . import inventory, service
from . import registration as identity
from .clock import Clock, SystemClock
from .collector import Collector
from .config import AgentConfig, unread
from .daemon import SECOND_NS, Daemon, Patience
from .events import Listening, Teller
from .frame_builder import Framer
from .gpu_release import Mailbox, NotInTheWay, ReleasedFile
from .hardware.nvidia import driver_gpus, pci_gpus
from .latest import Latest
from .local.attach import attach
from .local.host_status import Answers, SelfStatus, tables
from .prefork import Early, begin, switched_off
from .registration import InventoryCollector, Registration
from .sampler.abandoned import LeftBehindFile
from .sampler.pool import SamplerPool
from .self_metrics import Troubles
from .service import Reload
from .spool.event_queue import EventQueue
from .spool.spool import Spool
from .transport.client import Client, TargetError, on_loopback, parse_target
from .transport.credentials import Credentials
from .transport.protocol import Permitted

#: Of the five seconds from SIGTERM to the end: the client may take one more, then its thread is left.
FLUSH_SECONDS_MAX = 3.0
#: Samplers begin with the second, and have spoken by then, those of eight GPUs (30 ms) too. Who comes sooner has to come
#: again, and a waking costs more than a reading so much older is worth.
TOGETHER_NS = 50_000_000
#: The inventory's child ends by itself at its deadline; past this much more its thread is hung.
INVENTORY_GRACE_SECONDS = 10.0

log = logging.getLogger(__name__)


class Signals:
    """SIGTERM and SIGINT end the wait and set `stop`; a sampler that speaks only ends it. SIGHUP sets
    `stop` too, once the settings of now are found to be good: the run then begins anew.

    A handler runs between two instructions of the main thread, which may hold the Event's lock just
    then: it only notes the number, and Python writes a byte to the pipe that the wait looks at.
    """

    def __init__(self, clock: Clock, reload: Callable[[], bool] | None = None) -> None:
        """*reload* is called on SIGHUP, in the main thread; None: it ends the run, as a terminal that
        is closed is to end what was started in it."""
        self.stop = threading.Event()
        self._clock = clock
        self._reload, self._anew = reload, False
        self._asked: collections.deque[int] = collections.deque(maxlen=16)
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._descriptors: Callable[[], Sequence[int]] = tuple
        self._polled: list[int] = []
        self._poll = select.poll()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch them within the context. For the main thread."""
        before = [
            signal.signal(each, lambda number, _: self._asked.append(number))
            for each in service.SIGNALS
        ]
        pipe = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        service.let_through()  # one that came while the run before this ended
        try:
            yield
        finally:
            signal.set_wakeup_fd(pipe)
            for each, handler in zip(service.SIGNALS, before, strict=True):
                signal.signal(each, handler)
            self._descriptors = tuple
            os.close(self._wake)
            os.close(self._waker)

    def listen(self, descriptors: Callable[[], Sequence[int]]) -> None:
        """Let the wait end, too, when one of *descriptors* can be read; they are asked for each time."""
        self._descriptors = descriptors

    def wait(self, until_ns: int) -> list[int]:
        """Return at that boot time (for a second's beginning, `TOGETHER_NS` after it), or sooner: with `stop` set when a
        signal has come, else when somebody spoke.

        Returns the descriptors that can be read.
        """
        descriptors = [self._wake, *self._descriptors()]
        if descriptors != self._polled:
            self._poll, self._polled = select.poll(), descriptors
            for descriptor in descriptors:
                self._poll.register(descriptor, select.POLLIN)
        if until_ns % SECOND_NS == 0:
            until_ns += TOGETHER_NS
        left_ns = max(0, until_ns - self._clock.boottime_ns())
        ready = [descriptor for descriptor, _ in self._poll.poll(left_ns / 1e6)]
        if self._wake in ready:
            os.read(self._wake, 512)
        while self._asked:
            self._obey(self._asked.popleft())
        return ready

    def _obey(self, number: int) -> None:
        if number == signal.SIGHUP and self._reload is not None:
            if self.stop.is_set() or not self._reload():
                return
            self._anew = True
        else:
            log.info("stopping on %s", signal.Signals(number).name, extra={"cause": "agent.stop"})
            self._anew = False
        self.stop.set()

    def begins_anew(self) -> bool:
        """Return whether the run ends to begin anew, and nobody has asked since that it should only end."""
        return self._anew and not {signal.SIGTERM, signal.SIGINT} & set(self._asked)


def check(config: AgentConfig) -> None:
    """Raise SettingsError for what a run with these settings would end with, as far as it shows beforehand."""
    _ = config.host_name
    switched_off(config)
    for words in filter(None, map(unread, config.labels)):
        raise SettingsError(f"labels: {words}")
    try:
        secure = bool(config.tls_ca_file)
        parse_target(config.aggregator, allow_plaintext=config.allow_plaintext or secure)
        _credentials(config)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    refusals = () if config.policy_file else map(builtin().refusal, config.enforcing)
    for words in filter(None, refusals):
        raise SettingsError(f"enforcing: {words}")


def run(
    config: AgentConfig, read: Callable[[], AgentConfig] | None = None, early: Early | None = None
) -> bool:
    """Sample and send until SIGTERM or SIGINT, then flush and return within 5 s.

    For the main thread. *early*: what `begin` made; None: it is made now. *read* returns the settings as they are when SIGHUP comes; None: that ends it too.
    Returns whether the run ended to begin anew with them (`service.begin_anew`). Raises SettingsError, and FolderError when spool
    or events cannot be held.
    """
    clock = SystemClock()
    notifier = service.Notifier(clock.boottime_ns)
    signals = Signals(clock, Reload(read, check, notifier).asked if read else None)
    with signals.caught():
        with ExitStack() as stack:
            stack.callback(notifier.close)
            daemon = build(config, clock, stack, signals, notifier.turned, early)
            what = "host %s, aggregator %s"
            log.info(what, config.host_name, config.aggregator, extra={"cause": "agent"})
            daemon.run(signals.stop, signals.wait)
            if not signals.begins_anew():
                notifier.stopping()
        # An end that is asked for from here on is the next image's to hear, or asked for in vain.
        service.hold_back(*service.SIGNALS)
        anew = signals.begins_anew()
        if not anew:
            service.let_through()
        return anew


def read_labels(labels: Iterable[str]) -> dict[str, str]:
    """Return name -> value of those that an aggregator reads; others are told of in the log."""
    for words in filter(None, map(unread, labels)):
        log.error("the label %s; it is left out", words, extra={"cause": "labels"})
    return dict(one.split("=", 1) for one in labels if not unread(one))


def build(
    config: AgentConfig,
    clock: Clock,
    stack: ExitStack,
    signals: Signals | None = None,
    turned: Callable[[], None] = lambda: None,
    early: Early | None = None,
) -> Daemon:
    """Open everything, start the samplers and the client, and return the daemon; *stack* closes what was opened.

    Raises as `run` does. *signals*, if given, wait for the samplers too. *turned* is called each second that the loop turns.
    """
    host = config.host_name
    boot_id = identity.boot_id(config.proc_root)
    spool = _spool(config, boot_id)
    stack.callback(spool.close)
    events = EventQueue.open(config.events_folder)
    stack.callback(events.close)
    registration = Registration(host, spool.run_id, boot_id, clock, read_labels(config.labels))
    early = early or begin(config, clock)
    samplers = _samplers(config, early, clock, registration)
    stack.callback(samplers.close)
    collectors = [*early.collectors]
    released = ReleasedFile(config.run_path, boot_id)
    samplers.start(released.until_ns(clock.boottime_ns()))  # before anything that starts a thread
    latest = Latest(tables(config))
    answers = _answers(config, latest, clock, boot_id, registration, samplers)
    stack.callback(answers.close)
    client = _client(config, registration, spool, events, answers.take)
    if InventoryCollector.name in config.collectors_off:
        registration.proceed()
    else:
        collectors.append(
            InventoryCollector(lambda: _inventory(config, way), registration, client.reregister)
        )
    client.start()
    stack.callback(client.close, seconds_max=FLUSH_SECONDS_MAX)
    teller = Teller(clock, events, client.notify, boot_id=boot_id)
    teller.observe(answers.findings.observe)
    samplers.listen(teller)
    way, mailbox = attach(
        config, samplers, clock, teller, stack, registration, released, answers.answer, latest
    )
    if signals:
        signals.listen(_polled(samplers, mailbox))
    _listen([each for each in collectors if each.name not in samplers.collectors], teller, stack)
    stack.callback(registration.proceed)  # the client may be waiting for it
    if config.metrics_listen:
        from .local import metrics  # its modules cost memory that only those pay who want it

        stack.callback(metrics.serve(config, latest, registration, clock).close)
    daemon = Daemon(
        collectors,
        clock=clock,
        spool=spool,
        events=events,
        client=client,
        framer=Framer(spool.run_id, boot_id),
        teller=teller,
        samplers=samplers,
        latest=latest,
        patience=_patience(config),
        between=way.turn,
        barring=answers.barring,
        look=_in_turn(answers.look, _troubles(client, spool, events).look, turned),
    )
    answers.itself = SelfStatus(client, spool, events, daemon.turns, clock)
    return daemon


def _spool(config: AgentConfig, boot_id: bytes) -> Spool:
    spool = Spool.open(
        config.spool_folder,
        bytes_max=config.spool_bytes_max,
        boot_id=boot_id,
        owner=identity.machine_owner(config.sys_root, config.proc_root),
        head_folder=config.spool_head_path,
    )
    if spool.notice:
        log.warning("%s", spool.notice, extra={"cause": "spool"})
    return spool


def _answers(
    config: AgentConfig, latest: Latest, clock: Clock, boot_id: bytes, registration: Registration,
    samplers: SamplerPool,
) -> Answers:  # fmt: skip
    """Return what this host says of itself; the GPUs that it ever had are known by name from then on."""
    answers = Answers(
        config, latest, clock, boot_id,
        gpus=registration.names, view=registration.view, devices=samplers.states,
    )  # fmt: skip
    registration.remember(answers.gpu_list.expected)
    return answers


def _polled(samplers: SamplerPool, mailbox: Mailbox) -> Callable[[], Sequence[int]]:
    """Return what returns what the wait is ended by."""
    return lambda: [*samplers.descriptors(), mailbox.descriptor]


def _in_turn(*looks: Callable[[], None]) -> Callable[[], None]:
    """Return what calls each of *looks*."""

    def look() -> None:
        for each in looks:
            each()

    return look


def _inventory(config: AgentConfig, way: NotInTheWay) -> inventory.Inventory:
    """Read it without the GPUs that nobody is to touch; once more, if there are others of these meanwhile. In a
    thread of its own."""
    seconds_max = config.inventory_deadline_seconds
    found = inventory.read(config.roots, seconds_max, lambda: way.avoided)
    if inventory.is_within(way.avoided, found.left_out):
        return found
    return inventory.read(config.roots, seconds_max, lambda: way.avoided)


def _samplers(
    config: AgentConfig, early: Early, clock: Clock, registration: Registration
) -> SamplerPool:
    return SamplerPool(
        early.lanes,
        early.nursery,
        clock,
        deadline_seconds=config.probe_deadline_seconds,
        devices_of=lambda: driver_gpus(config.proc_root) or pci_gpus(config.sys_root),
        key_of=registration.gpu_key,
        left_behind=LeftBehindFile(config.state_folder, identity.boot_id(config.proc_root)),
    )


def _listen(collectors: Sequence[Collector], teller: Teller, stack: ExitStack) -> None:
    """Give the teller to each collector that tells events by itself. One that fails harms no other."""
    for collector in collectors:
        if isinstance(collector, Listening):
            stack.callback(collector.close)
            try:
                collector.listen(teller)
            except Exception:
                cause = f"collector.{collector.name}.listen"
                log.exception("collector %s cannot listen", collector.name, extra={"cause": cause})


def _client(
    config: AgentConfig,
    registration: Registration,
    spool: Spool,
    events: EventQueue,
    answered: Permitted,
) -> Client:
    try:
        return Client(
            config.aggregator,
            registration.request,
            spool,
            events,
            random_source=random.Random(),
            allow_plaintext=config.allow_plaintext,
            permitted=answered,
            credentials=_credentials(config),
        )
    except TargetError as error:
        raise SettingsError(str(error)) from error


def _credentials(config: AgentConfig) -> Credentials:
    """Return what the agent proves itself by. Raises ValueError."""
    credentials = Credentials(
        config.tls_ca_file,
        config.tls_certificate_file,
        config.tls_key_file,
        config.tls_server_name,
        config.token_file,
    )
    credentials.check(beyond_loopback=not on_loopback(config.aggregator))
    return credentials


def _troubles(client: Client, spool: Spool, events: EventQueue) -> Troubles:
    return Troubles(
        client,
        {
            "frames not written": lambda: spool.last_error,
            "events not written": lambda: events.last_error,
            "frames dropped": lambda: "the spool was full",
            "frames refused": lambda: spool.last_refusal,
            "events dropped": lambda: "too many waited",
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


def _patience(config: AgentConfig) -> Patience:
    inventory_seconds = config.inventory_deadline_seconds + INVENTORY_GRACE_SECONDS
    return Patience(
        inventory_deadline_ns=int(inventory_seconds * SECOND_NS),
        linger_seconds=config.probe_linger_seconds,
    )
