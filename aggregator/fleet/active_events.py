"""What was reported and still stands: one record per device and kind of event, however often it was written.

A record ends when what it says is over: the host booted, the device was reset, it did not come again for
so long, or another event takes it back (`active_events.py`). All of that goes by when an event happened, on
the host's boot clock, and never by when it reached us: what an agent kept through an outage, tells again,
or finds in the kernel's ring at its first start is as old as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...contract.xid.incidents import RECOVERY, Incident, coded, note_neighbours
from ...contract.xid.policy import Clears, Severity, Xid
from ..model import EventLike

# ----------------------------------------------------------------------
# What one event says by itself, and what ends it: the table of events, and the policies of XIDs and
# SXIDs.

XID, SXID, LINK, LOST = "gpu.xid", "nvswitch.sxid", "net.link", "gpu.lost"
ADAPTER = "rdma.adapter_failed"
OUT_OF_MEMORY = "host.out_of_memory"
#: Codes of net.link.
REMOVED, APPEARED = 2, 3
#: The kernel's words for a program that met the limit of its own control group.
OWN_LIMIT = ("CONSTRAINT_MEMCG", "Memory cgroup out of memory")

TEN_MINUTES, HOUR, DAY = 600.0, 3600.0, 86_400.0


class Ending(NamedTuple):
    """What ends a record: `seconds` without another one, for Clears.TIME."""

    clears: Clears
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """What ends it, for people."""
        if self.clears is Clears.RESET:
            return "the GPU is reset, or the host boots"
        if self.clears is Clears.REBOOT:
            return "the host boots"
        return f"it does not come again for {_span(self.seconds)}"


def _span(seconds: float) -> str:
    if seconds < 2 * HOUR:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / HOUR:.0f} hours"


#: Name of an event -> what ends it. Events that are not here, such as a link that came up, are left to
#: the store and to the readings that tell the same.
ENDINGS: Mapping[str, Ending] = {
    LOST: Ending(Clears.RESET),
    "gpu.driver_message": Ending(Clears.TIME, TEN_MINUTES),
    "gpu.driver_event": Ending(Clears.TIME, TEN_MINUTES),
    "pcie.aer": Ending(Clears.TIME, TEN_MINUTES),
    "host.hardware_error": Ending(Clears.TIME, DAY),
    "host.machine_check": Ending(Clears.TIME, DAY),
    "host.memory_error": Ending(Clears.TIME, DAY),
    OUT_OF_MEMORY: Ending(Clears.TIME, TEN_MINUTES),
    "host.hung_task": Ending(Clears.TIME, TEN_MINUTES),
    "host.lockup": Ending(Clears.TIME, HOUR),
    "host.kernel_fault": Ending(Clears.REBOOT),
    "host.kernel_log_lost": Ending(Clears.TIME, TEN_MINUTES),
    "rdma.driver_error": Ending(Clears.TIME, TEN_MINUTES),
    ADAPTER: Ending(Clears.REBOOT),
    "filesystem.error": Ending(Clears.TIME, HOUR),
    "disk.error": Ending(Clears.TIME, HOUR),
    LINK: Ending(Clears.REBOOT),
}

_GRAVITY = {Severity.FATAL: 3, Severity.HAZARD: 2}


class Meaning(NamedTuple):
    """What one event says: under its policy (`row`, of XIDs and SXIDs) and by what was decoded of it."""

    ending: Ending | None  # None: it leaves nothing standing
    takes_back: tuple[int, ...] = ()  # codes of the same device
    row: Xid | None = None
    variant: str = ""  # what tells it from another event of the same device and code
    words: tuple[str, ...] = ()
    process: str = ""  # named in the line: it met the fault, and need not be its cause
    folded: bool = (
        False  # it stands for events of its name that were too many: its code says nothing
    )
    before_boot: bool = False  # the boot before met it; this one only found the record
    own_limit: bool = False  # a program was killed at its own limit: the workload's doing

    def gravity(self, name: str) -> int:
        """Return of how much weight it is that it stands: what is of the least is forgotten first."""
        if self.row is not None:
            return _GRAVITY.get(self.row.severity, 0)
        if name == LOST:
            return _GRAVITY[Severity.FATAL]
        return 0 if name == LINK else 1


def meaning_of(event: EventLike, driver_version: str) -> Meaning:
    """Return what *event* says. Never raises, whatever its message holds."""
    if "folded" in event.attributes and event.code == 0 and event.device in ("", "host"):
        known = event.name in ENDINGS or event.name in (XID, SXID)
        return Meaning(
            Ending(Clears.TIME, TEN_MINUTES) if known else None, variant="folded", folded=True
        )
    if event.name in (XID, SXID):
        return _coded(event, driver_version)
    if event.name == LINK and event.code != REMOVED:
        return Meaning(None, (REMOVED,) if event.code == APPEARED else ())
    if event.name in (LOST, ADAPTER) and event.attributes.get("state") == "back":
        return Meaning(None, (event.code,))
    ending = ENDINGS.get(event.name)
    if event.attributes.get("previous_boot") == "yes":
        return Meaning(ending, variant="previous boot", before_boot=True)
    if event.name == OUT_OF_MEMORY and _names_its_own_limit(event):
        return Meaning(ending, variant="own limit", own_limit=True)
    return Meaning(ending)


def _names_its_own_limit(event: EventLike) -> bool:
    said = (event.message, *event.forms, *event.attributes.values())
    return any(words in text for words in OWN_LIMIT for text in said)


def _coded(event: EventLike, driver_version: str) -> Meaning:
    table = "xid" if event.name == XID else "sxid"
    row, variant, said = coded(event.code, event.message, driver_version, table)
    return Meaning(
        None if said.continuation else Ending(row.clears, row.clear_seconds),
        said.cancels,
        row,
        variant,
        (said.words,) if said.words else (),
        said.process_name,
    )


#: Distinct records kept per host; of those of the least weight the one seen longest ago goes first.
RECORDS_PER_HOST_MAX = 64
#: Incidents told apart per record; of older ones only the count is kept.
INCIDENTS_MAX = 16
#: Words of the driver beyond this are cut.
MESSAGE_CHARACTERS_MAX = 200


class Moment(NamedTuple):
    """When an event was. Boot time is the host's, of the boot it runs in."""

    first_ns: int  # its first line, boot time
    last_ns: int  # its last line, boot time
    time_ns: int  # its last line, aggregator's clock; never later than `heard_ns`
    heard_ns: int  # when it reached us


