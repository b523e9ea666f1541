"""A gRPC server without a socket: HTTP/2 by h2's own server side, gRPC by hand."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

HEAD = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]


class Server:
    """A server in memory: real HTTP/2, gRPC by hand."""

    def __init__(self) -> None:
        self.connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.connection.initiate_connection()
        self.headers: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytearray] = {}
        self.ended: list[int] = []
        self.order: list[int] = []  # streams, in the order of their data

    def receive(self, data: bytes, *, acknowledge: bool = True) -> bytes:
        for event in self.connection.receive_data(data):
            if isinstance(event, RequestReceived):
                self.headers[event.stream_id] = {str(k): str(v) for k, v in event.headers}
                self.bodies[event.stream_id] = bytearray()
            elif isinstance(event, DataReceived):
                self.bodies[event.stream_id] += event.data
                self.order.append(event.stream_id)
                if acknowledge:
                    self.connection.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
            elif isinstance(event, StreamEnded):
                self.ended.append(event.stream_id)
        return self.connection.data_to_send()

    def messages(self, stream: int) -> list[bytes]:
        body, result = bytes(self.bodies[stream]), []
        while body:
            assert body[0] == 0
            length = int.from_bytes(body[1:5], "big")
            result.append(body[5 : 5 + length])
            body = body[5 + length :]
        return result

    def answer(self, stream: int, *parts: bytes | list[tuple[str, str]], end: bool = True) -> bytes:
        """Send headers (lists) and data (bytes) in order; the last ends the stream."""
        for index, part in enumerate(parts):
            last = end and index == len(parts) - 1
            if isinstance(part, bytes):
                self.connection.send_data(stream, part, end_stream=last)
            else:
                self.connection.send_headers(stream, part, end_stream=last)
        return self.connection.data_to_send()


def framed(message: bytes, compressed: int = 0) -> bytes:
    return bytes((compressed,)) + len(message).to_bytes(4, "big") + message
