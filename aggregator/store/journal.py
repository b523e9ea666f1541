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
from ..refusals import NotReady, TooMuch

#: Past this nothing is taken until the store has caught up (it then starts anew at zero).
JOURNAL_BYTES_MAX = 64 << 20
_RECORD_BYTES_MAX = 1 << 20
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
        #: What was receipted and may not be in the store yet.
        self.replayed = [event for event, _ in records]
        self._end = records[-1][1] if records else 0
        #: Bytes at the end that were no record: a write that was cut off.
        self.torn_bytes = len(data) - self._end
        os.ftruncate(self._descriptor, self._end)

    def append(self, events: Sequence[StoredEvent]) -> int:
        """Write and fsync; return the position after them. They are durable when this returns.

        Raises TooMuch when the store is so far behind that the journal is full, NotReady when the
        disk refuses; nothing of *events* is then in the journal.
        """
        data = b"".join(encode(event) for event in events)
        with self._lock:
            if self._end + len(data) > JOURNAL_BYTES_MAX:
                raise TooMuch(
                    f"{self._end} bytes of events wait for the store, at most {JOURNAL_BYTES_MAX}"
                )
            try:
                _write_all(self._descriptor, data, self._end)
                os.fsync(self._descriptor)
            except OSError as error:
                self._cut()
                raise NotReady(f"events cannot be written to disk: {error.strerror}") from error
            self._end += len(data)
            return self._end

    def stored(self, position: int) -> None:
        """All up to *position* is in the store; start anew when nothing else is in the journal."""
        with self._lock:
            if position == self._end and self._end:
                self._end = 0
                self._cut()

    def _cut(self) -> None:
        """Best effort: what stays past the end is overwritten, or replayed, which doubles nothing."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self._end)

    @property
    def position(self) -> int:
        """Where the next record will begin."""
        return self._end

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def encode(event: StoredEvent) -> bytes:
    """Return the record of *event*."""
    host = event.host.encode()
    front = _FRONT.pack(len(host), event.received_ns, event.time_ns)
    body = front + host + event.event.SerializeToString()
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def parse(data: bytes) -> Iterator[tuple[StoredEvent, int]]:
    """Yield (event, where its record ends), up to the first record that is not whole."""
    at = 0
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
