"""Host tables besides the GPUs: cores, memory, NUMA, power sensors, collector turns.

Two sockets of 112 cores, 2 TiB. A checkpoint shows as writes, dirty memory and I/O pressure on the hosts that write it.
"""

from __future__ import annotations

import numpy as np

from .machine import GPUS, NVLINKS_PER_GPU
from .tables import Floats, Tables

CHECKPOINT_BYTES_PER_SECOND = 3.2e9
DATASET_BYTES_PER_SECOND = 180e6
LOG_BYTES_PER_SECOND = 0.4e6
BYTES_PER_OPERATION = 256e3
WRITES_PER_FLUSH = 64
READ_BYTES_PER_SECOND_MAX, WRITTEN_BYTES_PER_SECOND_MAX = 6e9, 4e9
#: Duration of one operation.
READ_MILLISECONDS, WRITE_MILLISECONDS = 0.12, 0.9
#: SMART counts in thousands of sectors.
_SMART_BYTES = 512_000.0
#: Rows of the tables.
SYSTEM, SCRATCH = 0, 1

#: Signal -> its value on the system drive and on the scratch drive.
FILESYSTEMS: dict[str, tuple[float, float]] = {
    "filesystem.size_bytes": (0.94e12, 7.6e12),
    "filesystem.available_bytes": (0.71e12, 4.9e12),
    "filesystem.inodes_count": (5.8e7, 7.4e8),
    "filesystem.inodes_available_count": (5.6e7, 7.3e8),
}
#: Signal -> its value on every drive of every host.
DRIVE_CONSTANTS: dict[str, float] = {
    "disk.discards_operations": 0,
    "disk.inflight_count": 0,
    "disk.discarded_bytes": 0,
    "disk.discard_milliseconds": 0,
    "filesystem.read_only_state": 0,
    "nvme.controller_state": 1,
    "nvme.namespaces_count": 1,
    "nvme.queues_count": 129,
    "nvme.temperature_celsius": 38.0,
    "nvme.temperature_critical_celsius": 84.0,
    "nvme.critical_warning_flags": 0,
    "nvme.spare_ratio": 1.0,
    "nvme.spare_threshold_ratio": 0.1,
    "nvme.used_ratio": 0.04,
    "nvme.error_log_count": 0,
    "nvme.unsafe_shutdowns_count": 11,
    "nvme.power_cycles_count": 46,
    "nvme.power_on_seconds": 9_100 * 3600,
    "nvme.busy_seconds": 41_000 * 60,
    "nvme.warning_temperature_seconds": 0,
    "nvme.critical_temperature_seconds": 0,
    "nvme.light_throttles_count": 0,
    "nvme.heavy_throttles_count": 0,
}
CORES = 224
MEMORY_BYTES = 2 * 2**40
DIRTY_SECONDS = 12.0  # until the kernel has written what is dirty
INTERRUPTS_PER_SECOND, SOFTIRQS_PER_SECOND = 60e3, 45e3
INTERRUPT_RATIO = 0.004
PACKAGE_IDLE_WATTS = 140.0
CLASS_GPU, CLASS_NIC = 0x030200, 0x020700
#: Signals of PSI that are ratios and have a total.
_PRESSURES = ("pressure_cpu_some", "pressure_io_some", "pressure_io_full")
#: Additional pressure while a checkpoint is written.
_WRITING_PRESSURE = {"pressure_io_some": 0.12, "pressure_io_full": 0.07}
#: Signal -> its value on every device of every host.
MACHINE_CONSTANTS: dict[str, float] = {
    "collector.outcome_state": 0,
    "collector.skipped_events": 0,
    "host.cpu_steal_ratio": 0.0,
    "host.cores_count": CORES,
    "host.pressure_memory_some_ratio": 0.0,
    "host.pressure_memory_full_ratio": 0.0,
    "host.memory_total_bytes": MEMORY_BYTES,
    "host.swap_used_bytes": 0,
    "host.hugepages_free_pages": 0,
    "host.memory_corrupted_bytes": 0,
    "host.file_cache_active_bytes": 120e9,
    "host.pressure_memory_some_microseconds": 0,
    "host.pressure_memory_full_microseconds": 0,
    "numa.memory_total_bytes": MEMORY_BYTES / 2,
    "numa.cores_count": CORES / 2,
    "numa.interleave_hit_pages": 61_000,
    "pcie.link_speed_transfers_per_second": 32e9,
    "pcie.link_speed_max_transfers_per_second": 32e9,
    "pcie.link_width_lanes": 16,
    "pcie.link_width_max_lanes": 16,
    "pcie.max_payload_bytes": 256,
    "pcie.max_payload_supported_bytes": 512,
    "pcie.max_read_request_bytes": 4096,
    "pcie.relaxed_ordering_state": 1,
    "pcie.aspm_flags": 0,
    "pcie.acs_flags": 0,
    "pcie.iommu_state": 1,
    "pcie.power_state": 0,
    "rapl.power_limit_watts": 350.0,
}
PACKET_BYTES = 1400.0
#: ETHTOOL_LINK_MODE_FEC_RS_BIT (ethtool.h).
_FEC_RS_BIT = 50
#: The interface's index; a different index would mean a different interface.
_INTERFACE_INDEX = 2
#: Signal -> its value on every host.
INTERFACE_CONSTANTS: dict[str, float] = {
    "net.carrier_state": 1,
    "net.operational_state": 6,
    "net.counter_epoch_count": _INTERFACE_INDEX,
    "net.carrier_changes_count": 2,
    "net.carrier_up_events": 1,
    "net.carrier_down_events": 1,
    "net.speed_bytes_per_second": 12.5e9,
    "net.mtu_bytes": 9000,
    "link.detected_state": 1,
    "link.speed_bytes_per_second": 12.5e9,
    "link.width_lanes": 4,
    "link.duplex_state": 1,
    "link.autonegotiation_state": 1,
    "link.fec_active_code": _FEC_RS_BIT,
    "link.fec_automatic_state": 1,
    "link.pause_autonegotiation_state": 0,
    "link.pause_receive_state": 0,
    "link.pause_transmit_state": 0,
    "link.counter_epoch_count": _INTERFACE_INDEX,
    "nic.statistics_count": 1100,
    "nic.counter_epoch_count": _INTERFACE_INDEX,
}
#: Lines that a kernel writes while it boots, and further lines per hour.
BOOT_RECORDS = 4200
RECORDS_PER_HOUR = 40.0
#: An incident of the kernel log may continue for this time after its last line.
INCIDENT_SECONDS = 60.0
#: Interval of the daemon's adjustments; between them the maximum error grows (kernel/time/ntp.c).
POLL_SECONDS = 64.0
ERROR_GROWTH = 500e-6
_STA_PLL_NANO = 0x2001
#: Signal -> its value on every host.
KERNEL_CONSTANTS: dict[str, float] = {
    "kernel_log.lost_count": 0,
    "kernel_log.not_understood_count": 0,
    "clock.error_estimated_seconds": 2e-4,
    "clock.synchronised_state": 1,
    "clock.leap_state": 0,
    "clock.status_flags": _STA_PLL_NANO,
    "clock.tai_offset_seconds": 37,
    "rtnetlink.messages_count": 3,
    "rtnetlink.overruns_events": 0,
    "rtnetlink.transitions_events": 0,
    "rtnetlink.withheld_events": 0,
    "rtnetlink.interfaces_count": 1,
    "rtnetlink.malformed_count": 0,
}
#: Bytes that an exchange moves over NVLink for each byte that it moves over the GPU's port (assumed: a
#: collective in two levels does seven eighths of its steps within the host, some of them twice).
BYTES_PER_PORT_BYTE = 4.0
SPEED_BYTES_PER_SECOND = 26.562e9  # as NVML says it of a link of the fourth generation
_VERSION_4 = 6  # nvmlNvlinkVersion_t
_KIB = 1024
#: Signal -> its value on every link.
NVLINK_CONSTANTS: dict[str, float] = {
    "nvlink.link_state": 1,
    "nvlink.version_code": _VERSION_4,
    "nvlink.speed_bytes_per_second": SPEED_BYTES_PER_SECOND,
}


