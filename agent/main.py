"""Wires the daemon: settings, collectors, spool, events, client, loop."""

from __future__ import annotations

import logging
import queue
import random
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ..fingerprints.block import Block
from ..fingerprints.catalogue import Pace
from ..fingerprints.settings import SettingsError
from . import identity, inventory
from .clock import Clock, SystemClock
from .collectors import COLLECTORS
from .collectors.folders import DESCRIPTORS_MAX
from .config import AgentConfig
from .daemon import SECOND_NS, Daemon, Patience
from .framing import Framer
from .hardware.roots import Roots
from .listening import Listening, Teller
from .own import Troubles
from .registration import InventoryCollector, Registration
from .spool.events import EventQueue
from .spool.spool import Spool
from .transport.client import Client, TargetError
from .turn import Collector

#: Of the five seconds from SIGTERM to the end: the client may take one more, then its thread is left.
FLUSH_SECONDS_MAX = 3.0
#: The inventory's child ends by itself at its deadline; past this much more its thread is hung.
INVENTORY_GRACE_SECONDS = 10.0

log = logging.getLogger(__name__)


class Broken:
    """Stands for a collector that could not even be made: says so each minute, harms no other."""

    pace = Pace.MINUTE
    enters_driver = False

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._words = f"could not be made: {type(error).__name__}: {error}"

    def collect(self) -> Sequence[Block]:
        raise RuntimeError(self._words)


class Signals:
    """SIGTERM and SIGINT end the wait and set `stop`.

    A handler runs between two instructions of the main thread, which may hold the Event's lock just
    then; a SimpleQueue is safe to put to from there, so the Event is set by the waiting side.
    """

    def __init__(self, clock: Clock) -> None:
        self.stop = threading.Event()
        self._clock = clock
        self._asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch them within the context. For the main thread."""
        caught = (signal.SIGTERM, signal.SIGINT)
        before = [signal.signal(each, lambda number, _: self._asked.put(number)) for each in caught]
        try:
            yield
        finally:
            for each, handler in zip(caught, before, strict=True):
                signal.signal(each, handler)

    def wait(self, until_ns: int) -> None:
        """Return at that boot time, or at once with `stop` set when a signal has come."""
        seconds = max(0.0, (until_ns - self._clock.boottime_ns()) / SECOND_NS)
        try:
            number = self._asked.get(timeout=seconds)
        except queue.Empty:
            return
        log.info("stopping on %s", signal.Signals(number).name, extra={"cause": "agent.stop"})
        self.stop.set()


def collectors_of(config: AgentConfig) -> list[Collector]:
    """Return the collectors that are not switched off, by name (`gpu_10s`) or all of a kind (`gpu`).

    Raises SettingsError for a name that is neither.
    """
    off: set[str] = set()
    names = [*COLLECTORS, InventoryCollector.name]
    for wanted in config.collectors_off:
        matching = {n for n in names if wanted in (n, n.rpartition("_")[0])}
        if not matching:
            raise SettingsError(f"collectors_off: no {wanted!r}; there are: {', '.join(names)}")
        off |= matching
    return [_made(name, make, config.roots) for name, make in COLLECTORS.items() if name not in off]


def _made(name: str, make: Callable[[Roots], Collector], roots: Roots) -> Collector:
    try:
        return make(roots)
    except Exception as error:  # noqa: BLE001 - whatever a driver's library does when looked for
        return Broken(name, error)


def run(config: AgentConfig) -> None:
    """Sample and send until SIGTERM or SIGINT, then flush and return within 5 s.

    For the main thread. Raises SettingsError, and FolderError when spool or events cannot be held.
    """
    clock = SystemClock()
    _raise_descriptor_limit()
    signals = Signals(clock)
    with signals.caught(), ExitStack() as stack:
        daemon = build(config, clock, stack)
        log.info(
            "host %s, aggregator %s", config.host_name, config.aggregator, extra={"cause": "agent"}
        )
        daemon.run(signals.stop, signals.wait)


def _raise_descriptor_limit() -> None:
    """Allow this process as many descriptors as counter files may want kept, if it may be allowed.

    The usual soft limit of 1,024 is there for select(), which nobody calls here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def build(config: AgentConfig, clock: Clock, stack: ExitStack) -> Daemon:
    """Open everything, start the client, and return the daemon; *stack* closes what was opened.

    Raises as `run` does.
    """
    collectors, host = collectors_of(config), config.host_name
    boot_id = identity.boot_id(config.proc_root)
    spool = Spool.open(
        config.spool_folder,
        bytes_max=config.spool_bytes_max,
        boot_id=boot_id,
        owner=identity.machine_owner(config.sys_root, config.proc_root),
    )
    stack.callback(spool.close)
    if spool.notice:
        log.warning("%s", spool.notice, extra={"cause": "spool"})
    events = EventQueue.open(config.events_folder)
    stack.callback(events.close)
    registration = Registration(host, spool.run_id, boot_id, clock)
    client = _client(config, registration, spool, events)
    if InventoryCollector.name in config.collectors_off:
        registration.proceed()
    else:
        collectors.append(
            InventoryCollector(
                lambda: inventory.read(config.roots, config.inventory_deadline_seconds),
                registration,
                client.reregister,
            )
        )
    client.start()
    stack.callback(client.close, seconds_max=FLUSH_SECONDS_MAX)
    teller = Teller(clock, events, client.notify, boot_id=boot_id)
    _listen(collectors, teller, stack)
    stack.callback(registration.proceed)  # the client may be waiting for it
    return Daemon(
        collectors,
        clock=clock,
        spool=spool,
        events=events,
        client=client,
        framer=Framer(spool.run_id, boot_id),
        teller=teller,
        patience=_patience(config),
        look=_troubles(client, spool, events).look,
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
    config: AgentConfig, registration: Registration, spool: Spool, events: EventQueue
) -> Client:
    try:
        return Client(
            config.aggregator,
            registration.request,
            spool,
            events,
            random_source=random.Random(),
            allow_plaintext=config.allow_plaintext,
        )
    except TargetError as error:
        raise SettingsError(str(error)) from error


def _troubles(client: Client, spool: Spool, events: EventQueue) -> Troubles:
    return Troubles(
        client,
        {
            "frames not written": (lambda: spool.write_errors, lambda: spool.last_error),
            "events not written": (lambda: events.write_errors, lambda: events.last_error),
            "frames dropped": (lambda: spool.dropped_frames, lambda: "the spool was full"),
            "frames refused": (lambda: spool.refused_frames, lambda: spool.last_refusal),
            "events dropped": (lambda: events.dropped_events, lambda: "too many waited"),
        },
    )


def _patience(config: AgentConfig) -> Patience:
    inventory_seconds = config.inventory_deadline_seconds + INVENTORY_GRACE_SECONDS
    return Patience(
        deadline_ns=int(config.probe_deadline_seconds * SECOND_NS),
        inventory_deadline_ns=int(inventory_seconds * SECOND_NS),
        linger_seconds=config.probe_linger_seconds,
    )
