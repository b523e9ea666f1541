"""Writes values and rows into a collector's blocks by signal name and device name."""

from __future__ import annotations

from collections.abc import Iterable

from ...contract.block import Block, is_float
from ...contract.signal import Kind
from ...contract.signals import BY_ID, BY_NAME, index_of
from ...ext.hostfiles import Places
from ..hardware.files import device_key


def put(block: Block, signal: str, row: int, value: float | None) -> None:
    """Store a gauge as a double, any other signal as a whole number; None is missing.

    A whole number that does not fit 64 unsigned bits is missing too. KeyError: unknown signal.
    """
    if BY_NAME[signal].kind is Kind.GAUGE:
        block.put_float(index_of(signal), row, value)
    else:
        fits = value is not None and 0 <= value < 1 << 64
        block.put_int(index_of(signal), row, int(value) if fits and value is not None else None)


def row_writer(block: Block, signals: Iterable[str]) -> Places:
    """Return a writer that fills a row of *block* with the values of *signals* in one call."""
    columns = [(index_of(name), BY_NAME[name].kind is Kind.GAUGE) for name in signals]
    return Places(block.cells, block.valid, block.rows, columns)


def clear_row(block: Block, row: int) -> None:
    """Mark every cell of the row as missing."""
    block.valid[row :: block.rows] = bytes(len(block.signal_ids))


def block_of(block: Block, names: Iterable[str]) -> Block:
    """Return *block* if its devices are *names*, else a new block of the same table."""
    keys = tuple(device_key(name) for name in names)
    return block if block.devices == keys else Block(block.table, keys)


class Cells:
    """A view of a lane's blocks, which have the same rows. Other lanes' signals are missing."""

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self._columns = {
            BY_ID[signal_id].name: (block, column, is_float(signal_id))
            for block in blocks
            for column, signal_id in enumerate(block.signal_ids)
        }

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def number(self, name: str, row: int) -> float | None:
        """Return a value; None if missing."""
        column_key = self._columns.get(name)
        if column_key is None:
            return None
        block, column, floats = column_key
        cell = column * block.rows + row
        if not block.valid[cell]:
            return None
        return block.floats[cell] if floats else block.ints[cell]

    def integer(self, name: str, row: int) -> int | None:
        """Return a counter or a state; None if missing."""
        value = self.number(name, row)
        return None if value is None else int(value)

    def put(self, name: str, row: int, value: int | None) -> None:
        """Set a counter or a state; None: missing.

        Raises KeyError if the lane does not have the signal.
        """
        block, column, _ = self._columns[name]
        block.put_int(column, row, value)

    def column_of(self, name: str) -> tuple[bytearray, bytearray, int]:
        """Return cells, valid bytes and column of a signal.

        Raises KeyError if the lane does not have the signal.
        """
        block, column, _ = self._columns[name]
        return block.cells, block.valid, column

    def mask_writes(self, name: str, rows: bytes) -> list[tuple[bytearray, slice, bytes]]:
        """Return writes (valid bytes, slice, new bytes) that hide a signal in nonzero *rows*."""
        block, column, _ = self._columns[name]
        first = column * block.rows
        if all(rows):
            return [(block.valid, slice(first, first + block.rows), bytes(block.rows))]
        hidden = (first + row for row, is_hidden in enumerate(rows) if is_hidden)
        return [(block.valid, slice(cell, cell + 1), b"\0") for cell in hidden]
