"""Block devices (Documentation/admin-guide/iostats.rst), filesystems, NVMe, NFS and Lustre."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...ext.hostfiles import line_numbers, nfs_values
from .files import FILE_READER, FileReader, names_in, parse_unsigned, read_text, read_unsigned
from .pci import is_asleep

#: Optical and floppy drives: they have a device, but gangs do not depend on them.
_IGNORED = re.compile(r"(sr|fd)\d+$")

#: Writable filesystems on local block devices. statvfs of a network filesystem may hang forever,
#: and a read-only image (squashfs, iso9660) is always full and read-only.
LOCAL_FILESYSTEMS = frozenset(
    [
        "bcachefs",
        "btrfs",
        "exfat",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "nilfs2",
        "ntfs3",
        "reiserfs",
        "vfat",
        "xfs",
    ]
)
#: Filesystems over a network, or of a cluster.
NETWORK_FILESYSTEMS = frozenset([
    "9p", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2",
    "orangefs", "pvfs2", "smb3", "virtiofs", "wekafs",
])  # fmt: skip
#: Sources that look like local block devices, but are an image, memory or a network device.
_FOREIGN_SOURCES = ("/dev/loop", "/dev/nbd", "/dev/rbd", "/dev/drbd", "/dev/ram", "/dev/zram")
#: Superblock options of a filesystem that can no longer be written.
_READ_ONLY_OPTIONS = frozenset(("ro", "emergency_ro", "shutdown"))
_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted local filesystem."""

    point: str
    source: str
    type: str
    read_only: bool  # the filesystem itself, not only this mount


def disks_with_backing(sys: Path) -> list[str]:
    """Return the disks with a device of their own, by their names in diskstats.

    Loop, ram, zram, dm and md devices (without a device) and partitions (not in this folder) are
    excluded: the I/O of dm-multipath or a RAID is counted at its members. A namespace of an NVMe
    subsystem with several paths appears twice, as `nvme0n1` and by path as `nvme0c0n1`: never add
    the two; kernels before 6.4 count only at the paths.
    """
    folder = sys / "block"
    names = [n for n in names_in(folder) if (folder / n / "device").exists()]
    return [n.replace("!", "/") for n in names if not _IGNORED.match(n)]


def disk_sequences(sys: Path, disks: Iterable[str]) -> list[int | None]:
    """Return the disks' sequence numbers (Linux 5.15), which differ for a replaced disk."""
    return [read_unsigned(sys / "block" / disk.replace("/", "!") / "diskseq") for disk in disks]


def parse_mountinfo(data: bytes) -> list[Mount]:
    """Return the local filesystems of /proc/self/mountinfo, each at its first mount point."""
    return [mount for mount in parse_mounts(data) if _is_local(mount)]


def parse_network_mounts(data: bytes) -> list[Mount]:
    """Return the network and FUSE filesystems, each at its first mount point.

    Do not access paths below them.
    """
    return [
        mount
        for mount in parse_mounts(data)
        if mount.type in NETWORK_FILESYSTEMS or mount.type.startswith("fuse.")
    ]


def parse_mounts(data: bytes) -> list[Mount]:
    """Return all filesystems of /proc/self/mountinfo, each at its first mount point."""
    mounts: dict[bytes, Mount] = {}
    for line in data.split(b"\n"):
        left, _, right = line.partition(b" - ")
        before, after = left.split(b" "), right.split(b" ")
        if len(before) < 6 or len(after) < 3 or before[2] in mounts:
            continue
        mounts[before[2]] = Mount(
            unescape(before[4]), unescape(after[1]), unescape(after[0]),
            not _READ_ONLY_OPTIONS.isdisjoint(after[2].decode(errors="replace").split(",")),
        )  # fmt: skip
    return list(mounts.values())


def unescape(word: bytes) -> str:
    """Return a path without the kernel's octal escapes of blanks and backslashes."""
    raw = _OCTAL.sub(lambda match: bytes((int(match[1], 8) & 0xFF,)), word)
    return os.fsdecode(raw)


def _is_local(mount: Mount) -> bool:
    return (
        mount.type in LOCAL_FILESYSTEMS
        and mount.source.startswith("/dev/")
        and not mount.source.startswith(_FOREIGN_SOURCES)
        and mount.point.startswith("/")
    )


