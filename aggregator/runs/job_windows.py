"""The last five minutes of each job in windows of ten seconds: phases of its hosts and its pace, in memory.

`gangline job` and `ListJobs` answer from here. Each second costs a few passes over the arrays of all GPUs. Owned by the
fleet's thread; no I/O.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import NamedTuple

import numpy as np

from ...fingerprints.group_statistics import medians
from ..arrays import Flags, Floats, Indexes, Times
from ..counter_deltas import grown
from ..fleet.fleet import Fleet
from .accumulator import ActiveRun, RunAccumulator
from .job_pace import WINDOWS_MAX, PaceReference, PaceTracker, PaceWindow

WINDOW_NS = 10_000_000_000
#: Shares of a GPU's time, in this order.
STATES = ("compute", "wait", "host_stall", "checkpoint", "idle")
#: Limit of ended jobs that are kept, and of their age.
ENDED_MAX, ENDED_SECONDS_MAX = 512, 3600.0
#: An inferred period that is older does not belong to the window.
STEP_AGE_SECONDS_MAX = 25.0
#: A job is standing if its GPUs compute for less than this share of three windows.
STANDING_RATIO_MAX, STANDING_WINDOWS = 0.02, 3
#: Power of a waiting GPU relative to its highest (H100: about a third).
WAIT_POWER_RATIO = 0.35

_FAST = (*(f"{state}_ratio" for state in STATES), "tensor_active_ratio", "sm_active_ratio")
_SLOW = ("utilization_ratio", "power_watts")
_TENSOR, _ACTIVE = len(STATES), len(STATES) + 1
_USED, _WATTS = len(_FAST), len(_FAST) + 1


@dataclass(frozen=True, slots=True)
class HostWindow:
    """Phases of the hosts of a job in one window. `shares`: (hosts, STATES)."""

    time_ns: int
    hosts: tuple[str, ...]
    shares: Floats
    is_estimated: bool


class GpuWindows(NamedTuple):
    """A window of all GPUs of runs: an entry per GPU. `shares`: (STATES, GPUs)."""

    run: Indexes
    host: Indexes
    shares: Floats
    is_estimated: Flags
    tensor: Floats
    step_seconds: Floats


@dataclass(slots=True)
class JobRecord:
    """A running job, or a job that ended recently (`ended_ns`)."""

    run: ActiveRun
    pace: PaceTracker
    windows: deque[HostWindow] = field(default_factory=lambda: deque(maxlen=WINDOWS_MAX))
    ended_ns: int = 0

    @property
    def is_standing(self) -> bool:
        """Return whether nothing computes: a member died, or the job has not begun."""
        last = list(self.windows)[-STANDING_WINDOWS:]
        if len(last) < STANDING_WINDOWS:
            return False
        compute = [float(np.median(window.shares[:, 0])) for window in last if window.shares.size]
        return len(compute) == STANDING_WINDOWS and max(compute) < STANDING_RATIO_MAX


class JobWindows:
    """Windows of all jobs: `step` once a second. `records`: running jobs; `ended`: recent jobs."""

    def __init__(self) -> None:
        self.records: dict[str, JobRecord] = {}
        self.ended: OrderedDict[str, JobRecord] = OrderedDict()
        self._restored: dict[str, list[PaceReference]] = {}
        self._read_ns: dict[str, Times] = {}
        self._window = 0
        self._sums: Floats = np.zeros((_WATTS + 1, 64))
        self._counts: Floats = np.zeros((_WATTS + 1, 64))
        #: GPU's row -> number of its run, its highest power and SM activity in that run.
        self._row_run: Indexes = np.full(64, -1, dtype=np.intp)
        self._watts_most: Floats = np.zeros(64)
        self._active_most: Floats = np.zeros(64)

    def restore(self, key: str, references: Iterable[PaceReference]) -> None:
        """Keep the stored references of a run until an agent reports the run again."""
        self._restored[key] = list(references)

    def find(self, job: str) -> list[JobRecord]:
        """Return the running jobs of that name; if there are none, the one that ended last."""
        running = [record for record in self.records.values() if record.run.job == job]
        ended = [record for record in self.ended.values() if record.run.job == job]
        return running or ended[-1:]

    def step(self, fleet: Fleet, accumulator: RunAccumulator, now_ns: int) -> list[JobRecord]:
        """Add the last second's readings and any ended windows; return the jobs that have ended."""
        ended = self._follow(accumulator.active_runs, now_ns)
        gpus, fast_rows, run_of = accumulator.rows_of_runs()
        self._fit(fleet.devices["gpu"].capacity)
        moved = gpus[self._row_run[gpus] != run_of]
        self._row_run[gpus] = run_of
        for array in (self._watts_most, self._active_most):
            array[moved] = 0.0
        self._sums[:, moved] = self._counts[:, moved] = 0.0
        self._sample(fleet, gpus, fast_rows)
        window = now_ns // WINDOW_NS
        if window != self._window:
            begin_ns, self._window = self._window * WINDOW_NS, window
            if begin_ns and accumulator.active_runs:
                self._end_window(fleet, accumulator, begin_ns, now_ns)
            self._sums[:] = self._counts[:] = 0.0
        return ended

    def _follow(self, runs: Mapping[int, ActiveRun], now_ns: int) -> list[JobRecord]:
        active = {run.key: run for run in runs.values()}
        ended = [self.records.pop(key) for key in self.records.keys() - active.keys()]
        for record in ended:
            record.ended_ns = now_ns
            self.ended[record.run.run_id] = record
        for key, run in active.items():
            if key not in self.records:
                self.records[key] = JobRecord(run, PaceTracker(self._restored.pop(key, ())))
        oldest_ns = now_ns - round(ENDED_SECONDS_MAX * 1e9)
        while self.ended and (
            len(self.ended) > ENDED_MAX or next(iter(self.ended.values())).ended_ns < oldest_ns
        ):
            self.ended.popitem(last=False)
        return ended

    def _fit(self, capacity: int) -> None:
        before = self._row_run.size
        if before >= capacity:
            return
        for name in ("_sums", "_counts", "_watts_most", "_active_most", "_row_run"):
            setattr(self, name, grown(getattr(self, name), capacity))
        self._row_run[before:] = -1

    def _sample(self, fleet: Fleet, gpus: Indexes, fast_rows: Indexes) -> None:
        fast, slow = fleet.tables["gpu_fast_1s"], fleet.tables["gpu_1s"]
        is_new = (fast_rows >= 0) & np.append(self._fresh(fast.name, fast.read_ns), False)[
            fast_rows
        ]
        for index, column in enumerate(_FAST):
            self._add(index, gpus[is_new], fast.gauge_at(column, fast_rows[is_new]))
        rows = gpus[self._fresh(slow.name, slow.read_ns)[gpus]]
        for index, column in enumerate(_SLOW, len(_FAST)):
            self._add(index, rows, slow.gauge_at(column, rows))

    def _add(self, column: int, rows: Indexes, values: Floats) -> None:
        known = np.isfinite(values)
        self._sums[column, rows[known]] += values[known]
        self._counts[column, rows[known]] += 1.0

    def _fresh(self, name: str, read_ns: Times) -> Flags:
        before = self._read_ns.get(name, np.zeros(0, dtype=np.int64))
        before = np.pad(before, (0, max(0, read_ns.size - before.size)))
        self._read_ns[name] = read_ns.copy()
        return np.asarray(read_ns != before[: read_ns.size])

    def _end_window(
        self, fleet: Fleet, accumulator: RunAccumulator, begin_ns: int, now_ns: int
    ) -> None:
        windows = self._gpu_windows(fleet, accumulator, now_ns)
        size = int(windows.run.max(initial=0)) + 1
        hosts = len(fleet)
        steps = medians(windows.step_seconds, windows.run, size)
        tensor = medians(windows.tensor, windows.run, size)
        compute = medians(windows.shares[0], windows.run, size)
        pairs, pair_of = np.unique(windows.run * hosts + windows.host, return_inverse=True)
        counts = np.bincount(pair_of)
        shares = np.array(
            [np.bincount(pair_of, weights=state_shares) / counts for state_shares in windows.shares]
        ).T
        estimated = np.bincount(pair_of, weights=windows.is_estimated) > 0
        for number, run in accumulator.active_runs.items():
            first, last = np.searchsorted(pairs, (number * hosts, (number + 1) * hosts))
            record = self.records[run.key]
            if number >= size or first == last:
                # All of its GPUs are shared: only the steps that its ranks report are its own.
                if run.shared_rows.size and isfinite(step := fleet.gangs.steps.of_job(run.job)):
                    record.pace.observe(PaceWindow(begin_ns, (1.0 / step, nan, nan), step))
                continue
            names = tuple(fleet.names[pair % hosts] for pair in pairs[first:last].tolist())
            is_estimated = bool(estimated[first:last].any())
            record.windows.append(HostWindow(begin_ns, names, shares[first:last], is_estimated))
            step = float(steps[number])
            steps_per_second = 1.0 / step if step > 0.0 else nan
            works = (steps_per_second, float(tensor[number]), float(compute[number]))
            record.pace.observe(PaceWindow(begin_ns, works, step))

    def _gpu_windows(self, fleet: Fleet, accumulator: RunAccumulator, now_ns: int) -> GpuWindows:
        gpus, fast_rows, run_of = accumulator.rows_of_runs()
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self._sums[:, gpus] / self._counts[:, gpus]
            shares, is_estimated = self._shares(gpus, means)
        slow = fleet.tables["gpu_fast_10s"]
        age_seconds = slow.age_seconds(fleet.boot, fleet.host_now_ns(now_ns))
        inferred = np.append(
            np.where(age_seconds <= STEP_AGE_SECONDS_MAX, slow.gauge("step_seconds"), np.nan),
            np.nan,
        )[fast_rows]
        reported = accumulator.reported_steps(fleet)[gpus]
        steps = np.where(
            np.isfinite(reported), reported, np.where(inferred > 0.0, inferred, np.nan)
        )
        keep = np.isfinite(shares[0])
        host = fleet.devices["gpu"].host[gpus].astype(np.intp)
        return GpuWindows(
            run_of[keep], host[keep], shares[:, keep], is_estimated[keep], means[_TENSOR][keep], steps[keep]
        )  # fmt: skip

    def _shares(self, gpus: Indexes, means: Floats) -> tuple[Floats, Flags]:
        """Return each GPU's shares of STATES, estimated if the agent reports no phases."""
        active, watts = means[_ACTIVE], means[_WATTS]
        self._watts_most[gpus] = np.fmax(self._watts_most[gpus], watts)
        self._active_most[gpus] = np.fmax(self._active_most[gpus], active)
        by_power = (watts / self._watts_most[gpus] - WAIT_POWER_RATIO) / (1.0 - WAIT_POWER_RATIO)
        by_activity = active / self._active_most[gpus]
        busy = np.clip(np.where(np.isfinite(by_activity), by_activity, by_power), 0.0, 1.0)
        resident = np.clip(means[_USED], 0.0, 1.0)
        nothing = np.zeros(gpus.size)
        estimated = np.array(
            [resident * busy, resident * (1.0 - busy), 1.0 - resident, nothing, nothing]
        )
        is_known = np.isfinite(means[0])
        known = np.nan_to_num(means[: len(STATES)])
        return np.where(is_known, known, estimated), ~is_known
