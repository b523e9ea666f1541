"""The loop: each second the turns of this process and of the samplers, one frame, the spool, and wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..contract.block import Block
from ..contract.signal import PERIOD_SECONDS
from ..contract.wire import telemetry_pb2
from .clock import Clock, Schedule
from .collector import Collector, Outcome, Turn, take_turn
from .deadline_thread import Probe
from .events import Teller
from .frame_builder import Framer
from .latest import Latest
from .registration import InventoryCollector
from .sampler.messages import Timed
from .self_metrics import OWN_SECONDS, Memory, Own, cpu_seconds

SECOND_NS = 1_000_000_000
#: A collector whose outcome flaps is reported no more often than this; the last word is always said.
OUTCOME_EVENT_NS_MIN = 10 * SECOND_NS
#: A device that comes and goes has the inventory read anew no more often than this.
INVENTORY_NS_MIN = 10 * SECOND_NS
#: The schedule's names for a frame's end, when all of its second are asked how it stands, and for the agent's own signals.
BEAT, OWN = "", "agent"

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
    """What the loop needs of `agent.spool.event_queue.EventQueue`."""

    @property
    def dropped_events(self) -> int: ...
    def put(self, event: telemetry_pb2.HealthEvent) -> bool | None: ...


class Client(Protocol):
    """What the loop needs of `agent.transport.client.Client`."""

    @property
    def reconnects(self) -> int: ...
    def notify(self) -> None: ...


class Samplers(Protocol):
    """What the loop needs of `agent.sampler.pool.Samplers`."""

    @property
    def collectors(self) -> Sequence[str]: ...
    @property
    def more(self) -> bool: ...
    @property
    def abandoned_count(self) -> int: ...
    @property
    def takeovers_count(self) -> int: ...
    @property
    def processes(self) -> int: ...
    @property
    def cpu_seconds(self) -> float: ...
    @property
    def memory_bytes(self) -> int: ...
    def take(self, now_ns: int, ready: Collection[int] | None, /) -> Sequence[Timed]: ...
    def waiting(self, grid_ns: int) -> bool: ...
    def late(self, now_ns: int, grid_ns: int) -> None: ...
    def next_ns(self, now_ns: int) -> int | None: ...
    def blocks(self) -> Sequence[Block]: ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the loop waits for turns that others take."""

    #: What the inventory may take: its child has a deadline of its own, shorter than this.
    inventory_deadline_ns: int = 40 * SECOND_NS
    #: A frame waits this long for the samplers' turns of its second; what comes later goes in one of its own.
    linger_seconds: float = 0.5


