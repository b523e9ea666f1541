"""Hosts and GPUs whose compute time rose against the rest of their gang, at two time scales; pace of gangs.

A window of ten seconds finds a change within a minute if it holds several steps of the job. With steps of half a minute each
such window covers a different part of the step, so windows of minutes find the slow host, later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np

from ...fingerprints.group_statistics import group_extremes, medians, per_member
from ...fingerprints.stragglers import (
    BIRTH_FACTOR,
    BIRTH_STREAK_MIN,
    PAST_WINDOWS_MIN,
    SPREAD_WINDOWS_MIN,
    Change,
    ChangeMonitor,
    either,
)
from ..arrays import Codes, Flags, Floats, Indexes
from .reported_steps import is_long

#: A waiting GPU draws this share of its limit (H100: 150 of 700 W); computing draws the rest.
WAITING_POWER_SHARE = 0.21
#: Minimum change of a member's computing time, by SMs or by power. A change of power below
#: POWER_SLOW_MIN is only WATCH: a part that is 10 degrees hotter leaks 2 to 3 % more (assumed).
BUSY_CHANGE_MIN, POWER_CHANGE_MIN, POWER_SLOW_MIN = 0.025, 0.035, 0.06
BUSY_NOISE_MIN = 0.003
#: Companions of a change: the member's work, and the logarithm of its gang's pace.
CHANGE_WORK, CHANGE_PACE = range(2)
#: A member that became slow must slow its gang by this share of its own slowdown. If the gang
#: became faster, a member recovered: its past contains a checkpoint, a hot GPU or a busy host.
PACE_SHARE_MIN = 0.2
#: Fine windows per coarse window, and coarse windows until a member that was slow from the start is
#: named; each has several steps, so few suffice.
COARSE_WINDOWS, COARSE_BIRTH_STREAK = 6, 5
#: With longer reported steps a fine window shows a part of a step: only coarse windows count.
FINE_STEP_SECONDS_MAX = 5.0
#: If fewer of a gang's GPUs count SM cycles, power is used.
READ_SHARE_MIN = 0.8

#: Windows before the past is valid, of which the first are ignored. A window covers no whole number
#: of steps, so the pace is smoothed over several.
PACE_WINDOWS_MIN, WARMUP_WINDOWS, SMOOTHED_WINDOWS = 6, 2, 3
#: Windows in the past; slow windows before a fall is reported; slow windows (an hour) after which
#: the past restarts.
PAST_WINDOWS, SLOW_WINDOWS, SLOW_WINDOWS_MAX = 60, 3, 360
#: Minimum fall, absolute and relative to the scatter of the pace.
FALL_MIN, SCATTER_FACTOR = 0.015, 4.0
#: Windows below this share of the usual pace are a checkpoint or an evaluation, unless more than
#: this many are consecutive.
PAUSE_RATIO_MAX, PAUSE_WINDOWS_MAX = 0.7, 3


class GpuReadings(NamedTuple):
    """Means of each GPU in a window, by GPU row; NaN: unknown."""

    busy: Floats  # share of the SMs
    work: Floats  # share of the tensor cores
    watts: Floats  # above waiting
    clock: Floats  # while it computes, hertz


class BusyChanges(NamedTuple):
    """Changes of each host and GPU. `by_power`: gangs whose busy time is estimated from power."""

    hosts: Change
    gpus: Change
    by_power: Flags


class _Scale:
    """Changes in windows of *windows* fine windows."""

    def __init__(self, windows: int, birth_streak: int) -> None:
        self._windows, self._ended = windows, 0
        seconds = 10.0 * windows
        self._hosts, self._gpus = (
            ChangeMonitor(
                64,
                companions=2,
                noise_min=BUSY_NOISE_MIN,
                birth_streak=birth_streak,
                window_seconds=seconds,
                spread_windows_min=SPREAD_WINDOWS_MIN if windows == 1 else PAST_WINDOWS_MIN,
            )
            for _ in range(2)
        )
        self._sums: Floats = np.zeros((len(GpuReadings._fields), 0))
        self._counts: Floats = np.zeros((len(GpuReadings._fields), 0))

    def reset(self, hosts: Flags, gpus: Flags) -> None:
        self._hosts.fit(hosts.size)
        self._gpus.fit(gpus.size)
        self._hosts.reset(hosts)
        self._gpus.reset(gpus)
        more = gpus.size - self._sums.shape[1]
        if more > 0:
            self._sums, self._counts = (
                np.pad(a, ((0, 0), (0, more))) for a in (self._sums, self._counts)
            )
        self._sums[:, : gpus.size][:, gpus] = self._counts[:, : gpus.size][:, gpus] = 0.0

    def observe(
        self,
        readings: GpuReadings,
        counts: Flags,
        gpu_group: Indexes,
        of: Codes,
        group: Indexes,
        by_power: Flags,
    ) -> None:
        """Add a fine window. *counts*: GPUs for which the window counts; *of*: host of each GPU.

        *group* (by host) and *gpu_group*: as in `ChangeMonitor.update`.
        """
        values, size = np.array(readings), gpu_group.size
        known = np.isfinite(values) & counts
        self._sums[:, :size][known] += values[known]
        self._counts[:, :size] += known
        self._ended += 1
        if self._ended % self._windows:
            return
        with np.errstate(invalid="ignore", divide="ignore"):
            means = GpuReadings(*(self._sums[:, :size] / self._counts[:, :size]))
            excess, more = _excess(means, gpu_group, by_power)
            companions = np.array([more, _log_pace(means, gpu_group, by_power)])
            self._sums[:] = self._counts[:] = 0.0
            limits = np.where(by_power, POWER_CHANGE_MIN, BUSY_CHANGE_MIN)
            birth_limits = BIRTH_FACTOR * np.where(by_power, POWER_SLOW_MIN, BUSY_CHANGE_MIN)
            self._gpus.update(excess, companions, gpu_group, limits, birth_limits)
            by_host, *companions_by_host = (
                _mean_by_host(values, gpu_group, of, group.size) for values in (excess, *companions)
            )
            self._hosts.update(by_host, np.array(companions_by_host), group, limits, birth_limits)

    def changes(self, group: Indexes, gpu_group: Indexes, count: int) -> tuple[Change, Change]:
        hosts, gpus = self._hosts.change(group, count), self._gpus.change(gpu_group, count)
        return _slowing(hosts), _slowing(gpus)


class BusyMonitor:
    """Changes of all hosts and GPUs in their gangs. Use it in one thread."""

    def __init__(self) -> None:
        self._fine = _Scale(1, BIRTH_STREAK_MIN)
        self._coarse = _Scale(COARSE_WINDOWS, COARSE_BIRTH_STREAK)

    def observe(
        self,
        readings: GpuReadings,
        gangs: tuple[Indexes, Indexes],
        calm: tuple[Indexes, Indexes],
        of: Codes,
        changed: Flags,
        steps: Floats,
    ) -> BusyChanges:
        """Add a window; return the current changes.

        *gangs*: of each host and of each GPU, -1: none; *calm*: likewise, only for gangs that
        worked without a stall in this window. *of*: host of each GPU. *changed*: hosts whose gang
        changed. *steps*: reported step time of each gang, NaN: none; it selects the scale.
        """
        (group, gpu_group), count = gangs, steps.size
        shares = [
            np.bincount(gpu_group[(gpu_group >= 0) & np.isfinite(values)], minlength=count)
            for values in (readings.busy, readings.watts)
        ]
        by_power = shares[0] < READ_SHARE_MIN * shares[1]
        changes: list[tuple[Change, Change]] = []
        for scale, members, counts in (
            (self._fine, calm, calm[1] >= 0),
            (self._coarse, gangs, gpu_group >= 0),
        ):
            scale.reset(changed, changed[of])
            scale.observe(readings, counts, members[1], of, members[0], by_power)
            changes.append(scale.changes(group, gpu_group, count))
        fine, coarse = changes
        hosts, gpus = (
            either(_only_of_short_steps(fine_change, steps, members), coarse_change)
            for fine_change, coarse_change, members in zip(fine, coarse, gangs, strict=True)
        )
        return BusyChanges(hosts, gpus, by_power)


def _excess(means: GpuReadings, gpu_group: Indexes, by_power: Flags) -> tuple[Floats, Floats]:
    """Return the excess time and the excess work of each GPU over its gang's others."""
    count = by_power.size
    is_by_power = per_member(by_power.astype(np.float64), gpu_group) > 0
    watts = np.where(means.watts > 0.0, means.watts, np.nan)
    by_watts = watts / per_member(medians(watts, gpu_group, count), gpu_group) - 1.0
    by_time = unexplained_excess(means.busy, means.clock, gpu_group, count)
    excess = np.where(is_by_power, by_watts, by_time)
    more = means.work / per_member(medians(means.work, gpu_group, count), gpu_group) - 1.0
    return excess, more


