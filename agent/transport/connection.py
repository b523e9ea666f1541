"""One connection: its socket, what is said on it, and whose turn it is to say something.

The client's thread holds the line, but while it waits. When all is well, whoever adds a frame then sends it: to wake
the thread for it costs several times what the frame does. All else is the thread's, also what fails in sending so.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Protocol

from .grpc_http2 import SessionError
from .protocol import TelemetryProtocol

RECEIVE_BYTES_MAX = 1 << 16
#: Of receipts that are due, who adds a frame takes no more, whatever a peer has said beside them.
IDLE_RECEIVE_BYTES_MAX = 1 << 12
#: What waits for the socket; more is the echo of a peer that asks and does not read.
OUT_BYTES_MAX = 8 << 20
#: While others send, the thread looks only now and then whether they still do: at last once in so many frames' time.
POLL_PERIODS_MAX = 16
#: What is said of a connection that ended.
CLOSED = "the aggregator closed the connection"


class ConnectionSocket(Protocol):
    """What a line needs of a socket: a plain one's, or `tls.TlsSocket`'s. None of it waits."""

    def fileno(self) -> int: ...
    def send(self, data: bytes, /) -> int: ...
    def recv(self, size: int, /) -> bytes: ...


class Connection:
    """`with line:` is to hold it, which all but `send_if_idle` need."""

    def __init__(
        self,
        socket: ConnectionSocket,
        protocol: TelemetryProtocol,
        wake: int,
        seconds: Callable[[], float],
        live_hertz: float,
    ) -> None:
        """*socket* does not block; *wake*, an eventfd, ends a wait; *seconds* is a steady clock."""
        self.protocol = protocol
        self._socket = socket
        self._wake = wake
        self._seconds = seconds
        self._poll_seconds_max = POLL_PERIODS_MAX / live_hertz
        self._poll_seconds = 0.0
        self._lock = threading.Lock()
        self._out = b""  # what the socket has not taken
        #: The holder waits, and nothing but frames and receipts is to be expected.
        self._idle = False
        self._sent_while_idle = False  # since the holder began to wait so
        self._failure: Exception | None = None  # of a frame that was sent at rest
        self._was_woken = False  # somebody ended the last wait, or sent in it
        self._poll, self._poll_events = select.poll(), 0
        self._poll.register(wake, select.POLLIN)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    # Without holding it --------------------------------------------------------------------

    def send_if_idle(self) -> bool:
        """Send the frame that was added last, if the holder waits and that is all there is to do.

        Return whether it was: else the holder is to be woken. Never waits, never raises.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._idle = self._idle and self._send_one()
        except Exception as error:  # noqa: BLE001 - the holder's to tell, and to end the connection for
            self._idle, self._failure = False, error
            return False
        else:
            return self._idle
        finally:
            self._lock.release()

    def _send_one(self) -> bool:
        """Send one frame, and take the receipts that are due; return whether all is well still."""
        protocol, now = self.protocol, self._seconds()
        if protocol.acks_due:
            if data := _receive(self._socket, IDLE_RECEIVE_BYTES_MAX):
                protocol.receive(data, now)
            if protocol.acks_due:  # they are to be waited for
                return False
        if not (more := protocol.step_if_idle(now)):
            return False
        self._send(more)
        self._sent_while_idle = True
        return not self._out and not protocol.unsent_bytes

    # Holding it ----------------------------------------------------------------------------

    def send_pending(self, now: float, *, finishing: bool) -> bool:
        """Say what can be said now; return whether, *finishing*, all of it is. Raises SessionError, OSError."""
        if self._failure is not None:
            raise self._failure
        if finishing:
            done, more = self.protocol.finish(now, len(self._out))
        else:
            done, more = False, self.protocol.step(now, len(self._out))
        self._send(more)
        if len(self._out) > OUT_BYTES_MAX:
            message = f"the aggregator reads nothing: {len(self._out)} bytes wait for it"
            raise SessionError(message)
        return done and not self._out

    def _send(self, more: bytes) -> None:
        self._out = _send_some(self._socket, self._out + more)

    def wait(self, now: float, seconds_max: float | None) -> bool:
        """Wait until somebody wakes us, it is time to look, or bytes come; take them, and return whether any came.

        Raises SessionError, OSError.
        """
        idle_seconds = self._idle_seconds(now)
        waits = [self.protocol.wait_seconds(now), seconds_max, idle_seconds or None]
        ready = self._poll_unlocked(
            idle_seconds > 0, min((s for s in waits if s is not None), default=None)
        )
        # Woken by nobody, it is time to look, whatever a clock says.
        self._was_woken = bool(ready) or (idle_seconds > 0 and self._sent_while_idle)
        if self._wake in ready:
            os.eventfd_read(self._wake)
            ready.remove(self._wake)
        # At rest nobody asked for what came: else patience might end while the receipts lie there.
        data = _receive(self._socket, RECEIVE_BYTES_MAX) if ready or idle_seconds else b""
        if data:
            self.protocol.receive(data, self._seconds())
        return bool(data)

    def _idle_seconds(self, now: float) -> float:
        """How long the socket need not be read; longer each time that others send meanwhile, and take the receipts."""
        idle_seconds = self.protocol.idle_seconds(now) if self._was_woken and not self._out else 0.0
        if idle_seconds:
            longer = min(2 * self._poll_seconds, self._poll_seconds_max)
            self._poll_seconds = (
                max(idle_seconds, longer) if self._sent_while_idle else idle_seconds
            )
            self._sent_while_idle = False
            return self._poll_seconds
        return 0.0

    def _poll_unlocked(self, idle: bool, seconds: float | None) -> list[int]:
        """Hold the line no more until a descriptor is ready or the time is over; return those that are."""
        before, self._poll_events = (
            self._poll_events,
            _poll_mask(idle=idle, sending=bool(self._out)),
        )
        if self._poll_events != before:
            self._poll.register(self._socket, self._poll_events)
        self._idle = idle
        self._lock.release()
        try:
            # Rounded up, or the last millisecond before a deadline would spin.
            ready = self._poll.poll(None if seconds is None else int(seconds * 1000) + 1)
            return [descriptor for descriptor, _ in ready]
        finally:
            self._lock.acquire()
            self._idle = False


def _poll_mask(*, idle: bool, sending: bool) -> int:
    """Return what poll is to look for on the socket."""
    if idle:
        return select.POLLRDHUP  # only its end
    return select.POLLIN | (select.POLLOUT if sending else 0)


def _send_some(socket: ConnectionSocket, out: bytes) -> bytes:
    """Send what the socket takes; return the rest. Raises OSError."""
    try:
        return out[socket.send(out) :] if out else out
    except BlockingIOError:
        return out


def _receive(socket: ConnectionSocket, size_max: int) -> bytes:
    """Return what is there, b"" if nothing is. Raises OSError; SessionError at the end."""
    try:
        data = socket.recv(size_max)
    except BlockingIOError:
        return b""
    if not data:
        raise SessionError(CLOSED)
    return data
