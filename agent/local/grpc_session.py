"""gRPC's server half over HTTP/2 without a socket: bytes in, unary calls out; answers in, bytes out.

Formats: RFC 9113 (HTTP/2) by `h2`, and gRPC's PROTOCOL-HTTP2.md: five bytes before each message, the status in
the trailers, `grpc-timeout`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from ..transport.grpc_http2 import STATUS_NAMES, FrameLengthChecker, FrameTooLong

#: A request longer than this is RESOURCE_EXHAUSTED; ours are a few dozen bytes, and of 64 GPUs by UUID 3 kB. All that
#: the server's clients may have half sent is 16 MB.
MESSAGE_BYTES_MAX = 1 << 13
#: Calls of one connection at a time; what a client begins beyond is refused by HTTP/2.
STREAMS_MAX = 32
#: Names and values of one request's headers; more ends the connection.
HEADER_BYTES_MAX = 1 << 13
#: After so many calls a connection is ended once none waits: `h2` remembers every one of them.
CALLS_MAX = 10_000
#: Answers that the client does not read; more ends the connection.
UNSENT_BYTES_MAX = 1 << 20
#: Of an error's words.
MESSAGE_CHARACTERS_MAX = 500
TIMEOUT_SECONDS_MAX = 86_400.0
#: What a client begins with (RFC 9113, 3.4).
PREFACE_BYTES = 24
_PREFIX_BYTES = 5
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
#: Percent-encoding leaves what is printable ASCII but for the percent sign itself.
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_STATUS_NUMBERS = {name: str(number) for number, name in enumerate(STATUS_NAMES)}
_HEADERS = [(":status", "200"), ("content-type", "application/grpc+proto")]
_OK = [("grpc-status", "0")]


class PeerError(Exception):
    """The connection is of no use any more; what `data_to_send` gives may still be sent, then it is closed."""


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A unary call whose message has come whole. `timeout_seconds`: the client waits so long, None: as long as it takes."""

    stream: int
    path: str
    message: bytes
    timeout_seconds: float | None


@dataclass(slots=True)
class _Stream:
    path: str
    timeout_seconds: float | None
    received: bytearray = field(default_factory=bytearray)
    out: bytearray = field(default_factory=bytearray)
    responded: bool = False


def parse_timeout(value: bytes) -> float:
    """Return seconds of a `grpc-timeout` header, such as `100m` (milliseconds), a day at the most. Raises ValueError."""
    match = _TIMEOUT.fullmatch(value)
    if not match:
        raise ValueError("grpc-timeout: expected up to 8 digits and one of H M S m u n, as 500m")
    return min(int(match[1]) * _UNITS[match[2]], TIMEOUT_SECONDS_MAX)


def percent_encoded(message: str) -> str:
    """Return *message* as `grpc-message` carries them, cut to WORDS_CHARACTERS_MAX."""
    return quote(message[:MESSAGE_CHARACTERS_MAX], safe=_PLAIN, errors="replace")


