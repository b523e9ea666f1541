"""Whether a neighbor slowed a job: its pace beside the neighbor against its own pace alone, before and after.

A job is compared with itself, because jobs differ more than neighbors slow them. A neighbor is blamed only if the pace fell
when the neighbor came, by more than the pace scatters, and, once the neighbor has left, if the pace came back. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, inf, log, sqrt
from statistics import median

#: Windows of ten seconds that a comparison needs on each side.
WINDOWS_MIN = 6
#: Windows remembered on each side: ten minutes, because the work of a job changes by the hour.
WINDOWS_MAX = 60
#: Smaller slowdowns are not reported, however certain.
SLOWDOWN_MIN = 0.03
#: Standard errors of the interval of 90 %, and those that a report needs: one of about 200 unchanged pairs is reported wrongly.
Z90, Z_REPORTED = 1.645, 2.58
#: For normal scatter: standard error of a median / of a mean, and standard deviation / median absolute deviation.
_MEDIAN, _DEVIATION = 1.2533, 1.4826
#: Relative scatter that is assumed at least: windows count whole steps.
SCATTER_MIN = 0.01
#: Works per second of a job: other windows are faults of an agent, or nothing ran.
WORK_MIN, WORK_MAX = 1e-6, 1e6
#: Share of the slowdown that must disappear after the neighbor has left.
RETURN_MIN = 0.5


class Effect(StrEnum):
    """Effect of a neighbor on a job."""

    UNKNOWN = "too few windows"
    NONE = "not slower"
    SLOWER = "slower"
    OTHER_CAUSE = "slower, but its pace did not return when the neighbor left"


@dataclass(frozen=True, slots=True)
class NeighborEffect:
    """A comparison. `ratio`: the time of a step beside the neighbor over that alone, 1 for no change, with 90 % limits."""

    effect: Effect
    ratio: float = 1.0
    lower: float = 0.0
    upper: float = inf

    @property
    def slowdown(self) -> float:
        """Return the share of its speed that the job loses; never below 0."""
        return max(1.0 - 1.0 / self.ratio, 0.0)


def compare(
    before: Sequence[float], beside: Sequence[float], after: Sequence[float]
) -> NeighborEffect:
    """Compare the work per second of windows alone (*before*, *after* the neighbor) with those *beside* it.

    Windows whose work is unknown, or not from WORK_MIN to WORK_MAX, are ignored.
    """
    before, beside, after = (
        [work for work in windows if WORK_MIN <= work <= WORK_MAX]
        for windows in (before, beside, after)
    )
    alone = before or after
    if len(alone) < WINDOWS_MIN or len(beside) < WINDOWS_MIN:
        return NeighborEffect(Effect.UNKNOWN)
    ratio, error = _log_ratio(alone, beside)
    limits = exp(ratio - Z90 * error), exp(ratio + Z90 * error)
    if ratio - Z_REPORTED * error <= 0.0 or exp(-ratio) > 1.0 - SLOWDOWN_MIN:
        return NeighborEffect(Effect.NONE, exp(ratio), *limits)
    if before and len(after) >= WINDOWS_MIN and _log_ratio(after, beside)[0] < RETURN_MIN * ratio:
        return NeighborEffect(Effect.OTHER_CAUSE, exp(ratio), *limits)
    return NeighborEffect(Effect.SLOWER, exp(ratio), *limits)


def _log_ratio(alone: Sequence[float], beside: Sequence[float]) -> tuple[float, float]:
    """Return ln(time beside / time alone) and its standard error."""
    variances = [_relative_error(windows) ** 2 for windows in (alone, beside)]
    return log(median(alone) / median(beside)), sqrt(sum(variances))


def _relative_error(works: Sequence[float]) -> float:
    """Return the standard error of the median, relative to it."""
    middle = median(works)
    scatter = _DEVIATION * median(abs(work - middle) for work in works) / middle
    # Neighboring windows are alike: a step of 15 s is in two of them, so half of the windows count.
    return _MEDIAN * max(scatter, SCATTER_MIN) / sqrt(len(works) / 2.0)