def publish_drives(tables: Tables, read_bytes: Floats, written_bytes: Floats) -> None:
    """Put the I/O of both drives; (hosts, 2): since the boot, in whole sectors."""
    reads = np.ceil(read_bytes / BYTES_PER_OPERATION)
    writes = np.ceil(written_bytes / BYTES_PER_OPERATION)
    read_ms, write_ms = np.floor(reads * READ_MILLISECONDS), np.floor(writes * WRITE_MILLISECONDS)
    tables.put("disk.read_bytes", read_bytes)
    tables.put("disk.written_bytes", written_bytes)
    tables.put("disk.reads_operations", reads)
    tables.put("disk.writes_operations", writes)
    tables.put("disk.read_milliseconds", read_ms)
    tables.put("disk.write_milliseconds", write_ms)
    tables.put("disk.queue_milliseconds", read_ms + write_ms)
    busy = read_bytes / READ_BYTES_PER_SECOND_MAX + written_bytes / WRITTEN_BYTES_PER_SECOND_MAX
    tables.put("disk.busy_milliseconds", np.floor(busy * 1e3))
    flushes = np.floor(writes / WRITES_PER_FLUSH)
    tables.put("disk.flushes_operations", flushes)
    tables.put("disk.flush_milliseconds", flushes)  # about one each, with a capacitor behind it
    tables.put("nvme.read_bytes", np.floor(read_bytes / _SMART_BYTES) * _SMART_BYTES)
    tables.put("nvme.written_bytes", np.floor(written_bytes / _SMART_BYTES) * _SMART_BYTES)


