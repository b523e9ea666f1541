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
from .duckdb_file import StoreError
from .journal import StoredEvent
from .rows import (
    NO_FOREIGN_SIGNALS,
    ForeignSignal,
    HostFrame,
    HostMemory,
    HostRecord,
    OwnHealthReading,
    SnapshotScore,
)

# ----------------------------------------------------------------------
# What waits for the next commit.

OnDurable = Callable[[int], None]


@dataclass(slots=True)
class Pending:
    """What waits for the next commit."""

    frames: list[tuple[HostFrame, OnDurable]] = field(
        default_factory=list[tuple[HostFrame, OnDurable]]
    )
    rows: int = 0
    size_bytes: int = 0
    events: list[StoredEvent] = field(default_factory=list[StoredEvent])
    journal_position: int = 0
    hosts: dict[str, HostRecord] = field(default_factory=dict[str, HostRecord])
    foreign: dict[int, ForeignSignal] = field(default_factory=dict[int, ForeignSignal])
    scores: list[SnapshotScore] = field(default_factory=list[SnapshotScore])
    memories: dict[str, HostMemory] = field(default_factory=dict[str, HostMemory])
    findings: dict[tuple[str, str, str, int], Finding] = field(
        default_factory=dict[tuple[str, str, str, int], Finding]
    )
    own_health: list[OwnHealthReading] = field(default_factory=list[OwnHealthReading])
    decisions: list[DecisionCommit] = field(default_factory=list[DecisionCommit])
    #: When the first of `frames` came, by the monotonic clock.
    first_seconds: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        several = (self.frames, self.events, self.hosts, self.foreign, self.scores, self.findings)
        return not any((*several, self.memories, self.own_health, self.decisions))

    @property
    def description(self) -> str:
        """What it is, and of whom."""
        several: dict[str, Sized] = {
            "frames": self.frames, "events": self.events, "registrations": self.hosts,
            "scores": self.scores, "findings": self.findings, "signals": self.foreign,
            "memories of judging": self.memories, "readings of ourselves": self.own_health,
            "batches of decisions": self.decisions,
        }  # fmt: skip
        counts = ", ".join(f"{len(some)} {name}" for name, some in several.items() if some)
        hosts = {frame.host for frame, _ in self.frames} | {event.host for event in self.events}
        return f"{counts} of {', '.join(sorted(hosts | self.hosts.keys())) or 'no one host'}"

    def parts(self) -> list[Pending]:
        """Return it split: what is of one host together and what is of none; one host's by kind; one kind's in halves.

        Empty when it is a single thing. The parts have no `journal_position`.
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
        several = (
            Pending(hosts=self.hosts), Pending(frames=self.frames, rows=self.rows),
            Pending(events=self.events), Pending(foreign=self.foreign), Pending(scores=self.scores),
            Pending(memories=self.memories), Pending(findings=self.findings), Pending(own_health=self.own_health),
            Pending(decisions=self.decisions),
        )  # fmt: skip
        return [one for one in several if not one.empty]

    def _halves(self) -> list[Pending]:
        """Of one kind."""

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
        middle = max(len(one) for one in kinds) // 2
        return [one for one in (half(slice(middle)), half(slice(middle, None))) if not one.empty]


#: Judgements that wait while the disk is full; older ones go first, and are counted.
SCORES_WAITING_MAX = 100_000
#: Findings that wait, come and gone; the oldest go first, and are counted.
FINDINGS_WAITING_MAX = 20_000
#: Events that wait while the disk is full; then ReportEvents is refused.
EVENTS_WAITING_MAX = 100_000
#: A commit costs much the same whatever is in it: of a small fleet, with fewer rows, it may be this many times as late.
FEW_ROWS, FEW_PERIODS = 32_768, 2.5
#: The aggregator's readings of itself that wait while the disk is full; the oldest go first.
OWN_HEALTH_WAITING_MAX = 10_000
#: Bytes of decisions that wait while the disk is full; further ones are not stored, and are counted.
DECISION_BYTES_WAITING_MAX = 64 << 20
MISSING_INPUTS_MAX = 100_000


class Queue:
    """Thread-safe. Submitting never blocks but for a moment; one thread takes what waits, all of it at once."""

    def __init__(self, config: AggregatorConfig) -> None:
        self._config = config
        self._change = threading.Condition()
        self._pending = Pending()
        self._committing = Pending()
        self._work_items: deque[Callable[[], None]] = deque()
        #: Work that was queued before the pending commit was taken. Rows that came with later work are not in that commit.
        self._due_items: deque[Callable[[], None]] = deque()
        #: Of these nothing waits for the commit of what was received meanwhile.
        self._ahead_items: deque[Callable[[], None]] = deque()
        self._closing = self._commit_requested = False
        #: Judgements left out because too many waited.
        self.dropped_scores = 0
        #: Findings left out because too many waited.
        self.dropped_findings = 0
        #: Decisions not stored because too many waited, here or in the process that made them.
        self.dropped_decisions = 0
        self._decision_bytes = 0
        #: Digests of parts of decisions' inputs that the store lacks; anyone who has them may send them again.
        self.missing_inputs = deque[str](maxlen=MISSING_INPUTS_MAX)

    def submit_frame(
        self,
        host: str,
        frame: Received,
        time_offset_ns: int,
        on_durable: OnDurable,
        foreign: Mapping[int, ForeignSignal] = NO_FOREIGN_SIGNALS,
    ) -> bool:
        """Queue a frame. False: the queue is full, nothing was taken, try again later.

        Readings are stored as made at their boot time plus *time_offset_ns*. *foreign* names the
        signals that this version does not know. *on_durable* is called with the frame's sequence
        from the writer thread once its rows are on disk, also when they already were.
        """
        one = HostFrame(host, frame, time_offset_ns, foreign)
        size, rows = frame.size_bytes, frame.rows
        with self._change:
            pending, due = self._pending, self._config.commit_rows
            waiting = pending.size_bytes + self._committing.size_bytes
            if waiting and waiting + size > self._config.queue_bytes_max:
                return False
            # The writer waits for the first frame, then for a commit's worth: to wake it for each
            # in between costs more than to take the frame.
            after = pending.rows + rows
            first = False
            full = pending.rows < due <= after or pending.rows < FEW_ROWS <= after
            if not pending.frames:
                first = pending.empty
                pending.first_seconds = time.monotonic()
            pending.frames.append((one, on_durable))
            pending.size_bytes += size
            pending.rows += rows
            if first or full:
                self._change.notify_all()
        return True

    @property
    def room(self) -> float:
        """The free share of the queue, 0 to 1."""
        used = self._pending.size_bytes + self._committing.size_bytes
        return max(0.0, 1 - used / self._config.queue_bytes_max)

    @property
    def queue_bytes(self) -> int:
        """Readings that wait for a commit, those of the one that runs among them."""
        return self._pending.size_bytes + self._committing.size_bytes

    @property
    def lag_seconds(self) -> float:
        """How long the oldest frame without a receipt has waited; 0 when none does."""
        waiting = [one.first_seconds for one in (self._committing, self._pending) if one.frames]
        return max(0.0, time.monotonic() - min(waiting)) if waiting else 0.0

    @property
    def events_waiting(self) -> int:
        """Events in the journal that the store has not taken yet."""
        return len(self._pending.events) + len(self._committing.events)

    @property
    def events_full(self) -> bool:
        """Whether so many events wait that no more should be taken."""
        return len(self._pending.events) >= EVENTS_WAITING_MAX

    def submit_host(self, record: HostRecord, foreign: Mapping[int, ForeignSignal]) -> None:
        """Queue a host as it registered, and the signals that only it knows."""
        with self._change:
            self._pending.hosts[record.host] = record
            self._pending.foreign.update(foreign)
            self._change.notify_all()

    def submit_scores(
        self,
        snapshot: Snapshot,
        changed: Sequence[HostScore],
        memories: Iterable[HostMemory] = (),
    ) -> None:
        """Queue judgements with their evidence, for one commit with what judging remembers of these hosts."""
        snapshot_scores = records.snapshot_scores(snapshot, changed)
        with self._change:
            scores = self._pending.scores
            scores += snapshot_scores
            over = len(scores) - SCORES_WAITING_MAX
            if over > 0:
                del scores[:over]
                self.dropped_scores += over
            self._pending.memories.update((one.host, one) for one in memories)
            self._change.notify_all()

    def submit_findings(self, findings: Sequence[Finding]) -> None:
        """Queue findings, new or cleared."""
        with self._change:
            for one in findings:
                self._pending.findings[one.host, one.name, one.subject, one.since_ns] = one
            while len(self._pending.findings) > FINDINGS_WAITING_MAX:
                self._pending.findings.pop(next(iter(self._pending.findings)))
                self.dropped_findings += 1
            self._change.notify_all()

    def submit_own_health(self, readings: Sequence[OwnHealthReading]) -> None:
        """Queue the aggregator's readings of itself."""
        with self._change:
            own_health = self._pending.own_health
            own_health += readings
            del own_health[: max(0, len(own_health) - OWN_HEALTH_WAITING_MAX)]
            self._change.notify_all()

    def submit_decisions(self, one: DecisionCommit) -> bool:
        """Queue decisions, their inputs and choices. False: too many wait; its decisions are counted as dropped."""
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
        """Count decisions that were dropped before they came here."""
        with self._change:
            self.dropped_decisions += count

    def _submit_events(self, events: Sequence[StoredEvent], position: int) -> None:
        """Queue events that are on disk up to *position* of the journal."""
        with self._change:
            self._pending.events += events
            self._pending.journal_position = position
            self._change.notify_all()

    def _submit_work(self, work: Callable[[], None], *, ahead: bool = False) -> None:
        """Queue what is to run between two commits: *ahead* of the next, or behind it. Raises StoreError once the end was submitted."""
        with self._change:
            if self._closing:
                raise StoreError("the store is closing")
            (self._ahead_items if ahead else self._work_items).append(work)
            self._change.notify_all()

    def _submit_end(self) -> None:
        """Let nobody wait for more to come."""
        with self._change:
            self._closing = True
            self._change.notify_all()

    def request_commit(self) -> None:
        """Commit what waits now, not after `commit_seconds`."""
        with self._change:
            self._commit_requested = True
            self._change.notify_all()

    # -- for the thread that takes ---------------------------------------------------------------

    @property
    def _has_work(self) -> bool:
        return bool(self._work_items or self._ahead_items)

    def _take_pending(self) -> Pending | None:
        """Wait until a commit is due and take all that waits; None when closing and nothing does.

        Work for `in_transaction` ends the waiting too.
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
        """Wait until this many rows wait, or there is a reason to commit earlier."""
        self._change.wait_for(
            lambda: (
                self._closing
                or self._commit_requested
                or self._has_work
                or self._pending.rows >= rows
            ),
            timeout=seconds_max,
        )

    def _pause(self, seconds_max: float) -> None:
        """Wait, but not while there is other work, nor at the end."""
        with self._change:
            self._change.wait_for(lambda: self._closing or self._has_work, timeout=seconds_max)
