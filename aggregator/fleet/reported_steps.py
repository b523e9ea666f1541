"""Step times that the ranks of jobs report (`gangline.steps`), by host and by gang. Preferred to inferred ones.

A rank's row is `JOB/RANK`, on its host. It counts for the gang of its host if it has the name of that gang's job, or if no
process names that job and its hosts run nothing else. So a rank affects its own job only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...fingerprints.group_statistics import medians, per_member
from ..arrays import Flags, Floats, Indexes
from .jobs import SCHEDULER, Job

if TYPE_CHECKING:
    from .fleet import Fleet

#: Maximum age of a current report.
AGE_SECONDS_MAX = 5.0
#: If fewer of a gang's hosts report, its pace is derived from its work.
REPORTING_SHARE_MIN = 0.8
#: Manager of a job that was inferred from its hosts' work.
INFERRED = "inferred"
_ANY, _NONE = -1, -2


class HostSteps(NamedTuple):
    """Step times by host and job: medians over the job's ranks on the host."""

    host: Indexes
    job: Indexes  # `ReportedSteps.code`
    seconds: Floats


class ReportedSteps:
    """Step times of all jobs. Owned by the fleet's thread."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._row_job: Indexes = np.zeros(0, dtype=np.intp)
        self._evictions = 0
        self.current = HostSteps(self._row_job, self._row_job, np.zeros(0))

    def code(self, job: str) -> int:
        """Return the number of a job with a reporting rank; -2 for another job."""
        return self._codes.get(job, _NONE)

    def of_job(self, job: str) -> float:
        """Return the step time of *job*, the median over its hosts; NaN: none reported."""
        own = self.current.seconds[self.current.job == self.code(job)]
        return float(np.median(own)) if own.size else nan

    def update(self, fleet: Fleet, now_ns: int) -> None:
        """Store the current reports."""
        table = fleet.tables["step_1s"]
        self._name_rows(fleet)
        age_seconds = table.age_seconds(fleet.boot, fleet.host_now_ns(now_ns))
        seconds = table.gauge("step_seconds")
        known = np.isfinite(seconds) & (seconds > 0.0) & (age_seconds <= AGE_SECONDS_MAX)
        rows = np.flatnonzero(known)
        host = table.devices.host[rows].astype(np.intp)
        keys, group = np.unique(np.array([host, self._row_job[rows]]), axis=1, return_inverse=True)
        step_seconds = medians(seconds[rows], group.reshape(-1).astype(np.intp), keys.shape[1])
        self.current = HostSteps(keys[0], keys[1], step_seconds)

    def _name_rows(self, fleet: Fleet) -> None:
        """Find the jobs of new rows, or of all rows after an eviction, which may reassign rows."""
        devices = fleet.devices["step"]
        if fleet.evictions.count != self._evictions:
            self._evictions, self._codes = fleet.evictions.count, {}
            self._row_job = np.zeros(0, dtype=np.intp)
        new = [
            self._codes.setdefault(devices.names[row].rpartition("/")[0], len(self._codes))
            for row in range(self._row_job.size, devices.count)
        ]
        self._row_job = np.append(self._row_job, np.array(new, dtype=np.intp))

    def by_host(self, jobs: Sequence[Job], gang: Indexes, shared: Flags) -> Floats:
        """Return the step time of each host's ranks in its gang; NaN: none reported.

        *gang*: index in *jobs* for each host, -1: none; *shared*: hosts that run several jobs.
        """
        result = np.full(gang.size, np.nan)
        if not self.current.host.size or not jobs:
            return result
        codes = np.array(
            [_ANY if job.key[0] in (SCHEDULER, INFERRED) else self.code(job.name) for job in jobs],
            dtype=np.intp,
        )
        names = np.array([self.code(job.name) for job in jobs], dtype=np.intp)
        host, job, seconds = self.current
        inside = host < gang.size
        host, job, seconds = host[inside], job[inside], seconds[inside]
        gang_of_entry = gang[host]
        is_own = (gang_of_entry >= 0) & (
            (names[gang_of_entry] == job)
            | ((codes[gang_of_entry] == _ANY) & ~shared[host] & _is_only(host))
        )
        result[host[is_own]] = seconds[is_own]
        return result


def _is_only(host: Indexes) -> Flags:
    return np.asarray(np.bincount(host)[host] == 1) if host.size else np.zeros(0, dtype=bool)


def gang_steps(by_host: Floats, group: Indexes, count: int) -> Floats:
    """Return each gang's step time; NaN if too few hosts report. *group*: gang of each host."""
    members = np.bincount(group[group >= 0], minlength=count)
    known = np.bincount(group[(group >= 0) & np.isfinite(by_host)], minlength=count)
    enough = (known > 0) & (known >= REPORTING_SHARE_MIN * members)
    return np.where(enough, medians(by_host, group, count), np.nan)


def is_long(steps: Floats, group: Indexes, seconds_max: float) -> Flags:
    """Return which members are in a gang whose reported step is longer than *seconds_max*."""
    with np.errstate(invalid="ignore"):
        return per_member((steps > seconds_max).astype(np.float64), group) > 0.0
