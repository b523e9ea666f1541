"""A single unary gRPC call over a Unix socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path

from .grpc_http2 import CallEnd, CallResponse, GrpcClient
from .http2 import SessionError

#: A longer answer is rejected. For a node of 500 pods kubelet sends 100 kB.
ANSWER_BYTES_MAX = 4 << 20
CONNECT_RETRY_SECONDS = 0.01
_CHUNK_BYTES = 1 << 16


class NoListener(ConnectionRefusedError):
    """No process listens at the path that the message names."""


class CallFailed(Exception):
    """The call was refused, answered wrongly, or timed out. `status` is gRPC's status name."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class UnaryCall(GrpcClient):
    """A single call on a connection, without a socket: bytes out, bytes in."""

    def __init__(self, path: str, request: bytes, seconds_max: float) -> None:
        """*seconds_max*: the deadline, which is sent to the server too."""
        super().__init__("localhost", tls=False, server="a gRPC server")
        timeout = f"{max(1, min(99_999_999, int(seconds_max * 1000)))}m"
        number = self._begin(
            path, bytes, [("grpc-timeout", timeout)], message_bytes_max=ANSWER_BYTES_MAX
        )
        self._enqueue(number, request, ends=True)

    def answer(self, data: bytes) -> bytes | None:
        """Add received bytes; return the answer once it is complete. Raises only CallFailed."""
        try:
            received: Sequence[object] = self.receive(data)
        except SessionError as error:
            if not error.received:  # with data, the error is the GOAWAY of a server that ends
                raise CallFailed("UNKNOWN", str(error)) from error
            received = error.received
        for response in received:
            if isinstance(response, CallEnd):
                raise CallFailed(response.status, response.message or "no message")
            if isinstance(response, CallResponse) and isinstance(response.message, bytes):
                return response.message
        return None


def call(path: Path, method: str, request: bytes, seconds_max: float) -> bytes:
    """Return the answer of *method* (`/package.Service/Method`), within *seconds_max* in all.

    Raises NoListener, CallFailed, and PermissionError if the socket does not admit this user.
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
            raise NoListener(f"no answer at {path}") from None
        except TimeoutError:
            message = f"no answer within {seconds_max:g} s"
            raise CallFailed("DEADLINE_EXCEEDED", message) from None
        except PermissionError:
            raise
        except OSError as error:
            raise CallFailed("UNAVAILABLE", f"{path}: {error.strerror or error}") from error


def _connect(connection: socket.socket, path: Path, until: float) -> None:
    """Connect. A Unix socket with a full queue refuses at once, so retry until the deadline."""
    while True:
        try:
            return connection.connect(str(path))
        except BlockingIOError:
            if time.monotonic() >= until:
                message = f"{path} accepts no more connections"
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
            raise CallFailed("UNAVAILABLE", "the server closed the connection")
        response = unary.answer(data)
    return response
