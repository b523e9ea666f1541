"""The fleet as it is now: the latest of everything that every host said, in memory.

Owned by one thread; takes no locks, does no I/O. Live frames move it, late ones do not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ...ext.intake import Received
from ...fingerprints.catalogue import TABLES
from ..declared.differences import Expecting
from ..declared.model import NOTHING
from ..declared.told import Told
from ..messages import DeviceLike, EventLike
from ..verdicts import OURSELVES, Finding
from . import naming
from .activity import Activity
from .arrays import Codes, Flags, Indexes, Times, grown, room
from .counted import COUNTED
from .devices import Devices
from .gangs import Gangs
from .guarding import Guard
from .hangs import EVENTS as HANG_EVENTS
from .hangs import Hangs
from .identity import Identity
from .inventories import Inventories
from .jobs import EVENTS as JOB_EVENTS
from .jobs import Jobs
from .kept import KEPT
from .occurrences import Moment, Occurrences
from .peers import Peerage
from .resets import GpuResets
from .seen import Seen
from .sources import Sources
from .tables import DeviceTable
from .wiring import Wiring

log = logging.getLogger(__name__)

#: Boots of one host that are remembered, so that a late frame of an old one is known as late.
BOOTS_PER_HOST_MAX = 8
#: The numbers of a host's boots begin again after this one.
BOOT_MAX = 0xFFFF
#: A frame that claims a later time than this (146 years) is not believed.
TIME_NS_MAX = 2**62
#: An event is of an earlier boot when it is older than this boot by more.
BOOT_SLACK_NS = 10_000_000_000
#: Findings kept; while they stand, one more is not, but for those about the aggregator itself.
FINDINGS_MAX = 10_000
#: That there is no room for one is said at most this often.
NO_ROOM_SAID_NS = 3600 * 1_000_000_000
#: Rows of a table whose counters are counted in one go, some 10 ms of them.
STEP_ROWS = 16_384


class Fleet:
    """Hosts by node index (append-only within `epoch`), devices by kind, tables of the catalogue."""

    def __init__(self, epoch: int = 1) -> None:
        """*epoch*: another number than any earlier process used, since node indexes begin anew."""
        self.epoch = epoch
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.attributes: list[dict[tuple[str, str], dict[str, str]]] = []
        self.findings: dict[tuple[str, str, str], Finding] = {}
        self._no_room_ns = -NO_ROOM_SAID_NS  # when it was said last
        self.occurrences = Occurrences()
        self.sources = Sources()
        self.hangs = Hangs()
        self.jobs = Jobs()
        self.gangs = Gangs()
        #: Rises when hosts, devices or their attributes change: what peers are computed from.
        self.shape_version = 0
        self.devices: dict[str, Devices] = {}
        self.tables: dict[str, DeviceTable] = {}
        for name, signals in TABLES.items():
            kind = signals[0].device_kind
            devices = self.devices.setdefault(kind, Devices(kind))
            self.tables[name] = DeviceTable(name, signals, devices, COUNTED, KEPT)
        self._tables = list(self.tables.values())
        self._cells = [table.cells for table in self._tables]
        self.identity = Identity(self.tables, self.devices)
        self.activity = Activity(self.devices["gpu"])
        self.resets = GpuResets(self.activity, self.tables["gpu_1s"], self.tables["gpu_1s_changes"])
        self.peerage = Peerage()
        self.wiring = Wiring()
        self.seen = Seen()
        self._inventory = Inventories()
        self._guard = Guard()
        #: What people declared, and what hosts say of their place and hardware.
        self.declared, self.told, self.expecting = NOTHING, Told(), Expecting()
        self._make(64)

    def _make(self, capacity: int) -> None:
        self._simulated: Flags = np.zeros(capacity, dtype=bool)
        self._first_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._heard_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._backlog_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._boottime_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._boot: Codes = np.zeros(capacity, dtype=np.int32)
        #: When the host booted, by our clock; 0: not known yet.
        self._booted_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._gpus: Codes = np.zeros(capacity, dtype=np.int32)
        self._boots: list[list[bytes]] = []

    def __len__(self) -> int:
        return len(self.names)

    # What comes in.

    def register(
        self,
        name: str,
        *,
        simulated: bool,
        boot_id: bytes,
        devices: Sequence[DeviceLike],
        booted_ns: int = 0,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Make *name* known and return its node index, the same one each time.

        *booted_ns*: when it booted, by our clock; 0: not known.
        """
        host = self.index.get(name)
        if host is None:
            host = self._new_host(name)
        self._simulated[host] = simulated
        if self._seen_boot(host, boot_id) and booted_ns > 0:
            self._booted_ns[host] = min(booted_ns, TIME_NS_MAX)
        self.attributes[host] = self._inventory.kept(devices)
        self._gpus[host] = sum(d.kind == "gpu" for d in devices)
        self.told.register(name, devices, labels)
        self.shape_version += 1
        return host

    def restore(self, name: str, *, simulated: bool, gpus: int, heard_ns: int) -> int:
        """Make a host of before our restart known until it registers; return its node index."""
        host = self._new_host(name)
        self._simulated[host], self._gpus[host] = simulated, gpus
        self._heard_ns[host] = heard_ns
        return host

    def _new_host(self, name: str) -> int:
        host = len(self.names)
        capacity = room(host + 1, self._boot.shape[0])
        if capacity > self._boot.shape[0]:
            for key, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    setattr(self, key, grown(array, capacity))
        self.names.append(name)
        self.index[name] = host
        self.attributes.append({})
        self._boots.append([])
        return host

    def _seen_boot(self, host: int, boot_id: bytes) -> bool:
        """Return False for a boot that another one has already followed."""
        boots = self._boots[host]
        if boots and boots[-1] == boot_id:
            return True
        if boot_id in boots:
            return False
        boots.append(boot_id)
        del boots[:-BOOTS_PER_HOST_MAX]
        self._boot[host] = self._boot[host] % BOOT_MAX + 1
        self._boottime_ns[host] = self._booted_ns[host] = 0
        self.jobs.end(host)
        return True

    def observe(self, name: str, frame: Received, received_ns: int) -> None:
        """Take over a live frame. Never raises on odd content; a late frame only counts as heard of."""
        host = self.index.get(name)
        if host is None:
            return
        boottime_ns = frame.boottime_ns
        late = not self._seen_boot(host, frame.boot_id)
        before = int(self._boottime_ns[host])
        if late or not before < boottime_ns <= TIME_NS_MAX:
            self.note_backlog(name, received_ns)
            return
        gap_ns = boottime_ns - before if before else 0
        self._boottime_ns[host] = boottime_ns
        self._booted_ns[host] = max(1, received_ns - boottime_ns)
        if received_ns < self._heard_ns[host]:
            self._set_back(slice(host, host + 1), received_ns)
        self._heard_ns[host] = received_ns
        if not self._first_ns[host]:
            self._first_ns[host] = received_ns
        frame.put(self._cells, host, self.boot_of(host), gap_ns, self._places)

    def _set_back(self, hosts: slice, now_ns: int) -> None:
        """Nobody was heard later than now: where our clock was set back, it is as long ago as it was."""
        ahead = np.maximum(self._heard_ns[hosts] - now_ns, 0)
        if ahead.any():
            self._heard_ns[hosts] -= ahead
            self._first_ns[hosts] -= np.where(self._first_ns[hosts] > 0, ahead, 0)
            self._backlog_ns[hosts] = np.minimum(self._backlog_ns[hosts], now_ns)

    def leap(self, leapt_ns: int, now_ns: int, *, stood: bool = False) -> None:
        """Our clock was set forward by *leapt_ns* since it was last looked at: what was before is as long ago as it was.

        *stood*: our machine stood still for so long. Then only what was heard is: hosts booted, and things were, when they did.
        """
        before_ns = now_ns - leapt_ns  # what is later was told by the clock as it is now
        told_anew = self._heard_ns > before_ns  # and with it when it booted
        if not stood:
            self._booted_ns += np.where((self._booted_ns > 0) & ~told_anew, leapt_ns, 0)
        for times in (self._heard_ns, self._first_ns, self._backlog_ns):
            times += np.where((times > 0) & (times <= before_ns), leapt_ns, 0)
        self.occurrences.leap(leapt_ns, before_ns, stood=stood)

    def _places(self, host: int, kept_in: int, names: tuple[str, ...]) -> Indexes:
        table = self._tables[kept_in]
        before = table.devices.count
        rows = table.places(host, names)
        if table.devices.count > before:
            self.shape_version += 1
        return rows

    def event(
        self, name: str, event: EventLike, received_ns: int, time_ns: int | None = None
    ) -> None:
        """Take over an event, or a later revision of one. What means nothing here the store keeps.

        *time_ns*: when its first line was written, by our clock; None: just now.
        """
        host = self.index.get(name)
        if host is None:
            return
        time_ns = received_ns if time_ns is None else time_ns
        if event.name == "collector.outcome":
            self.sources.words(host, event.device, event.code, event.message)
        elif event.name in HANG_EVENTS:
            self.hangs.take(host, event, time_ns)
        elif event.name in JOB_EVENTS:
            self.jobs.take(host, self._boots[host][-1].hex() if self._boots[host] else "", event)
        elif time_ns >= int(self._booted_ns[host]) - BOOT_SLACK_NS:
            # Else it waited on disk through a reboot, which has cleared it.
            at = self._moment(host, event, received_ns, time_ns)
            self.occurrences.record(host, self.device_of(host, event), event, at, self)

    def _moment(self, host: int, event: EventLike, received_ns: int, time_ns: int) -> Moment:
        """Return when *event* was. No line is believed that would be written later than it was heard."""
        booted_ns = int(self._booted_ns[host])
        present_ns = received_ns - booted_ns + BOOT_SLACK_NS if booted_ns else TIME_NS_MAX
        first_ns = min(event.boottime_ns or max(1, time_ns - booted_ns), present_ns)
        last_ns = min(max(event.last_boottime_ns, first_ns), present_ns)
        last_time_ns = min(time_ns + last_ns - first_ns, received_ns)
        return Moment(first_ns, last_ns, last_time_ns, received_ns)

    def device_of(self, host: int, event: EventLike) -> str:
        """Return the device of *event* (`naming.py`)."""
        return naming.device_of(self.attributes[host], event)

    def note_backlog(self, name: str, received_ns: int) -> None:
        """The host is there, but what it said is of earlier."""
        host = self.index.get(name)
        if host is not None:
            self._backlog_ns[host] = received_ns

    def find(self, finding: Finding, most: int | None = None) -> bool:
        """Keep a finding; one of the same host, name and subject keeps its first moment. False: there is no room.

        *most*: there is none for it beside so many; None: FINDINGS_MAX.
        """
        key = finding.host, finding.name, finding.subject
        is_known = key in self.findings or finding.host == OURSELVES
        if not is_known and len(self.findings) >= (FINDINGS_MAX if most is None else most):
            self._say_no_room(finding)
            return False
        self.findings.setdefault(key, finding)
        return True

    def _say_no_room(self, finding: Finding) -> None:
        if abs(finding.since_ns - self._no_room_ns) >= NO_ROOM_SAID_NS:
            self._no_room_ns = finding.since_ns
            log.warning(
                "%d findings stand: no room for %s of %s, nor for others like it; scores take what it shows all the same. "
                "What there is most of: SELECT name, count(*) FROM findings WHERE cleared IS NULL GROUP BY ALL ORDER BY 2 DESC",
                len(self.findings), finding.name, finding.host,
            )  # fmt: skip

    def clear(self, host: str, name: str, subject: str = "") -> None:
        """End a finding, if there is one."""
        self.findings.pop((host, name, subject), None)

    # What is read.

    def advance_ahead(self) -> Iterator[None]:
        """Do the most of `advance` in short steps, between which frames may come.

        When all tables of 10,000 hosts have moved, it would be two seconds in which nobody is heard.
        """
        for table in self.tables.values():
            rows = table.waiting()
            for begin in range(0, rows.size if rows.size > STEP_ROWS else 0, STEP_ROWS):
                self._guard.do("identities of devices", self.identity.advance)
                self._advance(table, rows[begin : begin + STEP_ROWS])
                yield

    def advance(self, now_ns: int) -> str:
        """Bring counters and means up to the last frame. Called once before each judgement.

        Never raises: one part that fails stops no other. Returns words on those that failed lately, "" for none.
        """
        do = self._guard.do
        do("a clock set back", self._set_back, slice(0, len(self)), now_ns)
        do("identities of devices", self.identity.advance)
        for table in self.tables.values():
            self._advance(table, table.waiting())
        do("resets of GPUs", self.resets.advance, self._boottime_ns)
        do("what hosts have", self.seen.advance, self.tables)
        do("ends of events", self.occurrences.expire, self, now_ns)
        do("ends of jobs", self.jobs.sweep, now_ns, self.host_now_ns(now_ns))
        if not do("gangs", self.gangs.advance, self, now_ns):
            self.gangs.standing = None  # else hosts stay blamed by what was so long ago
        return self._guard.failing(now_ns)

    def _advance(self, table: DeviceTable, rows: Indexes) -> None:
        if not rows.size:
            return
        do = self._guard.do
        do(f"counters of {table.name}", table.advance, rows)
        if table.name == "gpu_1s":
            ten, sixty = self.tables["gpu_10s"], self.tables["gpu_60s"]
            do("what GPUs do", self.activity.advance, rows, table, ten, sixty)
        if table.name == "collector_10s":
            do("words of collectors", self.sources.advance, rows, table)
        do("windows of gangs", self.gangs.sample, table, rows, len(self))

    def host_now_ns(self, now_ns: int) -> Times:
        """Return what CLOCK_BOOTTIME of each host is at *now_ns* of our clock, by its last frame; 0: none of this boot."""
        last_ns, silent_ns = self._boottime_ns[: len(self)], np.maximum(now_ns - self.heard_ns, 0)
        return np.where(last_ns > 0, last_ns + silent_ns, 0)

    def backlog_age_seconds(self, host: int, now_ns: int) -> float:
        """Return how long ago the host last sent something late; infinite for never."""
        last_ns = int(self._backlog_ns[host])
        return (now_ns - last_ns) / 1e9 if last_ns else float("inf")

    def boot_of(self, host: int) -> int:
        """Return the number of the host's boot, as `boot`."""
        return int(self._boot[host])

    def booted_ns(self, host: int) -> int:
        """Return when the host booted, by our clock; 0: not known yet."""
        return int(self._booted_ns[host])

    def driver_of(self, host: int, device: str) -> str:
        """Return the version of the GPU's driver, as its host registered it (`naming.py`)."""
        return naming.driver_of(self.attributes[host], device)

    def reset_ns(self, host: int, device: str) -> int:
        """Return the boot time until which a GPU was last seen to be reset; 0: not in this boot.

        Of what is no GPU that was read, when all GPUs of the host had been: an NVSwitch is reset when
        they all are. One that was taken out of the host is none of them.
        """
        gpus, boot = self.devices["gpu"], self.boot_of(host)
        row = gpus.find(host, device)
        if row < 0 and device.startswith("GPU-"):
            return 0
        rows = [row]
        if row < 0:
            told = self.attributes[host]
            rows = [
                one
                for one in gpus.rows_of(host)
                if ("gpu", gpus.names[one]) in told or self.resets.has_read(one, boot)
            ]
        return min((self.resets.at_ns(row, boot) for row in rows), default=0)

    @property
    def simulated(self) -> Flags:
        """Which hosts do not exist."""
        return self._simulated[: len(self)]

    @property
    def heard_ns(self) -> Times:
        """When each host's last live frame came, by our clock; 0: never."""
        return self._heard_ns[: len(self)]

    @property
    def first_ns(self) -> Times:
        """When each host's first live frame came; 0: none since our start."""
        return self._first_ns[: len(self)]

    @property
    def boot(self) -> Codes:
        """A number per host that changes with every boot; 0: it was never heard of."""
        return self._boot[: len(self)]

    @property
    def gpus(self) -> Codes:
        """GPUs of each host: as registered, or as many as have shown themselves in the boot that it runs in."""
        of = self.devices["gpu"].host[self.gpus_read]
        seen = np.bincount(of, minlength=len(self))[: len(self)]
        return np.maximum(self._gpus[: len(self)], seen.astype(np.int32))

    @property
    def gpus_read(self) -> Flags:
        """Of which GPUs anything was read in the boot that their hosts run in.

        By any of their tables: which collectors are off is the operator's affair.
        """
        gpus = self.devices["gpu"]
        boot, is_read = self.boot[gpus.host], np.zeros(gpus.count, dtype=bool)
        for each in self.tables.values():
            if each.devices is gpus and each.name != "gpu_1s_probe" and not is_read.all():
                is_read |= each.boot == boot
        return is_read
