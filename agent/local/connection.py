"""One client of the local server, and how much each may take."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass

from .calls import Later, Peer
from .session import UNSENT_BYTES_MAX, PeerError, ServerSession


@dataclass(frozen=True, slots=True)
class Limits:
    """What all clients together, and each, may take."""

    #: More are closed unheard.
    connections_max: int = 64
    #: Of these, only for root and the agent's own user.
    connections_reserved: int = 16
    connections_per_user_max: int = 16
    #: A connection without a call for so long is ended; gRPC's clients open another when they need one.
    idle_seconds_max: float = 300.0
    #: One that has not brought a whole call by then is ended.
    first_call_seconds_max: float = 10.0
    #: A call whose client set no time is answered within this.
    call_seconds_max: float = 60.0


def has_room(
    peer: Peer, peers: Sequence[Peer], limits: Limits, privileged_users: Container[int]
) -> bool:
    """Say whether *peer* may come in beside *peers*, who are connected."""
    if peer.user_id in privileged_users:
        return len(peers) < limits.connections_max
    others = [each for each in peers if each.user_id not in privileged_users]
    own = sum(each.user_id == peer.user_id for each in others)
    room = limits.connections_max - limits.connections_reserved
    return len(others) < room and own < limits.connections_per_user_max


class Connection:
    """One client's: the socket, the session, and what is on its way. All methods belong to the server's thread."""

    def __init__(self, connection: socket.socket, peer: Peer, now: float) -> None:
        self.socket, self.peer = connection, peer
        self.session = ServerSession()
        self.out = bytearray()
        self.quiet_since = now
        #: Nothing is read before: its user has used up its share.
        self.paused_until = 0.0
        self.later: dict[int, tuple[Later, float]] = {}  # stream -> (who answers, until when)
        self.registered = selectors.EVENT_READ

    def flush(self) -> None:
        """Send what the socket takes. Raises PeerError and OSError."""
        self.out += self.session.data_to_send()
        if self.out:
            with suppress(BlockingIOError):
                del self.out[: self.socket.send(self.out, socket.MSG_NOSIGNAL)]
        if len(self.out) + self.session.unsent_bytes > UNSENT_BYTES_MAX:
            raise PeerError("it does not read what it asked for")

    def forget_given_up(self) -> None:
        """Nobody waits any more for what its client has cancelled."""
        for stream in [one for one in self.later if not self.session.is_waiting(one)]:
            later, _ = self.later.pop(stream)
            later.is_moot = True

    def next_time(self, limits: Limits) -> float:
        """Return when there is something to do for it though nothing came."""
        times = [until for _, until in self.later.values()]
        if not self.later:
            times.append(self.quiet_since + self._patience_seconds(limits))
        if self.paused_until:
            times.append(self.paused_until)
        return min(times)

    def _patience_seconds(self, limits: Limits) -> float:
        known = self.session.calls > 0
        return limits.idle_seconds_max if known else limits.first_call_seconds_max

    def is_idle(self, limits: Limits, now: float) -> bool:
        """Say whether its patience is used up."""
        return not self.later and now >= self.quiet_since + self._patience_seconds(limits)
