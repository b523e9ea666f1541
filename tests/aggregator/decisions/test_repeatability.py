"""Speeds that a plan counts on are those that last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.decisions.node_search import Candidates
from gangline.aggregator.decisions.node_table import node_table
from gangline.aggregator.decisions.planner import plan
from gangline.aggregator.decisions.repeatability import lasting_speeds
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.node_facts import SPEED_SECONDS, SpeedVariation
from tests.aggregator.decisions.fleets import Node, snapshot_of

GPUS, RUNS = 400, 4


@given(
    between=st.sampled_from((0.0, 0.002, 0.01, 0.03)), within=st.sampled_from((0.001, 0.01, 0.05)), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_promised_gain_is_kept(between: float, within: float, seed: int) -> None:
    """ResNet on 336 GPUs: a plan by raw medians promised 7.4 % and was 0.3 % slower."""
    source = np.random.default_rng(seed)
    true = 1.0 + between * source.standard_normal(GPUS)
    runs = true[:, None] + within * source.standard_normal((GPUS, RUNS))
    lasting = lasting_speeds(
        runs.mean(axis=1), runs.var(axis=1, ddof=1).mean() / RUNS * np.ones(GPUS)
    )
    chosen = np.argsort(-lasting)[: GPUS // 4]
    promised = float(lasting[chosen].mean() - lasting.mean())
    kept = float(true[chosen].mean() - true.mean())
    error = within / (RUNS * GPUS // 4) ** 0.5 + between / (GPUS // 4) ** 0.5
    assert promised == pytest.approx(kept, abs=4.0 * error)


def test_a_single_measurement_does_not_count_beside_repeated_ones() -> None:
    """280 of 296 GPUs had a single run, whose speeds did not last; without variance speeds stay."""
    speeds = np.array([0.9, 1.0, 1.1, 0.7, np.nan])
    unknown = np.full(5, np.nan)
    assert lasting_speeds(speeds, unknown).tolist()[:4] == speeds.tolist()[:4]
    lasting = lasting_speeds(speeds, np.array([0.0, 0.0, 0.0, np.nan, 0.0]))
    assert lasting[:3].tolist() == [0.9, 1.0, 1.1]
    assert lasting[3] == np.median(speeds[:4])
    assert np.isnan(lasting[4])


def variation(speeds: list[list[float]]) -> SpeedVariation:
    """Return the variation after two hours in which each row of *speeds* lasts a minute."""
    result = SpeedVariation()
    for minute in range(int(2 * SPEED_SECONDS / 60.0)):
        now = np.array(speeds[minute % len(speeds)], dtype=np.float32)
        for _ in range(6):
            result = result.updated(now, 10.0)
    return result


def test_variance_over_time_is_that_of_the_speeds() -> None:
    """A speed that changes each minute has a variance; an idle or new host has NaN."""
    result = variation([[1.0, 0.9, np.nan], [1.0, 1.1, np.nan]])
    assert result.within[:2].tolist() == pytest.approx([0.0, 0.01], rel=0.05)
    assert np.isnan(result.within[2])
    assert np.isnan(SpeedVariation().updated(np.array([1.0], dtype=np.float32), 10.0).within[0])


@pytest.mark.parametrize(("is_steady", "chosen"), [(True, [2, 3]), (False, None)])
def test_a_plan_counts_on_differences_that_last(is_steady: bool, chosen: list[int] | None) -> None:
    """Faster steady hosts are used and promised; erratic hosts promise no gain.

    A SUSPECT host stays slow.
    """
    speeds = [0.96, 0.97, 1.02, 1.03, 0.5]
    nodes = [Node(f"n{number}", speed=speed) for number, speed in enumerate(speeds)]
    nodes[4] = replace(nodes[4], state=HealthState.SUSPECT)
    snapshot = snapshot_of(nodes)
    rows = [speeds] if is_steady else [speeds, [1.0 - 3.0 * (speed - 1.0) for speed in speeds]]
    facts = replace(snapshot.facts, variation=variation(rows))
    table = node_table(replace(snapshot, facts=facts))
    assert table.speed[4] == pytest.approx(0.5)
    option = plan(table, Candidates(np.ones(5, dtype=bool)), GangRequirements(2))[0]
    assert 4 not in option.nodes.tolist()
    if chosen is not None:
        assert sorted(option.nodes.tolist()) == chosen
    assert option.price.speed.value == pytest.approx(1.02 if is_steady else 0.995, abs=1e-3)
