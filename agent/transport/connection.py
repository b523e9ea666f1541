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
from .protocol import Conversation

RECEIVE_BYTES_MAX = 1 << 16
#: Of receipts that are due, who adds a frame takes no more, whatever a peer has said beside them.
REST_BYTES_MAX = 1 << 12
#: What waits for the socket; more is the echo of a peer that asks and does not read.
OUT_BYTES_MAX = 8 << 20
#: While others send, the thread looks only now and then whether they still do: at last once in so many frames' time.
LOOK_PERIODS_MAX = 16
#: What is said of a connection that ended.
CLOSED = "the aggregator closed the connection"


class LineSocket(Protocol):
    """What a line needs of a socket: a plain one's, or `tls.TlsSocket`'s. None of it waits."""

    def fileno(self) -> int: ...
    def send(self, data: bytes, /) -> int: ...
    def recv(self, size: int, /) -> bytes: ...


class Line:
    """`with line:` is to hold it, which all but `send_at_rest` need."""

    def __init__(
        self,
        connection: LineSocket,
        conversation: Conversation,
        wake: int,
        seconds: Callable[[], float],
        live_hertz: float,
    ) -> None:
        """*connection* does not block; *wake*, an eventfd, ends a wait; *seconds* is a steady clock."""
        self.conversation = conversation
        self._connection = connection
        self._wake = wake
        self._seconds = seconds
        self._look_seconds_max = LOOK_PERIODS_MAX / live_hertz
        self._look_seconds = 0.0
        self._held = threading.Lock()
        self._out = b""  # what the socket has not taken
        #: The holder waits, and nothing but frames and receipts is to be expected.
        self._at_rest = False
        self._sent_at_rest = False  # since the holder began to wait so
        self._failure: Exception | None = None  # of a frame that was sent at rest
        self._stirred = False  # somebody ended the last wait, or sent in it
        self._poll, self._wanted = select.poll(), 0
        self._poll.register(wake, select.POLLIN)

    def __enter__(self) -> None:
        self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()

    # Without holding it --------------------------------------------------------------------

    def send_at_rest(self) -> bool:
        """Send the frame that was added last, if the holder waits and that is all there is to do.

        Return whether it was: else the holder is to be woken. Never waits, never raises.
        """
        if not self._held.acquire(blocking=False):
            return False
        try:
            self._at_rest = self._at_rest and self._send_one()
        except Exception as error:  # noqa: BLE001 - the holder's to tell, and to end the connection for
            self._at_rest, self._failure = False, error
            return False
        else:
            return self._at_rest
        finally:
            self._held.release()

    def _send_one(self) -> bool:
        """Send one frame, and take the receipts that are due; return whether all is well still."""
        conversation, now = self.conversation, self._seconds()
        if conversation.receipts_due:
            if data := _receive(self._connection, REST_BYTES_MAX):
                conversation.receive(data, now)
            if conversation.receipts_due:  # they are to be waited for
                return False
        if not (more := conversation.step_at_rest(now)):
            return False
        self._send(more)
        self._sent_at_rest = True
        return not self._out and not conversation.unsent_bytes

    # Holding it ----------------------------------------------------------------------------

    def say(self, now: float, *, finishing: bool) -> bool:
        """Say what can be said now; return whether, *finishing*, all of it is. Raises SessionError, OSError."""
        if self._failure is not None:
            raise self._failure
        if finishing:
            done, more = self.conversation.finish(now, len(self._out))
        else:
            done, more = False, self.conversation.step(now, len(self._out))
        self._send(more)
        if len(self._out) > OUT_BYTES_MAX:
            words = f"the aggregator reads nothing: {len(self._out)} bytes wait for it"
            raise SessionError(words)
        return done and not self._out

    def _send(self, more: bytes) -> None:
        self._out = _sent(self._connection, self._out + more)

    def wait(self, now: float, seconds_max: float | None) -> bool:
        """Wait until somebody wakes us, it is time to look, or bytes come; take them, and return whether any came.

        Raises SessionError, OSError.
        """
        rest = self._rest_seconds(now)
        waits = [self.conversation.wait_seconds(now), seconds_max, rest or None]
        ready = self._let_go(rest > 0, min((s for s in waits if s is not None), default=None))
        # Woken by nobody, it is time to look, whatever a clock says.
        self._stirred = bool(ready) or (rest > 0 and self._sent_at_rest)
        if self._wake in ready:
            os.eventfd_read(self._wake)
            ready.remove(self._wake)
        # At rest nobody asked for what came: else patience might end while the receipts lie there.
        data = _receive(self._connection, RECEIVE_BYTES_MAX) if ready or rest else b""
        if data:
            self.conversation.receive(data, self._seconds())
        return bool(data)

    def _rest_seconds(self, now: float) -> float:
        """How long the socket need not be read; longer each time that others send meanwhile, and take the receipts."""
        rest = self.conversation.rest_seconds(now) if self._stirred and not self._out else 0.0
        if rest:
            longer = min(2 * self._look_seconds, self._look_seconds_max)
            self._look_seconds = max(rest, longer) if self._sent_at_rest else rest
            self._sent_at_rest = False
            return self._look_seconds
        return 0.0

    def _let_go(self, resting: bool, seconds: float | None) -> list[int]:
        """Hold the line no more until a descriptor is ready or the time is over; return those that are."""
        before, self._wanted = self._wanted, _wanted(resting=resting, sending=bool(self._out))
        if self._wanted != before:
            self._poll.register(self._connection, self._wanted)
        self._at_rest = resting
        self._held.release()
        try:
            # Rounded up, or the last millisecond before a deadline would spin.
            ready = self._poll.poll(None if seconds is None else int(seconds * 1000) + 1)
            return [descriptor for descriptor, _ in ready]
        finally:
            self._held.acquire()
            self._at_rest = False


def _wanted(*, resting: bool, sending: bool) -> int:
    """Return what poll is to look for on the socket."""
    if resting:
        return select.POLLRDHUP  # only its end
    return select.POLLIN | (select.POLLOUT if sending else 0)


def _sent(connection: LineSocket, out: bytes) -> bytes:
    """Send what the socket takes; return the rest. Raises OSError."""
    try:
        return out[connection.send(out) :] if out else out
    except BlockingIOError:
        return out


def _receive(connection: LineSocket, size_max: int) -> bytes:
    """Return what is there, b"" if nothing is. Raises OSError; SessionError at the end."""
    try:
        data = connection.recv(size_max)
    except BlockingIOError:
        return b""
    if not data:
        raise SessionError(CLOSED)
    return data
