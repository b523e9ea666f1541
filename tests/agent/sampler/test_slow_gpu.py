"""A slow GPU, real collectors in real processes: only that GPU gets a sampler of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gangline.agent.collector import Collector
from gangline.agent.sampler.quarantine import QuarantineState
from gangline.contract.block import Block
from tests.agent.gpu_host import GpuHost
from tests.agent.sampler.watched import GPUS, START, Watched, hosts_lanes
from tests.agent.sampler.world import SECOND, SparingSweep, World
from tests.fake_nvml.build import build
from tests.fake_nvml.scenario import gpus
from tests.fake_nvml.sick import blocks
from tests.processes import Process, until


@pytest.mark.slow
def test_a_slow_gpu_is_sampled_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sweep was cut short each second for the others: one in three of its readings was seen."""
    library = str(build(tmp_path / "fake_nvml"))
    host = GpuHost(tmp_path, library, monkeypatch)
    devices = gpus(4)
    blocks(devices[2], 0.02)  # each call; a driver takes about 20 to 50 us
    scenario = host.play(devices)
    host.list_in_proc(devices)
    slow, others = devices[2], [gpu.uuid for gpu in devices if gpu is not devices[2]]
    arguments = [library, str(host.roots.proc), "2"]
    with Process(arguments, tmp_path / "log", "tests.agent.sampler.real_gpus") as process:
        lines = process.records
        until(lambda: lines() and all(lines()[-1]["whole"].values()), "all GPUs read")
        well = len(lines())
        scenario.step(1)
        until(lambda: lines()[-1]["states"] == {slow.address: "SLOW"}, "one that is slow")
        apart = len(lines())
        until(lambda: sum(line["whole"][slow.uuid] for line in lines()[apart:]) > 1, "its rows")
        for line in lines()[well:]:
            assert all(line["whole"][uuid] for uuid in others)
        assert "solo" in lines()[-1]["roles"]
        assert lines()[-1]["takeovers"] == 0  # without killing a process


class Cutting(SparingSweep):
    """Cuts a device short after a sixteenth of a second, unless it is alone."""

    def collect(self) -> Sequence[Block]:
        whole = {name: self._world.devices[name].seconds for name in self.devices}
        self._slow = {name for name, seconds in whole.items() if seconds > 1 / 16}
        asked = [name for name in self.devices if not self.is_spared(name)]
        for name in self._slow if len(asked) > 1 else ():
            self._world.devices[name].seconds = 1 / 16
        try:
            return super().collect()
        finally:
            for name, seconds in whole.items():
                self._world.devices[name].seconds = seconds

    def slow_devices(self) -> frozenset[str]:
        return frozenset(name for name in self._slow if not self.is_spared(name))


def cutting(world: World) -> dict[str, list[Collector]]:
    lanes = hosts_lanes(world)
    lanes["gpu"] = [Cutting(world, "gpu_1s", GPUS, call="nvmlDeviceGetFieldValues")]
    return lanes


def test_it_comes_back_when_its_own_sampler_says_that_it_is_fast_and_not_before() -> None:
    """In a sampler of its own it was fast, and its lane cut it short again, every minute."""
    host = Watched(cutting)
    host.run(10)
    host.world.devices[GPUS[4]].seconds = 0.2  # below the limit of a sampler of its own
    host.run(600)
    assert {state.device: state.state for state in host.samplers.states()} == {
        GPUS[4]: QuarantineState.SLOW
    }
    assert len(host.told("probe.hung")) == 1
    assert not host.told("probe.answered")
    assert host.samplers.takeovers_count == 0
    assert host.on_time("gpu_1s", GPUS[7], START, 610) == 1.0
    assert host.on_time("gpu_1s", GPUS[4], host.world.now_ns - 500 * SECOND, 500) > 0.05
    host.world.devices[GPUS[4]].seconds = 0.0001
    host.run(60)
    assert host.on_time("gpu_1s", GPUS[4], host.world.now_ns - 10 * SECOND, 10) == 1.0
    assert host.alive == 3


def test_slow_ones_leave_room_for_the_trial_of_one_that_hung() -> None:
    """Two slow GPUs had a sampler each, and a third that had hung was never tried again."""
    host = Watched(cutting)
    host.run(10)
    for name in GPUS[1:4]:
        host.world.devices[name].seconds = 0.2
    host.run(5)
    host.world.devices[GPUS[6]].hangs_until_ns = host.world.now_ns + 20 * SECOND
    host.run(100)
    assert host.on_time("gpu_1s", GPUS[6], host.world.now_ns - 10 * SECOND, 10) == 1.0
    slow = [state.device for state in host.samplers.states() if state.state is QuarantineState.SLOW]
    assert len(slow) == 1
    for name in set(GPUS[1:4]) - set(slow):  # cut short in their lane, but still read
        assert host.on_time("gpu_1s", name, host.world.now_ns - 10 * SECOND, 10) == 1.0
