"""The event journal: keeps each event on disk, before it is acknowledged, until the store has it.

A record: length (u32), CRC-32 of the body (u32), body: host (u16 length, UTF-8), arrival time and event time (u64 ns each,
aggregator's clock), the HealthEvent as protobuf. Little endian. A record cut off at the end was never acknowledged, because
the receipt follows the fsync. A damaged record, or one of another version, is skipped up to the next good one.

Records that the store has are removed: the file is emptied once none is pending, and rewritten once the pending ones are the
smaller part. It is replaced by rename, so a crash leaves either the old or the new file; both have all pending records.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from ...contract.durable_file import sync_folder
from ...contract.signals import FORMER_EVENTS
from ...contract.wire.telemetry_pb2 import HealthEvent
from ..errors import DISK_RETRY_SECONDS, ResourceExhausted, ServiceUnavailable

log = logging.getLogger(__name__)

#: At this many pending bytes further events are refused until the store has caught up.
JOURNAL_BYTES_MAX = 64 << 20
#: The file is rewritten when this much of it, and at least half, is in the store.
COMPACT_BYTES_MIN = 1 << 20
#: Maximum length of a new record. Longer intact ones of earlier versions are read.
RECORD_BYTES_MAX = 1 << 20
#: Suffix of the new file before it replaces the journal.
NEW_SUFFIX = ".new"
#: A file beside the journal holds how far it was acknowledged, so that a journal that lost its end is detected.
ACKNOWLEDGED_SUFFIX = ".noted"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_ACKNOWLEDGED = struct.Struct("<QI")
_HEAD = struct.Struct("<II")
_FRONT = struct.Struct("<HQQ")


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with the fields that the aggregator adds."""

    host: str
    received_ns: int
    time_ns: int  # when it happened, corrected for the host's clock
    event: HealthEvent


