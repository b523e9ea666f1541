"""gRPC server on the agent's Unix socket: unary calls, one thread that sleeps between calls.

Any user on the host may connect, so a client must cost only itself: `ServerSession` limits the
requests, `LocalServerLimits` the connections and their idle time, `CpuBudget` each user's CPU time.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...contract.token_bucket import TokenBucket
from ..transport.http2 import SessionError
from .grpc_session import (
    CALLS_MAX,
    UNSENT_BYTES_MAX,
    CallRefused,
    DeferredResponse,
    Method,
    Peer,
    ServerCall,
    ServerSession,
)
from .unix_listener import UnixListener, peer_of

#: Share of a processor that all connections of a user may use together.
CPU_SHARE_MAX = 0.1
#: CPU seconds that a user may use at once after a quiet time.
BURST_SECONDS = 0.25
#: Users remembered. Beyond, the user with the most seconds left is forgotten.
USERS_MAX = 256
RECEIVE_BYTES_MAX = 1 << 16
#: Pause after a failed accept, for example without a free descriptor.
ACCEPT_RETRY_SECONDS = 1.0
#: Pause of accepting after a connection of a user without CPU share.
ACCEPT_PAUSE_SECONDS = 0.005
CLOSE_SECONDS_MAX = 1.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalServerLimits:
    """Limits of all clients together, and of each user."""

    #: Further connections are closed unread.
    connections_max: int = 64
    #: Share of connections_max for root and the agent's own user.
    connections_reserved: int = 16
    connections_per_user_max: int = 16
    #: A connection without a call for this long is ended; gRPC's clients reconnect when needed.
    idle_seconds_max: float = 300.0
    #: A connection without a complete call after this time is ended.
    first_call_seconds_max: float = 10.0
    #: Timeout of a call whose client set none.
    call_seconds_max: float = 60.0


def has_room(
    peer: Peer, peers: Sequence[Peer], limits: LocalServerLimits, privileged_users: Container[int]
) -> bool:
    """Return whether *peer* may connect, given the connected *peers*."""
    if peer.user_id in privileged_users:
        return len(peers) < limits.connections_max
    others = [other for other in peers if other.user_id not in privileged_users]
    same_user = sum(other.user_id == peer.user_id for other in others)
    capacity = limits.connections_max - limits.connections_reserved
    return len(others) < capacity and same_user < limits.connections_per_user_max


class ClientConnection:
    """A client's socket, session and unsent bytes. All methods belong to the server's thread."""

    def __init__(self, client_socket: socket.socket, peer: Peer, now: float) -> None:
        self.socket, self.peer = client_socket, peer
        self.session = ServerSession()
        self.out = bytearray()
        self.idle_since = now
        #: Nothing is read until then: the user has used up its CPU share.
        self.paused_until = 0.0
        #: Stream -> response and deadline.
        self.deferred: dict[int, tuple[DeferredResponse, float]] = {}
        self.poll_events = selectors.EVENT_READ

    def flush(self) -> None:
        """Send as far as the socket accepts. Raises SessionError and OSError."""
        self.out += self.session.data_to_send()
        if self.out:
            with suppress(BlockingIOError):
                del self.out[: self.socket.send(self.out, socket.MSG_NOSIGNAL)]
        if len(self.out) + self.session.unsent_bytes > UNSENT_BYTES_MAX:
            raise SessionError("the client does not read its answer")

    def drop_cancelled(self) -> None:
        """Mark the responses whose calls the client has cancelled."""
        for stream in [stream for stream in self.deferred if not self.session.is_waiting(stream)]:
            deferred, _ = self.deferred.pop(stream)
            deferred.is_cancelled = True

    def next_deadline(self, limits: LocalServerLimits) -> float:
        """Return the time at which this connection needs attention without input."""
        times = [until for _, until in self.deferred.values()]
        if not self.deferred:
            times.append(self.idle_since + self._idle_limit_seconds(limits))
        if self.paused_until:
            times.append(self.paused_until)
        return min(times)

    def _idle_limit_seconds(self, limits: LocalServerLimits) -> float:
        has_called = self.session.calls > 0
        return limits.idle_seconds_max if has_called else limits.first_call_seconds_max

    def is_idle(self, limits: LocalServerLimits, now: float) -> bool:
        return not self.deferred and now >= self.idle_since + self._idle_limit_seconds(limits)


class CpuBudget:
    """CPU seconds that each user has left. Pure."""

    def __init__(self) -> None:
        self._buckets: dict[int, TokenBucket] = {}  # by user

    def left_seconds(self, user: int, now: float) -> float:
        """Return the seconds left; at 0 or less nothing more is read from the user."""
        bucket = self._buckets.get(user)
        return bucket.level(now) if bucket else BURST_SECONDS

    def spend(self, user: int, seconds: float, now: float) -> None:
        bucket = self._buckets.setdefault(user, TokenBucket(CPU_SHARE_MAX, BURST_SECONDS, now))
        bucket.take(seconds, now)
        if len(self._buckets) > USERS_MAX:
            del self._buckets[max(self._buckets, key=lambda other: self.left_seconds(other, now))]

    def available_at(self, user: int, now: float) -> float:
        """Return the time at which the user has seconds left again; 0 if it has some now."""
        bucket = self._buckets.get(user)
        return bucket.paid_at if bucket and bucket.level(now) < 0 else 0.0


class LocalServer:
    """Answers at *path* from `start` to `close`.

    Any thread may read the counters `served` and `refused_connections`.
    """

    def __init__(
        self, path: Path, methods: Mapping[str, Method], limits: LocalServerLimits | None = None
    ) -> None:
        """Open the socket; raises as `UnixListener`. *methods*: call path -> Method."""
        self.served = self.refused_connections = 0
        self._methods, self._limits = methods, limits or LocalServerLimits()
        self._privileged_users = {0, os.geteuid()}
        self._listener = UnixListener(path)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._completed: deque[tuple[ClientConnection, int]] = deque()
        self._connections: set[ClientConnection] = set()
        self._budget = CpuBudget()
        self._accept_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener.socket, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="local-server", daemon=True)

    def start(self) -> None:
        """Start the thread; return at once."""
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the socket's file, within CLOSE_SECONDS_MAX. Never raises."""
        self._closing = True
        self._wake_thread()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS_MAX)
        self._listener.close()
        if not self._thread.is_alive() and self._wake >= 0:
            wake, self._wake = self._wake, -1
            os.close(wake)

    def _wake_thread(self) -> None:
        with suppress(OSError, ValueError):  # closed
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while not self._closing:
            try:
                self._run_once()
            except Exception:  # the next client must be answered
                log.exception("the local server failed", extra={"cause": "local.server"})
                time.sleep(ACCEPT_RETRY_SECONDS)
        for connection in list(self._connections):
            connection.session.go_away()
            with suppress(SessionError, OSError):
                connection.flush()
            self._drop(connection)
        self._selector.close()

    def _run_once(self) -> None:
        for key, mask in self._selector.select(self._seconds_to_sleep()):
            if key.data is not None:
                self._handle(key.data, mask)
            elif key.fileobj is self._listener.socket:
                self._accept()
            else:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
        while self._completed:
            self._deliver(*self._completed.popleft())
        self._check_deadlines(time.monotonic())

    def _seconds_to_sleep(self) -> float | None:
        """Return the select timeout; None: no timeout."""
        times = [connection.next_deadline(self._limits) for connection in self._connections]
        if self._accept_at:
            times.append(self._accept_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _check_deadlines(self, now: float) -> None:
        if self._accept_at and now >= self._accept_at:
            self._accept_at = 0.0
            self._selector.register(self._listener.socket, selectors.EVENT_READ)
        for connection in [c for c in self._connections if now >= c.next_deadline(self._limits)]:
            self._run_guarded(connection, lambda c: self._handle_deadlines(c, now))

    def _handle_deadlines(self, connection: ClientConnection, now: float) -> None:
        if connection.paused_until and now >= connection.paused_until:
            connection.paused_until = 0.0
        for stream, (deferred, until) in list(connection.deferred.items()):
            if now >= until:
                deferred.is_cancelled = True
                del connection.deferred[stream]
                connection.session.refuse(stream, "DEADLINE_EXCEEDED", "no answer in time")
                connection.idle_since = now
        if connection.is_idle(self._limits, now):
            self._end(connection)

    def _accept(self) -> None:
        start_time = time.monotonic()
        try:
            accepted, _ = self._listener.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("local socket: %s", error.strerror, extra={"cause": "local.accept"})
            self._pause_accepting(ACCEPT_RETRY_SECONDS)
            return
        accepted.setblocking(False)
        try:
            peer = peer_of(accepted)
        except OSError:
            accepted.close()
            return
        if self._admit(accepted, peer, start_time):
            self._pause_accepting(ACCEPT_PAUSE_SECONDS)

    def _admit(self, accepted: socket.socket, peer: Peer, start_time: float) -> float:
        """Add a client, or close its socket. Returns as `_charge`."""
        peers = [connection.peer for connection in self._connections]
        if not has_room(peer, peers, self._limits, self._privileged_users):
            self.refused_connections += 1
            accepted.close()
            return self._charge(peer, start_time)
        connection = ClientConnection(accepted, peer, start_time)
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)
        connection.paused_until = self._charge(peer, start_time)
        self._register(connection)
        return connection.paused_until

    def _pause_accepting(self, seconds: float) -> None:
        """Accept nothing for *seconds*: the kernel's queue holds the connections meanwhile."""
        self._selector.unregister(self._listener.socket)
        self._accept_at = time.monotonic() + seconds

    def _run_guarded(
        self, connection: ClientConnection, work: Callable[[ClientConnection], None]
    ) -> None:
        """Do *work* for a connection, send the output, and drop the connection if it failed."""
        if connection not in self._connections:
            return
        start_time = time.monotonic()
        try:
            work(connection)
            if connection in self._connections:
                connection.flush()
        except SessionError:
            with suppress(SessionError, OSError):
                connection.flush()  # HTTP/2's own error report
            self._drop(connection)
        except OSError:
            self._drop(connection)
        else:
            connection.paused_until = self._charge(connection.peer, start_time)
            self._register(connection)

    def _charge(self, peer: Peer, start_time: float) -> float:
        """Charge the elapsed time. Returns when an exhausted user has time again, else 0."""
        if peer.user_id in self._privileged_users:
            return 0.0
        now = time.monotonic()
        self._budget.spend(peer.user_id, now - start_time, now)
        return self._budget.available_at(peer.user_id, now)

    def _register(self, connection: ClientConnection) -> None:
        """Wait for the events that matter; a client that does not read is not read either."""
        if connection not in self._connections:
            return
        poll_events = selectors.EVENT_WRITE if connection.out else selectors.EVENT_READ
        poll_events = 0 if connection.paused_until else poll_events
        if poll_events == connection.poll_events:
            return
        if not connection.poll_events:
            self._selector.register(connection.socket, poll_events, connection)
        elif poll_events:
            self._selector.modify(connection.socket, poll_events, connection)
        else:
            self._selector.unregister(connection.socket)
        connection.poll_events = poll_events

    def _end(self, connection: ClientConnection) -> None:
        """End a connection so that the client does not see a failure."""
        connection.session.go_away()
        connection.flush()
        self._drop(connection)

    def _drop(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if connection.poll_events:
            self._selector.unregister(connection.socket)
            connection.poll_events = 0
        for deferred, _ in connection.deferred.values():
            deferred.is_cancelled = True
        connection.deferred.clear()
        connection.socket.close()

    def _handle(self, connection: ClientConnection, mask: int) -> None:
        """Read, or only send: `_run_guarded` sends in any case."""
        self._run_guarded(connection, self._read if mask & selectors.EVENT_READ else lambda c: None)

    def _read(self, connection: ClientConnection) -> None:
        try:
            data = connection.socket.recv(RECEIVE_BYTES_MAX)
        except BlockingIOError:
            return
        if not data:
            raise SessionError("it closed the connection")
        for call in connection.session.receive(data):
            self._answer(connection, call)
        connection.drop_cancelled()
        if connection.session.calls >= CALLS_MAX and not connection.session.waiting:
            self._end(connection)

    def _answer(self, connection: ClientConnection, call: ServerCall) -> None:
        now = connection.idle_since = time.monotonic()
        try:
            result = self._call(call, connection.peer)
        except CallRefused as refused:
            connection.session.refuse(call.stream, refused.status, refused.message)
            return
        self.served += 1
        if isinstance(result, bytes):
            connection.session.respond(call.stream, result)
            return
        seconds = self._limits.call_seconds_max
        if call.timeout_seconds is not None:
            seconds = min(seconds, call.timeout_seconds)
        connection.deferred[call.stream] = result, now + seconds
        result.add_done_callback(lambda: self._on_done(connection, call.stream))

    def _call(self, call: ServerCall, peer: Peer) -> bytes | DeferredResponse:
        method = self._methods.get(call.path)
        if method is None:
            known = ", ".join(self._methods)
            raise CallRefused(
                "UNIMPLEMENTED", f"no method {call.path[:200]!r}; expected one of {known}"
            )
        if method.privileged and peer.user_id not in self._privileged_users:
            raise CallRefused(
                "PERMISSION_DENIED",
                f"{call.path.rpartition('/')[2]} is for root and the agent's own user "
                f"(uid {os.geteuid()}); you are uid {peer.user_id}",
            )
        if call.timeout_seconds == 0:
            raise CallRefused("DEADLINE_EXCEEDED", "the deadline is 0 s")
        try:
            return method.handler(call.message, peer)
        except CallRefused:
            raise
        except Exception as error:  # the client gets the error, the log the traceback
            log.exception("%s failed", call.path, extra={"cause": f"local.call.{call.path}"})
            raise CallRefused("INTERNAL", f"{type(error).__name__}: {error}") from error

    def _on_done(self, connection: ClientConnection, stream: int) -> None:
        """Queue the completed call. For any thread."""
        self._completed.append((connection, stream))
        self._wake_thread()

    def _deliver(self, connection: ClientConnection, stream: int) -> None:
        self._run_guarded(connection, lambda c: self._respond(c, stream))

    def _respond(self, connection: ClientConnection, stream: int) -> None:
        if stream not in connection.deferred:
            return  # the call had expired
        deferred, _ = connection.deferred.pop(stream)
        connection.idle_since = time.monotonic()
        if isinstance(deferred.result, CallRefused):
            connection.session.refuse(stream, deferred.result.status, deferred.result.message)
        elif deferred.result is not None:
            connection.session.respond(stream, deferred.result)
