"""A slice of `make soak-executor`."""

from __future__ import annotations

import pytest

from tests.slurm_cluster import MISSING, has_slurm
from tests.soak_executor import soak


@pytest.mark.slow
@pytest.mark.skipif(not has_slurm(), reason=MISSING)
def test_a_slice_of_the_soak() -> None:
    """Killed at random, an executor neither loses a job nor leaves a mark."""
    report = soak(6, 3, show=False)
    assert report.violations == [] and report.executor_kills >= 6
