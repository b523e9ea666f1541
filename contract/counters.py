"""Counter algebra: two observations of a hardware counter, and what may be said of the step between.

Half of the false alarms and blind spots of this field come from subtracting counters as if they were
numbers. Everything that subtracts goes through here: `compare` where boot, device and driver may
change between two readings, `counted` where one process reads one device (arrays:
`aggregator/counter_deltas.py`, SQL: `ops.counter_step`, sums of RAPL: `ext.counterfiles.Meter`, all tested equal).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import inf

#: DCGM writes these for "no value" (dcgm_structs.h): DCGM_INT64_BLANK 0x7ffffffffffffff0 and the fifteen above
#: it, DCGM_INT32_BLANK 0x7ffffff0 and the fifteen above it, DCGM_FP64_BLANK 140737488355328.0 and all above it.
BLANK_FROM, BLANK_TO = 2**63 - 16, 2**63 - 1
BLANK_31_FROM, BLANK_31_TO = 2**31 - 16, 2**31 - 1
BLANK_DOUBLE_FROM = 140737488355328.0
#: NVML (NVML_VALUE_NOT_AVAILABLE) and 32-bit drivers write all ones for "no value".
#:
#: This one, and DCGM's of 32 bits, are blanks at every width, though a 64-bit counter of bytes may truly
#: stand there: the declared width does not say which width a driver fills. To take a true 2**32 - 1 for a
#: blank costs one reading and no count, because the next one counts from the reading before; to take a
#: blank for a value invents four billion errors.
BLANK_32 = 2**32 - 1
BLANK_64 = 2**64 - 1

#: Where the rate is not known, a wrap is believed when the step is at most this share of the range.
WRAP_SHARE_MAX = 8  # one eighth
#: A value may be so much older or younger than the time that its reading bears.
SLACK_SECONDS = 2.0


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
class Nature:
    """What is known of a counter beside its values.

    `sticks`: at its ceiling it stays there (InfiniBand error counters), else it begins again at zero.
    `span`: after how many counts that is, where it is no power of two (RAPL's max_energy_range_uj).
    `value_max`: a larger value can not be, so it is a blank (all ones of a device that is gone).
    `rate_max`: it can not count faster, per second; infinite where that is not known.
    """

    width_bits: int = 64
    sticks: bool = False
    span: int = 0
    value_max: int = BLANK_64
    rate_max: float = inf

    @property
    def turn(self) -> int:
        """After how many counts it begins again at zero; 0: never (it sticks, or has 64 bits)."""
        if self.sticks:
            return 0
        return self.span or (1 << self.width_bits if self.width_bits < 64 else 0)

    def reach(self, seconds: float) -> int | None:
        """Return how far it can have counted within *seconds*; None where that is not known."""
        bound = self.rate_max * (seconds + SLACK_SECONDS)
        return int(min(bound, 2.0**63)) if self.rate_max < inf else None


#: A counter of 64 bits of which nothing else is known.
WIDE = Nature()


@dataclass(frozen=True, slots=True)
class Observation:
    """A counter as read. `value` None: absent.

    `device` is who counts, never where: a GPU's UUID, an interface's name with its ifindex. `time_ns`
    is when the value was made: the driver's own time where it gives one, else CLOCK_BOOTTIME.
    """

    value: int | None
    time_ns: int
    boot_id: bytes
    device: str = ""
    driver_load: int = (
        0  # another number after the driver was loaded again, or the device was reset
    )


@dataclass(frozen=True, slots=True)
class Step:
    """What happened between two observations. `count` and `seconds` are 0 unless it is a delta."""

    outcome: Outcome
    count: int = 0
    seconds: float = 0.0


def compare(older: Observation, newer: Observation, nature: Nature = WIDE) -> Step:
    """Return the step from *older* to *newer* of a counter of *nature*. Never raises.

    A value above the declared ceiling shows that this hardware's counter is wider than declared; it is
    then taken as 64 bits wide.
    """
    standing = classify(newer.value, nature)
    if standing is not None:
        return Step(standing)
    same = (older.boot_id, older.device, older.driver_load) == (
        newer.boot_id, newer.device, newer.driver_load,
    )  # fmt: skip
    before, now = older.value, newer.value
    if not same or classify(before, nature) is not None:
        return Step(Outcome.RESET)
    assert before is not None and now is not None
    if newer.time_ns <= older.time_ns:
        return Step(Outcome.STALE)
    seconds = (newer.time_ns - older.time_ns) / 1e9
    outcome, count = _step(before, now, nature, nature.reach(seconds))
    return Step(outcome, count, seconds if outcome is not Outcome.RESET else 0.0)


def counted(
    before: int | None, now: int | None, nature: Nature = WIDE, seconds: float = inf
) -> int | None:
    """Return what a counter counted from *before* to *now*, both of one device, boot and driver.

    None where nothing can be said: a value is absent, blank or at its ceiling, or the counter started
    over. Never negative, never *now* itself for a counter that started over.
    """
    if classify(before, nature) is not None or classify(now, nature) is not None:
        return None
    assert before is not None and now is not None
    outcome, count = _step(before, now, nature, nature.reach(seconds))
    return None if outcome is Outcome.RESET else count


def _step(before: int, now: int, nature: Nature, reach: int | None) -> tuple[Outcome, int]:
    """Return DELTA or WRAPPED with the count, or RESET with 0, of two values that are numbers."""
    turn = nature.turn
    if reach is not None and turn and reach >= turn:
        return Outcome.RESET, 0  # it may have turned round more than once
    if now >= before:
        possible = reach is None or now - before <= reach
        return (Outcome.DELTA, now - before) if possible else (Outcome.RESET, 0)
    wrapped = now - before + turn
    limit = turn // WRAP_SHARE_MAX if reach is None else reach
    if turn and before < turn and wrapped <= limit:
        return Outcome.WRAPPED, wrapped
    return Outcome.RESET, 0


def classify(value: float | None, nature: Nature = WIDE) -> Outcome | None:
    """Say why *value* alone can not be used, or None if it can. A float is blank by DCGM's bound for doubles."""
    if value is None:
        return Outcome.UNSUPPORTED
    if isinstance(value, float):
        return None if value < BLANK_DOUBLE_FROM else Outcome.BLANK  # NaN is blank
    if nature.sticks and nature.width_bits < 64 and value == (1 << nature.width_bits) - 1:
        return Outcome.SATURATED
    blank = value in (BLANK_32, BLANK_64) or BLANK_FROM <= value <= BLANK_TO
    if blank or BLANK_31_FROM <= value <= BLANK_31_TO or value > nature.value_max:
        return Outcome.BLANK
    return None
