"""A slice of `make soak-kubernetes`."""

from __future__ import annotations

import pytest

from tests.kubernetes_cluster import MISSING, has_kubernetes
from tests.soak_kubernetes import soak


@pytest.mark.slow
@pytest.mark.skipif(not has_kubernetes(), reason=MISSING)
def test_a_slice_of_the_soak() -> None:
    """Killed at random calls, an executor neither leaves a mark nor evicts half a gang."""
    report = soak(6, 3, show=False)
    assert report.violations == [] and report.kills >= 6
