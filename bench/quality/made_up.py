"""Synthetic fleets of many kinds: what determines the next failure differs, as it may between clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gangline.aggregator.hazard.events import FaultTable

Floats = NDArray[np.float64]
STEP_DAYS = 0.25
#: Repair: lognormal, median 20 h (docs/simulation.md).
REPAIR_MEDIAN_DAYS, REPAIR_SIGMA = 20 / 24, 1.6
HARDWARE_SHARE = 0.6
WANDER_DAYS, RACK_NODES = 40.0, 16


@dataclass(frozen=True)
class SyntheticKind:
    """What makes hosts fail. Rates are of a day; assumed, around what is published of real fleets."""

    rate: float = 0.003
    frailty_shape: float = 0.0  # hosts differ by a Gamma of this shape and mean 1
    lemon_share: float = 0.0  # so many fail fifteen times as often, the others 0.6 times
    omori: float = 0.0  # after a return: rate x this / days
    burst: float = 0.0  # after a return, fading over `burst_days`
    burst_days: float = 2.0
    excited: float = 0.0  # each fault adds this, fading over 30 days
    shocks: float = 0.0  # a day: up to 6 % of all hosts at once
    drift: bool = False  # the fleet's level rises and falls, severalfold
    repaired: float = 1.0  # rate after the first fault, as a factor
    wander: float = (
        0.0  # each host's level walks by itself, with this spread and a memory of 40 days
    )
    wearing_days: float = 0.0  # the rate grows from nothing after a return to `rate` in so long, and on to three times that
    settling_days: float = 0.0  # the fleet is new: four times the rate, falling to it in so long
    rack_shocks: float = 0.0  # a day: half of one rack of 16 at once
    swapped: float = (
        1.0  # rate, as a factor, of a host that failed twice within 20 days: its parts are changed
    )


KINDS = {
    "all alike": SyntheticKind(),
    "hosts differ": SyntheticKind(frailty_shape=0.5),
    "hosts differ much": SyntheticKind(frailty_shape=0.15),
    "lemons": SyntheticKind(lemon_share=0.05),
    "recency, 1 / days": SyntheticKind(omori=30.0),
    "recency, two days": SyntheticKind(burst=0.15),
    "recency, 45 days": SyntheticKind(burst=0.02, burst_days=45.0),
    "each fault adds": SyntheticKind(excited=0.015),
    "recency and shocks": SyntheticKind(omori=30.0, shocks=0.06),
    "recency and drift": SyntheticKind(omori=30.0, drift=True),
    "hosts differ, recency": SyntheticKind(frailty_shape=0.5, omori=30.0),
    "lemons, two days": SyntheticKind(lemon_share=0.05, burst=0.15),
    "repair makes better": SyntheticKind(repaired=0.3),
    "all of it": SyntheticKind(frailty_shape=0.5, omori=30.0, shocks=0.06, drift=True),
    "two days, shocks, drift": SyntheticKind(burst=0.15, shocks=0.06, drift=True),
    "differ much, 45 days": SyntheticKind(frailty_shape=0.15, burst=0.02, burst_days=45.0),
}
#: Kinds that had no part in how the rule was made: what it is checked on.
UNSEEN = {
    "levels wander": SyntheticKind(wander=1.2),
    "levels wander, recency": SyntheticKind(wander=0.8, omori=20.0),
    "parts wear": SyntheticKind(rate=0.006, wearing_days=40.0),
    "new fleet settles": SyntheticKind(settling_days=60.0, frailty_shape=1.0),
    "racks fail": SyntheticKind(rack_shocks=0.08, burst=0.05, burst_days=10.0),
    "bad repairs, then swapped": SyntheticKind(burst=0.25, frailty_shape=0.5, swapped=0.2),
}


def made_up(name: str, nodes: int, days: int, seed: int) -> FaultTable:
    """Return the faults of a fleet of the kind *name*; the same for the same arguments."""
    source = np.random.default_rng([seed, crc32(name.encode()), nodes, days])
    rows = sorted(_faults({**KINDS, **UNSEEN}[name], nodes, days, source), key=lambda row: row[1])
    node, start, end = np.array(rows, dtype=np.float64).reshape(-1, 3).T
    hardware = source.random(len(node)) < HARDWARE_SHARE
    end = np.where(end < days, end, np.inf)
    names = tuple(f"node-{at}" for at in range(nodes))
    return FaultTable(names, node.astype(np.intp), start, end, hardware, float(days))


def _faults(
    kind: SyntheticKind, nodes: int, days: int, source: np.random.Generator
) -> Iterator[tuple[float, float, float]]:
    """Yield node, start, end."""
    individual = _individual_rates(kind, nodes, source)
    excited, level, individual_level = np.zeros(nodes), 0.0, np.zeros(nodes)
    returned = np.full(nodes, -np.inf)  # in future: it is down
    failed = np.full(nodes, -np.inf)
    for at in np.arange(0.0, days, STEP_DAYS):
        level = 0.98 * level + source.normal(0.0, 0.13) if kind.drift else 0.0
        if kind.wander:
            fade = np.exp(-STEP_DAYS / WANDER_DAYS)
            individual_level = fade * individual_level + kind.wander * np.sqrt(1.0 - fade**2) * source.normal(size=nodes)  # fmt: skip
        hazard = individual * np.exp(level + individual_level) * _aged(kind, at, returned)
        hazard = hazard + excited + _after_return(kind, at - returned)
        chance = -np.expm1(-hazard * STEP_DAYS)
        if kind.rack_shocks and source.random() < kind.rack_shocks * STEP_DAYS:
            chance[np.arange(nodes) // RACK_NODES == source.integers(nodes // RACK_NODES)] = 0.5
        if source.random() < kind.shocks * STEP_DAYS:
            chance = np.maximum(chance, source.random(nodes) < source.uniform(0.005, 0.06))
        excited *= np.exp(-STEP_DAYS / 30.0)
        for node in np.flatnonzero((returned <= at) & (source.random(nodes) < chance)):
            start = at + source.uniform(0.0, STEP_DAYS)
            repair = source.lognormal(np.log(REPAIR_MEDIAN_DAYS), REPAIR_SIGMA)
            if returned[node] == -np.inf:
                individual[node] *= kind.repaired
            elif start - failed[node] < 20.0:
                individual[node] *= kind.swapped
            failed[node] = start
            returned[node] = start + max(0.02, repair)
            excited[node] += kind.excited
            yield float(node), start, returned[node]


def _individual_rates(kind: SyntheticKind, nodes: int, source: np.random.Generator) -> Floats:
    rates = np.full(nodes, kind.rate)
    if kind.frailty_shape:
        rates *= source.gamma(kind.frailty_shape, 1.0 / kind.frailty_shape, nodes)
    if kind.lemon_share:
        rates *= np.where(source.random(nodes) < kind.lemon_share, 15.0, 0.6)
    return rates


def _aged(kind: SyntheticKind, at: float, returned: Floats) -> Floats | float:
    """Return by what a host's own rate is multiplied for how long it, or the fleet, has run."""
    if kind.wearing_days:
        since = np.maximum(at - np.maximum(returned, 0.0), 0.0)
        return np.minimum(since / kind.wearing_days, 3.0)
    return 1.0 + 3.0 * np.exp(-at / kind.settling_days) if kind.settling_days else 1.0


def _after_return(kind: SyntheticKind, since_days: Floats) -> Floats:
    since = np.maximum(since_days, 0.0)
    return kind.rate * kind.omori / (since + 0.2) + kind.burst * np.exp(-since / kind.burst_days)
