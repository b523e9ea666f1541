"""The listener to NVML's events, over a library that delivers them when a step says so."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from gangline.agent.clock import SystemClock
from gangline.agent.collectors.nvml_events import STUCK_NS, WANTED, NvmlEvents, _Listener
from gangline.agent.hardware.roots import Roots
from gangline.agent.listening import Listening, Teller
from gangline.agent.turn import Outcome, Turn, take_turn
from gangline.agent.xid_witness import XidWitness
from gangline.fingerprints.catalogue import BY_ID, BY_NAME
from gangline.fingerprints.wire.telemetry_pb2 import HealthEvent
from tests.fake_nvml.build import build
from tests.fake_nvml.parts_scenario import host_lines, with_mig
from tests.fake_nvml.scenario import Gpu, Scenario, gpus

#: A wait that is longer than this is a failed test; nothing is timed by it.
GUARD_SECONDS = 30.0

Play = Callable[[Iterable[Gpu]], Scenario]


class Told:
    """Takes events; a test waits for them by condition. Its clock can be put forward."""

    def __init__(self) -> None:
        self.events: list[HealthEvent] = []
        self.ahead_ns = 0
        self.changed = threading.Condition()
        self.teller = Teller(self, self, lambda: None)

    def boottime_ns(self) -> int:
        return SystemClock().boottime_ns() + self.ahead_ns

    def wall_ns(self) -> int:
        return SystemClock().wall_ns() + self.ahead_ns

    def put(self, event: HealthEvent) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def wait(self, count: int) -> list[HealthEvent]:
        """Return the events once there are *count*."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.events) >= count, GUARD_SECONDS)
        return self.events


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(tmp_path_factory.mktemp("fake_nvml")))


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Return a function that writes a scenario and makes the library play it."""

    def write(devices: Iterable[Gpu]) -> Scenario:
        monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
        listed = list(devices)
        return Scenario(tmp_path / "scenario", listed, host=host_lines(listed))

    return write


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def witness() -> XidWitness:
    return XidWitness()


@pytest.fixture
def events(tmp_path: Path, library: str, witness: XidWitness) -> Iterator[NvmlEvents]:
    collector = NvmlEvents(Roots(tmp_path, tmp_path, library, dev=tmp_path), witness)
    yield collector
    listener = collector._listener
    collector.close()
    if listener:  # the library reads the next scenario only when its last user is gone
        listener.thread.join(GUARD_SECONDS)


def with_events(devices: Iterable[Gpu], supported: int = WANTED) -> list[Gpu]:
    listed = list(devices)
    for gpu in listed:
        gpu.values["events_supported"] = supported
    return listed


def turn(collector: NvmlEvents) -> Turn:
    return take_turn(collector, SystemClock())


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, and fail if it does not come."""
    guard = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < guard
        os.sched_yield()


def values(said: Turn) -> dict[str, float | int | None]:
    (block,) = said.blocks
    return {BY_ID[i].column: value for i, value in block.values(0)}


@pytest.fixture
def waits(library: str) -> Callable[[], int]:
    counted = ctypes.CDLL(library).fake_nvml_calls
    return lambda: int(counted(b"nvmlEventSetWait_v2"))


def start(events: NvmlEvents, told: Told, waits: Callable[[], int]) -> None:
    """Listen, and return once the thread waits in NVML."""
    before = waits()
    events.listen(told.teller)
    until(lambda: waits() > before)


def test_an_xid_is_told_with_its_gpu(
    events: NvmlEvents, told: Told, play: Play, waits: Callable[[], int]
) -> None:
    """In a container without the kernel log, NVML is the only one that says XID 79."""
    devices = with_events(gpus(3))
    devices[2].lines.append("event 1 8 79")
    scenario = play(devices)
    assert isinstance(events, Listening)
    start(events, told, waits)
    scenario.step(1)
    (event,) = told.wait(1)
    assert (event.name, event.code, event.device) == ("gpu.xid", 79, devices[2].uuid)
    assert event.attributes == {"source": "nvml", "pci_address": devices[2].address}
    assert (event.device_kind, event.count, event.last_boottime_ns) == ("gpu", 1, 0)
    assert abs(event.wall_time_ns - told.wall_ns()) < GUARD_SECONDS * 1e9
    assert {event.name, "gpu.driver_event"} <= set(BY_NAME)
    said = turn(events)
    assert said.outcome is Outcome.OK
    assert values(said) == {
        "received_events": 1,
        "told_by_kernel_log_events": 0,
        "failed_waits_errors": 0,
    }


