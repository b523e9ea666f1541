"""Values and rows of a collector's own blocks, by the names of signals and devices."""

from __future__ import annotations

from collections.abc import Iterable

from ...ext.hostfiles import Places
from ...fingerprints.block import Block
from ...fingerprints.catalogue import BY_NAME, Kind, index_of
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


def places_of(block: Block, signals: Iterable[str]) -> Places:
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
