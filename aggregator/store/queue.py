"""The queue of the store's next commit, bounded in bytes however slow the disk is."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field

from ...ext.intake import Received
from ..config import AggregatorConfig
from ..model import Finding, HostScore, Snapshot
from . import rows as records
from .decision_records import DecisionCommit
from .frame_rows import NO_FOREIGN_SIGNALS, ForeignSignal, HostFrame
from .journal import StoredEvent
from .rows import HostMemory, HostRecord, OwnHealthReading, SnapshotScore
from .store_folder import StoreError

OnDurable = Callable[[int], None]

#: Limit of pending scores while the disk is full; the oldest are dropped and counted.
SCORES_WAITING_MAX = 100_000
#: Limit of pending findings, open and cleared; the oldest are dropped and counted.
FINDINGS_WAITING_MAX = 20_000
#: Limit of pending events while the disk is full; at the limit ReportEvents is refused.
EVENTS_WAITING_MAX = 100_000
#: A commit costs almost the same with few rows: below FEW_ROWS the writer waits for FEW_PERIODS
#: times `commit_seconds`.
FEW_ROWS, FEW_PERIODS = 32_768, 2.5
#: Limit of pending readings of the aggregator's own health; the oldest are dropped.
OWN_HEALTH_WAITING_MAX = 10_000
#: Limit of pending decisions in bytes; further ones are dropped and counted.
DECISION_BYTES_WAITING_MAX = 64 << 20
MISSING_INPUTS_MAX = 100_000


@dataclass(slots=True)
class Pending:
    """Everything that the next commit will store."""

    frames: list[tuple[HostFrame, OnDurable]] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    events: list[StoredEvent] = field(default_factory=list)
    journal_position: int = 0
    hosts: dict[str, HostRecord] = field(default_factory=dict)
    foreign: dict[int, ForeignSignal] = field(default_factory=dict)
    scores: list[SnapshotScore] = field(default_factory=list)
    memories: dict[str, HostMemory] = field(default_factory=dict)
    findings: dict[tuple[str, str, str, int], Finding] = field(default_factory=dict)
    own_health: list[OwnHealthReading] = field(default_factory=list)
    decisions: list[DecisionCommit] = field(default_factory=list)
    #: Monotonic time at which the first of `frames` was queued.
    first_seconds: float = 0.0

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to commit."""
        items = (self.frames, self.events, self.hosts, self.foreign, self.scores, self.findings)
        return not any((*items, self.memories, self.own_health, self.decisions))

    @property
    def description(self) -> str:
        """Return counts by kind, and the hosts."""
        items: dict[str, Sized] = {
            "frames": self.frames, "events": self.events, "registrations": self.hosts,
            "scores": self.scores, "findings": self.findings, "signals": self.foreign,
            "memories of judging": self.memories, "readings of ourselves": self.own_health,
            "batches of decisions": self.decisions,
        }  # fmt: skip
        counts = ", ".join(f"{len(c)} {name}" for name, c in items.items() if c)
        hosts = {frame.host for frame, _ in self.frames} | {event.host for event in self.events}
        return f"{counts} of {', '.join(sorted(hosts | self.hosts.keys())) or 'no one host'}"

    def parts(self) -> list[Pending]:
        """Return smaller parts: by host (rows without a host together), else by kind, else in
        halves.

        A single item has no parts. The parts have no `journal_position`.
        """
        for split in (self._by_host, self._by_kind, self._halves):
            if len(parts := split()) > 1:
                return parts
        return []

    def _by_host(self) -> list[Pending]:
        parts: dict[str, Pending] = {}
        for frame in self.frames:
            part = parts.setdefault(frame[0].host, Pending())
            part.frames.append(frame)
            part.rows += frame[0].frame.rows
        for event in self.events:
            parts.setdefault(event.host, Pending()).events.append(event)
        for host, record in self.hosts.items():
            parts.setdefault(host, Pending()).hosts[host] = record
        rest = Pending(
            foreign=self.foreign,
            scores=self.scores,
            memories=self.memories,
            findings=self.findings,
            own_health=self.own_health,
            decisions=self.decisions,
        )
        return [*parts.values(), *([] if rest.empty else [rest])]

    def _by_kind(self) -> list[Pending]:
        parts = (
            Pending(hosts=self.hosts), Pending(frames=self.frames, rows=self.rows),
            Pending(events=self.events), Pending(foreign=self.foreign), Pending(scores=self.scores),
            Pending(memories=self.memories), Pending(findings=self.findings), Pending(own_health=self.own_health),
            Pending(decisions=self.decisions),
        )  # fmt: skip
        return [part for part in parts if not part.empty]

    def _halves(self) -> list[Pending]:

        def half(part: slice) -> Pending:
            frames = self.frames[part]
            return Pending(
                frames=frames, rows=sum(frame.frame.rows for frame, _ in frames), events=self.events[part],
                hosts=dict(list(self.hosts.items())[part]), foreign=dict(list(self.foreign.items())[part]),
                scores=self.scores[part], findings=dict(list(self.findings.items())[part]), own_health=self.own_health[part],
                decisions=self.decisions[part], memories=dict(list(self.memories.items())[part]),
            )  # fmt: skip

        kinds: tuple[Sized, ...] = (
            self.frames, self.events, self.hosts, self.foreign, self.scores, self.findings, self.own_health, self.decisions,
            self.memories,
        )  # fmt: skip
        middle = max(len(collection) for collection in kinds) // 2
        return [part for part in (half(slice(middle)), half(slice(middle, None))) if not part.empty]


