"""Events that stand against this host: what each says, until a boot, a reset, time or another event ends it.

The same meanings as the aggregator's (`aggregator/fleet/occurrences.py`), which cannot be asked here: what a
code means beside others is told by one module for both (`fingerprints/xid_incidents.py`). A record is kept as the
events that made it, and rebuilt from them after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...fingerprints.policy import Ends, Policy, Row, Severity
from ...fingerprints.wire.telemetry_pb2 import HealthEvent
from ...fingerprints.xid import Severity as CodeSeverity
from ...fingerprints.xid import Xid
from ...fingerprints.xid_incidents import RECOVERY, Incident, coded, gravest, note_neighbours
from .finding import Cleared, Finding

SECOND_NS = 1_000_000_000
#: Distinct records kept; of those of the least weight the one seen longest ago goes first.
RECORDS_MAX = 64
#: Incidents told apart per record, each with its last event.
INCIDENTS_MAX = 8
#: XID 154 tells that the recovery asked for changed; a reading so much later is of more weight.
RECHECK_NS = 10 * SECOND_NS
#: What of a code's meaning becomes a finding; the rest is shown by the aggregator and `gangline xid`.
SEVERITIES = {
    CodeSeverity.FATAL: Severity.FATAL,
    CodeSeverity.HAZARD: Severity.HAZARD,
    CodeSeverity.APPLICATION: Severity.APPLICATION,
}

Key = tuple[str, str, int, str]  # event name, device, code, variant


@dataclass(slots=True)
class Kept(Incident):
    """An incident with its last event."""

    event: HealthEvent


@dataclass(slots=True)
class Record:
    """An event of a device that is not over. `code_row`: of an XID or SXID, as its last line refines it."""

    key: Key
    row: Row
    code_row: Xid | None
    said: str = ""
    incidents: dict[str, Kept] = field(default_factory=dict[str, Kept])

    @property
    def last_ns(self) -> int:
        return max(one.last_ns for one in self.incidents.values())

    @property
    def since_ns(self) -> int:
        return min(one.first_ns for one in self.incidents.values())

    @property
    def ends(self) -> tuple[Ends, float]:
        """What ends it, with its seconds."""
        if self.code_row is None:
            return self.row.clears, self.row.clear_seconds
        return Ends(self.code_row.clears.value), self.code_row.clear_seconds

    def severity(self, now_ns: int, *, asks_for_nothing: bool) -> Severity | None:
        """Return what it means now, beside the codes that came with it; None: nothing to be told of."""
        if self.code_row is None:
            return self.row.severity
        if self.code_row.code == RECOVERY and self.key[0] == "gpu.xid" and asks_for_nothing:
            return None
        return SEVERITIES.get(gravest(self.code_row, self.incidents.values(), now_ns).severity)


class Reported:
    """All records of this boot. For one thread; times are boot time, handed in."""

    def __init__(self, policy: Policy, boot_id: bytes, driver: Callable[[], str] = str) -> None:
        """*driver*: the version of NVIDIA's driver, "" where there is none; XIDs 144-150 need it."""
        self.changed = False  # since the owner last kept it
        self._boot_id, self._driver = boot_id, driver
        #: Resets were watched for since then; one before it may have ended an event of before it.
        self.watched_since_ns = 0
        self.records: dict[Key, Record] = {}
        #: (name, device, code) -> until which boot time it was taken back.
        self.taken_back_ns: dict[tuple[str, str, int], int] = {}
        self.use(policy)

    def use(self, policy: Policy) -> None:
        """Judge by *policy* from now on; what it has no row for is no finding any more."""
        self._rows = [row for row in policy.rows if row.event]
        for key, record in list(self.records.items()):
            row = self._row(next(iter(record.incidents.values())).event)
            if row is None:
                del self.records[key]
            else:
                record.row = row

    def rename(self, device_of: Callable[[HealthEvent], str]) -> None:
        """Take all over again under the names of *device_of*: the inventory knows more than before."""
        kept = [one for record in self.records.values() for one in record.incidents.values()]
        self.records = {}
        for one in kept:
            self.take(one.event, device_of(one.event), one.heard_ns)

    def names(self) -> frozenset[str]:
        """Return the names of the events that rows are about."""
        return frozenset(row.event for row in self._rows)

    def _row(self, event: HealthEvent) -> Row | None:
        for row in self._rows:
            of_code = row.event == event.name and (not row.codes or event.code in row.codes)
            if of_code and (not row.says or _says(event, row.says)):
                return row
        return None

    def take(self, event: HealthEvent, device: str, heard_ns: int) -> None:
        """Take over *event*, of *device*. Ignored: another boot's, the boot's before, what was folded."""
        row = self._row(event)
        previous = event.attributes.get("previous_boot") == "yes" or "folded" in event.attributes
        if row is None or previous or event.boot_id not in (b"", self._boot_id):
            return
        last_ns = max(event.boottime_ns, event.last_boottime_ns)
        if row.ends_with and _has(event.attributes, row.ends_with):
            self._take_back(event.name, device, event.code, last_ns)
            return
        code_row, variant, said = None, row.name, ""
        if row.policy:
            code_row, variant, decoded = coded(
                event.code, event.message, self._driver(), row.policy
            )
            for code in decoded.cancels:
                self._take_back(event.name, device, code, last_ns)
            if decoded.continuation:
                return
            said = decoded.words
            if row.policy == "xid" and event.code == RECOVERY:
                # What was asked before holds no longer.
                self._take_back(event.name, device, event.code, last_ns - 1)
        if last_ns <= self.taken_back_ns.get((event.name, device, event.code), -1):
            return
        key = (event.name, device, event.code, variant)
        record = self.records.get(key) or Record(key, row, code_row)
        record.code_row, record.said = code_row, said
        self._add(record, event, last_ns, heard_ns)

    def _add(self, record: Record, event: HealthEvent, last_ns: int, heard_ns: int) -> None:
        incident = record.incidents.get(event.event_id)
        if incident is None:
            while len(record.incidents) >= INCIDENTS_MAX:
                del record.incidents[next(iter(record.incidents))]
            incident = Kept(event.boottime_ns, last_ns, heard_ns, event)
            record.incidents[event.event_id] = incident
        incident.event = event
        incident.go_on(last_ns, heard_ns, record.code_row)
        self.records[record.key] = record
        self.changed = True
        if record.code_row is not None:
            note_neighbours(record.code_row, incident, self._beside(record))
        if len(self.records) > RECORDS_MAX:
            del self.records[min(self.records.values(), key=_weight).key]

    def _beside(self, record: Record) -> Iterator[tuple[Xid, Iterable[Incident]]]:
        """Yield the codes of the same device."""
        for other in self.records.values():
            same = other.key[:2] == record.key[:2] and other is not record
            if same and other.code_row is not None:
                yield other.code_row, other.incidents.values()

    def _take_back(self, name: str, device: str, code: int, until_ns: int) -> None:
        """End what was said until then, also where it is told once more later."""
        which = name, device, code
        until_ns = max(until_ns, self.taken_back_ns.pop(which, until_ns))
        self.taken_back_ns[which] = until_ns
        if len(self.taken_back_ns) > RECORDS_MAX:
            del self.taken_back_ns[next(iter(self.taken_back_ns))]
        self.changed = True
        for key in [key for key in self.records if key[:3] == which]:
            if self.records[key].last_ns <= until_ns:
                del self.records[key]

    def expire(self, reset_ns: Callable[[str], int], now_ns: int) -> Iterator[Cleared]:
        """Forget what time or a reset has ended. *reset_ns*: boot time of a device's last reset, -1: none."""
        for key, record in list(self.records.items()):
            if why := _over(record, reset_ns, now_ns):
                del self.records[key]
                self.changed = True
                yield Cleared(self._finding(record, _plain(record), record.last_ns), now_ns, why)

    def findings(self, asks_for_nothing: Mapping[str, int], now_ns: int) -> Iterator[Finding]:
        """Yield what stands. *asks_for_nothing*: GPU -> boot time of a reading that no recovery is asked for."""
        for record in self.records.values():
            nothing = asks_for_nothing.get(record.key[1], 0) >= record.last_ns + RECHECK_NS
            severity = record.severity(now_ns, asks_for_nothing=nothing)
            if severity is not None:
                timed = record.ends[0] is Ends.TIME
                yield self._finding(record, severity, record.last_ns if timed else now_ns)

    def _finding(self, record: Record, severity: Severity, confirmed_ns: int) -> Finding:
        row, code = record.row, record.code_row
        words, action = (row.words, row.action) if code is None else (code.name, code.action)
        words = f"{words}: {record.said}" if record.said else words
        unsure = record.ends[0] is Ends.RESET and record.last_ns < self.watched_since_ns
        if unsure:
            words += "; of before this agent watched, so that a reset may have ended it"
        return Finding(
            name=row.name if code is None else f"{row.policy}{code.code}",
            device=record.key[1],
            severity=severity,
            words=words,
            action=action,
            scope=row.scope if code is None else code.scope,
            clears_when=_clears_when(*record.ends),
            since_ns=record.since_ns,
            confirmed_ns=confirmed_ns,
            enforceable=row.enforceable and severity is Severity.FATAL and not unsure,
            count=sum(max(1, one.event.count) for one in record.incidents.values()),
        )

    def events(self) -> Iterable[HealthEvent]:
        """Return the events that all of it can be rebuilt from."""
        return [one.event for record in self.records.values() for one in record.incidents.values()]


