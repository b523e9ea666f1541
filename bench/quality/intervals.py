"""Intervals of 90 % for counts: shares, rates of weighted counts, medians."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma, log, nan, sqrt

import numpy as np

#: Standard normal quantile of 95 %.
Z95 = 1.6448536269514722
_TAIL = 0.05
_DRAWS = 2000


def wilson(hits: float, of: float) -> tuple[float, float]:
    """Return the interval of a share, *hits* of *of* (Wilson 1927); 0 to 1 if *of* is 0."""
    if of == 0:
        return 0.0, 1.0
    share, z2 = hits / of, Z95 * Z95
    middle = share + z2 / (2 * of)
    reach = Z95 * sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    scale = 1 + z2 / of
    return max((middle - reach) / scale, 0.0), min((middle + reach) / scale, 1.0)


def weighted_rate(weights: Sequence[float], largest: float) -> tuple[float, float]:
    """Return the interval of a sum of *weights*, one for each event of Poisson processes.

    *largest*: the largest weight that an event could have had. Fay and Feuer (1997), Confidence
    intervals for directly standardized rates: exact for equal weights, and never too short for
    others.
    """
    total = float(sum(weights))
    spread = float(sum(weight * weight for weight in weights))
    upper_total, upper_spread = total + largest, spread + largest * largest
    low = 0.0
    if spread > 0:
        low = spread / total * gamma_quantile(total * total / spread, _TAIL)
    shape = upper_total * upper_total / upper_spread
    return low, upper_spread / upper_total * gamma_quantile(shape, 1 - _TAIL)


def gamma_quantile(shape: float, probability: float) -> float:
    """Return the *probability* quantile of a gamma variate of *shape* and scale 1."""
    low, high = 0.0, shape + 40.0 * sqrt(shape) + 40.0
    for _ in range(200):
        middle = (low + high) / 2
        if gamma_below(shape, middle) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def gamma_below(shape: float, value: float) -> float:
    """Return the regularized lower incomplete gamma function (Abramowitz and Stegun 6.5.29)."""
    if value <= 0:
        return 0.0
    term = total = 1.0 / shape
    step = shape
    while abs(term) > 1e-15 * abs(total):
        step += 1.0
        term *= value / step
        total += term
    return min(total * exp(shape * log(value) - value - lgamma(shape)), 1.0)


def median(values: Sequence[float], seed: int) -> tuple[float, float, float]:
    """Return the median and its bootstrap interval; NaN without values."""
    if not values:
        return nan, nan, nan
    samples = np.random.default_rng(seed).choice(np.array(values), (_DRAWS, len(values)))
    low, high = np.quantile(np.median(samples, axis=1), [_TAIL, 1 - _TAIL])
    return float(np.median(values)), float(low), float(high)