@dataclass(slots=True)
class Counted(Incident):
    """An incident with how many lines said it."""

    count: int = 1


@dataclass(slots=True)
class Occurrence:
    """An event that a host reported of a device, and that is not over."""

    host: int
    name: str
    device: str
    code: int
    boot: int
    ending: Ending
    variant: str = ""
    row: Xid | None = None
    words: tuple[str, ...] = ()
    process: str = ""
    folded: bool = False
    before_boot: bool = False
    own_limit: bool = False
    gravity: int = 0
    first_ns: int = 0  # its first line, boot time
    last_ns: int = -1  # its last line
    last_time_ns: int = 0  # the same, aggregator's clock
    message: str = ""
    incidents: dict[str, Counted] = field(default_factory=dict[str, Counted])  # by event id
    count_before: int = 0  # of incidents that are no longer told apart
    before_ns: int = -1  # the last line of those

    @property
    def count(self) -> int:
        """Lines that said it; where time ends it, only those of that time before the last one."""
        return self.count_before + sum(incident.count for incident in self.incidents.values())

    @property
    def clears_when(self) -> str:
        """What ends it, for people."""
        if self.name == SXID and self.ending.clears is Clears.RESET:
            return "all GPUs of the host are reset, and its switches with them, or the host boots"
        if self.name == LINK:
            return "the interface is there again, or the host boots"
        if self.name == ADAPTER:
            return (
                "its driver says that the adapter answers again, is loaded anew, or the host boots"
            )
        if self.name == LOST:
            return "the GPU answers again, is reset, or the host boots"
        if (self.name, self.code) == (XID, RECOVERY):
            return f"the driver asks for nothing any more, or {self.ending.words}"
        if self.before_boot:
            return "24 hours have passed since this boot"
        return self.ending.words

    def take(self, event: EventLike, meaning: Meaning, at: Moment) -> Incident:
        """Count *event*, or what a later revision of it adds; return its incident."""
        incident = self.incidents.setdefault(
            event.event_id, Counted(at.first_ns, at.last_ns, at.heard_ns)
        )
        incident.count = max(incident.count, event.count)
        incident.go_on(at.last_ns, at.heard_ns, meaning.row)
        if at.last_ns >= self.last_ns:
            self._say(event, meaning, at)
        self._forget()
        return incident

    def _say(self, event: EventLike, meaning: Meaning, at: Moment) -> None:
        """Let the latest event say what this is."""
        self.last_ns, self.last_time_ns = at.last_ns, max(self.last_time_ns, at.time_ns)
        self.row, self.words = meaning.row, meaning.words
        self.folded, self.before_boot = meaning.folded, meaning.before_boot
        self.own_limit, self.gravity = meaning.own_limit, meaning.gravity(self.name)
        self.process = event.process_name or meaning.process
        self.message = event.message[:MESSAGE_CHARACTERS_MAX]

    def _forget(self) -> None:
        if self.ending.clears is Clears.TIME:
            since_ns = self.last_ns - self.ending.seconds * 1e9
            for key in [key for key, one in self.incidents.items() if one.last_ns < since_ns]:
                del self.incidents[key]
            if self.before_ns < since_ns:
                self.count_before = 0
        while len(self.incidents) > INCIDENTS_MAX:
            folded = self.incidents.pop(next(iter(self.incidents)))
            self.count_before += folded.count
            self.before_ns = max(self.before_ns, folded.last_ns)


