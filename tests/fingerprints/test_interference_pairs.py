"""The evaluation on real pairs: which pairs count, and that the model beats the simple method."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path

import numpy as np
import pytest

from bench.quality.interference_pairs import FILE, by_model, by_sum_of_effects, read_pairs


def test_pairs_that_do_not_fit_or_use_several_gpus_do_not_count(tmp_path: Path) -> None:
    """A pair of 0 ran out of memory: as a throughput it would be an infinite slowdown."""
    a, b, big = "('A (batch size 8)', 1)", "('B', 1)", "('A (batch size 8)', 4)"
    jobs = {
        a: {"null": 10.0, a: [5.0, 5.0], b: [8.0, 2.0], big: [1.0, 1.0]},
        b: {"null": 4.0, a: [2.0, 8.0], b: [0.0, 0.0]},
        big: {"null": 30.0},
    }
    file = tmp_path / "pairs.json"
    file.write_text(json.dumps({"card": jobs}))
    same, mixed = read_pairs(file)
    assert same.ratios[0] == 2.0 and isnan(same.ratios[1])
    assert mixed.ratios == (1.25, 2.0)
    assert mixed.families == ("A", "B")
    assert mixed.colocation.workloads[0].pace_seconds == 0.1


@pytest.mark.skipif(not FILE.exists(), reason="recordings are not in ../shared/data")
def test_real_pairs_are_predicted_better_than_by_a_sum_of_effects() -> None:
    """The target of an unseen pair, on every ninth of the pairs."""
    measured = read_pairs()
    training = [run for at, run in enumerate(measured) if at % 9]
    errors = [
        np.mean([abs(true / ratio - 1.0) for _, true, ratio, *_ in judge(training, measured[::9])])
        for judge in (by_model, by_sum_of_effects)
    ]
    assert errors[0] < 0.07 and errors[0] < 0.8 * errors[1]
