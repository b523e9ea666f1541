"""Disks from /proc/diskstats, and local filesystems."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from operator import attrgetter

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.block_devices import (
    DiskCounters,
    Mount,
    disks_with_backing,
    parse_diskstats,
    parse_mountinfo,
)
from ..hardware.files import KeptFile, device_key
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import columns_of
from .folders import DEVICES_MAX
from .listing import Listing

#: `inflight` above this is the kernel's own count gone below zero.
_INFLIGHT_MAX = 1 << 31


_DISK = columns_of("disk_1s")
_FILESYSTEM = columns_of("filesystem_60s")
_COUNTERS: dict[str, Callable[[DiskCounters], int]] = {
    "disk.reads_operations": attrgetter("reads"),
    "disk.read_bytes": attrgetter("read_bytes"),
    "disk.read_milliseconds": attrgetter("read_milliseconds"),
    "disk.writes_operations": attrgetter("writes"),
    "disk.written_bytes": attrgetter("written_bytes"),
    "disk.write_milliseconds": attrgetter("write_milliseconds"),
    "disk.busy_milliseconds": attrgetter("busy_milliseconds"),
}


class Disks:
    """Traffic, waiting and load of each disk with a device of its own."""

    name = "disk_1s"
    pace = Pace.SECOND
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._stats = KeptFile(roots.proc / "diskstats")
        self._listing = Listing(lambda: disks_with_backing(roots.sys)[:DEVICES_MAX], self.pace)
        self._block = Block("disk_1s", ())

    def collect(self) -> Sequence[Block]:
        """Return the one block; a disk that went is missing in it. Raises NoData without a disk."""
        if self._listing.renew():
            self._block = Block("disk_1s", [device_key(name) for name in self._listing.value])
        if not self._listing.value:
            raise NoData("no disk with a device of its own in /sys/block")
        found = parse_diskstats(self._stats.read(), self._listing.value)
        for row, name in enumerate(self._listing.value):
            self._fill(row, found.get(name))
        return (self._block,)

    def _fill(self, row: int, disk: DiskCounters | None) -> None:
        for name, value_of in _COUNTERS.items():
            self._block.put_int(_DISK[name], row, value_of(disk) if disk else None)
        inflight = disk.inflight if disk and disk.inflight < _INFLIGHT_MAX else None
        self._block.put_float(_DISK["disk.inflight_count"], row, inflight)


class Filesystems:
    """Room on each local filesystem, and whether it can still be written.

    Only filesystems on local block devices are asked: statvfs of a network filesystem may not return.
    """

    name = "filesystem_60s"
    pace = Pace.MINUTE
    enters_driver = True  # even a local one may wait for its disk

    def __init__(
        self, roots: Roots, statvfs: Callable[[str], os.statvfs_result] = os.statvfs
    ) -> None:
        self._mounts = KeptFile(roots.proc / "self/mountinfo")
        self._statvfs = statvfs
        self._block = Block("filesystem_60s", ())

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData when nothing local is mounted."""
        mounts = parse_mountinfo(self._mounts.read())[:DEVICES_MAX]
        if not mounts:
            raise NoData("no filesystem on a local block device in /proc/self/mountinfo")
        keys = tuple(device_key(mount.point) for mount in mounts)
        if keys != self._block.devices:
            self._block = Block("filesystem_60s", keys)
        for row, mount in enumerate(mounts):
            self._fill(row, mount)
        return (self._block,)

    def _fill(self, row: int, mount: Mount) -> None:
        size: int | None = None
        available: int | None = None
        try:
            answer = self._statvfs(mount.point)
            size = answer.f_blocks * answer.f_frsize
            available = answer.f_bavail * answer.f_frsize
        except OSError:
            pass  # unmounted between the list and the question, or not for us to see
        self._block.put_float(_FILESYSTEM["filesystem.size_bytes"], row, size)
        self._block.put_float(_FILESYSTEM["filesystem.available_bytes"], row, available)
        self._block.put_int(_FILESYSTEM["filesystem.read_only_state"], row, int(mount.read_only))