class ServerSession:
    """One connection of one client. After a PeerError it must be thrown away with its socket.

    `calls`: how many have come whole.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._h2 = H2Connection(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,  # ours are all made here
                normalize_outbound_headers=False,
            )
        )
        values = {
            SettingCodes.MAX_CONCURRENT_STREAMS: STREAMS_MAX,
            SettingCodes.MAX_HEADER_LIST_SIZE: HEADER_BYTES_MAX,
        }
        self._h2.local_settings = Settings(client=False, initial_values=values)
        self._h2.decoder.max_header_list_size = HEADER_BYTES_MAX
        self._h2.initiate_connection()
        self._lengths, self._preface_left = FrameLengthChecker(), PREFACE_BYTES
        self._streams: dict[int, _Stream] = {}

    @property
    def waiting(self) -> int:
        """Calls that have begun and have no whole answer yet."""
        return len(self._streams)

    def is_waiting(self, number: int) -> bool:
        """Say whether a call has begun, has no whole answer yet, and was not given up by its client."""
        return number in self._streams

    # In ------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[ServerCall]:
        """Take what the socket gave. Raises PeerError, whatever the bytes are; nothing else."""
        frames = data[self._preface_left :]
        self._preface_left -= len(data) - len(frames)
        try:
            self._lengths.check(frames)
            calls = [
                call for event in self._h2.receive_data(data) for call in self._on_event(event)
            ]
            self._pump()
        except PeerError:
            raise
        except FrameTooLong as error:
            raise PeerError(str(error)) from error
        except Exception as error:  # two libraries parse a stranger's bytes here
            raise PeerError(f"{type(error).__name__}: {error}") from error
        self.calls += len(calls)
        return calls

    def go_away(self) -> None:
        """Tell the client that this connection ends, without blame: its next call opens another. Never raises."""
        with suppress(H2Error):
            self._h2.close_connection(ErrorCodes.NO_ERROR)

    def _on_event(self, event: Event) -> Iterator[ServerCall]:
        if isinstance(event, ConnectionTerminated):
            raise PeerError("the client ended the connection")
        if isinstance(event, RequestReceived):
            self._on_request(event)
        elif isinstance(event, DataReceived) and event.stream_id is not None:
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            self._on_data(event.stream_id, event.data or b"")
        elif isinstance(event, StreamEnded) and event.stream_id is not None:
            yield from self._on_end(event.stream_id)
        elif isinstance(event, StreamReset) and event.stream_id is not None:
            self._streams.pop(event.stream_id, None)

    def _on_request(self, event: RequestReceived) -> None:
        number = event.stream_id
        assert number is not None and event.headers is not None
        headers = dict(event.headers)
        if headers.get(b":method") != b"POST":
            return self._refuse_http(number, "405")
        if not bytes(headers.get(b"content-type", b"")).startswith(b"application/grpc"):
            return self._refuse_http(number, "415")
        path = bytes(headers.get(b":path", b"")).decode("ascii", "replace")
        stream = self._streams[number] = _Stream(path, None)
        if headers.get(b"grpc-encoding", b"identity") != b"identity":
            return self.refuse(number, "UNIMPLEMENTED", "compressed; send it with identity")
        if (timeout := headers.get(b"grpc-timeout")) is not None:
            try:
                stream.timeout_seconds = parse_timeout(bytes(timeout))
            except ValueError as error:
                self.refuse(number, "INTERNAL", str(error))

    def _on_data(self, number: int, data: bytes) -> None:
        stream = self._streams.get(number)
        if stream is None or stream.responded:
            return
        stream.received += data
        if len(stream.received) < _PREFIX_BYTES:
            return
        length = int.from_bytes(stream.received[1:_PREFIX_BYTES], "big")
        if stream.received[0]:
            self.refuse(number, "UNIMPLEMENTED", "compressed; send it with identity")
        elif length > MESSAGE_BYTES_MAX:
            message = f"message of {length} bytes, at most {MESSAGE_BYTES_MAX}"
            self.refuse(number, "RESOURCE_EXHAUSTED", message)
        elif len(stream.received) > _PREFIX_BYTES + length:
            self.refuse(number, "INTERNAL", "more than the one message of a unary call")

    def _on_end(self, number: int) -> Iterator[ServerCall]:
        stream = self._streams.get(number)
        if stream is None or stream.responded:
            return
        length = int.from_bytes(stream.received[1:_PREFIX_BYTES], "big")
        if len(stream.received) != _PREFIX_BYTES + length:
            self.refuse(number, "INTERNAL", "the call ended before its message was whole")
            return
        message, stream.received = bytes(stream.received[_PREFIX_BYTES:]), bytearray()
        yield ServerCall(number, stream.path, message, stream.timeout_seconds)

    # Out -----------------------------------------------------------------------------------

    def respond(self, number: int, message: bytes) -> None:
        """Answer a call; one that is no more is passed over. Raises PeerError."""
        stream = self._streams.get(number)
        if stream is None or stream.responded:
            return
        stream.responded = True
        stream.out += b"\0" + len(message).to_bytes(4, "big") + message
        try:
            self._h2.send_headers(number, _HEADERS)
            self._pump_stream(number, stream)
        except H2Error as error:
            raise PeerError(str(error)) from error

    def refuse(self, number: int, status: str, message: str) -> None:
        """End a call with a status of gRPC's and words; one that is no more is passed over. Raises PeerError."""
        stream = self._streams.pop(number, None)
        if stream is None or stream.responded:
            return
        trailers = [
            *_HEADERS,
            ("grpc-status", _STATUS_NUMBERS[status]),
            ("grpc-message", percent_encoded(message)),
        ]
        self._end_with(number, trailers)

    def _refuse_http(self, number: int, status: str) -> None:
        self._end_with(number, [(":status", status)])

    def _end_with(self, number: int, headers: list[tuple[str, str]]) -> None:
        """Send what ends a stream; what the client still sends on it is not wanted."""
        try:
            self._h2.send_headers(number, headers, end_stream=True)
            if not self._is_ended_by_client(number):
                self._h2.reset_stream(number, ErrorCodes.NO_ERROR)
        except H2Error as error:
            raise PeerError(str(error)) from error

    def _is_ended_by_client(self, number: int) -> bool:
        stream = self._h2.streams.get(number)
        return stream is None or stream.closed

    def data_to_send(self) -> bytes:
        """Return what must go to the socket now; each byte once."""
        return self._h2.data_to_send()

    @property
    def unsent_bytes(self) -> int:
        """What waits for the client to open its windows."""
        return sum(len(stream.out) for stream in self._streams.values())

    def _pump(self) -> None:
        for number in [n for n, stream in self._streams.items() if stream.out]:
            self._pump_stream(number, self._streams[number])

    def _pump_stream(self, number: int, stream: _Stream) -> None:
        while stream.out:
            window = self._h2.local_flow_control_window(number)
            size = min(window, self._h2.max_outbound_frame_size, len(stream.out))
            if size <= 0:
                return
            self._h2.send_data(number, bytes(stream.out[:size]))
            del stream.out[:size]
        self._h2.send_headers(number, _OK, end_stream=True)
        del self._streams[number]


