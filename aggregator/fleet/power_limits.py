"""GPUs at their power limit, which are compared only with others at the same limit.

Their clock depends on the density of their work: a GPU at its limit has a lower clock than GPUs
with light work, or than another job with less work per watt, without being faulty. The driver's cap
flag is normal at full load.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...fingerprints.group_statistics import medians, per_member
from ..arrays import Codes, Flags, Floats, Indexes
from .activity import AT_LIMIT_SHARE
from .gang_comparison import GangComparison

#: Limits that differ by less count as equal.
LIMIT_WATTS = 5.0
#: From this many hosts of a gang at their limit they are a stage of its work, and not faulty.
STAGE_HOSTS_MIN = 3
#: This many GPUs of a host below their limit show the power of its work; up to this ratio of power
#: it is the same work.
FREE_MIN, SAME_WORK_RATIO_MAX = 3, 1.02
#: Peers of a GPU: all alike, all at a shared limit, or its gang.
ALL, AT_LIMIT, IN_GANG = 0, 1, 2


class PowerLimited(NamedTuple):
    """Per GPU row: whether it computes at its power limit, the limit, and its gang (-1: none).

    `divided`: other GPUs of its host compute for other jobs.
    """

    rows: Flags
    watts: Floats
    gang: Indexes
    divided: Flags


class PeerMeasure(NamedTuple):
    """Per GPU: median clock of its peers (NaN: too few), their number, and their spread.

    `basis`: ALL, AT_LIMIT or IN_GANG.
    """

    median_hertz: Floats
    peers: Codes
    spread: Floats
    basis: Codes

    def select(self, some: Flags) -> PeerMeasure:
        return PeerMeasure(
            self.median_hertz[some], self.peers[some], self.spread[some], self.basis[some]
        )


def power_limited(
    rows: Flags, watts: Floats, hosts: Codes, comparison: GangComparison | None
) -> PowerLimited:
    """Return the limits of GPUs. *rows*: whether each is at its limit; *hosts*: of each GPU."""
    divided = np.zeros(rows.shape, dtype=bool)
    if comparison is None:
        return PowerLimited(rows, watts, np.full(rows.shape, -1, dtype=np.intp), divided)
    known = hosts < comparison.divided.size
    divided[known] = comparison.divided[hosts[known]]
    return PowerLimited(rows, watts, comparison.of_gpus(hosts), divided)


def at_shared_limit(limits: PowerLimited, rows: Indexes) -> Flags:
    """Return which *rows* are at a limit that is not lower than usual.

    Other rows are excluded, because a lower limit must be reported.
    """
    is_at_limit = limits.rows[rows]
    if not is_at_limit.any():
        return is_at_limit
    return is_at_limit & (limits.watts[rows] >= np.nanmedian(limits.watts[rows]) - LIMIT_WATTS)


def capped_below_limit(limits: PowerLimited, power: Floats, clock: Floats, hosts: Codes) -> Flags:
    """Return which GPUs in *limits* are held by another cap than their own limit.

    *power*: current watts. They draw less than their limit and no more than GPUs of their host
    below the limit, but have a lower clock; denser work would draw more. A GPU with a known gang is
    excluded: its gang does the same work and is the better comparison.
    """
    with np.errstate(invalid="ignore"):
        result = limits.rows & (limits.gang < 0) & (power < AT_LIMIT_SHARE * limits.watts)
    if not result.any():
        return result
    group = np.where(np.isfinite(clock) & ~limits.rows, hosts, -1).astype(np.intp)
    count = int(hosts.max(initial=0)) + 1
    watts, hertz = (medians(values, group, count)[hosts] for values in (power, clock))
    result &= _group_sizes(group, count)[hosts] >= FREE_MIN
    with np.errstate(invalid="ignore"):
        return result & (power <= SAME_WORK_RATIO_MAX * watts) & (clock < hertz)


def measure_at_limit(
    limits: PowerLimited, clock: Floats, hosts: Codes, rows: Indexes, least: tuple[int, int]
) -> PeerMeasure:
    """Measure *rows* (GPUs alike), each by its gang, or else by those at a shared limit.

    If enough of a gang are at their limit (such as a pipeline stage) they are the peers, else the
    whole gang. With too few of a gang on a shared host the result is NaN, because others at a limit
    belong to another job. *least*: minimum GPUs and hosts of a median.
    """
    numbers, gang = np.unique(limits.gang[rows], return_inverse=True)
    gang = np.where(limits.gang[rows] >= 0, gang, -1).astype(np.intp)
    shared, count = at_shared_limit(limits, rows), numbers.size
    at_limit = np.where(shared, gang, -1)
    enough = (_group_sizes(at_limit, count) >= least[0]) & (
        _group_host_counts(at_limit, hosts[rows], count) >= STAGE_HOSTS_MIN
    )
    measure = np.where(per_member(enough.astype(np.float64), gang) == 1, at_limit, gang)
    alone = per_member((_group_sizes(measure, count) < least[0]).astype(np.float64), gang) == 1
    # Without enough members of the gang: all at a shared limit.
    loose = (gang < 0) | alone
    together = np.where(shared, 0, -1)
    if shared.sum() < least[0] or _group_host_counts(together, hosts[rows], 1)[0] < least[1]:
        together[:] = -1
    by_limit = _measure_groups(clock[rows], together, np.zeros(rows.size, np.intp), 1, AT_LIMIT)
    by_gang = _measure_groups(clock[rows], measure, gang, count, IN_GANG)
    median_hertz = np.where(loose, by_limit.median_hertz, by_gang.median_hertz)
    return PeerMeasure(
        np.where(alone & limits.divided[rows], np.nan, median_hertz),
        np.where(loose, by_limit.peers, by_gang.peers),
        np.where(loose, by_limit.spread, by_gang.spread),
        np.where(loose, by_limit.basis, by_gang.basis),
    )


def _measure_groups(
    clock: Floats, measure: Indexes, of: Indexes, count: int, basis: int
) -> PeerMeasure:
    """Return per GPU the measure of the group *of* it, computed from the members in *measure*."""
    median = medians(clock, measure, count)
    off = np.abs(clock / per_member(median, measure) - 1.0)
    sizes = _group_sizes(measure, count)
    return PeerMeasure(
        per_member(median, of), np.nan_to_num(per_member(sizes.astype(np.float64), of)).astype(np.int32),
        per_member(medians(off, measure, count), of), np.full(of.shape, basis, np.int32),
    )  # fmt: skip


def _group_sizes(group: Indexes, count: int) -> Indexes:
    return np.bincount(group[group >= 0], minlength=count)


def _group_host_counts(group: Indexes, hosts: Codes, count: int) -> Indexes:
    """Return the number of hosts of each group."""
    is_member = group >= 0
    hosts_max = int(hosts.max(initial=0)) + 1
    pairs = np.unique(group[is_member].astype(np.int64) * hosts_max + hosts[is_member])
    return np.bincount(pairs // hosts_max, minlength=count)
