"""gRPC over HTTP/2 without a socket: calls in, bytes out; bytes in, answers out.

One connection to the aggregator's TelemetryService, spoken by `h2`. Formats: RFC 9113 (HTTP/2) and
gRPC's PROTOCOL-HTTP2.md (five bytes before each message, status in the trailers).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote_to_bytes

from google.protobuf.message import DecodeError, Message
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from ...contract.wire.telemetry_pb2 import (
    IngestAck,
    RegisterNodeResponse,
    ReportEventsResponse,
    UploadRecordingResponse,
)

# ----------------------------------------------------------------------
# One gRPC call as far as it has come: its answer's headers, messages and status, checked as a
# stranger's.
#
# Format: gRPC's PROTOCOL-HTTP2.md (five bytes before each message, status in the trailers).

REGISTER = "RegisterNode"
STREAM = "StreamTelemetry"
EVENTS = "ReportEvents"
UPLOAD = "UploadRecording"
#: What each method answers with.
RESPONSE_TYPES: Mapping[str, type[Message]] = {
    REGISTER: RegisterNodeResponse,
    STREAM: IngestAck,
    EVENTS: ReportEventsResponse,
    UPLOAD: UploadRecordingResponse,
}
#: What the peer's windows do not take goes in this order: a recording can wait.
_SEND_ORDER = {REGISTER: 0, EVENTS: 0, STREAM: 1, UPLOAD: 2}
#: An answer longer than this is refused unread; ours are a few kilobytes.
MESSAGE_BYTES_MAX = 1 << 20
#: A peer's words are cut here.
TEXT_CHARACTERS_MAX = 240
#: However long an aggregator would have us wait.
RETRY_SECONDS_MAX = 300.0
_PREFIX_BYTES = 5

#: gRPC's status codes (statuscodes.md), by number.
STATUS_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


class SessionError(Exception):
    """The connection is of no use any more; the words say why. `received`: what came before that."""

    received: Sequence[CallResponse | CallEnd] = ()
    #: When the aggregator wants us back, if it said so.
    retry_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CallResponse:
    """A message of the aggregator's. Of a unary call only once its status is OK."""

    call: int
    method: str
    message: Message


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call ended without success, or the stream ended at all."""

    call: int
    method: str
    status: str
    message: str
    retry_seconds: float | None = None  # when to try again, if it said so

    def __str__(self) -> str:
        return f"{self.method}: {self.status}: {self.message or 'no words'}"


def printable(data: bytes) -> str:
    """Return a peer's words as one line that a terminal survives, cut to WORDS_CHARACTERS_MAX."""
    text = data[: 4 * TEXT_CHARACTERS_MAX].decode(errors="replace")[:TEXT_CHARACTERS_MAX]
    return "".join(letter if letter.isprintable() else " " for letter in text)


def error_text(error: Exception) -> str:
    """Return an error of a library's in our words' form."""
    return printable(f"{type(error).__name__}: {error}".encode(errors="replace"))


