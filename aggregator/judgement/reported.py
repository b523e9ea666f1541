"""From an event that stands to a symptom: words, query, and what clears it, the same for every rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from math import inf

from ..fleet.occurrences import Occurrence
from ..sql import quoted
from ..verdicts import Reason, State
from .present import Present
from .symptoms import Rule, Symptom, short


def symptom(
    present: Present,
    record: Occurrence,
    rule: Rule,
    words: str,
    *,
    state: State | None = None,
    hazard_factor: float = 0.0,
    reason: Reason | None = None,
    precedence: tuple[float, ...] = (inf,),
) -> Symptom:
    """Return *record* as a symptom of *rule*; *words* follow the name of a device that is not the host."""
    who = "" if record.device == "host" else f"{short(record.device)} "
    process = f" (met by {record.process}, which need not be its cause)" if record.process else ""
    return Symptom(
        rule=replace(rule, leave_seconds=0.0),
        host=record.host,
        device=record.device,
        signal=record.name,
        value=float(record.code),
        unit="code",
        normal="none",
        words=f"{who}{words}{process}; {_written(record)}",
        sql=query(present, record),
        state=state,
        reason=reason,
        clears=record.clears_when,
        hazard_factor=hazard_factor,
        precedence=precedence,
    )


def times(record: Occurrence) -> str:
    """Return how often it was reported, to be put after what it is."""
    return f", {record.count:,} times" if record.count > 1 else ""


def _written(record: Occurrence) -> str:
    """Return when it was last written: what reaches us now may be of hours ago."""
    at = datetime.fromtimestamp(record.last_time_ns // 1_000_000_000, UTC)
    return f"{'last ' if record.count > 1 else ''}at {at:%Y-%m-%d %H:%M:%S} UTC"


def query(present: Present, record: Occurrence) -> str:
    """Return the query that shows what the host reported."""
    return (
        "SELECT * FROM events WHERE host = "
        f"{quoted(present.fleet.names[record.host])} AND name = {quoted(record.name)} "
        f"AND code = {record.code} ORDER BY time"
    )
