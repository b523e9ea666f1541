"""Disks from /proc/diskstats, and local filesystems."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from ...ext.hostfiles import DiskRows, Glance
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares, entering
from ..hardware.block_devices import (
    Mount,
    disk_sequences,
    disks_with_backing,
    parse_mountinfo,
)
from ..hardware.files import KeptFile, device_key
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import block_of, clear_row, places_of, put
from .folders import DEVICES_MAX
from .listing import Listing

_CLOSED = "room on {} is not shown: open it with AmbientCapabilities=CAP_DAC_READ_SEARCH in the agent's unit"
_ROOM = (
    "filesystem.size_bytes",
    "filesystem.available_bytes",
    "filesystem.inodes_count",
    "filesystem.inodes_available_count",
)
#: In the order of /proc/diskstats (Documentation/admin-guide/iostats.rst), without what was merged.
COUNTERS = (
    "disk.reads_operations",
    "disk.read_bytes",
    "disk.read_milliseconds",
    "disk.writes_operations",
    "disk.written_bytes",
    "disk.write_milliseconds",
    "disk.inflight_count",
    "disk.busy_milliseconds",
    "disk.queue_milliseconds",
    "disk.discards_operations",
    "disk.discarded_bytes",
    "disk.discard_milliseconds",
    "disk.flushes_operations",
    "disk.flush_milliseconds",
)


class Disks:
    """Traffic, waiting and load of each disk with a device of its own."""

    name = "disk_1s"
    pace = Pace.SECOND
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._stats = KeptFile(roots.proc / "diskstats")
        self._sys = roots.sys
        self._listing = Listing(
            self._disks, self.pace, seconds=60, glance=Glance(roots.sys / "block").look
        )
        self._block = Block("disk_1s", ())
        self._rows: DiskRows | None = None

    def collect(self) -> Sequence[Block]:
        """Return the one block; a disk that went is missing in it. Raises NoData without a disk."""
        if self._listing.renew():
            self._renew(self._listing.value)
        if self._rows is None:
            raise NoData("no disk with a device of its own in /sys/block")
        self._rows.fill()
        return (self._block,)

    def _renew(self, sequences: dict[str, int | None]) -> None:
        self._block = block_of(self._block, sequences)
        names = [os.fsencode(name) for name in sequences]
        rows = DiskRows(self._stats, names, places_of(self._block, COUNTERS))
        self._rows = rows if names else None
        for row, number in enumerate(sequences.values()):
            put(self._block, "disk.counter_epoch_count", row, number)

    def _disks(self) -> dict[str, int | None]:
        names = disks_with_backing(self._sys)[:DEVICES_MAX]
        return dict(zip(names, disk_sequences(self._sys, names), strict=True))


class Filesystems(Spares):
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

    def _fill(self, row: int, mount: Mount) -> None:
        if self.is_spared(mount.point):
            clear_row(self._block, row)
            return
        room: dict[str, int | None] = dict.fromkeys(_ROOM)
        try:
            with entering(mount.point, "statvfs"):
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
