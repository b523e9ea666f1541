"""The period of a step: only repetition is found, with any other content of the signals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.ext.periods import estimate

RATE = 10.0


def steps(
    period: float, *, seconds: float = 120.0, batches: int = 1, jitter: float = 0.0, seed: int = 1
) -> np.ndarray:
    """Return power at 10 Hz of steps of *period* seconds: micro-batches, then a wait."""
    random = np.random.default_rng(seed)
    fine = int(seconds * 10) * 10
    watts, now = np.full(fine, 150.0), 0.0
    while now < seconds:
        length = period * (1 + jitter * random.standard_normal())
        for batch in range(batches):
            begin = now + 0.75 * length * batch / batches
            end = begin + 0.6 * length / batches
            watts[int(100 * begin) : int(100 * end)] = 550.0
            watts[int(100 * begin) : int(100 * (2 * begin + end) / 3)] = 450.0
        now += length
    return np.asarray(watts.reshape(-1, 10).mean(axis=1) + random.normal(0, 3, fine // 10))


def of(*signals: np.ndarray) -> tuple[float, float]:
    return estimate(np.array(signals, dtype=np.float32).data, 1 / RATE)


@pytest.mark.parametrize("period", [0.45, 0.7, 1.3, 2.5, 6.0, 14.0, 28.0])
@pytest.mark.parametrize("batches", [1, 3])
def test_a_step_is_found_within_a_percent(period: float, batches: int) -> None:
    """Half the step was reported, and a job that lost a third of its pace looked twice as fast."""
    if period / batches < 0.6 and batches > 1:
        pytest.skip("its micro-batches are shorter than the samples show")
    seconds, confidence = of(steps(period, batches=batches, jitter=0.003))
    assert seconds == pytest.approx(period, rel=0.01)
    assert confidence > 0.5


@given(st.floats(0.1, 1e4), st.floats(-1e3, 1e3), st.integers(0, 20))
def test_scale_and_missing_samples_do_not_move_it(scale: float, slope: float, lost: int) -> None:
    """A counter in other units, a trend, or a dropped sample is the same workload."""
    signal = scale * (steps(1.3) + 1e-4 * slope * np.arange(1200, dtype=np.float32))
    signal[np.random.default_rng(lost).random(1200) < lost / 100] = np.nan
    assert of(signal)[0] == pytest.approx(1.3, rel=0.01)


def test_the_order_of_the_signals_is_of_no_matter() -> None:
    """A result that depends on the order would be arbitrary."""
    one, other = steps(1.3), steps(1.3, seed=2) / 500
    assert of(one, other) == pytest.approx(of(other, one))


@pytest.mark.parametrize(
    "signal",
    [
        np.full(1200, 500.0), np.full(1200, np.nan), np.zeros(1200), np.random.default_rng(1).normal(400, 100, 1200),
        np.cumsum(np.random.default_rng(2).normal(0, 5, 1200)) + 300, np.full(1200, np.inf), np.full(1200, 3e38),
    ],
)  # fmt: skip
def test_nothing_is_said_of_what_does_not_repeat(signal: np.ndarray) -> None:
    """A server of requests got a step, and its next one was predicted."""
    seconds, confidence = of(signal)
    assert math.isnan(seconds) and confidence == 0.0


@pytest.mark.parametrize("cycle", [9.0, 15.4, 24.0, 41.0, 70.0])
@pytest.mark.parametrize("pause", [0.1, 0.4, 0.9])
def test_flat_work_and_a_pause_that_return_are_no_step(cycle: float, pause: float) -> None:
    """A job with a checkpoint every 15.4 s was at 4 % of its pace: the wrong cycle."""
    times = np.arange(3000) / RATE
    works = (times % cycle) / cycle >= pause
    noise = np.random.default_rng(1).normal(0, 8, times.size)
    assert math.isnan(of(np.where(works, 550.0, 120.0) + noise, np.where(works, 1.0, 0.04))[0])


@pytest.mark.parametrize("period", [0.56, 1.3, 3.1])
@pytest.mark.parametrize("pause", [1.5, 8.0])
def test_the_step_is_found_between_checkpoints(period: float, pause: float) -> None:
    """Steps repeat after one checkpoint cycle as well as after one step."""
    work = steps(period, seconds=25 * period, jitter=0.003)
    pieces = [np.concatenate([work, np.full(int(pause * RATE), 120.0)]) for _ in range(8)]
    assert of(np.concatenate(pieces)[-3000:])[0] == pytest.approx(period, rel=0.02)


def test_a_step_that_was_not_seen_four_times_is_not_known() -> None:
    """Two checkpoints looked like a step of a minute."""
    assert math.isnan(of(steps(40.0))[0])


@pytest.mark.parametrize(
    ("signals", "seconds"),
    [
        ((17, 100), 0.1),
        ((1, 5000), 0.1),
        ((1, 100), 0.0),
        ((1, 100), float("nan")),
        ((1, 100), 1e9),
    ],
)
def test_what_is_beyond_its_limits_is_rejected(signals: tuple[int, int], seconds: float) -> None:
    """A caller's mistake must not allocate memory."""
    with pytest.raises(ValueError, match="expected"):
        estimate(np.zeros(signals, dtype=np.float32).data, seconds)


@pytest.mark.parametrize("shape", [(0, 100), (3, 0), (1, 23)])
def test_too_little_is_no_error(shape: tuple[int, int]) -> None:
    """A job of two seconds has no step yet."""
    assert math.isnan(estimate(np.zeros(shape, dtype=np.float32).data, 0.1)[0])
