"""The aggregator's metrics: one row each with name, type, help text and source. To add one, add a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from prometheus_client.core import Metric

from ...contract.server.metric_families import counter, gauge, histogram
from ..auth.access import AccessControl
from ..config import AggregatorConfig
from ..fleet.fleet import Fleet
from ..ingest.ingest import Ingest
from ..ingest.sessions import SILENT_SECONDS
from ..metrics import CallCounters
from ..query.pool import QueryPool
from ..service.score_process import ScoreProcess
from ..service.telemetry import AdmissionControl
from ..store.store import Store
from .probes import LoopLag, ResourceUsage

PREFIX = "gangline_aggregator_"
#: Finding for a host whose agent lost readings before they were received, and its subject.
DATA_LOST, SPOOL = "data.lost", "agent.spool_dropped_frames"

#: Known figures of one moment by name.
Values = dict[str, float]


@dataclass(slots=True)
class MetricSources:
    """The sources of the figures: attributes that may be read in any thread."""

    config: AggregatorConfig
    fleet: Fleet
    store: Store
    ingest: Ingest
    calls: CallCounters
    lag: LoopLag
    access_control: AccessControl
    admission_control: AdmissionControl
    query_pool: QueryPool
    streams: Callable[[], int]
    judge_seconds: Callable[[], float]
    scores: ScoreProcess | None  # None: nothing listens on `listen_scores`
    breaker_open: Callable[[], bool] = lambda: False
    dropped_log_records: Callable[[], int] = lambda: 0


@dataclass(frozen=True, slots=True)
class MetricsContext:
    """The inputs of one collection of figures."""

    sources: MetricSources
    usage: ResourceUsage
    now_ns: int


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric. *name* ends in its unit; a counter never decreases while the process runs."""

    name: str
    is_counter: bool
    description: str
    read: Callable[[MetricsContext], float | None]


def _count(name: str, description: str, read: Callable[[MetricsContext], float | None]) -> Figure:
    return Figure(name, True, description, read)


def _gauge(name: str, description: str, read: Callable[[MetricsContext], float | None]) -> Figure:
    return Figure(name, False, description, read)