def _log_pace(means: GpuReadings, gpu_group: Indexes, by_power: Flags) -> Floats:
    """Return the log pace of each GPU's gang: median work, or median power above waiting."""
    is_by_power = per_member(by_power.astype(np.float64), gpu_group) > 0
    work = np.where(is_by_power, means.watts, means.work * means.clock)
    return np.log(per_member(medians(work, gpu_group, by_power.size), gpu_group))


def _only_of_short_steps(change: Change, steps: Floats, group: Indexes) -> Change:
    """Return *change* without members of gangs whose reported step is too long for fine windows."""
    is_named = change.is_named & ~is_long(steps, group, FINE_STEP_SECONDS_MAX)
    return change._replace(is_named=is_named)


def _slowing(change: Change) -> Change:
    """Return *change* without members whose gang did not become slower."""
    slower = -change.companions[CHANGE_PACE]
    with np.errstate(invalid="ignore"):
        is_none = ~change.from_birth & (slower < PACE_SHARE_MIN * change.excess)
    return change._replace(is_named=change.is_named & ~is_none)


def _mean_by_host(values: Floats, gpu_group: Indexes, of: Codes, hosts: int) -> Floats:
    known = np.isfinite(values) & (gpu_group >= 0)
    total = np.bincount(of[known], weights=values[known], minlength=hosts)
    return np.asarray(total / np.bincount(of[known], minlength=hosts))


