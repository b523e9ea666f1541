"""Trains a hazard model on a recording: cross-validation chooses the form, all data fit the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import erf, exp, expm1, log, sqrt
from typing import NamedTuple

import numpy as np

from .events import EventsError, FaultTable, Flags, Floats, Indexes
from .features import (
    AVERAGE_RANK,
    BASIC_AND_CLASS_NAMES,
    FEATURE_NAMES,
    HISTORY_FORM,
    MEASURED_FORM,
    ModelForm,
    features_of,
    weighted_sum,
)
from .history import HARDWARE, WINDOW_DAYS, Units, units_of
from .measured import HostDays, model_inputs
from .metrics import (
    BASELINES,
    BINS,
    BootstrapFigure,
    CalibrationBins,
    Ranking,
    bootstrap,
    draws_of_ranking,
)
from .model import SPREAD_ASSUMED, SPREAD_MAX, HazardModel

# ----------------------------------------------------------------------
# Fitting the model's weights: complementary log-log regression with a ridge, weights held at zero
# or above.
#
# numpy alone: a few hundred faults decide nine weights, or twice as many, for which a library of
# learning would be one more thing to install.

STEPS_MAX = 200
STEP_MAX = 1.0
TOLERANCE = 1e-7
LOG_MEAN_MIN, LOG_MEAN_MAX = -30.0, 3.0
#: Of the feature that a ranking is by: small enough to tell nothing, large enough that no two hosts become alike.
ORDER_WEIGHT_MIN = 1e-3


def fit(
    features: Floats,
    outcome: Floats,
    ridge: float,
    names: Sequence[str] = BASIC_AND_CLASS_NAMES,
    ordered_by: str = "",
) -> tuple[float, tuple[float, ...]]:
    """Return the base (a log) and the weights by FEATURES that make *outcome* (0 or 1) most likely.

    *features*: units x features. *ridge*: penalty on half the squares of the weights; the base bears none.
    *names*: those that may have a weight; the others have zero. Weights are zero or above: a fault of the past
    never makes a host better; that of *ordered_by* is above zero.
    """
    columns = [FEATURE_NAMES.index(name) for name in names]
    least = np.array([0.0, *(ORDER_WEIGHT_MIN * (name == ordered_by) for name in names)])
    rows, weight, positive = _grouped(features[:, columns], outcome)
    design = np.hstack((np.ones((len(rows), 1)), rows))
    penalty = np.full(design.shape[1], ridge)
    penalty[0] = 0.0
    at = np.zeros(design.shape[1])
    at[0] = np.log(max(positive.sum(), 0.5) / weight.sum())
    for _ in range(STEPS_MAX):
        step = _step(design, weight, positive, penalty, at, at > least)
        after = at + np.clip(step, -STEP_MAX, STEP_MAX)
        after[1:] = np.maximum(after[1:], least[1:])
        moved = np.abs(after - at).max()
        at = after
        if moved < TOLERANCE:
            break
    weights = np.zeros(len(FEATURE_NAMES))
    weights[columns] = at[1:]
    return float(at[0]), tuple(weights.tolist())


def _grouped(features: Floats, outcome: Floats) -> tuple[Floats, Floats, Floats]:
    """Return rows, how many units each stands for, and how many of them were positive.

    Nearly all units are of nodes that never failed, which are one row.
    """
    zero: Flags = ~np.any(features, axis=1)
    rows = np.vstack((np.zeros((1, features.shape[1])), features[~zero]))
    weight = np.concatenate(([float(zero.sum())], np.ones(len(rows) - 1)))
    return rows, weight, np.concatenate(([outcome[zero].sum()], outcome[~zero]))


def _step(
    design: Floats, weight: Floats, positive: Floats, penalty: Floats, at: Floats, inside: Flags
) -> Floats:
    """Return a step of Fisher scoring among the weights that are free to move: *inside* their bounds, or about to be."""
    mean = np.exp(np.clip(design @ at, LOG_MEAN_MIN, LOG_MEAN_MAX))
    chance = -np.expm1(-mean)
    slope = design.T @ ((positive - weight * chance) * mean / chance) - penalty * at
    curve = (design * (weight * mean**2 * (1.0 - chance) / chance)[:, None]).T @ design
    curve += np.diag(penalty)
    free = inside | (slope > 0.0)
    free[0] = True
    step = np.zeros(len(at))
    curve = curve[np.ix_(free, free)] + 1e-9 * np.eye(int(free.sum()))
    step[free] = np.linalg.solve(curve, slope[free])
    return step


# ----------------------------------------------------------------------
# Days ahead, within the days that may be learned from: what each form tells of them before it has
# seen them.

#: Folds begin at these shares of the recording, and each is judged over FOLD_SHARE of it.
FOLD_SHARES, FOLD_SHARE = (0.46, 0.55, 0.64, 0.73, 0.82), 0.125
#: Of a large fleet every other day of a fold is judged, or fewer.
FOLD_UNITS_MAX = 20_000
#: Fleets drawn node by node, for the interval of a difference.
DRAWS, SEED = 100, 1


class TimeFold(NamedTuple):
    """Units that are judged, by what was learned before the first of their days."""

    node: Indexes
    day: Indexes
    positive: Floats
    chances: tuple[Floats, ...]  # P(a fault within the window), by form; then each of BASELINES


def folds_of(
    daily: Units,
    weekly: Units,
    outcome: str,
    end_days: float,
    forms: Sequence[ModelForm],
    known_share_min: float = 0.0,
) -> list[TimeFold]:
    """Return the folds that have positives on both sides of their cut, in the order of time.

    *daily*, *weekly*: all units, with windows of a day, which is learned from, and of a week, which is judged.
    *known_share_min*: the least share of units before the cut with a measurement on their day.
    """
    features, daily_positive, weekly_positive = (
        features_of(daily.state),
        daily.positives(outcome),
        weekly.positives(outcome),
    )
    known = daily.state.has_measurements
    folds: list[TimeFold] = []
    for share in FOLD_SHARES:
        cut = int(share * end_days)
        before = daily.day < cut  # their day is over
        after = (weekly.day >= cut) & (weekly.day < cut + max(1, int(FOLD_SHARE * end_days)))
        after &= (weekly.day - cut) % (1 + int(after.sum()) // FOLD_UNITS_MAX) == 0
        if not daily_positive[before].any() or known[before].mean() < known_share_min:
            continue
        if 0 < weekly_positive[after].sum() < after.sum():
            judged = weekly.take(after)
            later = _FutureUnits(judged)
            chances = tuple(
                later.chance(
                    *fit(
                        features[before],
                        daily_positive[before],
                        form.ridge,
                        form.names,
                        form.ordered_by,
                    )
                )
                for form in forms
            ) + tuple(rank(judged.state) for rank in BASELINES.values())
            folds.append(
                TimeFold(weekly.node[after], weekly.day[after], weekly_positive[after], chances)
            )
    return folds


class _FutureUnits:
    """Units with their features of the days ahead, which most have not: nothing of them is wrong, or ever was."""

    def __init__(self, units: Units) -> None:
        self._has_features = np.isfinite(units.state.since_return_days)
        if units.state.measured is not None:
            self._has_features |= model_inputs(units.state.measured).any(axis=1)
        with_features = units.state.take(self._has_features)
        self._ahead = [features_of(with_features, day) for day in range(WINDOW_DAYS)]

    def chance(self, base: float, weights: tuple[float, ...]) -> Floats:
        """Return what a model tells of them."""
        # Summed day by day as those below are: where no feature weighs anything, none ranks above another by a last bit.
        of_none = sum(np.exp(base + np.zeros(1)) for _ in self._ahead)
        expected = np.full(len(self._has_features), of_none)
        expected[self._has_features] = sum(
            np.exp(base + weighted_sum(one, weights)) for one in self._ahead
        )
        return np.asarray(-np.expm1(-expected))


class FormEvaluation:
    """One form on the days of all folds."""

    def __init__(self, folds: Sequence[TimeFold], form_index: int, nodes: int) -> None:
        """*form_index*: which of the forms; *nodes*: of the fleet."""
        self._folds, self._form_index, self._nodes = folds, form_index, nodes
        self._pooled = [Ranking(one.chances[form_index], one.positive) for one in folds]
        self._daily = [Ranking(one.chances[form_index], one.positive, one.day) for one in folds]

    @cached_property
    def figures(self) -> tuple[float, float]:
        """AUC and recall: means of the folds' by their positives."""
        even = np.ones(self._nodes)
        return self._auc(even), self._recall(even)

    @cached_property
    def bootstraps(self) -> tuple[BootstrapFigure, BootstrapFigure]:
        """The same two of fleets drawn node by node, of the same fleets for every form; none where few nodes failed."""
        nodes = np.arange(self._nodes)
        positive = np.concatenate([one.node[one.positive > 0] for one in self._folds])
        draws = draws_of_ranking(positive, DRAWS)
        auc, recall = (
            bootstrap(figure, nodes, self._nodes, draws, SEED)
            for figure in (self._auc, self._recall)
        )
        return auc, recall

    def _auc(self, weight: Floats) -> float:
        return self._mean(self._pooled, Ranking.auc, weight)

    def _recall(self, weight: Floats) -> float:
        return self._mean(self._daily, Ranking.recall, weight)

    def _mean(
        self, ranked: Sequence[Ranking], figure: Callable[[Ranking, Floats], float], weight: Floats
    ) -> float:
        """Return the mean over the folds, by their positives; NaN without any. *weight*: of each node."""
        figures, masses = [], []
        for fold, one in zip(self._folds, ranked, strict=True):
            units = weight[fold.node]
            figures.append(figure(one, units))
            masses.append(float(units @ fold.positive))
        known = np.isfinite(figures)
        mass = np.array(masses)[known]
        return (
            float(np.array(figures)[known] @ mass / mass.sum()) if mass.sum() > 0 else float("nan")
        )

    def calibration(self) -> tuple[float, tuple[tuple[float, float], ...]]:
        """Return the ECE, and told and observed by bins: means over the folds."""
        errors, bins = zip(*self._fold_calibrations(), strict=True)
        # Of a bin in which all came it may be more than one by its last bits, and no text of a model has such a chance.
        predicted, observed = np.clip(np.mean(bins, axis=0), 0.0, 1.0)
        return float(np.mean(errors)), tuple(
            zip(predicted.tolist(), observed.tolist(), strict=True)
        )

    def _fold_calibrations(self) -> Iterator[tuple[float, tuple[Floats, Floats]]]:
        for fold in self._folds:
            one, even = (
                CalibrationBins(fold.chances[self._form_index], fold.positive),
                np.ones(len(fold.positive)),
            )
            predicted, observed, mass = one.bins(even)
            yield one.error(even), (predicted * BINS / mass, observed * BINS / mass)


