"""Plans of small fleets against a checker that tries all subsets; blockers and their changes; and requests from the wire."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from math import nan

import numpy as np
from google.protobuf.message import DecodeError

from gangline.aggregator.decisions import planner
from gangline.aggregator.decisions import relaxations as blockers
from gangline.aggregator.decisions.blockers import find_blockers
from gangline.aggregator.decisions.node_search import Candidates, SearchEffort
from gangline.aggregator.decisions.recovery import Incident, RecoveryKind, plan_recovery
from gangline.aggregator.decisions.requirements import GangRequirements, Tier
from gangline.aggregator.errors import ServiceError
from gangline.aggregator.model import HealthState
from gangline.aggregator.service.placement import PlacementService
from gangline.contract.wire import placement_pb2 as wire
from tests.aggregator.decisions.fleets import (
    Node,
    cheapest,
    snapshot_of,
    table_of,
    violations,
    without,
)
from tests.fuzzing.damage import ACCEPTED, REFUSED, flipped

STATES = (HealthState.HEALTHY, HealthState.HEALTHY, HealthState.HEALTHY, HealthState.UNHEALTHY,
          HealthState.STALE, HealthState.MAINTENANCE, HealthState.DEGRADED)  # fmt: skip

REQUEST = wire.PlanPlacementRequest(
    gang=wire.GangRequirements(nodes=4, gpus_per_node=8, invariants=wire.PlacementInvariants(
        within=wire.TIER_SPINE, segment_nodes=2, segment_tier=wire.TIER_RACK),
        groups=wire.ParallelGroups(tensor=4, pipeline=2, data=4, data_traffic=0.5), tenant="vision", priority=3,
        gpu_hours_per_delay_hour=2.0, gpu_hours_per_currency_unit=0.1),
    candidates=wire.PlacementCandidates(node_bitmap=b"\xff", shared_node_index=[1], shared_gpu_mask=b"\x0f",
        job_priorities=[wire.JobPriority(job="a", priority=2)]),
    options_max=3,
)  # fmt: skip


def _fleet(source: random.Random) -> list[Node]:
    nodes = []
    prices = source.choice(((nan,), (1.0, 2.0, 2.1)))
    for index in range(source.randrange(2, 10)):
        rack = source.randrange(4)
        leaf = source.randrange(3) if source.random() < 0.5 else rack // 2
        places = ("", f"s{leaf // 2}", f"l{leaf}" if source.random() < 0.9 else "", f"r{rack}", f"n{rack}",
                  f"p{source.randrange(3)}", "")  # fmt: skip
        nodes.append(
            Node(
                f"h{index}", 10.0 ** source.uniform(-6, -1), source.choice((1.0, 1.0, source.uniform(0.5, 1.1))),
                source.choice(STATES), source.choice((8, 8, 8, 4)), places, f"rails{leaf}", source.random() < 0.85,
                price=source.choice(prices), preemption=source.choice((0.0, 0.0, 0.02)),
            )
        )  # fmt: skip
    return nodes


def _gang(source: random.Random) -> GangRequirements:
    segment = source.choice((1, 1, 2, 3))
    spread = source.choice((None, None, Tier.POWER_DOMAIN, Tier.RACK))
    tiers = (Tier.RACK, Tier.LEAF, Tier.NVLINK_DOMAIN)
    return GangRequirements(
        segment * source.randrange(1, max(2, 7 // segment)),
        gpus_per_node=source.choice((4, 8)),
        hours=source.choice((1.0, 24.0, 500.0)),
        within=source.choice((None, None, Tier.SPINE, Tier.LEAF, Tier.RACK)),
        segment_nodes=segment,
        segment_tier=source.choice(tiers) if segment > 1 else None,
        same_rails=source.random() < 0.3,
        spread_over=spread,
        spread_nodes_max=source.randrange(1, 5) if spread else 0,
        score_min=source.choice((0.0, 0.0, 0.9, 0.99)),
        survival_min=source.choice((0.0, 0.0, 0.5)),
        communication_share=source.choice((0.0, 0.3)),
        currency_rate=source.choice((0.0, 0.02, 3.0)),
    )


def fuzz_plans(source: random.Random) -> str:
    """All or nothing, every invariant, and the planner finds the best of all subsets at its price."""
    nodes, needs = _fleet(source), _gang(source)
    table, candidates = table_of(nodes)
    options = planner.plan(
        table, candidates, needs, effort=SearchEffort(options_max=source.choice((1, 8)))
    )
    for option in options:
        assert violations(nodes, option.nodes.tolist(), needs) == []
    best = cheapest(nodes, needs)
    assert bool(options) == (best is not None), (nodes, needs)
    if best is None:
        return REFUSED
    assert abs(options[0].price.total.value - best) <= 1e-6 * abs(best) + 1e-9, (nodes, needs)
    return ACCEPTED


def fuzz_more_room(source: random.Random) -> str:
    """One more candidate, or one constraint less, is never dearer; other names in another order change nothing. By the stated
    bound where not all subsets are tried."""
    nodes, needs = _fleet(source), _gang(source)
    subsets_max = source.choice((4000.0, 0.0))
    before = planner.plan(*table_of(nodes), needs, effort=SearchEffort(subsets_max=subsets_max))
    if not before:
        return REFUSED
    out = [index for index, node in enumerate(nodes) if not node.free]
    order = list(range(len(nodes)))
    source.shuffle(order)
    shuffled = [replace(nodes[index], name=f"x{index}") for index in order]
    wider = [(shuffled, needs), (nodes, replace(needs, within=None)), (nodes, replace(needs, same_rails=False)),
             (nodes, replace(needs, spread_over=None, spread_nodes_max=0)), (nodes, replace(needs, score_min=0.0))]  # fmt: skip
    for more in out[:1]:
        wider.append(
            (
                [
                    replace(node, free=node.free or index == more)
                    for index, node in enumerate(nodes)
                ],
                needs,
            )
        )
    cost = before[0].price.total.value
    slack = 1e-6 * abs(cost) + 1e-9
    for number, (fleet, wanted) in enumerate(wider):
        result = planner.plan(
            *table_of(fleet), wanted, effort=SearchEffort(subsets_max=subsets_max)
        )
        # a survival, or segments that meet a spread: the search itself does not prove it
        if not result:
            is_crosscut = needs.survival_min > 0.0 or (
                needs.segment_nodes > 1 and needs.spread_over is not None
            )
            assert subsets_max == 0.0 and is_crosscut, (nodes, needs, number)
            continue
        gap = result[0].gap_gpu_hours if subsets_max == 0.0 and number else 0.0
        assert result[0].price.total.value <= cost + gap + slack, (nodes, needs, number)
        assert number or result[0].price.total.value >= cost - slack, (nodes, needs)
    return ACCEPTED


def fuzz_blockers(source: random.Random) -> str:
    """A single set is in conflict, each part of it is needed, and each offered change fits."""
    nodes, needs = _fleet(source), _gang(source)
    if cheapest(nodes, needs) is not None:
        return REFUSED
    table, candidates = table_of(nodes)
    result = find_blockers(table, candidates, needs)
    conflict = [blocker.constraint for blocker in result.blockers]
    others = [constraint for constraint in blockers.CONSTRAINTS if constraint not in conflict]
    assert conflict and cheapest(*without(nodes, needs, others)) is None, (nodes, needs)
    for entry in conflict:
        assert cheapest(*without(nodes, needs, [*others, entry])) is not None, (nodes, needs, entry)
    for blocker in result.blockers:
        for change in blocker.relaxations:
            if change.start_hours is None:
                _, free = table_of(nodes)
                free.nodes[change.added_nodes] = True
                assert planner.plan(table, free, change.needs), (nodes, needs, change.change)
    return ACCEPTED


def fuzz_recoveries(source: random.Random) -> str:
    """Failed members of a gang that was placed: each replacement fits, and where one node fits one is offered."""
    nodes, needs = _fleet(source), replace(_gang(source), survival_min=0.0)
    table, candidates = table_of(nodes)
    if not (placed := planner.plan(table, candidates, needs)):
        return REFUSED
    current = placed[0].nodes
    failed = np.array(source.sample(current.tolist(), source.randrange(1, current.size + 1)))
    plan = plan_recovery(table, Candidates(~np.isin(np.arange(len(nodes)), current) & candidates.nodes),
                         needs, Incident(current, failed))  # fmt: skip
    # A replacement may leave its segment or rails, at a price that it names; it breaks nothing else.
    held = replace(needs, segment_nodes=1, segment_tier=None, same_rails=False, score_min=0.0)
    replaced = [option for option in plan.options if option.kind == RecoveryKind.FREE_NODE]
    for entry in replaced:
        assert violations(nodes, entry.nodes.tolist(), held) == [], (nodes, needs, failed)
    if failed.size == 1:
        places = np.flatnonzero(current == failed[0])
        fits = []
        for index in np.flatnonzero(np.isin(np.arange(len(nodes)), current, invert=True)).tolist():
            members = current.copy()
            members[places] = index
            bare = replace(needs, segment_nodes=1, segment_tier=None, same_rails=False)
            if not violations(nodes, members.tolist(), bare):
                fits.append(index)
        assert bool(replaced) or not fits, (nodes, needs, failed, fits)
    return ACCEPTED


class _Source:
    """Source of the service's snapshot."""

    snapshot = snapshot_of(
        [
            Node(
                f"h{index}",
                price=index % 3,
                preemption=index % 2 / 100,
                places=("", "s0", f"l{index // 4}", f"r{index // 2}", "", "", ""),
            )
            for index in range(8)
        ]
    )


REQUEST.gang.length.FromSeconds(3600)


def fuzz_requests(source: random.Random) -> str:
    """A request off the wire: an answer with options or blockers, or an error message."""
    data = REQUEST.SerializeToString()
    for _ in range(source.randrange(1, 4)):
        data = flipped(data, source)
    try:
        request = wire.PlanPlacementRequest.FromString(data)
    except DecodeError:
        return REFUSED
    try:
        reply = asyncio.run(PlacementService(_Source()).PlanPlacement(request, None))
    except ServiceError as error:
        assert str(error).isprintable(), error
        return REFUSED
    assert reply.options or reply.blockers
    for option in reply.options:
        assert np.isfinite(option.price.total_gpu_hours.value)
        assert len(set(option.node_index)) == request.gang.nodes
    return ACCEPTED


TARGETS = {
    "placement-plans": fuzz_plans,
    "placement-more-room": fuzz_more_room,
    "placement-blockers": fuzz_blockers,
    "placement-recoveries": fuzz_recoveries,
    "placement-requests": fuzz_requests,
}