FIGURES: tuple[Figure, ...] = (
    _count("frames", "frames received from agents", lambda m: m.sources.ingest.frames),
    _count("late_frames", "frames received that had waited in a spool", lambda m: m.sources.ingest.backlog_frames),
    _count("rows", "rows of all tables in them", lambda m: m.sources.ingest.rows),
    _count("refused_frames", "frames rejected with an error", lambda m: m.sources.ingest.refused_frames),
    _count("stored_frames", "frames on disk, those sent twice among them", lambda m: m.sources.store.stored_frames),
    _count("stored_rows", "rows on disk", lambda m: m.sources.store.stored_rows),
    _count("receipts", "frames receipted", lambda m: m.sources.ingest.receipts),
    _count("set_aside_frames", "frames that could not be stored because of their content", lambda m: m.sources.store.set_aside_frames),
    _count("set_aside_events", "acknowledged events that could not be stored because of their content", lambda m: m.sources.store.set_aside_events),
    _count("events", "events repeated by agents", lambda m: m.sources.ingest.new_events),
    _count("commits", "commits that succeeded", lambda m: m.sources.store.commit_seconds.count),
    _count("commit_duration_seconds", "time spent in them", lambda m: m.sources.store.commit_seconds.sum),
    _count("failed_commits", "commits that failed; each is retried", lambda m: m.sources.store.failed_commits),
    _count("dropped_scores", "judgements not stored, because too many waited", lambda m: m.sources.store.dropped_scores),
    _count("dropped_findings", "findings not stored, because too many waited", lambda m: m.sources.store.dropped_findings),
    _count("dropped_decisions", "decisions not stored, because too many waited", lambda m: m.sources.store.dropped_decisions),
    _count("passed_over_frames", "late frames rejected because the queue was full; their agents resend them", lambda m: m.sources.admission_control.backlog.passed_over_frames),
    _count("deferred_registrations", "registrations rejected with a retry time, because many came at once", lambda m: m.sources.admission_control.registrations.deferred),
    _count("exported_rows", "readings that left the live file for Parquet", lambda m: m.sources.store.history.exported_rows),
    _count("history_busy_seconds", "time spent on the history", lambda m: m.sources.store.history.busy_seconds),
    _count("removed_for_room_files", "files of history removed because the disk was almost full", lambda m: m.sources.store.history.removed_for_room_count),
    _count("dropped_log_records", "log records for otlp_logs dropped, because too many waited or the collector refused them", lambda m: m.sources.dropped_log_records()),
    _count("queries", "operators' queries that ran in a process", lambda m: m.sources.query_pool.requested_count),
    _count("died_queries", "those whose process died or was killed, because of time or memory", lambda m: m.sources.query_pool.died_count),
    _count("score_processes", "processes started to answer listen_scores", lambda m: m.sources.scores.started_count if m.sources.scores else 0),
    _count("refused_calls", "calls rejected because of a missing login, a wrong role, or a limit", lambda m: m.sources.access_control.refused_count),
    _gauge("refused_agents", "agents with a refused call within 5 minutes: the findings agent.refused name up to a hundred and the reasons", lambda m: m.sources.ingest.refusals.count(m.now_ns)),
    _count("ended_connections", "connections closed by the aggregator: no login in time, or too many", lambda m: m.sources.access_control.ended_connections),
    _count("calls", "gRPC calls started", lambda m: m.sources.calls.started.total()),
    _count("failed_calls", "gRPC calls that ended with an error", lambda m: m.sources.calls.failed.total()),
    _count("cpu_seconds", "user and system time of the process", lambda m: m.usage.cpu_seconds),
    _gauge("lag_seconds", "how long the oldest frame without a receipt has waited", lambda m: m.sources.store.lag_seconds),
    _gauge("queue_bytes", "readings in memory that wait for a commit", lambda m: m.sources.store.queue_bytes),
    _gauge("queue_ratio", "how full the queue is; at 1 streams are not read further", lambda m: 1.0 - m.sources.store.room),
    _gauge("not_storing_seconds", "for how long commits have failed; 0 while they succeed", lambda m: m.sources.store.failing_seconds),
    _gauge("events_waiting", "events in the journal that are not in the store yet", lambda m: m.sources.store.events_waiting),
    _gauge("journal_bytes", "length of the event journal", lambda m: m.sources.store.journal_bytes),
    _gauge("late_frames_waiting", "late frames that wait for their turn", lambda m: m.sources.admission_control.backlog.waiting_frames),
    _gauge("late_bytes", "memory of these", lambda m: m.sources.admission_control.backlog.waiting_bytes),
    _gauge("running_calls", "gRPC calls of known callers being answered, streams among them", lambda m: len(m.sources.access_control.running_calls)),
    _gauge("running_queries", "operators' queries running now", lambda m: m.sources.query_pool.running_count),
    _gauge("connections", "established TCP connections to the gRPC ports", lambda m: m.usage.connections),
    _gauge("streams", "open telemetry streams", lambda m: m.sources.streams()),
    _gauge("breaker_open", "1 while the circuit breaker is open: no host is taken out", lambda m: m.sources.breaker_open()),
    _gauge("hosts", "hosts registered, or remembered from before a restart", lambda m: len(m.sources.ingest.sessions)),
    _gauge("hosts_ratio", "of hosts_max", lambda m: len(m.sources.ingest.sessions) / m.sources.config.hosts_max),
    _gauge("silent_hosts", "real hosts that have been silent for 60 s", lambda m: silent_hosts(m.sources.fleet, m.now_ns)),
    _gauge("losing_hosts", "hosts whose agents recently lost frames before they reached the aggregator", lambda m: losing_hosts(m.sources.fleet)),
    _gauge("unjudged_devices", "devices that are reported but not judged: more of a kind than memory keeps", lambda m: unjudged_devices(m.sources.fleet)),
    _gauge("findings", "active findings", lambda m: len(m.sources.fleet.findings)),
    _gauge("judge_seconds", "duration of the last judging of all hosts", lambda m: m.sources.judge_seconds()),
    _gauge("loop_lag_seconds", "worst lateness of the loop in the last 15 to 30 s", lambda m: m.sources.lag.seconds),
    _gauge("snapshot_age_seconds", "age of the operators' file", lambda m: m.usage.snapshot_age_seconds),
    _gauge("snapshot_write_seconds", "duration of its last write", lambda m: m.sources.store.ops_write_seconds),
    _gauge("database_bytes", "live file and WAL", lambda m: m.usage.database_bytes),
    _gauge("history_bytes", "closed segments and rollups", lambda m: sum(m.sources.store.history.files_bytes.values())),
    _gauge("history_files", "number of these files", lambda m: sum(m.sources.store.history.files_count.values())),
    _gauge("history_waiting", "closed five minutes, of a table each, that are still in the live file", lambda m: m.sources.store.history.waiting_parts),
    _gauge("history_lag_seconds", "how long ago the oldest of them was closed", lambda m: m.sources.store.history.lag_seconds),
    _gauge("history_turn_age_seconds", "time since the history last checked what is due", lambda m: _since(m.sources.store.history.last_turn_ns, m.now_ns)),
    _gauge("history_failing", "1 while a job of the history fails; the alarm says which and why", lambda m: bool(m.sources.store.history.failing)),
    _gauge("store_lost", "1 when the store lacked acknowledged data when it was opened", lambda m: bool(m.sources.store.loss_message)),
    _gauge("disk_bytes", "size of the file system that holds the data", lambda m: m.usage.disk_bytes),
    _gauge("disk_free_bytes", "free there", lambda m: m.usage.disk_free_bytes),
    _gauge("memory_bytes", "resident set of the process", lambda m: m.usage.memory_bytes),
    _gauge("open_descriptors", "open files and sockets", lambda m: m.usage.descriptors),
    _gauge("descriptors_max", "maximum number of open files and sockets", lambda m: m.usage.descriptors_max),
)  # fmt: skip
FIGURE_DESCRIPTIONS = {figure.name: figure.description for figure in FIGURES}


