"""Pending requests for recordings of hosts, and the parts received, in memory for up to a minute.

A request is sent with the next receipt on the host's stream; its pieces arrive by UploadRecording.
Owned by the event loop's thread.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..contract.recording import RECORDING_BYTES_MAX, SECONDS_MAX, STORED_MAX
from ..contract.wire import telemetry_pb2 as wire
from .errors import InvalidArgument, NotFound, ResourceExhausted

#: Maximum pending requests per host.
REQUESTS_PER_HOST_MAX = 4
#: Maximum bytes of all answers in memory.
ANSWER_BYTES_MAX = 128 << 20
#: Maximum bytes of a piece.
PIECE_BYTES_MAX = 256 << 10
#: A request expires after this time, in any state.
REQUEST_SECONDS_MAX = 60.0
#: Retry delay while a host has too many requests.
REQUEST_RETRY_SECONDS = 5.0
NAME_CHARACTERS_MAX = 64
ERROR_CHARACTERS_MAX = 300


@dataclass(slots=True)
class PendingRecording:
    """A request, and the received part of its answer."""

    host: str
    request: wire.RecordingRequest
    until: float
    done: asyncio.Future[None]
    sent_session: str = ""  # the last session that it was sent to
    total_bytes: int = -1  # -1: nothing received yet
    data: bytearray = field(default_factory=bytearray)
    error: str = ""
    stored: list[wire.StoredRecording] = field(default_factory=list)


class RecordingExchange:
    """Connects callers that request recordings with the streams of hosts."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        """*seconds*: a monotonic clock."""
        self._seconds = seconds
        self._pending: dict[str, PendingRecording] = {}

    def __len__(self) -> int:
        """Return the number of pending requests."""
        return len(self._pending)

    @property
    def answer_bytes(self) -> int:
        """The size of all answers when complete."""
        return sum(max(pending.total_bytes, 0) for pending in self._pending.values())

    @contextmanager
    def request(
        self, host: str, *, seconds: int = 0, name: str = "", list_stored: bool = False
    ) -> Iterator[PendingRecording]:
        """Keep a request pending within the context. Raises InvalidArgument, ResourceExhausted."""
        _check_request(seconds, name, list_stored=list_stored)
        self.expire()
        if sum(other.host == host for other in self._pending.values()) >= REQUESTS_PER_HOST_MAX:
            raise ResourceExhausted(
                f"{REQUESTS_PER_HOST_MAX} recordings of {host} are already requested. Wait for "
                "one of them",
                REQUEST_RETRY_SECONDS,
            )
        number = secrets.token_hex(16)
        message = wire.RecordingRequest(id=number, seconds=seconds, name=name, list=list_stored)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pending = PendingRecording(host, message, self._seconds() + REQUEST_SECONDS_MAX, done)
        self._pending[number] = pending
        try:
            yield pending
        finally:
            self._pending.pop(number, None)

    def requests(self, host: str, session: str) -> list[wire.RecordingRequest]:
        """Return the pending requests of *host* that were not sent in this *session* yet."""
        if not self._pending:
            return []
        due = [
            pending
            for pending in self._pending.values()
            if pending.host == host and pending.sent_session != session and not pending.done.done()
        ]
        for pending in due:
            pending.sent_session = session
        return [pending.request for pending in due]

    def receive(self, host: str, piece: wire.UploadRecordingRequest) -> None:
        """Add a piece of *host*'s answer. Raises NotFound, InvalidArgument, ResourceExhausted."""
        self.expire()
        pending = self._pending.get(piece.id)
        if pending is None or pending.host != host or pending.done.done():
            raise NotFound(f"recording {piece.id[:64]!r} of {host} was not requested")
        try:
            self._add(pending, piece)
        except (InvalidArgument, ResourceExhausted) as error:
            pending.error = f"the host's data is rejected: {error}"
            _finish(pending)
            raise

    def _add(self, pending: PendingRecording, piece: wire.UploadRecordingRequest) -> None:
        if piece.error:
            pending.error = piece.error[:ERROR_CHARACTERS_MAX]
            _finish(pending)
            return
        if piece.total_bytes > RECORDING_BYTES_MAX:
            raise InvalidArgument(
                "total_bytes", f"{piece.total_bytes}, at most {RECORDING_BYTES_MAX}"
            )
        if len(piece.data) > PIECE_BYTES_MAX or len(piece.stored) > STORED_MAX:
            raise InvalidArgument("data", f"{len(piece.data)} bytes, at most {PIECE_BYTES_MAX}")
        if pending.total_bytes < 0:
            if self.answer_bytes + piece.total_bytes > ANSWER_BYTES_MAX:
                raise ResourceExhausted(
                    f"recordings of {ANSWER_BYTES_MAX} bytes are already being sent",
                    REQUEST_RETRY_SECONDS,
                )
            pending.total_bytes, pending.stored = piece.total_bytes, list(piece.stored)
        received = len(pending.data)
        if piece.offset < received and piece.offset + len(piece.data) <= received:
            return  # sent again because our answer was lost
        if piece.total_bytes != pending.total_bytes or piece.offset != received:
            raise InvalidArgument(
                "offset",
                f"{piece.offset} of {piece.total_bytes}, expected {received} of {pending.total_bytes}",
            )
        if not piece.data and pending.total_bytes:
            raise InvalidArgument("data", "a piece without bytes")
        if received + len(piece.data) > pending.total_bytes:
            raise InvalidArgument("data", f"more than total_bytes, {pending.total_bytes}")
        pending.data += piece.data
        if len(pending.data) == pending.total_bytes:
            _finish(pending)

    def expire(self) -> None:
        """Remove requests whose time is over."""
        now = self._seconds()
        for number in [n for n, pending in self._pending.items() if now >= pending.until]:
            del self._pending[number]


def _finish(pending: PendingRecording) -> None:
    if not pending.done.done():
        pending.done.set_result(None)


def _check_request(seconds: int, name: str, *, list_stored: bool) -> None:
    if sum((bool(seconds), bool(name), list_stored)) > 1:
        raise InvalidArgument("seconds", "seconds, name and list exclude each other")
    if len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidArgument("name", f"at most {NAME_CHARACTERS_MAX} printable characters")
    if not name and not list_stored and not 1 <= seconds <= SECONDS_MAX:
        raise InvalidArgument("seconds", f"{seconds}, expected 1 to {SECONDS_MAX}")
