"""Who counts: a GPU whose driver was loaded again, an interface that is another one under the old name.

A reading that bears a number of its device's life (the counter epoch of a GPU, the ifindex of an
interface) says when it changed; then all counters of the device start over, in every table.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .arrays import Flags, Words, grown
from .tables import Devices, DeviceTable

#: The column of such a number, in whichever tables have it.
WITNESS = "counter_epoch_count"


class Witness:
    """The number that each device of one table bore at its last reading."""

    def __init__(self, table: DeviceTable) -> None:
        self._table, self.devices = table, table.devices
        self._last: Words = np.zeros(64, dtype=np.uint64)
        self._known: Flags = np.zeros(64, dtype=bool)

    def changes(self) -> list[tuple[int, bool]]:
        """Return (row, whether the number rose) of every device that bears another one than before."""
        if self._last.shape[0] < self._table.devices.capacity:
            self._last = grown(self._last, self._table.devices.capacity)
            self._known = grown(self._known, self._table.devices.capacity)
        now, known = self._table.state(WITNESS), self._table.known(WITNESS)
        here = slice(0, now.shape[0])
        changed = known & self._known[here] & (now != self._last[here])
        rose = now > self._last[here]
        self._last[here] = np.where(known, now, self._last[here])
        self._known[here] |= known
        return [(row, bool(rose[row])) for row in np.flatnonzero(changed).tolist()]


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