class Queue:
    """Thread-safe. Submitting blocks only briefly; one thread takes all pending items at once."""

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        self._change = threading.Condition()
        self._pending = Pending()
        self._committing = Pending()
        self._work_items: deque[Callable[[], None]] = deque()
        #: Work queued before the pending commit was taken; later work's rows are not in it.
        self._due_items: deque[Callable[[], None]] = deque()
        #: Work that runs before the pending commit; `_work_items` run after it.
        self._ahead_items: deque[Callable[[], None]] = deque()
        self._closing = self._commit_requested = False
        #: Scores dropped at SCORES_WAITING_MAX.
        self.dropped_scores = 0
        #: Findings dropped at FINDINGS_WAITING_MAX.
        self.dropped_findings = 0
        #: Decisions dropped at DECISION_BYTES_WAITING_MAX, or in the process that made them.
        self.dropped_decisions = 0
        self._decision_bytes = 0
        #: Digests of inputs of decisions that the store lacks and should be sent again.
        self.missing_inputs = deque[str](maxlen=MISSING_INPUTS_MAX)

    def submit_frame(
        self,
        host: str,
        frame: Received,
        time_offset_ns: int,
        on_durable: OnDurable,
        foreign: Mapping[int, ForeignSignal] = NO_FOREIGN_SIGNALS,
    ) -> bool:
        """Queue a frame. False: the queue is full and the frame must be submitted again later.

        Readings are stored at boot time plus *time_offset_ns*. *foreign* names the signals that
        this version does not know. The writer thread calls *on_durable* with the frame's sequence
        once its rows are on disk, also if they already were.
        """
        host_frame = HostFrame(host, frame, time_offset_ns, foreign)
        size, rows = frame.size_bytes, frame.rows
        with self._change:
            pending, due = self._pending, self._config.commit_rows
            waiting = pending.size_bytes + self._committing.size_bytes
            if waiting and waiting + size > self._config.queue_bytes_max:
                return False
            # Wake the writer for the first frame and a full commit only: a wake-up is costly.
            after = pending.rows + rows
            first = False
            full = pending.rows < due <= after or pending.rows < FEW_ROWS <= after
            if not pending.frames:
                first = pending.empty
                pending.first_seconds = time.monotonic()
            pending.frames.append((host_frame, on_durable))
            pending.size_bytes += size
            pending.rows += rows
            if first or full:
                self._change.notify_all()
        return True

    @property
    def room(self) -> float:
        """Return the free share of the queue, 0 to 1."""
        used = self._pending.size_bytes + self._committing.size_bytes
        return max(0.0, 1 - used / self._config.queue_bytes_max)

    @property
    def queue_bytes(self) -> int:
        """Return the bytes of readings without a receipt, including the running commit."""
        return self._pending.size_bytes + self._committing.size_bytes

    @property
    def lag_seconds(self) -> float:
        """Return how long the oldest frame without a receipt has waited; 0 if there is none."""
        waiting = [b.first_seconds for b in (self._committing, self._pending) if b.frames]
        return max(0.0, time.monotonic() - min(waiting)) if waiting else 0.0

    @property
    def events_waiting(self) -> int:
        """Return the number of events in the journal but not yet in the store."""
        return len(self._pending.events) + len(self._committing.events)

    @property
    def events_full(self) -> bool:
        """Return whether EVENTS_WAITING_MAX events are pending."""
        return len(self._pending.events) >= EVENTS_WAITING_MAX

    def submit_host(self, record: HostRecord, foreign: Mapping[int, ForeignSignal]) -> None:
        """Queue a host's registration, and the signals that only its agent knows."""
        with self._change:
            self._pending.hosts[record.host] = record
            self._pending.foreign.update(foreign)
            self._change.notify_all()

    def submit_scores(
        self, snapshot: Snapshot, changed: Sequence[HostScore], memories: Iterable[HostMemory] = ()
    ) -> None:
        """Queue scores with their evidence and the state of these hosts, for the same commit."""
        snapshot_scores = records.snapshot_scores(snapshot, changed)
        with self._change:
            scores = self._pending.scores
            scores += snapshot_scores
            over = len(scores) - SCORES_WAITING_MAX
            if over > 0:
                del scores[:over]
                self.dropped_scores += over
            self._pending.memories.update((memory.host, memory) for memory in memories)
            self._change.notify_all()

    def submit_findings(self, findings: Sequence[Finding]) -> None:
        """Queue new or cleared findings."""
        with self._change:
            for finding in findings:
                self._pending.findings[
                    finding.host, finding.name, finding.subject, finding.since_ns
                ] = finding
            while len(self._pending.findings) > FINDINGS_WAITING_MAX:
                self._pending.findings.pop(next(iter(self._pending.findings)))
                self.dropped_findings += 1
            self._change.notify_all()

    def submit_own_health(self, readings: Sequence[OwnHealthReading]) -> None:
        """Queue readings of the aggregator's own health."""
        with self._change:
            own_health = self._pending.own_health
            own_health += readings
            del own_health[: max(0, len(own_health) - OWN_HEALTH_WAITING_MAX)]
            self._change.notify_all()

    def submit_decisions(self, one: DecisionCommit) -> bool:
        """Queue decisions, inputs and choices. False: at the limit; they count as dropped."""
        size = one.size_bytes
        with self._change:
            if self._decision_bytes + size > DECISION_BYTES_WAITING_MAX:
                self.dropped_decisions += len(one.decisions)
                return False
            self._decision_bytes += size
            self._pending.decisions.append(one)
            self._change.notify_all()
        return True

    def count_dropped_decisions(self, count: int) -> None:
        """Count decisions that were dropped before they reached the queue."""
        with self._change:
            self.dropped_decisions += count

    def _submit_events(self, events: Sequence[StoredEvent], position: int) -> None:
        """Queue events that are on disk up to *position* of the journal."""
        with self._change:
            self._pending.events += events
            self._pending.journal_position = position
            self._change.notify_all()

    def _submit_work(self, work: Callable[[], None], *, ahead: bool = False) -> None:
        """Queue *work* for before (*ahead*) or after the next commit. Raises StoreError."""
        with self._change:
            if self._closing:
                raise StoreError("the store is closing")
            (self._ahead_items if ahead else self._work_items).append(work)
            self._change.notify_all()

    def _submit_end(self) -> None:
        # Stop the writer thread after the pending items.
        with self._change:
            self._closing = True
            self._change.notify_all()

    def request_commit(self) -> None:
        """Commit pending items now instead of after `commit_seconds`."""
        with self._change:
            self._commit_requested = True
            self._change.notify_all()

    @property
    def _has_work(self) -> bool:
        return bool(self._work_items or self._ahead_items)

    def _take_pending(self) -> Pending | None:
        """Wait until a commit is due and take all pending items; None: closing, and nothing is
        pending.

        Work ends the wait, too.
        """
        with self._change:
            self._change.wait_for(
                lambda: self._closing or self._has_work or not self._pending.empty
            )
            self._wait_for_rows(self._config.commit_rows, self._config.commit_seconds)
            if self._pending.rows < FEW_ROWS:
                few = min(FEW_ROWS, self._config.commit_rows)
                self._wait_for_rows(few, (FEW_PERIODS - 1) * self._config.commit_seconds)
            self._commit_requested = False
            if self._pending.empty and not self._has_work:
                return None
            self._due_items += self._work_items
            self._work_items.clear()
            pending, self._pending = self._pending, Pending()
            self._committing, self._decision_bytes = pending, 0
            return pending

    def _wait_for_rows(self, rows: int, seconds_max: float) -> None:
        """Wait until *rows* rows are pending, or for a reason to commit earlier."""

        def is_due() -> bool:
            is_requested = self._closing or self._commit_requested or self._has_work
            return is_requested or self._pending.rows >= rows

        self._change.wait_for(is_due, timeout=seconds_max)

    def _pause(self, seconds_max: float) -> None:
        """Wait, unless there is work or the store is closing."""
        with self._change:
            self._change.wait_for(lambda: self._closing or self._has_work, timeout=seconds_max)
