"""Rate limits: one token bucket per caller."""

from __future__ import annotations

import ipaddress
import os
import socket
import urllib.parse
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ...contract.token_bucket import TokenBucket
from ..principal import Principal, Role

#: Seconds' worth that may come at once: what waited while the way was cut.
BURST_SECONDS = 20.0
#: Buckets kept; those used longest ago go first, by when they are full again.
BUCKETS_MAX = 100_000


class KeyedTokenBuckets:
    """One for each key. Owned by the loop's thread."""

    def __init__(self, rate_per_second: float, seconds: Callable[[], float]) -> None:
        """*seconds*: a steady clock."""
        self._rate, self._seconds = rate_per_second, seconds
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def try_take(self, key: Hashable) -> float:
        """As `TokenBucket.try_take`, of *key*."""
        now = self._seconds()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(self._rate, self._rate * BURST_SECONDS, now)
            while len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        return bucket.try_take(now)


# ----------------------------------------------------------------------
# Connections that nobody logged in on, and too many of one caller: found by the kernel's list of
# our own sockets.
#
# gRPC for Python tells nobody of a connection before its first call, and keeps one for ever on
# which none comes. So the process looks at its own descriptors, and ends a connection from beneath
# (shutdown(2)): gRPC sees a peer that left.

#: An address and a port.
PeerAddress = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Of connections."""

    per_caller_max: int  # with a login
    unknown_max: int  # without, together
    unknown_per_address_max: int
    login_seconds_max: float  # how long a connection may go without a login


class AcceptedConnection(NamedTuple):
    """One that was accepted: its socket's inode, who is at the other end, when we first saw it."""

    inode: int
    peer: PeerAddress
    since: float
    descriptor: int


def peer_address(peer: str) -> PeerAddress | None:
    """Return address and port of gRPC's `ipv4:10.0.0.1:4711` or `ipv6:%5B::1%5D:4711`; None for another kind."""
    kind, _, rest = peer.partition(":")
    host, _, port = urllib.parse.unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not (port.isdecimal() and len(port) <= 5):
        return None
    return _normalized(host.strip("[]")), int(port)


def _normalized(host: str) -> str:
    """Return one form of an address: IPv4 in IPv6 as IPv4, without a zone."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    return host


def too_many(
    connections: Collection[AcceptedConnection],
    principals: dict[PeerAddress, Principal],
    limits: ConnectionLimits,
    now: float,
) -> list[AcceptedConnection]:
    """Return those to end: without a login for too long or one too many of them, and of one caller the oldest.

    Not of an admin, as whom a simulated fleet comes.
    """
    over: dict[int, AcceptedConnection] = {}
    known: dict[Principal, list[AcceptedConnection]] = {}
    unknown: list[AcceptedConnection] = []
    by_address: dict[str, int] = {}
    for one in sorted(connections, key=lambda each: each.since):
        principal = principals.get(one.peer)
        if principal is not None:
            if principal.role is not Role.ADMIN:
                known.setdefault(principal, []).append(one)
            continue
        address = one.peer[0]
        by_address[address] = by_address.get(address, 0) + 1
        late = now - one.since > limits.login_seconds_max
        if late or by_address[address] > limits.unknown_per_address_max:
            over[one.inode] = one
        else:
            unknown.append(one)
    for several in known.values():
        over |= {one.inode: one for one in several[: -limits.per_caller_max]}
    over |= {one.inode: one for one in unknown[: max(0, len(unknown) - limits.unknown_max)]}
    return list(over.values())


class Connections:
    """Those accepted on our ports. `refresh` from one thread at a time, not the loop's: it is some us a connection."""

    def __init__(
        self, ports: Collection[int], limits: ConnectionLimits, seconds: Callable[[], float]
    ) -> None:
        """*seconds*: a steady clock."""
        self._ports, self._limits, self._seconds = frozenset(ports), limits, seconds
        self._known: dict[
            int, AcceptedConnection | None
        ] = {}  # by inode; None: no connection of ours
        #: Ended so far.
        self.ended_count = 0
        #: Connections as of the last look.
        self.count = 0

    def refresh(self, peers: dict[str, Principal]) -> None:
        """End what is too much, and forget of *peers* (by gRPC's name) those that are gone. Never raises."""
        now = self._seconds()
        open_connections = self._open_connections(now)
        for peer in list(peers):
            at = peer_address(peer)
            if at is not None and at not in open_connections:
                peers.pop(peer, None)
        principals = {
            at: principal for peer, principal in list(peers.items()) if (at := peer_address(peer))
        }
        self.count = len(open_connections)
        for one in too_many(open_connections.values(), principals, self._limits, now):
            self.ended_count += _end(one)

    def _open_connections(self, now: float) -> dict[PeerAddress, AcceptedConnection]:
        found: dict[int, AcceptedConnection | None] = {}
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            inode = _inode(descriptor)
            if inode:
                known = self._known.get(inode, _NOT_CACHED)
                found[inode] = (
                    self._accepted(descriptor, inode, now) if known is _NOT_CACHED else known
                )
        self._known = found
        return {one.peer: one for one in found.values() if one is not None}

    def _accepted(self, descriptor: int, inode: int, now: float) -> AcceptedConnection | None:
        """Return the connection that a socket is; None for one that is none of those accepted on our ports."""
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
            if duplicate.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if duplicate.getsockname()[1] not in self._ports:
                return None
            host, port = duplicate.getpeername()[:2]
            return AcceptedConnection(inode, (_normalized(host), port), now, descriptor)
        return None


_NOT_CACHED = AcceptedConnection(0, ("", 0), 0.0, -1)


def _inode(descriptor: int) -> int:
    """Return a socket's inode, 0 for anything else."""
    with suppress(OSError, ValueError):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.startswith("socket:["):
            return int(name[8:-1])
    return 0


def _end(one: AcceptedConnection) -> bool:
    """Shut a connection down, if its descriptor is still its own; gRPC closes it."""
    with suppress(OSError), socket.socket(fileno=os.dup(one.descriptor)) as duplicate:
        if os.fstat(duplicate.fileno()).st_ino == one.inode:
            duplicate.shutdown(socket.SHUT_RDWR)
            return True
    return False
