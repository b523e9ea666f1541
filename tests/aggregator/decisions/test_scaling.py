"""Throughput between known sizes: an interval that holds, and a warning where the curve jumps."""

from __future__ import annotations

import numpy as np
import pytest

from gangline.aggregator.decisions.scaling import scaling_curve

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CURVES = 150


@pytest.mark.parametrize("shape", ["noise", "even sizes slower"])
@pytest.mark.parametrize("jump", [0.01, 0.05, 0.15, 0.3])
def test_nine_of_ten_held_out_sizes_are_within_their_interval(jump: float, shape: str) -> None:
    """Irregular series of Sia were up to 38 % off, outside of the interval of a smooth fit."""
    source = np.random.default_rng(5)
    within: list[bool] = []
    for _ in range(CURVES):
        work, rest, rounds = (
            source.uniform(0.5, 2.0),
            source.uniform(0.0, 0.05),
            source.uniform(0.0, 0.2),
        )
        change = np.exp(jump * source.standard_normal(len(SIZES)))
        if shape != "noise":
            change = np.where(source.random(len(SIZES)) < 0.5, 1.0 - jump, 1.0)
        points = {
            size: size / (work + rest * size + rounds * np.log2(size)) * float(factor)
            for size, factor in zip(SIZES, change, strict=True)
        }
        left_out = int(source.choice(SIZES[1:-1]))
        truth = points.pop(left_out)
        estimate = scaling_curve(list(points.items())).estimates([left_out])[0]
        within.append(estimate.lower <= truth <= estimate.upper)
    assert np.mean(within) >= 0.87


@pytest.mark.parametrize(
    ("points", "is_smooth"),
    [
        ({1: 100.0, 2: 196.0, 4: 380.0, 8: 720.0, 64: 4200.0}, True),
        ({6: 1363.0, 8: 1581.0, 10: 2195.0, 12: 2078.0, 14: 2763.0, 16: 2831.0, 20: 3677.0, 24: 3558.0}, False),
        ({8: 1.0, 16: 1.9}, True),
        ({1: 10.0}, True),
    ],
)  # fmt: skip
def test_a_curve_that_jumps_is_reported(points: dict[int, float], is_smooth: bool) -> None:
    """If neighboring sizes differ by a tenth, a size between two known ones is uncertain."""
    curve = scaling_curve(list(points.items()))
    assert ("not smooth" in curve.evidence) is not is_smooth
    assert bool(curve.warning) is not is_smooth
