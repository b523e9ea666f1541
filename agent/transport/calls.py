"""One gRPC call as far as it has come: its answer's headers, messages and status, checked as a stranger's.

Format: gRPC's PROTOCOL-HTTP2.md (five bytes before each message, status in the trailers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from google.protobuf.message import DecodeError, Message

from ...fingerprints.wire.telemetry_pb2 import IngestAck, RegisterNodeResponse, ReportEventsResponse

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
    """The connection is of no use any more; the words say why. `before`: what came before that."""

    before: Sequence[Answer | Ended] = ()
    #: When the aggregator wants us back, if it said so.
    retry_seconds: float | None = None


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
    retry_seconds: float | None = None  # when to try again, if it said so

    def __str__(self) -> str:
        return f"{self.method}: {self.status}: {self.words or 'no words'}"


def printable(words: bytes) -> str:
    """Return a peer's words as one line that a terminal survives, cut to WORDS_CHARACTERS_MAX."""
    text = words[: 4 * WORDS_CHARACTERS_MAX].decode(errors="replace")[:WORDS_CHARACTERS_MAX]
    return "".join(letter if letter.isprintable() else " " for letter in text)


def words_of(error: Exception) -> str:
    """Return an error of a library's in our words' form."""
    return printable(f"{type(error).__name__}: {error}".encode(errors="replace"))


@dataclass(slots=True)
class Call:
    """What waits to be sent on it, and what came of it so far."""

    number: int
    method: str
    out: bytearray = field(default_factory=bytearray)
    out_ends: bool = False
    finished: bool = False  # what was to be sent on it was said to be all
    streams: bool = False  # messages come on it: its answer has begun, as it should
    received: bytearray = field(default_factory=bytearray)
    answer: Message | None = None
    status: str = ""
    words: str = ""
    retry_seconds: float | None = None

    def take_head(self, headers: Mapping[bytes, bytes]) -> None:
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
        self.take_status(headers)
        self.streams = self.method == STREAM and not self.status

    def take_status(self, headers: Mapping[bytes, bytes]) -> None:
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
        self.words = printable(unquote_to_bytes(headers.get(b"grpc-message", b"")))

    def take_data(self, data: bytes) -> Iterator[Answer]:
        """Take bytes, and whole messages off them; a unary call's waits for its status. Raises SessionError."""
        self.received += data
        while (body := self._body()) is not None:
            message = self._decoded(body)
            if self.method == STREAM:
                yield Answer(self.number, self.method, message)
            elif self.answer is not None:
                raise SessionError(f"{self.method}: more than one answer")
            else:
                self.answer = message

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

    def _decoded(self, body: bytes) -> Message:
        try:
            return ANSWERS[self.method].FromString(body)
        except DecodeError as error:
            raise SessionError(
                f"{self.method}: the answer cannot be read: {words_of(error)}"
            ) from error

    def end(self) -> Answer | Ended:
        """Return what the call came to. Raises SessionError."""
        if self.received:
            raise SessionError(f"{self.method}: the answer ends in the middle of a message")
        if self.status == "OK" and self.method != STREAM:
            if self.answer is None:
                raise SessionError(f"{self.method}: status OK without an answer")
            return Answer(self.number, self.method, self.answer)
        status = self.status or "UNKNOWN"
        return Ended(self.number, self.method, status, self.words, self.retry_seconds)
