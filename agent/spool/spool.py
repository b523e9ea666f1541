"""Frames kept until the aggregator acknowledges them: in tmpfs first, then on disk.

Guarantees:
* A frame that `append` accepted survives `kill -9` of this process. It is not fsynced: a power cut
  may lose the last half minute (`tiers.WAIT_SECONDS_MAX` in memory, then the page cache).
* While acknowledgments arrive, nothing is written to the disk. Without a memory tier (no such file
  system, or disabled) frames go to the disk at once, and only the first guarantee holds.
* A frame is deleted only if acknowledged, refused, or evicted from a full spool; lost frames are
  counted.
* (run id, sequence) never names two different frames. If numbers may have been used that the disk
  does not show, numbering continues from the next multiple of 2**20: after a reboot (a power cut
  lost pages), a damaged tail, or frames that were only in memory.
* It opens with any bytes in the folder.
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
from .lockdir import FolderError, lock_folder, open_regular, replace
from .segment import FIRST_SEQUENCE_MAX, RECORD_OVERHEAD_BYTES, SpoolSegment
from .segments import Segments
from .tiers import TieredStore

META_NAME = "meta.json"
META_BYTES_MAX = 4096
FORMAT = 1
RUN_ID_BYTES = 16
_FIELDS = ("run_id", "boot_id", "owner")

FIRST_SEQUENCE = 1
#: More frames than a host appends between two flushes of the page cache.
JUMP_SEQUENCES = 1 << 20
SEGMENT_BYTES_MIN = 4096
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run: (host, run id, sequence) identifies a frame. Another machine begins a new run."""

    run_id: bytes
    boot_id: bytes
    owner: str

    def write(self, folder: Path) -> None:
        """Write the record atomically and durably. Raises OSError; the old record remains."""
        content = {
            "format": FORMAT,
            "run_id": self.run_id.hex(),
            "boot_id": self.boot_id.hex(),
            "owner": self.owner,
        }
        replace(folder / META_NAME, json.dumps(content).encode())


