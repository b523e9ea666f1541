"""HTTP server of the scheduler extender: one process that reads only the mirror file.

The scheduler blocks on each response, so a response is one write, and a second thread reads the file.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import logging
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...contract.metrics_http import RequestError, parse_request
from ..exposition import counter, exposition, gauge
from ..mirror_file import MirrorFileError, read
from ..mirror_format import MirrorError, stale_reason
from .extender import ANSWERS, NO_TABLE, HealthTable, RequestBodyError, table_of

log = logging.getLogger(__name__)

#: A request of 5,000 names has 0.2 MB; one of 5,000 whole nodes, without nodeCacheCapable, 30 MB and more.
BODY_BYTES_MAX = 16 << 20
#: Of one request, to its empty line.
HEAD_BYTES_MAX = 8192
#: Heads that were parsed are remembered: those of one scheduler differ by their length alone.
HEADS_MAX = 256
#: A scheduler has one connection, or a few.
CONNECTIONS_MAX = 64
#: From the first byte of a request to its last; between two requests.
REQUEST_SECONDS_MAX, IDLE_SECONDS_MAX = 10.0, 900.0
#: The file is looked at this often; it is written every 3 s.
READ_SECONDS = 1.0
#: Garbage is collected after this many readings, in the thread that reads: a collection within an answer would take longer than the answer.
READINGS_PER_COLLECTION = 60
#: A thread that reads the file lets the other one run after this time.
SWITCH_SECONDS = 0.0005
#: The same fault is logged this often.
LOG_SECONDS = 60.0
_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 411: "Length Required",
    413: "Content Too Large", 431: "Request Header Fields Too Large", 503: "Service Unavailable", 505: "HTTP Version Not Supported",
}  # fmt: skip
_JSON, _PLAIN = "application/json", "text/plain; charset=utf-8"


class Extender:
    """The table that answers are made from, and what was counted. `refresh` reads the file."""

    def __init__(
        self,
        path: Path,
        node_of_host: Callable[[str], str] = lambda host: host,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._node_of_host, self._wall, self._monotonic = path, node_of_host, wall, monotonic  # fmt: skip
        self._table = NO_TABLE
        self._stamp: tuple[int, int] | None = None
        self._logged: dict[str, float] = {}
        self.requests: dict[tuple[str, str], int] = {}
        self.faults = 0
        self.connections = 0

    def table(self) -> HealthTable:
        """Return the table of now; NO_TABLE once the mirror is past its end."""
        table = self._table
        return table if table.valid_until > self._wall() else NO_TABLE

    def refresh(self) -> None:
        """Read the file if it is another one. Never raises: without it, all nodes pass."""
        try:
            status = self._path.stat()
            stamp = status.st_mtime_ns, status.st_ino
            if stamp == self._stamp:
                return
            mirror = read(self._path)
            if reason := stale_reason(mirror, self._wall()):
                raise MirrorError(reason)
            table = table_of(mirror, self._node_of_host)
        except OSError as error:
            self._lose(error.strerror or str(error))
        except (MirrorFileError, MirrorError) as error:
            self._lose(str(error))
        else:
            if table.reason != self._table.reason:
                log.info("%s", f"no node is filtered: {table.reason}" if table.reason else f"{self._path} is read: {len(table.scores)} nodes")  # fmt: skip
            self._table, self._stamp = table, stamp

    def _lose(self, reason: str) -> None:
        self.complain(f"all nodes pass: {self._path}: {reason}")
        self._stamp = None

    def complain(self, line: str) -> None:
        """Log a fault, the same one once a minute."""
        now = self._monotonic()
        if now - self._logged.get(line, -1e9) >= LOG_SECONDS:
            if len(self._logged) > 100:
                self._logged.clear()
            self._logged[line] = now
            log.warning("%s", line)

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return (status, body) of an answer. A fault of ours lets all nodes pass."""
        make = ANSWERS[path]
        try:
            answer = make(body, self.table())
            outcome = "answered"
        except RequestBodyError as error:
            self._count(path, "bad request")
            return 400, json.dumps({"error": str(error)}).encode()
        except Exception as error:
            log.debug("internal error of the extender", exc_info=True)
            self.faults += 1
            self.complain(f"all nodes pass: {error!r}")
            answer, outcome = make(body, NO_TABLE), "passed all"
        self._count(path, outcome)
        return 200, answer

    def _count(self, path: str, outcome: str) -> None:
        key = path, outcome
        self.requests[key] = self.requests.get(key, 0) + 1

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the figures in the form that the `Accept` header asks for, and its media type."""
        table, prefix = self._table, "gangline_extender_"
        left = table.valid_until - self._wall()
        return exposition([
            counter(prefix + "requests", "requests by path and outcome", sorted(self.requests.items()), ["path", "outcome"]),
            counter(prefix + "faults", "requests that let all nodes pass because of an error in the extender", self.faults),
            gauge(prefix + "valid_seconds", "for how long the mirror is valid; below 0 all nodes pass", left),
            gauge(prefix + "nodes", "nodes of the mirror", len(table.scores)),
            gauge(prefix + "filtered_nodes", "of them those that are filtered", len(table.failed)),
        ], accept)  # fmt: skip

    def health(self) -> bytes:
        """Return a line that says what is done now."""
        table = self.table()
        words = f"all nodes pass: {table.reason}" if table.reason else f"{len(table.failed)} of {len(table.scores)} nodes are filtered"  # fmt: skip
        return f"{words}\n".encode()


class ExtenderConnection(asyncio.Protocol):
    """One connection of a scheduler: requests one after the other, each answered with one write."""

    def __init__(self, extender: Extender) -> None:
        self._extender = extender
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        #: Of the request that is being read, once its head is there: (method, path, accept, keep-alive, length of its body).
        self._head: tuple[str, str, str, bool, int] | None = None
        self._loop = asyncio.get_running_loop()
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        plain = transport.get_extra_info("socket")
        with suppress(OSError, AttributeError):
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._extender.connections += 1
        if self._extender.connections > CONNECTIONS_MAX:
            self._refuse(503, f"at most {CONNECTIONS_MAX} connections")
            return
        self._wait(IDLE_SECONDS_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._extender.connections -= 1
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Take bytes; answer each request that is whole."""
        if not self._buffer and self._head is None:
            self._wait(REQUEST_SECONDS_MAX)
        self._buffer += data
        try:
            while self._transport is not None and not self._transport.is_closing() and self._take():
                pass
        except RequestError as error:
            self._refuse(error.status, str(error))
            return
        if not self._buffer and self._head is None:
            self._wait(IDLE_SECONDS_MAX)

    def _wait(self, seconds: float) -> None:
        """Let the connection end unless something happens within *seconds*. One timer is moved when it fires, not at each request."""
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._expire)
        elif self._buffer or self._head is not None:
            self._refuse(408, f"a request is whole within {REQUEST_SECONDS_MAX:.0f} s")
        elif self._transport is not None:
            self._transport.close()

    def _take(self) -> bool:
        """Answer one request; False if it is not whole yet. Raises RequestError."""
        buffer = self._buffer
        if self._head is None:
            end = buffer.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
            if end < 0:
                if len(buffer) >= HEAD_BYTES_MAX:
                    raise RequestError(431, f"a request head has at most {HEAD_BYTES_MAX} bytes")
                return False
            self._head = _parse_head(bytes(buffer[:end]))
            del buffer[: end + 4]
        method, path, accept, keep_alive, length = self._head
        if len(buffer) < length:
            return False
        body = bytes(buffer[:length])
        del buffer[:length]
        self._head = None
        status, answer, media = self._answer(method, path, accept, body)
        self._send(status, answer, media, keep_alive)
        return bool(buffer)

    def _answer(self, method: str, path: str, accept: str, body: bytes) -> tuple[int, bytes, str]:
        if path in ANSWERS:
            if method != "POST":
                raise RequestError(405, f"{path} is called with POST")
            return *self._extender.answer(path, body), _JSON
        if method != "GET":
            raise RequestError(404, f"expected one of {', '.join(ANSWERS)}")
        if path == "/healthz":
            return 200, self._extender.health(), _PLAIN
        if path == "/metrics":
            return 200, *self._extender.metrics(accept)
        raise RequestError(404, f"expected one of {', '.join(ANSWERS)}, /healthz, /metrics")

    def _send(self, status: int, body: bytes, media: str, keep_alive: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        connection = b"" if keep_alive else b"Connection: close\r\n"
        transport.write(
            b"HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n%s"
            % (status, _REASONS[status].encode(), media.encode(), len(body), connection, body)
        )
        if not keep_alive:
            transport.close()

    def _refuse(self, status: int, message: str) -> None:
        self._buffer.clear()
        self._head = None
        self._send(status, json.dumps({"error": message}).encode(), _JSON, False)


@functools.lru_cache(HEADS_MAX)
def _parse_head(head: bytes) -> tuple[str, str, str, bool, int]:
    """Return (method, path, accept, keep-alive, length of the body). Raises RequestError."""
    request = parse_request(head)
    headers = request.headers
    if "transfer-encoding" in headers:
        raise RequestError(411, "expected Content-Length, not Transfer-Encoding")
    text = headers.get("content-length", "0")
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise RequestError(400, f"Content-Length: {text[:20]}: expected a number")
    if int(text) > BODY_BYTES_MAX:
        raise RequestError(
            413, f"a body has at most {BODY_BYTES_MAX} bytes: set nodeCacheCapable: true, so that names are sent in place of nodes",
        )  # fmt: skip
    is_old = head.partition(b"\r\n")[0].endswith(b"HTTP/1.0")
    wish = headers.get("connection", "close" if is_old else "").lower()
    return request.method, request.path, headers.get("accept", ""), wish != "close", int(text)


async def serve(extender: Extender, host: str, port: int, ended: asyncio.Event, ready: Callable[[int], None]) -> None:  # fmt: skip
    """Answer on *host*:*port* until *ended*; *ready* is called with the port. Raises OSError where it cannot listen."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.disable()
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(extender.refresh)
    server = await loop.create_server(lambda: ExtenderConnection(extender), host, port, backlog=128)
    ready(server.sockets[0].getsockname()[1])
    try:
        for readings in itertools.count(1):
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), READ_SECONDS)
            if ended.is_set():
                return
            await asyncio.to_thread(extender.refresh)
            if readings % READINGS_PER_COLLECTION == 0:
                await asyncio.to_thread(gc.collect)
    finally:
        gc.enable()
        server.close()
