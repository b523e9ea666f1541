"""Where frames are kept: in the head, in tmpfs, on disk; in memory while neither accepts any.

Not thread-safe and unaware of run ids: `spool` handles both.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from ...contract.frame import deflate_frame
from .lockdir import sync_folder
from .segment import RECORD_OVERHEAD_BYTES, Segments, SpoolSegment

# ----------------------------------------------------------------------
# The newest frames, in a folder of a file system in memory: on the disk they would be written for
# nothing.
#
# When all is well a frame is acknowledged within a second or two, and a file that lives no longer
# than that still costs its disk a journal's commit every few seconds. So frames wait here first,
# and only those whose receipt does not come continue to the spool's folder. What is here survives
# `kill -9`, as the page cache does; a reboot takes it, as a power cut takes what is in the page
# cache.

#: Frames continue to the disk when no receipt came for this long,
WAIT_SECONDS_MAX = 20.0
#: and when they are more than this together.
MEMORY_TIER_BYTES_MAX = 1 << 20
SEGMENT_BYTES = 1 << 16
#: The newest segment stays when all of it continued: with it and one frame more than may wait here.
_FOLDER_BYTES_MAX = 4 * MEMORY_TIER_BYTES_MAX
_RUN_NAME = "run"


class MemoryTier:
    """One spool's frames in memory. Not thread-safe; `spool` is."""

    def __init__(self, folder: Path, segments: Segments) -> None:
        self.folder = folder
        self.segments = segments
        self._inode = 0
        self._run_id = b""

    @classmethod
    def open(cls, parent: Path, spool_folder: Path) -> MemoryTier:
        """Take up what the spool left in its folder below *parent*. Raises OSError."""
        spool_status = spool_folder.stat()
        folder = parent / f"gangline-spool-{spool_status.st_dev:x}-{spool_status.st_ino:x}"
        tier = cls(folder, Segments(folder, _FOLDER_BYTES_MAX, SEGMENT_BYTES))
        tier._make()
        tier.segments.scan()
        return tier

    def _make(self) -> None:
        """Make the folder if need be. Raises OSError, also for one that is not ours alone: anyone who could
        write there could make us send anything."""
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        found = self.folder.lstat()
        is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if not is_private or found.st_mode & 0o077:
            raise PermissionError(
                0, f"{self.folder.name} must be a folder that only this user can access"
            )
        self._inode = found.st_ino

    def exists(self) -> bool:
        """Return whether the folder is still the one that was opened."""
        try:
            return self.folder.lstat().st_ino == self._inode
        except OSError:
            return False

    def recreate(self) -> None:
        """Make the folder again after somebody removed it; what was in it is lost, counted. Raises OSError."""
        self.segments.drop_all()
        lost = self.segments.dropped_frames
        try:
            self._make()
            self.set_run(self._run_id)
        finally:
            self.segments.dropped_frames = lost

    def set_run(self, run_id: bytes) -> None:
        """Remove what is of another run, and note this one. Raises OSError."""
        note, self._run_id = self.folder / _RUN_NAME, run_id
        with suppress(FileNotFoundError):
            if note.read_bytes() == run_id:
                return
        self.clear()
        self.segments.dropped_frames = 0  # of another spool: no loss of this one's
        note.write_bytes(run_id)

    def clear(self) -> None:
        """Remove all that is here. Never raises."""
        self.segments.drop_all()
        with suppress(OSError):
            for path in self.folder.iterdir():
                path.unlink()

    def drop_stored(self, disk: Segments) -> bool:
        """Forget what is on the disk already: it was on its way there when the last process ended.

        Return whether the frame past the disk's last is here: then a torn one there was its copy.
        """
        for first, last in disk.spans():
            self.segments.forget(first, last)
        return self.segments.has_waiting(disk.next)

    def remove(self) -> None:
        """Be gone, with all that is here. Never raises."""
        self.clear()
        with suppress(OSError):
            self.folder.rmdir()


