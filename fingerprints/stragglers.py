"""Finds members of a synchronous gang that became slow: against the others, and against their own past.

Peers alone do not show a slowdown below about 10 %: healthy parts differ by as much, and so do the roles of a pipeline. A
member's own past alone does not either: it changes with every change of the workload. The difference of both differences does.
All code works on arrays over the members of many gangs at once; a member is a host or a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indexes = NDArray[np.intp]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int16]

#: More members of a gang than this share (one always may) are the gang's affair, and no member's.
FEW_SHARE_MAX = 0.1


# ----------------------------------------------------------------------
# Medians and extremes of many small groups at once: gangs by the thousand, a handful of members each.


class GroupExtremes(NamedTuple):
    """Of each group: the place of its greatest value, and the median of all others. -1 and NaN where it has fewer than two."""

    greatest: Indexes
    median: Floats


class _SortedGroups(NamedTuple):
    """The places of all known values, group after group, ascending in each; and how many each group has, which ends where."""

    rows: Indexes
    sizes: Indexes
    ends: Indexes


def _sort_groups(values: Floats, group: Indexes, count: int) -> _SortedGroups:
    rows = np.flatnonzero(np.isfinite(values) & (group >= 0))
    sizes = np.bincount(group[rows], minlength=count)
    return _SortedGroups(rows[np.lexsort((values[rows], group[rows]))], sizes, np.cumsum(sizes))


def medians(values: Floats, group: Indexes, count: int) -> Floats:
    """Return the median of each of *count* groups, NaN for one without a value. *group*: -1 is none."""
    return _medians(values, _sort_groups(values, group, count))


def _medians(values: Floats, order: _SortedGroups) -> Floats:
    begins = order.ends - order.sizes
    found = np.full(order.sizes.size, np.nan)
    some = order.sizes > 0
    low, high = begins + (order.sizes - 1) // 2, begins + order.sizes // 2
    found[some] = (values[order.rows[low[some]]] + values[order.rows[high[some]]]) / 2.0
    return found


def group_extremes(values: Floats, group: Indexes, count: int) -> GroupExtremes:
    """Return who has the most in each group, and the median of those beside it."""
    order = _sort_groups(values, group, count)
    most = np.full(count, -1, dtype=np.intp)
    several = order.sizes > 1
    most[several] = order.rows[order.ends[several] - 1]
    # Without the last of an ascending group the middle moves down by half a place.
    rest = _SortedGroups(order.rows, np.where(several, order.sizes - 1, 0), order.ends - several)
    return GroupExtremes(most, _medians(values, rest))


def max_below_top(values: Floats, few: Indexes, group: Indexes) -> Floats:
    """Return the greatest value of each group but for its *few* greatest; NaN for a group that has no more."""
    rows, sizes, ends = _sort_groups(values, group, few.size)
    found = np.full(few.size, np.nan)
    some = sizes > few
    found[some] = values[rows[(ends - 1 - few)[some]]]
    return found


def median_without(values: Floats, excluded: Indexes, group: Indexes, count: int) -> Floats:
    """Return the median of each group but for its member *excluded* (-1: the group has no answer)."""
    others = values.copy()
    others[excluded[excluded >= 0]] = np.nan
    found = medians(others, group, count)
    found[excluded < 0] = np.nan
    return found


def per_member(values: Floats, group: Indexes) -> Floats:
    """Return the value of each member's group; NaN for a member of none."""
    if not values.size:
        return np.full(group.shape, np.nan)
    return np.where(group >= 0, values[np.maximum(group, 0)], np.nan)


def outliers_max(sizes: Indexes) -> Indexes:
    """Return how many members of gangs of *sizes* may be longer than the others without it being the gang's affair."""
    return np.maximum(1, (FEW_SHARE_MAX * sizes).astype(np.intp))


# ----------------------------------------------------------------------
# A change of one member's excess over its gang, found window by window.

