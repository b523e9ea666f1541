"""Active events: one record per device and kind of event that was reported and has not ended.

A record ends when its condition is over: the host rebooted, the device was reset, the event did not recur for a given time,
or another event cancels it. Time is when an event happened, on the host's boot clock, and never when it arrived: an event that an
agent kept through an outage, repeats, or finds in the kernel's ring at its first start keeps its original time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...contract.wire.telemetry_pb2 import HealthEvent
from ...contract.xid.incidents import RECOVERY_XID, XidIncident, note_neighbours
from ...contract.xid.policy import Clears, Xid, XidSeverity
from ..rule_declaration import ClearCondition
from .event_interpretation import (
    ADAPTER,
    DIAGNOSTIC,
    ISOLATION,
    LINK,
    LOST,
    SEVERITY_RANKS,
    SXID,
    XID,
    EventInterpretation,
    interpret_event,
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
    incidents: dict[str, CountedIncident] = field(default_factory=dict)  # by event id
    count_before: int = 0  # lines of incidents that are only counted
    before_ns: int = -1  # the last of these lines

    @property
    def count(self) -> int:
        """Return the number of lines; for records that expire, only lines within that time."""
        return self.count_before + sum(incident.count for incident in self.incidents.values())

    @property
    def is_fatal(self) -> bool:
        """Return whether its policy treats the host as broken while it is active."""
        return self.severity_rank == SEVERITY_RANKS[XidSeverity.FATAL]

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
        if self.name == ISOLATION:
            return "the boundaries hold again, or one of the jobs ends"
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
        self.folded = interpretation.folded
        self.from_previous_boot = interpretation.from_previous_boot
        self.hit_cgroup_limit, self.severity_rank = (
            interpretation.hit_cgroup_limit,
            interpretation.severity_rank(self.name),
        )
        name = event.process_name or interpretation.process_name
        job = event.attributes.get("job", "")
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
    records: dict[RecordKey, EventRecord] = field(default_factory=dict)
    #: (name, device, code) -> boot time until which it was canceled.
    cleared_until_ns: dict[tuple[str, str, int], int] = field(default_factory=dict)

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
        """Add *event* to the device's record; return whether it made a fatal fault active."""
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

    def forget(self, host: int) -> None:
        """Remove the records of a host that has booted."""
        self._hosts.pop(host, None)

    def apply_clock_jump(self, jump_ns: int, before_ns: int, *, suspended: bool = False) -> None:
        """Adjust records until *before_ns* to a clock jump (`Fleet.apply_clock_jump`)."""
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
