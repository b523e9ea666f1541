"""The current state of the fleet: the latest readings and inventory of every host, in memory.

Owned by one thread; takes no locks, does no I/O. Live frames update it, late frames do not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ...contract.signals import BY_NAME, TABLES
from ...contract.wire.telemetry_pb2 import Device, HealthEvent
from ...ext.intake import Received
from ...fingerprints.drift import HostDrift
from ..arrays import Codes, Flags, Indexes, Times
from ..counter_deltas import capacity_for, grown
from ..declared.drift import DriftDetector
from ..declared.model import NOTHING
from ..declared.reported_inventory import ReportedInventory
from ..model import AGGREGATOR_HOST, Finding
from .active_events import ActiveEvents, EventTimes
from .activity import Activity, GpuResets
from .collector_status import CollectorStatuses
from .device_identities import DeviceIdentities
from .devices import Devices, PcieTopology
from .ever_up import EverUp
from .evictions import Evictions
from .fault_isolation import FaultIsolation
from .gangs import GangMonitor
from .hangs import EVENTS as HANG_EVENTS
from .hangs import Hangs
from .inventory_cache import InventoryCache, device_of, driver_of
from .jobs import EVENTS as JOB_EVENTS
from .jobs import Jobs, SlowedJob
from .known_gpus import KnownGpus
from .peers import PeerGroups
from .tables import TRACKED_COUNTERS, TRACKED_SIGNALS, DeviceTable

log = logging.getLogger(__name__)

#: Boots kept per host, so that a late frame of an old boot is recognized.
BOOTS_PER_HOST_MAX = 8
#: Numbers of a host's boots restart after this one.
BOOT_MAX = 0xFFFF
#: A frame with a later time (146 years) is ignored.
TIME_NS_MAX = 2**62
#: An event that is older than the current boot by more than this is of an earlier boot.
BOOT_SLACK_NS = 10_000_000_000
#: Limit of findings; further ones are dropped, except findings about the aggregator.
FINDINGS_MAX = 10_000
#: Minimum interval of log messages about that limit.
FINDINGS_FULL_LOG_NS = 3600 * 1_000_000_000
#: Rows of a table per step of the advance of counters, about 10 ms.
STEP_ROWS = 16_384


class RestoredParts(NamedTuple):
    """Readings before the aggregator's restart, in one boot of a host: (device, signal)."""

    boot_id: bytes
    parts: frozenset[tuple[str, str]]


