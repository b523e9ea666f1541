"""All collectors of one host's GPUs in turn, as in a sampler: one library for all of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gangline.agent.collector import (
    Collector,
    CollectOutcome,
    CollectResult,
    run_collector,
)
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.gpu import GpuSecond
from gangline.agent.collectors.gpu_fast import GpuFast
from gangline.agent.collectors.nvml_events import REGISTERED_TYPES
from gangline.agent.collectors.nvml_session import REOPEN_SECONDS
from gangline.agent.sampler.worker import AllExcept
from gangline.contract.signal import PERIOD_SECONDS
from gangline.ext import nvml, nvml_gpm, nvml_parts, place
from tests.agent.fakes import read
from tests.agent.gpu_host import SECOND, GpuHost
from tests.agent.test_gpu_session import NAMES
from tests.fake_nvml.parts_scenario import (
    host_lines,
    mig_device,
    process,
    with_c2c,
    with_fabric,
    with_gpm,
    with_links,
    with_mig,
)
from tests.fake_nvml.scenario import Gpu, gpus

#: Only called if a driver lacks their replacement, or only NVML knows the places of GPUs.
NOT_CALLED = {
    "nvmlInit_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlErrorString",
}


def everything(count: int = 2) -> list[Gpu]:
    devices = [
        with_gpm(with_fabric(with_mig(with_c2c(with_links(gpu, 2), 1)))) for gpu in gpus(count)
    ]
    for i, gpu in enumerate(devices):
        gpu.values["events_supported"] = REGISTERED_TYPES
        gpu.lines.append(process(4000 + i))
    return devices + [mig_device(i, 1) for i in range(count)]


class Sampler:
    """The collectors of a host's GPUs and their turns, one after another, like in a sampler."""

    def __init__(self, host: GpuHost, library: str) -> None:
        self.host = host
        self.collectors: dict[str, Collector] = {n: COLLECTORS[n](host.roots) for n in NAMES}
        self.collectors["gpu_1s"] = GpuSecond(host.roots, host.clock)
        self.library = ctypes.CDLL(library)
        for collector in self.collectors.values():
            collector.start(host.teller)

    def tick(self, *, paced: bool = False) -> dict[str, CollectResult]:
        """Advance a second with its samples, and run every collector; *paced*: only due collectors."""
        fast = self.collectors["gpu_fast_1s"]
        assert isinstance(fast, GpuFast)
        self.host.session.poll_events()
        for _ in range(10):
            self.host.clock.now_ns += SECOND // 10
            if fast.samples:
                fast.samples.ring.sample(self.host.clock.now_ns)
        second = self.host.clock.now_ns // SECOND
        due = [
            collector
            for collector in self.collectors.values()
            if not paced or second % PERIOD_SECONDS[collector.pace] == 0
        ]
        return {collector.name: run_collector(collector, self.host.clock) for collector in due}

    def release(self) -> None:
        self.host.session.close()

    def open_things(self) -> tuple[int, int, int]:
        """Return the open resources: users of NVML, GPM samples, event sets."""
        samples, sets = self.library.fake_nvml_gpm_samples(), self.library.fake_nvml_event_sets()
        return int(self.library.fake_nvml_users()), int(samples), int(sets)


