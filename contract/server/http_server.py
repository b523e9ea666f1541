"""The HTTP server of the aggregator and the executors, on aiohttp: /metrics, the scheduler extender, attribution.

aiohttp parses and answers. It limits neither the number of connections nor the time of a request;
`HttpServer` adds these limits, so that slow clients keep nobody else out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]
#: (method, path) -> handler. A GET handler answers HEAD too.
Routes = Mapping[tuple[str, str], Handler]
#: The `Accept` header -> (the exposition, its media type).
Render = Callable[[str], tuple[bytes, str]]

#: Maximum length of the request line and of each header.
HEADER_BYTES_MAX = 8190
#: Period of the search for connections past their time, at most this share of that time.
SWEEP_SECONDS, SWEEP_SHARE = 1.0, 0.25
#: Time for requests in progress to end when the server closes.
CLOSE_SECONDS = 2.0
JSON = "application/json"
#: aiohttp logs a traceback for each malformed request; the error is in its answer.
_SILENT = logging.getLogger(f"{__name__}.aiohttp")
_SILENT.disabled = True


class HttpError(Exception):
    """A request that cannot be answered; the message states the correct form."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of a server. Beyond `connections_max`, the connection without an answer for longest is closed."""

    connections_max: int
    #: From accepting a connection, or the first byte of a request, to the end of its answer.
    request_seconds_max: float = 10.0
    #: Between two requests.
    idle_seconds_max: float = 60.0
    body_bytes_max: int = 64 << 10


def listener(address: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family, kind, protocol, _, socket_address = socket.getaddrinfo(
        address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    server_socket = socket.socket(family, kind, protocol)
    try:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server_socket.bind(socket_address)
        server_socket.listen(128)
        server_socket.setblocking(False)
    except BaseException:
        server_socket.close()
        raise
    return server_socket


class HttpServer:
    """Answers *routes* on a listening socket; `start` and `close` are called on its event loop."""

    def __init__(self, listening: socket.socket, routes: Routes, limits: HttpLimits) -> None:
        self._listening, self._routes, self._limits = listening, routes, limits
        self._paths = sorted({path for _, path in routes})
        self._connections: dict[asyncio.BaseTransport, _TimedConnection] = {}
        self._web: web.Server | None = None
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.Task[None] | None = None
        #: Connections closed because there were too many, or their time was over.
        self.dropped_count = 0

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listening.getsockname()[1])

    async def start(self) -> None:
        """Start accepting connections."""
        loop, limits = asyncio.get_running_loop(), self._limits

        def request(message, payload, protocol, writer, task):  # type: ignore[no-untyped-def]
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=limits.body_bytes_max
            )  # fmt: skip

        self._web = answering = web.Server(
            self._answer, request_factory=request, logger=_SILENT, access_log=None, auto_decompress=False,
            keepalive_timeout=limits.idle_seconds_max, max_line_size=HEADER_BYTES_MAX, max_field_size=HEADER_BYTES_MAX,
        )  # fmt: skip
        self._server = await loop.create_server(
            lambda: _TimedConnection(answering(), self), sock=self._listening
        )
        self._sweep = asyncio.create_task(self._drop_late())

    async def close(self) -> None:
        """Close all connections."""
        if self._server is None or self._web is None or self._sweep is None:
            return
        self._server.close()
        self._sweep.cancel()
        await self._web.shutdown(CLOSE_SECONDS)

    def admit(self, connection: _TimedConnection, transport: asyncio.BaseTransport) -> None:
        """Add a new connection; drop another if there are too many."""
        self._connections[transport] = connection
        if len(self._connections) > self._limits.connections_max:
            self._drop(min(self._connections.items(), key=lambda item: item[1].answered)[0])

    def forget(self, transport: asyncio.BaseTransport) -> None:
        """Remove a closed connection."""
        self._connections.pop(transport, None)

    def _drop(self, transport: asyncio.BaseTransport) -> None:
        self.dropped_count += 1
        self.forget(transport)
        assert isinstance(transport, asyncio.Transport)
        transport.abort()

    async def _drop_late(self) -> None:
        """Drop connections whose request takes too long, from its first byte to the last of its answer."""
        seconds_max = self._limits.request_seconds_max
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, SWEEP_SHARE * seconds_max))
            begun_before = asyncio.get_running_loop().time() - seconds_max
            for transport, connection in list(self._connections.items()):
                if connection.is_busy and connection.begun <= begun_before:
                    self._drop(transport)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the handler's response, or an error as JSON."""
        connection = self._connections.get(request.transport) if request.transport else None
        if connection is not None:
            connection.begin()
        try:
            return await self._route(request)(request)
        except HttpError as error:
            return _refusal(error.status, str(error))
        except web.HTTPRequestEntityTooLarge:
            message = f"a body has at most {self._limits.body_bytes_max} bytes"
            return _refusal(413, message)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("%s cannot be answered", request.path)
            return _refusal(500, f"{type(error).__name__}: {error}")
        finally:
            if connection is not None:
                connection.end()

    def _route(self, request: web.BaseRequest) -> Handler:
        """Return the handler of *request*. Raises HttpError."""
        method = "GET" if request.method == "HEAD" else request.method
        if handler := self._routes.get((method, request.path)):
            return handler
        methods = [method for method, path in self._routes if path == request.path]
        if methods:
            raise HttpError(405, f"{request.path} is called with {' or '.join(methods)}")
        raise HttpError(404, f"no such path; expected one of {', '.join(self._paths)}")


