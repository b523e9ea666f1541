"""Counter algebra: compares two readings of a hardware counter, with wraps, resets and saturation.

Subtracting counters as if they were numbers causes half of the false alarms and blind spots in this field. Everything that
subtracts goes through here: `compare` where boot, device and driver may change between two readings, `counter_delta` where one
process reads one device. Equivalents, all tested equal: `aggregator/counter_deltas.py` for arrays, `ops.counter_step` in SQL,
and `ext.counterfiles.Meter` for sums of RAPL.
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
TIME_SLACK_SECONDS = 2.0


class StepOutcome(IntEnum):
    """What a pair of observations tells. Only DELTA and WRAPPED carry a count."""

    DELTA = 0
    WRAPPED = 1
    RESET = 2  # start over: never a negative rate, never "newer as delta"
    SATURATED = 3  # at its ceiling: blind, not quiet
    UNSUPPORTED = 4
    BLANK = 5  # a sentinel that means "no value"
    STALE = 6  # the same instant as before


@dataclass(frozen=True, slots=True)
class CounterSpec:
    """What is known of a counter beside its values.

    `sticks`: at its ceiling it stays there (InfiniBand error counters), else it begins again at zero.
    `wraps_after`: after how many counts that is, where it is no power of two (RAPL's max_energy_range_uj).
    `value_max`: a larger value can not be, so it is a blank (all ones of a device that is gone).
    `rate_max`: it can not count faster, per second; infinite where that is not known.
    """

    width_bits: int = 64
    sticks: bool = False
    wraps_after: int = 0
    value_max: int = BLANK_64
    rate_max: float = inf

    @property
    def modulus(self) -> int:
        """After how many counts it begins again at zero; 0: never (it sticks, or has 64 bits)."""
        if self.sticks:
            return 0
        return self.wraps_after or (1 << self.width_bits if self.width_bits < 64 else 0)

    def count_max(self, seconds: float) -> int | None:
        """Return how far it can have counted within *seconds*; None where that is not known."""
        bound = self.rate_max * (seconds + TIME_SLACK_SECONDS)
        return int(min(bound, 2.0**63)) if self.rate_max < inf else None


#: A 64-bit counter about which nothing else is known.
COUNTER_64 = CounterSpec()


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
class CounterStep:
    """What happened between two observations. `count` and `seconds` are 0 unless it is a delta."""

    outcome: StepOutcome
    count: int = 0
    seconds: float = 0.0


def compare(older: Observation, newer: Observation, spec: CounterSpec = COUNTER_64) -> CounterStep:
    """Return the step from *older* to *newer* of a counter of *spec*. Never raises.

    A value above the declared ceiling shows that this hardware's counter is wider than declared; it is
    then taken as 64 bits wide.
    """
    unusable = classify(newer.value, spec)
    if unusable is not None:
        return CounterStep(unusable)
    is_same_counter = (older.boot_id, older.device, older.driver_load) == (
        newer.boot_id, newer.device, newer.driver_load,
    )  # fmt: skip
    before, now = older.value, newer.value
    if not is_same_counter or classify(before, spec) is not None:
        return CounterStep(StepOutcome.RESET)
    assert before is not None and now is not None
    if newer.time_ns <= older.time_ns:
        return CounterStep(StepOutcome.STALE)
    seconds = (newer.time_ns - older.time_ns) / 1e9
    outcome, count = _step(before, now, spec, spec.count_max(seconds))
    return CounterStep(outcome, count, seconds if outcome is not StepOutcome.RESET else 0.0)


def counter_delta(
    before: int | None, now: int | None, spec: CounterSpec = COUNTER_64, seconds: float = inf
) -> int | None:
    """Return what a counter counted from *before* to *now*, both of one device, boot and driver.

    None where nothing can be said: a value is absent, blank or at its ceiling, or the counter started
    over. Never negative, never *now* itself for a counter that started over.
    """
    if classify(before, spec) is not None or classify(now, spec) is not None:
        return None
    assert before is not None and now is not None
    outcome, count = _step(before, now, spec, spec.count_max(seconds))
    return None if outcome is StepOutcome.RESET else count


def _step(
    before: int, now: int, spec: CounterSpec, count_max: int | None
) -> tuple[StepOutcome, int]:
    """Return DELTA or WRAPPED with the count, or RESET with 0, of two values that are numbers."""
    modulus = spec.modulus
    if count_max is not None and modulus and count_max >= modulus:
        return StepOutcome.RESET, 0  # it may have turned round more than once
    if now >= before:
        possible = count_max is None or now - before <= count_max
        return (StepOutcome.DELTA, now - before) if possible else (StepOutcome.RESET, 0)
    wrapped = now - before + modulus
    limit = modulus // WRAP_SHARE_MAX if count_max is None else count_max
    if modulus and before < modulus and wrapped <= limit:
        return StepOutcome.WRAPPED, wrapped
    return StepOutcome.RESET, 0


def classify(value: float | None, spec: CounterSpec = COUNTER_64) -> StepOutcome | None:
    """Say why *value* alone can not be used, or None if it can. A float is blank by DCGM's bound for doubles."""
    if value is None:
        return StepOutcome.UNSUPPORTED
    if isinstance(value, float):
        return None if value < BLANK_DOUBLE_FROM else StepOutcome.BLANK  # NaN is blank
    if spec.sticks and spec.width_bits < 64 and value == (1 << spec.width_bits) - 1:
        return StepOutcome.SATURATED
    blank = value in (BLANK_32, BLANK_64) or BLANK_FROM <= value <= BLANK_TO
    if blank or BLANK_31_FROM <= value <= BLANK_31_TO or value > spec.value_max:
        return StepOutcome.BLANK
    return None
