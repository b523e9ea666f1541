"""Gangs of several sizes: only allowed sizes, the best of all of them, and comparable prices."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.decisions import elastic, planner
from gangline.aggregator.decisions.blockers import find_blockers
from gangline.aggregator.decisions.node_search import SearchEffort
from gangline.aggregator.decisions.quantity import QuantitySource
from gangline.aggregator.decisions.requirements import GangRequirements, Tier
from gangline.aggregator.decisions.scaling import ElasticSizes, scaling_curve
from tests.aggregator.decisions.fleets import Node, cheapest, table_of, violations
from tests.aggregator.decisions.test_planner import (
    SLACK,
    fleets,
    gangs,
    is_crosscut,
    one_more,
    within_bound,
)

CURVES = (
    (),
    ((2, 2.0),),
    ((1, 1.0), (4, 3.4)),
    ((1, 1.0), (2, 1.9), (4, 3.4), (8, 5.0)),
    ((2, 2.0), (4, 4.1), (8, 8.3)),
    ((1, 1.0), (2, 1.02), (4, 1.03)),
)


@st.composite
def elastic_gangs(draw: Any, most: int = 8) -> GangRequirements:
    """Return a gang with one or more sizes of whole segments."""
    needs: GangRequirements = draw(gangs(most))
    segment = needs.segment_nodes
    counts = st.integers(1, max(1, most // segment))
    sizes = draw(st.lists(counts, min_size=1, max_size=4, unique=True))
    allowed = tuple(sorted(count * segment for count in sizes))
    curve = scaling_curve(draw(st.sampled_from(CURVES)))
    value = draw(st.sampled_from((0.0, 0.5, 0.9, 1.0)))
    return replace(needs, nodes=allowed[-1], elastic=ElasticSizes(allowed, curve, value))


def of_size(needs: GangRequirements, nodes: int) -> GangRequirements:
    """Return the requirements of a gang of only that size."""
    return replace(needs, nodes=nodes, elastic=None)


def efficiency(needs: GangRequirements, nodes: int) -> float:
    """Return throughput per node relative to the most efficient size, by definition."""
    sizes = needs.elastic
    assert sizes is not None
    throughputs = {size: sizes.curve.estimates((size,))[0].value for size in sizes.allowed}
    per_node = max(value / size for size, value in throughputs.items())
    return throughputs[nodes] / nodes / per_node


def expected_price(fixed: float, needs: GangRequirements, nodes: int) -> float:
    """Return the price of a size whose nodes alone cost *fixed*, by definition."""
    sizes = needs.elastic
    assert sizes is not None
    gpus, hours = needs.gpus_per_node or 8, needs.hours
    unplaced = (sizes.allowed[-1] - nodes) * gpus * hours * (1.0 - sizes.free_gpu_value)
    return nodes * gpus * hours * (1.0 - efficiency(needs, nodes)) + fixed + unplaced


@pytest.mark.parametrize("subsets_max", [4000.0, 0.0])
@given(nodes=fleets(), needs=elastic_gangs())
def test_a_plan_has_an_allowed_size_and_holds(
    nodes: list[Node], needs: GangRequirements, subsets_max: float
) -> None:
    """volcano#4666: a gang of powers of two got three nodes.

    Options have allowed sizes and hold.
    """
    table, candidates = table_of(nodes)
    plan = elastic.plan_sizes(
        table, candidates, needs, effort=SearchEffort(options_max=8, subsets_max=subsets_max)
    )
    for option in plan.options:
        size = option.nodes.size
        assert needs.allows(size)
        assert violations(nodes, option.nodes.tolist(), of_size(needs, size)) == []
        parts = sum(part.gpu_hours.value for part in option.price.parts)
        assert option.price.total.value == pytest.approx(parts)
        total = option.price.total
        assert total.lower <= total.value <= total.upper
    assert [sized_plan.nodes for sized_plan in plan.sizes] == list(needs.elastic.allowed)  # type: ignore[union-attr]


@given(nodes=fleets(9), needs=elastic_gangs())
def test_the_best_of_all_sizes_is_found(nodes: list[Node], needs: GangRequirements) -> None:
    """The best size is found, compared with all subsets of all sizes."""
    sizes = needs.elastic
    assert sizes is not None
    prices = {
        size: expected_price(fixed, needs, size)
        for size in sizes.allowed
        if (fixed := cheapest(nodes, of_size(needs, size), efficiency(needs, size))) is not None
    }
    table, candidates = table_of(nodes)
    few = elastic.plan_sizes(table, candidates, needs)
    every = elastic.plan_sizes(table, candidates, needs, effort=SearchEffort(every_size=True))
    assert bool(few.options) == bool(every.options) == bool(prices)
    for sized_plan in every.sizes:
        assert isfinite(sized_plan.gpu_hours) == (sized_plan.nodes in prices)
        if sized_plan.nodes in prices:
            assert sized_plan.gpu_hours == pytest.approx(prices[sized_plan.nodes], rel=1e-6)
            assert sized_plan.gpu_hours_min <= prices[sized_plan.nodes] * (1 + 1e-6) + SLACK
    if prices:
        for plan in (few, every):
            cost = plan.options[0].price.total.value
            assert cost == pytest.approx(min(prices.values()), rel=1e-6)
            assert cost - plan.options[0].gap_gpu_hours <= min(prices.values()) * (1 + 1e-6) + SLACK


@pytest.mark.parametrize("subsets_max", [4000.0, 0.0])
@given(nodes=fleets(9), needs=elastic_gangs(), another=fleets(2))
def test_one_more_candidate_is_never_worse(
    nodes: list[Node], needs: GangRequirements, another: list[Node], subsets_max: float
) -> None:
    """A further free node must not make the plan more expensive, within the stated bound."""
    fewer, more = one_more(nodes, another[0])
    before = elastic.plan(*table_of(fewer), needs, effort=SearchEffort(subsets_max=subsets_max))
    after = elastic.plan(*table_of(more), needs, effort=SearchEffort(subsets_max=subsets_max))
    if not before:
        return
    if not after:
        assert subsets_max == 0.0 and is_crosscut(needs)
        return
    assert within_bound(before[0].price.total.value, after[0], subsets_max)


@given(nodes=fleets(9), needs=gangs())
def test_one_size_costs_what_a_gang_without_sizes_costs(
    nodes: list[Node], needs: GangRequirements
) -> None:
    """The same request must have the same price, with one size or without sizes."""
    table, candidates = table_of(nodes)
    sized = replace(needs, elastic=ElasticSizes((needs.nodes,), scaling_curve(())))
    plain, same = planner.plan(table, candidates, needs), elastic.plan(table, candidates, sized)
    assert [plain_option.nodes.tolist() for plain_option in plain] == [
        plain_option.nodes.tolist() for plain_option in same
    ]
    for plain_option, sized_option in zip(plain, same, strict=True):
        assert plain_option.price.total.value == pytest.approx(sized_option.price.total.value)


def rows(count: int, per_leaf: int = 8) -> list[Node]:
    return [
        Node(
            f"h{number}", places=("", "s0", f"l{number // per_leaf}", f"r{number // 4}", "", "", "")
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("points", "value", "size"),
    [
        # Each further node adds work, and free nodes idle: take all.
        ([(1, 1.0), (4, 3.4), (8, 6.0), (16, 9.0)], 0.0, 16),
        # Each of the second eight nodes adds (9 - 6) / 8 = 0.375 of a node; others make 0.6 of it.
        ([(1, 1.0), (4, 3.4), (8, 6.0), (16, 9.0)], 0.6, 8),
        # Twice the nodes are slower, and stay free.
        ([(4, 4.0), (8, 7.0), (16, 6.0)], 0.0, 8),
    ],
)
def test_a_gang_grows_as_far_as_a_node_is_worth_it(
    points: list[tuple[int, float]], value: float, size: int
) -> None:
    """The documented rule: grow while another GPU's work is worth more than a free GPU."""
    sizes = ElasticSizes((4, 8, 16), scaling_curve(points), value)
    needs = GangRequirements(16, communication_share=0.0, elastic=sizes)
    (option,) = elastic.plan(*table_of(rows(24)), needs)
    assert option.nodes.size == size


