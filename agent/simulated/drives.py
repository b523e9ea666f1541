"""Drives: a checkpoint shows as writes on the hosts that write it, the data set as reads everywhere."""

from __future__ import annotations

import numpy as np

from .tables import Floats, Tables

CHECKPOINT_BYTES_PER_SECOND = 3.2e9
DATASET_BYTES_PER_SECOND = 180e6
LOG_BYTES_PER_SECOND = 0.4e6
BYTES_PER_OPERATION = 256e3
WRITES_PER_FLUSH = 64
#: SMART counts in thousands of sectors.
_SMART_BYTES = 512_000.0
#: Rows of the tables.
SYSTEM, SCRATCH = 0, 1


class Drives:
    """A system and a scratch NVMe in every host; arrays are (hosts, 2)."""

    def __init__(self, random: np.random.Generator, noise: np.random.Generator, hosts: int) -> None:
        self._hosts = hosts
        self._noise = noise
        self._counts = {
            name: np.floor(random.uniform(1e6, 9e6, (hosts, 2)))
            for name in ("reads", "writes", "read_ms", "write_ms", "busy_ms")
        }
        self.read_bytes = np.floor(random.uniform(1e9, 1e12, (hosts, 2)))
        self.written_bytes = np.floor(random.uniform(1e9, 1e12, (hosts, 2)))

    def publish(self, tables: Tables, seconds: float, writing: Floats) -> None:
        """Put this second's I/O. *writing*: (hosts,), the share of it that a checkpoint was written."""
        read = np.zeros((self._hosts, 2))
        read[:, SCRATCH] = self._normal(DATASET_BYTES_PER_SECOND, 3e7) * seconds
        written = np.zeros((self._hosts, 2))
        written[:, SYSTEM] = self._normal(LOG_BYTES_PER_SECOND, 1e5) * seconds
        written[:, SCRATCH] = writing * seconds * CHECKPOINT_BYTES_PER_SECOND
        self.read_bytes += np.floor(read / 512) * 512
        self.written_bytes += np.floor(written / 512) * 512
        busy = np.clip(read / seconds / 6e9 + written / seconds / 4e9, 0, 1)
        self._count(read, written, busy * seconds)
        counts = self._counts
        tables.put("disk.reads_operations", counts["reads"])
        tables.put("disk.writes_operations", counts["writes"])
        tables.put("disk.read_bytes", self.read_bytes)
        tables.put("disk.written_bytes", self.written_bytes)
        tables.put("disk.read_milliseconds", counts["read_ms"])
        tables.put("disk.write_milliseconds", counts["write_ms"])
        tables.put("disk.busy_milliseconds", counts["busy_ms"])
        tables.put("disk.queue_milliseconds", counts["read_ms"] + counts["write_ms"])
        flushes = np.floor(counts["writes"] / WRITES_PER_FLUSH)
        tables.put("disk.flushes_operations", flushes)
        tables.put("disk.flush_milliseconds", flushes)  # about one each, with a capacitor behind it
        tables.put("disk.inflight_count", self._noise.poisson(busy * 24))
        tables.put("nvme.read_bytes", np.floor(self.read_bytes / _SMART_BYTES) * _SMART_BYTES)
        tables.put("nvme.written_bytes", np.floor(self.written_bytes / _SMART_BYTES) * _SMART_BYTES)

    def _count(self, read: Floats, written: Floats, busy_seconds: Floats) -> None:
        counts = self._counts
        counts["reads"] += np.floor(read / BYTES_PER_OPERATION)
        counts["writes"] += np.ceil(written / BYTES_PER_OPERATION)
        counts["read_ms"] += np.floor(read / BYTES_PER_OPERATION * 0.12)
        counts["write_ms"] += np.floor(written / BYTES_PER_OPERATION * 0.9)
        counts["busy_ms"] += np.floor(busy_seconds * 1e3)

    def _normal(self, mean: float, deviation: float) -> Floats:
        return np.maximum(self._noise.normal(mean, deviation, self._hosts), 0.0)

    @staticmethod
    def publish_constants(tables: Tables) -> None:
        """Put what does not change while the model runs."""
        for signal, value in CONSTANTS.items():
            tables.put(signal, value)
        tables.put("filesystem.size_bytes", [[0.94e12, 7.6e12]])
        tables.put("filesystem.available_bytes", [[0.71e12, 4.9e12]])
        tables.put("filesystem.inodes_count", [[5.8e7, 7.4e8]])
        tables.put("filesystem.inodes_available_count", [[5.6e7, 7.3e8]])


#: Signal -> its value on every drive of every host.
CONSTANTS: dict[str, float] = {
    "disk.discards_operations": 0,
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
