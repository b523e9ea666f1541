"""State that the store restores at start: read once, before its threads start."""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import datetime, timedelta
from math import nan
from typing import Any, NamedTuple

import duckdb

from ...contract.wire.telemetry_pb2 import HealthEvent
from .. import model
from ..hazard.features import inputs_of_row
from .journal import StoredEvent
from .retention_rules import OPEN_FINDING_EVENTS
from .table_copies import REPEATED_EVENTS

#: Text for findings that were cleared without an evaluation.
NOT_REEVALUATED = "the aggregator restarted; what still holds is found again"
#: At start the events of the last day are read, up to this many of each kind (`_RECENT_EVENTS`), so
#: that a restart forgets no fault.
EVENTS_SECONDS, EVENTS_MAX = 86_400, 100_000
#: At start the scores of hosts are read that were received within this time before the last score.
RECEIVED_SECONDS_MAX = 86_400

Connection = duckdb.DuckDBPyConnection

#: DuckDB's TIMESTAMP has no zone; stored times are UTC.
_EPOCH = datetime(1970, 1, 1)
_GPU_SETS = f"""
SELECT host, device, coalesce(attributes['pci_address'], attributes['last_pci_address'], '')
FROM devices JOIN hosts USING (host) WHERE NOT simulated AND starts_with(device, 'GPU-') AND (kind = '{model.EXPECTED_KIND}'
    OR kind = 'gpu' AND attributes['problem'] IS NULL AND attributes['hidden'] IS NULL)
"""
#: Last score of each host, with its GPUs, its evidence, strongest first, and the time of its last
#: reading (the score may be minutes older). Only the store's last hour and minutes are read, so
#: that a year of history does not slow a start. Parameters, microseconds since 1970: `readings`,
#: `scores`, `hosts` are lower limits of time; `last_seen` (readings) and `last` (scores) are upper
#: limits, as later times were stored before the clock was set back.
_LAST_SCORES = """
WITH last_seen AS (
    SELECT host, max(time) AS last_seen
    FROM (
        SELECT host, time FROM readings.host_1s UNION ALL SELECT host, time FROM readings.collector_10s
    )
    WHERE time > make_timestamp($readings) AND time <= make_timestamp($last_seen) GROUP BY host
),
last AS (
    FROM main.scores WHERE time > make_timestamp($scores) AND time <= make_timestamp($last)
    QUALIFY row_number() OVER (PARTITION BY host ORDER BY time DESC, version DESC) = 1
),
gpus AS (SELECT host, count(*) AS gpus FROM devices WHERE kind = 'gpu' GROUP BY host),
because AS (
    SELECT host, time, version, list(e ORDER BY e.score_delta, e.log_hazard_delta DESC) AS evidence
    FROM evidence AS e WHERE time > make_timestamp($scores) GROUP BY ALL
)
SELECT
    s.* EXCLUDE (last_seen, time), greatest(s.last_seen, h.last_seen) AS last_seen, coalesce(gpus, 0) AS gpus,
    coalesce(evidence, []) AS evidence, body AS memory, coalesce(m.time < s.time, false) AS is_outdated
FROM last AS s
LEFT JOIN last_seen AS h USING (host) LEFT JOIN gpus USING (host)
LEFT JOIN because AS b USING (host, time, version) LEFT JOIN judge_memory AS m ON m.host = s.host
WHERE greatest(s.last_seen, h.last_seen) > make_timestamp($hosts)
ORDER BY node_index, host
"""
#: Columns of `events` that are fields of a HealthEvent.
_EVENT_FIELDS = (
    "event_id", "device_kind", "device", "name", "code", "message", "boottime_ns", "revision",
    "count", "last_boottime_ns", "forms", "forms_count", "process_id", "process_name", "attributes",
)  # fmt: skip
#: Newest events of three groups: repeated reports, all others, and events of open findings. Each
#: has its own limit, so that none displaces another. Parameters: microseconds since 1970, and the
#: limit.
_RECENT_EVENTS = f"""
WITH chosen AS (
    (SELECT rowid FROM events WHERE received > make_timestamp($since) AND {REPEATED_EVENTS}
        ORDER BY received DESC LIMIT $most)
    UNION
    (SELECT rowid FROM events WHERE received > make_timestamp($since) AND NOT {REPEATED_EVENTS}
        ORDER BY received DESC LIMIT $most)
    UNION
    (SELECT rowid FROM events WHERE rowid IN ({OPEN_FINDING_EVENTS}) ORDER BY received DESC LIMIT $most)
)
SELECT host, epoch_us(received), epoch_us(time), {", ".join(_EVENT_FIELDS)}
FROM events SEMI JOIN chosen USING (rowid) ORDER BY received, rowid
"""


