"""Retention of the tables in the live file: deletes expired rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from .host_days import DAY_US, HOST_DAYS_RETAINED, fill_host_days
from .retention_clock import RetentionClock
from .table_copies import ADVICE_DAYS, OUTCOMES_DAYS

#: Retention of fingerprints of runs: a year and a margin.
RUNS_RETAINED_DAYS = 400
#: Maximum time from an event to its finding: a code waits for companions.
_JUDGED_WITHIN = "INTERVAL 1 MINUTE"
#: Selects the `rowid` of events of open findings, by host, signal and device, since the finding
#: began. Subjects are made in `scoring/findings.py`; the kernel names a GPU by its PCI address. All
#: codes of the device are included, because one may excuse another.
OPEN_FINDING_EVENTS = f"""
WITH open_findings AS (
    SELECT host, split_part(subject, ' ', 1) AS device, split_part(subject, ' ', 2) AS name, min(since) AS since
    FROM findings WHERE cleared IS NULL GROUP BY ALL
),
spelled AS (
    FROM open_findings
    UNION
    SELECT f.host, d.attributes['pci_address'], f.name, f.since
    FROM open_findings AS f JOIN devices AS d ON d.host = f.host AND d.device = f.device AND d.kind = 'gpu'
)
SELECT e.rowid
FROM events AS e
SEMI JOIN spelled AS s
    ON s.host = e.host AND s.name = e.name AND lower(s.device) = lower(coalesce(nullif(e.device, ''), 'host'))
    AND s.since <= e.received + {_JUDGED_WITHIN}
"""

#: Rows kept longer, by `rowid`: after a restart an active fault is restored from its event.
_RETAINED_LONGER = {"events": OPEN_FINDING_EVENTS}
#: Keeps the times of deleted findings.
_COPY_PAST_FINDINGS = (
    "INSERT INTO past_findings SELECT host, name, since, cleared FROM findings "
    "WHERE cleared < make_timestamp(?)"
)


class _RetentionRule(NamedTuple):
    """Retention of a table in days, by the time in *column*."""

    table: str
    column: str
    days: int = 0  # 0: `history_days`
    days_min: int = 0  # minimum if `history_days` is less


_RETENTION_RULES: Iterable[_RetentionRule] = (
    _RetentionRule("scores", "time"),
    _RetentionRule("evidence", "time"),
    _RetentionRule("events", "received"),
    _RetentionRule("findings", "cleared"),
    _RetentionRule("past_findings", "cleared", days=400),
    _RetentionRule("host_days", "time", days=HOST_DAYS_RETAINED),
    _RetentionRule("judge_memory", "time", days=1),
    _RetentionRule("own_health", "time"),
    _RetentionRule("advice_decisions", "time", days_min=ADVICE_DAYS),
    _RetentionRule("advisories", "time", days_min=OUTCOMES_DAYS),
    _RetentionRule("runs", "time", days=RUNS_RETAINED_DAYS),
    _RetentionRule("job_verdicts", "time", days=RUNS_RETAINED_DAYS),
    _RetentionRule("run_demand", "time", days=RUNS_RETAINED_DAYS),
    _RetentionRule("colocations", "time", days=RUNS_RETAINED_DAYS),
    _RetentionRule("colocation_inputs", "time", days=RUNS_RETAINED_DAYS),
    _RetentionRule("outcomes", "time", days=OUTCOMES_DAYS),
    _RetentionRule("recoveries", "time", days=OUTCOMES_DAYS),
)


def drop_old(connection: Any, clock: RetentionClock, now_ns: int, history_days: int) -> None:
    """Delete expired rows, after copying times of findings and daily measurements for training."""

    def cutoff_us(days: int) -> int:
        return clock.cutoff_ns(days * DAY_US * 1000) // 1000

    # A kill here leaves a finding in both tables; readers merge overlapping findings.
    connection.execute(_COPY_PAST_FINDINGS, [cutoff_us(history_days)])
    fill_host_days(connection, now_ns // 1000)
    for rule in _RETENTION_RULES:
        days = rule.days or max(rule.days_min, history_days)
        exception = ""
        if rule.table in _RETAINED_LONGER:
            exception = f" AND rowid NOT IN ({_RETAINED_LONGER[rule.table]})"
        connection.execute(
            f"DELETE FROM {rule.table} WHERE {rule.column} < make_timestamp(?){exception}",
            [cutoff_us(days)],
        )
