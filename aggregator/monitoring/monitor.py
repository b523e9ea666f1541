"""The aggregator looks at itself: a thread that pulls figures, keeps them, steps the alarms, answers /metrics.

A thread of its own, so that a loop that stands still, or a disk that does, is told of rather than waited for.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...contract import metrics_http
from ...contract.metrics_http import Family, form_of, labels_of, text_of
from ..fleet.fleet import Fleet
from ..model import OURSELVES, Finding
from ..store.rows import OwnReading
from . import alarms
from .alarms import Alarms, Cleared, Raised
from .metrics import PREFIX, TELLS, Moment, Parts, Values, families, pull
from .probes import Machine

# ----------------------------------------------------------------------
# `/metrics` of the aggregator: plain HTTP, one request a connection, bounded in all it takes.
#
# It runs on a loop of its own (`monitoring/monitor.py`), so that whoever asks slowly or often costs
# no agent anything.

#: At one more the one who has been connected for longest is let go: a slow one keeps nobody out.
CONNECTIONS_MAX = 16
#: From being accepted to the last byte of the answer.
CONNECTION_SECONDS_MAX = 10.0
#: What follows the request is read and forgotten, up to this much: closing with unread bytes would take the
#: answer from who sent them.
DRAINED_BYTES_MAX = 1 << 16


def listener(address: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises OSError."""
    family, kind, protocol, _, where = socket.getaddrinfo(
        address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(CONNECTIONS_MAX)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


class MetricsServer:
    """Serves *render* on a listening socket, from `start` to `close`; both on the loop that serves."""

    def __init__(self, listening: socket.socket, render: metrics_http.Render) -> None:
        self._listening, self._render = listening, render
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        #: Those that were let go because too many came, or because their time was over.
        self.let_go = 0

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listening.getsockname()[1])

    async def start(self) -> None:
        """Begin to accept."""
        self._server = await asyncio.start_server(
            self._serve, sock=self._listening, limit=metrics_http.REQUEST_BYTES_MAX
        )

    async def close(self) -> None:
        """Let go of everybody."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= CONNECTIONS_MAX:
            self._let_go(next(iter(self._connections)))
        self._connections[task] = writer
        try:
            async with asyncio.timeout(CONNECTION_SECONDS_MAX):
                await self._answer(reader, writer)
        except TimeoutError:
            self.let_go += 1
            writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()  # it hung up, or was let go: nobody waits for us to finish
        finally:
            self._connections.pop(task, None)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    def _let_go(self, task: asyncio.Task[None]) -> None:
        self.let_go += 1
        self._connections.pop(task)
        task.cancel()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(metrics_http.END)).removesuffix(metrics_http.END)
        except asyncio.LimitOverrunError:
            head = bytes(
                metrics_http.REQUEST_BYTES_MAX + 1
            )  # longer than a request may be, whatever it says
        except asyncio.IncompleteReadError:
            return  # it hung up before it had asked
        writer.write(metrics_http.answer(head, self._render))
        await writer.drain()
        writer.write_eof()
        drained = 0
        while drained < DRAINED_BYTES_MAX and (data := await reader.read(4096)):
            drained += len(data)


log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
#: Every so many looks are kept in the store.
KEPT_LOOKS = 3
#: Who asks for /metrics more often gets what was pulled last.
PULL_SECONDS_MIN = 1.0
CLOSE_SECONDS_MAX = 2.0

TOLD = {
    **TELLS,
    "commit_median_seconds": "latency of half of the commits since the look before",
    "commit_p99_seconds": "latency of nearly all of them",
}

Changes = Sequence[Raised | Cleared]
NS = 1_000_000_000


class OwnHealth:
    """What is known of ourselves. `look` and `render` are for one thread, `words` for any."""

    def __init__(
        self,
        parts: Parts,
        machine: Callable[[int], Machine],
        wall_ns: Callable[[], int],
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        about: dict[str, str] | None = None,
        hosts: Callable[[int], Sequence[Family]] = lambda _: (),
    ) -> None:
        """*machine*: what the kernel says at a wall clock's time (ns). *hosts*: the series of each host then."""
        self._hosts = hosts
        self._parts, self._machine = parts, machine
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns
        self._about = about or {}
        self._alarms = Alarms(alarms.table(parts.config, parts.store))
        self._looks = 0
        self._commits: list[int] = []
        self._pulled: tuple[int, Values] | None = None
        #: What stands against ourselves, in words.
        self.words: tuple[str, ...] = ()

    def look(self) -> Changes:
        """Pull all figures, hand every third look to the store, and return which alarms changed."""
        values = self._pull()
        values |= self._latency()
        if self._looks % KEPT_LOOKS == 0:
            self._parts.store.submit_own(kept(values, self._wall_ns()))
        self._looks += 1
        changes = self._alarms.step(values, self._monotonic_ns())
        self.words = self._alarms.words
        return changes

    def _pull(self) -> Values:
        now_ns = self._wall_ns()
        values = pull(Moment(self._parts, self._machine(now_ns), now_ns))
        self._pulled = self._monotonic_ns(), values
        return values

    def _latency(self) -> Values:
        """Return latencies of the commits since the look before; nothing when there was none."""
        histogram = self._parts.store.commit_seconds
        before, self._commits = self._commits, list(histogram.counts)
        median, p99 = histogram.quantile(0.5, before), histogram.quantile(0.99, before)
        if median is None or p99 is None:
            return {}
        return {"commit_median_seconds": median, "commit_p99_seconds": p99}

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition in the form asked for, and its media type."""
        pulled = self._pulled
        if pulled is None or self._monotonic_ns() - pulled[0] >= PULL_SECONDS_MIN * NS:
            values = self._pull()
        else:
            values = pulled[1]
        shown = families(values, self._parts, self._alarms.standing())
        about = [(labels_of(self._about), "1")]
        shown.append(Family(PREFIX.rstrip("_"), "info", "", "which aggregator this is", about))
        shown += self._hosts(self._wall_ns())
        form = form_of(accept)
        return text_of(shown, form), form.value


def kept(values: Values, now_ns: int) -> list[OwnReading]:
    """Return the rows of `own_health`."""
    return [(now_ns, name, value, TOLD[name]) for name, value in values.items()]


def tell(fleet: Fleet, changes: Changes, now_ns: int) -> None:
    """Keep what was raised as findings of no host, end what was cleared. For the loop's thread."""
    for change in changes:
        if isinstance(change, Raised):
            words, clears = change.words, change.clears
            fleet.find(Finding(OURSELVES, change.name, "", words, now_ns, clears_when=clears))
            log.warning("%s: %s", change.name, change.words)
        else:
            fleet.clear(OURSELVES, change.name)
            log.warning("%s: cleared", change.name)


class Watch:
    """Runs `OwnHealth` and the /metrics server in a thread. `start` and `close` are for the main thread."""

    def __init__(
        self, health: OwnHealth, tell: Callable[[Changes], None], server: MetricsServer | None
    ) -> None:
        """*tell*: takes changes, called in our thread."""
        self._health, self._tell, self._server = health, tell, server
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="own-health", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End, within CLOSE_SECONDS_MAX. Never raises."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        if self._server is not None:
            await self._server.start()
        try:
            while not self._stop.is_set():
                self._look()
                try:
                    await asyncio.wait_for(self._stop.wait(), LOOK_SECONDS)
                except TimeoutError:
                    continue
        finally:
            if self._server is not None:
                await self._server.close()

    def _look(self) -> None:
        try:
            self._tell(self._health.look())
        except Exception:
            log.exception("a look at ourselves failed; the next is in %g s", LOOK_SECONDS)
