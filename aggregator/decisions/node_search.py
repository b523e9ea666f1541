"""The search for the nodes of a gang: candidates that fit, and the cheapest sets of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple, Self

import numpy as np

from ...ext.placement import search
from ..arrays import Codes, Flags, Floats, Indexes
from . import stranding
from .neighbors import search_costs
from .node_table import NodeTable, TreeOrder
from .price import LostTime, hazard_sum_max, lost_time
from .quantity import Quantity
from .requirements import PRICED_TIERS, GangRequirements

OPTIONS_MAX = 8
#: Supplies are single precision, and demands may equal them.
MEMORY_ROUNDING = 1.001
#: For a larger gang with one requested option the work is a tenth.
LARGE_NODES = 1024


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """Limits of a search.

    `steps_max`: work on swaps, in nodes visited. `subsets_max`: number of subsets up to which each
    subset is tried. `grouped_options`: sets of nodes from which the groups of a gang choose; 1: only
    the best set for even traffic. `every_size`: search each size of a gang with several sizes.
    """

    options_max: int = 1
    steps_max: int = 200_000
    subsets_max: float = 4000.0
    grouped_options: int = 4
    every_size: bool = False

    def for_nodes(self, nodes: int) -> SearchEffort:
        """Return the effort for a gang of *nodes*: a caller of one option for a large gang wants it soon."""
        is_quick = self.options_max == 1 and nodes > LARGE_NODES
        return replace(self, steps_max=self.steps_max // 10) if is_quick else self


#: Search for one option.
ONE_OPTION = SearchEffort()
#: Compute only the bound of the price.
BOUND_ONLY = SearchEffort(options_max=-1, steps_max=0, subsets_max=0.0)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The nodes that may be chosen.

    `gpus`: nodes with some free GPUs -> byte with bit g for the g-th; None: whole nodes. `room`:
    free resources of each node, if more is known. `demand`: expected requests, for stranded GPUs.
    """

    nodes: Flags
    gpus: Mapping[int, int] = field(default_factory=dict)
    source: str = "request"
    room: stranding.FreeRoom | None = None
    demand: tuple[stranding.RequestShape, ...] = stranding.DEMAND_ASSUMED
    #: priorities of running jobs
    priorities: Mapping[str, int] = field(default_factory=dict)


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
    fit = candidates.nodes & ~table.excluded & healthy & roomy(table, candidates, needs)
    return fit & has_memory(table, needs) if needs.memory.is_requested else fit


def has_memory(table: NodeTable, needs: GangRequirements) -> Flags:
    """Return nodes with the requested HBM per GPU and page cache. Unknown memory counts as enough."""
    fits = np.ones(len(table), dtype=bool)
    supplies = table.snapshot.supplies
    for supply, needed in (
        (supplies.hbm_bytes, needs.memory.hbm_bytes),
        (supplies.memory_bytes, needs.memory.page_cache_bytes),
    ):
        known = supply[: len(table)]
        fits[: known.size] &= ~(known * MEMORY_ROUNDING < needed)
    return fits


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
    return free >= needs.gpus_per_node


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
        order,
        rows,
        np.ascontiguousarray(arena[nodes], dtype=np.int32),
        arena_count,
        np.ascontiguousarray(spread[nodes], dtype=np.int32),
        spread_count,
    )


class SearchResult(NamedTuple):
    """Sets of nodes in rank order with their measures, the cheapest first, and a bound of the price."""

    bound: float
    node_sets: list[Indexes]
    measures: list[list[float]]


