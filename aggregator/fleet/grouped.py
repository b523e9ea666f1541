"""Medians and extremes of many small groups at once: gangs by the thousand, a handful of hosts each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Floats, Indexes


class Ranked(NamedTuple):
    """Of each group: the place of its greatest value, and the median of all others. -1 and NaN where it has fewer than two."""

    most: Indexes
    median: Floats


class _Ordered(NamedTuple):
    """The places of all known values, group after group, ascending in each; and how many each group has, which ends where."""

    rows: Indexes
    sizes: Indexes
    ends: Indexes


def _ordered(values: Floats, group: Indexes, count: int) -> _Ordered:
    rows = np.flatnonzero(np.isfinite(values) & (group >= 0))
    sizes = np.bincount(group[rows], minlength=count)
    return _Ordered(rows[np.lexsort((values[rows], group[rows]))], sizes, np.cumsum(sizes))


def medians(values: Floats, group: Indexes, count: int) -> Floats:
    """Return the median of each of *count* groups, NaN for one without a value. *group*: -1 is none."""
    rows, sizes, ends = _ordered(values, group, count)
    begins = ends - sizes
    found = np.full(count, np.nan)
    some = sizes > 0
    low, high = begins + (sizes - 1) // 2, begins + sizes // 2
    found[some] = (values[rows[low[some]]] + values[rows[high[some]]]) / 2.0
    return found


def ranked(values: Floats, group: Indexes, count: int) -> Ranked:
    """Return who has the most in each group, and the median of those beside it."""
    rows, sizes, ends = _ordered(values, group, count)
    most = np.full(count, -1, dtype=np.intp)
    several = sizes > 1
    most[several] = rows[ends[several] - 1]
    return Ranked(most, without(values, most, group, count))


def beyond(values: Floats, few: Indexes, group: Indexes) -> Floats:
    """Return the greatest value of each group but for its *few* greatest; NaN for a group that has no more."""
    rows, sizes, ends = _ordered(values, group, few.size)
    found = np.full(few.size, np.nan)
    some = sizes > few
    found[some] = values[rows[(ends - 1 - few)[some]]]
    return found


def without(values: Floats, left_out: Indexes, group: Indexes, count: int) -> Floats:
    """Return the median of each group but for its member *left_out* (-1: the group has no answer)."""
    others = values.copy()
    others[left_out[left_out >= 0]] = np.nan
    found = medians(others, group, count)
    found[left_out < 0] = np.nan
    return found


def of_members(values: Floats, group: Indexes) -> Floats:
    """Return the value of each member's group; NaN for a member of none."""
    if not values.size:
        return np.full(group.shape, np.nan)
    return np.where(group >= 0, values[np.maximum(group, 0)], np.nan)
