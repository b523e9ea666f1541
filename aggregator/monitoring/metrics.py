"""The figures, each with its name, kind, words, and where it is pulled from. To add one: a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...contract.metrics_http import Family, labels_of, number
from ..auth.access import Door
from ..config import AggregatorConfig
from ..fleet.fleet import Fleet
from ..ingest.ingest import Ingest
from ..ingest.sessions import SILENT_SECONDS
from ..metrics import Calls, Histogram
from ..query.pool import QueryProcesses
from ..service.score_process import ScoreProcess
from ..service.telemetry import Turns
from ..store.store import Store
from .probes import LoopLag, Machine

PREFIX = "gangline_aggregator_"
#: A finding of this name is a host whose agent lost readings before they reached us.
DATA_LOST, SPOOL = "data.lost", "agent.spool_dropped_frames"

#: What is known at one moment, by figure; what is not known is not in it.
Values = dict[str, float]


@dataclass(slots=True)
class Parts:
    """Whom figures are pulled from: plain attributes that their owners keep, read from any thread."""

    config: AggregatorConfig
    fleet: Fleet
    store: Store
    ingest: Ingest
    calls: Calls
    lag: LoopLag
    door: Door
    turns: Turns
    queries: QueryProcesses
    streams: Callable[[], int]
    judge_seconds: Callable[[], float]
    scores: ScoreProcess | None  # None: nothing listens on `listen_scores`


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at everything."""

    parts: Parts
    machine: Machine
    now_ns: int


@dataclass(frozen=True, slots=True)
class Figure:
    """*name* ends in its unit; a counter never falls while the process lives."""

    name: str
    counts: bool
    tells: str
    read: Callable[[Moment], float | None]


def _count(name: str, tells: str, read: Callable[[Moment], float | None]) -> Figure:
    return Figure(name, True, tells, read)


def _gauge(name: str, tells: str, read: Callable[[Moment], float | None]) -> Figure:
    return Figure(name, False, tells, read)


