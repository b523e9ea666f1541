"""Price of a gang on given nodes, in GPU-hours.

  useful = GPUs x hours x v x (1 - lost)
  v      = speed of the slowest member x topology factor
  lost   = interruptions per hour x (detect + decide + restart + interval / 2) + share spent on writing checkpoints

The price is the part of GPUs x hours that is not useful, in components that sum to it. `lost` is
the first-order term of Young and Daly (A higher order estimate of the optimum checkpoint interval,
2006). Hazards of the members add. Their intervals add too, as if all errors were correlated,
because a model's error is common to all hosts. Interruptions that do not grow with the gang are a
separate term: measured MTTFs of large jobs are shorter than 1 / (nodes x rate).

Spot preemption is another term: declared per hour and host, with its own component. Money is
GPU-hours at the exchange rate of the request or its tenant, at the declared price of a GPU-hour of
each node.

Crossing a tier makes communication slower, by an assumed amount until outcomes are reported. Among
d domains the share 1 - 1/d of uniform traffic crosses, and takes `CROSSING` longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, inf, isnan, log

import numpy as np

from ...contract.text import counted
from ..arrays import Floats
from ..scoring.reported_factors import (
    CHECKPOINT_INTERVAL_MINUTES,
    RESTART_FACTOR,
    RESTART_MINUTES,
    ReportedFactors,
)
from .quantity import Quantity, QuantitySource, assumed, declared, duration_hours, reported, weakest
from .requirements import PRICED_TIERS, GangRequirements, Tier

#: Relative slowdown of communication across a tier, with 90 % intervals (assumed: oversubscription
#: of 2:1 at a spine, none at a leaf, and NVLink against RDMA; congestion of shared clusters costs
#: 28 to 46 %).
CROSSING: Mapping[Tier, tuple[float, float, float]] = {
    Tier.CORE: (0.30, 0.0, 1.0),
    Tier.SPINE: (0.20, 0.0, 0.6),
    Tier.LEAF: (0.10, 0.0, 0.3),
    Tier.RACK: (0.02, 0.0, 0.1),
    Tier.NVLINK_DOMAIN: (0.05, 0.0, 0.5),
}
#: Share of a step with exposed communication (assumed).
COMMUNICATION_SHARE = (0.20, 0.05, 0.45)
#: Interruptions per hour of a gang of several nodes that do not grow with its size (assumed). The
#: upper end is the excess of an MTTF of 7.9 h at 1,024 GPUs over 6.5 faults per 1,000 node-days
#: (Kokolis et al., 2024).
SHARED_HAZARD_PER_HOUR = (0.002, 0.0, 0.09)
#: Relative error of a sum whose terms are added in another order.
ROUNDING = 1e-11
#: Names of factors in scheduler reports (`calibration.py`).
DETECT_FACTOR, DECIDE_FACTOR = "detect", "decide"
#: Minutes (assumed), with 90 % intervals of large training.
DETECT_MINUTES = (2.0, 0.2, 15.0)
DECIDE_MINUTES = (1.0, 0.1, 10.0)
CHECKPOINT_WRITE_MINUTES = (0.5, 0.05, 3.0)
#: Median repair of a node with 90 % interval (400 nodes over 348 days; its p90 is 311 h).
REPAIR_HOURS = (20.0, 0.5, 311.0)


@dataclass(frozen=True, slots=True)
class LostTime:
    """The terms of a price that depend only on the request, not on the chosen nodes."""

    gross_gpu_hours: float
    per_interruption_hours: Quantity
    checkpoint_share: Quantity
    shared_hazard: Quantity
    communication: Quantity
    repair_hours: Quantity
    crossing: tuple[Quantity, ...]  #: relative slowdown of traffic across each priced tier
    currency_rate: float = 0.0  #: GPU-hours per unit of currency
    currency_text: str = ""

    @property
    def overhead(self) -> float:
        """Share of the time that is lost with any nodes."""
        return (
            self.checkpoint_share.value
            + self.shared_hazard.value * self.per_interruption_hours.value
        )

    def terms(self, preferences: Mapping[Tier, float]) -> Floats:
        """Return the terms in the form of `ext.placement.search`."""
        share = self.communication.value
        head = [self.gross_gpu_hours, self.overhead, self.per_interruption_hours.value]
        crossing = [share * cost.value for cost in self.crossing]
        return np.array(head + crossing + [preferences.get(tier, 0.0) for tier in PRICED_TIERS])


@dataclass(frozen=True, slots=True)
class Members:
    """The chosen nodes. Per priced tier: domains spanned, and nodes without a known domain."""

    hazard: Floats
    hazard_lower: Floats
    hazard_upper: Floats
    speed: Floats
    speed_lower: Floats
    speed_upper: Floats
    domains: Sequence[int]
    unknown: Sequence[int]
    #: Preemptions per hour of spot capacity; empty: no spot capacity.
    preemption: Floats = field(default_factory=lambda: np.zeros(0, dtype=np.float64))
    #: Price of a GPU-hour with its interval, in currency: (3, members). None: not declared.
    gpu_prices: Floats | None = None
    #: By priced tier, the share of communication that crosses it, with its interval, and as text.
    #: None: even among domains.
    crossing_shares: tuple[tuple[float, float, float], ...] | None = None
    crossing_evidence: str = ""
    speed_source: QuantitySource = QuantitySource.ASSUMED
    speed_evidence: str = ""
    hazard_evidence: str = ""
    #: Speed without neighbors on partly used nodes, with its interval: (3, members). None: no neighbors.
    speed_alone: Floats | None = None
    neighbor_evidence: str = ""
    #: GPU-hours that running jobs lose beside the gang. None: none are predicted.
    neighbor_losses: Quantity | None = None

    def tier_shares(self, at: int) -> tuple[float, float, float]:
        """Return the share of communication that crosses a priced tier, with its interval."""
        if self.crossing_shares is not None:
            return self.crossing_shares[at]
        return crossing_shares(self.domains[at], self.unknown[at])


@dataclass(frozen=True, slots=True)
class PricePart:
    """One summand of a price."""

    name: str
    gpu_hours: Quantity


@dataclass(frozen=True, slots=True)
class GangPrice:
    """A price, its parts, and its factors."""

    total: Quantity
    parts: tuple[PricePart, ...]
    survival: Quantity
    speed: Quantity
    topology: Quantity
    goodput: Quantity
    #: part of the total besides lost GPUs x hours: preferences, stranded GPUs, money
    beside: Quantity


def lost_time(
    needs: GangRequirements, gpus: int, communication: Quantity | None = None
) -> LostTime:
    """Return the terms that depend only on *needs*. *communication*: its share of a step."""
    every, writes = needs.checkpoint_interval_hours, needs.checkpoint_write_hours
    given = partial(duration_hours, reports=needs.reports)
    detect = given("detect", needs.detect_hours, DETECT_MINUTES, factor=DETECT_FACTOR)
    decide = given("decide", needs.decide_hours, DECIDE_MINUTES, factor=DECIDE_FACTOR)
    restart = given("restart", needs.restart_hours, RESTART_MINUTES, factor=RESTART_FACTOR)
    interval = given("checkpoint interval", every, CHECKPOINT_INTERVAL_MINUTES)
    write = given("checkpoint write", writes, CHECKPOINT_WRITE_MINUTES)
    parts = (detect, decide, restart)
    lost = Quantity(
        sum(part.value for part in parts) + interval.value / 2.0,
        sum(part.lower for part in parts) + interval.lower / 2.0,
        sum(part.upper for part in parts) + interval.upper / 2.0,
        weakest(part.source for part in (*parts, interval)),
        "; ".join(part.evidence for part in (*parts, interval)),
    )
    share = Quantity(
        min(write.value / interval.value, 1.0),
        min(write.lower / interval.upper, 1.0),
        min(write.upper / interval.lower, 1.0),
        weakest((write.source, interval.source)),
        write.evidence,
    )
    if not isnan(needs.communication_share):
        communication = declared(needs.communication_share, "communication_share of the request")
    elif communication is None:
        unknown = "no fingerprint shows how much it communicates"
        communication = assumed(*COMMUNICATION_SHARE, unknown)
    if isnan(needs.repair_hours):
        repair = assumed(*REPAIR_HOURS, "median repair of 400 nodes over 348 days")
    else:
        repair = declared(needs.repair_hours, "repair of the request")
    return LostTime(
        gross_gpu_hours=gpus * needs.hours,
        per_interruption_hours=lost,
        checkpoint_share=share,
        shared_hazard=shared_hazard(needs.nodes),
        communication=communication,
        repair_hours=repair,
        crossing=crossing_costs(needs.reports),
        currency_rate=needs.currency_rate,
        currency_text=needs.rate_text("currency_rate"),
    )


def shared_hazard(nodes: int) -> Quantity:
    """Return the interruptions per hour that do not grow with the gang."""
    if nodes == 1:
        return assumed(0.0, 0.0, 0.0, "one node shares its causes with no other")
    return assumed(*SHARED_HAZARD_PER_HOUR, "interruptions that do not grow with the gang")


def crossing_costs(reports: ReportedFactors) -> tuple[Quantity, ...]:
    """Return the relative cost of crossing each priced tier: as reported, else assumed."""
    costs: list[Quantity] = []
    for tier in PRICED_TIERS:
        factor = reports.get(crossing_factor(tier))
        if factor is None:
            costs.append(assumed(*CROSSING[tier], f"{tier.title} {CROSSING[tier][0]:g} (assumed)"))
        else:
            costs.append(reported(factor, f"{tier.title} {factor.value:.3g}"))
    return tuple(costs)


def crossing_factor(tier: Tier) -> str:
    """Return the name of a tier's factor."""
    return f"topology.{tier.name.lower()}"


