"""gRPC over HTTP/2 without a socket: calls in, bytes out; bytes in, answers out.

One connection to the aggregator's TelemetryService, spoken by `h2`. Formats: RFC 9113 (HTTP/2) and
gRPC's PROTOCOL-HTTP2.md (five bytes before each message, status in the trailers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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

from ...fingerprints.wire.telemetry_pb2 import IngestAck, RegisterNodeResponse, ReportEventsResponse

SERVICE = "/gangline.v1.TelemetryService/"
REGISTER = "RegisterNode"
STREAM = "StreamTelemetry"
EVENTS = "ReportEvents"
#: What each method answers with.
ANSWERS: Mapping[str, type[Message]] = {
    REGISTER: RegisterNodeResponse,
    STREAM: IngestAck,
    EVENTS: ReportEventsResponse,
}
#: An answer longer than this is refused unread; ours are a few kilobytes.
MESSAGE_BYTES_MAX = 1 << 20
#: A peer's words are cut here.
WORDS_CHARACTERS_MAX = 240
SESSION_CHARACTERS_MAX = 256
_PREFIX_BYTES = 5
_FRAME_HEADER_BYTES = 9
_SETTINGS_FRAME = 4

#: gRPC's status codes (statuscodes.md), by number.
STATUS_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip


class SessionError(Exception):
    """The connection is of no use any more; the words say why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A message of the aggregator's. Of a unary call only once its status is OK."""

    call: int
    method: str
    message: Message


@dataclass(frozen=True, slots=True)
class Ended:
    """A call ended without success, or the stream ended at all."""

    call: int
    method: str
    status: str
    words: str

    def __str__(self) -> str:
        return f"{self.method}: {self.status}: {self.words or 'no words'}"


@dataclass(slots=True)
class _Call:
    method: str
    out: bytearray = field(default_factory=bytearray)
    out_ends: bool = False
    received: bytearray = field(default_factory=bytearray)
    answer: Message | None = None
    status: str = ""
    words: str = ""


def printable(words: bytes) -> str:
    """Return a peer's words as one line that a terminal survives, cut to WORDS_CHARACTERS_MAX."""
    text = words[: 4 * WORDS_CHARACTERS_MAX].decode(errors="replace")[:WORDS_CHARACTERS_MAX]
    return "".join(letter if letter.isprintable() else " " for letter in text)


class Session:
    """One connection. After a SessionError it must be thrown away with its socket."""

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        settings = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: 1 << 14}
        self._connection.local_settings = Settings(client=True, initial_values=settings)
        self._connection.initiate_connection()
        self._calls: dict[int, _Call] = {}
        self._first_bytes = b""

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
            (":scheme", "http"),
            (":path", SERVICE + method),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc+proto"),
            ("user-agent", "gangline-agent"),
        ]
        if session:
            headers.append(("gangline-session", _checked(session)))
        try:
            number = self._connection.get_next_available_stream_id()
            self._connection.send_headers(number, headers)
        except H2Error as error:
            raise SessionError(f"HTTP/2: {_words(error)}") from error
        self._calls[number] = _Call(method)
        return number

    def send(self, call: int, message: Message) -> None:
        """Queue a message on a call; it goes as far as the peer's windows allow."""
        body = message.SerializeToString()
        self._calls[call].out += b"\0" + len(body).to_bytes(4, "big") + body
        self._pump()

    def finish(self, call: int) -> None:
        """Say that no more messages follow on the stream."""
        if call in self._calls:
            self._calls[call].out_ends = True
            self._pump()

    @property
    def unsent_bytes(self) -> int:
        """What waits for the peer to open its windows."""
        return sum(len(call.out) for call in self._calls.values())

    def data_to_send(self) -> bytes:
        """Return what must go to the socket now; each byte once."""
        return self._connection.data_to_send()

    def _pump(self) -> None:
        """Hand out what the windows allow: events and registrations before frames."""
        ordered = sorted(self._calls.items(), key=lambda item: item[1].method == STREAM)
        try:
            for number, call in ordered:
                self._pump_call(number, call)
        except H2Error as error:
            raise SessionError(f"HTTP/2: {_words(error)}") from error

    def _pump_call(self, number: int, call: _Call) -> None:
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

    def receive(self, data: bytes) -> list[Answer | Ended]:
        """Take what the socket gave. Raises SessionError, whatever the bytes are; nothing else."""
        if len(self._first_bytes) < _FRAME_HEADER_BYTES:
            self._first_bytes = (self._first_bytes + data)[:_FRAME_HEADER_BYTES]
            _check_protocol(self._first_bytes)
        try:
            found = [answer for event in self._parse(data) for answer in self._take(event)]
            self._pump()
        except SessionError:
            raise
        except Exception as error:  # three libraries parse a stranger's bytes here
            raise SessionError(f"what came is not gRPC: {_words(error)}") from error
        return found

    def _parse(self, data: bytes) -> list[Event]:
        return self._connection.receive_data(data)

    def _take(self, event: Event) -> Iterator[Answer | Ended]:
        if isinstance(event, ConnectionTerminated):
            raise SessionError(_going_away(event))
        number = getattr(event, "stream_id", None)
        call = self._calls.get(number) if isinstance(number, int) else None
        if call is None or not isinstance(number, int):
            return
        if isinstance(event, ResponseReceived):
            self._take_head(call, dict(event.headers))
        elif isinstance(event, TrailersReceived):
            _take_status(call, dict(event.headers))
        elif isinstance(event, DataReceived):
            self._connection.acknowledge_received_data(event.flow_controlled_length, number)
            call.received += event.data
            yield from _messages(number, call)
        elif isinstance(event, StreamReset):
            call.status, call.words = "UNAVAILABLE", f"reset, HTTP/2 error {event.error_code:d}"
            yield self._end(number, call)
        elif isinstance(event, StreamEnded):
            yield self._end(number, call)

    def _take_head(self, call: _Call, headers: Mapping[bytes, bytes]) -> None:
        status = headers.get(b":status", b"")
        content = headers.get(b"content-type", b"")
        if status != b"200" or not content.startswith(b"application/grpc"):
            raise SessionError(
                f"HTTP status {printable(status)}, content-type {printable(content) or 'none'}: "
                "something else than a Gangline aggregator listens there"
            )
        if headers.get(b"grpc-encoding", b"identity") != b"identity":
            raise SessionError("the answer is compressed, which nobody asked for")
        _take_status(call, headers)

    def _end(self, number: int, call: _Call) -> Answer | Ended:
        del self._calls[number]
        if call.received:
            raise SessionError(f"{call.method}: the answer ends in the middle of a message")
        if call.status == "OK" and call.method != STREAM:
            if call.answer is None:
                raise SessionError(f"{call.method}: status OK without an answer")
            return Answer(number, call.method, call.answer)
        return Ended(number, call.method, call.status or "UNKNOWN", call.words)


