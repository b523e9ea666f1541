"""Resizing a running gang: only for a sure gain above the margin, and without oscillation."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.decisions import planner, violations
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.decisions.resize import ResizePlan, ResizeTimes, plan_resize
from gangline.aggregator.decisions.scaling import ElasticSizes, scaling_curve
from tests.aggregator.decisions.fleets import Node, table_of
from tests.aggregator.decisions.test_elastic import CURVES, elastic_gangs, of_size, rows
from tests.aggregator.decisions.test_planner import fleets

TIMES = ResizeTimes(0.05, nan, True)
NEARLY_LINEAR = ((4, 4.0), (8, 7.9), (16, 15.4))


def gang(
    hours: float, points: tuple[tuple[int, float], ...], value: float = 0.0
) -> GangRequirements:
    return GangRequirements(
        16, hours=hours, communication_share=0.0, restart_hours=0.1, checkpoint_write_hours=0.01,
        checkpoint_interval_hours=1.0, elastic=ElasticSizes((4, 8, 16), scaling_curve(points), value),
    )  # fmt: skip


def resized(nodes: list[Node], needs: GangRequirements, current: range) -> ResizePlan:
    table, candidates = table_of(nodes)
    return plan_resize(table, candidates, needs, np.array(current, dtype=np.intp), TIMES)


@pytest.mark.parametrize(
    ("hours", "points", "value", "size"),
    [
        (48.0, NEARLY_LINEAR, 0.0, 16),  # idle nodes add nearly as much work
        (0.5, NEARLY_LINEAR, 0.0, 8),  # nearly done: the restart costs more than the gain
        (48.0, ((4, 4.0), (8, 5.0), (16, 5.5)), 0.6, 4),  # others make more of the nodes
        (48.0, ((4, 4.0), (8, 7.9), (16, 8.1)), 0.0, 8),  # hardly faster: below the margin
        (48.0, (), 0.0, 8),  # unknown scaling: a loss is possible
    ],
)
def test_it_grows_and_shrinks_where_that_surely_gains(
    hours: float, points: tuple[tuple[int, float], ...], value: float, size: int
) -> None:
    """The first option of a gang of 8 among 24 nodes."""
    plan = resized(rows(24), gang(hours, points, value), range(8))
    first = plan.choices[0]
    assert first.choice.nodes.size == size
    assert (first is plan.stay) == (size == 8)
    assert first.gain.lower >= 0.0 and not first.reason
    if size == 16:
        assert not first.left.size and first.joined.size == 8  # no member moves without need


def test_a_bad_member_leaves_first() -> None:
    """A gang that gives up nodes gives up the slow one and the one about to fail."""
    nodes = rows(8)
    nodes[2] = replace(nodes[2], speed=0.8)
    nodes[5] = replace(nodes[5], hazard=0.05)
    needs = gang(48.0, ((4, 4.0), (6, 4.5), (8, 5.0)), 0.6)
    needs = replace(
        needs, elastic=ElasticSizes((6, 8), scaling_curve(((4, 4.0), (6, 4.5), (8, 5.0))), 0.6)
    )
    plan = resized(nodes, replace(needs, nodes=8), range(8))
    assert sorted(plan.choices[0].left.tolist()) == [2, 5]


@given(
    nodes=fleets(), needs=elastic_gangs(), hours=st.sampled_from((2.0, 48.0)), data=st.data(),
)  # fmt: skip
def test_no_two_calls_undo_each_other(
    nodes: list[Node], needs: GangRequirements, hours: float, data: st.DataObject
) -> None:
    """A scheduler that follows each answer ends; each step is cheaper, valid, and on free nodes."""
    table, candidates = table_of(nodes)
    needs = replace(needs, hours=hours)
    begun = planner.plan(table, candidates, of_size(needs, needs.nodes))
    if not begun:
        return
    assert needs.elastic is not None
    curve = scaling_curve(data.draw(st.sampled_from(CURVES)))
    needs = replace(needs, elastic=replace(needs.elastic, curve=curve))
    current = begun[0].nodes
    seen = {tuple(sorted(current.tolist()))}
    for _ in range(12):
        plan = plan_resize(table, candidates, needs, current, TIMES)
        first = plan.choices[0]
        if first is plan.stay:
            break
        assert first.gain.value > plan.margin_gpu_hours and first.gain.lower > 0.0
        chosen = first.choice.nodes
        assert needs.allows(chosen.size)
        assert not violations.violations(table, of_size(needs, chosen.size), chosen)
        assert candidates.nodes[first.joined].all() and not np.isin(first.joined, current).any()
        assert first.choice.price.total.value < plan.stay.choice.price.total.value
        current = chosen
        key = tuple(sorted(current.tolist()))
        assert key not in seen
        seen.add(key)
    else:
        pytest.fail("it never stays")
