"""gRPC server over HTTP/2 without a socket: bytes in, unary calls out; responses in, bytes out."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import H2Error
from h2.settings import SettingCodes

from ..transport.http2 import PREFIX_BYTES, STATUS_NAMES, GrpcConnection, SessionError

#: A longer request answers RESOURCE_EXHAUSTED. Ours have a few dozen bytes; 64 GPUs by UUID 3 kB.
#: All half-sent requests of the server's clients together are 16 MB at most.
MESSAGE_BYTES_MAX = 1 << 13
#: Concurrent calls per connection. HTTP/2 refuses further calls.
STREAMS_MAX = 32
#: Bytes of a request's header names and values. More ends the connection.
HEADER_BYTES_MAX = 1 << 13
#: A connection with this many calls ends once no call waits: `h2` remembers each call.
CALLS_MAX = 10_000
#: Bytes of responses that the client does not read. More ends the connection.
UNSENT_BYTES_MAX = 1 << 20
#: Characters of an error message.
MESSAGE_CHARACTERS_MAX = 500
TIMEOUT_SECONDS_MAX = 86_400.0
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
#: Characters that `grpc-message` leaves as they are: printable ASCII except the percent sign.
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_STATUS_NUMBERS = {name: str(number) for number, name in enumerate(STATUS_NAMES)}
_HEADERS = [(":status", "200"), ("content-type", "application/grpc+proto")]
_OK = [("grpc-status", "0")]


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A complete unary call. `timeout_seconds`: how long the client waits; None: no limit."""

    stream: int
    path: str
    message: bytes
    timeout_seconds: float | None


@dataclass(slots=True)
class _Request:
    path: str
    timeout_seconds: float | None
    received: bytearray = field(default_factory=bytearray)
    is_whole: bool = False


def parse_timeout(value: bytes) -> float:
    """Return the seconds of a `grpc-timeout` such as `100m`, at most a day. Raises ValueError."""
    match = _TIMEOUT.fullmatch(value)
    if not match:
        raise ValueError("grpc-timeout: expected up to 8 digits and one of H M S m u n, as 500m")
    return min(int(match[1]) * _UNITS[match[2]], TIMEOUT_SECONDS_MAX)


def percent_encoded(message: str) -> str:
    """Return *message* as `grpc-message` encodes it, cut to MESSAGE_CHARACTERS_MAX."""
    return quote(message[:MESSAGE_CHARACTERS_MAX], safe=_PLAIN, errors="replace")


