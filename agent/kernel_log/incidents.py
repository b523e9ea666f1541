"""Groups log lines into incidents, reported at once and then at a limited rate.

An incident is one event name, device, code and scope (for example, one XID code on one GPU). Its
first line is reported at once. While lines continue, it is reported again after 1 s, after 10 s and
every 60 s, as higher revisions of the same event with the count so far. It ends, with a last
report, when no line has come for 60 s *by the lines' own time*. This is longer than the 30 to 60 s
after which a driver repeats itself about a hang, and short enough to separate two faults.

When a new incident begins on a device, its other open incidents are reported again with their next
line, because they may explain each other: an old XID 94 does not explain XID 48, but XID 94 beside
XID 48 does. Another process in the line does not make another incident, because many pollers run
into a hung GPU; each process is recorded. Another code or device always makes another incident.

Times are nanoseconds of boot time, given by the caller. No I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...contract.wire.telemetry_pb2 import HealthEvent
from ...contract.xid.policy import XidSeverity, lookup
from .record import (
    ATTRIBUTES_MAX,
    LINE_CHARACTERS_MAX,
    VALUE_CHARACTERS_MAX,
    LinePart,
    MessageTemplates,
    ParsedLine,
    printable,
)

SECOND_NS = 1_000_000_000
#: Silence that ends an incident.
QUIET_NS = 60 * SECOND_NS
#: Within this time one code explains another (`wait_seconds` of `xid.toml`).
RELATED_NS = 5 * SECOND_NS
#: Delays between reports of a continuing incident. The last delay is repeated.
REPORT_INTERVALS_NS = (1 * SECOND_NS, 10 * SECOND_NS, 60 * SECOND_NS)
#: Open incidents; incidents with a scope (links, control groups) may be half of them. Further ones
#: are folded: first the scopes of one device and code, then all of one event name.
OPEN_MAX = 256
#: Incidents of a name that are never folded: flapping interfaces hide no XID 79.
OPEN_OF_NAME_MIN = 32
#: Absolute maximum. There are some twenty names, and a fatal XID is not folded with others.
ALL_OPEN_MAX = 4 * OPEN_MAX
FOLDED = "folded"
#: Processes recorded per incident.
PROCESSES_MAX = 8
#: Added to the revision of an incident that is restored after a restart: its last reports may not
#: be in the checkpoint.
REVISION_SKIP = 16
_REVISION_MAX = (1 << 32) - 1
#: Maximum count: a million lines per second for thirty years.
COUNT_MAX = 10**15

#: Event name, device, code, scope of an incident.
Key = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A parsed line of the log. `boottime_ns`: when it was written."""

    parsed: ParsedLine
    text: str
    boottime_ns: int
    wall_ns: int
    event_id: str  # id of the incident if it begins here


@dataclass(slots=True)
class OpenIncident:
    """An incident. `event` is the next report, except for the fields that `refresh` sets."""

    key: Key
    event: HealthEvent
    templates: MessageTemplates
    processes: dict[str, None] = field(default_factory=dict)
    awaits_body: bool = False  # the body of the last head has not come
    has_changed: bool = False  # since it was last reported
    is_urgent: bool = False  # its next line is reported soon
    reports: int = 0
    reported_ns: int = 0
    report_ns: int = 0  # earliest next report

    def refresh(self) -> HealthEvent:
        """Return a copy of the event with current fields."""
        event = self.event
        del event.forms[:]
        event.forms.extend(self.templates.texts)
        event.forms_count = self.templates.count
        if len(self.processes) > 1:
            event.attributes["processes"] = ", ".join(self.processes)[:VALUE_CHARACTERS_MAX]
        copy = HealthEvent()
        copy.CopyFrom(event)
        return copy