FIGURES: tuple[Figure, ...] = (
    _count("frames", "frames taken from agents", lambda m: m.parts.ingest.frames),
    _count("late_frames", "frames taken that had waited in a spool", lambda m: m.parts.ingest.late_frames),
    _count("rows", "rows of all tables in them", lambda m: m.parts.ingest.rows),
    _count("refused_frames", "frames refused with words", lambda m: m.parts.ingest.refused_frames),
    _count("stored_frames", "frames on disk, those sent twice among them", lambda m: m.parts.store.stored_frames),
    _count("stored_rows", "rows on disk", lambda m: m.parts.store.stored_rows),
    _count("receipts", "frames receipted", lambda m: m.parts.ingest.receipts),
    _count("set_aside_frames", "frames that could not be stored for what is in them", lambda m: m.parts.store.set_aside_frames),
    _count("set_aside_events", "receipted events that could not be stored for what is in them", lambda m: m.parts.store.set_aside_events),
    _count("events", "events told anew by agents", lambda m: m.parts.ingest.new_events),
    _count("commits", "commits that succeeded", lambda m: m.parts.store.commit_seconds.count),
    _count("commit_duration_seconds", "time spent in them", lambda m: m.parts.store.commit_seconds.sum),
    _count("failed_commits", "commits that failed; each is tried again", lambda m: m.parts.store.failed_commits),
    _count("dropped_scores", "judgements not stored, because too many waited", lambda m: m.parts.store.dropped_scores),
    _count("dropped_findings", "findings not stored, because too many waited", lambda m: m.parts.store.dropped_findings),
    _count("passed_over_frames", "late frames not taken for want of room; their agents send them again", lambda m: m.parts.turns.late.passed_over_frames),
    _count("deferred_registrations", "registrations that were told to come later, because many came at once", lambda m: m.parts.turns.admission.deferred),
    _count("exported_rows", "readings that left the live file for Parquet", lambda m: m.parts.store.history.exported_rows),
    _count("history_busy_seconds", "time that history worked", lambda m: m.parts.store.history.busy_seconds),
    _count("removed_for_room_files", "files of history removed because the disk was almost full", lambda m: m.parts.store.history.removed_for_room_count),
    _count("queries", "questions of operators that were given a process", lambda m: m.parts.queries.asked_count),
    _count("died_queries", "of them those whose process died or was killed: for time, for memory", lambda m: m.parts.queries.died_count),
    _count("score_processes", "processes started to answer listen_scores", lambda m: m.parts.scores.started_count if m.parts.scores else 0),
    _count("refused_calls", "calls refused for want of a login, of the right role, or of room", lambda m: m.parts.door.refused_count),
    _count("ended_connections", "connections ended by us: no login in time, or too many", lambda m: m.parts.door.ended_connections),
    _count("calls", "gRPC calls begun", lambda m: m.parts.calls.begun.total()),
    _count("failed_calls", "gRPC calls that ended with an error", lambda m: m.parts.calls.failed.total()),
    _count("cpu_seconds", "user and system time of the process", lambda m: m.machine.cpu_seconds),
    _gauge("lag_seconds", "how long the oldest frame without a receipt has waited", lambda m: m.parts.store.lag_seconds),
    _gauge("queue_bytes", "readings in memory that wait for a commit", lambda m: m.parts.store.queue_bytes),
    _gauge("queue_ratio", "how full the queue is; at 1 streams are not read further", lambda m: 1.0 - m.parts.store.room),
    _gauge("not_storing_seconds", "for how long commits have failed; 0 while they succeed", lambda m: m.parts.store.failing_seconds),
    _gauge("events_waiting", "events in the journal that are not in the store yet", lambda m: m.parts.store.events_waiting),
    _gauge("journal_bytes", "length of the event journal", lambda m: m.parts.store.journal_bytes),
    _gauge("late_frames_waiting", "late frames that wait for their turn", lambda m: m.parts.turns.late.waiting_frames),
    _gauge("late_bytes", "what they take of memory", lambda m: m.parts.turns.late.waiting_bytes),
    _gauge("running_calls", "gRPC calls of known callers being answered, streams among them", lambda m: len(m.parts.door.calls)),
    _gauge("running_queries", "operators' questions that have a process now", lambda m: m.parts.queries.running_count),
    _gauge("connections", "established TCP connections to the gRPC ports", lambda m: m.machine.connections),
    _gauge("streams", "open telemetry streams", lambda m: m.parts.streams()),
    _gauge("hosts", "hosts registered, or remembered from before a restart", lambda m: len(m.parts.ingest.sessions)),
    _gauge("hosts_ratio", "of hosts_max", lambda m: len(m.parts.ingest.sessions) / m.parts.config.hosts_max),
    _gauge("silent_hosts", "real hosts not heard for 60 s", lambda m: silent_hosts(m.parts.fleet, m.now_ns)),
    _gauge("losing_hosts", "hosts whose agents lately lost frames before they reached us", lambda m: losing_hosts(m.parts.fleet)),
    _gauge("unjudged_devices", "devices that hosts report and nothing judges: more of a kind than are kept in memory", lambda m: unjudged_devices(m.parts.fleet)),
    _gauge("findings", "findings that stand", lambda m: len(m.parts.fleet.findings)),
    _gauge("judge_seconds", "what the last judging of all hosts took", lambda m: m.parts.judge_seconds()),
    _gauge("loop_lag_seconds", "worst lateness of the loop in the last 15 to 30 s", lambda m: m.parts.lag.seconds),
    _gauge("snapshot_age_seconds", "age of the operators' file", lambda m: m.machine.snapshot_age_seconds),
    _gauge("snapshot_write_seconds", "what its last writing took", lambda m: m.parts.store.ops_write_seconds),
    _gauge("database_bytes", "live file and WAL", lambda m: m.machine.database_bytes),
    _gauge("history_bytes", "closed segments and rollups", lambda m: sum(m.parts.store.history.files_bytes.values())),
    _gauge("history_files", "how many files they are", lambda m: sum(m.parts.store.history.files_count.values())),
    _gauge("history_waiting", "closed five minutes, of a table each, that are still in the live file", lambda m: m.parts.store.history.waiting_parts),
    _gauge("history_lag_seconds", "how long ago the oldest of them was closed", lambda m: m.parts.store.history.lag_seconds),
    _gauge("history_turn_age_seconds", "how long ago history last looked what is due", lambda m: _since(m.parts.store.history.last_turn_ns, m.now_ns)),
    _gauge("history_failing", "1 while anything of history fails; the alarm says what and why", lambda m: bool(m.parts.store.history.failing)),
    _gauge("store_lost", "1 when the store, as it was opened, lacked what had been receipted", lambda m: bool(m.parts.store.lost_words)),
    _gauge("disk_bytes", "size of the file system that holds the data", lambda m: m.machine.disk_bytes),
    _gauge("disk_free_bytes", "free there", lambda m: m.machine.disk_free_bytes),
    _gauge("memory_bytes", "resident set of the process", lambda m: m.machine.memory_bytes),
    _gauge("open_descriptors", "open files and sockets", lambda m: m.machine.descriptors),
    _gauge("descriptors_max", "how many may be open", lambda m: m.machine.descriptors_max),
)  # fmt: skip
TELLS = {figure.name: figure.tells for figure in FIGURES}