def _plain(record: Record) -> Severity:
    """Return what it means by itself."""
    own = record.row.severity
    return own if record.code_row is None else SEVERITIES.get(record.code_row.severity, own)


def _has(attributes: Mapping[str, str], wanted: str) -> bool:
    name, _, value = wanted.partition("=")
    return attributes.get(name) == value


def _says(event: HealthEvent, words: Iterable[str]) -> bool:
    said = (event.message, *event.forms, *event.attributes.values())
    return any(one in text for one in words for text in said)


def _weight(record: Record) -> tuple[int, int]:
    """Sort key: what may be forgotten first."""
    if record.code_row is None:
        grave = 2 * (record.row.severity is Severity.FATAL) + (
            record.row.severity is Severity.HAZARD
        )
    else:
        grave = {CodeSeverity.FATAL: 2, CodeSeverity.HAZARD: 1}.get(record.code_row.severity, 0)
    return grave, record.last_ns


def _over(record: Record, reset_ns: Callable[[str], int], now_ns: int) -> str:
    """Return what has ended *record*; "" while it stands."""
    ends, seconds = record.ends
    if ends is Ends.TIME and now_ns - record.last_ns > seconds * SECOND_NS:
        return f"it did not come again for {seconds / 60:.0f} minutes"
    if ends is Ends.RESET and reset_ns(record.key[1]) >= record.last_ns:
        return "the GPU was reset"
    return ""


def _clears_when(ends: Ends, seconds: float) -> str:
    if ends is Ends.TIME:
        return f"it does not come again for {seconds / 60:.0f} minutes"
    return "the host boots" if ends is Ends.REBOOT else "the GPU is reset, or the host boots"
