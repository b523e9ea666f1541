"""Changes of members of gangs: findings and their delay, and false findings. Windows are drawn, not measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.fingerprints.stragglers import (
    BIRTH_FACTOR,
    BIRTH_STREAK_MIN,
    PAST_WINDOWS_MIN,
    STREAK_MIN,
    WARMUP_WINDOWS,
    Change,
    ChangeMonitor,
    streak_needed,
)

LIMIT, NOISE = 0.02, 0.002
PAST = PAST_WINDOWS_MIN + WARMUP_WINDOWS + 6


class Gangs:
    """Gangs of equal size whose members differ by roles, with noise."""

    def __init__(self, gangs: int, size: int, *, roles: float = 0.0, seed: int = 1) -> None:
        self.random = np.random.default_rng(seed)
        self.group = np.repeat(np.arange(gangs), size)
        self.roles = roles * self.random.standard_normal(self.group.size)
        self.limits = np.full(gangs, LIMIT)
        self.monitor = ChangeMonitor(self.group.size, companions=1, noise_min=0.001)

    def window(self, more: np.ndarray | float = 0.0, work: np.ndarray | float = 0.0) -> Change:
        noise = NOISE * self.random.standard_normal(self.group.size)
        companion = np.zeros(self.group.size) + work
        self.monitor.update(self.roles + noise + more, companion[None], self.group, self.limits)
        return self.monitor.change(self.group, self.limits.size)

    def windows(
        self, count: int, more: np.ndarray | float = 0.0, work: np.ndarray | float = 0.0
    ) -> Change:
        """Process *count* equal windows, and return the findings at their end."""
        for _ in range(count - 1):
            self.window(more, work)
        return self.window(more, work)

    def slow(self, member: int, excess: float) -> np.ndarray:
        more = np.zeros(self.group.size)
        more[member] = excess
        return more


@pytest.mark.parametrize("size", [3, 8, 64])
def test_roles_and_noise_name_nobody(size: int) -> None:
    """The last stage of a pipeline, always longer than the others, was drained each night."""
    gangs = Gangs(512 // size, size, roles=0.004)
    assert sum(int(gangs.window().is_named.sum()) for _ in range(200)) == 0


@pytest.mark.parametrize(
    ("size", "excess"),
    [(3, 0.05), (3, 0.5), (8, 0.03), (8, 0.15), (16, 0.03), (16, 0.5), (128, 0.03), (128, 0.15)],
)
def test_a_change_is_named_after_as_many_windows_as_rule_chance_out(
    size: int, excess: float
) -> None:
    """A culprit that is named only after its recovery is useless."""
    gangs, needed = Gangs(4, size, roles=0.01), int(streak_needed(np.array([size]))[0])
    gangs.windows(PAST)
    for _ in range(needed - 1):
        assert not gangs.window(gangs.slow(size + 1, excess)).is_named.any()
    change = gangs.window(gangs.slow(size + 1, excess))
    assert np.flatnonzero(change.is_named).tolist() == [size + 1]
    assert change.excess[size + 1] == pytest.approx(excess, abs=0.003)
    half = 3 * change.error[size + 1]
    assert abs(change.excess[size + 1] - excess) <= half
    change = gangs.windows(needed)
    assert not change.is_named.any() and change.is_usual[size + 1]


def test_a_member_that_is_slow_from_birth_is_held_against_the_others_alone() -> None:
    """A host came back from repair slower than before, and was slow in each job from its first step."""
    gangs = Gangs(4, 16)
    little, much = gangs.slow(3, LIMIT), gangs.slow(20, 2 * BIRTH_FACTOR * LIMIT)
    change = gangs.windows(WARMUP_WINDOWS + BIRTH_STREAK_MIN, little + much)
    assert np.flatnonzero(change.is_named).tolist() == [20] and change.from_birth[20]


def test_another_member_each_window_is_nobodys_fault() -> None:
    """Sequences of different length: the slowest rank changes every step."""
    gangs = Gangs(4, 16)
    for number in range(PAST + 60):
        more = (
            gangs.slow(0, 0.0) if number < PAST else gangs.slow(int(gangs.random.integers(64)), 0.1)
        )
        assert not gangs.window(more).is_named.any()


def test_what_befalls_half_a_gang_is_its_own_affair() -> None:
    """Half of a job's ranks got longer sequences: no host is to blame."""
    gangs = Gangs(2, 16)
    for number in range(PAST + 30):
        half = np.where(np.arange(32) % 2 == 0, 0.1, 0.0) * (number >= PAST)
        assert not gangs.window(half).is_named.any()


def test_companions_say_what_changed_with_it() -> None:
    """More time at more work is the workload's: only the change of work distinguishes this."""
    gangs = Gangs(2, 8)
    gangs.windows(PAST, work=0.5)
    change = gangs.windows(STREAK_MIN + 4, gangs.slow(3, 0.1), 0.5 + gangs.slow(3, 0.08))
    assert change.is_named[3] and change.companions[0, 3] == pytest.approx(0.08, abs=1e-6)


@given(
    st.lists(
        st.lists(
            st.sampled_from([0.0, 0.01, 0.5, -3.0, np.nan, np.inf, -np.inf, 1e308]),
            min_size=6, max_size=6,
        ),
        min_size=1, max_size=30,
    ),
    st.lists(st.integers(-1, 1), min_size=6, max_size=6),
)  # fmt: skip
def test_no_reading_breaks_it(windows: list[list[float]], groups: list[int]) -> None:
    """A counter that went backwards made an excess of minus infinity, and judging stopped for all."""
    monitor = ChangeMonitor(2, companions=1, noise_min=0.001)
    monitor.fit(6)
    group = np.array(groups, dtype=np.intp)
    for values in windows:
        monitor.update(np.array(values), np.array([values]), group, np.full(2, LIMIT))
        monitor.change(group, 2)
    monitor.reset(np.ones(6, dtype=bool))
    assert not monitor.change(group, 2).is_named.any()


def test_a_member_of_another_gang_begins_anew() -> None:
    """A host's past in a job has no meaning in the next job."""
    gangs = Gangs(2, 8)
    for _ in range(PAST):
        gangs.window()
    for _ in range(8):
        gangs.window(gangs.slow(3, 0.1))
    gangs.monitor.reset(np.arange(16) == 3)
    change = gangs.window()
    assert not change.is_named.any() and not change.is_usual[3]
