"""Drift of a workload or of a host: how the pace of runs changed over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import exp, isfinite, log, sqrt
from typing import NamedTuple

import numpy as np

from . import history
from .fingerprint import NUMBERS, Fingerprint, features


class Movement(NamedTuple):
    """A number of the fingerprint that changed. `change`: in spreads between runs of one workload."""

    name: str
    before: float
    now: float
    change: float


def movements(
    now: Fingerprint, earlier: Sequence[Fingerprint], change_min: float = 2.0
) -> list[Movement]:
    """Return the numbers of *now* that differ from the median of *earlier* by *change_min* spreads, largest first."""
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
    comparison: history.PaceComparison, now: Fingerprint, earlier: Sequence[Fingerprint]
) -> float:
    """Return the part of a slowdown that more waiting explains, 0 to 1; NaN if unknown.

    A gang that waits for one host needs the same computing time per step as before, so its share of computing falls
    with its pace. If every step has more work, or all hosts are equally slow, that share does not change.
    """
    before = _median(np.array([one.value("compute_ratio") for one in earlier]))
    share = now.value("compute_ratio")
    if not (isfinite(before) and isfinite(share) and before > 0 and comparison.ratio < 1):
        return float("nan")
    expected_fall = before * (1.0 - comparison.ratio)
    return float(np.clip((before - share) / expected_fall, 0.0, 1.0))


class RunPace(NamedTuple):
    """A run as input of `drifting_hosts`. `ratio`: its pace over the pace of its workload's history."""

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
    """Return the hosts on which runs of two workloads or more were slow, while the same workloads elsewhere were not.

    *runs*: oldest first. A host whose newest run was not slow has recovered. Hosts that always ran together cannot be
    distinguished: none of them is named.
    """
    usable = [one for one in runs if isfinite(one.ratio) and one.ratio > 0]
    of_host: dict[str, list[int]] = {}
    slow_workloads: dict[str, set[str]] = {}
    for at, run in enumerate(usable):
        is_slow = run.ratio <= history.SLOWER_RATIO_MAX
        for host in set(run.hosts):
            of_host.setdefault(host, []).append(at)
            if is_slow:
                slow_workloads.setdefault(host, set()).add(run.workload)
    members = {host: frozenset(places) for host, places in of_host.items()}
    alike: dict[frozenset[int], int] = {}
    for places in members.values():
        alike[places] = alike.get(places, 0) + 1
    # Most hosts are in no slow run: examine only the others, those with the greatest share of slow runs first.
    candidates = [
        host
        for host, workloads in slow_workloads.items()
        if len(workloads) >= history.WORKLOADS_MIN
        and alike[members[host]] == 1
        and usable[of_host[host][-1]].ratio <= history.SLOWER_RATIO_MAX
    ]
    slow_share = {
        host: float(np.mean([usable[at].ratio <= history.SLOWER_RATIO_MAX for at in members[host]]))
        for host in candidates
    }
    candidates.sort(key=lambda host: (-slow_share[host], host))
    found = [
        drift
        for host in candidates[: history.CANDIDATES_MAX]
        if (drift := _host_drift(host, members[host], usable)) is not None
    ]
    found.sort(key=lambda one: one.ratio)
    # Runs that the slowest host explains do not count against the hosts that ran with it.
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
    if len(workloads) < history.WORKLOADS_MIN or len(places) < history.RUNS_OF_HOST_MIN:
        return None
    left_out = {*without, *places}
    others = [
        log(run.ratio)
        for at, run in enumerate(runs)
        if at not in left_out and run.workload in workloads
    ]
    if len(others) < history.RUNS_OF_HOST_MIN:
        return None
    host_logs = np.array([log(runs[at].ratio) for at in places])
    difference = float(np.median(host_logs) - np.median(others))
    freedom = history.PRIOR_RUNS + len(places) - 1
    variance = (
        history.PRIOR_RUNS * history.SPREAD_PRIOR**2
        + float(((host_logs - np.median(host_logs)) ** 2).sum())
    ) / freedom
    reach = history.student_quantile(freedom) * sqrt(variance * (1 / len(places) + 1 / len(others)))
    slow_workloads = {
        runs[at].workload for at in places if runs[at].ratio <= history.SLOWER_RATIO_MAX
    }
    if (
        difference > log(history.SLOWER_RATIO_MAX)
        or difference + reach >= 0
        or len(slow_workloads) < history.WORKLOADS_MIN
    ):
        return None
    return HostDrift(
        host, exp(difference), exp(difference - reach), exp(difference + reach), len(places), len(workloads),
    )  # fmt: skip


class RunVerdict(StrEnum):
    """Verdict on a run, from earlier runs of its workload."""

    NEVER_SEEN = "never seen"
    #: The step is unknown, or no earlier run used the same number and model of GPUs.
    NOT_COMPARABLE = "not comparable"
    AS_BEFORE = "as before"
    #: Other workloads were slow, too, on a host of this run.
    SLOW_HOST = "slower: a host"
    #: Each step has other work than before.
    WORKLOAD_CHANGED = "slower: the workload changed"
    #: It waits more, or computes longer for the same work: runs alone do not show the host or other cause.
    SLOWER = "slower"


def verdict_of(
    comparison: history.PaceComparison | None,
    now: Fingerprint,
    earlier: Sequence[Fingerprint],
    drifting: Iterable[str],
    hosts: Iterable[str],
) -> RunVerdict:
    """Return the verdict of *earlier* runs of the same workload on the run *now*.

    *drifting*: hosts of `drifting_hosts`; *hosts*: the hosts of the run.
    """
    if not earlier:
        return RunVerdict.NEVER_SEEN
    if comparison is None:
        return RunVerdict.NOT_COMPARABLE
    if not comparison.is_slower:
        return RunVerdict.AS_BEFORE
    if set(drifting) & set(hosts):
        return RunVerdict.SLOW_HOST
    part = waiting_explains(comparison, now, earlier)
    # Hosts that are slow alike do the same work at less power or traffic; a workload that changed moved its levels.
    levels = {"compute_power_ratio", "wait_power_ratio", "tensor_ratio", "memory_bandwidth_ratio"}
    moved = any(one.name in levels for one in movements(now, earlier))
    if isfinite(part) and part <= history.WAITING_EXPLAINS_MAX and moved:
        return RunVerdict.WORKLOAD_CHANGED
    return RunVerdict.SLOWER
