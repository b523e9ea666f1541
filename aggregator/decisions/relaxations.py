"""Changes that make a gang fit: the smallest change of each constraint, and its cost.

Each is tried on the whole request. The price states if others must agree to a change (a job gives up nodes) or if it takes
time (repairs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import comb, exp, floor, isnan, log, log10

import numpy as np

from ..counter_deltas import Flags, Floats, Indexes
from . import elastic, planner
from .groups import regrouped
from .node_table import NodeTable
from .planner import Candidates
from .price import REPAIR_HOURS, GangPrice, PricePart, lost_time
from .quantity import Quantity, QuantitySource, assumed
from .requirements import PRICED_TIERS, GangRequirements

CANDIDATES, STATES = "candidates", "node states"
NODES, GPUS = "gang.nodes", "gang.gpus_per_node"
FLOOR, SURVIVAL = "gang.node_score_min", "gang.survival_min"
WITHIN, SEGMENTS = "gang.invariants.within", "gang.invariants.segment_nodes"
RAILS, SPREAD = "gang.invariants.same_rails", "gang.invariants.spread_nodes_max"
#: In the order in which a change hurts the less, the last first: of two sets in conflict the one of the former is reported.
CONSTRAINTS = (NODES, CANDIDATES, STATES, GPUS, WITHIN, SEGMENTS, RAILS, SPREAD, SURVIVAL, FLOOR)

#: Jobs that are tried for giving up nodes, and values of a survival between two that are.
JOBS_MAX, SURVIVAL_STEPS = 32, 16
#: Of the time of a repair: points at which a mean is taken.
WAIT_POINTS = 4096
#: Of the logarithm of a repair's length, so that its p90 is 311 h where its median is 20 h.
REPAIR_SIGMA = log(REPAIR_HOURS[2] / REPAIR_HOURS[0]) / 1.2816


@dataclass(frozen=True, slots=True)
class ChangedRequest:
    """A request with some constraints changed. `added`: candidates that are added; `repaired`: nodes that are out now."""

    needs: GangRequirements
    added: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    repaired: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    changes: tuple[str, ...] = ()
    priority_text: str = ""  #: of who gives up nodes


@dataclass(frozen=True, slots=True)
class PlanRelaxation:
    """A change after which it fits, and the price of the best plan then."""

    change: str
    needs: GangRequirements
    added_nodes: Indexes
    price: GangPrice
    start_hours: tuple[float, float] | None  #: median and p90; None: now


class BlockedRequest:
    """One request that nothing fits, and whether changed ones do."""

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
        """Return the nodes; repaired, those that are out are as the middle one of the others."""
        if not changed.repaired.size:
            return self.table
        if self._repaired is None:
            self._repaired = _as_repaired(self.table)
        out = self.table.excluded.copy()
        out[changed.repaired] = False
        return replace(self._repaired, excluded=out)

    def repairable(self) -> Indexes:
        """Return the nodes that are out and still there, those of the least hazard first."""
        out = np.flatnonzero(self.table.excluded & ~self.table.snapshot.columns.ended)
        return np.asarray(out[np.argsort(self.table.hazard[out], kind="stable")])

    def candidates_for(self, changed: ChangedRequest) -> Candidates:
        """Return who may be chosen."""
        if not changed.added.size:
            return self.candidates
        nodes = self.candidates.nodes.copy()
        nodes[changed.added] = True
        gpus = {
            node: mask
            for node, mask in self.candidates.gpus.items()
            if node not in set(changed.added.tolist())
        }
        return Candidates(nodes, gpus, self.candidates.source)

    def fits(self, changed: ChangedRequest) -> bool:
        """Return whether a plan is found."""
        table, candidates = self.table_for(changed), self.candidates_for(changed)
        fit = planner.usable(table, candidates, changed.needs)
        pool = planner.eligible(table, fit, changed.needs)
        lost = lost_time(changed.needs, changed.needs.nodes)
        return bool(planner.find(table, pool, changed.needs, lost, options_max=0, steps_max=0)[1])

    def without(
        self, constraints: Iterable[str], base: ChangedRequest | None = None
    ) -> ChangedRequest:
        """Return the request with these constraints removed."""
        changed = base or ChangedRequest(self.needs)
        # The size comes last: the least is a whole segment.
        for one in sorted(constraints, key=lambda each: each == NODES):
            changed = self._without(one, changed)
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
        }
        return replace(changed, needs=removed[constraint])

    def occupied(self) -> Indexes:
        """Return the nodes that are no candidates, or only with some of their GPUs."""
        others = ~self.candidates.nodes
        others[list(self.candidates.gpus)] = True
        return np.flatnonzero(others)

    def obtainable(self) -> Indexes:
        """Return those of them that somebody may give up: of no job whose priority is known not to be below the gang's."""
        occupied = self.occupied()
        return occupied[~self._protected[occupied]]

    @cached_property
    def _protected(self) -> Flags:
        found = np.zeros(len(self.table), dtype=bool)
        if self.needs.priority is not None and self.candidates.priorities:
            jobs = self.table.snapshot.jobs
            found[[node for node, job in jobs.items() if self.is_protected(job)]] = True
        return found

    def is_protected(self, job: str) -> bool:
        """Return whether *job* is known to count at least as much as the gang."""
        priority, own = self.candidates.priorities.get(job), self.needs.priority
        return priority is not None and own is not None and priority >= own

    def priority_text(self, job: str) -> str:
        """Return by which right *job* gives up nodes."""
        priority, own = self.candidates.priorities.get(job), self.needs.priority
        if own is None:
            return " (the gang's priority is not known)"
        if priority is None:
            return " (its priority is not known)"
        return f" (priority {priority}, below {own})"

    def active(self) -> list[str]:
        """Return the constraints that ask for anything."""
        needs = self.needs
        requested = {
            NODES: needs.nodes > 1,
            CANDIDATES: self.obtainable().size > 0,
            STATES: self.repairable().size > 0,
            GPUS: needs.gpus_per_node != 1,
            WITHIN: needs.within is not None,
            SEGMENTS: needs.segment_nodes > 1,
            RAILS: needs.same_rails,
            SPREAD: needs.spread_over is not None,
            SURVIVAL: needs.survival_min > 0.0,
            FLOOR: needs.score_min > 0.0,
        }
        return [one for one in CONSTRAINTS if requested[one]]