def _since(then_ns: int, now_ns: int) -> float | None:
    """Return how long ago that was; None when it never was."""
    return max(0.0, (now_ns - then_ns) / 1e9) if then_ns else None


def pull(moment: Moment) -> Values:
    """Return every figure that is known."""
    read = ((figure.name, figure.read(moment)) for figure in FIGURES)
    return {name: float(value) for name, value in read if value is not None}


def unjudged_devices(fleet: Fleet) -> int:
    """Return how many devices of all hosts have no place in memory."""
    return sum(max(counts.values(), default=0) for counts in [*fleet.evictions.left_out.values()])


def silent_hosts(fleet: Fleet, now_ns: int) -> int:
    """Count the real hosts that were heard once and are silent."""
    heard = fleet.heard_ns
    count = min(len(heard), len(fleet.simulated))
    silent: Any = (heard[:count] > 0) & (heard[:count] < now_ns - SILENT_SECONDS * 1_000_000_000)
    return int(np.count_nonzero(silent & ~fleet.simulated[:count]))


def losing_hosts(fleet: Fleet) -> int:
    """Count the hosts with a finding that their spool lost frames."""
    keys = list(fleet.findings)  # the loop may add one meanwhile
    return len({host for host, name, subject in keys if name == DATA_LOST and SPOOL in subject})


def families(values: Values, parts: Parts, alarms: dict[str, bool]) -> list[Family]:
    """Return *values* as families of samples; *alarms*: each by name, whether it stands."""
    plain = [_family(figure, values) for figure in FIGURES if figure.name in values]
    calls = sorted(parts.calls.begun.items())
    failed = sorted(parts.calls.failed.items())
    return [
        *plain,
        _histogram("commit_seconds", "latency of commits that succeeded", parts.store.commit_seconds),
        Family(PREFIX + "method_calls", "counter", "", "gRPC calls begun, by method",
               [(labels_of({"method": name}), str(count)) for name, count in calls]),
        Family(PREFIX + "method_failures", "counter", "", "gRPC calls that failed, by method and code",
               [(labels_of({"method": name, "code": code}), str(n)) for (name, code), n in failed]),
        Family(PREFIX + "alarm", "gauge", "", "1 while an alarm of the aggregator about itself stands",
               [(labels_of({"alarm": name}), str(int(on))) for name, on in alarms.items()]),
    ]  # fmt: skip


def _family(figure: Figure, values: Values) -> Family:
    unit = figure.name.rpartition("_")[2]
    known = unit if unit in ("seconds", "bytes", "ratio") else ""
    value = values[figure.name]
    text = str(int(value)) if value.is_integer() else number(value)
    kind = "counter" if figure.counts else "gauge"
    return Family(PREFIX + figure.name, kind, known, figure.tells, [("", text)])


def _histogram(name: str, tells: str, histogram: Histogram) -> Family:
    counts, total, samples = list(histogram.counts), 0, list[tuple[str, str]]()
    for bound, count in zip([*histogram.bounds, float("inf")], counts, strict=True):
        total += count
        samples.append((f'_bucket{{le="{number(bound)}"}}', str(total)))
    samples += [("_count", str(total)), ("_sum", number(histogram.sum))]
    return Family(PREFIX + name, "histogram", "seconds", tells, samples)