class Fleet:
    """Hosts by node index (append-only within `epoch`), devices by kind, tables of the catalogue."""

    def __init__(self, epoch: int = 1) -> None:
        """*epoch*: a new number for each process, because node indexes restart."""
        self.epoch = epoch
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.attributes: list[dict[tuple[str, str], dict[str, str]]] = []
        self.findings: dict[tuple[str, str, str], Finding] = {}
        self._full_logged_ns = -FINDINGS_FULL_LOG_NS  # time of the last message
        self.active_events = ActiveEvents()
        self.collector_statuses = CollectorStatuses()
        self.hangs = Hangs()
        self.jobs = Jobs()
        self.gangs = GangMonitor()
        #: Changes with hosts, devices and their attributes, from which peers are computed.
        self.shape_version = 0
        #: Time at which this process restored the hosts.
        self.restarted_ns = 0
        #: Host -> restored readings, until the host runs in another boot.
        self._restored_parts: dict[int, RestoredParts] = {}
        self.devices: dict[str, Devices] = {}
        self.tables: dict[str, DeviceTable] = {}
        for name, signals in TABLES.items():
            kind = signals[0].device_kind
            devices = self.devices.setdefault(kind, Devices(kind))
            self.tables[name] = DeviceTable(
                name, signals, devices, TRACKED_COUNTERS, TRACKED_SIGNALS
            )
        self._tables = list(self.tables.values())
        self._cells = [table.cells for table in self._tables]
        self.evictions = Evictions(self._tables)
        #: By node index, (rule, device) of the symptoms in the last evaluation.
        self.active_symptoms: Mapping[int, Mapping[tuple[str, str], Any]] = {}
        #: By name, hosts on which runs of several workloads became slower (`runs.run_history`).
        self.drifting_hosts: Mapping[str, HostDrift] = {}
        #: By node index, jobs that another job on the host slows (`runs.colocations`).
        self.slowed_by_neighbor: Mapping[int, Sequence[SlowedJob]] = {}
        self.identity = DeviceIdentities(self.tables, self.devices)
        self.activity = Activity(self.devices["gpu"])
        self.resets = GpuResets(self.activity, self.tables["gpu_1s"], self.tables["gpu_1s_changes"])
        self.peer_groups = PeerGroups()
        self.pcie_topology = PcieTopology()
        self.ever_up = EverUp()
        self._inventory_cache = InventoryCache()
        #: The GPUs that hosts have ever had.
        self.known_gpus = KnownGpus()
        self._isolation = FaultIsolation()
        #: Declarations of operators, and reported locations and hardware.
        self.declared, self.reported_inventory = NOTHING, ReportedInventory()
        self.expectations = DriftDetector()
        self._allocate(64)

    def _allocate(self, capacity: int) -> None:
        self._simulated: Flags = np.zeros(capacity, dtype=bool)
        self._first_received_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._last_received_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._backlog_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._boottime_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._boot: Codes = np.zeros(capacity, dtype=np.int32)
        #: Boot time of the host on the aggregator's clock; 0: unknown.
        self._booted_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._gpus: Codes = np.zeros(capacity, dtype=np.int32)
        #: GPUs that each host had or has on its PCI bus, readable or not.
        self._gpus_known: Codes = np.zeros(capacity, dtype=np.int32)
        #: Changes when rows of a host were reassigned, or must be looked up again.
        self._row_changes: Codes = np.zeros(capacity, dtype=np.int32)
        self._boots: list[list[bytes]] = []

    def __len__(self) -> int:
        return len(self.names)

    def register(
        self,
        name: str,
        *,
        simulated: bool,
        boot_id: bytes,
        devices: Sequence[Device],
        booted_ns: int = 0,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Add or update the host *name*; return its node index, which never changes.

        *booted_ns*: the host's boot time on the aggregator's clock; 0: unknown.
        """
        host = self.index.get(name)
        if host is None:
            host = self._new_host(name)
        self._simulated[host] = simulated
        if self._update_boot(host, boot_id) and booted_ns > 0:
            self._booted_ns[host] = min(booted_ns, TIME_NS_MAX)
        self.attributes[host] = self._inventory_cache.intern(devices)
        self._gpus[host] = sum(d.kind == "gpu" for d in devices)
        self._gpus_known[host] = self.known_gpus.register(name, devices).gpus
        self.reported_inventory.register(name, devices, labels)
        self.shape_version += 1
        return host

    def restore(
        self,
        name: str,
        *,
        simulated: bool,
        gpus: int,
        last_received_ns: int,
        parts: RestoredParts | None = None,
    ) -> int:
        """Add a host from before the restart until it registers; return its node index."""
        host = self._new_host(name)
        if parts is not None:
            self._restored_parts[host] = parts
        self._simulated[host], self._gpus[host] = simulated, gpus
        self._last_received_ns[host] = last_received_ns
        return host

    def _new_host(self, name: str) -> int:
        host = len(self.names)
        capacity = capacity_for(host + 1, self._boot.shape[0])
        if capacity > self._boot.shape[0]:
            for key, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    setattr(self, key, grown(array, capacity))
        self.names.append(name)
        self.index[name] = host
        self._gpus_known[host] = self.known_gpus.of(name).gpus
        self.attributes.append({})
        self._boots.append([])
        return host

    def _update_boot(self, host: int, boot_id: bytes) -> bool:
        """Set the host's boot. False: *boot_id* is an earlier one."""
        boots = self._boots[host]
        if boots and boots[-1] == boot_id:
            return True
        if boot_id in boots:
            return False
        boots.append(boot_id)
        if host in self._restored_parts and self._restored_parts[host].boot_id != boot_id:
            del self._restored_parts[host]
        del boots[:-BOOTS_PER_HOST_MAX]
        self._boot[host] = self._boot[host] % BOOT_MAX + 1
        self._boottime_ns[host] = self._booted_ns[host] = 0
        self.jobs.clear_host(host)
        self.evictions.forget(host)
        self.active_events.forget(host)
        return True

    def observe(self, name: str, frame: Received, received_ns: int) -> None:
        """Store a frame. Never raises for odd content; a late frame only marks the host as alive."""
        host = self.index.get(name)
        if host is None:
            return
        boottime_ns = frame.boottime_ns
        late = not self._update_boot(host, frame.boot_id)
        before = int(self._boottime_ns[host])
        if late or not before < boottime_ns <= TIME_NS_MAX:
            self.note_backlog(name, received_ns)
            return
        gap_ns = boottime_ns - before if before else 0
        self._boottime_ns[host] = boottime_ns
        self._booted_ns[host] = max(1, received_ns - boottime_ns)
        if received_ns < self._last_received_ns[host]:
            self._apply_clock_set_back(slice(host, host + 1), received_ns)
        self._last_received_ns[host] = received_ns
        if not self._first_received_ns[host]:
            self._first_received_ns[host] = received_ns
        frame.put(self._cells, host, self.boot_of(host), gap_ns, self._rows_for, self._row_changes)

    def _apply_clock_set_back(self, hosts: slice, now_ns: int) -> None:
        # Times after *now_ns* were set before the clock went back: move them by the same amount.
        ahead = np.maximum(self._last_received_ns[hosts] - now_ns, 0)
        if ahead.any():
            self._last_received_ns[hosts] -= ahead
            self._first_received_ns[hosts] -= np.where(self._first_received_ns[hosts] > 0, ahead, 0)
            self._backlog_ns[hosts] = np.minimum(self._backlog_ns[hosts], now_ns)
        self.restarted_ns = min(self.restarted_ns, now_ns)

    def apply_clock_jump(self, jump_ns: int, now_ns: int, *, suspended: bool = False) -> None:
        """Adjust all times to a clock that was set forward by *jump_ns* since the last call.

        *suspended*: the machine was suspended for this long. Then only times of reception move;
        hosts really booted, and events happened, at the stored times.
        """
        before_ns = now_ns - jump_ns  # later times are already on the new clock
        self.restarted_ns = min(self.restarted_ns + jump_ns, now_ns)
        reported_since = self._last_received_ns > before_ns  # and its boot time with it
        if not suspended:
            self._booted_ns += np.where((self._booted_ns > 0) & ~reported_since, jump_ns, 0)
        for times in (self._last_received_ns, self._first_received_ns, self._backlog_ns):
            times += np.where((times > 0) & (times <= before_ns), jump_ns, 0)
        self.active_events.apply_clock_jump(jump_ns, before_ns, suspended=suspended)

    def _rows_for(self, host: int, table_index: int, names: tuple[str, ...]) -> Indexes:
        table = self._tables[table_index]
        before = table.devices.count
        rows = table.ensure_rows(host, names)
        key = host, table.devices.kind
        if rows.size and rows.min() < 0:
            self._make_room(host, table.devices, names, rows)
            self.evictions.note_untracked(self.names[host], key, table.name, int((rows < 0).sum()))
        elif key in self.evictions.untracked:
            self.evictions.note_untracked(self.names[host], key, table.name, 0)
        if table.devices.count > before:
            self.shape_version += 1
        return rows

    def _make_room(
        self, host: int, devices: Devices, names: tuple[str, ...], rows: Indexes
    ) -> None:
        """Assign rows of disappeared devices to *names* without a row (-1), while any exist."""
        now = self.boot_of(host), int(self._boottime_ns[host])
        has_findings, using = self._findings_check(host), set(rows.tolist())
        for index in np.flatnonzero(rows < 0).tolist():
            row = devices.find(host, names[index])  # a name may occur twice
            if row < 0:
                row = self.evictions.row(host, devices, now, has_findings, using)
                if row < 0:
                    return
                self._reassign_row(devices, row, names[index])
            rows[index] = row
            using.add(row)

    def _findings_check(self, host: int) -> Callable[[str], bool]:
        """Return a function: whether a device of *host* has a finding or a symptom."""
        judged = {device for _, device in self.active_symptoms.get(host, ())}
        name = self.names[host]
        # The subject of a finding is a device, or a device and a signal.
        finding_subjects = [
            f"{subject} " for host_name, _, subject in self.findings if host_name == name
        ]
        return lambda device: (
            device in judged
            or any(subject.startswith(f"{device} ") for subject in finding_subjects)
        )

    def _reassign_row(self, devices: Devices, row: int, name: str) -> None:
        for table in self._tables:
            if table.devices is devices:
                if table.name == "collector_10s":
                    self.collector_statuses.forget(table, row)
                table.forget(row)
        self.identity.forget(devices, row)
        self.ever_up.forget(self.tables, devices, row)
        devices.reassign(row, name)
        self._row_changes[devices.host[row]] += 1
        self.shape_version += 1

    def observe_event(
        self, name: str, event: HealthEvent, received_ns: int, time_ns: int | None = None
    ) -> bool:
        """Handle an event, or a later revision; unknown events are only in the store.

        *time_ns*: time of its first line on the aggregator's clock; None: now. Return whether a
        fatal fault became active.
        """
        host = self.index.get(name)
        if host is None:
            return False
        time_ns = received_ns if time_ns is None else time_ns
        if event.name == "collector.outcome":
            self.collector_statuses.update(host, event.device, event.code, event.message)
        elif event.name in HANG_EVENTS:
            self.hangs.update(host, event, time_ns)
        elif event.name in JOB_EVENTS:
            self.jobs.observe(host, self._boots[host][-1].hex() if self._boots[host] else "", event)
        elif time_ns >= int(self._booted_ns[host]) - BOOT_SLACK_NS:
            # An older event waited on disk through a reboot, which has cleared it.
            times = self._event_times(host, event, received_ns, time_ns)
            return self.active_events.record(host, self.device_of(host, event), event, times, self)
        return False

    def _event_times(
        self, host: int, event: HealthEvent, received_ns: int, time_ns: int
    ) -> EventTimes:
        """Return the times of *event*. No line can be later than its arrival."""
        booted_ns = int(self._booted_ns[host])
        present_ns = received_ns - booted_ns + BOOT_SLACK_NS if booted_ns else TIME_NS_MAX
        first_ns = min(event.boottime_ns or max(1, time_ns - booted_ns), present_ns)
        last_ns = min(max(event.last_boottime_ns, first_ns), present_ns)
        last_time_ns = min(time_ns + last_ns - first_ns, received_ns)
        return EventTimes(first_ns, last_ns, last_time_ns, received_ns)

    def device_of(self, host: int, event: HealthEvent) -> str:
        """Return the device of *event*; for a GPU that disappeared its former UUID."""
        device = device_of(self.attributes[host], event)
        if event.name.startswith("gpu.") and ":" in device:
            return self.known_gpus.key_at(self.names[host], device) or device
        return device

    def note_backlog(self, name: str, received_ns: int) -> None:
        """Record that the host is alive but sent old data."""
        host = self.index.get(name)
        if host is not None:
            self._backlog_ns[host] = received_ns

    def add_finding(self, finding: Finding, findings_max: int | None = None) -> bool:
        """Add a finding; an existing finding of the same host, name and subject stays.

        Return False if there is no space. *findings_max*: limit of all findings; None:
        FINDINGS_MAX.
        """
        key = finding.host, finding.name, finding.subject
        is_known = key in self.findings or finding.host == AGGREGATOR_HOST
        if not is_known and len(self.findings) >= (
            FINDINGS_MAX if findings_max is None else findings_max
        ):
            self._log_findings_full(finding)
            return False
        self.findings.setdefault(key, finding)
        return True

    def _log_findings_full(self, finding: Finding) -> None:
        if abs(finding.since_ns - self._full_logged_ns) >= FINDINGS_FULL_LOG_NS:
            self._full_logged_ns = finding.since_ns
            log.warning(
                "%d findings are active, which is the maximum: %s of %s and others like it are not "
                "stored, but scores still use them. To see the most frequent ones: SELECT name, "
                "count(*) FROM findings WHERE cleared IS NULL GROUP BY ALL ORDER BY 2 DESC",
                len(self.findings), finding.name, finding.host,
            )  # fmt: skip

    def clear_finding(self, host: str, name: str, subject: str = "") -> None:
        """End a finding, if it is open."""
        self.findings.pop((host, name, subject), None)

    def advance_ahead(self) -> Iterator[None]:
        """Do most of `advance` in short steps, so that frames are received between them.

        If all tables of 10,000 hosts changed, `advance` would block for two seconds.
        """
        for table in self.tables.values():
            rows = table.pending_rows()
            for begin in range(0, rows.size if rows.size > STEP_ROWS else 0, STEP_ROWS):
                self._isolation.run("identities of devices", self.identity.advance)
                self._advance(table, rows[begin : begin + STEP_ROWS])
                yield

    def advance(self, now_ns: int) -> str:
        """Update counters and means to the last frame. Call this before each evaluation.

        Never raises: a failing part does not stop the others. Return a message about recent
        failures, "" if there are none.
        """
        run = self._isolation.run
        run("a clock set back", self._apply_clock_set_back, slice(0, len(self)), now_ns)
        run("identities of devices", self.identity.advance)
        for table in self.tables.values():
            self._advance(table, table.pending_rows())
        run("resets of GPUs", self.resets.advance, self._boottime_ns)
        run("what hosts have", self.ever_up.advance, self.tables)
        run("devices without room", self._retry_untracked, now_ns)
        run("ends of events", self.active_events.expire, self, now_ns)
        run("ends of jobs", self.jobs.sweep, now_ns, self.host_now_ns(now_ns))
        if not run("gangs", self.gangs.advance, self, now_ns):
            self.gangs.comparison = None  # otherwise outdated comparisons would still blame hosts
        return self._isolation.failing(now_ns)

    def _retry_untracked(self, now_ns: int) -> None:
        for host in self.evictions.hosts_to_retry(now_ns):
            self._row_changes[host] += 1

    def _advance(self, table: DeviceTable, rows: Indexes) -> None:
        if not rows.size:
            return
        run = self._isolation.run
        run(f"counters of {table.name}", table.advance, rows)
        if table.name == "gpu_1s":
            ten, sixty = self.tables["gpu_10s"], self.tables["gpu_60s"]
            run("what GPUs do", self.activity.advance, rows, table, ten, sixty)
        if table.name == "collector_10s":
            run("words of collectors", self.collector_statuses.advance, rows, table)
        run("windows of gangs", self.gangs.sample, table, rows, len(self))

    def host_now_ns(self, now_ns: int) -> Times:
        """Return each host's CLOCK_BOOTTIME at *now_ns*; 0: no frame of this boot."""
        last_ns = self._boottime_ns[: len(self)]
        silent_ns = np.maximum(now_ns - self.last_received_ns, 0)
        return np.where(last_ns > 0, last_ns + silent_ns, 0)

    def backlog_age_seconds(self, host: int, now_ns: int) -> float:
        """Return the seconds since the host last sent late data; infinite if never."""
        last_ns = int(self._backlog_ns[host])
        return (now_ns - last_ns) / 1e9 if last_ns else float("inf")

    def boot_of(self, host: int) -> int:
        """Return the number of the host's boot, as in `boot`."""
        return int(self._boot[host])

    def boot_id(self, host: int) -> bytes:
        """Return the id of the host's current boot, b"" if unknown."""
        if self._boots[host]:
            return self._boots[host][-1]
        return self._restored_parts[host].boot_id if host in self._restored_parts else b""

    def was_read(self, host: int, device: str, signal: str) -> bool:
        """Return whether *signal*'s table had readings of *device* in the host's current boot."""
        known = BY_NAME.get(signal)
        rows = self.tables.get(known.table) if known else None  # None for an event
        row = rows.devices.find(host, device) if rows else -1
        if rows and row >= 0 and int(rows.boot[row]) == self.boot_of(host):
            return True
        restored = self._restored_parts.get(host)
        return restored is not None and (device, signal) in restored.parts

    def driver_of(self, host: int, device: str) -> str:
        """Return the GPU's driver version from its host's registration."""
        return driver_of(self.attributes[host], device)

    def reset_ns(self, host: int, device: str) -> int:
        """Return the boot time of a GPU's last reset; 0: none in this boot.

        For a device that is not a known GPU, such as an NVSwitch, return the time when all GPUs of
        the host had been reset, without GPUs that were taken out.
        """
        gpus, boot = self.devices["gpu"], self.boot_of(host)
        row = gpus.find(host, device)
        if row < 0 and device.startswith("GPU-"):
            return 0
        rows = [row]
        if row < 0:
            inventory = self.attributes[host]
            rows = [
                gpu_row
                for gpu_row in gpus.rows_of(host)
                if ("gpu", gpus.names[gpu_row]) in inventory or self.resets.has_read(gpu_row, boot)
            ]
        return min((self.resets.at_ns(row, boot) for row in rows), default=0)

    @property
    def simulated(self) -> Flags:
        """Return which hosts are simulated."""
        return self._simulated[: len(self)]

    @property
    def last_received_ns(self) -> Times:
        """Return the time of each host's last live frame, aggregator's clock; 0: never."""
        return self._last_received_ns[: len(self)]

    @property
    def first_received_ns(self) -> Times:
        """Return the time of each host's first live frame; 0: none since the start."""
        return self._first_received_ns[: len(self)]

    @property
    def boot(self) -> Codes:
        """Return the number of each host's boot, which changes with every boot; 0: unknown."""
        return self._boot[: len(self)]

    @property
    def gpus(self) -> Codes:
        """Return the GPUs of each host: as registered, as read in this boot, or as before.

        A host that lost GPUs does not count as smaller.
        """
        host_of_row = self.devices["gpu"].host[self.gpus_read]
        shown = np.bincount(host_of_row, minlength=len(self))[: len(self)]
        registered = np.maximum(self._gpus[: len(self)], self._gpus_known[: len(self)])
        return np.maximum(registered, shown.astype(np.int32))

    @property
    def gpus_read(self) -> Flags:
        """Return which GPUs had any reading in their host's current boot.

        A reading of any table counts, because operators may switch collectors off.
        """
        gpus = self.devices["gpu"]
        boot, is_read = self.boot[gpus.host], np.zeros(gpus.count, dtype=bool)
        for table in self.tables.values():
            if table.devices is gpus and table.name != "gpu_1s_probe" and not is_read.all():
                is_read |= table.boot == boot
        return is_read