class Resets(Protocol):
    """What a fleet knows of boots and resets."""

    def boot_of(self, host: int) -> int: ...
    def driver_of(self, host: int, device: str) -> str: ...
    def reset_ns(self, host: int, device: str) -> int: ...


Key = tuple[str, str, int, str]  # name, device, code, variant


@dataclass(slots=True)
class Reported:
    """What one host reported, in the boot that it runs in."""

    boot: int
    records: dict[Key, Occurrence] = field(default_factory=dict[Key, Occurrence])
    #: (name, device, code) -> until which boot time it was taken back.
    taken_back_ns: dict[tuple[str, str, int], int] = field(
        default_factory=dict[tuple[str, str, int], int]
    )

    def take_back(self, name: str, device: str, code: int, until_ns: int) -> None:
        """End what was said until then, also where it is told once more later."""
        which = name, device, code
        until_ns = max(until_ns, self.taken_back_ns.pop(which, until_ns))
        self.taken_back_ns[which] = until_ns
        if len(self.taken_back_ns) > RECORDS_PER_HOST_MAX:
            self.taken_back_ns.pop(next(iter(self.taken_back_ns)))
        for key in [k for k, r in self.records.items() if k[:3] == which]:
            if self.records[key].last_ns <= until_ns:
                del self.records[key]

    def add(self, record: Occurrence) -> None:
        """Keep *record*; where there is no room, what is of the least weight goes."""
        self.records[record.name, record.device, record.code, record.variant] = record
        if len(self.records) > RECORDS_PER_HOST_MAX:
            least = min(self.records.items(), key=lambda item: (item[1].gravity, item[1].last_ns))
            del self.records[least[0]]

    def beside(self, record: Occurrence) -> Iterator[tuple[Xid, Iterable[Incident]]]:
        """Yield the codes of the same device."""
        for other in self.records.values():
            same = (other.name, other.device) == (record.name, record.device)
            if same and other is not record and other.row is not None:
                yield other.row, other.incidents.values()


