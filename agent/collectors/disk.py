"""Disks from /proc/diskstats, and local filesystems."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from ...contract.block import Block
from ...contract.signal import Pace
from ...ext.hostfiles import DiskRows, Glance
from ..collector import Collector, ExcludingCollector, NoData, driver_call
from ..hardware.files import OpenFile, Roots, device_key
from ..hardware.storage import Mount, disk_sequences, disks_with_backing, parse_mountinfo
from .block_writer import block_of, clear_row, put, row_writer
from .counter_files import DEVICES_MAX, PeriodicListing

_SPACE_HIDDEN = "room on {} is not shown: open it with AmbientCapabilities=CAP_DAC_READ_SEARCH in the agent's unit"
_SPACE_SIGNALS = (
    "filesystem.size_bytes",
    "filesystem.available_bytes",
    "filesystem.inodes_count",
    "filesystem.inodes_available_count",
)
#: In the order of /proc/diskstats (Documentation/admin-guide/iostats.rst), without the merged
#: requests.
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


class Disks(Collector):
    """Traffic, wait times and load of each disk with a device of its own."""

    name = "disk_1s"
    pace = Pace.SECOND
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._stats = OpenFile(roots.proc / "diskstats")
        self._sys = roots.sys
        self._listing = PeriodicListing(
            self._disks, self.pace, seconds=60, change_key=Glance(roots.sys / "block").look
        )
        self._block = Block("disk_1s", ())
        self._rows: DiskRows | None = None

    def collect(self) -> Sequence[Block]:
        """Return the block; a removed disk is missing in it. Raises NoData without a disk."""
        if self._listing.refresh():
            self._rebuild(self._listing.value)
        if self._rows is None:
            raise NoData("no disk with a device of its own in /sys/block")
        self._rows.fill()
        return (self._block,)

    def _rebuild(self, sequences: dict[str, int | None]) -> None:
        self._block = block_of(self._block, sequences)
        names = [os.fsencode(name) for name in sequences]
        rows = DiskRows(self._stats, names, row_writer(self._block, COUNTERS))
        self._rows = rows if names else None
        for row, number in enumerate(sequences.values()):
            put(self._block, "disk.counter_epoch_count", row, number)

    def _disks(self) -> dict[str, int | None]:
        names = disks_with_backing(self._sys)[:DEVICES_MAX]
        return dict(zip(names, disk_sequences(self._sys, names), strict=True))


class Filesystems(ExcludingCollector):
    """Free space of each local filesystem, and whether it is writable.

    Only filesystems on local block devices are read: statvfs of a network filesystem may not
    return.
    """

    name = "filesystem_60s"
    pace = Pace.MINUTE
    enters_driver = True  # even a local filesystem may wait for its disk

    def __init__(
        self, roots: Roots, statvfs: Callable[[str], os.statvfs_result] | None = None
    ) -> None:
        """*statvfs*: None means os.statvfs if the mounts are this machine's."""
        self._mounts = OpenFile(roots.proc / "self/mountinfo")
        self._statvfs = statvfs or (os.statvfs if roots.is_this_machine else _refuse_statvfs)
        self._block = Block("filesystem_60s", ())
        self.access_error = ""

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData when no local filesystem is mounted."""
        mounts = parse_mountinfo(self._mounts.read())[:DEVICES_MAX]
        if not mounts:
            raise NoData("no filesystem on a local block device in /proc/self/mountinfo")
        self._block = block_of(self._block, (mount.point for mount in mounts))
        self.access_error = ""
        for row, mount in enumerate(mounts):
            self._fill(row, mount)
        return (self._block,)

    def _fill(self, row: int, mount: Mount) -> None:
        if self.is_excluded(mount.point):
            clear_row(self._block, row)
            return
        space: dict[str, int | None] = dict.fromkeys(_SPACE_SIGNALS)
        try:
            with driver_call(mount.point, "statvfs"):
                space = _space_of(self._statvfs(mount.point))
        except PermissionError:  # below a folder of another user
            self.access_error = _SPACE_HIDDEN.format(device_key(mount.point))
        except OSError:
            pass  # unmounted since the list
        for name, value in space.items():
            put(self._block, name, row, value)
        put(self._block, "filesystem.read_only_state", row, mount.read_only)


def _refuse_statvfs(point: str) -> os.statvfs_result:
    """Raise: this machine would answer for another filesystem than the one of the other root."""
    raise FileNotFoundError(errno.ENOENT, "a mount point of another root", point)


def _space_of(answer: os.statvfs_result) -> dict[str, int | None]:
    """Return statvfs's values; 0 inodes means that they are made on demand (btrfs)."""
    inodes = (answer.f_files, answer.f_favail) if answer.f_files else (None, None)
    return dict(
        zip(
            _SPACE_SIGNALS,
            (answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize, *inodes),
            strict=True,
        )
    )
