"""Plans a gang: selects candidate nodes, searches for the best sets, and prices each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from ...contract.text import counted
from ...ext.placement import domains_spanned, largest_domains
from ..arrays import Bytes, Indexes
from .groups import GroupLayout, GroupSpans, group_spans, in_group_order, layout_of, whole_groups
from .neighbors import lost_by_neighbors, shared_evidence, speed_alone
from .node_search import (
    BOUND_ONLY,
    ONE_OPTION,
    Candidates,
    Search,
    SearchEffort,
    eligible,
    gpus_of,
    usable,
)
from .node_table import NodeTable
from .price import GangPrice, Members, lost_time, price
from .quantity import Quantity, QuantitySource, declared
from .requirements import PRICED_TIERS, GangRequirements, Tier

#: Maximum standby nodes.
BACKUPS_MAX = 64


@dataclass(frozen=True, slots=True)
class PlacementChoice:
    """An option. `nodes` in rank order; `gpu_masks` a byte per node, empty for whole nodes."""

    nodes: Indexes
    price: GangPrice
    domains: tuple[int, ...]
    unknown: tuple[int, ...]
    gpu_masks: Bytes
    backups: Indexes
    backups_wanted: int
    strands: tuple[
        tuple[Tier | None, int, int], ...
    ]  #: tier (None: anywhere), nodes before and after
    gap_gpu_hours: float
    groups: GroupSpans | None = None


def spans_of(table: NodeTable, nodes: Indexes) -> tuple[list[int], list[int]]:
    """Return the domains of each priced tier that *nodes* span, and nodes without one."""
    domains, unknown = domains_spanned(table.tier_ids, table.domain_counts, nodes)
    return domains.tolist(), unknown.tolist()


def members_of(
    table: NodeTable,
    nodes: Indexes,
    spans: tuple[Sequence[int], Sequence[int]] | None = None,
    groups: GroupSpans | None = None,
) -> Members:
    """Return the inputs of the price. *spans*: from `spans_of`. *groups*: the groups' spans."""
    domains, unknown = spans or spans_of(table, nodes)
    columns = np.take(table.numbers, nodes, axis=1)
    measured = int(np.count_nonzero(table.measured[nodes]))
    source = QuantitySource.MEASURED if measured == nodes.size else QuantitySource.ASSUMED
    evidence = f"speed of now measured on {measured} of {counted(nodes.size, 'node')}"
    if table.workload_source:
        evidence += f"; as a workload feels it: {table.workload_source}"
    if table.transfers is not None:
        if about := table.transfers.evidence(nodes, table.snapshot.names):
            evidence += f"; {about}"
        if table.transfers.is_declared:
            source = QuantitySource.ASSUMED
    hazard, hazard_lower, hazard_upper, speed, speed_lower, speed_upper = columns
    prices = table.gpu_prices
    beside = shared_evidence(table, nodes)
    return Members(
        hazard=hazard,
        hazard_lower=hazard_lower,
        hazard_upper=hazard_upper,
        speed=speed,
        speed_lower=speed_lower,
        speed_upper=speed_upper,
        domains=domains,
        unknown=unknown,
        preemption=table.preemption[nodes] if table.preemption.size else table.preemption,
        gpu_prices=None if prices is None else prices[:, nodes],
        crossing_shares=groups.shares if groups else None,
        crossing_evidence=groups.evidence if groups else "",
        speed_source=source,
        speed_evidence=evidence,
        speed_alone=speed_alone(table, nodes) if beside else None,
        neighbor_evidence=beside,
        hazard_evidence=f"hazards of {counted(nodes.size, 'node')}, model {table.snapshot.model}",
    )


def poisson_quantile(mean: float, share: float) -> int:
    """Return the least count that is exceeded with probability 1 - *share* at most."""
    from math import exp

    if mean > 700.0:  # exp would be 0: use the normal distribution
        return int(mean + 1.645 * mean**0.5 + 0.5)
    count, term = 0, exp(-mean)
    total = term
    while total < share and count < 10_000:
        count += 1
        term *= mean / count
        total += term
    return count


def backups_for(table: NodeTable, rest: Indexes, nodes: Indexes, wanted: int) -> Indexes:
    """Return up to *wanted* standby nodes of *rest*: in leaves of *nodes*, then healthiest."""
    if not wanted or not rest.size:
        return np.zeros(0, dtype=np.intp)
    leaves = table.facts.domains.ids[Tier.LEAF.row]
    used = np.zeros(len(table.facts.domains.names[Tier.LEAF.row]) + 1, dtype=bool)
    used[leaves[nodes] + 1] = True
    used[0] = False  # nodes of unknown leaves do not share a leaf
    hazards = table.hazard[rest]
    hazards = np.where(used[leaves[rest] + 1], hazards, hazards + 1e6)
    if wanted < rest.size:
        near = np.flatnonzero(hazards <= np.partition(hazards, wanted - 1)[wanted - 1])
        rest, hazards = rest[near], hazards[near]
    return np.asarray(rest[np.argsort(hazards, kind="stable")[:wanted]])


