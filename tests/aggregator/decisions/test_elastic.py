"""Gangs of several sizes: an allowed size always, the best of all of them, and prices that can be compared."""

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
    """Return a gang of one or more sizes, each of whole segments."""
    needs: GangRequirements = draw(gangs(most))
    segment = needs.segment_nodes
    counts = st.integers(1, max(1, most // segment))
    sizes = draw(st.lists(counts, min_size=1, max_size=4, unique=True))
    allowed = tuple(sorted(each * segment for each in sizes))
    curve = scaling_curve(draw(st.sampled_from(CURVES)))
    value = draw(st.sampled_from((0.0, 0.5, 0.9, 1.0)))
    return replace(needs, nodes=allowed[-1], elastic=ElasticSizes(allowed, curve, value))


def of_size(needs: GangRequirements, nodes: int) -> GangRequirements:
    """Return what a gang of that size alone asks for."""
    return replace(needs, nodes=nodes, elastic=None)


def efficiency(needs: GangRequirements, nodes: int) -> float:
    """Return throughput per node against that of the most efficient size, from the definition."""
    sizes = needs.elastic
    assert sizes is not None
    throughputs = {each: sizes.curve.estimates((each,))[0].value for each in sizes.allowed}
    per_node = max(value / each for each, value in throughputs.items())
    return throughputs[nodes] / nodes / per_node


def expected_price(fixed: float, needs: GangRequirements, nodes: int) -> float:
    """Return what a size costs whose nodes alone cost *fixed*, from the definition of the price."""
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
    """volcano#4666: three nodes for a gang of powers of two. Each option has an allowed size and holds to every invariant."""
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
    assert [one.nodes for one in plan.sizes] == list(needs.elastic.allowed)  # type: ignore[union-attr]


@given(nodes=fleets(9), needs=elastic_gangs())
def test_the_best_of_all_sizes_is_found(nodes: list[Node], needs: GangRequirements) -> None:
    """A size that is not searched must not be the best one: by trying all subsets of all sizes."""
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
    for one in every.sizes:
        assert isfinite(one.gpu_hours) == (one.nodes in prices)
        if one.nodes in prices:
            assert one.gpu_hours == pytest.approx(prices[one.nodes], rel=1e-6)
            assert one.gpu_hours_min <= prices[one.nodes] * (1 + 1e-6) + SLACK
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
    """A node that becomes free must not make the plan dearer. Within the stated bound."""
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
    """A price that changes with how the same thing is asked for could not be compared with any other."""
    table, candidates = table_of(nodes)
    sized = replace(needs, elastic=ElasticSizes((needs.nodes,), scaling_curve(())))
    plain, same = planner.plan(table, candidates, needs), elastic.plan(table, candidates, sized)
    assert [one.nodes.tolist() for one in plain] == [one.nodes.tolist() for one in same]
    for one, other in zip(plain, same, strict=True):
        assert one.price.total.value == pytest.approx(other.price.total.value)


def rows(count: int, per_leaf: int = 8) -> list[Node]:
    return [
        Node(f"h{at}", places=("", "s0", f"l{at // per_leaf}", f"r{at // 4}", "", "", ""))
        for at in range(count)
    ]


@pytest.mark.parametrize(
    ("points", "value", "size"),
    [
        # Each further node does work, and free nodes are idle: all of them.
        ([(1, 1.0), (4, 3.4), (8, 6.0), (16, 9.0)], 0.0, 16),
        # Of the second eight nodes each adds (9 - 6) / 8 = 0.375 of one: others make more of 0.6.
        ([(1, 1.0), (4, 3.4), (8, 6.0), (16, 9.0)], 0.6, 8),
        # Twice the nodes are slower: nobody wants them, though they are idle.
        ([(4, 4.0), (8, 7.0), (16, 6.0)], 0.0, 8),
    ],
)
def test_a_gang_grows_as_far_as_a_node_is_worth_it(
    points: list[tuple[int, float]], value: float, size: int
) -> None:
    """The rule that the page gives: it grows while the work of one more GPU is worth more than that GPU left free."""
    sizes = ElasticSizes((4, 8, 16), scaling_curve(points), value)
    needs = GangRequirements(16, communication_share=0.0, elastic=sizes)
    (option,) = elastic.plan(*table_of(rows(24)), needs)
    assert option.nodes.size == size


def test_what_does_not_fit_leaves_the_others() -> None:
    """16 nodes within one leaf of 8 are not to be had, 8 are: a gang that may have either starts."""
    sizes = ElasticSizes((4, 8, 16), scaling_curve(((4, 4.0), (8, 7.9), (16, 15.5))))
    needs = GangRequirements(16, within=Tier.LEAF, elastic=sizes)
    plan = elastic.plan_sizes(*table_of(rows(24)), needs)
    assert plan.options[0].nodes.size == 8
    assert [isfinite(one.gpu_hours_min) for one in plan.sizes] == [True, True, False]


@given(nodes=fleets(7), needs=elastic_gangs())
def test_changes_of_a_gang_of_several_sizes_help(
    nodes: list[Node], needs: GangRequirements
) -> None:
    """No size fits: each change that is offered now, sent again, does."""
    table, candidates = table_of(nodes)
    if elastic.plan(table, candidates, needs):
        return
    found = find_blockers(table, candidates, needs)
    assert found.blockers
    for blocker in found.blockers:
        for one in blocker.relaxations:
            if one.start_hours is None:
                _, free = table_of(nodes)
                free.nodes[one.added_nodes] = True
                assert elastic.plan(table, free, one.needs), one.change


def test_work_takes_as_long_as_it_takes() -> None:
    """100 h of work on 8 nodes are 60 on 16 that are 1.67 times as fast, and longer where a part of the time is lost."""
    sizes = ElasticSizes((8, 16), scaling_curve(((8, 6.0), (16, 10.0))), 0.0, 8)
    for size, hours in ((8, 100.0), (16, 60.0)):
        needs = GangRequirements(16, hours=100.0, communication_share=0.0, elastic=sizes)
        one = replace(sizes, allowed=(size,))
        (option,) = elastic.plan(*table_of(rows(16)), replace(needs, nodes=size, elastic=one))
        until = elastic.work_hours(one, option.price, size, 100.0)
        assert until.lower < until.value < until.upper
        lost = 1.0 - option.price.goodput.value / one.efficiency(size).value
        assert until.value == pytest.approx(hours / (1.0 - lost))
    assert one.efficiency(16).source is QuantitySource.DECLARED
