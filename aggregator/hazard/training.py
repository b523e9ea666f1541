"""Trains a hazard model on a recording: cross-validation chooses the form, all data fit the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .baselines import BASELINES
from .events import EventsError, FaultTable, Floats, Indexes
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
from .metrics import (
    BINS,
    BootstrapFigure,
    CalibrationBins,
    Ranking,
    bootstrap,
    draws_of_ranking,
)
from .model import HazardModel
from .regression import fit
from .spread import spread_of

#: Folds begin at these shares of the recording, and each is judged over FOLD_SHARE of it.
FOLD_SHARES, FOLD_SHARE = (0.46, 0.55, 0.64, 0.73, 0.82), 0.125
#: Of a large fleet every other day of a fold is judged, or fewer.
FOLD_UNITS_MAX = 20_000
#: Fleets drawn node by node, for the interval of a difference.
DRAWS, SEED = 100, 1

#: Of AUC and of recall. Less is what the draw of nodes makes of two rankings that are as good.
GAINS_MIN = (0.005, 0.01)
#: Of the units before a fold's cut: with fewer known, the weights of what is measured are of the last weeks alone, and a
#: unit without data counts as one where all is normal.
KNOWN_SHARE_MIN = 0.2
#: Figures that differ by less are the same, summed in another order.
ROUNDING = 1e-12


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