@dataclass(slots=True)
class ClientCall:
    """What waits to be sent on it, and what came of it so far."""

    number: int
    method: str
    out: bytearray = field(default_factory=bytearray)
    out_ends: bool = False
    finished: bool = False  # what was to be sent on it was said to be all
    is_streaming: bool = False  # messages come on it: its answer has begun, as it should
    received: bytearray = field(default_factory=bytearray)
    response: Message | None = None
    status: str = ""
    message: str = ""
    retry_seconds: float | None = None

    def on_headers(self, headers: Mapping[bytes, bytes]) -> None:
        """Take the headers that an answer begins with. Raises SessionError."""
        status = headers.get(b":status", b"")
        content = headers.get(b"content-type", b"")
        if status != b"200" or not content.startswith(b"application/grpc"):
            raise SessionError(
                f"HTTP status {printable(status)}, content-type {printable(content) or 'none'}: "
                "something else than a Gangline aggregator listens there"
            )
        if headers.get(b"grpc-encoding", b"identity") != b"identity":
            raise SessionError("the answer is compressed, which nobody asked for")
        self.on_status(headers)
        self.is_streaming = self.method == STREAM and not self.status

    def on_status(self, headers: Mapping[bytes, bytes]) -> None:
        """Note grpc-status, grpc-message, which is percent-encoded UTF-8, and when to try again (gRFC A6)."""
        if b"grpc-status" not in headers:
            return
        pushback = headers.get(b"grpc-retry-pushback-ms", b"")
        if pushback.isdigit() and len(pushback) <= 9:
            self.retry_seconds = min(int(pushback) / 1000, RETRY_SECONDS_MAX)
        text = headers[b"grpc-status"]
        number = int(text) if text.isdigit() and len(text) < 4 else -1
        known = 0 <= number < len(STATUS_NAMES)
        self.status = STATUS_NAMES[number] if known else f"status {printable(text)}"
        self.message = printable(unquote_to_bytes(headers.get(b"grpc-message", b"")))

    def on_data(self, data: bytes) -> Iterator[CallResponse]:
        """Take bytes, and whole messages off them; a unary call's waits for its status. Raises SessionError."""
        self.received += data
        while (body := self._body()) is not None:
            message = self._decode(body)
            if self.method == STREAM:
                yield CallResponse(self.number, self.method, message)
            elif self.response is not None:
                raise SessionError(f"{self.method}: more than one answer")
            else:
                self.response = message

    def _body(self) -> bytes | None:
        """Take one message's bytes off what came; None while they are not whole."""
        if len(self.received) < _PREFIX_BYTES:
            return None
        length = int.from_bytes(self.received[1:_PREFIX_BYTES], "big")
        if self.received[0]:
            raise SessionError(f"{self.method}: compressed message, which nobody asked for")
        if length > MESSAGE_BYTES_MAX:
            raise SessionError(
                f"{self.method}: message of {length} bytes, at most {MESSAGE_BYTES_MAX}"
            )
        end = _PREFIX_BYTES + length
        if len(self.received) < end:
            return None
        body = bytes(self.received[_PREFIX_BYTES:end])
        del self.received[:end]
        return body

    def _decode(self, body: bytes) -> Message:
        try:
            return RESPONSE_TYPES[self.method].FromString(body)
        except DecodeError as error:
            raise SessionError(
                f"{self.method}: the answer cannot be read: {error_text(error)}"
            ) from error

    def end(self) -> CallResponse | CallEnd:
        """Return what the call came to. Raises SessionError."""
        if self.received:
            raise SessionError(f"{self.method}: the answer ends in the middle of a message")
        if self.status == "OK" and self.method != STREAM:
            if self.response is None:
                raise SessionError(f"{self.method}: status OK without an answer")
            return CallResponse(self.number, self.method, self.response)
        status = self.status or "UNKNOWN"
        return CallEnd(self.number, self.method, status, self.message, self.retry_seconds)


# ----------------------------------------------------------------------
# How long the HTTP/2 frames are that come, told before they are kept: `h2` keeps 16 MB before it
# says "too long".

#: What a side allows that says nothing else (RFC 9113, 6.5.2).
FRAME_BYTES_MAX = 1 << 14
_HEADER_BYTES = 9


class FrameTooLong(ValueError):
    """A frame's head says more than FRAME_BYTES_MAX; the words say how much."""


