"""Block devices and filesystems (Documentation/admin-guide/iostats.rst, proc(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from .files import names_in, parse_unsigned

SECTOR_BYTES = 512  # the unit of diskstats, whatever the device's own
_FIELDS_MIN = 11
#: Optical and floppy drives: they have a device, but no health that a gang depends on.
_IGNORED = re.compile(r"(sr|fd)\d+$")

#: Filesystems on a local block device that are written to. statvfs of a network filesystem may hang for
#: ever, and a read-only image (squashfs, iso9660) is always full and always read-only.
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
#: Sources that look like block devices and are an image, or the network.
_FOREIGN_SOURCES = ("/dev/loop", "/dev/nbd", "/dev/rbd", "/dev/drbd", "/dev/ram", "/dev/zram")
#: A superblock option that says that nothing can be written any more.
_READ_ONLY_OPTIONS = frozenset(("ro", "emergency_ro", "shutdown"))
_OCTAL = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """One line of /proc/diskstats since boot."""

    reads: int
    read_bytes: int
    read_milliseconds: int
    writes: int
    written_bytes: int
    write_milliseconds: int
    inflight: int
    busy_milliseconds: int


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted local filesystem."""

    point: str
    source: str
    type: str
    read_only: bool  # the filesystem itself, not only this mount of it


def parse_diskstats(data: bytes, names: Container[str]) -> dict[str, DiskCounters]:
    """Return the named disks of /proc/diskstats. A line that is not whole is left out."""
    disks: dict[str, DiskCounters] = {}
    for line in data.split(b"\n"):
        words = line.split(None, 3)
        name = os.fsdecode(words[2]) if len(words) == 4 else ""
        counters = _parse_counters(words[3]) if name in names else None
        if counters:
            disks[name] = counters
    return disks


def _parse_counters(text: bytes) -> DiskCounters | None:
    words = text.split()
    if len(words) < _FIELDS_MIN:
        return None
    fields = [n for n in map(parse_unsigned, words[:_FIELDS_MIN]) if n is not None]
    if len(fields) < _FIELDS_MIN or max(fields[2], fields[6]) >= (1 << 64) // SECTOR_BYTES:
        return None
    return DiskCounters(
        fields[0], fields[2] * SECTOR_BYTES, fields[3],
        fields[4], fields[6] * SECTOR_BYTES, fields[7], fields[8], fields[9],
    )  # fmt: skip


def disks_with_backing(sys: Path) -> list[str]:
    """Return the disks that have a device of their own, by the name that diskstats gives them.

    No loop, ram, zram, dm or md (they have none) and no partition (they are no entry here).
    """
    folder = sys / "block"
    names = [n for n in names_in(folder) if (folder / n / "device").exists()]
    return [n.replace("!", "/") for n in names if not _IGNORED.match(n)]


def parse_mountinfo(data: bytes) -> list[Mount]:
    """Return the local filesystems of /proc/self/mountinfo, each once: where it was mounted first."""
    mounts: dict[bytes, Mount] = {}
    for line in data.split(b"\n"):
        left, _, right = line.partition(b" - ")
        before, after = left.split(b" "), right.split(b" ")
        if len(before) < 6 or len(after) < 3:
            continue
        mount = Mount(
            _unescape(before[4]), _unescape(after[1]), _unescape(after[0]),
            not _READ_ONLY_OPTIONS.isdisjoint(after[2].decode(errors="replace").split(",")),
        )  # fmt: skip
        if _is_local(mount):
            mounts.setdefault(before[2], mount)
    return list(mounts.values())


def _unescape(word: bytes) -> str:
    """Undo the kernel's octal escapes of blanks and backslashes."""
    raw = _OCTAL.sub(lambda match: bytes((int(match[1], 8) & 0xFF,)), word)
    return os.fsdecode(raw)


def _is_local(mount: Mount) -> bool:
    return (
        mount.type in LOCAL_FILESYSTEMS
        and mount.source.startswith("/dev/")
        and not mount.source.startswith(_FOREIGN_SOURCES)
        and mount.point.startswith("/")
    )
