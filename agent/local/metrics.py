"""`/metrics` of this host: an optional thread that serves Prometheus scrapes of the agent's readings.

It cannot block the daemon: it reads immutable copies, and renders each of the two formats at most
once a second, regardless of the number of clients.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ...contract.exposition import ExpositionFormat, negotiate_format, render_exposition
from ..clock import Clock
from ..config import AgentConfig
from ..events import EventPublisher
from ..latest import LatestReadings
from ..registration import Registration, version
from . import metrics_http
from .exposition import Exposition
from .server import CpuBudget
from .unix_listener import UnixListener

#: A further connection closes the oldest one, so that a slow client cannot block others.
CONNECTIONS_MAX = 16
#: From accepting a connection to the last byte of the response.
CONNECTION_SECONDS_MAX = 10.0
#: Period of trying again after the address could not be opened (a port in use).
LISTEN_RETRY_SECONDS = 30.0
RENDER_SECONDS_MIN = 1.0
#: All clients share one CPU budget, because TCP gives no caller identity.
ALL_CLIENTS = 0
#: Mode of a Unix socket: for the agent's user and group.
SOCKET_MODE = 0o660
_CLOSE_SECONDS_MAX = 1.0
_READ_BYTES = 4096
#: Bytes read and discarded after the request: closing a socket with unread bytes resets the
#: connection, and the client would lose the response.
_DRAINED_BYTES_MAX = 1 << 20

log = logging.getLogger(__name__)


def serve(
    config: AgentConfig,
    latest: LatestReadings,
    registration: Registration,
    clock: Clock,
    publisher: EventPublisher | None = None,
) -> LocalMetricsServer:
    """Start and return the server of *config*; `metrics_listen` is set. *publisher* gives XIDs."""
    about = {"version": version(), "host": config.host_name}
    dcgm = None
    if config.metrics_names != "gangline":
        from .dcgm_metrics import NAMES, DcgmExposition  # loaded only if it is configured

        dcgm = DcgmExposition(
            config.host_name,
            clock.boottime_ns,
            registration.attributes,
            NAMES[config.metrics_names],
        )
        if publisher is not None:
            publisher.observe(dcgm.observe)
    exposition = Exposition(
        latest, clock.boottime_ns, registration.attributes, about, config.metrics_series_max, dcgm
    )
    server = LocalMetricsServer(config.metrics_listen, ExpositionCache(exposition, time.monotonic))
    server.start()
    return server


class ExpositionCache:
    """The exposition in both formats, each rendered at most once a second. For a single thread."""

    def __init__(self, exposition: Exposition, monotonic: Callable[[], float]) -> None:
        self._exposition = exposition
        self._monotonic = monotonic
        self._cache: dict[ExpositionFormat, tuple[float, bytes]] = {}

    def __call__(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition and its media type: the format that the Accept header asks for."""
        form = negotiate_format(accept)
        now = self._monotonic()
        rendered_at, body = self._cache.get(form, (now - RENDER_SECONDS_MIN, b""))
        if now - rendered_at >= RENDER_SECONDS_MIN:
            body = render_exposition(self._exposition.families(), form)
            self._cache[form] = now, body
        return body, form.value


@dataclass(slots=True)
class _Connection:
    """A client: read the request head, send the response, drain until the client closes."""

    socket: socket.socket
    until: float
    received: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None  # the unsent rest
    drained_bytes: int = 0

    @property
    def poll_events(self) -> int:
        return select.POLLOUT if self.answer else select.POLLIN


