"""docs/quality.md, real recordings: nothing is found on what is well, and what is wrong is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.quality import feeding
from bench.quality.captures import CAPTURES, DATA, Told, told_of
from gangline.aggregator.verdicts import State

pytestmark = pytest.mark.skipif(
    not DATA.exists(), reason="the recordings of ../shared/data are not here"
)
#: Those that take less than a second; `python -m bench.quality --only captures` takes all.
SHORT = ("kernel_log/", "nvidia_smi/", "rdma/sys")


@pytest.fixture(scope="module")
def told() -> dict[str, Told]:
    """What came of the short ones, by path."""
    feeding.STILL_SECONDS, before = 20, feeding.STILL_SECONDS
    try:
        return {one.path: told_of(one) for one in CAPTURES if one.path.startswith(SHORT)}
    finally:
        feeding.STILL_SECONDS = before


def test_no_false_finding_on_real_recordings(told: dict[str, Told]) -> None:
    """Containers' links that come up, counters that are full, an idle GPU: none of it is a fault."""
    assert len(told) == 4
    assert {path: one.false for path, one in told.items() if one.false} == {}
    assert all(one.bed.readings or one.read > 40 for one in told.values())


def test_a_gsp_that_hangs_is_found_and_would_be_false_elsewhere(told: dict[str, Told]) -> None:
    """A table of zeros that could show nothing else."""
    one = told["kernel_log/dmesg-with-xid-119.log"]
    assert {signal for signal, _ in one.true} == {"gpu.xid", "gpu.driver_message"}
    assert State.UNHEALTHY in one.bed.states
    assert len(replace(one, capture=replace(one.capture, true={})).false) > len(one.true)
