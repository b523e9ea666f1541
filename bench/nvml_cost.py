"""NVML's time per second and GPU on an H200, by its calls' recorded costs, against every call at
its collector's pace.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from bench.measure import Result
from gangline.agent.collectors import gpu_fast, nvml_collector
from tests.agent.gpu_host import GpuHost
from tests.fake_nvml.build import build
from tests.fake_nvml.replay import milliseconds_per_second

SECONDS = 300


def run(seed: int) -> list[Result]:
    """Return the results. *seed* is ignored: the costs are recorded."""
    paced, spacing = _measure()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            nvml_collector, "SLOW_SECONDS", dict.fromkeys(nvml_collector.SLOW_SECONDS, 0.0)
        )
        patch.setattr(gpu_fast, "GPM_SECONDS", 0.0)
        unpaced, _ = _measure()
    notes = f"GPM at each {spacing} of 10 samples a second; recorded: driver 580.159.04, tests/fake_nvml/h200.py"
    return [
        Result(
            "NVML on an H200", paced, "ms/s", "each call at its collector's pace", unpaced, notes
        )
    ]


def _measure() -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        library = str(build(Path(folder) / "library"))
        (Path(folder) / "host").mkdir()
        host = GpuHost(Path(folder) / "host", library, patch)
        try:
            return milliseconds_per_second(host, library, SECONDS)
        finally:
            host.session.close()
