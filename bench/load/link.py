"""One host's connection to the aggregator: HTTP/2 and gRPC by hand, one write per message.

It implements only the parts of RFC 9113 that a correct server needs: windows, settings and pings.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterator

from hpack import Decoder

_HEAD = struct.Struct(">HBBBI")
_HEAD_BYTES = 9
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_INITIAL_WINDOW, _MAX_FRAME = 4, 5
#: Receive window, never extended: receipts are small, and a run has an end.
_RECEIVED_BYTES_MAX = 1 << 30
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE = "/gangline.v1.TelemetryService/"


class LinkError(Exception):
    """The connection or a call on it ended, with the reason."""


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """Return an HTTP/2 frame."""
    length = len(body)
    return _HEAD.pack(length >> 8, length & 255, kind, flags, stream) + body


def _literal(name: str, value: str) -> bytes:
    """Return a header without Huffman code and without indexing (RFC 7541, 6.2.2)."""
    return b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode())


def _headers(authority: str, method: str, session: str) -> bytes:
    fields = {
        ":method": "POST", ":scheme": "http", ":path": SERVICE + method, ":authority": authority,
        "te": "trailers", "content-type": "application/grpc+proto", "user-agent": "gangline-load",
    }  # fmt: skip
    if session:
        fields["gangline-session"] = session
    return b"".join(_literal(*field) for field in fields.items())


def batch(sequence: int, differences: bytes) -> bytes:
    """Return a TelemetryBatch, serialised: fields 1 and 4 of telemetry.proto."""
    number, length = _varint(sequence), _varint(len(differences))
    return b"\x08%b\x22%b%b" % (number, length, differences)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


class LoadLink:
    """Connects at once; call `register`, `open`, `send`. `receive` yields the stream's messages."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._authority = f"{address[0]}:{address[1]}"
        self._out: deque[bytes] = deque()  # of the stream, unsent because the window is full
        self._unsent = b""  # frames that the socket did not accept
        self._received = b""
        self._blocks: list[bytes] = []  # header blocks, decoded only after a failed call
        self._message: dict[int, bytes] = {}
        self._window, self._first_window, self._stream_window = 65535, 65535, 65535
        self._frame_max = 16384
        self._stream = 0
        settings = struct.pack(">HI", _INITIAL_WINDOW, _RECEIVED_BYTES_MAX)
        self.socket.sendall(
            _PREFACE
            + frame(_SETTINGS, 0, 0, settings)
            + frame(_WINDOW, 0, 0, struct.pack(">I", _RECEIVED_BYTES_MAX))
        )

    def register(self, request: bytes) -> bytes:
        """Return the answer to RegisterNode; blocks. Raises LinkError."""
        self._stream = 1
        self._begin("RegisterNode", "")
        self._queue(request)
        self._push()
        self._send(frame(_DATA, _END_STREAM, 1, b""))
        while True:
            if self._out:
                self._push()
            for message in self.receive():
                return message

    def open(self, session: str) -> None:
        """Begin StreamTelemetry; later calls do not block."""
        self._stream, self._stream_window = 3, self._first_window
        self._begin("StreamTelemetry", session)
        self.socket.setblocking(False)

    def _begin(self, method: str, session: str) -> None:
        block = _headers(self._authority, method, session)
        self._send(frame(_HEADERS, _END_HEADERS, self._stream, block))

    def send(self, message: bytes) -> None:
        """Send a message on the stream, or queue it if the windows are full."""
        size = len(message) + 5
        if self._out or size > min(self._window, self._stream_window, self._frame_max):
            self._queue(message)
            self._push()
            return
        self._window -= size
        self._stream_window -= size
        head = _HEAD.pack(size >> 8, size & 255, _DATA, 0, self._stream)
        self._send(b"%b\0%b%b" % (head, len(message).to_bytes(4, "big"), message))

    def _queue(self, message: bytes) -> None:
        self._out.append(b"\0" + len(message).to_bytes(4, "big") + message)

    def _push(self) -> None:
        while self._out:
            piece = self._out[0]
            size = min(self._window, self._stream_window, self._frame_max, len(piece))
            if size <= 0:
                return
            self._window -= size
            self._stream_window -= size
            self._send(frame(_DATA, 0, self._stream, piece[:size]))
            if size == len(piece):
                self._out.popleft()
            else:
                self._out[0] = piece[size:]

    def _send(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            self.flush()
            return
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise LinkError(f"sending: {error}") from error
        self._unsent = data[sent:]

    def flush(self) -> None:
        """Send the data that the socket did not accept before."""
        data, self._unsent = self._unsent, b""
        if data:
            self._send(data)

    @property
    def waits(self) -> bool:
        """Return whether the socket must be watched until it is writable."""
        return bool(self._unsent)

    def receive(self) -> Iterator[bytes]:
        """Yield the received messages. Raises LinkError when a call or the connection has ended."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            raise LinkError(f"receiving: {error}") from error
        if not data:
            raise LinkError("the aggregator closed the connection")
        data, at = self._received + data, 0
        while len(data) - at >= _HEAD_BYTES:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, at)
            end = at + _HEAD_BYTES + (high << 8 | low)
            if end > len(data):
                break
            body = data[at + _HEAD_BYTES : end]
            at = end
            if kind == _DATA:
                yield from self._messages(stream, body)
            else:
                self._take(kind, flags, stream, body)
        self._received = data[at:]

    def _messages(self, stream: int, body: bytes) -> Iterator[bytes]:
        data, at = self._message.pop(stream, b"") + body, 0
        while len(data) - at >= 5:
            end = at + 5 + int.from_bytes(data[at + 1 : at + 5], "big")
            if end > len(data):
                break
            yield data[at + 5 : end]
            at = end
        if at < len(data):
            self._message[stream] = data[at:]

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            self._settings(body)
            self._send(frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._send(frame(_PING, _ACK, 0, body))
        elif kind == _WINDOW:
            self._widen(stream, int.from_bytes(body, "big"))
        elif kind == _HEADERS:
            self._blocks.append(body)
            if flags & _END_STREAM and stream == 3:
                raise LinkError(f"the stream ended: {self._status_message()}")
            if flags & _END_STREAM and b"grpc-status" in body and stream not in self._message:
                self._check_unary()
        elif kind in (_RST, _GOAWAY):
            raise LinkError(f"reset or going away: {body[8:200].decode(errors='replace')}")

    def _check_unary(self) -> None:
        message = self._status_message()
        if not message.startswith("0 "):
            raise LinkError(f"RegisterNode: {message}")

    def _settings(self, body: bytes) -> None:
        for number, value in struct.iter_unpack(">HI", body):
            if number == _INITIAL_WINDOW:
                self._stream_window += value - self._first_window
                self._first_window = value
            elif number == _MAX_FRAME:
                self._frame_max = min(value, 1 << 16)
        self._push()

    def _widen(self, stream: int, step: int) -> None:
        if stream == 0:
            self._window += step
        elif stream == self._stream:
            self._stream_window += step
        self._push()

    def _status_message(self) -> str:
        decoder, result = Decoder(), dict[str, str]()
        for block in self._blocks:
            result |= {str(n): str(v) for n, v in decoder.decode(block)}
        return f"{result.get('grpc-status', '?')} {result.get('grpc-message', '')}"

    def close(self) -> None:
        self.socket.close()
