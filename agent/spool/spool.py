"""Frames kept until the aggregator acknowledges them: in tmpfs first, then on disk.

Guarantees:
* A frame that `append` accepted survives `kill -9` of this process. It is not fsynced: a power cut may
  lose the last half minute (`tiers.WAIT_SECONDS_MAX` in memory, then the contents of the page cache).
* While acknowledgements arrive, nothing is written to the disk. Without a head (no such file system, or
  disabled) frames go to the disk at once, and only the first guarantee holds.
* A frame is deleted only if acknowledged, rejected, or evicted from a full spool; lost frames are counted.
* (run id, sequence) never names two different frames. If numbers may have been used that the disk no
  longer shows, numbering continues from the next multiple of 2**20. That is the case after a reboot (a
  power cut lost pages), a damaged tail, or frames that were in memory only.
* It opens whatever bytes the folder contains.
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
from .lockdir import FolderError, lock_folder, replace
from .segment import FIRST_SEQUENCE_MAX, RECORD_OVERHEAD_BYTES, Segments, SpoolSegment
from .tiers import TieredStore

# ----------------------------------------------------------------------
# Whose frames a spool holds: the run id and what it was made on, in one small file.

META_NAME = "meta.json"
META_BYTES_MAX = 4096
FORMAT = 1
RUN_ID_BYTES = 16
_FIELDS = ("run_id", "boot_id", "owner")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A frame is known by (host, run id, sequence); the run id ends when the machine is another."""

    run_id: bytes
    boot_id: bytes
    owner: str

    def write(self, folder: Path) -> None:
        """Write it durably and atomically. Raises OSError, and the old one stays."""
        content = {
            "format": FORMAT,
            "run_id": self.run_id.hex(),
            "boot_id": self.boot_id.hex(),
            "owner": self.owner,
        }
        replace(folder / META_NAME, json.dumps(content).encode())