def crossing_shares(domains: int, unknown: int) -> tuple[float, float, float]:
    """Return the share of even traffic that crosses *domains*, with its interval.

    *unknown*: number of nodes that may be in other domains.
    """
    lower = 1.0 - 1.0 / max(domains, 1)
    upper = 1.0 - 1.0 / max(domains + unknown, 1)
    return 0.5 * (lower + upper), lower, upper


def topology_factor(
    members: Members, communication: Quantity, crossing: Sequence[Quantity]
) -> Quantity:
    """Return the factor on a gang's speed for its tiers. *crossing*: cost of each."""
    longer = [0.0, 0.0, 0.0]
    spanned: list[str] = []
    priced: list[Quantity] = []
    tiers = zip(PRICED_TIERS, members.domains, members.unknown, crossing, strict=True)
    for row, (tier, domains, unknown, cost) in enumerate(tiers):
        shares = members.tier_shares(row)
        for bound, bound_cost in enumerate((cost.value, cost.lower, cost.upper)):
            longer[bound] += shares[bound] * bound_cost
        if domains > 1 or unknown:
            priced.append(cost)
        if domains > 1:
            spanned.append(f"{domains} {tier.plural}")
        if unknown:
            spanned.append(f"{tier.title} of {counted(unknown, 'node')} not known")
    shares = communication.value, communication.lower, communication.upper
    value, upper, lower = (1.0 / (1.0 + s * x) for s, x in zip(shares, longer, strict=True))
    sources = [cost.source for cost in priced]
    costs = "assumed"
    if QuantitySource.REPORTED in sources:
        costs = ", ".join(cost.evidence for cost in priced)
    evidence = f"{', '.join(spanned) or 'one domain of each tier'}; cost of crossing {costs}"
    if members.crossing_evidence:
        evidence += f"; {members.crossing_evidence}"
    source = weakest((communication.source, *sources)) if priced else QuantitySource.ASSUMED
    return Quantity(value, lower, upper, source, evidence)