@dataclass(frozen=True, slots=True)
class Search:
    """The search for the nodes of one gang: its candidates, its requirements and the cost of lost time."""

    table: NodeTable
    candidates: Candidates
    needs: GangRequirements
    lost: LostTime
    pool: Eligible

    @classmethod
    def of(
        cls,
        table: NodeTable,
        candidates: Candidates,
        needs: GangRequirements,
        communication: Quantity | None = None,
    ) -> Self:
        """Return the search among the usable candidates."""
        lost = lost_time(needs, needs.nodes * gpus_of(table, needs), communication)
        pool = eligible(table, usable(table, candidates, needs), needs)
        return cls(table, candidates, needs, lost, pool)

    @property
    def gpus_per_node(self) -> int:
        """The GPUs of a member."""
        return gpus_of(self.table, self.needs)

    def find(self, effort: SearchEffort, extra_gpu_hours: Floats | None = None) -> SearchResult:
        """Return the cheapest sets.

        *extra_gpu_hours*: further cost of each node, by position in the pool, at least 0. The
        search orders nodes by their hazard plus the hazard of equal or lower cost, so the bound
        stays valid; it prices both exactly.
        """
        table, needs, lost, pool = self.table, self.needs, self.lost, self.pool
        if needs.nodes > pool.rows.size:
            return SearchResult(inf, [], [])
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
            hazard_sum_max(needs, lost.shared_hazard), lost.terms(needs.preferences),
            effort.options_max, effort.steps_max, effort.subsets_max,
        )  # fmt: skip
        by_cost = sorted(range(len(members)), key=lambda choice: measures[choice].tolist())
        chosen = by_cost[: effort.options_max or 1]
        return SearchResult(
            bound,
            [_in_rank_order(pool, members[choice]) for choice in chosen],
            [measures[choice].tolist() for choice in chosen],
        )

    def find_with_costs(self, effort: SearchEffort) -> SearchResult:
        """Return the result of `find` with the stranded GPUs and the money of each node."""
        extra, minimum = self.extra_gpu_hours()
        bound, node_sets, measures = self.find(effort, extra)
        if (
            extra is not None
            and self.needs.survival_min
            and not node_sets
            and effort.options_max >= 0
        ):
            # The cheapest sets are too hazardous: use the healthiest.
            _, node_sets, measures = self.find(effort)
        return SearchResult(bound + minimum * self.needs.nodes, node_sets, measures)

    def extra_gpu_hours(self) -> tuple[Floats | None, float]:
        """Return each node's further cost in GPU-hours above the minimum, and the minimum.

        The cost is stranded GPUs, money and the loss of slowed neighbors; None if no node has such a cost.
        """
        needs = self.needs
        extra = np.zeros(self.pool.rows.size)
        within = self.strands_within(self.pool.nodes)
        if within is not None:
            extra += within.gpus * needs.hours * needs.stranded_gpu_rate
        extra += self.node_money()
        if self.table.neighbors:
            extra += search_costs(self.table, self.pool.nodes, needs.nodes, needs.hours)
        if not extra.any():
            return None, 0.0
        minimum = float(extra.min())
        return extra - minimum, minimum

    def node_money(self) -> Floats:
        """Return the price in currency of each node's GPUs in the pool, in GPU-hours."""
        prices = self.table.gpu_prices
        if not self.needs.currency_rate or prices is None:
            return np.zeros(self.pool.rows.size)
        gpu_hours = self.gpus_per_node * self.needs.hours
        return np.asarray(prices[0, self.pool.nodes] * (gpu_hours * self.needs.currency_rate))

    def strands_within(self, nodes: Indexes) -> stranding.StrandingGrowth | None:
        """Return the growth of stranded GPUs by a member on each of *nodes*.

        None if stranded GPUs have no price, or if members take whole nodes.
        """
        candidates, needs = self.candidates, self.needs
        gpus = self.table.facts.gpus[nodes]
        if not needs.stranded_gpu_rate or not needs.gpus_per_node or not nodes.size:
            return None
        if candidates.room is not None:
            room = candidates.room.of(nodes)
        elif gpus.max() <= stranding.NODE_GPUS_MAX and (
            candidates.gpus or (gpus > needs.gpus_per_node).any()
        ):
            masks = {
                position: candidates.gpus[node]
                for position, node in enumerate(nodes.tolist())
                if node in candidates.gpus
            }
            room = stranding.room_of_masks(gpus.astype(np.intp), masks)
        else:
            return None
        return stranding.stranding_growth(room, needs.shape, candidates.demand)


def _by_hazard(pool: Eligible, hazard: Floats) -> Eligible:
    """Return *pool* ordered by *hazard* within each narrowest group, as the search requires."""
    by = np.lexsort((hazard[pool.nodes], pool.order.groups[pool.rows]))
    return replace(
        pool,
        rows=pool.rows[by],
        arenas=np.ascontiguousarray(pool.arenas[by]),
        spread=np.ascontiguousarray(pool.spread[by]),
    )


def _in_rank_order(pool: Eligible, members: Codes) -> Indexes:
    """Return the nodes at positions *members*, by group of the tree, then by node index."""
    rows = pool.rows[members]
    count = pool.order.nodes.size
    return np.asarray(np.sort(pool.order.groups[rows] * count + pool.order.nodes[rows]) % count)
