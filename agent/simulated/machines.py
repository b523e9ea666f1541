"""The hosts around the GPUs: cores, memory, NUMA, PCIe, power sensors, drives, network, kernel.

Two sockets of 112 cores, 2 TiB. A checkpoint shows as writes, dirty memory and I/O pressure on the hosts
that write it.
"""

from __future__ import annotations

import numpy as np

from . import parts
from .drives import CHECKPOINT_BYTES_PER_SECOND, Drives
from .interfaces import Interfaces
from .job import Job, Phase, Stretch
from .kernel import Kernels
from .tables import Floats, Tables

CORES = 224
MEMORY_BYTES = 2 * 2**40
#: PSI's avg10 is an exponential mean over ten seconds (kernel/sched/psi.c).
PRESSURE_SECONDS = 10.0
DIRTY_SECONDS = 12.0  # until the kernel has written what is dirty
INTERRUPTS_PER_SECOND, SOFTIRQS_PER_SECOND = 60e3, 45e3
INTERRUPT_RATIO = 0.004
PACKAGE_IDLE_WATTS = 140.0
CLASS_GPU, CLASS_NIC = 0x030200, 0x020700


class Machines:
    """All hosts of the fleet; arrays are (hosts,) or (hosts, rows)."""

    def __init__(
        self,
        random: np.random.Generator,
        noise: np.random.Generator,
        hosts: int,
        uptime_seconds: float,
    ) -> None:
        self.hosts = hosts
        self._noise = noise
        self._uptime_seconds = uptime_seconds
        self._user = random.uniform(0.08, 0.16, hosts)
        self._switches = np.floor(random.uniform(1e9, 9e9, hosts))
        self._interrupts = np.floor(random.uniform(1e9, 9e9, hosts))
        self._used_bytes = random.uniform(0.25, 0.35, hosts) * MEMORY_BYTES
        self.dirty_bytes = random.uniform(1e6, 2e7, hosts)
        self._pressure_cpu = random.uniform(0.001, 0.008, hosts)
        self.pressure_io = np.full(hosts, 0.002)
        self._waited_us = {
            name: np.floor(random.uniform(1e6, 1e8, hosts)) for name in ("cpu", "io", "io_full")
        }
        self._numa_pages = np.floor(random.uniform(1e8, 9e8, (hosts, 2)))
        self._numa_misses = np.floor(random.uniform(0, 4e4, (hosts, 2)))
        self._package_joules = np.zeros((hosts, 2))
        self._package_watts = PACKAGE_IDLE_WATTS + 900 * self._user[:, None] * np.ones(2)
        self._aer = np.floor(
            (random.random((hosts, 16)) < 0.04) * random.uniform(1, 9, (hosts, 16))
        )
        self.drives = Drives(random, noise, hosts)
        self.interfaces = Interfaces(random, noise, hosts)
        self.kernels = Kernels(noise, hosts)
        self._writing_seconds = np.zeros(hosts)
        self._window_seconds = 0.0

    def advance(self, stretch: Stretch, job: Job) -> None:
        """Live through one stretch of the job."""
        self._window_seconds += stretch.seconds
        if stretch.phase is Phase.CHECKPOINT:
            self._writing_seconds += (job.writers & job.alive).any(axis=1) * stretch.seconds

    def publish(self, tables: Tables, now_seconds: float, gpu_watts: Floats) -> None:
        """Put this second's readings. *gpu_watts*: (hosts,), of all GPUs of a host together."""
        seconds = max(self._window_seconds, 1e-9)
        writing = self._writing_seconds / seconds  # share of this second
        self._publish_cores(tables, seconds, writing)
        self._publish_memory(tables, seconds, writing, now_seconds)
        self._publish_numa(tables, seconds)
        self.drives.publish(tables, seconds, writing)
        self.interfaces.publish(tables, seconds)
        self.kernels.publish(tables, seconds, now_seconds)
        self._publish_power(tables, seconds, gpu_watts)
        self._publish_turns(tables)
        self._writing_seconds = np.zeros(self.hosts)
        self._window_seconds = 0.0

    def _normal(self, mean: float, deviation: float) -> Floats:
        return np.maximum(self._noise.normal(mean, deviation, self.hosts), 0.0)

    def _publish_cores(self, tables: Tables, seconds: float, writing: Floats) -> None:
        user = np.clip(self._user + self._noise.normal(0, 0.006, self.hosts), 0, 1)
        system = self._normal(0.03, 0.003) + 0.01 * writing
        iowait = self._normal(0.0004, 0.0002) + 0.004 * writing
        tables.put("host.cpu_user_ratio", user)
        tables.put("host.cpu_system_ratio", system)
        tables.put("host.cpu_iowait_ratio", iowait)
        tables.put("host.cpu_idle_ratio", 1 - user - system - iowait)
        busiest = np.minimum(self._normal(0.97, 0.02), 1.0)
        tables.put("host.cpu_busiest_core_ratio", busiest)
        tables.put("host.cpu_busiest_core_number", self._noise.integers(0, CORES, self.hosts))
        tables.put("host.cores_saturated_count", busiest >= 0.95)
        tables.put("host.cpu_interrupt_ratio", INTERRUPT_RATIO)
        tables.put("numa.cpu_busy_ratio", user + system)
        tables.put("numa.cpu_busiest_core_ratio", busiest)
        runnable = 1 + self._noise.poisson(CORES * user)
        tables.put("host.runnable_count", runnable)
        tables.put("host.blocked_count", self._noise.poisson(0.1 + 2.5 * writing))
        self._switches += self._noise.poisson(90e3 * seconds, self.hosts)
        tables.put("host.context_switches_count", self._switches)
        self._interrupts += self._noise.poisson(INTERRUPTS_PER_SECOND * seconds, self.hosts)
        tables.put("host.interrupts_count", self._interrupts)
        softirqs = np.floor(self._interrupts * (SOFTIRQS_PER_SECOND / INTERRUPTS_PER_SECOND))
        tables.put("host.softirqs_count", softirqs)
        tables.put("host.load_1m_ratio", self._user + 0.02)
        hertz = self._normal(3.0e9, 2e7)
        tables.put("host.cpu_frequency_hertz", hertz)
        tables.put("host.cpu_frequency_min_hertz", 0.8e9)
        tables.put("host.cpu_frequency_max_hertz", hertz + 0.5e9)

    def _publish_memory(
        self, tables: Tables, seconds: float, writing: Floats, now_seconds: float
    ) -> None:
        fade = -np.expm1(-seconds / PRESSURE_SECONDS)
        waits = 0.002 + 0.12 * writing
        self.pressure_io += (waits - self.pressure_io) * fade
        cpu = np.maximum(self._pressure_cpu + self._noise.normal(0, 0.0008, self.hosts), 0)
        self._publish_waits(tables, seconds, cpu, waits)
        tables.put("host.pressure_cpu_some_ratio", np.round(cpu, 4))
        tables.put("host.pressure_io_some_ratio", np.round(self.pressure_io, 4))
        tables.put("host.pressure_io_full_ratio", np.round(self.pressure_io * 0.6, 4))
        self.dirty_bytes += writing * seconds * 0.5 * CHECKPOINT_BYTES_PER_SECOND
        self.dirty_bytes += (1e7 - self.dirty_bytes) * -np.expm1(-seconds / DIRTY_SECONDS)
        self._used_bytes += self._noise.normal(0, 2e7, self.hosts)
        tables.put("host.memory_dirty_bytes", np.floor(self.dirty_bytes))
        tables.put("host.memory_available_bytes", np.floor(MEMORY_BYTES - self._used_bytes))
        tables.put("host.uptime_seconds", self._uptime_seconds + now_seconds)

    def _publish_waits(self, tables: Tables, seconds: float, cpu: Floats, io: Floats) -> None:
        """Put the totals of PSI, whose means over ten seconds the ratios are."""
        for name, share in (("cpu", cpu), ("io", io), ("io_full", io * 0.6)):
            self._waited_us[name] += np.floor(share * seconds * 1e6)
        tables.put("host.pressure_cpu_some_microseconds", self._waited_us["cpu"])
        tables.put("host.pressure_io_some_microseconds", self._waited_us["io"])
        tables.put("host.pressure_io_full_microseconds", self._waited_us["io_full"])

    def _publish_numa(self, tables: Tables, seconds: float) -> None:
        self._numa_pages += self._noise.poisson(2e4 * seconds, (self.hosts, 2))
        self._numa_misses += self._noise.poisson(0.5 * seconds, (self.hosts, 2))
        half = (MEMORY_BYTES - self._used_bytes)[:, None] / 2
        tables.put("numa.memory_free_bytes", np.floor(half * np.array([0.9, 0.8])))
        tables.put("numa.hit_pages", self._numa_pages)
        tables.put("numa.local_pages", self._numa_pages)
        tables.put("numa.miss_pages", self._numa_misses)
        tables.put("numa.other_pages", self._numa_misses)
        tables.put("numa.foreign_pages", self._numa_misses[:, ::-1])

    def _publish_power(self, tables: Tables, seconds: float, gpu_watts: Floats) -> None:
        watts = self._package_watts + self._noise.normal(0, 4.0, (self.hosts, 2))
        self._package_joules += watts * seconds
        tables.put("rapl.energy_joules", self._package_joules)
        package_celsius = np.round(30 + 0.12 * watts)
        tables.put("hwmon.temperature_celsius", package_celsius, slice(0, 2))
        # The chassis' own meter: GPUs, packages, fans and the rest.
        chassis = (gpu_watts + watts.sum(axis=1)) * 1.12 + 900
        tables.put("hwmon.power_watts", np.round(chassis), slice(2, 3))

    def _publish_turns(self, tables: Tables) -> None:
        count = len(parts.COLLECTORS)
        seconds = np.exp(self._noise.normal(np.log(4e-4), 0.25, (self.hosts, count)))
        tables.put("collector.turn_seconds", seconds)

    def publish_constants(self, tables: Tables) -> None:
        """Put what does not change while the model runs."""
        for signal, value in CONSTANTS.items():
            tables.put(signal, value)
        tables.put("pcie.class_code", [[CLASS_GPU] * 8 + [CLASS_NIC] * 8])
        tables.put("pcie.numa_node_number", [[*parts.NUMA_NODES, *parts.NUMA_NODES]])
        tables.put("pcie.aer_correctable_errors", self._aer)
        tables.put("pcie.aer_receiver_errors", self._aer)
        tables.put("hwmon.temperature_critical_celsius", 100.0, slice(0, 2))
        self.drives.publish_constants(tables)
        self.interfaces.publish_constants(tables)
        self.kernels.publish_constants(tables)


#: Signal -> its value on every device of every host.
CONSTANTS: dict[str, float] = {
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
