"""Frames kept until the aggregator has a receipt for them: first in memory's file system, then on disk.

What it promises:
* A frame that `append` took survives `kill -9` of this process. It is not fsynced: a power cut may
  take the last half minute (`head.WAIT_SECONDS_MAX` in memory, then what the page cache holds).
* While receipts come, nothing is written to the disk. Without a head (no such file system, or not
  wanted) frames go to the disk at once, and the first promise is all there is.
* Only a receipt, a refusal or a full spool makes it forget a frame; what is lost is counted.
* (run id, sequence) never names two different frames. Wherever numbers may have been given out that
  the disk no longer shows (another boot: a power cut took pages; a damaged tail; frames that lived in
  memory only), numbering goes on from the next multiple of 2**20.
* Whatever bytes are found in the folder, it opens.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...contract.frame import FRAME_BYTES_MAX
from .lockdir import FolderError, hold, replace
from .segment import FIRST_SEQUENCE_MAX, RECORD_OVERHEAD_BYTES, Segment, Segments
from .tiers import Places

# ----------------------------------------------------------------------
# Whose frames a spool holds: the run id and what it was made on, in one small file.

META_NAME = "meta.json"
META_BYTES_MAX = 4096
FORMAT = 1
RUN_ID_BYTES = 16
_NAMES = ("run_id", "boot_id", "owner")


@dataclass(frozen=True, slots=True)
class Run:
    """A frame is known by (host, run id, sequence); the run id ends when the machine is another."""

    run_id: bytes
    boot_id: bytes
    owner: str

    def write(self, folder: Path) -> None:
        """Note it durably: afterwards it is there whole. Raises OSError, and the old one stands."""
        content = {
            "format": FORMAT,
            "run_id": self.run_id.hex(),
            "boot_id": self.boot_id.hex(),
            "owner": self.owner,
        }
        replace(folder / META_NAME, json.dumps(content).encode())


def read(folder: Path) -> Run | None:
    """Return what is noted in the folder; None if there is nothing that can be read."""
    try:
        with open(folder / META_NAME, "rb") as file:
            return parse(file.read(META_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None


def parse(content: bytes) -> Run:
    """Return the run. Raises ValueError if this is not what `Run.write` wrote."""
    fields = json.loads(content)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError(f"expected a JSON object with format {FORMAT}")
    texts = [fields[name] for name in _NAMES if isinstance(fields.get(name), str)]
    if len(texts) != len(_NAMES):
        raise ValueError(f"{', '.join(_NAMES)} must be strings")
    run = Run(bytes.fromhex(texts[0]), bytes.fromhex(texts[1]), texts[2])
    if len(run.run_id) != RUN_ID_BYTES:
        raise ValueError(f"run_id must have {RUN_ID_BYTES} bytes, got {len(run.run_id)}")
    return run


FIRST_SEQUENCE = 1
#: More than anybody appends between two flushes of the page cache.
JUMP_SEQUENCES = 1 << 20
SEGMENT_BYTES_MIN = 4096
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_Bytes = bytes  # `Spool.bytes` hides the type within the class


class Spool:
    """Thread-safe. Nothing but `open` raises.

    Attributes: `run_id`, `boot_id` (16 bytes each); `notice`, words about what was found at the start,
    empty if all was well; `refused_frames` and `last_refusal`.
    """

    def __init__(self, lock: int, places: Places) -> None:
        self.folder = places.disk.folder
        self.run_id = b""
        self.boot_id = b""
        self.notice = ""
        self.last_refusal = ""
        self.refused_frames = 0
        self._lock = threading.Lock()
        self._held = lock
        self._places = places
        self._next = FIRST_SEQUENCE
        self._newest: tuple[int, _Bytes] | None = (
            None  # it is sent at once: no need to read it back
        )
        self._unusable_frames = 0  # that `append` was given

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        bytes_max: int,
        segment_bytes: int = 262144,
        boot_id: bytes,
        owner: str,
        head_folder: Path | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> Spool:
        """Take up what is in *folder*, which is made if need be.

        *owner* is the machine's fingerprint (`identity.machine_owner`): under another owner, as when
        a disk image was cloned, there is a new run id, and what the other left is removed, counted
        in `dropped_frames` and told in `notice`. Segments are never larger than half of *bytes_max*.
        *head_folder* is a folder in memory, such as `folder.MEMORY_FOLDER`; it is done without where it
        cannot be used. *seconds* is a steady clock.
        Raises FolderError (another process holds it; it cannot be written), ValueError (limits).
        """
        if bytes_max < 2 * SEGMENT_BYTES_MIN:
            raise ValueError(
                f"bytes_max is {bytes_max}: at least {2 * SEGMENT_BYTES_MIN} is needed"
            )
        segment_bytes = max(SEGMENT_BYTES_MIN, min(segment_bytes, bytes_max // 2))
        spool = cls(hold(folder), Places(Segments(folder, bytes_max, segment_bytes), seconds))
        try:
            if head_folder is not None:
                spool.notice = spool._places.open_head(head_folder)
            spool._take_up(boot_id, owner)
        except OSError as error:
            spool._let_go()  # as it was found: what its numbers are worth is not known
            raise FolderError(f"{folder} cannot be used: {error.strerror}") from error
        return spool

    # What is found at the start ------------------------------------------------------------

    def _take_up(self, boot_id: bytes, owner: str) -> None:
        self.boot_id = boot_id
        disk = self._places.disk
        noted = read(self.folder)
        lost_frames = disk.scan()
        why = self._why_new_run(noted, owner)
        if noted is None or why:
            why = self._begin_run(owner, why)
        else:
            unbroken = self._places.take_up(noted.run_id, lost_frames)
            self._go_on(noted, not unbroken)
        self._places.own_numbers()
        self.notice = "; ".join(filter(None, [self.notice, *disk.notice, why]))

    def _why_new_run(self, noted: Run | None, owner: str) -> str:
        """Return why the frames found here cannot be gone on with; empty if they can."""
        disk = self._places.disk
        if noted is None:
            return f"{META_NAME} is missing or damaged" if disk else ""
        if noted.owner != owner:
            return f"{self.folder} was made on another machine ({noted.owner}; this is {owner})"
        if not disk:
            return "all segments are gone"  # and with them the numbering
        return "" if disk.next < FIRST_SEQUENCE_MAX // 2 else "the numbering is damaged"

    def _begin_run(self, owner: str, why: str) -> str:
        """Number anew under a new run id; what is left of another run could never be sent. Return what to say."""
        left = self._places.disk.waiting_frames
        self._places.disk.drop_all()
        self.run_id = os.urandom(RUN_ID_BYTES)
        self._places.begin_run(self.run_id)
        Run(self.run_id, self.boot_id, owner).write(self.folder)
        self._begin_at(FIRST_SEQUENCE)
        return why and f"{why}: a new run begins, {left} frames left there were removed"

    def _go_on(self, noted: Run, broken: bool) -> None:
        self.run_id = noted.run_id
        self._next = max(place.next for place in self._places)
        if broken or noted.boot_id != self.boot_id:
            self._begin_at((self._next // JUMP_SEQUENCES + 1) * JUMP_SEQUENCES)
        self._places.disk.prune()
        if noted.boot_id != self.boot_id:
            try:
                Run(self.run_id, self.boot_id, noted.owner).write(self.folder)
            except OSError as error:
                # A full disk. The next start sees another boot once more and jumps: harmless.
                self._places.last_error = f"{META_NAME}: {error.strerror}"

    def _begin_at(self, sequence: int) -> None:
        self._places.begin_at(sequence)
        self._next = sequence

    # Appending -----------------------------------------------------------------------------

    def next_sequence(self) -> int:
        """Return the sequence that the next `append` must carry."""
        return self._next

    def append(self, sequence: int, frame: _Bytes) -> None:
        """Keep a frame; never raises.

        A full spool loses its oldest segment. A disk that does not take it costs durability, not
        the frame: it stays in a small window in memory, counted in `write_errors`. A sequence that
        was used before, a frame too large, or one after `close` is dropped and counted.
        """
        with self._lock:
            size = RECORD_OVERHEAD_BYTES + len(frame)
            usable = len(frame) <= FRAME_BYTES_MAX and size <= self._places.disk.bytes_max
            if sequence < self._next or self._held < 0 or not usable:
                self._unusable_frames += 1
                return
            self._next = sequence + 1
            self._newest = sequence, frame
            self._places.keep(sequence, frame)

    # Letting go ----------------------------------------------------------------------------

    def receipt(self, first: int, last: int) -> None:
        """Forget first..last, inclusive: they are durable at the aggregator. Never raises."""
        with self._lock:
            self._forget(first, last)

    def refused(self, sequence: int, reason: str) -> None:
        """Forget a frame that the aggregator will never take, and count it. Never raises."""
        with self._lock:
            if self._forget(sequence, sequence):
                self.refused_frames += 1
                self.last_refusal = reason

    def _forget(self, first: int, last: int) -> int:
        if self._newest is not None and first <= self._newest[0] <= last:
            self._newest = None
        return self._places.forget(first, last)

    # Reading -------------------------------------------------------------------------------

    def pending(self, after: int, count_max: int) -> list[tuple[int, _Bytes]]:
        """Return frames without a receipt, ascending, with sequence > *after*.

        At most *count_max*, and about a megabyte together; fewer than that at the end of a segment;
        none only if there is none past *after* (or this process is out of file descriptors). The
        disk is read without holding up `append`.
        """
        while count_max > 0:
            with self._lock:
                if self._newest is not None and self._newest[0] == after + 1:
                    return [self._newest]
                found = self._places.find(after, count_max)
            rows = self._read(*found) if found else None
            if found is None or rows is None:
                return []
            if rows:
                return rows
            after = found[2][-1]  # all of these were lost or forgotten while we read
        return []

    def _read(
        self, segments: Segments, segment: Segment, sequences: list[int]
    ) -> list[tuple[int, _Bytes]] | None:
        """Read them, leaving out what was forgotten meanwhile; what is damaged is lost, counted."""
        try:
            found = segment.read(sequences)
        except OSError as error:
            if error.errno in _OUT_OF_DESCRIPTORS:
                return None
            found = [(sequence, None) for sequence in sequences]
        with self._lock:
            waiting = set(segment.waiting(sequences[0] - 1))
            for sequence, frame in found:
                if frame is None:  # counted only if it was waiting still
                    self._places.disk.dropped_frames += segments.forget(sequence, sequence)
        return [(s, frame) for s, frame in found if frame is not None and s in waiting]

    # Figures -------------------------------------------------------------------------------

    @property
    def dropped_frames(self) -> int:
        """Frames lost: the spool was full, the disk damaged, or another machine's left behind."""
        with self._lock:
            dropped = sum(place.dropped_frames for place in self._places)
            return dropped + self._unusable_frames

    @property
    def write_errors(self) -> int:
        """Frames the disk did not take."""
        return self._places.write_errors

    @property
    def last_error(self) -> str:
        """The words of the last write that failed."""
        return self._places.last_error

    @property
    def unacknowledged_frames(self) -> int:
        """Frames without a receipt, on disk or in memory."""
        with self._lock:
            return sum(place.waiting_frames for place in self._places)

    @property
    def disk_bytes(self) -> int:
        """What the segments' files hold, with what already has a receipt. Never above bytes_max."""
        with self._lock:
            return self._places.disk.disk_bytes

    @property
    def bytes(self) -> int:
        """Bytes of the records without a receipt, on disk or in memory."""
        with self._lock:
            return sum(place.waiting_bytes for place in self._places)

    def close(self) -> None:
        """Let go of the folder; what waits stays on the disk for the next `open`."""
        with self._lock:
            if self._held >= 0:
                self._places.settle(self._next)
                self._let_go()

    def _let_go(self) -> None:
        self._newest = None
        self._places.close()
        os.close(self._held)
        self._held = -1
