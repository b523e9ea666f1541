"""Step times that the ranks of jobs report (`gangline.steps`), by host and by gang. Preferred to inferred ones.

A rank's row is `JOB/RANK`, on its host. It counts for the gang of its host if it has the name of that gang's job, or if no
process names that job and its hosts run nothing else. So a rank affects its own job only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...fingerprints.stragglers import medians, per_member
from ..counter_deltas import Flags, Floats, Indexes
from .jobs import SCHEDULER, Job

if TYPE_CHECKING:
    from .fleet import Fleet

#: A report is of now for this long.
AGE_SECONDS_MAX = 5.0
#: At least this many of a gang's hosts must report; otherwise its pace is derived from its work.
REPORTING_SHARE_MIN = 0.8
#: Who manages a job that is known by its hosts' work alone.
INFERRED = "inferred"
_ANY, _NONE = -1, -2


class HostSteps(NamedTuple):
    """The step time of each job on each host that reports one, the median of its ranks there: an entry for each pair."""

    host: Indexes
    job: Indexes  # `ReportedSteps.code`
    seconds: Floats


class ReportedSteps:
    """Belongs to the fleet's thread."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._row_job: Indexes = np.zeros(0, dtype=np.intp)
        self._evictions = 0
        self.current = HostSteps(self._row_job, self._row_job, np.zeros(0))

    def code(self, job: str) -> int:
        """Return the number of a job that some rank reports; -2 for another."""
        return self._codes.get(job, _NONE)

    def update(self, fleet: Fleet, now_ns: int) -> None:
        """Take over what is reported now."""
        table = fleet.tables["step_1s"]
        self._name_rows(fleet)
        age_seconds = table.age_seconds(fleet.boot, fleet.host_now_ns(now_ns))
        seconds = table.gauge("step_seconds")
        known = np.isfinite(seconds) & (seconds > 0.0) & (age_seconds <= AGE_SECONDS_MAX)
        rows = np.flatnonzero(known)
        host = table.devices.host[rows].astype(np.intp)
        keys, group = np.unique(np.array([host, self._row_job[rows]]), axis=1, return_inverse=True)
        found = medians(seconds[rows], group.reshape(-1).astype(np.intp), keys.shape[1])
        self.current = HostSteps(keys[0], keys[1], found)

    def _name_rows(self, fleet: Fleet) -> None:
        """Find the job of each row that is new; of all when rows were given to other devices, or jobs are forgotten."""
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
        """Return the step time that each host's ranks report for its gang, NaN where none does.

        *gang*: of each host, its place in *jobs*, -1 for none; *shared*: hosts that run other jobs too.
        """
        found = np.full(gang.size, np.nan)
        if not self.current.host.size or not jobs:
            return found
        codes = np.array(
            [_ANY if job.key[0] in (SCHEDULER, INFERRED) else self.code(job.name) for job in jobs],
            dtype=np.intp,
        )
        names = np.array([self.code(job.name) for job in jobs], dtype=np.intp)
        host, job, seconds = self.current
        inside = host < gang.size
        host, job, seconds = host[inside], job[inside], seconds[inside]
        of = gang[host]
        is_own = (of >= 0) & (
            (names[of] == job) | ((codes[of] == _ANY) & ~shared[host] & _is_only(host))
        )
        found[host[is_own]] = seconds[is_own]
        return found


def _is_only(host: Indexes) -> Flags:
    """Say which entries are the only one of their host."""
    return np.asarray(np.bincount(host)[host] == 1) if host.size else np.zeros(0, dtype=bool)


def gang_steps(by_host: Floats, group: Indexes, count: int) -> Floats:
    """Return the step time of each gang, NaN where too few of its hosts report one. *group*: of each host, -1 for none."""
    members = np.bincount(group[group >= 0], minlength=count)
    known = np.bincount(group[(group >= 0) & np.isfinite(by_host)], minlength=count)
    enough = (known > 0) & (known >= REPORTING_SHARE_MIN * members)
    return np.where(enough, medians(by_host, group, count), np.nan)


def is_long(steps: Floats, group: Indexes, seconds_max: float) -> Flags:
    """Say which members are of a gang whose reported step is longer than *seconds_max*."""
    with np.errstate(invalid="ignore"):
        return np.asarray(per_member((steps > seconds_max).astype(np.float64), group) > 0.0)
