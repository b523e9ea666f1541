"""Gangs that can run at several sizes: chooses the size and its nodes, with the price.

Prices of sizes are compared over the same hours and against the GPUs of the largest requested size:

  useful = GPUs x hours x v x (1 - lost) x scaling efficiency
  price  = GPUs x hours - useful + GPUs of the largest size that are not placed x hours x (1 - worth of a free GPU)

A gang therefore grows while the work of one more GPU is worth more than that GPU left free. If only
the best plan is requested, not every size is searched: a bound for each size shows which cannot be
better. The bound combines the fastest nodes, the smallest hazards and the fewest domains, each
taken separately. With tensor, pipeline and data groups each size has its own groups; their traffic
need not cross, so the bound leaves crossing out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite, nan
from operator import le

import numpy as np

from ...contract.text import counted
from ..arrays import Floats, Indexes
from . import node_search, planner
from .node_search import ONE_OPTION, Candidates, Eligible, Search, SearchEffort
from .node_table import NodeTable
from .planner import PlacementChoice
from .price import ROUNDING, GangPrice, LostTime, PricePart, hazard_sum_max, lost_time
from .quantity import Quantity, declared, weakest
from .requirements import PRICED_TIERS, GangRequirements
from .scaling import ElasticSizes

#: Maximum hours of work; longer work is reported as this.
WORK_HOURS_MAX = 1e6
#: Sizes of a gang with groups that are searched in full, those with the cheapest first set of
#: nodes; other sizes get one set.
GROUPED_SIZES = 4


@dataclass(frozen=True, slots=True)
class SizePrice:
    """A size with its bound. `gpu_hours`: infinite if no plan fits, NaN if none was searched."""

    nodes: int
    gpu_hours_min: float
    gpu_hours: float = nan


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """The options over all sizes, the cheapest first, and each size."""

    options: list[PlacementChoice]
    sizes: tuple[SizePrice, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """Nodes of one size, in rank order. `value`: the price without stranded GPUs."""

    size: int
    value: float
    nodes: Indexes
    measure: list[float]

    @property
    def aspects(self) -> tuple[float, ...]:
        """Aspects that may dominate: price, hazard, speed, domains of each tier."""
        _, hazard, speed, *spans = self.measure
        return (self.value, hazard, -speed, *spans)


class _SizeTerms:
    """The additions of each size to the price of its nodes, in GPU-hours."""

    def __init__(
        self, table: NodeTable, needs: GangRequirements, communication: Quantity | None
    ) -> None:
        elastic = needs.elastic
        assert elastic is not None
        self.needs, self.elastic = needs, elastic
        self.gpus = node_search.gpus_of(table, needs)
        self._lost = lost_time(replace(needs, nodes=2), 2 * self.gpus, communication)
        self._lost_of_one = lost_time(replace(needs, nodes=1), self.gpus, communication)

    def gross(self, nodes: int) -> float:
        """Return GPUs x hours."""
        return nodes * self.gpus * self.needs.hours

    def lost(self, nodes: int, share: float = 1.0) -> LostTime:
        """Return the request's terms of the price; *share* of GPUs x hours counts."""
        base = self._lost_of_one if nodes == 1 else self._lost
        return replace(base, gross_gpu_hours=self.gross(nodes) * share)

    def added(self, nodes: int) -> float:
        """Return the cost of the size with any nodes."""
        efficiency = self.elastic.efficiency(nodes).value
        unplaced = self.elastic.unplaced_gpu_hours(nodes, self.gpus, self.needs.hours)
        return self.gross(nodes) * (1.0 - efficiency) + unplaced


