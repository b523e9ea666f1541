"""From an event that stands to a symptom: words, query, and what clears it, the same for every rule."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from math import inf

from ...fingerprints.xid import Clears
from ..fleet.occurrences import Occurrence
from ..sql import quoted
from ..verdicts import Reason, State
from .present import Present
from .queries import moment
from .symptoms import Rule, Symptom, short

#: Our clock and the boot clock of a host are of one opinion within so much.
SLACK_SECONDS = 2
#: And run apart by a second in so much (100 parts in a million).
DRIFT_NS_PER_SECOND = 10**13


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
    """Return the query for the events that *record* is made of."""
    devices = ", ".join(map(quoted, _spellings(present, record)))
    return (
        "SELECT time, last_time, count, device, name, code, process_name, message, event_id FROM events "
        f"WHERE host = {quoted(present.fleet.names[record.host])} AND lower(device) IN ({devices}) "
        f"AND name = {quoted(record.name)} AND code = {record.code} AND {_which(record)} ORDER BY time DESC"
    )


def _which(record: Occurrence) -> str:
    """Return the condition that an event is of *record*: by its id, which no setting of a clock changes, or by its time."""
    if not record.count_before:
        return f"event_id IN ({', '.join(map(quoted, record.incidents))})"
    since_ns, until_ns = _span(record)
    return f"last_time >= {moment(since_ns)} AND time <= {moment(until_ns)}"


def _spellings(present: Present, record: Occurrence) -> list[str]:
    """Return how events name the device of *record*: the kernel knows a GPU by its PCI address."""
    if record.device == "host":
        return ["host", ""]
    known = present.fleet.attributes[record.host].get(("gpu", record.device), {})
    address = known.get("pci_address", "") if record.name.startswith("gpu.") else ""
    return [each.lower() for each in (record.device, address) if each]


def _span(record: Occurrence) -> tuple[int, int]:
    """Return within which whole seconds *record* was written, by our clock."""
    first_ns = min([record.first_ns, *(one.first_ns for one in record.incidents.values())])
    lasted_ns = record.last_ns - first_ns
    if record.ending.clears is Clears.TIME:
        lasted_ns = min(lasted_ns, round(record.ending.seconds * 1e9))
    second_ns, last_ns = 1_000_000_000, record.last_time_ns
    drift_seconds = SLACK_SECONDS + lasted_ns // DRIFT_NS_PER_SECOND
    since_ns = (last_ns - lasted_ns) // second_ns - SLACK_SECONDS - drift_seconds
    return since_ns * second_ns, (last_ns // second_ns + 1 + 2 * SLACK_SECONDS) * second_ns
