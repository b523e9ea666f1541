"""`/metrics` of an executor: actions taken, holds in place, remaining limits, and whether it is active."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from ..contract.server.metric_families import Histogram, counter, exposition, gauge, histogram
from .ledger import ExecutorLedger
from .model import DONE, Advice, SchedulerState

PREFIX = "gangline_executor_"
#: Buckets of the time from the first sight of an advisory to the answer DONE: under 1 s for an eviction, and as long as
#: the node's jobs run for a drain.
DONE_BOUNDS_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 600.0, 3600.0, 86_400.0)
#: Further open advisories are missing in `done_seconds`.
SEEN_MAX = 20_000
OK, FAILED = "ok", "failed"
#: Routine steps; they do not update `last_action`.
UPKEEP = ("RenewLease", "Forget")


@dataclass(frozen=True, slots=True)
class MarkFigures:
    """The marks in force at some moment. Times are seconds since the epoch; 0: no mark."""

    count: int = 0
    oldest_set: float = 0.0
    #: The earliest end of a mark in force.
    first_end: float = 0.0


@dataclass(slots=True)
class ExecutorFigures:
    """Figures of the executor, written by its loop and read by any thread."""

    marks_max: int = 0
    wall: Callable[[], float] = time.time
    #: (kind of step, outcome) -> number of steps.
    actions: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Answers to the aggregator, by state.
    answers: dict[str, int] = field(default_factory=dict)
    turns: int = 0
    dropped_log_records: int = 0
    has_lease: bool = False
    is_shadow: bool = False
    is_connected: bool = False
    open_advice: int = 0
    #: Number of nodes that a person or another program took out.
    foreign_nodes: int = 0
    marks: MarkFigures = field(default_factory=MarkFigures)
    last_action: float = 0.0
    last_turn: float = 0.0
    started: float = field(default_factory=time.time)
    done_seconds: Histogram = field(default_factory=lambda: Histogram(DONE_BOUNDS_SECONDS))
    _seen: dict[str, float] = field(default_factory=dict)

    def count_action(self, kind: str, error: str) -> None:
        """Count a step, and record its time unless its kind is in UPKEEP."""
        key = kind, FAILED if error else OK
        self.actions[key] = self.actions.get(key, 0) + 1
        if kind not in UPKEEP:
            self.last_action = self.wall()

    def steps_of(self, kind: str) -> int:
        """Return the number of steps of *kind*, failed ones too."""
        return self.actions.get((kind, OK), 0) + self.actions.get((kind, FAILED), 0)

    def count_answer(self, advisory: str, state: str) -> None:
        """Count an answer; for DONE also observe the time since the first sight of the advisory."""
        self.answers[state] = self.answers.get(state, 0) + 1
        seen = self._seen.pop(advisory, None)
        if state == DONE and seen is not None:
            self.done_seconds.observe(max(0.0, self.wall() - seen))

    def note_advice(
        self, advice: Mapping[str, Advice], ledger: ExecutorLedger, actions: frozenset[str]
    ) -> list[Advice]:
        """Return the unanswered open advisories of *actions*; record the first sight of each."""
        now = self.wall()
        is_open = [
            one
            for one in advice.values()
            if one.state in ("PROPOSED", "ACCEPTED")
            and one.action in actions
            and not _is_answered(one, ledger)
        ]
        for one in is_open:
            if len(self._seen) < SEEN_MAX:
                self._seen.setdefault(one.name, now)
        self._seen = {name: seen for name, seen in self._seen.items() if name in advice}
        return is_open

    def observe(
        self,
        advice: Mapping[str, Advice],
        state: SchedulerState,
        ledger: ExecutorLedger,
        actions: frozenset[str],
    ) -> None:
        """Update the figures after a turn."""
        self.open_advice = len(self.note_advice(advice, ledger, actions))
        self.foreign_nodes = sum(
            bool(node.out) and not node.is_managed for node in state.nodes.values()
        )
        set_marks = [entry for entry in ledger if entry.is_marked]
        self.marks = MarkFigures(
            len(set_marks),
            min((entry.set_at or entry.accepted for entry in set_marks), default=0.0),
            min((entry.expires for entry in set_marks), default=0.0),
        )
        self.turns += 1
        self.last_turn = self.wall()

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition, and its media type."""
        return exposition(self.families(), accept)

    def families(self) -> list[Metric]:
        """Return all current figures as metric families."""
        now, marks = self.wall(), self.marks
        answers = [([state], count) for state, count in sorted(self.answers.items())]
        overdue = max(0.0, now - marks.first_end) if marks.count else 0.0
        age = max(0.0, now - marks.oldest_set) if marks.count else 0.0
        return [
            counter(PREFIX + "actions", "steps carried out in the scheduler and at the aggregator, by kind and outcome", sorted(self.actions.items()), ["kind", "outcome"]),
            counter(PREFIX + "answers", "answers to advisories, by state", answers, ["state"]),
            counter(PREFIX + "turns", "turns of the executor", self.turns),
            counter(PREFIX + "dropped_log_records", "log records for otlp_logs dropped, because too many waited or the collector refused them", self.dropped_log_records),
            gauge(PREFIX + "lease", "1 while this executor acts: it holds the lease, or the lock of its ledger", self.has_lease),
            gauge(PREFIX + "shadow", "1 in shadow mode, which only prints what it would do", self.is_shadow),
            gauge(PREFIX + "connected", "1 while advice of the aggregator is complete and current", self.is_connected),
            gauge(PREFIX + "open_advice", "advisories that this executor may carry out and has not answered", self.open_advice),
            gauge(PREFIX + "foreign_nodes", "nodes that others took out of service", self.foreign_nodes),
            gauge(PREFIX + "marks", "nodes with a mark of this executor", marks.count),
            gauge(PREFIX + "marks_max", "maximum number of marks, from the settings", self.marks_max),
            gauge(PREFIX + "marks_left", "number of marks that may still be set", max(0, self.marks_max - marks.count)),
            gauge(PREFIX + "oldest_mark_seconds", "age of the oldest mark", age),
            gauge(PREFIX + "overdue_seconds", "for how long a mark has been past its expiry; 0 for none", overdue),
            gauge(PREFIX + "action_age_seconds", "how long ago the last step was, or the start", now - (self.last_action or self.started)),
            gauge(PREFIX + "turn_age_seconds", "how long ago the last turn was, or the start", now - (self.last_turn or self.started)),
            histogram(PREFIX + "done_seconds", "from the first sight of an advisory to the answer DONE", self.done_seconds),
        ]  # fmt: skip


def _is_answered(advice: Advice, ledger: ExecutorLedger) -> bool:
    entry = ledger.get(advice.name)
    return entry is not None and bool(entry.answered)
