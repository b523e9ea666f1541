"""Shared-memory slots with training jobs' steps, from `gangline/steps.py`; untrusted input.

The writer may be any user's process, so the reader follows no link, maps nothing and waits for
nothing. A slot is a regular file of exactly SLOT_BYTES, read by pread(2): a link, a FIFO, a
truncated file or a huge one cannot harm the reader. The layout is in `steps.py`, which imports no
module of Gangline; a test reads with this module a slot that `steps.py` wrote.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import stat
import struct
from itertools import islice
from pathlib import Path
from typing import NamedTuple

MAGIC, VERSION, SLOT_BYTES, STEP_OFFSET = b"GANGSTEP", 1, 128, 64
_HEAD, _STEP = struct.Struct("<8sIIii40s"), struct.Struct("<dddd")
#: struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
NAME = re.compile(r"[0-9]{1,10}-[0-9a-f]{1,16}", re.ASCII)
#: Above the ranks of any launcher; a larger number is unknown.
RANK_MAX = 9_999_999
#: Names that are examined in a folder with too many.
SCANNED_NAMES_MAX = 65_536
#: Largest count that a double represents exactly.
STEPS_MAX = 2.0**53


class SlotHead(NamedTuple):
    """What a process reports about itself once. `job` "", `rank` -1, `world` 0: unknown."""

    job: str
    rank: int
    world: int


class StepCount(NamedTuple):
    """Steps of a process.

    `last_seconds`: CLOCK_MONOTONIC of the last; `squares`: sum of their squared times.
    """

    steps: int
    last_seconds: float
    squares: float


class Folder(NamedTuple):
    """The open folder of the slots. `key` changes when a name comes or goes."""

    descriptor: int
    key: tuple[int, int, int]
    user_id: int


def parse_head(data: bytes) -> SlotHead | None:
    """Return the head of a slot; None unless it is a slot of this version."""
    if len(data) < _HEAD.size:
        return None
    magic, version, _, rank, world, job = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        return None
    name = job.split(b"\0", 1)[0].decode(errors="replace")
    name = "".join(c if c.isprintable() else "?" for c in name)
    return SlotHead(
        name, rank if 0 <= rank <= RANK_MAX else -1, world if 0 < world <= RANK_MAX else 0
    )


def parse_steps(data: bytes) -> StepCount | None:
    """Return the count; None before a step, for invalid numbers, and for a read during a write."""
    if len(data) < STEP_OFFSET + _STEP.size:
        return None
    end, last_seconds, squares, begin = _STEP.unpack_from(data, STEP_OFFSET)
    if not (
        1.0 <= end == begin <= STEPS_MAX and math.isfinite(last_seconds) and math.isfinite(squares)
    ):
        return None
    return StepCount(int(end), last_seconds, squares)


def open_folder(path: Path) -> Folder:
    """Open the folder; the caller closes it. Raises OSError, also for a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    return Folder(descriptor, (status.st_dev, status.st_ino, status.st_mtime_ns), status.st_uid)


def names_of(descriptor: int, names_max: int) -> tuple[list[str], int]:
    """Return at most *names_max* names of the folder, and the number left out.

    If there are too many each user's files get an equal share, the oldest first, so that a user's
    junk cannot hide the slots of others.
    """
    by_user: dict[int, list[tuple[float, str]]] = {}
    names: list[str] = []
    with os.scandir(descriptor) as entries:
        for entry in islice(entries, SCANNED_NAMES_MAX):
            names.append(entry.name)
    if len(names) <= names_max:
        return names, 0
    for name in names:
        try:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except OSError:
            continue
        by_user.setdefault(status.st_uid, []).append((status.st_ctime, name))
    ranked = sorted(
        (position, changed, name)
        for files in by_user.values()
        for position, (changed, name) in enumerate(sorted(files))
    )
    return [name for _, _, name in ranked[:names_max]], len(names) - names_max


def open_slot(folder: int, name: str) -> tuple[int, int] | None:
    """Return a slot's descriptor and owner (user id); None for any other file. Never waits."""
    if not NAME.fullmatch(name):
        return None
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size == SLOT_BYTES and status.st_nlink == 1:
        return descriptor, status.st_uid
    os.close(descriptor)
    return None


def read_slot(descriptor: int) -> bytes:
    """Return the bytes of a slot; fewer if it was truncated. Never raises."""
    try:
        return os.pread(descriptor, SLOT_BYTES, 0)
    except OSError:
        return b""


def holder_of(descriptor: int) -> int | None:
    """Return the PID of the live process that has locked the slot; None without a lock.

    0: the process is not visible in this PID namespace.
    """
    try:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    except OSError:
        return None
    return None if kind == fcntl.F_UNLCK else max(0, pid)
