"""Whether library and driver are of different versions: an update under way, and no GPU lost."""

from __future__ import annotations

from pathlib import Path

from ...fingerprints.catalogue import BY_NAME
from ..hardware.nvml import kernel_driver_version
from ..latest import Latest

STATE = BY_NAME["gpu.driver_updating_state"]
#: An older reading says nothing of now: the GPUs were let go of, say.
FRESH_NS = 10_000_000_000


def words(latest: Latest, proc: Path, now_ns: int) -> str:
    """Return what is to be said of it; empty while no GPU's reading shows it. For any thread."""
    readings = latest.tables.get(STATE.table)
    if readings is None or now_ns - readings.boottime_ns > FRESH_NS:
        return ""
    if not any(value for _, value in readings.values(STATE.signal_id)):
        return ""
    version = kernel_driver_version(proc)
    loaded = f"; the kernel has {version} loaded" if version else ""
    return f"being updated: NVML and the driver are of different versions{loaded}"
