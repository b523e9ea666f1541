"""Jobs that hang: none of their GPUs changes its activity, and most wait for a few. Found from outside, once a second.

Owned by the fleet's thread; no I/O. A hang is a verdict on the job: it changes no host's score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...contract.text import counted
from ...fingerprints.standstill import (
    Codes,
    GpuActivity,
    PhaseShares,
    RunPast,
    Standstill,
    activities,
    limit_seconds,
    standstill_of,
)
from ..arrays import Floats, Indexes, Times
from ..counter_deltas import grown
from ..fleet.fleet import Fleet
from ..scoring.job_faults import HANG, JobFault, Strength
from ..sql import quoted
from .accumulator import ActiveRun, RunAccumulator
from .demand import host_demands

CAUSE = "job.hang"
#: A GPU without a reading for this long is silent.
SILENT_SECONDS = 5.0
#: Shorter standstills are part of a step.
SECONDS_MIN = 10.0
#: A late host works if its bytes per second or its cores exceed those of the waiting hosts by these margins, and by twice the
#: range of the waiting hosts. A rank that waits keeps about one core busy, as a rank that works on the CPU does.
WORKING_BYTES_PER_SECOND, WORKING_CORES = 20e6, 2.0
#: Members that a message names.
NAMED_MAX = 4
#: Late activities, with the texts for a single member and for several.
_LATE_TEXTS = (
    (GpuActivity.SILENT, "sends no readings", "send no readings"),
    (GpuActivity.STALLS, "runs no kernel", "run no kernel"),
    (GpuActivity.COMPUTES, "computes without a pause", "compute without a pause"),
)
_PHASES = ("compute", "wait", "host_stall", "checkpoint", "idle")
_TRAFFIC = ("disk", "network_fs", "nic_transmitted", "nic_received")


@dataclass(slots=True)
class _WatchedRun:
    run: ActiveRun
    past: RunPast = field(default_factory=RunPast)
    standing_seconds: float = 0.0
    fault: JobFault | None = None


class Standstills:
    """All hangs: `step` once a second; `faults` by run id."""

    def __init__(self) -> None:
        self._runs: dict[int, _WatchedRun] = {}
        #: GPU's row -> its activity, since when, and its run.
        self._activity: Codes = np.zeros(64, dtype=np.int8)
        self._since_ns: Times = np.zeros(64, dtype=np.int64)
        self._run_of: Indexes = np.full(64, -1, dtype=np.intp)
        self._last_ns = 0

    def step(self, fleet: Fleet, accumulator: RunAccumulator, now_ns: int) -> None:
        """Add the last second of all runs."""
        gpus, fast_rows, run_of = accumulator.rows_of_runs()
        self._follow(accumulator.active_runs)
        self._fit(fleet.devices["gpu"].capacity)
        activity = self._read(fleet, fast_rows, now_ns)
        is_new = (activity != self._activity[gpus]) | (run_of != self._run_of[gpus])
        self._since_ns[gpus[is_new]] = now_ns
        self._activity[gpus], self._run_of[gpus] = activity, run_of
        passed_seconds = min(max((now_ns - self._last_ns) / 1e9, 0.0), 2.0)
        self._last_ns = now_ns
        seconds = np.maximum((now_ns - self._since_ns[gpus]) / 1e9, 0.0)
        shortest = self._shortest(activity, seconds, run_of)
        order = np.argsort(run_of, kind="stable")
        numbers = run_of[order]
        for number, followed in self._runs.items():
            still_seconds = float(shortest[number]) if number < shortest.size else 0.0
            if still_seconds < SECONDS_MIN:
                self._resume(followed, passed_seconds)
                continue
            followed.standing_seconds = still_seconds
            first, last = np.searchsorted(numbers, (number, number + 1))
            rows = order[first:last]
            standstill = standstill_of(activity[rows], seconds[rows])
            followed.fault = None
            if standstill is not None:
                members = _Members(fleet, gpus[rows], activity[rows])
                followed.fault = self._judge(followed, members, standstill)

    def faults(self) -> Mapping[str, JobFault]:
        """Return run id -> its hang now."""
        return {
            followed.run.run_id: followed.fault
            for followed in self._runs.values()
            if followed.fault is not None
        }

    def _follow(self, runs: Mapping[int, ActiveRun]) -> None:
        self._runs = {
            number: followed
            if (followed := self._runs.get(number)) and followed.run is run
            else _WatchedRun(run)
            for number, run in runs.items()
        }

    def _fit(self, capacity: int) -> None:
        if (before := self._run_of.size) < capacity:
            self._activity = grown(self._activity, capacity)
            self._since_ns = grown(self._since_ns, capacity)
            self._run_of = grown(self._run_of, capacity)
            self._run_of[before:] = -1

    def _read(self, fleet: Fleet, fast_rows: Indexes, now_ns: int) -> Codes:
        fast = fleet.tables["gpu_fast_1s"]
        known = fast_rows >= 0
        rows = fast_rows[known]
        result = np.full(fast_rows.size, GpuActivity.UNKNOWN, dtype=np.int8)
        shares = PhaseShares(*(fast.gauge_at(f"{phase}_ratio", rows) for phase in _PHASES))
        activity = activities(shares)
        is_silent = (
            fast.age_seconds_at(rows, fleet.boot, fleet.host_now_ns(now_ns)) > SILENT_SECONDS
        )
        result[known] = np.where(is_silent, GpuActivity.SILENT, activity)
        return result

    def _shortest(self, activity: Codes, seconds: Floats, run_of: Indexes) -> Floats:
        """Return for each run by number how long none of its members has changed its activity."""
        shortest = np.full(max(self._runs, default=-1) + 1, np.inf)
        known = activity != GpuActivity.UNKNOWN
        still = np.where(activity == GpuActivity.MOVES, 0.0, seconds)
        np.minimum.at(shortest, run_of[known], still[known])
        return np.where(np.isfinite(shortest), shortest, 0.0)

    def _resume(self, followed: _WatchedRun, passed_seconds: float) -> None:
        past = followed.past
        longest = max(past.longest_seconds, followed.standing_seconds)
        followed.past = RunPast(longest, past.moved_seconds + passed_seconds)
        followed.standing_seconds, followed.fault = 0.0, None

    def _judge(
        self, followed: _WatchedRun, members: _Members, standstill: Standstill
    ) -> JobFault | None:
        limit = limit_seconds(followed.past, is_working=members.late_work(standstill.late))
        if followed.past.moved_seconds <= 0.0 or standstill.seconds < limit:
            return None
        hosts = members.hosts(standstill.late)
        return JobFault(
            job=("", followed.run.job, -1),
            identity="hang",
            strength=Strength.STOPS,
            verdict=HANG,
            cause=CAUSE,
            reason="NONE",
            hosts=hosts,
            device=members.device(standstill.late),
            slowdown=1.0,
            slowdown_lower=1.0,
            slowdown_upper=1.0,
            message=members.message(standstill),
            sql=f"FROM ops.job_phases WHERE job = {quoted(followed.run.job)} ORDER BY time DESC",
        )


def explained_hang(faults: Sequence[JobFault], hang: JobFault) -> list[JobFault]:
    """Return *faults*, with *hang* unless a broken host among those that it names explains it."""
    broken = [fault for fault in faults if fault.strength is Strength.STOPS]
    is_explained = any(not hang.hosts or set(fault.hosts) & set(hang.hosts) for fault in broken)
    return [*faults] if is_explained else [*faults, hang]


@dataclass(frozen=True, slots=True)
class _Members:
    """The GPUs of a job in a standstill, and their activities."""

    fleet: Fleet
    gpus: Indexes
    activity: Codes

    def hosts(self, late: Indexes) -> tuple[str, ...]:
        """Return the hosts of *late* members, those with most of them first."""
        hosts = self.fleet.devices["gpu"].host[self.gpus[late]]
        numbers, counts = np.unique(hosts, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return tuple(self.fleet.names[host] for host in numbers[order].tolist())

    def device(self, late: Indexes) -> str:
        """Return the GPU of a single late member; "" for none or several."""
        return self.fleet.devices["gpu"].names[int(self.gpus[late[0]])] if late.size == 1 else ""

    def late_work(self, late: Indexes) -> bool:
        """Return whether a late member computes, or its host uses more than those of waiting members."""
        if (self.activity[late] == GpuActivity.COMPUTES).any():
            return True
        of_gpu = self.fleet.devices["gpu"].host[self.gpus].astype(np.intp)
        hosts = np.unique(of_gpu)
        at = np.searchsorted(hosts, np.unique(of_gpu[late]))
        if not at.size or at.size == hosts.size:
            return False
        use = host_demands(self.fleet, hosts)
        traffic = sum((np.nan_to_num(use[name]) for name in _TRAFFIC), start=np.zeros(hosts.size))
        return any(
            _is_beyond(values[at], np.delete(values, at), minimum)
            for values, minimum in (
                (traffic, WORKING_BYTES_PER_SECOND),
                (use["cores"], WORKING_CORES),
            )
        )

    def message(self, standstill: Standstill) -> str:
        """Return one line for people, with the late members and their activity."""
        since = f"no GPU of the job has changed its activity for {standstill.seconds:.0f} s"
        late = standstill.late
        if not late.size:
            return (
                f"{since}: all {counted(standstill.members, 'GPU')} wait in a collective, and none is late: look at links "
                "and at ranks of other collectives"
            )
        states = self.activity[late]
        parts: list[str] = []
        for activity, one, several in _LATE_TEXTS:
            if (same := late[states == activity]).size:
                parts.append(f"{self._named(same)}, which {one if same.size == 1 else several}")
        waiting = counted(int((self.activity == GpuActivity.WAITS).sum()), "other GPU")
        return f"{since}: {waiting} wait for {' and for '.join(parts)}"

    def _named(self, late: Indexes) -> str:
        gpus = self.fleet.devices["gpu"]
        names: list[str] = []
        for row in self.gpus[late[:NAMED_MAX]].tolist():
            host = int(gpus.host[row])
            place = f"{gpus.names[row]} of {self.fleet.names[host]}"
            rank = self.fleet.jobs.rank_of(host, gpus.names[row])
            names.append(place if rank < 0 else f"rank {rank} ({place})")
        more = f" and {late.size - NAMED_MAX} more" if late.size > NAMED_MAX else ""
        return f"{', '.join(names)}{more}"


def _is_beyond(late: Floats, waiting: Floats, minimum: float) -> bool:
    """Return whether a late host has more than the *waiting* hosts by *minimum*, and by twice their range."""
    known = waiting[np.isfinite(waiting)]
    if not known.size:
        return False
    margin = max(minimum, 2.0 * float(np.ptp(known)))
    return bool((late >= np.median(known) + margin).any())
