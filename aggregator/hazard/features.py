"""Features of the hazard model: a row per unit, a column per feature, zero without anomalies.

History features depend only on a unit's state, so that they can be computed for a future day
without new events. Measured features follow if anything was measured. Training and judging share
this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import expm1, inf, log, nan
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Floats
from ..model import Inputs
from .fault_classes import CLASSES
from .history import BY_CLASS_DAYS, UnitState
from .measured import MEASURED, Feature, model_inputs

#: `returned` is ln(1 + RETURNED_DAYS / (days since the return + RETURNED_LEAST_DAYS)): with a
#: weight of 1 the hazard after a return falls as 1 / days to its previous level within a month,
#: like that of earthquakes after a shock (Omori).
RETURNED_DAYS, RETURNED_LEAST_DAYS = 30.0, 0.25
_RETURNED = "it returned from a fault {shown:,.1f} days ago"
#: Features of the fault history by class.
CLASS_FEATURES: tuple[Feature, ...] = tuple(
    Feature(f"faults_{fault_class.name}_30d", "log count", "0", f"ln(1 + {fault_class.description}, fading over 30 days)",
            f"{fault_class.description}, each fading over 30 days: {{shown:.2f}}", expm1)
    for fault_class in CLASSES
)  # fmt: skip
#: Rank by fault history among the nodes that are up.
RANK_FEATURE = Feature(
    "fault_rank",
    "log ratio",
    "0",
    "rank among the fleet's hosts, the average of those by time since return, by faults fading over 30 days and by faults on record",
    "its faults rank it {shown:.0%} of the way from a host that never failed to the worst of the "
    "fleet",
    lambda value: -expm1(-value),
)
#: Measured values in their own units (see `measured.py`), and the number of GPUs.
OBSERVED_NAMES = (*(feature.name for feature in MEASURED), "gpus")


def _fade_to_days(fade_days: float) -> Callable[[float], float]:
    return lambda value: -fade_days * log(value) if value > 0.0 else inf


def _returned_to_days(value: float) -> float:
    return RETURNED_DAYS / expm1(value) - RETURNED_LEAST_DAYS if value > 0.0 else inf


#: Features of the fault history, regardless of class.
BASIC_FEATURES: tuple[Feature, ...] = (
    Feature("returned_1d", "ratio", "0", "returned from a fault, fading over a day", _RETURNED, _fade_to_days(1.0)),
    Feature("returned_10d", "ratio", "0", "returned from a fault, fading over ten days", _RETURNED, _fade_to_days(10.0)),
    Feature("failed_before", "ratio", "0", "has failed at some time on record", "it has failed before", float),
    Feature("faults_7d", "log count", "0", "ln(1 + faults of the past, fading over 7 days)",
            "faults, each fading over 7 days: {shown:.2f}", expm1),
    Feature("faults_30d", "log count", "0", "ln(1 + faults of the past, fading over 30 days)",
            "faults, each fading over 30 days: {shown:.2f}", expm1),
    Feature("faults_90d", "log count", "0", "ln(1 + faults of the past, fading over 90 days)",
            "faults, each fading over 90 days: {shown:.2f}", expm1),
    Feature("returned", "log ratio", "0", "returned from a fault, fading as 1 / days", _RETURNED, _returned_to_days),
    Feature("faults_ever", "log count", "0", "ln(1 + faults on record)", "faults on record: {shown:.0f}", expm1),
    Feature("faults_last_7d", "log count", "0", "ln(1 + faults that began within the last 7 days)",
            "faults that began within the last 7 days: {shown:.0f}", expm1),
)  # fmt: skip
HISTORY_FEATURES = (*BASIC_FEATURES, *CLASS_FEATURES, RANK_FEATURE)
#: The columns. A higher value never lowers the hazard: weights are zero or above.
FEATURES: tuple[Feature, ...] = (*HISTORY_FEATURES, *MEASURED)
FEATURE_NAMES = tuple(feature.name for feature in FEATURES)
BASIC_FEATURE_NAMES = FEATURE_NAMES[: len(BASIC_FEATURES)]
BASIC_AND_CLASS_NAMES = FEATURE_NAMES[: len(BASIC_FEATURES) + len(CLASS_FEATURES)]
HISTORY_FEATURE_NAMES = FEATURE_NAMES[: len(HISTORY_FEATURES)]
#: Values stored with each score: fault history and measurements.
SCORE_FEATURE_NAMES = (*HISTORY_FEATURE_NAMES, *OBSERVED_NAMES)
SCORE_FEATURE_COLUMN = {name: index for index, name in enumerate(SCORE_FEATURE_NAMES)}


class ModelForm(NamedTuple):
    """Features that may have a weight, and the ridge penalty of the fit."""

    name: str
    names: tuple[str, ...]
    ridge: float
    #: The feature whose order the ranking keeps: `names` increase with it, and its weight stays
    #: above zero.
    ordered_by: str = ""


#: Ranks hosts like the baseline of this name (`baselines.BASELINES`); only the calibration is
#: fitted. It is the default because on public records it is never far below the best simple ranking
#: (`docs/hazard.md`). Its weight is the exponent with which the hazard rises with the rank.
AVERAGE_RANK = ModelForm("average rank", ("fault_rank",), 5.0, "fault_rank")
#: The learned model to compare with the default if measurements are missing or too few.
HISTORY_FORM = ModelForm("history, held tight", BASIC_FEATURE_NAMES, 20.0)
#: The learned model with measurements.
MEASURED_FORM = ModelForm(
    "history and measurements, held tight",
    (*BASIC_FEATURE_NAMES, *(feature.name for feature in MEASURED)),
    20.0,
)


def features_of(state: UnitState, ahead_days: float = 0.0) -> Floats:
    """Return units x features, as they will be *ahead_days* later without further events.

    Unchanged are `faults_last_7d` (a state lacks the day of each fault), the rank, because others
    change as well, and measurements. A state without measurements has only the columns of
    HISTORY_FEATURES.
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
        columns += list(model_inputs(state.measured).T)
    return np.stack(columns, axis=1)


