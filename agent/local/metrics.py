"""`/metrics` of this host: a thread of its own that answers scrapers, and is there only when asked for.

Nothing in it can hold up the daemon: it reads copies that no one changes, and renders at most once a second
for each of the two forms, however many ask.
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

from ...fingerprints import http
from ...fingerprints.openmetrics import Form, form_of, text_of
from ..clock import Clock
from ..config import AgentConfig
from ..latest import Latest
from ..registration import Registration, version
from .budget import Budget
from .exposition import Exposition
from .listener import Listener

#: At one more, whoever has been connected for longest is let go: a slow one never keeps others out.
CONNECTIONS_MAX = 16
#: From being accepted to the last byte of the answer.
CONNECTION_SECONDS_MAX = 10.0
#: An address that cannot be had (a port in use) is tried again this often.
LISTEN_AGAIN_SECONDS = 30.0
RENDER_SECONDS_MIN = 1.0
#: All who ask have one budget: over TCP nobody says who he is.
ALL = 0
#: Of a Unix socket: for the agent's user and group.
SOCKET_MODE = 0o660
_CLOSE_SECONDS_MAX = 1.0
_READ_BYTES = 4096
#: What comes after the request is read and forgotten, up to this much: closing a socket with unread bytes
#: would take the answer from who sent them.
_DRAINED_BYTES_MAX = 1 << 20

log = logging.getLogger(__name__)


def serve(
    config: AgentConfig, latest: Latest, registration: Registration, clock: Clock
) -> MetricsServer:
    """Return the server that *config* asks for, started. `metrics_listen` is not empty."""
    about = {"version": version(), "host": config.host_name}
    exposition = Exposition(
        latest, clock.boottime_ns, registration.attributes, about, config.metrics_series_max
    )
    server = MetricsServer(config.metrics_listen, Rendered(exposition, time.monotonic))
    server.start()
    return server


class Rendered:
    """The exposition in either form, made anew when the last one is a second old. For one thread."""

    def __init__(self, exposition: Exposition, monotonic: Callable[[], float]) -> None:
        self._exposition = exposition
        self._monotonic = monotonic
        self._made: dict[Form, tuple[float, bytes]] = {}

    def __call__(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition and its media type: the older form for who asks for it and not for
        OpenMetrics."""
        form = form_of(accept)
        now = self._monotonic()
        made, body = self._made.get(form, (now - RENDER_SECONDS_MIN, b""))
        if now - made >= RENDER_SECONDS_MIN:
            body = text_of(self._exposition.families(), form)
            self._made[form] = now, body
        return body, form.value


@dataclass(slots=True)
class _Connection:
    """One who asks: read until the head is whole, then sent the answer, then drained until he goes."""

    socket: socket.socket
    until: float
    received: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None  # what is still to be sent of it
    drained_bytes: int = 0

    @property
    def waits_for(self) -> int:
        return select.POLLOUT if self.answer else select.POLLIN


