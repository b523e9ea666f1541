"""Writes values and rows into a collector's blocks by signal name and device name."""

from __future__ import annotations

from collections.abc import Iterable

from ...contract.block import Block, is_float
from ...contract.signal import Kind
from ...contract.signals import BY_ID, BY_NAME, index_of
from ...ext.hostfiles import Places
from ..hardware.files import device_key


def put(block: Block, signal: str, row: int, value: float | None) -> None:
    """Set a gauge as a double, anything else as a whole number; None is missing. KeyError for an unknown signal.

    A whole number that does not fit 64 unsigned bits is missing as well.
    """
    if BY_NAME[signal].kind is Kind.GAUGE:
        block.put_float(index_of(signal), row, value)
    else:
        fits = value is not None and 0 <= value < 1 << 64
        block.put_int(index_of(signal), row, int(value) if fits and value is not None else None)


def row_writer(block: Block, signals: Iterable[str]) -> Places:
    """Return how a row of *block* is filled in one call, with the values of these signals in their order."""
    columns = [(index_of(name), BY_NAME[name].kind is Kind.GAUGE) for name in signals]
    return Places(block.cells, block.valid, block.rows, columns)


def clear_row(block: Block, row: int) -> None:
    """Let every cell of the row be missing."""
    block.valid[row :: block.rows] = bytes(len(block.signal_ids))


def block_of(block: Block, names: Iterable[str]) -> Block:
    """Return *block* if its devices are those named, else a new one of its table."""
    keys = tuple(device_key(name) for name in names)
    return block if block.devices == keys else Block(block.table, keys)


# ----------------------------------------------------------------------
# The values of one turn over the GPUs, by signal and row, whichever table they stand in.


class Cells:
    """A view of a lane's blocks, which have the same rows. A signal of another lane is always missing."""

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self._columns = {
            BY_ID[signal_id].name: (block, column, is_float(signal_id))
            for block in blocks
            for column, signal_id in enumerate(block.signal_ids)
        }

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def number(self, name: str, row: int) -> float | None:
        """Return a value; None where it is missing."""
        column_key = self._columns.get(name)
        if column_key is None:
            return None
        block, column, floats = column_key
        cell = column * block.rows + row
        if not block.valid[cell]:
            return None
        return block.floats[cell] if floats else block.ints[cell]

    def integer(self, name: str, row: int) -> int | None:
        """Return a counter or a state; None where it is missing."""
        value = self.number(name, row)
        return None if value is None else int(value)

    def put(self, name: str, row: int, value: int | None) -> None:
        """Set a counter or a state of this lane (KeyError of another); None: missing."""
        block, column, _ = self._columns[name]
        block.put_int(column, row, value)

    def column_of(self, name: str) -> tuple[bytearray, bytearray, int]:
        """Return where a signal of this group is stored: cells, valid, column. KeyError for any other."""
        block, column, _ = self._columns[name]
        return block.cells, block.valid, column

    def mask_writes(self, name: str, rows: bytes) -> list[tuple[bytearray, slice, bytes]]:
        """Return what makes a signal of this lane missing in every row that is not 0 in *rows*: of each run of rows
        the valid bytes, where, and what to write there."""
        block, column, _ = self._columns[name]
        first = column * block.rows
        if all(rows):
            return [(block.valid, slice(first, first + block.rows), bytes(block.rows))]
        hidden = (first + row for row, is_hidden in enumerate(rows) if is_hidden)
        return [(block.valid, slice(at, at + 1), b"\0") for at in hidden]
