"""The schedule: on the grid, once a slot; missed turns are counted and not repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.clock import PeriodicSchedule

SECOND = 1_000_000_000
PERIODS = {"fast": SECOND, "slow": 10 * SECOND, "minute": 60 * SECOND}

steps = st.lists(st.integers(min_value=0, max_value=200 * SECOND), min_size=1, max_size=60)


def test_every_name_starts_at_once_and_then_keeps_to_the_grid() -> None:
    """An agent started in mid-slot: the minute's signals must not be missing for a minute."""
    schedule = PeriodicSchedule(PERIODS)
    assert schedule.next_ns() == 0
    assert schedule.due(75 * SECOND + 400) == ["fast", "slow", "minute"]
    assert schedule.next_ns() == 76 * SECOND
    assert schedule.due(76 * SECOND - 1) == []
    assert schedule.due(76 * SECOND) == ["fast"]
    assert schedule.due(80 * SECOND) == ["fast", "slow"]
    assert schedule.due(120 * SECOND) == ["fast", "slow", "minute"]


def test_a_turn_can_be_had_early_once_and_the_grid_stays() -> None:
    """A GPU came back after a reset: its inventory cannot wait ten minutes for its turn."""
    schedule = PeriodicSchedule(PERIODS)
    schedule.make_due("minute")  # before its first turn, which comes at once anyway
    schedule.due(60 * SECOND)
    schedule.make_due("minute")
    schedule.make_due("nobody")
    assert schedule.due(61 * SECOND) == ["fast", "minute"]
    assert schedule.due(62 * SECOND) == ["fast"]
    assert "minute" in schedule.due(120 * SECOND)
    assert schedule.skipped("minute") == 0


def test_a_stall_is_counted_and_not_made_up_for() -> None:
    """A host stopped for five seconds must not read its counters five times in a row."""
    schedule = PeriodicSchedule(PERIODS)
    schedule.due(100 * SECOND)
    assert schedule.due(105 * SECOND) == ["fast"]
    assert schedule.due(105 * SECOND + 1) == []
    assert (schedule.skipped("fast"), schedule.skipped("slow")) == (4, 0)


def test_a_host_that_always_wakes_late_is_still_sampled() -> None:
    """A starved host wakes the agent 0.9 s late every time: then its readings matter most."""
    schedule = PeriodicSchedule({"fast": SECOND})
    late = [schedule.due(second * SECOND + 900_000_000) for second in range(10)]
    assert late == [["fast"]] * 10
    assert schedule.skipped("fast") == 0


def test_a_period_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="gpu: a period must be positive, got 0 ns"):
        PeriodicSchedule({"gpu": 0})


def test_nobody_to_wait_for() -> None:
    schedule = PeriodicSchedule({})
    assert (schedule.due(5), schedule.next_ns()) == ([], 0)


@given(start=st.integers(min_value=0, max_value=10**15), steps=steps)
def test_any_passage_of_time(start: int, steps: list[int]) -> None:
    """For any sequence of calls: one turn a slot, none before its grid point, every gap counted."""
    schedule = PeriodicSchedule(PERIODS)
    turns: dict[str, list[int]] = {name: [] for name in PERIODS}
    now = start
    for step in [0, *steps]:
        now += step
        due = schedule.due(now)
        assert len(due) == len(set(due))
        for name in due:
            turns[name].append(now)
        assert schedule.next_ns() > now  # waiting until then never spins
    for name, period in PERIODS.items():
        slots = [moment // period for moment in turns[name]]
        assert slots == sorted(set(slots))
        assert len(slots) + schedule.skipped(name) == slots[-1] - slots[0] + 1
        # A slot in which `due` was called has its turn: no slot is skipped without need.
        asked, at = set(), start
        for step in [0, *steps]:
            at += step
            asked.add(at // period)
        assert set(slots) == asked


@given(start=st.integers(min_value=0, max_value=10**15))
def test_a_clock_that_goes_back_makes_nobody_due(start: int) -> None:
    schedule = PeriodicSchedule(PERIODS)
    schedule.due(start)
    assert schedule.due(max(0, start - SECOND)) == []
    assert all(schedule.skipped(name) == 0 for name in PERIODS)