class LastScore(NamedTuple):
    """The last score of a host, its number of GPUs, and the state that scoring kept, as JSON."""

    score: model.HostScore
    gpus: int
    memory: str | None = None
    #: Whether *memory* is older than *score*.
    is_outdated: bool = False


class KnownHost(NamedTuple):
    """A host at its last registration."""

    host: str
    run_id: bytes
    boot_id: bytes
    address: str
    simulated: bool
    gpus: int
    registered_ns: int


def hosts(connection: Connection) -> list[KnownHost]:
    """Return every host that ever registered."""
    rows = connection.execute(
        "SELECT host, run_id, boot_id, address, simulated, "
        "(SELECT count(*) FROM devices AS d WHERE d.host = h.host AND kind = 'gpu'), registered "
        "FROM hosts AS h"
    ).fetchall()
    return [KnownHost._make((*known, time_ns(at))) for *known, at in rows]


def unscored_hosts(
    known: Iterable[KnownHost], events: Iterable[StoredEvent], scored: Container[str], now_ns: int
) -> list[KnownHost]:
    """Return the hosts without a score that registered within a day before the last registration,
    and those with events whose registration was not stored yet.

    Simulated hosts are left out if they cannot be running any more.
    """
    by_name = {host.host: host for host in known}
    newest_ns = max((host.registered_ns for host in by_name.values()), default=now_ns)
    since_ns = min(newest_ns, now_ns) - RECEIVED_SECONDS_MAX * 10**9
    simulated_since_ns = now_ns - int(model.SIMULATED_SILENT_SECONDS_MAX * 1e9)
    for name in dict.fromkeys(event.host for event in events):
        by_name.setdefault(name, KnownHost(name, b"", b"", "", False, 0, now_ns))
    return [
        host
        for host in by_name.values()
        if host.host not in scored
        and host.registered_ns >= (simulated_since_ns if host.simulated else since_ns)
    ]


def gpus(connection: Connection) -> list[tuple[str, str]]:
    """Return (GPU, host) of each GPU that `parts` records as present."""
    rows: list[tuple[str, str]] = connection.execute(
        "SELECT device, host FROM parts WHERE present AND kind = 'gpu' ORDER BY last_seen"
    ).fetchall()
    return rows


def gpu_sets(connection: Connection) -> dict[str, dict[str, str]]:
    """Return host -> GPU -> PCI address of the expected GPUs of existing hosts."""
    result: dict[str, dict[str, str]] = {}
    for host, gpu, address in connection.execute(_GPU_SETS).fetchall():
        result.setdefault(host, {})[gpu] = address
    return result


def recent_events(connection: Connection, now_ns: int) -> list[StoredEvent]:
    """Return events of the last EVENTS_SECONDS and of open findings, the oldest first."""
    since_us = now_ns // 1000 - EVENTS_SECONDS * 1_000_000
    rows = connection.execute(_RECENT_EVENTS, {"since": since_us, "most": EVENTS_MAX}).fetchall()
    return [_event(*row) for row in rows]


def last_scores(connection: Connection) -> list[LastScore]:
    """Return the last score of each host received within RECEIVED_SECONDS_MAX of the last score."""
    # By row, not by time: the clock may have been ahead, and been set back.
    newest = connection.execute(
        "SELECT epoch_us(time) FROM scores WHERE rowid = (SELECT max(rowid) FROM scores)"
    ).fetchone()
    if newest is None:
        return []
    lookback_seconds = {
        "readings": 600,
        "scores": 3600,
        "hosts": RECEIVED_SECONDS_MAX,
        "last_seen": -model.UNCHANGED_SCORE_SECONDS,
    }
    since = {name: newest[0] - seconds * 1_000_000 for name, seconds in lookback_seconds.items()}
    scores = connection.execute(_LAST_SCORES, {**since, "last": newest[0]})
    names = [column[0] for column in scores.description or ()]
    return [_last_score(dict(zip(names, row, strict=True))) for row in scores.fetchall()]