class EventJournal:
    """Events that are not in the store yet. Thread-safe.

    A position counts the bytes of all records since the journal was opened, including removed ones.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file at *path*; cut off an incomplete last record. Raises OSError."""
        self._lock = threading.Lock()
        self._path = path
        #: Positions of the file's first byte and of the end of the stored events; size of the file.
        self._begin = self._stored = self._size = 0
        #: Whether the folder might lose the current file in a power cut.
        self._is_folder_unsynced = False
        self._failure = ""
        path.with_name(path.name + NEW_SUFFIX).unlink(missing_ok=True)
        self._descriptor = os.open(path, _FLAGS, 0o640)
        sync_folder(path.parent)
        data = b"".join(iter(lambda: os.read(self._descriptor, 1 << 20), b""))
        records = list(parse_records(data))
        whole = records[-1][1] if records else 0
        self._acknowledged_descriptor = os.open(
            path.with_name(path.name + ACKNOWLEDGED_SUFFIX), _FLAGS, 0o640
        )
        #: Message about damaged acknowledged events; "" if there are none.
        self.loss_message = ""
        if later := list(_salvage_records(data, whole)):
            self.loss_message = self._set_aside(path, data, whole, [size for _, size in later])
            intact = data[:whole] + b"".join(encode_record(event) for event, _ in later)
            self._replace(intact)
            self._sync_folder()
            data, records = intact, list(parse_records(intact))
        #: Acknowledged events that may not be in the store yet; the store takes them.
        self.replayed = [event for event, _ in records]
        self._size = records[-1][1] if records else 0
        #: Bytes of an incomplete record at the end.
        self.torn_bytes = len(data) - self._size
        if self._size < (acknowledged := self._acknowledged_position()) and not self.loss_message:
            self.loss_message = f"{path} ends at byte {self._size}, and {acknowledged} were acknowledged: the events in between are lost"
        os.ftruncate(self._descriptor, self._size)
        self._write_acknowledged(self._size)

    def _acknowledged_position(self) -> int:
        """Return the acknowledged position, 0 if it is not known."""
        data = os.pread(self._acknowledged_descriptor, _ACKNOWLEDGED.size + 1, 0)
        if len(data) != _ACKNOWLEDGED.size:
            return 0
        position, crc = _ACKNOWLEDGED.unpack(data)
        return position if crc == zlib.crc32(data[:8]) else 0

    def _write_acknowledged(self, position: int) -> None:
        # Not synced: after a power cut it may be older, and then detects less.
        data = struct.pack("<Q", position)
        with contextlib.suppress(OSError):
            os.pwrite(self._acknowledged_descriptor, data + struct.pack("<I", zlib.crc32(data)), 0)

    @staticmethod
    def _set_aside(path: Path, data: bytes, at: int, later: Sequence[int]) -> str:
        """Keep a damaged journal under another name; *later*: sizes of the records after byte *at*. Raises OSError."""
        aside = path.with_name(f"{path.name}.damaged")
        with open(aside, "wb") as file:  # durable before the journal is written over
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return (
            f"{path} is damaged at byte {at}; {len(later)} events after that were read, {len(data) - at - sum(later)} "
            f"bytes that are not events were skipped; it is kept as {aside}"
        )

    def append(self, events: Sequence[StoredEvent]) -> int:
        """Write and fsync *events*; return the position after them.

        Raises ResourceExhausted if the journal is full because the store is far behind,
        ServiceUnavailable if the disk fails, ValueError for an event too long to be read back; then
        none of *events* is in the journal.
        """
        records = [encode_record(event) for event in events]
        if (longest := max(map(len, records), default=0)) > RECORD_BYTES_MAX:
            raise ValueError(f"an event of {longest} bytes, at most {RECORD_BYTES_MAX}")
        data = b"".join(records)
        with self._lock:
            waiting = self._begin + self._size - self._stored
            if waiting + len(data) > JOURNAL_BYTES_MAX:
                message = (
                    f"{waiting} bytes of events wait for the store, at most {JOURNAL_BYTES_MAX}"
                )
                raise ResourceExhausted(message, DISK_RETRY_SECONDS)
            try:
                self._sync_folder()
                _write_all(self._descriptor, data, self._size)
                os.fsync(self._descriptor)
            except OSError as error:
                self._truncate()
                raise ServiceUnavailable(
                    f"events cannot be written to disk: {error.strerror}"
                ) from error
            self._size += len(data)
            self._write_acknowledged(self._size)
            return self._begin + self._size

    def mark_stored(self, position: int) -> None:
        """Remove the events up to *position*, later if too few for a rewrite. Never raises."""
        with self._lock:
            self._stored = max(self._stored, position)
            stored_bytes = self._stored - self._begin
            waiting = self._size - stored_bytes
            if not waiting and self._size:
                self._begin, self._size = self._stored, 0
                self._write_acknowledged(0)
                self._truncate()
            elif stored_bytes >= max(waiting, COMPACT_BYTES_MIN):
                self._compact(stored_bytes, waiting)

    def _compact(self, stored_bytes: int, waiting: int) -> None:
        """Drop the file's first *stored_bytes* bytes; after a failure the next call retries."""
        try:
            data = os.pread(self._descriptor, waiting, stored_bytes)
            if len(data) != waiting:
                raise OSError(errno.EIO, f"{len(data)} bytes read, not {waiting}")
            self._replace(data)
            self._begin, self._size = self._stored, waiting
            self._sync_folder()
        except OSError as error:
            message = f"{self._path} cannot be made smaller: {error.strerror}"
            if message != self._failure:
                log.warning("%s; retrying after each commit", message)
            self._failure = message
        else:
            self._failure = ""

    def _replace(self, data: bytes) -> None:
        """Replace the journal with a file of *data*. Raises OSError; then the old file stays.

        The replacement survives a power cut only after `_sync_folder`.
        """
        new = self._path.with_name(self._path.name + NEW_SUFFIX)
        descriptor = os.open(new, _FLAGS | os.O_TRUNC, 0o640)
        try:
            _write_all(descriptor, data, 0)
            os.fsync(descriptor)
            # First: a position beyond the file's end would report a loss that did not occur.
            self._write_acknowledged(len(data))
            os.fsync(self._acknowledged_descriptor)
            os.replace(new, self._path)
        except OSError:
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor, self._is_folder_unsynced = descriptor, True

    def _sync_folder(self) -> None:
        """Make the last `_replace` survive a power cut. Raises OSError: then do not acknowledge."""
        if self._is_folder_unsynced:
            sync_folder(self._path.parent)
            self._is_folder_unsynced = False

    def _truncate(self) -> None:
        # Best effort: bytes beyond the end are overwritten, or replayed, which duplicates nothing.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, self._size)

    def records(self) -> bytes:
        """Return all records on disk. Raises OSError."""
        with self._lock:
            return os.pread(self._descriptor, self._size, 0)

    @property
    def position(self) -> int:
        """Return the position of the next record."""
        return self._begin + self._size

    @property
    def size_bytes(self) -> int:
        """Return the size of the file."""
        return self._size

    def close(self) -> None:
        """Close the files."""
        os.close(self._descriptor)
        os.close(self._acknowledged_descriptor)


