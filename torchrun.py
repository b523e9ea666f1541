"""`torchrun --rdzv-backend=gangline`: c10d rendezvous, which a host joins unless its agent bars it.

Before each join the handler queries the agent's socket, for ASK_SECONDS_MAX at most. A barred host
raises `BarredHostError` before it joins, so that with `--nnodes=3:4` the others continue without
it. Without an answer in time, the host joins. Options of `--rdzv-conf` are those of c10d, and
`agent_socket`. Needs only torch; torch 2.5 and later load it by its entry point.
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

AGENT_SOCKET = "/run/gangline/agent.sock"
ASK_SECONDS_MAX = 1.0
#: Longer answers are rejected.
ANSWER_BYTES_MAX = 1 << 20

#: HTTP/2 frame types, flags and preface (RFC 9113), for a unary gRPC call with the standard library
#: alone.
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class HealthAnswer(NamedTuple):
    """The agent's verdict on its host (contract/wire/nvhcd.proto)."""

    is_barred: bool
    reason: str


class BarredHostError(RuntimeError):
    """This host's agent bars it from jobs."""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream)
        + payload
    )


def _literal(prefix: bytes, *texts: bytes) -> bytes:
    return prefix + b"".join(bytes((len(text),)) + text for text in texts)


#: HPACK (RFC 7541), static table: 3 :method POST, 6 :scheme http; names 4 :path, 1 :authority,
#: 31 content-type. Headers: PROTOCOL-HTTP2.md of gRPC.
_REQUEST = (
    b"\x83\x86"
    + _literal(b"\x04", b"/nvhcd.HealthCheckService/RunHealthCheck")
    + _literal(b"\x01", b"localhost")
    + _literal(b"\x0f\x10", b"application/grpc")
    + _literal(b"\x00", b"te", b"trailers")
)


def ask(path: str, seconds_max: float = ASK_SECONDS_MAX) -> HealthAnswer | None:
    """Return the answer of the agent at *path*; None without an answer in time. Never raises."""
    deadline = time.monotonic() + seconds_max
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(seconds_max)
            connection.connect(path)
            connection.sendall(
                _PREFACE
                + _frame(_SETTINGS, 0, 0)
                + _frame(_HEADERS, _END_HEADERS, 1, _REQUEST)
                + _frame(_DATA, _END_STREAM, 1, bytes(5))  # an empty message
            )
            return _answer(connection, deadline)
    except (OSError, ValueError) as error:
        log.info("gangline: the agent at %s did not answer (%s); this host joins", path, error)
        return None


def _answer(connection: socket.socket, deadline: float) -> HealthAnswer:
    message = b""
    while True:
        head = _receive(connection, 9, deadline)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        payload = _receive(connection, size, deadline)
        if kind == _SETTINGS and not flags & _ACK:
            connection.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            connection.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _DATA:
            message += payload
            if len(message) > ANSWER_BYTES_MAX:
                raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
            if len(message) >= 5 and len(message) >= 5 + int.from_bytes(message[1:5], "big"):
                return parse_answer(message[5 : 5 + int.from_bytes(message[1:5], "big")])
        elif kind in (_RST_STREAM, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
            raise ValueError("the call was refused")


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    if size > ANSWER_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes")
    data = b""
    while len(data) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(size - len(data))
        if not part or time.monotonic() > deadline:
            raise ValueError("the agent closed the connection, or took too long")
        data += part
    return data


def parse_answer(message: bytes) -> HealthAnswer:
    """Return the verdict in a HealthCheckResponse. Raises ValueError if it is malformed.

    A host is barred without success and with an exit code.
    """
    numbers, texts = {1: 0, 2: 0}, {3: "", 4: ""}
    for field, value in _fields(message):
        if isinstance(value, int):
            numbers[field] = value
        else:
            texts[field] = value.decode(errors="replace")
    is_barred = not numbers[1] and numbers[2] != 0
    return HealthAnswer(is_barred, texts[4] or texts[3])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    offset = 0

    def varint() -> int:
        nonlocal offset
        value = shift = 0
        while True:
            if offset >= len(message) or shift > 63:
                raise ValueError("no message of this kind")
            byte = message[offset]
            offset, value, shift = offset + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while offset < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            size = varint()
            if size > len(message) - offset:
                raise ValueError("no message of this kind")
            yield key >> 3, message[offset : offset + size]
            offset += size
        else:
            raise ValueError("no message of this kind")


def rendezvous() -> Callable[[Any], Any]:
    """Return the factory of handlers, for the entry point `gangline` of `torchrun.handlers`.

    torch is imported only here, so that this file can be imported without it.
    """
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    class GanglineRendezvous(RendezvousHandler):  # type: ignore[misc]
        """c10d, with a query to the agent before each join."""

        def __init__(self, inner: Any, path: str) -> None:
            self._inner, self._path, self._is_barred = inner, path, False

        def get_backend(self) -> str:
            return "gangline"

        @property
        def use_agent_store(self) -> bool:
            return bool(self._inner.use_agent_store)

        def next_rendezvous(self) -> Any:
            answer = ask(self._path)
            if answer is not None and answer.is_barred:
                self._is_barred = True
                raise BarredHostError(
                    f"{socket.gethostname()} is barred from jobs by its agent and does not join: {answer.reason}; "
                    "`gangline check` there says what to do"
                )
            return self._inner.next_rendezvous()

        def is_closed(self) -> bool:
            return bool(self._inner.is_closed())

        def set_closed(self) -> None:
            self._inner.set_closed()

        def num_nodes_waiting(self) -> int:
            return int(self._inner.num_nodes_waiting())

        def get_run_id(self) -> str:
            return str(self._inner.get_run_id())

        def shutdown(self) -> bool:
            # Closing the rendezvous would end the job of the others, who continue.
            return True if self._is_barred else bool(self._inner.shutdown())

    def create(parameters: Any) -> Any:
        path = str(parameters.get("agent_socket", AGENT_SOCKET))
        backend, store = create_backend(parameters)
        return GanglineRendezvous(create_handler(store, backend, parameters), path)

    return create