def _as_repaired(table: NodeTable) -> NodeTable:
    """Return the nodes, those that are out as the middle one of the others is: its hazard and speed, and the score they give."""
    out = table.excluded
    others = np.flatnonzero(~out)
    if not others.size:  # nobody to compare with: as the best of those that are out
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


# ----------------------------------------------------------------------
# Changes: the mildest of a constraint, with as few others as it takes.


def relaxations_of(
    request: BlockedRequest, constraint: str, active: Sequence[str]
) -> tuple[PlanRelaxation, ...]:
    """Return the changes of *constraint* after which the whole request fits, the cheapest first."""
    removed = [constraint]
    if not request.fits(request.without(removed)):
        # Others are in the way too: all of these, but for those that can stay.
        others = [one for one in reversed(active) if one != constraint]
        removed += others
        if not request.fits(request.without(removed)):
            return ()
        for one in reversed(others):
            fewer = [each for each in removed if each != one]
            if request.fits(request.without(fewer)):
                removed = fewer
    found: list[PlanRelaxation] = []
    removed.sort(key=lambda one: one == NODES)  # segments first: the size is made of them
    rest = removed[1:]
    for first in _mildest(request, removed[0], request.without(rest), rest):
        changed = first
        # One after the other comes back as far as it goes; those after it are removed meanwhile.
        for at, one in enumerate(rest):
            base = _restored(request, changed, rest[at:], rest[at + 1 :])
            milder = _mildest(request, one, base, rest[at + 1 :])
            changed = milder[0] if milder else request.without([one, *rest[at + 1 :]], base)
        relaxation = _priced(request, changed)
        if relaxation is not None:
            found.append(relaxation)
    return tuple(
        sorted(
            found,
            key=lambda one: (
                # Without an exchange rate nobody said what a delay costs: what starts now comes first.
                one.start_hours is not None and not request.needs.delay_rate,
                one.price.total.value,
            ),
        )
    )


def _restored(
    request: BlockedRequest, changed: ChangedRequest, back: Sequence[str], out: Sequence[str]
) -> ChangedRequest:
    """Return *changed* with the constraints *back* as they were asked for, and those *out* removed."""
    needs, requested = changed.needs, request.needs
    fields: dict[str, tuple[str, ...]] = {
        NODES: ("nodes", "elastic"), GPUS: ("gpus_per_node",), FLOOR: ("score_min",), SURVIVAL: ("survival_min",),
        WITHIN: ("within",), SEGMENTS: ("segment_nodes", "segment_tier"), RAILS: ("same_rails",),
        SPREAD: ("spread_over", "spread_nodes_max"),
    }  # fmt: skip
    for one in back:
        if one == CANDIDATES:
            changed = replace(changed, added=np.zeros(0, dtype=np.intp))
        elif one == STATES:
            changed = replace(changed, repaired=np.zeros(0, dtype=np.intp))
        else:
            needs = replace(needs, **{name: getattr(requested, name) for name in fields[one]})
    return request.without(out, replace(changed, needs=needs))