class _TimedConnection(asyncio.Protocol):
    """Passes a connection's events to aiohttp, and records when its request began and ended."""

    def __init__(self, inner: web.RequestHandler, server: HttpServer) -> None:
        self._inner, self._server = inner, server
        self._transport: asyncio.BaseTransport | None = None
        #: Loop times: of the first byte of the current request, and of the last answer.
        self.begun = self.answered = asyncio.get_running_loop().time()
        self._has_request = True  # a connection without a first request is in its time, too

    @property
    def is_busy(self) -> bool:
        """Whether a request or its answer is in progress."""
        transport = self._transport
        assert isinstance(transport, asyncio.Transport)
        return self._has_request or transport.get_write_buffer_size() > 0

    def begin(self) -> None:
        """A request began."""
        if not self._has_request:
            self._has_request, self.begun = True, asyncio.get_running_loop().time()

    def end(self) -> None:
        """The request has its answer."""
        self._has_request, self.answered = False, asyncio.get_running_loop().time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection."""
        self._transport = transport
        self._inner.connection_made(transport)
        self._server.admit(self, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        if self._transport is not None:
            self._server.forget(self._transport)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Begin a request, unless one is in progress."""
        self.begin()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Tell aiohttp."""
        self._inner.eof_received()
        return None

    def pause_writing(self) -> None:
        """Tell aiohttp."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Tell aiohttp."""
        self._inner.resume_writing()


class HttpThread:
    """A server in its own thread, for a process without an event loop."""

    def __init__(self, listening: socket.socket, routes: Routes, limits: HttpLimits) -> None:
        self._server = HttpServer(listening, routes, limits)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.port

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _serve(self) -> None:
        await self._server.start()
        await self._ended.wait()
        await self._server.close()

    def close(self) -> None:
        """Stop the server."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(2 * CLOSE_SECONDS)


def metrics_routes(render: Render) -> Routes:
    """Return the route GET /metrics; *render* runs on the server's loop."""

    async def answer(request: web.BaseRequest) -> web.Response:
        body, media_type = render(request.headers.get("Accept", ""))
        headers = {"Content-Type": media_type, "Vary": "Accept, Accept-Encoding"}
        response = web.Response(body=body, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    return {("GET", "/metrics"): answer}


def _refusal(status: int, message: str) -> web.Response:
    """Return an error as JSON, and close the connection: the request's body may still arrive."""
    response = web.Response(status=status, text=json.dumps({"error": message}), content_type=JSON)
    response.force_close()
    return response
