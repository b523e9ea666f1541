"""All collectors of one host's GPUs at once, each in its thread, as the daemon has them: one library for all of them."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import pytest

from gangline.agent.clock import SystemClock
from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.gpu import REOPEN_SECONDS, GpuSecond
from gangline.agent.collectors.gpu_fabric import GpuFabric
from gangline.agent.collectors.gpu_fast import GpuFast
from gangline.agent.collectors.nvml_events import WANTED, NvmlEvents
from gangline.agent.hardware import nvml_session
from gangline.agent.listening import Listening, Teller
from gangline.agent.probe import Probe
from gangline.agent.turn import Collector, Outcome, Turn, take_turn
from tests.agent.gpu_host import SECOND, GpuHost, read
from tests.fake_nvml.build import build
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

GUARD_SECONDS = 60.0
NAMES = [name for name in COLLECTORS if name.startswith(("gpu", "nv", "mig", "c2c"))]
NAMES.remove("nvme_10s")
NAMES.remove("nvme_60s")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(tmp_path_factory.mktemp("fake_nvml")))


def everything(count: int = 2) -> list[Gpu]:
    """Return GPUs that have all parts, and a MIG device of each."""
    devices = [
        with_gpm(with_fabric(with_mig(with_c2c(with_links(gpu, 2), 1)))) for gpu in gpus(count)
    ]
    for i, gpu in enumerate(devices):
        gpu.values["events_supported"] = WANTED
        gpu.lines.append(process(4000 + i))
    return devices + [mig_device(i, 1) for i in range(count)]


@runtime_checkable
class Releasing(Protocol):
    """A collector that can let go of the GPUs."""

    def release(self) -> bool: ...


class Agent:
    """The collectors of a host's GPUs, and their turns, all at once."""

    def __init__(self, host: GpuHost, library: str) -> None:
        self.host = host
        self.collectors: dict[str, Collector] = {n: COLLECTORS[n](host.roots) for n in NAMES}
        self.collectors["gpu_1s"] = GpuSecond(host.roots, host.clock)
        self.probes = {
            name: Probe(c, host.clock, deadline_ns=3 * SECOND)
            for name, c in self.collectors.items()
            if c.enters_driver
        }
        self.library = ctypes.CDLL(library)

    def listen(self) -> None:
        """Threads of their own go by the machine's clock: a tick takes them no second."""
        threads = Teller(SystemClock(), self.host, lambda: None)
        for collector in self.collectors.values():
            if isinstance(collector, Listening):
                collector.listen(self.host.teller if collector.enters_driver else threads)

    def tick(self) -> dict[str, Turn]:
        """A second passes, and every collector has its turn; those that hang are left behind."""
        self.host.clock.now_ns += SECOND
        begun = [p for p in self.probes.values() if p.begin(self.host.clock.now_ns)]
        turns = {
            name: take_turn(collector, self.host.clock)
            for name, collector in self.collectors.items()
            if name not in self.probes
        }
        for probe in begun:
            assert probe.wait(GUARD_SECONDS)
            turn = probe.take(self.host.clock.now_ns)
            assert turn is not None
            turns[turn.collector] = turn
        return turns

    def close(self) -> None:
        """End the threads, and let go."""
        for collector in self.collectors.values():
            if isinstance(collector, Listening):
                collector.close()
        self.release()

    def release(self) -> None:
        """Have each let go; those that sample by themselves do it within the moment."""
        for collector in self.collectors.values():
            assert isinstance(collector, Releasing)
            collector.release()

    def users(self) -> int:
        return int(self.library.fake_nvml_users())

    def open_things(self) -> tuple[int, int, int]:
        """Return what is open: users of NVML, GPM samples, event sets."""
        samples, sets = self.library.fake_nvml_gpm_samples(), self.library.fake_nvml_event_sets()
        return self.users(), int(samples), int(sets)


