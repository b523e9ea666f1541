"""Counter algebra: the class of each pair of observations; counts are never overestimated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.contract.counters import (
    BLANK_32,
    TIME_SLACK_SECONDS,
    CounterSpec,
    Observation,
    StepOutcome,
    classify,
    compare,
    counter_delta,
)

BOOT, OTHER = b"a" * 16, b"b" * 16
SECOND_NS = 1_000_000_000


def step(
    older: int | None, newer: int | None, *, width_bits: int = 64, sticks: bool = False
) -> tuple[StepOutcome, int]:
    before = Observation(older, SECOND_NS, BOOT, "d")
    after = Observation(newer, 2 * SECOND_NS, BOOT, "d")
    result = compare(before, after, CounterSpec(width_bits, sticks))
    return result.outcome, result.count


def test_a_delta_carries_its_seconds() -> None:
    """The rate is count over the host's own seconds, not over those between two arrivals."""
    before, after = Observation(5, 0, BOOT), Observation(12, 3_500_000_000, BOOT)
    assert compare(before, after).seconds == 3.5


def test_every_outcome_once() -> None:
    """Each of these occurred on a real host and was once taken for a number."""
    assert step(5, 12) == (StepOutcome.DELTA, 7)
    assert step(2**32 - 3, 4, width_bits=32) == (StepOutcome.WRAPPED, 7)
    assert step(3_000_000_000, 4, width_bits=32) == (StepOutcome.RESET, 0)
    assert step(2**32 - 3, 4) == (StepOutcome.RESET, 0)  # 64 bits do not wrap
    assert step(200, 255, width_bits=8, sticks=True) == (StepOutcome.SATURATED, 0)
    # an operator cleared it
    assert step(255, 3, width_bits=8, sticks=True) == (StepOutcome.RESET, 0)
    assert step(5, None) == (StepOutcome.UNSUPPORTED, 0)
    assert step(5, 2**32 - 1) == (StepOutcome.BLANK, 0)
    assert step(2**32 - 1, 5) == (StepOutcome.RESET, 0)  # a blank cannot be a starting point
    assert step(None, 5) == (StepOutcome.RESET, 0)


def test_a_sticky_32_bit_counter_at_its_ceiling_is_saturated_not_blank() -> None:
    """port_xmit_wait=4294967295 on a congested port: blind, and that is a finding."""
    assert step(9, 2**32 - 1, width_bits=32, sticks=True)[0] is StepOutcome.SATURATED


def test_a_counter_wider_than_declared_counts_on() -> None:
    """Current HCAs return 64-bit counters under old names: 70,000 symbol errors in 16 bits."""
    assert step(65_530, 70_000, width_bits=16, sticks=True) == (StepOutcome.DELTA, 4_470)


def test_another_boot_device_or_driver_starts_over() -> None:
    """40,000 errors before the reboot are not this boot's."""
    before = Observation(5, 0, BOOT, "d", 1)
    for after in (
        Observation(9, SECOND_NS, OTHER, "d", 1),
        Observation(9, SECOND_NS, BOOT, "e", 1),
        Observation(9, SECOND_NS, BOOT, "d", 2),
    ):
        assert compare(before, after).outcome is StepOutcome.RESET


def test_the_same_instant_is_stale() -> None:
    """A driver that returns its last sample again has not counted zero errors."""
    before, after = Observation(5, SECOND_NS, BOOT), Observation(5, SECOND_NS, BOOT)
    assert compare(before, after).outcome is StepOutcome.STALE


values = st.none() | st.integers(0, 2**64 - 1) | st.sampled_from([0, 15, 255, 65535, 2**32 - 1])
widths = st.sampled_from([4, 8, 16, 32, 64])


@given(values, values, widths, st.booleans(), st.booleans(), st.integers(-1, 3))
def test_only_steps_carry_a_count_and_it_is_no_more_than_the_hardware_can_count(
    older: int | None, newer: int | None, width: int, sticks: bool, same: bool, seconds: int
) -> None:
    """A negative rate, or 2**64 errors in a second, has drained healthy hosts before."""
    before = Observation(older, SECOND_NS, BOOT)
    after = Observation(newer, (1 + seconds) * SECOND_NS, BOOT if same else OTHER)
    result = compare(before, after, CounterSpec(width, sticks))
    if result.outcome in (StepOutcome.DELTA, StepOutcome.WRAPPED):
        assert older is not None and newer is not None and same and seconds > 0
        assert 0 <= result.count < 2**64 and result.seconds > 0
        assert (older + result.count) % 2**64 == newer or (older + result.count) % 2**width == newer
    else:
        assert result.count == 0 and result.seconds == 0.0


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=20), st.integers(0, 2**32 - 1))
def test_the_steps_of_a_wrapping_counter_add_up(increments: list[int], start: int) -> None:
    """For any number of wraps the sum equals the truth (blank readings span the gap)."""
    total, value, counted = 0, start, 0
    before = Observation(start, 0, BOOT)
    for index, increment in enumerate(increments, 1):
        total, value = total + increment, (value + increment) % 2**32
        after = Observation(value, index * SECOND_NS, BOOT)
        result = compare(before, after, CounterSpec(32))
        counted += result.count
        if result.outcome in (StepOutcome.DELTA, StepOutcome.WRAPPED):
            before = after
    if before.value == value and classify(start) is None:
        assert counted == total


