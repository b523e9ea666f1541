"""Counter algebra: compares two readings of a hardware counter, with wraps, resets and saturation.

Subtracting counters as if they were numbers causes half of the false alarms and blind spots in this field. Everything
that subtracts goes through here: `compare` where boot, device and driver may change between two readings,
`counter_delta` where one process reads one device. Equivalents, all tested equal: `aggregator/counter_deltas.py` for
arrays, `ops.counter_step` in SQL, and `ext.counterfiles.Meter` for sums of RAPL.
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
#: BLANK_32 and DCGM's 32-bit blanks count as blanks at every width, although a 64-bit byte counter may have such a
#: value: the declared width does not show which width a driver fills. A true 2**32 - 1 taken for a blank costs one
#: reading and no count, because the next count starts from the reading before; a blank taken for a value invents
#: four billion errors.
BLANK_32 = 2**32 - 1
BLANK_64 = 2**64 - 1

#: If the rate is unknown, a wrap is accepted if the step is at most 1/WRAP_SHARE_MAX of the range.
WRAP_SHARE_MAX = 8  # one eighth
#: A value may be this much older or younger than the time of its reading.
TIME_SLACK_SECONDS = 2.0


class StepOutcome(IntEnum):
    """Result of comparing two observations. Only DELTA and WRAPPED have a count."""

    DELTA = 0
    WRAPPED = 1
    RESET = 2  # started over: never a negative rate, never the newer value as delta
    SATURATED = 3  # at its ceiling: it cannot show further events
    UNSUPPORTED = 4
    BLANK = 5  # a sentinel that means "no value"
    STALE = 6  # the same instant as before


@dataclass(frozen=True, slots=True)
class CounterSpec:
    """Known properties of a counter.

    `sticks`: the counter stays at its ceiling (InfiniBand error counters), else it restarts at zero.
    `wraps_after`: the count at which it restarts, if not a power of two (RAPL's max_energy_range_uj).
    `value_max`: larger values are impossible, so they are blanks (all ones from a device that was lost).
    `rate_max`: maximum rate per second; infinite if unknown.
    """

    width_bits: int = 64
    sticks: bool = False
    wraps_after: int = 0
    value_max: int = BLANK_64
    rate_max: float = inf

    @property
    def modulus(self) -> int:
        """The count at which it restarts at zero; 0: never (it sticks, or has 64 bits)."""
        if self.sticks:
            return 0
        return self.wraps_after or (1 << self.width_bits if self.width_bits < 64 else 0)

    def count_max(self, seconds: float) -> int | None:
        """Return the maximum count within *seconds*; None if the maximum rate is unknown."""
        bound = self.rate_max * (seconds + TIME_SLACK_SECONDS)
        return int(min(bound, 2.0**63)) if self.rate_max < inf else None


#: A 64-bit counter about which nothing else is known.
COUNTER_64 = CounterSpec()


@dataclass(frozen=True, slots=True)
class Observation:
    """A counter as read. `value` None: absent.

    `device` identifies the counting device, not its slot: a GPU's UUID, an interface's name with its ifindex. `time_ns`
    is the time of the value: the driver's own time if it gives one, else CLOCK_BOOTTIME.
    """

    value: int | None
    time_ns: int
    boot_id: bytes
    device: str = ""
    driver_load: int = 0  # changes when the driver was loaded again, and when the device was reset


@dataclass(frozen=True, slots=True)
class CounterStep:
    """The step between two observations. `count` and `seconds` are 0 unless the outcome is DELTA or WRAPPED."""

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
        newer.boot_id,
        newer.device,
        newer.driver_load,
    )
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
    """Return the increase from *before* to *now*, both of the same device, boot and driver.

    None if a value is absent, blank or at its ceiling, or if the counter restarted. Never negative, and never *now*
    itself for a counter that restarted.
    """
    if classify(before, spec) is not None or classify(now, spec) is not None:
        return None
    assert before is not None and now is not None
    outcome, count = _step(before, now, spec, spec.count_max(seconds))
    return None if outcome is StepOutcome.RESET else count


def _step(
    before: int, now: int, spec: CounterSpec, count_max: int | None
) -> tuple[StepOutcome, int]:
    """Return DELTA or WRAPPED with the count, or RESET with 0, for two values that are numbers."""
    modulus = spec.modulus
    if count_max is not None and modulus and count_max >= modulus:
        return StepOutcome.RESET, 0  # it may have wrapped more than once
    if now >= before:
        possible = count_max is None or now - before <= count_max
        return (StepOutcome.DELTA, now - before) if possible else (StepOutcome.RESET, 0)
    wrapped = now - before + modulus
    limit = modulus // WRAP_SHARE_MAX if count_max is None else count_max
    if modulus and before < modulus and wrapped <= limit:
        return StepOutcome.WRAPPED, wrapped
    return StepOutcome.RESET, 0


def classify(value: float | None, spec: CounterSpec = COUNTER_64) -> StepOutcome | None:
    """Return why *value* alone is unusable, or None. DCGM's bound for doubles applies to floats."""
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
