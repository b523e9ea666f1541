"""The last readings of this host, for those who ask on the host: what is wrong with it, and its metrics.

The daemon's thread writes, any thread reads: what a table showed is an immutable copy, swapped whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..fingerprints.block import Block, is_float
from .turn import Outcome, Turn


class Readings(NamedTuple):
    """A table as it was at `boottime_ns`; cells as in a `Block`."""

    table: str
    boottime_ns: int
    devices: tuple[str, ...]
    signal_ids: tuple[int, ...]
    cells: bytes
    valid: bytes

    def values(self, signal_id: int) -> Iterator[tuple[str, float | int]]:
        """Yield (device, value) of one signal, those that are known; nothing for a signal not of this table."""
        if signal_id not in self.signal_ids:
            return
        code = "d" if is_float(signal_id) else "Q"
        at = self.signal_ids.index(signal_id) * len(self.devices)
        known = self.valid[at : at + len(self.devices)]
        numbers = struct.unpack_from(f"={len(self.devices)}{code}", self.cells, 8 * at)
        for device, valid, number in zip(self.devices, known, numbers, strict=True):
            if valid:
                yield device, number


class LastTurn(NamedTuple):
    """How the last turn of a collector ended."""

    boottime_ns: int
    outcome: Outcome
    words: str


class Latest:
    """`tables` by name and `turns` by collector; a table that no longer comes keeps its last time."""

    def __init__(self) -> None:
        self.tables: dict[str, Readings] = {}
        self.turns: dict[str, LastTurn] = {}

    def take(self, boottime_ns: int, blocks: Iterable[Block]) -> None:
        """Keep a copy of these blocks of a tick at *boottime_ns*."""
        for block in blocks:
            self.tables[block.table] = Readings(
                block.table,
                boottime_ns + block.offset_ns,
                block.devices,
                block.signal_ids,
                bytes(block.cells),
                bytes(block.valid),
            )

    def note(self, boottime_ns: int, turn: Turn) -> None:
        """Keep how a turn ended."""
        self.turns[turn.collector] = LastTurn(boottime_ns, turn.outcome, turn.words)
