"""gRPC clients over HTTP/2: calls of TelemetryService, and single calls over a Unix socket.

`ClientSession` has no socket: calls in, bytes out; bytes in, responses out. `call` opens a socket
and blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from google.protobuf.message import DecodeError, Message
from h2 import events
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from ...contract.wire.telemetry_pb2 import (
    IngestAck,
    RegisterNodeResponse,
    ReportEventsResponse,
    UploadRecordingResponse,
)
from .http2 import PREFIX_BYTES, STATUS_NAMES, GrpcConnection, SessionError, error_text, printable

REGISTER = "RegisterNode"
STREAM = "StreamTelemetry"
EVENTS = "ReportEvents"
UPLOAD = "UploadRecording"
#: Method -> type of its response.
RESPONSE_TYPES: Mapping[str, type[Message]] = {
    REGISTER: RegisterNodeResponse,
    STREAM: IngestAck,
    EVENTS: ReportEventsResponse,
    UPLOAD: UploadRecordingResponse,
}
#: Order of sending within the peer's flow-control windows: a recording can wait.
_PRIORITIES = {REGISTER: 0, EVENTS: 0, STREAM: 1, UPLOAD: 2}
SERVICE = "/gangline.v1.TelemetryService/"
#: A longer response is rejected unread. Ours are a few kilobytes.
MESSAGE_BYTES_MAX = 1 << 20
HEADER_BYTES_MAX = 1 << 14
SESSION_CHARACTERS_MAX = 256
#: Upper limit of the delay that an aggregator may ask for.
RETRY_SECONDS_MAX = 300.0
#: A server's first frame is SETTINGS; this number of bytes shows its type.
_SETTINGS_FRAME, _FIRST_BYTES = 4, 9


@dataclass(frozen=True, slots=True)
class CallResponse:
    """A server's message; for a unary call, after its status OK."""

    call: int
    method: str
    message: object


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call ended without success, or the stream ended in any way."""

    call: int
    method: str
    status: str
    message: str
    retry_seconds: float | None = None  # delay before a retry, if the server gave it

    def __str__(self) -> str:
        return f"{self.method}: {self.status}: {self.message or 'no message'}"


@dataclass(slots=True)
class ClientCall:
    """State of a call: headers, messages and status. The server's bytes are not trusted."""

    number: int
    method: str
    parse: Callable[[bytes], object]
    message_bytes_max: int
    is_streaming: bool
    server: str  # expected server, for error messages
    received: bytearray = field(default_factory=bytearray)
    responses: list[object] = field(default_factory=list[object])  # only for a unary call
    status: str = ""
    message: str = ""
    retry_seconds: float | None = None

    def on_headers(self, headers: Mapping[bytes, bytes]) -> None:
        """Check a response's headers. Raises SessionError."""
        status = headers.get(b":status", b"")
        content = headers.get(b"content-type", b"")
        if status != b"200" or not content.startswith(b"application/grpc"):
            raise SessionError(
                f"HTTP status {printable(status)}, content-type {printable(content) or 'none'}: "
                f"the server there is not {self.server}"
            )
        if headers.get(b"grpc-encoding", b"identity") != b"identity":
            raise SessionError("the answer is compressed, but the agent requested no compression")
        self.on_status(headers)

    def on_status(self, headers: Mapping[bytes, bytes]) -> None:
        """Store grpc-status, grpc-message (percent-encoded UTF-8) and the retry delay (gRFC A6)."""
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
        """Add bytes; yield complete messages, except of a unary call. Raises SessionError."""
        self.received += data
        while (body := self._body()) is not None:
            try:
                message = self.parse(body)
            except DecodeError as error:
                raise SessionError(
                    f"{self.method}: the answer cannot be read: {error_text(error)}"
                ) from error
            if self.is_streaming:
                yield CallResponse(self.number, self.method, message)
            elif self.responses:
                raise SessionError(f"{self.method}: more than one answer")
            else:
                self.responses.append(message)

    def _body(self) -> bytes | None:
        """Remove and return the next message's bytes; None while it is incomplete."""
        if len(self.received) < PREFIX_BYTES:
            return None
        length = int.from_bytes(self.received[1:PREFIX_BYTES], "big")
        if self.received[0]:
            raise SessionError(
                f"{self.method}: the message is compressed, but the agent requested no compression"
            )
        if length > self.message_bytes_max:
            raise SessionError(
                f"{self.method}: message of {length} bytes exceeds the limit of {self.message_bytes_max}"
            )
        end = PREFIX_BYTES + length
        if len(self.received) < end:
            return None
        body = bytes(self.received[PREFIX_BYTES:end])
        del self.received[:end]
        return body

    def end(self) -> CallResponse | CallEnd:
        """Return the call's result. Raises SessionError."""
        if self.received:
            raise SessionError(f"{self.method}: the answer ends in the middle of a message")
        if self.status == "OK" and not self.is_streaming:
            if not self.responses:
                raise SessionError(f"{self.method}: status OK without an answer")
            return CallResponse(self.number, self.method, self.responses[0])
        status = self.status or "UNKNOWN"
        return CallEnd(self.number, self.method, status, self.message, self.retry_seconds)


