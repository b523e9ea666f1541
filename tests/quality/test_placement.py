"""How placement is measured: a lasting difference is gained, a passing one is claimed and not
gained, and the control gains nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.quality.hazard import shuffled
from bench.quality.placement import CONTROL, WORKLOADS, fault_rows, gpu_times, pooled, speed_rows
from gangline.aggregator.hazard.events import FaultTable

GPUS, RUNS = 40, 6
HEAD = "exp,ts,cabinet,node,uuid,perf,freq,temp,pwr"


def written(folder: Path, *, lasts: bool) -> Path:
    """Write runs of GPUs whose speed is constant, or drawn again for later runs."""
    source = np.random.default_rng(7)
    for workload in WORKLOADS:
        early = 100.0 + 20.0 * source.random(GPUS)
        late = early if lasts else source.permutation(early)
        lines: list[str] = []
        for run in range(RUNS):
            times = early if run < RUNS // 2 else late
            lines += [
                f"x,{1000 * run},c,1,GPU-{index},{times[index]:.3f},1,1,1" for index in range(GPUS)
            ]
        source.shuffle(lines)
        lines.insert(0, HEAD)
        (folder / f"{workload}-longhorn.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("lasts", [True, False])
def test_only_speed_that_lasts_is_a_gain(tmp_path: Path, lasts: bool) -> None:
    """A measure that judges by the same runs that it chose by finds a gain in noise."""
    rows = speed_rows(3, written(tmp_path, lasts=lasts), draws=10)
    assert [row.workload for row in rows] == [*WORKLOADS, CONTROL]
    for row in rows:
        assert row.claimed > 0.01 and row.oracle > 0.01
        if lasts and row.workload != CONTROL:
            assert row.gained == pytest.approx(row.oracle, rel=1e-9)
        else:
            assert abs(row.gained) < row.oracle / 2


def test_cold_starts_are_left_out(tmp_path: Path) -> None:
    """The first run of a series contains no information about a GPU; GPUs of few runs are left out."""
    path = tmp_path / "runs.csv"
    times = [(0, 400), (600, 100), (1200, 101), (90_000, 390), (90_600, 102), (91_200, 103)]
    lines = [HEAD]
    lines += [f"x,{time},c,1,GPU-1,{perf},1,1,1" for time, perf in reversed(times)]
    path.write_text("\n".join([*lines, "x,0,c,1,GPU-2,100,1,1,1", ""]))
    warm = gpu_times(path, warm=True)
    assert warm.earlier.tolist() == [100.5] and warm.later.tolist() == [102.5]
    assert gpu_times(path, warm=False).earlier.tolist() == [101.0]


def test_plans_avoid_nodes_that_fail_again() -> None:
    """A sixth of the nodes has all faults: plans meet fewer faults than random members; of random
    faults they meet an equal share.
    """
    source = np.random.default_rng(5)
    start = np.sort(source.uniform(0.0, 150.0, 500))
    faults = FaultTable(
        tuple(f"n{index}" for index in range(60)), source.integers(0, 10, 500).astype(np.intp), start, start + 0.1,
        np.ones(500, dtype=bool), 150.0,
    )  # fmt: skip
    rows = fault_rows(faults, 3, (0.5, 0.8))
    assert pooled(rows, "oracle") <= pooled(rows, "planned") < 0.2
    assert 0.75 < pooled(fault_rows(shuffled(faults, 1), 3, (0.5, 0.8)), "planned") < 1.25
