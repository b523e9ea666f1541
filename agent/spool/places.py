"""Where frames wait: in the head, in memory's file system; on the disk; in memory while neither takes any.

Not thread-safe, knows nothing of run ids: `spool` does both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...fingerprints.frames import deflated
from .folder import sync_folder
from .head import HEAD_BYTES_MAX, WAIT_SECONDS_MAX, Head
from .segment import RECORD_OVERHEAD_BYTES, Segment
from .segments import Segments

#: Present while every sequence that was given out is on disk: there if there is no head, else in the head,
#: so that an older agent, which knows of no head, takes the disk's numbers for incomplete.
UNBROKEN_NAME = "unbroken"
#: A head that somebody removed is noticed within so long; what has come to wait there by then is lost with it.
LOOK_SECONDS = 5.0


class Places:
    """`write_errors`: frames the disk did not take; `last_error`: the words of the last write that failed."""

    def __init__(self, disk: Segments, seconds: Callable[[], float] = time.monotonic) -> None:
        """*seconds* is a steady clock."""
        self.disk = disk
        self.head: Head | None = None
        self.write_errors = 0
        self.last_error = ""
        self._seconds = seconds
        self._heard = seconds()  # when a receipt freed the head last, or it began to fill
        self._look_at = 0.0  # whether the head is there
        self._unbroken = False

    def __iter__(self) -> Iterator[Segments]:
        yield self.disk
        if self.head is not None:
            yield self.head.segments

    # The head comes and goes ---------------------------------------------------------------

    def open_head(self, parent: Path) -> str:
        """Take up the head below *parent*; return why there is none, else nothing."""
        try:
            self.head = Head.open(parent, self.disk.folder)
        except OSError as error:
            return f"{parent}: {error.strerror}: frames are written to the disk at once"
        return ""

    def begin_run(self, run_id: bytes) -> None:
        """Make the head this run's, without what is of another; do without it if that cannot be."""
        if self.head is not None:
            try:
                self.head.keep_run(run_id)
            except OSError as error:
                self._lose_head(self.head, error)

    def take_up(self, run_id: bytes, damaged: bool) -> bool:
        """Go on with what was found; return whether all numbers are known.

        *damaged*: the disk's newest segment had lost its end. What is on the disk is left to it.
        """
        unbroken = (self.disk.folder / UNBROKEN_NAME).exists()
        self.begin_run(run_id)
        if self.head is not None:
            unbroken = unbroken or (self.head.folder / UNBROKEN_NAME).exists()
            if self.head.leave_to(self.disk) and damaged:  # what was torn there was its copy
                damaged = False
                self.disk.dropped_frames -= 1
        return unbroken and not damaged

    def own_numbers(self) -> None:
        """Keep the mark of unbroken numbers where the newest of them will stand, and only there."""
        self._mark_unbroken()
        if self.head is not None:
            (self.disk.folder / UNBROKEN_NAME).unlink(missing_ok=True)

    def _lose_head(self, head: Head, error: OSError) -> None:
        """Do without the head from now on. The disk's numbers are then all there are."""
        self.last_error = f"{head.folder}: {error.strerror}"
        self.disk.dropped_frames += head.segments.dropped_frames
        self.head, self._unbroken = None, False

    def _head_there(self, now: float) -> Head | None:
        """Return the head, made anew if somebody removed it: logind does when its user logs out."""
        head = self.head
        if head is None or now < self._look_at:
            return head
        self._look_at = now + LOOK_SECONDS
        if not head.is_there():
            try:
                head.begin_anew()
            except OSError as error:
                self._lose_head(head, error)
            self._unbroken = False
        return self.head

    # Keeping -------------------------------------------------------------------------------

    def keep(self, sequence: int, frame: bytes) -> None:
        """Keep a frame where it goes now. Never raises."""
        if not self._keep_in_head(sequence, frame):
            self._keep_on_disk(sequence, deflated(frame))
            self.disk.prune()

    def _keep_in_head(self, sequence: int, frame: bytes) -> bool:
        """Keep a frame in memory, once those that waited there for too long are on the disk."""
        now = self._seconds()
        head = self._head_there(now)
        if head is None:
            return False
        waiting = head.segments.waiting_bytes
        if not waiting:
            self._heard = now
        elif now - self._heard >= WAIT_SECONDS_MAX:
            self._spill(head)
            waiting = head.segments.waiting_bytes
        size = RECORD_OVERHEAD_BYTES + len(frame)
        if waiting + size > HEAD_BYTES_MAX:
            self._spill(head, whatever=True)
            if size > HEAD_BYTES_MAX:
                return False
        try:
            head.segments.append(sequence, frame, when_full=False)  # the disk may have room
        except OSError as error:
            self.last_error = f"{head.folder}: {error.strerror}"
            self._look_at = now  # it may have been removed
            self._spill(head, whatever=True)
            return False
        self._mark_unbroken()
        return True

    def _spill(self, head: Head, *, whatever: bool = False) -> None:
        """Let what waits in memory go on to the disk, oldest first, while the disk takes it.

        *whatever*: what it does not take goes the way of a frame that comes then.
        """
        for sequence, frame in head.segments.waiting():
            if frame is None:
                self.disk.dropped_frames += 1
            elif whatever:
                self._keep_on_disk(sequence, deflated(frame))
            else:
                try:
                    self.disk.append(sequence, deflated(frame))
                except OSError as error:
                    self._note_error(error)
                    return
            head.segments.forget(sequence, sequence)
        self.disk.prune()

    def _keep_on_disk(self, sequence: int, frame: bytes) -> None:
        try:
            self.disk.append(sequence, frame)
        except OSError as error:
            self._note_error(error)
            self._mark_broken()
            self.disk.keep_in_memory(sequence, frame)
        else:
            self._mark_unbroken()

    def _note_error(self, error: OSError) -> None:
        self.write_errors += 1
        self.last_error = f"{self.disk.folder}: {error.strerror}"

    # Whether all numbers are on show -------------------------------------------------------

    @property
    def _mark(self) -> Path:
        return (self.head.folder if self.head is not None else self.disk.folder) / UNBROKEN_NAME

    def _mark_broken(self) -> None:
        """Note, on a disk that takes no writes, that numbers exist which it does not show."""
        if self._unbroken:
            self._unbroken = False
            try:
                self._mark.unlink(missing_ok=True)
            except OSError as error:
                self.last_error = f"{UNBROKEN_NAME}: {error.strerror}"

    def _mark_unbroken(self) -> None:
        if not self._unbroken:
            try:
                self._mark.touch(mode=0o600)
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
        count = self.head.segments.forget(first, last) if self.head is not None else 0
        if count:
            self._heard = self._seconds()
        if self.disk.waiting_frames:
            count += self.disk.forget(first, last)
        return count

    def find(self, after: int, count_max: int) -> tuple[Segments, Segment, list[int]] | None:
        """Choose what to read next: the disk's and the head's frames are in no order of their own."""
        found = [(each, *chosen) for each in self if (chosen := each.find(after, count_max))]
        found.sort(key=lambda each: each[2][0])
        if len(found) < 2:
            return found[0] if found else None
        segments, segment, sequences = found[0]
        return segments, segment, [each for each in sequences if each < found[1][2][0]]

    def settle(self, following: int) -> None:
        """Put on the disk all that is in memory; what it does not take stays there for the next start.

        *following*: the sequence that the next frame would have.
        """
        if self.head is None:
            return
        self._spill(self.head)
        if not self.head.segments.waiting_frames:
            try:
                if self.disk.next != following:
                    self.disk.begin(following)
                (self.disk.folder / UNBROKEN_NAME).touch(mode=0o600)
                self.disk.prune()
                self.head.remove()
            except OSError as error:
                self._note_error(error)

    def close(self) -> None:
        """Let go of what is open."""
        for each in self:
            each.close()