def gang_speed(members: Members) -> Quantity:
    return Quantity(
        float(members.speed.min()),
        float(np.minimum(members.speed_lower, members.speed).min()),
        float(np.maximum(members.speed_upper, members.speed).min()),
        members.speed_source,
        members.speed_evidence,
    )


def hazard_sum(members: Members) -> Quantity:
    """Return the interruptions per hour that the members cause."""
    total = float(members.hazard.sum())
    return Quantity(
        total,
        min(float(members.hazard_lower.sum()), total),
        max(float(members.hazard_upper.sum()), total),
        QuantitySource.MEASURED,
        members.hazard_evidence,
    )


def survival(
    hazard: Quantity, shared: Quantity, hours: float, preemptions_per_hour: float = 0.0
) -> Quantity:
    """Return P(no interruption over *hours*) of a gang."""

    def without(own: float, other: float) -> float:
        return exp(-(own + other + preemptions_per_hour) * hours)

    lower, upper = without(hazard.upper, shared.upper), without(hazard.lower, shared.lower)
    return assumed(without(hazard.value, shared.value), lower, upper, hazard.evidence)


def hazard_sum_max(needs: GangRequirements, shared: Quantity) -> float:
    """Return the highest sum of the members' hazards with a survival of *needs*.survival_min.

    Infinite without a floor; negative if *shared* alone is too much.
    """
    if needs.survival_min <= 0.0:
        return inf
    # The search and the price add the hazards in different orders; the margin keeps the survival of
    # each plan at the floor.
    return (-log(needs.survival_min) / needs.hours) * (1.0 - ROUNDING) - shared.value