def test_what_does_not_fit_leaves_the_others() -> None:
    """16 nodes do not fit within a leaf of 8, but a gang that may have 8 starts."""
    sizes = ElasticSizes((4, 8, 16), scaling_curve(((4, 4.0), (8, 7.9), (16, 15.5))))
    needs = GangRequirements(16, within=Tier.LEAF, elastic=sizes)
    plan = elastic.plan_sizes(*table_of(rows(24)), needs)
    assert plan.options[0].nodes.size == 8
    assert [isfinite(sized_plan.gpu_hours_min) for sized_plan in plan.sizes] == [True, True, False]


@given(nodes=fleets(7), needs=elastic_gangs())
def test_changes_of_a_gang_of_several_sizes_help(
    nodes: list[Node], needs: GangRequirements
) -> None:
    """If no size fits, each change that allows an immediate start makes the gang fit."""
    table, candidates = table_of(nodes)
    if elastic.plan(table, candidates, needs):
        return
    result = find_blockers(table, candidates, needs)
    assert result.blockers
    for blocker in result.blockers:
        for relaxation in blocker.relaxations:
            if relaxation.start_hours is None:
                _, free = table_of(nodes)
                free.nodes[relaxation.added_nodes] = True
                assert elastic.plan(table, free, relaxation.needs), relaxation.change


def test_work_takes_as_long_as_it_takes() -> None:
    """100 h on 8 nodes are 60 h on 16 at 1.67 times the speed, and longer with lost time."""
    sizes = ElasticSizes((8, 16), scaling_curve(((8, 6.0), (16, 10.0))), 0.0, 8)
    for size, hours in ((8, 100.0), (16, 60.0)):
        needs = GangRequirements(16, hours=100.0, communication_share=0.0, elastic=sizes)
        single_size = replace(sizes, allowed=(size,))
        (option,) = elastic.plan(
            *table_of(rows(16)), replace(needs, nodes=size, elastic=single_size)
        )
        until = elastic.work_hours(single_size, option.price, size, 100.0)
        assert until.lower < until.value < until.upper
        lost = 1.0 - option.price.goodput.value / single_size.efficiency(size).value
        assert until.value == pytest.approx(hours / (1.0 - lost))
    assert single_size.efficiency(16).source is QuantitySource.DECLARED
