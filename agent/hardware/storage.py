"""Block devices (Documentation/admin-guide/iostats.rst), mounts and filesystems (proc(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .files import names_in, read_unsigned

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

    Do not access paths below a mount point: an unreachable server may block the caller.
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
            unescape(before[4]),
            unescape(after[1]),
            unescape(after[0]),
            not _READ_ONLY_OPTIONS.isdisjoint(after[2].decode(errors="replace").split(",")),
        )
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
