"""Plans a gang: selects candidate nodes, searches for the best sets, and prices each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

import numpy as np

from ...ext.placement import domains_spanned, largest_domains, search
from ..counter_deltas import Bytes, Codes, Flags, Floats, Indexes
from .groups import (
    GroupLayout,
    GroupSpans,
    group_spans,
    in_group_order,
    layout_of,
    whole_groups,
)
from .node_table import NodeTable, TreeOrder
from .price import (
    GangPrice,
    LostTime,
    Members,
    hazard_sum_max,
    lost_time,
    price,
    shared_hazard,
)
from .quantity import Quantity, QuantitySource, declared
from .requirements import PRICED_TIERS, GangRequirements, Tier
from .stranding import (
    DEMAND_ASSUMED,
    NODE_GPUS_MAX,
    FreeRoom,
    RequestShape,
    StrandingGrowth,
    room_of_masks,
    stranding_growth,
)

OPTIONS_MAX = 8
#: Minimum of sets of nodes from which the groups of a gang choose.
GROUPED_OPTIONS = 4
#: Work of the search on swaps, in nodes visited; and the number of subsets up to which each subset
#: is tried.
STEPS_MAX, SUBSETS_MAX = 200_000, 4000.0
#: For a larger gang with one requested option the work is a tenth.
LARGE_NODES = 1024
#: Maximum standby nodes.
BACKUPS_MAX = 64


@dataclass(frozen=True, slots=True)
class Candidates:
    """The nodes that may be chosen.

    `gpus`: nodes with some free GPUs -> byte with bit g for the g-th; None: whole nodes. `room`:
    free resources of each node, if more is known. `demand`: expected requests, for stranded GPUs.
    """

    nodes: Flags
    gpus: Mapping[int, int] = field(default_factory=dict[int, int])
    source: str = "request"
    room: FreeRoom | None = None
    demand: tuple[RequestShape, ...] = DEMAND_ASSUMED
    #: priorities of running jobs
    priorities: Mapping[str, int] = field(default_factory=dict[str, int])


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


@dataclass(frozen=True, slots=True)
class Eligible:
    """The nodes of one search, in its order."""

    order: TreeOrder
    rows: Indexes  # positions in the order
    arenas: Codes
    arena_count: int
    spread: Codes
    spread_count: int

    @property
    def nodes(self) -> Indexes:
        """Node indexes of `rows`."""
        return self.order.nodes[self.rows]


def usable(table: NodeTable, candidates: Candidates, needs: GangRequirements) -> Flags:
    """Return candidates that are not excluded, healthy enough, and have enough GPUs."""
    healthy = table.snapshot.columns.score >= np.float32(needs.score_min)
    return np.asarray(
        candidates.nodes & ~table.excluded & healthy & roomy(table, candidates, needs), dtype=bool
    )


def roomy(table: NodeTable, candidates: Candidates, needs: GangRequirements) -> Flags:
    """Return nodes with the requested GPUs free; for whole nodes all of the usual number."""
    gpus = table.facts.gpus
    if needs.gpus_per_node == 0:
        whole = gpus == gpus_of(table, needs)
        whole[list(candidates.gpus)] = False
        return np.asarray(whole, dtype=bool)
    if candidates.room is not None:
        return candidates.room.fits(needs.shape)
    free = gpus.copy()
    for node, mask in candidates.gpus.items():
        free[node] = mask.bit_count()
    return np.asarray(free >= needs.gpus_per_node, dtype=bool)


def gpus_of(table: NodeTable, needs: GangRequirements) -> int:
    """Return the GPUs of a member: as requested, or the most frequent number in the fleet."""
    if needs.gpus_per_node:
        return needs.gpus_per_node
    counts = np.bincount(table.facts.gpus, minlength=2)
    return int(np.argmax(counts[1:])) + 1


def eligible(table: NodeTable, fit: Flags, needs: GangRequirements) -> Eligible:
    """Return the nodes *fit*, with the group that members share and the spread's domains."""
    domains = table.facts.domains
    order = table.order(needs.segment_tier if needs.segment_nodes > 1 else None)
    members = fit.copy()
    arena = np.zeros(len(table), dtype=np.int32)
    arena_count = 1
    if needs.within is not None:
        ids = domains.ids[needs.within.row]
        members &= ids >= 0
        arena, arena_count = ids, max(len(domains.names[needs.within.row]), 1)
    if needs.same_rails:
        members &= domains.rails >= 0
        pairs = arena.astype(np.int64) * max(domains.rails_count, 1) + domains.rails
        pairs_used, numbers = np.unique(pairs[members], return_inverse=True)
        arena, arena_count = np.full(len(table), -1, dtype=np.int32), max(pairs_used.size, 1)
        arena[members] = numbers.reshape(-1)
    if needs.segment_nodes > 1 and needs.segment_tier is not None:
        members &= domains.ids[needs.segment_tier.row] >= 0
    spread, spread_count = np.zeros(len(table), dtype=np.int32), 1
    if needs.spread_over is not None:
        spread = domains.ids[needs.spread_over.row]
        members &= spread >= 0
        spread_count = max(len(domains.names[needs.spread_over.row]), 1)
    rows = np.flatnonzero(members[order.nodes])
    nodes = order.nodes[rows]
    return Eligible(
        order, rows, np.ascontiguousarray(arena[nodes], dtype=np.int32), arena_count,
        np.ascontiguousarray(spread[nodes], dtype=np.int32), spread_count,
    )  # fmt: skip