def _since(then_ns: int, now_ns: int) -> float | None:
    """Return the seconds since *then_ns*; None if that is 0."""
    return max(0.0, (now_ns - then_ns) / 1e9) if then_ns else None


def pull(moment: MetricsContext) -> Values:
    """Return all known figures."""
    read = ((figure.name, figure.read(moment)) for figure in FIGURES)
    return {name: float(value) for name, value in read if value is not None}


def unjudged_devices(fleet: Fleet) -> int:
    """Return the number of devices of all hosts without a row."""
    return sum(max(counts.values(), default=0) for counts in [*fleet.evictions.untracked.values()])


def silent_hosts(fleet: Fleet, now_ns: int) -> int:
    """Return the number of real hosts that sent messages before and are silent."""
    last_received_ns = fleet.last_received_ns
    count = min(len(last_received_ns), len(fleet.simulated))
    silent: Any = (last_received_ns[:count] > 0) & (
        last_received_ns[:count] < now_ns - SILENT_SECONDS * 1_000_000_000
    )
    return int(np.count_nonzero(silent & ~fleet.simulated[:count]))


def losing_hosts(fleet: Fleet) -> int:
    """Return the number of hosts with a finding of lost frames in the spool."""
    keys = list(fleet.findings)  # the event loop may add one meanwhile
    return len({host for host, name, subject in keys if name == DATA_LOST and SPOOL in subject})


def families(values: Values, sources: MetricSources, alarms: dict[str, bool]) -> list[Metric]:
    """Return *values* as metric families; *alarms*: name -> whether it is active."""
    kinds = [(counter if f.is_counter else gauge, f.name) for f in FIGURES if f.name in values]
    calls, failed = sorted(sources.calls.started.items()), sorted(sources.calls.failed.items())
    return [
        *(kind(PREFIX + name, FIGURE_DESCRIPTIONS[name], values[name]) for kind, name in kinds),
        histogram(PREFIX + "commit_seconds", "latency of commits that succeeded", sources.store.commit_seconds),
        counter(PREFIX + "method_calls", "gRPC calls started, by method", [([name], n) for name, n in calls], ["method"]),
        counter(PREFIX + "method_failures", "gRPC calls that failed, by method and code", failed, ["method", "code"]),
        gauge(PREFIX + "alarm", "1 while an alarm of the aggregator about itself is active",
              [([name], is_on) for name, is_on in alarms.items()], ["alarm"]),
    ]  # fmt: skip
