"""Checks, by its address, whether a client of the attribution service is on a host of a job.

NVIDIA's launcher sends no credentials. Therefore the address of the connection is compared with the addresses that the
scheduler reports for the job's nodes and pods, and with the addresses to which the nodes' names resolve.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv6Address, ip_address

Address = IPv4Address | IPv6Address

#: A name with an address is resolved again after the first of these times, a name without an address after the second.
KNOWN_SECONDS, UNKNOWN_SECONDS = 3600.0, 60.0
#: Time limit for resolving names in a request; the next request continues with the other names.
REQUEST_SECONDS = 3.0
#: Limit of cached names; at the limit the cache is cleared.
NAMES_MAX = 50_000


def resolve(name: str) -> list[str]:
    """Return the addresses of host *name*. Raises OSError."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class AttributionClients:
    """Addresses of hosts, cached; thread-safe. Loopback belongs to *own_name* ("": this host)."""

    def __init__(
        self,
        resolve: Callable[[str], list[str]] = resolve,
        own_name: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolve, self._monotonic = resolve, monotonic
        self._own_name = (own_name or socket.gethostname()).partition(".")[0]
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, frozenset[Address]]] = {}

    def is_of(self, names: Collection[str], client: str) -> bool:
        """Return whether the address *client* belongs to any of *names*, which are addresses or names of hosts."""
        address = parse_address(client)
        if address is None:
            return False
        parsed = {name: parse_address(name) for name in names}
        if address in parsed.values():
            return True
        hosts = sorted(name for name, literal in parsed.items() if name and literal is None)
        if address.is_loopback and any(host.partition(".")[0] == self._own_name for host in hosts):
            return True
        until = self._monotonic() + REQUEST_SECONDS
        for host in hosts:
            if address in self._addresses(host):
                return True
            if self._monotonic() > until:
                break
        return False

    def _addresses(self, host: str) -> frozenset[Address]:
        with self._lock:
            until, addresses = self._known.get(host, (0.0, frozenset()))
        now = self._monotonic()
        if now < until:
            return addresses
        try:
            found = {parse_address(text) for text in self._resolve(host)}
        except (OSError, UnicodeError):  # UnicodeError: a label that IDNA does not accept
            found = set()
        addresses = frozenset(one for one in found if one is not None)
        with self._lock:
            if len(self._known) >= NAMES_MAX:
                self._known.clear()
            self._known[host] = now + (KNOWN_SECONDS if addresses else UNKNOWN_SECONDS), addresses
        return addresses


def parse_address(text: str) -> Address | None:
    """Return the address in *text*, an IPv4-mapped IPv6 address as IPv4; None for an invalid address."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
