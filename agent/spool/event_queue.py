"""Events kept on disk until the aggregator acknowledges them.

`put` returns after an fsync, except for REPEATED_EVENTS. Each line of the file is `<CRC-32 of the
rest, 8 hex digits> <base64 of a HealthEvent>`: damage affects only the lines it touches. The file
is appended to, and rewritten when it has over STALE_BYTES_MAX of acknowledged events.
"""

from __future__ import annotations

import binascii
import os
import threading
import zlib
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path

from google.protobuf.message import DecodeError

from ...contract.wire.telemetry_pb2 import HealthEvent
from .lockdir import lock_folder, open_regular, replace

FILE_NAME = "events"
#: Characters of an event's message; a driver's may be long.
MESSAGE_CHARACTERS_MAX = 4096
#: A longer line was not written by Gangline.
LINE_BYTES_MAX = 1 << 16
#: Beyond this size the oldest events are dropped, even if they are few.
QUEUE_BYTES_MAX = 8 << 20
#: Events that are reported again anyway, and meaningless after a boot
#: (`collectors/change_events.py`). If too many events wait they are dropped first; they are sent
#: last and not fsynced. So a job of 500 processes delays neither an XID nor the daemon.
REPEATED_EVENTS = frozenset({"gpu.process", "gpu.allocation", "gpu.full_report"})
#: Bytes of acknowledged lines in the file at which it is rewritten.
STALE_BYTES_MAX = 1 << 16


def format_line(event: HealthEvent) -> bytes:
    text = binascii.b2a_base64(event.SerializeToString(), newline=False)
    return b"%08x %b\n" % (zlib.crc32(text), text)


def parse_line(line: bytes) -> HealthEvent:
    """Return the event. Raises ValueError for a line that `format_line` did not make."""
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if len(checksum) != 8 or int(checksum, 16) != zlib.crc32(text):
        raise ValueError("line does not match its checksum")
    try:
        event = HealthEvent.FromString(binascii.a2b_base64(text))
    except DecodeError as error:
        raise ValueError(f"line does not contain an event: {error}") from error
    if not event.event_id:
        raise ValueError("event has no id")
    return event


