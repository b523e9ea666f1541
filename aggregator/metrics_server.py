"""`/metrics` of an aggregator or an executor: plain HTTP, one request per connection, with limits on everything.

It runs on its own event loop, so slow or frequent scrapers do not delay agents.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from ..contract import metrics_http

#: At one more the one who has been connected for longest is let go: a slow one keeps nobody out.
CONNECTIONS_MAX = 16
#: From being accepted to the last byte of the answer.
CONNECTION_SECONDS_MAX = 10.0
#: What follows the request is read and forgotten, up to this much: closing with unread bytes would take the
#: answer from who sent them.
DRAINED_BYTES_MAX = 1 << 16


def listener(address: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises OSError."""
    family, kind, protocol, _, socket_address = socket.getaddrinfo(
        address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(socket_address)
        made.listen(CONNECTIONS_MAX)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


class AggregatorMetricsServer:
    """Serves *render* on a listening socket, from `start` to `close`; both on the loop that serves."""

    def __init__(self, listening: socket.socket, render: metrics_http.Render) -> None:
        self._listening, self._render = listening, render
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        #: Those that were let go because too many came, or because their time was over.
        self.dropped_count = 0

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
        """Release everybody."""
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
            self._drop(next(iter(self._connections)))
        self._connections[task] = writer
        try:
            async with asyncio.timeout(CONNECTION_SECONDS_MAX):
                await self._answer(reader, writer)
        except TimeoutError:
            self.dropped_count += 1
            writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()  # it closed the connection, or was let go: nobody waits for us to finish
        finally:
            self._connections.pop(task, None)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    def _drop(self, task: asyncio.Task[None]) -> None:
        self.dropped_count += 1
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
            return  # it closed the connection before it had asked
        writer.write(metrics_http.respond(head, self._render))
        await writer.drain()
        writer.write_eof()
        drained = 0
        while drained < DRAINED_BYTES_MAX and (data := await reader.read(4096)):
            drained += len(data)


class MetricsThread:
    """A server in a thread of its own, for a process without a loop."""

    def __init__(self, address: str, port: int, render: metrics_http.Render) -> None:
        """Listen. Raises OSError."""
        self._server = AggregatorMetricsServer(listener(address, port), render)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        await self._server.start()
        await self._ended.wait()
        await self._server.close()

    def close(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(CONNECTION_SECONDS_MAX)