@pytest.fixture
def host(tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> GpuHost:
    return GpuHost(tmp_path, library, monkeypatch)


@pytest.fixture
def agent(host: GpuHost, library: str) -> Iterator[Agent]:
    made = Agent(host, library)
    yield made
    made.close()
    until(lambda: made.open_things() == (0, 0, 0))


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, and fail if it does not come."""
    guard = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < guard
        os.sched_yield()


def start(agent: Agent) -> None:
    """Listen, and take ticks until all have the library open."""
    agent.listen()
    until(lambda: agent.users() == 2)  # the threads of the fast lane and of the events
    agent.tick()
    assert agent.users() == len(NAMES)


def play(host: GpuHost, devices: list[Gpu]) -> Callable[[int], None]:
    """Make the host that of *devices*; the agent may see all MIG instances."""
    host.list_in_proc([gpu for gpu in devices if gpu.uuid.startswith("GPU-")])
    (host.roots.proc / "self").mkdir(exist_ok=True)
    (host.roots.proc / "self/status").write_text("CapEff:\t000001ffffffffff\n")
    return host.play(devices, host=host_lines(devices)).step


def test_every_collector_reads(agent: Agent, host: GpuHost) -> None:
    """Eleven users of one library, each in its own thread."""
    play(host, everything())
    start(agent)
    until(lambda: bool(agent.tick()["gpu_fast_1s"].blocks))
    turns = agent.tick()
    assert {turn.collector: turn.words for turn in turns.values() if turn.words} == {}
    assert set(turns) == set(NAMES)


def test_a_gpu_comes_back_while_all_are_at_work(agent: Agent, host: GpuHost) -> None:
    """NVML finds again what it lost only once its last user has closed it; ten others held it open, and each that
    closed had opened again before the last one closed."""
    devices = everything()
    devices[1].lines.append("error * 0 15")
    step = play(host, devices)
    start(agent)
    step(1)
    lost = read(agent.tick()["gpu_1s"].blocks)[devices[1].uuid]
    assert lost["lost_state"] == 1
    play(host, everything())(1)  # well; whoever opens NVML anew when nobody has it open sees it
    for _ in range(REOPEN_SECONDS - 1):
        assert read(agent.tick()["gpu_1s"].blocks)[devices[1].uuid]["lost_state"] == 1
    back = read(agent.tick()["gpu_1s"].blocks)
    assert {key: row["lost_state"] for key, row in back.items()} == {
        devices[0].uuid: 0,
        devices[1].uuid: 0,
    }
    assert [row["counter_epoch_count"] for row in back.values()] == [0, 1]
    agent.tick()
    until(lambda: agent.users() == len(NAMES))


def test_a_driver_that_was_loaded_again_is_one_epoch(agent: Agent, host: GpuHost) -> None:
    """Several lanes see in the same second that the driver is gone: the counters began anew once."""
    devices = everything()
    for gpu in devices:
        gpu.lines.append("error * 0 1")
    lines = f"{host_lines(devices)}\nerror nvmlDeviceGetCount_v2 0 1"
    host.list_in_proc(devices[:2])
    host.play(devices, host=lines)
    start(agent)
    play(host, everything())(1)  # what was read before is gone; whoever opens anew reads this
    turns = agent.tick()
    gone = [turn for turn in turns.values() if "NVML lost the driver" in turn.words]
    assert gone and all(turn.blocks == () for turn in gone)
    for _ in range(4):
        turns = agent.tick()
    rows = read(turns["gpu_1s"].blocks)
    assert [row["counter_epoch_count"] for row in rows.values()] == [1, 1]
    assert turns["mig_10s"].outcome is Outcome.OK


def test_all_let_go_when_asked_and_nobody_opens_by_itself(agent: Agent, host: GpuHost) -> None:
    """`gangline release`: one handle that is left open defeats the reset."""
    play(host, everything())
    start(agent)
    agent.release()
    until(lambda: agent.open_things() == (0, 0, 0))
    fast, events = agent.collectors["gpu_fast_1s"], agent.collectors["nvml_events_10s"]
    assert isinstance(fast, GpuFast) and isinstance(events, NvmlEvents)
    until(
        lambda: fast.release() and events.release()
    )  # each says so once its thread has left its seat
    assert agent.users() == 0
    agent.tick()
    until(lambda: agent.users() == len(NAMES))


@pytest.mark.parametrize("name", ["gpu_fast_1s", "nvml_events_10s"])
def test_a_thread_that_hangs_is_never_doubled(
    name: str, agent: Agent, host: GpuHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener was started anew at each reopening, and each hung behind the one before: a thread a minute."""
    monkeypatch.setattr(nvml_session, "LEAVING_SECONDS_MAX", 0.0)
    call = {"gpu_fast_1s": "nvmlGpmSampleGet", "nvml_events_10s": "nvmlDeviceRegisterEvents"}[name]
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    devices = everything()
    devices[0].lines.append(f"block {call} fifo {fifo}")
    play(host, devices)
    agent.listen()
    held = os.open(fifo, os.O_WRONLY)
    agent.tick()
    before = threading.active_count()
    for _ in range(5):
        agent.release()
        turns = agent.tick()
        assert turns["gpu_1s"].outcome is Outcome.OK
    assert threading.active_count() == before
    began = SystemClock().boottime_ns()
    collector = agent.collectors[name]
    assert isinstance(collector, Listening)
    collector.close()
    assert SystemClock().boottime_ns() - began < 2 * SECOND
    os.close(held)


def test_a_lane_that_hangs_does_not_keep_the_others_from_opening(
    agent: Agent, host: GpuHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sick GPU: its lane never comes back from the driver, and all others let go and open again without it."""
    monkeypatch.setattr(nvml_session, "LEAVING_SECONDS_MAX", 0.0)
    gate = tmp_path / "gate"
    devices = everything()
    devices[1].lines.append(f"block nvmlDeviceGetGpuFabricInfoV file {gate}")
    play(host, devices)
    stuck = agent.probes.pop("gpu_fabric_1s")
    fabric = agent.collectors.pop("gpu_fabric_1s")
    assert isinstance(fabric, GpuFabric)
    agent.listen()
    assert stuck.begin(0)
    until(lambda: fabric.whereabouts().endswith("nvmlDeviceGetGpuFabricInfoV"))
    agent.tick()
    second = agent.collectors["gpu_1s"]
    assert isinstance(second, GpuSecond)
    second._session.open_anew(second._seat, driver_loaded=False)
    turns = agent.tick()
    assert {turn.words for turn in turns.values()} == {""}
    until(lambda: agent.users() == len(NAMES))
    gate.touch()
    assert stuck._returned.wait(GUARD_SECONDS)
    assert fabric.release()
