"""What is wrong with this host, by the policy, from its last readings and its events alone.

`observe` is for any thread, all else for the daemon's. The clock is handed in; a turn in which nothing of
interest changed costs some comparisons of bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...contract.host_policy import Ends, Policy, Row, Severity
from ...contract.wire.telemetry_pb2 import HealthEvent
from ...contract.xid.incidents import RECOVERY, Incident, coded, gravest, note_neighbours
from ...contract.xid.policy import Severity as CodeSeverity
from ...contract.xid.policy import Xid
from ..latest import Readings
from .findings_state import FindingsState
from .policy_rules import Cleared, Finding, Looker, Lookup, Resets, Table, Watch

# ----------------------------------------------------------------------
# Events that stand against this host: what each says, until a boot, a reset, time or another event
# ends it.
#
# The same meanings as the aggregator's (`aggregator/fleet/active_events.py`), which cannot be asked
# here: what a code means beside others is told by one module for both
# (`contract/xid/incidents.py`). A record is kept as the events that made it, and rebuilt from them
# after a restart.

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


#: Findings told at once; of more, the gravest.
FINDINGS_MAX = 64
#: Events that wait for the next turn; beyond, the oldest is forgotten and counted.
EVENTS_WAITING_MAX = 1024
#: What came so long before the first look is of now: an agent takes a moment to start.
WATCHED_BEFORE_NS = 60 * 1_000_000_000
#: An agent that was away for longer may have missed a reset.
AWAY_NS = 180 * 1_000_000_000
#: Findings that are over, kept to be shown.
CLEARED_MAX = 16


class Findings:
    """`findings`: gravest first, at most FINDINGS_MAX, `left_out` are more. `cleared`: the last that are over."""

    def __init__(self, policy: Policy, boot_id: bytes, driver: Callable[[], str] = str) -> None:
        """*driver*: the version of NVIDIA's driver, "" where there is none."""
        self.findings: tuple[Finding, ...] = ()
        self.left_out = 0
        self.dropped_events = 0
        self.cleared: deque[Cleared] = deque(maxlen=CLEARED_MAX)
        self.resets = Resets()
        self.reported = Reported(policy, boot_id, driver)
        self.watches: list[Watch] = []
        self.tables: list[Table] = []
        self._holding: list[Watch] = []  # those of whom something is wrong
        self._inventory: Mapping[str, str] = {}  # as it was told last
        self._addresses: dict[str, str] = {}
        self._waiting: deque[HealthEvent] = deque()
        self.use(policy)

    def use(self, policy: Policy) -> None:
        """Judge by *policy* from now on; what a row that stayed the same has seen is kept."""
        before = {watch.row.name: watch for watch in self.watches}
        self.watches = []
        for row in policy.rows:
            if row.when:
                old = before.get(row.name)
                if old is None or old.row != row:
                    same = old is not None and old.row.when == row.when
                    old = Watch(row, once_well=old.once_well if old and same else set())
                self.watches.append(old)
        lookers: list[Looker] = [self.resets, *self.watches]
        names = dict.fromkeys(each.table for each in lookers)
        self.tables = [Table(n, [each for each in lookers if each.table == n]) for n in names]
        self._settle(names)
        self.reported.use(policy)
        self._names = self.reported.names()
        self._hidden_by = {row.name: row.hidden_by for row in policy.rows if row.hidden_by}

    def observe(self, event: HealthEvent) -> None:
        """Take note of an event that is told. For any thread; never blocks."""
        if event.name not in self._names:
            return
        while len(self._waiting) >= EVENTS_WAITING_MAX:
            self._waiting.popleft()
            self.dropped_events += 1
        self._waiting.append(event)

    def know(self, addresses: Mapping[str, str]) -> None:
        """Take the inventory's word for which GPU (UUID) is at which PCI address: another mapping when that changed."""
        if addresses is self._inventory:
            return
        self._inventory = addresses
        known = {address.lower(): uuid for uuid, address in addresses.items() if address}
        if known != self._addresses:
            self._addresses = known
            self.reported.rename(self._device_of)

    def address_of(self, device: str) -> str:
        """Return the PCI address of a GPU, by its UUID or by its row of `probe_1s`; "" where none is known."""
        if device.startswith("gpu "):
            return device[4:]
        return next((at for at, uuid in self._addresses.items() if uuid == device), "")

    def _device_of(self, event: HealthEvent) -> str:
        device = event.device or "host"
        return (
            self._addresses.get(device.lower(), device) if event.name.startswith("gpu.") else device
        )

    def turn(self, tables: Mapping[str, Readings], now_ns: int) -> bool:
        """Take events and readings of now. Return whether there is anything to be told anew."""
        reported = self.reported
        if not reported.watched_since_ns:
            reported.watched_since_ns = max(1, now_ns - WATCHED_BEFORE_NS)
            reported.changed = True
        while self._waiting:
            event = self._waiting.popleft()
            self.reported.take(event, self._device_of(event), now_ns)
        records = reported.records
        if records or self.resets.closely:
            self._watch_closely(any(each.ends[0] is Ends.RESET for each in records.values()))
        due = self._due(tables)
        if self.resets in due and self.resets.look(tables[self.resets.table]):
            reported.changed = True
        over = [*reported.expire(self.resets.of, now_ns)] if records else []
        if due or self._holding:
            over += self._judge(due, tables, now_ns)
        if not (over or records or self._holding or self.findings):
            return False
        self.cleared.extend(over)
        return self._assemble(now_ns) or bool(over)

    def _watch_closely(self, closely: bool) -> None:
        """Note whether something stands that a reset would end."""
        if closely != self.resets.closely:
            self.resets.closely = closely
            self._settle({self.resets.table})

    def _due(self, tables: Mapping[str, Readings]) -> list[Looker]:
        """Return whom the tables that were read anew may concern."""
        due: list[Looker] = []
        for table in self.tables:
            readings = tables.get(table.name)
            if readings is not None and readings is not table.read:
                due += table.due(readings)
        return due

    def _judge(
        self, due: Sequence[Looker], tables: Mapping[str, Readings], now_ns: int
    ) -> list[Cleared]:
        """Let the rows that are due look; return what is over."""
        over: list[Cleared] = []
        others = Lookup(tables, now_ns)
        for watch in dict.fromkeys([*due, *self._holding]):
            if not isinstance(watch, Watch):
                continue
            if watch in due:
                over += watch.look(tables[watch.table], others, now_ns)
            else:
                over += watch.unseen(now_ns)
        self._settle({watch.table for watch in due})
        return over

    def _settle(self, names: Collection[str]) -> None:
        """Note who of these tables is to look at all that is read from now on, and who has found something."""
        for table in self.tables:
            if table.name in names:
                table.settle()
        self._holding = [watch for watch in self.watches if watch.held]

    def _assemble(self, now_ns: int) -> bool:
        standing = [finding for watch in self._holding for finding in watch.findings()]
        if self.reported.records:
            standing += self.reported.findings(self.resets.asks_for_nothing_ns, now_ns)
        names = {finding.name for finding in standing}
        standing = [one for one in standing if self._hidden_by.get(one.name) not in names]
        before = [finding.told for finding in self.findings]
        standing.sort(key=lambda finding: finding.weight)
        self.findings = tuple(standing[:FINDINGS_MAX])
        self.left_out = len(standing) - len(self.findings)
        return before != [finding.told for finding in self.findings]

    def once_well(self) -> dict[str, list[str]]:
        """Return which devices each row knows to have been well: to be kept over a restart."""
        return {w.row.name: sorted(w.once_well) for w in self.watches if w.row.once_otherwise}

    def restore(self, kept: FindingsState, now_ns: int) -> None:
        """Take over what the agent knew before it was started again at *now_ns*, in the same boot."""
        if now_ns - kept.watched_until_ns <= AWAY_NS:
            self.reported.watched_since_ns = kept.watched_since_ns
        self.resets.at_ns.update(kept.resets_ns)
        self.resets.energy_joules.update(kept.energy_joules)
        for event in kept.events:
            last_ns = event.last_boottime_ns or event.boottime_ns
            self.reported.take(event, self._device_of(event), last_ns)
        for watch in self.watches:
            watch.once_well.update(kept.once_well.get(watch.row.name, ()))
        self.reported.changed = False
