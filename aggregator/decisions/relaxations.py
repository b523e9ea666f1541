"""Changes that make a gang fit: the smallest change of each constraint, and its cost.

Each is tried on the whole request. The price states if others must agree to a change (a job gives
up nodes) or if it takes time (repairs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import comb, exp, floor, isnan, log, log10
from typing import Any

import numpy as np

from ...contract.text import counted
from ..arrays import Flags, Floats, Indexes
from . import elastic, node_search
from .groups import regrouped
from .node_search import Candidates, Search, SearchEffort, eligible, usable
from .node_table import NodeTable
from .price import REPAIR_HOURS, GangPrice, PricePart, lost_time
from .quantity import Quantity, QuantitySource, assumed, declared
from .requirements import NO_MEMORY, PRICED_TIERS, GangRequirements

CANDIDATES, STATES = "candidates", "node states"
NODES, GPUS = "gang.nodes", "gang.gpus_per_node"
FLOOR, SURVIVAL = "gang.node_score_min", "gang.survival_min"
WITHIN, SEGMENTS = "gang.invariants.within", "gang.invariants.segment_nodes"
RAILS, SPREAD = "gang.invariants.same_rails", "gang.invariants.spread_nodes_max"
MEMORY = "gang.memory"
#: The constraint whose change hurts most comes first. If two sets conflict, the set with the
#: earlier constraint is reported.
CONSTRAINTS = (
    MEMORY, NODES, CANDIDATES, STATES, GPUS, WITHIN, SEGMENTS, RAILS, SPREAD, SURVIVAL, FLOOR,
)  # fmt: skip

#: Maximum jobs tried for giving up nodes, and steps of the search for a survival.
JOBS_MAX, SURVIVAL_STEPS = 32, 16
#: Points for the mean of a repair's time.
WAIT_POINTS = 4096
#: Sigma of the logarithm of a repair's length: p90 is 311 h if the median is 20 h.
REPAIR_SIGMA = log(REPAIR_HOURS[2] / REPAIR_HOURS[0]) / 1.2816

#: Milder requirements, and the description of the change.
MilderNeeds = tuple[GangRequirements, str]


@dataclass(frozen=True, slots=True)
class ChangedRequest:
    """A request with changes. `added`: further candidates; `repaired`: nodes out now."""

    needs: GangRequirements
    added: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    repaired: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    changes: tuple[str, ...] = ()
    priority_text: str = ""  #: about the jobs that give up nodes

    def changed(self, change: str, **fields: Any) -> ChangedRequest:
        """Return the request with these *fields*, as one more change."""
        return replace(self, changes=(*self.changes, change), **fields)


@dataclass(frozen=True, slots=True)
class PlanRelaxation:
    """A change after which the request fits, and the price of the best plan then."""

    change: str
    needs: GangRequirements
    added_nodes: Indexes
    price: GangPrice
    start_hours: tuple[float, float] | None  #: median and p90; None: now


class BlockedRequest:
    """A request that nothing fits, and its changed variants."""

    def __init__(
        self,
        table: NodeTable,
        candidates: Candidates,
        needs: GangRequirements,
        communication: Quantity | None,
    ) -> None:
        self.table, self.candidates, self.needs = table, candidates, needs
        self.communication = communication
        self._repaired: NodeTable | None = None

    def table_for(self, changed: ChangedRequest) -> NodeTable:
        """Return the nodes, with repaired ones like the median of the others."""
        if not changed.repaired.size:
            return self.table
        if self._repaired is None:
            self._repaired = _as_repaired(self.table)
        out = self.table.excluded.copy()
        out[changed.repaired] = False
        return replace(self._repaired, excluded=out)

    def repairable(self) -> Indexes:
        """Return excluded nodes that still exist, the lowest hazard first."""
        out = np.flatnonzero(self.table.excluded & ~self.table.snapshot.columns.ended)
        return np.asarray(out[np.argsort(self.table.hazard[out], kind="stable")])

    def candidates_for(self, changed: ChangedRequest) -> Candidates:
        if not changed.added.size:
            return self.candidates
        nodes = self.candidates.nodes.copy()
        nodes[changed.added] = True
        added = set(changed.added.tolist())
        gpus = {node: mask for node, mask in self.candidates.gpus.items() if node not in added}
        return Candidates(nodes, gpus, self.candidates.source)

    def fits(self, changed: ChangedRequest) -> bool:
        """Return whether a plan is found."""
        table, candidates = self.table_for(changed), self.candidates_for(changed)
        needs = changed.needs
        pool = eligible(table, usable(table, candidates, needs), needs)
        search = Search(table, candidates, needs, lost_time(needs, needs.nodes), pool)
        return bool(search.find(SearchEffort(options_max=0, steps_max=0)).node_sets)

    def without(
        self, constraints: Iterable[str], base: ChangedRequest | None = None
    ) -> ChangedRequest:
        """Return the request with these constraints removed."""
        changed = base or ChangedRequest(self.needs)
        # The size comes last: the minimum is a whole segment.
        for constraint in sorted(constraints, key=lambda name: name == NODES):
            changed = self._without(constraint, changed)
        return changed

    def _without(self, constraint: str, changed: ChangedRequest) -> ChangedRequest:
        needs = changed.needs
        if constraint == CANDIDATES:
            return replace(changed, added=self.obtainable())
        if constraint == STATES:
            return replace(changed, repaired=self.repairable())
        removed: Mapping[str, GangRequirements] = {
            NODES: replace(needs, nodes=needs.segment_nodes, elastic=None),
            GPUS: replace(needs, gpus_per_node=1),
            FLOOR: replace(needs, score_min=0.0),
            SURVIVAL: replace(needs, survival_min=0.0),
            WITHIN: replace(needs, within=None),
            SEGMENTS: replace(needs, segment_nodes=1, segment_tier=None),
            RAILS: replace(needs, same_rails=False),
            SPREAD: replace(needs, spread_over=None, spread_nodes_max=0),
            MEMORY: replace(needs, memory=NO_MEMORY),
        }
        return replace(changed, needs=removed[constraint])

    def occupied(self) -> Indexes:
        """Return nodes that are not candidates, or only with some of their GPUs."""
        others = ~self.candidates.nodes
        others[list(self.candidates.gpus)] = True
        return np.flatnonzero(others)

    def obtainable(self) -> Indexes:
        """Return occupied nodes, except those of jobs not below the gang's priority."""
        occupied = self.occupied()
        return occupied[~self._protected[occupied]]

    @cached_property
    def _protected(self) -> Flags:
        protected = np.zeros(len(self.table), dtype=bool)
        if self.needs.priority is not None and self.candidates.priorities:
            jobs = self.table.snapshot.jobs
            protected[[node for node, job in jobs.items() if self.is_protected(job)]] = True
        return protected

    def is_protected(self, job: str) -> bool:
        """Return whether *job*'s known priority is at least the gang's."""
        priority, own = self.candidates.priorities.get(job), self.needs.priority
        return priority is not None and own is not None and priority >= own

    def priority_text(self, job: str) -> str:
        """Return the priorities by which *job* gives up nodes, as text."""
        priority, own = self.candidates.priorities.get(job), self.needs.priority
        if own is None:
            return " (the gang's priority is not known)"
        if priority is None:
            return " (its priority is not known)"
        return f" (priority {priority}, below {own})"

    def active(self) -> list[str]:
        """Return the constraints that restrict the request."""
        needs = self.needs
        requested = {
            NODES: needs.nodes > 1,
            CANDIDATES: self.obtainable().size > 0,
            STATES: self.repairable().size > 0,
            GPUS: needs.gpus_per_node != 1,
            MEMORY: not node_search.has_memory(self.table, needs).all(),
            WITHIN: needs.within is not None,
            SEGMENTS: needs.segment_nodes > 1,
            RAILS: needs.same_rails,
            SPREAD: needs.spread_over is not None,
            SURVIVAL: needs.survival_min > 0.0,
            FLOOR: needs.score_min > 0.0,
        }
        return [constraint for constraint in CONSTRAINTS if requested[constraint]]


