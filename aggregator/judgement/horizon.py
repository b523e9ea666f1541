"""A score over another horizon: the same hazard, for longer or for less long."""

from __future__ import annotations

from dataclasses import replace

from ..verdicts import Evidence, HostScore
from .scoring import HORIZON_HOURS

#: A hazard is one of now. Over more than a week of it no model has been judged.
SECONDS_MIN, SECONDS_MAX = 60, 7 * 24 * 3600


def over(host: HostScore, hours: float) -> HostScore:
    """Return *host* with its score, interval and what its evidence cost as they are over *hours*."""
    times = hours / HORIZON_HOURS
    if times == 1.0:
        return host
    return replace(
        host,
        score=host.score**times,
        score_lower=host.score_lower**times,
        score_upper=host.score_upper**times,
        evidence=tuple(_over(one, host.score, times) for one in host.evidence),
    )


def _over(evidence: Evidence, score: float, times: float) -> Evidence:
    without = min(max(score - evidence.score_delta, 0.0), 1.0)
    return replace(evidence, score_delta=score**times - without**times)