def sectors(count: Floats) -> Floats:
    """Return bytes as the kernel counts them."""
    return np.asarray(np.floor(count / 512) * 512)


class MachineTables:
    """Readings of the hosts besides their GPUs; arrays are (hosts,) or (hosts, rows)."""

    def __init__(self, random: np.random.Generator, hosts: int, uptime_seconds: float) -> None:
        """*uptime_seconds*: uptime of the hosts at the start."""
        self.hosts = hosts
        self._random = random
        self._uptime_seconds = uptime_seconds
        self._switches = np.floor(random.uniform(1e9, 9e9, hosts))
        self._interrupts = np.floor(random.uniform(1e9, 9e9, hosts))
        self._dirty_bytes = random.uniform(1e6, 2e7, hosts)
        self._pressure_us = {name: np.floor(random.uniform(1e6, 1e8, hosts)) for name in _PRESSURES}
        self._memory_drift_bytes = np.zeros(hosts)
        self._numa_pages = np.floor(random.uniform(1e8, 9e8, (hosts, 2)))
        self._numa_misses = np.floor(random.uniform(0, 4e4, (hosts, 2)))
        self._package_joules = np.zeros((hosts, 2))

    def publish(
        self, tables: Tables, seconds: float, now_seconds: float, writing: Floats, gpu_watts: Floats
    ) -> None:
        """Put the readings that depend on the host's readings in *tables*.

        *seconds*: since the previous readings. *writing*: 1 where a checkpoint is written. *gpu_watts*: total of all
        GPUs of a host.
        """
        self._add_jitter(tables, writing)
        self._publish_cores(tables, seconds, writing)
        self._publish_memory(tables, seconds, writing)
        self._publish_numa(tables, seconds)
        self._publish_power(tables, seconds, gpu_watts)
        tables.put("host.uptime_seconds", self._uptime_seconds + now_seconds)

    def _normal(self, mean: float, deviation: float) -> Floats:
        return np.maximum(self._random.normal(mean, deviation, self.hosts), 0.0)

    def _add_jitter(self, tables: Tables, writing: Floats) -> None:
        """Add noise to the constant readings in *tables*, as on real hosts."""
        cpu = {
            name: tables.read(f"host.cpu_{name}_ratio")[:, 0]
            for name in ("user", "steal", "iowait")
        }
        system = self._normal(0.03, 0.003) + 0.01 * writing
        iowait = cpu["iowait"] * self._normal(1.0, 0.5) + 0.004 * writing
        tables.put("host.cpu_system_ratio", system)
        tables.put("host.cpu_iowait_ratio", iowait)
        busy = cpu["user"] + cpu["steal"] + system + iowait
        tables.put("host.cpu_idle_ratio", np.maximum(1 - busy, 0.0))
        for name in _PRESSURES:
            share = (
                tables.read(f"host.{name}_ratio")[:, 0] + _WRITING_PRESSURE.get(name, 0.0) * writing
            )
            tables.put(
                f"host.{name}_ratio", np.round(np.minimum(share * self._normal(1.0, 0.2), 1.0), 4)
            )
        self._memory_drift_bytes += np.floor(self._random.normal(0, 2e7, self.hosts))
        available = tables.read("host.memory_available_bytes")[:, 0]
        tables.put("host.memory_available_bytes", np.floor(available - self._memory_drift_bytes))
        turns = tables.read("collector.turn_seconds")
        tables.put(
            "collector.turn_seconds", turns * np.exp(self._random.normal(0, 0.25, turns.shape))
        )

    def _publish_cores(self, tables: Tables, seconds: float, writing: Floats) -> None:
        user = tables.read("host.cpu_user_ratio")[:, 0]
        busiest = np.minimum(self._normal(0.97, 0.02), 1.0)
        tables.put("host.cpu_busiest_core_ratio", busiest)
        tables.put("host.cpu_busiest_core_number", self._random.integers(0, CORES, self.hosts))
        tables.put("host.cores_saturated_count", busiest >= 0.95)
        tables.put("host.cpu_interrupt_ratio", INTERRUPT_RATIO)
        tables.put("numa.cpu_busy_ratio", 1 - tables.read("host.cpu_idle_ratio")[:, 0])
        tables.put("numa.cpu_busiest_core_ratio", busiest)
        tables.put("host.blocked_count", self._random.poisson(0.1 + 2.5 * writing))
        self._switches += self._random.poisson(90e3 * seconds, self.hosts)
        tables.put("host.context_switches_count", self._switches)
        self._interrupts += self._random.poisson(INTERRUPTS_PER_SECOND * seconds, self.hosts)
        tables.put("host.interrupts_count", self._interrupts)
        softirqs = np.floor(self._interrupts * (SOFTIRQS_PER_SECOND / INTERRUPTS_PER_SECOND))
        tables.put("host.softirqs_count", softirqs)
        tables.put("host.load_1m_ratio", user + 0.02)
        hertz = self._normal(3.0e9, 2e7)
        tables.put("host.cpu_frequency_hertz", hertz)
        tables.put("host.cpu_frequency_min_hertz", 0.8e9)
        tables.put("host.cpu_frequency_max_hertz", hertz + 0.5e9)

    def _publish_memory(self, tables: Tables, seconds: float, writing: Floats) -> None:
        """Put dirty memory, and the totals of PSI that match the ratios."""
        for name, total_us in self._pressure_us.items():
            total_us += np.floor(tables.read(f"host.{name}_ratio")[:, 0] * seconds * 1e6)
            tables.put(f"host.{name}_microseconds", total_us)
        self._dirty_bytes += writing * seconds * 0.5 * CHECKPOINT_BYTES_PER_SECOND
        self._dirty_bytes += (1e7 - self._dirty_bytes) * -np.expm1(-seconds / DIRTY_SECONDS)
        tables.put("host.memory_dirty_bytes", np.floor(self._dirty_bytes))

    def _publish_numa(self, tables: Tables, seconds: float) -> None:
        self._numa_pages += self._random.poisson(2e4 * seconds, (self.hosts, 2))
        self._numa_misses += self._random.poisson(0.5 * seconds, (self.hosts, 2))
        half = tables.read("host.memory_available_bytes") / 2
        tables.put("numa.memory_free_bytes", np.floor(half * np.array([0.9, 0.8])))
        tables.put("numa.hit_pages", self._numa_pages)
        tables.put("numa.local_pages", self._numa_pages)
        tables.put("numa.miss_pages", self._numa_misses)
        tables.put("numa.other_pages", self._numa_misses)
        tables.put("numa.foreign_pages", self._numa_misses[:, ::-1])

    def _publish_power(self, tables: Tables, seconds: float, gpu_watts: Floats) -> None:
        watts = PACKAGE_IDLE_WATTS + 900 * tables.read("host.cpu_user_ratio") * np.ones(2)
        watts = watts + self._random.normal(0, 4.0, (self.hosts, 2))
        self._package_joules += watts * seconds
        tables.put("rapl.energy_joules", self._package_joules)
        tables.put("hwmon.temperature_celsius", np.round(30 + 0.12 * watts), slice(0, 2))
        tables.put("hwmon.temperature_critical_celsius", 100.0, slice(0, 2))
        # The chassis' own meter: GPUs, packages, fans and the rest.
        chassis = (gpu_watts + watts.sum(axis=1)) * 1.12 + 900
        tables.put("hwmon.power_watts", np.round(chassis), slice(2, 3))


