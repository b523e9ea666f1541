"""A neighbor is blamed for a slower pace only if its coming and going explain it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.fingerprints.colocation import WINDOWS_MIN, Effect, compare

SEEDS = st.integers(0, 2**32 - 1)


def windows(count: int, pace: float = 1.0, scatter: float = 0.02, seed: int = 0) -> list[float]:
    return list(pace * np.random.default_rng(seed).normal(1.0, scatter, count))


@pytest.mark.parametrize(
    ("before", "beside", "after", "effect"),
    [
        (1.0, 0.91, None, Effect.SLOWER),
        (1.0, 0.91, 1.0, Effect.SLOWER),
        (None, 0.91, 1.0, Effect.SLOWER),
        (1.0, 0.91, 0.91, Effect.OTHER_CAUSE),
        (1.0, 1.0, 1.0, Effect.NONE),
        (1.0, 1.1, 1.0, Effect.NONE),
        (1.0, 0.98, None, Effect.NONE),
        (None, 0.5, None, Effect.UNKNOWN),
    ],
)
def test_the_pace_beside_a_neighbor_is_compared_with_the_pace_alone(
    before: float | None, beside: float, after: float | None, effect: Effect
) -> None:
    result = compare(
        windows(30, before, seed=1) if before else [],
        windows(30, beside, seed=2),
        windows(12, after, seed=3) if after else [],
    )
    assert result.effect is effect
    if effect is Effect.SLOWER:
        assert result.slowdown == pytest.approx(0.09, abs=0.02)
        assert result.lower < result.ratio < result.upper


def test_unchanged_pairs_are_rarely_blamed() -> None:
    """The alarm budget: one of a hundred pairs whose pace did not change."""
    blamed = sum(
        compare(windows(12, scatter=0.08, seed=seed), windows(12, scatter=0.08, seed=seed + 10_000), []).effect
        is Effect.SLOWER
        for seed in range(2000)
    )  # fmt: skip
    assert blamed <= 20


@pytest.mark.parametrize("alone", [1e-18, 1e-7, 1.0, 1e7, 1e308])
@pytest.mark.parametrize("beside", [5e-324, 1e-18, 1e-7, 1e7, 1e308])
def test_works_that_no_job_has_make_no_slowdown(alone: float, beside: float) -> None:
    """They had the logarithm of 0, or a slowdown of all speed, from which no ratio can be restored."""
    result = compare([alone] * 10, [beside] * 10, [])
    assert result.effect is Effect.UNKNOWN
    assert result.slowdown < 1.0


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=80), SEEDS)
def test_odd_numbers_never_raise(works: list[float], seed: int) -> None:
    result = compare(works, windows(WINDOWS_MIN, seed=seed), works)
    assert 0.0 <= result.slowdown <= 1.0
