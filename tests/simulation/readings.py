"""Helpers shared by the tests of the simulated world."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gangline.contract.block import Block, is_float
from gangline.contract.signals import BY_NAME
from gangline.simulator.runner import LiveWorld
from gangline.simulator.world import World


@dataclass(frozen=True)
class Struck:
    """A fault: its host (by index) and part, its times, and its strength."""

    host: str
    index: int
    part: int
    begin: float
    onset: float
    amount: float

    @property
    def due(self) -> float:
        return self.begin + self.onset


class Reading:
    """The readings of one host at one step, by signal and device. Missing is None."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self.blocks = {block.table: _copied(block) for block in blocks}

    def column(self, name: str) -> list[float | int | None]:
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


def calm(seed: int, hosts: int) -> LiveWorld:
    return LiveWorld(World("calm", seed, hosts=hosts))


def three(seed: int, hosts: int) -> LiveWorld:
    """Return hosts three of which get a fault 20 to 30 s after the begin, as `gangline run` shows them."""
    return LiveWorld(World("three", seed, hosts=hosts))


def read(live: LiveWorld, elapsed_seconds: float = 1.0) -> dict[str, Reading]:
    return {host: Reading(blocks) for host, blocks, _ in live.step(elapsed_seconds)}


def struck(live: LiveWorld, class_name: str) -> Struck:
    """Return whom a class of *live* strikes; there must be one such row."""
    schedule = live.world.schedule
    numbers = [
        number for number, class_ in enumerate(schedule.classes) if class_.name == class_name
    ]
    (row,) = schedule.rows[schedule.rows["cls"] == numbers[0]]
    host = int(row["host"])
    return Struck(
        live.names[host],
        host,
        int(row["part"]),
        float(row["begin"]),
        float(row["onset"]),
        float(row["amount"]),
    )