def find(
    table: NodeTable,
    pool: Eligible,
    needs: GangRequirements,
    lost: LostTime,
    *,
    options_max: int = 1,
    steps_max: int = STEPS_MAX,
    subsets_max: float = SUBSETS_MAX,
    extra_gpu_hours: Floats | None = None,
) -> tuple[float, list[Indexes], list[list[float]]]:
    """Return (bound, node indexes of each choice in rank order, its measures), the cheapest first.

    *extra_gpu_hours*: further cost of each node, by position in *pool*, at least 0. The search
    orders nodes by their hazard plus the hazard of equal or lower cost, so the bound stays valid;
    it prices both exactly.
    """
    if needs.nodes > pool.rows.size:
        return inf, [], []
    hazard, by_node = table.hazard, np.zeros(len(table))
    if extra_gpu_hours is not None:
        fastest = max(float(table.speed[pool.nodes].max()), 1.0)
        per_hazard = lost.gross_gpu_hours * lost.per_interruption_hours.value * fastest
        hazard = hazard.copy()
        hazard[pool.nodes] += extra_gpu_hours / max(per_hazard, 1e-12)
        by_node[pool.nodes] = extra_gpu_hours
        pool = _by_hazard(pool, hazard)
    order, rows, nodes = pool.order, pool.rows, pool.nodes
    costs = np.zeros(nodes.size)
    if extra_gpu_hours is not None:
        costs = by_node[nodes]
    risks = table.hazard[nodes]
    is_whole = rows.size == order.nodes.size and extra_gpu_hours is None
    tree = order.tree if is_whole else np.take(order.tree, rows, axis=1)
    domains = order.domains if is_whole else np.take(order.domains, rows, axis=1)
    segments = needs.segment_nodes > 1 and needs.segment_tier is not None
    bound, members, measures = search(
        hazard[nodes], risks, costs, extra_gpu_hours is not None, table.speed[nodes], tree, domains,
        table.domain_counts, pool.arenas, pool.arena_count, pool.spread, pool.spread_count,
        needs.spread_nodes_max if needs.spread_over is not None else 0, needs.nodes,
        needs.segment_nodes if segments else 1,
        PRICED_TIERS.index(needs.segment_tier) if segments and needs.segment_tier else -1,
        hazard_sum_max(needs, lost.shared_hazard), lost.terms(needs.preferences), options_max, steps_max, subsets_max,
    )  # fmt: skip
    by = sorted(range(len(members)), key=lambda choice: measures[choice].tolist())[
        : options_max or 1
    ]
    return (
        bound,
        [_in_rank_order(pool, members[choice]) for choice in by],
        [measures[choice].tolist() for choice in by],
    )


def _by_hazard(pool: Eligible, hazard: Floats) -> Eligible:
    """Return *pool* ordered by *hazard* within each narrowest group, as the search requires."""
    by = np.lexsort((hazard[pool.nodes], pool.order.groups[pool.rows]))
    return replace(
        pool, rows=pool.rows[by], arenas=np.ascontiguousarray(pool.arenas[by]), spread=np.ascontiguousarray(pool.spread[by])
    )  # fmt: skip