# ----------------------------------------------------------------------
# What a method of the local server is: who asks, what is answered, now or later, and what is
# refused.


class Peer(NamedTuple):
    """The process that made the connection, as the kernel says (SO_PEERCRED)."""

    process_id: int
    user_id: int
    group_id: int


class CallRefused(Exception):
    """A call is refused with a status of gRPC's (`NOT_FOUND`, say) and words for an operator."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class DeferredResponse:
    """An answer that another thread gives, once: with `respond` or `refuse`. Both return at once and never raise."""

    def __init__(self) -> None:
        #: Nobody waits any more: the client hung up, or its time is over.
        self.is_cancelled = False
        #: The answer, or why there is none; None until then.
        self.result: bytes | CallRefused | None = None
        self._lock = threading.Lock()
        self._done_callback: Callable[[], None] | None = None

    def respond(self, message: bytes) -> None:
        self._complete(message)

    def refuse(self, status: str, message: str) -> None:
        self._complete(CallRefused(status, message))

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Have *callback* called once there is a result, from any thread; at once if there is one."""
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


#: The request's bytes and who sent it -> the answer's bytes, or who gives them later. Raises Refused. It is called in
#: the server's thread: whatever takes longer than a moment is done elsewhere.
Handler = Callable[[bytes, Peer], bytes | DeferredResponse]


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the server's table. *privileged*: for root and the agent's own user."""

    handler: Handler
    privileged: bool = False
