"""Whether a run is slower than earlier runs of its workload, and whether the workload changed or a host did.

Pure functions. A run that is slow from its first step shows no change within itself: only earlier runs tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, sqrt
from typing import NamedTuple

import numpy as np

from .fingerprint import NUMBERS, Fingerprint, features

#: Runs of one workload on alike hosts differ by about this much (standard deviation of the logarithm of their pace), an
#: assumption that counts as much as so many runs: two runs alone say little of their spread.
SPREAD_PRIOR, PRIOR_RUNS = 0.02, 4
#: A run that is less slower than this is not slower: 3 %.
SLOWER_RATIO_MAX = 0.97
#: Earlier runs beyond this many add nothing: the nearest count.
EARLIER_RUNS_MAX = 32
#: The normal quantile of a 90 % interval.
_Z = 1.6449
#: Of a slowdown, the part that more waiting explains: above, someone was waited for; below, the work itself took longer.
WAITING_EXPLAINS_MIN, WAITING_EXPLAINS_MAX = 0.5, 0.25
#: A host is slow over so many workloads, and in so many runs, or nothing is said of it.
WORKLOADS_MIN, RUNS_OF_HOST_MIN = 2, 3


class PaceComparison(NamedTuple):
    """Pace over that of earlier runs, with a 90 % interval; 1: as before. `runs`: earlier runs that it is from."""

    ratio: float
    lower: float
    upper: float
    runs: int

    @property
    def is_slower(self) -> bool:
        """Whether the run is slower than its history beyond what runs differ by."""
        return self.ratio <= SLOWER_RATIO_MAX and self.upper < 1.0


def pace_of(fingerprint: Fingerprint) -> float:
    """Return the pace of a run: steps a second where the step is known, else NaN."""
    step = fingerprint.value("step_seconds")
    return 1.0 / step if isfinite(step) and step > 0 else float("nan")


def is_comparable(one: Fingerprint, other: Fingerprint) -> bool:
    """Say whether the paces of two runs of a workload may be compared: as many GPUs, of the same model."""
    return one.gpus == other.gpus and one.gpu_model == other.gpu_model


def compare_pace(pace: float, earlier: Iterable[float]) -> PaceComparison | None:
    """Return *pace* against that of *earlier* runs; None where nothing can be compared.

    The interval is Student's prediction interval of a further run, of logarithms, with SPREAD_PRIOR as PRIOR_RUNS runs.
    """
    known = np.array([one for one in earlier if isfinite(one) and one > 0][:EARLIER_RUNS_MAX])
    if not known.size or not (isfinite(pace) and pace > 0):
        return None
    logs = np.log(known)
    center, runs = float(np.median(logs)), int(known.size)
    # By the median's deviations: one earlier run that was slow itself must not widen the interval to no use.
    spread = 1.4826 * float(np.median(np.abs(logs - center)))
    freedom = PRIOR_RUNS + runs - 1
    variance = (PRIOR_RUNS * SPREAD_PRIOR**2 + (runs - 1) * spread**2) / freedom
    reach = student_quantile(freedom) * sqrt(variance * (1.0 + 1.0 / runs))
    difference = log(pace) - center
    return PaceComparison(exp(difference), exp(difference - reach), exp(difference + reach), runs)


def student_quantile(freedom: int) -> float:
    """Return the 95 % quantile of Student's t, by the Cornish-Fisher expansion; below 1 % off from 4 degrees on."""
    z = _Z
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + first + second


# ----------------------------------------------------------------------
# Drift: of the workload, or of a host.


class Movement(NamedTuple):
    """A number of the fingerprint that is not what it was. `change`: in spreads between runs of one workload."""

    name: str
    before: float
    now: float
    change: float


def movements(
    now: Fingerprint, earlier: Sequence[Fingerprint], change_min: float = 2.0
) -> list[Movement]:
    """Return what of *now* differs from the median of *earlier* by *change_min* spreads or more, the largest first."""
    if not earlier:
        return []
    with np.errstate(all="ignore"):
        before = np.array([one.values for one in earlier], dtype=np.float64)
        middle = np.array([_median(column) for column in before.T])
    changes = features([now])[0] - features([Fingerprint(tuple(middle.tolist()))])[0]
    found = [
        Movement(name, float(middle[at]), now.values[at], float(changes[at]))
        for at, name in enumerate(NUMBERS)
        if isfinite(changes[at]) and abs(changes[at]) >= change_min
    ]
    return sorted(found, key=lambda one: -abs(one.change))


