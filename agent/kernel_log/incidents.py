"""Incidents: a storm of lines that say the same is one event, told at once and then at a bounded pace.

One incident is one event name, device, code and scope (an XID of one code on one GPU). It is told with
its first line; then, while lines go on, after 1 s, 10 s and every 60 s, as higher revisions of the same
event with the count so far; and once more when it has ended, which it has when its lines were silent for
60 s *of their own time*. When a new one begins on a device, those that go on there are told again with
their next line, for one may explain the other: XID 94 of long ago says nothing of XID 48, 94 beside it
says all. That is longer than the 30 to 60 s after which a driver repeats itself about one
hang, and shorter than anybody's idea of two troubles. Another process in the line is not another incident:
many pollers run into one hung GPU; each is noted. Another code or device always is.

Times are nanoseconds of boot time, handed in. No I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...contract.wire.telemetry_pb2 import HealthEvent
from ...contract.xid.policy import Severity, lookup
from .record import (
    ATTRIBUTES_MAX,
    LINE_CHARACTERS_MAX,
    VALUE_CHARACTERS_MAX,
    Forms,
    Notice,
    Part,
    printable,
)

SECOND_NS = 1_000_000_000
#: Silence that ends an incident.
QUIET_NS = 60 * SECOND_NS
#: Within this, one code explains another (`wait_seconds` of `xid.toml`).
BESIDE_NS = 5 * SECOND_NS
#: When an incident that goes on is told again, from the time it was told before. The last stays.
PACE_NS = (1 * SECOND_NS, 10 * SECOND_NS, 60 * SECOND_NS)
#: Incidents open at once. Those with a scope (links, control groups) may take half of it. What comes on
#: top is folded: first the scopes of one device and code into one, then all of one event name.
OPEN_MAX = 256
#: So many of one name are kept apart whatever the other names do: flapping interfaces hide no XID 79.
OPEN_OF_NAME_MIN = 32
#: No more than this are ever open: the names are some twenty, and a fatal XID is never folded with others.
ALL_OPEN_MAX = 4 * OPEN_MAX
FOLDED = "folded"
#: Processes named in the lines of one incident that are kept.
PROCESSES_MAX = 8
#: Added to the revision of an incident taken up after a restart: what was told just before may not
#: have been noted.
REVISION_SKIP = 16
_REVISION_MAX = (1 << 32) - 1
#: Nobody counts further: a million lines a second for thirty years.
COUNT_MAX = 10**15

#: What tells one incident from another: event name, device, code, scope.
Key = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log with what it tells. `boottime_ns` is when it was written."""

    notice: Notice
    text: str
    boottime_ns: int
    wall_ns: int
    event_id: str  # of the incident, should it begin here


@dataclass(slots=True)
class Incident:
    """One event in the making. `event` is as it would be told now, but for what `refresh` brings up."""

    key: Key
    event: HealthEvent
    forms: Forms
    processes: dict[str, None] = field(default_factory=dict)
    headed: bool = False  # a head was counted whose body has not come
    changed: bool = False  # since it was told last
    hurried: bool = False  # its next line is told soon
    tellings: int = 0
    told_ns: int = 0
    tell_ns: int = 0  # not before

    def refresh(self) -> HealthEvent:
        """Return a copy of the event, brought up to date."""
        event = self.event
        del event.forms[:]
        event.forms.extend(self.forms.words)
        event.forms_count = self.forms.count
        if len(self.processes) > 1:
            event.attributes["processes"] = ", ".join(self.processes)[:VALUE_CHARACTERS_MAX]
        copy = HealthEvent()
        copy.CopyFrom(event)
        return copy


