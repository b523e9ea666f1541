"""How fast somebody may go: buckets that fill with time."""

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

from .principal import Caller, Role

#: Seconds' worth that may come at once: what waited while the way was cut.
BURST_SECONDS = 20.0
#: Buckets kept; those used longest ago go first, by when they are full again.
BUCKETS_MAX = 100_000


class Bucket:
    """So much a second, and `BURST_SECONDS` of it at once. Never forgives less than it was taken."""

    __slots__ = ("_level", "_rate", "_seconds")

    def __init__(self, rate_per_second: float, now: float) -> None:
        self._rate = rate_per_second
        self._level = rate_per_second * BURST_SECONDS
        self._seconds = now

    def take(self, amount: float, now: float) -> float:
        """Take *amount*, also if it is not there; return after how many seconds the next may be taken, 0 for now."""
        passed = max(0.0, now - self._seconds)
        self._level = min(self._rate * BURST_SECONDS, self._level + passed * self._rate) - amount
        self._seconds = max(self._seconds, now)
        return max(0.0, -self._level / self._rate)

    def ask(self, now: float) -> float:
        """Take one if there is one, and return 0; else take none, and return after how many seconds there will be."""
        wait = self.take(1.0, now)
        if wait:
            self._level += 1.0
        return wait


class Buckets:
    """One for each key. Owned by the loop's thread."""

    def __init__(self, rate_per_second: float, seconds: Callable[[], float]) -> None:
        """*seconds*: a steady clock."""
        self._rate, self._seconds = rate_per_second, seconds
        self._of: OrderedDict[Hashable, Bucket] = OrderedDict()

    def ask(self, key: Hashable) -> float:
        """As `Bucket.ask`, of *key*."""
        now = self._seconds()
        bucket = self._of.get(key)
        if bucket is None:
            bucket = self._of[key] = Bucket(self._rate, now)
            while len(self._of) > BUCKETS_MAX:
                self._of.popitem(last=False)
        self._of.move_to_end(key)
        return bucket.ask(now)


# ----------------------------------------------------------------------
# Connections that nobody logged in on, and too many of one caller: found by the kernel's list of
# our own sockets.
#
# gRPC for Python tells nobody of a connection before its first call, and keeps one for ever on
# which none comes. So the process looks at its own descriptors, and ends a connection from beneath
# (shutdown(2)): gRPC sees a peer that left.

#: An address and a port.
Where = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of connections."""

    per_caller_max: int  # with a login
    unknown_max: int  # without, together
    unknown_per_address_max: int
    login_seconds_max: float  # so long one may be without


class Connection(NamedTuple):
    """One that was accepted: its socket's inode, who is at the other end, when we first saw it."""

    inode: int
    peer: Where
    since: float
    descriptor: int


def where(peer: str) -> Where | None:
    """Return address and port of gRPC's `ipv4:10.0.0.1:4711` or `ipv6:%5B::1%5D:4711`; None for another kind."""
    kind, _, rest = peer.partition(":")
    host, _, port = urllib.parse.unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6") or not (port.isdecimal() and len(port) <= 5):
        return None
    return _plain(host.strip("[]")), int(port)


def _plain(host: str) -> str:
    """Return one form of an address: IPv4 in IPv6 as IPv4, without a zone."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return str(mapped or address)
    return host


def too_many(
    connections: Collection[Connection], callers: dict[Where, Caller], limits: Limits, now: float
) -> list[Connection]:
    """Return those to end: without a login for too long or one too many of them, and of one caller the oldest.

    Not of an admin, as whom a simulated fleet comes.
    """
    over: dict[int, Connection] = {}
    known: dict[Caller, list[Connection]] = {}
    unknown: list[Connection] = []
    by_address: dict[str, int] = {}
    for one in sorted(connections, key=lambda each: each.since):
        caller = callers.get(one.peer)
        if caller is not None:
            if caller.role is not Role.ADMIN:
                known.setdefault(caller, []).append(one)
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
    """Those accepted on our ports. `look` from one thread at a time, not the loop's: it is some us a connection."""

    def __init__(
        self, ports: Collection[int], limits: Limits, seconds: Callable[[], float]
    ) -> None:
        """*seconds*: a steady clock."""
        self._ports, self._limits, self._seconds = frozenset(ports), limits, seconds
        self._known: dict[int, Connection | None] = {}  # by inode; None: no connection of ours
        #: Ended so far.
        self.ended_count = 0
        #: Connections as of the last look.
        self.count = 0

    def look(self, peers: dict[str, Caller]) -> None:
        """End what is too much, and forget of *peers* (by gRPC's name) those that are gone. Never raises."""
        now = self._seconds()
        there = self._there(now)
        for peer in list(peers):
            at = where(peer)
            if at is not None and at not in there:
                peers.pop(peer, None)
        callers = {at: caller for peer, caller in list(peers.items()) if (at := where(peer))}
        self.count = len(there)
        for one in too_many(there.values(), callers, self._limits, now):
            self.ended_count += _end(one)

    def _there(self, now: float) -> dict[Where, Connection]:
        found: dict[int, Connection | None] = {}
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            inode = _inode(descriptor)
            if inode:
                known = self._known.get(inode, _UNSEEN)
                found[inode] = self._seen(descriptor, inode, now) if known is _UNSEEN else known
        self._known = found
        return {one.peer: one for one in found.values() if one is not None}

    def _seen(self, descriptor: int, inode: int, now: float) -> Connection | None:
        """Return the connection that a socket is; None for one that is none of those accepted on our ports."""
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as ours:
            if ours.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if ours.getsockname()[1] not in self._ports:
                return None
            host, port = ours.getpeername()[:2]
            return Connection(inode, (_plain(host), port), now, descriptor)
        return None


_UNSEEN = Connection(0, ("", 0), 0.0, -1)


def _inode(descriptor: int) -> int:
    """Return a socket's inode, 0 for anything else."""
    with suppress(OSError, ValueError):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.startswith("socket:["):
            return int(name[8:-1])
    return 0


def _end(one: Connection) -> bool:
    """Shut a connection down, if its descriptor is still its own; gRPC closes it."""
    with suppress(OSError), socket.socket(fileno=os.dup(one.descriptor)) as ours:
        if os.fstat(ours.fileno()).st_ino == one.inode:
            ours.shutdown(socket.SHUT_RDWR)
            return True
    return False