def test_an_xid_that_the_kernel_log_shows_is_told_from_there(
    events: NvmlEvents, told: Told, witness: XidWitness, play: Play, waits: Callable[[], int]
) -> None:
    """Both witnesses spoke, and one failure counted as two."""
    devices = with_events(gpus(2))
    devices[0].lines += ["event 1 8 94", "event 1 8 95"]
    scenario = play(devices)
    witness.reads_the_kernel_log = True
    start(events, told, waits)
    scenario.step(1)
    until(lambda: events.received == 2)
    witness.saw(devices[0].address, 94, told.boottime_ns())
    assert told.events == []  # held back
    told.ahead_ns = 3_000_000_000
    (event,) = told.wait(1)
    assert event.code == 95
    assert events.told_by_kernel_log == 1


def test_other_events_of_the_driver(
    events: NvmlEvents, told: Told, play: Play, waits: Callable[[], int]
) -> None:
    """What has no XID: a MIG change, a recovery action. A change of clock is none of our business."""
    devices = with_events(gpus(1), 0xFFFF)
    devices[0].lines += ["event 1 256 0", "event 1 16 0", "event 1 32768 0"]
    scenario = play(devices)
    start(events, told, waits)
    scenario.step(1)
    change, action = told.wait(2)
    assert (change.name, change.code) == ("gpu.driver_event", 0x100)
    assert change.message == "NVML event: MIG configuration changed"
    assert action.code == 0x8000
    assert "MIG" in told.teller.inventory_wanted()
    assert events.received == 2


def test_a_storm_is_counted(
    events: NvmlEvents, told: Told, play: Play, waits: Callable[[], int]
) -> None:
    """A hundred single bit errors a second are one event, and one more with the rest."""
    devices = with_events(gpus(1))
    devices[0].lines += ["event 1 1 0"] * 100
    scenario = play(devices)
    start(events, told, waits)
    scenario.step(1)
    until(lambda: events.received == 100)
    told.ahead_ns = 11_000_000_000
    first, rest = told.wait(2)
    assert (first.count, rest.count) == (1, 99)
    assert rest.last_boottime_ns >= rest.boottime_ns


def test_one_gpu_without_events_costs_no_neighbour(
    events: NvmlEvents, told: Told, play: Play, waits: Callable[[], int]
) -> None:
    """Registering one type that one GPU lacks refused all; nobody listened to eight GPUs."""
    devices = with_events(gpus(3))
    del devices[0].values["events_supported"]
    devices[1].lines.append("error nvmlDeviceRegisterEvents 999")
    devices[2].lines.append("event 1 8 31")
    scenario = play(devices)
    start(events, told, waits)
    scenario.step(1)
    assert told.wait(1)[0].device == devices[2].uuid
    said = turn(events)
    assert said.outcome is Outcome.BLIND
    assert f"GPU {devices[1].address}: nvmlDeviceRegisterEvents" in said.words


def test_under_mig_the_listener_knows_that_it_sees_less(
    events: NvmlEvents, told: Told, play: Play, waits: Callable[[], int]
) -> None:
    """NVML does not refuse: without mig/monitor it leaves events of instances out, and all looks clean."""
    play(with_events([with_mig(gpu) for gpu in gpus(1)]))
    start(events, told, waits)
    said = turn(events)
    assert said.outcome is Outcome.BLIND
    assert "driver/nvidia/capabilities/mig/monitor" in said.words


@pytest.mark.parametrize(
    ("line", "outcome", "words"),
    [
        ("error nvmlDeviceGetSupportedEventTypes 3", Outcome.NO_DATA, "supports NVML events"),
        ("error nvmlDeviceRegisterEvents 999", Outcome.ERROR, "nvmlDeviceRegisterEvents"),
    ],
)
def test_a_host_that_has_no_events_says_why(
    line: str, outcome: Outcome, words: str, events: NvmlEvents, told: Told, play: Play
) -> None:
    """A silent listener is not a healthy GPU."""
    devices = with_events(gpus(1))
    devices[0].lines.append(line)
    play(devices)
    events.listen(told.teller)
    until(lambda: turn(events).outcome is outcome)
    assert words in turn(events).words


