"""Relative speeds of GPUs and hosts: a GPU's SM clock divided by the median of its peers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ...fingerprints.group_statistics import medians
from ..arrays import Codes, Floats, Indexes
from .peers import FIELDS, HOSTS_MIN, LIMIT, MIG, PEERS_MIN, SETTING, WIDTHS, PeerSource
from .power_limits import ALL, PeerMeasure, PowerLimited, at_shared_limit, measure_at_limit

#: Error of a clock as a measure of pace (assumed: memory-bound work hardly depends on clocks).
CLOCK_ERROR = 0.01
#: Below this share of its peers a host has a slow GPU: its value is reported as measured.
MEASURED_SHARE_MAX = 0.92
#: Limit of the spread of a host's slowest GPU below the median of healthy parts (outliers: 7 %).
SPREAD_MAX = 0.05


class Speeds(NamedTuple):
    """Per GPU row: its clock relative to its peers' median (NaN: unknown), and their number."""

    relative: Floats
    peers: Codes
    median_hertz: Floats
    error: Floats  # standard error of `relative` as a measure of the GPU's pace
    width: Codes  # index in WIDTHS of its peers; -1: none
    basis: Codes  # ALL, AT_LIMIT or IN_GANG


def relative_speeds(fleet: PeerSource, clock: Floats, limits: PowerLimited) -> Speeds:
    """Compare *clock* (Hz while computing, else NaN) with the median of the narrowest group that
    has one.

    For a GPU at a power limit shared with its peers, use those at the limit, or its gang.
    """
    speeds = _nothing_known(clock.shape)
    computing, hosts = np.isfinite(clock), fleet.devices["gpu"].host
    waiting = computing.copy()
    for level in fleet.peer_groups.levels(fleet):
        for group in level.groups:
            rows = group[computing[group]]
            if rows.size < PEERS_MIN or not waiting[rows].any():
                continue
            is_measurable = waiting[rows] & ~level.settled[rows]
            at_limit = at_shared_limit(limits, rows)
            if (is_measurable & at_limit).any():
                minimums = PEERS_MIN, level.hosts_min
                measure = measure_at_limit(limits, clock, hosts, rows, minimums)
                measured = is_measurable & at_limit & np.isfinite(measure.median_hertz)
                _record_speeds(speeds, clock, rows[measured], measure.select(measured), level.width)
                waiting[rows[measured]] = False
            unlimited = rows[is_measurable & ~at_limit]
            if unlimited.size and _span_hosts(hosts[rows], level.hosts_min):
                _record_speeds(speeds, clock, unlimited, _measure_all(clock[rows]), level.width)
                waiting[unlimited] = False
    return speeds


def _nothing_known(shape: tuple[int, ...]) -> Speeds:
    unknown = np.full(shape, np.nan)
    none = np.zeros(shape, dtype=np.int32)
    return Speeds(unknown, none, unknown.copy(), unknown.copy(), none - 1, none.copy())


def _measure_all(clock: Floats) -> PeerMeasure:
    median = float(np.median(clock))
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = float(np.median(np.abs(clock / median - 1.0)))
    size, basis = np.array([clock.size], dtype=np.int32), np.array([ALL], dtype=np.int32)
    return PeerMeasure(np.array([median]), size, np.array([spread]), basis)


def _record_speeds(
    speeds: Speeds, clock: Floats, rows: Indexes, measure: PeerMeasure, width: int
) -> None:
    median = measure.median_hertz
    speeds.median_hertz[rows], speeds.peers[rows] = median, measure.peers - 1
    speeds.width[rows], speeds.basis[rows] = width, measure.basis
    with np.errstate(invalid="ignore", divide="ignore"):
        speeds.relative[rows] = np.where(median > 0, clock[rows] / median, np.nan)
    speeds.error[rows] = np.where(median > 0, _pace_error(measure), np.nan)


def _span_hosts(hosts: Codes, least: int) -> bool:
    """Return whether *hosts* has at least *least* different ones."""
    for _ in range(least - 1):
        hosts = hosts[hosts != hosts[0]]
        if not hosts.size:
            return False
    return True


def _pace_error(measure: PeerMeasure) -> Floats:
    """Return the standard error of pace measured by clock over the median.

    The median's error is 1.2533 s / sqrt(n) (normal spread s, here from the median absolute
    deviation).
    """
    spread = 1.4826 * measure.spread
    return np.asarray(np.hypot(CLOCK_ERROR, 1.2533 * spread / np.sqrt(measure.peers)))