def strands_of(
    table: NodeTable, free: Indexes, nodes: Indexes
) -> dict[Tier | None, tuple[int, int]]:
    """Return the most free nodes of a domain by tier (None: anywhere), before and after."""
    result: dict[Tier | None, tuple[int, int]] = {None: (free.size, free.size - nodes.size)}
    counts = table.domain_counts
    for tier, before, after, count in zip(
        PRICED_TIERS, *largest_domains(table.tier_ids, counts, free, nodes), counts, strict=True
    ):
        if count:
            result[tier] = int(before), int(after)
    return result


def gpu_masks(
    table: NodeTable, candidates: Candidates, nodes: Indexes, needs: GangRequirements
) -> Bytes:
    """Return the GPUs of each node, as a byte; empty for whole nodes. Prefer an aligned group."""
    count = gpus_of(table, needs)
    gpus = table.facts.gpus[nodes]
    if needs.gpus_per_node == 0 or ((gpus == count).all() and not candidates.gpus):
        return np.zeros(0, dtype=np.uint8)
    masks = np.zeros(nodes.size, dtype=np.uint8)
    for position, node in enumerate(nodes.tolist()):
        free = candidates.gpus.get(node, (1 << min(int(gpus[position]), 8)) - 1)
        block = (1 << count) - 1
        starts = range(0, 8 - count + 1, count if count & (count - 1) == 0 else 1)
        aligned = [block << start for start in starts if free & (block << start) == block << start]
        single = 0
        for bit in range(8):
            if free >> bit & 1 and single.bit_count() < count:
                single |= 1 << bit
        masks[position] = aligned[0] if aligned else single
    return masks


def priced_choice(
    search: Search,
    nodes: Indexes,
    bound: float,
    spans: tuple[Sequence[int], Sequence[int]] | None = None,
    groups: GroupSpans | None = None,
) -> PlacementChoice:
    """Return the priced option for *nodes* in rank order. *spans*: the result of `spans_of`."""
    table, pool, needs, lost = search.table, search.pool, search.needs, search.lost
    layout = layout_of(needs, nodes.size, gpus_of(table, needs))
    if groups is None and layout is not None:
        groups = group_spans(table, nodes, layout, needs)
    members = members_of(table, nodes, spans, groups)
    eligible_nodes = pool.nodes
    is_chosen = np.zeros(len(table), dtype=bool)
    is_chosen[nodes] = True
    rest = eligible_nodes[~is_chosen[eligible_nodes]]
    if pool.arena_count > 1:
        is_first = eligible_nodes == nodes[0]
        rest = eligible_nodes[
            ~is_chosen[eligible_nodes] & (pool.arenas == pool.arenas[is_first].max(initial=-1))
        ]
    strands = strands_of(table, eligible_nodes, nodes)
    stranded, masks = None, None
    if needs.stranded_gpu_rate:
        # The loss of a gang within one leaf: the tier below which crossing costs least.
        before, after = strands.get(Tier.LEAF, strands[None])
        hours = (before - after) * gpus_of(table, needs) * needs.hours * needs.stranded_gpu_rate
        rate = needs.rate_text("stranded_gpu_rate")
        evidence = f"the largest gang of one leaf is {before - after} nodes smaller; {rate}"
        within = search.strands_within(nodes)
        if within is not None and np.isfinite(within.gpus).all():
            grown = float(within.gpus.sum())
            # A whole gang of one leaf does not measure the loss by a share of a node.
            hours = grown * needs.hours * needs.stranded_gpu_rate
            evidence = f"{grown:+.3g} GPUs within nodes that requests to come cannot use; {rate}"
            masks = within.masks
        stranded = declared(hours, evidence)
    members = replace(members, neighbor_losses=lost_by_neighbors(table, nodes, needs.hours))
    cost = price(members, lost, needs.hours, needs.preferences, stranded)
    mean = float(table.hazard[nodes].sum()) * lost.repair_hours.value
    wanted = min(poisson_quantile(mean, 0.95), BACKUPS_MAX)
    return PlacementChoice(
        nodes=nodes,
        price=cost,
        domains=tuple(members.domains),
        unknown=tuple(members.unknown),
        gpu_masks=gpu_masks(table, search.candidates, nodes, needs) if masks is None else masks,
        backups=backups_for(table, rest, nodes, wanted),
        backups_wanted=wanted,
        strands=tuple((tier, before, after) for tier, (before, after) in strands.items()),
        gap_gpu_hours=max(0.0, cost.total.value - bound),
        groups=groups,
    )


