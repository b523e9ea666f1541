"""Why nothing fits: a minimal set in conflict, and changes that help. Checked by trying all subsets of small fleets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given

from gangline.aggregator.decisions import planner
from gangline.aggregator.decisions import relaxations as blockers
from gangline.aggregator.decisions.blockers import find_blockers, quick_xplain
from gangline.aggregator.decisions.relaxations import repair_wait_hours
from gangline.aggregator.decisions.requirements import GangRequirements, Tier
from tests.aggregator.decisions.fleets import Node, cheapest, table_of, violations, without
from tests.aggregator.decisions.test_planner import fleets, gangs


@given(nodes=fleets(8), needs=gangs(8))
def test_a_set_in_conflict_is_one_and_is_minimal(
    nodes: list[Node], needs: GangRequirements
) -> None:
    """An operator who is told four constraints of which one does not matter changes the wrong one."""
    assume(cheapest(nodes, needs) is None)
    table, candidates = table_of(nodes)
    conflict = [one.constraint for one in find_blockers(table, candidates, needs).blockers]
    assert conflict and len(set(conflict)) == len(conflict)
    others = [one for one in blockers.CONSTRAINTS if one not in conflict]
    assert cheapest(*without(nodes, needs, others)) is None
    for one in conflict:
        assert cheapest(*without(nodes, needs, [*others, one])) is not None, one


@given(nodes=fleets(8), needs=gangs(8))
def test_a_change_that_is_advised_helps(nodes: list[Node], needs: GangRequirements) -> None:
    """`floor 0.80 -> 0.74: starts now`, and then it does not start: each change, sent again as it is, fits."""
    assume(cheapest(nodes, needs) is None)
    table, candidates = table_of(nodes)
    found = find_blockers(table, candidates, needs)
    for blocker in found.blockers:
        costs = [
            (one.start_hours is not None, one.price.total.value) for one in blocker.relaxations
        ]
        assert costs == sorted(costs)
        assert blocker.relaxations
        for one in blocker.relaxations:
            assert one.change
            later = list(nodes)
            for at in one.added_nodes.tolist():
                later[at] = replace(later[at], free=True)
            if one.start_hours is not None:
                later, _ = without(later, needs, [blockers.STATES])
                assert one.start_hours[0] <= one.start_hours[1]
            again, free = table_of(later)
            options = planner.plan(again, free, one.needs)
            if one.start_hours is None or not one.needs.survival_min:
                assert options
            for option in options:
                assert violations(later, option.nodes.tolist(), one.needs) == []
            parts = sum(part.gpu_hours.value for part in one.price.parts)
            assert one.price.total.value == pytest.approx(parts)


def rack(name: str, count: int, hazard: float = 1e-4) -> list[Node]:
    places = ("", "s0", f"l{name}", f"r{name}", "", "p0", "")
    return [Node(f"{name}{at}", hazard * (1 + at), places=places) for at in range(count)]


TABLE = [
    # 16 free GPUs start no 16-GPU job: they are of two racks.
    (GangRequirements(4, within=Tier.RACK), [*rack("a", 2), *rack("b", 3)],
     {blockers.NODES: "4 -> 3 nodes", blockers.WITHIN: "within one rack -> one spine"}),
    (GangRequirements(4, score_min=0.999), rack("a", 5),
     {blockers.NODES: "4 -> 1 nodes", blockers.FLOOR: "node floor 0.999 -> 0.9968"}),
    (GangRequirements(9), rack("a", 5), {blockers.NODES: "9 -> 5 nodes"}),
    (GangRequirements(4, spread_over=Tier.POWER_DOMAIN, spread_nodes_max=1), rack("a", 5),
     {blockers.NODES: "4 -> 1 nodes", blockers.SPREAD: "at most 1 -> 4 nodes in one power domain"}),
    (GangRequirements(6, segment_nodes=3, segment_tier=Tier.RACK), [*rack("a", 2), *rack("b", 4)],
     {blockers.NODES: "6 -> 3 nodes", blockers.SEGMENTS: "segments of 3 within a rack -> a spine"}),
    # Causes that nodes share count: no two nodes reach a floor of 0.99 over a day, however healthy.
    (GangRequirements(4, survival_min=0.99), rack("a", 5, 1e-6),
     {blockers.NODES: "4 -> 1 nodes", blockers.SURVIVAL: "survival of the gang 0.99 -> 0.9528"}),
    (GangRequirements(2), [*rack("a", 1), Node("x", free=False, job="81")],
     {blockers.NODES: "2 -> 1 nodes", blockers.CANDIDATES: "job 81 gives up 1 nodes (the gang's priority is not known)"}),
]  # fmt: skip


@pytest.mark.parametrize(("needs", "nodes", "told"), TABLE)
def test_the_mildest_change_is_told(
    needs: GangRequirements, nodes: list[Node], told: dict[str, str]
) -> None:
    """A floor that has to give way by a hundredth is not to be dropped."""
    table, candidates = table_of(nodes)
    found = find_blockers(table, candidates, needs)
    changes = {one.constraint: [each.change for each in one.relaxations] for one in found.blockers}
    assert set(changes) == set(told)
    for constraint, change in told.items():
        assert change in changes[constraint]


def test_of_an_empty_fleet_there_is_a_blocker_too() -> None:
    """An answer with neither options nor blockers says nothing."""
    table, candidates = table_of([])
    (blocker,) = find_blockers(table, candidates, GangRequirements(1)).blockers
    assert "agents register hosts" in blocker.message


def test_quick_xplain_finds_each_minimal_conflict() -> None:
    """Of three constraints of which two conflict, it is these."""
    names = ["a", "b", "c", "d", "e"]
    for conflict in (["a"], ["b", "e"], ["a", "c", "d"], names):
        assert quick_xplain(names, set(conflict).issubset) == conflict


def test_more_repairs_take_longer() -> None:
    """The second of ten that is repaired is soon there, the tenth is not."""
    waits = [repair_wait_hours(10, needed, 20.0) for needed in range(1, 11)]
    assert waits == sorted(waits) and all(median < late for median, late in waits)
    alone = repair_wait_hours(1, 1, 20.0)
    assert alone == pytest.approx((20.0, 311.0), rel=1e-3)
    assert np.isfinite(repair_wait_hours(5000, 5000, 20.0)).all()