def unexplained_excess(busy: Floats, clock: Floats, group: Indexes, count: int) -> Floats:
    """Return by how much longer each member is busy than the others, beyond the effect of its
    clock.

    A low clock has its own rule. If time and cycles disagree on which is longer, the clock explains
    the difference: a GPU that was hot at the start of its job must not look slow after it cooled.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        longer, more_cycles = (
            values / per_member(group_extremes(values, group, count).median, group) - 1.0
            for values in (busy, busy * clock)
        )
        same = np.where(np.abs(longer) < np.abs(more_cycles), longer, more_cycles)
        return np.where(longer * more_cycles > 0.0, same, 0.0 * longer * more_cycles)


# Pace of each gang compared with its own past, from the work of its median host. In a synchronous
# gang all hosts slow down together, so a fall does not show the culprit; it shows when to search,
# and the cost.


@dataclass(slots=True)
class _Past:
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=PAST_WINDOWS))
    last: deque[float] = field(default_factory=lambda: deque(maxlen=SMOOTHED_WINDOWS))
    slow: deque[float] = field(default_factory=lambda: deque(maxlen=2 * SLOW_WINDOWS))
    windows: int = 0
    pauses: int = 0
    slow_windows: int = 0
    slow_since_ns: int = 0


@dataclass(frozen=True, slots=True)
class PaceFall:
    """Slowdown of a gang: share of its pace, and beginning."""

    ratio: float
    since_ns: int


class GangPaceMonitor:
    """The pace of all gangs. Use it in one thread."""

    def __init__(self) -> None:
        self._pasts: dict[int, _Past] = {}

    def update(
        self, memberships: Sequence[int], paces: Floats, now_ns: int
    ) -> Mapping[int, PaceFall]:
        """Add a window; return the gangs that became slower, by index.

        *memberships*: unique number of each gang and its members; *paces*: NaN for a gang that did
        not work.
        """
        self._pasts = {code: self._pasts.get(code) or _Past() for code in memberships}
        falls: dict[int, PaceFall] = {}
        for index, (code, pace) in enumerate(zip(memberships, paces.tolist(), strict=True)):
            past = self._pasts[code]
            if pace > 0.0 and self._take(past, pace):  # not NaN
                self._observe(past, now_ns)
            if past.slow_windows >= SLOW_WINDOWS:
                ratio = 1.0 - median(past.slow) / median(past.usual)
                falls[index] = PaceFall(ratio, past.slow_since_ns)
        return falls

    def _take(self, past: _Past, pace: float) -> bool:
        """Add a window; return whether the smoothed pace is valid."""
        past.windows += 1
        if past.windows <= WARMUP_WINDOWS:
            return False
        if past.usual and pace < PAUSE_RATIO_MAX * median(past.usual):
            past.pauses += 1
            if past.pauses <= PAUSE_WINDOWS_MAX:
                return False
        else:
            past.pauses = 0
        past.last.append(pace)
        return len(past.last) == SMOOTHED_WINDOWS

    def _observe(self, past: _Past, now_ns: int) -> None:
        pace = sum(past.last) / len(past.last)
        if len(past.usual) < PACE_WINDOWS_MIN:
            past.usual.append(pace)
            return
        usual = median(past.usual)
        scatter = median([abs(pace_before - usual) for pace_before in past.usual]) / usual
        if pace >= (1.0 - max(FALL_MIN, SCATTER_FACTOR * scatter)) * usual:
            past.usual.append(pace)
            past.slow.clear()
            past.slow_windows = past.slow_since_ns = 0
            return
        past.slow.append(pace)
        past.slow_windows += 1
        past.slow_since_ns = past.slow_since_ns or now_ns
        if past.slow_windows > SLOW_WINDOWS_MAX:
            past.usual.clear()
            past.slow_windows = past.slow_since_ns = 0
