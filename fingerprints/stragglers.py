"""Finds members of a synchronous gang that became slow: against the others, and against their own past.

Peers alone do not show a slowdown below about 10 %: healthy parts differ by as much, and so do the roles of a pipeline.
A member's own past alone does not show it either: the past changes with every change of the workload. The change of a
member's difference to its peers shows it.
All code works on arrays over the members of many gangs at once; a member is a host or a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .group_statistics import (
    Counts,
    Flags,
    Floats,
    Indexes,
    max_below_top,
    medians,
    outliers_max,
    per_member,
)

#: Windows that make a past, and the windows before them that are ignored: a job begins slowly.
PAST_WINDOWS_MIN, WARMUP_WINDOWS = 6, 2
#: Windows in the running mean of a past; older windows lose their weight.
PAST_WINDOWS = 60
#: After this many consecutive unusual windows (an hour of ten seconds each) the past restarts.
UNUSUAL_WINDOWS_MAX = 360
#: A change shows in a window if it is NOISE_FACTOR times the noise, and exceeds all members outside the top few by
#: LEAD_SHARE of itself.
NOISE_FACTOR, LEAD_SHARE = 4.0, 0.5
#: Limit of the chance that a stall that hits members at random hits the same member in every window of a streak.
CHANCE_MAX = 5e-6
#: Windows in a row in which a change must show, and the limit of the count. A window without the change subtracts two.
STREAK_MIN, STREAK_MAX = 4, 12
#: In gangs of this size or more, two outliers at once are still members at fault, and not a change of the gang.
PAIR_SIZE_MIN = 8
#: A member without a past is compared with the others alone: a change then needs BIRTH_FACTOR times the limit and more
#: windows. Such a member was slow from birth.
BIRTH_FACTOR, BIRTH_STREAK_MIN = 2.4, 9
#: With fewer windows the spread of a member's past is uncertain: the gang's spread alone counts.
SPREAD_WINDOWS_MIN = 12
#: Larger absolute values are measurement errors and are ignored.
VALUE_MAX = 1000.0
#: MAD times the median of the absolute differences is the standard deviation of a normal distribution.
MAD = 1.4826


class Change(NamedTuple):
    """The change that each member shows now: arrays over members.

    `streak`: consecutive windows, each of `window_seconds`; `is_named`: the streak suffices for a gang of its size;
    `from_birth`: the change began before the member had a past; `is_usual`: the member has a past and no change;
    `excess`: mean rise above its own past, or above the others, over these windows; `error`: the standard error of
    `excess`; `companions`: the same mean of each companion value.
    """

    streak: Counts
    window_seconds: Floats
    is_named: Flags
    from_birth: Flags
    is_usual: Flags
    excess: Floats
    error: Floats
    companions: Floats


class ChangeMonitor:
    """The past of every member in its gang, and how long the member has differed from it. For one thread."""

    def __init__(
        self,
        capacity: int,
        *,
        companions: int,
        noise_min: float,
        birth_streak: int = BIRTH_STREAK_MIN,
        window_seconds: float = 10.0,
        spread_windows_min: int = SPREAD_WINDOWS_MIN,
    ) -> None:
        """*noise_min*: lower bound of the noise of an excess. *companions*: number of values that only explain the
        first. *birth_streak*: windows before a member that is slow from birth is named. *spread_windows_min*: with
        fewer windows in a member's past the gang's spread alone counts."""
        self._noise_min, self._window_seconds = noise_min, window_seconds
        self._birth_streak, self._spread_windows_min = birth_streak, spread_windows_min
        shape = 1 + companions, capacity
        self._past: Floats = np.zeros(shape)
        self._sums: Floats = np.zeros(shape)
        self._squares: Floats = np.zeros(capacity)
        self._spread: Floats = np.zeros(capacity)
        self._windows: Counts = np.zeros(capacity, dtype=np.int16)
        self._unusual: Counts = np.zeros(capacity, dtype=np.int16)
        self._streak: Counts = np.zeros(capacity, dtype=np.int16)
        self._shown: Counts = np.zeros(capacity, dtype=np.int16)
        self._age: Counts = np.zeros(capacity, dtype=np.int16)
        self._from_birth: Flags = np.zeros(capacity, dtype=bool)

    @property
    def capacity(self) -> int:
        return self._streak.size

    def fit(self, capacity: int) -> None:
        """Grow the arrays to *capacity* members."""
        more = capacity - self.capacity
        if more > 0:
            for name, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    padding = [(0, 0)] * (array.ndim - 1) + [(0, more)]
                    setattr(self, name, np.pad(array, padding))

    def reset(self, members: Flags) -> None:
        """Forget *members*: they are in another gang."""
        for array in (
            self._windows, self._unusual, self._streak, self._shown, self._age, self._from_birth,
        ):  # fmt: skip
            array[: members.size][members] = 0
        self._past[:, : members.size][:, members] = 0.0

    def update(
        self,
        excess: Floats,
        companions: Floats,
        group: Indexes,
        limits: Floats,
        birth_limits: Floats | None = None,
    ) -> Flags:
        """Take in a window, and return which members are well above their usual excess.

        *excess*: of each member over the others of its gang now, NaN if unknown. *companions*: (k, members).
        *group*: of each member; -1: not part of this window (its past and its streak do not change).
        *limits*: per gang the smallest change that counts. *birth_limits*: the same for members without a past; None:
        BIRTH_FACTOR times *limits*.
        """
        count = limits.size
        without_past = per_member(
            BIRTH_FACTOR * limits if birth_limits is None else birth_limits, group
        )
        size = excess.size
        values = np.vstack([excess, companions])
        values = np.where(np.abs(values) <= VALUE_MAX, values, np.nan)
        known = np.isfinite(values[0]) & (group >= 0)
        self._age[:size][known] = np.minimum(self._age[:size][known] + 1, PAST_WINDOWS)
        is_begun = known & (self._age[:size] > WARMUP_WINDOWS)
        windows = self._windows[:size]
        has_past = is_begun & (windows >= PAST_WINDOWS_MIN + WARMUP_WINDOWS)
        deltas = values - np.where(has_past, self._past[:, :size], 0.0)
        delta = np.where(is_begun, deltas[0], np.nan)
        limit = np.where(has_past, per_member(limits, group), without_past)
        sizes = np.bincount(group[known], minlength=count)
        few = np.where(sizes >= PAIR_SIZE_MIN, np.maximum(outliers_max(sizes), 2), 1)
        middle = per_member(medians(delta, group, count), group)
        noise = per_member(MAD * medians(np.abs(delta - middle), group, count), group)
        is_settled = windows >= self._spread_windows_min
        noise = np.maximum(noise, np.where(is_settled, self._spread[:size], 0.0))
        noise = np.maximum(noise, self._noise_min)
        lead = delta - per_member(max_below_top(delta, few, group), group)
        with np.errstate(invalid="ignore"):
            shows = (delta >= np.maximum(limit, NOISE_FACTOR * noise)) & (
                lead >= LEAD_SHARE * delta
            )
            unusual = np.abs(delta) >= np.maximum(limit / 2, NOISE_FACTOR * noise / 2)
        begins = shows & (self._streak[:size] == 0)
        self._from_birth[:size][begins] = ~has_past[begins]
        self._count(shows, known, deltas)
        # Without a past only a showing change is unusual: roles differ from birth. The spread is about the mean so far.
        is_learning = windows > WARMUP_WINDOWS
        delta = np.where(has_past | is_learning, values[0] - self._past[0, :size], np.nan)
        self._learn(values, delta, known, np.where(has_past, unusual, shows))
        return np.asarray(shows | (has_past & unusual & (deltas[0] > 0.0)), dtype=bool)

    def _count(self, shows: Flags, known: Flags, deltas: Floats) -> None:
        size = shows.size
        streak, shown = self._streak[:size], self._shown[:size]
        streak[shows] = np.minimum(streak[shows] + 1, STREAK_MAX)
        missed = known & ~shows
        streak[missed] = np.maximum(streak[missed] - 2, 0)
        over = missed & (streak == 0)
        shown[over] = 0
        # A running mean: beyond STREAK_MAX windows an older window weighs less.
        shown[shows] = np.minimum(shown[shows] + 1, STREAK_MAX)
        weight = 1.0 / shown[shows]
        at = np.flatnonzero(shows)
        self._sums[:, at[weight == 1.0]] = self._squares[at[weight == 1.0]] = 0.0
        self._sums[:, at] += (deltas[:, at] - self._sums[:, at]) * weight
        self._squares[at] += (deltas[0, at] ** 2 - self._squares[at]) * weight

    def _learn(self, values: Floats, delta: Floats, known: Flags, unusual: Flags) -> None:
        """Add the window to the past of all members without an unusual value."""
        size = known.size
        count = self._unusual[:size]
        count[known & unusual] = np.minimum(count[known & unusual] + 1, UNUSUAL_WINDOWS_MAX + 1)
        count[known & ~unusual] = 0
        restarts = known & (count > UNUSUAL_WINDOWS_MAX)
        windows = self._windows[:size]
        windows[restarts] = count[restarts] = 0
        learned = known & (~unusual | restarts)
        windows[learned] = np.minimum(windows[learned] + 1, PAST_WINDOWS + WARMUP_WINDOWS)
        weight = 1.0 / np.maximum(windows - WARMUP_WINDOWS, 1)
        past = self._past[:, :size]
        taken = learned & np.isfinite(values)
        past[taken] = (past + (values - past) * weight)[taken]
        spread = self._spread[:size]
        measured = learned & np.isfinite(delta)
        spread[measured] += ((1.25 * np.abs(delta) - spread) * weight)[measured]

    def change(self, group: Indexes, count: int) -> Change:
        """Return the change that each member shows now. *group*: as in `update`."""
        size = group.size
        streak, shown = self._streak[:size].copy(), self._shown[:size]
        sizes = np.bincount(group[group >= 0], minlength=count)
        needed = per_member(streak_needed(sizes).astype(np.float64), group)
        excess = np.where(shown > 0, self._sums[0, :size], np.nan)
        variance = np.maximum(self._squares[:size] - excess**2, self._noise_min**2)
        error = np.sqrt(variance / np.maximum(shown, 1))
        from_birth = self._from_birth[:size] & (streak > 0)
        needed = np.where(from_birth, np.maximum(needed, self._birth_streak), needed)
        is_named = np.asarray((group >= 0) & (streak >= needed), dtype=bool)
        is_usual = (self._windows[:size] >= PAST_WINDOWS_MIN + WARMUP_WINDOWS) & (streak == 0)
        companions = np.where(shown > 0, self._sums[1:, :size], np.nan)
        seconds = np.full(size, self._window_seconds)
        return Change(
            streak=streak,
            window_seconds=seconds,
            is_named=is_named,
            from_birth=from_birth,
            is_usual=is_usual,
            excess=excess,
            error=error,
            companions=companions,
        )


def either(first: Change, second: Change) -> Change:
    """Return *first* for each member that *first* names or *second* does not name; else *second*."""
    use = first.is_named | ~second.is_named
    pairs: Iterator[tuple[NDArray[Any], NDArray[Any]]] = zip(first, second, strict=True)
    change = Change(*(np.where(use, one, other) for one, other in pairs))
    return change._replace(is_usual=first.is_usual & ~second.is_named)


def streak_needed(sizes: Indexes) -> Indexes:
    """Return per gang size the windows in a row in which a change must show to exclude chance (CHANCE_MAX)."""
    with np.errstate(divide="ignore"):
        windows = np.ceil(np.log(CHANCE_MAX) / -np.log(np.maximum(sizes, 2)))
    needed: Indexes = np.clip(windows, STREAK_MIN, STREAK_MAX).astype(np.intp)
    return needed