def sized_price(
    price: GangPrice, elastic: ElasticSizes, nodes: int, gpus: int, hours: float
) -> GangPrice:
    """Return the price of *nodes* nodes as one of several sizes. The parts sum to the total."""
    gross, efficiency, useful = nodes * gpus * hours, elastic.efficiency(nodes), price.goodput
    goodput = Quantity(
        useful.value * efficiency.value,
        useful.lower * efficiency.lower,
        useful.upper * efficiency.upper,
        weakest((useful.source, efficiency.source)),
        f"{useful.evidence}; {efficiency.evidence}",
    )
    scaling = Quantity(
        gross * useful.value * (1.0 - efficiency.value),
        gross * useful.value * (1.0 - efficiency.upper),
        gross * useful.value * (1.0 - efficiency.lower),
        efficiency.source,
        efficiency.evidence,
    )
    count = (elastic.allowed[-1] - nodes) * gpus
    worth = f"a free GPU-hour is worth {elastic.free_gpu_value:g}"
    evidence = f"{counted(count, 'GPU')} fewer than the largest size; {worth}"
    unplaced = declared(elastic.unplaced_gpu_hours(nodes, gpus, hours), evidence)
    parts = (*price.parts, PricePart("scaling", scaling), PricePart("GPUs not placed", unplaced))
    value = sum(part.gpu_hours.value for part in parts)
    extra = value - gross * (1.0 - goodput.value)
    total = Quantity(
        value,
        gross * (1.0 - goodput.upper) + extra - (price.beside.value - price.beside.lower),
        gross * (1.0 - goodput.lower) + extra + (price.beside.upper - price.beside.value),
        goodput.source,
        goodput.evidence,
    )
    return replace(price, total=total, parts=parts, goodput=goodput)


def work_hours(elastic: ElasticSizes, price: GangPrice, nodes: int, hours: float) -> Quantity:
    """Return the hours of work that takes *hours* at `length_nodes`, by a sized *price*."""
    ideal = elastic.ideal_hours(nodes, hours)
    value, upper, lower = (
        min(ideal / max(share, 1e-12), WORK_HOURS_MAX)
        for share in (price.goodput.value, price.goodput.lower, price.goodput.upper)
    )
    return Quantity(value, lower, upper, price.goodput.source, price.goodput.evidence)


def _least_domains(counts: Floats, needed: Floats) -> Floats:
    """Return the fewest domains with *counts* nodes that hold *needed*, at least 1."""
    reached = np.cumsum(np.sort(counts)[::-1])
    domains = np.searchsorted(reached, needed, side="left") + 1
    return np.asarray(np.clip(domains, 1, max(counts.size, 1)), dtype=np.float64)


def size_bounds(table: NodeTable, pool: Eligible, terms: _SizeTerms) -> Floats:
    """Return the lower bound of the price of each size; infinite if nothing fits."""
    sizes = np.array(terms.elastic.allowed)
    bounds = np.full(sizes.size, inf)
    nodes_of_pool = pool.nodes
    largest = nodes_of_pool.size
    if pool.arena_count > 1 and nodes_of_pool.size:
        largest = int(np.bincount(pool.arenas[pool.arenas >= 0], minlength=1).max())
    fits = sizes <= largest
    if terms.needs.has_groups:
        fits &= [terms.needs.groups_make_up(nodes * terms.gpus) for nodes in sizes.tolist()]
    if not fits.any():
        return bounds
    fitting = sizes[fits]
    count = int(fitting[-1])
    hazard = np.cumsum(np.sort(np.partition(table.hazard[nodes_of_pool], count - 1)[:count]))
    hazard = hazard[fitting - 1]
    speed = -np.sort(np.partition(-table.speed[nodes_of_pool], count - 1)[:count])[fitting - 1]
    longer, preference = np.zeros(fitting.size), np.zeros(fitting.size)
    share, costs = terms.lost(2).communication.value, terms.lost(2).crossing
    for row, tier in enumerate(PRICED_TIERS):
        crossing, rate = share * costs[row].value, terms.needs.preferences.get(tier, 0.0)
        if terms.needs.has_groups:
            crossing = 0.0
        if not (crossing or rate) or not table.domain_counts[row]:
            continue
        counts = np.bincount(table.tier_ids[row][nodes_of_pool] + 1, minlength=1)
        domains = _least_domains(counts[1:].astype(np.float64), fitting - counts[0])
        longer += crossing * (1.0 - 1.0 / domains)
        preference += rate * (domains - 1.0)
    for place, nodes, total, fastest, slower, preferred in zip(
        np.flatnonzero(fits).tolist(),  # not a prefix: with groups, 4 nodes may fit while 6 do not
        fitting.tolist(),
        hazard.tolist(),
        speed.tolist(),
        longer.tolist(),
        preference.tolist(),
        strict=True,
    ):
        lost = terms.lost(nodes)
        if total * (1.0 - ROUNDING) > hazard_sum_max(terms.needs, lost.shared_hazard):
            continue
        overhead = min(1.0, lost.overhead + lost.per_interruption_hours.value * total)
        useful = fastest / (1.0 + slower) * (1.0 - overhead)
        efficiency = terms.elastic.efficiency(nodes).value
        cost = lost.gross_gpu_hours * efficiency * (1.0 - useful) + preferred + terms.added(nodes)
        bounds[place] = cost - ROUNDING * max(lost.gross_gpu_hours, 1.0)
    return bounds