class FrameLengthChecker:
    """Looks at each frame's head (RFC 9113, 4.1) as its bytes come, however they are cut."""

    def __init__(self) -> None:
        self._header = b""
        self._left = 0  # of the frame that its head announced

    @property
    def between_frames(self) -> bool:
        """All that came was whole frames."""
        return not self._left and not self._header

    def bytes_left(self, header: bytes) -> int:
        """Return how many bytes belong to the frame in hand, or to the one that *header* begins: as far as is known."""
        if self._left:
            return self._left
        full_header = (self._header + header)[:_HEADER_BYTES]
        body = int.from_bytes(full_header[:3], "big") if len(full_header) == _HEADER_BYTES else 0
        return _HEADER_BYTES - len(self._header) + body

    def check(self, data: bytes) -> None:
        """Raises FrameTooLong, whatever the bytes are; nothing else."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            piece = data[at : at + _HEADER_BYTES - len(self._header)]
            self._header += piece
            at += len(piece)
            if len(self._header) == _HEADER_BYTES:
                self._left, self._header = int.from_bytes(self._header[:3], "big"), b""
                if self._left > FRAME_BYTES_MAX:
                    raise FrameTooLong(
                        f"a frame of {self._left} bytes: at most {FRAME_BYTES_MAX} were agreed on"
                    )


SERVICE = "/gangline.v1.TelemetryService/"
SESSION_CHARACTERS_MAX = 256
_HEADER = struct.Struct(">HBBBI")
_FRAME_HEADER_BYTES = _HEADER.size
_DATA_FRAME, _SETTINGS_FRAME, _WINDOW_UPDATE_FRAME = 0, 4, 8
#: Of a window of 64 kB, of which h2 keeps back as much as half.
WINDOW_UPDATE_BYTES = 1 << 14


class ClientSession:
    """One connection. After a SessionError it must be thrown away with its socket."""

    def __init__(self, authority: str, token: str = "", *, tls: bool = False) -> None:
        """*token*: what each call logs in with; "" for none. *tls*: the bytes go over TLS (RFC 9113, 8.3.1)."""
        self._authority, self._token = authority, token
        self._scheme = "https" if tls else "http"
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        settings = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: 1 << 14}
        self._connection.local_settings = Settings(client=True, initial_values=settings)
        self._connection.initiate_connection()
        self._calls: dict[int, ClientCall] = {}
        self._first_bytes = b""
        self._lengths = FrameLengthChecker()
        self._out = b""  # of h2, and made without it, in order
        self._uncredited_bytes = 0  # of DATA frames without h2, not granted anew

    # Out -----------------------------------------------------------------------------------

    def call(self, method: str, message: Message, session: str = "") -> int:
        """Begin a unary call and return its number. Raises SessionError."""
        call = self._begin(method, session)
        self._calls[call].out_ends = True
        self.send(call, message)
        return call

    def open_stream(self, session: str) -> int:
        """Begin StreamTelemetry and return its number. Raises SessionError."""
        return self._begin(STREAM, session)

    def _begin(self, method: str, session: str) -> int:
        headers = [
            (":method", "POST"),
            (":scheme", self._scheme),
            (":path", SERVICE + method),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc+proto"),
            ("user-agent", "gangline-agent"),
        ]
        if self._token:
            headers.append(("authorization", f"Bearer {self._token}"))
        if session:
            headers.append(("gangline-session", _checked_session(session)))
        try:
            number = self._connection.get_next_available_stream_id()
            self._connection.send_headers(number, headers)
        except H2Error as error:
            raise SessionError(f"HTTP/2: {error_text(error)}") from error
        self._calls[number] = ClientCall(number, method)
        return number

    def send(self, call: int, message: Message) -> None:
        """Queue a message on a call; it goes as far as the peer's windows allow."""
        body = message.SerializeToString()
        data = b"\0" + len(body).to_bytes(4, "big") + body
        if not self._send_directly(call, data):
            self._calls[call].out += data
            self._pump()

    def _send_directly(self, number: int, data: bytes) -> bool:
        """Make a DATA frame of a message on an open stream, if nothing waits and the windows are wide.

        h2 takes 60 us of an agent's second for it, cold, through two state machines that a frame without
        flags does not move. What its windows allow it goes on knowing: they are taken from here too.
        """
        stream = self._connection.streams.get(number)
        if stream is None or len(self._calls) > 1 or self._calls[number].out_ends:
            return False
        connection, size = self._connection, len(data)
        if self._calls[number].out or size > connection.max_outbound_frame_size:
            return False
        if size > min(connection.outbound_flow_control_window, stream.outbound_flow_control_window):
            return False
        connection.outbound_flow_control_window -= size
        stream.outbound_flow_control_window -= size
        self._queue_frame(_frame_of(_DATA_FRAME, number, data))
        return True

    def _queue_frame(self, frame: bytes) -> None:
        """Send a frame made without h2, after all that h2 has made."""
        self._out += self._connection.data_to_send() + frame

    def finish(self, call: int) -> None:
        """Say, once, that no more messages follow on the stream."""
        if call in self._calls and not self._calls[call].finished:
            self._calls[call].finished = self._calls[call].out_ends = True
            self._pump()

    @property
    def unsent_bytes(self) -> int:
        """What waits for the peer to open its windows."""
        return sum([len(call.out) for call in self._calls.values()])

    def data_to_send(self) -> bytes:
        """Return what must go to the socket now; each byte once."""
        out, self._out = self._out + self._connection.data_to_send(), b""
        return out

    def _pump(self) -> None:
        """Hand out what the windows allow: events and registrations before frames, recordings last."""
        ordered = sorted(self._calls.items(), key=lambda item: _SEND_ORDER[item[1].method])
        try:
            for number, call in ordered:
                self._pump_call(number, call)
        except H2Error as error:
            raise SessionError(f"HTTP/2: {error_text(error)}") from error

    def _pump_call(self, number: int, call: ClientCall) -> None:
        while call.out:
            window = self._connection.local_flow_control_window(number)
            size = min(window, self._connection.max_outbound_frame_size, len(call.out))
            if size <= 0:
                return
            piece = bytes(call.out[:size])
            del call.out[:size]
            last = call.out_ends and not call.out
            self._connection.send_data(number, piece, end_stream=last)
            if last:
                call.out_ends = False
        if call.out_ends:
            call.out_ends = False
            self._connection.end_stream(number)

    # In ------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[CallResponse | CallEnd]:
        """Take what the socket gave. Raises SessionError, whatever the bytes are; nothing else."""
        if len(self._first_bytes) < _FRAME_HEADER_BYTES:
            self._first_bytes = (self._first_bytes + data)[:_FRAME_HEADER_BYTES]
            _check_protocol(self._first_bytes)
        found: list[CallResponse | CallEnd] = []
        try:
            self._receive(data, found)
        except SessionError as error:
            error.received = found
            raise
        return found

    def _receive(self, data: bytes, found: list[CallResponse | CallEnd]) -> None:
        """Add to *found* what the bytes say, as far as they can be read. Raises SessionError."""
        try:
            at = self._receive_plain_frames(data, 0, found)
            while at < len(data):
                # One frame at a time: h2 does not tell what it made of one if it refuses another behind it.
                size = self._lengths.bytes_left(data[at : at + _FRAME_HEADER_BYTES])
                frame = data[at : at + size]
                self._lengths.check(frame)
                for event in self._parse(frame):
                    found.extend(self._on_event(event))
                at = self._receive_plain_frames(data, at + len(frame), found)
            self._pump()
        except SessionError:
            raise
        except FrameTooLong as error:
            raise SessionError(f"HTTP/2: {error}") from error
        except Exception as error:  # three libraries parse a stranger's bytes here
            raise SessionError(f"what came is not gRPC: {error_text(error)}") from error

    def _receive_plain_frames(
        self, data: bytes, at: int, found: list[CallResponse | CallEnd]
    ) -> int:
        """Take the frames from *at* on that move none of h2's state machines: whole messages of a stream that has its head,
        and wider windows. Add what they say to *found*; return where others begin. Raises SessionError.

        h2 takes 30 us for each, cold. Of what it does not see it is not told: the windows that it grants are wider
        by that than what the peer has left, until we have granted it ourselves.
        """
        size_max = len(data) - _FRAME_HEADER_BYTES
        while at <= size_max and self._lengths.between_frames:
            length, kind, flags, number = _frame_header(data, at)
            begin, end = at + _FRAME_HEADER_BYTES, at + _FRAME_HEADER_BYTES + length
            call = self._calls.get(number)
            if flags or end > len(data) or length > FRAME_BYTES_MAX:
                break
            if kind == _DATA_FRAME and call is not None and call.is_streaming:
                found.extend(call.on_data(data[begin:end]))
                self._update_receive_window(number, length)
            elif kind != _WINDOW_UPDATE_FRAME or not self._grow_send_window(
                number, data[begin:end]
            ):
                break
            at = end
        return at

    def _update_receive_window(self, number: int, size: int) -> None:
        """Let the peer send as much again as we took without h2, once it is worth a word (RFC 9113, 6.9)."""
        self._uncredited_bytes += size
        if self._uncredited_bytes >= WINDOW_UPDATE_BYTES:
            increment, self._uncredited_bytes = self._uncredited_bytes.to_bytes(4, "big"), 0
            for each in (0, number):
                self._queue_frame(_frame_of(_WINDOW_UPDATE_FRAME, each, increment))

    def _grow_send_window(self, number: int, increment: bytes) -> bool:
        """Take a wider window for what we send; False: it is not as it should be, h2 is to say why."""
        window = self._connection.streams.get(number) if number else self._connection
        if window is None or len(increment) != 4:
            return False
        size = window.outbound_flow_control_window + int.from_bytes(increment, "big")
        if not window.outbound_flow_control_window < size < 1 << 31:
            return False
        window.outbound_flow_control_window = size
        return True

    def _parse(self, data: bytes) -> list[Event]:
        return self._connection.receive_data(data)

    def _on_event(self, event: Event) -> Iterator[CallResponse | CallEnd]:
        if isinstance(event, ConnectionTerminated):
            raise SessionError(_goaway_text(event))
        number = getattr(event, "stream_id", None)
        call = self._calls.get(number) if isinstance(number, int) else None
        if call is None or not isinstance(number, int):
            return
        if isinstance(event, ResponseReceived):
            call.on_headers(dict(event.headers))
        elif isinstance(event, TrailersReceived):
            call.on_status(dict(event.headers))
        elif isinstance(event, DataReceived):
            self._connection.acknowledge_received_data(event.flow_controlled_length, number)
            yield from call.on_data(event.data)
        elif isinstance(event, StreamReset):
            call.status, call.message = "UNAVAILABLE", f"reset, HTTP/2 error {event.error_code:d}"
            yield self._calls.pop(number).end()
        elif isinstance(event, StreamEnded):
            yield self._calls.pop(number).end()


