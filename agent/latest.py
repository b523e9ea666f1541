"""Latest readings of this host, for its local findings and metrics.

The daemon's thread writes, any thread reads: a table's readings are an immutable copy that is
replaced as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from ..contract.block import Block, is_float
from ..contract.signal import Signal


class TableSnapshot(NamedTuple):
    """A table at `boottime_ns`; cells as in a `Block`."""

    table: str
    boottime_ns: int
    devices: tuple[str, ...]
    signal_ids: tuple[int, ...]
    cells: bytes
    valid: bytes

    def column(self, signal_id: int) -> tuple[slice, slice]:
        """Return the slices of a signal's cells and valid bytes; empty for a foreign signal."""
        if signal_id not in self.signal_ids:
            return slice(0), slice(0)
        rows = len(self.devices)
        start = self.signal_ids.index(signal_id) * rows
        return slice(8 * start, 8 * (start + rows)), slice(start, start + rows)

    def values(self, signal_id: int) -> Iterator[tuple[str, float | int]]:
        """Yield (device, value) of a signal's known cells; none for a foreign signal."""
        if signal_id not in self.signal_ids:
            return
        code = "d" if is_float(signal_id) else "Q"
        start = self.signal_ids.index(signal_id) * len(self.devices)
        known = self.valid[start : start + len(self.devices)]
        numbers = struct.unpack_from(f"={len(self.devices)}{code}", self.cells, 8 * start)
        for device, valid, number in zip(self.devices, known, numbers, strict=True):
            if valid:
                yield device, number


class LatestReadings:
    """Tables by name. A table that is no longer read keeps its last readings."""

    def __init__(self, wanted: Container[str] | None = None) -> None:
        """*wanted*: the tables to keep; None: all."""
        self.tables: dict[str, TableSnapshot] = {}
        self._wanted = wanted

    def devices_with(self, signal: Signal) -> frozenset[str]:
        """Return the devices whose last reading of *signal* is known. For any thread."""
        table = self.tables.get(signal.table)
        return frozenset(key for key, _ in table.values(signal.signal_id)) if table else frozenset()

    def update(self, boottime_ns: int, blocks: Iterable[Block]) -> None:
        """Store copies of the wanted blocks of a tick at *boottime_ns*."""
        wanted = self._wanted
        for block in blocks:
            table = block.table
            if wanted is None or table in wanted:
                self.tables[table] = TableSnapshot(
                    table,
                    boottime_ns + block.offset_ns,
                    block.devices,
                    block.signal_ids,
                    bytes(block.cells),
                    bytes(block.valid),
                )
