"""One host's connection to the aggregator, with the agent's own gRPC session, on a socket that does not block."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from gangline.agent.transport.grpc_http2 import REGISTER, CallEnd, ClientSession
from gangline.agent.transport.http2 import SessionError
from gangline.contract.wire import telemetry_pb2 as wire

RECEIVE_BYTES = 1 << 16


class LinkError(Exception):
    """The connection or a call on it ended, with the reason."""


class LoadLink:
    """Connects at once; call `register`, `open`, `send`. `receive` yields the acknowledgements."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._session = ClientSession(f"{address[0]}:{address[1]}")
        self._stream = 0
        self._unsent = b""  # bytes that the socket did not accept

    def register(self, request: bytes) -> wire.RegisterNodeResponse:
        """Return the answer to RegisterNode; blocks. Raises LinkError."""
        try:
            self._session.call(REGISTER, wire.RegisterNodeRequest.FromString(request))
        except SessionError as error:
            raise LinkError(str(error)) from error
        self._push()
        while True:
            for message in self._messages():
                assert isinstance(message, wire.RegisterNodeResponse)
                return message

    def open(self, session: str) -> None:
        """Begin StreamTelemetry; later calls do not block."""
        self._stream = self._session.open_stream(session)
        self._push()
        self.socket.setblocking(False)

    def send(self, batch: wire.TelemetryBatch) -> None:
        """Send *batch* on the stream, or queue it if the windows are full. Raises LinkError."""
        try:
            self._session.send(self._stream, batch)
        except SessionError as error:
            raise LinkError(str(error)) from error
        self._push()

    def flush(self) -> None:
        """Send the data that the socket did not accept before. Raises LinkError."""
        self._push()

    @property
    def waits(self) -> bool:
        """Whether the socket must be watched until it is writable."""
        return bool(self._unsent)

    def receive(self) -> Iterator[wire.IngestAck]:
        """Yield the acknowledgements. Raises LinkError when a call or the connection has ended."""
        for message in self._messages():
            if isinstance(message, wire.IngestAck):
                yield message

    def _messages(self) -> Iterator[object]:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkError(f"receiving: {error}") from error
        if not data:
            raise LinkError("the aggregator closed the connection")
        try:
            responses = self._session.receive(data)
        except SessionError as error:
            raise LinkError(str(error)) from error
        self._push()
        for response in responses:
            if isinstance(response, CallEnd):
                raise LinkError(str(response))
            yield response.message

    def _push(self) -> None:
        data = self._unsent + self._session.data_to_send()
        try:
            sent = self.socket.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise LinkError(f"sending: {error}") from error
        self._unsent = data[sent:]

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()