class MetricsServer:
    """Serves `http.answer` on one address. `start` and `close` are for the main thread."""

    def __init__(
        self,
        listen: str,
        render: http.Render,
        monotonic: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        """*listen*: `host:port` or `unix:PATH`, as `config.check_listen` lets through. *cost*: seconds of a processor
        that this thread has used."""
        self._listen = listen
        self._render = render
        self._monotonic = monotonic
        self._wake, self._woken = socket.socketpair()
        self._listener: socket.socket | None = None
        self._file: Listener | None = None  # of a Unix socket
        self._cost, self._budget = cost, Budget()
        self._listen_at = monotonic()
        self._connections: dict[int, _Connection] = {}
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        #: The port that is listened on; 0 before, and on a Unix socket.
        self.port = 0

    def start(self) -> None:
        """Begin. An address that cannot be had is said in the log and tried again."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, within a second."""
        self._wake.close()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS_MAX)

    # The thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception:
            log.exception("/metrics has ended", extra={"cause": "metrics.ended"})
        finally:
            for connection in list(self._connections.values()):
                self._let_go(connection)
            self._close_listener()
            self._woken.close()

    def _turn(self) -> bool:
        """Wait for something to happen and do it; False once `close` was called."""
        self._open()
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        paused_until = self._budget.again(ALL, self._monotonic())
        if self._listener is not None and not paused_until:
            poll.register(self._listener, select.POLLIN)
        for number, connection in self._connections.items() if not paused_until else ():
            poll.register(number, connection.waits_for)
        ready = [number for number, _ in poll.poll(self._wait_milliseconds(paused_until))]
        if self._woken.fileno() in ready:
            return False
        before = self._cost()
        if self._listener is not None and self._listener.fileno() in ready:
            self._accept(self._listener)
        for number in ready:
            if number in self._connections:
                self._serve(self._connections[number])
        self._let_go_of_the_slow()
        self._budget.spend(ALL, self._cost() - before, self._monotonic())
        return True

    def _wait_milliseconds(self, paused_until: float) -> float | None:
        """Return how long nothing need be done; None: until somebody comes."""
        ends = [paused_until] if paused_until else []
        ends += [connection.until for connection in self._connections.values()]
        ends += [self._listen_at] if self._listener is None else []
        return max(0.0, 1000 * (min(ends) - self._monotonic())) if ends else None

    def _open(self) -> None:
        if self._listener is not None or self._monotonic() < self._listen_at:
            return
        self._listen_at = self._monotonic() + LISTEN_AGAIN_SECONDS
        try:
            if self._listen.startswith("unix:"):
                self._file = Listener(Path(self._listen.removeprefix("unix:")), SOCKET_MODE)
            self._listener = self._file.socket if self._file else listener(self._listen)
        except OSError as error:
            words = f"{self._listen} cannot be listened on: {error.strerror or error}"
            log.warning("/metrics: %s", words, extra={"cause": "metrics.listen"})
            return
        name = self._listener.getsockname()
        self.port = name[1] if isinstance(name, tuple) else 0
        log.info("/metrics on %s", self._listen, extra={"cause": "metrics.listening"})

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _accept(self, from_whom: socket.socket) -> None:
        try:
            accepted, _ = from_whom.accept()
        except (BlockingIOError, ConnectionError):  # he has gone already
            return
        except OSError as error:  # out of descriptors: he would be ready for ever
            log.warning("/metrics: %s", error.strerror, extra={"cause": "metrics.accept"})
            self._close_listener()
            return
        accepted.setblocking(False)
        if len(self._connections) >= CONNECTIONS_MAX:
            self._let_go(min(self._connections.values(), key=lambda each: each.until))
        until = self._monotonic() + CONNECTION_SECONDS_MAX
        self._connections[accepted.fileno()] = _Connection(accepted, until)

    def _serve(self, connection: _Connection) -> None:
        try:
            on = self._step(connection)
        except BlockingIOError:
            on = True
        except OSError:  # he went away
            on = False
        if not on:
            self._let_go(connection)

    def _step(self, connection: _Connection) -> bool:
        """Go on with one who is ready; False when it is over. Raises OSError."""
        if connection.answer:
            return self._send(connection, connection.answer)
        data = connection.socket.recv(_READ_BYTES)
        if connection.answer is not None:
            connection.drained_bytes += len(data)
            return bool(data) and connection.drained_bytes < _DRAINED_BYTES_MAX
        connection.received += data
        head, end, _ = connection.received.partition(http.END)
        if end or len(connection.received) > http.REQUEST_BYTES_MAX:
            return self._send(connection, memoryview(http.answer(bytes(head), self._render)))
        return bool(data)

    def _send(self, connection: _Connection, answer: memoryview) -> bool:
        connection.answer = answer
        connection.answer = answer[connection.socket.send(answer) :]
        if not connection.answer:
            connection.socket.shutdown(socket.SHUT_WR)
        return True

    def _let_go_of_the_slow(self) -> None:
        now = self._monotonic()
        for connection in list(self._connections.values()):
            if connection.until <= now:
                self._let_go(connection)

    def _let_go(self, connection: _Connection) -> None:
        del self._connections[connection.socket.fileno()]
        connection.socket.close()


def listener(address: str) -> socket.socket:
    """Return a socket that listens on `host:port`, and does not block. Raises OSError."""
    host, _, port = address.rpartition(":")
    found = socket.getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, where = found[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(CONNECTIONS_MAX)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made