class IncidentTracker:
    """All open incidents. Memory is bounded by ALL_OPEN_MAX, whatever the lines are."""

    def __init__(self) -> None:
        self._open: dict[Key, OpenIncident] = {}
        self._names: Counter[str] = Counter()  # open incidents per name
        self._last: dict[str, OpenIncident] = {}  # by group: incident to which detail lines belong

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenIncident]:
        return iter(self._open.values())

    def add(self, line: LogLine, now_ns: int) -> list[HealthEvent]:
        """Return the events to report at once: the end of the incident before, and a new one."""
        part = line.parsed.part
        is_detail = part is LinePart.DETAIL or (
            part is LinePart.OUTCOME and self._is_outcome_of_last(line)
        )
        if is_detail or self._is_body_of_last(line.parsed):
            self._add_detail(line)
            return []
        key = self._key(line.parsed)
        events: list[HealthEvent] = []
        incident = self._open.get(key)
        if incident and line.boottime_ns - incident.event.last_boottime_ns > QUIET_NS:
            events += self._close(incident)
            incident = None
        if incident is None:
            self._expedite_related(key, line.boottime_ns)
            incident = self._begin(key, line, now_ns)
            events.append(incident.refresh())
        else:
            if line.boottime_ns - incident.event.last_boottime_ns > RELATED_NS:
                # The cause of earlier lines does not explain this one
                self._expedite_related(key, line.boottime_ns)
            _count(incident, line)
        if line.parsed.group and incident.key[3] != FOLDED:
            self._last[line.parsed.group] = incident
        return events

    def is_open(self, parsed: ParsedLine) -> bool:
        return (parsed.name, parsed.device, parsed.code, parsed.scope) in self._open

    def has_job(self, parsed: ParsedLine) -> bool:
        """Return whether the incident that *parsed* continues already names a job."""
        incident = self._open.get((parsed.name, parsed.device, parsed.code, parsed.scope))
        return incident is not None and "job" in incident.event.attributes

    def _key(self, parsed: ParsedLine) -> Key:
        key = (parsed.name, parsed.device, parsed.code, parsed.scope)
        if key in self._open or self._has_room(parsed.name, OPEN_MAX // (2 if parsed.scope else 1)):
            return key
        if _is_fatal(parsed) and len(self._open) < ALL_OPEN_MAX:
            return (parsed.name, parsed.device, parsed.code, FOLDED if parsed.scope else "")
        key = (parsed.name, parsed.device, parsed.code, FOLDED)
        if key in self._open or (parsed.scope and self._has_room(parsed.name, OPEN_MAX)):
            return key
        return (parsed.name, "host", 0, FOLDED)

    def _has_room(self, name: str, open_max: int) -> bool:
        return len(self._open) < open_max or self._names[name] < OPEN_OF_NAME_MIN

    def _expedite_related(self, key: Key, log_ns: int) -> None:
        """Report the device's other incidents with their next line, or now if just counted."""
        for incident in self._open.values():
            if incident.key[:2] == key[:2] and key[1] != "host":
                incident.is_urgent = True
                if log_ns - incident.event.last_boottime_ns <= RELATED_NS:
                    _expedite(incident)

    def _begin(self, key: Key, line: LogLine, now_ns: int) -> OpenIncident:
        name, device, code, _ = key
        event = HealthEvent(
            event_id=line.event_id,
            device_kind=name.partition(".")[0],
            device=device,
            name=name,
            code=code,
            message=printable(line.text, LINE_CHARACTERS_MAX),
            boottime_ns=line.boottime_ns,
            wall_time_ns=line.wall_ns,
            count=min(line.parsed.occurrences, COUNT_MAX),
            last_boottime_ns=line.boottime_ns,
            process_id=line.parsed.process_id,
            process_name=line.parsed.process_name,
        )
        if key[3] == FOLDED:
            event.attributes["folded"] = f"more than {OPEN_MAX} incidents at once"
        incident = OpenIncident(
            key, event, MessageTemplates(), awaits_body=line.parsed.part is LinePart.HEAD
        )
        incident.reported_ns, incident.report_ns = now_ns, now_ns + REPORT_INTERVALS_NS[0]
        _add_description(incident, line)
        self._add_open(incident)
        return incident

    def _add_open(self, incident: OpenIncident) -> None:
        self._open[incident.key] = incident
        self._names[incident.key[0]] += 1

    def _is_body_of_last(self, parsed: ParsedLine) -> bool:
        """Return whether the line is the body of the occurrence whose head was counted last.

        Its scope may be missing (only the head of an out-of-memory kill names the cgroup). The
        codes must match: an uncorrected error is not hidden by a head that announced a corrected
        one.
        """
        last = self._last.get(parsed.group) if parsed.part is LinePart.BODY else None
        return (
            last is not None
            and last.awaits_body
            and last.key[:3] == (parsed.name, parsed.device, parsed.code)
        )

    def _is_outcome_of_last(self, line: LogLine) -> bool:
        """Return whether the line is the outcome of the last occurrence.

        A corrected error (code 0) has no outcome.
        """
        return self._has_recent(line) and self._last[line.parsed.group].key[2] != 0

    def _has_recent(self, line: LogLine) -> bool:
        """Return whether the group of *line* has a recent occurrence."""
        incident = self._last.get(line.parsed.group)
        return (
            incident is not None and line.boottime_ns - incident.event.last_boottime_ns <= QUIET_NS
        )

    def _add_detail(self, line: LogLine) -> None:
        if not self._has_recent(line):
            return
        incident = self._last[line.parsed.group]
        _name_process(incident.event, line.parsed)
        _add_description(incident, line)
        incident.awaits_body = incident.awaits_body and line.parsed.part is LinePart.DETAIL
        incident.has_changed = True

    def due(self, now_ns: int, log_ns: int) -> list[HealthEvent]:
        """Return the events to report now: incidents that continued, and those that ended.

        *log_ns*: time up to which the log was read; the present once it is read to its end.
        """
        events: list[HealthEvent] = []
        for incident in list(self._open.values()):
            if log_ns - incident.event.last_boottime_ns > QUIET_NS:
                events += self._close(incident)
            elif incident.has_changed and now_ns >= incident.report_ns:
                events += _report_again(incident, now_ns)
        return events

    def next_ns(self) -> int | None:
        """Return the earliest time at which `due` has work if no line comes; None: never."""
        times = [
            min(incident.report_ns, end) if incident.has_changed else end
            for incident in self._open.values()
            for end in (incident.event.last_boottime_ns + QUIET_NS + 1,)
        ]
        return min(times, default=None)

    def flush(self, now_ns: int) -> list[HealthEvent]:
        """Return all unreported changes, before the agent exits; the incidents stay open."""
        return [event for incident in self for event in _report_again(incident, now_ns)]

    def _close(self, incident: OpenIncident) -> list[HealthEvent]:
        if self._open.pop(incident.key, None):
            self._names[incident.key[0]] -= 1
        for group in [group for group, last in self._last.items() if last is incident]:
            del self._last[group]
        return _report_again(incident, 0)

    def restore(self, key: Key, event: HealthEvent, now_ns: int) -> None:
        """Restore an incident that was open when the agent exited. Its count may be unreported."""
        event.revision = min(event.revision + REVISION_SKIP, _REVISION_MAX)
        incident = OpenIncident(
            key, event, MessageTemplates(event.forms, event.forms_count), has_changed=True
        )
        incident.reports = len(REPORT_INTERVALS_NS)
        incident.report_ns = now_ns + REPORT_INTERVALS_NS[0]
        if len(self._open) < ALL_OPEN_MAX and key not in self._open:
            self._add_open(incident)

    def clear(self) -> None:
        """Forget all incidents: another log begins."""
        self._open.clear()
        self._names.clear()
        self._last.clear()


def _expedite(incident: OpenIncident) -> None:
    """Report it soon, but at most once a second."""
    incident.is_urgent = False
    incident.report_ns = min(incident.report_ns, incident.reported_ns + REPORT_INTERVALS_NS[0])


def _is_fatal(parsed: ParsedLine) -> bool:
    """Return whether the policy calls the XID fatal: it must stay visible among hundreds."""
    return parsed.name == "gpu.xid" and lookup(parsed.code).severity is XidSeverity.FATAL


def _count(incident: OpenIncident, line: LogLine) -> None:
    """Count a line of an incident. A storm spends its time here."""
    if incident.is_urgent:
        _expedite(incident)
    event = incident.event
    event.count = min(event.count + line.parsed.occurrences, COUNT_MAX)
    incident.awaits_body = line.parsed.part is LinePart.HEAD
    event.last_boottime_ns = max(event.last_boottime_ns, line.boottime_ns)
    incident.has_changed = True
    _name_process(event, line.parsed)
    _add_description(incident, line)


def _name_process(event: HealthEvent, parsed: ParsedLine) -> None:
    """Set the process if no earlier line named one: XID 13 names it in its last line."""
    if not event.process_id and parsed.process_id:
        event.process_id, event.process_name = parsed.process_id, parsed.process_name


def _add_description(incident: OpenIncident, line: LogLine) -> None:
    parsed = line.parsed
    incident.templates.add(line.text)
    if parsed.attributes:
        _merge(incident.event.attributes, parsed.attributes)
    if parsed.process_id and len(incident.processes) < PROCESSES_MAX:
        incident.processes[f"{parsed.process_name or '?'}[{parsed.process_id}]"] = None


def _merge(attributes: Mapping[str, str], more: Mapping[str, str]) -> None:
    """Add attributes; an earlier value stays, because it is nearer to the cause."""
    for name, value in more.items():
        # Keep one free for `processes`
        if name not in attributes and len(attributes) < ATTRIBUTES_MAX - 1:
            attributes[name] = value  # type: ignore[index]


def _report_again(incident: OpenIncident, now_ns: int) -> list[HealthEvent]:
    if not incident.has_changed:
        return []
    incident.has_changed = False
    incident.event.revision = min(incident.event.revision + 1, _REVISION_MAX)
    incident.reports += 1
    wait_ns = REPORT_INTERVALS_NS[min(incident.reports, len(REPORT_INTERVALS_NS) - 1)]
    incident.reported_ns, incident.report_ns = now_ns, now_ns + wait_ns
    return [incident.refresh()]
