"""A slow device's readings, taken by a sampler of its own, in the rows that its lane leaves empty."""

from __future__ import annotations

from collections.abc import Sequence

from ...fingerprints.block import Block
from .codec import Timed

#: A slow device's readings that no turn of its lane has taken up by then are of another time.
AGE_NS_MAX = 2_000_000_000
TABLES_MAX = 256


class Overlay:
    """Keeps tables of solo samplers until the lane's turn of the same table comes."""

    def __init__(self) -> None:
        self._kept: dict[str, list[tuple[int, Block]]] = {}

    def keep(self, turns: Sequence[Timed], now_ns: int) -> None:
        """Take the blocks of a solo round, whose decoder refills them no sooner than its next round."""
        for block in (block for timed in turns for block in timed.turn.blocks):
            if len(self._kept) < TABLES_MAX:
                self._kept.setdefault(block.table, []).append((now_ns, block))

    def lay(self, turns: Sequence[Timed], now_ns: int) -> None:
        """Fill the empty rows of the lane's blocks; what was kept for them is gone then."""
        for block in (
            (block for timed in turns for block in timed.turn.blocks) if self._kept else ()
        ):
            for at_ns, over in self._kept.pop(block.table, ()):
                if now_ns - at_ns <= AGE_NS_MAX and over.signal_ids == block.signal_ids:
                    _lay(over, block)


def _lay(over: Block, under: Block) -> None:
    rows = {name: row for row, name in enumerate(under.devices)}
    pairs = [(row, rows[name]) for row, name in enumerate(over.devices) if name in rows]
    for column in range(len(under.signal_ids)):
        for source_row, target_row in pairs:
            source = column * over.rows + source_row
            target = column * under.rows + target_row
            if over.valid[source] and not under.valid[target]:
                under.ints[target] = over.ints[source]
                under.valid[target] = 1
