"""Sensitivity and pressure of each workload, learned from co-locations with shrinkage.

The excess of a workload beside a neighbor is its sensitivity times the neighbor's pressure, summed over a few latent
resources, plus its sensitivity to each known resource times the excess that physics predicts. All numbers are at least
0, so a neighbor never speeds a workload up. Each estimate is shrunk toward the workload's prior (empirical Bayes): for
latent resources the average of its context plus a slope of its pace, for known resources 1, which is physics alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indexes = npt.NDArray[np.intp]

#: Rounds of alternating least squares.
ROUNDS = 30
#: Ridge of a latent effect, and of a sensitivity to a known resource, in squared relative errors.
EFFECT_RIDGE, RESOURCE_RIDGE = 0.02, 0.1
#: A pace is limited to this many standard deviations of the training's paces.
PACE_MAX = 2.5
#: Lower bound of the spread of log paces: workloads with one pace have no slope.
_SPREAD_MIN = 0.1
_NOISE_MIN = 0.01


class CoRuns(NamedTuple):
    """Slowdowns of one workload beside one neighbor: `ratio` (rows) of its pace alone to its pace beside the neighbor.

    `own`, `other`: indexes of workloads. `excess` (rows, resources): by physics, 0 where unknown.
    """

    own: Indexes
    other: Indexes
    ratio: Floats
    excess: Floats

    def part(self, rows: npt.NDArray[Any]) -> CoRuns:
        """Return the rows that the indexes or flags *rows* select."""
        return CoRuns(**{name: array[rows] for name, array in self._asdict().items()})


class WorkloadTable(NamedTuple):
    """Facts of workloads before any co-location. `pace_seconds`: alone, NaN unknown.

    `family`: workloads of a family count as one in the slopes. `context`: an average is learned for each, by index.
    """

    pace_seconds: Floats
    family: Indexes
    context: Indexes


class Shrinkage(NamedTuple):
    """Choices that cross-validation inside the training makes: latent resources, and ridge of the slopes."""

    rank: int = 2
    slope_ridge: float = 3.0


class Prior(NamedTuple):
    """Prior of latent effects: `average` (contexts, rank) plus `slope` (rank) times the standardized pace.

    `variance` (rank): around the prior. `center` (contexts) and `spread` standardize the log pace.
    """

    average: Floats
    slope: Floats
    variance: Floats

    def mean(self, pace: Floats, context: Indexes) -> Floats:
        """Return the prior of each workload (workloads, rank); the mean of all contexts for context -1."""
        average = np.concatenate([self.average, self.average.mean(axis=0, keepdims=True)])
        return np.asarray(np.maximum(average[context] + pace[:, None] * self.slope, 0.0))


class Effects(NamedTuple):
    """Learned effects by workload. `runs`: co-locations of each workload.

    `sensitivity`, `pressure` and their variances: (workloads, rank);
    `resource_sensitivity` (workloads, resources). `noise`: relative error of one observation.
    """

    sensitivity: Floats
    pressure: Floats
    sensitivity_variance: Floats
    pressure_variance: Floats
    resource_sensitivity: Floats
    runs: Indexes
    sensitivity_prior: Prior
    pressure_prior: Prior
    pace_center: Floats
    pace_spread: float
    noise: float


def standard_pace(pace_seconds: Floats, context: Indexes, center: Floats, spread: float) -> Floats:
    """Return log paces in standard deviations from the center of their context; 0 where unknown."""
    centers = np.concatenate([center, [center.mean()]])[context]
    with np.errstate(divide="ignore", invalid="ignore"):
        pace = (np.log(pace_seconds) - centers) / spread
    return np.asarray(
        np.clip(np.nan_to_num(pace, nan=0.0, posinf=0.0, neginf=0.0), -PACE_MAX, PACE_MAX)
    )


def context_means(values: Floats, weight: Floats, context: Indexes, contexts: int) -> Floats:
    """Return the weighted mean of *values* (workloads, columns) per context; the overall mean for an empty context."""
    total = np.bincount(context, weights=weight, minlength=contexts)
    sums = np.stack(
        [np.bincount(context, weights=weight * column, minlength=contexts) for column in values.T],
        axis=1,
    )
    overall = (weight[:, None] * values).sum(axis=0) / weight.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(total[:, None] > 0, sums / total[:, None], overall))


class _Side:
    """One side of the alternation: a coefficient vector per workload, given the design of its rows."""

    def __init__(
        self, index: Indexes, table: WorkloadTable, weight: Floats, slope_ridge: float
    ) -> None:
        self._index, self._table = index, table
        self._weight, self._slope_ridge = weight, slope_ridge
        self._contexts = int(table.context.max()) + 1

    def prior(self, values: Floats, pace: Floats) -> Prior:
        """Return the prior that the estimates *values* of all seen workloads give."""
        average = context_means(values, self._weight, self._table.context, self._contexts)
        centered = values - average[self._table.context]
        weighted = self._weight * pace
        slope = weighted @ centered / (weighted @ pace + self._slope_ridge)
        rest = centered - pace[:, None] * slope
        variance = self._weight @ np.square(rest) / self._weight.sum()
        return Prior(average, slope, variance)

    def solve(
        self, design: Floats, target: Floats, prior: Floats, ridge: Floats
    ) -> tuple[Floats, Floats]:
        """Return the ridge estimate (workloads, columns) around *prior*, and the inverse of its normal matrix."""
        count, width = prior.shape
        squares = np.zeros((count, width, width))
        np.add.at(squares, self._index, design[:, :, None] * design[:, None, :])
        inverse: Floats = np.asarray(np.linalg.inv(squares + np.diag(ridge)), dtype=np.float64)
        rest = target - (design * prior[self._index]).sum(axis=1)
        moment = np.zeros((count, width))
        np.add.at(moment, self._index, design * rest[:, None])
        estimate: Floats = prior + (inverse @ moment[:, :, None])[:, :, 0]
        return np.asarray(np.maximum(estimate, 0.0), dtype=np.float64), inverse


def fit_effects(runs: CoRuns, table: WorkloadTable, shrinkage: Shrinkage) -> Effects:
    """Learn all effects from *runs*. Errors are relative to the slowdown, so that slow pairs do not dominate."""
    count, rank, resources = table.context.size, shrinkage.rank, runs.excess.shape[1]
    seen = np.bincount(runs.own, minlength=count) > 0
    contexts = int(table.context.max()) + 1
    weight = _family_weights(seen, table)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_pace = np.log(table.pace_seconds)
    known = np.where(seen & np.isfinite(log_pace), weight, 0.0)
    center, spread = np.zeros(contexts), 1.0
    if known.any():
        finite = np.nan_to_num(log_pace, nan=0.0, posinf=0.0, neginf=0.0)
        center = context_means(finite[:, None], known, table.context, contexts)[:, 0]
        variance = known @ np.square(finite - center[table.context]) / known.sum()
        spread = max(float(np.sqrt(variance)), _SPREAD_MIN)
    pace = standard_pace(table.pace_seconds, table.context, center, spread)
    random = np.random.default_rng(0)
    observed = runs.ratio - 1.0
    level = np.sqrt(max(float(observed.mean()), 0.01))
    sensitivity, pressure = np.abs(random.normal(0.0, 0.05, (2, count, rank)))
    sensitivity[:, 0] += level
    pressure[:, 0] += level
    resource = np.ones((count, resources))
    own_side = _Side(runs.own, table, weight, shrinkage.slope_ridge)
    other_side = _Side(runs.other, table, weight, shrinkage.slope_ridge)
    target = observed / runs.ratio
    used = np.flatnonzero((runs.excess > 0.0).any(axis=0))
    ridge = np.concatenate([np.full(rank, EFFECT_RIDGE), np.full(used.size, RESOURCE_RIDGE)])
    own_inverse = other_inverse = np.zeros((count, ridge.size, ridge.size))
    for _ in range(ROUNDS):
        own_prior = own_side.prior(sensitivity, pace)
        prior = np.concatenate(
            [own_prior.mean(pace, table.context), np.ones((count, used.size))], axis=1
        )
        physics = _binding_excess(runs, resource)[:, used]
        design = np.concatenate([pressure[runs.other], physics], axis=1) / runs.ratio[:, None]
        estimate, own_inverse = own_side.solve(design, target, prior, ridge)
        sensitivity, resource[:, used] = estimate[:, :rank], estimate[:, rank:]
        other_prior = other_side.prior(pressure, pace)
        design = sensitivity[runs.own] / runs.ratio[:, None]
        physics_part = (resource[runs.own] * runs.excess).max(axis=1, initial=0.0) / runs.ratio
        pressure, other_inverse = other_side.solve(
            design, target - physics_part, other_prior.mean(pace, table.context), ridge[:rank]
        )
        sensitivity, pressure = _balanced(sensitivity, pressure, table.context)
    own_prior, other_prior = own_side.prior(sensitivity, pace), other_side.prior(pressure, pace)
    sensitivity = np.where(seen[:, None], sensitivity, own_prior.mean(pace, table.context))
    pressure = np.where(seen[:, None], pressure, other_prior.mean(pace, table.context))
    modeled = (resource[runs.own] * runs.excess).max(axis=1, initial=0.0)
    modeled += (sensitivity[runs.own] * pressure[runs.other]).sum(axis=1)
    noise = max(float(np.sqrt(np.mean(np.square((observed - modeled) / runs.ratio)))), _NOISE_MIN)
    own_variance = np.diagonal(own_inverse, axis1=1, axis2=2)[:, :rank] * noise**2
    other_variance = np.diagonal(other_inverse, axis1=1, axis2=2) * noise**2
    is_seen = seen[:, None]
    return Effects(
        sensitivity, pressure, np.where(is_seen, own_variance, own_prior.variance),
        np.where(is_seen, other_variance, other_prior.variance), resource,
        np.bincount(runs.own, minlength=count), own_prior, other_prior, center, spread, noise,
    )  # fmt: skip


def _family_weights(seen: npt.NDArray[np.bool_], table: WorkloadTable) -> Floats:
    """Return weights with which each family of each context counts once; 0 for workloads without a co-location."""
    cells = table.context * (int(table.family.max()) + 1) + table.family
    sizes = np.bincount(cells, weights=seen.astype(np.float64))
    return np.where(seen, 1.0 / np.maximum(sizes[cells], 1.0), 0.0)


def _binding_excess(runs: CoRuns, resource: Floats) -> Floats:
    """Return the excess by physics of the resource that binds each row, in its column; 0 elsewhere."""
    weighted = resource[runs.own] * runs.excess
    is_binding = np.arange(weighted.shape[1]) == weighted.argmax(axis=1)[:, None]
    return np.where(is_binding, runs.excess, 0.0)


def _balanced(sensitivity: Floats, pressure: Floats, context: Indexes) -> tuple[Floats, Floats]:
    """Return both effects with equal norms per context and latent resource: only their product is observed."""
    contexts = int(context.max()) + 1
    norms = [
        np.stack(
            [
                np.bincount(context, weights=column, minlength=contexts)
                for column in np.square(side).T
            ],
            axis=1,
        )
        for side in (sensitivity, pressure)
    ]
    factor = (np.maximum(norms[1], 1e-12) / np.maximum(norms[0], 1e-12)) ** 0.25
    return sensitivity * factor[context], pressure / factor[context]


def names_of(labels: Sequence[str]) -> tuple[tuple[str, ...], Indexes]:
    """Return the distinct labels in order of appearance, and the index of each label."""
    names = tuple(dict.fromkeys(labels))
    at = {name: index for index, name in enumerate(names)}
    return names, np.array([at[label] for label in labels], dtype=np.intp)
