"""Medians and extremes of many small groups at once: thousands of gangs with a few members each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indexes = NDArray[np.intp]
Flags = NDArray[np.bool_]
Counts = NDArray[np.int16]
#: At most this share of a gang's members (at least one member) can be outliers; more of them are a change of the whole
#: gang.
FEW_SHARE_MAX = 0.1


class GroupExtremes(NamedTuple):
    """Per group: the index of the greatest value, and the median of all others; -1 and NaN if under two values."""

    greatest: Indexes
    median: Floats


class _SortedGroups(NamedTuple):
    """Indexes of all finite values by group, ascending within each; per group its size, and its end in `rows`."""

    rows: Indexes
    sizes: Indexes
    ends: Indexes


def _sort_groups(values: Floats, group: Indexes, count: int) -> _SortedGroups:
    rows = np.flatnonzero(np.isfinite(values) & (group >= 0))
    sizes = np.bincount(group[rows], minlength=count)
    return _SortedGroups(rows[np.lexsort((values[rows], group[rows]))], sizes, np.cumsum(sizes))


def medians(values: Floats, group: Indexes, count: int) -> Floats:
    """Return the median of each of *count* groups, NaN without values. Values with *group* -1 are ignored."""
    return _medians(values, _sort_groups(values, group, count))


def _medians(values: Floats, order: _SortedGroups) -> Floats:
    begins = order.ends - order.sizes
    found = np.full(order.sizes.size, np.nan)
    some = order.sizes > 0
    low, high = begins + (order.sizes - 1) // 2, begins + order.sizes // 2
    found[some] = (values[order.rows[low[some]]] + values[order.rows[high[some]]]) / 2.0
    return found


def group_extremes(values: Floats, group: Indexes, count: int) -> GroupExtremes:
    """Return per group the index of the maximum and the median of the other values; -1 and NaN if under two values."""
    order = _sort_groups(values, group, count)
    most = np.full(count, -1, dtype=np.intp)
    several = order.sizes > 1
    most[several] = order.rows[order.ends[several] - 1]
    # Without the last member of an ascending group its middle moves down by half an index.
    rest = _SortedGroups(order.rows, np.where(several, order.sizes - 1, 0), order.ends - several)
    return GroupExtremes(most, _medians(values, rest))


def max_below_top(values: Floats, few: Indexes, group: Indexes) -> Floats:
    """Return per group the maximum without its *few* greatest values; NaN if no value is left."""
    rows, sizes, ends = _sort_groups(values, group, few.size)
    found = np.full(few.size, np.nan)
    some = sizes > few
    found[some] = values[rows[(ends - 1 - few)[some]]]
    return found


def median_without(values: Floats, excluded: Indexes, group: Indexes, count: int) -> Floats:
    """Return per group the median without its member *excluded*; NaN where *excluded* is -1."""
    others = values.copy()
    others[excluded[excluded >= 0]] = np.nan
    found = medians(others, group, count)
    found[excluded < 0] = np.nan
    return found


def per_member(values: Floats, group: Indexes) -> Floats:
    """Return the value of each member's group; NaN for a member without a group."""
    if not values.size:
        return np.full(group.shape, np.nan)
    return np.where(group >= 0, values[np.maximum(group, 0)], np.nan)


def outliers_max(sizes: Indexes) -> Indexes:
    """Return per gang how many outliers are members at fault; more of them are a change of the whole gang."""
    return np.maximum(1, (FEW_SHARE_MAX * sizes).astype(np.intp))
