"""A short slice of `make soak-gpu`: the real agent, the fake NVML, one GPU of eight that hangs for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak_gpu import soak


@pytest.mark.slow
def test_a_gpu_that_hangs_for_seconds_costs_the_other_seven_no_more_than_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hour with a fake clock and fake devices, repeated with NVML's calls and real processes."""
    monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
    result = soak(tmp_path, seconds=10, hang_seconds=3.0, seed=1, quiet=True)
    assert result.on_time[result.sick] < 0.8  # it did hang
    # One of six seconds may be missing, and those of which a busy machine has no host sample.
    gpus = [on for name, on in result.on_time.items() if name not in (result.sick, "host")]
    assert min(gpus) >= result.on_time["host"] - 0.2, result.log
    assert result.on_time[result.sick] < min(gpus)
    assert 0.0 < result.named_seconds <= 3.0
    assert "did not return for" in result.log and result.call in result.log
    assert 4 <= result.processes <= 7