def preemption_sum(members: Members) -> Quantity:
    """Return the declared preemptions per hour of members that are spot capacity."""
    count = int(np.count_nonzero(members.preemption))
    total = float(members.preemption.sum())
    nodes = f"{count} spot nodes of {members.speed.size}"
    return declared(total, f"{nodes}, {total:.4g} preemptions an hour in all")


def money_part(members: Members, lost: LostTime) -> PricePart | None:
    """Return the GPUs' price in currency, in GPU-hours. None: no exchange rate or price."""
    if not lost.currency_rate or members.gpu_prices is None:
        return None
    gpu_hours = lost.gross_gpu_hours / members.speed.size
    value, lower, upper = (float(row.sum()) * gpu_hours for row in members.gpu_prices)
    undeclared = int((members.gpu_prices[2] > members.gpu_prices[1]).sum())
    gross, source = f"{lost.gross_gpu_hours:g} GPU-hours", QuantitySource.DECLARED
    evidence = f"{value:,.6g} of currency for {gross}; {lost.currency_text}"
    if undeclared:
        source = QuantitySource.ASSUMED
        evidence += f"; no price is declared for {counted(undeclared, 'node')}: the mean of the others is used"
    rate = lost.currency_rate
    bounds = min(lower, value) * rate, max(upper, value) * rate
    return PricePart("money", Quantity(value * rate, *bounds, source, evidence))


def _parts_beside(
    members: Members,
    lost: LostTime,
    preferences: Mapping[Tier, float],
    stranded_gpu_hours: Quantity | None,
) -> list[PricePart]:
    """Return parts besides lost GPU-hours: preferences, stranded nodes, and money."""
    parts: list[PricePart] = []
    for tier, rate in preferences.items():
        row = PRICED_TIERS.index(tier)
        count = members.domains[row] + (members.unknown[row] > 0)
        evidence = f"{count} of tier {tier.title}, {rate:g} each after the first"
        preference = declared(rate * max(count - 1, 0), evidence)
        parts.append(PricePart(f"preference for one {tier.title}", preference))
    if stranded_gpu_hours is not None:
        parts.append(PricePart("stranded GPUs", stranded_gpu_hours))
    if (money := money_part(members, lost)) is not None:
        parts.append(money)
    if members.neighbor_losses is not None:
        parts.append(PricePart("slowed neighbors", members.neighbor_losses))
    return parts


