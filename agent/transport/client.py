"""The agent's connection to the aggregator: a daemon thread with one socket.

It connects, registers, streams the spool's frames and reports events; after a failure it reconnects
with jitter. It never raises, never delays sampling, and forgets only acknowledged frames.
`protocol` decides which message is sent when. Only this thread uses the socket: other threads wake
it by an eventfd.
"""

from __future__ import annotations

import ipaddress
import os
import random
import select
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Protocol

from ...contract.wire.telemetry_pb2 import RegisterNodeRequest
from ..clock import Clock, SystemClock
from .backoff import Backoff
from .credentials import NO_CREDENTIALS, Credentials
from .grpc_http2 import ClientSession
from .http2 import SessionError
from .protocol import (
    PermitHandler,
    QueuedEvents,
    RefusedError,
    SpooledFrames,
    StreamDesyncError,
    TelemetryProtocol,
)
from .recording_uploads import RecordingUploads

CONNECT_SECONDS_MAX = 5.0
ERROR_CHARACTERS_MAX = 300
#: Seconds after which the kernel reports a lost peer: by unacknowledged data (TCP_USER_TIMEOUT), or
#: by keepalive probes while no data is sent.
PEER_SILENCE_SECONDS_MAX = 20
_KEEPALIVE_IDLE_SECONDS = 10
_KEEPALIVE_INTERVAL_SECONDS = 5
_KEEPALIVE_PROBES = 2
RECEIVE_BYTES_MAX = 1 << 16
#: Bytes that wait for the socket. More are the echo of a peer that sends and does not read.
OUT_BYTES_MAX = 8 << 20
#: Message for a connection that ended.
CLOSED = "the aggregator closed the connection"


class TargetError(ValueError):
    """The aggregator's address cannot be used; the message says what is expected."""


def parse_target(target: str, *, allow_plaintext: bool = False) -> tuple[str, int]:
    """Return host and port of `host:port` or `[address]:port`. Raises TargetError.

    Without *allow_plaintext* only loopback is allowed (127.0.0.0/8, ::1, localhost): beyond this
    machine, a connection without TLS can be read and changed.
    """
    host, colon, port = target.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    digits = port.isascii() and port.isdigit() and len(port) <= 5
    if not host or not colon or not (digits and 0 < int(port) < 65536):
        raise TargetError(f"aggregator {target!r}: expected HOST:PORT, such as 127.0.0.1:7600")
    if not allow_plaintext and not _is_loopback(host):
        raise TargetError(
            f"aggregator {target!r} is not on loopback, and without TLS the connection would be unencrypted. "
            "Set tls_ca_file, or allow_plaintext if its network is trusted"
        )
    return host, int(port)


def on_loopback(target: str) -> bool:
    """Return whether *target* is on this machine. Raises TargetError."""
    return _is_loopback(parse_target(target, allow_plaintext=True)[0])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class ConnectionSocket(Protocol):
    """Socket methods that a connection needs, of a plain socket or `tls.TlsSocket`. None blocks."""

    def fileno(self) -> int: ...
    def send(self, data: bytes, /) -> int: ...
    def recv(self, size: int, /) -> bytes: ...


