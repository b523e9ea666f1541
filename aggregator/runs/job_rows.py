"""Rows of jobs in the store: verdicts and references of the pace, written while jobs run and read back after a restart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from duckdb import DuckDBPyConnection as Connection

from ..store.rows import replace_rows
from .job_pace import MEASURES, PaceReference
from .job_windows import JobRecord
from .verdicts import JobVerdict, VerdictChanges, from_row, row

_VERDICT_COLUMNS = (
    "verdict_id:str run_id:str job:str since:time until:time time:time identity:str strength:int verdict:str cause:str "
    "reason:str shared_cause:str advisory:str hosts:texts device:str slowdown_ratio:float slowdown_lower_ratio:float "
    "slowdown_upper_ratio:float is_stopped:bool lost_gpu_hours:float message:str evidence_sql:str"
)
_PACE_COLUMNS = "run_id:str job:str source:str time:time measure:str reference_work:float reference_time:time is_current:bool pace:float"
#: Verdicts restored at a start; older ones are only in the store.
RESTORED_MAX = 10_000
_STORED_VERDICTS = f"""
SELECT * REPLACE (epoch_ns(since) AS since, epoch_ns(until) AS until, epoch_ns(time) AS time) FROM job_verdicts
WHERE until IS NULL OR run_id IN (SELECT run_id FROM job_paces) ORDER BY time DESC LIMIT {RESTORED_MAX}
"""


def put_verdicts(connection: Connection, changes: VerdictChanges, now_ns: int) -> None:
    """Replace the rows of changed verdicts; delete absorbed ones. Raises duckdb.Error."""
    connection.execute(
        "DELETE FROM job_verdicts WHERE verdict_id IN (SELECT unnest(?))", [list(changes.absorbed)]
    )
    rows = [row(verdict, now_ns) for verdict in changes.changed]
    replace_rows(connection, "job_verdicts", _VERDICT_COLUMNS, rows, ("verdict_id",))


def put_paces(connection: Connection, records: Iterable[JobRecord], now_ns: int) -> None:
    """Replace the stored references by those of the running jobs. Raises duckdb.Error."""
    rows = [
        {
            "run_id": record.run.run_id, "job": record.run.job, "source": record.run.source, "time": now_ns,
            "measure": MEASURES[reference.measure], "reference_work": reference.work,
            "reference_time": reference.at_ns, "is_current": reference == record.pace.reference, "pace": record.pace.current,
        }
        for record in records
        for reference in record.pace.references
    ]  # fmt: skip
    replace_rows(connection, "job_paces", _PACE_COLUMNS, rows)


def read_verdicts(connection: Connection) -> list[JobVerdict]:
    """Return the verdicts of runs that were active at the last write. Raises duckdb.Error."""
    verdict_rows = connection.execute(_STORED_VERDICTS)
    names = [column[0] for column in verdict_rows.description or ()]
    return [from_row(dict(zip(names, values, strict=True))) for values in verdict_rows.fetchall()]


def read_references(connection: Connection) -> dict[str, list[PaceReference]]:
    """Return the references of each run by its id. Raises duckdb.Error."""
    references: dict[str, list[PaceReference]] = defaultdict(list)
    rows = connection.execute(
        "SELECT run_id, measure, reference_work, coalesce(epoch_ns(reference_time), 0) FROM job_paces"
    ).fetchall()
    for run_id, measure, work, at_ns in rows:
        references[run_id].append(PaceReference(MEASURES.index(measure), work, at_ns))
    return dict(references)
