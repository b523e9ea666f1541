"""The parts of a step: right if they are separated, and missing otherwise."""

from __future__ import annotations

from array import array
from math import isnan, nan

import numpy as np
import pytest

from bench.quality import step_parts
from gangline.ext.step_parts import PARTS, split

SILENT = (True,) * len(PARTS)


def parts_of(kind: str, period: float, seed: int) -> tuple[list[float], list[float], float]:
    """Return the estimate for a generated job, the truth, and the confidence."""
    random = np.random.default_rng(seed)
    fine, true = step_parts.timeline(random, kind, period)
    *shares, confidence = split(
        step_parts.sampled(random, fine, has_gpm=kind != "without GPM").data, 0.1, period
    )
    return shares, true, confidence


@pytest.mark.parametrize("kind", step_parts.KINDS)
def test_parts_are_right_and_missing_where_nothing_separates_them(kind: str) -> None:
    """With tensor parallelism "backward 85 %" made a user optimize it."""
    reported = [0] * len(PARTS)
    off: list[float] = []
    for seed in range(12):
        shares, true, confidence = parts_of(kind, 6.0 + seed, seed)
        assert 0 <= confidence <= 1
        for part, share in enumerate(shares):
            if not isnan(share):
                # The sum is right wherever the two parts are distinguished.
                instead = step_parts.FORWARD if part == step_parts.FORWARD_BACKWARD else part
                assert {part, instead} & {*step_parts.KINDS[kind]}, f"{PARTS[part]} of seed {seed}"
                reported[part] += 1
                off.append(abs(share - true[part]))
    assert all(reported[part] >= 4 for part in step_parts.KINDS[kind])
    assert not off or (np.median(off) < 0.02 and np.mean(off) < 0.04)


def test_short_steps_and_steps_that_differ_have_no_parts() -> None:
    """Too few readings show no part; and noise folded at any period has parts by chance."""
    assert tuple(map(isnan, parts_of("data parallel", 3.0, 1)[0])) == SILENT
    random = np.random.default_rng(1)
    for seconds in (5.0, 7.3, 20.0, nan, 0.0, -1.0, 1e9):
        noise = np.abs(random.standard_normal((7, 1200))).astype(np.float32)
        *shares, confidence = split(noise.data, 0.1, seconds)
        assert tuple(map(isnan, shares)) == SILENT and confidence == 0


@pytest.mark.parametrize("value", [nan, 0.0, 1.0, -1.0, 1e30, float("inf")])
def test_odd_readings_have_no_parts(value: float) -> None:
    """A driver with a constant or missing number must cause neither a crash nor an estimate."""
    for samples in (1, 24, 1200):
        signals = memoryview(array("f", [value] * (7 * samples))).cast("B").cast("f", (7, samples))
        assert tuple(map(isnan, split(signals, 0.1, 6.0)[:-1])) == SILENT


@pytest.mark.parametrize("missing", range(7))
def test_a_signal_that_a_driver_lacks_crashes_nothing(missing: int) -> None:
    """GPM without memory bandwidth: unwritten cuts were read, and the sampler died."""
    random = np.random.default_rng(3)
    fine, _ = step_parts.timeline(random, "data parallel", 8.0)
    signals = step_parts.sampled(random, fine, has_gpm=True)
    signals[missing] = np.nan
    *shares, confidence = split(signals.data, 0.1, 8.0)
    assert all(isnan(share) or 0 < share < 1 for share in shares) and 0 <= confidence <= 1


def test_other_shapes_are_rejected() -> None:
    """The position of a signal is its meaning."""
    with pytest.raises(ValueError, match="6 signals: expected 7"):
        split(np.zeros((6, 100), np.float32).data, 0.1, 6.0)
    with pytest.raises(ValueError, match="seconds a sample"):
        split(np.zeros((7, 100), np.float32).data, 0.0, 6.0)