def plan_sizes(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    communication: Quantity | None = None,
    effort: SearchEffort = ONE_OPTION,
) -> ElasticPlan:
    """Return the options over all sizes of *needs*, the cheapest first."""
    terms = _SizeTerms(table, needs, communication)
    search = Search.of(table, candidates, needs, communication)
    money = search.node_money()
    minimum = float(money.min(initial=inf)) if money.any() else 0.0
    bounds = size_bounds(table, search.pool, terms)
    bounds += minimum * np.array(terms.elastic.allowed)
    if needs.has_groups:
        return _plan_grouped(search, terms, bounds, communication, effort)
    sizes = terms.elastic.allowed
    options_max = effort.options_max
    values = np.full(len(sizes), nan)
    results: list[_Found] = []

    def searched(nodes: int, count: int) -> tuple[float, list[_Found]]:
        efficiency = terms.elastic.efficiency(nodes).value
        lost = terms.lost(nodes, efficiency)
        sized = replace(search, needs=replace(needs, nodes=nodes), lost=lost)
        sized_effort = replace(effort, options_max=count).for_nodes(nodes)
        extra = money - minimum if money.any() else None
        bound, chosen, measures = sized.find(sized_effort, extra)
        added = terms.added(nodes) + minimum * nodes
        return bound + added, [
            _Found(nodes, measure[0] + added, nodes_in_order, measure)
            for nodes_in_order, measure in zip(chosen, measures, strict=True)
        ]

    best = inf
    for place in sorted(range(len(sizes)), key=lambda index: (bounds[index], sizes[index])):
        if not isfinite(bounds[place]):
            values[place] = inf
            continue
        if bounds[place] >= best and options_max == 1 and not effort.every_size:
            continue
        bound, size_results = searched(sizes[place], 1)
        value = size_results[0].value if size_results else inf
        bounds[place] = max(bounds[place], min(bound, value))
        values[place] = value
        best = min(best, float(value))
        results += size_results
    results.sort(key=lambda result: (result.value, result.size))
    if options_max > 1 and results:
        _, more = searched(results[0].size, options_max)
        results = [*more, *(r for r in results if r.size != results[0].size)]
        results.sort(key=lambda result: (result.value, result.size))
    shown, bound_min = _undominated(results)[:options_max], float(bounds.min())
    answers = [_choice(search, terms, result, bound_min) for result in shown]
    return ElasticPlan(
        sorted(answers, key=lambda choice: choice.price.total.value),
        tuple(map(SizePrice, sizes, bounds.tolist(), values.tolist())),
    )


