"""Devices that were once well: a port that was never cabled is not down."""

from __future__ import annotations

import numpy as np

from ..arrays import Flags
from .devices import Devices
from .tables import DeviceTable

PORT_ACTIVE = 4
#: Signals that are a fault only after the device was once well (a port never cabled is not down) ->
#: its table, and the flags.
_EVER_UP = {
    "rdma.port_state": ("rdma_1s", "ports_up"),
    "net.carrier_state": ("net_1s", "carriers"),
    "filesystem.read_only_state": ("filesystem_60s", "writable"),
    "nvlink.link_state": ("nvlink_10s_changes", "nvlinks"),
    "c2c.link_state": ("c2c_10s_changes", "c2c_links"),
    "bond.slaves_up_count": ("bond_10s", "whole_bonds"),
    "bond.link_state": ("bond_10s", "bonds_up"),
}
#: The event of a removed interface; ignored for an unused interface.
REMOVED = "net.link"


class EverUp:
    """Flags per device row of conditions that were once true; they are never reset."""

    def __init__(self) -> None:
        none = np.zeros(0, dtype=bool)
        self.ports_up: Flags = none
        self.carriers: Flags = none
        self.writable: Flags = none
        self.nvlinks: Flags = none
        self.c2c_links: Flags = none
        self.whole_bonds: Flags = none
        self.bonds_up: Flags = none
        #: Signal -> (host, device) with a symptom before the start, until the device has a row.
        self._restored: dict[str, list[tuple[int, str]]] = {}
        #: (host, device) of interfaces used and removed before the start, and without a row.
        self.removed: set[tuple[int, str]] = set()

    def restore(self, host: int, device: str, signal: str) -> None:
        """Restore a symptom from before the start: it implies that the device was well."""
        if signal == REMOVED:
            self.removed.add((host, device))
        if signal in _EVER_UP:
            self._restored.setdefault(signal, []).append((host, device))

    def forget(self, tables: dict[str, DeviceTable], devices: Devices, row: int) -> None:
        """Clear the flags of *row* in *devices*, which is being reassigned."""
        for table, flags in _EVER_UP.values():
            if tables[table].devices is devices and row < getattr(self, flags).size:
                getattr(self, flags)[row] = False

    def advance(self, tables: dict[str, DeviceTable]) -> None:
        """Set the flags of devices that are well now."""
        ports, net, files = tables["rdma_1s"], tables["net_1s"], tables["filesystem_60s"]
        self.ports_up = _or(self.ports_up, ports.state("port_state") == PORT_ACTIVE)
        self.carriers = _or(self.carriers, net.state("carrier_state") == 1)
        read_only = files.state("read_only_state", missing=1)
        self.writable = _or(self.writable, read_only == 0)
        self.nvlinks = _or(self.nvlinks, tables["nvlink_10s_changes"].state("link_state") > 0)
        self.c2c_links = _or(self.c2c_links, tables["c2c_10s_changes"].state("link_state") > 0)
        bonds = tables["bond_10s"]
        complete = bonds.gauge("slaves_up_count") >= bonds.gauge("slaves_count")
        self.whole_bonds = _or(self.whole_bonds, np.asarray(complete, dtype=bool))
        self.bonds_up = _or(self.bonds_up, bonds.state("link_state") == 1)
        for signal in list(self._restored):
            table, flags = _EVER_UP[signal]
            self._take_over(signal, tables[table], getattr(self, flags))

    def _take_over(self, signal: str, table: DeviceTable, flags: Flags) -> None:
        rows = [(r, table.devices.find(*r)) for r in self._restored.pop(signal)]
        flags[[row for _, row in rows if 0 <= row < flags.size]] = True
        if missing := [
            restored_device for restored_device, row in rows if not 0 <= row < flags.size
        ]:
            self._restored[signal] = missing


def _or(before: Flags, now: Flags) -> Flags:
    now[: before.size] |= before
    return now
