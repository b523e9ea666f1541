"""Symptom of an active event, with the SQL that finds the event in the store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from math import inf

from ...contract.xid.policy import Clears
from ..fleet.active_events import EventRecord
from ..model import HealthState, Reason
from ..rule_declaration import Rule
from ..sql import quoted
from .evidence_sql import timestamp_sql
from .symptom import Symptom, short
from .view import FleetView

#: Tolerance, in seconds, between our clock and the boot clock of a host.
SLACK_SECONDS = 2
#: The two clocks drift apart by a second in this time (100 parts in a million).
DRIFT_NS_PER_SECOND = 10**13


def event_symptom(
    view: FleetView,
    record: EventRecord,
    rule: Rule,
    message: str,
    *,
    state: HealthState | None = None,
    hazard_factor: float = 0.0,
    reason: Reason | None = None,
    precedence: tuple[float, ...] = (inf,),
) -> Symptom:
    """Return *record* as a symptom of *rule*; *message* follows the name of the device."""
    device_prefix = "" if record.device == "host" else f"{short(record.device)} "
    process_text = ""
    if record.process_name:
        process_text = f" (met by {record.process_name}, which may not be its cause)"
    return Symptom(
        rule=replace(rule, leave_seconds=0.0),
        host=record.host,
        device=record.device,
        signal=record.name,
        value=float(record.code),
        unit="code",
        normal="none",
        message=f"{device_prefix}{message}{process_text}; {_last_time_text(record)}",
        sql=event_query(view, record),
        state=state,
        reason=reason,
        clears=record.clears_when,
        hazard_factor=hazard_factor,
        precedence=precedence,
    )


def times_text(record: EventRecord) -> str:
    return f", {record.count:,} times" if record.count > 1 else ""


def _last_time_text(record: EventRecord) -> str:
    """Return the time of the last line: a record that arrives now may be hours old."""
    last_time = datetime.fromtimestamp(record.last_time_ns // 1_000_000_000, UTC)
    return f"{'last ' if record.count > 1 else ''}at {last_time:%Y-%m-%d %H:%M:%S} UTC"


def event_query(view: FleetView, record: EventRecord) -> str:
    """Return the query for the events that *record* is made of."""
    devices = ", ".join(map(quoted, _device_aliases(view, record)))
    return (
        "SELECT time, last_time, count, device, name, code, process_name, message, event_id FROM events "
        f"WHERE host = {quoted(view.fleet.names[record.host])} AND lower(device) IN ({devices}) "
        f"AND name = {quoted(record.name)} AND code = {record.code} AND {_event_condition(record)} ORDER BY time DESC"
    )


def _event_condition(record: EventRecord) -> str:
    """Return the condition that an event belongs to *record*.

    By event id, which is independent of clock changes, or by time if the record includes earlier
    events.
    """
    if not record.count_before:
        return f"event_id IN ({', '.join(map(quoted, record.incidents))})"
    since_ns, until_ns = _record_span(record)
    return f"last_time >= {timestamp_sql(since_ns)} AND time <= {timestamp_sql(until_ns)}"


def _device_aliases(view: FleetView, record: EventRecord) -> list[str]:
    """Return the device names in events of *record*: the kernel names a GPU by its PCI address."""
    if record.device == "host":
        return ["host", ""]
    known = view.fleet.attributes[record.host].get(("gpu", record.device), {})
    address = known.get("pci_address", "") if record.name.startswith("gpu.") else ""
    return [alias.lower() for alias in (record.device, address) if alias]


def _record_span(record: EventRecord) -> tuple[int, int]:
    """Return the whole seconds (first, last) of *record*, by our clock."""
    first_ns = min([record.first_ns, *(i.first_ns for i in record.incidents.values())])
    lasted_ns = record.last_ns - first_ns
    if record.clear_condition.clears is Clears.TIME:
        lasted_ns = min(lasted_ns, round(record.clear_condition.seconds * 1e9))
    second_ns, last_ns = 1_000_000_000, record.last_time_ns
    drift_seconds = SLACK_SECONDS + lasted_ns // DRIFT_NS_PER_SECOND
    since_ns = (last_ns - lasted_ns) // second_ns - SLACK_SECONDS - drift_seconds
    return since_ns * second_ns, (last_ns // second_ns + 1 + 2 * SLACK_SECONDS) * second_ns