#: Windows that make a past, of which the first are forgotten: a job begins slowly.
PAST_WINDOWS_MIN, WARMUP_WINDOWS = 6, 2
#: Windows after which a past has forgotten the rest.
PAST_WINDOWS = 60
#: What is unusual for this many windows (an hour of ten seconds each) is usual from then on.
UNUSUAL_WINDOWS_MAX = 360
#: A change shows in a window where it is this many times the noise, and leads all but the few by this share of itself.
NOISE_FACTOR, LEAD_SHARE = 4.0, 0.5
#: What befalls any member of a gang alike (stalls that go round) befalls the same one so often no more often than this.
CHANCE_MAX = 5e-6
#: Windows on end in which it must show, at least; and as many as are counted. One without it takes two back.
STREAK_MIN, STREAK_MAX = 4, 12
#: In gangs this large two members at once are still members, not the gang.
PAIR_SIZE_MIN = 8
#: Before a member has a past it is held against the others alone: then this many times the limit is a change, and it takes
#: more windows. That is a member that was slow from birth.
BIRTH_FACTOR, BIRTH_STREAK_MIN = 2.4, 9
#: Of a past of fewer windows the spread is not known well: the gang's counts alone.
SPREAD_WINDOWS_MIN = 12
#: No member is that many times as long as the others: a reading that says so is none.
VALUE_MAX = 1000.0
#: 1.4826 times the median of the absolute differences is a normal's standard deviation.
MAD = 1.4826


class Change(NamedTuple):
    """Each member's change, where one shows now: arrays over members.

    `streak`: windows on end, each of `window_seconds`; `is_named`: enough of them for a gang of its size; `from_birth`: it was so before it had a
    past; `is_usual`: it has a past, and is as it was; `excess`: mean of how much it rose above its own past, or above the
    others, over these windows; `error`: the standard error of that; `companions`: the same of each companion value.
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
    """The past of every member in its gang, and how long it has been unlike it. For one thread."""

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
        """*noise_min*: noise of an excess is taken for at least this. *companions*: values that only explain the first.
        *birth_streak*: windows after which who is slow from birth is named. *spread_windows_min*: of a past of fewer windows
        the gang's spread counts alone."""
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
        """Make room for this many members."""
        more = capacity - self.capacity
        if more > 0:
            for name, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    padding = [(0, 0)] * (array.ndim - 1) + [(0, more)]
                    setattr(self, name, np.pad(array, padding))

    def reset(self, members: Flags) -> None:
        """Forget these: they are in another gang."""
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
        """Take in a window, and return of which members it is well above what is usual.

        *excess*: of each member over the others of its gang now, NaN where it is not known. *companions*: (k, members).
        *group*: of each member, -1 for one that takes no part in this window (its past and its streak stand still).
        *limits*: of each gang, less of a change is none. *birth_limits*: the same without a past; None: BIRTH_FACTOR times *limits*.
        """
        count = limits.size
        without_past = per_member(BIRTH_FACTOR * limits if birth_limits is None else birth_limits, group)  # fmt: skip
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
        # Without a past only who leads is unusual: roles differ from birth. Its spread is about the mean that there is.
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
        # An old window weighs less once there are as many as a verdict looks at.
        shown[shows] = np.minimum(shown[shows] + 1, STREAK_MAX)
        weight = 1.0 / shown[shows]
        at = np.flatnonzero(shows)
        self._sums[:, at[weight == 1.0]] = self._squares[at[weight == 1.0]] = 0.0
        self._sums[:, at] += (deltas[:, at] - self._sums[:, at]) * weight
        self._squares[at] += (deltas[0, at] ** 2 - self._squares[at]) * weight

    def _learn(self, values: Floats, delta: Floats, known: Flags, unusual: Flags) -> None:
        """Let the window be a part of the past of all members that are as before."""
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
        """Return what shows of each member now. *group*: as in `update`."""
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
        return Change(streak, seconds, is_named, from_birth, is_usual, excess, error, companions)


def either(first: Change, second: Change) -> Change:
    """Return what *first* says of each member that it names, or that *second* does not; else what *second* says."""
    use = first.is_named | ~second.is_named
    pairs: Iterator[tuple[NDArray[Any], NDArray[Any]]] = zip(first, second, strict=True)
    change = Change(*(np.where(use, one, other) for one, other in pairs))
    return change._replace(is_usual=first.is_usual & ~second.is_named)


def streak_needed(sizes: Indexes) -> Indexes:
    """Return in how many windows on end a member of a gang of each size must show, so that it is not chance."""
    with np.errstate(divide="ignore"):
        windows = np.ceil(np.log(CHANCE_MAX) / -np.log(np.maximum(sizes, 2)))
    needed: Indexes = np.clip(windows, STREAK_MIN, STREAK_MAX).astype(np.intp)
    return needed
