"""Forecasts of running jobs: one forecaster each, updated every second, a few evaluated at a time.

Each second costs a few passes over the arrays of all GPUs and one call per job; see `python -m bench fingerprints`. Owned by
the fleet's thread; no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

import numpy as np

from ...fingerprints.forecast import (
    DEMANDS,
    HORIZONS_SECONDS,
    STATES,
    EventForecast,
    JobForecast,
    JobForecaster,
    JobSecond,
)
from ...fingerprints.group_statistics import medians
from ..arrays import Flags, Floats, Indexes, Times
from ..fleet.fleet import Fleet
from ..fleet.tables import DeviceTable
from .accumulator import RunAccumulator, host_pressures, nic_bytes_per_gpu

#: Limit of the jobs with forecasts, those with most GPUs; each takes about 20 KB.
JOBS_MAX = 1024
#: Period of each job's forecast.
REPEAT_SECONDS = 10
_SECOND_NS = 1_000_000_000
_EVENTS = ("checkpoint", "host_stall")


@dataclass(slots=True)
class _Followed:
    forecaster: JobForecaster = field(default_factory=JobForecaster)
    due_second: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


class RunForecasts:
    """Forecasts of all runs: `step` once a second; `rows` are those of `job_forecasts`."""

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}
        self._read_ns: dict[str, Times] = {}
        #: Changes with `rows`.
        self.version = 0

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, key: str) -> bool:
        return key in self._followed

    def step(self, fleet: Fleet, accumulator: RunAccumulator, now_ns: int) -> None:
        """Add the last second of all jobs, and make the forecasts that are due."""
        second = now_ns // _SECOND_NS
        runs = accumulator.active_runs
        if len(runs) > JOBS_MAX:
            largest = sorted(runs, key=lambda number: runs[number].gpus_max, reverse=True)
            runs = {number: runs[number] for number in largest[:JOBS_MAX]}
        if gone := self._followed.keys() - {run.key for run in runs.values()}:
            self.version += 1
            for key in gone:
                del self._followed[key]
        if not runs:
            return
        numbers = list(runs)
        summaries = self._summaries(fleet, accumulator, numbers)
        # One more than the even share, to make up for missed turns.
        due_max = len(runs) // REPEAT_SECONDS + 1
        for number, summary in zip(numbers, summaries, strict=True):
            followed = self._followed.get(runs[number].key)
            if followed is None:
                followed = self._followed[runs[number].key] = _Followed()
            if summary is not None:
                followed.forecaster.observe(second - 1, summary)
            # After the clock was set back, a job must not wait that long for its next forecast.
            is_due = not second < followed.due_second <= second + REPEAT_SECONDS
            if is_due and due_max:
                due_max -= 1
                followed.due_second = second + REPEAT_SECONDS
                horizon_forecasts = followed.forecaster.forecast(second)
                run = runs[number]
                followed.rows = [
                    {"job": run.job, "source": run.source, "gpus": run.gpus_max, "time": now_ns, **_row(horizon_forecast)}
                    for horizon_forecast in horizon_forecasts
                ]  # fmt: skip
                self.version += 1

    def set_prior(self, key: str, checkpoint_interval_seconds: float) -> None:
        """Set the checkpoint interval of earlier runs of the workload; NaN: unknown."""
        if (followed := self._followed.get(key)) is not None:
            followed.forecaster.prior_checkpoint_interval_seconds = checkpoint_interval_seconds

    def rows(self) -> list[dict[str, Any]]:
        """Return the last forecast of each job, a row per horizon; times in ns."""
        return [row for followed in self._followed.values() for row in followed.rows]

    def rows_of(self, key: str) -> list[dict[str, Any]]:
        """Return the last forecast of a run, empty if it has none."""
        followed = self._followed.get(key)
        return list(followed.rows) if followed else []

    def _summaries(
        self, fleet: Fleet, accumulator: RunAccumulator, numbers: list[int]
    ) -> list[JobSecond | None]:
        """Return the last second of each run; None if none of its GPUs was read."""
        gpus, fast_rows, run_of = accumulator.rows_of_runs()
        size = 1 + max(max(numbers), int(run_of.max(initial=0)))
        # GPUs without a reading are assumed to equal the mean of the others.
        held = np.bincount(run_of, minlength=size)
        fast, slow = fleet.tables["gpu_fast_1s"], fleet.tables["gpu_fast_10s"]
        is_fresh = (fast_rows >= 0) & self._fresh(fast)[fast_rows]
        gpus, fast_rows, run_of = gpus[is_fresh], fast_rows[is_fresh], run_of[is_fresh]
        is_learned_now = self._fresh(slow)[fast_rows]
        read = np.bincount(run_of, minlength=size)
        means = _RunMeans(run_of, size)
        shares = np.array([means.of(fast.gauge_at(f"{name}_ratio", fast_rows)) for name in STATES])
        host = fleet.devices["gpu"].host[gpus]
        pcie = fast.gauge_at("pcie_transmitted_bytes_per_second", fast_rows)
        pcie = pcie + fast.gauge_at("pcie_received_bytes_per_second", fast_rows)
        demands = np.array(
            [
                means.of(fast.gauge_at("power_mean_watts", fast_rows)) * held,
                means.of(pcie) * held,
                means.of(nic_bytes_per_gpu(fleet)[host]) * held,
                means.of(host_pressures(fleet)[1][host]),
            ]
        )
        # The time to the next checkpoint refers to the reading; medians, as a single GPU may have
        # inferred another cadence.
        learned = [
            medians(np.where(is_learned_now, slow.gauge_at(name, fast_rows), np.nan), run_of, size)
            for name in ("checkpoint_interval_seconds", "next_checkpoint_seconds")
        ]
        learned = [means.of(fast.gauge_at("phase_confidence_ratio", fast_rows)), *learned]
        columns = np.vstack([shares, demands, learned])[:, numbers].T.tolist()
        ends = len(STATES), len(STATES) + len(DEMANDS)
        return [
            JobSecond(row[: ends[0]], row[ends[0] : ends[1]], *row[ends[1] :])
            if read[number]
            else None
            for number, row in zip(numbers, columns, strict=True)
        ]

    def _fresh(self, table: DeviceTable) -> Flags:
        """Return which rows have new readings since the last call, followed by False for row -1."""
        now = table.read_ns
        before = self._read_ns.get(table.name, np.zeros(0, dtype=np.int64))
        before = np.pad(before, (0, max(0, now.size - before.size)))
        self._read_ns[table.name] = now.copy()
        return np.append(now != before[: now.size], False)


class _RunMeans:
    """Means over the GPUs of each run."""

    def __init__(self, run_of: Indexes, size: int) -> None:
        self._run_of, self._size = run_of, size

    def of(self, values: Floats) -> Floats:
        """Return the mean of the known *values* of each run; NaN if there is none."""
        known = np.isfinite(values)
        runs = self._run_of[known]
        count = np.bincount(runs, minlength=self._size)
        total = np.bincount(runs, weights=values[known], minlength=self._size)
        return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _row(forecast: JobForecast) -> Mapping[str, Any]:
    row: dict[str, Any] = {
        "horizon_seconds": float(forecast.horizon_seconds),
        "reason": forecast.reason,
    }
    for name, probability in zip(STATES, forecast.probabilities, strict=True):
        row[f"{name}_probability"] = probability
    for name, event in zip(_EVENTS, (forecast.checkpoint, forecast.host_stall), strict=True):
        row |= _event_columns(name, event)
    for name, demand in zip(DEMANDS, forecast.demands, strict=True):
        row[name] = demand.median
        row[f"{name}_lower"], row[f"{name}_upper"] = demand.lower, demand.upper
    return row


def _event_columns(name: str, event: EventForecast) -> dict[str, Any]:
    onset = event.onset
    return {
        f"next_{name}_seconds": onset.seconds,
        f"next_{name}_lower_50": onset.window_50[0],
        f"next_{name}_upper_50": onset.window_50[1],
        f"next_{name}_lower_90": onset.window_90[0],
        f"next_{name}_upper_90": onset.window_90[1],
        f"next_{name}_probability": onset.probability if isfinite(onset.seconds) else nan,
        f"{name}_within_probability": event.within,
        f"{name}_reason": event.reason,
    }


def row_columns() -> str:
    """Return the columns of `rows` in order, as `name:type`."""
    texts = {"job", "source", "reason", "checkpoint_reason", "host_stall_reason"}
    integers = {"gpus"}
    names = ["job", "source", "gpus", "time", *_row(JobForecast(HORIZONS_SECONDS[0]))]
    kinds = {**dict.fromkeys(texts, "str"), **dict.fromkeys(integers, "int"), "time": "time"}
    return " ".join(f"{name}:{kinds.get(name, 'float')}" for name in names)