def _frame_of(kind: int, stream: int, body: bytes) -> bytes:
    """Return a frame without flags (RFC 9113, 4.1)."""
    return b"%b%c\0%b%b" % (len(body).to_bytes(3, "big"), kind, stream.to_bytes(4, "big"), body)


def _frame_header(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Return a frame's length, type, flags and stream."""
    high, low, kind, flags, stream = _HEADER.unpack_from(data, at)
    return high << 8 | low, kind, flags, stream


def _check_protocol(data: bytes) -> None:
    """Name the foreign protocols that one meets on a wrong port.

    An HTTP/2 server begins with a SETTINGS frame (RFC 9113, 3.4); without this check other bytes
    may look like the length of a long frame, whose end would be waited for.
    """
    if data.startswith(b"HTTP/"):
        raise SessionError("an HTTP/1 server listens there, not a Gangline aggregator")
    if data[:2] in (b"\x15\x03", b"\x16\x03"):
        raise SessionError("the server there speaks TLS, this agent plain text")
    if len(data) >= _FRAME_HEADER_BYTES and data[3] != _SETTINGS_FRAME:
        raise SessionError(f"what listens there does not speak HTTP/2: it says {printable(data)!r}")


def _checked_session(session: str) -> str:
    """The aggregator's word becomes a header of ours: refuse what no header may hold."""
    if len(session) > SESSION_CHARACTERS_MAX or not (session.isascii() and session.isprintable()):
        raise SessionError("the session that the aggregator gave is not short printable ASCII")
    return session


def _goaway_text(event: ConnectionTerminated) -> str:
    code = event.error_code or 0
    detail = printable(event.additional_data or b"")
    name = ErrorCodes(code).name if code in ErrorCodes.__members__.values() else f"error {code}"
    return f"the aggregator closes the connection ({name}{': ' + detail if detail else ''})"


# ----------------------------------------------------------------------
# A gRPC call with one answer over a Unix socket: of kubelet, and of the agent of this host.
#
# Formats: RFC 9113 (HTTP/2) by `h2`, and gRPC's PROTOCOL-HTTP2.md: five bytes before each message,
# the status in the trailers.

#: An answer longer than this is refused: of a node of 500 pods kubelet says 100 kB.
ANSWER_BYTES_MAX = 4 << 20
CONNECT_RETRY_SECONDS = 0.01
_CHUNK_BYTES = 1 << 16


class NoListener(ConnectionRefusedError):
    """Nobody listens at that path; the words say which."""


class CallFailed(Exception):
    """It was refused, or not answered as it should be, or not in time. `status` is gRPC's name for it."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class UnaryCall:
    """One call without a socket: bytes out, bytes in."""

    def __init__(self, path: str, request: bytes, seconds_max: float) -> None:
        """*seconds_max*: the server is told how long it is waited for."""
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._connection.initiate_connection()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc+proto"),
            ("grpc-timeout", f"{max(1, min(99_999_999, int(seconds_max * 1000)))}m"),
        ]
        message = b"\0" + len(request).to_bytes(4, "big") + request
        self._connection.send_headers(1, headers)
        self._connection.send_data(1, message, end_stream=True)
        self._lengths = FrameLengthChecker()
        self._received = bytearray()
        self._headers: dict[bytes, bytes] = {}

    def data_to_send(self) -> bytes:
        """Return what must go to the socket now; each byte once."""
        return self._connection.data_to_send()

    def receive(self, data: bytes) -> bytes | None:
        """Take what the socket gave; return the answer once it is whole. Raises CallFailed, and nothing else."""
        try:
            self._lengths.check(data)
            for event in self._connection.receive_data(data):
                if (response := self._on_event(event)) is not None:
                    return response  # whatever came behind it, as the GOAWAY of a server that ends
        except CallFailed:
            raise
        except FrameTooLong as error:
            raise CallFailed("UNKNOWN", f"what came is not gRPC: {error}") from error
        except Exception as error:  # three libraries parse a stranger's bytes here
            message = f"what came is not gRPC: {type(error).__name__}"
            raise CallFailed("UNKNOWN", message) from error
        return None

    def _on_event(self, event: Event) -> bytes | None:
        if isinstance(event, ResponseReceived | TrailersReceived):
            self._headers.update(event.headers)
        elif isinstance(event, DataReceived):
            with suppress(H2Error):  # the connection ended behind it in the same bytes
                self._connection.acknowledge_received_data(event.flow_controlled_length, 1)
            self._received += event.data
            if len(self._received) > ANSWER_BYTES_MAX:
                message = f"an answer of more than {ANSWER_BYTES_MAX} bytes"
                raise CallFailed("RESOURCE_EXHAUSTED", message)
        elif isinstance(event, StreamReset | ConnectionTerminated):
            raise CallFailed("UNAVAILABLE", "the connection was ended")
        elif isinstance(event, StreamEnded):
            return self._response()
        return None

    def _response(self) -> bytes:
        status = self._headers.get(b"grpc-status", b"")
        if status != b"0":
            if not status.isdigit() or len(status) > 2 or int(status) >= len(STATUS_NAMES):
                raise CallFailed("UNKNOWN", "what answers is not gRPC: it has no status")
            message = printable(unquote_to_bytes(self._headers.get(b"grpc-message", b"")))
            raise CallFailed(STATUS_NAMES[int(status)], message or "no words")
        length = int.from_bytes(self._received[1:_PREFIX_BYTES], "big")
        if self._received[:1] != b"\0" or len(self._received) != _PREFIX_BYTES + length:
            raise CallFailed("UNKNOWN", "the answer is compressed, cut, or none")
        return bytes(self._received[_PREFIX_BYTES:])


def call(path: Path, method: str, request: bytes, seconds_max: float) -> bytes:
    """Return the answer of *method* (`/package.Service/Method`), within *seconds_max* in all.

    Raises NoListener, CallFailed, and PermissionError where we may not ask.
    """
    until = time.monotonic() + seconds_max
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds_max)
        try:
            _connect(connection, path, until)
            return _exchange(connection, UnaryCall(method, request, seconds_max), until)
        except FileNotFoundError:
            raise NoListener(f"there is no {path}") from None
        except ConnectionRefusedError:
            raise NoListener(f"nobody answers at {path}") from None
        except TimeoutError:
            message = f"no answer within {seconds_max:g} s"
            raise CallFailed("DEADLINE_EXCEEDED", message) from None
        except PermissionError:
            raise
        except OSError as error:
            raise CallFailed("UNAVAILABLE", f"{path}: {error.strerror or error}") from error


def _connect(connection: socket.socket, path: Path, until: float) -> None:
    """Connect; where the line is full, which a Unix socket says at once, wait in front of it."""
    while True:
        try:
            return connection.connect(str(path))
        except BlockingIOError:
            if time.monotonic() >= until:
                message = f"{path} takes no more connections"
                raise CallFailed("UNAVAILABLE", message) from None
            time.sleep(CONNECT_RETRY_SECONDS)


def _exchange(connection: socket.socket, unary: UnaryCall, until: float) -> bytes:
    response = None
    while response is None:
        connection.sendall(unary.data_to_send())
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        data = connection.recv(_CHUNK_BYTES)
        if not data:
            raise CallFailed("UNAVAILABLE", "it hung up")
        response = unary.receive(data)
    return response