def _by_class(state: UnitState, ahead_days: float) -> Floats:
    if state.by_class is None:
        return np.zeros((len(state.count), len(CLASSES)))
    return np.asarray(np.log1p(state.by_class * np.exp(-ahead_days / BY_CLASS_DAYS)))


def weighted_sum(features: Floats, weights: Sequence[float]) -> Floats:
    """Return the weighted sum of each unit's features; *features* may lack the measured columns."""
    return np.asarray(features @ np.array(weights[: features.shape[1]]))


def host_features(columns: Floats) -> Floats:
    """Return hosts x features from *columns*: history, then present measurements (NaN: unknown)."""
    return np.hstack(
        [columns[:, : len(HISTORY_FEATURES)], model_inputs(columns[:, len(HISTORY_FEATURES) :])]
    )


def inputs_of_row(row: Mapping[str, Any]) -> Inputs | None:
    """Return the inputs stored in a row of `scores`; None before version 9."""
    if row.get("hazard_model") is None:
        return None
    features = row["features"] or {}
    return Inputs(
        model=row["hazard_model"],
        log_hazard_base=row["log_hazard_base"],
        hazard_spread=row["hazard_spread"],
        measured_speed=_number(row["measured_speed"]),
        speed_error=_number(row["speed_error"]),
        features=tuple(_number(features.get(name)) for name in SCORE_FEATURE_NAMES)
        if features
        else (),
        log_hazard_outcomes=row["log_hazard_outcomes"] or 0.0,
        # Before version 13 the hazards of all faults were multiplied, and the interval ignored
        # their number.
        log_hazard_one_cause=row.get("log_hazard_one_cause") or 0.0,
        log_hazard_own_causes=row.get("log_hazard_own_causes") or 0.0,
    )


def _number(value: float | None) -> float:
    return nan if value is None else value
