"""Compares a run with earlier runs of its workload: whether it is slower, and whether the workload or a host changed.

Pure functions. A run that is slow from its first step shows no change within itself: only earlier runs reveal it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, isfinite, log, sqrt
from typing import NamedTuple

import numpy as np

from .fingerprint import Fingerprint

#: Standard deviation of the logarithm of the pace of runs of a workload on alike hosts (assumed), and the number of
#: runs for which this assumption counts: two runs alone do not show their spread.
SPREAD_PRIOR, PRIOR_RUNS = 0.02, 4
#: Only a pace ratio below this counts as slower: 3 %.
SLOWER_RATIO_MAX = 0.97
#: Limit of the earlier runs that are compared; the nearest count.
EARLIER_RUNS_MAX = 32
#: Normal quantiles: of a 90 % interval, and of the budget for false alarms: 1 % of unchanged runs are reported as
#: slower.
_Z, _Z_VERDICT = 1.6449, 2.3263
#: If more waiting explains at most this part of a slowdown, the work itself took longer.
WAITING_EXPLAINS_MAX = 0.25
#: Workloads, and runs, that are needed to judge a host.
WORKLOADS_MIN, RUNS_OF_HOST_MIN = 2, 3
#: Limit of the hosts that are examined, those with the greatest share of slow runs first.
CANDIDATES_MAX = 128


class PaceComparison(NamedTuple):
    """Pace over the pace of earlier runs, with a 90 % interval; 1: no change. `runs`: number of earlier runs used.

    `is_slower`: beyond the usual difference of runs, with a false alarm for one healthy run in a hundred.
    """

    ratio: float
    lower: float
    upper: float
    runs: int
    is_slower: bool = False


def pace_of(fingerprint: Fingerprint) -> float:
    """Return the pace of a run in steps per second; NaN if the step is unknown."""
    step = fingerprint.value("step_seconds")
    return 1.0 / step if isfinite(step) and step > 0 else float("nan")


def is_comparable(one: Fingerprint, other: Fingerprint) -> bool:
    """Return whether the paces of two runs of a workload are comparable: the same number and model of GPUs."""
    return one.gpus == other.gpus and one.gpu_model == other.gpu_model


def compare_pace(pace: float, earlier: Iterable[float]) -> PaceComparison | None:
    """Return *pace* compared with the paces of *earlier* runs; None without a usable pace on both sides.

    The interval is Student's prediction interval of a further run, of logarithms, with SPREAD_PRIOR as PRIOR_RUNS runs.
    """
    known = np.array([one for one in earlier if isfinite(one) and one > 0][:EARLIER_RUNS_MAX])
    if not known.size or not (isfinite(pace) and pace > 0):
        return None
    logs = np.log(known)
    center, runs = float(np.median(logs)), int(known.size)
    # The spread comes from the median deviation: a single slow earlier run must not make the interval uselessly wide.
    spread = 1.4826 * float(np.median(np.abs(logs - center)))
    freedom = PRIOR_RUNS + runs - 1
    variance = (PRIOR_RUNS * SPREAD_PRIOR**2 + (runs - 1) * spread**2) / freedom
    deviation = sqrt(variance * (1.0 + 1.0 / runs))
    reach = student_quantile(freedom) * deviation
    difference = log(pace) - center
    is_slower = difference <= log(SLOWER_RATIO_MAX) and (
        difference + student_quantile(freedom, _Z_VERDICT) * deviation < 0
    )
    return PaceComparison(
        exp(difference), exp(difference - reach), exp(difference + reach), runs, is_slower
    )


def student_quantile(freedom: int, z: float = _Z) -> float:
    """Return the quantile of Student's t whose normal quantile is *z* (default: 95 %), by the Cornish-Fisher expansion.

    With 4 degrees of freedom or more the error is below 1 % at 95 %, and below 4 % at 99 %.
    """
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + first + second
