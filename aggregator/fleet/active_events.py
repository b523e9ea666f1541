"""Active events: one record per device and kind of event that was reported and has not ended; hangs.

A record ends when its condition is over: the host rebooted, the device was reset, the event did not recur for a given time,
or another event cancels it. Time is when an event happened, on the host's boot clock, and never when it arrived: an event that an
agent kept through an outage, repeats, or finds in the kernel's ring at its first start keeps its original time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...contract.wire.telemetry_pb2 import HealthEvent
from ...contract.xid.incidents import RECOVERY_XID, XidIncident, classify_line, note_neighbours
from ...contract.xid.policy import Clears, Xid, XidSeverity
from ..rule_catalogue.events import EVENT_POLICY, TEN_MINUTES
from ..rule_declaration import ClearCondition

XID, SXID, LINK, LOST = "gpu.xid", "nvswitch.sxid", "net.link", "gpu.lost"
ADAPTER = "rdma.adapter_failed"
#: A diagnostic of the GPU; its latest result is valid.
DIAGNOSTIC, DIAGNOSTIC_CODES = "gpu.diagnostic", (0, 1, 2)
#: Events of DCGM's health watches, with DCGM's code.
DCGM_HEALTH = frozenset({"gpu.dcgm_failure", "gpu.dcgm_warning"})
OUT_OF_MEMORY = "host.out_of_memory"
#: Codes of net.link.
REMOVED, APPEARED = 2, 3
#: Parts of the kernel's message about a program that reached the limit of its control group.
CGROUP_LIMIT_MARKERS = ("CONSTRAINT_MEMCG", "Memory cgroup out of memory")

_SEVERITY_RANKS = {XidSeverity.FATAL: 3, XidSeverity.HAZARD: 2}


class EventInterpretation(NamedTuple):
    """Meaning of an event by its decoded message and, for XIDs and SXIDs, its policy."""

    clear_condition: ClearCondition | None  # None: it leaves no active record
    clears_codes: tuple[int, ...] = ()  # codes of the same device
    policy: Xid | None = None
    variant: str = ""  # distinguishes events of the same device and code
    details: tuple[str, ...] = ()
    process_name: str = ""  # named in the line; not necessarily the cause
    # A summary of events beyond the agent's limit: its code has no meaning.
    folded: bool = False
    from_previous_boot: bool = False  # happened in the previous boot, whose record this one found
    hit_cgroup_limit: bool = False  # the kernel killed a program at its own limit: a workload error

    def severity_rank(self, name: str) -> int:
        """Return the rank of the record; the lowest rank is forgotten first."""
        if self.policy is not None:
            return _SEVERITY_RANKS.get(self.policy.severity, 0)
        if name == LOST:
            return _SEVERITY_RANKS[XidSeverity.FATAL]
        return 0 if name == LINK else 1


def interpret_event(event: HealthEvent, driver_version: str) -> EventInterpretation:
    """Return the meaning of *event*. Never raises, whatever its message."""
    if "folded" in event.attributes and event.code == 0 and event.device in ("", "host"):
        known = event.name in EVENT_POLICY or event.name in (XID, SXID)
        return EventInterpretation(
            TEN_MINUTES if known else None,
            variant="folded",
            folded=True,
        )
    if event.name in (XID, SXID):
        return _interpret_xid(event, driver_version)
    if event.name == LINK and event.code != REMOVED:
        return EventInterpretation(None, (REMOVED,) if event.code == APPEARED else ())
    if event.name in (LOST, ADAPTER) and event.attributes.get("state") == "back":
        return EventInterpretation(None, (event.code,))
    condition = EVENT_POLICY.get(event.name)
    if event.name == DIAGNOSTIC:
        others = tuple(code for code in DIAGNOSTIC_CODES if code != event.code)
        return EventInterpretation(condition if event.code else None, others)
    if event.name in DCGM_HEALTH:
        return EventInterpretation(condition, details=(event.attributes.get("system", ""),))
    if event.attributes.get("previous_boot") == "yes":
        return EventInterpretation(condition, variant="previous boot", from_previous_boot=True)
    if event.name == OUT_OF_MEMORY and _names_cgroup_limit(event):
        return EventInterpretation(condition, variant="own limit", hit_cgroup_limit=True)
    return EventInterpretation(condition)


def _names_cgroup_limit(event: HealthEvent) -> bool:
    texts = (event.message, *event.forms, *event.attributes.values())
    return any(marker in text for marker in CGROUP_LIMIT_MARKERS for text in texts)


def _interpret_xid(event: HealthEvent, driver_version: str) -> EventInterpretation:
    table = "xid" if event.name == XID else "sxid"
    policy, variant, decoded = classify_line(event.code, event.message, driver_version, table)
    return EventInterpretation(
        None if decoded.continuation else ClearCondition(policy.clears, policy.clear_seconds),
        decoded.cancels,
        policy,
        variant,
        (decoded.words,) if decoded.words else (),
        decoded.process_name,
    )


#: Records kept per host; the lowest rank is dropped first, then the one seen longest ago.
RECORDS_PER_HOST_MAX = 64
#: Incidents distinguished per record; older ones are only counted.
INCIDENTS_MAX = 16
#: Longer messages of the driver are cut.
MESSAGE_CHARACTERS_MAX = 200


class EventTimes(NamedTuple):
    """Times of an event. Boot times are of the host's current boot."""

    first_ns: int  # its first line, boot time
    last_ns: int  # its last line, boot time
    time_ns: int  # its last line, aggregator's clock; never later than `received_ns`
    received_ns: int  # arrival at the aggregator


