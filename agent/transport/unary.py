"""A gRPC call with one answer over a Unix socket: of kubelet, and of the agent of this host.

Formats: RFC 9113 (HTTP/2) by `h2`, and gRPC's PROTOCOL-HTTP2.md: five bytes before each message, the status in the
trailers.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from urllib.parse import unquote_to_bytes

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)

from .calls import STATUS_NAMES, printable
from .lengths import FrameLengths, FrameTooLong

#: An answer longer than this is refused: of a node of 500 pods kubelet says 100 kB.
ANSWER_BYTES_MAX = 4 << 20
CONNECT_AGAIN_SECONDS = 0.01
_CHUNK_BYTES = 1 << 16
_PREFIX_BYTES = 5


class NobodyThere(ConnectionRefusedError):
    """Nobody listens at that path; the words say which."""


class CallFailed(Exception):
    """It was refused, or not answered as it should be, or not in time. `status` is gRPC's name for it."""

    def __init__(self, status: str, words: str) -> None:
        super().__init__(words)
        self.status = status


class Unary:
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
        self._lengths = FrameLengths()
        self._received = bytearray()
        self._headers: dict[bytes, bytes] = {}

    def data_to_send(self) -> bytes:
        """Return what must go to the socket now; each byte once."""
        return self._connection.data_to_send()

    def receive(self, data: bytes) -> bytes | None:
        """Take what the socket gave; return the answer once it is whole. Raises CallFailed, and nothing else."""
        try:
            self._lengths.check(data)
            answers = [self._take(event) for event in self._connection.receive_data(data)]
        except CallFailed:
            raise
        except FrameTooLong as error:
            raise CallFailed("UNKNOWN", f"what came is not gRPC: {error}") from error
        except Exception as error:  # three libraries parse a stranger's bytes here
            words = f"what came is not gRPC: {type(error).__name__}"
            raise CallFailed("UNKNOWN", words) from error
        return next((answer for answer in answers if answer is not None), None)

    def _take(self, event: Event) -> bytes | None:
        if isinstance(event, ResponseReceived | TrailersReceived):
            self._headers.update(event.headers)
        elif isinstance(event, DataReceived):
            self._connection.acknowledge_received_data(event.flow_controlled_length, 1)
            self._received += event.data
            if len(self._received) > ANSWER_BYTES_MAX:
                words = f"an answer of more than {ANSWER_BYTES_MAX} bytes"
                raise CallFailed("RESOURCE_EXHAUSTED", words)
        elif isinstance(event, StreamReset | ConnectionTerminated):
            raise CallFailed("UNAVAILABLE", "the connection was ended")
        elif isinstance(event, StreamEnded):
            return self._answer()
        return None

    def _answer(self) -> bytes:
        status = self._headers.get(b"grpc-status", b"")
        if status != b"0":
            if not status.isdigit() or len(status) > 2 or int(status) >= len(STATUS_NAMES):
                raise CallFailed("UNKNOWN", "what answers is not gRPC: it has no status")
            words = printable(unquote_to_bytes(self._headers.get(b"grpc-message", b"")))
            raise CallFailed(STATUS_NAMES[int(status)], words or "no words")
        length = int.from_bytes(self._received[1:_PREFIX_BYTES], "big")
        if self._received[:1] != b"\0" or len(self._received) != _PREFIX_BYTES + length:
            raise CallFailed("UNKNOWN", "the answer is compressed, cut, or none")
        return bytes(self._received[_PREFIX_BYTES:])


def call(path: Path, method: str, request: bytes, seconds_max: float) -> bytes:
    """Return the answer of *method* (`/package.Service/Method`), within *seconds_max* in all.

    Raises NobodyThere, CallFailed, and PermissionError where we may not ask.
    """
    until = time.monotonic() + seconds_max
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds_max)
        try:
            _connect(connection, path, until)
            return _talk(connection, Unary(method, request, seconds_max), until)
        except FileNotFoundError:
            raise NobodyThere(f"there is no {path}") from None
        except ConnectionRefusedError:
            raise NobodyThere(f"nobody answers at {path}") from None
        except TimeoutError:
            words = f"no answer within {seconds_max:g} s"
            raise CallFailed("DEADLINE_EXCEEDED", words) from None
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
                words = f"{path} takes no more connections"
                raise CallFailed("UNAVAILABLE", words) from None
            time.sleep(CONNECT_AGAIN_SECONDS)


def _talk(connection: socket.socket, unary: Unary, until: float) -> bytes:
    answer = None
    while answer is None:
        connection.sendall(unary.data_to_send())
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        data = connection.recv(_CHUNK_BYTES)
        if not data:
            raise CallFailed("UNAVAILABLE", "it hung up")
        answer = unary.receive(data)
    return answer
