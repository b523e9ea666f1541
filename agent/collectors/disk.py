"""Disks from /proc/diskstats, and local filesystems."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from operator import attrgetter

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.block_devices import (
    DiskCounters,
    Mount,
    disk_sequences,
    disks_with_backing,
    parse_diskstats,
    parse_mountinfo,
)
from ..hardware.files import KeptFile, device_key, names_in
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import block_of, put
from .folders import DEVICES_MAX
from .listing import Listing

#: `inflight` above this is the kernel's own count gone below zero.
_INFLIGHT_MAX = 1 << 31

_CLOSED = "room on {} is not shown: open it with AmbientCapabilities=CAP_DAC_READ_SEARCH in the agent's unit"
_ROOM = (
    "filesystem.size_bytes",
    "filesystem.available_bytes",
    "filesystem.inodes_count",
    "filesystem.inodes_available_count",
)
_COUNTERS: dict[str, Callable[[DiskCounters], int | None]] = {
    "disk.reads_operations": attrgetter("reads"),
    "disk.read_bytes": attrgetter("read_bytes"),
    "disk.read_milliseconds": attrgetter("read_milliseconds"),
    "disk.writes_operations": attrgetter("writes"),
    "disk.written_bytes": attrgetter("written_bytes"),
    "disk.write_milliseconds": attrgetter("write_milliseconds"),
    "disk.busy_milliseconds": attrgetter("busy_milliseconds"),
    "disk.queue_milliseconds": attrgetter("queue_milliseconds"),
    "disk.discards_operations": attrgetter("discards"),
    "disk.discarded_bytes": attrgetter("discarded_bytes"),
    "disk.discard_milliseconds": attrgetter("discard_milliseconds"),
    "disk.flushes_operations": attrgetter("flushes"),
    "disk.flush_milliseconds": attrgetter("flush_milliseconds"),
}


class Disks:
    """Traffic, waiting and load of each disk with a device of its own."""

    name = "disk_1s"
    pace = Pace.SECOND
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._stats = KeptFile(roots.proc / "diskstats")
        self._sys = roots.sys
        self._listing = Listing(
            self._disks, self.pace, glance=lambda: names_in(roots.sys / "block")
        )
        self._block = Block("disk_1s", ())

    def collect(self) -> Sequence[Block]:
        """Return the one block; a disk that went is missing in it. Raises NoData without a disk."""
        if self._listing.renew():
            self._block = block_of(self._block, self._listing.value)
            for row, number in enumerate(self._listing.value.values()):
                put(self._block, "disk.counter_epoch_count", row, number)
        if not self._listing.value:
            raise NoData("no disk with a device of its own in /sys/block")
        found = parse_diskstats(self._stats.read(), self._listing.value)
        for row, name in enumerate(self._listing.value):
            self._fill(row, found.get(name))
        return (self._block,)

    def _disks(self) -> dict[str, int | None]:
        names = disks_with_backing(self._sys)[:DEVICES_MAX]
        return dict(zip(names, disk_sequences(self._sys, names), strict=True))

    def _fill(self, row: int, disk: DiskCounters | None) -> None:
        for name, value_of in _COUNTERS.items():
            put(self._block, name, row, value_of(disk) if disk else None)
        inflight = disk.inflight if disk and disk.inflight < _INFLIGHT_MAX else None
        put(self._block, "disk.inflight_count", row, inflight)


class Filesystems:
    """Room on each local filesystem, and whether it can still be written.

    Only filesystems on local block devices are asked: statvfs of a network filesystem may not return.
    """

    name = "filesystem_60s"
    pace = Pace.MINUTE
    enters_driver = True  # even a local one may wait for its disk

    def __init__(
        self, roots: Roots, statvfs: Callable[[str], os.statvfs_result] | None = None
    ) -> None:
        """*statvfs*: how a mount point is asked; None: by the kernel, if the mounts are this machine's."""
        self._mounts = KeptFile(roots.proc / "self/mountinfo")
        self._statvfs = statvfs or (os.statvfs if roots.is_this_machine else _elsewhere)
        self._asked = ""
        self._block = Block("filesystem_60s", ())
        self.blind_words = ""

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData when nothing local is mounted."""
        mounts = parse_mountinfo(self._mounts.read())[:DEVICES_MAX]
        if not mounts:
            raise NoData("no filesystem on a local block device in /proc/self/mountinfo")
        self._block = block_of(self._block, (mount.point for mount in mounts))
        self.blind_words = ""
        for row, mount in enumerate(mounts):
            self._fill(row, mount)
        return (self._block,)

    def whereabouts(self) -> str:
        """Return the mount point that is being asked."""
        return f"statvfs of {self._asked}"

    def _fill(self, row: int, mount: Mount) -> None:
        self._asked = mount.point
        room: dict[str, int | None] = dict.fromkeys(_ROOM)
        try:
            room = _room_of(self._statvfs(mount.point))
        except PermissionError:  # it lies below a folder of another user
            self.blind_words = _CLOSED.format(device_key(mount.point))
        except OSError:
            pass  # unmounted since the list
        for name, value in room.items():
            put(self._block, name, row, value)
        put(self._block, "filesystem.read_only_state", row, mount.read_only)


def _elsewhere(point: str) -> os.statvfs_result:
    """Raise: the mount points are of another root, and here another filesystem would answer for them."""
    raise FileNotFoundError(errno.ENOENT, "a mount point of another root", point)


def _room_of(answer: os.statvfs_result) -> dict[str, int | None]:
    """Return what statvfs says. A filesystem that makes inodes as it goes (btrfs) says 0 of them."""
    inodes = (answer.f_files, answer.f_favail) if answer.f_files else (None, None)
    return dict(
        zip(
            _ROOM,
            (answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize, *inodes),
            strict=True,
        )
    )
