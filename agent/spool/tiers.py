"""Storage tiers of the spool: tmpfs, then disk; process memory while neither accepts writes.

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
from .segment import RECORD_OVERHEAD_BYTES, SpoolSegment
from .segments import Segments

# Normally a frame is acknowledged within a second or two. A file on disk that lives no longer still
# costs a journal commit every few seconds. So frames wait in memory first, and only unacknowledged
# frames continue to the disk. The memory tier survives `kill -9`, as the page cache does; a reboot
# clears it, as a power cut clears the page cache.

#: Frames continue to the disk if no acknowledgment came for this time,
WAIT_SECONDS_MAX = 20.0
#: or if they exceed this size together.
MEMORY_TIER_BYTES_MAX = 1 << 20
SEGMENT_BYTES = 1 << 16
#: Includes the newest segment, which remains after its frames continued, and one further frame.
_FOLDER_BYTES_MAX = 4 * MEMORY_TIER_BYTES_MAX
_RUN_NAME = "run"

#: Marker: every used sequence is stored. It is in the memory tier if there is one, else on disk. An
#: older agent, which has no memory tier, so takes the disk's numbers for incomplete.
UNBROKEN_NAME = "unbroken"
#: A removed memory tier is noticed within this time; frames that wait in it until then are lost.
CHECK_SECONDS = 5.0


class MemoryTier:
    """A spool's frames in a memory file system. Not thread-safe; `spool` is."""

    def __init__(self, folder: Path, segments: Segments) -> None:
        self.folder = folder
        self.segments = segments
        self._inode = 0
        self._run_id = b""

    @classmethod
    def open(cls, parent: Path, spool_folder: Path) -> MemoryTier:
        """Load the frames that the spool left in its folder below *parent*. Raises OSError."""
        spool_status = spool_folder.stat()
        folder = parent / f"gangline-spool-{spool_status.st_dev:x}-{spool_status.st_ino:x}"
        tier = cls(folder, Segments(folder, _FOLDER_BYTES_MAX, SEGMENT_BYTES))
        tier._make()
        tier.segments.scan()
        return tier

    def _make(self) -> None:
        """Create the folder if needed. Raises OSError, also if other users can access it.

        A user who can write there could make the agent send anything.
        """
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        status = self.folder.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not is_private or status.st_mode & 0o077:
            raise PermissionError(
                0, f"{self.folder.name} must be a folder that only this user can access"
            )
        self._inode = status.st_ino

    def exists(self) -> bool:
        """Return whether the opened folder still exists at its path."""
        try:
            return self.folder.lstat().st_ino == self._inode
        except OSError:
            return False

    def recreate(self) -> None:
        """Create the folder again after its removal; its frames count as lost. Raises OSError."""
        self.segments.drop_all(f"{self.folder} was removed")
        lost = self.segments.dropped_frames
        try:
            self._make()
            self.set_run(self._run_id)
        finally:
            self.segments.dropped_frames = lost

    def set_run(self, run_id: bytes) -> None:
        """Remove another run's frames, and store *run_id*. Raises OSError."""
        note, self._run_id = self.folder / _RUN_NAME, run_id
        with suppress(FileNotFoundError):
            if note.read_bytes() == run_id:
                return
        self.clear()
        self.segments.dropped_frames = 0  # not losses of this spool
        note.write_bytes(run_id)

    def clear(self) -> None:
        """Remove all frames. Never raises."""
        self.segments.drop_all("")
        with suppress(OSError):
            for path in self.folder.iterdir():
                path.unlink()

    def drop_stored(self, disk: Segments) -> bool:
        """Forget frames that are on disk: the last process ended while it moved them.

        Return whether the frame after the disk's last is here: a torn record on disk is its copy.
        """
        for first, last in disk.spans():
            self.segments.forget(first, last)
        return self.segments.has_waiting(disk.next)

    def remove(self) -> None:
        """Remove the folder and all frames. Never raises."""
        self.clear()
        with suppress(OSError):
            self.folder.rmdir()