def _mildest(
    request: BlockedRequest, constraint: str, base: ChangedRequest, removed: Sequence[str]
) -> list[ChangedRequest]:
    """Return the mildest changes of *constraint* after which *base* fits, of which *removed* are removed."""
    needs = base.needs
    if constraint == CANDIDATES:
        return _given_up(request, base)
    if constraint == STATES:
        changes = *base.changes, "wait for repairs"
        return _fewest(
            request,
            request.repairable(),
            lambda nodes: replace(base, repaired=nodes, changes=changes),
        )
    if constraint == FLOOR:
        return _lower_floor(request, base)
    if constraint == SURVIVAL:
        return _lower_survival(request, base)
    if constraint == NODES:
        step = needs.segment_nodes
        count = _largest(
            1, (needs.nodes - 1) // step,
            lambda size: request.fits(replace(base, needs=replace(needs, nodes=size * step, elastic=None))),
        )  # fmt: skip
        values = (
            [
                (
                    replace(needs, nodes=count * step, elastic=None),
                    f"{needs.nodes} -> {count * step} nodes",
                )
            ]
            if count
            else []
        )
        return _first_that_fit(request, base, values)
    if constraint == SPREAD:
        over = needs.spread_over
        count = needs.nodes + 1 - _largest(
            1, needs.nodes - needs.spread_nodes_max,
            lambda less: request.fits(
                replace(base, needs=replace(needs, spread_nodes_max=needs.nodes + 1 - less))
            ),
        )  # fmt: skip
        title = over.title if over else ""
        change = f"at most {needs.spread_nodes_max} -> {count} nodes in one {title}"
        return _first_that_fit(request, base, [
            (replace(needs, spread_nodes_max=count), change),
            (replace(needs, spread_over=None, spread_nodes_max=0), f"any number of nodes in one {title}"),
        ])  # fmt: skip
    if constraint == SEGMENTS:
        found = [
            each
            for values in _smaller_segments(needs)
            for each in _first_that_fit(request, base, values, sized=NODES in removed)
        ]
        none = replace(needs, segment_nodes=1, segment_tier=None)
        values = [(none, f"no segments of {needs.segment_nodes} nodes")]
        return found or _first_that_fit(request, base, values, sized=NODES in removed)
    return _first_that_fit(
        request, base, _steps(constraint, needs, planner.gpus_of(request.table, needs))
    )


def _steps(
    constraint: str, needs: GangRequirements, gpus: int
) -> list[tuple[GangRequirements, str]]:
    """Return ever milder values of a constraint, with words."""
    if constraint == RAILS:
        return [(replace(needs, same_rails=False), "any rails")]
    if constraint == GPUS:
        return [
            (replace(needs, gpus_per_node=count), f"{gpus} -> {count} GPUs per node")
            for count in range(gpus - 1 if needs.gpus_per_node else gpus, 0, -1)
        ]
    tier = needs.within
    title = tier.title if tier else ""
    wider = [each for each in reversed(PRICED_TIERS) if tier in PRICED_TIERS and each > (tier or 0)]
    return [
        *(
            (replace(needs, within=each), f"within one {title} -> one {each.title}")
            for each in wider
        ),
        (replace(needs, within=None), f"within one {title} -> anywhere"),
    ]


def _smaller_segments(
    needs: GangRequirements,
) -> tuple[list[tuple[GangRequirements, str]], list[tuple[GangRequirements, str]]]:
    """Return ever milder segments: as many nodes of a wider tier, and fewer nodes of the same."""
    segment, tier = needs.segment_nodes, needs.segment_tier
    title = tier.title if tier else ""
    return [
        (
            replace(needs, segment_tier=each),
            f"segments of {segment} within a {title} -> a {each.title}",
        )
        for each in reversed(PRICED_TIERS)
        if each > (tier or 0)
    ], [
        (replace(needs, segment_nodes=each), f"segments of {segment} -> {each} nodes in a {title}")
        for each in range(segment - 1, 1, -1)
        if segment % each == 0 and needs.nodes % each == 0
    ]


