"""How fast GPUs are, by their clocks beside those of the peers that `peers.py` finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .arrays import Codes, Floats, Indexes
from .limited import ALL, Beside, Limited, at_shared_limit, beside
from .peers import FIELDS, LIMIT, MIG, PEERS_MIN, SETTING, WIDTHS, Herd

#: How well a clock tells the pace of work, as a share (assumed: memory-bound work hardly follows it).
CLOCK_ERROR = 0.01


class Speeds(NamedTuple):
    """Per GPU row: its clock over the median of its peers (NaN: unknown), and how many they are."""

    relative: Floats
    peers: Codes
    median_hertz: Floats
    error: Floats  # standard error of `relative` as a measure of the GPU's pace
    width: Codes  # which of WIDTHS its peers are alike in; -1: it has none
    whom: Codes  # of those alike: ALL, those AT_LIMIT, or those IN_GANG (`limited.py`)


def relative_speeds(fleet: Herd, clock: Floats, limits: Limited) -> Speeds:
    """Compare *clock* (Hz while computing, NaN when it did not) with the median of the narrowest group that has one.

    Of a GPU at a power limit that its peers have too it is that of those who are at it, or of its gang (`limited.py`).
    """
    speeds = _nothing_known(clock.shape)
    computing, hosts = np.isfinite(clock), fleet.devices["gpu"].host
    waiting = computing.copy()
    for level in fleet.peerage.levels(fleet):
        for group in level.groups:
            rows = group[computing[group]]
            if rows.size < PEERS_MIN or not waiting[rows].any():
                continue
            is_own = waiting[rows] & ~level.settled[rows]
            at_limit = at_shared_limit(limits, rows)
            if (is_own & at_limit).any():
                least = PEERS_MIN, level.hosts_min
                found = beside(limits, clock, hosts, rows, least)
                told = is_own & at_limit & np.isfinite(found.median_hertz)
                _tell(speeds, clock, rows[told], found.of(told), level.width)
                waiting[rows[told]] = False
            own = rows[is_own & ~at_limit]
            if own.size and _are_of(hosts[rows], level.hosts_min):
                _tell(speeds, clock, own, _of_all(clock[rows]), level.width)
                waiting[own] = False
    return speeds


def _nothing_known(shape: tuple[int, ...]) -> Speeds:
    unknown = np.full(shape, np.nan)
    none = np.zeros(shape, dtype=np.int32)
    return Speeds(unknown, none, unknown.copy(), unknown.copy(), none - 1, none.copy())


def _of_all(clock: Floats) -> Beside:
    """Return what a group of *clock*s is measured by: all of it."""
    median = float(np.median(clock))
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = float(np.median(np.abs(clock / median - 1.0)))
    size, whom = np.array([clock.size], dtype=np.int32), np.array([ALL], dtype=np.int32)
    return Beside(np.array([median]), size, np.array([spread]), whom)


def _tell(speeds: Speeds, clock: Floats, rows: Indexes, measure: Beside, width: int) -> None:
    """Let *rows* be compared with *measure*."""
    median = measure.median_hertz
    speeds.median_hertz[rows], speeds.peers[rows] = median, measure.peers - 1
    speeds.width[rows], speeds.whom[rows] = width, measure.whom
    with np.errstate(invalid="ignore", divide="ignore"):
        speeds.relative[rows] = np.where(median > 0, clock[rows] / median, np.nan)
    speeds.error[rows] = np.where(median > 0, _error(measure), np.nan)


def _are_of(hosts: Codes, least: int) -> bool:
    """Say whether *hosts* are *least* different ones or more."""
    for _ in range(least - 1):
        hosts = hosts[hosts != hosts[0]]
        if not hosts.size:
            return False
    return True


def _error(measure: Beside) -> Floats:
    """Return the standard error of GPUs' paces, told from their clocks over the median of them all.

    That median is off by 1.2533 s / sqrt(n) (normal spread s, here from the median of absolute deviations).
    """
    spread = 1.4826 * measure.spread
    return np.asarray(np.hypot(CLOCK_ERROR, 1.2533 * spread / np.sqrt(measure.peers)))


def alike_in(fleet: Herd, speeds: Speeds, row: int) -> str:
    """Return what a GPU's peers are alike in, and what is not compared: not known, or too few are alike in it."""
    known = {*fleet.peerage.make(row)}
    ten, minute = fleet.tables["gpu_10s"], fleet.tables["gpu_60s"]
    if np.isfinite(ten.gauge("power_limit_watts")[row]):
        known.add(LIMIT)
    if np.isfinite(minute.gauge("sm_application_clock_hertz")[row]):
        known.add(SETTING)
    if fleet.tables["gpu_10s_changes"].known("mig_mode_state")[row]:
        known.add(MIG)
    also = ("", "at their power limit; ", "in its job; ")[int(speeds.whom[row])]
    fields = WIDTHS[int(speeds.width[row])]
    same = [noun for noun in FIELDS if noun in fields and noun in known]
    others = [noun for noun in FIELDS if noun not in same]
    return f"{also}same {_listed(same) or 'highest clock'}" + (
        f"; {_listed(others)} not compared" if others else ""
    )


def _listed(nouns: Sequence[str]) -> str:
    return ", ".join(nouns)


def slowest(relative: Floats, hosts: Codes, count: int) -> Floats:
    """Return the least of *relative* for each of *count* hosts, NaN where none is known."""
    known = np.isfinite(relative)
    least = np.full(count, np.inf)
    np.minimum.at(least, hosts[known], relative[known])
    return np.where(np.isfinite(least), least, np.nan)
