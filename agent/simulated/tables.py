"""Columns of all hosts at once, and the blocks that they are handed out in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...fingerprints.block import Block
from ...fingerprints.catalogue import PERIOD_SECONDS, TABLES, Kind
from .parts import KINDS, Machine

Floats = npt.NDArray[np.float64]


class _Table:
    """One catalogue table of every host: cells as (hosts, columns, rows), and a block per host."""

    def __init__(self, name: str, machines: Sequence[Machine]) -> None:
        kind = TABLES[name][0].device_kind
        self.blocks = [Block(name, machine.devices_of(kind)) for machine in machines]
        shape = (len(TABLES[name]), self.blocks[0].rows)
        self.ints = np.zeros((len(machines), *shape), np.uint64)
        self.floats = self.ints.view(np.float64)
        self.valid = np.zeros_like(self.ints, np.uint8)
        # Views of the blocks' own memory: handing out a block is two copies and allocates nothing.
        self._cells = [np.frombuffer(b.cells, np.uint64).reshape(shape) for b in self.blocks]
        self._valid = [np.frombuffer(b.valid, np.uint8).reshape(shape) for b in self.blocks]

    def block(self, host: int) -> Block:
        self._cells[host][:] = self.ints[host]
        self._valid[host][:] = self.valid[host]
        return self.blocks[host]


class Tables:
    """Every table of a simulated host. What was never put is missing, as it would be on a real one."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        names = [name for name, row in TABLES.items() if row[0].device_kind in KINDS]
        self._tables = {name: _Table(name, machines) for name in names}
        self._columns = {
            signal.name: (self._tables[name], column, signal.kind is Kind.GAUGE)
            for name in names
            for column, signal in enumerate(TABLES[name])
        }
        self._periods = {name: PERIOD_SECONDS[TABLES[name][0].pace] for name in names}

    def put(self, signal: str, values: npt.ArrayLike, rows: slice = slice(None)) -> None:
        """Set a signal of all hosts: a scalar, (hosts,) for all rows alike, or (hosts, rows).

        Counters and states are cut to whole numbers. KeyError for an unknown signal.
        """
        table, column, is_float = self._columns[signal]
        array = np.asarray(values)
        if array.ndim == 1:
            array = array[:, None]
        (table.floats if is_float else table.ints)[:, column, rows] = array
        table.valid[:, column, rows] = 1

    def due(self, host: int, before_seconds: float, now_seconds: float) -> list[Block]:
        """Return the blocks of *host* whose turn came in (before, now]; all, if before is negative.

        Slow tables of different hosts come at different seconds, as they do in a real fleet.
        """
        return [
            table.block(host)
            for name, table in self._tables.items()
            if _is_due(self._periods[name], host, before_seconds, now_seconds)
        ]


def _is_due(period_seconds: int, host: int, before_seconds: float, now_seconds: float) -> bool:
    if before_seconds < 0 or period_seconds == 1:
        return True
    return (now_seconds + host) // period_seconds > (before_seconds + host) // period_seconds
