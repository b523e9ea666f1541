"""The agent's main loop: each second it runs collectors, reads samplers, and spools one frame."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ..contract.block import Block
from ..contract.signal import PERIOD_SECONDS
from ..contract.wire import telemetry_pb2
from .clock import Clock, PeriodicSchedule
from .collector import Collector, CollectOutcome, CollectResult, DeadlineThread, run_collector
from .events import EventPublisher
from .frame_builder import FrameBuilder, SharedTables
from .latest import LatestReadings
from .registration import InventoryCollector
from .sampler.messages import TimedResult
from .sampler.pool import SamplerPool
from .self_metrics import SELF_METRICS_SECONDS, MemoryUsage, SelfMetrics, cpu_seconds
from .spool.event_queue import EventQueue
from .spool.spool import Spool
from .transport.client import Client

SECOND_NS = 1_000_000_000
#: Minimum time between reports of a collector's outcome.
OUTCOME_EVENT_NS_MIN = 10 * SECOND_NS
#: Minimum time between inventories, even if a device comes and goes.
INVENTORY_NS_MIN = 10 * SECOND_NS
#: Names in the schedule: the end of a frame (each second), and the agent's own signals.
FRAME_TICK, SELF_TICK = "", "agent"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopTimeouts:
    """How long the loop waits for turns in other threads and processes."""

    #: Deadline of the inventory, longer than its child's own deadline.
    inventory_deadline_ns: int = 40 * SECOND_NS
    #: A frame waits this long for the samplers; later turns go into a frame of their own.
    frame_wait_seconds: float = 0.5


class _PendingFrame:
    """The frame under construction."""

    def __init__(self) -> None:
        self.boottime_ns = 0
        self.until_ns = 0
        self.open = False
        self.due: Collection[str] = ()  # due names of the schedule
        self.blocks: list[tuple[str, Block]] = []  # (collector, block)
        self.tables: set[tuple[str, str]] = set()

    def begin(self, now_ns: int, until_ns: int, due: Collection[str]) -> None:
        self.boottime_ns, self.until_ns, self.due, self.open = now_ns, until_ns, due, True

    def end(self) -> tuple[list[tuple[str, Block]], Collection[str]]:
        """Reset; return the blocks by collector, and the due names."""
        ended = self.blocks, self.due
        self.blocks, self.tables, self.due, self.open = [], set(), (), False
        return ended


class Daemon:
    """Samples and spools, despite any failure. All methods belong to a single thread."""

    def __init__(
        self,
        collectors: Sequence[Collector],
        *,
        clock: Clock,
        spool: Spool,
        events: EventQueue,
        client: Client,
        frame_builder: FrameBuilder,
        publisher: EventPublisher,
        samplers: SamplerPool | None = None,
        latest: LatestReadings | None = None,
        timeouts: LoopTimeouts = LoopTimeouts(),
        on_wakeup: Callable[[], int | None] = lambda: None,
        on_second: Callable[[], None] = lambda: None,
        blocking_findings: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """*collectors* take turns in this order, except those in *samplers*.

        Their names are unique and neither `FRAME_TICK` nor `SELF_TICK`. *on_wakeup* runs in each
        round of the loop, for requests of other threads; it returns its next due time if before the
        next second. *on_second* runs once a second, last. *blocking_findings* returns how many
        findings keep jobs off this host.
        """
        self._clock, self._spool = clock, spool
        self._client, self._frame_builder, self._publisher = client, frame_builder, publisher
        self._connections = client.reconnects
        self._samplers, self._latest = samplers, latest or LatestReadings()
        self._frame_wait_ns = int(timeouts.frame_wait_seconds * 1e9)
        self._on_wakeup, self._on_second = on_wakeup, on_second
        self._wakeup_ns: int | None = None
        self._inventory_reason, self._inventory_ns = "", -INVENTORY_NS_MIN
        sampled_names = set(samplers.collectors) if samplers else set()
        local_collectors = [
            collector for collector in collectors if collector.name not in sampled_names
        ]
        deadline_ns = timeouts.inventory_deadline_ns
        self._deadline_threads = {
            collector.name: DeadlineThread(collector, clock, deadline_ns=deadline_ns)
            for collector in local_collectors
            if collector.enters_driver
        }
        self._collectors = {
            collector.name: collector
            for collector in local_collectors
            if not collector.enters_driver
        }
        periods = {
            collector.name: PERIOD_SECONDS[collector.pace] * SECOND_NS for collector in collectors
        }
        ticks = {FRAME_TICK: SECOND_NS, SELF_TICK: SELF_METRICS_SECONDS * SECOND_NS}
        self._schedule = PeriodicSchedule(
            {collector.name: periods[collector.name] for collector in local_collectors} | ticks
        )
        self._skips = SkipCounter(
            {name: periods[name] for name in periods if name in sampled_names}
        )
        self._self_metrics = SelfMetrics(
            list(periods),
            _agent_signals(spool, events, client, frame_builder, samplers, blocking_findings),
            lambda: (blocking_findings(), spool.dropped_frames),
        )
        self._pending = _PendingFrame()
        self._shared_tables = SharedTables()
        self._reported: dict[str, tuple[CollectOutcome, int]] = {
            name: (CollectOutcome.OK, -OUTCOME_EVENT_NS_MIN) for name in periods
        }

    def last_results(self) -> list[CollectResult]:
        """Return each collector's last result; the same list until a result differs."""
        return self._self_metrics.last_results()

    def run(self, stop: threading.Event, wait: Callable[[int], Collection[int] | None]) -> None:
        """Tick until *stop* is set. Never raises, unless *wait* does.

        *wait* returns at the given boot time (ns) or shortly after it, so that samplers that start
        then have sent their messages. It returns earlier if it set *stop* or a sampler sent a
        message. It returns the readable descriptors, if known (`SamplerPool.poll`).
        """
        # All ticks, also the first, are on the grid of seconds.
        ready = wait(-(-self._clock.boottime_ns() // SECOND_NS) * SECOND_NS)
        while not stop.is_set():
            ready = wait(self.tick(ready))
        self._flush_at_end()

    def _flush_at_end(self) -> None:
        """Send the gathered blocks at the end."""
        try:
            self._flush(self._clock.boottime_ns())
        except Exception:
            log.exception("the last frame failed", extra={"cause": "daemon.end"})

    def tick(self, ready: Collection[int] | None = None) -> int:
        """Do the due work; return the time of the next tick. Never raises. *ready*: see `run`."""
        now_ns = self._clock.boottime_ns()
        try:
            self._tick(now_ns, ready)
        except Exception:
            self._pending.end()
            log.exception("a tick failed", extra={"cause": "daemon.tick"})
        return max(self._next_ns(now_ns), now_ns + 1)

    def _next_ns(self, now_ns: int) -> int:
        ends = [self._schedule.next_ns()]
        if self._pending.open:
            ends.append(self._pending.until_ns)
        samplers_ns = self._samplers.next_ns(now_ns) if self._samplers else None
        return min([*ends, *filter(None, (samplers_ns, self._wakeup_ns))])

    def _tick(self, now_ns: int, ready: Collection[int] | None) -> None:
        self._wakeup_ns = None
        self._wakeup_ns = self._on_wakeup()
        self._request_inventory(now_ns)
        due = self._schedule.due(now_ns)
        if due:
            if self._pending.open:  # the previous frame still waits
                self._flush(now_ns)
            self._pending.begin(now_ns, now_ns + self._frame_wait_ns, due)
            self._run_due(due, now_ns)
        self._poll_samplers(now_ns, ready)
        self._flush_if_complete(now_ns)

    def _run_due(self, due: Sequence[str], now_ns: int) -> None:
        for deadline_thread in self._deadline_threads.values():
            self._poll_thread(deadline_thread, now_ns)
        for name in due:
            if (collector := self._collectors.get(name)) is not None:
                if not collector.skip():
                    self._run(collector, now_ns)
            elif name in self._deadline_threads:
                self._deadline_threads[name].begin(now_ns)

    def _poll_samplers(self, now_ns: int, ready: Collection[int] | None) -> None:
        """Gather the samplers' results, in the pending frame or a frame of their own."""
        while self._samplers:
            for timed in self._samplers.poll(now_ns, ready):
                self._record_result(timed.result, self._skips.count(timed), now_ns)
                self._gather(timed.result, timed.began_ns, now_ns)
            if not self._samplers.has_more:
                return
            self._flush(now_ns)  # the next round refills these blocks
            ready = ()

    def _gather(self, result: CollectResult, began_ns: int, now_ns: int) -> None:
        """Add a turn's blocks. Until `_flush`, their offset is the boot time of the turn."""
        pending = self._pending
        for block in result.blocks:
            filled = block.table, result.collector
            if filled in pending.tables:
                self._flush(now_ns)
            block.offset_ns = began_ns
            pending.tables.add(filled)
            pending.blocks.append((result.collector, block))

    def _flush_if_complete(self, now_ns: int) -> None:
        pending = self._pending
        if not pending.open:
            self._flush(now_ns)
            return
        grid_ns = pending.boottime_ns // SECOND_NS * SECOND_NS
        is_waiting = self._samplers is not None and self._samplers.waiting(grid_ns)
        if is_waiting and now_ns < pending.until_ns:
            return
        if is_waiting and self._samplers:
            self._samplers.report_late(now_ns, grid_ns)
        self._flush(now_ns)

    def _flush(self, now_ns: int) -> None:
        """Send the gathered blocks, if any."""
        at_ns = self._pending.boottime_ns if self._pending.open else now_ns
        filled, due = self._pending.end()
        for _, block in filled:
            block.offset_ns -= at_ns
        blocks = self._shared_tables.join(filled)
        if FRAME_TICK in due:
            blocks += self._self_blocks(SELF_TICK in due)
        if blocks:
            self._latest.update(at_ns, blocks)
            self._send(at_ns, blocks)
        try:
            if FRAME_TICK in due:
                self._on_second()
        finally:
            if (
                blocks
            ):  # last: two awake threads would wait for each other at the interpreter's lock
                self._client.notify()

    def _self_blocks(self, due: bool) -> list[Block]:
        """Return the agent's own signals, when due or changed."""
        blocks = self._self_metrics.blocks() if due or self._self_metrics.has_changes else []
        blocks += self._samplers.blocks() if self._samplers else ()
        for block in blocks:
            block.offset_ns = 0
        return blocks

    def _request_inventory(self, now_ns: int) -> None:
        """Make the inventory due if a collector requested it."""
        self._inventory_reason = self._inventory_reason or self._publisher.take_inventory_request()
        if self._inventory_reason and now_ns - self._inventory_ns >= INVENTORY_NS_MIN:
            extra = {"cause": "inventory.renewed"}
            log.info("rereading the inventory: %s", self._inventory_reason, extra=extra)
            self._inventory_reason, self._inventory_ns = "", now_ns
            self._schedule.make_due(InventoryCollector.name)

    def _run(self, collector: Collector, now_ns: int) -> None:
        began_ns = self._clock.boottime_ns()
        result = run_collector(collector, self._clock)
        self._record_result(result, self._schedule.skipped(result.collector), now_ns)
        self._gather(result, began_ns, now_ns)

    def _poll_thread(self, deadline_thread: DeadlineThread, now_ns: int) -> None:
        result = (
            deadline_thread.poll(self._clock.boottime_ns()) if deadline_thread.running else None
        )
        if result is not None:
            skipped = self._schedule.skipped(result.collector) + deadline_thread.skipped
            self._record_result(result, skipped, now_ns)

    def _record_result(self, result: CollectResult, skipped: int, now_ns: int) -> None:
        """Record a turn, and report a change of its outcome."""
        self._self_metrics.record(result, skipped)
        outcome, reported_ns = self._reported[result.collector]
        if result.outcome is not outcome and now_ns - reported_ns >= OUTCOME_EVENT_NS_MIN:
            self._reported[result.collector] = result.outcome, now_ns
            self._publish_outcome(result, now_ns)

    def _publish_outcome(self, result: CollectResult, now_ns: int) -> None:
        level = logging.WARNING if result.outcome >= CollectOutcome.BLIND else logging.INFO
        name, state = result.collector, result.outcome.name.lower()
        extra = {
            "cause": f"collector.{name}.{state}",
            "topic": f"collector.{name}",
            "well": result.outcome < CollectOutcome.BLIND,
        }
        log.log(level, "collector %s: %s %s", name, state, result.message, extra=extra)
        self._publisher.publish(
            telemetry_pb2.HealthEvent(
                device_kind="collector",
                device=name,
                name="collector.outcome",
                code=int(result.outcome),
                message=result.message,
                boottime_ns=now_ns,
            )
        )

    def _send(self, now_ns: int, blocks: Sequence[Block]) -> None:
        if self._client.reconnects != self._connections:  # earlier frames arrive late
            self._connections = self._client.reconnects
            self._frame_builder.force_keyframes()
        sequence = self._spool.next_sequence()
        frame = self._frame_builder.build(sequence, now_ns, self._wall_ns(now_ns), blocks)
        self._spool.append(sequence, frame)
        for table, reason in self._frame_builder.left_out:
            log.error("left out: %s", reason, extra={"cause": f"table.{table}"})

    def _wall_ns(self, boottime_ns: int) -> int:
        """Return the wall time at *boottime_ns*, a moment ago."""
        return self._clock.wall_ns() - (self._clock.boottime_ns() - boottime_ns)


class SkipCounter:
    """Counts a collector's skipped turns by the start times of its turns.

    After `CollectOutcome.NO_DATA` no turn counts as skipped: such a collector takes fewer turns.
    """

    def __init__(self, periods_ns: Mapping[str, int]) -> None:
        self._periods = dict(periods_ns)
        self._slots: dict[str, int] = {}
        self._without_data: set[str] = set()
        self._skipped = dict.fromkeys(periods_ns, 0)

    def count(self, timed: TimedResult) -> int:
        """Return the number of this collector's skipped turns so far."""
        name = timed.result.collector
        if timed.result.outcome is not CollectOutcome.HUNG:
            slot = timed.began_ns // self._periods[name]
            missed = slot - self._slots.get(name, slot - 1) - 1
            if missed >= 0:
                self._slots[name] = slot
                self._skipped[name] += 0 if name in self._without_data else missed
                no_data = timed.result.outcome is CollectOutcome.NO_DATA
                (self._without_data.add if no_data else self._without_data.discard)(name)
        return self._skipped[name]


def _agent_signals(
    spool: Spool,
    events: EventQueue,
    client: Client,
    frame_builder: FrameBuilder,
    samplers: SamplerPool | None,
    blocking_findings: Callable[[], float],
) -> Callable[[], dict[str, float | None]]:
    memory = MemoryUsage(lambda: samplers.memory_bytes if samplers else 0)
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
        "agent.left_out_count": frame_builder.left_out_count,
        "agent.sampler_abandoned_count": samplers.abandoned_count if samplers else 0,
        "agent.sampler_takeovers_count": samplers.takeovers_count if samplers else 0,
        "agent.processes_count": 1 + (samplers.processes if samplers else 0),
        "agent.barring_findings_count": blocking_findings(),
    }
