"""From a recording to a model: which form, by folds in the order of time, within the recording alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .events import EventsError, Faults, Flags, Floats
from .features import NAMES, features_of
from .fitting import fit
from .history import WINDOW_DAYS, Units, units_of
from .metrics import BINS, Calibrated, Ranked
from .model import HazardModel

#: Fewer fault starts teach nothing: the prior stays.
STARTS_MIN = 20
#: Names of the two outcomes.
ALL, HARDWARE = "all classes", "hardware"
#: Folds begin at these shares of the recording, and each is judged over FOLD_SHARE of it.
FOLD_SHARES, FOLD_SHARE = (0.46, 0.55, 0.64, 0.73, 0.82), 0.125
#: Of a large fleet every other day of a fold is judged, or fewer.
FOLD_UNITS_MAX = 100_000


class Form(NamedTuple):
    """Which features may have a weight, and how dearly."""

    name: str
    names: tuple[str, ...]
    ridge: float


#: The simplest first. All of its features fall with the days since the return, none rises: it ranks hosts as those days
#: do, and is calibrated beside.
FORMS = (
    Form(
        "time since return",
        ("returned_1d", "returned_10d", "failed_before", "returned"),
        5.0,
    ),
    Form("all, held tight", NAMES, 20.0),
    Form("all", NAMES, 5.0),
)
#: A later form is taken only where it tells the days ahead better out of fold by more than this: a nat, of days that
#: count once each (a unit's window has seven, and each day lies in seven windows).
GAIN_MIN_NATS = 1.0
#: A probability out of fold is held away from 0 and 1 by this, so that one surprise is not all that counts.
CHANCE_MIN = 1e-9


@dataclass(frozen=True, slots=True)
class Fold:
    """How one form did out of fold."""

    form: Form
    nats: float  # log-likelihood of the days ahead
    auc: float
    recall: float
    ece: float
    calibration: tuple[tuple[float, float], ...]


def outcome_of(units: Units, outcome: str) -> Floats:
    """Return 1 where a fault of *outcome* starts within the units' window, else 0."""
    starts = units.starts if outcome == ALL else units.hardware_starts
    return (starts > 0).astype(np.float64)


def train(faults: Faults, outcome: str, source: str) -> HazardModel:
    """Return the model of *faults*. Raises EventsError if they are too few to learn from."""
    which = np.isfinite(faults.start)
    if outcome == HARDWARE:
        which = which & faults.hardware
    if which.sum() < STARTS_MIN:
        raise EventsError(
            f"{int(which.sum())} fault starts ({outcome}); expected at least {STARTS_MIN} to learn from"
        )
    daily, weekly = units_of(faults, 1), units_of(faults)
    best = choose(daily, weekly, outcome, faults.end_days)
    base, weights = fit(
        features_of(daily.state), outcome_of(daily, outcome), best.form.ridge, best.form.names
    )
    return HazardModel(
        source=f"{source}; features: {best.form.name}",
        is_prior=False,
        outcome=outcome,
        base_log_hazard_per_day=base,
        weights=weights,
        nodes=len(faults.nodes),
        faults=int(which.sum()),
        ridge=best.form.ridge,
        metrics={"auc": best.auc, "recall": best.recall, "ece": best.ece},
        calibration=best.calibration,
    )


def choose(daily: Units, weekly: Units, outcome: str, end_days: float) -> Fold:
    """Return the simplest form that no later one clearly beats out of fold; EventsError where no fold has a positive."""
    features, seen = features_of(daily.state), outcome_of(daily, outcome)
    rows: list[list[_Judged]] = []
    for before, after in _folds(daily, weekly, outcome, end_days):
        learned = features[before], seen[before]
        later = _Later(weekly.take(after), outcome)
        rows.append([later.judged(*fit(*learned, form.ridge, form.names)) for form in FORMS])
    if not rows:
        raise EventsError(
            "no days with and without faults after the first half of the recording: nothing to check a model on"
        )
    best, *others = (
        _summed(form, of) for form, of in zip(FORMS, zip(*rows, strict=True), strict=True)
    )
    for one in others:
        if one.nats > best.nats + GAIN_MIN_NATS:
            best = one
    return best


def _folds(
    daily: Units, weekly: Units, outcome: str, end_days: float
) -> Iterator[tuple[Flags, Flags]]:
    """Yield units to learn from (their day is over) and later ones to be judged on, with positives among both."""
    seen, came = outcome_of(daily, outcome), outcome_of(weekly, outcome)
    for share in FOLD_SHARES:
        cut = int(share * end_days)
        before = daily.day < cut
        after = (weekly.day >= cut) & (weekly.day < cut + max(1, int(FOLD_SHARE * end_days)))
        after &= (weekly.day - cut) % (1 + int(after.sum()) // FOLD_UNITS_MAX) == 0
        if seen[before].any() and 0 < came[after].sum() < after.sum():
            yield before, after


class _Judged(NamedTuple):
    positives: float
    nats: float
    auc: float
    recall: float
    ece: float
    told: Floats  # by bins, as shares of a bin
    observed: Floats


class _Later:
    """The units of a fold that are judged, with their features of the days ahead."""

    def __init__(self, units: Units, outcome: str) -> None:
        self._day, self._came = units.day, outcome_of(units, outcome)
        self._failed = np.isfinite(units.state.since_return_days)
        failed = units.state.take(self._failed)
        self._ahead = [features_of(failed, day) for day in range(WINDOW_DAYS)]

    def judged(self, base: float, weights: tuple[float, ...]) -> _Judged:
        """Return how a model does on them."""
        expected = np.full(len(self._came), WINDOW_DAYS * np.exp(base))
        expected[self._failed] = sum(np.exp(base + one @ np.array(weights)) for one in self._ahead)
        chance, even = -np.expm1(-expected), np.ones(len(self._came))
        likely = np.where(self._came > 0, chance, 1.0 - chance)
        calibrated = Calibrated(chance, self._came)
        told, observed, mass = calibrated.bins(even)
        return _Judged(
            float(self._came.sum()),
            float(np.log(np.maximum(likely, CHANCE_MIN)).sum()) / WINDOW_DAYS,
            Ranked(chance, self._came).auc(even),
            Ranked(chance, self._came, self._day).recall(even),
            calibrated.error(even),
            told * BINS / mass,
            observed * BINS / mass,
        )


def _summed(form: Form, folds: Sequence[_Judged]) -> Fold:
    mass = [one.positives for one in folds]
    told = np.mean([one.told for one in folds], axis=0).tolist()
    observed = np.mean([one.observed for one in folds], axis=0).tolist()
    return Fold(
        form,
        sum(one.nats for one in folds),
        float(np.average([one.auc for one in folds], weights=mass)),
        float(np.average([one.recall for one in folds], weights=mass)),
        float(np.mean([one.ece for one in folds])),
        tuple(zip(told, observed, strict=True)),
    )