def _in_rank_order(pool: Eligible, members: Codes) -> Indexes:
    """Return the nodes at positions *members*, by group of the tree, then by node index."""
    rows = pool.rows[members]
    count = pool.order.nodes.size
    return np.asarray(np.sort(pool.order.groups[rows] * count + pool.order.nodes[rows]) % count)


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
    """Return the inputs of the price.

    *spans*: from `spans_of`. *groups*: spans of the groups of *nodes*.
    """
    domains, unknown = spans or spans_of(table, nodes)
    columns = np.take(table.numbers, nodes, axis=1)
    measured = int(np.count_nonzero(table.measured[nodes]))
    source = QuantitySource.MEASURED if measured == nodes.size else QuantitySource.ASSUMED
    evidence = f"speed of now measured on {measured} of {nodes.size} nodes"
    if table.workload_source:
        evidence += f"; as a workload feels it: {table.workload_source}"
    hazard, hazard_lower, hazard_upper, speed, speed_lower, speed_upper = columns
    prices = table.gpu_prices
    return Members(
        hazard, hazard_lower, hazard_upper, speed, speed_lower, speed_upper,
        domains, unknown, table.preemption[nodes] if table.preemption.size else table.preemption,
        None if prices is None else prices[:, nodes],
        groups.shares if groups else None, groups.evidence if groups else "", source, evidence,
        f"hazards of {nodes.size} nodes, model {table.snapshot.model}",
    )  # fmt: skip


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


def strands_within(
    table: NodeTable, candidates: Candidates, nodes: Indexes, needs: GangRequirements
) -> StrandingGrowth | None:
    """Return the growth of stranded GPUs by a member of *needs* on each of *nodes*.

    None: without price, or for whole nodes.
    """
    gpus = table.facts.gpus[nodes]
    if not needs.stranded_gpu_rate or not needs.gpus_per_node or not nodes.size:
        return None
    if candidates.room is not None:
        room = candidates.room.of(nodes)
    elif gpus.max() <= NODE_GPUS_MAX and (candidates.gpus or (gpus > needs.gpus_per_node).any()):
        masks = {
            position: candidates.gpus[node]
            for position, node in enumerate(nodes.tolist())
            if node in candidates.gpus
        }
        room = room_of_masks(gpus.astype(np.intp), masks)
    else:
        return None
    return stranding_growth(room, needs.shape, candidates.demand)


def answer(
    table: NodeTable,
    candidates: Candidates,
    pool: Eligible,
    needs: GangRequirements,
    lost: LostTime,
    nodes: Indexes,
    bound: float,
    spans: tuple[Sequence[int], Sequence[int]] | None = None,
    groups: GroupSpans | None = None,
) -> PlacementChoice:
    """Return the priced option for *nodes* in rank order.

    *spans*: from `spans_of`. *groups*: spans of the groups of *nodes*.
    """
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
        within = strands_within(table, candidates, nodes, needs)
        if within is not None and np.isfinite(within.gpus).all():
            grown = float(within.gpus.sum())
            # A whole gang of one leaf does not measure the loss by a share of a node.
            hours = grown * needs.hours * needs.stranded_gpu_rate
            evidence = f"{grown:+.3g} GPUs within nodes that requests to come cannot use; {rate}"
            masks = within.masks
        stranded = declared(hours, evidence)
    cost = price(members, lost, needs.hours, needs.preferences, stranded)
    mean = float(table.hazard[nodes].sum()) * lost.repair_hours.value
    wanted = min(poisson_quantile(mean, 0.95), BACKUPS_MAX)
    return PlacementChoice(
        nodes, cost, tuple(members.domains), tuple(members.unknown),
        gpu_masks(table, candidates, nodes, needs) if masks is None else masks, backups_for(table, rest, nodes, wanted), wanted,
        tuple((tier, before, after) for tier, (before, after) in strands.items()),
        max(0.0, cost.total.value - bound), groups,
    )  # fmt: skip


def extra_of(
    table: NodeTable, candidates: Candidates, pool: Eligible, needs: GangRequirements
) -> tuple[Floats | None, float]:
    """Return each node's further cost in GPU-hours above the minimum, and the minimum.

    The cost is stranded GPUs and money; None if there is none.
    """
    extra = np.zeros(pool.rows.size)
    within = strands_within(table, candidates, pool.nodes, needs)
    if within is not None:
        extra += within.gpus * needs.hours * needs.stranded_gpu_rate
    extra += node_money(table, pool, needs)
    if not extra.any():
        return None, 0.0
    minimum = float(extra.min())
    return extra - minimum, minimum


