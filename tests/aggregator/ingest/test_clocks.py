"""Estimates of host clocks: drift, delay, jumps, reboots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.ingest.clocks import HostClock, offset_message

SECOND = 1_000_000_000
BOOT, OTHER_BOOT = b"b" * 16, b"c" * 16
BOOTED = 1_700_000_000 * SECOND


def told(error_ns: int, delays_ns: list[int]) -> HostClock:
    """Return the clock of a host that is off, with a message a second at these delays."""
    clock = HostClock()
    for second, delay_ns in enumerate(delays_ns):
        boottime = second * SECOND
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
    """At any error of the host's wall clock, stored times are within 2 s of the readings."""
    clock = told(error_ns, [0])
    boottime = seconds * SECOND
    wall = BOOTED + boottime + error_ns
    stored = boottime + clock.time_offset_ns(BOOT, boottime, wall)
    assert abs(stored - (BOOTED + boottime)) <= 2 * SECOND
    if abs(error_ns) <= 2 * SECOND:
        assert stored == wall  # its own clock is the finer of both


def test_readings_of_the_boot_before_are_put_right_by_todays_error() -> None:
    """The spool outlived a reboot of a host whose clock is an hour ahead."""
    clock = told(3600 * SECOND, [0])
    wall = BOOTED - 500 * SECOND + 3600 * SECOND
    assert clock.time_offset_ns(OTHER_BOOT, 77, wall) + 77 == BOOTED - 500 * SECOND
    honest = told(0, [0])
    assert honest.time_offset_ns(OTHER_BOOT, 77, wall) + 77 == wall


def test_a_crystal_that_drifts_is_followed() -> None:
    """A drift of 50 millionths is 4.3 s a day: an old minimum must not become a finding."""
    clock = HostClock()
    for minute in range(24 * 60):
        true = minute * 60 * SECOND
        slow = true - true * 50 // 1_000_000  # boot time runs slow, NTP keeps the wall clock right
        clock.observe(BOOT, slow, BOOTED + true, BOOTED + true)
    assert abs(clock.error_seconds) < 0.1


def test_our_own_clock_set_back_starts_anew() -> None:
    """The aggregator's clock was corrected by an hour: earlier minima have no meaning."""
    clock = told(0, [0, 0, 0])
    clock.observe(BOOT, 10 * SECOND, BOOTED - 3590 * SECOND, BOOTED - 3590 * SECOND)
    clock.observe(BOOT, 700 * SECOND, BOOTED - 2900 * SECOND, BOOTED - 2900 * SECOND)
    assert clock.error_seconds == 0.0


def test_the_words_say_which_way() -> None:
    """An operator corrects a clock by this message."""
    assert offset_message(3600.0).startswith("its clock is 60.0 minutes ahead of the aggregator's")
    assert offset_message(-200_000.0).startswith("its clock is 2.3 days behind")
    assert offset_message(2.5).startswith("its clock is 2.5 seconds ahead")


def heard(error_seconds: float = 0.0) -> tuple[HostClock, int]:
    """Return the clock of a host up for two hours, *error_seconds* ahead, and the time."""
    now_ns = BOOTED + 7200 * SECOND
    clock = HostClock()
    clock.observe(BOOT, 7200 * SECOND, now_ns + round(error_seconds * SECOND), now_ns)
    return clock, now_ns


@pytest.mark.parametrize("error", [0.0, -3600.0, 3600.0, 86_400.0])
@pytest.mark.parametrize(
    ("boottime", "wall", "then"),
    [
        (3600, 3600, 3600),  # an hour ago
        (3600, 3601, 3601),  # the wall clock was slewed since: it is right
        (3600, 0, 3600),  # the wall clock was set back by an hour since
        (30 * 86_400, -600, -600),  # from the previous boot, which was long
        (60, -600, -600),  # from the previous boot, which was short
        (10**9, 10**9, 7200),  # from the year 2055
        (10**9, None, 7200),
        (0, 3600, 3600),  # without boot time
        (0, None, 7200),  # without any time
    ],
)
def test_when_an_event_was(error: float, boottime: int, wall: int | None, then: int) -> None:
    """Events arrive late, from earlier boots, with wrong clocks: their time is never ahead."""
    if (boottime, wall) == (3600, 0):
        wall = 3600 + 3600
    clock, now_ns = heard(error)
    wall_ns = 0 if wall is None else BOOTED + round((wall + error) * SECOND)
    time_ns = clock.event_time_ns(b"", boottime * SECOND, wall_ns, now_ns)
    assert time_ns == BOOTED + then * SECOND


def test_an_event_that_tells_its_boot_is_of_that_boot() -> None:
    """By clocks alone, a fresh XID 79 was stored with the previous boot, and not judged.

    It had waited through an outage while the wall clock was set an hour forward.
    """
    clock, now_ns = heard()
    hour_ns = 3600 * SECOND
    behind_ns = BOOTED + hour_ns - hour_ns - 60 * SECOND  # the wall clock before it was set
    assert clock.event_time_ns(BOOT, hour_ns, behind_ns, now_ns) == BOOTED + hour_ns
    assert clock.event_time_ns(b"", hour_ns, behind_ns, now_ns) == behind_ns
    ahead_ns = BOOTED + hour_ns  # from an earlier boot with a wall clock ahead
    assert clock.event_time_ns(b"another boot....", 60 * SECOND, ahead_ns, now_ns) == ahead_ns


@given(st.sampled_from([b"", BOOT, b"x"]), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_no_event_is_of_tomorrow(boot_id: bytes, boottime_ns: int, wall_ns: int) -> None:
    """This holds for any times that a host sends."""
    clock, now_ns = heard()
    assert 0 <= clock.event_time_ns(boot_id, boottime_ns, wall_ns, now_ns) <= now_ns