# NVMe. Sources: drivers/nvme/host/sysfs.c (states, files), include/uapi/linux/nvme_ioctl.h (the
# ioctl), NVM Express Base Specification 2.0, 5.16.1.3 (log page 02h, SMART / Health Information).

#: Codes of `nvme.controller_state`, in the order of the kernel's enum nvme_ctrl_state. Only kernels
#: before 5.4 and 4.17 have `only-admin` and `reconnecting`.
NVME_STATES = {
    "new": 0,
    "live": 1,
    "resetting": 2,
    "connecting": 3,
    "reconnecting": 3,
    "deleting": 4,
    "deleting (no IO)": 5,
    "dead": 6,
    "only-admin": 7,
}
SMART_BYTES = 512

_CONTROLLER = re.compile(r"nvme\d+$")
_NAMESPACE = re.compile(r"nvme\d+(c\d+)?n\d+$")
#: _IOWR('N', 0x41, struct nvme_passthru_cmd), which has 72 bytes.
_ADMIN_COMMAND = 0xC0484E41
_PASSTHROUGH = struct.Struct("<BBHIIIQQII6III")
_GET_LOG_PAGE = 0x02
_ALL_NAMESPACES = 0xFFFFFFFF
#: Log page 02h, and its number of 4-byte words minus one.
_SMART_PAGE = 0x02 | (SMART_BYTES // 4 - 1) << 16

#: The page up to the last field that is read: warning, temperature, spare, threshold, used; ten
#: counters of 128 bits; minutes above both temperatures; eight sensors; transitions of both thermal
#: levels.
_SMART = struct.Struct("<BHBBB26x" + "16s" * 10 + "II16x" + "II")
_DATA_UNIT_BYTES = 512_000  # "thousands of units of 512 bytes"
_KELVIN = 273


@dataclass(frozen=True, slots=True)
class SmartLog:
    """Log page 02h of a controller. None: not reported, or over 64 bits."""

    critical_warning: int
    temperature_celsius: int | None
    spare_ratio: float | None
    spare_threshold_ratio: float | None
    used_ratio: float  # used share of the endurance; may exceed 1, at most 2.55
    read_bytes: int | None
    written_bytes: int | None
    busy_seconds: int | None
    power_cycles: int | None
    power_on_seconds: int | None
    unsafe_shutdowns: int | None
    media_errors: int | None
    error_log_entries: int | None
    warning_temperature_seconds: int | None
    critical_temperature_seconds: int | None
    light_throttles: int | None
    heavy_throttles: int | None


def nvme_controllers(sys: Path, files: FileReader = FILE_READER) -> dict[str, Path]:
    """Return the folder of each controller in class/nvme, by name."""
    folder = sys / "class/nvme"
    return {name: folder / name for name in files.names(folder) if _CONTROLLER.match(name)}


def nvme_identity(controller: Path) -> int | None:
    """Return a 32-bit number that differs for another drive with the same name.

    Return None without a serial.
    """
    serial = read_text(controller / "serial")
    model = read_text(controller / "model")
    return zlib.crc32(f"{serial} {model}".encode()) if serial else None


def parse_nvme_state(text: str | None) -> int | None:
    """Return the code of a controller's state; None for an unknown word."""
    return NVME_STATES.get(text) if text else None


def nvme_namespaces(controller: Path, files: FileReader = FILE_READER) -> list[str]:
    """Return the names of the controller's namespaces, or of its paths to them."""
    return [name for name in files.names(controller) if _NAMESPACE.match(name)]


def sensor_folder(controller: Path) -> Path | None:
    """Return the controller's hwmon folder; before Linux 5.12 it is below the PCI device."""
    for parent in (controller, controller / "device/hwmon"):
        for name in names_in(parent):
            if name.startswith("hwmon") and read_text(parent / name / "name") == "nvme":
                return parent / name
    return None


def is_awake(controller: Path) -> bool:
    """Return whether to send admin commands: the controller is live and not suspended.

    A resetting controller would block the caller, and a suspended one would be woken.
    """
    return read_text(controller / "state") == "live" and not is_asleep(controller / "device")


def read_smart_page(device: Path) -> bytes:
    """Return log page 02h from a controller's character device.

    Raises OSError; may wait for the drive. No other command is ever sent, and this one changes
    nothing. It has the driver's own time limit (timeout 0): a shorter one would make the driver
    reset a slow drive. The GIL is free meanwhile: fcntl.ioctl releases it for arguments of this
    size.
    """
    page = array("B", bytes(SMART_BYTES))
    command = bytearray(
        _PASSTHROUGH.pack(
            *(_GET_LOG_PAGE, 0, 0, _ALL_NAMESPACES, 0, 0, 0, page.buffer_info()[0], 0, SMART_BYTES),
            *(_SMART_PAGE, 0, 0, 0, 0, 0, 0, 0),
        )
    )
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = fcntl.ioctl(descriptor, _ADMIN_COMMAND, command)
    finally:
        os.close(descriptor)
    if status:  # positive: the NVMe status of a command that the controller rejected
        raise OSError(f"{device}: the controller rejects log page 02h, NVMe status {status:#x}")
    return page.tobytes()


def parse_smart_page(page: bytes) -> SmartLog | None:
    """Return the log of a page.

    Return None unless it has 512 bytes, and for all ones (a device off the bus).
    """
    if len(page) != SMART_BYTES or page == b"\xff" * SMART_BYTES:
        return None
    warning, kelvin, spare, threshold, used, *rest = _SMART.unpack_from(page)
    counters = [_counter(raw) for raw in rest[:10]]
    read, written, _, _, busy_minutes, cycles, hours, unsafe, media, errors = counters
    warm_minutes, hot_minutes, light, heavy = (n if n < 0xFFFFFFFF else None for n in rest[10:])
    # Virtual drives report 0 for both, which does not mean worn out
    reports_spare = bool(spare or threshold)
    return SmartLog(
        warning, _celsius(kelvin), _percent(spare) if reports_spare else None, _percent(threshold) if reports_spare else None,
        used / 100,
        _times(read, _DATA_UNIT_BYTES), _times(written, _DATA_UNIT_BYTES), _times(busy_minutes, 60),
        cycles, _times(hours, 3600), unsafe, media, errors,
        _times(warm_minutes, 60), _times(hot_minutes, 60), light, heavy,
    )  # fmt: skip


def _counter(raw: bytes) -> int | None:
    value = int.from_bytes(raw, "little")
    return value if value < (1 << 64) - 1 else None


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else _counter((value * factor).to_bytes(16, "little"))


def _celsius(kelvin: int) -> int | None:
    """Return degrees Celsius.

    Return None for impossible values: virtual and dead drives report 0 K or 65535 K.
    """
    return kelvin - _KELVIN if 200 <= kelvin <= 500 else None


def _percent(value: int) -> float | None:
    return value / 100 if value <= 100 else None


# NFS: /proc/self/mountstats. Sources: fs/nfs/super.c (nfs_show_stats), net/sunrpc/stats.c
# (rpc_clnt_show_stats), net/sunrpc/xprtsock.c and net/sunrpc/xprtrdma/transport.c (print_stats).
# The text comes from the client's memory: no server is contacted.

_TYPES = (b"nfs", b"nfs4")
_BEGIN = re.compile(rb"^(?=device )", re.MULTILINE)
_HEAD = re.compile(rb"device (\S+) mounted on (\S+) with fstype (\S+)")


class NfsMount(NamedTuple):
    """An NFS mount.

    `values` as `ext.hostfiles.nfs_values` returns them, None where the text has none.
    """

    point: str
    source: str
    type: str
    values: list[int | None]

    @property
    def age_seconds(self) -> int | None:
        """Seconds since it was mounted."""
        return self.values[0]

    @property
    def reads(self) -> list[int | None]:
        """Calls, transmissions, major timeouts, milliseconds (queue, response, total), errors."""
        return self.values[3:10]

    @property
    def writes(self) -> list[int | None]:
        """The columns of `reads`."""
        return self.values[10:17]

    @property
    def all_calls(self) -> list[int | None]:
        """Calls of all kinds, transmissions, major timeouts, errors."""
        return self.values[17:21]

    @property
    def transport(self) -> list[int | None]:
        """Sums of connects, sends, receives, bad replies, backlog, idle seconds."""
        return self.values[21:]


def parse_mountstats(data: bytes) -> list[NfsMount]:
    """Return the NFS mounts, each at its first mount point.

    Bind mounts of a source show the same text. A truncated last line is ignored; a column that is
    not a number is None.
    """
    mounts: dict[tuple[bytes, bytes], NfsMount] = {}
    for part in _BEGIN.split(data[: data.rfind(b"\n") + 1]):
        head, _, body = part.partition(b"\n")
        match = _HEAD.match(head)
        if match and match[3] in _TYPES and (match[1], body) not in mounts:
            source, point, kind = (unescape(match[i]) for i in (1, 2, 3))
            mounts[match[1], body] = NfsMount(point, source, kind, nfs_values(body))
    return list(mounts.values())


# Lustre. Sources: lustre/obdclass/lprocfs_status.c (stats, import) and lustre/ptlrpc/import.c
# (states) of the Lustre release. Older releases have the files in /proc/fs/lustre; newer ones have
# most in debugfs, readable by root, while everybody sees the mount in /sys/fs/lustre. All come from
# the client's memory.

#: Codes of `lustre_target.connection_state`, by enum lustre_imp_state; an IDLE connection is
#: unused.
LUSTRE_STATES = {
    "CLOSED": 1,
    "NEW": 2,
    "DISCONN": 3,
    "CONNECTING": 4,
    "REPLAY": 5,
    "REPLAY_LOCKS": 6,
    "REPLAY_WAIT": 7,
    "RECOVER": 8,
    "FULL": 9,
    "EVICTED": 10,
    "IDLE": 11,
}

_STAT = re.compile(
    rb"^(\w+) +(\d{1,20}) samples \[\w+\](?: +\d{1,20} +\d{1,20} +(\d{1,20})(?=[ \n]))?",
    re.MULTILINE,
)
_STATE = re.compile(rb"^[ \t]+state: *(\S+)", re.MULTILINE)
#: In the order of `LustreImport`, after its state.
_NUMBERS = (
    b"connection_attempts:",
    b"generation:",
    b"inflight:",
    b"timeouts:",
    b"avg_waittime:",
)
#: A client's instance ends in the address of its superblock, which changes with each mount.
_ADDRESS = re.compile(r"-[0-9a-f]{8,16}$")
_TARGET = re.compile(r"-(osc|mdc)-[0-9a-f]{8,16}$")


@dataclass(frozen=True, slots=True)
class LustreStat:
    """A line of `stats`: number of samples, and optionally their sum (bytes, microseconds)."""

    samples: int
    total: int | None


class LustreImport(NamedTuple):
    """A client's connection to a target; None: not shown, or not a number."""

    state: int | None
    connection_attempts: int | None
    generation: int | None  # rises when the target evicts this client, or the client gives it up
    inflight: int | None
    timeouts: int | None
    wait_microseconds: int | None  # mean per request


def lustre_folders(sys: Path, proc: Path) -> list[Path]:
    """Return the possible roots of Lustre's files, in order of preference."""
    return [proc / "fs/lustre", sys / "kernel/debug/lustre", sys / "fs/lustre"]


def lustre_instances(roots: list[Path], kinds: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return the folders of each instance of these kinds (`llite`, `osc`, `mdc`), by its name."""
    folders: dict[str, list[Path]] = {}
    for kind in kinds:
        for root in roots:
            for name in names_in(root / kind):
                if _ADDRESS.search(name):
                    folders.setdefault(name, []).append(root / kind / name)
    return folders


def lustre_filesystem_of(instance: str) -> str:
    """Return the filesystem's name of a llite instance: `scratch` for `scratch-ffff8881...`."""
    return _ADDRESS.sub("", instance)


def lustre_target_of(instance: str) -> str:
    """Return the target's name of `scratch-OST0000-osc-ffff8881...`."""
    return _TARGET.sub("", instance)


def parse_lustre_stats(data: bytes) -> dict[str, LustreStat]:
    """Return the lines of a `stats` file by name; other lines are ignored."""
    statistics: dict[str, LustreStat] = {}
    for name, samples, total in _STAT.findall(data):
        count, amount = parse_unsigned(samples), parse_unsigned(total)
        if count is not None:
            statistics[name.decode()] = LustreStat(count, amount)
    return statistics


def parse_lustre_import(data: bytes) -> LustreImport:
    """Return the connection of an `import` file. Some releases leave zero bytes in it (LU-5567)."""
    data = data.replace(b"\0", b"")
    state = _STATE.search(data)
    return LustreImport(
        LUSTRE_STATES.get(state[1].decode(errors="replace")) if state else None,
        *line_numbers(data, _NUMBERS, indented=True),
    )
