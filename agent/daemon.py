"""The loop: at each tick the collectors whose turn it is, one frame, the spool, and wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..fingerprints.block import Block
from ..fingerprints.catalogue import PERIOD_SECONDS, Pace
from ..fingerprints.wire import telemetry_pb2
from .clock import Clock
from .framing import Framer
from .listening import Teller
from .own import Own, cpu_seconds, memory_bytes
from .pace import Schedule
from .probe import Probe
from .registration import InventoryCollector
from .turn import Collector, Outcome, Turn, take_turn

SECOND_NS = 1_000_000_000
#: A collector whose outcome flaps is reported no more often than this; the last word is always said.
OUTCOME_EVENT_NS_MIN = 10 * SECOND_NS
#: A device that comes and goes has the inventory read anew no more often than this.
INVENTORY_NS_MIN = 10 * SECOND_NS
#: The schedule's name for the agent's own signals.
OWN = "agent"

log = logging.getLogger(__name__)


class Spool(Protocol):
    """What the loop needs of `agent.spool.spool.Spool`."""

    @property
    def dropped_frames(self) -> int: ...
    @property
    def write_errors(self) -> int: ...
    @property
    def refused_frames(self) -> int: ...
    @property
    def unacknowledged_frames(self) -> int: ...
    def next_sequence(self) -> int: ...
    def append(self, sequence: int, frame: bytes) -> None: ...
    @property
    def bytes(self) -> int: ...  # last: within the class it hides the type


class Events(Protocol):
    """What the loop needs of `agent.spool.events.EventQueue`."""

    @property
    def dropped_events(self) -> int: ...
    def put(self, event: telemetry_pb2.HealthEvent) -> bool | None: ...


class Client(Protocol):
    """What the loop needs of `agent.transport.client.Client`."""

    @property
    def reconnects(self) -> int: ...
    def notify(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the loop waits for turns that enter a driver."""

    #: A turn that has not returned by then is hung.
    deadline_ns: int = 3 * SECOND_NS
    #: What the inventory may take: its child has a deadline of its own, shorter than this.
    inventory_deadline_ns: int = 40 * SECOND_NS
    #: A tick waits this long for the turns that it began; what comes later goes in the next frame.
    linger_seconds: float = 0.5


