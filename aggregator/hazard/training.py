"""Trains a hazard model: cross-validation chooses the features, all data determine the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..arrays import Floats, Indexes
from .baselines import BASELINES
from .events import EventsError, FaultTable
from .features import (
    AVERAGE_RANK,
    HISTORY_FORM,
    MEASURED_FORM,
    ModelForm,
    features_of,
    weighted_sum,
)
from .history import HARDWARE, WINDOW_DAYS, Units, units_of
from .measured import HostDays, model_inputs
from .metrics import BINS, BootstrapFigure, CalibrationBins, Ranking, bootstrap, draws_of_ranking
from .model import HazardModel
from .regression import fit
from .spread import spread_of

#: Start of each fold, and length of its evaluation, as shares of the recording.
FOLD_SHARES, FOLD_SHARE = (0.46, 0.55, 0.64, 0.73, 0.82), 0.125
#: Maximum units of a fold; in large fleets only every n-th day is evaluated.
FOLD_UNITS_MAX = 20_000
#: Number of fleets drawn node by node for the interval of a difference, and the seed.
DRAWS, SEED = 100, 1

#: Minimum gains of AUC and of recall: the draw of nodes explains smaller ones.
GAINS_MIN = (0.005, 0.01)
#: Minimum share of measured units before a fold's cut: otherwise the weights of measurements come
#: from the last weeks alone, because units without data count as normal.
KNOWN_SHARE_MIN = 0.2
#: Smaller differences are rounding errors of another order of summation.
ROUNDING = 1e-12

#: Minimum fault starts for training; below it the prior stays.
STARTS_MIN = 20


class TimeFold(NamedTuple):
    """Units to evaluate, with predictions learned before the first of their days."""

    node: Indexes
    day: Indexes
    positive: Floats
    chances: tuple[
        Floats, ...
    ]  # P(a fault within the window) by each form, then the rank by each of BASELINES


def folds_of(
    daily: Units,
    weekly: Units,
    outcome: str,
    end_days: float,
    forms: Sequence[ModelForm],
    known_share_min: float = 0.0,
) -> list[TimeFold]:
    """Return the folds with positives before and after their cut, in order of time.

    *daily*, *weekly*: all units, with windows of a day (to train) and of a week (to evaluate).
    *known_share_min*: minimum share of units before the cut with a measurement on their day.
    """
    features = features_of(daily.state)
    daily_positive = daily.positives(outcome)
    weekly_positive = weekly.positives(outcome)
    known = daily.state.has_measurements
    folds: list[TimeFold] = []
    for share in FOLD_SHARES:
        cut = int(share * end_days)
        before = daily.day < cut  # the day's outcome is known
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
    """Units with their features on the days ahead; most units have no anomaly, and no features."""

    def __init__(self, units: Units) -> None:
        self._has_features = np.isfinite(units.state.since_return_days)
        if units.state.measured is not None:
            self._has_features |= model_inputs(units.state.measured).any(axis=1)
        with_features = units.state.take(self._has_features)
        self._ahead = [features_of(with_features, day) for day in range(WINDOW_DAYS)]

    def chance(self, base: float, weights: tuple[float, ...]) -> Floats:
        """Return the probability that a model predicts for each unit."""
        # Summed day by day like those below, so that units with zero weights rank exactly equal.
        of_none = sum(np.exp(base + np.zeros(1)) for _ in self._ahead)
        expected = np.full(len(self._has_features), of_none)
        expected[self._has_features] = sum(
            np.exp(base + weighted_sum(features, weights)) for features in self._ahead
        )
        return np.asarray(-np.expm1(-expected))


class FormEvaluation:
    """A form's figures over all folds."""

    def __init__(self, folds: Sequence[TimeFold], form_index: int, nodes: int) -> None:
        """*form_index*: index of the form; *nodes*: size of the fleet."""
        self._folds, self._form_index, self._nodes = folds, form_index, nodes
        self._pooled = [Ranking(fold.chances[form_index], fold.positive) for fold in folds]
        self._daily = [Ranking(fold.chances[form_index], fold.positive, fold.day) for fold in folds]

    @cached_property
    def figures(self) -> tuple[float, float]:
        """AUC and recall: means over the folds, weighted by positives."""
        even = np.ones(self._nodes)
        return self._auc(even), self._recall(even)

    @cached_property
    def bootstraps(self) -> tuple[BootstrapFigure, BootstrapFigure]:
        """Both figures over drawn fleets, the same for every form; no draws if few nodes failed."""
        nodes = np.arange(self._nodes)
        positive = np.concatenate([fold.node[fold.positive > 0] for fold in self._folds])
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
        """Return the mean over folds, weighted by positives; NaN without any. *weight*: by node."""
        figures, masses = [], []
        for fold, ranking in zip(self._folds, ranked, strict=True):
            units = weight[fold.node]
            figures.append(figure(ranking, units))
            masses.append(float(units @ fold.positive))
        known = np.isfinite(figures)
        mass = np.array(masses)[known]
        return (
            float(np.array(figures)[known] @ mass / mass.sum()) if mass.sum() > 0 else float("nan")
        )

    def calibration(self) -> tuple[float, tuple[tuple[float, float], ...]]:
        """Return the ECE, and (predicted, observed) by bins: means over the folds."""
        errors, bins = zip(*self._fold_calibrations(), strict=True)
        # A bin with only positives may exceed 1 by rounding, which a model's text does not allow.
        predicted, observed = np.clip(np.mean(bins, axis=0), 0.0, 1.0)
        return float(np.mean(errors)), tuple(
            zip(predicted.tolist(), observed.tolist(), strict=True)
        )

    def _fold_calibrations(self) -> Iterator[tuple[float, tuple[Floats, Floats]]]:
        for fold in self._folds:
            calibration_bins = CalibrationBins(fold.chances[self._form_index], fold.positive)
            even = np.ones(len(fold.positive))
            predicted, observed, mass = calibration_bins.bins(even)
            yield calibration_bins.error(even), (predicted * BINS / mass, observed * BINS / mass)


