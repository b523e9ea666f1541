"""Who counts: a GPU whose driver was loaded again, an interface that is another one under the old name.

A reading that bears a number of its device's life (the counter epoch of a GPU, the ifindex of an
interface) says when it changed; then all counters of the device start over, in every table.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .arrays import Words, grown
from .devices import Devices
from .tables import DeviceTable

#: The column of such a number, in whichever tables have it.
WITNESS = "counter_epoch_count"
#: No device bears this number: all ones is a register that is gone.
_NEVER = np.uint64(2**64 - 1)


class Witness:
    """The number that each device of one table bore at its last reading."""

    def __init__(self, table: DeviceTable) -> None:
        self._table, self.devices = table, table.devices
        self._last: Words = np.full(64, _NEVER, dtype=np.uint64)

    def changes(self) -> list[tuple[int, bool]]:
        """Return (row, whether the number rose) of every device that bears another one than before."""
        before = self._last.size
        if before < self._table.devices.capacity:
            self._last = grown(self._last, self._table.devices.capacity)
            self._last[before:] = _NEVER
        cells = self._table.state_at(WITNESS, slice(0, self._table.devices.count))
        rows = np.flatnonzero(cells != self._last[: cells.size])
        rows = rows[self._table.known(WITNESS)[rows]]
        now, last = cells[rows], self._last[rows]
        changed = np.flatnonzero(last != _NEVER)
        self._last[rows] = now
        return [(int(rows[at]), bool(now[at] > last[at])) for at in changed.tolist()]


class Identity:
    """All witnesses of a fleet."""

    def __init__(self, tables: Mapping[str, DeviceTable], devices: Mapping[str, Devices]) -> None:
        self._devices = devices
        self._witnesses = [Witness(t) for t in tables.values() if WITNESS in t.column]

    def advance(self) -> None:
        """Let the counters of every device that is not who it was start over."""
        for witness in self._witnesses:
            for row, rose in witness.changes():
                witness.devices.start_over(row, renewed=rose)
                if witness.devices.kind == "gpu":
                    self._start_over_parts(witness.devices, row)

    def _start_over_parts(self, gpus: Devices, gpu: int) -> None:
        """What a GPU has, such as an NVLink, bears its name, or one that begins with it."""
        host, name = int(gpus.host[gpu]), gpus.names[gpu]
        for devices in self._devices.values():
            for row in devices.rows_of(host) if devices is not gpus else ():
                if devices.names[row].startswith(name):
                    devices.start_over(row, renewed=False)
