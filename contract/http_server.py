"""`/metrics` of an aggregator or an executor: plain HTTP, a request per connection, with limits.

It runs on its own event loop, so that slow or frequent scrapers do not delay agents.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from . import metrics_http

#: A further connection closes the oldest one, so that a slow client cannot block others.
CONNECTIONS_MAX = 16
#: Time limit from accepting a connection to the last byte of the response.
CONNECTION_SECONDS_MAX = 10.0
#: Bytes read and discarded after the request: closing with unread bytes resets the connection, and
#: the client would lose the response.
DRAINED_BYTES_MAX = 1 << 16


def listener(address: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family, kind, protocol, _, socket_address = socket.getaddrinfo(
        address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    server_socket = socket.socket(family, kind, protocol)
    try:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server_socket.bind(socket_address)
        server_socket.listen(CONNECTIONS_MAX)
        server_socket.setblocking(False)
    except BaseException:
        server_socket.close()
        raise
    return server_socket


class AggregatorMetricsServer:
    """Serves *render* on a listening socket; `start` and `close` are called on its event loop."""

    def __init__(self, listening: socket.socket, render: metrics_http.Render) -> None:
        self._listening, self._render = listening, render
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        #: Connections closed because there were too many, or their time was over.
        self.dropped_count = 0

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listening.getsockname()[1])

    async def start(self) -> None:
        """Start accepting connections."""
        self._server = await asyncio.start_server(
            self._serve, sock=self._listening, limit=metrics_http.REQUEST_BYTES_MAX
        )

    async def close(self) -> None:
        """Close all connections."""
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
            writer.transport.abort()  # the client disconnected, or was dropped: do not wait for it
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
            )  # longer than any valid request, therefore rejected
        except asyncio.IncompleteReadError:
            return  # the client disconnected before its request was complete
        writer.write(metrics_http.respond(head, self._render))
        await writer.drain()
        writer.write_eof()
        drained = 0
        while drained < DRAINED_BYTES_MAX and (data := await reader.read(4096)):
            drained += len(data)


class MetricsThread:
    """A server in its own thread, for a process without an event loop."""

    def __init__(self, address: str, port: int, render: metrics_http.Render) -> None:
        """Listen and serve. Raises OSError."""
        self._server = AggregatorMetricsServer(listener(address, port), render)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        await self._server.start()
        await self._ended.wait()
        await self._server.close()

    def close(self) -> None:
        """Stop the server."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(CONNECTION_SECONDS_MAX)