def plan(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    communication: Quantity | None = None,
    effort: SearchEffort = ONE_OPTION,
) -> list[PlacementChoice]:
    """Return options, the cheapest first; empty if nothing fits."""
    search = Search.of(table, candidates, needs, communication)
    effort = effort.for_nodes(needs.nodes)
    layout = layout_of(needs, needs.nodes, search.gpus_per_node)
    if layout is not None:
        return undominated(table, _grouped_choices(search, layout, effort))[: effort.options_max]
    result = search.find_with_costs(effort)
    choices = [
        priced_choice(search, nodes, result.bound, spans_measured(measure))
        for nodes, measure in zip(result.node_sets, result.measures, strict=True)
    ]
    return sorted(choices, key=lambda choice: choice.price.total.value)


def _grouped_choices(
    search: Search, layout: GroupLayout, effort: SearchEffort
) -> list[PlacementChoice]:
    """Return options for a gang with groups, the cheapest first.

    The search assumes even traffic. Besides its sets, try a set for each segmentation in which
    whole pipelines and tensor groups are in one leaf or NVLink domain, and let the groups choose.
    Groups may cross less than even traffic, so the bound is the cost of a gang without any traffic
    across.
    """
    table, needs, lost = search.table, search.needs, search.lost
    fit = usable(table, search.candidates, needs)
    free = replace(lost, crossing=tuple(declared(0.0, "") for _ in lost.crossing))
    bound = replace(search, lost=free).find_with_costs(BOUND_ONLY).bound
    costs = np.array([cost.value for cost in lost.crossing])
    choices: list[PlacementChoice] = []
    options_max = max(effort.options_max, effort.grouped_options)
    wholes = whole_groups(layout, needs) if needs.segment_nodes == 1 and options_max > 1 else []
    for count, tier in [(1, None), *wholes]:
        changed = needs
        if tier is not None:
            changed = replace(needs, segment_nodes=count, segment_tier=tier)
            options_max = 1
        segmented = replace(search, needs=changed, pool=eligible(table, fit, changed))
        result = segmented.find_with_costs(replace(effort, options_max=options_max))
        for nodes, measure in zip(result.node_sets, result.measures, strict=True):
            ordered, groups = in_group_order(table, nodes, layout, needs, costs)
            spans = spans_measured(measure)
            choices.append(priced_choice(search, ordered, bound, spans, groups))
    return sorted(choices, key=lambda choice: choice.price.total.value)


def undominated(table: NodeTable, answers: Sequence[PlacementChoice]) -> list[PlacementChoice]:
    """Return *answers*, the cheapest first, without dominated ones (hazard, speed, domains)."""
    undominated_choices: list[tuple[tuple[float, ...], PlacementChoice]] = []
    for choice in answers:
        spans = (
            known + missing for known, missing in zip(choice.domains, choice.unknown, strict=True)
        )
        aspects = (float(table.hazard[choice.nodes].sum()), -choice.price.speed.value, *spans)
        if not any(
            all(a <= b for a, b in zip(other, aspects, strict=True))
            for other, _ in undominated_choices
        ):
            undominated_choices.append((aspects, choice))
    return [choice for _, choice in undominated_choices]


def spans_measured(measure: Sequence[float]) -> tuple[list[int], list[int]]:
    """Return domains and unknown of a measure of the search."""
    count = len(PRICED_TIERS)
    return [int(v) for v in measure[3 : 3 + count]], [int(v) for v in measure[3 + count :]]


def evaluate_nodes(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    nodes: Indexes,
    communication: Quantity | None = None,
) -> PlacementChoice:
    """Return the priced option for the caller's nodes in its order, with the common bound."""
    needs = replace(needs, nodes=int(nodes.size))
    lost = lost_time(needs, needs.nodes * gpus_of(table, needs), communication)
    fit = usable(table, candidates, replace(needs, score_min=0.0))
    fit[nodes] = True
    anywhere = GangRequirements(needs.nodes)
    search = Search(table, candidates, needs, lost, eligible(table, fit, anywhere))
    bound = replace(search, needs=anywhere).find(BOUND_ONLY).bound
    bound += search.extra_gpu_hours()[1] * needs.nodes
    return priced_choice(search, nodes, bound if isfinite(bound) else 0.0)