# ----------------------------------------------------------------------
# Which form a model has: the first simple one ranks hosts, unless another plainly ranks better on
# days ahead.

#: Of AUC and of recall. Less is what the draw of nodes makes of two rankings that are as good.
GAINS_MIN = (0.005, 0.01)
#: Of the units before a fold's cut: with fewer known, the weights of what is measured are of the last weeks alone, and a
#: unit without data counts as one where all is normal.
KNOWN_SHARE_MIN = 0.2
#: Figures that differ by less are the same, summed in another order.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class FormResult:
    """How one form did out of fold."""

    form: ModelForm
    auc: float
    recall: float
    ece: float
    calibration: tuple[tuple[float, float], ...]


def choose_form(
    daily: Units, weekly: Units, outcome: str, end_days: float, nodes: int
) -> FormResult:
    """Return the average rank, or the learned model if that plainly ranks hosts better on days ahead.

    The learned model has measurements if with them it beats every ranking by history alone, in folds that have enough
    measurements: a gain of its history would not be theirs. *daily*, *weekly*: all units, with windows of a day and of
    a week. *nodes*: size of the fleet. Raises EventsError if no fold has positives on both sides.
    """
    forms = (AVERAGE_RANK, HISTORY_FORM, MEASURED_FORM)
    if daily.state.measured is not None:
        folds = folds_of(daily, weekly, outcome, end_days, forms, KNOWN_SHARE_MIN)
        if folds:
            rankings = [
                FormEvaluation(folds, index, nodes) for index in range(len(folds[0].chances))
            ]
            measured = rankings.pop(forms.index(MEASURED_FORM))
            if all(ranks_better(measured, other) for other in rankings):
                return _form_result(MEASURED_FORM, measured)
    folds = folds_of(daily, weekly, outcome, end_days, forms[:2])
    if not folds:
        raise EventsError(
            "no fault in the second half of the days to learn from, or none before it, so no "
            "ranking can be chosen"
        )
    average, learned = (FormEvaluation(folds, index, nodes) for index in range(2))
    if ranks_better(learned, average):
        return _form_result(HISTORY_FORM, learned)
    return _form_result(AVERAGE_RANK, average)