class ServerSession(GrpcConnection[ServerCall]):
    """A client's connection. After a SessionError the bytes of `data_to_send` may still be sent.

    `calls` counts complete calls.
    """

    def __init__(self) -> None:
        super().__init__(
            client_side=False,
            settings={SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX},
            header_bytes_max=HEADER_BYTES_MAX,
        )
        self.calls = 0
        self._requests: dict[int, _Request] = {}

    @property
    def waiting(self) -> int:
        """Return the number of calls without a complete response."""
        return len(self._requests) + len(self._queues)

    def is_waiting(self, number: int) -> bool:
        """Return whether the call has no complete response and its client has not cancelled it."""
        return number in self._requests or number in self._queues

    def go_away(self) -> None:
        """Send GOAWAY without an error: the client's next call reconnects. Never raises."""
        with suppress(H2Error):
            self._h2.close_connection(ErrorCodes.NO_ERROR)

    def _on_event(self, event: events.Event) -> Iterator[ServerCall]:
        if isinstance(event, events.ConnectionTerminated):
            raise SessionError("the client closed the connection")
        if isinstance(event, events.RequestReceived):
            self._on_request(event)
        elif isinstance(event, events.DataReceived) and event.stream_id is not None:
            self._on_data(event.stream_id, event.data or b"", event.stream_ended is not None)
        elif isinstance(event, events.StreamEnded) and event.stream_id is not None:
            yield from self._on_end(event.stream_id)
        elif isinstance(event, events.StreamReset) and event.stream_id is not None:
            self._requests.pop(event.stream_id, None)

    def _on_request(self, event: events.RequestReceived) -> None:
        number = event.stream_id
        assert number is not None and event.headers is not None
        headers, is_whole = dict(event.headers), event.stream_ended is not None
        if headers.get(b":method") != b"POST":
            return self._refuse_with(number, [(":status", "405")], is_whole)
        if not bytes(headers.get(b"content-type", b"")).startswith(b"application/grpc"):
            return self._refuse_with(number, [(":status", "415")], is_whole)
        path = bytes(headers.get(b":path", b"")).decode("ascii", "replace")
        request = self._requests[number] = _Request(path, None, is_whole=is_whole)
        if headers.get(b"grpc-encoding", b"identity") != b"identity":
            return self.refuse(number, "UNIMPLEMENTED", "compressed; send it with identity")
        if (timeout := headers.get(b"grpc-timeout")) is not None:
            try:
                request.timeout_seconds = parse_timeout(bytes(timeout))
            except ValueError as error:
                self.refuse(number, "INTERNAL", str(error))

    def _on_data(self, number: int, data: bytes, is_whole: bool) -> None:
        request = self._requests.get(number)
        if request is None:
            return
        request.received += data
        request.is_whole = is_whole
        if len(request.received) < PREFIX_BYTES:
            return
        length = int.from_bytes(request.received[1:PREFIX_BYTES], "big")
        if request.received[0]:
            self.refuse(number, "UNIMPLEMENTED", "compressed; send it with identity")
        elif length > MESSAGE_BYTES_MAX:
            message = f"message of {length} bytes, at most {MESSAGE_BYTES_MAX}"
            self.refuse(number, "RESOURCE_EXHAUSTED", message)
        elif len(request.received) > PREFIX_BYTES + length:
            self.refuse(number, "INTERNAL", "more than the one message of a unary call")

    def _on_end(self, number: int) -> Iterator[ServerCall]:
        request = self._requests.get(number)
        if request is None:
            return
        request.is_whole = True
        length = int.from_bytes(request.received[1:PREFIX_BYTES], "big")
        if len(request.received) != PREFIX_BYTES + length:
            self.refuse(number, "INTERNAL", "the call ended before its message was complete")
            return
        message, request.received = bytes(request.received[PREFIX_BYTES:]), bytearray()
        self.calls += 1
        yield ServerCall(number, request.path, message, request.timeout_seconds)

    def respond(self, number: int, message: bytes) -> None:
        """Send the response of a call, if the call still exists. Raises SessionError."""
        if self._requests.pop(number, None) is not None:
            with self._library_errors():
                self._h2.send_headers(number, _HEADERS)
            self._open_queue(number)
            self._enqueue(number, message, ends=True, trailers=_OK)

    def refuse(self, number: int, status: str, message: str) -> None:
        """End a call with a gRPC status, if the call still exists. Raises SessionError."""
        request = self._requests.pop(number, None)
        if request is not None:
            trailers = [
                *_HEADERS,
                ("grpc-status", _STATUS_NUMBERS[status]),
                ("grpc-message", percent_encoded(message)),
            ]
            self._refuse_with(number, trailers, request.is_whole)

    def _refuse_with(self, number: int, headers: Sequence[tuple[str, str]], is_whole: bool) -> None:
        """End a stream with *headers*; unless the request *is_whole*, reset the client's side."""
        with self._library_errors():
            self._h2.send_headers(number, headers, end_stream=True)
            if not is_whole:
                self._h2.reset_stream(number, ErrorCodes.NO_ERROR)


class Peer(NamedTuple):
    """The client process, as the kernel reports it (SO_PEERCRED)."""

    process_id: int
    user_id: int
    group_id: int


class CallRefused(Exception):
    """Ends a call with a gRPC status such as `NOT_FOUND` and a message for an operator."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class DeferredResponse:
    """A response given once, by any thread. `respond` and `refuse` never block or raise."""

    def __init__(self) -> None:
        #: The client closed the connection, or its timeout is over.
        self.is_cancelled = False
        #: The response or the refusal; None until then.
        self.result: bytes | CallRefused | None = None
        self._lock = threading.Lock()
        self._done_callback: Callable[[], None] | None = None

    def respond(self, message: bytes) -> None:
        self._complete(message)

    def refuse(self, status: str, message: str) -> None:
        self._complete(CallRefused(status, message))

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call *callback* at the result, in the thread that gives it; now if there is one."""
        with self._lock:
            self._done_callback = callback
            if self.result is None:
                return
        callback()

    def _complete(self, result: bytes | CallRefused) -> None:
        with self._lock:
            if self.result is not None:
                return
            self.result = result
            callback = self._done_callback
        if callback:
            callback()


#: Takes the request's bytes and the peer; returns the response's bytes, or a deferred response.
#: Raises CallRefused. It runs in the server's thread, so slow work is done elsewhere.
Handler = Callable[[bytes, Peer], bytes | DeferredResponse]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the server. *privileged*: only for root and the agent's own user."""

    handler: Handler
    privileged: bool = False
