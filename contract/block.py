"""A block: the readings of one table at one time, in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .signal import Kind
from .signals import BY_ID, TABLES

_SIGNAL_IDS = {
    table: tuple(signal.signal_id for signal in signals) for table, signals in TABLES.items()
}


class Block:
    """`len(signal_ids)` columns of `len(devices)` rows; a cell has 64 bits, and is valid or not.

    Cell (column, row) is at `column * rows + row`. `ints` and `floats` are two views of the same memory: gauges are
    IEEE doubles, everything else unsigned 64 bits. An invalid cell is missing: neither zero nor healthy. The memory is
    allocated once, so that a turn allocates nothing.
    """

    __slots__ = (
        "cells",
        "devices",
        "floats",
        "ints",
        "offset_ns",
        "rows",
        "signal_ids",
        "table",
        "valid",
    )

    def __init__(self, table: str, devices: Sequence[str], signal_ids: Sequence[int] = ()) -> None:
        """*signal_ids* defaults to the catalogue's columns of *table* (KeyError if it has none)."""
        self.table = table
        self.devices = tuple(devices)
        self.rows = len(self.devices)
        self.signal_ids = tuple(signal_ids) or _SIGNAL_IDS[table]
        count = self.rows * len(self.signal_ids)
        self.cells = bytearray(8 * count)
        self.valid = bytearray(count)
        self.ints = memoryview(self.cells).cast("Q")
        self.floats = memoryview(self.cells).cast("d")
        self.offset_ns = 0  # from the frame's time to these readings

    def clear(self) -> None:
        """Forget all values; every cell is missing."""
        self.valid[:] = bytes(len(self.valid))

    def put_float(self, column: int, row: int, value: float | None) -> None:
        """Set a gauge; None is missing."""
        cell = column * self.rows + row
        if value is None:
            self.valid[cell] = 0
        else:
            self.floats[cell] = value
            self.valid[cell] = 1

    def put_int(self, column: int, row: int, value: int | None) -> None:
        """Set a counter or a state. Raises ValueError when it does not fit 64 unsigned bits."""
        cell = column * self.rows + row
        if value is None:
            self.valid[cell] = 0
        else:
            self.ints[cell] = value
            self.valid[cell] = 1

    def values(self, row: int) -> Iterator[tuple[int, float | int | None]]:
        """Yield (signal id, value) of a row; the cell of an unknown signal is an integer."""
        for column, signal_id in enumerate(self.signal_ids):
            cell = column * self.rows + row
            if not self.valid[cell]:
                yield signal_id, None
            else:
                yield signal_id, (self.floats if is_float(signal_id) else self.ints)[cell]

    def select(self, rows: Iterable[int]) -> Block:
        """Return a new block with *rows* of this block, in that order."""
        chosen = list(rows)
        part = Block(self.table, [self.devices[r] for r in chosen], self.signal_ids)
        part.offset_ns = self.offset_ns
        for column in range(len(self.signal_ids)):
            for target_row, row in enumerate(chosen):
                source, target = column * self.rows + row, column * part.rows + target_row
                part.ints[target] = self.ints[source]
                part.valid[target] = self.valid[source]
        return part


def is_float(signal_id: int) -> bool:
    """Return whether the signal's cells are doubles; False for an unknown signal, whose kind is in its dictionary."""
    signal = BY_ID.get(signal_id)
    return signal is not None and signal.kind is Kind.GAUGE
