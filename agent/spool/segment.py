"""One file of the spool: frames with consecutive sequences, and which of them are acknowledged.

A segment is a file, or memory while the disk accepts no writes. The file's name is its first sequence.
It holds records, one after another:

    0  4  bytes of the frame
    4  4  CRC-32 of the sequence and the frame
    8  8  sequence
    16    the frame

Record n has sequence first + n, so both the number and the checksum reveal a stale or foreign record. Readers open the
file by name and need no lock of the spool: the worst that can happen meanwhile is that the file is deleted.
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
#: Digits of a name: sequences are 64 bits, and names sort as their numbers do.
_DIGITS = 20
#: Half of what 64 bits hold: room to jump ahead, whatever a file's name claims.
FIRST_SEQUENCE_MAX = 1 << 63
_RECORD = struct.Struct("<IIQ")
RECORD_OVERHEAD_BYTES = _RECORD.size
#: This much of a damaged file is searched for records; a file of ours is no longer.
SALVAGE_BYTES_MAX = 4 * FRAME_BYTES_MAX
#: This much is checksummed in one search: in bytes that look like headers all the way it would not end soon.
_CHECKSUM_BYTES_MAX = 64 << 20


class DamagedRecord(ValueError):
    """What is on the disk is not what was written there."""


def first_sequence_of(name: str) -> int | None:
    """Return the first sequence of the segment with this file name; None if it is not Gangline's."""
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
    """Return position and sequence of the first good record past *begin*, where *expected* stood; None: none.

    Records before it take at least their headers, which bounds its sequence.
    """
    left = _CHECKSUM_BYTES_MAX
    for at in range(begin + RECORD_OVERHEAD_BYTES, len(data) - RECORD_OVERHEAD_BYTES + 1):
        length, checksum, sequence = _RECORD.unpack_from(data, at)
        frame = at + RECORD_OVERHEAD_BYTES
        if not expected < sequence <= expected + (at - begin) // RECORD_OVERHEAD_BYTES:
            continue
        if frame + length > len(data) or length > FRAME_BYTES_MAX:
            continue
        if _checksum(sequence, data[frame : frame + length]) == checksum:
            return at, sequence
        left -= length
        if left < 0:
            break
    return None


class SpoolSegment:
    """Where the records of a run of sequences are, and which frames still wait for a receipt.

    `ends[n]` is where record n ends. This base keeps the frames in memory: they do not survive us.
    """

    on_disk = False

    def __init__(self, first: int) -> None:
        self.first = first
        self.ends: array[int] = array("Q")
        self.forgotten = bytearray()  # one byte a frame: 1 once it is acknowledged
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
        """Release what is open; what is on disk stays."""

    def remove(self) -> None:
        """Be gone. Never raises: a file that cannot be removed now is found at the next start."""


class FileSegment(SpoolSegment):
    """A segment on disk. Only the newest is open for writing."""

    on_disk = True

    def __init__(self, folder: Path, first: int) -> None:
        super().__init__(first)
        self.path = folder / f"{first:0{_DIGITS}}{SUFFIX}"
        self.file_bytes = 0  # as `scan` found it
        self.lost_frames = 0  # between good records, found by `scan`
        self._tail = b""
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

        Lengths and sequences give the positions. Where they stop making sense, the search continues at the
        next record whose sequence and checksum are right; the sequences in between are in `lost_frames`.
        The checksums of all other records are checked when they are read. The last one is checked here: its damaged
        length may span records that follow. Whatever the bytes are, this ends and raises nothing
        but OSError.
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
                if (found := _next_record(data, segment.size_bytes, segment.next)) is None:
                    break
                segment._index_lost(*found)
            segment._tail = data[segment.size_bytes :]
        return segment, segment.file_bytes - segment.size_bytes

    def tail_frames(self, following: int | None, *, contiguous: bool) -> int:
        """Return how many frames stood in the damaged end that `scan` found.

        *following*: the first sequence of the next segment, None if there is none; *contiguous*: no
        sequence was left out before it. Then the count is exact, as it is for one damaged record;
        else it is a lower bound, from the headers that can be read.
        """
        room = max(following - self.next, 0) if following is not None else FIRST_SEQUENCE_MAX
        if contiguous and RECORD_OVERHEAD_BYTES * room <= self.file_bytes - self.size_bytes:
            return room
        at = count = 0
        while len(self._tail) - at >= RECORD_OVERHEAD_BYTES:
            length, _, sequence = _RECORD.unpack_from(self._tail, at)
            if sequence != self.next + count:
                break
            at, count = at + RECORD_OVERHEAD_BYTES + length, count + 1
        return min(max(count, 1), room)

    def _index_lost(self, begin: int, sequence: int) -> None:
        """Give what lies before the record *sequence* at *begin* to the sequences that were there: lost."""
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
        """Return the size of the record past the last one known; None if there is none."""
        header = os.pread(descriptor, RECORD_OVERHEAD_BYTES, self.size_bytes)
        if len(header) < RECORD_OVERHEAD_BYTES:
            return None
        length, _, sequence = _RECORD.unpack(header)
        size = RECORD_OVERHEAD_BYTES + length
        whole = self.size_bytes + size <= self.file_bytes and length <= FRAME_BYTES_MAX
        return size if whole and sequence == self.next else None

    def cut_tail(self) -> None:
        """Take off what is not whole records. Raises OSError."""
        self._tail = b""
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