def test_a_wide_counter_loses_nothing_where_a_blank_would_stand() -> None:
    """A byte counter really passes 2**32 - 1: one blank reading, and no byte is lost."""
    path = [BLANK_32 - 10, BLANK_32, BLANK_32 + 5]
    first, blank, last = (Observation(v, i * SECOND_NS, BOOT) for i, v in enumerate(path))
    assert compare(first, blank).outcome is StepOutcome.BLANK
    assert compare(first, last).count == 15


@given(st.integers(0, 2**40), st.lists(st.integers(0, 2**33), max_size=10))
def test_blanks_on_the_way_do_not_change_the_sum(start: int, increments: list[int]) -> None:
    """Walked through the sentinel or past it, a 64-bit counter adds up to its last usable reading."""
    value, total, base = start, 0, None if classify(start) is not None else start
    first = base
    for increment in [*increments, BLANK_32 - start if start < BLANK_32 else 0, 7]:
        value += increment
        step = counter_delta(base, value)
        total += step or 0
        if classify(value) is None:
            first = value if first is None else first
            base = value
    assert base is not None and first is not None and total == base - first


def test_a_register_of_a_device_that_is_gone() -> None:
    """0xFFFF remapped rows: all ones of a GPU off the bus, an impossible count."""
    rows = CounterSpec(value_max=0xFFFE)
    assert classify(0xFFFF, rows) is StepOutcome.BLANK and classify(0xFFFE, rows) is None


def test_energy_begins_again_at_a_range_that_is_no_power_of_two() -> None:
    """RAPL: 262,143,328,850 microjoules and then zero; taken as 64 bits it was 18 exajoules."""
    span = 262_143_328_850
    rapl = CounterSpec(wraps_after=span)
    assert counter_delta(span - 10, 5, rapl) == 15
    assert counter_delta(5, 25, rapl) == 20
    assert counter_delta(span // 2, 5, rapl) is None  # half the range in one step: it was reset
    assert counter_delta(100, 5) is None and counter_delta(None, 5, rapl) is None


@pytest.mark.parametrize(
    ("before", "now", "seconds", "expected"),
    [
        (2**32 - 3, 4, 1.0, (StepOutcome.WRAPPED, 7)),
        (2**31, 4, 1.0, (StepOutcome.RESET, 0)),  # in one second it counts 1,000 at most
        (5, 2_900, 1.0, (StepOutcome.DELTA, 2_895)),
        (5, 9_000, 1.0, (StepOutcome.RESET, 0)),  # an invented value of a driver
        (2**31, 4, 2_200_000.0, (StepOutcome.WRAPPED, 2**31 + 4)),  # possible in 25 days
        (5, 9_000, 5_000_000.0, (StepOutcome.RESET, 0)),  # in 58 days it may have wrapped twice
    ],
)
def test_a_known_rate_says_what_can_have_been(
    before: int, now: int, seconds: float, expected: tuple[StepOutcome, int]
) -> None:
    """A disk is busy for 1,000 ms a second at most; the share of the range is only a guess."""
    busy = CounterSpec(32, rate_max=1_000.0)
    newer = Observation(now, int(seconds * SECOND_NS), BOOT)
    result = compare(Observation(before, 0, BOOT), newer, busy)
    assert (result.outcome, result.count) == expected
    assert counter_delta(before, now, busy, seconds) == (expected[1] or None)


natures = st.builds(
    CounterSpec,
    widths,
    st.booleans(),
    st.sampled_from([0, 0, 1000, 262_143_328_850]),
    st.sampled_from([2**64 - 1, 0xFFFE]),
    st.sampled_from([float("inf"), 10.0, 1e9]),
)


@given(values, values, natures, st.floats(0.1, 1e7))
def test_never_negative_and_never_the_newer_value_as_the_step(
    older: int | None, newer: int | None, nature: CounterSpec, seconds: float
) -> None:
    """A counter that restarted counts nothing: not its new value, whatever its nature."""
    count = counter_delta(older, newer, nature, seconds)
    if count is None:
        return
    assert older is not None and newer is not None and count >= 0
    if newer >= older:
        assert count == newer - older
    else:
        assert (
            nature.modulus and (older + count) % nature.modulus == newer and count < nature.modulus
        )
    assert count <= nature.rate_max * (seconds + TIME_SLACK_SECONDS)