def encode_record(event: StoredEvent) -> bytes:
    host = event.host.encode()
    front = _FRONT.pack(len(host), event.received_ns, event.time_ns)
    body = front + host + event.event.SerializeToString()
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def parse_records(data: bytes, at: int = 0) -> Iterator[tuple[StoredEvent, int]]:
    """Yield (event, end of its record) from byte *at*, up to the first incomplete record."""
    while body := _body(data, at):
        at += _HEAD.size + len(body)
        try:
            yield _decode(body), at
        except ValueError:  # the checksum is right: the content is of another version
            return


def _body(data: bytes, at: int) -> bytes:
    """Return the body of the record at byte *at*, b"" if no complete record is there."""
    if at + _HEAD.size > len(data):
        return b""
    length, crc = _HEAD.unpack_from(data, at)
    if not _FRONT.size <= length <= len(data) - at - _HEAD.size:
        return b""
    body = data[at + _HEAD.size : at + _HEAD.size + length]
    return body if zlib.crc32(body) == crc else b""


def salvage_events(data: bytes, damaged_at: int) -> Iterator[StoredEvent]:
    """Yield the events of complete records after the damage at byte *damaged_at*."""
    return (event for event, _ in _salvage_records(data, damaged_at))


def _salvage_records(data: bytes, damaged_at: int) -> Iterator[tuple[StoredEvent, int]]:
    """Yield (event, size of its record).

    A damaged or unreadable record is skipped by its length if that is plausible. Otherwise every
    following byte is tried as the beginning of a record with a right checksum, for at most
    RECORD_BYTES_MAX bytes.
    """
    at = damaged_at
    while at + _HEAD.size < len(data):
        begin = at
        for event, end in parse_records(data, at):
            yield event, end - at
            at = damaged_at = end
        if at > begin:
            continue
        if next_at := _by_length(data, at):
            at = damaged_at = next_at
            continue
        at = _next_plausible(data, at + 1)
        if at - damaged_at > RECORD_BYTES_MAX:
            return


def _by_length(data: bytes, at: int) -> int:
    """Return the end of the record at byte *at*, 0 if its length may be wrong.

    The length is trusted if the checksum is right; for a record longer than RECORD_BYTES_MAX also
    if a complete record follows.
    """
    if body := _body(data, at):
        return at + _HEAD.size + len(body)
    length, _ = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + length
    return end if length > RECORD_BYTES_MAX and _body(data, end) else 0


def _next_plausible(data: bytes, at: int) -> int:
    """Return the next byte from *at* with plausible lengths; the end of *data* if there is none."""
    for begin in range(at, len(data) - _HEAD.size - _FRONT.size):
        length, _ = _HEAD.unpack_from(data, begin)
        if _FRONT.size <= length <= min(RECORD_BYTES_MAX, len(data) - begin - _HEAD.size):
            (host,) = struct.unpack_from("<H", data, begin + _HEAD.size)
            if host <= length - _FRONT.size:
                return begin
    return len(data)


def _decode(body: bytes) -> StoredEvent:
    length, received_ns, time_ns = _FRONT.unpack_from(body)
    after = _FRONT.size + length
    host = body[_FRONT.size : after].decode()
    try:
        event = HealthEvent.FromString(body[after:])
    except DecodeError as error:
        raise ValueError(f"no HealthEvent: {error}") from error
    event.DiscardUnknownFields()  # they are not stored, and may be long
    event.name = FORMER_EVENTS.get(event.name, event.name)
    return StoredEvent(host, received_ns, time_ns, event)


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
