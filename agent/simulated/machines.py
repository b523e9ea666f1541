"""The hosts around the GPUs: cores, memory, NUMA, power sensors, turns of collectors.

Two sockets of 112 cores, 2 TiB. A checkpoint shows as writes, dirty memory and I/O pressure on the hosts that write it.
"""

from __future__ import annotations

import numpy as np

from .drives import CHECKPOINT_BYTES_PER_SECOND
from .tables import Floats, Tables

CORES = 224
MEMORY_BYTES = 2 * 2**40
DIRTY_SECONDS = 12.0  # until the kernel has written what is dirty
INTERRUPTS_PER_SECOND, SOFTIRQS_PER_SECOND = 60e3, 45e3
INTERRUPT_RATIO = 0.004
PACKAGE_IDLE_WATTS = 140.0
CLASS_GPU, CLASS_NIC = 0x030200, 0x020700
#: What PSI has a total of -> whose total it is.
_WAITS = ("pressure_cpu_some", "pressure_io_some", "pressure_io_full")
#: Of them, how much there is more while a checkpoint is written.
_WRITING_WAITS = {"pressure_io_some": 0.12, "pressure_io_full": 0.07}


class Machines:
    """All hosts around their GPUs; arrays are (hosts,) or (hosts, rows)."""

    def __init__(self, random: np.random.Generator, hosts: int, uptime_seconds: float) -> None:
        """*uptime_seconds*: the hosts' at the start."""
        self.hosts = hosts
        self._random = random
        self._uptime_seconds = uptime_seconds
        self._switches = np.floor(random.uniform(1e9, 9e9, hosts))
        self._interrupts = np.floor(random.uniform(1e9, 9e9, hosts))
        self._dirty_bytes = random.uniform(1e6, 2e7, hosts)
        self._waited_us = {name: np.floor(random.uniform(1e6, 1e8, hosts)) for name in _WAITS}
        self._more_bytes = np.zeros(hosts)
        self._numa_pages = np.floor(random.uniform(1e8, 9e8, (hosts, 2)))
        self._numa_misses = np.floor(random.uniform(0, 4e4, (hosts, 2)))
        self._package_joules = np.zeros((hosts, 2))

    def publish(
        self, tables: Tables, seconds: float, now_seconds: float, writing: Floats, gpu_watts: Floats
    ) -> None:
        """Put what follows from the host's readings that are in *tables* already.

        *seconds*: since the readings before. *writing*: 1 where a checkpoint is written. *gpu_watts*: of all GPUs
        of a host together.
        """
        self._stray(tables, writing)
        self._publish_cores(tables, seconds, writing)
        self._publish_memory(tables, seconds, writing)
        self._publish_numa(tables, seconds)
        self._publish_power(tables, seconds, gpu_watts)
        tables.put("host.uptime_seconds", self._uptime_seconds + now_seconds)

    def _normal(self, mean: float, deviation: float) -> Floats:
        return np.maximum(self._random.normal(mean, deviation, self.hosts), 0.0)

    def _stray(self, tables: Tables, writing: Floats) -> None:
        """Let what stands still from second to second in *tables* stray, as it does on real hosts."""
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
        for name in _WAITS:
            share = (
                tables.read(f"host.{name}_ratio")[:, 0] + _WRITING_WAITS.get(name, 0.0) * writing
            )
            tables.put(
                f"host.{name}_ratio", np.round(np.minimum(share * self._normal(1.0, 0.2), 1.0), 4)
            )
        self._more_bytes += np.floor(self._random.normal(0, 2e7, self.hosts))
        available = tables.read("host.memory_available_bytes")[:, 0]
        tables.put("host.memory_available_bytes", np.floor(available - self._more_bytes))
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
        """Put what is dirty, and the totals of PSI, whose shares the ratios are."""
        for name, waited in self._waited_us.items():
            waited += np.floor(tables.read(f"host.{name}_ratio")[:, 0] * seconds * 1e6)
            tables.put(f"host.{name}_microseconds", waited)
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