def _speed_parts(members: Members, gross: float, speed: Quantity) -> list[PricePart]:
    """Return the parts lost to the slowest member alone, and to the neighbors of members."""
    if members.speed_alone is None:
        return [PricePart("slowest member", _lost_share(gross, speed))]
    value, lower, upper = members.speed_alone
    alone = gang_speed(replace(members, speed=value, speed_lower=lower, speed_upper=upper))
    slower = Quantity(
        gross * (alone.value - speed.value),
        0.0,
        gross * max(alone.upper - speed.lower, alone.value - speed.value),
        QuantitySource.ASSUMED,
        members.neighbor_evidence,
    )
    return [
        PricePart("slowest member", _lost_share(gross, alone)),
        PricePart("neighbors", slower),
    ]


def _lost_share(gpu_hours: float, remaining: Quantity) -> Quantity:
    """Return the part of *gpu_hours* that is lost if the share *remaining* remains."""
    return Quantity(
        gpu_hours * (1.0 - remaining.value),
        gpu_hours * (1.0 - remaining.upper),
        gpu_hours * (1.0 - remaining.lower),
        remaining.source,
        remaining.evidence,
    )


def price(
    members: Members,
    lost: LostTime,
    hours: float,
    preferences: Mapping[Tier, float] | None = None,
    stranded_gpu_hours: Quantity | None = None,
) -> GangPrice:
    """Return the price of *members* over *hours*. The parts sum to the total."""
    gross, speed, hazard = lost.gross_gpu_hours, gang_speed(members), hazard_sum(members)
    topology = topology_factor(members, lost.communication, lost.crossing)
    per, write, shared = lost.per_interruption_hours, lost.checkpoint_share, lost.shared_hazard
    pace = speed.value * topology.value
    taken = preemption_sum(members) if members.preemption.size else declared(0.0, "")
    shares = [write.value, *(rate.value * per.value for rate in (hazard, shared, taken))]
    scale = min(1.0, 1.0 / max(sum(shares), 1e-300))  # limit the loss to the whole
    low = min(1.0, write.lower + (hazard.lower + shared.lower + taken.value) * per.lower)
    high = min(1.0, write.upper + (hazard.upper + shared.upper + taken.value) * per.upper)
    useful = Quantity(
        pace * (1.0 - scale * sum(shares)),
        speed.lower * topology.lower * (1.0 - high),
        speed.upper * topology.upper * (1.0 - low),
        weakest((speed.source, topology.source, per.source)),
        f"{gross:g} GPU-hours",
    )

    def lost_to(name: str, share: float, lower: float, upper: float, of: Quantity) -> PricePart:
        low_share, high_share = min(lower, scale * share), max(min(upper, 1.0), scale * share)
        bounds = gross * pace * low_share, gross * pace * high_share
        value = Quantity(gross * pace * scale * share, *bounds, of.source, of.evidence)
        return PricePart(name, value)

    def lost_to_rate(name: str, share: float, rate: Quantity) -> PricePart:
        return lost_to(name, share, rate.lower * per.lower, rate.upper * per.upper, rate)

    parts = [
        *_speed_parts(members, gross, speed),
        PricePart("topology", _lost_share(gross * speed.value, topology)),
        lost_to("checkpoint writes", shares[0], write.lower, write.upper, write),
        lost_to_rate("interruptions by members", shares[1], hazard),
        lost_to_rate("shared interruptions", shares[2], shared),
    ]
    if taken.value:
        parts.append(lost_to_rate("spot preemption", shares[3], taken))
    lost_parts = len(parts)
    parts += _parts_beside(members, lost, preferences or {}, stranded_gpu_hours)
    others = [cost.gpu_hours for cost in parts[lost_parts:]]
    other_costs = Quantity(
        sum(cost.value for cost in others),
        sum(cost.lower for cost in others),
        sum(cost.upper for cost in others),
        weakest(cost.source for cost in others),
    )
    total = Quantity(
        sum(part.gpu_hours.value for part in parts),
        gross * (1.0 - useful.upper) + other_costs.lower,
        gross * (1.0 - useful.lower) + other_costs.upper,
        useful.source,
        useful.evidence,
    )
    survives = survival(hazard, shared, hours, taken.value)
    return GangPrice(
        total=total,
        parts=tuple(parts),
        survival=survives,
        speed=speed,
        topology=topology,
        goodput=useful,
        beside=other_costs,
    )
