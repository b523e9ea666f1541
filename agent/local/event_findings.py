"""Findings of this host that events begin and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...contract.faults.policy import ClearedBy, FindingSeverity, Policy, PolicyRow
from ...contract.wire.telemetry_pb2 import HealthEvent
from ...contract.xid.incidents import (
    RECOVERY_XID,
    XidIncident,
    classify_line,
    gravest,
    note_neighbours,
)
from ...contract.xid.policy import Xid
from ...contract.xid.policy import XidSeverity as CodeSeverity
from .policy_rules import ClearedFinding, HostFinding

# A record's meaning is as in the aggregator's `aggregator/fleet/active_events.py`:
# `contract/xid/incidents.py` decides for both what a code means next to other codes. A record keeps
# its events and is rebuilt from them after a restart.
SECOND_NS = 1_000_000_000
#: Records kept. Beyond, the mildest record that was seen longest ago is dropped.
RECORDS_MAX = 64
#: Incidents per record, each with its last event. Beyond, the oldest is dropped.
INCIDENTS_MAX = 8
#: A reading this long after XID 154 (recovery action changed) outweighs the event.
RECHECK_NS = 10 * SECOND_NS
#: Severities of a code that become findings. The aggregator and `gangline xid` show the rest.
SEVERITIES = {
    CodeSeverity.FATAL: FindingSeverity.FATAL,
    CodeSeverity.HAZARD: FindingSeverity.HAZARD,
    CodeSeverity.APPLICATION: FindingSeverity.APPLICATION,
}
Key = tuple[str, str, int, str]  # event name, device, code, variant


@dataclass(slots=True)
class EventIncident(XidIncident):
    """An incident and its last event."""

    event: HealthEvent


@dataclass(slots=True)
class ActiveEvent:
    """An event of a device that has not ended. `code_row`: only of XIDs and SXIDs."""

    key: Key
    row: PolicyRow
    code_row: Xid | None
    detail: str = ""
    incidents: dict[str, EventIncident] = field(default_factory=dict[str, EventIncident])

    @property
    def last_ns(self) -> int:
        return max(incident.last_ns for incident in self.incidents.values())

    @property
    def since_ns(self) -> int:
        return min(incident.first_ns for incident in self.incidents.values())

    @property
    def ends(self) -> tuple[ClearedBy, float]:
        """Return how the event ends, and the seconds of this rule."""
        if self.code_row is None:
            return self.row.clears, self.row.clear_seconds
        return ClearedBy(self.code_row.clears.value), self.code_row.clear_seconds

    def severity(self, now_ns: int, *, no_recovery_needed: bool) -> FindingSeverity | None:
        """Return the present severity, given codes that came with it; None: nothing to report."""
        if self.code_row is None:
            return self.row.severity
        if self.code_row.code == RECOVERY_XID and self.key[0] == "gpu.xid" and no_recovery_needed:
            return None
        return SEVERITIES.get(gravest(self.code_row, self.incidents.values(), now_ns).severity)


class EventFindings:
    """All records of this boot. For a single thread; times are boot time from the caller."""

    def __init__(self, policy: Policy, boot_id: bytes, driver: Callable[[], str] = str) -> None:
        """*driver* returns NVIDIA's driver version, or ""; XIDs 144 to 150 need it."""
        self.changed = False  # since the owner last saved the state
        self._boot_id, self._driver = boot_id, driver
        #: Start of the watch for resets. An earlier reset may have ended an earlier event unseen.
        self.watched_since_ns = 0
        self.records: dict[Key, ActiveEvent] = {}
        #: (name, device, code) -> boot time up to which its events are cancelled.
        self.cancelled_ns: dict[tuple[str, str, int], int] = {}
        self.set_policy(policy)

    def set_policy(self, policy: Policy) -> None:
        """Use *policy*; drop records for which it has no row."""
        self._rows = [row for row in policy.rows if row.event]
        for key, record in list(self.records.items()):
            row = self._row(next(iter(record.incidents.values())).event)
            if row is None:
                del self.records[key]
            else:
                record.row = row

    def reassign_devices(self, device_of: Callable[[HealthEvent], str]) -> None:
        """Rebuild all records with the names of *device_of*, after the inventory changed."""
        incidents = [
            incident for record in self.records.values() for incident in record.incidents.values()
        ]
        self.records = {}
        for incident in incidents:
            self.add_event(incident.event, device_of(incident.event), incident.received_ns)

    def names(self) -> frozenset[str]:
        """Return the event names that rows of the policy use."""
        return frozenset(row.event for row in self._rows)

    def _row(self, event: HealthEvent) -> PolicyRow | None:
        for row in self._rows:
            of_code = row.event == event.name and (not row.codes or event.code in row.codes)
            if of_code and (not row.contains or _contains_any(event, row.contains)):
                return row
        return None

    def add_event(self, event: HealthEvent, device: str, received_ns: int) -> None:
        """Add *event* of *device*. Ignores folded events and events of other boots."""
        row = self._row(event)
        ignored = event.attributes.get("previous_boot") == "yes" or "folded" in event.attributes
        if row is None or ignored or event.boot_id not in (b"", self._boot_id):
            return
        last_ns = max(event.boottime_ns, event.last_boottime_ns)
        if row.ends_with and _has_attribute(event.attributes, row.ends_with):
            self._cancel(event.name, device, event.code, last_ns)
            return
        code_row, variant, detail = None, row.name, ""
        if row.policy:
            code_row, variant, decoded = classify_line(
                event.code, event.message, self._driver(), row.policy
            )
            for code in decoded.cancels:
                self._cancel(event.name, device, code, last_ns)
            if decoded.continuation:
                return
            detail = decoded.message
            if row.policy == "xid" and event.code == RECOVERY_XID:
                # XID 154 replaces the previous recovery action.
                self._cancel(event.name, device, event.code, last_ns - 1)
        if last_ns <= self.cancelled_ns.get((event.name, device, event.code), -1):
            return
        key = (event.name, device, event.code, variant)
        record = self.records.get(key) or ActiveEvent(key, row, code_row)
        record.code_row, record.detail = code_row, detail
        self._add_incident(record, event, last_ns, received_ns)

    def _add_incident(
        self, record: ActiveEvent, event: HealthEvent, last_ns: int, received_ns: int
    ) -> None:
        incident = record.incidents.get(event.event_id)
        if incident is None:
            while len(record.incidents) >= INCIDENTS_MAX:
                del record.incidents[next(iter(record.incidents))]
            incident = EventIncident(event.boottime_ns, last_ns, received_ns, event)
            record.incidents[event.event_id] = incident
        incident.event = event
        incident.extend(last_ns, received_ns, record.code_row)
        self.records[record.key] = record
        self.changed = True
        if record.code_row is not None:
            note_neighbours(record.code_row, incident, self._codes_on_device(record))
        if len(self.records) > RECORDS_MAX:
            del self.records[min(self.records.values(), key=_retention_key).key]

    def _codes_on_device(self, record: ActiveEvent) -> Iterator[tuple[Xid, Iterable[XidIncident]]]:
        """Yield the codes of the other records on the same device, with their incidents."""
        for other in self.records.values():
            same = other.key[:2] == record.key[:2] and other is not record
            if same and other.code_row is not None:
                yield other.code_row, other.incidents.values()

    def _cancel(self, name: str, device: str, code: int, until_ns: int) -> None:
        """End records up to *until_ns*, also if such an event is reported again later."""
        event_key = name, device, code
        until_ns = max(until_ns, self.cancelled_ns.pop(event_key, until_ns))
        self.cancelled_ns[event_key] = until_ns
        if len(self.cancelled_ns) > RECORDS_MAX:
            del self.cancelled_ns[next(iter(self.cancelled_ns))]
        self.changed = True
        for key in [key for key in self.records if key[:3] == event_key]:
            if self.records[key].last_ns <= until_ns:
                del self.records[key]

    def expire(self, reset_ns: Callable[[str], int], now_ns: int) -> Iterator[ClearedFinding]:
        """Drop and yield ended records. *reset_ns*: boot time of a device's last reset, or -1."""
        for key, record in list(self.records.items()):
            if reason := _end_reason(record, reset_ns, now_ns):
                del self.records[key]
                self.changed = True
                yield ClearedFinding(
                    self._finding(record, _default_severity(record), record.last_ns), now_ns, reason
                )

    def findings(self, no_recovery_ns: Mapping[str, int], now_ns: int) -> Iterator[HostFinding]:
        """Yield the active findings.

        *no_recovery_ns*: GPU -> boot time of a reading that asks for no recovery.
        """
        for record in self.records.values():
            no_recovery_needed = no_recovery_ns.get(record.key[1], 0) >= record.last_ns + RECHECK_NS
            severity = record.severity(now_ns, no_recovery_needed=no_recovery_needed)
            if severity is not None:
                timed = record.ends[0] is ClearedBy.TIME
                yield self._finding(record, severity, record.last_ns if timed else now_ns)

    def _finding(
        self, record: ActiveEvent, severity: FindingSeverity, confirmed_ns: int
    ) -> HostFinding:
        row, code = record.row, record.code_row
        message, action = (row.message, row.action) if code is None else (code.name, code.action)
        message = f"{message}: {record.detail}" if record.detail else message
        unsure = record.ends[0] is ClearedBy.RESET and record.last_ns < self.watched_since_ns
        if unsure:
            message += "; from before this agent started, so a reset may have ended it"
        return HostFinding(
            name=row.name if code is None else f"{row.policy}{code.code}",
            device=record.key[1],
            severity=severity,
            message=message,
            action=action,
            scope=row.scope if code is None else code.scope,
            clears_when=_clears_when(*record.ends),
            since_ns=record.since_ns,
            confirmed_ns=confirmed_ns,
            enforceable=row.enforceable and severity is FindingSeverity.FATAL and not unsure,
            count=sum(max(1, incident.event.count) for incident in record.incidents.values()),
        )

    def events(self) -> Iterable[HealthEvent]:
        """Return the events from which all records can be rebuilt."""
        return [
            incident.event
            for record in self.records.values()
            for incident in record.incidents.values()
        ]


