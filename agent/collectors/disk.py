"""Disks from /proc/diskstats, local filesystems, and NVMe controllers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

from ...contract.block import Block
from ...contract.signal import Pace
from ...ext.hostfiles import DiskRows, Glance
from ..collector import Collector, ExcludingCollector, NoData, driver_call
from ..hardware import storage
from ..hardware.files import FileReader, OpenFile, Roots, device_key, read_unsigned
from ..hardware.storage import Mount, SmartLog, disk_sequences, disks_with_backing, parse_mountinfo
from .block_writer import block_of, clear_row, put, row_writer
from .counter_files import DEVICES_MAX, PeriodicListing
from .file_cache import FileCache

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
    """Return statvfs's values.

    A filesystem that makes inodes on demand (btrfs) reports 0 inodes.
    """
    inodes = (answer.f_files, answer.f_favail) if answer.f_files else (None, None)
    return dict(
        zip(
            _SPACE_SIGNALS,
            (answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize, *inodes),
            strict=True,
        )
    )


_NO_CONTROLLER = "no NVMe controller in /sys/class/nvme"

#: In the order of `_state_of`.
_CONTROLLER = ("nvme.controller_state", "nvme.namespaces_count", "nvme.queues_count")
#: Signals of the SMART log, and their attributes in it.
_SMART: Mapping[str, Callable[[SmartLog], float | None]] = {
    "nvme.critical_warning_flags": attrgetter("critical_warning"),
    "nvme.spare_ratio": attrgetter("spare_ratio"),
    "nvme.spare_threshold_ratio": attrgetter("spare_threshold_ratio"),
    "nvme.used_ratio": attrgetter("used_ratio"),
    "nvme.media_errors": attrgetter("media_errors"),
    "nvme.error_log_count": attrgetter("error_log_entries"),
    "nvme.unsafe_shutdowns_count": attrgetter("unsafe_shutdowns"),
    "nvme.power_cycles_count": attrgetter("power_cycles"),
    "nvme.power_on_seconds": attrgetter("power_on_seconds"),
    "nvme.busy_seconds": attrgetter("busy_seconds"),
    "nvme.read_bytes": attrgetter("read_bytes"),
    "nvme.written_bytes": attrgetter("written_bytes"),
    "nvme.warning_temperature_seconds": attrgetter("warning_temperature_seconds"),
    "nvme.critical_temperature_seconds": attrgetter("critical_temperature_seconds"),
    "nvme.light_throttles_count": attrgetter("light_throttles"),
    "nvme.heavy_throttles_count": attrgetter("heavy_throttles"),
}


class NvmeControllers(Collector):
    """State, namespaces and queues of each controller from sysfs.

    No command is sent to the drive.
    """

    name = "nvme_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._controllers = FileCache(self._compute)
        self._block = Block("nvme_10s", ())

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData without a controller."""
        is_new = self._controllers.refresh()
        if not self._controllers.value:
            raise NoData(_NO_CONTROLLER)
        if is_new:
            self._block = block_of(self._block, self._controllers.value)
            writer = row_writer(self._block, _CONTROLLER)
            for row, values in enumerate(self._controllers.value.values()):
                writer.put(row, values)
        return (self._block,)

    def _compute(self, files: FileReader) -> dict[str, tuple[int | None, ...]]:
        folders = list(storage.nvme_controllers(self._sys, files).items())[:DEVICES_MAX]
        return {name: _state_of(folder, files) for name, folder in folders}


def _state_of(folder: Path, files: FileReader) -> tuple[int | None, ...]:
    state = storage.parse_nvme_state(files.text(folder / "state"))
    spaces = storage.nvme_namespaces(folder, files)
    return (
        state,
        len(spaces) if state is not None else None,
        files.unsigned(folder / "queue_count"),
    )


class NvmeSmart(ExcludingCollector):
    """Temperature, wear, errors and identity of each live controller, from sensor and SMART log.

    Both read the drive. The log needs privileges: without them only the temperature is present, and
    `access_error` names the missing privilege.
    """

    name = "nvme_60s"
    pace = Pace.MINUTE
    enters_driver = True

    def __init__(
        self, roots: Roots, read_smart_page: Callable[[Path], bytes] = storage.read_smart_page
    ) -> None:
        self._sys, self._dev = roots.sys, roots.dev
        self._read_smart_page = read_smart_page
        self._block = Block("nvme_60s", ())
        self.access_error = ""

    def collect(self) -> Sequence[Block]:
        """Return the block; a controller that is not live has no values.

        Raises NoData without a controller.
        """
        folders = _controllers(self._sys)
        self._block = block_of(self._block, folders)
        self._block.clear()
        self.access_error = ""
        for row, (name, folder) in enumerate(folders.items()):
            if not self.is_excluded(name) and storage.is_awake(folder):
                put(self._block, "nvme.counter_epoch_count", row, storage.nvme_identity(folder))
                log = self._put_smart(row, name)
                with driver_call(name, "read temp1_input"):
                    self._put_temperature(row, folder, log)
        return (self._block,)

    def _put_smart(self, row: int, name: str) -> SmartLog | None:
        try:
            with driver_call(name, "NVME_IOCTL_ADMIN_CMD, SMART log"):
                log = storage.parse_smart_page(self._read_smart_page(self._dev / name))
        except OSError as error:
            self.access_error = self.access_error or _smart_access_error(name, error)
            return None
        if log is not None:
            for signal, value_of in _SMART.items():
                put(self._block, signal, row, value_of(log))
        return log

    def _put_temperature(self, row: int, folder: Path, log: SmartLog | None) -> None:
        sensor = storage.sensor_folder(folder)
        now: float | None = log.temperature_celsius if log else None
        if now is None:
            now = _celsius(sensor, "temp1_input")
        put(self._block, "nvme.temperature_celsius", row, now)
        critical = _celsius(sensor, "temp1_crit")
        put(self._block, "nvme.temperature_critical_celsius", row, critical)


def _controllers(sys: Path) -> dict[str, Path]:
    folders = dict(list(storage.nvme_controllers(sys).items())[:DEVICES_MAX])
    if not folders:
        raise NoData(_NO_CONTROLLER)
    return folders


def _celsius(sensor: Path | None, file: str) -> float | None:
    value = read_unsigned(sensor / file) if sensor else None
    return value / 1000 if value is not None and value < 200_000 else None


def _smart_access_error(name: str, error: OSError) -> str:
    """Return the remedy for a hidden log: the kernel requires CAP_SYS_ADMIN for this command.

    A (virtual) drive that refuses the page itself has no remedy: "".
    """
    if error.errno in (errno.ENOENT, errno.ENXIO):
        return (
            f"SMART log of {name}: there is no /dev/{name} here; open it with PrivateDevices=no in the "
            f"agent's unit, or give the container --device=/dev/{name}"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"SMART log of {name}: {error.strerror}; "
            "open it with AmbientCapabilities=CAP_SYS_ADMIN CAP_DAC_READ_SEARCH "
            "and DeviceAllow=char-nvme r in the agent's unit"
        )
    return ""