class Incidents:
    """All incidents that are open. Memory is bounded by OPEN_MAX, whatever the lines say."""

    def __init__(self) -> None:
        self._open: dict[Key, Incident] = {}
        self._names: Counter[str] = Counter()  # of those that are open
        self._last: dict[str, Incident] = {}  # by group: whose detail lines may follow

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Incident]:
        return iter(self._open.values())

    def take(self, line: Line, now_ns: int) -> list[HealthEvent]:
        """Return what must be told at once: the end of the incident before, and a new one."""
        if line.notice.part is Part.DETAIL or self._is_body_of_last(line.notice):
            self._detail(line)
            return []
        key = self._key(line.notice)
        told: list[HealthEvent] = []
        incident = self._open.get(key)
        if incident and line.boottime_ns - incident.event.last_boottime_ns > QUIET_NS:
            told += self._close(incident)
            incident = None
        if incident is None:
            self._hurry(key, line.boottime_ns)
            incident = self._begin(key, line, now_ns)
            told.append(incident.refresh())
        else:
            if line.boottime_ns - incident.event.last_boottime_ns > BESIDE_NS:
                self._hurry(
                    key, line.boottime_ns
                )  # what explains the lines before says nothing of it
            _count(incident, line)
        if line.notice.group and incident.key[3] != FOLDED:
            self._last[line.notice.group] = incident
        return told

    def is_open(self, notice: Notice) -> bool:
        """Say whether what *notice* tells goes on already."""
        return (notice.name, notice.device, notice.code, notice.scope) in self._open

    def _key(self, notice: Notice) -> Key:
        key = (notice.name, notice.device, notice.code, notice.scope)
        if key in self._open or self._has_room(notice.name, OPEN_MAX // (2 if notice.scope else 1)):
            return key
        if _is_fatal(notice) and len(self._open) < ALL_OPEN_MAX:
            return (notice.name, notice.device, notice.code, FOLDED if notice.scope else "")
        key = (notice.name, notice.device, notice.code, FOLDED)
        if key in self._open or (notice.scope and self._has_room(notice.name, OPEN_MAX)):
            return key
        return (notice.name, "host", 0, FOLDED)

    def _has_room(self, name: str, open_max: int) -> bool:
        return len(self._open) < open_max or self._names[name] < OPEN_OF_NAME_MIN

    def _hurry(self, key: Key, log_ns: int) -> None:
        """Let what goes on beside a new incident be told with its next line, or its last if just come."""
        for each in self._open.values():
            if each.key[:2] == key[:2] and key[1] != "host":
                each.hurried = True
                if log_ns - each.event.last_boottime_ns <= BESIDE_NS:
                    _hasten(each)

    def _begin(self, key: Key, line: Line, now_ns: int) -> Incident:
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
            count=min(line.notice.occurrences, COUNT_MAX),
            last_boottime_ns=line.boottime_ns,
            process_id=line.notice.process_id,
            process_name=line.notice.process_name,
        )
        if key[3] == FOLDED:
            event.attributes["folded"] = f"more than {OPEN_MAX} incidents at once"
        incident = Incident(key, event, Forms(), headed=line.notice.part is Part.HEAD)
        incident.told_ns, incident.tell_ns = now_ns, now_ns + PACE_NS[0]
        _describe(incident, line)
        self._keep(incident)
        return incident

    def _keep(self, incident: Incident) -> None:
        self._open[incident.key] = incident
        self._names[incident.key[0]] += 1

    def _is_body_of_last(self, notice: Notice) -> bool:
        """Say whether the line only tells more of the occurrence whose head was just counted.

        Its scope may be missing (only the head of an out-of-memory kill names the cgroup), but never
        does what is uncorrected hide behind a head that announced something corrected.
        """
        last = self._last.get(notice.group) if notice.part is Part.BODY else None
        return (
            last is not None
            and last.headed
            and last.key[:3] == (notice.name, notice.device, notice.code)
        )

    def _detail(self, line: Line) -> None:
        incident = self._last.get(line.notice.group)
        if incident is None or line.boottime_ns - incident.event.last_boottime_ns > QUIET_NS:
            return
        if not incident.event.process_name:
            incident.event.process_id = line.notice.process_id
            incident.event.process_name = line.notice.process_name
        _describe(incident, line)
        incident.headed = incident.headed and line.notice.part is Part.DETAIL
        incident.changed = True

    def due(self, now_ns: int, log_ns: int) -> list[HealthEvent]:
        """Return what is to be told now: incidents that went on, and the ends of those that ended.

        *log_ns* is how far the log has been read: the present once nothing is left to read.
        """
        told: list[HealthEvent] = []
        for incident in list(self._open.values()):
            if log_ns - incident.event.last_boottime_ns > QUIET_NS:
                told += self._close(incident)
            elif incident.changed and now_ns >= incident.tell_ns:
                told += _tell_again(incident, now_ns)
        return told

    def next_ns(self) -> int | None:
        """When `due` has something to do at the earliest, if no line comes; None: never."""
        times = [
            min(each.tell_ns, end) if each.changed else end
            for each in self._open.values()
            for end in (each.event.last_boottime_ns + QUIET_NS + 1,)
        ]
        return min(times, default=None)

    def rest(self, now_ns: int) -> list[HealthEvent]:
        """Return all that was not told yet, and keep all open: the agent is about to end."""
        return [event for each in self for event in _tell_again(each, now_ns)]

    def _close(self, incident: Incident) -> list[HealthEvent]:
        if self._open.pop(incident.key, None):
            self._names[incident.key[0]] -= 1
        for group in [group for group, last in self._last.items() if last is incident]:
            del self._last[group]
        return _tell_again(incident, 0)

    def restore(self, key: Key, event: HealthEvent, now_ns: int) -> None:
        """Take up an incident that was open when the agent ended. Its count may not have been told."""
        event.revision = min(event.revision + REVISION_SKIP, _REVISION_MAX)
        incident = Incident(key, event, Forms(event.forms, event.forms_count), changed=True)
        incident.tellings, incident.tell_ns = len(PACE_NS), now_ns + PACE_NS[0]
        if len(self._open) < ALL_OPEN_MAX and key not in self._open:
            self._keep(incident)

    def clear(self) -> None:
        """Forget all: they are of another log."""
        self._open.clear()
        self._names.clear()
        self._last.clear()


