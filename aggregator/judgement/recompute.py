"""A stored score once more, from its row: the same numbers to the bit, or the row is not what was judged."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Any

from ..verdicts import Inputs
from .features import NAMES
from .scoring import Numbers, numbers


def inputs_of_row(row: Mapping[str, Any]) -> Inputs | None:
    """Return what a row of `scores` was computed from; None of one stored before version 9."""
    if row.get("hazard_model") is None:
        return None
    features = row["features"] or {}
    return Inputs(
        model=row["hazard_model"],
        log_hazard_base=row["log_hazard_base"],
        hazard_spread=row["hazard_spread"],
        measured_speed=_number(row["measured_speed"]),
        speed_error=_number(row["speed_error"]),
        features=tuple(_number(features.get(name)) for name in NAMES) if features else (),
        log_hazard_outcomes=row["log_hazard_outcomes"] or 0.0,
    )


def recompute(row: Mapping[str, Any]) -> Numbers:
    """Return the numbers of a row of `scores` from its inputs. Raises ValueError where it has none."""
    inputs = inputs_of_row(row)
    if inputs is None:
        raise ValueError("the row was stored before version 9 of the store: it has no inputs")
    return numbers(
        inputs,
        row["log_hazard_deltas"],
        row["relative_speed_factors"],
        row["horizon_seconds"] / 3600.0,
    )


def _number(value: float | None) -> float:
    return nan if value is None else value
