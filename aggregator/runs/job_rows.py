"""Rows of jobs in the store: verdicts and references of the pace, written while jobs run and read back after a restart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import duckdb

from ..store.rows import table, time_us
from .job_pace import MEASURES, PaceReference
from .job_windows import JobRecord
from .verdicts import JobVerdict, VerdictChanges, from_row, row

_VERDICT_COLUMNS = (
    "verdict_id:str run_id:str job:str since:time until:time time:time identity:str strength:int verdict:str cause:str "
    "reason:str shared_cause:str advisory:str hosts:texts device:str slowdown_ratio:float slowdown_lower_ratio:float "
    "slowdown_upper_ratio:float is_stopped:bool lost_gpu_hours:float words:str evidence_sql:str"
)
_PACE_COLUMNS = "run_id:str job:str source:str time:time measure:str reference_work:float reference_time:time is_current:bool pace:float"
#: Verdicts that a restart takes over; older ones stay in the store.
RESTORED_MAX = 10_000
_STORED_VERDICTS = f"""
SELECT * REPLACE (epoch_ns(since) AS since, epoch_ns(until) AS until, epoch_ns(time) AS time) FROM job_verdicts
WHERE until IS NULL OR run_id IN (SELECT run_id FROM job_paces) ORDER BY time DESC LIMIT {RESTORED_MAX}
"""


def put_verdicts(
    connection: duckdb.DuckDBPyConnection, changes: VerdictChanges, now_ns: int
) -> None:
    """Write each verdict in place of its row before; remove absorbed ones. Raises duckdb.Error."""
    connection.execute(
        "DELETE FROM job_verdicts WHERE verdict_id IN (SELECT unnest(?))", [list(changes.absorbed)]
    )
    _replace(
        connection, "job_verdicts", _VERDICT_COLUMNS, [row(one, now_ns) for one in changes.changed],
        "USING new_rows AS n WHERE job_verdicts.verdict_id = n.verdict_id",
    )  # fmt: skip


def put_paces(
    connection: duckdb.DuckDBPyConnection, records: Iterable[JobRecord], now_ns: int
) -> None:
    """Replace the stored references by those of the running jobs. Raises duckdb.Error."""
    rows = [
        {
            "run_id": one.run.run_id, "job": one.run.job, "source": one.run.source, "time": now_ns,
            "measure": MEASURES[reference.measure], "reference_work": reference.work,
            "reference_time": reference.at_ns, "is_current": reference == one.pace.reference, "pace": one.pace.current,
        }
        for one in records
        for reference in one.pace.references
    ]  # fmt: skip
    _replace(connection, "job_paces", _PACE_COLUMNS, rows, "")


def read_verdicts(connection: duckdb.DuckDBPyConnection) -> list[JobVerdict]:
    """Return the verdicts of runs that were running at the last write. Raises duckdb.Error."""
    found = connection.execute(_STORED_VERDICTS)
    names = [column[0] for column in found.description or ()]
    return [from_row(dict(zip(names, values, strict=True))) for values in found.fetchall()]


def read_references(connection: duckdb.DuckDBPyConnection) -> dict[str, list[PaceReference]]:
    """Return the references of each run by its id. Raises duckdb.Error."""
    references: dict[str, list[PaceReference]] = defaultdict(list)
    rows = connection.execute(
        "SELECT run_id, measure, reference_work, coalesce(epoch_ns(reference_time), 0) FROM job_paces"
    ).fetchall()
    for run_id, measure, work, at_ns in rows:
        references[run_id].append(PaceReference(MEASURES.index(measure), work, at_ns))
    return dict(references)


def _replace(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: str,
    rows: Sequence[Mapping[str, Any]],
    which: str,
) -> None:
    """Replace rows of a table: *which* says which, "" all."""
    kinds = [column.split(":") for column in columns.split()]
    cells = [
        tuple(time_us(one[key]) if kind == "time" else one[key] for key, kind in kinds)
        for one in rows
    ]
    connection.register("new_rows", table(columns, cells))
    try:
        connection.execute(f"DELETE FROM {name} {which}")
        connection.execute(f"INSERT INTO {name} BY NAME FROM new_rows")
    finally:
        connection.unregister("new_rows")
