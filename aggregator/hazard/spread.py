"""The 90 % interval of a host's hazard, from the differences between hosts and between fortnights.

A lasting difference of a host shows in fortnights far apart: a host with more faults than others in
some has more in others, too. A burst after a repair is over by then. The fleet's common level
varies as well.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf, exp, expm1, log, sqrt

import numpy as np

from ..arrays import Floats
from .history import Units
from .model import SPREAD_ASSUMED, SPREAD_MAX

#: Length of the compared blocks; adjacent blocks are not compared.
BLOCK_DAYS = 14
#: Weight of the prior, in pairs of blocks with an expected fault each: a few faults prove little.
PAIRS_ASSUMED = 5.0
#: Share of hosts within the interval.
SHARE = 0.9


def spread_of(daily: Units, outcome: str) -> float:
    """Return the factor up and down that contains 90 % of hosts' hazards.

    *daily*: all units, with windows of a day. Each host and each block of days has its own factor,
    assumed lognormal with mean 1; variances are estimated by moments. For hosts: over pairs of
    blocks, the product of their excess faults divided by the product of their expected faults. For
    the level: a block's excess faults squared, minus their own variance. The variance of the
    logarithm is increased by 1 / (number of faults), the uncertainty of the level.
    """
    positive = daily.positives(outcome)
    block = daily.day // BLOCK_DAYS
    shape = (int(daily.node.max()) + 1, int(block.max()) + 1)
    cells = daily.node * shape[1] + block
    up, faults = (
        np.bincount(cells, values, shape[0] * shape[1]).astype(np.float64).reshape(shape)
        for values in (np.ones(len(cells)), positive)
    )
    logs = _host_variance(up, faults) + _level_variance(up.sum(axis=0), faults.sum(axis=0))
    logs += 1.0 / max(float(positive.sum()), 1.0)
    return factor_of(sqrt(logs))


def factor_of(sigma: float) -> float:
    """Return f with 90 % of a lognormal within 1 / f and f, at most SPREAD_MAX.

    The lognormal has mean 1, and its logarithm the standard deviation *sigma*. The mean is above
    the median: the other hosts are mostly below 1 / f, better than reported.
    """
    return exp(_root(lambda log_factor: SHARE - _share_within(log_factor, sigma), log(SPREAD_MAX)))


def _share_within(log_factor: float, sigma: float) -> float:
    """Return the probability of that lognormal within the factor."""
    low, high = ((sign * log_factor + sigma**2 / 2.0) / (sigma * sqrt(2.0)) for sign in (-1, 1))
    return (erf(high) - erf(low)) / 2.0


def _root(falling: Callable[[float], float], maximum: float) -> float:
    """Return the zero of a decreasing function within 0 and *maximum*."""
    low, high = 0.0, maximum
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if falling(middle) > 0.0 else (low, middle)
    return (low + high) / 2.0


def _variance_of(factor: float) -> float:
    """Return the variance of a lognormal with 90 % of its mass within *factor*."""
    sigma = _root(lambda candidate: _share_within(log(factor), candidate) - SHARE, 5.0)
    return expm1(sigma**2)


VARIANCE_ASSUMED = _variance_of(SPREAD_ASSUMED)


def _host_variance(up: Floats, faults: Floats) -> float:
    """Return the variance of the logarithm of hosts' factors. *up*: up days, hosts x blocks."""
    expected = up * (faults.sum(axis=0) / np.maximum(up.sum(axis=0), 1.0))
    known = _pair_sum(expected) + PAIRS_ASSUMED
    variance = (_pair_sum(faults - expected) + PAIRS_ASSUMED * VARIANCE_ASSUMED) / known
    return float(np.log1p(max(variance, 0.0)))


def _level_variance(up: Floats, faults: Floats) -> float:
    """Return the variance of the logarithm of the fleet's level. *up*: up days by block."""
    expected = up * (faults.sum() / up.sum())
    beyond = ((faults - expected) ** 2 - faults).sum() / max((expected**2).sum(), 1.0)
    return float(np.log1p(max(beyond, 0.0)))


def _pair_sum(values: Floats) -> float:
    """Return the sum over hosts (rows) of products of all non-adjacent blocks (columns)."""
    squares, adjacent = (values**2).sum(), (values[:, 1:] * values[:, :-1]).sum()
    return float(((values.sum(axis=1) ** 2).sum() - squares) / 2.0 - adjacent)
