"""The cost of NVML's calls: slow calls take turns, and their values are not invented in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.agent.collectors import nvml_collector
from gangline.contract.signal import Pace
from tests.agent.gpu_host import GpuHost
from tests.fake_nvml.h200 import DRIVER, h200
from tests.fake_nvml.replay import milliseconds_per_second


@pytest.fixture
def host(tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuHost]:
    host = GpuHost(tmp_path, library, monkeypatch)
    yield host
    host.session.close()


def play(host: GpuHost) -> None:
    gpu = h200()
    host.play([gpu], host=f"driver {DRIVER}\n")
    host.list_in_proc([gpu], DRIVER)


def test_nvml_takes_about_a_millisecond_per_second_of_an_h200(host: GpuHost, library: str) -> None:
    """It took 10.5 ms: the energy alone 3 to 5 ms, GPM's five samples 1.3 ms. Recorded costs."""
    milliseconds, gpm_spacing = milliseconds_per_second(host, library, 120)
    assert milliseconds < 1.5 and gpm_spacing == 7  # 1.004 on a busy machine, 0.9 on an idle one


def test_what_is_slow_takes_turns_and_the_rest_comes_each_second(host: GpuHost) -> None:
    """Margin and settings keep their last value meanwhile; energy would stop, and then jump."""
    play(host)
    lane = host.second()
    rows = [next(iter(host.read(lane).values())) for _ in range(200)]
    energy = [index for index, row in enumerate(rows) if row["energy_joules"] is not None]
    assert energy[:6] == [0, 1, 2, 3, 4, 5]
    assert 1 <= len(energy[6:]) <= 5, "on a busy machine calls take longer, and come less often"
    for row in rows:
        assert row["temperature_margin_celsius"] == 47.0
        assert (row["power_watts"], row["sm_clock_hertz"]) == (77.556, 345e6)
        assert row["violation_board_limit_nanoseconds"] == 0 and row["calls_failed_errors"] == 0
    assert lane._sweep
    costs = lane._sweep.costs(h200().address)
    assert costs["field 83"] >= 3000 and costs["temperature_margin_celsius"] >= 900
    assert costs["field 186"] < costs["field 83"]


def test_a_call_that_becomes_fast_comes_each_second_again(host: GpuHost) -> None:
    """Costs are measured while the agent runs: another driver, another GPU state, other times."""
    gpu = h200()
    gpu.lines = [line for line in gpu.lines if not line.startswith("cost nvmlDeviceGetMargin")]
    gpu.lines.append("block nvmlDeviceGetMarginTemperature seconds 0.001")
    gpu.values["margin"] = (47, 41)
    scenario = host.play([gpu], host=f"driver {DRIVER}\n")
    lane = host.second()
    host.turn(lane, 20)
    assert lane._sweep and lane._sweep.costs(gpu.address)["temperature_margin_celsius"] >= 1000
    scenario.step(1)
    margins = [host.read(lane)[gpu.uuid]["temperature_margin_celsius"] for _ in range(900)]
    assert margins[0] == 47.0 and margins[-1] == 41.0


def test_fast_gpus_are_read_completely(host: GpuHost, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = h200()
    gpu.lines = []
    host.play([gpu], host=f"driver {DRIVER}\n")
    lane = host.second()
    rows = [host.read(lane)[gpu.uuid] for _ in range(30)]
    assert all(row["energy_joules"] is not None for row in rows)
    assert set(nvml_collector.SLOW_SECONDS) == {Pace.SECOND, Pace.TEN_SECONDS, Pace.MINUTE}