class LocalMetricsServer:
    """Serves the exposition on an address. `start` and `close` are for the main thread."""

    def __init__(
        self,
        listen: str,
        render: metrics_http.Render,
        monotonic: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        """*listen*: `host:port` or `unix:PATH`, checked by `config.check_listen`.

        *cost* returns the CPU seconds of the calling thread.
        """
        self._listen = listen
        self._render = render
        self._monotonic = monotonic
        self._wake, self._woken = socket.socketpair()
        self._listener: socket.socket | None = None
        self._unix_listener: UnixListener | None = None
        self._cost, self._budget = cost, CpuBudget()
        self._listen_at = monotonic()
        self._connections: dict[int, _Connection] = {}
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        #: The TCP port; 0 before it is open, and for a Unix socket.
        self.port = 0

    def start(self) -> None:
        """Start the thread. An address that cannot be opened is logged and tried again."""
        self._thread.start()

    def close(self) -> None:
        """End the thread within _CLOSE_SECONDS_MAX."""
        self._wake.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        try:
            while self._run_once():
                pass
        except Exception:
            log.exception("/metrics has ended", extra={"cause": "metrics.ended"})
        finally:
            for connection in list(self._connections.values()):
                self._close_connection(connection)
            self._close_listener()
            self._woken.close()

    def _run_once(self) -> bool:
        """Wait for events and handle them; False once `close` was called."""
        self._open()
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        paused_until = self._budget.available_at(ALL_CLIENTS, self._monotonic())
        if self._listener is not None and not paused_until:
            poll.register(self._listener, select.POLLIN)
        for descriptor, connection in self._connections.items() if not paused_until else ():
            poll.register(descriptor, connection.poll_events)
        ready = [descriptor for descriptor, _ in poll.poll(self._wait_milliseconds(paused_until))]
        if self._woken.fileno() in ready:
            return False
        before = self._cost()
        if self._listener is not None and self._listener.fileno() in ready:
            self._accept(self._listener)
        for descriptor in ready:
            if descriptor in self._connections:
                self._serve(self._connections[descriptor])
        self._close_expired()
        self._budget.spend(ALL_CLIENTS, self._cost() - before, self._monotonic())
        return True

    def _wait_milliseconds(self, paused_until: float) -> float | None:
        """Return the poll timeout; None: no timeout."""
        ends = [paused_until] if paused_until else []
        ends += [connection.until for connection in self._connections.values()]
        ends += [self._listen_at] if self._listener is None else []
        return max(0.0, 1000 * (min(ends) - self._monotonic())) if ends else None

    def _open(self) -> None:
        if self._listener is not None or self._monotonic() < self._listen_at:
            return
        self._listen_at = self._monotonic() + LISTEN_RETRY_SECONDS
        try:
            if self._listen.startswith("unix:"):
                self._unix_listener = UnixListener(
                    Path(self._listen.removeprefix("unix:")), SOCKET_MODE
                )
            self._listener = (
                self._unix_listener.socket if self._unix_listener else tcp_listener(self._listen)
            )
        except OSError as error:
            message = f"{self._listen} cannot be listened on: {error.strerror or error}"
            log.warning("/metrics: %s", message, extra={"cause": "metrics.listen"})
            return
        name = self._listener.getsockname()
        self.port = name[1] if isinstance(name, tuple) else 0
        log.info("/metrics on %s", self._listen, extra={"cause": "metrics.listening"})

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._unix_listener is not None:
            self._unix_listener.close()
            self._unix_listener = None

    def _accept(self, server_socket: socket.socket) -> None:
        try:
            accepted, _ = server_socket.accept()
        except (BlockingIOError, ConnectionError):  # the client disconnected
            return
        except OSError as error:  # out of descriptors: poll() would report the listener forever
            log.warning("/metrics: %s", error.strerror, extra={"cause": "metrics.accept"})
            self._close_listener()
            return
        accepted.setblocking(False)
        if len(self._connections) >= CONNECTIONS_MAX:
            self._close_connection(
                min(self._connections.values(), key=lambda connection: connection.until)
            )
        until = self._monotonic() + CONNECTION_SECONDS_MAX
        self._connections[accepted.fileno()] = _Connection(accepted, until)

    def _serve(self, connection: _Connection) -> None:
        try:
            is_open = self._step(connection)
        except BlockingIOError:
            is_open = True
        except OSError:  # the client disconnected
            is_open = False
        if not is_open:
            self._close_connection(connection)

    def _step(self, connection: _Connection) -> bool:
        """Continue with a ready connection; False when it is finished. Raises OSError."""
        if connection.answer:
            return self._send(connection, connection.answer)
        data = connection.socket.recv(_READ_BYTES)
        if connection.answer is not None:
            connection.drained_bytes += len(data)
            return bool(data) and connection.drained_bytes < _DRAINED_BYTES_MAX
        connection.received += data
        head, end, _ = connection.received.partition(metrics_http.END)
        if end or len(connection.received) > metrics_http.REQUEST_BYTES_MAX:
            return self._send(
                connection, memoryview(metrics_http.respond(bytes(head), self._render))
            )
        return bool(data)

    def _send(self, connection: _Connection, answer: memoryview) -> bool:
        connection.answer = answer
        connection.answer = answer[connection.socket.send(answer) :]
        if not connection.answer:
            connection.socket.shutdown(socket.SHUT_WR)
        return True

    def _close_expired(self) -> None:
        now = self._monotonic()
        for connection in list(self._connections.values()):
            if connection.until <= now:
                self._close_connection(connection)

    def _close_connection(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        connection.socket.close()


def tcp_listener(address: str) -> socket.socket:
    """Return a non-blocking listener on `host:port`. Raises OSError."""
    host, _, port = address.rpartition(":")
    addresses = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address_tuple = addresses[0]
    server_socket = socket.socket(family, kind, protocol)
    try:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server_socket.bind(address_tuple)
        server_socket.listen(CONNECTIONS_MAX)
    except OSError:
        server_socket.close()
        raise
    server_socket.setblocking(False)
    return server_socket