class Connection:
    """A non-blocking socket and its protocol. All methods belong to the client's thread."""

    def __init__(
        self, connection_socket: ConnectionSocket, protocol: TelemetryProtocol, wake: int
    ) -> None:
        """*wake*: an eventfd that ends a wait."""
        self.protocol = protocol
        self._socket = connection_socket
        self._wake = wake
        self._out = b""  # bytes that wait for the socket
        self._poll, self._events = select.poll(), 0
        self._poll.register(wake, select.POLLIN)

    def send_pending(self, now: float, *, finishing: bool) -> bool:
        """Send the protocol's messages. Raises SessionError, OSError.

        If *finishing*, return whether all messages are sent; else return False.
        """
        if finishing:
            done, more = self.protocol.finish(now, len(self._out))
        else:
            done, more = False, self.protocol.step(now, len(self._out))
        self._out += more
        if self._out:
            with suppress(BlockingIOError):
                self._out = self._out[self._socket.send(self._out) :]
        if len(self._out) > OUT_BYTES_MAX:
            message = f"the aggregator reads nothing: {len(self._out)} bytes are queued"
            raise SessionError(message)
        return done and not self._out

    def wait(self, seconds_max: float | None, *, quiet: bool = False) -> bytes:
        """Wait for a wake-up, the timeout or bytes; return the received bytes.

        *quiet*: bytes do not end the wait, only the connection's end does. Raises SessionError,
        OSError.
        """
        events = select.POLLRDHUP if quiet else select.POLLIN
        if self._out:
            events |= select.POLLOUT
        if events != self._events:
            self._events = events
            self._poll.register(self._socket, events)
        # Rounded up, or the last millisecond before a deadline would spin.
        for descriptor, _ in self._poll.poll(
            None if seconds_max is None else int(seconds_max * 1000) + 1
        ):
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
        try:
            data = self._socket.recv(RECEIVE_BYTES_MAX)
        except BlockingIOError:
            return b""
        if not data:
            raise SessionError(CLOSED)
        return data


