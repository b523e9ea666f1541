"""Plans against their promises: by an independent checker, and all subsets of small fleets."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gangline.aggregator.decisions import planner
from gangline.aggregator.decisions.node_search import Candidates, SearchEffort
from gangline.aggregator.decisions.node_table import node_table
from gangline.aggregator.decisions.planner import PlacementChoice
from gangline.aggregator.decisions.requirements import (
    NO_MEMORY,
    GangRequirements,
    MemoryRequirements,
    Tier,
)
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.reported_factors import NOTHING_REPORTED
from tests.aggregator.decisions.fleets import (
    REPORTS,
    Node,
    cheapest,
    snapshot_of,
    table_of,
    violations,
)

#: Relative and absolute tolerance of a price: sums in another order may differ by it.
SLACK = 1e-9
HAZARDS = (1e-5, 1.8e-4, 1.8e-4, 5e-4, 2e-3, 5e-2)
SPEEDS = (1.0, 1.0, 1.0, 0.99, 0.97, 0.9)
STATES = (
    *[HealthState.HEALTHY] * 6,
    HealthState.UNHEALTHY,
    HealthState.STALE,
    HealthState.MAINTENANCE,
)
MEMORIES = (
    NO_MEMORY, NO_MEMORY, MemoryRequirements(80e9), MemoryRequirements(100e9), MemoryRequirements(200e9, 120e9),
)  # fmt: skip


@st.composite
def fleets(draw: Any, most: int = 10) -> list[Node]:
    """Return a fleet of a few leaves and racks; racks may span leaves, places may be missing."""
    count = draw(st.integers(2, most))
    nested = draw(st.booleans())
    prices = draw(st.sampled_from(((nan,), (nan,), (2.0, 2.1, 0.5))))
    preemptions = draw(st.sampled_from(((0.0,), (0.0, 0.0, 0.02))))
    sizes = draw(st.sampled_from(((nan,), (80e9, nan), (80e9, 80e9, 141e9))))
    nodes = []
    for number in range(count):
        rack = draw(st.integers(0, 3))
        leaf = rack // 2 if nested else draw(st.integers(0, 2))
        spine = leaf // 2 if nested else draw(st.integers(0, 1))
        known = draw(st.integers(0, 11)) > 0
        places = (
            "", f"s{spine}", f"l{leaf}" if known else "", f"r{rack}", f"n{rack}" if known else "",
            f"p{draw(st.integers(0, 2))}", "",
        )  # fmt: skip
        nodes.append(
            Node(
                f"h{number}",
                draw(st.sampled_from(HAZARDS)) * (1.0 + number / 1000.0),
                draw(st.sampled_from(SPEEDS)),
                draw(st.sampled_from(STATES)),
                draw(st.sampled_from((8, 8, 8, 4))),
                places,
                f"rails{leaf}",
                draw(st.integers(0, 7)) > 0,
                price=draw(st.sampled_from(prices)),
                preemption=draw(st.sampled_from(preemptions)),
                hbm_bytes=draw(st.sampled_from(sizes)),
            )
        )
    return nodes


@st.composite
def gangs(draw: Any, most: int = 8) -> GangRequirements:
    """Return any valid requirements of a gang."""
    segment = draw(st.sampled_from((1, 1, 2, 3)))
    nodes = segment * draw(st.integers(1, max(1, most // segment)))
    spread = draw(st.sampled_from((None, None, Tier.POWER_DOMAIN, Tier.RACK)))
    return GangRequirements(
        nodes,
        gpus_per_node=draw(st.sampled_from((4, 8))),
        hours=draw(st.sampled_from((1.0, 24.0, 500.0))),
        memory=draw(st.sampled_from(MEMORIES)),
        within=draw(st.sampled_from((None, None, Tier.SPINE, Tier.LEAF, Tier.RACK))),
        segment_nodes=segment,
        segment_tier=draw(st.sampled_from((Tier.RACK, Tier.LEAF, Tier.NVLINK_DOMAIN)))
        if segment > 1
        else None,
        same_rails=draw(st.sampled_from((False, False, True))),
        spread_over=spread,
        spread_nodes_max=draw(st.integers(1, 4)) if spread else 0,
        score_min=draw(st.sampled_from((0.0, 0.0, 0.99))),
        survival_min=draw(st.sampled_from((0.0, 0.0, 0.0, 0.5, 0.9, 0.99))),
        communication_share=draw(st.sampled_from((0.0, 0.3))),
        reports=draw(st.sampled_from((NOTHING_REPORTED, REPORTS))),
        currency_rate=draw(st.sampled_from((0.0, 0.0, 0.02, 3.0))),
    )


def planned(
    nodes: list[Node], needs: GangRequirements, **options: Any
) -> list[planner.PlacementChoice]:
    table, candidates = table_of(nodes)
    return planner.plan(table, candidates, needs, effort=SearchEffort(**options))


@pytest.mark.parametrize("subsets_max", [4000.0, 0.0])
@given(nodes=fleets(), needs=gangs())
def test_a_plan_is_whole_or_there_is_none(
    nodes: list[Node], needs: GangRequirements, subsets_max: float
) -> None:
    """Slurm gave 17 + 17 + 2 nodes for three segments of 12. Options hold all invariants."""
    for option in planned(nodes, needs, options_max=8, subsets_max=subsets_max):
        assert violations(nodes, option.nodes.tolist(), needs) == []
        assert option.price.survival.value >= needs.survival_min
        assert not set(option.backups.tolist()) & set(option.nodes.tolist())
        assert option.price.total.value == pytest.approx(
            sum(part.gpu_hours.value for part in option.price.parts)
        )
        for quantity in (option.price.survival, option.price.speed, option.price.goodput):
            assert quantity.lower <= quantity.value <= quantity.upper


@given(nodes=fleets(), needs=gangs())
def test_what_trying_all_finds_is_found(nodes: list[Node], needs: GangRequirements) -> None:
    """A gang must not wait if free nodes fit: up to twelve nodes the best plan is found."""
    best = cheapest(nodes, needs)
    options = planned(nodes, needs)
    assert bool(options) == (best is not None)
    if best is not None:
        cost = options[0].price.total.value
        assert cost == pytest.approx(best, rel=1e-6)
        assert cost - options[0].gap_gpu_hours <= best * (1 + SLACK) + SLACK


def is_crosscut(needs: GangRequirements) -> bool:
    """Return whether constraints interact so that the search alone proves nothing."""
    return (needs.spread_over is not None and needs.segment_nodes > 1) or needs.survival_min > 0.0


@given(nodes=fleets(12), needs=gangs())
def test_the_search_is_within_its_bound(nodes: list[Node], needs: GangRequirements) -> None:
    """The search alone, as for large fleets, is no worse than its stated bound."""
    best = cheapest(nodes, needs)
    options = planned(nodes, needs, subsets_max=0.0)
    if best is None:
        assert options == []
    elif options:
        cost = options[0].price.total.value
        assert cost >= best * (1 - 1e-6) - SLACK
        assert cost - options[0].gap_gpu_hours <= best * (1 + 1e-6) + SLACK
    else:
        assert is_crosscut(needs)


def relaxations(needs: GangRequirements) -> list[GangRequirements]:
    """Return the requirements with one constraint less, for each constraint."""
    return [
        replace(needs, within=None),
        replace(needs, same_rails=False),
        replace(needs, segment_nodes=1, segment_tier=None),
        replace(needs, spread_over=None, spread_nodes_max=0),
        replace(needs, score_min=0.0),
        replace(needs, survival_min=0.0),
    ]


def one_more(nodes: list[Node], another: Node) -> tuple[list[Node], list[Node]]:
    """Return the fleet with another node that is not a candidate, and with it as a candidate.

    A node that joins the fleet also changes assumed prices, which come from declared ones.
    """
    return [*nodes, replace(another, free=False)], [*nodes, another]


def within_bound(cost: float, after: PlacementChoice, subsets_max: float) -> bool:
    """Return whether *after* costs at most *cost*, or *cost* and its bound without all subsets."""
    slack = after.gap_gpu_hours if subsets_max == 0.0 else 0.0
    return after.price.total.value <= cost * (1 + 1e-6) + slack + SLACK


@pytest.mark.parametrize("subsets_max", [4000.0, 0.0])
@given(
    nodes=fleets(9), needs=gangs(), another=fleets(2), is_candidate=st.booleans(), less=st.integers(0, 5)
)  # fmt: skip
@example(
    nodes=[Node("h0")], needs=GangRequirements(1, gpus_per_node=4, hours=1.0, currency_rate=0.02),
    another=[Node("h1", price=2.0)], is_candidate=True, less=0,
)  # fmt: skip
def test_more_room_is_never_worse(
    nodes: list[Node],
    needs: GangRequirements,
    another: list[Node],
    is_candidate: bool,
    less: int,
    subsets_max: float,
) -> None:
    """A further candidate, or one constraint less, must not raise the price beyond the bound."""
    changed, wanted = nodes, needs
    if is_candidate:
        nodes, changed = one_more(nodes, another[0])
    else:
        wanted = relaxations(needs)[less]
    before = planned(nodes, needs, subsets_max=subsets_max)
    if not before:
        return
    after = planned(changed, wanted, subsets_max=subsets_max)
    if not after:
        assert subsets_max == 0.0 and is_crosscut(needs)
        return
    assert within_bound(before[0].price.total.value, after[0], subsets_max)


@pytest.mark.parametrize("subsets_max", [4000.0, 0.0])
@given(nodes=fleets(12), needs=gangs(), data=st.data())
def test_names_and_their_order_decide_nothing(
    nodes: list[Node], needs: GangRequirements, data: st.DataObject, subsets_max: float
) -> None:
    """Two replicas of a scheduler list the same nodes in two orders: they get the same plan."""
    order = data.draw(st.permutations(range(len(nodes))))
    other = [
        replace(
            nodes[index],
            name=f"x{index}",
            rails=f"{nodes[index].rails}'",
            places=tuple(name and f"{name[0]}{9 - int(name[1])}" for name in nodes[index].places),
        )
        for index in order
    ]
    mine, theirs = (
        planned(fleet, needs, options_max=8, subsets_max=subsets_max) for fleet in (nodes, other)
    )
    assert [option.price.total.value for option in mine] == pytest.approx(
        [option.price.total.value for option in theirs], rel=1e-9
    )
    for option, another in zip(mine, theirs, strict=True):
        chosen = sorted(nodes[index].hazard for index in option.nodes)
        assert chosen == sorted(other[index].hazard for index in another.nodes)


def test_what_is_not_known_widens_the_price() -> None:
    """STALE and UNKNOWN nodes must not win over nodes known to be healthy."""
    well = [Node(f"h{number}") for number in range(8)]
    facts = snapshot_of(well).facts
    silent = replace(
        facts, is_reporting=np.zeros(8, dtype=bool), speed_reach=np.full(8, np.nan, dtype=np.float32),
        hazard_up=np.full(8, 100.0, dtype=np.float32), hazard_down=np.full(8, 100.0, dtype=np.float32),
    )  # fmt: skip
    everyone = Candidates(np.ones(8, dtype=bool))
    known, unknown = (
        planner.plan(
            node_table(replace(snapshot_of(well), facts=node_facts)), everyone, GangRequirements(4)
        )[0]
        for node_facts in (facts, silent)
    )
    for name in ("total", "survival", "speed"):
        known_value, unknown_value = getattr(known.price, name), getattr(unknown.price, name)
        assert unknown_value.upper - unknown_value.lower > known_value.upper - known_value.lower
    assert unknown.price.speed.value < 1.0
    assert unknown.price.total.value > known.price.total.value


def test_while_degraded_nobody_is_excluded_by_news_of_that_time() -> None:
    """A broken switch made half of the fleet UNHEALTHY: plans keep the earlier exclusions."""
    from gangline.aggregator.decisions.node_table import excluded_now, excluded_since

    nodes = [Node("a", state=HealthState.UNHEALTHY), Node("b"), Node("c")]
    before = 7, excluded_now(snapshot_of(nodes))
    worse = [replace(node, state=HealthState.UNHEALTHY) for node in nodes]
    degraded = snapshot_of(worse, degraded="half of the fleet fell silent at once")
    assert excluded_since(degraded, before).tolist() == [True, False, False]
    assert excluded_since(snapshot_of(worse), before).tolist() == [True, True, True]
    assert excluded_since(degraded, (6, before[1])).tolist() == [True, True, True]