def test_no_library_is_no_data(tmp_path: Path, told: Told) -> None:
    """Most machines that one tries this on have no GPU."""
    collector = NvmlEvents(Roots(nvml_library=str(tmp_path / "libnvidia-ml.so.1")), XidWitness())
    assert turn(collector).words.startswith("nobody listens")
    collector.listen(told.teller)
    until(lambda: turn(collector).outcome is Outcome.NO_DATA)
    assert turn(collector).words.startswith("no NVML: ")
    collector.close()


def test_a_failed_wait_is_counted_and_the_listener_goes_on(
    events: NvmlEvents, told: Told, play: Play, waits: Callable[[], int], tmp_path: Path
) -> None:
    """One GPU was lost; the wait answered so for ever, and nobody heard of the next one."""
    devices = with_events(gpus(1))
    devices[0].lines.append("event 2 8 79")
    scenario = play(devices)
    (tmp_path / "scenario").write_text(
        "error nvmlEventSetWait_v2 0 15 0\n" + (tmp_path / "scenario").read_text()
    )
    start(events, told, waits)
    scenario.step(1)
    until(lambda: events.failed_waits == 1)
    scenario.step(2)
    assert told.wait(1)[0].code == 79
    until(lambda: turn(events).outcome is Outcome.OK)


class Stop(threading.Event):
    """Notes how long the listener would pause, and lets it go on at once; after so many pauses it is to stop."""

    def __init__(self, pauses_max: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._pauses_max = pauses_max

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0)
        if len(self.pauses) == self._pauses_max:
            self.set()
        return self.is_set()


def test_a_set_that_fails_again_and_again_is_made_ever_more_rarely(
    events: NvmlEvents, told: Told, play: Play, tmp_path: Path
) -> None:
    """One GPU was lost for a week: eight were registered anew each second, and each second the wait failed."""
    play(with_events(gpus(1)))
    (tmp_path / "scenario").write_text(
        "error nvmlEventSetWait_v2 15\n" + (tmp_path / "scenario").read_text()
    )
    events._wanted.set()
    listener = _Listener(events, events._roots, told.teller, XidWitness(), events._wanted)
    stop = listener.stop = Stop(8)
    listener._run()
    assert stop.pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert events.failed_waits == 8


def test_release_lets_go_and_the_next_turn_listens_again(
    events: NvmlEvents, told: Told, play: Play, waits: Callable[[], int], library: str
) -> None:
    """An open handle defeats a GPU reset; an event set is one."""
    sets = ctypes.CDLL(library).fake_nvml_event_sets
    scenario = play(with_events(gpus(1)))
    start(events, told, waits)
    assert sets() == 1
    events.release()
    until(lambda: sets() == 0)
    before = waits()
    assert turn(events).outcome is Outcome.OK
    until(lambda: waits() > before)
    assert sets() == 1
    scenario.step(0)


def test_a_wait_that_never_returns_blocks_nobody(
    events: NvmlEvents, told: Told, play: Play, tmp_path: Path
) -> None:
    """The driver hung; the agent could not be stopped, and its service not restarted."""
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    devices = with_events(gpus(1))
    play(devices)
    (tmp_path / "scenario").write_text(
        f"block nvmlEventSetWait_v2 fifo {fifo}\n" + (tmp_path / "scenario").read_text()
    )
    events.listen(told.teller)
    held = os.open(fifo, os.O_WRONLY)
    told.ahead_ns = 2 * STUCK_NS
    said = turn(events)
    assert said.outcome is Outcome.ERROR
    assert "nvmlEventSetWait_v2 has not returned for" in said.words
    assert events._listener is not None
    thread = events._listener.thread
    events.close()
    assert thread.is_alive()  # left behind
    os.close(held)
    thread.join(GUARD_SECONDS)
    assert not thread.is_alive()
