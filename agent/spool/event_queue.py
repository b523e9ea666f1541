"""Events kept on disk until the aggregator acknowledges them; each is fsynced before `put` returns (except REPEATED_EVENTS).

The file is lines of text, `<CRC-32 of the rest, 8 hex digits> <base64 of a HealthEvent>`: damage affects only the lines
it touches. The file is appended to, and rewritten when most of its events are acknowledged.
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
from .lockdir import lock_folder, replace

FILE_NAME = "events"
#: An event's raw words are cut here: a driver may say much.
MESSAGE_CHARACTERS_MAX = 4096
#: Longer lines are not ours.
LINE_BYTES_MAX = 1 << 16
#: Past this the oldest events go, however few they are.
QUEUE_BYTES_MAX = 8 << 20
#: Told again by themselves, and all over with the next boot (`collectors/change_events.py`): when too many wait they go first,
#: they are sent last, and no fsync is waited for. A job of 500 processes holds neither an XID nor the daemon up.
REPEATED_EVENTS = frozenset({"gpu.process", "gpu.allocation", "gpu.told_anew"})
#: What the file may hold in lines that already have a receipt before it is rewritten.
STALE_BYTES_MAX = 1 << 16


def format_line(event: HealthEvent) -> bytes:
    """Return the event's line, with its end."""
    text = binascii.b2a_base64(event.SerializeToString(), newline=False)
    return b"%08x %b\n" % (zlib.crc32(text), text)


def parse_line(line: bytes) -> HealthEvent:
    """Return the event. Raises ValueError for anything that `format_line` did not make."""
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
    """Thread-safe; nothing but `open` raises. Holds its events in memory too: they are few.

    Attributes: `dropped_events` (too many waited, or their lines were damaged), `refused_events`,
    `last_refusal`, `write_errors` (events that are in memory only), `last_error`.
    """

    def __init__(self, folder: Path, lock: int, events_max: int) -> None:
        self.folder = folder
        self.dropped_events = 0
        self.refused_events = 0
        self.last_refusal = ""
        self.write_errors = 0
        self.last_error = ""
        self._lock = threading.Lock()
        self._lock_descriptor = lock
        self._events_max = events_max
        self._lines: dict[str, bytes] = {}  # by event id, oldest first
        self._revisions: dict[str, int] = {}  # of the lines
        self._pending_revisions: dict[
            str, int
        ] = {}  # event id -> the revision that `pending` gave last
        self._repeated: dict[str, None] = {}  # which of the lines are, oldest first
        self._lines_bytes = 0
        self._file_bytes = 0
        self._descriptor = -1
        self._dirty = False  # the file may lack an event that we hold, or end in half a line

    @classmethod
    def open(cls, folder: Path, events_max: int = 10_000) -> EventQueue:
        """Take up what is in *folder*, which is made if need be. Raises FolderError."""
        queue = cls(folder, lock_folder(folder), events_max)
        for event in queue._read_file():
            if event.revision > queue._revisions.get(event.event_id, -1):
                queue._add(event, format_line(event))
        queue._dirty = True
        queue._rewrite()
        return queue

    def _read_file(self) -> Iterable[HealthEvent]:
        try:
            with open(self.folder / FILE_NAME, "rb") as file:
                while line := file.readline(LINE_BYTES_MAX):
                    try:
                        yield parse_line(line)
                    except ValueError as error:
                        self.dropped_events += 1
                        self.last_error = f"{self.folder / FILE_NAME}: {error}"
        except FileNotFoundError:
            return
        except OSError as error:
            self.last_error = f"{self.folder / FILE_NAME}: {error.strerror}"

    def put(self, event: HealthEvent) -> bool:
        """Keep an event; it is on disk when this returns. False: in memory only, see `write_errors`.

        Never raises. An event without an id is given one; a higher revision of one that waits takes
        its place, any other of the same id is left out; when too many wait, the oldest of those that
        are reported again go, then the oldest of all, counted in `dropped_events`.
        """
        stored = HealthEvent()
        stored.CopyFrom(event)
        stored.event_id = event.event_id or os.urandom(16).hex()
        stored.message = event.message[:MESSAGE_CHARACTERS_MAX]
        line = format_line(stored)
        with self._lock:
            if len(line) > LINE_BYTES_MAX or self._lock_descriptor < 0:
                self.dropped_events += 1
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
            self.dropped_events += 1

    def _remove(self, event_id: str) -> bool:
        line = self._lines.pop(event_id, b"")
        self._revisions.pop(event_id, None)
        self._pending_revisions.pop(event_id, None)
        self._repeated.pop(event_id, None)
        self._lines_bytes -= len(line)
        return bool(line)

    def _save(self, line: bytes, *, sync: bool) -> None:
        """Bring a new line to the disk, the short way if the file is sound. Not *sync*: as far as the kernel."""
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
        """Make the file hold just what waits, whole or not at all."""
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
        """Some event has no receipt. Holds nobody up, also while one is being written."""
        return bool(self._lines)

    def pending(self, count_max: int) -> list[HealthEvent]:
        """Return the oldest events without a receipt, at most *count_max*; last those that are reported again."""
        with self._lock:
            others = (event_id for event_id in self._lines if event_id not in self._repeated)
            chosen = list(islice(chain(others, self._repeated), count_max))
            self._pending_revisions.update(
                {event_id: self._revisions[event_id] for event_id in chosen}
            )
            lines = [self._lines[event_id] for event_id in chosen]
        return [parse_line(line) for line in lines]

    def acknowledge(self, event_ids: Iterable[str]) -> None:
        """Forget events that the aggregator has on disk, as `pending` gave them. Never raises.

        A revision that came since then continues waiting.
        """
        with self._lock:
            self._forget(event_ids)

    def mark_refused(self, event_ids: Iterable[str], reason: str) -> None:
        """Forget events that the aggregator will never take, and count them. Never raises."""
        with self._lock:
            self.refused_events += self._forget(event_ids)
            self.last_error = self.last_refusal = reason

    def _forget(self, event_ids: Iterable[str]) -> int:
        """Return how many waited. The file follows later: sending an event twice is harmless."""
        count = sum(self._remove(each) for each in event_ids if not self._is_newer(each))
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
        """Release the folder; what waits stays for the next `open`."""
        with self._lock:
            self._close_file()
            if self._lock_descriptor >= 0:
                os.close(self._lock_descriptor)
                self._lock_descriptor = -1