#: Present while every sequence that was given out is on disk: there if there is no head, else in the head,
#: so that an older agent, which knows of no head, takes the disk's numbers for incomplete.
UNBROKEN_NAME = "unbroken"
#: A head that somebody removed is noticed within this time; what has come to wait there by then is lost with it.
CHECK_SECONDS = 5.0


class TieredStore:
    """`write_errors`: frames the disk did not take; `last_error`: the words of the last write that failed."""

    def __init__(self, disk: Segments, seconds: Callable[[], float] = time.monotonic) -> None:
        """*seconds* is a steady clock."""
        self.disk = disk
        self.memory: MemoryTier | None = None
        self.write_errors = 0
        self.last_error = ""
        self._seconds = seconds
        self._last_ack_seconds = (
            seconds()
        )  # when a receipt freed the head last, or it began to fill
        self._check_at = 0.0  # whether the head is there
        self._unbroken = False

    def __iter__(self) -> Iterator[Segments]:
        yield self.disk
        if self.memory is not None:
            yield self.memory.segments

    # The head comes and goes ---------------------------------------------------------------

    def open_memory(self, parent: Path) -> str:
        """Take up the head below *parent*; return why there is none, else nothing."""
        try:
            self.memory = MemoryTier.open(parent, self.disk.folder)
        except OSError as error:
            return f"{parent}: {error.strerror}: frames are written to the disk at once"
        return ""

    def begin_run(self, run_id: bytes) -> None:
        """Make the head this run's, without what is of another; do without it if that cannot be."""
        if self.memory is not None:
            try:
                self.memory.set_run(run_id)
            except OSError as error:
                self._drop_memory(self.memory, error)

    def recover(self, run_id: bytes, lost_frames: int) -> bool:
        """Go on with what was found; return whether all numbers are known.

        *lost_frames*: how many were in the damaged end of the disk's newest segment. What is on the
        disk is left to it.
        """
        unbroken = (self.disk.folder / UNBROKEN_NAME).exists()
        self.begin_run(run_id)
        if self.memory is not None:
            unbroken = unbroken or (self.memory.folder / UNBROKEN_NAME).exists()
            if (
                self.memory.drop_stored(self.disk) and lost_frames
            ):  # what was torn there was its copy
                self.disk.dropped_frames -= lost_frames
                lost_frames = 0
        return unbroken and not lost_frames

    def place_marker(self) -> None:
        """Keep the mark of unbroken numbers where the newest of them will stand, and only there."""
        self._mark_unbroken()
        if self.memory is not None:
            (self.disk.folder / UNBROKEN_NAME).unlink(missing_ok=True)

    def _drop_memory(self, memory: MemoryTier, error: OSError) -> None:
        """Do without the head from now on. The disk's numbers are then all there are."""
        self.last_error = f"{memory.folder}: {error.strerror}"
        self.disk.dropped_frames += memory.segments.dropped_frames
        self.memory, self._unbroken = None, False

    def _current_memory(self, now: float) -> MemoryTier | None:
        """Return the head, recreated if somebody removed it: logind does when its user logs out."""
        memory = self.memory
        if memory is None or now < self._check_at:
            return memory
        self._check_at = now + CHECK_SECONDS
        if not memory.exists():
            try:
                memory.recreate()
            except OSError as error:
                self._drop_memory(memory, error)
            self._unbroken = False
        return self.memory

    # Keeping -------------------------------------------------------------------------------

    def append(self, sequence: int, frame: bytes) -> None:
        """Keep a frame where it goes now. Never raises."""
        if not self._append_to_memory(sequence, frame):
            self._append_to_disk(sequence, deflate_frame(frame))
            self.disk.prune()

    def _append_to_memory(self, sequence: int, frame: bytes) -> bool:
        """Keep a frame in memory, once those that waited there for too long are on the disk."""
        now = self._seconds()
        memory = self._current_memory(now)
        if memory is None:
            return False
        waiting = memory.segments.waiting_bytes
        if not waiting:
            self._last_ack_seconds = now
        elif now - self._last_ack_seconds >= WAIT_SECONDS_MAX:
            self._spill(memory)
            waiting = memory.segments.waiting_bytes
        size = RECORD_OVERHEAD_BYTES + len(frame)
        if waiting + size > MEMORY_TIER_BYTES_MAX:
            self._spill(memory, force=True)
            if size > MEMORY_TIER_BYTES_MAX:
                return False
        try:
            memory.segments.append(sequence, frame, drop_when_full=False)  # the disk may have room
        except OSError as error:
            self.last_error = f"{memory.folder}: {error.strerror}"
            self._check_at = now  # it may have been removed
            self._spill(memory, force=True)
            return False
        self._mark_unbroken()
        return True

    def _spill(self, memory: MemoryTier, *, force: bool = False) -> None:
        """Let what waits in memory continue to the disk, oldest first, while the disk takes it.

        *force*: what it does not take goes the way of a frame that comes then.
        """
        for sequence, frame in memory.segments.waiting():
            if frame is None:
                self.disk.dropped_frames += 1
            elif force:
                self._append_to_disk(sequence, deflate_frame(frame))
            else:
                try:
                    self.disk.append(sequence, deflate_frame(frame))
                except OSError as error:
                    self._note_error(error)
                    return
            memory.segments.forget(sequence, sequence)
        self.disk.prune()

    def _append_to_disk(self, sequence: int, frame: bytes) -> None:
        try:
            self.disk.append(sequence, frame)
        except OSError as error:
            self._note_error(error)
            self._mark_broken()
            self.disk.append_in_memory(sequence, frame)
        else:
            self._mark_unbroken()

    def _note_error(self, error: OSError) -> None:
        self.write_errors += 1
        self.last_error = f"{self.disk.folder}: {error.strerror}"

    # Whether all numbers are on show -------------------------------------------------------

    @property
    def _marker(self) -> Path:
        return (self.memory.folder if self.memory is not None else self.disk.folder) / UNBROKEN_NAME

    def _mark_broken(self) -> None:
        """Note, on a disk that takes no writes, that numbers exist which it does not show."""
        if self._unbroken:
            self._unbroken = False
            try:
                self._marker.unlink(missing_ok=True)
            except OSError as error:
                self.last_error = f"{UNBROKEN_NAME}: {error.strerror}"

    def _mark_unbroken(self) -> None:
        if not self._unbroken:
            try:
                self._marker.touch(mode=0o600)
            except OSError as error:
                self.last_error = f"{UNBROKEN_NAME}: {error.strerror}"
            else:
                self._unbroken = True

    def begin_at(self, sequence: int) -> None:
        """Number on from *sequence*, durably: none before it is given out again. Raises OSError."""
        self.disk.begin(sequence)
        sync_folder(self.disk.folder)

    # Letting go, reading -------------------------------------------------------------------

    def forget(self, first: int, last: int) -> int:
        """Forget first..last, inclusive; return how many waited. Never raises."""
        count = self.memory.segments.forget(first, last) if self.memory is not None else 0
        if count:
            self._last_ack_seconds = self._seconds()
        if self.disk.waiting_frames:
            count += self.disk.forget(first, last)
        return count

    def find(self, after: int, count_max: int) -> tuple[Segments, SpoolSegment, list[int]] | None:
        """Choose what to read next: the disk's and the head's frames are in no order of their own."""
        found = [(each, *chosen) for each in self if (chosen := each.find(after, count_max))]
        found.sort(key=lambda each: each[2][0])
        if len(found) < 2:
            return found[0] if found else None
        segments, segment, sequences = found[0]
        return segments, segment, [each for each in sequences if each < found[1][2][0]]

    def flush_to_disk(self, following: int) -> None:
        """Put on the disk all that is in memory; what it does not take stays there for the next start.

        *following*: the sequence that the next frame would have.
        """
        if self.memory is None:
            return
        self._spill(self.memory)
        if not self.memory.segments.waiting_frames:
            try:
                if self.disk.next != following:
                    self.disk.begin(following)
                (self.disk.folder / UNBROKEN_NAME).touch(mode=0o600)
                self.disk.prune()
                self.memory.remove()
            except OSError as error:
                self._note_error(error)

    def close(self) -> None:
        """Release what is open."""
        for each in self:
            each.close()