def read_run(folder: Path) -> RunRecord | None:
    """Return the folder's record; None if it is missing or unreadable."""
    try:
        with open(folder / META_NAME, "rb", opener=open_regular) as file:
            return parse_run(file.read(META_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None


def parse_run(content: bytes) -> RunRecord:
    """Return the run. Raises ValueError for content that `RunRecord.write` did not write."""
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


_Bytes = bytes  # `Spool.bytes` hides the type within the class


class Spool:
    """The spool. Thread-safe. Only `open` and `pending` raise.

    Attributes: `run_id`, `boot_id` (16 bytes each); `notice`, problems found by `open`, or "";
    `refused_frames`, `last_refusal`; `acknowledged_frames` since `open`.
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
        #: The newest frame, which is sent at once, without reading it back.
        self._newest: tuple[int, _Bytes] | None = None
        self._unusable_frames = 0  # rejected by `append`

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
        """Load the spool in *folder*, which is created if needed.

        *owner* is the machine's fingerprint (`registration.machine_owner`). Under another owner,
        such as after cloning a disk image, a new run id begins; the other machine's frames are
        removed, counted in `dropped_frames` and reported in `notice`. Segments are at most half of
        *bytes_max*. *memory_folder* is a folder in memory, such as `lockdir.MEMORY_FOLDER`; if
        unusable, the spool works without it. *seconds* is a steady clock. Raises FolderError
        (locked, or not writable), ValueError (limits).
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
            spool._release()  # nothing was written: the numbering is not known to be safe
            path = error.filename2 or error.filename
            name = f"{Path(str(path)).name}: " if path else ""
            raise FolderError(f"{folder} cannot be used: {name}{error.strerror}") from error
        return spool

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
        """Return why the run on disk cannot be continued, or ""."""
        disk = self._tiers.disk
        if stored is None:
            return f"{META_NAME} is missing or damaged" if disk else ""
        if stored.owner != owner:
            return f"{self.folder} was made on another machine ({stored.owner}; this is {owner})"
        if not disk:
            return "all segments are gone"  # so the last sequence is unknown
        return "" if disk.next < FIRST_SEQUENCE_MAX // 2 else "the numbering is damaged"

    def _begin_run(self, owner: str, reason: str) -> str:
        """Start a new run and drop the old run's frames, which cannot be sent. Return a notice."""
        left_frames = self._tiers.disk.waiting_frames
        self._tiers.disk.drop_all(reason)
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
                # A full disk. The next start sees another boot again and jumps: harmless.
                self._tiers.last_error = f"{META_NAME}: {error.strerror}"

    def _begin_at(self, sequence: int) -> None:
        self._tiers.begin_at(sequence)
        self._next = sequence

    def next_sequence(self) -> int:
        """Return the sequence that the next `append` must have."""
        return self._next

    def append(self, sequence: int, frame: _Bytes) -> None:
        """Store a frame; never raises.

        A full spool drops its oldest segment. If the disk accepts no writes, the frame stays in a
        small window in memory, counted in `write_errors`. A used sequence, a frame that is too
        large, or a frame after `close` is dropped and counted.
        """
        with self._lock:
            size = RECORD_OVERHEAD_BYTES + len(frame)
            usable = len(frame) <= FRAME_BYTES_MAX and size <= self._tiers.disk.bytes_max
            if sequence < self._next or self._lock_descriptor < 0 or not usable:
                self._unusable_frames += 1
                self._tiers.disk.last_drop = (
                    f"frame {sequence} of {len(frame)} bytes cannot be stored"
                )
                return
            self._next = sequence + 1
            self._newest = sequence, frame
            self._tiers.append(sequence, frame)

    def acknowledge(self, first: int, last: int) -> None:
        """Forget first..last, inclusive: the aggregator has stored them. Never raises."""
        with self._lock:
            self.acknowledged_frames += self._forget(first, last)

    def mark_refused(self, sequence: int, reason: str) -> None:
        """Forget a frame that the aggregator refused, and count it. Never raises."""
        with self._lock:
            if self._forget(sequence, sequence):
                self.refused_frames += 1
                self.last_refusal = reason

    def _forget(self, first: int, last: int) -> int:
        if self._newest is not None and first <= self._newest[0] <= last:
            self._newest = None
        return self._tiers.forget(first, last)

    def pending(self, after: int, count_max: int) -> list[tuple[int, _Bytes]]:
        """Return waiting frames, ascending, with sequence > *after*.

        At most *count_max*, and about a megabyte together; fewer at the end of a segment; none only
        if none waits. Reading the disk does not block `append`. Raises only BlockingIOError, while
        this process is out of file descriptors or memory.
        """
        while count_max > 0:
            with self._lock:
                if self._newest is not None and self._newest[0] == after + 1:
                    return [self._newest]
                selection = self._tiers.find(after, count_max)
            if selection is None:
                break
            if rows := self._read(*selection):
                return rows
            # Every selected frame was lost, forgotten or moved to the disk meanwhile: select again.
        return []

    def _read(
        self, segments: Segments, segment: SpoolSegment, sequences: list[int]
    ) -> list[tuple[int, _Bytes]]:
        """Read frames that still wait; damaged ones are counted as lost. Raises BlockingIOError."""
        try:
            rows = segment.read(sequences)
        except OSError as error:
            if error.errno in _OUT_OF_DESCRIPTORS:
                raise BlockingIOError(error.errno, error.strerror) from error
            rows = [(sequence, None) for sequence in sequences]
        with self._lock:
            waiting = set(segment.waiting(sequences[0] - 1))
            for sequence, frame in rows:
                if frame is None:  # counted only if it still waits
                    lost = segments.forget(sequence, sequence)
                    self._tiers.disk.count_drops(
                        lost, f"frame {sequence} was damaged in {segments.folder}"
                    )
        return [
            (sequence, frame)
            for sequence, frame in rows
            if frame is not None and sequence in waiting
        ]

    @property
    def dropped_frames(self) -> int:
        """Frames lost: the spool was full, the disk damaged, or another machine's spool removed."""
        with self._lock:
            dropped = sum(tier.dropped_frames for tier in self._tiers)
            return dropped + self._unusable_frames

    @property
    def last_drop(self) -> str:
        """Why frames were last lost."""
        with self._lock:
            return next((tier.last_drop for tier in self._tiers if tier.last_drop), "")

    @property
    def write_errors(self) -> int:
        """Frames that the disk did not accept."""
        return self._tiers.write_errors

    @property
    def last_error(self) -> str:
        """Message of the last failed write."""
        return self._tiers.last_error

    @property
    def unacknowledged_frames(self) -> int:
        """Waiting frames, on disk or in memory."""
        with self._lock:
            return sum(tier.waiting_frames for tier in self._tiers)

    @property
    def disk_bytes(self) -> int:
        """Size of the segments' files, including acknowledged frames. At most bytes_max."""
        with self._lock:
            return self._tiers.disk.disk_bytes

    @property
    def bytes(self) -> int:
        """Bytes of the waiting records, on disk or in memory."""
        with self._lock:
            return sum(tier.waiting_bytes for tier in self._tiers)

    def close(self) -> None:
        """Release the folder; waiting frames remain on disk for the next `open`."""
        with self._lock:
            if self._lock_descriptor >= 0:
                self._tiers.flush_to_disk(self._next)
                self._release()

    def _release(self) -> None:
        self._newest = None
        self._tiers.close()
        os.close(self._lock_descriptor)
        self._lock_descriptor = -1