class InterfaceTables:
    """One interface a host; arrays are (hosts,)."""

    def __init__(self, random: np.random.Generator, hosts: int) -> None:
        self._hosts = hosts
        self._random = random
        self._bytes = np.floor(random.uniform(1e11, 9e12, (2, hosts)))
        self._dropped = np.floor((random.random(hosts) < 0.2) * random.uniform(0, 40, hosts))

    def publish(self, tables: Tables, seconds: float) -> None:
        """Put the traffic of the last *seconds*."""
        self._bytes += np.floor(self._random.gamma(4.0, 5e5, (2, self._hosts)) * seconds)
        for row, direction in enumerate(("received", "transmitted")):
            tables.put(f"net.{direction}_bytes", self._bytes[row])
            tables.put(f"net.{direction}_packets", np.floor(self._bytes[row] / PACKET_BYTES))
        self._dropped += self._random.poisson(0.004 * seconds, self._hosts)
        tables.put("net.receive_dropped_packets", self._dropped)


class KernelTables:
    """The kernels of all hosts; arrays are (hosts,)."""

    def __init__(self, random: np.random.Generator, hosts: int) -> None:
        self._random = random
        self._frequency: Floats = random.normal(0.0, 8e-6, hosts)
        self._polled_seconds = random.uniform(0.0, POLL_SECONDS, hosts)
        self._records = np.full(hosts, float(BOOT_RECORDS))
        self._xid_events = np.zeros(hosts)
        self._incident_until_seconds = np.zeros(hosts)

    def add_xids(self, host: int, count: int, now_seconds: float) -> None:
        """Take note that the driver of *host* wrote this many XIDs, which NVML delivers as well."""
        self._records[host] += count
        self._xid_events[host] += count
        self._incident_until_seconds[host] = now_seconds + INCIDENT_SECONDS

    def publish(self, tables: Tables, seconds: float, now_seconds: float) -> None:
        """Put what was read in the last *seconds*."""
        shape = self._xid_events.shape
        self._records += self._random.poisson(RECORDS_PER_HOUR / 3600 * seconds, shape)
        tables.put("kernel_log.read_count", self._records)
        tables.put("kernel_log.told_events", self._xid_events)
        tables.put("kernel_log.incidents_count", self._incident_until_seconds > now_seconds)
        tables.put("nvml_events.received_events", self._xid_events)
        tables.put("nvml_events.told_by_kernel_log_events", self._xid_events)
        since_poll = (now_seconds + self._polled_seconds) % POLL_SECONDS
        jitter = self._random.normal(0.0, 2e-5, shape)
        tables.put("clock.offset_seconds", tables.read("clock.offset_seconds")[:, 0] + jitter)
        tables.put("clock.error_max_seconds", 1e-3 + ERROR_GROWTH * since_poll)
        tables.put("clock.frequency_offset_ratio", self._frequency)


class NvLinkTables:
    """All NVLinks; arrays are (hosts, 8 * 18), a GPU's links beside each other."""

    def __init__(self, random: np.random.Generator, hosts: int) -> None:
        shape = hosts, GPUS * NVLINKS_PER_GPU
        self._initial_kib = {
            direction: np.floor(random.uniform(1e9, 1e12, shape))
            for direction in ("received", "transmitted")
        }

    def publish(self, tables: Tables, moved_bytes: Floats) -> None:
        """Put the traffic; *moved_bytes*: (hosts, 8), by each GPU's port since the boot."""
        kib = np.floor(moved_bytes * BYTES_PER_PORT_BYTE / (NVLINKS_PER_GPU * _KIB))
        for direction, initial_kib in self._initial_kib.items():
            tables.put(
                f"nvlink.{direction}_data_bytes",
                (initial_kib + np.repeat(kib, NVLINKS_PER_GPU, axis=1)) * _KIB,
            )