@dataclass(slots=True)
class CountedIncident(XidIncident):
    """An incident and its number of lines."""

    count: int = 1


@dataclass(slots=True)
class EventRecord:
    """An active event of a device."""

    host: int
    name: str
    device: str
    code: int
    boot: int
    clear_condition: ClearCondition
    variant: str = ""
    policy: Xid | None = None
    details: tuple[str, ...] = ()
    process_name: str = ""
    folded: bool = False
    from_previous_boot: bool = False
    hit_cgroup_limit: bool = False
    severity_rank: int = 0
    first_ns: int = 0  # its first line, boot time
    last_ns: int = -1  # its last line
    last_time_ns: int = 0  # the same, aggregator's clock
    message: str = ""
    incidents: dict[str, CountedIncident] = field(
        default_factory=dict[str, CountedIncident]
    )  # by event id
    count_before: int = 0  # lines of incidents that are only counted
    before_ns: int = -1  # the last of these lines

    @property
    def count(self) -> int:
        """Return the number of lines; for records that expire, only lines within that time."""
        return self.count_before + sum(incident.count for incident in self.incidents.values())

    @property
    def is_fatal(self) -> bool:
        """Return whether its policy treats the host as broken while it is active."""
        return self.severity_rank == _SEVERITY_RANKS[XidSeverity.FATAL]

    @property
    def clears_when(self) -> str:
        """Return the text of the condition that ends the record."""
        if self.name == SXID and self.clear_condition.clears is Clears.RESET:
            return "all GPUs of the host are reset, and its switches with them, or the host boots"
        if self.name == LINK:
            return "the interface is there again, or the host boots"
        if self.name == ADAPTER:
            return "its driver reports that the adapter responds again, is reloaded, or the host reboots"
        if self.name == DIAGNOSTIC:
            return f"a diagnostic of the GPU passes, or {self.clear_condition.text}"
        if self.name == LOST:
            return "the GPU responds again, is reset, or the host reboots"
        if (self.name, self.code) == (XID, RECOVERY_XID):
            return (
                f"the driver no longer asks for a recovery action, or {self.clear_condition.text}"
            )
        if self.from_previous_boot:
            return "24 hours have passed since this boot"
        return self.clear_condition.text

    def merge(
        self, event: HealthEvent, interpretation: EventInterpretation, at: EventTimes
    ) -> XidIncident:
        """Add *event*, or a later revision of it; return its incident."""
        incident = self.incidents.setdefault(
            event.event_id, CountedIncident(at.first_ns, at.last_ns, at.received_ns)
        )
        incident.count = max(incident.count, event.count)
        incident.extend(at.last_ns, at.received_ns, interpretation.policy)
        if at.last_ns >= self.last_ns:
            self._set_latest(event, interpretation, at)
        self._prune()
        return incident

    def _set_latest(
        self, event: HealthEvent, interpretation: EventInterpretation, at: EventTimes
    ) -> None:
        self.last_ns, self.last_time_ns = at.last_ns, max(self.last_time_ns, at.time_ns)
        self.policy, self.details = interpretation.policy, interpretation.details
        self.folded, self.from_previous_boot = (
            interpretation.folded,
            interpretation.from_previous_boot,
        )
        self.hit_cgroup_limit, self.severity_rank = (
            interpretation.hit_cgroup_limit,
            interpretation.severity_rank(self.name),
        )
        name, job = (
            event.process_name or interpretation.process_name,
            event.attributes.get("job", ""),
        )
        self.process_name = f"{name} of {job}"[:MESSAGE_CHARACTERS_MAX] if name and job else name
        self.message = event.message[:MESSAGE_CHARACTERS_MAX]

    def _prune(self) -> None:
        if self.clear_condition.clears is Clears.TIME:
            since_ns = self.last_ns - self.clear_condition.seconds * 1e9
            for key in [
                key for key, incident in self.incidents.items() if incident.last_ns < since_ns
            ]:
                del self.incidents[key]
            if self.before_ns < since_ns:
                self.count_before = 0
        while len(self.incidents) > INCIDENTS_MAX:
            folded = self.incidents.pop(next(iter(self.incidents)))
            self.count_before += folded.count
            self.before_ns = max(self.before_ns, folded.last_ns)