# ----------------------------------------------------------------------
# All segments of a spool, ascending: where the next frame goes, and which goes first when it is
# full.
#
# Not thread-safe, knows nothing of run ids: `spool` does both.

#: Frames kept in memory while the disk takes nothing; past it the oldest of them go.
MEMORY_BYTES_MAX = 1 << 20
MEMORY_SEGMENT_BYTES = 1 << 16
#: One `find` chooses no more than this together (but always one frame, if there is one).
FIND_BYTES_MAX = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Segments:
    """`dropped_frames` counts frames that went without a receipt; `notice` says what was damaged."""

    def __init__(self, folder: Path, bytes_max: int, segment_bytes: int) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self.segment_bytes = segment_bytes
        self.dropped_frames = 0
        self.disk_bytes = 0
        self.notice: list[str] = []
        self._segments: list[SpoolSegment] = []  # files, and memory where the disk failed

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def next(self) -> int:
        """The sequence after the last frame known; 0 if there is no segment."""
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

    # What is found at the start ------------------------------------------------------------

    def scan(self) -> int:
        """Index what is in the folder; return how many frames the end of the newest segment lost.

        Raises OSError.
        """
        firsts = sorted(filter(None, map(first_sequence_of, os.listdir(self.folder))))
        scanned = [FileSegment.scan(self.folder, first) for first in firsts]
        lost = 0
        for at, (segment, tail_bytes) in enumerate(scanned):
            following = scanned[at + 1][0] if at + 1 < len(scanned) else None
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
        """Return how many frames stood in the damaged end of *segment*, which *following* follows."""
        if following is None:
            return segment.tail_frames(None, contiguous=False)
        # A segment ends when it is full, or before a sequence that is not the next one.
        room = self.segment_bytes - segment.file_bytes
        full = bool(following.ends) and following.record_bytes(following.first) > room
        return segment.tail_frames(following.first, contiguous=full)

    def _add(self, segment: FileSegment) -> None:
        self._segments.append(segment)
        self.disk_bytes += segment.size_bytes

    def begin(self, first: int) -> None:
        """Make an empty segment: its name keeps the numbering. Raises OSError."""
        self._add(FileSegment.create(self.folder, first))

    # Appending -----------------------------------------------------------------------------

    def append(self, sequence: int, frame: bytes, *, drop_when_full: bool = True) -> None:
        """Write the frame to the newest segment, dropping old ones for room; *drop_when_full*, also for room on a
        file system that has none. Raises OSError.
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
        """Return the newest segment if the record fits it, else a new one. Raises OSError."""
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
        """Keep a frame that the disk did not take, in a window of MEMORY_BYTES_MAX."""
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

    # Letting go ----------------------------------------------------------------------------

    def _newest_file(self) -> SpoolSegment | None:
        """The segment that must stay: its name and length are how the numbering is known."""
        return next((segment for segment in reversed(self._segments) if segment.on_disk), None)

    def _drop_oldest_file(self) -> bool:
        """Drop the oldest segment on disk, unless it is the newest too; return whether it went."""
        newest = self._newest_file()
        for segment in self._segments:
            if segment.on_disk and segment is not newest:
                self._drop(segment)
                return True
        return False

    def drop_all(self) -> None:
        """Remove everything, counted."""
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
        """Remove the segments with nothing left to send."""
        if len(self._segments) == 1 and self._segments[0].on_disk:
            return  # it stays
        newest = self._newest_file()
        for segment in [s for s in self._segments if not s.waiting_frames and s is not newest]:
            self._remove(segment)

    def forget(self, first: int, last: int) -> int:
        """Forget first..last, inclusive; return how many of them were waiting."""
        count = 0
        for segment in self._segments:
            if segment.first <= last and first < segment.next:
                count += segment.forget(first, last)
        self.prune()
        return count

    # Reading -------------------------------------------------------------------------------

    def find(self, after: int, count_max: int) -> tuple[SpoolSegment, list[int]] | None:
        """Choose what to read next past *after*: waiting frames of one segment, within the limits."""
        for segment in self._segments:
            waiting = segment.waiting(after) if segment.next > after + 1 else []
            if waiting:
                return segment, _within(segment, waiting[:count_max])
        return None

    def waiting(self) -> list[tuple[int, bytes | None]]:
        """Return all frames without a receipt, ascending; None for one that cannot be read."""
        found: list[tuple[int, bytes | None]] = []
        for segment in self._segments:
            sequences = segment.waiting(-1)
            try:
                found += segment.read(sequences) if sequences else []
            except OSError:
                found += [(sequence, None) for sequence in sequences]
        return found

    def spans(self) -> list[tuple[int, int]]:
        """Return first and last sequence of each segment that has any."""
        return [(each.first, each.next - 1) for each in self._segments if each.ends]

    def has_waiting(self, sequence: int) -> bool:
        """Return whether this frame is here and waits for its receipt."""
        return any(sequence in each.waiting(sequence - 1) for each in self._segments)

    def close(self) -> None:
        for segment in self._segments:
            segment.close()


def _within(segment: SpoolSegment, sequences: list[int]) -> list[int]:
    """Return as many of *sequences* as FIND_BYTES_MAX allows, and at least one."""
    room = FIND_BYTES_MAX
    for count, sequence in enumerate(sequences):
        room -= segment.record_bytes(sequence)
        if room < 0:
            return sequences[: max(count, 1)]
    return sequences
