"""A segment of the spool, in memory or in a file: frames with consecutive sequences, and their acknowledgments.

A segment is a file, or memory while the disk accepts no writes. The file's name is its first
sequence. It holds records, one after another:

    0  4  bytes of the frame
    4  4  CRC-32 of the sequence and the frame
    8  8  sequence
    16    the frame

Record n has sequence first + n, so both the number and the checksum reveal a stale or foreign
record. Readers open the file by name without a lock of the spool: at worst the file is deleted
meanwhile.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...contract.frame import FRAME_BYTES_MAX
from .lockdir import open_regular

SUFFIX = ".seg"
#: Digits of a name: sequences have 64 bits, and names sort like their numbers.
_DIGITS = 20
#: Half of the 64-bit range: leaves capacity to jump ahead, whatever number a file's name has.
FIRST_SEQUENCE_MAX = 1 << 63
_RECORD = struct.Struct("<IIQ")
RECORD_OVERHEAD_BYTES = _RECORD.size
#: Bytes of a damaged file that are searched for records. Our files are not longer.
SALVAGE_BYTES_MAX = 4 * FRAME_BYTES_MAX
#: Bytes checksummed per search: bytes that all look like headers would otherwise take very long.
_CHECKSUM_BYTES_MAX = 64 << 20


class DamagedRecord(ValueError):
    """The bytes on disk are not those that were written."""


def first_sequence_of(name: str) -> int | None:
    """Return the first sequence of the segment with this file name; None for a foreign name."""
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


def _next_record(data: bytes, begin: int, expected: int) -> tuple[int, int] | None:
    """Return position and sequence of the first valid record past *begin*, or None.

    *expected* is the sequence at *begin*. Each record before it takes at least its header, which
    bounds its sequence.
    """
    left = _CHECKSUM_BYTES_MAX
    for position in range(begin + RECORD_OVERHEAD_BYTES, len(data) - RECORD_OVERHEAD_BYTES + 1):
        length, checksum, sequence = _RECORD.unpack_from(data, position)
        frame = position + RECORD_OVERHEAD_BYTES
        if not expected < sequence <= expected + (position - begin) // RECORD_OVERHEAD_BYTES:
            continue
        if frame + length > len(data) or length > FRAME_BYTES_MAX:
            continue
        if _checksum(sequence, data[frame : frame + length]) == checksum:
            return position, sequence
        left -= length
        if left < 0:
            break
    return None


class SpoolSegment:
    """Positions of the records of consecutive sequences, and which frames wait.

    `ends[n]` is the end of record n. This base class keeps the frames in memory only.
    """

    on_disk = False

    def __init__(self, first: int) -> None:
        self.first = first
        self.ends: array[int] = array("Q")
        self.forgotten = bytearray()  # one byte per frame: 1 if acknowledged
        self.size_bytes = 0
        self.waiting_frames = 0
        self.waiting_bytes = 0
        self._frames: list[bytes] = []

    @property
    def next(self) -> int:
        """The sequence after the last frame."""
        return self.first + len(self.ends)

    def append(self, frame: bytes) -> None:
        """Append the frame with sequence `next`. On disk, OSError leaves the segment unchanged."""
        self._frames.append(frame)
        self._index(RECORD_OVERHEAD_BYTES + len(frame))

    def _index(self, record_bytes: int) -> None:
        self.size_bytes += record_bytes
        self.ends.append(self.size_bytes)
        self.forgotten.append(0)
        self.waiting_frames += 1
        self.waiting_bytes += record_bytes

    def record_bytes(self, sequence: int) -> int:
        index = sequence - self.first
        return self.ends[index] - (self.ends[index - 1] if index else 0)

    def waiting(self, after: int) -> list[int]:
        """Return the waiting sequences past *after*, ascending."""
        begin = max(after + 1 - self.first, 0)
        return [
            self.first + index
            for index in range(begin, len(self.ends))
            if not self.forgotten[index]
        ]

    def forget(self, first: int, last: int) -> int:
        """Mark frames of first..last; return how many were not marked before."""
        before = self.waiting_frames
        for index in range(max(first - self.first, 0), min(last + 1 - self.first, len(self.ends))):
            if not self.forgotten[index]:
                self.forgotten[index] = 1
                self.waiting_frames -= 1
                self.waiting_bytes -= self.record_bytes(self.first + index)
                self._release(index)
        return before - self.waiting_frames

    def _release(self, index: int) -> None:
        self._frames[index] = b""

    def read(self, sequences: Sequence[int]) -> list[tuple[int, bytes | None]]:
        """Return these frames; None for a damaged frame. Raises OSError."""
        return [(sequence, self._frames[sequence - self.first]) for sequence in sequences]

    def close(self) -> None:
        """Close the file; it remains on disk."""

    def remove(self) -> None:
        """Delete the segment. Never raises: the next start finds a file that cannot be deleted."""


class FileSegment(SpoolSegment):
    """A segment on disk. Only the newest is open for writing."""

    on_disk = True

    def __init__(self, folder: Path, first: int) -> None:
        super().__init__(first)
        self.path = folder / f"{first:0{_DIGITS}}{SUFFIX}"
        self.file_bytes = 0  # found by `scan`
        self.lost_frames = 0  # between valid records, found by `scan`
        self._tail = b""
        self._descriptor = -1

    @classmethod
    def create(cls, folder: Path, first: int) -> FileSegment:
        """Create an empty file. Raises OSError."""
        segment = cls(folder, first)
        segment._descriptor = os.open(
            segment.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        return segment

    @classmethod
    def scan(cls, folder: Path, first: int) -> tuple[FileSegment, int]:
        """Index the records; return the segment and the number of invalid bytes at its end.

        Lengths and sequences give the positions. At an inconsistency the search continues at the
        next record with a valid sequence and checksum; the sequences between are in `lost_frames`.
        The checksums of other records are checked when they are read, except the last record's:
        its damaged length may span records that follow. For any bytes this terminates and raises
        only OSError.
        """
        segment = cls(folder, first)
        with open(segment.path, "rb", buffering=0, opener=open_regular) as file:
            descriptor = file.fileno()
            segment.file_bytes = os.fstat(descriptor).st_size
            data = b""
            while True:
                while (size := segment._record_at(descriptor)) is not None:
                    segment._index(size)
                if segment.ends and segment._read(descriptor, segment.next - 1) is None:
                    segment._unindex_last()
                if segment.size_bytes == segment.file_bytes:
                    break
                data = data or os.pread(descriptor, SALVAGE_BYTES_MAX, 0)
                if (record := _next_record(data, segment.size_bytes, segment.next)) is None:
                    break
                segment._index_lost(*record)
            segment._tail = data[segment.size_bytes :]
        return segment, segment.file_bytes - segment.size_bytes

    def tail_frames(self, following: int | None, *, contiguous: bool) -> int:
        """Return the number of frames in the damaged end that `scan` found.

        *following*: the first sequence of the next segment, or None. *contiguous*: no sequence was
        skipped before it. Then the count is exact, as for a single damaged record; else it is a
        lower bound, from the readable headers.
        """
        frames_max = max(following - self.next, 0) if following is not None else FIRST_SEQUENCE_MAX
        if contiguous and RECORD_OVERHEAD_BYTES * frames_max <= self.file_bytes - self.size_bytes:
            return frames_max
        position = count = 0
        while len(self._tail) - position >= RECORD_OVERHEAD_BYTES:
            length, _, sequence = _RECORD.unpack_from(self._tail, position)
            if sequence != self.next + count:
                break
            position, count = position + RECORD_OVERHEAD_BYTES + length, count + 1
        return min(max(count, 1), frames_max)

    def _index_lost(self, begin: int, sequence: int) -> None:
        """Index the sequences before the record *sequence* at *begin* as lost."""
        for _ in range(self.next, sequence):
            self.ends.append(begin)
            self.forgotten.append(1)
            self.lost_frames += 1
        self.size_bytes = begin

    def _unindex_last(self) -> None:
        size = self.record_bytes(self.next - 1)
        self.ends.pop()
        self.forgotten.pop()
        self.size_bytes -= size
        self.waiting_frames -= 1
        self.waiting_bytes -= size

    def _record_at(self, descriptor: int) -> int | None:
        """Return the size of the next record, or None."""
        header = os.pread(descriptor, RECORD_OVERHEAD_BYTES, self.size_bytes)
        if len(header) < RECORD_OVERHEAD_BYTES:
            return None
        length, _, sequence = _RECORD.unpack(header)
        size = RECORD_OVERHEAD_BYTES + length
        whole = self.size_bytes + size <= self.file_bytes and length <= FRAME_BYTES_MAX
        return size if whole and sequence == self.next else None

    def cut_tail(self) -> None:
        """Cut off the invalid end. Raises OSError."""
        self._tail = b""
        os.truncate(self.path, self.size_bytes)

    def append(self, frame: bytes) -> None:
        """Write the record to the page cache: it survives this process, but not a power cut."""
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
        """Cut off half a record. If even that fails, the next start cuts it off."""
        with suppress(OSError):
            os.ftruncate(self._descriptor, self.size_bytes)

    def _release(self, index: int) -> None:
        pass  # the file is deleted as a whole

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
