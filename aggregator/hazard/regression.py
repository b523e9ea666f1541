"""Fits the weights of the hazard model by complementary log-log regression with a ridge.

Weights are zero or above. numpy suffices: a few hundred faults decide nine weights, for which a
learning library is too heavy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import Flags, Floats
from .features import BASIC_AND_CLASS_NAMES, FEATURE_NAMES

STEPS_MAX = 200
STEP_MAX = 1.0
TOLERANCE = 1e-7
LOG_MEAN_MIN, LOG_MEAN_MAX = -30.0, 3.0
#: Minimum weight of the ordering feature: too small to matter, large enough to keep hosts distinct.
ORDER_WEIGHT_MIN = 1e-3


def fit(
    features: Floats,
    outcome: Floats,
    ridge: float,
    names: Sequence[str] = BASIC_AND_CLASS_NAMES,
    ordered_by: str = "",
) -> tuple[float, tuple[float, ...]]:
    """Return the base (a log) and the weights by FEATURES of the maximum likelihood.

    *features*: units x features. *outcome*: 0 or 1. *ridge*: penalty on half the squares of the
    weights, not on the base. *names*: features that may have a weight; others have zero. Weights
    are zero or above, because a past fault never makes a host better; the weight of *ordered_by* is
    above zero.
    """
    columns = [FEATURE_NAMES.index(name) for name in names]
    minimum = np.array([0.0, *(ORDER_WEIGHT_MIN * (name == ordered_by) for name in names)])
    rows, weight, positive = _grouped(features[:, columns], outcome)
    design = np.hstack((np.ones((len(rows), 1)), rows))
    penalty = np.full(design.shape[1], ridge)
    penalty[0] = 0.0
    estimate = np.zeros(design.shape[1])
    estimate[0] = np.log(max(positive.sum(), 0.5) / weight.sum())
    for _ in range(STEPS_MAX):
        step = _step(design, weight, positive, penalty, estimate, estimate > minimum)
        after = estimate + np.clip(step, -STEP_MAX, STEP_MAX)
        after[1:] = np.maximum(after[1:], minimum[1:])
        moved = np.abs(after - estimate).max()
        estimate = after
        if moved < TOLERANCE:
            break
    weights = np.zeros(len(FEATURE_NAMES))
    weights[columns] = estimate[1:]
    return float(estimate[0]), tuple(weights.tolist())


def _grouped(features: Floats, outcome: Floats) -> tuple[Floats, Floats, Floats]:
    """Return distinct rows, the number of units in each, and how many of them are positive.

    Nearly all units are of nodes that never failed, which share a row.
    """
    zero: Flags = ~np.any(features, axis=1)
    rows = np.vstack((np.zeros((1, features.shape[1])), features[~zero]))
    weight = np.concatenate(([float(zero.sum())], np.ones(len(rows) - 1)))
    return rows, weight, np.concatenate(([outcome[zero].sum()], outcome[~zero]))


def _step(
    design: Floats,
    weight: Floats,
    positive: Floats,
    penalty: Floats,
    coefficients: Floats,
    inside: Flags,
) -> Floats:
    """Return a Fisher scoring step for the free weights: *inside* their bounds, or about to be."""
    mean = np.exp(np.clip(design @ coefficients, LOG_MEAN_MIN, LOG_MEAN_MAX))
    chance = -np.expm1(-mean)
    slope = design.T @ ((positive - weight * chance) * mean / chance) - penalty * coefficients
    curve = (design * (weight * mean**2 * (1.0 - chance) / chance)[:, None]).T @ design
    curve += np.diag(penalty)
    free = inside | (slope > 0.0)
    free[0] = True
    step = np.zeros(len(coefficients))
    curve = curve[np.ix_(free, free)] + 1e-9 * np.eye(int(free.sum()))
    step[free] = np.linalg.solve(curve, slope[free])
    return step
