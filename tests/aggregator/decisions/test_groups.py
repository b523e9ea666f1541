"""Tensor, pipeline and data groups: traffic between domains, counted per GPU, and rank order."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gangline.aggregator.decisions import elastic, node_search, planner
from gangline.aggregator.decisions.groups import GroupLayout, group_spans, layout_of, regrouped
from gangline.aggregator.decisions.node_search import SearchEffort
from gangline.aggregator.decisions.requirements import PRICED_TIERS, GangRequirements, Tier
from gangline.aggregator.decisions.resize import ResizeTimes, plan_resize
from gangline.aggregator.decisions.scaling import ElasticSizes, scaling_curve
from gangline.aggregator.errors import InvalidArgument
from gangline.aggregator.service.placement import PlacementService
from gangline.contract.wire import placement_pb2 as wire
from tests.aggregator.decisions.fleets import Node, snapshot_of, table_of, violations
from tests.aggregator.decisions.test_elastic import elastic_gangs, of_size
from tests.aggregator.decisions.test_exchange_rates import Source
from tests.aggregator.decisions.test_planner import (
    fleets,
    gangs,
    is_crosscut,
    one_more,
    planned,
    within_bound,
)

LEAF, NVLINK = PRICED_TIERS.index(Tier.LEAF), PRICED_TIERS.index(Tier.NVLINK_DOMAIN)


def leaves(count: int, of: int = 4, nvlink: int = 1) -> list[Node]:
    """Return nodes in leaves of *of* nodes, and NVLink domains of *nvlink* nodes."""
    return [
        Node(
            f"h{number:02}",
            places=("", "s0", f"l{number // of}", "", f"n{number // nvlink}", "", ""),
        )
        for number in range(count)
    ]


def grouped(nodes: int, tensor: int, pipeline: int, data: int, **more: Any) -> GangRequirements:
    return GangRequirements(
        nodes, gpus_per_node=8, tensor_parallel=tensor, pipeline_parallel=pipeline, data_parallel=data, **more
    )  # fmt: skip


def counted(
    domains: list[int], layout: GroupLayout
) -> dict[str, tuple[int, int, list[tuple[float, float]]]]:
    """Count groups that cross or may cross, and each group's share range, per kind, GPU by GPU."""
    t, p, d, gpus = layout.tensor, layout.pipeline, layout.data, layout.gpus_per_node

    def node(tensor: int, data: int, pipeline: int) -> int:
        return (tensor + t * (data + d * pipeline)) // gpus

    kinds = {
        "tensor": [[node(a, b, c) for a in range(t)] for c in range(p) for b in range(d)],
        "pipeline": [[node(a, b, c) for c in range(p)] for b in range(d) for a in range(t)],
        "data": [[node(a, b, c) for b in range(d)] for c in range(p) for a in range(t)],
    }
    counts = {}
    for kind, groups in kinds.items():
        if len(groups[0]) < 2:
            continue
        crosses, may, shares = 0, 0, []
        for group in groups:
            known = {domains[member] for member in group if domains[member] >= 0}
            unknown = {member for member in group if domains[member] < 0}
            crosses += len(known) > 1
            may += len(known) <= 1 and len(known) + len(unknown) > 1
            if kind == "pipeline":
                pairs = [(a, b) for a, b in pairwise(group) if a != b]
                sure = [1 for a, b in pairs if domains[a] >= 0 <= domains[b] != domains[a]]
                maybe = [1 for a, b in pairs if min(domains[a], domains[b]) < 0]
                links = len(group) - 1
                shares.append((len(sure) / links, (len(sure) + len(maybe)) / links))
            else:
                domains_max = len(known) + len(unknown)
                shares.append((1 - 1 / max(len(known), 1), 1 - 1 / max(domains_max, 1)))
        counts[kind] = crosses, may, shares
    return counts