class _Gathering:
    """The frame that is being gathered."""

    def __init__(self) -> None:
        self.boottime_ns = 0
        self.until_ns = 0
        self.open = False
        self.due: Collection[str] = ()  # of `BEAT` and `OWN`, and of others
        self.blocks: list[Block] = []
        self.tables: set[str] = set()

    def begin(self, now_ns: int, until_ns: int, due: Collection[str]) -> None:
        self.boottime_ns, self.until_ns, self.due, self.open = now_ns, until_ns, due, True

    def end(self) -> tuple[list[Block], Collection[str]]:
        """Return its blocks, and whose turn it was; nothing is gathered then."""
        ended = self.blocks, self.due
        self.blocks, self.tables, self.due, self.open = [], set(), (), False
        return ended


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
        samplers: Samplers | None = None,
        latest: Latest | None = None,
        patience: Patience = Patience(),
        between: Callable[[], int | None] = lambda: None,
        look: Callable[[], None] = lambda: None,
        barring: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """*collectors* have names of their own, none of them `BEAT` or `OWN`; their turns come in this
        order, but those of *samplers* come from there. *between* is called whenever the loop comes round, for what others
        ask of this thread, and returns when it has to be again, if before the next second; *look* once a second, at the very end.
        *barring*: how many findings bar this host from jobs."""
        self._clock, self._spool = clock, spool
        self._client, self._framer, self._teller = client, framer, teller
        self._connections = client.reconnects
        self._samplers, self._latest = samplers, latest or Latest()
        self._linger_ns = int(patience.linger_seconds * 1e9)
        self._between, self._look = between, look
        self._between_ns: int | None = None
        self._inventory_why, self._inventory_ns = "", -INVENTORY_NS_MIN
        sampled = set(samplers.collectors) if samplers else set()
        here = [each for each in collectors if each.name not in sampled]
        deadline_ns = patience.inventory_deadline_ns
        self._probes = {
            c.name: Probe(c, clock, deadline_ns=deadline_ns) for c in here if c.enters_driver
        }
        self._collectors = {c.name: c for c in here if not c.enters_driver}
        periods = {c.name: PERIOD_SECONDS[c.pace] * SECOND_NS for c in collectors}
        own = {BEAT: SECOND_NS, OWN: OWN_SECONDS * SECOND_NS}
        self._schedule = Schedule({c.name: periods[c.name] for c in here} | own)
        self._sampled = Skips({name: periods[name] for name in periods if name in sampled})
        self._own = Own(
            list(periods),
            _counts(spool, events, client, framer, samplers, barring),
            lambda: (barring(), spool.dropped_frames),
        )
        self._gathering = _Gathering()
        self._reported: dict[str, tuple[Outcome, int]] = {
            name: (Outcome.OK, -OUTCOME_EVENT_NS_MIN) for name in periods
        }

    def turns(self) -> list[Turn]:
        """Return the last turn of each collector that had one."""
        return self._own.turns()

    def run(self, stop: threading.Event, wait: Callable[[int], Collection[int] | None]) -> None:
        """Tick until *stop* is set. *wait* returns at the boot time it is given (ns), a moment after it (so that
        who begins with it has spoken), or earlier: when it has set *stop*, or a sampler has said something; and what can be read, if it knows (`Samplers.take`).
        Never raises, unless *wait* does."""
        # The first tick stands on the second's grid, as all that follow.
        ready = wait(-(-self._clock.boottime_ns() // SECOND_NS) * SECOND_NS)
        while not stop.is_set():
            ready = wait(self.tick(ready))
        self._end()

    def _end(self) -> None:
        """Send what was gathered when the end came."""
        try:
            self._flush(self._clock.boottime_ns())
        except Exception:
            log.exception("the last frame failed", extra={"cause": "daemon.end"})

    def tick(self, ready: Collection[int] | None = None) -> int:
        """Do what is to be done now, and return when the next is. Never raises. *ready*: as `run` has it."""
        now_ns = self._clock.boottime_ns()
        try:
            self._tick(now_ns, ready)
        except Exception:
            self._gathering.end()
            log.exception("a tick failed", extra={"cause": "daemon.tick"})
        return max(self._next_ns(now_ns), now_ns + 1)

    def _next_ns(self, now_ns: int) -> int:
        ends = [self._schedule.next_ns()]
        if self._gathering.open:
            ends.append(self._gathering.until_ns)
        looked_at_ns = self._samplers.next_ns(now_ns) if self._samplers else None
        return min([*ends, *filter(None, (looked_at_ns, self._between_ns))])

    def _tick(self, now_ns: int, ready: Collection[int] | None) -> None:
        self._between_ns = None
        self._between_ns = self._between()
        self._renew_inventory(now_ns)
        due = self._schedule.due(now_ns)
        if due:
            if self._gathering.open:  # the last frame still waits
                self._flush(now_ns)
            self._gathering.begin(now_ns, now_ns + self._linger_ns, due)
            self._take_turns(due, now_ns)
        self._take_samplers(now_ns, ready)
        self._flush_if_whole(now_ns)

    def _take_turns(self, due: Sequence[str], now_ns: int) -> None:
        for probe in self._probes.values():
            self._take(probe, now_ns)
        for name in due:
            if name in self._collectors:
                self._turn(self._collectors[name], now_ns)
            elif name in self._probes:
                self._probes[name].begin(now_ns)

    def _take_samplers(self, now_ns: int, ready: Collection[int] | None) -> None:
        """Take what the samplers have sent: into the frame that is gathered, or one of its own."""
        while self._samplers:
            for timed in self._samplers.take(now_ns, ready):
                self._judge(timed.turn, self._sampled.count(timed), now_ns)
                self._gather(timed.turn.blocks, timed.began_ns, now_ns)
            if not self._samplers.more:
                return
            self._flush(now_ns)  # the next round refills these blocks
            ready = ()

    def _gather(self, blocks: Sequence[Block], began_ns: int, now_ns: int) -> None:
        """Add blocks, whose offset is their boot time until it is known of which frame they are."""
        gathering = self._gathering
        for block in blocks:
            if block.table in gathering.tables:
                self._flush(now_ns)
            block.offset_ns = began_ns
            gathering.tables.add(block.table)
            gathering.blocks.append(block)

    def _flush_if_whole(self, now_ns: int) -> None:
        gathering = self._gathering
        if not gathering.open:
            self._flush(now_ns)
            return
        grid_ns = gathering.boottime_ns // SECOND_NS * SECOND_NS
        waiting = self._samplers is not None and self._samplers.waiting(grid_ns)
        if waiting and now_ns < gathering.until_ns:
            return
        if waiting and self._samplers:
            self._samplers.late(now_ns, grid_ns)
        self._flush(now_ns)

    def _flush(self, now_ns: int) -> None:
        """Send what was gathered, if anything."""
        at_ns = self._gathering.boottime_ns if self._gathering.open else now_ns
        blocks, due = self._gathering.end()
        for block in blocks:
            block.offset_ns -= at_ns
        if BEAT in due:
            blocks += self._own_blocks(OWN in due)
        if blocks:
            self._latest.take(at_ns, blocks)
            self._send(at_ns, blocks)
        if BEAT in due:
            self._look()

    def _own_blocks(self, due: bool) -> list[Block]:
        """Return what the agent says of itself: when it is due, and sooner when there is news."""
        blocks = self._own.blocks() if due or self._own.has_news else []
        blocks += self._samplers.blocks() if self._samplers else ()
        for block in blocks:
            block.offset_ns = 0
        return blocks

    def _renew_inventory(self, now_ns: int) -> None:
        """Let the inventory have its turn now, when a collector has asked for it."""
        self._inventory_why = self._inventory_why or self._teller.inventory_wanted()
        if self._inventory_why and now_ns - self._inventory_ns >= INVENTORY_NS_MIN:
            extra = {"cause": "inventory.renewed"}
            log.info("reading the inventory anew: %s", self._inventory_why, extra=extra)
            self._inventory_why, self._inventory_ns = "", now_ns
            self._schedule.hasten(InventoryCollector.name)

    def _turn(self, collector: Collector, now_ns: int) -> None:
        began_ns = self._clock.boottime_ns()
        turn = take_turn(collector, self._clock)
        self._judge(turn, self._schedule.skipped(turn.collector), now_ns)
        self._gather(turn.blocks, began_ns, now_ns)

    def _take(self, probe: Probe, now_ns: int) -> None:
        turn = probe.take(self._clock.boottime_ns()) if probe.running else None
        if turn is not None:
            skipped = self._schedule.skipped(turn.collector) + probe.skipped
            self._judge(turn, skipped, now_ns)

    def _judge(self, turn: Turn, skipped: int, now_ns: int) -> None:
        """Note the turn, and report a change of outcome."""
        self._own.record(turn, skipped)
        outcome, reported_ns = self._reported[turn.collector]
        if turn.outcome is not outcome and now_ns - reported_ns >= OUTCOME_EVENT_NS_MIN:
            self._reported[turn.collector] = turn.outcome, now_ns
            self._report(turn, now_ns)

    def _report(self, turn: Turn, now_ns: int) -> None:
        level = logging.WARNING if turn.outcome >= Outcome.BLIND else logging.INFO
        name, state = turn.collector, turn.outcome.name.lower()
        extra = {
            "cause": f"collector.{name}.{state}",
            "topic": f"collector.{name}",
            "well": turn.outcome < Outcome.BLIND,
        }
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
        if self._client.reconnects != self._connections:  # what went before comes late there
            self._connections = self._client.reconnects
            self._framer.begin_anew()
        sequence = self._spool.next_sequence()
        frame = self._framer.frame(sequence, now_ns, self._wall_ns(now_ns), blocks)
        self._spool.append(sequence, frame)
        self._client.notify()
        for table, why in self._framer.left_out:
            log.error("left out: %s", why, extra={"cause": f"table.{table}"})

    def _wall_ns(self, boottime_ns: int) -> int:
        """Return what the wall clock showed at *boottime_ns*, a moment ago."""
        return self._clock.wall_ns() - (self._clock.boottime_ns() - boottime_ns)


class Skips:
    """Counts the turns that samplers have left out, from when those that they took began.

    After one that found nothing none is missed: who has nothing to say may pass (`turn.Passing`).
    """

    def __init__(self, periods_ns: Mapping[str, int]) -> None:
        self._periods = dict(periods_ns)
        self._slots: dict[str, int] = {}
        self._passing: set[str] = set()
        self._skipped = dict.fromkeys(periods_ns, 0)

    def count(self, timed: Timed) -> int:
        """Return how many turns of this collector were left out so far."""
        name = timed.turn.collector
        if timed.turn.outcome is not Outcome.HUNG:
            slot = timed.began_ns // self._periods[name]
            missed = slot - self._slots.get(name, slot - 1) - 1
            if missed >= 0:
                self._slots[name] = slot
                self._skipped[name] += 0 if name in self._passing else missed
                found_nothing = timed.turn.outcome is Outcome.NO_DATA
                (self._passing.add if found_nothing else self._passing.discard)(name)
        return self._skipped[name]


def _counts(
    spool: Spool,
    events: Events,
    client: Client,
    framer: Framer,
    samplers: Samplers | None,
    barring: Callable[[], float],
) -> Callable[[], dict[str, float | None]]:
    """Return what returns every signal of `agent_10s`."""
    memory = Memory(lambda: samplers.memory_bytes if samplers else 0)
    return lambda: {
        "agent.spool_bytes": spool.bytes,
        "agent.spool_dropped_frames": spool.dropped_frames,
        "agent.spool_write_errors": spool.write_errors,
        "agent.refused_frames": spool.refused_frames,
        "agent.unacknowledged_frames": spool.unacknowledged_frames,
        "agent.reconnects_count": client.reconnects,
        "agent.cpu_seconds": cpu_seconds() + (samplers.cpu_seconds if samplers else 0.0),
        "agent.memory_bytes": memory.bytes(),
        "agent.dropped_events": events.dropped_events,
        "agent.left_out_count": framer.left_out_count,
        "agent.sampler_abandoned_count": samplers.abandoned_count if samplers else 0,
        "agent.sampler_takeovers_count": samplers.takeovers_count if samplers else 0,
        "agent.processes_count": 1 + (samplers.processes if samplers else 0),
        "agent.barring_findings_count": barring(),
    }