class Daemon:
    """Samples and spools, whatever fails. All methods belong to one thread."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        *,
        clock: Clock,
        spool: Spool,
        events: Events,
        client: Client,
        framer: Framer,
        teller: Teller,
        patience: Patience = Patience(),
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """*collectors* have names of their own, none of them `agent`; their turns come in this
        order, those that enter a driver first. *look* is called once a second, at the very end."""
        self._clock, self._spool = clock, spool
        self._client, self._framer, self._teller = client, framer, teller
        self._linger_ns = int(patience.linger_seconds * 1e9)
        self._look = look
        self._inventory_why, self._inventory_ns = "", -INVENTORY_NS_MIN
        self._probes = {
            c.name: Probe(c, clock, deadline_ns=_deadline_ns(c, patience))
            for c in collectors
            if c.enters_driver
        }
        self._collectors = {c.name: c for c in collectors if not c.enters_driver}
        periods = {c.name: PERIOD_SECONDS[c.pace] * SECOND_NS for c in collectors}
        self._schedule = Schedule(periods | {OWN: SECOND_NS})
        self._own = Own(list(periods), _counts(spool, events, client, framer))
        self._reported: dict[str, tuple[Outcome, int]] = {
            name: (Outcome.OK, -OUTCOME_EVENT_NS_MIN) for name in periods
        }

    def run(self, stop: threading.Event, wait: Callable[[int], None]) -> None:
        """Tick until *stop* is set. *wait* returns at the boot time it is given (ns), or earlier
        when it has set *stop*. Never raises, unless *wait* does."""
        # The first tick stands on the second's grid, as all that follow.
        wait(-(-self._clock.boottime_ns() // SECOND_NS) * SECOND_NS)
        while not stop.is_set():
            wait(self.tick())

    def tick(self) -> int:
        """Take the turns that are due, and return when the next one is. Never raises."""
        now_ns = self._clock.boottime_ns()
        try:
            self._tick(now_ns)
        except Exception:
            log.exception("a tick failed", extra={"cause": "daemon.tick"})
        return max(self._schedule.next_ns(), now_ns + 1)

    def _tick(self, now_ns: int) -> None:
        self._renew_inventory(now_ns)
        due = self._schedule.due(now_ns)
        # What came back since the last tick leaves first: its collector refills the same blocks.
        late = [block for probe in self._probes.values() for block in self._take(probe, now_ns)]
        if late:
            self._send(now_ns, late)
        begun = [p for name in due if (p := self._probes.get(name)) and p.begin(now_ns)]
        blocks: list[Block] = []
        for name in due:
            if name in self._collectors:
                blocks += self._turn(self._collectors[name], now_ns)
        blocks += self._gather(begun, now_ns)
        if OWN in due:
            blocks += self._own.blocks()
        if blocks:
            self._send(now_ns, blocks)
        if OWN in due:
            self._look()

    def _renew_inventory(self, now_ns: int) -> None:
        """Let the inventory have its turn now, when a collector has asked for it."""
        self._inventory_why = self._inventory_why or self._teller.inventory_wanted()
        if self._inventory_why and now_ns - self._inventory_ns >= INVENTORY_NS_MIN:
            extra = {"cause": "inventory.renewed"}
            log.info("reading the inventory anew: %s", self._inventory_why, extra=extra)
            self._inventory_why, self._inventory_ns = "", now_ns
            self._schedule.hasten(InventoryCollector.name)

    def _turn(self, collector: Collector, now_ns: int) -> Sequence[Block]:
        began_ns = self._clock.boottime_ns()
        turn = take_turn(collector, self._clock)
        return self._judge(turn, self._schedule.skipped(turn.collector), began_ns, now_ns)

    def _take(self, probe: Probe, now_ns: int) -> Sequence[Block]:
        turn = probe.take(self._clock.boottime_ns()) if probe.running else None
        if turn is None:
            return ()
        skipped = self._schedule.skipped(turn.collector) + probe.skipped
        return self._judge(turn, skipped, probe.began_ns, now_ns)

    def _gather(self, begun: Sequence[Probe], now_ns: int) -> list[Block]:
        """Wait a little for the turns just begun, and return the blocks of those that came back."""
        until_ns = self._clock.boottime_ns() + self._linger_ns
        blocks: list[Block] = []
        for probe in begun:
            if probe.collector.pace is not Pace.BOOT:  # nobody waits for what takes seconds
                probe.wait((until_ns - self._clock.boottime_ns()) / 1e9)
            blocks += self._take(probe, now_ns)
        return blocks

    def _judge(self, turn: Turn, skipped: int, began_ns: int, now_ns: int) -> Sequence[Block]:
        """Note the turn, report a change of outcome, and return its blocks with their time."""
        self._own.record(turn, skipped)
        outcome, reported_ns = self._reported[turn.collector]
        if turn.outcome is not outcome and now_ns - reported_ns >= OUTCOME_EVENT_NS_MIN:
            self._reported[turn.collector] = turn.outcome, now_ns
            self._report(turn, now_ns)
        for block in turn.blocks:
            block.offset_ns = began_ns - now_ns
        return turn.blocks

    def _report(self, turn: Turn, now_ns: int) -> None:
        level = logging.WARNING if turn.outcome >= Outcome.BLIND else logging.INFO
        name, state = turn.collector, turn.outcome.name.lower()
        extra = {"cause": f"collector.{name}.{state}"}
        log.log(level, "collector %s: %s %s", name, state, turn.words, extra=extra)
        self._teller.tell(
            telemetry_pb2.HealthEvent(
                device_kind="collector",
                device=name,
                name="collector.outcome",
                code=int(turn.outcome),
                message=turn.words,
                boottime_ns=now_ns,
            )
        )

    def _send(self, now_ns: int, blocks: Sequence[Block]) -> None:
        sequence = self._spool.next_sequence()
        frame = self._framer.frame(sequence, now_ns, self._wall_ns(now_ns), blocks)
        self._spool.append(sequence, frame)
        self._client.notify()
        for table, why in self._framer.left_out:
            log.error("left out: %s", why, extra={"cause": f"table.{table}"})

    def _wall_ns(self, boottime_ns: int) -> int:
        """Return what the wall clock showed at *boottime_ns*, a moment ago."""
        return self._clock.wall_ns() - (self._clock.boottime_ns() - boottime_ns)


def _deadline_ns(collector: Collector, patience: Patience) -> int:
    slow = collector.pace is Pace.BOOT
    return patience.inventory_deadline_ns if slow else patience.deadline_ns


def _counts(
    spool: Spool, events: Events, client: Client, framer: Framer
) -> dict[str, Callable[[], float | None]]:
    """Every signal of `agent_1s`, and where its value comes from."""
    return {
        "agent.spool_bytes": lambda: spool.bytes,
        "agent.spool_dropped_frames": lambda: spool.dropped_frames,
        "agent.spool_write_errors": lambda: spool.write_errors,
        "agent.refused_frames": lambda: spool.refused_frames,
        "agent.unacknowledged_frames": lambda: spool.unacknowledged_frames,
        "agent.reconnects_count": lambda: client.reconnects,
        "agent.cpu_seconds": cpu_seconds,
        "agent.memory_bytes": memory_bytes,
        "agent.dropped_events": lambda: events.dropped_events,
        "agent.left_out_count": lambda: framer.left_out_count,
    }