class GrpcClient(GrpcConnection[CallResponse | CallEnd]):
    """A client's connection to any gRPC server."""

    def __init__(self, authority: str, *, tls: bool, server: str) -> None:
        """*tls*: sets the scheme (RFC 9113, 8.3.1). *server*: expected, for error messages."""
        super().__init__(
            client_side=True,
            settings={SettingCodes.ENABLE_PUSH: 0},
            header_bytes_max=HEADER_BYTES_MAX,
        )
        self._authority, self._server = authority, server
        self._scheme = "https" if tls else "http"
        self._calls: dict[int, ClientCall] = {}
        self._first_bytes = b""

    def _begin(
        self,
        path: str,
        parse: Callable[[bytes], object],
        metadata: Sequence[tuple[str, str]] = (),
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        is_streaming: bool = False,
        priority: int = 0,
    ) -> int:
        headers = [
            (":method", "POST"),
            (":scheme", self._scheme),
            (":path", path),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc+proto"),
            ("user-agent", "gangline-agent"),
            *metadata,
        ]
        with self._library_errors():
            number = self._h2.get_next_available_stream_id()
            self._h2.send_headers(number, headers)
        method = path.rpartition("/")[2]
        self._open_queue(number, priority)
        self._calls[number] = ClientCall(
            number, method, parse, message_bytes_max, is_streaming, self._server
        )
        return number

    def receive(self, data: bytes) -> list[CallResponse | CallEnd]:
        """Process received bytes; return responses and ended calls. Raises only SessionError."""
        if len(self._first_bytes) < _FIRST_BYTES:
            self._first_bytes = (self._first_bytes + data)[:_FIRST_BYTES]
            _check_protocol(self._first_bytes, self._server)
        return super().receive(data)

    def _on_event(self, event: events.Event) -> Iterator[CallResponse | CallEnd]:
        if isinstance(event, events.ConnectionTerminated):
            raise SessionError(_goaway_text(event))
        number = getattr(event, "stream_id", None)
        call = self._calls.get(number) if isinstance(number, int) else None
        if call is None:
            return
        if isinstance(event, events.ResponseReceived):
            call.on_headers(dict(event.headers or ()))
        elif isinstance(event, events.TrailersReceived):
            call.on_status(dict(event.headers or ()))
        elif isinstance(event, events.DataReceived):
            yield from call.on_data(event.data or b"")
        elif isinstance(event, events.StreamReset):
            call.status, call.message = "UNAVAILABLE", f"reset, HTTP/2 error {event.error_code:d}"
            yield self._calls.pop(call.number).end()
        elif isinstance(event, events.StreamEnded):
            self._queues.pop(call.number, None)
            yield self._calls.pop(call.number).end()


class ClientSession(GrpcClient):
    """A connection to the aggregator's TelemetryService."""

    def __init__(self, authority: str, token: str = "", *, tls: bool = False) -> None:
        """*token* logs in each call; "" for none. *tls*: the bytes go over TLS."""
        super().__init__(authority, tls=tls, server="a Gangline aggregator")
        self._token = token

    def call(self, method: str, message: Message, session: str = "") -> int:
        """Start a unary call; return its number. Raises SessionError."""
        number = self._begin_method(method, session)
        self._enqueue(number, message.SerializeToString(), ends=True)
        return number

    def open_stream(self, session: str) -> int:
        """Start StreamTelemetry; return its number. Raises SessionError."""
        return self._begin_method(STREAM, session)

    def _begin_method(self, method: str, session: str) -> int:
        metadata = []
        if self._token:
            metadata.append(("authorization", f"Bearer {self._token}"))
        if session:
            metadata.append(("gangline-session", _checked_session(session)))
        return self._begin(
            SERVICE + method,
            RESPONSE_TYPES[method].FromString,
            metadata,
            is_streaming=method == STREAM,
            priority=_PRIORITIES[method],
        )

    def send(self, call: int, message: Message) -> None:
        """Queue a message; send it as far as the peer's windows allow. Raises SessionError."""
        self._enqueue(call, message.SerializeToString())

    def finish(self, call: int) -> None:
        """Half-close the stream after its last message; no effect the second time."""
        if call in self._queues:
            self._end(call)


def _check_protocol(data: bytes, server: str) -> None:
    """Raise SessionError that names the foreign protocol, as on a wrong port.

    An HTTP/2 server starts with a SETTINGS frame (RFC 9113, 3.4). Without this check, other bytes
    may look like the length of a long frame, and the client would wait for its end.
    """
    if data.startswith(b"HTTP/"):
        raise SessionError(f"an HTTP/1 server listens there, not {server}")
    if data[:2] in (b"\x15\x03", b"\x16\x03"):
        raise SessionError("the server uses TLS, but this agent sends plain text. Set tls_ca_file")
    if len(data) >= _FIRST_BYTES and data[3] != _SETTINGS_FRAME:
        raise SessionError(f"the server does not speak HTTP/2: it sent {printable(data)!r}")


def _checked_session(session: str) -> str:
    """Return *session* if it may be sent as a header. Raises SessionError."""
    if len(session) > SESSION_CHARACTERS_MAX or not (session.isascii() and session.isprintable()):
        raise SessionError("the aggregator's session is not short printable ASCII")
    return session


def _goaway_text(event: events.ConnectionTerminated) -> str:
    code = event.error_code or 0
    detail = printable(event.additional_data or b"")
    name = ErrorCodes(code).name if code in ErrorCodes.__members__.values() else f"error {code}"
    return f"the server closes the connection ({name}{': ' + detail if detail else ''})"
