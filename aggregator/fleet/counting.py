"""`fingerprints.counters.compare` for whole tables at once; a property test holds them equal."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...fingerprints.counters import (
    BLANK_32,
    BLANK_64,
    BLANK_FROM,
    BLANK_TO,
    WRAP_SHARE_MAX,
    Outcome,
)
from .arrays import Bytes, Flags, Floats, Times, Words


class Steps(NamedTuple):
    """Outcome and count of every cell; the count is 0 unless it is a delta."""

    outcome: Bytes
    counts: Words


class Shape(NamedTuple):
    """Of each counter column: the ceiling of its width, and whether it sticks there."""

    ceiling: Words  # 2**width - 1, a column vector
    sticks: Flags

    @staticmethod
    def of(widths: list[int], sticks: list[bool]) -> Shape:
        """Return the shape of counters of *widths* bits."""
        ceilings = np.array([(1 << w) - 1 for w in widths], dtype=np.uint64)
        narrow = ceilings < np.uint64(BLANK_64)
        return Shape(ceilings[:, None], (np.array(sticks, dtype=bool) & narrow)[:, None])


def unusable(value: Words, valid: Flags, shape: Shape) -> Bytes:
    """Return per cell why the value alone can not be used (an Outcome), or DELTA if it can."""
    result = np.zeros(value.shape, dtype=np.uint8)
    blank = (value == BLANK_32) | (value == np.uint64(BLANK_64))
    blank |= (value >= BLANK_FROM) & (value <= BLANK_TO)
    result[blank] = Outcome.BLANK
    result[shape.sticks & (value == shape.ceiling)] = Outcome.SATURATED
    result[~valid] = Outcome.UNSUPPORTED
    return result


def compare(
    older: Words,
    older_usable: Flags,
    newer: Words,
    newer_valid: Flags,
    same: Flags,
    elapsed_ns: Times,
    shape: Shape,
) -> Steps:
    """Return the steps of counters (columns x rows). *same*, *elapsed_ns*: one value a row.

    *older_usable* says that the older cell held a number (`unusable` gave DELTA then).
    """
    standing = unusable(newer, newer_valid, shape)
    usable = standing == Outcome.DELTA
    start_over = usable & ~(same & older_usable)
    stale = usable & ~start_over & (elapsed_ns <= 0)
    live = usable & ~start_over & ~stale
    fell = live & (newer < older)
    # Unsigned arithmetic wraps at 64 bits, so that a narrower span is added back below.
    step = newer - older
    turned = step + shape.ceiling + np.uint64(1)
    limit = (shape.ceiling >> np.uint64(3)) + np.uint64(1)  # span / WRAP_SHARE_MAX
    narrow = ~shape.sticks & (shape.ceiling < np.uint64(BLANK_64))
    wrapped = fell & narrow & (older <= shape.ceiling) & (turned <= limit)
    standing[start_over | (fell & ~wrapped)] = Outcome.RESET
    standing[stale] = Outcome.STALE
    standing[wrapped] = Outcome.WRAPPED
    count = np.where(live & ~fell, step, np.where(wrapped, turned, np.uint64(0)))
    return Steps(standing, count)


assert WRAP_SHARE_MAX == 8  # the shift above


def spread(seconds: Floats, time_constant_seconds: float) -> Floats:
    """Return the share of a count, spread evenly over *seconds*, that a leaky sum holds at their end."""
    ratio = np.maximum(seconds, 1e-9) / time_constant_seconds
    return -np.expm1(-ratio) / ratio
