"""One end of an HTTP/2 connection that carries gRPC, without a socket: bytes in, bytes out.

`h2` implements HTTP/2 (RFC 9113). This module adds the common parts of our clients and servers:
limits on a peer's data, a queue per stream that respects the peer's flow control, and gRPC's
message format (PROTOCOL-HTTP2.md: five bytes before each message, the status in the trailers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, StreamReset
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

#: gRPC's status codes (statuscodes.md), by number.
STATUS_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
#: The frame length that every peer must accept, and the limit that we set (RFC 9113, 6.5.2).
FRAME_BYTES_MAX = 1 << 14
#: Bytes before each message: a compression flag and the length.
PREFIX_BYTES = 5
#: A peer's text is cut to this length.
TEXT_CHARACTERS_MAX = 240
#: Bytes that a client sends first (RFC 9113, 3.4).
_PREFACE_BYTES = 24
_FRAME_HEADER_BYTES = 9

#: Type of the objects that `receive` returns.
Received = TypeVar("Received")


class SessionError(Exception):
    """The connection cannot be used any longer; the message says why."""

    #: Objects completed before the error.
    received: Sequence[Any] = ()
    #: Delay that the server asked for before a reconnection, if any.
    retry_seconds: float | None = None


class FrameTooLong(ValueError):
    """A frame announces more than FRAME_BYTES_MAX; the message has its length."""


def printable(data: bytes) -> str:
    """Return a peer's text as one line that is safe on a terminal, cut to TEXT_CHARACTERS_MAX."""
    text = data[: 4 * TEXT_CHARACTERS_MAX].decode(errors="replace")[:TEXT_CHARACTERS_MAX]
    return "".join(letter if letter.isprintable() else " " for letter in text)


def error_text(error: Exception) -> str:
    """Return a library's error with its type, printable."""
    return printable(f"{type(error).__name__}: {error}".encode(errors="replace"))


