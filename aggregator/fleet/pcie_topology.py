"""Which PCIe links the traffic of a GPU or of a network adapter crosses, from its slot up to the root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from ..counter_deltas import Indexes
from .devices import Devices

Attributes = Mapping[tuple[str, str], Mapping[str, str]]


class Links(NamedTuple):
    """One place a link: the row of who uses it, and the rows of its two ends among the PCIe functions."""

    user: Indexes
    lower: Indexes
    upper: Indexes


class TopologySource(Protocol):
    """What is needed of a fleet."""

    shape_version: int
    attributes: list[dict[tuple[str, str], dict[str, str]]]
    devices: dict[str, Devices]


class PcieTopology:
    """The links of each kind of user. Kept until hosts, devices or their attributes change."""

    def __init__(self) -> None:
        self._version = -1
        self._links: dict[str, Links] = {}
        self._rows: dict[tuple[str, str], Indexes] = {}

    def _refresh(self, fleet: TopologySource) -> None:
        if self._version != fleet.shape_version:
            self._version, self._links, self._rows = fleet.shape_version, {}, {}

    def rows(self, fleet: TopologySource, kind: str, other: str) -> Indexes:
        """Return for each device of *kind* the row that the same device has under kind *other*; or -1."""
        self._refresh(fleet)
        if (kind, other) not in self._rows:
            users, find = fleet.devices[kind], fleet.devices[other].find
            keys = zip(users.host.tolist(), users.names, strict=True)
            found = [find(host, name) for host, name in keys]
            self._rows[kind, other] = np.array(found, dtype=np.intp)
        return self._rows[kind, other]

    def links(self, fleet: TopologySource, kind: str) -> Links:
        """Return the links that devices of *kind* use, by the inventories of their hosts."""
        self._refresh(fleet)
        if kind not in self._links:
            found = list(_find_links(fleet, kind))
            columns = np.array(found, dtype=np.intp).reshape(-1, 3).T
            self._links[kind] = Links(columns[0], columns[1], columns[2])
        return self._links[kind]


def _find_links(fleet: TopologySource, kind: str) -> Iterator[tuple[int, int, int]]:
    users, functions = fleet.devices[kind], fleet.devices["pcie"]
    for user, (host, name) in enumerate(zip(users.host.tolist(), users.names, strict=True)):
        attributes = fleet.attributes[host]
        address = attributes.get((kind, name), {}).get("pci_address", "")
        for lower, upper in link_ends(attributes, address):
            rows = functions.find(host, lower), functions.find(host, upper)
            if min(rows) >= 0:
                yield user, rows[0], rows[1]


def link_ends(attributes: Attributes, address: str) -> list[tuple[str, str]]:
    """Return the two ends of every link above the function at *address*, the lower one first.

    On the way up ports come in pairs: a function and the port above it are the ends of one link, that
    port and the upstream port of its own switch are not (PCI Express Base Specification, topology).
    """
    parents = attributes.get(("pcie", address), {}).get("parents", "").split()
    chain = [address, *parents] if parents else []
    return [(chain[at], chain[at + 1]) for at in range(0, len(chain) - 1, 2)]