class Occurrences:
    """Records by host; `record` adds, `expire` ends those whose clearing condition came true."""

    def __init__(self) -> None:
        self._hosts: dict[int, Reported] = {}

    def record(self, host: int, device: str, event: EventLike, at: Moment, fleet: Resets) -> None:
        """Take over *event* of *device*. A storm of the same is one record."""
        meaning = meaning_of(event, fleet.driver_of(host, device))
        boot = fleet.boot_of(host)
        reported = self._hosts.get(host)
        if reported is None or reported.boot != boot:
            reported = self._hosts[host] = Reported(boot)
        for code in meaning.takes_back:
            reported.take_back(event.name, device, code, at.last_ns)
        if (event.name, event.code) == (XID, RECOVERY):  # what was asked before holds no longer
            reported.take_back(event.name, device, event.code, at.last_ns - 1)
        taken_back_ns = reported.taken_back_ns.get((event.name, device, event.code), -1)
        if meaning.ending is None or at.last_ns <= taken_back_ns:
            return
        held = reported.records.get((event.name, device, event.code, meaning.variant))
        record = held or Occurrence(
            host, event.name, device, event.code, boot, meaning.ending, meaning.variant,
            first_ns=at.first_ns,
        )  # fmt: skip
        incident = record.take(event, meaning, at)
        if _is_over(record, fleet, at.heard_ns):
            return
        if held is None:
            reported.add(record)
        if record.row is not None:
            note_neighbours(record.row, incident, reported.beside(record))

    def expire(self, fleet: Resets, now_ns: int) -> None:
        """Forget what a boot, a reset or time has cleared."""
        for host in list(self._hosts):
            reported = self._hosts[host]
            if fleet.boot_of(host) != reported.boot:
                del self._hosts[host]
                continue
            records = reported.records
            for record in records.values():  # our clock may have been set back
                record.last_time_ns = min(record.last_time_ns, now_ns)
            for key in [k for k, r in records.items() if _is_over(r, fleet, now_ns)]:
                del records[key]
            if not records and not reported.taken_back_ns:
                del self._hosts[host]

    def leap(self, leapt_ns: int, before_ns: int, *, stood: bool = False) -> None:
        """Our clock was set forward: what was until *before_ns* ends no sooner by that. *stood*: see `Fleet.leap`."""
        for record in self:
            if record.last_time_ns <= before_ns and not stood:
                record.last_time_ns += leapt_ns
            for incident in record.incidents.values():
                if incident.heard_ns <= before_ns:
                    incident.heard_ns += leapt_ns
                if 0 < incident.last_heard_ns <= before_ns:
                    incident.last_heard_ns += leapt_ns

    def __iter__(self) -> Iterator[Occurrence]:
        for reported in self._hosts.values():
            yield from reported.records.values()

    def named(self, name: str) -> Iterable[Occurrence]:
        """Return the records of one name."""
        return [record for record in self if record.name == name]


def _is_over(record: Occurrence, fleet: Resets, now_ns: int) -> bool:
    if record.ending.clears is Clears.TIME:
        return now_ns - record.last_time_ns > record.ending.seconds * 1e9
    if record.ending.clears is not Clears.RESET:
        return False
    return fleet.reset_ns(record.host, record.device) >= record.last_ns


# ----------------------------------------------------------------------
# Which call a device hangs in, as its agent said when it began: rows of `probe_1s` carry numbers
# only.

#: Devices of one host of which the words are kept; more are shown without.
DEVICES_PER_HOST_MAX = 64
WORDS_CHARACTERS_MAX = 240
CALL_CHARACTERS_MAX = 80
SECOND_NS = 1_000_000_000
#: A call that its agent says lasted for longer began at an unknown time.
SECONDS_MAX = 86_400
EVENTS = ("probe.hung", "probe.driver_hung")


class Hang(NamedTuple):
    """What the agent said of it."""

    collector: str
    words: str
    call: str
    since_ns: int  # when the call began, by our clock; 0: nobody said


NOTHING = Hang("", "", "", 0)


class Hangs:
    """The last words on each row of `probe_1s`."""

    def __init__(self) -> None:
        self._hosts: dict[int, dict[str, Hang]] = {}

    def take(self, host: int, event: EventLike, time_ns: int) -> None:
        """Take over one of `EVENTS`, told at *time_ns* of our clock."""
        lane, device = event.attributes.get("lane", ""), event.attributes.get("device", "")
        collector = event.attributes.get("collector", "")
        whole = event.name == "probe.driver_hung" and lane == "gpu"
        row = lane if whole else f"{lane} {device or collector}"
        held = self._hosts.setdefault(host, {})
        held.pop(row, None)
        while len(held) >= DEVICES_PER_HOST_MAX:
            del held[next(iter(held))]  # the oldest
        words, call = event.message[:WORDS_CHARACTERS_MAX], event.attributes.get("call", "")
        began_ns = max(0, time_ns - event.code * SECOND_NS) if event.code <= SECONDS_MAX else 0
        held[row] = Hang(collector, words, call[:CALL_CHARACTERS_MAX], began_ns)

    def of(self, host: int, row: str) -> Hang:
        """Return what is known of a row."""
        return self._hosts.get(host, {}).get(row, NOTHING)
