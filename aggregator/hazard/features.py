"""What the model of hazard looks at: one row a unit, one column a feature, each zero for a node of which nothing is wrong.

Those of the history of faults are functions of a unit's state, so that they can be told for a day ahead on which nothing
has happened yet. Those of what is measured follow them, where anything was. Training and judging both take them from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import expm1, inf, log
from typing import NamedTuple

import numpy as np

from .events import CLASSES, Floats
from .history import BY_CLASS_DAYS, State
from .measured import MEASURED, Feature, weighed


def _days(fade_days: float) -> Callable[[float], float]:
    return lambda value: -fade_days * log(value) if value > 0.0 else inf


def _days_of_returned(value: float) -> float:
    return RETURNED_DAYS / expm1(value) - RETURNED_LEAST_DAYS if value > 0.0 else inf


#: `returned` is ln(1 + RETURNED_DAYS / (days since the return + RETURNED_LEAST_DAYS)): with a weight of 1 the hazard
#: after a return falls as 1 / days, as that of earthquakes does after a shock (Omori), to that of before in a month.
RETURNED_DAYS, RETURNED_LEAST_DAYS = 30.0, 0.25
_RETURNED = "it returned from a fault {shown:,.1f} days ago"

#: Of the history of faults, whatever their class.
ALIKE: tuple[Feature, ...] = (
    Feature("returned_1d", "ratio", "0", "returned from a fault, fading over a day", _RETURNED, _days(1.0)),
    Feature("returned_10d", "ratio", "0", "returned from a fault, fading over ten days", _RETURNED, _days(10.0)),
    Feature("failed_before", "ratio", "0", "has failed at some time on record", "it has failed before", float),
    Feature("faults_7d", "log count", "0", "ln(1 + faults of the past, fading over 7 days)",
            "faults, each fading over 7 days: {shown:.2f}", expm1),
    Feature("faults_30d", "log count", "0", "ln(1 + faults of the past, fading over 30 days)",
            "faults, each fading over 30 days: {shown:.2f}", expm1),
    Feature("faults_90d", "log count", "0", "ln(1 + faults of the past, fading over 90 days)",
            "faults, each fading over 90 days: {shown:.2f}", expm1),
    Feature("returned", "log ratio", "0", "returned from a fault, fading as 1 / days", _RETURNED, _days_of_returned),
    Feature("faults_ever", "log count", "0", "ln(1 + faults on record)", "faults on record: {shown:.0f}", expm1),
    Feature("faults_last_7d", "log count", "0", "ln(1 + faults that began within the last 7 days)",
            "faults that began within the last 7 days: {shown:.0f}", expm1),
)  # fmt: skip
#: Of the same, by class.
BY_CLASS: tuple[Feature, ...] = tuple(
    Feature(f"faults_{each.name}_30d", "log count", "0", f"ln(1 + {each.words}, fading over 30 days)",
            f"{each.words}, each fading over 30 days: {{shown:.2f}}", expm1)
    for each in CLASSES
)  # fmt: skip
#: Of the same, among the nodes that were up.
RANK = Feature(
    "fault_rank", "log ratio", "0",
    "rank among the fleet's hosts, the average of those by time since return, by faults fading over 30 days and by faults on record",
    "its faults rank it {shown:.0%} of the way from a host that never failed to the worst of the fleet", lambda value: -expm1(-value),
)  # fmt: skip
HISTORY = (*ALIKE, *BY_CLASS, RANK)
#: The columns, in order. A higher one never means a lower hazard: the fit holds their weights at zero or above.
FEATURES: tuple[Feature, ...] = (*HISTORY, *MEASURED)
FEATURE_NAMES = tuple(feature.name for feature in FEATURES)
NAMES_ALIKE = FEATURE_NAMES[: len(ALIKE)]
NAMES_BY_CLASS = FEATURE_NAMES[: len(ALIKE) + len(BY_CLASS)]
NAMES_OF_HISTORY = FEATURE_NAMES[: len(HISTORY)]


def features_of(state: State, ahead_days: float = 0.0) -> Floats:
    """Return units x features, as they will be *ahead_days* later if nothing happens until then.

    But for `faults_last_7d`, which stays: a state does not say on which of the seven days each fault was. So does the rank
    among others, who change as well, and what was measured; of a state that bears nothing of that only the columns of HISTORY
    are there.
    """
    since = state.since_return_days + ahead_days  # +inf fades to zero
    counts = [
        np.log1p(count * np.exp(-ahead_days / decay)) for decay, count in state.decayed.items()
    ]
    columns = [
        np.exp(-since),
        np.exp(-since / 10.0),
        np.isfinite(since).astype(float),
        *counts,
        np.log1p(RETURNED_DAYS / (since + RETURNED_LEAST_DAYS)),
        np.log1p(state.count),
        np.log1p(state.last_week),
        *_by_class(state, ahead_days).T,
        np.zeros(len(since)) if state.fault_rank is None else state.fault_rank,
    ]
    if state.measured is not None:
        columns += list(weighed(state.measured).T)
    return np.stack(columns, axis=1)


def _by_class(state: State, ahead_days: float) -> Floats:
    if state.by_class is None:
        return np.zeros((len(state.count), len(CLASSES)))
    return np.asarray(np.log1p(state.by_class * np.exp(-ahead_days / BY_CLASS_DAYS)))


def weigh(features: Floats, weights: Sequence[float]) -> Floats:
    """Return the sum of weight x feature of each unit. *weights*: by FEATURES; *features* may have those of HISTORY alone."""
    return np.asarray(features @ np.array(weights[: features.shape[1]]))


def features_judged(columns: Floats) -> Floats:
    """Return hosts x features of hosts x *columns*: those of HISTORY, then what is measured now (NaN: not known)."""
    return np.hstack([columns[:, : len(HISTORY)], weighed(columns[:, len(HISTORY) :])])


# ----------------------------------------------------------------------
# Which features of the model may have a weight: one form for each simple ranking, richer ones, and
# one with what is measured.


class Form(NamedTuple):
    """Which features may have a weight, and how dearly."""

    name: str
    names: tuple[str, ...]
    ridge: float
    #: The feature whose order is the form's: all of `names` rise with it, and its weight stays above zero.
    ordered_by: str = ""


_RIDGE = 5.0
#: Each ranks hosts exactly as the baseline of its name does (`baselines.BASELINES`): what is fitted is the calibration.
#: The first is taken unless a richer one plainly ranks better: on public records it is never far below the best of the others,
#: and each of these is (`docs/hazard.md`). Its one weight is the power by which hazard rises with the rank. The others are what
#: it is held against (`bench/quality/default_ranking.py`).
SIMPLE = (
    Form("average rank", ("fault_rank",), _RIDGE, "fault_rank"),
    Form("time since return", ("returned_1d", "returned_10d", "failed_before", "returned"), _RIDGE, "returned"),
    Form("count decayed over 30 days", ("failed_before", "faults_30d"), _RIDGE, "faults_30d"),
    Form("count decayed over 7 days", ("failed_before", "faults_7d"), _RIDGE, "faults_7d"),
    Form("count decayed over 90 days", ("failed_before", "faults_90d"), _RIDGE, "faults_90d"),
    Form("lifetime count", ("failed_before", "faults_ever"), _RIDGE, "faults_ever"),
    Form("count of the last 7 days", ("faults_last_7d",), _RIDGE, "faults_last_7d"),
    Form("failed before, or never", ("failed_before",), _RIDGE, "failed_before"),
)  # fmt: skip
_TIGHT = 20.0
#: Of the history of faults; "all" is all of it but for their classes.
RICHER = (
    Form("all, held tight", NAMES_ALIKE, _TIGHT),
    Form("all", NAMES_ALIKE, _RIDGE),
    Form("all, and by class, held tight", NAMES_BY_CLASS, _TIGHT),
)
#: As the first of these, and with what is measured; tried where enough of that is on record.
WITH_MEASURED = Form(
    "history and what is measured, held tight",
    (*NAMES_ALIKE, *(each.name for each in MEASURED)),
    _TIGHT,
)
