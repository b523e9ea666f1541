"""Probes of the aggregator: latency of its event loop, and resource usage from the kernel."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from ..store.store_folder import OPS_FILE, STORE_FILE, wal_of

#: Period of the probe; two wake-ups per second are cheap enough to be always on.
PROBE_SECONDS = 0.5
#: The maximum of the last one to two spans of this length is reported.
SPAN_SECONDS = 15.0

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class LoopLag:
    """Lateness of an event loop: a block delays every agent. Any thread may read `seconds`."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._span, self._worst, self._before = -1, 0.0, 0.0
        self._due = 0.0
        self._now: Callable[[], float] = float

    def start(self) -> None:
        """Start the probe; call this within the loop."""
        loop = asyncio.get_running_loop()
        self._now, self._due = loop.time, loop.time() + PROBE_SECONDS
        self._task = loop.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self._due = self._now() + PROBE_SECONDS
            await asyncio.sleep(PROBE_SECONDS)
            self.note(self._now(), self._now() - self._due)

    def note(self, now: float, late_seconds: float) -> None:
        """Add a lateness; *now* is from any clock that does not jump."""
        span = int(now // SPAN_SECONDS)
        if span != self._span:
            self._before = self._worst if span == self._span + 1 else 0.0
            self._span, self._worst = span, 0.0
        self._worst = max(self._worst, late_seconds)

    @property
    def seconds(self) -> float:
        """Return the maximum lateness of the last 15 to 30 s, including a current hang."""
        if self._task is None:
            return 0.0
        return max(0.0, self._worst, self._before, self._now() - self._due)

    def stop(self) -> None:
        """Stop the probe."""
        if self._task is not None:
            self._task.cancel()
            self._task = None


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Resource usage of the process and its disk. None: could not be read."""

    disk_bytes: int | None
    disk_free_bytes: int | None
    database_bytes: int | None
    snapshot_age_seconds: float | None
    memory_bytes: int | None
    cpu_seconds: float
    descriptors: int | None
    descriptors_max: int
    connections: int | None


def read_resource_usage(
    folder: Path, ports: Collection[int], wall_ns: int, proc: Path = Path("/proc")
) -> ResourceUsage:
    """Return the usage of this process and of the data *folder*. Never raises."""
    disk = _disk(folder)
    return ResourceUsage(
        disk[0] if disk else None,
        disk[1] if disk else None,
        _database_bytes(folder),
        _age_seconds(folder / OPS_FILE, wall_ns),
        _memory_bytes(proc / "self/statm"),
        time.process_time(),
        _entries(proc / "self/fd"),
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        _connections(proc, ports),
    )


def _disk(folder: Path) -> tuple[int, int] | None:
    """Return (size, free bytes for unprivileged users) of the file system."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def _database_bytes(folder: Path) -> int | None:
    sizes = [_size(folder / STORE_FILE), _size(wal_of(folder / STORE_FILE))]
    return None if sizes[0] is None else sum(filter(None, sizes))


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _age_seconds(path: Path, wall_ns: int) -> float | None:
    try:
        return max(0.0, (wall_ns - path.stat().st_mtime_ns) / 1e9)
    except OSError:
        return None


def _memory_bytes(path: Path) -> int | None:
    try:
        return int(path.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def _entries(folder: Path) -> int | None:
    try:
        return len(os.listdir(folder))
    except OSError:
        return None


def _connections(proc: Path, ports: Collection[int]) -> int | None:
    """Return the number of established TCP connections to *ports*."""
    try:
        tables = [(proc / "net" / name).read_bytes() for name in ("tcp", "tcp6")]
    except OSError:
        return None
    return sum(established(table, port) for table in tables for port in ports)


def established(table: bytes, port: int) -> int:
    """Count the established lines of /proc/net/tcp (get_tcp4_sock) at local *port*."""
    return len(re.findall(rb": [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]{4} 01 " % port, table))