class HostLifecycle(Protocol):
    """Boots and resets of a fleet's hosts."""

    def boot_of(self, host: int) -> int: ...
    def driver_of(self, host: int, device: str) -> str: ...
    def reset_ns(self, host: int, device: str) -> int: ...


RecordKey = tuple[str, str, int, str]  # name, device, code, variant


@dataclass(slots=True)
class HostEvents:
    """Records of a host in its current boot."""

    boot: int
    records: dict[RecordKey, EventRecord] = field(default_factory=dict[RecordKey, EventRecord])
    #: (name, device, code) -> boot time until which it was canceled.
    cleared_until_ns: dict[tuple[str, str, int], int] = field(
        default_factory=dict[tuple[str, str, int], int]
    )

    def clear(self, name: str, device: str, code: int, until_ns: int) -> None:
        """Cancel events until *until_ns*, also if they are reported again."""
        cleared = name, device, code
        until_ns = max(until_ns, self.cleared_until_ns.pop(cleared, until_ns))
        self.cleared_until_ns[cleared] = until_ns
        if len(self.cleared_until_ns) > RECORDS_PER_HOST_MAX:
            self.cleared_until_ns.pop(next(iter(self.cleared_until_ns)))
        for key in [k for k, r in self.records.items() if k[:3] == cleared]:
            if self.records[key].last_ns <= until_ns:
                del self.records[key]

    def add(self, record: EventRecord) -> None:
        """Add *record*; over the limit, drop the lowest rank."""
        self.records[record.name, record.device, record.code, record.variant] = record
        if len(self.records) > RECORDS_PER_HOST_MAX:
            lowest = min(
                self.records.items(), key=lambda item: (item[1].severity_rank, item[1].last_ns)
            )
            del self.records[lowest[0]]

    def same_device_incidents(
        self, record: EventRecord
    ) -> Iterator[tuple[Xid, Iterable[XidIncident]]]:
        """Yield the other records with a policy of the same device, with their incidents."""
        for other in self.records.values():
            same = (other.name, other.device) == (record.name, record.device)
            if same and other is not record and other.policy is not None:
                yield other.policy, other.incidents.values()


