"""Recomputes scores: over another horizon, or from the inputs in a stored row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp
from typing import Any

from ..hazard.features import inputs_of_row
from ..model import Evidence, HostScore
from .score import HORIZON_HOURS, Numbers, numbers

#: A hazard describes the present. No model has been judged over more than a week.
SECONDS_MIN, SECONDS_MAX = 60, 7 * 24 * 3600


def over_horizon(host: HostScore, hours: float) -> HostScore:
    """Return *host* with score, interval and score deltas over *hours*."""
    times = hours / HORIZON_HOURS
    if times == 1.0:
        return host
    lower, upper = host.score_lower**times, host.score_upper**times
    if host.inputs:  # over eight hours a large hazard leaves no digits of the lower score
        lower, upper = (exp(-hazard * hours) for hazard in reversed(host.hazard_interval))
    return replace(
        host,
        score=host.score**times,
        score_lower=lower,
        score_upper=upper,
        evidence=tuple(
            _evidence_over_horizon(evidence, host.score, times) for evidence in host.evidence
        ),
    )


def _evidence_over_horizon(evidence: Evidence, score: float, times: float) -> Evidence:
    without = min(max(score - evidence.score_delta, 0.0), 1.0)
    return replace(evidence, score_delta=score**times - without**times)


def recompute(row: Mapping[str, Any]) -> Numbers:
    """Return the numbers of a row of `scores` from its inputs. Raises ValueError if it has none."""
    inputs = inputs_of_row(row)
    if inputs is None:
        raise ValueError("the row was stored before version 9 of the store: it has no inputs")
    deltas, speeds = row["log_hazard_deltas"], row["relative_speed_factors"]
    return numbers(inputs, deltas, speeds, row["horizon_seconds"] / 3600.0)
