"""Segments of the spool: frames with consecutive sequences, and which of them are acknowledged.

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

import errno
import os
import struct
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...contract.frame import FRAME_BYTES_MAX

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

    def _release(self, at: int) -> None:
        self._frames[at] = b""

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
        with open(segment.path, "rb", buffering=0) as file:
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

    def _release(self, at: int) -> None:
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


#: Size of frames kept in memory while the disk accepts none. Beyond, the oldest are dropped.
MEMORY_BYTES_MAX = 1 << 20
MEMORY_SEGMENT_BYTES = 1 << 16
#: Size of the frames that one `find` selects; at least one frame.
FIND_BYTES_MAX = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Segments:
    """All segments of a spool, ascending. Not thread-safe and unaware of run ids: see `spool`.

    `dropped_frames` counts unacknowledged frames that were dropped; `notice` lists damage.
    """

    def __init__(self, folder: Path, bytes_max: int, segment_bytes: int) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self.segment_bytes = segment_bytes
        self.dropped_frames = 0
        self.disk_bytes = 0
        self.notice: list[str] = []
        self._segments: list[SpoolSegment] = []  # files, and memory segments after disk failures

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def next(self) -> int:
        """The sequence after the last frame; 0 without a segment."""
        return self._segments[-1].next if self._segments else 0

    @property
    def waiting_frames(self) -> int:
        frames = 0
        for segment in self._segments:
            frames += segment.waiting_frames
        return frames

    @property
    def waiting_bytes(self) -> int:
        size = 0
        for segment in self._segments:
            size += segment.waiting_bytes
        return size

    def scan(self) -> int:
        """Index the folder; return how many frames the newest segment lost. Raises OSError."""
        firsts = sorted(filter(None, map(first_sequence_of, os.listdir(self.folder))))
        scanned = [FileSegment.scan(self.folder, first) for first in firsts]
        lost = 0
        for index, (segment, tail_bytes) in enumerate(scanned):
            following = scanned[index + 1][0] if index + 1 < len(scanned) else None
            lost = self._tail_frames(segment, following) if tail_bytes else 0
            overlaps = segment.first < self.next
            self._add(segment)
            if overlaps:
                self.notice.append(f"{segment.path.name}: repeats numbers, removed")
                self._drop(segment)
                continue
            self.dropped_frames += segment.lost_frames + lost
            if segment.lost_frames:
                self.notice.append(
                    f"{segment.path.name}: {segment.lost_frames} damaged frames skipped"
                )
            if tail_bytes:
                self.notice.append(
                    f"{segment.path.name}: {tail_bytes} damaged bytes cut off, {lost} frames"
                )
                segment.cut_tail()
        return lost

    def _tail_frames(self, segment: FileSegment, following: FileSegment | None) -> int:
        """Return the number of frames in the damaged end of *segment*."""
        if following is None:
            return segment.tail_frames(None, contiguous=False)
        # A segment ends when it is full, or before a gap in the sequences.
        capacity = self.segment_bytes - segment.file_bytes
        full = bool(following.ends) and following.record_bytes(following.first) > capacity
        return segment.tail_frames(following.first, contiguous=full)

    def _add(self, segment: FileSegment) -> None:
        self._segments.append(segment)
        self.disk_bytes += segment.size_bytes

    def begin(self, first: int) -> None:
        """Create an empty segment: its name keeps the numbering. Raises OSError."""
        self._add(FileSegment.create(self.folder, first))

    def append(self, sequence: int, frame: bytes, *, drop_when_full: bool = True) -> None:
        """Write the frame to the newest segment, dropping old segments at bytes_max.

        *drop_when_full*: also drop one if the file system is full. Raises OSError.
        """
        try:
            self._append(sequence, frame)
        except OSError as error:
            if not drop_when_full or error.errno not in _FULL or not self._drop_oldest_file():
                raise
            self._append(sequence, frame)

    def _append(self, sequence: int, frame: bytes) -> None:
        size = RECORD_OVERHEAD_BYTES + len(frame)
        segment = self._writable(sequence, size)
        while self.disk_bytes + size > self.bytes_max and self._drop_oldest_file():
            pass
        segment.append(frame)
        self.disk_bytes += size

    def _writable(self, sequence: int, size: int) -> FileSegment:
        """Return the newest segment if the record fits, else a new segment. Raises OSError."""
        newest = self._segments[-1] if self._segments else None
        if newest is not None:
            fits = newest.size_bytes + size <= self.segment_bytes or not newest.size_bytes
            if fits and isinstance(newest, FileSegment) and newest.next == sequence:
                return newest
            newest.close()
        segment = FileSegment.create(self.folder, sequence)
        self._add(segment)
        return segment

    def append_in_memory(self, sequence: int, frame: bytes) -> None:
        """Keep a frame that the disk did not accept, in a window of MEMORY_BYTES_MAX."""
        newest = self._segments[-1] if self._segments else None
        fits = newest is not None and newest.size_bytes < MEMORY_SEGMENT_BYTES
        if newest is None or newest.on_disk or newest.next != sequence or not fits:
            newest = SpoolSegment(sequence)
            self._segments.append(newest)
        newest.append(frame)
        in_memory = [segment for segment in self._segments if not segment.on_disk]
        if (
            len(in_memory) > 1
            and sum(segment.waiting_bytes for segment in in_memory) > MEMORY_BYTES_MAX
        ):
            self._drop(in_memory[0])

    def _newest_file(self) -> SpoolSegment | None:
        """Return the segment that must remain: its name and length define the numbering."""
        return next((segment for segment in reversed(self._segments) if segment.on_disk), None)

    def _drop_oldest_file(self) -> bool:
        """Drop the oldest segment on disk unless it is the newest too; return whether it was."""
        newest = self._newest_file()
        for segment in self._segments:
            if segment.on_disk and segment is not newest:
                self._drop(segment)
                return True
        return False

    def drop_all(self) -> None:
        """Remove all segments; waiting frames count as dropped."""
        while self._segments:
            self._drop(self._segments[0])

    def _drop(self, segment: SpoolSegment) -> None:
        self.dropped_frames += segment.forget(segment.first, segment.next)
        self._remove(segment)

    def _remove(self, segment: SpoolSegment) -> None:
        self._segments.remove(segment)
        if segment.on_disk:
            self.disk_bytes -= segment.size_bytes
        segment.remove()

    def prune(self) -> None:
        """Remove the segments in which no frame waits, except the newest on disk."""
        if len(self._segments) == 1 and self._segments[0].on_disk:
            return
        newest = self._newest_file()
        for segment in [
            old for old in self._segments if not old.waiting_frames and old is not newest
        ]:
            self._remove(segment)

    def forget(self, first: int, last: int) -> int:
        """Forget first..last, inclusive; return how many of them waited."""
        count = 0
        for segment in self._segments:
            if segment.first <= last and first < segment.next:
                count += segment.forget(first, last)
        self.prune()
        return count

    def find(self, after: int, count_max: int) -> tuple[SpoolSegment, list[int]] | None:
        """Return a segment and its next waiting frames past *after*, within the limits."""
        for segment in self._segments:
            waiting = segment.waiting(after) if segment.next > after + 1 else []
            if waiting:
                return segment, _within(segment, waiting[:count_max])
        return None

    def waiting(self) -> list[tuple[int, bytes | None]]:
        """Return all waiting frames, ascending; None for an unreadable frame."""
        rows: list[tuple[int, bytes | None]] = []
        for segment in self._segments:
            sequences = segment.waiting(-1)
            try:
                rows += segment.read(sequences) if sequences else []
            except OSError:
                rows += [(sequence, None) for sequence in sequences]
        return rows

    def spans(self) -> list[tuple[int, int]]:
        """Return first and last sequence of each segment with frames."""
        return [(segment.first, segment.next - 1) for segment in self._segments if segment.ends]

    def has_waiting(self, sequence: int) -> bool:
        """Return whether this frame waits in a segment."""
        return any(sequence in segment.waiting(sequence - 1) for segment in self._segments)

    def close(self) -> None:
        for segment in self._segments:
            segment.close()


def _within(segment: SpoolSegment, sequences: list[int]) -> list[int]:
    """Return the first of *sequences* up to FIND_BYTES_MAX, at least one."""
    left_bytes = FIND_BYTES_MAX
    for count, sequence in enumerate(sequences):
        left_bytes -= segment.record_bytes(sequence)
        if left_bytes < 0:
            return sequences[: max(count, 1)]
    return sequences