def _hasten(incident: Incident) -> None:
    """Tell it soon, yet no oftener than each second."""
    incident.hurried = False
    incident.tell_ns = min(incident.tell_ns, incident.told_ns + PACE_NS[0])


def _is_fatal(notice: Notice) -> bool:
    """Say whether the policy calls it fatal: among hundreds of incidents that is the one to be seen."""
    return notice.name == "gpu.xid" and lookup(notice.code).severity is Severity.FATAL


def _count(incident: Incident, line: Line) -> None:
    """One more line of an incident. This is what a storm runs through."""
    if incident.hurried:
        _hasten(incident)
    event = incident.event
    event.count = min(event.count + line.notice.occurrences, COUNT_MAX)
    incident.headed = line.notice.part is Part.HEAD
    event.last_boottime_ns = max(event.last_boottime_ns, line.boottime_ns)
    incident.changed = True
    _describe(incident, line)


def _describe(incident: Incident, line: Line) -> None:
    notice = line.notice
    incident.forms.add(line.text)
    if notice.attributes:
        _merge(incident.event.attributes, notice.attributes)
    if notice.process_id and len(incident.processes) < PROCESSES_MAX:
        incident.processes[f"{notice.process_name or '?'}[{notice.process_id}]"] = None


def _merge(attributes: Mapping[str, str], more: Mapping[str, str]) -> None:
    """The first that was said stays: it is nearest to the cause."""
    for name, value in more.items():
        if name not in attributes and len(attributes) < ATTRIBUTES_MAX - 1:  # one for `processes`
            attributes[name] = value  # type: ignore[index]


def _tell_again(incident: Incident, now_ns: int) -> list[HealthEvent]:
    if not incident.changed:
        return []
    incident.changed = False
    incident.event.revision = min(incident.event.revision + 1, _REVISION_MAX)
    incident.tellings += 1
    wait_ns = PACE_NS[min(incident.tellings, len(PACE_NS) - 1)]
    incident.told_ns, incident.tell_ns = now_ns, now_ns + wait_ns
    return [incident.refresh()]
