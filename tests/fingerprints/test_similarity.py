"""The search for earlier runs against the plainest way to do the same, and its odd inputs."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from bench.generated_fingerprints import GeneratedRuns, generate
from gangline.fingerprints.fingerprint import (
    FINGERPRINT_VERSION,
    NUMBERS,
    RESOURCES,
    STATES,
    Fingerprint,
    FingerprintVersionError,
    decode,
)
from gangline.fingerprints.similarity import (
    MODEL_FILE,
    OTHER_USER_FACTOR,
    RunIndex,
    load_similarity,
    workload_features,
)
from gangline.fingerprints.workload_class import classify

RUNS = generate(3, 60, 3)


def fingerprint(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Fingerprint:
    return Fingerprint(tuple(values.tolist()), gpus=8, hosts=1, gpu_model="H100")


def training(runs: GeneratedRuns) -> Fingerprint:
    known = np.isfinite(runs.values).all(axis=1)
    return fingerprint(runs.values[np.flatnonzero(known)[0]])


def test_the_product_of_matrices_finds_what_a_plain_pass_finds() -> None:
    """Terms of a square that are summed apart cancel: in single precision the order could be another."""
    index = RunIndex()
    for values in RUNS.values:
        index.add(fingerprint(values))
    features, model = workload_features(RUNS.values), load_similarity()
    for position in range(0, len(RUNS.values), 7):
        neighbors = index.nearest(fingerprint(RUNS.values[position]), 3)
        difference = features - features[position]
        both = np.isfinite(difference).sum(axis=1)
        with np.errstate(all="ignore"):
            squares = np.nansum(difference**2 / model.variance, axis=1)
            plain = np.sqrt(squares / model.limits[both])
        plain[both < max(4, np.isfinite(features[position]).sum() / 2)] = inf
        assert neighbors[0].run == position
        assert [neighbor.distance for neighbor in neighbors] == pytest.approx(
            np.sort(plain)[:3], abs=0.02
        )


def test_the_oldest_run_makes_room() -> None:
    """A million jobs: memory stays bounded, and numbers of runs are not reused."""
    index = RunIndex(runs_max=50)
    numbers = [index.add(fingerprint(values)) for values in RUNS.values]
    assert len(index) == 50 and numbers == list(range(len(RUNS.values)))
    assert not index.has(numbers[-51]) and index.has(numbers[-50])
    assert index.nearest(fingerprint(RUNS.values[-1]), 1)[0].run == numbers[-1]


def test_a_run_that_waits_for_a_slow_host_is_of_the_same_workload() -> None:
    """Three tenths slower: by its step and its shares alone it looked like an unknown workload, and
    the slow host was not searched.
    """
    before = training(RUNS)
    values: dict[str, float] = dict(zip(NUMBERS, before.values, strict=True))
    pace = 0.7
    at_work = [name for name in (*STATES, *RESOURCES) if name not in ("wait_ratio", "disk_pressure_ratio")]  # fmt: skip
    slow = {**values, **{name: pace * values[name] for name in at_work}}
    slow |= {"step_seconds": values["step_seconds"] / pace, "wait_ratio": values["wait_ratio"] + (1 - pace) * (1 - values["wait_ratio"])}  # fmt: skip
    index = RunIndex()
    index.add(before)
    (nearest,) = index.nearest(Fingerprint(tuple(slow[name] for name in NUMBERS)), 1)
    assert nearest.distance < 0.2


def test_a_run_of_another_user_must_be_more_alike_and_none_on_other_gpus_is() -> None:
    """Two users' jobs of one framework look alike; on another model of GPU every share is another."""
    tested = training(RUNS)
    values = list(tested.values)
    values[NUMBERS.index("step_seconds")] *= 1.1
    other = replace(tested, values=tuple(values))
    index = RunIndex()
    index.add(tested, "ann")
    (own,), (unknown,), (foreign,) = (
        index.nearest(other, 1, user=user) for user in ("ann", "", "bo")
    )
    assert own.distance == unknown.distance > 0
    assert foreign.distance == pytest.approx(OTHER_USER_FACTOR * own.distance, rel=1e-4)
    assert index.nearest(replace(other, gpu_model="A100"), 1, user="ann") == []
    assert len(index.nearest(replace(other, gpu_model=""), 1, user="ann")) == 1


def test_without_its_model_runs_are_compared_all_the_same(tmp_path: Path) -> None:
    """A file of another version, cut off or planted: no crash, and plain spreads."""
    stored = json.loads(MODEL_FILE.read_text())
    broken = {
        "absent": None, "cut": MODEL_FILE.read_text()[:100], "no object": "[]", "other version": json.dumps({**stored, "fingerprint_version": 99}),
        "short": json.dumps({**stored, "limits": [1.0]}), "NaN": json.dumps({**stored, "variance": [nan] * len(NUMBERS)}),
        "zero": json.dumps({**stored, "variance": [0.0] * len(NUMBERS)}), "text": json.dumps({**stored, "limits": "x"}),
    }  # fmt: skip
    for name, text in broken.items():
        path = tmp_path / f"{name}.json"
        if text is not None:
            path.write_text(text)
        model = load_similarity(path)
        assert (model.variance == 1.0).all() and (model.limits > 0).all(), name


@pytest.mark.slow
def test_a_million_runs_take_the_memory_of_those_that_are_searched() -> None:
    """A test suite submits jobs all day; the oldest make room, and nothing grows."""
    index, values = RunIndex(runs_max=2_000), [fingerprint(value) for value in RUNS.values]
    for position in range(10_000):
        index.add(values[position % len(values)], f"user-{position}")
    before = index.memory_bytes
    for position in range(10_000, 1_000_000):
        index.add(values[position % len(values)], f"user-{position}")
    assert len(index) == 2_000 and index.memory_bytes == before
    assert index.nearest(values[5], 1)[0].run >= 998_000


@pytest.mark.parametrize("odd", [nan, inf, -1.0, 1e300, 0.0])
def test_numbers_that_cannot_be_are_unknown(odd: float) -> None:
    """A driver that reports 4 billion watts: no match, no class, and no exception."""
    tested = Fingerprint((odd,) * len(NUMBERS))
    index = RunIndex()
    index.add(fingerprint(RUNS.values[0]))
    index.add(tested)
    assert all(np.isfinite(neighbor.distance) for neighbor in index.nearest(tested))
    assert odd == 0.0 or index.nearest(tested) == []
    assert odd == 0.0 or classify(tested).name == "unknown"


def test_a_fingerprint_of_another_version_is_rejected_and_ours_comes_back() -> None:
    """Columns with a changed meaning would be compared with the old ones."""
    tested = fingerprint(RUNS.values[0])
    columns = tested.columns()
    assert decode(columns).columns() == pytest.approx(columns, nan_ok=True)
    with pytest.raises(FingerprintVersionError, match=f"version {FINGERPRINT_VERSION + 1}"):
        decode({**columns, "fingerprint_version": FINGERPRINT_VERSION + 1})
    with pytest.raises(FingerprintVersionError):
        decode({})