def _default_severity(record: ActiveEvent) -> FindingSeverity:
    """Return the severity of *record* regardless of other codes."""
    row_severity = record.row.severity
    return (
        row_severity
        if record.code_row is None
        else SEVERITIES.get(record.code_row.severity, row_severity)
    )


def _has_attribute(attributes: Mapping[str, str], wanted: str) -> bool:
    name, _, value = wanted.partition("=")
    return attributes.get(name) == value


def _contains_any(event: HealthEvent, phrases: Iterable[str]) -> bool:
    texts = (event.message, *event.forms, *event.attributes.values())
    return any(phrase in text for phrase in phrases for text in texts)


def _retention_key(record: ActiveEvent) -> tuple[int, int]:
    """Return a sort key: the mildest and oldest record comes first."""
    if record.code_row is None:
        gravity = 2 * (record.row.severity is FindingSeverity.FATAL) + (
            record.row.severity is FindingSeverity.HAZARD
        )
    else:
        gravity = {CodeSeverity.FATAL: 2, CodeSeverity.HAZARD: 1}.get(record.code_row.severity, 0)
    return gravity, record.last_ns


def _end_reason(record: ActiveEvent, reset_ns: Callable[[str], int], now_ns: int) -> str:
    """Return why *record* has ended; "" while it is active."""
    ends, seconds = record.ends
    if ends is ClearedBy.TIME and now_ns - record.last_ns > seconds * SECOND_NS:
        return f"it did not recur for {seconds / 60:.0f} minutes"
    if ends is ClearedBy.RESET and reset_ns(record.key[1]) >= record.last_ns:
        return "the GPU was reset"
    return ""


def _clears_when(ends: ClearedBy, seconds: float) -> str:
    if ends is ClearedBy.TIME:
        return f"it does not recur for {seconds / 60:.0f} minutes"
    return "the host boots" if ends is ClearedBy.REBOOT else "the GPU is reset, or the host boots"
