"""A system and a scratch NVMe in every host: a checkpoint shows as writes where it is written, the data set as reads."""

from __future__ import annotations

import numpy as np

from .tables import Floats, Tables

CHECKPOINT_BYTES_PER_SECOND = 3.2e9
DATASET_BYTES_PER_SECOND = 180e6
LOG_BYTES_PER_SECOND = 0.4e6
BYTES_PER_OPERATION = 256e3
WRITES_PER_FLUSH = 64
READ_BYTES_PER_SECOND_MAX, WRITTEN_BYTES_PER_SECOND_MAX = 6e9, 4e9
#: Of one operation.
READ_MILLISECONDS, WRITE_MILLISECONDS = 0.12, 0.9
#: SMART counts in thousands of sectors.
_SMART_BYTES = 512_000.0
#: Rows of the tables.
SYSTEM, SCRATCH = 0, 1


def publish(tables: Tables, read_bytes: Floats, written_bytes: Floats) -> None:
    """Put the I/O of both drives; (hosts, 2): since the boot, in whole sectors."""
    reads, writes = (
        np.ceil(read_bytes / BYTES_PER_OPERATION),
        np.ceil(written_bytes / BYTES_PER_OPERATION),
    )
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


#: Signal -> its value on the system drive and on the scratch drive.
FILESYSTEMS: dict[str, tuple[float, float]] = {
    "filesystem.size_bytes": (0.94e12, 7.6e12),
    "filesystem.available_bytes": (0.71e12, 4.9e12),
    "filesystem.inodes_count": (5.8e7, 7.4e8),
    "filesystem.inodes_available_count": (5.6e7, 7.3e8),
}
#: Signal -> its value on every drive of every host.
CONSTANTS: dict[str, float] = {
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
