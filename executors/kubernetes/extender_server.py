"""HTTP server of the scheduler extender: a single process that reads only the mirror file.

The scheduler blocks on each response, so a response is a single write, and a second thread reads the file.
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

from ...contract.metric_families import counter, exposition, gauge
from ...contract.metrics_http import RequestError, parse_request
from ..mirror_file import MirrorFileError, read
from ..mirror_format import MirrorError, stale_reason
from .extender import ANSWERS, NO_TABLE, HealthTable, RequestBodyError, table_of

log = logging.getLogger(__name__)

#: A request with 5,000 names has 0.2 MB; a request with 5,000 whole nodes, without nodeCacheCapable, has over 30 MB.
BODY_BYTES_MAX = 16 << 20
#: Maximum length of a request's head, to its empty line.
HEAD_BYTES_MAX = 8192
#: Number of cached parsed heads: the heads of a scheduler differ only in Content-Length.
HEADS_MAX = 256
#: Further connections are refused; a scheduler has one or a few.
CONNECTIONS_MAX = 64
#: Timeout from the first byte of a request to its last, and timeout between two requests.
REQUEST_SECONDS_MAX, IDLE_SECONDS_MAX = 10.0, 900.0
#: Period of the checks for a new mirror file, which is written every 3 s.
READ_SECONDS = 1.0
#: Garbage is collected after this many readings, in the reading thread: a collection takes longer than an answer.
READINGS_PER_COLLECTION = 60
#: Interpreter's switch interval: the reading thread yields to the answering thread after this time.
SWITCH_SECONDS = 0.0005
#: A repeated fault is logged once in this time.
LOG_SECONDS = 60.0
_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 411: "Length Required",
    413: "Content Too Large", 431: "Request Header Fields Too Large", 503: "Service Unavailable", 505: "HTTP Version Not Supported",
}  # fmt: skip
_JSON, _PLAIN = "application/json", "text/plain; charset=utf-8"


class Extender:
    """The table for the answers, and counters of requests. `refresh` reads the mirror file."""

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
        """Return the current table; NO_TABLE once the mirror has expired."""
        table = self._table
        return table if table.valid_until > self._wall() else NO_TABLE

    def refresh(self) -> None:
        """Read the mirror file if it has changed.

        A missing or invalid file is logged; all nodes pass once the last valid mirror expires.
        """
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
        self.complain(f"all nodes pass once the last mirror expires: {self._path}: {reason}")
        self._stamp = None

    def complain(self, line: str) -> None:
        """Log a fault, a repeated fault only once in LOG_SECONDS."""
        now = self._monotonic()
        if now - self._logged.get(line, -1e9) >= LOG_SECONDS:
            if len(self._logged) > 100:
                self._logged.clear()
            self._logged[line] = now
            log.warning("%s", line)

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return (status, body) of an answer. After an internal error all nodes pass."""
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
        """Return (exposition of the figures, media type) in the format of the `Accept` header."""
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
        """Return a line with the number of filtered nodes, or with the reason why all nodes pass."""
        table = self.table()
        if table.reason:
            words = f"all nodes pass: {table.reason}"
        else:
            words = f"{len(table.failed)} of {len(table.scores)} nodes are filtered"
        return f"{words}\n".encode()


class ExtenderConnection(asyncio.Protocol):
    """A connection of a scheduler: requests in sequence, each answered with a single write."""

    def __init__(self, extender: Extender) -> None:
        self._extender = extender
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        #: Head of the request whose body is being read: (method, path, accept, keep-alive, length of the body).
        self._head: tuple[str, str, str, bool, int] | None = None
        self._loop = asyncio.get_running_loop()
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the idle timeout; refuse the connection if CONNECTIONS_MAX are open."""
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
        """Release the connection's slot and timer."""
        self._extender.connections -= 1
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Buffer *data*, and answer each complete request."""
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
        """Set the timeout of the connection to *seconds* from now.

        A later deadline reuses the running timer, which is set again when it fires, not at each request.
        """
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
        """Answer the next request if it is complete; return whether to try the next. Raises RequestError."""
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
            413,
            f"a body has at most {BODY_BYTES_MAX} bytes: set nodeCacheCapable: true, so that "
            "names are sent in place of nodes",
        )
    is_old = head.partition(b"\r\n")[0].endswith(b"HTTP/1.0")
    wish = headers.get("connection", "close" if is_old else "").lower()
    return request.method, request.path, headers.get("accept", ""), wish != "close", int(text)


async def serve(
    extender: Extender, host: str, port: int, ended: asyncio.Event, ready: Callable[[int], None]
) -> None:
    """Answer until *ended* is set; call *ready* with the port. Raises OSError."""
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