def _median(column: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    known = column[np.isfinite(column)]
    return float(np.median(known)) if known.size else float("nan")


def waiting_explains(
    comparison: PaceComparison, now: Fingerprint, earlier: Sequence[Fingerprint]
) -> float:
    """Return the part of a slowdown that more waiting explains, 0 to 1; NaN where it is not known.

    A gang that waits for one host computes as long for each step as before, so that its share of computing falls as its
    pace does. Where every step is more work, or all hosts are slow alike, that share stays.
    """
    before = _median(np.array([one.value("compute_ratio") for one in earlier]))
    share = now.value("compute_ratio")
    if not (isfinite(before) and isfinite(share) and before > 0 and comparison.ratio < 1):
        return float("nan")
    expected_fall = before * (1.0 - comparison.ratio)
    return float(np.clip((before - share) / expected_fall, 0.0, 1.0))


class RunPace(NamedTuple):
    """A run as drift of hosts is judged by. `ratio`: its pace over that of its workload's history."""

    workload: str
    ratio: float
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostDrift:
    """A host on which several workloads are slow. `ratio`: pace with it over pace without it, with a 90 % interval."""

    host: str
    ratio: float
    lower: float
    upper: float
    runs: int
    workloads: int


def drifting_hosts(runs: Sequence[RunPace]) -> list[HostDrift]:
    """Return the hosts on which runs of two workloads or more were slow, while the same workloads without them were not.

    A host that is only ever in runs with the same others cannot be told from these, and none is named.
    """
    usable = [one for one in runs if isfinite(one.ratio) and one.ratio > 0]
    of_host: dict[str, list[int]] = {}
    for at, run in enumerate(usable):
        for host in set(run.hosts):
            of_host.setdefault(host, []).append(at)
    members = {host: frozenset(places) for host, places in of_host.items()}
    alike: dict[frozenset[int], int] = {}
    for places in members.values():
        alike[places] = alike.get(places, 0) + 1
    found = [
        drift
        for host, places in members.items()
        if alike[places] == 1 and (drift := _host_drift(host, places, usable)) is not None
    ]
    found.sort(key=lambda one: one.ratio)
    # What the slowest explains is no fault of those that ran beside it.
    chosen: list[HostDrift] = []
    explained: set[int] = set()
    for drift in found:
        left = members[drift.host] - explained
        if not chosen or _host_drift(drift.host, frozenset(left), usable, explained) is not None:
            chosen.append(drift)
            explained |= members[drift.host]
    return chosen


def _host_drift(
    host: str, places: frozenset[int], runs: Sequence[RunPace], without: Iterable[int] = ()
) -> HostDrift | None:
    workloads = {runs[at].workload for at in places}
    if len(workloads) < WORKLOADS_MIN or len(places) < RUNS_OF_HOST_MIN:
        return None
    left_out = {*without, *places}
    others = [
        log(run.ratio)
        for at, run in enumerate(runs)
        if at not in left_out and run.workload in workloads
    ]
    if len(others) < RUNS_OF_HOST_MIN:
        return None
    host_logs = np.array([log(runs[at].ratio) for at in places])
    difference = float(np.median(host_logs) - np.median(others))
    freedom = PRIOR_RUNS + len(places) - 1
    variance = (PRIOR_RUNS * SPREAD_PRIOR**2 + float(((host_logs - np.median(host_logs)) ** 2).sum())) / freedom  # fmt: skip
    reach = student_quantile(freedom) * sqrt(variance * (1 / len(places) + 1 / len(others)))
    slow_workloads = {runs[at].workload for at in places if runs[at].ratio <= SLOWER_RATIO_MAX}
    if (
        difference > log(SLOWER_RATIO_MAX)
        or difference + reach >= 0
        or len(slow_workloads) < WORKLOADS_MIN
    ):
        return None
    return HostDrift(
        host, exp(difference), exp(difference - reach), exp(difference + reach), len(places), len(workloads),
    )  # fmt: skip


def kind_of_drift(
    comparison: PaceComparison | None,
    now: Fingerprint,
    earlier: Sequence[Fingerprint],
    drifting: Iterable[str],
    hosts: Iterable[str],
) -> str:
    """Return what changed: "none", "host", "workload", or "unknown".

    *drifting*: hosts of `drifting_hosts`; *hosts*: those of the run.
    """
    if comparison is None or not comparison.is_slower:
        return "none"
    if set(drifting) & set(hosts):
        return "host"
    part = waiting_explains(comparison, now, earlier)
    # Hosts that are slow alike do the same work at less power or traffic; a workload that changed moved its levels.
    levels = {"compute_power_ratio", "wait_power_ratio", "tensor_ratio", "memory_bandwidth_ratio"}
    moved = any(one.name in levels for one in movements(now, earlier))
    if isfinite(part) and part <= WAITING_EXPLAINS_MAX and moved:
        return "workload"
    return "unknown"
