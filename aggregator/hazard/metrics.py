"""Metrics of a ranking and its probabilities, with bootstrap intervals by node.

Units of equal rank are averaged: each figure is the mean over all their orders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import nan

import numpy as np

from ..arrays import Floats, Indexes

#: Recall counts this share of the up nodes of each day, the worst first.
TOP_SHARE = 0.05
#: Bins of equal mass for the calibration error.
BINS = 10
#: Quantiles of the bootstrap interval.
INTERVAL = (0.05, 0.95)
#: With fewer positive nodes AUC and recall have no interval (assumed). Both divide a node's faults
#: by themselves: a single node gives the same value in every drawn fleet that contains it.
NODES_POSITIVE_MIN = 10


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 90 % interval, NaN if undefined; an upper bound alone is of 95 %."""

    value: float
    lower: float
    upper: float


class Ranking:
    """Units ordered by score, with an outcome. All figures take the units' weights.

    *groups*: rank within each group (a day); None: among all units.
    """

    def __init__(self, score: Floats, outcome: Floats, groups: Indexes | None = None) -> None:
        self.order = np.lexsort((-score,) if groups is None else (-score, groups))
        self.outcome = outcome[self.order]
        ordered = score[self.order]
        fresh = ordered[1:] != ordered[:-1]
        if groups is not None:
            group = groups[self.order]
            fresh |= group[1:] != group[:-1]
            last = np.flatnonzero(np.append(group[1:] != group[:-1], True)) + 1
        else:
            last = np.array([len(score)])
        #: Number of units before the end of each run of equal scores, first 0; and the ends that
        #: close a group.
        self._ends = np.concatenate(([0], np.flatnonzero(np.append(fresh, True)) + 1))
        self._closing = np.searchsorted(self._ends, last)

    def cumulated(self, weight: Floats, *of: Floats) -> list[Floats]:
        """Return the cumulated mass and sums of *of* at the end of each run of equal scores."""
        ordered = weight[self.order]
        return [_sums(ordered)[self._ends], *(_sums(ordered * values)[self._ends] for values in of)]

    def auc(self, weight: Floats) -> float:
        """Return P(a positive ranks above a negative), counting equal ranks half."""
        mass, positive = self.cumulated(weight, self.outcome)
        negative = np.diff(mass - positive)
        pairs = positive[-1] * (mass[-1] - positive[-1])
        if pairs <= 0:
            return nan
        return float(np.sum((positive[1:] + positive[:-1]) / 2 * negative) / pairs)

    def recall(self, weight: Floats, share: float = TOP_SHARE) -> float:
        """Return the share of positives within the top *share* of each group."""
        positive = float((weight[self.order] * self.outcome).sum())
        return self.top(weight, share) / positive if positive > 0 else nan

    def top(self, weight: Floats, share: float) -> float:
        """Return the sum of outcomes within the top *share* of each group."""
        mass, outcome = self.cumulated(weight, self.outcome)
        last = mass[self._closing]
        first = np.concatenate(([0.0], last[:-1]))
        edge = np.interp(first + share * (last - first), mass, outcome)
        return float((edge - np.interp(first, mass, outcome)).sum())


def _sums(values: Floats) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values)))


class CalibrationBins:
    """Probabilities and outcomes, in bins of equal mass."""

    def __init__(self, probability: Floats, outcome: Floats) -> None:
        self._ranking = Ranking(probability, outcome)
        self._probability = probability[self._ranking.order]

    def error(self, weight: Floats) -> float:
        """Return the expected calibration error: mean distance of prediction and outcome by bin."""
        predicted, observed, mass = self.bins(weight)
        return float(np.abs(predicted - observed).sum() / mass)

    def bins(self, weight: Floats) -> tuple[Floats, Floats, float]:
        """Return the sums of predictions and outcomes per bin, and the total mass."""
        mass, positive, predicted = self._ranking.cumulated(
            weight, self._ranking.outcome, self._probability
        )
        edges = np.linspace(0.0, mass[-1], BINS + 1)
        inside = [np.diff(np.interp(edges, mass, sums)) for sums in (predicted, positive)]
        return inside[0], inside[1], float(mass[-1])


@dataclass(frozen=True, slots=True)
class BootstrapFigure:
    """A figure, and its values over fleets drawn node by node."""

    value: float
    draws: Floats

    def minus(self, other: BootstrapFigure) -> BootstrapFigure:
        """Return the difference to *other*, over the same fleets."""
        return BootstrapFigure(self.value - other.value, self.draws - other.draws)

    def estimate(self) -> Estimate:
        """Return the figure with its interval."""
        drawn = self.draws[np.isfinite(self.draws)]
        if not len(drawn):
            return Estimate(self.value, nan, nan)
        lower, upper = np.quantile(drawn, INTERVAL)
        return Estimate(self.value, float(lower), float(upper))

    def at_most(self) -> Estimate:
        """Return the figure with an upper bound only: chance increases a sum of distances.

        A draw adds its own chance to the fleet's: the lower bound may exceed the figure, and never
        reaches the 0 of a perfect calibration.
        """
        return replace(self.estimate(), lower=nan)


def draws_of_ranking(positive: Indexes, draws: int) -> int:
    """Return *draws*, or 0 if too few nodes failed for an interval of AUC and recall.

    *positive*: the nodes of the positive units.
    """
    return draws if len(np.unique(positive)) >= NODES_POSITIVE_MIN else 0


def bootstrap(
    figure: Callable[[Floats], float], node: Indexes, nodes: int, draws: int, seed: int
) -> BootstrapFigure:
    """Return *figure*, a function of the units' weights, with its values over drawn fleets.

    A draw takes *nodes* nodes with replacement, each with all of its days. The same seed draws the same fleets.
    Without draws there is no interval.
    """
    source = np.random.default_rng(seed)
    share = np.full(nodes, 1.0 / nodes)
    drawn = [
        figure(source.multinomial(nodes, share).astype(np.float64)[node]) for _ in range(draws)
    ]
    return BootstrapFigure(figure(np.ones(len(node))), np.array(drawn))