def read_run(folder: Path) -> RunRecord | None:
    """Return what is noted in the folder; None if there is nothing that can be read."""
    try:
        with open(folder / META_NAME, "rb") as file:
            return parse_run(file.read(META_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None


def parse_run(content: bytes) -> RunRecord:
    """Return the run. Raises ValueError if this is not what `RunRecord.write` wrote."""
    fields = json.loads(content)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError(f"expected a JSON object with format {FORMAT}")
    texts = [fields[name] for name in _FIELDS if isinstance(fields.get(name), str)]
    if len(texts) != len(_FIELDS):
        raise ValueError(f"{', '.join(_FIELDS)} must be strings")
    run = RunRecord(bytes.fromhex(texts[0]), bytes.fromhex(texts[1]), texts[2])
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
    """Thread-safe. Nothing but `open` and `pending` raises.

    Attributes: `run_id`, `boot_id` (16 bytes each); `notice`, words about what was found at the start,
    empty if all was well; `refused_frames` and `last_refusal`; `acknowledged_frames` since `open`.
    """

    def __init__(self, lock: int, tiers: TieredStore) -> None:
        self.folder = tiers.disk.folder
        self.run_id = b""
        self.boot_id = b""
        self.notice = ""
        self.last_refusal = ""
        self.refused_frames = self.acknowledged_frames = 0
        self._lock = threading.Lock()
        self._lock_descriptor = lock
        self._tiers = tiers
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
        memory_folder: Path | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> Spool:
        """Take up what is in *folder*, which is made if need be.

        *owner* is the machine's fingerprint (`identity.machine_owner`). Under another owner, such as after cloning a
        disk image, a new run id begins. The other's frames are removed, counted in `dropped_frames` and reported in
        `notice`. Segments are never larger than half of *bytes_max*.
        *memory_folder* is a folder in memory, such as `folder.MEMORY_FOLDER`; it is done without where it
        cannot be used. *seconds* is a steady clock.
        Raises FolderError (another process holds it; it cannot be written), ValueError (limits).
        """
        if bytes_max < 2 * SEGMENT_BYTES_MIN:
            raise ValueError(
                f"bytes_max is {bytes_max}: at least {2 * SEGMENT_BYTES_MIN} is needed"
            )
        segment_bytes = max(SEGMENT_BYTES_MIN, min(segment_bytes, bytes_max // 2))
        spool = cls(
            lock_folder(folder), TieredStore(Segments(folder, bytes_max, segment_bytes), seconds)
        )
        try:
            if memory_folder is not None:
                spool.notice = spool._tiers.open_memory(memory_folder)
            spool._recover(boot_id, owner)
        except OSError as error:
            spool._release()  # as it was found: what its numbers are worth is not known
            raise FolderError(f"{folder} cannot be used: {error.strerror}") from error
        return spool

    # What is found at the start ------------------------------------------------------------

    def _recover(self, boot_id: bytes, owner: str) -> None:
        self.boot_id = boot_id
        disk = self._tiers.disk
        stored = read_run(self.folder)
        lost_frames = disk.scan()
        reason = self._new_run_reason(stored, owner)
        if stored is None or reason:
            reason = self._begin_run(owner, reason)
        else:
            unbroken = self._tiers.recover(stored.run_id, lost_frames)
            self._continue_run(stored, not unbroken)
        self._tiers.place_marker()
        self.notice = "; ".join(filter(None, [self.notice, *disk.notice, reason]))

    def _new_run_reason(self, stored: RunRecord | None, owner: str) -> str:
        """Return why the frames found here cannot be continued; empty if they can."""
        disk = self._tiers.disk
        if stored is None:
            return f"{META_NAME} is missing or damaged" if disk else ""
        if stored.owner != owner:
            return f"{self.folder} was made on another machine ({stored.owner}; this is {owner})"
        if not disk:
            return "all segments are gone"  # and with them the numbering
        return "" if disk.next < FIRST_SEQUENCE_MAX // 2 else "the numbering is damaged"

    def _begin_run(self, owner: str, reason: str) -> str:
        """Number again under a new run id; what is left of another run could never be sent. Return what to say."""
        left_frames = self._tiers.disk.waiting_frames
        self._tiers.disk.drop_all()
        self.run_id = os.urandom(RUN_ID_BYTES)
        self._tiers.begin_run(self.run_id)
        RunRecord(self.run_id, self.boot_id, owner).write(self.folder)
        self._begin_at(FIRST_SEQUENCE)
        return (
            reason and f"{reason}: a new run begins, {left_frames} frames left there were removed"
        )

    def _continue_run(self, stored: RunRecord, broken: bool) -> None:
        self.run_id = stored.run_id
        self._next = max(tier.next for tier in self._tiers)
        if broken or stored.boot_id != self.boot_id:
            self._begin_at((self._next // JUMP_SEQUENCES + 1) * JUMP_SEQUENCES)
        self._tiers.disk.prune()
        if stored.boot_id != self.boot_id:
            try:
                RunRecord(self.run_id, self.boot_id, stored.owner).write(self.folder)
            except OSError as error:
                # A full disk. The next start sees another boot once more and jumps: harmless.
                self._tiers.last_error = f"{META_NAME}: {error.strerror}"

    def _begin_at(self, sequence: int) -> None:
        self._tiers.begin_at(sequence)
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
            usable = len(frame) <= FRAME_BYTES_MAX and size <= self._tiers.disk.bytes_max
            if sequence < self._next or self._lock_descriptor < 0 or not usable:
                self._unusable_frames += 1
                return
            self._next = sequence + 1
            self._newest = sequence, frame
            self._tiers.append(sequence, frame)

    # Letting go ----------------------------------------------------------------------------

    def acknowledge(self, first: int, last: int) -> None:
        """Forget first..last, inclusive: they are durable at the aggregator. Never raises."""
        with self._lock:
            self.acknowledged_frames += self._forget(first, last)

    def mark_refused(self, sequence: int, reason: str) -> None:
        """Forget a frame that the aggregator will never take, and count it. Never raises."""
        with self._lock:
            if self._forget(sequence, sequence):
                self.refused_frames += 1
                self.last_refusal = reason

    def _forget(self, first: int, last: int) -> int:
        if self._newest is not None and first <= self._newest[0] <= last:
            self._newest = None
        return self._tiers.forget(first, last)

    # Reading -------------------------------------------------------------------------------

    def pending(self, after: int, count_max: int) -> list[tuple[int, _Bytes]]:
        """Return frames without a receipt, ascending, with sequence > *after*.

        At most *count_max*, and about a megabyte together; fewer than that at the end of a segment;
        none only if there is none past *after*. The disk is read without holding up `append`.
        Raises BlockingIOError while this process is out of file descriptors or memory, and nothing else.
        """
        while count_max > 0:
            with self._lock:
                if self._newest is not None and self._newest[0] == after + 1:
                    return [self._newest]
                found = self._tiers.find(after, count_max)
            if found is None:
                break
            if rows := self._read(*found):
                return rows
            # All of these were lost, forgotten, or went on from memory to the disk while we read: look again.
        return []

    def _read(
        self, segments: Segments, segment: SpoolSegment, sequences: list[int]
    ) -> list[tuple[int, _Bytes]]:
        """Read them, leaving out what was forgotten meanwhile; what is damaged is lost, counted. Raises BlockingIOError."""
        try:
            found = segment.read(sequences)
        except OSError as error:
            if error.errno in _OUT_OF_DESCRIPTORS:
                raise BlockingIOError(error.errno, error.strerror) from error
            found = [(sequence, None) for sequence in sequences]
        with self._lock:
            waiting = set(segment.waiting(sequences[0] - 1))
            for sequence, frame in found:
                if frame is None:  # counted only if it was waiting still
                    self._tiers.disk.dropped_frames += segments.forget(sequence, sequence)
        return [(s, frame) for s, frame in found if frame is not None and s in waiting]

    # Figures -------------------------------------------------------------------------------

    @property
    def dropped_frames(self) -> int:
        """Frames lost: the spool was full, the disk damaged, or another machine's left behind."""
        with self._lock:
            dropped = sum(tier.dropped_frames for tier in self._tiers)
            return dropped + self._unusable_frames

    @property
    def write_errors(self) -> int:
        """Frames the disk did not take."""
        return self._tiers.write_errors

    @property
    def last_error(self) -> str:
        """The words of the last write that failed."""
        return self._tiers.last_error

    @property
    def unacknowledged_frames(self) -> int:
        """Frames without a receipt, on disk or in memory."""
        with self._lock:
            return sum(tier.waiting_frames for tier in self._tiers)

    @property
    def disk_bytes(self) -> int:
        """What the segments' files hold, with what already has a receipt. Never above bytes_max."""
        with self._lock:
            return self._tiers.disk.disk_bytes

    @property
    def bytes(self) -> int:
        """Bytes of the records without a receipt, on disk or in memory."""
        with self._lock:
            return sum(tier.waiting_bytes for tier in self._tiers)

    def close(self) -> None:
        """Release the folder; what waits stays on the disk for the next `open`."""
        with self._lock:
            if self._lock_descriptor >= 0:
                self._tiers.flush_to_disk(self._next)
                self._release()

    def _release(self) -> None:
        self._newest = None
        self._tiers.close()
        os.close(self._lock_descriptor)
        self._lock_descriptor = -1