def framed(message: bytes) -> bytes:
    """Return a gRPC message with its prefix, uncompressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class FrameSplitter:
    """Splits received bytes at the ends of HTTP/2 frames.

    `h2` loses the events of a frame if it rejects a later frame in the same data, so it gets one
    frame at a time. And it would buffer 16 MB before it rejects a long frame, so this class reads
    the header first (RFC 9113, 4.1).
    """

    def __init__(self, preface_bytes: int = 0) -> None:
        """*preface_bytes*: bytes before the first frame."""
        self._header = b""
        self._left = preface_bytes  # unread bytes of the current frame

    def split(self, data: bytes) -> Iterator[bytes]:
        """Yield *data* in pieces of at most one frame. Raises only FrameTooLong."""
        begin = position = 0
        while position < len(data):
            if self._left:
                step = min(self._left, len(data) - position)
                self._left -= step
                position += step
            else:
                header = data[position : position + _FRAME_HEADER_BYTES - len(self._header)]
                self._header += header
                position += len(header)
                if len(self._header) < _FRAME_HEADER_BYTES:
                    break
                self._left, self._header = int.from_bytes(self._header[:3], "big"), b""
                if self._left > FRAME_BYTES_MAX:
                    raise FrameTooLong(
                        f"a frame of {self._left} bytes exceeds the agreed limit of {FRAME_BYTES_MAX}"
                    )
            if not self._left:
                yield data[begin:position]
                begin = position
        if begin < position:
            yield data[begin:position]


@dataclass(slots=True)
class _SendQueue:
    """Unsent bytes of a stream, and its end."""

    priority: int
    data: bytearray = field(default_factory=bytearray)
    ends: bool = False
    trailers: Sequence[tuple[str, str]] = ()


class GrpcConnection(Generic[Received]):
    """Base of client and server. Discard it and its socket after a SessionError."""

    def __init__(
        self, *, client_side: bool, settings: Mapping[SettingCodes, int], header_bytes_max: int
    ) -> None:
        """*header_bytes_max*: limit of all headers of a peer's message."""
        self._h2 = H2Connection(
            H2Configuration(
                client_side=client_side,
                header_encoding=None,
                validate_outbound_headers=client_side,  # a server sends only constants
                normalize_outbound_headers=client_side,
            )
        )
        values = {**settings, SettingCodes.MAX_HEADER_LIST_SIZE: header_bytes_max}
        self._h2.local_settings = Settings(client=client_side, initial_values=values)
        self._h2.decoder.max_header_list_size = header_bytes_max
        self._h2.initiate_connection()
        self._splitter = FrameSplitter(0 if client_side else _PREFACE_BYTES)
        self._queues: dict[int, _SendQueue] = {}

    def receive(self, data: bytes) -> list[Received]:
        """Process received bytes; return the completed objects. Raises only SessionError."""
        received: list[Received] = []
        try:
            self._receive(data, received)
        except SessionError as error:
            error.received = received
            raise
        return received

    def _receive(self, data: bytes, received: list[Received]) -> None:
        try:
            for piece in self._splitter.split(data):
                for event in self._h2.receive_data(piece):
                    if isinstance(event, DataReceived) and event.stream_id is not None:
                        self._h2.acknowledge_received_data(
                            event.flow_controlled_length or 0, event.stream_id
                        )
                    elif isinstance(event, StreamReset) and event.stream_id is not None:
                        self._queues.pop(event.stream_id, None)
                    received.extend(self._on_event(event))
            self._flush()
        except SessionError:
            raise
        except FrameTooLong as error:
            raise SessionError(f"HTTP/2: {error}") from error
        except Exception as error:  # three libraries parse untrusted bytes here
            raise SessionError(f"the answer is not gRPC: {error_text(error)}") from error

    def _on_event(self, event: Event) -> Iterator[Received]:
        """Yield the objects that an event completes. Raises SessionError."""
        raise NotImplementedError

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the peer's flow-control windows."""
        return sum([len(queue.data) for queue in self._queues.values()])

    def data_to_send(self) -> bytes:
        """Return the bytes for the socket, each byte once."""
        return self._h2.data_to_send()

    def _open_queue(self, number: int, priority: int = 0) -> None:
        """Create a stream's queue; lower *priority* values are sent first."""
        queues = {**self._queues, number: _SendQueue(priority)}
        self._queues = dict(sorted(queues.items(), key=lambda item: item[1].priority))

    def _enqueue(
        self,
        number: int,
        message: bytes,
        *,
        ends: bool = False,
        trailers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Send a message as far as the peer's windows allow, the rest later. Raises SessionError.

        *ends*: the message is the stream's last, followed by *trailers*.
        """
        queue = self._queues[number]
        queue.data += framed(message)
        queue.ends, queue.trailers = ends, trailers
        self._flush()

    def _end(self, number: int) -> None:
        """End our side of a stream after its queued bytes. Raises SessionError."""
        self._queues[number].ends = True
        self._flush()

    def _flush(self) -> None:
        """Send queued bytes within the peer's windows. Raises SessionError."""
        try:
            for number, queue in list(self._queues.items()):
                self._flush_queue(number, queue)
        except H2Error as error:
            raise SessionError(f"HTTP/2: {error_text(error)}") from error

    def _flush_queue(self, number: int, queue: _SendQueue) -> None:
        while queue.data:
            window = self._h2.local_flow_control_window(number)
            size = min(window, self._h2.max_outbound_frame_size, len(queue.data))
            if size <= 0:
                return
            piece = bytes(queue.data[:size])
            del queue.data[:size]
            is_last = queue.ends and not queue.data and not queue.trailers
            self._h2.send_data(number, piece, end_stream=is_last)
            if is_last:
                del self._queues[number]
                return
        if queue.ends:
            del self._queues[number]
            if queue.trailers:
                self._h2.send_headers(number, queue.trailers, end_stream=True)
            else:
                self._h2.end_stream(number)

    @contextmanager
    def _library_errors(self) -> Iterator[None]:
        """Convert errors of `h2` to SessionError."""
        try:
            yield
        except H2Error as error:
            raise SessionError(f"HTTP/2: {error_text(error)}") from error