def open_findings(connection: Connection) -> list[model.Finding]:
    """Return the findings that an earlier process did not clear."""
    rows = connection.execute(
        "SELECT host, name, subject, message, epoch_us(since), clears_when FROM findings "
        "WHERE cleared IS NULL ORDER BY since"
    ).fetchall()
    return [
        model.Finding(host, name, subject, message, since_us * 1000, 0, clears or "")
        for host, name, subject, message, since_us, clears in rows
    ]


def cleared_findings(connection: Connection) -> dict[str, list[tuple[str, int]]]:
    """Return host -> (subject, time cleared) of findings that an evaluation cleared."""
    rows = connection.execute(
        "SELECT host, subject, epoch_us(cleared), clears_when FROM findings QUALIFY row_number() "
        "OVER (PARTITION BY host, name, subject ORDER BY since DESC) = 1"
    ).fetchall()
    result: dict[str, list[tuple[str, int]]] = {}
    for host, subject, cleared_us, clears_when in rows:
        if cleared_us is not None and clears_when != NOT_REEVALUATED:
            result.setdefault(host, []).append((subject, cleared_us * 1000))
    return result


def _last_score(row: dict[str, Any]) -> LastScore:
    """Return the score of a row of _LAST_SCORES."""
    score = model.HostScore(
        host=row["host"],
        node_index=row["node_index"],
        simulated=row["simulated"],
        score=row["score"],
        score_lower=row["score_lower"],
        score_upper=row["score_upper"],
        state=_state(row["state"]),
        hazard_per_hour=row["hazard_per_hour"],
        relative_speed=_number(row["relative_speed"]),
        reason=_reason(row["reason"]),
        reason_message=row["reason_message"],
        clears_when=row["clears_when"],
        last_received_ns=time_ns(row["last_seen"]),
        evidence=_in_order(row),
        speed_lower=_number(row["relative_speed_lower"]),
        speed_upper=_number(row["relative_speed_upper"]),
        inputs=inputs_of_row(row),
    )
    return LastScore(score, row["gpus"], row["memory"], row["is_outdated"])


def _in_order(row: dict[str, Any]) -> tuple[model.Evidence, ...]:
    """Return the evidence in its original order if stored: then scores recompute exactly."""
    evidence = [evidence_of(evidence_row) for evidence_row in row["evidence"]]
    order = row["log_hazard_deltas"] or []
    positions_by_delta: dict[float, list[int]] = {}
    for position, delta in enumerate(order):
        positions_by_delta.setdefault(delta, []).append(position)
    positions = [
        (positions_by_delta.get(e.log_hazard_delta) or [len(order)]).pop(0) for e in evidence
    ]
    return tuple(
        e for _, e in sorted(zip(positions, evidence, strict=True), key=lambda pair: pair[0])
    )


def evidence_of(row: dict[str, Any]) -> model.Evidence:
    """Return the evidence of a row of `evidence`."""
    fields = {key: row[key] for key in model.Evidence.__slots__ if key in row}
    fields |= {"value": _number(row["value"]), "reason": _reason(row["reason"])}
    fields["gpu_state"] = _state(row["gpu_state"]) if row["gpu_state"] else None
    fields["hazard_delta"] = _number(row.get("hazard_delta"))
    fields["shared_count"] = row.get("shared_count") or 1
    return model.Evidence(**fields, observed_ns=time_ns(row["observed"]))


def _number(value: float | None) -> float:
    return nan if value is None else value


def _state(name: str) -> model.HealthState:
    """Return the state of that name; UNKNOWN if only a newer version has it."""
    return model.HealthState.__members__.get(name, model.HealthState.UNKNOWN)


def _reason(name: str) -> model.Reason:
    """Return the reason of that name; NONE if only a newer version has it."""
    return model.Reason.__members__.get(name, model.Reason.NONE)


def time_ns(time: datetime | None) -> int:
    """Return a TIMESTAMP in ns since 1970; 0 for NULL."""
    return 0 if time is None else (time - _EPOCH) // timedelta(microseconds=1) * 1000


def _event(host: str, received_us: int, time_us: int | None, *columns: Any) -> StoredEvent:
    known = {n: v for n, v in zip(_EVENT_FIELDS, columns, strict=True) if v is not None}
    time_ns = (time_us or 0) * 1000
    event = HealthEvent(**known, wall_time_ns=time_ns)
    return StoredEvent(host, received_us * 1000, time_ns, event)