def _plan_grouped(
    search: Search,
    terms: _SizeTerms,
    bounds: Floats,
    communication: Quantity | None,
    effort: SearchEffort,
) -> ElasticPlan:
    """Return the result of `plan_sizes` for a gang with groups.

    Search one set of nodes per size, then more sets of the cheapest sizes.
    """
    table, candidates, needs = search.table, search.candidates, search.needs
    options_max, grouped_options = effort.options_max, effort.grouped_options
    sizes = terms.elastic.allowed
    choices_by_size: dict[int, list[PlacementChoice]] = {}

    def searched(nodes: int, count: int, sets: int) -> list[PlacementChoice]:
        one_size = replace(needs, nodes=nodes, elastic=None)
        sized_effort = replace(effort, options_max=count, grouped_options=sets)
        choices = planner.plan(table, candidates, one_size, communication, sized_effort)
        price = partial(
            sized_price, elastic=terms.elastic, nodes=nodes, gpus=terms.gpus, hours=needs.hours
        )
        return [replace(choice, price=price(choice.price)) for choice in choices]

    def cost(nodes: int) -> float:
        return min((choice.price.total.value for choice in choices_by_size[nodes]), default=inf)

    def worth(place: int) -> bool:
        best = min(map(cost, choices_by_size), default=inf)
        is_tried = bounds[place] < best or options_max > 1 or effort.every_size
        return isfinite(bounds[place]) and is_tried

    for place in sorted(range(len(sizes)), key=lambda index: (bounds[index], sizes[index])):
        if worth(place):
            choices_by_size[sizes[place]] = searched(sizes[place], 1, 1)
    cheapest = sorted(choices_by_size, key=lambda size: (cost(size), size))
    for nodes in cheapest[: GROUPED_SIZES if effort.steps_max else 0]:
        if worth(sizes.index(nodes)):
            choices_by_size[nodes] += searched(nodes, options_max, grouped_options)
    minimum = float(bounds.min(initial=inf))
    answers = sorted(
        (choice for choices in choices_by_size.values() for choice in choices),
        key=lambda choice: (choice.price.total.value, choice.nodes.size),
    )
    options = [
        replace(choice, gap_gpu_hours=max(0.0, choice.price.total.value - minimum))
        for choice in planner.undominated(table, answers)[:options_max]
    ]
    values = [
        cost(nodes) if nodes in choices_by_size else nan if isfinite(bound) else inf
        for nodes, bound in zip(sizes, bounds.tolist(), strict=True)
    ]
    return ElasticPlan(options, tuple(map(SizePrice, sizes, bounds.tolist(), values)))


def _undominated(candidates: Sequence[_Found]) -> list[_Found]:
    """Return the *candidates* that no other of equal or lower cost equals in every aspect."""
    undominated: list[_Found] = []
    for candidate in candidates:
        if not any(all(map(le, other.aspects, candidate.aspects)) for other in undominated):
            undominated.append(candidate)
    return undominated


def _choice(search: Search, terms: _SizeTerms, node_set: _Found, bound: float) -> PlacementChoice:
    needs = replace(terms.needs, nodes=node_set.size)
    sized = replace(search, needs=needs, lost=terms.lost(node_set.size))
    spans = planner.spans_measured(node_set.measure)
    choice = planner.priced_choice(sized, node_set.nodes, 0.0, spans)
    price = sized_price(choice.price, terms.elastic, node_set.size, terms.gpus, needs.hours)
    return replace(choice, price=price, gap_gpu_hours=max(0.0, price.total.value - bound))


def plan(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    communication: Quantity | None = None,
    effort: SearchEffort = ONE_OPTION,
) -> list[PlacementChoice]:
    """Return options for any number of sizes, the cheapest first."""
    if needs.elastic is None:
        return planner.plan(table, candidates, needs, communication, effort)
    return plan_sizes(table, candidates, needs, communication, effort).options


def evaluate_nodes(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    nodes: Indexes,
    communication: Quantity | None = None,
) -> PlacementChoice:
    """Return the priced option for the caller's nodes, as one of the sizes if there are several."""
    choice = planner.evaluate_nodes(table, candidates, needs, nodes, communication)
    if needs.elastic is None:
        return choice
    gpus = node_search.gpus_of(table, needs)
    price = sized_price(choice.price, needs.elastic, nodes.size, gpus, needs.hours)
    return replace(choice, price=price)