def _messages(number: int, call: _Call) -> Iterator[Answer]:
    """Take whole messages off what a call received; a unary call's waits for its status."""
    while len(call.received) >= _PREFIX_BYTES:
        length = int.from_bytes(call.received[1:_PREFIX_BYTES], "big")
        if call.received[0]:
            raise SessionError(f"{call.method}: compressed message, which nobody asked for")
        if length > MESSAGE_BYTES_MAX:
            raise SessionError(
                f"{call.method}: message of {length} bytes, at most {MESSAGE_BYTES_MAX}"
            )
        if len(call.received) < _PREFIX_BYTES + length:
            return
        body = bytes(call.received[_PREFIX_BYTES : _PREFIX_BYTES + length])
        del call.received[: _PREFIX_BYTES + length]
        message = _decode(call.method, body)
        if call.method == STREAM:
            yield Answer(number, call.method, message)
        elif call.answer is not None:
            raise SessionError(f"{call.method}: more than one answer")
        else:
            call.answer = message


def _decode(method: str, body: bytes) -> Message:
    try:
        return ANSWERS[method].FromString(body)
    except DecodeError as error:
        raise SessionError(f"{method}: the answer cannot be read: {_words(error)}") from error


def _take_status(call: _Call, headers: Mapping[bytes, bytes]) -> None:
    """Note grpc-status and grpc-message, which is percent-encoded UTF-8."""
    if b"grpc-status" not in headers:
        return
    text = headers[b"grpc-status"]
    number = int(text) if text.isdigit() and len(text) < 4 else -1
    known = 0 <= number < len(STATUS_NAMES)
    call.status = STATUS_NAMES[number] if known else f"status {printable(text)}"
    call.words = printable(unquote_to_bytes(headers.get(b"grpc-message", b"")))


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


def _checked(session: str) -> str:
    """The aggregator's word becomes a header of ours: refuse what no header may hold."""
    if len(session) > SESSION_CHARACTERS_MAX or not (session.isascii() and session.isprintable()):
        raise SessionError("the session that the aggregator gave is not short printable ASCII")
    return session


def _going_away(event: ConnectionTerminated) -> str:
    code = event.error_code or 0
    words = printable(event.additional_data or b"")
    name = ErrorCodes(code).name if code in ErrorCodes.__members__.values() else f"error {code}"
    return f"the aggregator closes the connection ({name}{': ' + words if words else ''})"


def _words(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}".encode(errors="replace"))
