"""What was once well: only then is it a fault that it is not. A port never cabled is not down."""

from __future__ import annotations

import numpy as np

from .arrays import Flags
from .tables import DeviceTable

PORT_ACTIVE = 4


#: What is said of a device that was well once -> its table, and the flags that say so.
_SAID = {
    "rdma.port_state": ("rdma_1s", "ports_up"),
    "net.carrier_state": ("net_1s", "carriers"),
    "filesystem.read_only_state": ("filesystem_60s", "writable"),
    "nvlink.link_state": ("nvlink_10s_changes", "nvlinks"),
    "c2c.link_state": ("c2c_10s_changes", "c2c_links"),
    "bond.slaves_up_count": ("bond_10s", "whole_bonds"),
}
#: The event of an interface that was removed; of one that was not in use nothing is said.
REMOVED = "net.link"


class Seen:
    """Flags per device row that once set stay set, for as long as we run."""

    def __init__(self) -> None:
        none = np.zeros(0, dtype=bool)
        self.ports_up: Flags = none
        self.carriers: Flags = none
        self.writable: Flags = none
        self.nvlinks: Flags = none
        self.c2c_links: Flags = none
        self.whole_bonds: Flags = none
        #: (host, device) of before our start by what was said of them, until each has a row.
        self._before: dict[str, list[tuple[int, str]]] = {}
        #: (host, device) of interfaces in use that were gone then, and have no row any more.
        self.removed: set[tuple[int, str]] = set()

    def restore(self, host: int, device: str, signal: str) -> None:
        """Take over that *signal* stood against *device* before our start: then it was well before that."""
        if signal == REMOVED:
            self.removed.add((host, device))
        if signal in _SAID:
            self._before.setdefault(signal, []).append((host, device))

    def advance(self, tables: dict[str, DeviceTable]) -> None:
        """Take note of what is well now."""
        ports, net, files = tables["rdma_1s"], tables["net_1s"], tables["filesystem_60s"]
        self.ports_up = _or(self.ports_up, ports.state("port_state") == PORT_ACTIVE)
        self.carriers = _or(self.carriers, net.state("carrier_state") == 1)
        read_only = files.state("read_only_state", missing=1)
        self.writable = _or(self.writable, read_only == 0)
        self.nvlinks = _or(self.nvlinks, tables["nvlink_10s_changes"].state("link_state") > 0)
        self.c2c_links = _or(self.c2c_links, tables["c2c_10s_changes"].state("link_state") > 0)
        bonds = tables["bond_10s"]
        whole = bonds.gauge("slaves_up_count") >= bonds.gauge("slaves_count")
        self.whole_bonds = _or(self.whole_bonds, np.asarray(whole, dtype=bool))
        for signal in list(self._before):
            table, flags = _SAID[signal]
            self._take_over(signal, tables[table], getattr(self, flags))

    def _take_over(self, signal: str, table: DeviceTable, flags: Flags) -> None:
        rows = [(one, table.devices.find(*one)) for one in self._before.pop(signal)]
        flags[[row for _, row in rows if 0 <= row < flags.size]] = True
        if left := [one for one, row in rows if not 0 <= row < flags.size]:
            self._before[signal] = left


def _or(before: Flags, now: Flags) -> Flags:
    now[: before.size] |= before
    return now
