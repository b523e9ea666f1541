"""Counter algebra: two observations of a hardware counter, and what may be said of the step between.

Half of the false alarms and blind spots of this field come from subtracting counters as if they were
numbers. Everything that subtracts goes through here (arrays:
`aggregator/fleet/counting.py`, tested equal).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

#: DCGM writes these for "no value" (dcgm_structs.h, DCGM_INT64_BLANK and its kin).
BLANK_FROM, BLANK_TO = 2**63 - 13, 2**63 - 1
#: NVML and 32-bit drivers write all ones for "no value".
BLANK_32 = 2**32 - 1
BLANK_64 = 2**64 - 1

#: A wrap is believed when the step is at most this share of the range; a larger one is a reset.
WRAP_SHARE_MAX = 8  # one eighth


class Outcome(IntEnum):
    """What a pair of observations tells. Only DELTA and WRAPPED carry a count."""

    DELTA = 0
    WRAPPED = 1
    RESET = 2  # start over: never a negative rate, never "newer as delta"
    SATURATED = 3  # stands at its ceiling: blind, not quiet
    UNSUPPORTED = 4
    BLANK = 5  # a sentinel that means "no value"
    STALE = 6  # the same instant as before


@dataclass(frozen=True, slots=True)
class Observation:
    """A counter as read. `value` None: absent. `device` and `boot_id` say whose it is."""

    value: int | None
    time_ns: int  # CLOCK_BOOTTIME of the reading
    boot_id: bytes
    device: str = ""
    driver_load: int = 0  # another number after the driver was loaded again


@dataclass(frozen=True, slots=True)
class Step:
    """What happened between two observations. `count` and `seconds` are 0 unless it is a delta."""

    outcome: Outcome
    count: int = 0
    seconds: float = 0.0


def compare(
    older: Observation, newer: Observation, *, width_bits: int = 64, sticks: bool = False
) -> Step:
    """Return the step from *older* to *newer* of a counter *width_bits* wide. Never raises.

    *sticks*: at its ceiling the counter stays there (InfiniBand error counters), else it wraps. A
    value above the declared ceiling shows that this hardware's counter is wider than declared; it is
    then taken as 64 bits wide.
    """
    standing = classify(newer.value, width_bits, sticks)
    if standing is not None:
        return Step(standing)
    same = (older.boot_id, older.device, older.driver_load) == (
        newer.boot_id, newer.device, newer.driver_load,
    )  # fmt: skip
    before, now = older.value, newer.value
    if not same or classify(before, width_bits, sticks) is not None:
        return Step(Outcome.RESET)
    assert before is not None and now is not None
    if newer.time_ns <= older.time_ns:
        return Step(Outcome.STALE)
    seconds = (newer.time_ns - older.time_ns) / 1e9
    if now >= before:
        return Step(Outcome.DELTA, now - before, seconds)
    span = 1 << width_bits
    wrapped = now - before + span
    if width_bits < 64 and not sticks and before < span and wrapped <= span // WRAP_SHARE_MAX:
        return Step(Outcome.WRAPPED, wrapped, seconds)
    return Step(Outcome.RESET)


def classify(value: int | None, width_bits: int, sticks: bool) -> Outcome | None:
    """Say why *value* alone can not be used, or None if it can."""
    if value is None:
        return Outcome.UNSUPPORTED
    if sticks and width_bits < 64 and value == (1 << width_bits) - 1:
        return Outcome.SATURATED
    if value in (BLANK_32, BLANK_64) or BLANK_FROM <= value <= BLANK_TO:
        return Outcome.BLANK
    return None