def describe_peers(fleet: PeerSource, speeds: Speeds, row: int) -> str:
    """Return the fields that a GPU shares with its peers, and those not compared."""
    known = {*fleet.peer_groups.make(row)}
    ten, minute = fleet.tables["gpu_10s"], fleet.tables["gpu_60s"]
    if np.isfinite(ten.gauge("power_limit_watts")[row]):
        known.add(LIMIT)
    if np.isfinite(minute.gauge("sm_application_clock_hertz")[row]):
        known.add(SETTING)
    if fleet.tables["gpu_10s_changes"].known("mig_mode_state")[row]:
        known.add(MIG)
    basis_text = ("", "at their power limit; ", "in its job; ")[int(speeds.basis[row])]
    fields = WIDTHS[int(speeds.width[row])]
    same = [noun for noun in FIELDS if noun in fields and noun in known]
    others = [noun for noun in FIELDS if noun not in same]
    return f"{basis_text}same {_joined(same) or 'highest clock'}" + (
        f"; {_joined(others)} not compared" if others else ""
    )


def _joined(nouns: Sequence[str]) -> str:
    return ", ".join(nouns)


def speeds_of_hosts(speeds: Speeds, hosts: Codes, count: int) -> Floats:
    """Return the pace of each of *count* hosts: its slowest GPU relative to a typical host of its
    peers.

    NaN if no GPU's pace is known. The slowest of eight healthy parts is about 3 % below the median
    of all parts; this normal spread must not count against a host. For hosts with the same peer
    median the spread is the median of (1 - slowest) / c, where c is the median number of standard
    deviations by which the slowest of n is below the mean of a normal distribution (after Blom
    1958: -inverse normal(1 - 2^(-1/n))). A host at or above 1 - c x spread has pace 1.00. A host
    three times as far below 1, or below `MEASURED_SHARE_MAX`, keeps its measured value; between
    these, the value is interpolated so that the order of hosts does not change. With fewer than
    HOSTS_MIN hosts the spread is unknown.
    """
    slowest_relative, known = slowest(speeds.relative, hosts, count), np.isfinite(speeds.relative)
    gpus = np.bincount(hosts[known], minlength=count)
    peer_median = np.full(count, np.nan)
    is_slowest = known & (speeds.relative == slowest_relative[hosts])
    peer_median[hosts[is_slowest]] = speeds.median_hertz[is_slowest]
    several_gpus = np.flatnonzero(gpus > 1)
    slowest_deviation = _slowest_deviations(int(gpus.max(initial=1)))[gpus[several_gpus]]
    _, group = np.unique(peer_median[several_gpus], return_inverse=True)
    sizes = np.bincount(group)
    spread = medians(
        (1.0 - slowest_relative[several_gpus]) / slowest_deviation,
        group.astype(np.intp),
        sizes.size,
    )
    below = np.clip(spread[group] * slowest_deviation, 0.0, SPREAD_MAX)
    typical = np.ones(count)
    typical[several_gpus] = np.where(sizes[group] >= HOSTS_MIN, 1.0 - below, 1.0)
    begins = np.maximum(1.0 - 3.0 * (1.0 - typical), MEASURED_SHARE_MAX)
    with np.errstate(invalid="ignore", divide="ignore"):
        between = begins + (slowest_relative - begins) * (1.0 - begins) / (typical - begins)
    below = np.where(slowest_relative > begins, between, slowest_relative)
    is_typical = slowest_relative >= typical
    return np.where(is_typical, np.maximum(slowest_relative, 1.0), below)


@cache
def _slowest_deviations(gpus_max: int) -> Floats:
    normal = NormalDist()
    return np.array(
        [0.0, 0.0, *(-normal.inv_cdf(1.0 - 2.0 ** (-1.0 / n)) for n in range(2, gpus_max + 1))]
    )


def slowest(relative: Floats, hosts: Codes, count: int) -> Floats:
    """Return the minimum of *relative* for each of *count* hosts; NaN if unknown."""
    known = np.isfinite(relative)
    minimum = np.full(count, np.inf)
    np.minimum.at(minimum, hosts[known], relative[known])
    return np.where(np.isfinite(minimum), minimum, np.nan)
