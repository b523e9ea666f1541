"""Days ahead, within the days that may be learned from: what each form tells of them before it has seen them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .events import Floats, Indexes
from .features import features_of, weigh
from .fitting import fit
from .forms import Form
from .history import WINDOW_DAYS, Units
from .measured import weighed
from .metrics import BINS, Calibrated, Drawn, Ranked, bootstrapped, draws_of_ranking

#: Folds begin at these shares of the recording, and each is judged over FOLD_SHARE of it.
FOLD_SHARES, FOLD_SHARE = (0.46, 0.55, 0.64, 0.73, 0.82), 0.125
#: Of a large fleet every other day of a fold is judged, or fewer.
FOLD_UNITS_MAX = 20_000
#: Fleets drawn node by node, for the interval of a difference.
DRAWS, SEED = 100, 1


class Fold(NamedTuple):
    """Units that are judged, by what was learned before the first of their days."""

    node: Indexes
    day: Indexes
    came: Floats
    chances: tuple[Floats, ...]  # P(a fault within the window), by form


def folds_of(
    daily: Units,
    weekly: Units,
    outcome: str,
    end_days: float,
    forms: Sequence[Form],
    known_share_min: float = 0.0,
) -> list[Fold]:
    """Return the folds that have positives on both sides of their cut, in the order of time.

    *daily*, *weekly*: all units, with windows of a day, which is learned from, and of a week, which is judged.
    *known_share_min*: of the units before the cut, so many are of days on which something was measured.
    """
    features, seen, came = features_of(daily.state), daily.came(outcome), weekly.came(outcome)
    known = daily.state.known
    folds: list[Fold] = []
    for share in FOLD_SHARES:
        cut = int(share * end_days)
        before = daily.day < cut  # their day is over
        after = (weekly.day >= cut) & (weekly.day < cut + max(1, int(FOLD_SHARE * end_days)))
        after &= (weekly.day - cut) % (1 + int(after.sum()) // FOLD_UNITS_MAX) == 0
        if not seen[before].any() or known[before].mean() < known_share_min:
            continue
        if 0 < came[after].sum() < after.sum():
            later = _Later(weekly.take(after))
            chances = tuple(
                later.chance(*fit(features[before], seen[before], one.ridge, one.names, one.ordered_by))
                for one in forms
            )  # fmt: skip
            folds.append(Fold(weekly.node[after], weekly.day[after], came[after], chances))
    return folds


class _Later:
    """Units with their features of the days ahead, which most have not: nothing of them is wrong, or ever was."""

    def __init__(self, units: Units) -> None:
        self._marked = np.isfinite(units.state.since_return_days)
        if units.state.measured is not None:
            self._marked |= weighed(units.state.measured).any(axis=1)
        marked = units.state.take(self._marked)
        self._ahead = [features_of(marked, day) for day in range(WINDOW_DAYS)]

    def chance(self, base: float, weights: tuple[float, ...]) -> Floats:
        """Return what a model tells of them."""
        # Summed day by day as those below are: where no feature weighs anything, none ranks above another by a last bit.
        of_none = sum(np.exp(base + np.zeros(1)) for _ in self._ahead)
        expected = np.full(len(self._marked), of_none)
        expected[self._marked] = sum(np.exp(base + weigh(one, weights)) for one in self._ahead)
        return np.asarray(-np.expm1(-expected))


class Ahead:
    """One form on the days of all folds."""

    def __init__(self, folds: Sequence[Fold], at: int, nodes: int) -> None:
        """*at*: which of the forms; *nodes*: of the fleet."""
        self._folds, self._at, self._nodes = folds, at, nodes
        self._pooled = [Ranked(one.chances[at], one.came) for one in folds]
        self._daily = [Ranked(one.chances[at], one.came, one.day) for one in folds]

    @cached_property
    def figures(self) -> tuple[float, float]:
        """AUC and recall: means of the folds' by their positives."""
        even = np.ones(self._nodes)
        return self._auc(even), self._recall(even)

    @cached_property
    def drawn(self) -> tuple[Drawn, Drawn]:
        """The same two of fleets drawn node by node, of the same fleets for every form; none where few nodes failed."""
        nodes = np.arange(self._nodes)
        positive = np.concatenate([one.node[one.came > 0] for one in self._folds])
        draws = draws_of_ranking(positive, DRAWS)
        auc, recall = (
            bootstrapped(figure, nodes, self._nodes, draws, SEED)
            for figure in (self._auc, self._recall)
        )
        return auc, recall

    def _auc(self, weight: Floats) -> float:
        return self._mean(self._pooled, Ranked.auc, weight)

    def _recall(self, weight: Floats) -> float:
        return self._mean(self._daily, Ranked.recall, weight)

    def _mean(
        self, ranked: Sequence[Ranked], figure: Callable[[Ranked, Floats], float], weight: Floats
    ) -> float:
        """Return the mean over the folds, by their positives; NaN without any. *weight*: of each node."""
        figures, masses = [], []
        for fold, one in zip(self._folds, ranked, strict=True):
            units = weight[fold.node]
            figures.append(figure(one, units))
            masses.append(float(units @ fold.came))
        known = np.isfinite(figures)
        mass = np.array(masses)[known]
        return (
            float(np.array(figures)[known] @ mass / mass.sum()) if mass.sum() > 0 else float("nan")
        )

    def calibration(self) -> tuple[float, tuple[tuple[float, float], ...]]:
        """Return the ECE, and told and observed by bins: means over the folds."""
        errors, bins = zip(*self._calibrated(), strict=True)
        # Of a bin in which all came it may be more than one by its last bits, and no text of a model has such a chance.
        told, observed = np.clip(np.mean(bins, axis=0), 0.0, 1.0)
        return float(np.mean(errors)), tuple(zip(told.tolist(), observed.tolist(), strict=True))

    def _calibrated(self) -> Iterator[tuple[float, tuple[Floats, Floats]]]:
        for fold in self._folds:
            one, even = Calibrated(fold.chances[self._at], fold.came), np.ones(len(fold.came))
            told, observed, mass = one.bins(even)
            yield one.error(even), (told * BINS / mass, observed * BINS / mass)