def _first_that_fit(
    request: BlockedRequest,
    base: ChangedRequest,
    values: Sequence[tuple[GangRequirements, str]],
    *,
    sized: bool = False,
) -> list[ChangedRequest]:
    """Return the first that fits. *sized*: of any size, the least being a whole segment."""
    for each, change in values:
        needs = replace(each, nodes=each.segment_nodes, elastic=None) if sized else each
        changed = replace(base, needs=needs, changes=(*base.changes, change))
        if request.fits(changed):
            return [changed]
    return []


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the largest from *low* to *high* that holds, 0 for none; where one holds, so do all below."""
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
    floors = [float(one) for one in scores[scores < np.float32(base.needs.score_min)]]

    def changed(at: int) -> ChangedRequest:
        floor = floors[at - 1]
        text = f"node floor {base.needs.score_min:.4g} -> {floor:.4g}"
        return replace(
            base, needs=replace(base.needs, score_min=floor), changes=(*base.changes, text)
        )

    at = _largest(1, len(floors), lambda one: request.fits(changed(one)))
    return [changed(at)] if at else []


def _lower_survival(request: BlockedRequest, base: ChangedRequest) -> list[ChangedRequest]:
    def changed(survival: float) -> ChangedRequest:
        text = f"survival of the gang {base.needs.survival_min:.4g} -> {survival:.4g}"
        return replace(
            base, needs=replace(base.needs, survival_min=survival), changes=(*base.changes, text)
        )

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
    return [changed(floor(low / digit) * digit)]  # downward: the value fits as the message shows it


def _given_up(request: BlockedRequest, base: ChangedRequest) -> list[ChangedRequest]:
    """Return what fits once one job gives up its nodes, or else all that are no candidates are free."""
    obtainable = request.obtainable()
    occupied = set(obtainable.tolist())
    jobs: dict[str, list[int]] = {}
    for node, job in request.table.snapshot.jobs.items():
        if node in occupied:
            jobs.setdefault(job, []).append(node)
    # Those known to count less come first.
    smallest = sorted(
        jobs.items(),
        key=lambda item: (item[0] not in request.candidates.priorities, len(item[1]), item[0]),
    )[:JOBS_MAX]
    hazard = request.table.hazard
    for job, nodes in smallest:
        text, why = f"job {job} gives up", request.priority_text(job)
        found = _fewest(
            request,
            np.array(sorted(nodes, key=lambda node: float(hazard[node])), dtype=np.intp),
            lambda few, text=text, why=why: replace(  # type: ignore[misc]
                base, added=few, changes=(*base.changes, text), priority_text=why
            ),
        )
        if found:
            return found
    why = " (whose priority is not known, or below the gang's)"
    why = why if request.needs.priority is not None else request.priority_text("")
    return _fewest(
        request,
        obtainable[np.argsort(hazard[obtainable], kind="stable")],
        lambda few: replace(
            base, added=few, changes=(*base.changes, "others give up"), priority_text=why
        ),
    )


def _fewest(
    request: BlockedRequest, nodes: Indexes, change: Callable[[Indexes], ChangedRequest]
) -> list[ChangedRequest]:
    """Return the change with the fewest of *nodes*, the first of them, that fits."""
    less = _largest(
        1, nodes.size, lambda less: request.fits(change(nodes[: nodes.size + 1 - less]))
    )
    return [change(nodes[: nodes.size + 1 - less])] if less else []


# ----------------------------------------------------------------------
# What a change costs.


def _priced(request: BlockedRequest, changed: ChangedRequest) -> PlanRelaxation | None:
    table = request.table_for(changed)
    gpus = planner.gpus_of(request.table, changed.needs)
    if changed.needs.elastic is None:
        changed = replace(changed, needs=regrouped(changed.needs, changed.needs.nodes * gpus))
    options = elastic.plan(
        table, request.candidates_for(changed), changed.needs, request.communication, steps_max=0
    )
    if not options:
        return None
    option, changes = options[0], list(changed.changes)
    extra: list[PricePart] = []
    requested = request.needs.nodes_max * planner.gpus_of(request.table, request.needs)
    placed = changed.needs.nodes_max * planner.gpus_of(request.table, changed.needs)
    if placed < requested:
        hours = (requested - placed) * request.needs.hours
        extra.append(
            PricePart(
                "GPUs not placed",
                Quantity(
                    hours, hours, hours, QuantitySource.DECLARED, f"{requested - placed} GPUs"
                ),
            )
        )
    if changed.added.size:
        taken = int(np.isin(option.nodes, changed.added).sum())
        hours = taken * planner.gpus_of(table, changed.needs) * request.needs.hours
        extra.append(
            PricePart(
                "taken from others",
                assumed(
                    0.5 * hours,
                    0.0,
                    hours,
                    f"{taken} nodes; unknown how long they would be in use",
                ),
            )
        )
        changes = [
            f"{one} {taken} nodes{changed.priority_text}"
            if one.endswith(("gives up", "give up"))
            else one
            for one in changes
        ]
    start = None
    if changed.repaired.size:
        out, needed = request.repairable().size, changed.repaired.size
        median = (
            REPAIR_HOURS[0] if isnan(request.needs.repair_hours) else request.needs.repair_hours
        )
        start = repair_wait_hours(out, needed, median)
        if request.needs.delay_rate:
            source = request.needs.repair_hours
            wait = expected_repair_wait(out, needed, median)
            rate = request.needs.delay_rate
            delay = Quantity(
                wait.value * rate, wait.lower * rate, wait.upper * rate,
                QuantitySource.ASSUMED if isnan(source) else QuantitySource.DECLARED,
                f"{wait.evidence}; {request.needs.rate_text('delay_rate')}",
            )  # fmt: skip
            extra.append(PricePart("delay", delay))
        changes = [
            f"wait {start[0]:.1f} h (p90 {start[1]:.1f} h) for repairs of {needed} of {out} nodes"
            if one == "wait for repairs" else one
            for one in changes
        ]  # fmt: skip
    price = with_parts(option.price, extra)
    added = np.unique(np.concatenate((changed.added, changed.repaired)))
    return PlanRelaxation("; ".join(changes), changed.needs, added, price, start)


def with_parts(price: GangPrice, parts: Sequence[PricePart]) -> GangPrice:
    """Return *price* with more parts."""
    if not parts:
        return price
    value, lower, upper = (
        getattr(price.total, name) + sum(getattr(one.gpu_hours, name) for one in parts)
        for name in ("value", "lower", "upper")
    )
    total = replace(price.total, value=value, lower=lower, upper=upper)
    return replace(price, total=total, parts=(*price.parts, *parts))


def repair_wait_hours(out: int, needed: int, median_hours: float) -> tuple[float, float]:
    """Return median and p90 of the hours until *needed* of *out* nodes are repaired: lognormal, each on its own."""

    def quantile(share: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):  # the probability that one is repaired at which so many of all are
            middle = (low + high) / 2.0
            at_least = sum(
                comb(out, count) * middle**count * (1.0 - middle) ** (out - count)
                for count in range(needed, out + 1)
            )
            low, high = (middle, high) if at_least < share else (low, middle)
        return exp(
            log(max(median_hours, 1e-3)) + REPAIR_SIGMA * _normal_quantile((low + high) / 2.0)
        )

    if out > 500:  # the order statistic's own median is as near
        middle = (needed - 0.3) / (out + 0.4)
        hours = exp(log(max(median_hours, 1e-3)) + REPAIR_SIGMA * _normal_quantile(middle))
        return hours, hours
    return quantile(0.5), quantile(0.9)


def expected_repair_wait(out: int, needed: int, median_hours: float) -> Quantity:
    """Return the mean of the hours until *needed* of *out* nodes are repaired, with a 90 % interval: lognormal, each on its own."""
    shares, normals = _wait_points()
    # The density of the order statistic: a beta distribution.
    density = (needed - 1) * np.log(shares) + (out - needed) * np.log1p(-shares)
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    hours = max(median_hours, 1e-3) * np.exp(REPAIR_SIGMA * normals)
    lower, upper = hours[np.searchsorted(np.cumsum(weights), (0.05, 0.95))]
    value = float(weights @ hours)
    return Quantity(
        value, min(float(lower), value), max(float(upper), value), QuantitySource.ASSUMED,
        f"{value:.1f} h expected until {needed} of {out} nodes are repaired",
    )  # fmt: skip


@cache
def _wait_points() -> tuple[Floats, Floats]:
    """Return probabilities, evenly spread, and the normal quantile of each."""
    shares = (np.arange(WAIT_POINTS) + 0.5) / WAIT_POINTS
    return shares, np.array([_normal_quantile(one) for one in shares.tolist()])


def _normal_quantile(share: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(min(max(share, 1e-12), 1.0 - 1e-12))
