"""The segments of a spool: find, acknowledge and remove frames by sequence."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from .segment import RECORD_OVERHEAD_BYTES, FileSegment, SpoolSegment, first_sequence_of

#: Size of frames kept in memory while the disk accepts none. Beyond, the oldest are dropped.
MEMORY_BYTES_MAX = 1 << 20
MEMORY_SEGMENT_BYTES = 1 << 16
#: Size of the frames that one `find` selects; at least one frame.
FIND_BYTES_MAX = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Segments:
    """All segments of a spool, ascending. Not thread-safe and unaware of run ids: see `spool`.

    `dropped_frames` counts unacknowledged frames that were dropped, `last_drop` is the last reason; `notice` lists
    damage.
    """

    def __init__(self, folder: Path, bytes_max: int, segment_bytes: int) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self.segment_bytes = segment_bytes
        self.dropped_frames = 0
        self.last_drop = ""
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
        scanned = [FileSegment.scan(self.folder, first) for first in sorted(self._stored_firsts())]
        lost = 0
        for index, (segment, tail_bytes) in enumerate(scanned):
            following = scanned[index + 1][0] if index + 1 < len(scanned) else None
            lost = self._tail_frames(segment, following) if tail_bytes else 0
            overlaps = segment.first < self.next
            self._add(segment)
            if overlaps:
                self.notice.append(f"{segment.path.name}: repeats numbers, removed")
                self._drop(segment, f"{segment.path} repeated numbers of another file")
                continue
            self.count_drops(segment.lost_frames + lost, f"{segment.path} was damaged")
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

    def _stored_firsts(self) -> Iterator[int]:
        """Yield the first sequence of each file. A folder or pipe of such a name is reported and left in place."""
        for entry in os.scandir(self.folder):
            if not (first := first_sequence_of(entry.name)):
                continue
            if entry.is_file(follow_symlinks=False):
                yield first
            else:
                self.notice.append(f"{entry.path} is not a file and is ignored; move it away")

    def count_drops(self, frames: int, reason: str) -> None:
        """Count lost frames, and keep the reason if there are any."""
        self.dropped_frames += frames
        self.last_drop = reason if frames else self.last_drop

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
            if (
                not drop_when_full
                or error.errno not in _FULL
                or not self._drop_oldest_file("the disk was full")
            ):
                raise
            self._append(sequence, frame)

    def _append(self, sequence: int, frame: bytes) -> None:
        size = RECORD_OVERHEAD_BYTES + len(frame)
        segment = self._writable(sequence, size)
        while self.disk_bytes + size > self.bytes_max and self._drop_oldest_file(
            "the spool was full"
        ):
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
            self._drop(in_memory[0], "the disk accepts no frames, and the memory for them was full")

    def _newest_file(self) -> SpoolSegment | None:
        """Return the segment that must remain: its name and length define the numbering."""
        return next((segment for segment in reversed(self._segments) if segment.on_disk), None)

    def _drop_oldest_file(self, reason: str) -> bool:
        """Drop the oldest segment on disk unless it is the newest too; return whether it was."""
        newest = self._newest_file()
        for segment in self._segments:
            if segment.on_disk and segment is not newest:
                self._drop(segment, reason)
                return True
        return False

    def drop_all(self, reason: str) -> None:
        """Remove all segments; waiting frames count as dropped."""
        while self._segments:
            self._drop(self._segments[0], reason)

    def _drop(self, segment: SpoolSegment, reason: str) -> None:
        self.count_drops(segment.forget(segment.first, segment.next), reason)
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