@dataclass(frozen=True, slots=True)
class FormResult:
    """The out-of-fold figures of a form."""

    form: ModelForm
    auc: float
    recall: float
    ece: float
    calibration: tuple[tuple[float, float], ...]


def choose_form(
    daily: Units, weekly: Units, outcome: str, end_days: float, nodes: int
) -> FormResult:
    """Return the average rank, or the learned model if that clearly ranks later days better.

    The learned model uses measurements if it then beats every ranking by history alone, in folds
    with enough measurements: otherwise the gain could come from its history. *daily*, *weekly*: all
    units, with windows of a day and of a week. *nodes*: size of the fleet. Raises EventsError if no
    fold has positives on both sides of its cut.
    """
    forms = (AVERAGE_RANK, HISTORY_FORM, MEASURED_FORM)
    if daily.state.measured is not None:
        folds = folds_of(daily, weekly, outcome, end_days, forms, KNOWN_SHARE_MIN)
        if folds:
            rankings = [FormEvaluation(folds, i, nodes) for i in range(len(folds[0].chances))]
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
    """Return whether *one* clearly ranks better than *other*.

    In AUC or in recall it gains at least GAINS_MIN, with the 90 % interval of the difference above
    zero; in the other figure it is not worse. With too few failed nodes for an interval, nothing is
    clearly better.
    """
    gains = [
        value - other_value for value, other_value in zip(one.figures, other.figures, strict=True)
    ]
    if min(gains) < -ROUNDING or all(
        gain < minimum for gain, minimum in zip(gains, GAINS_MIN, strict=True)
    ):
        return False  # before any resampling
    return any(
        gain >= minimum and value.minus(other_value).estimate().lower > ROUNDING
        for gain, minimum, value, other_value in zip(
            gains, GAINS_MIN, one.bootstraps, other.bootstraps, strict=True
        )
    )


def train(
    faults: FaultTable, outcome: str, source: str, days_measured: HostDays | None = None
) -> HazardModel:
    """Return the model of *faults* and measurements. Raises EventsError for too few faults."""
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
