"""Durability mark: detects a store file that lost its end.

DuckDB replays a WAL up to its first incomplete record, and silently ignores a WAL that it does not
recognize. Therefore, after each commit, the checkpoint's iteration and the length and first bytes
of the WAL are written to a file of 64 bytes. It is not synced: after `kill -9` it is right, after a
power cut it may be older and then detects less. It never claims more than was durable.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .duckdb_header import Header, read_header, read_open_header
from .store_folder import wal_of

MARK_FILE = "durable"
#: Bytes compared at the beginning of the WAL.
_BEGIN_BYTES = 24
_MARK = struct.Struct(f"<QQQ{_BEGIN_BYTES}sI")


@dataclass(frozen=True, slots=True)
class DurabilityMark:
    """State of a store: checkpoint's iteration, WAL's length and beginning, wall time."""

    iteration: int
    wal_bytes: int
    written_ns: int
    wal_begin: bytes = b""

    def loss_message(
        self, found: Header | None, wal_bytes: int, wal_begin: bytes, path: Path
    ) -> str:
        """Return a message about lost data; "" if no loss is known."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.written_ns // 1_000_000_000))
        until = f"when the last receipt was given ({when} UTC)"
        if found is None:
            return f"{path} is not there, but was {until}: all data stored before is gone"
        if found.iteration < self.iteration:
            return f"{path} is at checkpoint {found.iteration}, but was at {self.iteration} {until}: an older copy has replaced it, and the data stored since then is lost"
        if found.iteration > self.iteration:
            return ""
        wal = wal_of(path)
        if wal_bytes < self.wal_bytes:
            return (
                f"{wal} has {wal_bytes} bytes, and had {self.wal_bytes} {until}: its end was cut off, "
                "and the readings, scores and events there are lost"
            )
        if self.wal_bytes and wal_begin != self.wal_begin:
            return f"{wal} is not the one that was there {until}: the data of that one is lost"
        return ""


def encode_mark(mark: DurabilityMark) -> bytes:
    body = _MARK.pack(mark.iteration, mark.wal_bytes, mark.written_ns, mark.wal_begin, 0)[:-4]
    return body + struct.pack("<I", zlib.crc32(body))


def parse_mark(data: bytes) -> DurabilityMark | None:
    """Return the mark, None if *data* is incomplete, damaged or of another version."""
    if len(data) != _MARK.size:
        return None
    iteration, wal_bytes, written_ns, wal_begin, crc = _MARK.unpack(data)
    if zlib.crc32(data[:-4]) != crc:
        return None
    return DurabilityMark(iteration, wal_bytes, written_ns, wal_begin)


class MarkWriter:
    """Writes the mark of the store at *path*. Only the writer thread uses it."""

    def __init__(self, path: Path) -> None:
        self._path, self._wal = path, wal_of(path)
        self._file = -1
        self._begin: tuple[int, bytes] = (-1, b"")

    def close(self) -> None:
        """Close the file. Call this after DuckDB has closed its own: see `read_header`."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._begin = -1, (-1, b"")

    def header(self) -> Header | None:
        """Return the current header of the file. Raises OSError."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return read_open_header(self._file)

    def write(self, now_ns: int) -> None:
        """Record that all data is durable. Never raises: on a failing disk the old mark stays."""
        with suppress(OSError):
            header, size = self.header(), size_of(self._wal)
            iteration = header.iteration if header else 0
            if size and self._begin[0] != iteration:
                self._begin = iteration, wal_beginning(self._wal)
            mark = DurabilityMark(iteration, size, now_ns, self._begin[1] if size else b"")
            _write_bytes(self._path.with_name(MARK_FILE), encode_mark(mark))


def wal_beginning(wal: Path) -> bytes:
    """Return the first bytes of the WAL, padded."""
    with open(wal, "rb") as file:
        return file.read(_BEGIN_BYTES).ljust(_BEGIN_BYTES, b"\0")


def loss_message(path: Path) -> str:
    """Return a message about data lost since the mark; "" if no loss is known. Raises OSError."""
    try:
        mark = parse_mark(path.with_name(MARK_FILE).read_bytes())
    except FileNotFoundError:
        return ""
    if mark is None:
        return ""
    wal = wal_of(path)
    header = read_header(path) if path.exists() else None
    size = size_of(wal)
    return mark.loss_message(header, size, wal_beginning(wal) if size else b"", path)


def remove_mark(folder: Path) -> None:
    """Remove the mark before another file replaces the store."""
    (folder / MARK_FILE).unlink(missing_ok=True)


def _write_bytes(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
