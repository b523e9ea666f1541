"""The values of one turn over the GPUs, by signal and row, whichever table they stand in."""

from __future__ import annotations

from collections.abc import Iterable

from ...fingerprints.block import Block, is_float
from ...fingerprints.catalogue import BY_ID


class Cells:
    """A view of a lane's blocks, which have the same rows. A signal of another lane is always missing."""

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self._places = {
            BY_ID[signal_id].name: (block, column, is_float(signal_id))
            for block in blocks
            for column, signal_id in enumerate(block.signal_ids)
        }

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def number(self, name: str, row: int) -> float | None:
        """Return a value; None where it is missing."""
        place = self._places.get(name)
        if place is None:
            return None
        block, column, floats = place
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
        block, column, _ = self._places[name]
        block.put_int(column, row, value)

    def place(self, name: str) -> tuple[bytearray, bytearray, int]:
        """Return where a signal of this lane stands: cells, valid, column. KeyError of another."""
        block, column, _ = self._places[name]
        return block.cells, block.valid, column

    def hiding(self, name: str, rows: bytes) -> list[tuple[bytearray, slice, bytes]]:
        """Return what makes a signal of this lane missing in every row that is not 0 in *rows*: of each run of rows
        the valid bytes, where, and what to write there."""
        block, column, _ = self._places[name]
        first = column * block.rows
        if all(rows):
            return [(block.valid, slice(first, first + block.rows), bytes(block.rows))]
        hidden = (first + row for row, is_hidden in enumerate(rows) if is_hidden)
        return [(block.valid, slice(at, at + 1), b"\0") for at in hidden]
