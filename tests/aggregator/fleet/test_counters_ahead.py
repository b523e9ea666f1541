"""Counters counted ahead of a judgement, in steps between which frames arrive."""

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
    """Send a frame of all GPUs: their driver's epoch, and two counters in two tables."""
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
    """Return each GPU's count of the last ten minutes, in both tables."""
    counts: list[float] = []
    for table, column in (
        ("gpu_1s", "violation_power_nanoseconds"),
        ("gpu_10s_changes", "pcie_replays_count"),
    ):
        table_rows = fleet.tables[table]
        counts += (
            table_rows.recent(column, np.zeros(table_rows.devices.count), slow=True)
            .round()
            .tolist()
        )
    return counts


def made() -> Fleet:
    fleet = Fleet()
    fleet.register("a", simulated=True, boot_id=bytes(16), devices=[])
    tell(fleet, 1, 1, 10)
    fleet.advance(10**18)
    return fleet


@pytest.mark.parametrize("step_rows", [1, 2, 4, 5])
def test_a_judgement_sees_the_same(step_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In short steps or in one step, every row is counted once."""
    at_once, steps = made(), made()
    for fleet in (at_once, steps):
        tell(fleet, 2, 1, 1010)
    monkeypatch.setattr(fleet_module, "STEP_ROWS", step_rows)
    steps_taken = sum(1 for _ in steps.advance_ahead())
    assert steps_taken == (
        0 if step_rows == 5 else 2 * -(-5 // step_rows)
    )  # a few are left to `advance`
    for fleet in (at_once, steps):
        fleet.advance(10**18)
    assert counted(steps) == counted(at_once)
    assert min(counted(at_once)) > 900


def test_a_driver_loaded_between_two_steps_is_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counters restarted and are higher: the difference from the old ones was a burst."""
    monkeypatch.setattr(fleet_module, "STEP_ROWS", 1)
    fleet = made()
    tell(fleet, 2, 1, 10)
    for number, _ in enumerate(fleet.advance_ahead()):
        if number == 3:
            tell(fleet, 3, 2, 1_000_000)
    fleet.advance(10**18)
    assert counted(fleet) == [0.0] * 10