class EventQueue:
    """Queue of events, in memory and on disk. Thread-safe; only `open` raises.

    Counters: `dropped_events` (too many waited, or damaged lines), `refused_events`, `write_errors`
    (events that are only in memory). Messages: `last_drop`, `last_refusal`, `last_error`.
    """

    def __init__(self, folder: Path, lock: int, events_max: int) -> None:
        self.folder = folder
        self.dropped_events = 0
        self.last_drop = ""
        self.refused_events = 0
        self.last_refusal = ""
        self.write_errors = 0
        self.last_error = ""
        self._lock = threading.Lock()
        self._lock_descriptor = lock
        self._events_max = events_max
        self._lines: dict[str, bytes] = {}  # by event id, oldest first
        self._revisions: dict[str, int] = {}  # by event id
        self._pending_revisions: dict[str, int] = {}  # by event id, as `pending` last returned
        self._repeated: dict[str, None] = {}  # ids of waiting REPEATED_EVENTS, oldest first
        self._lines_bytes = 0
        self._file_bytes = 0
        self._descriptor = -1
        self._dirty = False  # the file may lack an event of memory, or end in half a line

    @classmethod
    def open(cls, folder: Path, events_max: int = 10_000) -> EventQueue:
        """Load the queue in *folder*, which is created if needed. Raises FolderError."""
        queue = cls(folder, lock_folder(folder), events_max)
        for event in queue._read_file():
            if event.revision > queue._revisions.get(event.event_id, -1):
                queue._add(event, format_line(event))
        queue._dirty = True
        queue._rewrite()
        return queue

    def _read_file(self) -> Iterable[HealthEvent]:
        try:
            with open(self.folder / FILE_NAME, "rb", opener=open_regular) as file:
                while line := file.readline(LINE_BYTES_MAX):
                    try:
                        yield parse_line(line)
                    except ValueError as error:
                        self.last_error = f"{self.folder / FILE_NAME}: {error}"
                        self._count_drop(f"{self.folder / FILE_NAME} was damaged: {error}")
        except FileNotFoundError:
            return
        except OSError as error:
            self.last_error = f"{self.folder / FILE_NAME}: {error.strerror}"

    def put(self, event: HealthEvent) -> bool:
        """Store an event durably. False: only in memory, see `write_errors`. Never raises.

        An event without an id gets a random id. A higher revision replaces a waiting event of the
        same id; other revisions are ignored. If too many events wait, the oldest of REPEATED_EVENTS
        is dropped, else the oldest of all, counted in `dropped_events`.
        """
        stored = HealthEvent()
        stored.CopyFrom(event)
        stored.event_id = event.event_id or os.urandom(16).hex()
        stored.message = event.message[:MESSAGE_CHARACTERS_MAX]
        line = format_line(stored)
        with self._lock:
            if len(line) > LINE_BYTES_MAX:
                self._count_drop(f"an event of {len(line)} bytes, at most {LINE_BYTES_MAX}")
            elif self._lock_descriptor < 0:
                self._count_drop("the agent ends")
            elif stored.revision > self._revisions.get(stored.event_id, -1):
                self._add(stored, line)
                self._save(line, sync=stored.name not in REPEATED_EVENTS)
            return self._lock_descriptor >= 0 and not self._dirty

    def _add(self, event: HealthEvent, line: bytes) -> None:
        event_id = event.event_id
        self._lines_bytes += len(line) - len(self._lines.get(event_id, b""))
        self._lines[event_id] = line
        self._revisions[event_id] = event.revision
        if event.name in REPEATED_EVENTS:
            self._repeated[event_id] = None
        while len(self._lines) > self._events_max or self._lines_bytes > QUEUE_BYTES_MAX:
            self._remove(next(iter(self._repeated or self._lines)))
            self._count_drop("too many waited")

    def _count_drop(self, reason: str) -> None:
        self.dropped_events += 1
        self.last_drop = reason

    def _remove(self, event_id: str) -> bool:
        line = self._lines.pop(event_id, b"")
        self._revisions.pop(event_id, None)
        self._pending_revisions.pop(event_id, None)
        self._repeated.pop(event_id, None)
        self._lines_bytes -= len(line)
        return bool(line)

    def _save(self, line: bytes, *, sync: bool) -> None:
        """Write a new line: append it if the file is sound, else rewrite. *sync*: with fsync."""
        if self._dirty or self._file_bytes + len(line) > self._lines_bytes + STALE_BYTES_MAX:
            self._rewrite()
            return
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(
                    self.folder / FILE_NAME,
                    os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
                    0o600,
                )
            if os.write(self._descriptor, line) != len(line):
                raise OSError(0, "only a part of an event was written to disk")
            if sync:
                os.fsync(self._descriptor)
        except OSError as error:
            self._record_failure(error)
        else:
            self._file_bytes += len(line)

    def _rewrite(self) -> None:
        """Replace the file by the waiting events, atomically."""
        self._close_file()
        try:
            replace(self.folder / FILE_NAME, b"".join(self._lines.values()))
        except OSError as error:
            self._record_failure(error)
        else:
            self._file_bytes = self._lines_bytes
            self._dirty = False

    def _record_failure(self, error: OSError) -> None:
        self._dirty = True
        self.write_errors += 1
        self.last_error = f"{self.folder / FILE_NAME}: {error.strerror}"

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def waiting(self) -> bool:
        """Whether an event waits. Takes no lock, so it never blocks during a write."""
        return bool(self._lines)

    def pending(self, count_max: int) -> list[HealthEvent]:
        """Return up to *count_max* waiting events, oldest first, REPEATED_EVENTS last."""
        with self._lock:
            others = (event_id for event_id in self._lines if event_id not in self._repeated)
            chosen = list(islice(chain(others, self._repeated), count_max))
            self._pending_revisions.update(
                {event_id: self._revisions[event_id] for event_id in chosen}
            )
            lines = [self._lines[event_id] for event_id in chosen]
        return [parse_line(line) for line in lines]

    def acknowledge(self, event_ids: Iterable[str]) -> None:
        """Forget events that are on the aggregator's disk, in the revisions of `pending`.

        A newer revision still waits. Never raises.
        """
        with self._lock:
            self._forget(event_ids)

    def mark_refused(self, event_ids: Iterable[str], reason: str) -> None:
        """Forget events that the aggregator refused, and count them. Never raises."""
        with self._lock:
            self.refused_events += self._forget(event_ids)
            self.last_error = self.last_refusal = reason

    def _forget(self, event_ids: Iterable[str]) -> int:
        """Return how many waited. The file is updated later: sending an event twice is harmless."""
        count = sum(
            self._remove(event_id) for event_id in event_ids if not self._is_newer(event_id)
        )
        if not self._lines and self._file_bytes:
            self._empty_file()
        return count

    def _is_newer(self, event_id: str) -> bool:
        queued_revision = self._revisions.get(event_id, 0)
        return queued_revision > self._pending_revisions.get(event_id, queued_revision)

    def _empty_file(self) -> None:
        try:
            os.truncate(self.folder / FILE_NAME, 0)
            self._file_bytes = 0
        except OSError as error:
            self._record_failure(error)

    def __len__(self) -> int:
        with self._lock:
            return len(self._lines)

    def close(self) -> None:
        """Release the folder; waiting events remain for the next `open`."""
        with self._lock:
            self._close_file()
            if self._lock_descriptor >= 0:
                os.close(self._lock_descriptor)
                self._lock_descriptor = -1