def node_money(table: NodeTable, pool: Eligible, needs: GangRequirements) -> Floats:
    """Return the price in currency of each node's GPUs in *pool*, in GPU-hours."""
    prices = table.gpu_prices
    if not needs.currency_rate or prices is None:
        return np.zeros(pool.rows.size)
    gpu_hours = gpus_of(table, needs) * needs.hours
    return np.asarray(prices[0, pool.nodes] * (gpu_hours * needs.currency_rate))


def plan(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    communication: Quantity | None = None,
    *,
    options_max: int = 1,
    steps_max: int = STEPS_MAX,
    subsets_max: float = SUBSETS_MAX,
    grouped_options: int = GROUPED_OPTIONS,
) -> list[PlacementChoice]:
    """Return up to *options_max* options, the cheapest first; empty if nothing fits.

    *grouped_options*: sets of nodes from which the groups of a gang choose; 1: only the best set
    for even traffic.
    """
    lost = lost_time(needs, needs.nodes * gpus_of(table, needs), communication)
    pool = eligible(table, usable(table, candidates, needs), needs)
    if options_max == 1 and needs.nodes > LARGE_NODES:
        steps_max //= 10  # a caller of one option for a large gang wants it soon
    layout = layout_of(needs, needs.nodes, gpus_of(table, needs))
    if layout is not None:
        answers = _grouped_answers(
            table, candidates, needs, lost, layout, max(options_max, grouped_options), steps_max, subsets_max
        )  # fmt: skip
        return undominated(table, answers)[:options_max]
    bound, node_sets, measures = _searched(
        table, candidates, pool, needs, lost, options_max, steps_max, subsets_max
    )
    answers = [
        answer(table, candidates, pool, needs, lost, nodes, bound, spans_measured(measure))
        for nodes, measure in zip(node_sets, measures, strict=True)
    ]
    return sorted(answers, key=lambda choice: choice.price.total.value)


def _searched(
    table: NodeTable,
    candidates: Candidates,
    pool: Eligible,
    needs: GangRequirements,
    lost: LostTime,
    options_max: int,
    steps_max: int,
    subsets_max: float,
) -> tuple[float, list[Indexes], list[list[float]]]:
    """Return the result of `find` with the further costs of nodes."""
    extra, minimum = extra_of(table, candidates, pool, needs)
    bound, node_sets, measures = find(
        table, pool, needs, lost,
        options_max=options_max, steps_max=steps_max, subsets_max=subsets_max, extra_gpu_hours=extra,
    )  # fmt: skip
    if extra is not None and needs.survival_min and not node_sets and options_max >= 0:
        # The cheapest sets are too hazardous: use the healthiest.
        _, node_sets, measures = find(
            table, pool, needs, lost, options_max=options_max, steps_max=steps_max, subsets_max=subsets_max,
        )  # fmt: skip
    return bound + minimum * needs.nodes, node_sets, measures


def _grouped_answers(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    lost: LostTime,
    layout: GroupLayout,
    options_max: int,
    steps_max: int,
    subsets_max: float,
) -> list[PlacementChoice]:
    """Return options for a gang with groups, the cheapest first.

    The search assumes even traffic. Besides its sets, try a set for each segmentation in which
    whole pipelines and tensor groups are in one leaf or NVLink domain, and let the groups choose.
    Groups may cross less than even traffic, so the bound is the cost of a gang without any traffic
    across.
    """
    fit = usable(table, candidates, needs)
    pool = eligible(table, fit, needs)
    free = replace(lost, crossing=tuple(declared(0.0, "") for _ in lost.crossing))
    bound, _, _ = _searched(table, candidates, pool, needs, free, -1, 0, 0.0)
    costs = np.array([cost.value for cost in lost.crossing])
    answers: list[PlacementChoice] = []
    wholes = whole_groups(layout, needs) if needs.segment_nodes == 1 and options_max > 1 else []
    for count, tier in [(1, None), *wholes]:
        changed = needs
        if tier is not None:
            changed = replace(needs, segment_nodes=count, segment_tier=tier)
            options_max = 1
        segment_pool = eligible(table, fit, changed)
        _, node_sets, measures = _searched(
            table, candidates, segment_pool, changed, lost, options_max, steps_max, subsets_max
        )
        for nodes, measure in zip(node_sets, measures, strict=True):
            ordered, groups = in_group_order(table, nodes, layout, needs, costs)
            spans = spans_measured(measure)
            answers.append(
                answer(table, candidates, pool, needs, lost, ordered, bound, spans, groups)
            )
    return sorted(answers, key=lambda cost: cost.price.total.value)


