"""gRPC over HTTP/2 without a socket: calls in, bytes out; bytes in, answers out.

One connection to the aggregator's TelemetryService, spoken by `h2`. Formats: RFC 9113 (HTTP/2) and
gRPC's PROTOCOL-HTTP2.md (five bytes before each message, status in the trailers).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from google.protobuf.message import Message
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

from .calls import STREAM, Answer, Call, Ended, SessionError, printable, words_of
from .lengths import FRAME_BYTES_MAX, FrameLengths, FrameTooLong

SERVICE = "/gangline.v1.TelemetryService/"
SESSION_CHARACTERS_MAX = 256
_HEAD = struct.Struct(">HBBBI")
_FRAME_HEADER_BYTES = _HEAD.size
_DATA_FRAME, _SETTINGS_FRAME, _WINDOW_UPDATE_FRAME = 0, 4, 8
#: Of a window of 64 kB, of which h2 keeps back as much as half.
GRANT_BYTES = 1 << 14


class Session:
    """One connection. After a SessionError it must be thrown away with its socket."""

    def __init__(self, authority: str, token: str = "") -> None:
        """*token*: what each call logs in with; "" for none."""
        self._authority, self._token = authority, token
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        settings = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: 1 << 14}
        self._connection.local_settings = Settings(client=True, initial_values=settings)
        self._connection.initiate_connection()
        self._calls: dict[int, Call] = {}
        self._first_bytes = b""
        self._lengths = FrameLengths()
        self._out = b""  # of h2, and made without it, in order
        self._taken_bytes = 0  # of DATA frames without h2, not granted anew

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
        if self._token:
            headers.append(("authorization", f"Bearer {self._token}"))
        if session:
            headers.append(("gangline-session", _checked(session)))
        try:
            number = self._connection.get_next_available_stream_id()
            self._connection.send_headers(number, headers)
        except H2Error as error:
            raise SessionError(f"HTTP/2: {words_of(error)}") from error
        self._calls[number] = Call(number, method)
        return number

    def send(self, call: int, message: Message) -> None:
        """Queue a message on a call; it goes as far as the peer's windows allow."""
        body = message.SerializeToString()
        data = b"\0" + len(body).to_bytes(4, "big") + body
        if not self._sent_at_once(call, data):
            self._calls[call].out += data
            self._pump()

    def _sent_at_once(self, number: int, data: bytes) -> bool:
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
        self._put(_frame_of(_DATA_FRAME, number, data))
        return True

    def _put(self, frame: bytes) -> None:
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
        """Hand out what the windows allow: events and registrations before frames."""
        ordered = sorted(self._calls.items(), key=lambda item: item[1].method == STREAM)
        try:
            for number, call in ordered:
                self._pump_call(number, call)
        except H2Error as error:
            raise SessionError(f"HTTP/2: {words_of(error)}") from error

    def _pump_call(self, number: int, call: Call) -> None:
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
        found: list[Answer | Ended] = []
        try:
            self._receive(data, found)
        except SessionError as error:
            error.before = found
            raise
        return found

    def _receive(self, data: bytes, found: list[Answer | Ended]) -> None:
        """Add to *found* what the bytes say, as far as they can be read. Raises SessionError."""
        try:
            at = self._take_plain(data, 0, found)
            while at < len(data):
                # One frame at a time: h2 does not tell what it made of one if it refuses another behind it.
                size = self._lengths.bytes_left(data[at : at + _FRAME_HEADER_BYTES])
                frame = data[at : at + size]
                self._lengths.check(frame)
                for event in self._parse(frame):
                    found.extend(self._take(event))
                at = self._take_plain(data, at + len(frame), found)
            self._pump()
        except SessionError:
            raise
        except FrameTooLong as error:
            raise SessionError(f"HTTP/2: {error}") from error
        except Exception as error:  # three libraries parse a stranger's bytes here
            raise SessionError(f"what came is not gRPC: {words_of(error)}") from error

    def _take_plain(self, data: bytes, at: int, found: list[Answer | Ended]) -> int:
        """Take the frames from *at* on that move none of h2's state machines: whole messages of a stream that has its head,
        and wider windows. Add what they say to *found*; return where others begin. Raises SessionError.

        h2 takes 30 us for each, cold. Of what it does not see it is not told: the windows that it grants are wider
        by that than what the peer has left, until we have granted it ourselves.
        """
        size_max = len(data) - _FRAME_HEADER_BYTES
        while at <= size_max and self._lengths.between_frames:
            length, kind, flags, number = _frame_head(data, at)
            begin, end = at + _FRAME_HEADER_BYTES, at + _FRAME_HEADER_BYTES + length
            call = self._calls.get(number)
            if flags or end > len(data) or length > FRAME_BYTES_MAX:
                break
            if kind == _DATA_FRAME and call is not None and call.streams:
                found.extend(call.take_data(data[begin:end]))
                self._grant(number, length)
            elif kind != _WINDOW_UPDATE_FRAME or not self._widen(number, data[begin:end]):
                break
            at = end
        return at

    def _grant(self, number: int, size: int) -> None:
        """Let the peer send as much again as we took without h2, once it is worth a word (RFC 9113, 6.9)."""
        self._taken_bytes += size
        if self._taken_bytes >= GRANT_BYTES:
            step, self._taken_bytes = self._taken_bytes.to_bytes(4, "big"), 0
            for each in (0, number):
                self._put(_frame_of(_WINDOW_UPDATE_FRAME, each, step))

    def _widen(self, number: int, step: bytes) -> bool:
        """Take a wider window for what we send; False: it is not as it should be, h2 is to say why."""
        window = self._connection.streams.get(number) if number else self._connection
        if window is None or len(step) != 4:
            return False
        size = window.outbound_flow_control_window + int.from_bytes(step, "big")
        if not window.outbound_flow_control_window < size < 1 << 31:
            return False
        window.outbound_flow_control_window = size
        return True

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
            call.take_head(dict(event.headers))
        elif isinstance(event, TrailersReceived):
            call.take_status(dict(event.headers))
        elif isinstance(event, DataReceived):
            self._connection.acknowledge_received_data(event.flow_controlled_length, number)
            yield from call.take_data(event.data)
        elif isinstance(event, StreamReset):
            call.status, call.words = "UNAVAILABLE", f"reset, HTTP/2 error {event.error_code:d}"
            yield self._calls.pop(number).end()
        elif isinstance(event, StreamEnded):
            yield self._calls.pop(number).end()


def _frame_of(kind: int, stream: int, body: bytes) -> bytes:
    """Return a frame without flags (RFC 9113, 4.1)."""
    return b"%b%c\0%b%b" % (len(body).to_bytes(3, "big"), kind, stream.to_bytes(4, "big"), body)


def _frame_head(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Return a frame's length, type, flags and stream."""
    high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
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