def _form_result(form: ModelForm, evaluation: FormEvaluation) -> FormResult:
    return FormResult(form, *evaluation.figures, *evaluation.calibration())


def ranks_better(one: FormEvaluation, other: FormEvaluation) -> bool:
    """Return whether *one* plainly ranks better than *other*.

    In AUC or in recall it gains at least GAINS_MIN and the whole 90 % interval of the difference lies above zero; in the
    other of the two it is not below. Of so few nodes that failed that there is no interval, nothing is plainly better.
    """
    gains = [
        value - other_value for value, other_value in zip(one.figures, other.figures, strict=True)
    ]
    if min(gains) < -ROUNDING or all(
        gain < least for gain, least in zip(gains, GAINS_MIN, strict=True)
    ):
        return False  # before anything is drawn
    return any(
        gain >= least and value.minus(other_value).estimate().lower > ROUNDING
        for gain, least, value, other_value in zip(
            gains, GAINS_MIN, one.bootstraps, other.bootstraps, strict=True
        )
    )


# ----------------------------------------------------------------------
# How far one host's hazard may lie from what a model tells of it: the 90 % interval, by how hosts
# and fortnights differ.
#
# What lasts of a host shows in fortnights far apart: one that had more faults than the others in
# some has more in others, too. A burst after a repair is over by then. What befalls all hosts alike
# is the fleet's level, which differs by itself.

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


