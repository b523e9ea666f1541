"""The event journal: on disk before an event is receipted, until the store has it.

A record: length (u32), CRC-32 of the body (u32), body: host (u16 length, UTF-8), when it was received
and when it happened (u64 ns each, aggregator's clock), the HealthEvent as protobuf. Little endian.
A record that is cut off or damaged ends the journal: it was never receipted, for a receipt follows
the fsync.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from ...fingerprints.wire.telemetry_pb2 import HealthEvent
from ..refusals import BEHIND_SECONDS, NotReady, TooMuch

#: Past this nothing is taken until the store has caught up (it then starts anew at zero).
JOURNAL_BYTES_MAX = 64 << 20
_RECORD_BYTES_MAX = 1 << 20
#: Beside the journal stands how far it was receipted, so that one that lost its end is found out.
NOTE = ".noted"
_NOTE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_NOTED = struct.Struct("<QI")
_HEAD = struct.Struct("<II")
_FRONT = struct.Struct("<HQQ")


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with what only the aggregator knows of it."""

    host: str
    received_ns: int
    time_ns: int  # when it happened, with the host's clock put right
    event: HealthEvent


class EventJournal:
    """An append-only file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Open or make the file at *path*; a torn tail is cut off. Raises OSError."""
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        data = b"".join(iter(lambda: os.read(self._descriptor, 1 << 20), b""))
        records = list(parse(data))
        whole = records[-1][1] if records else 0
        #: What of receipted events was damaged, in words; "" when nothing was.
        self.lost_words = ""
        if later := list(salvaged(data, whole)):
            self.lost_words = self._set_aside(path, data, whole, len(later))
            good = data[:whole] + b"".join(encode(event) for event in later)
            _write_all(self._descriptor, good, 0)
            os.fsync(self._descriptor)
            data, records = good, list(parse(good))
        #: What was receipted and may not be in the store yet: for the store to take.
        self.replayed = [event for event, _ in records]
        self._end = records[-1][1] if records else 0
        #: Bytes at the end that were no record: a write that was cut off.
        self.torn_bytes = len(data) - self._end
        self._note = os.open(path.with_name(path.name + NOTE), _NOTE_FLAGS, 0o640)
        if self._end < (noted := self._noted()) and not self.lost_words:
            self.lost_words = f"{path} ends at byte {self._end}, and {noted} were receipted: the events in between are gone"
        os.ftruncate(self._descriptor, self._end)
        self._put_note(self._end)

    def _noted(self) -> int:
        """Return up to where events were receipted, 0 where that is not known."""
        noted = os.pread(self._note, _NOTED.size + 1, 0)
        if len(noted) != _NOTED.size:
            return 0
        position, crc = _NOTED.unpack(noted)
        return position if crc == zlib.crc32(noted[:8]) else 0

    def _put_note(self, position: int) -> None:
        """Never raises, never syncs: after a power cut it may be of earlier, and then finds less."""
        data = struct.pack("<Q", position)
        with contextlib.suppress(OSError):
            os.pwrite(self._note, data + struct.pack("<I", zlib.crc32(data)), 0)

    @staticmethod
    def _set_aside(path: Path, data: bytes, at: int, later: int) -> str:
        """Keep a damaged journal under another name. Raises OSError."""
        aside = path.with_name(f"{path.name}.damaged")
        with open(aside, "wb") as file:  # durable before the journal is written over
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return (
            f"{path} is damaged at byte {at}; {later} events after that were read, what stood between is "
            f"gone; it is kept as {aside}"
        )

    def append(self, events: Sequence[StoredEvent]) -> int:
        """Write and fsync; return the position after them. They are durable when this returns.

        Raises TooMuch when the store is so far behind that the journal is full, NotReady when the
        disk refuses; nothing of *events* is then in the journal.
        """
        data = b"".join(encode(event) for event in events)
        with self._lock:
            if self._end + len(data) > JOURNAL_BYTES_MAX:
                words = (
                    f"{self._end} bytes of events wait for the store, at most {JOURNAL_BYTES_MAX}"
                )
                raise TooMuch(words, BEHIND_SECONDS)
            try:
                _write_all(self._descriptor, data, self._end)
                os.fsync(self._descriptor)
            except OSError as error:
                self._cut()
                raise NotReady(f"events cannot be written to disk: {error.strerror}") from error
            self._end += len(data)
            self._put_note(self._end)
            return self._end

    def stored(self, position: int) -> None:
        """All up to *position* is in the store; start anew when nothing else is in the journal."""
        with self._lock:
            if position == self._end and self._end:
                self._end = 0
                self._put_note(0)
                self._cut()

    def _cut(self) -> None:
        """Best effort: what stays past the end is overwritten, or replayed, which doubles nothing."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self._end)

    def records(self) -> bytes:
        """Return all records as they stand on disk. Raises OSError."""
        with self._lock:
            return os.pread(self._descriptor, self._end, 0)

    @property
    def position(self) -> int:
        """Where the next record will begin."""
        return self._end

    def close(self) -> None:
        """Close the files."""
        os.close(self._descriptor)
        os.close(self._note)


def encode(event: StoredEvent) -> bytes:
    """Return the record of *event*."""
    host = event.host.encode()
    front = _FRONT.pack(len(host), event.received_ns, event.time_ns)
    body = front + host + event.event.SerializeToString()
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def parse(data: bytes, at: int = 0) -> Iterator[tuple[StoredEvent, int]]:
    """Yield (event, where its record ends) from byte *at* on, up to the first record that is not whole."""
    while at + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if not _FRONT.size <= length <= _RECORD_BYTES_MAX or len(body) != length:
            return
        if zlib.crc32(body) != crc:
            return
        at += _HEAD.size + length
        try:
            yield _decode(body), at
        except ValueError:  # the checksum is right, the content is of another version
            return


def salvaged(data: bytes, damaged_at: int) -> Iterator[StoredEvent]:
    """Yield the whole records that follow a damage at byte *damaged_at*: an append that was cut off has none.

    The next record is known by its checksum, looked for from byte to byte; a damage of more than a
    record's length ends the search.
    """
    at = damaged_at
    while at + _HEAD.size < len(data):
        found = list(parse(data, at))
        if found:
            yield from (event for event, _ in found)
            at = damaged_at = found[-1][1]
            continue
        at = _next_plausible(data, at + 1)
        if at - damaged_at > _RECORD_BYTES_MAX:
            return


def _next_plausible(data: bytes, at: int) -> int:
    """Return where a record's two lengths could be right, from *at* on; the end when nowhere."""
    for begin in range(at, len(data) - _HEAD.size - _FRONT.size):
        length, _ = _HEAD.unpack_from(data, begin)
        if _FRONT.size <= length <= min(_RECORD_BYTES_MAX, len(data) - begin - _HEAD.size):
            (host,) = struct.unpack_from("<H", data, begin + _HEAD.size)
            if host <= length - _FRONT.size:
                return begin
    return len(data)


def _decode(body: bytes) -> StoredEvent:
    length, received_ns, time_ns = _FRONT.unpack_from(body)
    after = _FRONT.size + length
    host = body[_FRONT.size : after].decode()
    try:
        return StoredEvent(host, received_ns, time_ns, HealthEvent.FromString(body[after:]))
    except DecodeError as error:
        raise ValueError(f"no HealthEvent: {error}") from error


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
