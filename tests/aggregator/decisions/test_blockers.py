"""Blockers: a minimal conflict, and changes that help, checked with all subsets of small fleets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given

from gangline.aggregator.decisions import planner
from gangline.aggregator.decisions import relaxations as blockers
from gangline.aggregator.decisions.blockers import find_blockers, quick_xplain
from gangline.aggregator.decisions.relaxations import repair_wait_hours
from gangline.aggregator.decisions.requirements import GangRequirements, MemoryRequirements, Tier
from tests.aggregator.decisions.fleets import Node, cheapest, table_of, violations, without
from tests.aggregator.decisions.test_planner import fleets, gangs


@given(nodes=fleets(8), needs=gangs(8))
def test_a_set_in_conflict_is_one_and_is_minimal(
    nodes: list[Node], needs: GangRequirements
) -> None:
    """An irrelevant constraint in the conflict would make an operator change the wrong one."""
    assume(cheapest(nodes, needs) is None)
    table, candidates = table_of(nodes)
    conflict = [blocker.constraint for blocker in find_blockers(table, candidates, needs).blockers]
    assert conflict and len(set(conflict)) == len(conflict)
    other_blockers = [blocker for blocker in blockers.CONSTRAINTS if blocker not in conflict]
    assert cheapest(*without(nodes, needs, other_blockers)) is None
    for blocker in conflict:
        assert cheapest(*without(nodes, needs, [*other_blockers, blocker])) is not None, blocker


@given(nodes=fleets(8), needs=gangs(8))
def test_a_change_that_is_advised_helps(nodes: list[Node], needs: GangRequirements) -> None:
    """Each proposed change, such as `floor 0.80 -> 0.74: starts now`, makes the request fit."""
    assume(cheapest(nodes, needs) is None)
    table, candidates = table_of(nodes)
    result = find_blockers(table, candidates, needs)
    for blocker in result.blockers:
        costs = [
            (relaxation.start_hours is not None, relaxation.price.total.value)
            for relaxation in blocker.relaxations
        ]
        assert costs == sorted(costs)
        # Nothing makes a workload fit into less memory than it uses.
        assert blocker.relaxations or needs.memory.is_requested
        for relaxation in blocker.relaxations:
            assert relaxation.change
            later = list(nodes)
            for index in relaxation.added_nodes.tolist():
                later[index] = replace(later[index], free=True)
            if relaxation.start_hours is not None:
                later, _ = without(later, needs, [blockers.STATES])
                assert relaxation.start_hours[0] <= relaxation.start_hours[1]
            again, free = table_of(later)
            options = planner.plan(again, free, relaxation.needs)
            if relaxation.start_hours is None or not relaxation.needs.survival_min:
                assert options
            for option in options:
                assert violations(later, option.nodes.tolist(), relaxation.needs) == []
            parts = sum(part.gpu_hours.value for part in relaxation.price.parts)
            assert relaxation.price.total.value == pytest.approx(parts)


def rack(name: str, count: int, hazard: float = 1e-4) -> list[Node]:
    places = ("", "s0", f"l{name}", f"r{name}", "", "p0", "")
    return [
        Node(f"{name}{number}", hazard * (1 + number), places=places) for number in range(count)
    ]


SMALL = [replace(node, hbm_bytes=80e9) for node in rack("a", 4)]
LARGE = [replace(node, hbm_bytes=141e9, free=False, job="81") for node in rack("b", 3)]
TABLE = [
    # Four nodes within one rack: five nodes are free, but in two racks.
    (GangRequirements(4, within=Tier.RACK), [*rack("a", 2), *rack("b", 3)],
     {blockers.NODES: "4 -> 3 nodes", blockers.WITHIN: "within one rack -> one spine"}),
    (GangRequirements(4, score_min=0.999), rack("a", 5),
     {blockers.NODES: "4 -> 1 node", blockers.FLOOR: "node floor 0.999 -> 0.9968"}),
    (GangRequirements(9), rack("a", 5), {blockers.NODES: "9 -> 5 nodes"}),
    (GangRequirements(4, spread_over=Tier.POWER_DOMAIN, spread_nodes_max=1), rack("a", 5),
     {blockers.NODES: "4 -> 1 node", blockers.SPREAD: "at most 1 -> 4 nodes in one power domain"}),
    (GangRequirements(6, segment_nodes=3, segment_tier=Tier.RACK), [*rack("a", 2), *rack("b", 4)],
     {blockers.NODES: "6 -> 3 nodes", blockers.SEGMENTS: "segments of 3 within a rack -> a spine"}),
    # Causes that nodes share count: no two nodes reach a floor of 0.99 over a day, however healthy.
    (GangRequirements(4, survival_min=0.99), rack("a", 5, 1e-6),
     {blockers.NODES: "4 -> 1 node", blockers.SURVIVAL: "survival of the gang 0.99 -> 0.9528"}),
    (GangRequirements(2), [*rack("a", 1), Node("x", free=False, job="81")],
     {blockers.NODES: "2 -> 1 node", blockers.CANDIDATES: "job 81 gives up 1 node (the gang's priority is not known)"}),
    # 100 GB do not fit into GPUs of 80 GB: a job on larger ones, or the smaller batch of the request.
    (GangRequirements(2, memory=MemoryRequirements(100e9)), [*SMALL, *LARGE],
     {blockers.MEMORY: "another GPU model, GPU of 141 GB of 141 GB: others give up 2 nodes (the gang's priority is not known)",
      blockers.CANDIDATES: "job 81 gives up 2 nodes (the gang's priority is not known)"}),
    (GangRequirements(2, memory=MemoryRequirements(100e9, 60e9)), SMALL,
     {blockers.MEMORY: "the smaller batch: 100 -> 60 GB of HBM per GPU"}),
]  # fmt: skip


@pytest.mark.parametrize(("needs", "nodes", "told"), TABLE)
def test_the_mildest_change_is_told(
    needs: GangRequirements, nodes: list[Node], told: dict[str, str]
) -> None:
    """A floor that is 0.01 too high is lowered, not dropped."""
    table, candidates = table_of(nodes)
    result = find_blockers(table, candidates, needs)
    changes = {
        blocker.constraint: [relaxation.change for relaxation in blocker.relaxations]
        for blocker in result.blockers
    }
    assert set(changes) == set(told)
    for constraint, change in told.items():
        assert change in changes[constraint]


def test_memory_that_no_gpu_has_is_a_blocker_without_a_change() -> None:
    """No other constraint is blamed, and no change that drops the memory is advised."""
    table, candidates = table_of(SMALL)
    needs = GangRequirements(2, memory=MemoryRequirements(200e9, source="p95 of job 7"))
    (blocker,) = find_blockers(table, candidates, needs).blockers
    assert blocker.constraint == blockers.MEMORY and not blocker.relaxations
    assert "200 GB of HBM per GPU (p95 of job 7)" in blocker.message
    assert "the largest GPU has 80 GB (GPU of 80 GB)" in blocker.message


def test_of_an_empty_fleet_there_is_a_blocker_too() -> None:
    """A response without options needs a blocker."""
    table, candidates = table_of([])
    (blocker,) = find_blockers(table, candidates, GangRequirements(1)).blockers
    assert "agents register hosts" in blocker.message


def test_quick_xplain_finds_each_minimal_conflict() -> None:
    """If two of three constraints conflict, the result is these two."""
    names = ["a", "b", "c", "d", "e"]
    for conflict in (["a"], ["b", "e"], ["a", "c", "d"], names):
        assert quick_xplain(names, set(conflict).issubset) == conflict


def test_more_repairs_take_longer() -> None:
    """Of ten nodes in repair the second is ready soon, the tenth is not."""
    waits = [repair_wait_hours(10, needed, 20.0) for needed in range(1, 11)]
    assert waits == sorted(waits) and all(median < late for median, late in waits)
    alone = repair_wait_hours(1, 1, 20.0)
    assert alone == pytest.approx((20.0, 311.0), rel=1e-3)
    assert np.isfinite(repair_wait_hours(5000, 5000, 20.0)).all()
