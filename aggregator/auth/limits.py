"""Rate limits: token buckets by caller, and limits of connections."""

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

#: Burst of a rate limit in seconds, for data that accumulated while the network was down.
BURST_SECONDS = 20.0
#: Limit of the buckets; the least recently used are removed, which are full again by then.
BUCKETS_MAX = 100_000


class KeyedTokenBuckets:
    """A token bucket for each key. Owned by the event loop's thread."""

    def __init__(self, rate_per_second: float, seconds: Callable[[], float]) -> None:
        """*seconds*: a steady clock."""
        self._rate, self._seconds = rate_per_second, seconds
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def try_take(self, key: Hashable) -> float:
        """Call `TokenBucket.try_take` on the bucket of *key*."""
        now = self._seconds()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(self._rate, self._rate * BURST_SECONDS, now)
            while len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        return bucket.try_take(now)


# Limits of connections, found through the kernel's list of this process's sockets. gRPC for Python
# does not report a connection before its first call, and keeps unused connections forever.
# Therefore the process examines its own descriptors, and ends a connection by shutdown(2): gRPC
# sees a peer that disconnected.

#: An address and a port.
PeerAddress = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections."""

    per_caller_max: int  # authenticated
    unknown_max: int  # not authenticated, in total
    unknown_per_address_max: int
    login_seconds_max: float  # time until a connection must authenticate


class AcceptedConnection(NamedTuple):
    """An accepted connection: inode of its socket, peer, and time when it was first seen."""

    inode: int
    peer: PeerAddress
    since: float
    descriptor: int


def peer_address(peer: str) -> PeerAddress | None:
    """Return address and port of gRPC's `ipv4:10.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    kind, _, rest = peer.partition(":")
    host, _, port = urllib.parse.unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not (port.isdecimal() and len(port) <= 5):
        return None
    return _normalized(host.strip("[]")), int(port)


def _normalized(host: str) -> str:
    """Return the normalized address: mapped IPv4 as IPv4, and without a zone."""
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
    """Return the connections to end: unauthenticated ones that are late or too many, and a caller's
    oldest.

    Admins are not limited, because a simulated fleet uses an admin's login.
    """
    over: dict[int, AcceptedConnection] = {}
    known: dict[Principal, list[AcceptedConnection]] = {}
    unknown: list[AcceptedConnection] = []
    by_address: dict[str, int] = {}
    for connection in sorted(connections, key=lambda connection: connection.since):
        principal = principals.get(connection.peer)
        if principal is not None:
            if principal.role is not Role.ADMIN:
                known.setdefault(principal, []).append(connection)
            continue
        address = connection.peer[0]
        by_address[address] = by_address.get(address, 0) + 1
        late = now - connection.since > limits.login_seconds_max
        if late or by_address[address] > limits.unknown_per_address_max:
            over[connection.inode] = connection
        else:
            unknown.append(connection)
    for caller_connections in known.values():
        over |= {c.inode: c for c in caller_connections[: -limits.per_caller_max]}
    over |= {c.inode: c for c in unknown[: max(0, len(unknown) - limits.unknown_max)]}
    return list(over.values())


class Connections:
    """Accepted connections on the service's ports.

    Call `refresh` in one thread at a time, but not in the event loop's: it takes some microseconds
    per connection.
    """

    def __init__(
        self, ports: Collection[int], limits: ConnectionLimits, seconds: Callable[[], float]
    ) -> None:
        self._ports, self._limits, self._seconds = frozenset(ports), limits, seconds
        # By inode; None: not an accepted connection.
        self._known: dict[int, AcceptedConnection | None] = {}
        #: Number of ended connections.
        self.ended_count = 0
        #: Connections at the last check.
        self.count = 0

    def refresh(self, peers: dict[str, Principal]) -> None:
        """End excess connections; remove closed ones from *peers* (gRPC's names). Never raises."""
        now = self._seconds()
        open_connections = self._open_connections(now)
        for peer in list(peers):
            address = peer_address(peer)
            if address is not None and address not in open_connections:
                peers.pop(peer, None)
        principals = {
            address: principal
            for peer, principal in list(peers.items())
            if (address := peer_address(peer))
        }
        self.count = len(open_connections)
        for connection in too_many(open_connections.values(), principals, self._limits, now):
            self.ended_count += _end(connection)

    def _open_connections(self, now: float) -> dict[PeerAddress, AcceptedConnection]:
        connections: dict[int, AcceptedConnection | None] = {}
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            inode = _inode(descriptor)
            if inode:
                known = self._known.get(inode, _NOT_CACHED)
                connections[inode] = (
                    self._accepted(descriptor, inode, now) if known is _NOT_CACHED else known
                )
        self._known = connections
        return {c.peer: c for c in connections.values() if c is not None}

    def _accepted(self, descriptor: int, inode: int, now: float) -> AcceptedConnection | None:
        """Return the connection of a socket; None if it was not accepted on the service's ports."""
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
    """Return a socket's inode, 0 for another kind of descriptor."""
    with suppress(OSError, ValueError):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.startswith("socket:["):
            return int(name[8:-1])
    return 0


def _end(one: AcceptedConnection) -> bool:
    """Shut a connection down if the descriptor still belongs to it; gRPC closes it."""
    with suppress(OSError), socket.socket(fileno=os.dup(one.descriptor)) as duplicate:
        if os.fstat(duplicate.fileno()).st_ino == one.inode:
            duplicate.shutdown(socket.SHUT_RDWR)
            return True
    return False