class TieredStore:
    """The tiers of a spool. `write_errors`: frames that the disk did not accept."""

    def __init__(self, disk: Segments, seconds: Callable[[], float] = time.monotonic) -> None:
        """*seconds* is a steady clock."""
        self.disk = disk
        self.memory: MemoryTier | None = None
        self.write_errors = 0
        self.last_error = ""
        self._seconds = seconds
        #: When an acknowledgment last freed the memory tier, or it began to fill.
        self._last_ack_seconds = seconds()
        self._check_at = 0.0  # next check that the memory tier exists
        self._unbroken = False

    def __iter__(self) -> Iterator[Segments]:
        yield self.disk
        if self.memory is not None:
            yield self.memory.segments

    def open_memory(self, parent: Path) -> str:
        """Load the memory tier below *parent*; return an error, or ""."""
        try:
            self.memory = MemoryTier.open(parent, self.disk.folder)
        except OSError as error:
            return f"{parent}: {error.strerror}: frames are written to the disk at once"
        return ""

    def begin_run(self, run_id: bytes) -> None:
        """Assign the memory tier to this run, or continue without it after an error."""
        if self.memory is not None:
            try:
                self.memory.set_run(run_id)
            except OSError as error:
                self._drop_memory(self.memory, error)

    def recover(self, run_id: bytes, lost_frames: int) -> bool:
        """Continue with the stored frames; return whether all used numbers are known.

        *lost_frames*: frames in the damaged end of the disk's newest segment.
        """
        unbroken = (self.disk.folder / UNBROKEN_NAME).exists()
        self.begin_run(run_id)
        if self.memory is not None:
            unbroken = unbroken or (self.memory.folder / UNBROKEN_NAME).exists()
            # A torn record on disk is the copy of a frame in memory.
            if self.memory.drop_stored(self.disk) and lost_frames:
                self.disk.dropped_frames -= lost_frames
                lost_frames = 0
        return unbroken and not lost_frames

    def place_marker(self) -> None:
        """Put the marker of unbroken numbers into the tier of the newest frames, and only there."""
        self._mark_unbroken()
        if self.memory is not None:
            (self.disk.folder / UNBROKEN_NAME).unlink(missing_ok=True)

    def _drop_memory(self, memory: MemoryTier, error: OSError) -> None:
        """Continue without the memory tier. Only the disk's numbers are then known."""
        self.last_error = f"{memory.folder}: {error.strerror}"
        self.disk.count_drops(memory.segments.dropped_frames, memory.segments.last_drop)
        self.memory, self._unbroken = None, False

    def _current_memory(self, now: float) -> MemoryTier | None:
        """Return the memory tier, recreated after a removal: logind removes it at a logout."""
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

    def append(self, sequence: int, frame: bytes) -> None:
        """Store a frame in the current tier. Never raises."""
        if not self._append_to_memory(sequence, frame):
            self._append_to_disk(sequence, deflate_frame(frame))
            self.disk.prune()

    def _append_to_memory(self, sequence: int, frame: bytes) -> bool:
        """Store a frame in memory, after moving frames that waited too long to the disk."""
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
            memory.segments.append(sequence, frame, drop_when_full=False)  # the disk may have space
        except OSError as error:
            self.last_error = f"{memory.folder}: {error.strerror}"
            self._check_at = now  # the folder may have been removed
            self._spill(memory, force=True)
            return False
        self._mark_unbroken()
        return True

    def _spill(self, memory: MemoryTier, *, force: bool = False) -> None:
        """Move waiting frames from memory to the disk, oldest first, until a write fails.

        *force*: continue after a failed write; the disk tier keeps that frame in memory.
        """
        for sequence, frame in memory.segments.waiting():
            if frame is None:
                self.disk.count_drops(1, f"frame {sequence} was damaged in {memory.folder}")
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

    @property
    def _marker(self) -> Path:
        return (self.memory.folder if self.memory is not None else self.disk.folder) / UNBROKEN_NAME

    def _mark_broken(self) -> None:
        """Remove the marker: a frame has a number that a disk without writes does not show."""
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
        """Continue numbering at *sequence*, durably. Raises OSError."""
        self.disk.begin(sequence)
        sync_folder(self.disk.folder)

    def forget(self, first: int, last: int) -> int:
        """Forget first..last, inclusive; return how many waited. Never raises."""
        count = self.memory.segments.forget(first, last) if self.memory is not None else 0
        if count:
            self._last_ack_seconds = self._seconds()
        if self.disk.waiting_frames:
            count += self.disk.forget(first, last)
        return count

    def find(self, after: int, count_max: int) -> tuple[Segments, SpoolSegment, list[int]] | None:
        """Return the tier, segment and sequences to read next; the tiers' frames may alternate."""
        selections = [(tier, *chosen) for tier in self if (chosen := tier.find(after, count_max))]
        selections.sort(key=lambda selection: selection[2][0])
        if len(selections) < 2:
            return selections[0] if selections else None
        segments, segment, sequences = selections[0]
        return segments, segment, [s for s in sequences if s < selections[1][2][0]]

    def flush_to_disk(self, following: int) -> None:
        """Move all frames from memory to the disk; the rest stays in memory for the next start.

        *following*: the sequence of the next frame.
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
        for tier in self:
            tier.close()
