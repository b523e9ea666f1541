"""How far the store had come when it last gave receipts, so that a file that lost its end is found out.

DuckDB replays a WAL as far as it is whole, and takes one that it does not know for none: without a word. So after
each commit 64 bytes are written beside it: which checkpoint the file stood at, how long the WAL was, how it began.
Not synced: after `kill -9` it is right, after a power cut it may be of earlier, and then finds less. It never
says more than was durable, for it is written after the commit.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import header
from .header import Header
from .storefile import wal_of

FILE_NAME = "durable"
#: Of the WAL's beginning so much is compared.
_BEGIN_BYTES = 24
_MARK = struct.Struct(f"<QQQ{_BEGIN_BYTES}sI")


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a store stood: its checkpoint, the WAL's length and beginning, and when (ns, wall)."""

    iteration: int
    wal_bytes: int
    at_ns: int
    wal_begin: bytes = b""

    def lost(self, found: Header | None, wal_bytes: int, wal_begin: bytes, path: Path) -> str:
        """Return in words what is gone of a store that is found so, "" when nothing is known to be."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.at_ns // 1_000_000_000))
        until = f"when the last receipt was given ({when} UTC)"
        if found is None:
            return f"{path} is not there, but was {until}: all that was stored before is gone"
        if found.iteration < self.iteration:
            return (
                f"{path} stands at checkpoint {found.iteration}, and stood at {self.iteration} {until}: "
                "an older copy was put in its place; what was stored since is gone"
            )
        if found.iteration > self.iteration:
            return ""
        wal = wal_of(path)
        if wal_bytes < self.wal_bytes:
            return (
                f"{wal} has {wal_bytes} bytes, and had {self.wal_bytes} {until}: its end was cut off, "
                "and the readings, scores and events that stood there are gone"
            )
        if self.wal_bytes and wal_begin != self.wal_begin:
            return f"{wal} is not the one that was there {until}: what that one held is gone"
        return ""


def encode(mark: Mark) -> bytes:
    """Return *mark* as it stands on disk."""
    body = _MARK.pack(mark.iteration, mark.wal_bytes, mark.at_ns, mark.wal_begin, 0)[:-4]
    return body + struct.pack("<I", zlib.crc32(body))


def parse(data: bytes) -> Mark | None:
    """Return the mark, None when *data* is none (a write that was cut off, another version)."""
    if len(data) != _MARK.size:
        return None
    iteration, wal_bytes, at_ns, begin, crc = _MARK.unpack(data)
    if zlib.crc32(data[:-4]) != crc:
        return None
    return Mark(iteration, wal_bytes, at_ns, begin)


class Marker:
    """Writes the mark of the store at *path*. Used by the writer thread only."""

    def __init__(self, path: Path) -> None:
        self._path, self._wal = path, wal_of(path)
        self._file = -1
        self._begin: tuple[int, bytes] = (-1, b"")

    def close(self) -> None:
        """Let go of the file, once DuckDB has: before, it would end DuckDB's lock (see `header.read`)."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._begin = -1, (-1, b"")

    def header(self) -> Header | None:
        """Return what the head of the file says now. Raises OSError."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return header.read_descriptor(self._file)

    def write(self, now_ns: int) -> None:
        """Note that all until now is durable. Never raises: on a disk that takes nothing the mark is of earlier."""
        with suppress(OSError):
            found, size = self.header(), size_of(self._wal)
            iteration = found.iteration if found else 0
            if size and self._begin[0] != iteration:
                self._begin = iteration, begin(self._wal)
            mark = Mark(iteration, size, now_ns, self._begin[1] if size else b"")
            _put(self._path.with_name(FILE_NAME), encode(mark))


def begin(wal: Path) -> bytes:
    """Return how the WAL begins, padded."""
    with open(wal, "rb") as file:
        return file.read(_BEGIN_BYTES).ljust(_BEGIN_BYTES, b"\0")


def lost(path: Path) -> str:
    """Return in words what the store at *path* has lost since its mark; "" when nothing is known. Raises OSError."""
    try:
        mark = parse(path.with_name(FILE_NAME).read_bytes())
    except FileNotFoundError:
        return ""
    if mark is None:
        return ""
    wal = wal_of(path)
    found = header.read(path) if path.exists() else None
    size = size_of(wal)
    return mark.lost(found, size, begin(wal) if size else b"", path)


def forget(folder: Path) -> None:
    """Another file is about to take the place of the one that was marked."""
    (folder / FILE_NAME).unlink(missing_ok=True)


def _put(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 when it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