@given(
    sizes=st.sampled_from([(1, 2, 8), (2, 2, 4), (8, 2, 2), (16, 2, 1), (4, 4, 2), (3, 1, 8), (1, 8, 3), (2, 1, 16), (6, 2, 2)]),
    gpus=st.sampled_from([1, 2, 4, 8]),
    data=st.data(),
)  # fmt: skip
def test_what_crosses_is_as_counted_gpu_by_gpu(
    sizes: tuple[int, int, int], gpus: int, data: st.DataObject
) -> None:
    """Includes groups that end within a node, and nodes without a known leaf."""
    tensor, pipeline, members = sizes
    total = tensor * pipeline * members
    if total % gpus:
        return
    ids = data.draw(st.lists(st.integers(-1, 2), min_size=total // gpus, max_size=total // gpus))
    nodes = [
        Node(f"h{number}", places=("", "", f"l{item}" if item >= 0 else "", "", "", "", ""))
        for number, item in enumerate(ids)
    ]
    table, _ = table_of(nodes)
    needs = replace(grouped(len(nodes), tensor, pipeline, members), gpus_per_node=gpus)
    layout = layout_of(needs, len(nodes), gpus)
    assert layout is not None and layout == GroupLayout(tensor, pipeline, members, gpus)
    spans = group_spans(table, np.arange(len(nodes)), layout, needs)
    expected = counted(ids, layout)
    assert [item.kind for item in spans.kinds] == list(expected)
    value, weights = 0.0, 0.0
    for item in spans.kinds:
        crosses, may, shares = expected[item.kind]
        assert (item.count, item.crossing[LEAF], item.unknown[LEAF]) == (len(shares), crosses, may)
        value += item.traffic.value * float(np.mean([0.5 * (low + high) for low, high in shares]))
        weights += item.traffic.value
    assert weights == pytest.approx(1.0)
    low, middle, high = spans.shares[LEAF][1], spans.shares[LEAF][0], spans.shares[LEAF][2]
    assert middle == pytest.approx(value) and low <= middle <= high


@pytest.mark.parametrize(
    ("traffic", "together", "data_crosses", "pipelines_cross"),
    [({}, 2, 16, 0), ({"data_traffic": 9.0, "pipeline_traffic": 1.0}, 1, 0, 32)],
)
def test_the_traffic_that_costs_more_is_aligned_first(
    traffic: dict[str, float], together: int, data_crosses: int, pipelines_cross: int
) -> None:
    """Two leaves of four nodes, two stages: the cheaper of pipelines and data groups crosses."""
    needs = grouped(8, 8, 2, 4, **traffic)
    (option,) = planned(leaves(8), needs)
    assert option.groups is not None and option.groups.stages_together == together
    crossing = {item.kind: item.crossing[LEAF] for item in option.groups.kinds}
    assert crossing == {"tensor": 0, "pipeline": pipelines_cross, "data": data_crosses}
    leaf_of = [int(node) // 4 for node in option.nodes]
    stages = leaf_of[:4], leaf_of[4:]  # in rank order the nodes of a stage are adjacent
    if together == 1:
        assert [len(set(item)) for item in stages] == [1, 1]
    else:
        assert stages[0] == stages[1] and sorted(stages[0]) == [0, 0, 1, 1]
    evidence = option.price.topology.evidence
    assert "8 tensor x 2 pipeline x 4 data groups" in evidence
    assert ("declared" if traffic else "assumed") in evidence


def test_segments_move_as_wholes() -> None:
    """Two segments of two ranks per leaf: stages become adjacent, segments stay in their racks."""
    nodes = [
        Node(
            f"h{number}",
            places=("", "s0", f"l{number // 4}", f"r{number // 2}", f"n{number}", "", ""),
        )
        for number in range(8)
    ]
    needs = grouped(8, 8, 2, 4, segment_nodes=2, segment_tier=Tier.RACK)
    (option,) = planned(nodes, needs)
    assert violations(nodes, option.nodes.tolist(), needs) == []
    assert option.groups is not None and option.groups.stages_together == 2
    crossing = {kind.kind: kind.crossing[LEAF] for kind in option.groups.kinds}
    assert crossing == {"tensor": 0, "pipeline": 0, "data": 16}


def test_a_tensor_group_keeps_to_an_nvlink_domain() -> None:
    """Groups of two nodes in two domains of three: only the two remaining nodes cross."""
    nodes = leaves(6, of=6, nvlink=3)
    (option,) = planned(nodes, grouped(6, 16, 1, 3))
    assert option.groups is not None
    (tensor, _) = option.groups.kinds
    assert (tensor.kind, tensor.count, tensor.crossing[NVLINK]) == ("tensor", 3, 1)


@pytest.mark.parametrize("subsets_max", [4000.0, 0.0])
@given(
    nodes=fleets(8), needs=gangs(), sizes=st.sampled_from([(8, 2), (2, 2), (4, 4), (16, 1), (1, 1)]), data=st.data(),
)  # fmt: skip
def test_plans_with_groups_hold_and_are_within_their_bound(
    nodes: list[Node],
    needs: GangRequirements,
    sizes: tuple[int, int],
    data: st.DataObject,
    subsets_max: float,
) -> None:
    """Plans with groups hold all invariants, and no sampled order is cheaper than their bound."""
    needs = replace(needs, tensor_parallel=sizes[0], pipeline_parallel=sizes[1])
    needs = regrouped(needs, needs.nodes * needs.gpus_per_node)
    options = planned(nodes, needs, options_max=8, subsets_max=subsets_max)
    for option in options:
        assert violations(nodes, option.nodes.tolist(), needs) == []
        parts = sum(part.gpu_hours.value for part in option.price.parts)
        assert option.price.total.value == pytest.approx(parts)
        low, value, high = (
            getattr(option.price.topology, name) for name in ("lower", "value", "upper")
        )
        assert low <= value + 1e-12 and value <= high + 1e-12
    plain = planned(
        nodes, replace(needs, tensor_parallel=0, pipeline_parallel=0), subsets_max=subsets_max
    )
    assert bool(options) == bool(plain)
    if not options:
        return
    table, candidates = table_of(nodes)
    other = np.array(data.draw(st.permutations(options[-1].nodes.tolist())))
    if not violations(nodes, other.tolist(), needs):
        cost = planner.evaluate_nodes(table, candidates, needs, other).price.total.value
        floor = options[0].price.total.value - options[0].gap_gpu_hours
        assert cost >= floor * (1 - 1e-9) - 1e-9


@pytest.mark.parametrize("subsets_max", [4000.0, 0.0])
@given(
    nodes=fleets(8),
    needs=gangs(),
    sizes=st.sampled_from([(8, 2), (2, 2), (16, 1)]),
    another=fleets(2),
)
def test_with_groups_one_more_candidate_is_worse_by_no_more_than_the_bound(
    nodes: list[Node], needs: GangRequirements, sizes: tuple[int, int], another: list[Node], subsets_max: float,
) -> None:  # fmt: skip
    """Groups are arranged within the best sets for even traffic, which a further node changes."""
    needs = replace(needs, tensor_parallel=sizes[0], pipeline_parallel=sizes[1])
    needs = regrouped(needs, needs.nodes * needs.gpus_per_node)
    fewer, more = (
        planned(fleet, needs, subsets_max=subsets_max) for fleet in one_more(nodes, another[0])
    )
    if fewer and more:
        assert within_bound(fewer[0].price.total.value, more[0], 0.0)
    elif fewer:
        assert subsets_max == 0.0 and is_crosscut(needs)


@given(count=st.integers(2, 12), data=st.data())
def test_names_decide_nothing_about_groups(count: int, data: st.DataObject) -> None:
    """Two replicas of a scheduler list the same nodes in two orders: the groups cost the same."""
    nodes = leaves(count, of=data.draw(st.integers(1, 5)))
    nodes = [replace(item, hazard=1e-4 * (1 + index)) for index, item in enumerate(nodes)]
    order = data.draw(st.permutations(range(count)))
    needs = grouped(count // 2 * 2, 8, 2, 0)
    options = [planned(item, needs)[0] for item in (nodes, [nodes[index] for index in order])]
    assert options[0].price.total.value == pytest.approx(options[1].price.total.value)
    assert options[0].groups == options[1].groups
    assert {nodes[index].name for index in options[0].nodes} == {
        nodes[order[index]].name for index in options[1].nodes
    }


def asked(nodes: list[Node], gang: wire.GangRequirements) -> wire.PlanPlacementResponse:
    request = wire.PlanPlacementRequest(gang=gang, explain=True)
    return asyncio.run(PlacementService(Source(snapshot_of(nodes))).PlanPlacement(request, None))


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ({"tensor": 8, "pipeline": 3}, r"8 x 3 x 1 \(tensor x pipeline x data\) = 24 GPUs, expected a divisor of the gang's 32 GPUs \(4 nodes of 8\)"),
        ({"tensor": 8, "pipeline": 4, "data": 2}, "= 64 GPUs, expected a divisor"),
        ({"tensor": 900_000}, "gang.groups.tensor: 900000, expected"),
        ({"data_traffic": -1.0}, "gang.groups.data_traffic: -1"),
        ({"pipeline_traffic": 2e6}, "gang.groups.pipeline_traffic: 2e"),
    ],
)  # fmt: skip
def test_groups_that_are_no_groups_of_the_gang(groups: dict[str, Any], told: str) -> None:
    """A plan for other groups than the job's own would have a wrong price."""
    gang = wire.GangRequirements(nodes=4, groups=wire.ParallelGroups(**groups))
    with pytest.raises(InvalidArgument, match=told):
        asked(leaves(4), gang)


def test_the_answer_has_the_groups_that_cross() -> None:
    """Groups are listed by kind and tier; the traffic share is marked as assumed."""
    gang = wire.GangRequirements(nodes=8, groups=wire.ParallelGroups(tensor=8, pipeline=2))
    (option,) = asked(leaves(8), gang).options
    by_kind = {group.kind: group for group in option.groups}
    assert {kind: (group.size, group.groups) for kind, group in by_kind.items()} == {
        "tensor": (8, 8), "pipeline": (2, 32), "data": (4, 16),
    }  # fmt: skip
    crossing = {span.tier: span.groups for span in by_kind["data"].crossing}
    assert crossing[wire.TIER_LEAF] == 16 and crossing[wire.TIER_SPINE] == 0
    assert by_kind["data"].traffic_share.source == wire.ESTIMATE_ASSUMED
    assert option.pipeline_stages_together == 2


def test_a_change_that_helps_can_be_sent_again() -> None:
    """With fewer nodes other groups fit: the changed request contains only these."""
    nodes = leaves(6)
    for pipeline, left in ((2, (8, 2, 0)), (8, (0, 0, 0))):
        groups = wire.ParallelGroups(tensor=8, pipeline=pipeline, data=8 // pipeline)
        reply = asked(nodes, wire.GangRequirements(nodes=8, groups=groups))
        (change,) = [relaxation for blocker in reply.blockers for relaxation in blocker.relaxations]
        sent = change.gang
        assert sent.nodes == 6
        assert (sent.groups.tensor, sent.groups.pipeline, sent.groups.data) == left
        assert asked(nodes, sent).options


def crossed(**more: Any) -> GangRequirements:
    """Return a gang of one or two nodes of 8 GPUs."""
    sizes = ElasticSizes((1, 2), scaling_curve(()))
    return GangRequirements(2, gpus_per_node=8, hours=1.0, communication_share=0.0, elastic=sizes, **more)  # fmt: skip


@pytest.mark.parametrize("subsets_max", [4000.0, 0.0])
@given(
    nodes=fleets(8), needs=elastic_gangs(), sizes=st.sampled_from([(8, 2), (2, 2), (4, 4), (16, 1)]),
    of_fitting=st.integers(0, 3), shuffled=st.permutations(range(8)),
)  # fmt: skip
@example(nodes=leaves(2), needs=crossed(), sizes=(8, 2), of_fitting=0, shuffled=list(range(8)))
@example(
    nodes=[replace(one, places=("", "s0", "l0", "r0", "n0", "p0", "")) for one in leaves(2)],
    needs=crossed(spread_over=Tier.POWER_DOMAIN, spread_nodes_max=1),
    sizes=(8, 2), of_fitting=0, shuffled=list(range(8)),
)  # fmt: skip
def test_sizes_with_groups_hold_and_are_the_best_of_all(
    nodes: list[Node],
    needs: GangRequirements,
    sizes: tuple[int, int],
    of_fitting: int,
    shuffled: list[int],
    subsets_max: float,
) -> None:
    """A gang of 6 or 8 nodes in pipelines of 4 got 6, in an order and at a price without groups."""
    needs = replace(needs, tensor_parallel=sizes[0], pipeline_parallel=sizes[1])
    table, candidates = table_of(nodes)
    gpus = node_search.gpus_of(table, needs)
    assert needs.elastic is not None
    fitting = [
        size_candidate
        for size_candidate in needs.elastic.allowed
        if size_candidate * gpus % (sizes[0] * sizes[1]) == 0
    ]
    plan = elastic.plan_sizes(
        table, candidates, needs, effort=SearchEffort(options_max=8, subsets_max=subsets_max)
    )
    singles = {
        size_candidate: planner.plan(
            table,
            candidates,
            of_size(needs, size_candidate),
            effort=SearchEffort(subsets_max=subsets_max),
        )
        for size_candidate in fitting
    }
    assert bool(plan.options) == any(singles.values())
    for option in plan.options:
        size = option.nodes.size
        assert size in fitting and option.groups is not None
        assert violations(nodes, option.nodes.tolist(), of_size(needs, size)) == []
        parts = sum(part.gpu_hours.value for part in option.price.parts)
        assert option.price.total.value == pytest.approx(parts)
        same = elastic.evaluate_nodes(table, candidates, needs, option.nodes)
        assert same.price.total.value == pytest.approx(option.price.total.value)
    if not plan.options:
        return
    best = plan.options[0].price.total.value
    prices = {
        size: elastic.sized_price(
            choices[0].price, needs.elastic, size, gpus, needs.hours
        ).total.value
        for size, choices in singles.items()
        if choices
    }
    assert (
        best <= min(prices.values()) * (1 + 1e-9) + 1e-9
    )  # each of at most four sizes is searched in full
    size = sorted(prices)[of_fitting % len(prices)]
    other = singles[size][0].nodes[[rank for rank in shuffled if rank < size]]
    if not violations(nodes, other.tolist(), of_size(needs, size)):
        cost = elastic.evaluate_nodes(table, candidates, needs, other).price.total.value
        assert cost >= (best - plan.options[0].gap_gpu_hours) * (1 - 1e-9) - 1e-9


def test_each_size_has_its_own_groups() -> None:
    """With 8 nodes pipelines stay within leaves; the price contains the data groups' crossing."""
    curve = scaling_curve(((4, 4.0), (8, 7.9)))
    needs = grouped(8, 8, 2, 0, elastic=ElasticSizes((4, 6, 8), curve), communication_share=0.2)
    table, candidates = table_of(leaves(8))
    plan = elastic.plan_sizes(
        table, candidates, needs, effort=SearchEffort(options_max=8, every_size=True)
    )
    by_size = {item.nodes.size: item for item in plan.options}
    large, small = by_size[8].groups, by_size[4].groups
    assert large is not None and small is not None
    assert (large.layout.data, small.layout.data) == (4, 2)
    assert sum(item.crossing[LEAF] for item in small.kinds) == 0
    crossing = {item.kind: item.crossing[LEAF] for item in large.kinds}
    assert (crossing["pipeline"], crossing["data"]) == (0, 16)
    assert "8 tensor x 2 pipeline x 4 data groups" in by_size[8].price.topology.evidence


def test_sizes_that_groups_do_not_make_up_are_left_out() -> None:
    """A note lists the left-out sizes; if no size is left, the error does."""
    gang = wire.GangRequirements(groups=wire.ParallelGroups(tensor=8, pipeline=2))
    gang.sizes.allowed_nodes.extend([2, 3, 4])
    reply = asked(leaves(4), gang)
    assert [sized.nodes for sized in reply.sizes] == [2, 4]
    assert "sizes left out, which the groups do not make up: 3" in reply.notes
    assert reply.options[0].groups
    gang.groups.pipeline = 7
    with pytest.raises(InvalidArgument, match=r"8 x 7 x 1 .* = 56 GPUs, expected a divisor of .* at least one of .* 2 to 4 nodes of 8"):  # fmt: skip
        asked(leaves(4), gang)


def test_a_gang_is_resized_with_its_groups() -> None:
    """A gang on halves of two leaves, whose pipelines all cross, gains by a move into one leaf."""
    table, candidates = table_of(leaves(8))
    needs = grouped(
        4, 8, 2, 2, pipeline_traffic=9.0, data_traffic=1.0, hours=500.0, communication_share=0.4, restart_hours=0.1,
        checkpoint_interval_hours=1.0, checkpoint_write_hours=0.01, elastic=ElasticSizes((3, 4), scaling_curve(((4, 4.0),))),
    )  # fmt: skip
    current = np.array([0, 1, 4, 5])
    plan = plan_resize(table, candidates, needs, current, ResizeTimes(0.05, nan, True))
    assert {item.choice.nodes.size for item in plan.choices} == {
        4
    }  # 3 nodes cannot hold two stages
    stay, first = plan.stay.choice, plan.choices[0].choice
    assert stay.groups is not None and first.groups is not None
    assert {item.kind: item.crossing[LEAF] for item in stay.groups.kinds}["pipeline"] == 16
    assert sum(item.crossing[LEAF] for item in first.groups.kinds) == 0
    assert plan.choices[0] is not plan.stay and first.price.total.value < stay.price.total.value


@given(
    nodes=fleets(), needs=elastic_gangs(), sizes=st.sampled_from([(8, 2), (2, 2), (16, 1)])
)  # fmt: skip
def test_resizes_with_groups_come_to_rest(
    nodes: list[Node], needs: GangRequirements, sizes: tuple[int, int]
) -> None:
    """Following each answer ends: changes have a valid size for the groups, and a lower price."""
    needs = replace(needs, tensor_parallel=sizes[0], pipeline_parallel=sizes[1], hours=48.0)
    table, candidates = table_of(nodes)
    gpus = node_search.gpus_of(table, needs)
    begun = planner.plan(table, candidates, of_size(needs, needs.nodes))
    if not begun or not needs.groups_make_up(needs.nodes * gpus):
        return
    current, seen = begun[0].nodes, {tuple(sorted(begun[0].nodes.tolist()))}
    for _ in range(12):
        plan = plan_resize(table, candidates, needs, current, ResizeTimes(0.05, nan, True))
        first = plan.choices[0]
        if first is plan.stay:
            return
        current = first.choice.nodes
        assert needs.allows(current.size) and needs.groups_make_up(current.size * gpus)
        assert first.choice.groups is not None
        assert violations(nodes, current.tolist(), of_size(needs, current.size)) == []
        assert first.choice.price.total.value < plan.stay.choice.price.total.value
        key = tuple(sorted(current.tolist()))
        assert key not in seen
        seen.add(key)
    pytest.fail("it never stays")
