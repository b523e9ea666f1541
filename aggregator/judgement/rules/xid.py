"""XIDs that still stand, under the policy of `fingerprints/xid.toml`."""

from __future__ import annotations

from collections.abc import Iterator

from ....fingerprints.xid import Severity, Xid
from ...fleet.xid_records import XidRecord
from ...verdicts import Reason, State
from ..present import Present, quoted
from ..symptoms import Rule, Symptom, short

#: A double bit error waits this long for the code that says whether it was contained.
COMPANION_SECONDS = 5.0
DOUBLE_BIT, CONTAINED = 48, 94
#: A host with a fatal code has, for a scheduler, no chance of eight hours.
FATAL_HAZARD_FACTOR = 20_000.0
#: From here a hazard is SUSPECT, below it WATCH.
SUSPECT_FACTOR = 20.0

XID = Rule("gpu.xid", State.HEALTHY, Reason.NONE, "", leave_seconds=0.0)

CLEARS = {
    "reset": "the GPU is reset, or the host boots",
    "reboot": "the host boots",
    "time": "it does not come again for {minutes:.0f} minutes",
}


def standing_xids(present: Present) -> Iterator[Symptom]:
    """Every code that was reported and not cleared; what it means is the policy's to say."""
    records = list(present.fleet.xids)
    by_device = {(r.host, r.device, r.row.code): r for r in records}
    for record in records:
        severity = record.row.severity
        if record.row.code == DOUBLE_BIT:
            contained = by_device.get((record.host, record.device, CONTAINED))
            severity = _double_bit(present.now_ns, record, contained)
        yield _symptom(present, record, severity)


def _double_bit(now_ns: int, record: XidRecord, contained: XidRecord | None) -> Severity:
    window_ns = COMPANION_SECONDS * 1e9
    if contained is not None and abs(contained.last_ns - record.last_ns) <= window_ns:
        return Severity.IGNORE  # 94 tells the story
    waiting = now_ns - record.first_ns < window_ns
    return Severity.IGNORE if waiting else Severity.FATAL


def _standing(row: Xid, severity: Severity) -> tuple[State, float]:
    """Return the state that a code puts its host in, and the factor on its hazard."""
    if severity is Severity.FATAL:
        return State.UNHEALTHY, FATAL_HAZARD_FACTOR
    if severity is Severity.HAZARD:
        suspect = row.hazard_factor >= SUSPECT_FACTOR
        return State.SUSPECT if suspect else State.WATCH, row.hazard_factor
    return State.HEALTHY, 1.0


def _symptom(present: Present, record: XidRecord, severity: Severity) -> Symptom:
    row = record.row
    state, factor = _standing(row, severity)
    times = f", {record.count} times" if record.count > 1 else ""
    return Symptom(
        rule=Rule(f"{XID.name}.{row.code}", State.HEALTHY, Reason.NONE, "", leave_seconds=0.0),
        host=record.host,
        device=record.device,
        signal="gpu.xid",
        value=float(row.code),
        unit="code",
        normal="none",
        words=f"{short(record.device)} XID {row.code}: {row.name}{times}; {row.action}",
        sql=_sql(present, record),
        state=state,
        reason=Reason.NONE if state is State.HEALTHY else Reason[row.reason],
        clears=CLEARS[row.clears.value].format(minutes=row.clear_seconds / 60),
        hazard_factor=factor,
    )


def _sql(present: Present, record: XidRecord) -> str:
    return (
        "SELECT * FROM events WHERE host = "
        f"{quoted(present.fleet.names[record.host])} AND name = 'gpu.xid' "
        f"AND code = {record.row.code} ORDER BY time"
    )