@pytest.fixture
def host(tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    return GpuHost(tmp_path, library, monkeypatch)


@pytest.fixture
def sampler(host: GpuHost, library: str) -> Iterator[Sampler]:
    created = Sampler(host, library)
    yield created
    created.release()
    assert created.open_things() == (0, 0, 0)


def play(host: GpuHost, devices: list[Gpu]) -> Callable[[int], None]:
    """Play *devices* on the host; the agent may see all MIG instances."""
    host.list_in_proc([gpu for gpu in devices if gpu.uuid.startswith("GPU-")])
    (host.roots.proc / "self").mkdir(exist_ok=True)
    (host.roots.proc / "self/status").write_text("CapEff:\t000001ffffffffff\n")
    return host.play(devices, host=host_lines(devices)).step


def test_every_collector_reads(sampler: Sampler, host: GpuHost) -> None:
    """Ten collectors of one library, which is opened once."""
    play(host, everything())
    sampler.tick()
    assert sampler.open_things() == (1, 8, 2)  # two samples a GPU, two more a MIG device
    sampler.tick()
    turns = sampler.tick()
    assert {turn.collector: turn.message for turn in turns.values() if turn.message} == {}
    assert [name for name, turn in turns.items() if not turn.blocks] == []
    assert all(turn.outcome is CollectOutcome.OK for turn in turns.values())


def test_a_gpu_comes_back_while_all_are_at_work(sampler: Sampler, host: GpuHost) -> None:
    """NVML finds a lost GPU again only after all users closed it: one collector prevented this."""
    devices = everything()
    devices[1].lines.append("error * 0 15")
    step = play(host, devices)
    sampler.tick()
    step(1)
    lost = read(sampler.tick()["gpu_1s"].blocks)[devices[1].uuid]
    assert lost["lost_state"] == 1
    play(host, everything())(1)  # healthy; a new first user of NVML sees it
    for _ in range(REOPEN_SECONDS - 1):
        assert read(sampler.tick()["gpu_1s"].blocks)[devices[1].uuid]["lost_state"] == 1
    sampler.tick()
    back = read(sampler.tick()["gpu_1s"].blocks)
    assert {key: row["lost_state"] for key, row in back.items()} == {
        devices[0].uuid: 0,
        devices[1].uuid: 0,
    }
    assert [row["counter_epoch_count"] for row in back.values()] == [0, 1]
    assert sampler.open_things() == (1, 8, 2)


def test_a_driver_that_was_loaded_again_is_one_epoch(sampler: Sampler, host: GpuHost) -> None:
    """Several lanes saw the unloaded driver in the same second: the counters restarted once."""
    devices = everything()
    for gpu in devices:
        gpu.lines.append("error * 0 1")
    lines = f"{host_lines(devices)}\nerror nvmlDeviceGetCount_v2 0 1"
    host.list_in_proc(devices[:2])
    step = host.play(devices, host=lines).step
    sampler.tick()
    play(host, everything())  # read after all have closed NVML
    step(1)
    turns = sampler.tick()
    gone = [turn for turn in turns.values() if "NVML lost the driver" in turn.message]
    assert [turn.collector for turn in gone] == ["gpu_1s"] and gone[0].blocks == ()
    for _ in range(4):
        turns = sampler.tick()
    rows = read(turns["gpu_1s"].blocks)
    assert [row["counter_epoch_count"] for row in rows.values()] == [1, 1]
    assert turns["mig_10s"].outcome is CollectOutcome.OK


def test_all_let_go_when_asked_and_nobody_opens_by_itself(sampler: Sampler, host: GpuHost) -> None:
    """`gangline release`: a single open handle defeats the reset."""
    play(host, everything())
    sampler.tick()
    sampler.release()
    assert sampler.open_things() == (0, 0, 0)
    host.session.poll_events()
    assert sampler.open_things() == (0, 0, 0)
    sampler.tick()
    assert sampler.open_things() == (1, 8, 2)


@pytest.mark.parametrize("has_fields", [True, False])
def test_a_full_gpu_is_far_below_cap(has_fields: bool, sampler: Sampler, host: GpuHost) -> None:
    """MIG instances, NVLinks, sixty processes, no fields: a lower cap would skip readings."""
    devices = [with_gpm(with_fabric(with_mig(with_links(gpu, 18)))) for gpu in gpus(2)]
    for gpu in devices:
        gpu.values["events_supported"] = REGISTERED_TYPES
        gpu.lines += [process(4000 + number) for number in range(60)]
        if not has_fields:
            gpu.fields.clear()
            gpu.lines = [line for line in gpu.lines if not line.startswith("scoped")]
    play(host, devices + [mig_device(i, instance) for i in range(2) for instance in range(7)])
    calls = [0]
    for _ in range(61):
        sampler.tick(paced=True)
        calls.append(nvml.account(devices[1].address).calls)
    seconds = [after - before for before, after in pairwise(calls)]
    assert (
        40 < min(seconds[1:]) < max(seconds) < nvml.CALLS_AT_ONCE_MAX * 0.6
    )  # the rest is for the first user
    assert sum(seconds[-60:]) / 60 < nvml.CALLS_PER_SECOND_MAX * 0.75


def test_every_call_is_in_the_slot_with_its_gpu(sampler: Sampler, host: GpuHost) -> None:
    """One call of a hundred bypassed the slot: another GPU was blamed for its hang."""
    called, misplaced = sampler.library.fake_nvml_calls, sampler.library.fake_nvml_misplaced
    called.argtypes, called.restype = [ctypes.c_char_p], ctypes.c_ulong
    misplaced.restype = ctypes.c_char_p
    symbols = {*nvml.SYMBOLS, *nvml_parts.SYMBOLS, *nvml_gpm.SYMBOLS, nvml_gpm.MIG_SYMBOL}
    before = {name: called(name.encode()) for name in symbols - NOT_CALLED}
    bare = everything()
    for gpu in bare:  # each reading by its own call
        gpu.fields.clear()
        gpu.lines = [line for line in gpu.lines if not line.startswith("scoped")]
        gpu.lines += [f"link_state {link} 1" for link in range(2)]
    sampler.library.fake_nvml_watch(ctypes.c_void_p(place.POINTER))
    for devices in (everything(), bare):
        play(host, devices)
        host.session.reopen(driver_loaded=True)
        for _ in range(3):
            sampler.tick()
    sampler.release()
    assert misplaced() == b""
    sampler.tick()
    sampler.library.nvmlSystemGetDriverVersion(ctypes.create_string_buffer(80), 80)
    assert misplaced().startswith(b"nvmlSystemGetDriverVersion of '' is called, the place is ")
    sampler.library.fake_nvml_watch(None)
    assert {name for name in before if called(name.encode()) == before[name]} == set()


def test_no_one_that_is_spared_is_asked_by_anybody(sampler: Sampler, host: GpuHost) -> None:
    """The faulty GPU killed each sampler in turn: one of ten collectors still called it."""
    devices = everything(3)
    devices[1].lines.append("block * crash -")
    play(host, devices)
    for collector in sampler.collectors.values():
        assert collector.can_exclude
        collector.exclude(frozenset({devices[1].address, "mlx5_0/1"}))
    turns = [sampler.tick() for _ in range(12)][-1]
    assert nvml.account(devices[1].address).calls == 0
    assert all(turn.outcome is CollectOutcome.OK for turn in turns.values())


def test_a_solo_sampler_asks_one_and_no_other(sampler: Sampler, host: GpuHost) -> None:
    """It tests whether one GPU answers again, independent of the others."""
    devices = everything(3)
    for gpu in devices[:2]:
        gpu.lines.append("block * crash -")
    play(host, devices)
    spared = AllExcept.of(devices[2].address, {devices[0].address})
    for collector in sampler.collectors.values():
        assert collector.can_exclude
        collector.exclude(spared)
    turns = [sampler.tick() for _ in range(3)][-1]
    assert turns["gpu_1s"].outcome is CollectOutcome.OK
    assert [nvml.account(gpu.address).calls for gpu in devices[:2]] == [0, 0]
    assert nvml.account(devices[2].address).calls > 100
