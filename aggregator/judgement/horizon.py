"""A score over another horizon: the same hazard, for longer or for less long."""

from __future__ import annotations

from dataclasses import replace
from math import exp

from ..verdicts import Evidence, HostScore
from .scoring import HORIZON_HOURS

#: A hazard is one of now. Over more than a week of it no model has been judged.
SECONDS_MIN, SECONDS_MAX = 60, 7 * 24 * 3600


def over(host: HostScore, hours: float) -> HostScore:
    """Return *host* with its score, interval and what its evidence cost as they are over *hours*."""
    times = hours / HORIZON_HOURS
    if times == 1.0:
        return host
    lower, upper = host.score_lower**times, host.score_upper**times
    if host.inputs:  # of a large hazard nothing of the lower one is left over eight hours
        lower, upper = (exp(-hazard * hours) for hazard in reversed(host.hazard_interval))
    return replace(
        host,
        score=host.score**times,
        score_lower=lower,
        score_upper=upper,
        evidence=tuple(_over(one, host.score, times) for one in host.evidence),
    )


def _over(evidence: Evidence, score: float, times: float) -> Evidence:
    without = min(max(score - evidence.score_delta, 0.0), 1.0)
    return replace(evidence, score_delta=score**times - without**times)
