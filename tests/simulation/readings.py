"""What the tests of the simulated fleet share."""

from __future__ import annotations

from collections.abc import Iterable

from gangline.agent.simulated import SimulatedFleet
from gangline.fingerprints.block import Block, is_float
from gangline.fingerprints.catalogue import BY_NAME

#: No fault begins before this in any test that runs without faults.
NEVER_SECONDS = 1e6


class Reading:
    """The readings of one host at one step, by signal and device. Missing is None."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = {block.table: _copied(block) for block in blocks}

    def column(self, name: str) -> list[float | int | None]:
        """Return one signal of all devices. KeyError when its table did not come this time."""
        signal = BY_NAME[name]
        block = self.blocks[signal.table]
        first = block.signal_ids.index(signal.signal_id) * block.rows
        cells = block.floats if is_float(signal.signal_id) else block.ints
        return [cells[i] if block.valid[i] else None for i in range(first, first + block.rows)]

    def numbers(self, name: str) -> list[float]:
        """Return one signal of all devices, none of which may be missing."""
        values = self.column(name)
        assert None not in values, f"{name} is missing"
        return [float(value) for value in values if value is not None]


def _copied(block: Block) -> Block:
    """Return a copy: the fleet refills its own blocks at the next step."""
    copy = Block(block.table, block.devices, block.signal_ids)
    copy.cells[:], copy.valid[:] = block.cells, block.valid
    return copy


def read(fleet: SimulatedFleet, elapsed_seconds: float = 1.0) -> dict[str, Reading]:
    """Step *fleet* and return what each host says."""
    return {host: Reading(blocks) for host, blocks, _ in fleet.step(elapsed_seconds)}
