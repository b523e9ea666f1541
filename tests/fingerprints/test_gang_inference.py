"""Gangs without a scheduler's report: hosts that form a gang, and hosts that must not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gangline.fingerprints.gang_inference import (
    AGREE_WINDOWS_MIN,
    TORN_WINDOWS_MAX,
    GangInference,
    agreeing_groups,
)


def rates_of(gangs: list[int], random: np.random.Generator, noise: float = 0.004) -> np.ndarray:
    """Return the rates of two counters of hosts in gangs of these sizes, one after the other."""
    levels = np.repeat(np.array([[0.2, 4e9]]).T * 1.3 ** np.arange(len(gangs)), gangs, axis=1)
    return levels * (1 + noise * random.standard_normal(levels.shape))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 99))
def test_gangs_of_three_and_more_are_found_whole_and_smaller_ones_never(
    gangs: list[int], seed: int
) -> None:
    """Half a gang as a gang of its own would find its slow host late, or blame a healthy one."""
    rates = rates_of(gangs, np.random.default_rng(seed))
    ends = np.cumsum(gangs)
    wanted = [
        set(range(end - size, end)) for size, end in zip(gangs, ends, strict=True) if size >= 3
    ]
    groups = agreeing_groups(rates, np.ones(rates.shape[1], dtype=bool))
    assert sorted(map(sorted, wanted)) == sorted(group.tolist() for group in groups)


def test_hosts_that_agree_by_chance_for_half_a_minute_are_no_gang() -> None:
    """Inference servers behind a load balancer have similar loads for a while: none makes another wait."""
    random, inference = np.random.default_rng(3), GangInference()
    for _ in range(200):
        rates = np.array([[0.2, 4e9]]).T * (1 + 0.05 * random.standard_normal((2, 12)))
        assert inference.update(rates, np.ones(12, dtype=bool)) == []


def test_a_gang_outlives_a_checkpoint_and_ends_with_its_work() -> None:
    """A gang that is forgotten at each checkpoint has no past that would show a slow host."""
    random, inference = np.random.default_rng(3), GangInference()
    everyone = np.ones(8, dtype=bool)
    for _ in range(AGREE_WINDOWS_MIN - 1):
        assert inference.update(rates_of([8], random), everyone) == []
    stands = inference.update(rates_of([8], random), everyone)
    assert stands == [frozenset(range(8))]
    for _ in range(TORN_WINDOWS_MAX):
        noise = np.exp(random.standard_normal((2, 8)))
        assert inference.update(rates_of([8], random) * noise, everyone) == stands
    assert inference.update(rates_of([8], random), everyone) == stands
    assert inference.update(rates_of([8], random), ~everyone) == []


@given(st.lists(st.sampled_from([0.0, np.nan, np.inf, -1.0, 5.0]), min_size=8, max_size=8))
def test_no_reading_breaks_it(values: list[float]) -> None:
    """A counter that was reset read as minus ten terabytes a second."""
    inference = GangInference()
    gangs: list[frozenset[int]] = []
    for _ in range(AGREE_WINDOWS_MIN + 1):
        gangs = inference.update(np.array([values, values]), np.ones(8, dtype=bool))
    assert all(values[host] == 5.0 for gang in gangs for host in gang)