def _as_repaired(table: NodeTable) -> NodeTable:
    """Return the nodes; those that are out are like the median of the others."""
    out = table.excluded
    others = np.flatnonzero(~out)
    if not others.size:  # without other nodes: the best of those that are out
        others = np.arange(len(table))[np.argsort(table.numbers[0], kind="stable")][:1]
    by_hazard = others[np.argsort(table.numbers[0, others], kind="stable")]
    middle = by_hazard[(by_hazard.size - 1) // 2] if by_hazard.size else 0
    repaired = table.repaired(np.flatnonzero(out), int(middle))
    snapshot = table.snapshot
    score = snapshot.columns.score.copy()
    # A score is of health alone: row 0 of the numbers is without preemption.
    score[out] = np.exp(-repaired.numbers[0, out] * snapshot.horizon_seconds / 3600.0)
    columns = snapshot.columns._replace(score=score)
    return replace(repaired, snapshot=replace(snapshot, columns=columns))


def relaxations_of(
    request: BlockedRequest, constraint: str, active: Sequence[str]
) -> tuple[PlanRelaxation, ...]:
    """Return the changes of *constraint* after which the whole request fits, the cheapest first."""
    removed = [constraint]
    if not request.fits(request.without(removed)):
        # Others also prevent a fit: remove all except those that can stay.
        others = [other for other in reversed(active) if other != constraint]
        removed += others
        if not request.fits(request.without(removed)):
            return ()
        for other in reversed(others):
            fewer = [name for name in removed if name != other]
            if request.fits(request.without(fewer)):
                removed = fewer
    relaxations: list[PlanRelaxation] = []
    removed.sort(key=lambda name: name == NODES)  # segments first: the size consists of segments
    rest = removed[1:]
    for first in _mildest(request, removed[0], request.without(rest), rest):
        changed = first
        # Restore the constraints one by one as far as possible; later ones stay removed meanwhile.
        for position, other in enumerate(rest):
            base = _restored(request, changed, rest[position:], rest[position + 1 :])
            milder = _mildest(request, other, base, rest[position + 1 :])
            if not milder and other == MEMORY:
                break  # no change makes a workload fit into less memory than it uses
            changed = milder[0] if milder else request.without([other, *rest[position + 1 :]], base)
        else:
            relaxation = _priced(request, changed)
            if relaxation is not None:
                relaxations.append(relaxation)

    def order(relaxation: PlanRelaxation) -> tuple[bool, float]:
        # Without an exchange rate a delay has no known cost: changes that start now come first.
        is_later = relaxation.start_hours is not None and not request.needs.delay_rate
        return is_later, relaxation.price.total.value

    return tuple(sorted(relaxations, key=order))


def _restored(
    request: BlockedRequest, changed: ChangedRequest, back: Sequence[str], out: Sequence[str]
) -> ChangedRequest:
    """Return *changed* with the constraints *back* as requested, and *out* removed."""
    needs, requested = changed.needs, request.needs
    fields: dict[str, tuple[str, ...]] = {
        NODES: ("nodes", "elastic"), GPUS: ("gpus_per_node",), FLOOR: ("score_min",), SURVIVAL: ("survival_min",),
        WITHIN: ("within",), SEGMENTS: ("segment_nodes", "segment_tier"), RAILS: ("same_rails",),
        SPREAD: ("spread_over", "spread_nodes_max"), MEMORY: ("memory",),
    }  # fmt: skip
    for constraint in back:
        if constraint == CANDIDATES:
            changed = replace(changed, added=np.zeros(0, dtype=np.intp))
        elif constraint == STATES:
            changed = replace(changed, repaired=np.zeros(0, dtype=np.intp))
        else:
            as_requested = {name: getattr(requested, name) for name in fields[constraint]}
            needs = replace(needs, **as_requested)
    return request.without(out, replace(changed, needs=needs))


def _mildest(
    request: BlockedRequest, constraint: str, base: ChangedRequest, removed: Sequence[str]
) -> list[ChangedRequest]:
    """Return the mildest changes of *constraint* after which *base* fits.

    *removed*: the constraints that are removed in *base*.
    """
    needs = base.needs
    if constraint == CANDIDATES:
        return _given_up(request, base)
    if constraint == STATES:
        waiting = base.changed("wait for repairs")
        nodes = request.repairable()
        return _fewest(request, nodes, lambda nodes: replace(waiting, repaired=nodes))
    if constraint == FLOOR:
        return _lower_floor(request, base)
    if constraint == SURVIVAL:
        return _lower_survival(request, base)
    if constraint == MEMORY:
        return [*_less_memory(request, base), *_other_models(request, base)]
    if constraint == NODES:
        step = needs.segment_nodes

        def smaller(size: int) -> ChangedRequest:
            fewer = replace(needs, nodes=size * step, elastic=None)
            return base.changed(f"{needs.nodes} -> {counted(size * step, 'node')}", needs=fewer)

        count = _largest(1, (needs.nodes - 1) // step, lambda size: request.fits(smaller(size)))
        return [smaller(count)] if count else []
    if constraint == SPREAD:
        over = needs.spread_over
        count = needs.nodes + 1 - _largest(
            1, needs.nodes - needs.spread_nodes_max,
            lambda less: request.fits(
                replace(base, needs=replace(needs, spread_nodes_max=needs.nodes + 1 - less))
            ),
        )  # fmt: skip
        title = over.title if over else ""
        change = f"at most {needs.spread_nodes_max} -> {counted(count, 'node')} in one {title}"
        return _first_that_fit(request, base, [
            (replace(needs, spread_nodes_max=count), change),
            (replace(needs, spread_over=None, spread_nodes_max=0), f"any number of nodes in one {title}"),
        ])  # fmt: skip
    if constraint == SEGMENTS:
        fitting = [
            change
            for values in _smaller_segments(needs)
            for change in _first_that_fit(request, base, values, sized=NODES in removed)
        ]
        none = replace(needs, segment_nodes=1, segment_tier=None)
        values = [(none, f"no segments of {counted(needs.segment_nodes, 'node')}")]
        return fitting or _first_that_fit(request, base, values, sized=NODES in removed)
    gpus = node_search.gpus_of(request.table, needs)
    return _first_that_fit(request, base, _steps(constraint, needs, gpus))


def _steps(constraint: str, needs: GangRequirements, gpus: int) -> list[MilderNeeds]:
    """Return ever milder values of a constraint, with descriptions."""
    if constraint == RAILS:
        return [(replace(needs, same_rails=False), "any rails")]
    if constraint == GPUS:
        return [
            (replace(needs, gpus_per_node=count), f"{gpus} -> {counted(count, 'GPU')} per node")
            for count in range(gpus - 1 if needs.gpus_per_node else gpus, 0, -1)
        ]
    tier = needs.within
    title = tier.title if tier else ""
    wider = [w for w in reversed(PRICED_TIERS) if tier in PRICED_TIERS and w > (tier or 0)]
    steps = [(replace(needs, within=w), f"within one {title} -> one {w.title}") for w in wider]
    return [*steps, (replace(needs, within=None), f"within one {title} -> anywhere")]


def _smaller_segments(needs: GangRequirements) -> tuple[list[MilderNeeds], list[MilderNeeds]]:
    """Return milder segments: in a wider tier, and of fewer nodes."""
    segment, tier = needs.segment_nodes, needs.segment_tier
    title = tier.title if tier else ""
    before = f"segments of {segment} within a {title}"
    return [
        (replace(needs, segment_tier=wider), f"{before} -> a {wider.title}")
        for wider in reversed(PRICED_TIERS)
        if wider > (tier or 0)
    ], [
        (replace(needs, segment_nodes=size), f"segments of {segment} -> {size} nodes in a {title}")
        for size in range(segment - 1, 1, -1)
        if segment % size == 0 and needs.nodes % size == 0
    ]


def _first_that_fit(
    request: BlockedRequest,
    base: ChangedRequest,
    values: Sequence[MilderNeeds],
    *,
    sized: bool = False,
) -> list[ChangedRequest]:
    """Return the first of *values* that fits. *sized*: at least a whole segment."""
    for value, change in values:
        needs = replace(value, nodes=value.segment_nodes, elastic=None) if sized else value
        changed = base.changed(change, needs=needs)
        if request.fits(changed):
            return [changed]
    return []


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number from *low* to *high* that holds; 0: none.

    *holds* must be true of all numbers below a number of which it is true.
    """
    if high < low or not holds(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _lower_floor(request: BlockedRequest, base: ChangedRequest) -> list[ChangedRequest]:
    scores = np.unique(request.table_for(base).snapshot.columns.score)
    floors = [float(score) for score in scores[scores < np.float32(base.needs.score_min)]]

    def changed(at: int) -> ChangedRequest:
        floor = floors[at - 1]
        text = f"node floor {base.needs.score_min:.4g} -> {floor:.4g}"
        return base.changed(text, needs=replace(base.needs, score_min=floor))

    at = _largest(1, len(floors), lambda index: request.fits(changed(index)))
    return [changed(at)] if at else []


def _lower_survival(request: BlockedRequest, base: ChangedRequest) -> list[ChangedRequest]:
    def changed(survival: float) -> ChangedRequest:
        text = f"survival of the gang {base.needs.survival_min:.4g} -> {survival:.4g}"
        return base.changed(text, needs=replace(base.needs, survival_min=survival))

    low, high = 0.0, base.needs.survival_min
    if not request.fits(changed(0.0)):
        return []
    for _ in range(SURVIVAL_STEPS):
        middle = (low + high) / 2.0
        if request.fits(changed(middle)):
            low = middle
        else:
            high = middle
    digit = 10.0 ** (floor(log10(low)) - 3) if low > 0.0 else 1.0
    # round down: the value fits as the message shows it
    return [changed(floor(low / digit) * digit)]


def _less_memory(request: BlockedRequest, base: ChangedRequest) -> list[ChangedRequest]:
    """Return the request with the declared smaller batch, or with as much page cache as fits."""
    memory = base.needs.memory
    if smaller := memory.smaller_batch_hbm_bytes:
        changed = replace(memory, hbm_bytes=smaller, smaller_batch_hbm_bytes=0.0)
        change = f"the smaller batch: {memory.hbm_bytes / 1e9:.4g} -> {smaller / 1e9:.4g} GB of HBM per GPU"
        values = [(replace(base.needs, memory=changed), change)]
        if fitting := _first_that_fit(request, base, values):
            return fitting
    available = np.unique(request.table.snapshot.supplies.memory_bytes.astype(np.float64))
    sizes = available[available < memory.page_cache_bytes][::-1]

    def changed_to(at: int) -> ChangedRequest:
        size = float(sizes[sizes.size - at])
        text = f"page cache {memory.page_cache_bytes / 1e9:.4g} -> {size / 1e9:.4g} GB per node"
        return base.changed(
            text, needs=replace(base.needs, memory=replace(memory, page_cache_bytes=size))
        )

    at = _largest(1, sizes.size, lambda index: request.fits(changed_to(index)))
    return [changed_to(at)] if at else []


def _other_models(request: BlockedRequest, base: ChangedRequest) -> list[ChangedRequest]:
    """Return a change per GPU model with enough memory: the fewest nodes of the model that must become candidates."""
    table, supplies = request.table, request.table.snapshot.supplies
    more = request.obtainable()
    more = more[~table.excluded[more] & node_search.has_memory(table, base.needs)[more]]
    by_model: dict[str, list[int]] = {}
    for node in more.tolist():
        if node < len(supplies.gpu_models) and (model := supplies.gpu_models[node]):
            by_model.setdefault(model, []).append(node)
    changes: list[ChangedRequest] = []
    for model, of_model in by_model.items():
        nodes = np.array(of_model, dtype=np.intp)
        nodes = nodes[np.argsort(table.hazard[nodes], kind="stable")]
        size = float(supplies.hbm_bytes[nodes[0]])
        text = f"another GPU model, {model} of {size / 1e9:.4g} GB: others give up"
        giving = base.changed(text, priority_text=request.priority_text(""))

        def with_nodes(few: Indexes, giving: ChangedRequest = giving) -> ChangedRequest:
            return replace(giving, added=np.union1d(base.added, few))

        changes += _fewest(request, nodes, with_nodes)
    return changes


def _given_up(request: BlockedRequest, base: ChangedRequest) -> list[ChangedRequest]:
    """Return changes that fit after one job gives up nodes, or all occupied nodes are free."""
    obtainable = request.obtainable()
    occupied = set(obtainable.tolist())
    jobs: dict[str, list[int]] = {}
    for node, job in request.table.snapshot.jobs.items():
        if node in occupied:
            jobs.setdefault(job, []).append(node)

    def order(job: str) -> tuple[bool, int, str]:
        # jobs with a known lower priority come first
        return job not in request.candidates.priorities, len(jobs[job]), job

    def fewest_of(nodes: Indexes, text: str, why: str) -> list[ChangedRequest]:
        by_hazard = nodes[np.argsort(request.table.hazard[nodes], kind="stable")]
        giving = base.changed(text, priority_text=why)
        return _fewest(request, by_hazard, lambda few: replace(giving, added=few))

    for job in sorted(jobs, key=order)[:JOBS_MAX]:
        nodes = np.array(jobs[job], dtype=np.intp)
        if changes := fewest_of(nodes, f"job {job} gives up", request.priority_text(job)):
            return changes
    why = " (whose priority is not known, or below the gang's)"
    if request.needs.priority is None:
        why = request.priority_text("")
    return fewest_of(obtainable, "others give up", why)


def _fewest(
    request: BlockedRequest, nodes: Indexes, change: Callable[[Indexes], ChangedRequest]
) -> list[ChangedRequest]:
    """Return the change with the fewest of *nodes* (the first of them) that fits."""

    def without(less: int) -> ChangedRequest:
        return change(nodes[: nodes.size + 1 - less])

    less = _largest(1, nodes.size, lambda less: request.fits(without(less)))
    return [without(less)] if less else []


def _priced(request: BlockedRequest, changed: ChangedRequest) -> PlanRelaxation | None:
    table = request.table_for(changed)
    gpus = node_search.gpus_of(request.table, changed.needs)
    if changed.needs.elastic is None:
        changed = replace(changed, needs=regrouped(changed.needs, changed.needs.nodes * gpus))
    candidates, effort = request.candidates_for(changed), SearchEffort(steps_max=0)
    options = elastic.plan(table, candidates, changed.needs, request.communication, effort)
    if not options:
        return None
    option, changes = options[0], list(changed.changes)
    extra: list[PricePart] = []
    requested = request.needs.nodes_max * node_search.gpus_of(request.table, request.needs)
    placed = changed.needs.nodes_max * node_search.gpus_of(request.table, changed.needs)
    if placed < requested:
        hours = (requested - placed) * request.needs.hours
        extra.append(
            PricePart("GPUs not placed", declared(hours, counted(requested - placed, "GPU")))
        )
    if changed.added.size:
        taken = int(np.isin(option.nodes, changed.added).sum())
        hours = taken * node_search.gpus_of(table, changed.needs) * request.needs.hours
        evidence = f"{counted(taken, 'node')}; unknown how long they would be in use"
        extra.append(PricePart("taken from others", assumed(0.5 * hours, 0.0, hours, evidence)))
        changes = [
            f"{change} {counted(taken, 'node')}{changed.priority_text}"
            if change.endswith(("gives up", "give up"))
            else change
            for change in changes
        ]
    start = None
    if changed.repaired.size:
        out, needed = request.repairable().size, changed.repaired.size
        given = request.needs.repair_hours
        median = REPAIR_HOURS[0] if isnan(given) else given
        start = p50, p90 = repair_wait_hours(out, needed, median)
        if request.needs.delay_rate:
            wait = expected_repair_wait(out, needed, median)
            rate = request.needs.delay_rate
            delay = Quantity(
                wait.value * rate,
                wait.lower * rate,
                wait.upper * rate,
                QuantitySource.ASSUMED if isnan(given) else QuantitySource.DECLARED,
                f"{wait.evidence}; {request.needs.rate_text('delay_rate')}",
            )
            extra.append(PricePart("delay", delay))
        repairs = (
            f"wait {p50:.1f} h (p90 {p90:.1f} h) for repairs of {needed} of {counted(out, 'node')}"
        )
        changes = [repairs if change == "wait for repairs" else change for change in changes]
    price = with_parts(option.price, extra)
    added = np.unique(np.concatenate((changed.added, changed.repaired)))
    return PlanRelaxation("; ".join(changes), changed.needs, added, price, start)


def with_parts(price: GangPrice, parts: Sequence[PricePart]) -> GangPrice:
    if not parts:
        return price
    value, lower, upper = (
        getattr(price.total, name) + sum(getattr(part.gpu_hours, name) for part in parts)
        for name in ("value", "lower", "upper")
    )
    total = replace(price.total, value=value, lower=lower, upper=upper)
    return replace(price, total=total, parts=(*price.parts, *parts))


def repair_wait_hours(out: int, needed: int, median_hours: float) -> tuple[float, float]:
    """Return median and p90 of the hours to repair *needed* of *out* nodes (lognormal)."""

    def quantile(share: float) -> float:
        low, high = 0.0, 1.0
        # find the repair probability of a node at which enough nodes are repaired
        for _ in range(50):
            middle = (low + high) / 2.0
            at_least = sum(
                comb(out, count) * middle**count * (1.0 - middle) ** (out - count)
                for count in range(needed, out + 1)
            )
            low, high = (middle, high) if at_least < share else (low, middle)
        return hours_at((low + high) / 2.0)

    def hours_at(probability: float) -> float:
        return exp(log(max(median_hours, 1e-3)) + REPAIR_SIGMA * _normal_quantile(probability))

    if out > 500:  # the order statistic's own median is as accurate
        hours = hours_at((needed - 0.3) / (out + 0.4))
        return hours, hours
    return quantile(0.5), quantile(0.9)


def expected_repair_wait(out: int, needed: int, median_hours: float) -> Quantity:
    """Return the mean hours to repair *needed* of *out* nodes, with 90 % interval (lognormal)."""
    shares, normals = _wait_points()
    # The density of the order statistic: a beta distribution.
    density = (needed - 1) * np.log(shares) + (out - needed) * np.log1p(-shares)
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    hours = max(median_hours, 1e-3) * np.exp(REPAIR_SIGMA * normals)
    lower, upper = hours[np.searchsorted(np.cumsum(weights), (0.05, 0.95))]
    value = float(weights @ hours)
    return Quantity(
        value,
        min(float(lower), value),
        max(float(upper), value),
        QuantitySource.ASSUMED,
        f"{value:.1f} h expected until {needed} of {counted(out, 'node')} are repaired",
    )


@cache
def _wait_points() -> tuple[Floats, Floats]:
    """Return evenly spread probabilities, and their normal quantiles."""
    shares = (np.arange(WAIT_POINTS) + 0.5) / WAIT_POINTS
    return shares, np.array([_normal_quantile(share) for share in shares.tolist()])


def _normal_quantile(share: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(min(max(share, 1e-12), 1.0 - 1e-12))
