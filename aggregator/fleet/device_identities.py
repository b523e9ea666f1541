"""Identities of devices: a GPU whose driver was reloaded, or another interface with the same name.

When the number that identifies a device (counter epoch of a GPU, ifindex of an interface) changes,
all its counters restart in every table.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..counter_deltas import Uint64s, grown
from .devices import Devices
from .tables import DeviceTable

#: The column of such a number.
EPOCH_COLUMN = "counter_epoch_count"
#: Not a valid number: all ones is read from the register of a missing device.
_NEVER = np.uint64(2**64 - 1)


class EpochTracker:
    """The number of each device of a table at its last reading."""

    def __init__(self, table: DeviceTable) -> None:
        self._table, self.devices = table, table.devices
        self._last: Uint64s = np.full(64, _NEVER, dtype=np.uint64)

    def changes(self) -> list[tuple[int, bool]]:
        """Return (row, whether the number rose) for every device whose number changed."""
        before = self._last.size
        if before < self._table.devices.capacity:
            self._last = grown(self._last, self._table.devices.capacity)
            self._last[before:] = _NEVER
        cells = self._table.state_at(EPOCH_COLUMN, slice(0, self._table.devices.count))
        rows = np.flatnonzero(cells != self._last[: cells.size])
        rows = rows[self._table.known(EPOCH_COLUMN)[rows]]
        now, last = cells[rows], self._last[rows]
        changed = np.flatnonzero(last != _NEVER)
        self._last[rows] = now
        return [(int(rows[index]), bool(now[index] > last[index])) for index in changed.tolist()]

    def forget(self, row: int) -> None:
        """Forget the number of *row*, which is being reassigned."""
        if row < self._last.size:
            self._last[row] = _NEVER


class DeviceIdentities:
    """The identity numbers of all tables."""

    def __init__(self, tables: Mapping[str, DeviceTable], devices: Mapping[str, Devices]) -> None:
        self._devices = devices
        self._trackers = [EpochTracker(t) for t in tables.values() if EPOCH_COLUMN in t.column]

    def advance(self) -> None:
        """Restart the counters of every device whose identity changed."""
        for tracker in self._trackers:
            for row, rose in tracker.changes():
                tracker.devices.start_over(row, renewed=rose)
                if tracker.devices.kind == "gpu":
                    self._start_over_parts(tracker.devices, row)

    def forget(self, devices: Devices, row: int) -> None:
        """Forget the identity in *row* of *devices*."""
        for tracker in self._trackers:
            if tracker.devices is devices:
                tracker.forget(row)

    def _start_over_parts(self, gpus: Devices, gpu: int) -> None:
        # Parts of a GPU, such as NVLinks, have names that begin with its name.
        host, name = int(gpus.host[gpu]), gpus.names[gpu]
        for devices in self._devices.values():
            for row in devices.rows_of(host) if devices is not gpus else ():
                if devices.names[row].startswith(name):
                    devices.start_over(row, renewed=False)
