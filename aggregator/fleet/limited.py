"""GPUs at their power limit: their clock tells how dense their work is, and of them only others at it are peers.

The driver's cap flag is normal at full load. Beside lighter work, which never comes to the limit, one that computes at
its limit is slower by design; so is, in another job, one that does less in each watt.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Codes, Flags, Floats, Indexes
from .gangs import Standing
from .grouped import medians, of_members

#: Limits so near to each other are one.
LIMIT_WATTS = 5.0
#: Of so many hosts of a gang and more those at their limit are a stage of its work, and no fault of theirs.
STAGE_HOSTS_MIN = 3
#: Who a GPU is measured by.
ALL, AT_LIMIT, IN_GANG = 0, 1, 2


class Limited(NamedTuple):
    """Per GPU row: whether it computes at its power limit, that limit, and the gang that it computes for (-1: none).

    `divided`: its host has GPUs that compute for others, too.
    """

    rows: Flags
    watts: Floats
    gang: Indexes
    divided: Flags


class Beside(NamedTuple):
    """Per GPU: the median clock of those at the same work (NaN: too few), how many they are, their spread about it.

    `whom`: ALL alike, those AT_LIMIT, or those IN_GANG.
    """

    median_hertz: Floats
    peers: Codes
    spread: Floats
    whom: Codes

    def of(self, some: Flags) -> Beside:
        """Return what is told of *some*."""
        return Beside(self.median_hertz[some], self.peers[some], self.spread[some], self.whom[some])


def limited(rows: Flags, watts: Floats, hosts: Codes, standing: Standing | None) -> Limited:
    """Return who computes at its limit. *hosts*: of each GPU."""
    divided = np.zeros(rows.shape, dtype=bool)
    if standing is None:
        return Limited(rows, watts, np.full(rows.shape, -1, dtype=np.intp), divided)
    known = hosts < standing.divided.size
    divided[known] = standing.divided[hosts[known]]
    return Limited(rows, watts, standing.of_gpus(hosts), divided)


def at_shared_limit(limits: Limited, rows: Indexes) -> Flags:
    """Say which of *rows* are at a limit that is not lower than is usual among them: a lower one is to be found."""
    some = limits.rows[rows]
    if not some.any():
        return some
    return np.asarray(some & (limits.watts[rows] >= np.nanmedian(limits.watts[rows]) - LIMIT_WATTS))


def beside(
    limits: Limited, clock: Floats, hosts: Codes, rows: Indexes, least: tuple[int, int]
) -> Beside:
    """Measure *rows*, GPUs alike, each by its gang, or else by those of them at a shared limit.

    Of a gang of which enough are at their limit (a stage of a pipeline, if not all) these are the measure, else all of
    it: it does the same work. Where too few are of a gang that shares a host, nothing is known of them: those at a limit
    are the other job's. *least*: GPUs and hosts that a median is of.
    """
    numbers, gang = np.unique(limits.gang[rows], return_inverse=True)
    gang = np.where(limits.gang[rows] >= 0, gang, -1).astype(np.intp)
    shared, count = at_shared_limit(limits, rows), numbers.size
    at_limit = np.where(shared, gang, -1)
    enough = (_sizes(at_limit, count) >= least[0]) & (
        _hosts_of(at_limit, hosts[rows], count) >= STAGE_HOSTS_MIN
    )
    measure = np.where(of_members(enough.astype(np.float64), gang) == 1, at_limit, gang)
    alone = of_members((_sizes(measure, count) < least[0]).astype(np.float64), gang) == 1
    # Without a gang worth the name: all at a shared limit.
    loose = (gang < 0) | alone
    together = np.where(shared, 0, -1)
    if shared.sum() < least[0] or _hosts_of(together, hosts[rows], 1)[0] < least[1]:
        together[:] = -1
    found = _told(clock[rows], together, np.zeros(rows.size, np.intp), 1, AT_LIMIT)
    own = _told(clock[rows], measure, gang, count, IN_GANG)
    median_hertz = np.where(loose, found.median_hertz, own.median_hertz)
    return Beside(
        np.where(alone & limits.divided[rows], np.nan, median_hertz),
        np.where(loose, found.peers, own.peers),
        np.where(loose, found.spread, own.spread),
        np.where(loose, found.whom, own.whom),
    )


def _told(clock: Floats, measure: Indexes, of: Indexes, count: int, whom: int) -> Beside:
    """Return of each GPU what the group *of* it tells, of which *measure* are the measure."""
    median = medians(clock, measure, count)
    off = np.abs(clock / of_members(median, measure) - 1.0)
    sizes = _sizes(measure, count)
    return Beside(
        of_members(median, of), np.nan_to_num(of_members(sizes.astype(np.float64), of)).astype(np.int32),
        of_members(medians(off, measure, count), of), np.full(of.shape, whom, np.int32),
    )  # fmt: skip


def _sizes(group: Indexes, count: int) -> Indexes:
    return np.bincount(group[group >= 0], minlength=count)


def _hosts_of(group: Indexes, hosts: Codes, count: int) -> Indexes:
    """Return of how many hosts each group is."""
    some = group >= 0
    most = int(hosts.max(initial=0)) + 1
    pairs = np.unique(group[some].astype(np.int64) * most + hosts[some])
    return np.bincount(pairs // most, minlength=count)