class ActiveEvents:
    """Records by host. `record` adds events, `expire` removes records that are over."""

    def __init__(self) -> None:
        self._hosts: dict[int, HostEvents] = {}

    def record(
        self, host: int, device: str, event: HealthEvent, at: EventTimes, fleet: HostLifecycle
    ) -> bool:
        """Add *event* of *device* to its record.

        Return whether this made a fatal fault active.
        """
        interpretation = interpret_event(event, fleet.driver_of(host, device))
        boot = fleet.boot_of(host)
        host_events = self._hosts.get(host)
        if host_events is None or host_events.boot != boot:
            host_events = self._hosts[host] = HostEvents(boot)
        for code in interpretation.clears_codes:
            host_events.clear(event.name, device, code, at.last_ns)
        if (event.name, event.code) == (XID, RECOVERY_XID):  # replaces the previous request
            host_events.clear(event.name, device, event.code, at.last_ns - 1)
        cleared_until_ns = host_events.cleared_until_ns.get((event.name, device, event.code), -1)
        if interpretation.clear_condition is None or at.last_ns <= cleared_until_ns:
            return False
        existing = host_events.records.get((event.name, device, event.code, interpretation.variant))
        record = existing or EventRecord(
            host, event.name, device, event.code, boot, interpretation.clear_condition, interpretation.variant,
            first_ns=at.first_ns,
        )  # fmt: skip
        was_fatal = existing is not None and record.is_fatal
        incident = record.merge(event, interpretation, at)
        if _is_over(record, fleet, at.received_ns):
            return False
        if existing is None:
            host_events.add(record)
        if record.policy is not None:
            note_neighbours(record.policy, incident, host_events.same_device_incidents(record))
        return record.is_fatal and not was_fatal

    def expire(self, fleet: HostLifecycle, now_ns: int) -> None:
        """Remove records that a boot, a reset or time has ended."""
        for host in list(self._hosts):
            host_events = self._hosts[host]
            if fleet.boot_of(host) != host_events.boot:
                del self._hosts[host]
                continue
            records = host_events.records
            for record in records.values():  # the clock may have been set back
                record.last_time_ns = min(record.last_time_ns, now_ns)
            for key in [k for k, r in records.items() if _is_over(r, fleet, now_ns)]:
                del records[key]
            if not records and not host_events.cleared_until_ns:
                del self._hosts[host]

    def apply_clock_jump(self, jump_ns: int, before_ns: int, *, suspended: bool = False) -> None:
        """Adjust records until *before_ns* to a clock set forward. *suspended*: see
        `Fleet.apply_clock_jump`.
        """
        for record in self:
            if record.last_time_ns <= before_ns and not suspended:
                record.last_time_ns += jump_ns
            for incident in record.incidents.values():
                if incident.received_ns <= before_ns:
                    incident.received_ns += jump_ns
                if 0 < incident.last_received_ns <= before_ns:
                    incident.last_received_ns += jump_ns

    def __iter__(self) -> Iterator[EventRecord]:
        for host_events in self._hosts.values():
            yield from host_events.records.values()

    def by_name(self, name: str) -> Iterable[EventRecord]:
        return [record for record in self if record.name == name]


def _is_over(record: EventRecord, fleet: HostLifecycle, now_ns: int) -> bool:
    if record.clear_condition.clears is Clears.TIME:
        return now_ns - record.last_time_ns > record.clear_condition.seconds * 1e9
    if record.clear_condition.clears is not Clears.RESET:
        return False
    return fleet.reset_ns(record.host, record.device) >= record.last_ns


#: Devices per host whose messages are kept.
DEVICES_PER_HOST_MAX = 64
HANG_MESSAGE_CHARACTERS_MAX = 240
CALL_CHARACTERS_MAX = 80
SECOND_NS = 1_000_000_000
#: If an agent reports a longer call, its beginning is unknown.
SECONDS_MAX = 86_400
EVENTS = ("probe.hung", "probe.driver_hung")


class Hang(NamedTuple):
    """The call in which a device hangs, as its agent reported; `probe_1s` has only numbers."""

    collector: str
    message: str
    call: str
    since_ns: int  # beginning of the call, aggregator's clock; 0: unknown


NO_HANG = Hang("", "", "", 0)


class Hangs:
    """The latest message for each row of `probe_1s`."""

    def __init__(self) -> None:
        self._hosts: dict[int, dict[str, Hang]] = {}

    def update(self, host: int, event: HealthEvent, time_ns: int) -> None:
        """Store one of `EVENTS`, reported at *time_ns* of the aggregator's clock."""
        group, device = event.attributes.get("lane", ""), event.attributes.get("device", "")
        collector = event.attributes.get("collector", "")
        is_whole_driver = event.name == "probe.driver_hung" and group == "gpu"
        row = group if is_whole_driver else f"{group} {device or collector}"
        hangs = self._hosts.setdefault(host, {})
        hangs.pop(row, None)
        while len(hangs) >= DEVICES_PER_HOST_MAX:
            del hangs[next(iter(hangs))]  # the oldest
        message, call = (
            event.message[:HANG_MESSAGE_CHARACTERS_MAX],
            event.attributes.get("call", ""),
        )
        began_ns = max(0, time_ns - event.code * SECOND_NS) if event.code <= SECONDS_MAX else 0
        hangs[row] = Hang(collector, message, call[:CALL_CHARACTERS_MAX], began_ns)

    def of(self, host: int, row: str) -> Hang:
        """Return the hang of a row, NO_HANG if there is none."""
        return self._hosts.get(host, {}).get(row, NO_HANG)
