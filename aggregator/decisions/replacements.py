"""Replaces failed members: keeps segments and rails, and avoids suspected domains.

Several failures in one domain may have one cause. A domain is suspected if its number of failures
is unlikely to be chance, given its number of the gang's nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from ...ext.placement import domains_spanned
from ..arrays import Flags, Indexes
from .node_table import NodeTable
from .price import LostTime, crossing_shares
from .requirements import PRICED_TIERS, GangRequirements, Tier

#: A domain is suspected if failures so concentrated in any domain of its tier are less likely.
CHANCE_MAX = 0.05
#: Tiers where one fault takes down several nodes.
SUSPECT_TIERS = (Tier.NVLINK_DOMAIN, Tier.RACK, Tier.LEAF, Tier.POWER_DOMAIN, Tier.COOLING_DOMAIN)
#: Minimum speeds to try, and swaps to try in each place afterwards.
SPEEDS_MAX, SWAPS_MAX = 6, 6


@dataclass(frozen=True, slots=True)
class SuspectDomain:
    """A domain in which more members failed than chance explains."""

    tier: Tier
    name: str
    domain: int
    failed: int
    members: int
    chance: float


@dataclass(frozen=True, slots=True)
class Replacements:
    """Nodes for places, one each; and whether they keep segments and rails."""

    nodes: Indexes
    keeps_segment: Flags
    keeps_rails: Flags


def suspect_domains(table: NodeTable, members: Indexes, failed: Indexes) -> list[SuspectDomain]:
    """Return the suspected domains. *failed*: members that failed or are suspected."""
    suspects: list[SuspectDomain] = []
    total, count = members.size, failed.size
    if count < 2 or count == total:
        return suspects
    for tier in SUSPECT_TIERS:
        ids = table.facts.domains.ids[tier.row]
        domains, sizes = np.unique(ids[members][ids[members] >= 0], return_counts=True)
        for domain, size in zip(domains.tolist(), sizes.tolist(), strict=True):
            inside = int((ids[failed] == domain).sum())
            if inside < 2 or size == total:
                continue
            # P(at least *inside* of the failures are in *domain*), if each set of members is
            # equally likely to fail.
            subsets = sum(
                comb(size, count_inside) * comb(total - size, count - count_inside)
                for count_inside in range(inside, min(size, count) + 1)
            )
            chance = min(1.0, domains.size * subsets / comb(total, count))
            if chance < CHANCE_MAX:
                name = table.facts.domains.names[tier.row][domain]
                suspect = SuspectDomain(tier, name, domain, inside, size, chance)
                if not any(_explains(table, narrower, suspect, failed) for narrower in suspects):
                    suspects.append(suspect)
    return suspects


def _explains(
    table: NodeTable, narrower: SuspectDomain, wider: SuspectDomain, failed: Indexes
) -> bool:
    """Return whether all failures in *wider* are in *narrower*, which has fewer members."""
    ids = table.facts.domains.ids
    inside = failed[ids[wider.tier.row][failed] == wider.domain]
    return narrower.members < wider.members and bool(
        (ids[narrower.tier.row][inside] == narrower.domain).all()
    )


def in_suspect_domain(table: NodeTable, domains: Sequence[SuspectDomain]) -> Flags:
    """Return which nodes are in one of *domains*."""
    result = np.zeros(len(table), dtype=bool)
    for domain in domains:
        result |= table.facts.domains.ids[domain.tier.row] == domain.domain
    return result


def choose_replacements(
    table: NodeTable,
    needs: GangRequirements,
    lost: LostTime,
    current: Indexes,
    places: Indexes,
    pool: Indexes,
) -> Replacements | None:
    """Return nodes of *pool* for *places* of *current*, None if there are too few.

    Segments and rails are kept if *pool* allows it, then the price decides. `within` and a spread
    are always kept.
    """
    pool = _allowed(table, needs, current, places, pool)
    if pool.size < places.size:
        return None
    task = _Task(table, needs, lost, current, places)
    best: tuple[tuple[int, float], Indexes] | None = None
    pool = task.ordered(pool)
    speeds = table.speed[pool]
    for speed_min in _speed_levels(speeds, places.size):
        nodes = task.fill(pool[speeds >= speed_min])
        if nodes is None:
            continue
        key = task.key(nodes)
        if best is None or key < best[0]:
            best = key, nodes
    if best is None:
        return None
    nodes = task.improve(pool, *best)
    return Replacements(nodes, task.keeps_segment(nodes), task.keeps_rails(nodes))


def _allowed(
    table: NodeTable, needs: GangRequirements, current: Indexes, places: Indexes, pool: Indexes
) -> Indexes:
    """Return the nodes of *pool* that keep the gang within its domain."""
    stays = np.delete(current, places)
    is_member = np.zeros(len(table), dtype=bool)
    is_member[stays] = True
    pool = pool[~is_member[pool]]
    if needs.within is None:
        return pool
    ids = table.facts.domains.ids[needs.within.row]
    if stays.size:
        return np.asarray(pool[(ids[pool] == ids[stays[0]]) & (ids[pool] >= 0)])
    return np.asarray(pool[ids[pool] >= 0])


def _speed_levels(speeds: np.typing.NDArray[np.float64], count: int) -> list[float]:
    """Return minimum speeds, from that of the fastest *count* nodes down to that of all."""
    ordered = np.sort(speeds)[::-1]
    indexes = np.unique(np.linspace(count - 1, ordered.size - 1, SPEEDS_MAX).astype(int))
    return sorted(set(ordered[indexes].tolist()), reverse=True)


class _Task:
    """One choice of nodes for places."""

    def __init__(
        self,
        table: NodeTable,
        needs: GangRequirements,
        lost: LostTime,
        current: Indexes,
        places: Indexes,
    ) -> None:
        self._table, self._needs, self._lost = table, needs, lost
        self._current, self._places = current, places
        self._stays = np.delete(current, places)
        domains = table.facts.domains
        self._rails = domains.rails
        self._leaves = domains.ids[Tier.LEAF.row]
        self._leaves_used = set(self._leaves[self._stays].tolist()) - {-1}
        self._rails_used = set(self._rails[self._stays].tolist()) - {-1}
        tier = needs.segment_tier
        self._segments = domains.ids[tier.row] if tier is not None else None
        self._wanted = np.array([self._domain_of(int(place)) for place in places], dtype=np.int32)
        self._terms = lost.terms(needs.preferences)
        self._hazard_stays = float(table.hazard[self._stays].sum())
        self._speed_stays = float(table.speed[self._stays].min(initial=np.inf))
        self._money = None
        if lost.currency_rate and table.gpu_prices is not None:
            rate = lost.gross_gpu_hours / current.size * lost.currency_rate
            self._money = table.gpu_prices[0] * rate
        self._hours_lost, self._gross = lost.per_interruption_hours.value, lost.gross_gpu_hours

    def _domain_of(self, place: int) -> int:
        """Return the domain of the rest of *place*'s segment; -1: no rest, or no segment."""
        if self._segments is None or self._needs.segment_nodes <= 1:
            return -1
        first = place // self._needs.segment_nodes * self._needs.segment_nodes
        places = set(self._places.tolist())
        rest = [
            int(self._segments[self._current[position]])
            for position in range(first, min(first + self._needs.segment_nodes, self._current.size))
            if position not in places
        ]
        return rest[0] if rest and len(set(rest)) == 1 else -1

    def ordered(self, pool: Indexes) -> Indexes:
        """Return *pool* with nodes of rails and leaves in use first, then the healthiest."""
        table = self._table
        other_rails = ~np.isin(self._rails[pool], list(self._rails_used))
        other_leaf = ~np.isin(self._leaves[pool], list(self._leaves_used))
        order = np.lexsort((pool, -table.speed[pool], table.hazard[pool], other_leaf, other_rails))
        return pool[order]

    def fill(self, order: Indexes) -> Indexes | None:
        """Return a node of *order* for each place, in the place's domain if possible."""
        filled = np.full(self._places.size, -1, dtype=np.intp)
        is_left = np.ones(order.size, dtype=bool)
        if self._segments is not None:
            segments = self._segments[order]
            for position, wanted in enumerate(self._wanted.tolist()):
                if wanted >= 0:
                    near = np.flatnonzero((segments == wanted) & is_left)
                    near = near[self._within_spread(filled, order[near])]
                    if near.size:
                        filled[position], is_left[near[0]] = order[near[0]], False
            self._fill_whole_segments(order, segments, filled, is_left)
        rest = np.flatnonzero(filled < 0)
        others = np.flatnonzero(is_left)
        others = others[self._within_spread(filled, order[others])][: rest.size]
        if others.size < rest.size:
            return None
        filled[rest] = order[others]
        return filled if self._holds(filled) else None

    def _fill_whole_segments(
        self, order: Indexes, segments: Indexes, replacements: Indexes, is_left: Flags
    ) -> None:
        """Fill the places of segments that failed as a whole from one domain, if one has room."""
        size = self._needs.segment_nodes
        if size <= 1 or not order.size:
            return
        domains_max = max(int(segments.max()), 0) + 1
        for first in sorted({place // size * size for place in self._places.tolist()}):
            places = np.flatnonzero((self._places >= first) & (self._places < first + size))
            if places.size < size:
                continue
            counts = np.bincount(segments[is_left & (segments >= 0)], minlength=domains_max)
            roomy = np.flatnonzero(
                (segments >= 0) & is_left & (counts[np.maximum(segments, 0)] >= size)
            )
            if roomy.size:
                inside = np.flatnonzero(is_left & (segments == segments[roomy[0]]))[:size]
                replacements[places], is_left[inside] = order[inside], False

    def _within_spread(self, replacements: Indexes, order: Indexes) -> Flags:
        """Return which of *order*, after *replacements* (-1: none), keep within the spread."""
        needs = self._needs
        if needs.spread_over is None or not order.size:
            return np.ones(order.size, dtype=bool)
        ids = self._table.facts.domains.ids[needs.spread_over.row]
        taken = ids[np.concatenate((self._stays, replacements[replacements >= 0]))]
        domains = ids[order]
        counts = np.bincount(taken[taken >= 0], minlength=int(max(domains.max(), 0)) + 1)
        # number of earlier nodes in the order with the same domain
        by_domain = np.argsort(domains, kind="stable")
        grouped = domains[by_domain]
        before = np.empty(order.size, dtype=np.intp)
        before[by_domain] = np.arange(order.size) - np.searchsorted(grouped, grouped)
        room = needs.spread_nodes_max - counts[np.maximum(domains, 0)]
        return np.asarray((domains >= 0) & (before < room))

    def _holds(self, nodes: Indexes) -> bool:
        """Return whether a spread and a common domain hold with *nodes*."""
        needs = self._needs
        members = np.concatenate((self._stays, nodes))
        if needs.within is not None:
            ids = self._table.facts.domains.ids[needs.within.row][members]
            if (ids < 0).any() or (ids != ids[0]).any():
                return False
        if needs.spread_over is None:
            return True
        ids = self._table.facts.domains.ids[needs.spread_over.row][members]
        return bool((ids >= 0).all()) and int(np.bincount(ids).max()) <= needs.spread_nodes_max

    def members(self, nodes: Indexes) -> Indexes:
        """Return the gang with *nodes* in their places."""
        gang = self._current.copy()
        gang[self._places] = nodes
        return gang

    def keeps_segment(self, nodes: Indexes) -> Flags:
        """Return for each place whether its segment is whole."""
        segments, size = self._segments, self._needs.segment_nodes
        if segments is None or size <= 1:
            return np.ones(nodes.size, dtype=bool)
        ids = segments[nodes]
        is_whole = ids == self._wanted
        if (alone := np.flatnonzero(self._wanted < 0)).size:
            members = segments[self.members(nodes)]
            for index in alone.tolist():
                first = int(self._places[index]) // size * size
                whole = members[first : first + size]
                is_whole[index] = bool((whole == whole[0]).all() and whole[0] >= 0)
        return np.asarray(is_whole, dtype=bool)

    def keeps_rails(self, nodes: Indexes) -> Flags:
        """Return for each node whether it has the gang's rails."""
        if not self._rails_used:
            same = self._rails[nodes] == self._rails[nodes[0]]
            return np.asarray(same | (self._rails[nodes] < 0), dtype=bool)
        return np.isin(self._rails[nodes], list(self._rails_used))

    def key(self, nodes: Indexes) -> tuple[int, float]:
        """Return the key to minimize: broken segments and rails, then GPU-hours."""
        broken = int((~self.keeps_segment(nodes)).sum())
        if self._needs.same_rails:
            broken += int((~self.keeps_rails(nodes)).sum())
        members, terms = self.members(nodes), self._terms
        hazard = self._hazard_stays + float(self._table.hazard[nodes].sum())
        speed = min(self._speed_stays, float(self._table.speed[nodes].min()))
        domains, unknown = domains_spanned(self._table.tier_ids, self._table.domain_counts, members)
        longer, extra, levels = 0.0, 0.0, len(PRICED_TIERS)
        for tier in range(levels):
            known, missing = int(domains[tier]), int(unknown[tier])
            longer += crossing_shares(known, missing)[0] * float(terms[3 + tier])
            extra += float(terms[3 + levels + tier]) * max(known + (missing > 0) - 1, 0)
        if self._money is not None:
            extra += float(self._money[nodes].sum())
        share = min(1.0, self._lost.overhead + hazard * self._hours_lost)
        return broken, self._gross * (1.0 - speed / (1.0 + longer) * (1.0 - share)) + extra

    def improve(self, pool: Indexes, key: tuple[int, float], nodes: Indexes) -> Indexes:
        """Return *nodes* after swaps with others of *pool*, until no swap helps."""
        tried = min(SWAPS_MAX + nodes.size, pool.size)
        near = np.argpartition(self._table.hazard[pool], tried - 1)[:tried]
        by_hazard = pool[near[np.argsort(self._table.hazard[pool[near]], kind="stable")]]
        helped = True
        while helped:
            helped = False
            for position in range(min(nodes.size, SWAPS_MAX)):
                for node in by_hazard.tolist():
                    if node in nodes:
                        continue
                    other = nodes.copy()
                    other[position] = node
                    if self._holds(other) and (swapped_key := self.key(other)) < key:
                        key, nodes, helped = swapped_key, other, True
        return nodes


def fallen_groups(count: int, unit: int, failed: Indexes) -> Indexes:
    """Return the places that go with *failed* if groups of *unit* places are whole or gone."""
    unit = max(unit, 1)
    groups = np.unique(failed // unit)
    bounds = [(int(group) * unit, min((int(group) + 1) * unit, count)) for group in groups]
    return np.array([place for low, high in bounds for place in range(low, high)], dtype=np.intp)
