"""The search for earlier runs against the plainest way to do the same, and its odd inputs."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest

from gangline.fingerprints.fingerprint import (
    FINGERPRINT_VERSION,
    NUMBERS,
    Fingerprint,
    FingerprintVersionError,
    decode,
    features_of,
)
from gangline.fingerprints.generated import generate
from gangline.fingerprints.similarity import RunIndex
from gangline.fingerprints.workload_class import classify

RUNS = generate(3, 60, 3)


def fingerprint(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Fingerprint:
    return Fingerprint(tuple(values.tolist()), gpus=8, hosts=1, gpu_model="H100")


def test_the_product_of_matrices_finds_what_a_plain_pass_finds() -> None:
    """Terms of a square that are summed apart cancel: in single precision the order could be another."""
    index = RunIndex()
    for values in RUNS.values:
        index.add(fingerprint(values))
    features = features_of(RUNS.values)
    for at in range(0, len(RUNS.values), 7):
        found = index.nearest(fingerprint(RUNS.values[at]), 3)
        difference = features - features[at]
        both = np.isfinite(difference).sum(axis=1)
        with np.errstate(all="ignore"):
            plain = np.sqrt(np.nansum(difference**2, axis=1) / both)
        plain[both < max(4, np.isfinite(features[at]).sum() / 2)] = inf
        assert found[0].run == at
        assert [one.distance for one in found] == pytest.approx(np.sort(plain)[:3], abs=0.02)


def test_the_oldest_run_makes_room() -> None:
    """A million jobs: memory stays as it is, and numbers of runs are not given twice."""
    index = RunIndex(runs_max=50)
    numbers = [index.add(fingerprint(values)) for values in RUNS.values]
    assert len(index) == 50 and numbers == list(range(len(RUNS.values)))
    assert not index.has(numbers[-51]) and index.has(numbers[-50])
    assert index.nearest(fingerprint(RUNS.values[-1]), 1)[0].run == numbers[-1]


@pytest.mark.parametrize("odd", [nan, inf, -1.0, 1e300, 0.0])
def test_numbers_that_cannot_be_are_unknown(odd: float) -> None:
    """A driver that reports 4 billion watts: no match, no class, and no exception."""
    one = Fingerprint((odd,) * len(NUMBERS))
    index = RunIndex()
    index.add(fingerprint(RUNS.values[0]))
    index.add(one)
    assert all(np.isfinite(found.distance) for found in index.nearest(one))
    assert odd == 0.0 or index.nearest(one) == []
    assert odd == 0.0 or classify(one).name == "unknown"


def test_a_fingerprint_of_another_version_is_rejected_and_ours_comes_back() -> None:
    """Columns whose meaning changed would be compared as if they had not."""
    one = fingerprint(RUNS.values[0])
    columns = one.columns()
    assert decode(columns).columns() == pytest.approx(columns, nan_ok=True)
    with pytest.raises(FingerprintVersionError, match=f"version {FINGERPRINT_VERSION + 1}"):
        decode({**columns, "fingerprint_version": FINGERPRINT_VERSION + 1})
    with pytest.raises(FingerprintVersionError):
        decode({})
