"""Counters counted ahead of a judgement, in steps between which frames come."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.aggregator.fleet import fleet as fleet_module
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.contract import frame
from gangline.contract.block import Block
from gangline.contract.signals import TABLES

GPUS = [f"GPU-{at}" for at in range(5)]


def tell(fleet: Fleet, second: int, epoch: int, count: int) -> None:
    """A frame of all GPUs: their driver's life, and two counters in two tables."""
    blocks = []
    for table in ("gpu_10s_changes", "gpu_1s"):
        columns = [signal.column for signal in TABLES[table]]
        block = Block(table, GPUS)
        for row in range(len(GPUS)):
            if table == "gpu_1s":
                block.put_int(columns.index("counter_epoch_count"), row, epoch)
                block.put_int(columns.index("violation_power_nanoseconds"), row, count)
            else:
                block.put_int(columns.index("pcie_replays_count"), row, count)
        blocks.append(block)
    stamp = frame.Stamp(bytes(16), bytes(16), second, second * 10**9, 0)
    fleet.observe("a", read_frame(frame.encode(stamp, blocks)), 10**18 + second * 10**9)


def counted(fleet: Fleet) -> list[float]:
    """What each GPU is held to have counted in the last ten minutes, in both tables."""
    found: list[float] = []
    for table, column in (
        ("gpu_1s", "violation_power_nanoseconds"),
        ("gpu_10s_changes", "pcie_replays_count"),
    ):
        of = fleet.tables[table]
        found += of.recent(column, np.zeros(of.devices.count), slow=True).round().tolist()
    return found


def made() -> Fleet:
    fleet = Fleet()
    fleet.register("a", simulated=True, boot_id=bytes(16), devices=[])
    tell(fleet, 1, 1, 10)
    fleet.advance(10**18)
    return fleet


@pytest.mark.parametrize("step_rows", [1, 2, 4, 5])
def test_a_judgement_sees_the_same(step_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In short steps or all at once: every row is counted, none twice."""
    whole, steps = made(), made()
    for fleet in (whole, steps):
        tell(fleet, 2, 1, 1010)
    monkeypatch.setattr(fleet_module, "STEP_ROWS", step_rows)
    done = sum(1 for _ in steps.advance_ahead())
    assert done == (0 if step_rows == 5 else 2 * -(-5 // step_rows))  # few are left to `advance`
    for fleet in (whole, steps):
        fleet.advance(10**18)
    assert counted(steps) == counted(whole)
    assert min(counted(whole)) > 900


def test_a_driver_loaded_between_two_steps_is_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counters began anew and are higher by now: with the old life's they made a burst of errors."""
    monkeypatch.setattr(fleet_module, "STEP_ROWS", 1)
    fleet = made()
    tell(fleet, 2, 1, 10)
    for number, _ in enumerate(fleet.advance_ahead()):
        if number == 3:
            tell(fleet, 3, 2, 1_000_000)
    fleet.advance(10**18)
    assert counted(fleet) == [0.0] * 10
