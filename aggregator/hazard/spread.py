"""The 90 % interval of one host's hazard, by how hosts and fortnights differ.

A lasting difference of a host shows in fortnights far apart: a host with more faults than others in some has more in
others, too. A burst after a repair is over by then. The fleet's level, which all hosts share, varies by itself."""

from __future__ import annotations

from collections.abc import Callable
from math import erf, exp, expm1, log, sqrt

import numpy as np

from .events import Floats, Indexes
from .history import Units
from .model import SPREAD_ASSUMED, SPREAD_MAX

#: Blocks of days that are compared, each with those that are not next to it.
BLOCK_DAYS = 14
#: The prior weighs as much as this many pairs of blocks with one expected fault each: a few faults prove little.
PAIRS_ASSUMED = 5.0
#: What the interval holds.
SHARE = 0.9


def spread_of(daily: Units, outcome: str) -> float:
    """Return the factor up and down that holds 90 % of hosts' hazards: each has one of its own, as has each block of days.

    *daily*: all units, with windows of a day. Both factors are taken for lognormal, of mean 1, their variances by moments. Of hosts: over pairs
    of blocks, faults beyond those expected in the one times those in the other, by what is expected of both. Of the level:
    faults beyond those expected of a block, squared, less their own variance. To the variance of the logarithm comes one
    over the number of faults: the level is no surer.
    """
    positive = daily.positives(outcome)
    block = daily.day // BLOCK_DAYS
    shape = (int(daily.node.max()) + 1, int(block.max()) + 1)
    at = daily.node * shape[1] + block
    up, faults = (_sum_by_block(at, one, shape) for one in (np.ones(len(at)), positive))
    logs = _host_variance(up, faults) + _level_variance(up.sum(axis=0), faults.sum(axis=0))
    logs += 1.0 / max(float(positive.sum()), 1.0)
    return factor_of(sqrt(logs))


def factor_of(sigma: float) -> float:
    """Return f, so that a lognormal of mean 1, whose logarithm has the standard deviation *sigma*, is within 1 / f and f
    with 90 %; SPREAD_MAX at most.

    It lies about the mean, which is above the median: most of the rest is below 1 / f, better than is reported.
    """
    return exp(_root(lambda log_factor: SHARE - _share_within(log_factor, sigma), log(SPREAD_MAX)))


def _share_within(log_factor: float, sigma: float) -> float:
    """Return with what chance such a one is within the factor."""
    low, high = ((sign * log_factor + sigma**2 / 2.0) / (sigma * sqrt(2.0)) for sign in (-1, 1))
    return (erf(high) - erf(low)) / 2.0


def _root(falling: Callable[[float], float], most: float) -> float:
    """Return where a function that falls is zero, within 0 and *most*."""
    low, high = 0.0, most
    for _ in range(50):
        middle = (low + high) / 2.0
        low, high = (middle, high) if falling(middle) > 0.0 else (low, middle)
    return (low + high) / 2.0


def _variance_of(factor: float) -> float:
    """Return the variance of a lognormal with 90 % of its mass within *factor*."""
    sigma = _root(lambda one: _share_within(log(factor), one) - SHARE, 5.0)
    return expm1(sigma**2)


VARIANCE_ASSUMED = _variance_of(SPREAD_ASSUMED)


def _sum_by_block(at: Indexes, values: Floats, shape: tuple[int, int]) -> Floats:
    """Return hosts x blocks."""
    return np.bincount(at, values, shape[0] * shape[1]).astype(np.float64).reshape(shape)


def _host_variance(up: Floats, faults: Floats) -> float:
    """Return the variance of the logarithm of hosts' own factors. *up*: days of hosts x blocks."""
    expected = up * (faults.sum(axis=0) / np.maximum(up.sum(axis=0), 1.0))
    known = _pair_sum(expected) + PAIRS_ASSUMED
    variance = (_pair_sum(faults - expected) + PAIRS_ASSUMED * VARIANCE_ASSUMED) / known
    return float(np.log1p(max(variance, 0.0)))


def _level_variance(up: Floats, faults: Floats) -> float:
    """Return the same of the fleet's level. *up*: days of all hosts, by blocks."""
    expected = up * (faults.sum() / up.sum())
    beyond = ((faults - expected) ** 2 - faults).sum() / max((expected**2).sum(), 1.0)
    return float(np.log1p(max(beyond, 0.0)))


def _pair_sum(values: Floats) -> float:
    """Return the sum, over hosts (rows), of the products of all pairs of blocks (columns) that are not neighbours."""
    alone, beside = (values**2).sum(), (values[:, 1:] * values[:, :-1]).sum()
    return float(((values.sum(axis=1) ** 2).sum() - alone) / 2.0 - beside)
