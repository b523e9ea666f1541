"""GPU-hours as random variables, sampled at the same points for all alternatives.

Durations are lognormal, failures Poisson. The points are fixed and evenly spread in the unit cube.
So one question has one answer, and two alternatives differ only by their properties, not by chance.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import exp, log
from statistics import NormalDist

import numpy as np

from ..arrays import Floats
from .price import REPAIR_HOURS, LostTime, Members, PricePart
from .quantity import Quantity, QuantitySource, assumed, weakest

#: Number of points, and their dimensions.
POINTS = 512
DETECT, DECIDE, ACT, RESUME, LOST_WORK, REPAIR, SECOND, OTHER, TOPOLOGY, SPEED, INTERRUPTION = (
    range(11)
)
DIMENSIONS = 11
#: Further coordinates, one for each priced tier; TOPOLOGY is for the share of communication.
CROSSING_ROOTS = np.array([2.0, 3.0, 5.0, 7.0, 11.0])
#: Half the width of the 90 % interval of a normal distribution.
Z90 = 1.6449
#: Sigma of the logarithm of a repair's length: p90 is 311 h if the median is 20 h.
REPAIR_SIGMA = log(REPAIR_HOURS[2] / REPAIR_HOURS[0]) / 1.2816

#: Members that may be the slowest of a gang, and speeds at which their distributions are evaluated.
SLOW_MEMBERS, SPEED_STEPS = 64, 33


@cache
def points() -> Floats:
    """Return evenly spread points in 11 dimensions: multiples of powers of a root, modulo 1.

    The last coordinate is van der Corput's, so that each of the eleven alone is even.
    """
    dimensions, root = DIMENSIONS - 1, 2.0
    for _ in range(60):  # root ** (dimensions + 1) == root + 1
        root = (1.0 + root) ** (1.0 / (dimensions + 1))
    steps = np.array([root ** -(index + 1.0) for index in range(dimensions)])
    evenly = (0.5 + np.arange(1, POINTS + 1)[:, None] * steps) % 1.0
    bits = POINTS.bit_length() - 1
    reversed_bits = [int(f"{index:0{bits}b}"[::-1], 2) for index in range(POINTS)]
    last = (np.array(reversed_bits, dtype=np.float64) + 0.5) / POINTS
    return np.asarray(np.column_stack((evenly, last)), dtype=np.float64)


def _inverse_normal(shares: Floats) -> Floats:
    inverse = NormalDist().inv_cdf
    rows = [[inverse(min(max(s, 1e-6), 1.0 - 1e-6)) for s in row] for row in shares.tolist()]
    return np.array(rows, dtype=np.float64)


@cache
def _normals() -> Floats:
    """Return the points with each coordinate normal."""
    return _inverse_normal(points())


def drawn(one: Quantity, dimension: int) -> Floats:
    """Return values of a lognormal with the median and the width of the 90 % interval of *one*."""
    if one.value <= 0.0 or one.upper <= one.lower:
        return np.full(POINTS, one.value, dtype=np.float64)
    lower = one.lower if one.lower > 0.0 else one.value**2 / one.upper
    sigma = log(max(one.upper / max(lower, 1e-12), 1.0)) / 3.2897
    return np.asarray(one.value * np.exp(sigma * _normals()[:, dimension]), dtype=np.float64)


def drawn_between(one: Quantity, dimension: int) -> Floats:
    """Return values with this median and 5 % beyond each end; they may be negative.

    Above a nonzero median they are lognormal, else normal; below it normal, but at least the lower
    end.
    """
    return _between(one, _normals()[:, dimension])


def _between(quantity: Quantity, normals: Floats) -> Floats:
    scale = normals / Z90
    below = quantity.value + (quantity.value - quantity.lower) * np.maximum(scale, -1.0)
    above = quantity.value + (quantity.upper - quantity.value) * scale
    if quantity.value > 0.0 and quantity.upper > quantity.value:
        above = quantity.value * np.exp(log(quantity.upper / quantity.value) * scale)
    return np.asarray(np.where(scale < 0.0, below, above), dtype=np.float64)


@cache
def _crossing_normals() -> Floats:
    """Return normals at the points per priced tier: multiples of roots of primes, modulo 1."""
    evenly = np.arange(1, POINTS + 1)[:, None] * np.sqrt(CROSSING_ROOTS) % 1.0
    return _inverse_normal(np.asarray(evenly, dtype=np.float64))


def topology_lost(members: Members, lost: LostTime) -> Floats:
    """Return the share of the pace lost by crossing tiers, with independent errors.

    The median of a sum of such costs is above the sum of their medians, and its interval does not
    have all of them at one end.
    """
    normals = _crossing_normals()
    longer = np.zeros(POINTS)
    for row, cost in enumerate(lost.crossing):
        shares = members.tier_shares(row)
        value, lower, upper = (
            share * cost_bound
            for share, cost_bound in zip(shares, (cost.value, cost.lower, cost.upper), strict=True)
        )
        if upper > 0.0:
            longer += _between(assumed(value, lower, upper, ""), normals[:, row])
    communication = np.clip(drawn_between(lost.communication, TOPOLOGY), 0.0, 1.0)
    return np.asarray(1.0 - 1.0 / (1.0 + communication * longer), dtype=np.float64)


def narrowed(one: Quantity, width: float) -> Quantity:
    """Return *one* with its interval scaled by *width*, for independent errors of parts."""
    return replace(
        one,
        lower=one.value - width * (one.value - one.lower),
        upper=one.value + width * (one.upper - one.value),
    )


def slowest_width(members: Members) -> float:
    """Return the slowest member's interval with independent errors, relative to common errors.

    More members than `SLOW_MEMBERS` would make it slightly narrower.
    """
    slowest = np.argsort(members.speed_lower, kind="stable")[:SLOW_MEMBERS]
    speed = members.speed[slowest]
    below = np.maximum(speed - members.speed_lower[slowest], 0.0) / Z90
    above = np.maximum(members.speed_upper[slowest] - speed, 0.0) / Z90
    low = float(np.minimum(members.speed_lower, members.speed).min())
    high = float(np.maximum(members.speed_upper, members.speed).min())
    if not low < high:
        return 1.0
    grid = np.linspace(low - (high - low), high, SPEED_STEPS)[:, None]
    spread = np.maximum(np.where(grid < speed, below, above), 1e-9)
    faster = 1.0 - np.interp((grid - speed) / spread, *_normal_shares())
    shares = 1.0 - faster.prod(axis=1)  # by speed, the probability that the slowest member is below
    ends = np.interp((0.05, 0.95), shares, grid[:, 0])
    return float(min((ends[1] - ends[0]) / (high - low), 1.0))


@cache
def _normal_shares() -> tuple[Floats, Floats]:
    """Return points of the normal distribution, and the shares below them."""
    grid = np.linspace(-5.0, 5.0, 201)
    return grid, np.array([NormalDist().cdf(point) for point in grid.tolist()], dtype=np.float64)


@cache
def _last_of(count: int) -> Floats:
    """Return normals, each the largest of *count*."""
    inverse = NormalDist().inv_cdf
    uniform = points()[:, REPAIR] ** (1.0 / max(count, 1))
    return np.array(
        [inverse(min(max(share, 1e-9), 1.0 - 1e-9)) for share in uniform.tolist()], dtype=np.float64
    )


def repair_hours(median: float, count: int) -> Floats:
    """Return hours until the last of *count* nodes is repaired: lognormal, independent."""
    # Beyond 1,000 nodes the largest hardly changes; the bound keeps the cache small.
    return np.asarray(median * np.exp(REPAIR_SIGMA * _last_of(min(count, 1000))), dtype=np.float64)


def second_failures(mean: float) -> Floats:
    """Return the number of further interruptions: Poisson."""
    if mean > 50.0:
        return np.asarray(
            np.maximum(0.0, np.round(mean + mean**0.5 * _normals()[:, SECOND])), dtype=np.float64
        )
    terms = np.cumprod(np.concatenate(([exp(-mean)], mean / np.arange(1.0, 200.0))))
    counts = np.searchsorted(np.cumsum(terms), points()[:, SECOND]).astype(np.float64)
    sample_mean = float(counts.mean())
    # Rare interruptions have too few points, so the mean is corrected.
    if sample_mean:
        return np.asarray(counts * (mean / sample_mean), dtype=np.float64)
    return np.full(POINTS, mean, dtype=np.float64)


class SampledSum:
    """GPU-hours in parts, each a number or values at the points. The parts sum to the total."""

    def __init__(self) -> None:
        self._names: list[tuple[str, QuantitySource, str]] = []
        self._samples: list[Floats] = []
        self._fixed: list[PricePart] = []

    def add(self, name: str, samples: Floats, source: QuantitySource, evidence: str) -> None:
        """Add a random part."""
        self._names.append((name, source, evidence))
        self._samples.append(samples)

    def add_fixed(self, part: PricePart) -> None:
        """Add a part whose interval does not affect the total's."""
        self._fixed.append(part)

    def parts_and_total(self) -> tuple[tuple[PricePart, ...], Quantity, float, float]:
        """Return (parts, total with its 90 % interval, p50, p90)."""
        values = np.stack(self._samples)
        fixed = sum(part.gpu_hours.value for part in self._fixed)
        everything = np.sort(np.concatenate((values, values.sum(axis=0)[None] + fixed)), axis=1)
        means = everything.mean(axis=1)
        ranks = [round(share * (POINTS - 1)) for share in (0.05, 0.5, 0.9, 0.95)]
        low, middle, late, high = everything[:, ranks].T
        lowest, highest = np.minimum(low, means), np.maximum(high, means)
        parts = [
            PricePart(name, Quantity(float(mean), float(lower), float(upper), source, evidence))
            for (name, source, evidence), mean, lower, upper in zip(
                self._names, means, lowest, highest, strict=False
            )
        ]
        parts += self._fixed
        source = weakest(part.gpu_hours.source for part in parts)
        total = Quantity(
            float(means[-1]), float(lowest[-1]), float(highest[-1]), source, f"{POINTS} points"
        )
        return tuple(parts), total, float(middle[-1]), float(late[-1])