class Client:
    """`start`, then `notify` after each frame or event; `close` at the end.

    Any thread may read `connected` (registered, and not known to be broken), `reconnects`
    (registrations that the aggregator answered) and `last_error` (message of the last failure, kept
    after a recovery).
    """

    def __init__(
        self,
        target: str,
        register: Callable[[], RegisterNodeRequest],
        spool: SpooledFrames,
        events: QueuedEvents,
        *,
        random_source: random.Random,
        clock: Clock | None = None,
        live_hertz: float = 1.0,
        allow_plaintext: bool = False,
        on_permit: PermitHandler = lambda _: None,
        credentials: Credentials = NO_CREDENTIALS,
        uploads: RecordingUploads | None = None,
    ) -> None:
        """Prepare a client. Raises TargetError.

        *register* makes a request for each connection; run id and boot id are filled in from
        *spool*. *live_hertz* is the rate of frames. *on_permit* is as in `TelemetryProtocol`; the
        client's thread calls it. *credentials* are read again for each connection. *uploads*:
        requested recordings.
        """
        plaintext = allow_plaintext or bool(credentials.tls_ca_file)
        self._address = parse_target(target, allow_plaintext=plaintext)
        self._credentials = credentials
        self.target = target
        self.connected = False
        self.reconnects = 0
        self.last_error = ""
        self._register = register
        self._spool = spool
        self._events = events
        self._clock: Clock = clock or SystemClock()
        self._live_hertz = live_hertz
        self._on_permit = on_permit
        self._uploads = uploads or RecordingUploads()
        self._uploads.notify = self.notify
        self._backoff = Backoff(random_source)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = threading.Event()
        self._close_by = 0.0
        self._register_again = False
        self._received_any = False  # on this connection
        self._delta_encoding = True  # False after a stream that the aggregator could not follow
        self._thread = threading.Thread(target=self._run, name="gangline-client", daemon=True)

    def start(self) -> None:
        """Start the thread; return at once."""
        self._thread.start()

    def notify(self) -> None:
        """Wake the thread after a frame or an event was added. Never blocks, never raises."""
        with suppress(OSError, ValueError):  # closed
            os.eventfd_write(self._wake, 1)

    def reregister(self) -> None:
        """Send RegisterNode again on this connection, for example after an inventory change."""
        self._register_again = True
        self.notify()

    def close(self, seconds_max: float = 5.0) -> None:
        """Send live frames, wait for their acknowledgments, and end, in about *seconds_max*.

        Backlog stays on disk. Returns also if the aggregator does not answer.
        """
        self._close_by = self._seconds() + seconds_max
        self._closing.set()
        self.notify()
        if self._thread.ident is not None:
            self._thread.join(seconds_max + 1.0)
        if not self._thread.is_alive() and self._wake >= 0:
            wake, self._wake = self._wake, -1
            os.close(wake)

    def _seconds(self) -> float:
        return self._clock.boottime_ns() / 1e9

    def _run(self) -> None:
        while not self._closing.is_set():
            refused, retry_seconds = False, None
            try:
                self._connect_and_run()
            except (SessionError, OSError) as error:
                refused = isinstance(error, RefusedError)
                retry_seconds = getattr(error, "retry_seconds", None)
                self._delta_encoding = self._delta_encoding and not isinstance(
                    error, StreamDesyncError
                )
                self._record_failure(error)
            except Exception as error:  # noqa: BLE001 - no error may end the client
                self._record_failure(error)
            if not self._closing.is_set():
                self._closing.wait(
                    self._backoff.next_delay(refused=refused, retry_seconds=retry_seconds)
                )

    def _record_failure(self, error: Exception) -> None:
        name = "" if isinstance(error, SessionError | OSError) else f"{type(error).__name__}: "
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        self.last_error = f"{self.target}: {name}{reason}"[:ERROR_CHARACTERS_MAX]

    def _connect_and_run(self) -> None:
        self._received_any = False
        with socket.create_connection(self._address, CONNECT_SECONDS_MAX) as plain_socket:
            _configure(plain_socket)
            with closing(self._credentials.wrap(plain_socket, self._address[0])) as stream_socket:
                stream_socket.setblocking(False)
                try:
                    self._run_protocol(stream_socket)
                except (SessionError, ConnectionResetError) as error:
                    if not self._received_any and not self._credentials.tls_ca_file:
                        raise _with_tls_hint(error) from error
                    raise

    def _run_protocol(self, stream_socket: ConnectionSocket) -> None:
        delta_encoding, self._delta_encoding = self._delta_encoding, True
        protocol = TelemetryProtocol(
            ClientSession(
                self.target, self._credentials.token(), tls=bool(self._credentials.tls_ca_file)
            ),
            self._register,
            self._spool,
            self._events,
            self._live_hertz,
            delta_encoding=delta_encoding,
            on_permit=self._on_permit,
            uploads=self._uploads,
        )
        self._register_again = False
        try:
            self._exchange(Connection(stream_socket, protocol, self._wake))
        finally:
            self.connected = False
            if protocol.registered:
                self._backoff.spread(protocol.host, protocol.reconnect_seconds)

    def _exchange(self, connection: Connection) -> None:
        protocol = connection.protocol
        while True:
            now = self._seconds()
            if self._register_again:
                self._register_again = False
                protocol.register_again()
            done = connection.send_pending(now, finishing=self._closing.is_set())
            if self._closing.is_set() and (done or now >= self._close_by):
                return
            quiet_seconds = protocol.quiet_seconds(now)
            waits = [protocol.wait_seconds(now), quiet_seconds or None]
            if self._closing.is_set():
                waits.append(max(self._close_by - now, 0.0))
            seconds = min((wait for wait in waits if wait is not None), default=None)
            if data := connection.wait(seconds, quiet=quiet_seconds > 0):
                self._received_any = True
                protocol.receive(data, self._seconds())
                self._on_received(protocol)

    def _on_received(self, protocol: TelemetryProtocol) -> None:
        if protocol.registered and not self.connected:
            self.connected = True
            self.reconnects += 1
        if protocol.has_ack:
            self._backoff.reset()


def _with_tls_hint(error: SessionError | ConnectionResetError) -> Exception:
    """Return *error* of a plain connection that ended before any byte, with a hint at TLS."""
    if isinstance(error, SessionError) and str(error) != CLOSED:
        return error
    return SessionError(f"{CLOSED} without an answer. If it uses TLS, set tls_ca_file")


def _configure(plain_socket: socket.socket) -> None:
    """Set options: small messages are sent at once, and the kernel detects a lost peer."""
    plain_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_SECONDS),
        (socket.TCP_KEEPCNT, _KEEPALIVE_PROBES),
        (socket.TCP_USER_TIMEOUT, PEER_SILENCE_SECONDS_MAX * 1000),
    ):
        plain_socket.setsockopt(socket.IPPROTO_TCP, option, value)
