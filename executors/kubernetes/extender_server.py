"""HTTP server of the scheduler extender: a single process that reads only the mirror file.

The scheduler blocks on each response, so a second thread reads the file.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from ...contract.server.http_server import (
    JSON,
    Handler,
    HttpError,
    HttpLimits,
    HttpServer,
    Routes,
    listener,
    metrics_routes,
)
from ...contract.server.metric_families import counter, exposition, gauge
from ...contract.text import counted
from ..mirror_file import MirrorFileError, read
from ..mirror_format import MirrorError, stale_reason
from .extender import ANSWERS, NO_TABLE, HealthTable, RequestBodyError, table_of

log = logging.getLogger(__name__)

#: A request with 5,000 names has 0.2 MB; a request with 5,000 whole nodes, without nodeCacheCapable, has over 30 MB.
BODY_BYTES_MAX = 16 << 20
#: A scheduler has one or a few connections, and may be silent for long.
LIMITS = HttpLimits(connections_max=64, idle_seconds_max=900.0, body_bytes_max=BODY_BYTES_MAX)
#: Period of the checks for a new mirror file, which is written every 3 s.
READ_SECONDS = 1.0
#: Garbage is collected after this many readings, in the reading thread: a collection takes longer than an answer.
READINGS_PER_COLLECTION = 60
#: Interpreter's switch interval: the reading thread yields to the answering thread after this time.
SWITCH_SECONDS = 0.0005
#: A repeated fault is logged once in this time.
LOG_SECONDS = 60.0


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
                log.info("%s", f"no node is filtered: {table.reason}" if table.reason else f"{self._path} is read: {counted(len(table.scores), 'node')}")  # fmt: skip
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
            words = f"filtered: {len(table.failed)} of {counted(len(table.scores), 'node')}"
        return f"{words}\n".encode()


def routes(extender: Extender) -> Routes:
    """Return the routes of the extender's API, of health and of metrics."""

    def verb(path: str) -> Handler:
        async def answer(request: web.BaseRequest) -> web.Response:
            try:
                body = await request.read()
            except web.HTTPRequestEntityTooLarge:
                raise HttpError(
                    413,
                    f"a body has at most {BODY_BYTES_MAX} bytes: set nodeCacheCapable: true, so that "
                    "names are sent in place of nodes",
                ) from None
            status, content = extender.answer(path, body)
            return web.Response(status=status, body=content, content_type=JSON)

        return answer

    async def health(request: web.BaseRequest) -> web.Response:
        del request
        return web.Response(body=extender.health(), content_type="text/plain")

    verbs = {("POST", path): verb(path) for path in ANSWERS}
    return {**verbs, ("GET", "/healthz"): health, **metrics_routes(extender.metrics)}


async def serve(
    extender: Extender, host: str, port: int, ended: asyncio.Event, ready: Callable[[int], None]
) -> None:
    """Answer until *ended* is set; call *ready* with the port. Raises OSError."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.disable()
    await asyncio.to_thread(extender.refresh)
    server = HttpServer(listener(host, port), routes(extender), LIMITS)
    await server.start()
    ready(server.port)
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
        await server.close()
