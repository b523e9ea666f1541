"""All segments of a spool, ascending: where the next frame goes, and which goes first when it is full.

Not thread-safe, knows nothing of run ids: `spool` does both.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .segment import RECORD_OVERHEAD_BYTES, FileSegment, Segment, first_of

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
        self._all: list[Segment] = []  # files, and memory where the disk failed

    def __len__(self) -> int:
        return len(self._all)

    @property
    def next(self) -> int:
        """The sequence after the last frame known; 0 if there is no segment."""
        return self._all[-1].next if self._all else 0

    @property
    def waiting_frames(self) -> int:
        frames = 0
        for segment in self._all:
            frames += segment.waiting_frames
        return frames

    @property
    def waiting_bytes(self) -> int:
        size = 0
        for segment in self._all:
            size += segment.waiting_bytes
        return size

    # What is found at the start ------------------------------------------------------------

    def scan(self) -> bool:
        """Index what is in the folder; return whether the newest segment had lost its end.

        Raises OSError.
        """
        lost_bytes = 0
        for first in sorted(filter(None, map(first_of, os.listdir(self.folder)))):
            segment, lost_bytes = FileSegment.scan(self.folder, first)
            overlaps = first < self.next
            self._add(segment)
            if overlaps:
                self.notice.append(f"{segment.path.name}: repeats numbers, removed")
                self._drop(segment)
            elif lost_bytes:
                # How many frames stood there is not known; of a torn write it was one.
                self.dropped_frames += 1
                self.notice.append(f"{segment.path.name}: {lost_bytes} damaged bytes cut off")
                segment.cut_tail()
        return lost_bytes > 0

    def _add(self, segment: FileSegment) -> None:
        self._all.append(segment)
        self.disk_bytes += segment.size_bytes

    def begin(self, first: int) -> None:
        """Make an empty segment: its name keeps the numbering. Raises OSError."""
        self._add(FileSegment.create(self.folder, first))

    # Appending -----------------------------------------------------------------------------

    def append(self, sequence: int, frame: bytes, *, when_full: bool = True) -> None:
        """Write the frame to the newest segment, dropping old ones for room; *when_full*, also for room on a
        file system that has none. Raises OSError.
        """
        try:
            self._append(sequence, frame)
        except OSError as error:
            if not when_full or error.errno not in _FULL or not self._drop_oldest_file():
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
        newest = self._all[-1] if self._all else None
        if newest is not None:
            fits = newest.size_bytes + size <= self.segment_bytes or not newest.size_bytes
            if fits and isinstance(newest, FileSegment) and newest.next == sequence:
                return newest
            newest.close()
        segment = FileSegment.create(self.folder, sequence)
        self._add(segment)
        return segment

    def keep_in_memory(self, sequence: int, frame: bytes) -> None:
        """Keep a frame that the disk did not take, in a window of MEMORY_BYTES_MAX."""
        window = self._all[-1] if self._all else None
        fits = window is not None and window.size_bytes < MEMORY_SEGMENT_BYTES
        if window is None or window.on_disk or window.next != sequence or not fits:
            window = Segment(sequence)
            self._all.append(window)
        window.append(frame)
        kept = [segment for segment in self._all if not segment.on_disk]
        if len(kept) > 1 and sum(segment.waiting_bytes for segment in kept) > MEMORY_BYTES_MAX:
            self._drop(kept[0])

    # Letting go ----------------------------------------------------------------------------

    def _newest_file(self) -> Segment | None:
        """The segment that must stay: its name and length are how the numbering is known."""
        return next((segment for segment in reversed(self._all) if segment.on_disk), None)

    def _drop_oldest_file(self) -> bool:
        """Drop the oldest segment on disk, unless it is the newest too; return whether it went."""
        newest = self._newest_file()
        for segment in self._all:
            if segment.on_disk and segment is not newest:
                self._drop(segment)
                return True
        return False

    def drop_all(self) -> None:
        """Remove everything, counted."""
        while self._all:
            self._drop(self._all[0])

    def _drop(self, segment: Segment) -> None:
        self.dropped_frames += segment.forget(segment.first, segment.next)
        self._remove(segment)

    def _remove(self, segment: Segment) -> None:
        self._all.remove(segment)
        if segment.on_disk:
            self.disk_bytes -= segment.size_bytes
        segment.remove()

    def prune(self) -> None:
        """Remove the segments of which nothing waits any more."""
        if len(self._all) == 1 and self._all[0].on_disk:
            return  # it stays
        newest = self._newest_file()
        for segment in [s for s in self._all if not s.waiting_frames and s is not newest]:
            self._remove(segment)

    def forget(self, first: int, last: int) -> int:
        """Forget first..last, inclusive; return how many of them were waiting."""
        count = 0
        for segment in self._all:
            if segment.first <= last and first < segment.next:
                count += segment.forget(first, last)
        self.prune()
        return count

    # Reading -------------------------------------------------------------------------------

    def find(self, after: int, count_max: int) -> tuple[Segment, list[int]] | None:
        """Choose what to read next past *after*: waiting frames of one segment, within the limits."""
        for segment in self._all:
            waiting = segment.waiting(after) if segment.next > after + 1 else []
            if waiting:
                return segment, _within(segment, waiting[:count_max])
        return None

    def waiting(self) -> list[tuple[int, bytes | None]]:
        """Return all frames without a receipt, ascending; None for one that cannot be read."""
        found: list[tuple[int, bytes | None]] = []
        for segment in self._all:
            sequences = segment.waiting(-1)
            try:
                found += segment.read(sequences) if sequences else []
            except OSError:
                found += [(sequence, None) for sequence in sequences]
        return found

    def spans(self) -> list[tuple[int, int]]:
        """Return first and last sequence of each segment that has any."""
        return [(each.first, each.next - 1) for each in self._all if each.ends]

    def holds(self, sequence: int) -> bool:
        """Say whether this frame is here and waits for its receipt."""
        return any(sequence in each.waiting(sequence - 1) for each in self._all)

    def close(self) -> None:
        for segment in self._all:
            segment.close()


def _within(segment: Segment, sequences: list[int]) -> list[int]:
    """Return as many of *sequences* as FIND_BYTES_MAX allows, and at least one."""
    room = FIND_BYTES_MAX
    for count, sequence in enumerate(sequences):
        room -= segment.record_bytes(sequence)
        if room < 0:
            return sequences[: max(count, 1)]
    return sequences
