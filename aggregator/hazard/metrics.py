"""Metrics of a ranking and its probabilities, with bootstrap intervals by node.

Units of equal rank are averaged: each figure is the mean over all orders among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import nan

import numpy as np

from .events import Floats, Indexes

#: Recall is of this share of the up nodes of each day, the highest first.
TOP_SHARE = 0.05
#: Bins of equal mass of the calibration error.
BINS = 10
#: The interval that the bootstrap gives.
INTERVAL = (0.05, 0.95)
#: Of fewer positive nodes AUC and recall have no interval (assumed). In both a fault's node is divided by itself: of one
#: node they are the same however often it is drawn, and fleets without it count for nothing.
NODES_POSITIVE_MIN = 10


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 90 % interval; NaN where it is not defined. An upper end alone: of 95 %."""

    value: float
    lower: float
    upper: float


class Ranking:
    """Units in an order, against an outcome; each figure takes the units' weights.

    *groups*: ranks are within these (days), or of all units where None.
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
        #: How many units lie before the end of each run of equal scores, 0 first; and which ends are a group's.
        self._ends = np.concatenate(([0], np.flatnonzero(np.append(fresh, True)) + 1))
        self._closing = np.searchsorted(self._ends, last)

    def cumulated(self, weight: Floats, *of: Floats) -> list[Floats]:
        """Return mass and the sums of *of*, in the order, at the end of each run of equal scores."""
        ordered = weight[self.order]
        return [_sums(ordered)[self._ends], *(_sums(ordered * one)[self._ends] for one in of)]

    def auc(self, weight: Floats) -> float:
        """Return P(a positive ranks above a negative), equal ones half."""
        mass, positive = self.cumulated(weight, self.outcome)
        negative = np.diff(mass - positive)
        pairs = positive[-1] * (mass[-1] - positive[-1])
        if pairs <= 0:
            return nan
        return float(np.sum((positive[1:] + positive[:-1]) / 2 * negative) / pairs)

    def recall(self, weight: Floats, share: float = TOP_SHARE) -> float:
        """Return the share of positives that are in the top *share* of each group."""
        positive = float((weight[self.order] * self.outcome).sum())
        return self.top(weight, share) / positive if positive > 0 else nan

    def top(self, weight: Floats, share: float) -> float:
        """Return the sum of outcomes in the top *share* of each group."""
        mass, outcome = self.cumulated(weight, self.outcome)
        last = mass[self._closing]
        first = np.concatenate(([0.0], last[:-1]))
        edge = np.interp(first + share * (last - first), mass, outcome)
        return float((edge - np.interp(first, mass, outcome)).sum())


def _sums(values: Floats) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values)))


class CalibrationBins:
    """Probabilities against an outcome, in bins of equal mass."""

    def __init__(self, probability: Floats, outcome: Floats) -> None:
        self._ranking = Ranking(probability, outcome)
        self._probability = probability[self._ranking.order]

    def error(self, weight: Floats) -> float:
        """Return the expected calibration error: the mean distance of told and observed, by bins."""
        predicted, observed, mass = self.bins(weight)
        return float(np.abs(predicted - observed).sum() / mass)

    def bins(self, weight: Floats) -> tuple[Floats, Floats, float]:
        """Return the sums of told and observed, for each bin, and the whole mass."""
        mass, positive, predicted = self._ranking.cumulated(
            weight, self._ranking.outcome, self._probability
        )
        edges = np.linspace(0.0, mass[-1], BINS + 1)
        inside = [np.diff(np.interp(edges, mass, one)) for one in (predicted, positive)]
        return inside[0], inside[1], float(mass[-1])


@dataclass(frozen=True, slots=True)
class BootstrapFigure:
    """A figure, and what it is over fleets drawn node by node."""

    value: float
    draws: Floats

    def minus(self, other: BootstrapFigure) -> BootstrapFigure:
        """Return this less *other*, of the same fleets."""
        return BootstrapFigure(self.value - other.value, self.draws - other.draws)

    def estimate(self) -> Estimate:
        """Return the figure with its interval."""
        drawn = self.draws[np.isfinite(self.draws)]
        if not len(drawn):
            return Estimate(self.value, nan, nan)
        lower, upper = np.quantile(drawn, INTERVAL)
        return Estimate(self.value, float(lower), float(upper))

    def at_most(self) -> Estimate:
        """Return the figure with the upper end alone: for a sum of distances, which chance makes larger.

        A draw adds its chance to that of the fleet: the lower end may lie above the figure itself, and never is at the 0 of
        what has no distance.
        """
        return replace(self.estimate(), lower=nan)


def draws_of_ranking(positive: Indexes, draws: int) -> int:
    """Return how many fleets must be drawn for AUC and recall: *draws*, or none where they would say nothing.

    *positive*: the nodes of the positive units.
    """
    return draws if len(np.unique(positive)) >= NODES_POSITIVE_MIN else 0


def bootstrap(
    figure: Callable[[Floats], float], node: Indexes, nodes: int, draws: int, seed: int
) -> BootstrapFigure:
    """Return *figure* (a function of the units' weights), and what it is over fleets drawn node by node.

    A draw takes *nodes* nodes with replacement, each with all of its days. The same seed draws the same fleets.
    No draws: the figure has no interval, and no difference of it has one.
    """
    source = np.random.default_rng(seed)
    share = np.full(nodes, 1.0 / nodes)
    drawn = [
        figure(source.multinomial(nodes, share).astype(np.float64)[node]) for _ in range(draws)
    ]
    return BootstrapFigure(figure(np.ones(len(node))), np.array(drawn))