#: Fewer fault starts teach nothing: the prior stays.
STARTS_MIN = 20


def train(
    faults: FaultTable, outcome: str, source: str, days_measured: HostDays | None = None
) -> HazardModel:
    """Return the model of *faults*, and of what was measured beside them. Raises EventsError if they are too few."""
    which = np.isfinite(faults.start)
    if outcome == HARDWARE:
        which = which & faults.hardware
    if which.sum() < STARTS_MIN:
        raise EventsError(
            f"{int(which.sum())} fault starts ({outcome}); expected at least {STARTS_MIN} to learn from"
        )
    daily = units_of(faults, 1, days_measured)
    weekly = units_of(faults, days_measured=days_measured)
    best = choose_form(daily, weekly, outcome, faults.end_days, len(faults.nodes))
    form = best.form
    base, weights = fit(
        features_of(daily.state), daily.positives(outcome), form.ridge, form.names, form.ordered_by
    )
    return HazardModel(
        source=f"{source}; ranking: {form.name}",
        is_prior=False,
        outcome=outcome,
        base_log_hazard_per_day=base,
        weights=weights,
        nodes=len(faults.nodes),
        faults=int(which.sum()),
        ridge=form.ridge,
        metrics={"auc": best.auc, "recall": best.recall, "ece": best.ece},
        calibration=best.calibration,
        spread=spread_of(daily, outcome),
    )
