"""NVML's events and the driver's own, over a library that delivers them at scenario steps."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gangline.agent.collector import CollectOutcome, CollectResult, run_collector
from gangline.agent.collectors.nvml_events import REGISTERED_TYPES, NvmlEvents
from gangline.agent.collectors.nvml_session import UNBINDING_SECONDS, session_of
from gangline.agent.events import EventPublisher
from gangline.agent.hardware.files import Roots
from gangline.agent.xid_reports import XidDeduplicator
from gangline.contract.signals import BY_ID, BY_NAME
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.fakes import HandedClock
from tests.agent.gpu_host import SECOND
from tests.fake_nvml.build import build
from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.parts_scenario import with_mig
from tests.fake_nvml.scenario import Gpu, Scenario, gpus
from tests.fake_nvml.sick import is_unbound


class Listener(HandedClock):
    """The collector and its events; also the clock of the host."""

    def __init__(self, roots: Roots) -> None:
        super().__init__()
        self.witness = XidDeduplicator()
        self.collector = NvmlEvents(roots, self.witness)
        session_of(roots).clock = self
        self.events: list[HealthEvent] = []
        self.teller = EventPublisher(self, self, lambda: None)

    def put(self, event: HealthEvent) -> None:
        self.events.append(event)

    def turn(self) -> CollectResult:
        return run_collector(self.collector, self)

    def second(self, seconds: int = 1) -> None:
        """Advance the time, like a sampler that rests between its turns."""
        for _ in range(seconds):
            self.now_ns += SECOND
            self.collector._session.poll_events()

    def start(self, scenario: Scenario) -> None:
        """Start the collector, and play the first step."""
        self.collector.start(self.teller)
        assert self.turn().blocks
        scenario.step(1)

    def first_second(self, scenario: Scenario) -> None:
        self.start(scenario)
        self.second()


@pytest.fixture
def listener(tmp_path: Path, library: str) -> Iterator[Listener]:
    listener = Listener(Roots(tmp_path / "sys", tmp_path / "proc", library, dev=tmp_path))
    yield listener
    listener.collector._session.close()


def with_events(devices: Iterable[Gpu], supported: int = REGISTERED_TYPES) -> list[Gpu]:
    listed = list(devices)
    for gpu in listed:
        gpu.values["events_supported"] = supported
    return listed


def list_in_sys(roots: Path, devices: Iterable[Gpu]) -> None:
    """Make the kernel list the GPUs bound to the driver."""
    folder = roots / "sys/bus/pci/drivers/nvidia"
    folder.mkdir(parents=True, exist_ok=True)
    addresses = {gpu.address for gpu in devices}
    for name in os.listdir(folder):
        if name not in addresses:
            (folder / name).rmdir()
    for address in addresses:
        (folder / address).mkdir(exist_ok=True)


def values(said: CollectResult) -> dict[str, float | int | None]:
    (block,) = said.blocks
    return {BY_ID[i].column: value for i, value in block.values(0)}


def test_an_xid_is_told_with_its_gpu(listener: Listener, play: Play) -> None:
    """In a container without the kernel log, only NVML reports XID 79."""
    devices = with_events(gpus(3))
    devices[2].lines.append("event 1 8 79")
    listener.first_second(play(devices))
    (event,) = listener.events
    assert (event.name, event.code, event.device) == ("gpu.xid", 79, devices[2].uuid)
    assert event.attributes == {"source": "nvml", "pci_address": devices[2].address}
    assert (event.device_kind, event.count, event.last_boottime_ns) == ("gpu", 1, 0)
    assert event.wall_time_ns == listener.wall_ns()
    assert {event.name, "gpu.driver_event", "gpu.driver_binding"} <= set(BY_NAME)
    result = listener.turn()
    assert result.outcome is CollectOutcome.OK
    counts = values(result)
    assert counts.pop("driver_calls_count")
    assert counts == {
        "received_events": 1,
        "told_by_kernel_log_events": 0,
        "failed_waits_errors": 0,
    }


def test_an_xid_of_the_kernel_log_is_told_from_there(listener: Listener, play: Play) -> None:
    """Both sources reported it, and one failure counted as two."""
    devices = with_events(gpus(2))
    devices[0].lines += ["event 1 8 94", "event 1 8 95"]
    listener.witness.reads_the_kernel_log = True
    listener.first_second(play(devices))
    assert listener.collector.received == 2
    listener.witness.record(devices[0].address, 94, listener.boottime_ns())
    assert listener.events == []  # held back
    listener.second(3)
    (event,) = listener.events
    assert event.code == 95
    assert listener.collector.reported_by_kernel_log == 1


def test_the_kernel_log_is_read_by_another_process() -> None:
    """Daemon and sampler each knew of one source, and every XID was reported twice."""
    witness = XidDeduplicator()
    child = os.fork()
    if not child:  # like the sampler: it sees the daemon's writes after the fork
        while not witness.reads_the_kernel_log:
            os.sched_yield()
        os._exit(witness.was_recorded("0000:19:00.0", 79, 5 * SECOND) * 7)
    for number in range(2000):  # more than are remembered
        witness.record("0000:2a:00.0", number, SECOND)
    witness.record("0000:19:00.0", 79, 4 * SECOND)
    witness.reads_the_kernel_log = True
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not witness.was_recorded("0000:19:00.0", 79, 7 * SECOND)
    assert not witness.was_recorded("0000:19:00.0", 80, 4 * SECOND)
    assert not witness.was_recorded("0000:2a:00.0", 0, SECOND)  # forgotten


def test_other_events_of_the_driver(listener: Listener, play: Play) -> None:
    """Events without an XID: a MIG change, a recovery action. A change of clock is ignored."""
    devices = with_events(gpus(1), 0xFFFF)
    devices[0].lines += ["event 1 256 0", "event 1 16 0", "event 1 32768 0"]
    listener.first_second(play(devices))
    change, action = listener.events
    assert (change.name, change.code) == ("gpu.driver_event", 0x100)
    assert change.message == "NVML event: MIG configuration changed"
    assert action.code == 0x8000
    assert "MIG" in listener.teller.take_inventory_request()
    assert listener.collector.received == 2


def test_a_storm_is_counted(listener: Listener, play: Play) -> None:
    """A hundred single bit errors a second are one event, and another with the rest."""
    devices = with_events(gpus(1))
    devices[0].lines += ["event 1 1 0"] * 100
    listener.first_second(play(devices))
    assert listener.collector.received == 100
    listener.second(11)
    first, rest = listener.events
    assert (first.count, rest.count) == (1, 99)
    assert rest.last_boottime_ns >= rest.boottime_ns


def test_one_gpu_without_events_costs_no_neighbour(listener: Listener, play: Play) -> None:
    """Registering a type that one GPU lacks failed for all; no events came from eight GPUs."""
    devices = with_events(gpus(3))
    del devices[0].values["events_supported"]
    devices[1].lines.append("error nvmlDeviceRegisterEvents 999")
    devices[2].lines.append("event 1 8 31")
    listener.first_second(play(devices))
    assert listener.events[0].device == devices[2].uuid
    result = listener.turn()
    assert result.outcome is CollectOutcome.BLIND
    assert f"GPU {devices[1].address}: nvmlDeviceRegisterEvents" in result.message


def test_under_mig_the_listener_knows_that_it_sees_less(listener: Listener, play: Play) -> None:
    """NVML does not refuse: without mig/monitor it omits events of instances, and all looks clean."""
    play(with_events([with_mig(gpu) for gpu in gpus(1)]))
    listener.collector.start(listener.teller)
    result = listener.turn()
    assert result.outcome is CollectOutcome.BLIND
    assert "driver/nvidia/capabilities/mig/monitor" in result.message


@pytest.mark.parametrize(
    ("line", "outcome", "message"),
    [
        (
            "error nvmlDeviceGetSupportedEventTypes 3",
            CollectOutcome.NO_DATA,
            "supports NVML events",
        ),
        ("error nvmlDeviceRegisterEvents 999", CollectOutcome.ERROR, "nvmlDeviceRegisterEvents"),
    ],
)
def test_a_host_that_has_no_events_says_why(
    line: str, outcome: CollectOutcome, message: str, listener: Listener, play: Play
) -> None:
    """A silent listener does not mean a healthy GPU."""
    devices = with_events(gpus(1))
    devices[0].lines.append(line)
    play(devices)
    listener.collector.start(listener.teller)
    result = listener.turn()
    assert result.outcome is outcome
    assert message in result.message


def test_no_library_is_no_data(tmp_path: Path) -> None:
    """Most machines have no GPU."""
    listener = Listener(Roots(nvml_library=str(tmp_path / "libnvidia-ml.so.1")))
    assert listener.turn().message.startswith("no subscriber")
    listener.collector.start(listener.teller)
    result = listener.turn()
    assert (result.outcome, result.message[:9]) == (CollectOutcome.NO_DATA, "no NVML: ")
    listener.collector.close()


def test_a_failed_wait_is_counted_and_the_listener_goes_on(listener: Listener, play: Play) -> None:
    """One GPU was lost; the wait always returned this error, and the next lost GPU was missed."""
    devices = with_events(gpus(1))
    devices[0].lines.append("event 2 8 79")
    scenario = play(devices, host="error nvmlEventSetWait_v2 0 15 0")
    listener.start(scenario)
    listener.second()
    assert listener.collector.failed_waits == 1
    assert listener.turn().outcome is CollectOutcome.ERROR
    scenario.step(2)
    listener.second(2)
    assert listener.events[0].code == 79
    assert listener.turn().outcome is CollectOutcome.OK


def test_a_failing_set_is_made_rarely(listener: Listener, play: Play, library: str) -> None:
    """One GPU was lost for a week: eight were registered again each second."""
    play(with_events(gpus(1)), host="error nvmlEventSetWait_v2 15")
    created = sets_made(listener, library)
    assert created == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert listener.collector.failed_waits == len(created)
    assert ctypes.CDLL(library).fake_nvml_event_sets() == 0


def test_unsupported_events_are_asked_rarely(listener: Listener, play: Play, library: str) -> None:
    """After a minute the agent asked eight GPUs each second for unsupported events."""
    play(gpus(1))
    listener.now_ns = 1000 * SECOND
    assert sets_made(listener, library) == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert listener.collector.failed_waits == 0


def sets_made(listener: Listener, library: str) -> list[int]:
    """Return the seconds of 200 in which sets of events are created."""
    created = ctypes.CDLL(library).fake_nvml_calls
    listener.collector.start(listener.teller)
    begin, result, before = listener.now_ns, [], 0
    listener.turn()
    for _ in range(200):
        if created(b"nvmlEventSetCreate") != before:
            before = created(b"nvmlEventSetCreate")
            result.append((listener.now_ns - begin) // SECOND)
        listener.second()
    return result


def test_a_release_closes_the_sets(listener: Listener, play: Play, library: str) -> None:
    """An open handle defeats a GPU reset; an event set is one."""
    sets = ctypes.CDLL(library).fake_nvml_event_sets
    listener.start(play(with_events(gpus(1))))
    assert sets() == 2  # of the GPUs and of the driver
    listener.collector._session.close()
    assert sets() == 0
    listener.second()
    assert sets() == 0
    assert listener.turn().outcome is CollectOutcome.OK
    assert sets() == 2


def test_an_unbind_releases(listener: Listener, play: Play, library: str, tmp_path: Path) -> None:
    """`echo 0000:2a:00.0 > unbind` waited forever for the agent's handle."""
    attached = ctypes.CDLL(library).fake_nvml_calls
    devices = with_events(gpus(2))
    is_unbound(devices[1], step=1, again=2)
    list_in_sys(tmp_path, devices)
    scenario = play(devices)
    listener.start(scenario)
    session = listener.collector._session
    listener.second()
    assert ctypes.CDLL(library).fake_nvml_users() == 0  # at once, before its turn
    (event,) = listener.events
    assert (event.name, event.device) == ("gpu.driver_binding", devices[1].uuid)
    assert event.attributes["state"] == "unbind"
    assert devices[1].uuid in listener.teller.take_inventory_request()
    list_in_sys(tmp_path, devices[:1])
    before = attached(b"nvmlDeviceGetHandleByPciBusId_v2")
    assert listener.turn().outcome is CollectOutcome.OK
    assert [(gpu.address, gpu.excluded) for gpu in session.gpus] == [
        (devices[0].address, False),
        (devices[1].address, True),
    ]
    assert attached(b"nvmlDeviceGetHandleByPciBusId_v2") - before == 2  # listed, and for its events
    list_in_sys(tmp_path, devices)
    scenario.step(2)
    listener.second()
    assert listener.events[-1].attributes["state"] == "bind"
    listener.turn()
    assert [gpu.excluded for gpu in session.gpus] == [False, False]


def test_a_refused_unbind(listener: Listener, play: Play, tmp_path: Path) -> None:
    """The operator was refused; the GPU was not sampled again until the agent was restarted."""
    devices = with_events(gpus(2))
    is_unbound(devices[1])
    list_in_sys(tmp_path, devices)
    listener.first_second(play(devices))
    listener.turn()
    spared = [[gpu.excluded for gpu in listener.collector._session.gpus]]
    listener.now_ns += UNBINDING_SECONDS * SECOND
    listener.turn()
    listener.turn()
    spared.append([gpu.excluded for gpu in listener.collector._session.gpus])
    assert spared == [[False, True], [False, False]]


def test_a_driver_without_system_events_has_the_others(tmp_path: Path, play: Play) -> None:
    """Drivers before 575 do not export them."""
    (tmp_path / "older").mkdir()
    library = str(build(tmp_path / "older", missing=["nvmlSystemEventSetCreate"]))
    listener = Listener(Roots(tmp_path / "sys", tmp_path / "proc", library, dev=tmp_path))
    listener.start(play(with_events(gpus(1))))
    assert listener.turn().outcome is CollectOutcome.OK
    listener.collector._session.close()
