"""Host clocks against ours: drift, delay, jumps, reboots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.ingest.clocks import HostClock, words

SECOND = 1_000_000_000
BOOT, OTHER_BOOT = b"b" * 16, b"c" * 16
BOOTED = 1_700_000_000 * SECOND


def told(error_ns: int, delays_ns: list[int]) -> HostClock:
    """A host whose wall clock is off, heard once a second with these delays."""
    clock = HostClock()
    for at, delay_ns in enumerate(delays_ns):
        boottime = at * SECOND
        clock.observe(BOOT, boottime, BOOTED + boottime + error_ns, BOOTED + boottime + delay_ns)
    return clock


@given(st.lists(st.integers(0, 30 * SECOND), min_size=1, max_size=30), st.integers(-(2**50), 2**50))
def test_the_estimate_is_the_least_delay(delays_ns: list[int], error_ns: int) -> None:
    """A message that waited half a minute in a queue does not make the host's clock wrong."""
    clock = told(error_ns, delays_ns)
    assert clock.offset_ns == BOOTED + min(delays_ns)
    assert clock.error_ns == error_ns - min(delays_ns)


@given(st.integers(-(2**55), 2**55), st.integers(0, 10_000))
def test_a_stored_time_is_never_far_off(error_ns: int, seconds: int) -> None:
    """Whatever the host's wall clock says: its readings stand within 2 s of when they were made."""
    clock = told(error_ns, [0])
    boottime = seconds * SECOND
    wall = BOOTED + boottime + error_ns
    stored = boottime + clock.time_offset_ns(BOOT, boottime, wall)
    assert abs(stored - (BOOTED + boottime)) <= 2 * SECOND
    if abs(error_ns) <= 2 * SECOND:
        assert stored == wall  # its own clock is the finer one


def test_readings_of_the_boot_before_are_put_right_by_todays_error() -> None:
    """The spool outlived a reboot of a host whose clock is an hour ahead."""
    clock = told(3600 * SECOND, [0])
    wall = BOOTED - 500 * SECOND + 3600 * SECOND
    assert clock.time_offset_ns(OTHER_BOOT, 77, wall) + 77 == BOOTED - 500 * SECOND
    honest = told(0, [0])
    assert honest.time_offset_ns(OTHER_BOOT, 77, wall) + 77 == wall


def test_a_crystal_that_drifts_is_followed() -> None:
    """50 millionths over a day are 4.3 s: an old minimum must not make a finding."""
    clock = HostClock()
    for minute in range(24 * 60):
        true = minute * 60 * SECOND
        slow = true - true * 50 // 1_000_000  # boot time runs slow, NTP keeps the wall clock right
        clock.observe(BOOT, slow, BOOTED + true, BOOTED + true)
    assert abs(clock.error_seconds) < 0.1


def test_our_own_clock_set_back_starts_anew() -> None:
    """The aggregator's clock was put right by an hour: minima of before mean nothing."""
    clock = told(0, [0, 0, 0])
    clock.observe(BOOT, 10 * SECOND, BOOTED - 3590 * SECOND, BOOTED - 3590 * SECOND)
    clock.observe(BOOT, 700 * SECOND, BOOTED - 2900 * SECOND, BOOTED - 2900 * SECOND)
    assert clock.error_seconds == 0.0


def test_the_words_say_which_way() -> None:
    """An operator sets a clock by these words."""
    assert words(3600.0).startswith("its clock is 60.0 minutes ahead of the aggregator's")
    assert words(-200_000.0).startswith("its clock is 2.3 days behind")
    assert words(2.5).startswith("its clock is 2.5 seconds ahead")
