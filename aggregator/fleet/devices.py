"""The devices of all hosts, each with a row that all tables share; PCIe topology.

A device keeps its row while the aggregator runs, or until it disappears and another device needs the row (`evictions.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from ...ext.devicekeys import DeviceKeys
from ..arrays import Codes, Indexes
from ..counter_deltas import capacity_for, grown

#: Rows per host and kind (the store has all devices); those gone longest are evicted.
DEVICES_PER_HOST_MAX = 1024


class DeviceNames:
    """The names of devices by row, read from their keys."""

    def __init__(self, keys: DeviceKeys) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return map(self._keys.name, range(len(self._keys)))

    def __getitem__(self, row: int) -> str:
        return self._keys.name(row)


class Devices:
    """The devices of one kind. A row never changes its host."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._keys = DeviceKeys()
        self.names = DeviceNames(self._keys)
        self.capacity = 64
        self._host: Codes = np.zeros(self.capacity, dtype=np.int32)
        self._keys.bind(self._host)
        self._epoch: Codes = np.zeros(self.capacity, dtype=np.int32)
        self._renewals: Codes = np.zeros(self.capacity, dtype=np.int32)
        self._per_host: Codes = np.zeros(64, dtype=np.int32)

    @property
    def count(self) -> int:
        """Return the number of rows in use."""
        return len(self._keys)

    def find(self, host: int, name: str) -> int:
        """Return the device's row, -1 if it has none."""
        return self._keys.find(host, name)

    @property
    def host(self) -> Codes:
        """Return the node index of every row."""
        return self._host[: self.count]

    @property
    def epoch(self) -> Codes:
        """Return how often each row's counters were reported to have been reset together."""
        return self._epoch[: self.count]

    @property
    def renewals(self) -> Codes:
        """Return how often each row's device was reset or its driver reloaded."""
        return self._renewals[: self.count]

    def start_over(self, row: int, *, renewed: bool) -> None:
        """Restart the row's counters: no step spans this moment.

        *renewed*: the device was reset or its driver reloaded; else the agent restarted and counts
        from 0.
        """
        self._epoch[row] += 1
        self._renewals[row] += renewed

    def reassign(self, row: int, name: str) -> None:
        """Assign *row* to *name* of the same host. Tables must forget the row themselves."""
        self._keys.rename(row, name)
        self._epoch[row] = self._renewals[row] = 0

    def rows_of(self, host: int) -> list[int]:
        return np.flatnonzero(self.host == host).tolist()

    def count_of_host(self, host: int) -> int:
        return int(self._per_host[host]) if host < self._per_host.shape[0] else 0

    def row(self, host: int, name: str) -> int:
        """Return the device's row, a new one if necessary; -1 if the host has too many."""
        row = self._keys.find(host, name)
        if row >= 0:
            return row
        if self.count_of_host(host) >= DEVICES_PER_HOST_MAX:
            return -1
        row = self.count
        if row == self.capacity:
            self.capacity = capacity_for(row + 1, self.capacity)
            self._host = grown(self._host, self.capacity)
            self._keys.bind(self._host)
            self._epoch = grown(self._epoch, self.capacity)
            self._renewals = grown(self._renewals, self.capacity)
        if host >= self._per_host.shape[0]:
            self._per_host = grown(self._per_host, capacity_for(host + 1, self._per_host.shape[0]))
        self._keys.add(host, name)
        self._per_host[host] += 1
        return row


Attributes = Mapping[tuple[str, str], Mapping[str, str]]


class Links(NamedTuple):
    """PCIe links: for each, the row of its user, and the rows of both ends among PCIe functions."""

    user: Indexes
    lower: Indexes
    upper: Indexes


class TopologySource(Protocol):
    """The attributes of a fleet that links depend on."""

    shape_version: int
    attributes: list[dict[tuple[str, str], dict[str, str]]]
    devices: dict[str, Devices]


class PcieTopology:
    """PCIe links between GPUs or adapters and their roots, cached until devices change."""

    def __init__(self) -> None:
        self._version = -1
        self._links: dict[str, Links] = {}
        self._rows: dict[tuple[str, str], Indexes] = {}

    def _refresh(self, fleet: TopologySource) -> None:
        if self._version != fleet.shape_version:
            self._version, self._links, self._rows = fleet.shape_version, {}, {}

    def rows(self, fleet: TopologySource, kind: str, other: str) -> Indexes:
        """Return for each device of *kind* its row under kind *other*, or -1."""
        self._refresh(fleet)
        if (kind, other) not in self._rows:
            users, find = fleet.devices[kind], fleet.devices[other].find
            keys = zip(users.host.tolist(), users.names, strict=True)
            found_rows = [find(host, name) for host, name in keys]
            self._rows[kind, other] = np.array(found_rows, dtype=np.intp)
        return self._rows[kind, other]

    def links(self, fleet: TopologySource, kind: str) -> Links:
        """Return the links that devices of *kind* use, by their hosts' inventories."""
        self._refresh(fleet)
        if kind not in self._links:
            link_rows = list(_find_links(fleet, kind))
            columns = np.array(link_rows, dtype=np.intp).reshape(-1, 3).T
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
    """Return both ends of every link above the function at *address*, the lower one first.

    On the way up ports come in pairs: a function and the port above it are the ends of a link, but
    that port and the upstream port of its switch are not (PCI Express Base Specification,
    topology).
    """
    parents = attributes.get(("pcie", address), {}).get("parents", "").split()
    chain = [address, *parents] if parents else []
    return [(chain[index], chain[index + 1]) for index in range(0, len(chain) - 1, 2)]