def undominated(table: NodeTable, answers: Sequence[PlacementChoice]) -> list[PlacementChoice]:
    """Return *answers*, the cheapest first, without dominated ones (hazard, speed, domains)."""
    kept: list[tuple[tuple[float, ...], PlacementChoice]] = []
    for choice in answers:
        spans = (
            known + missing for known, missing in zip(choice.domains, choice.unknown, strict=True)
        )
        aspects = (float(table.hazard[choice.nodes].sum()), -choice.price.speed.value, *spans)
        if not any(
            all(a <= b for a, b in zip(other, aspects, strict=True)) for other, _ in kept
        ):  # fmt: skip
            kept.append((aspects, choice))
    return [choice for _, choice in kept]


def spans_measured(measure: Sequence[float]) -> tuple[list[int], list[int]]:
    """Return domains and unknown of a measure of the search."""
    count = len(PRICED_TIERS)
    return [int(value) for value in measure[3 : 3 + count]], [
        int(value) for value in measure[3 + count :]
    ]


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
    pool = eligible(table, fit, GangRequirements(needs.nodes))
    bound, _, _ = find(
        table,
        pool,
        GangRequirements(needs.nodes),
        lost,
        options_max=-1,
        steps_max=0,
        subsets_max=0.0,
    )
    bound += extra_of(table, candidates, pool, needs)[1] * needs.nodes
    return answer(table, candidates, pool, needs, lost, nodes, bound if isfinite(bound) else 0.0)


def violations(table: NodeTable, needs: GangRequirements, nodes: Indexes) -> list[str]:
    """Return the requirements in *needs* that the caller's nodes violate, in their rank order."""
    violated: list[str] = []
    domains = table.facts.domains
    if out := int(table.excluded[nodes].sum()):
        violated.append(f"{out} nodes are UNHEALTHY, in maintenance, or gone")
    below = table.snapshot.columns.score[nodes] < np.float32(needs.score_min)
    if below.any():
        violated.append(f"{int(below.sum())} nodes are below the floor of {needs.score_min:.4g}")
    if (table.facts.gpus[nodes] < max(needs.gpus_per_node, 1)).any():
        violated.append(f"a node has fewer than {max(needs.gpus_per_node, 1)} GPUs")
    if needs.within is not None:
        ids = domains.ids[needs.within.row][nodes]
        if (ids < 0).any() or np.unique(ids).size > 1:
            violated.append(f"the nodes are not within one {needs.within.title}")
    if needs.same_rails:
        rails = domains.rails[nodes]
        if (rails < 0).any() or np.unique(rails).size > 1:
            violated.append("the nodes are not of the same rails")
    if needs.segment_nodes > 1 and needs.segment_tier is not None:
        ids = domains.ids[needs.segment_tier.row][nodes]
        apart = nodes.size % needs.segment_nodes or (ids < 0).any()
        if (
            apart
            or (ids.reshape(-1, needs.segment_nodes) != ids[:: needs.segment_nodes, None]).any()
        ):
            violated.append(
                f"segments of {needs.segment_nodes} nodes are not each within one {needs.segment_tier.title}"
            )
    if needs.spread_over is not None:
        ids = domains.ids[needs.spread_over.row][nodes]
        if (ids < 0).any() or np.bincount(ids).max() > needs.spread_nodes_max:
            violated.append(
                f"more than {needs.spread_nodes_max} nodes are in one {needs.spread_over.title}"
            )
    hazard = float(table.hazard[nodes].sum())
    if hazard > hazard_sum_max(needs, shared_hazard(nodes.size)):
        violated.append(
            f"the gang survives {needs.hours:g} h with less than {needs.survival_min:.4g}"
        )
    return violated
