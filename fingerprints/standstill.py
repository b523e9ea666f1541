"""Whether a job hangs, and for which members it waits, from the activity of its GPUs alone. No I/O.

In a running job each GPU computes and waits in turn. In a job that hangs no activity changes any more: most members wait in a
collective for the few that do not. If no member runs a kernel, none waits: the job ends, or was paused.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .group_statistics import Floats, Indexes

Codes = npt.NDArray[np.int8]

#: A GPU that spends at least this share of a second in one way does nothing else.
CONSTANT_RATIO = 0.95
#: A single GPU waits for no other.
MEMBERS_MIN = 2
#: Members whose activity must be known, and of these the members that must wait.
KNOWN_RATIO_MIN, WAITING_RATIO_MIN = 0.9, 0.5
#: A standstill is a hang after this time, if the job has stood for less before (assumed: longer than most collectives). A stop
#: that was seen and ended by itself doubles it, because checkpoints, evaluations and idle times of a service return.
LIMIT_SECONDS, LIMIT_SECONDS_MAX = 30.0, 1800.0
REPEATED_FACTOR = 2.0
#: The limit while a late member, or its host, still works: it may evaluate or save.
WORKING_LIMIT_SECONDS = 300.0
#: The limit of a run that has not yet worked for LEARNING_SECONDS: its checkpoints are unknown.
LEARNING_SECONDS, LEARNING_LIMIT_SECONDS = 120.0, 180.0


class GpuActivity(IntEnum):
    """GpuActivity of a GPU in the last second."""

    UNKNOWN = 0
    MOVES = 1  # in more than one way
    WAITS = 2  # a kernel is resident at the power of waiting
    STALLS = 3  # no kernel is resident
    COMPUTES = 4
    SILENT = 5  # its host sends no readings


class PhaseShares(NamedTuple):
    """Shares of a second, an entry per GPU; NaN if unknown."""

    compute: Floats
    wait: Floats
    host_stall: Floats
    checkpoint: Floats
    idle: Floats


class Standstill(NamedTuple):
    """A standstill of a job. `late`: the members that it waits for, by index; empty if all wait."""

    seconds: float
    late: Indexes
    members: int


class RunPast(NamedTuple):
    """The longest standstill of a run that ended by itself, and the time in which the run moved."""

    longest_seconds: float = 0.0
    moved_seconds: float = 0.0


def activities(shares: PhaseShares) -> Codes:
    """Return the GpuActivity of each GPU."""
    waits = shares.wait + shares.checkpoint
    stalls = shares.host_stall + shares.idle
    result = np.full(shares.compute.shape, GpuActivity.MOVES, dtype=np.int8)
    for activity, share in (
        (GpuActivity.COMPUTES, shares.compute),
        (GpuActivity.STALLS, stalls),
        (GpuActivity.WAITS, waits),
    ):
        result[share >= CONSTANT_RATIO] = activity
    result[np.isnan(waits + stalls + shares.compute)] = GpuActivity.UNKNOWN
    return result


def standstill_of(activity: Codes, seconds: Floats) -> Standstill | None:
    """Return the standstill of a job; None if it moves, if most members do not wait, or if too many are unknown.

    *seconds*: time since when each member has its activity.
    """
    known = activity != GpuActivity.UNKNOWN
    if activity.size < MEMBERS_MIN or known.sum() < KNOWN_RATIO_MIN * activity.size:
        return None
    if (activity == GpuActivity.MOVES).any():
        return None
    waits = activity == GpuActivity.WAITS
    if waits.sum() < WAITING_RATIO_MIN * known.sum():
        return None
    late = np.flatnonzero(known & ~waits)
    return Standstill(float(seconds[known].min()), late, int(activity.size))


def limit_seconds(past: RunPast, *, is_working: bool) -> float:
    """Return the length from which a standstill is a hang.

    *is_working*: a late member computes, or its host works more than those of waiting members.
    """
    limit = max(LIMIT_SECONDS, REPEATED_FACTOR * past.longest_seconds)
    if past.moved_seconds < LEARNING_SECONDS:
        limit = max(limit, LEARNING_LIMIT_SECONDS)
    if is_working:
        limit = max(limit, WORKING_LIMIT_SECONDS)
    return min(limit, LIMIT_SECONDS_MAX)
