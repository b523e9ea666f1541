"""A piece of the spool: frames with consecutive sequences, and which of them have a receipt.

A segment is a file, or memory while the disk takes nothing. The file's name is its first sequence;
it holds records, one after another:

    0  4  bytes of the frame
    4  4  CRC-32 of the sequence and the frame
    8  8  sequence
    16    the frame

Record n has sequence first + n, so a stale or foreign record is told from a good one by its number
as well as by its checksum. Reading opens the file by name, so that it needs no lock of the spool's:
the only thing that can happen meanwhile is that the file goes.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...fingerprints.frames import FRAME_BYTES_MAX

SUFFIX = ".seg"
#: Digits of a name: sequences are 64 bits, and names sort as their numbers do.
_DIGITS = 20
#: Half of what 64 bits hold: room to jump ahead, whatever a file's name claims.
FIRST_SEQUENCE_MAX = 1 << 63
_RECORD = struct.Struct("<IIQ")
RECORD_OVERHEAD_BYTES = _RECORD.size


class DamagedRecord(ValueError):
    """What is on the disk is not what was written there."""


def first_of(name: str) -> int | None:
    """Return the first sequence of the segment with this file name; None if it is none of ours."""
    digits = name.removesuffix(SUFFIX)
    if not name.endswith(SUFFIX) or len(digits) != _DIGITS or not digits.isascii():
        return None
    return int(digits) if digits.isdigit() and int(digits) <= FIRST_SEQUENCE_MAX else None


def _checksum(sequence: int, frame: bytes) -> int:
    return zlib.crc32(frame, zlib.crc32(sequence.to_bytes(8, "little")))


def _unpack(record: bytes, sequence: int) -> bytes:
    """Return the frame of a whole record. Raises DamagedRecord."""
    if len(record) < RECORD_OVERHEAD_BYTES:
        raise DamagedRecord(f"record {sequence} ends after {len(record)} bytes")
    length, checksum, number = _RECORD.unpack_from(record)
    frame = record[RECORD_OVERHEAD_BYTES:]
    if (length, number) != (len(frame), sequence) or checksum != _checksum(sequence, frame):
        raise DamagedRecord(f"record {sequence} does not match its checksum")
    return frame


class Segment:
    """Where the records of a run of sequences are, and which frames still wait for a receipt.

    `ends[n]` is where record n ends. This base keeps the frames in memory: they do not survive us.
    """

    on_disk = False

    def __init__(self, first: int) -> None:
        self.first = first
        self.ends: array[int] = array("Q")
        self.forgotten = bytearray()  # one byte a frame: 1 once it has its receipt
        self.size_bytes = 0
        self.waiting_frames = 0
        self.waiting_bytes = 0
        self._frames: list[bytes] = []

    @property
    def next(self) -> int:
        """The sequence after the last one here."""
        return self.first + len(self.ends)

    def append(self, frame: bytes) -> None:
        """Take the frame with sequence `next`. A segment on disk raises OSError, unchanged."""
        self._frames.append(frame)
        self._index(RECORD_OVERHEAD_BYTES + len(frame))

    def _index(self, record_bytes: int) -> None:
        self.size_bytes += record_bytes
        self.ends.append(self.size_bytes)
        self.forgotten.append(0)
        self.waiting_frames += 1
        self.waiting_bytes += record_bytes

    def record_bytes(self, sequence: int) -> int:
        at = sequence - self.first
        return self.ends[at] - (self.ends[at - 1] if at else 0)

    def waiting(self, after: int) -> list[int]:
        """Return the sequences past *after* that have no receipt, ascending."""
        begin = max(after + 1 - self.first, 0)
        return [self.first + at for at in range(begin, len(self.ends)) if not self.forgotten[at]]

    def forget(self, first: int, last: int) -> int:
        """Mark what is here of first..last; return how many were not marked before."""
        before = self.waiting_frames
        for at in range(max(first - self.first, 0), min(last + 1 - self.first, len(self.ends))):
            if not self.forgotten[at]:
                self.forgotten[at] = 1
                self.waiting_frames -= 1
                self.waiting_bytes -= self.record_bytes(self.first + at)
                self._release(at)
        return before - self.waiting_frames

    def _release(self, at: int) -> None:
        self._frames[at] = b""

    def read(self, sequences: Sequence[int]) -> list[tuple[int, bytes | None]]:
        """Return these frames; None for one that is damaged. Raises OSError from the disk."""
        return [(sequence, self._frames[sequence - self.first]) for sequence in sequences]

    def close(self) -> None:
        """Let go of what is open; what is on disk stays."""

    def remove(self) -> None:
        """Be gone. Never raises: a file that cannot be removed now is found at the next start."""


class FileSegment(Segment):
    """A segment on disk. Only the newest is open for writing."""

    on_disk = True

    def __init__(self, folder: Path, first: int) -> None:
        super().__init__(first)
        self.path = folder / f"{first:0{_DIGITS}}{SUFFIX}"
        self._descriptor = -1

    @classmethod
    def create(cls, folder: Path, first: int) -> FileSegment:
        """Make an empty file. Raises OSError."""
        segment = cls(folder, first)
        segment._descriptor = os.open(
            segment.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        return segment

    @classmethod
    def scan(cls, folder: Path, first: int) -> tuple[FileSegment, int]:
        """Find the records; return the segment and how many bytes at its end are none.

        Lengths and sequences tell the numbering, but for the last record: a length that was damaged
        may reach over all that follow it, so that one must match its checksum. The others' are
        checked when they are read. Whatever the bytes are, this ends and raises nothing but OSError.
        """
        segment = cls(folder, first)
        with open(segment.path, "rb", buffering=0) as file:
            length = os.fstat(file.fileno()).st_size
            while (size := segment._record_at(file.fileno(), length)) is not None:
                segment._index(size)
            if segment.ends and segment._read(file.fileno(), segment.next - 1) is None:
                segment._unindex_last()
        return segment, length - segment.size_bytes

    def _unindex_last(self) -> None:
        size = self.record_bytes(self.next - 1)
        self.ends.pop()
        self.forgotten.pop()
        self.size_bytes -= size
        self.waiting_frames -= 1
        self.waiting_bytes -= size

    def _record_at(self, descriptor: int, file_bytes: int) -> int | None:
        """Return the size of the record past the last one known; None if there is none."""
        header = os.pread(descriptor, RECORD_OVERHEAD_BYTES, self.size_bytes)
        if len(header) < RECORD_OVERHEAD_BYTES:
            return None
        length, _, sequence = _RECORD.unpack(header)
        size = RECORD_OVERHEAD_BYTES + length
        whole = self.size_bytes + size <= file_bytes and length <= FRAME_BYTES_MAX
        return size if whole and sequence == self.next else None

    def cut_tail(self) -> None:
        """Take off what is not whole records. Raises OSError."""
        os.truncate(self.path, self.size_bytes)

    def append(self, frame: bytes) -> None:
        """Write the record to the page cache: it survives our death, not the machine's."""
        if self._descriptor < 0:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        sequence, size = self.next, RECORD_OVERHEAD_BYTES + len(frame)
        record = _RECORD.pack(len(frame), _checksum(sequence, frame), sequence), frame
        try:
            written = os.pwritev(self._descriptor, record, self.size_bytes)
            while written < size:  # a signal, or a file system that is nearly full
                rest = b"".join(record)[written:]
                written += os.pwrite(self._descriptor, rest, self.size_bytes + written)
        except OSError:
            self._undo()
            raise
        self._index(size)

    def _undo(self) -> None:
        """Give half a record's space back. If even that fails, the next start cuts it off."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, self.size_bytes)

    def _release(self, at: int) -> None:
        pass  # the file goes as a whole

    def read(self, sequences: Sequence[int]) -> list[tuple[int, bytes | None]]:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return [(sequence, self._read(descriptor, sequence)) for sequence in sequences]
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, sequence: int) -> bytes | None:
        size = self.record_bytes(sequence)
        begin = self.ends[sequence - self.first] - size
        try:
            return _unpack(os.pread(descriptor, size, begin), sequence)
        except DamagedRecord:
            return None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        self.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
