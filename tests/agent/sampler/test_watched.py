"""Daemon, supervisor and samplers with faulty devices: real code, fake processes, a test's clock."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.agent.collector import Collector, CollectOutcome
from gangline.agent.sampler.abandoned import AbandonedProcessFile, parse_abandoned
from gangline.agent.sampler.collector_groups import PROCESSES_MAX
from gangline.agent.sampler.messages import NO_DEVICES, SampleBatchEncoder, encode_event
from gangline.agent.sampler.process_table import ProcessRole
from gangline.agent.sampler.quarantine import QuarantineState
from gangline.contract.wire import telemetry_pb2
from tests.agent.sampler.watched import DISKS, GPUS, PORTS, START, Watched, hosts_lanes
from tests.agent.sampler.world import (
    FOREVER,
    SECOND,
    Device,
    SparingSweep,
    Sweeping,
    Telling,
    World,
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "gangline"):
        yield caplog


def hang(host: Watched, *devices: str, seconds: float = 1e9, holds: bool = False) -> None:
    for name in devices:
        device = host.world.devices[name]
        device.hangs_until_ns = host.world.now_ns + int(seconds * SECOND)
        device.holds = holds


def states(host: Watched) -> dict[str, QuarantineState]:
    return {f"{state.group} {state.device}": state.state for state in host.samplers.states()}


def told(host: Watched) -> tuple[dict[str, int], list[str]]:
    """Return the state of each row of `probe_1s`, and the GPUs of `gpu_1s_probe`."""
    tables = {block.table: block for block in host.samplers.blocks()}
    gpus = tables.get("gpu_1s_probe")
    if probe := tables.get("probe_1s"):
        rows = {name: probe.ints[probe.rows + row] for row, name in enumerate(probe.devices)}
        return rows, list(gpus.devices) if gpus else []
    return {}, []


@pytest.fixture
def host() -> Watched:
    return Watched()


def test_all_turns_of_a_second_are_in_its_frame_and_nobody_wakes_twice(host: Watched) -> None:
    host.run(9.5)
    assert host.wakings == 10 + 4  # including the first births
    host.run(0.5)
    for table, device in (("gpu_1s", GPUS[0]), ("disk_1s", DISKS[1]), ("host_1s", "host")):
        seconds = [moment // SECOND for moment in host.latest.times[table, device]]
        assert seconds == list(range(START // SECOND, START // SECOND + 10))
    assert host.alive == 3
    assert not host.events.events and not host.samplers.states()


def test_a_hung_gpu_is_named_with_its_call_within_two_seconds(host: Watched) -> None:
    """At 3 a.m. the question is which GPU, and which call."""
    host.run(10)
    hang(host, GPUS[5])
    began_ns = host.world.now_ns
    host.run(2)
    (event,) = host.told("probe.hung")
    assert event.boottime_ns - began_ns <= 2 * SECOND
    assert (event.device_kind, event.device) == ("gpu", GPUS[5])
    assert event.attributes["call"] == "nvmlDeviceGetFieldValues"
    assert 0.9 <= float(event.attributes["seconds"]) <= 2.0
    at_ns, rows = next((at, rows) for at, rows in host.latest.probe if rows)
    assert at_ns - began_ns <= 2 * SECOND
    assert rows[f"gpu {GPUS[5]}"][0] >= 0.9
    (outcome,) = host.told("collector.outcome")
    assert (outcome.device, outcome.code) == ("gpu_1s", CollectOutcome.HUNG)
    assert f"in gpu_1s: {GPUS[5]} nvmlDeviceGetFieldValues" in outcome.message


@pytest.mark.parametrize("phase", [0.0, 0.06, 0.2, 0.5, 0.95])
def test_a_call_between_the_turns_is_named_as_soon(host: Watched, phase: float) -> None:
    """The ring of samples calls ten times a second, and the daemon checks once."""
    host.run(10 + phase)
    hang(host, GPUS[5])
    child, began_ns = host.child("gpu"), host.world.now_ns
    child.collector, child.stuck_in = "gpu_fast_1s", (began_ns, GPUS[5], "nvmlGpmSampleGet")
    host.run(2)
    (event,) = host.told("probe.hung")
    assert 0.9 * SECOND <= event.boottime_ns - began_ns <= 1.1 * SECOND
    assert event.attributes["call"] == "nvmlGpmSampleGet"


def test_a_device_that_never_answers_again_is_tried_ever_more_rarely(host: Watched) -> None:
    """Every trial of a dead GPU abandons or kills a process: not 86,400 times a day."""
    host.run(10)
    hang(host, GPUS[5])
    host.run(3600)
    tries = host.samplers.abandoned_count
    assert 10 <= tries <= 15
    assert host.alive <= 4
    assert host.on_time("gpu_1s", GPUS[4], host.world.now_ns - 600 * SECOND, 600) == 1.0
    host.world.devices[GPUS[5]].hangs_until_ns = 0
    host.run(700)
    assert states(host) == {} or states(host) == {f"gpu {GPUS[5]}": QuarantineState.WELL}
    assert host.on_time("gpu_1s", GPUS[5], host.world.now_ns - 60 * SECOND, 60) == 1.0
    (answered,) = host.told("probe.answered")
    minutes = float(answered.attributes["seconds"]) / 60  # of all its trials, not only of the last
    assert 60 <= minutes <= 71 and answered.message.startswith("answers again after ")
    assert answered.device == GPUS[5]


def test_a_device_that_holds_its_process_for_ever_is_never_entered_again(host: Watched) -> None:
    """A call in uninterruptible sleep ignores SIGKILL: each further call costs a process."""
    host.run(10)
    hang(host, GPUS[5], holds=True)
    host.run(3600)
    assert host.samplers.abandoned_count == 1
    assert host.alive == 4
    assert states(host) == {f"gpu {GPUS[5]}": QuarantineState.ABANDONED}
    hung = next(state.hung_seconds for state in host.samplers.states())
    assert 3590 < hung < 3610


def test_all_gpus_at_once_are_one_finding_and_one_trial_at_a_time(host: Watched) -> None:
    """The driver held its lock: eight alarms for eight GPUs named no cause and paged eight times."""
    host.run(10)
    hang(host, *GPUS, seconds=300, holds=True)
    host.run(290)
    (driver,) = host.told("probe.driver_hung")
    assert (driver.device_kind, driver.device) == ("host", "host")
    assert "the driver hangs as a whole" in driver.message
    assert len(host.told("probe.hung")) == 1  # before it was known that others hang
    assert host.world.most <= 7
    assert host.samplers.abandoned_count <= 4
    assert host.on_time("rdma_1s", PORTS[0], START, 300) == 1.0
    host.run(200)
    (answered,) = host.told("probe.driver_answered")
    assert 300 <= answered.code <= 310
    for gpu in GPUS:
        assert host.on_time("gpu_1s", gpu, host.world.now_ns - 60 * SECOND, 60) == 1.0, gpu
    assert host.alive == 3


def test_two_hung_gpus_do_not_stop_the_other_six_for_long(host: Watched) -> None:
    host.run(10)
    hang(host, GPUS[1], GPUS[6])
    host.run(60)
    assert len(host.told("probe.driver_hung")) == len(host.told("probe.driver_answered")) == 1
    for gpu in set(GPUS) - {GPUS[1], GPUS[6]}:
        assert host.on_time("gpu_1s", gpu, host.world.now_ns - 40 * SECOND, 40) == 1.0
        assert host.on_time("gpu_1s", gpu, START + 10 * SECOND, 60) >= 56 / 60


def test_a_call_that_kills_its_process_costs_one_sample(host: Watched) -> None:
    """A library that dereferenced null for one GPU brought the agent down, every second."""
    host.run(10)
    host.world.devices[GPUS[2]].kills = "died of SIGSEGV"
    host.run(600)
    assert host.on_time("gpu_1s", GPUS[7], START, 610) >= 0.995
    (event, *_) = host.told("probe.hung")
    assert "died of SIGSEGV in gpu_1s" in event.message and event.device == GPUS[2]
    assert host.alive == 3
    host.world.devices[GPUS[2]].kills = ""
    host.run(400)
    assert host.on_time("gpu_1s", GPUS[2], host.world.now_ns - 30 * SECOND, 30) == 1.0


def test_a_slow_gpu_is_sampled_apart_and_comes_back_when_it_is_fast(host: Watched) -> None:
    """A GPU answered a hundred times slower: seven others were sampled every tenth second."""
    host.run(10)
    host.world.devices[GPUS[4]].seconds = 0.7
    host.run(600)
    assert states(host) == {f"gpu {GPUS[4]}": QuarantineState.SLOW}
    late_ns = host.world.now_ns - 500 * SECOND
    assert host.on_time("gpu_1s", GPUS[7], late_ns, 500) == 1.0
    assert 0.05 < host.on_time("gpu_1s", GPUS[4], late_ns, 500) < 0.15
    host.world.devices[GPUS[4]].seconds = 0.0001
    host.run(60)
    assert host.on_time("gpu_1s", GPUS[4], host.world.now_ns - 10 * SECOND, 10) == 1.0
    assert host.alive == 3


@pytest.mark.parametrize("is_stopped", [True, False], ids=["SIGSTOP", "overwritten memory"])
def test_a_sampler_without_batches_is_replaced(host: Watched, is_stopped: bool) -> None:
    """SIGSTOP to the wrong process; a driver's library overwrote its process' memory."""
    host.run(10)
    child = host.child("gpu")
    if is_stopped:
        child.stopped = True
    else:
        child.say(b"\0\0\0\0\xff")
        child.say_at_once(encode_event(telemetry_pb2.HealthEvent(name="gpu.lost", device="none")))
    host.run(20)
    assert host.on_time("gpu_1s", GPUS[0], host.world.now_ns - 10 * SECOND, 10) == 1.0
    assert host.on_time("disk_1s", DISKS[0], START, 30) == 1.0
    assert host.alive == 3 and not host.told("gpu.lost") and not host.told("probe.hung")


def test_a_nursery_is_not_blamed_for_a_standstill(host: Watched) -> None:
    """Suspended between request and birth of a sampler: all samplers were killed on waking."""
    host.run(3)
    before = {process.serial for process in host.samplers._supervisor.processes.values()}
    host.world.children[min(before)].die("died of SIGKILL")
    host.samplers.poll(host.world.now_ns)  # requests another fork
    host.world.now_ns += 3600 * SECOND
    host.samplers.poll(host.world.now_ns)
    now = {process.serial for process in host.samplers._supervisor.processes.values()}
    assert before - {min(before)} <= now
    host.run(5)
    assert host.alive == 3 and host.samplers.takeovers_count == 1


def test_a_nursery_that_is_killed_is_forked_anew(host: Watched) -> None:
    host.run(10)
    host.world.is_gone = True
    for child in host.world.children.values():
        child.die("died of SIGKILL")
    host.run(20)
    assert host.on_time("gpu_1s", GPUS[0], host.world.now_ns - 15 * SECOND, 15) == 1.0
    assert host.alive == 3


def test_who_is_left_behind_is_noted_once_and_struck_out_when_it_ends(tmp_path: Path) -> None:
    """The next agent must know of abandoned processes, without a write to the disk each second."""
    host, boot = Watched(), b"b" * 16
    host.samplers._abandoned_file = AbandonedProcessFile(tmp_path, boot)
    path = tmp_path / "left_behind.json"
    host.run(10)
    assert not path.exists()
    hang(host, GPUS[5], seconds=45, holds=True)
    host.run(5)
    (left,) = parse_abandoned(path.read_bytes(), boot)
    assert (left.unit, left.call) == (("gpu", GPUS[5], ""), "nvmlDeviceGetFieldValues")
    assert host.world.children[left.pid - 10_000].stuck_in
    before = path.stat().st_ino
    host.run(30)
    assert path.stat().st_ino == before
    host.run(20)
    assert parse_abandoned(path.read_bytes(), boot) == []


def test_a_host_without_free_processes_gets_its_samplers_later(host: Watched) -> None:
    """A fork bomb in a job ended the fork server, and for two minutes no fork was possible."""
    host.run(10)
    host.world.is_gone = host.world.refuses = True
    for child in host.world.children.values():
        child.die("died of SIGKILL")
    host.run(120)
    assert host.alive == 0 and host.world.starts <= 125
    assert host.on_time("host_1s", "host", START, 130) == 1.0
    host.world.refuses = False
    host.run(70)
    assert host.on_time("gpu_1s", GPUS[0], host.world.now_ns - 5 * SECOND, 5) == 1.0
    assert host.alive == 3


def test_a_collector_that_cannot_spare_a_device_is_left_out_whole() -> None:
    def lanes(world: World) -> dict[str, list[Collector]]:
        collectors = hosts_lanes(world)
        collectors["host"].append(Sweeping(world, "numa_10s", ["node0"], call="read meminfo"))
        return collectors

    def prepared(world: World) -> dict[str, list[Collector]]:
        world.devices.setdefault("node0", Device())
        return lanes(world)

    host = Watched(prepared)
    host.run(15)
    hang(host, "node0")
    host.run(100)
    (state, *_) = [
        state for state in host.samplers.states() if state.state is not QuarantineState.WELL
    ]
    assert (state.device, state.collector) == ("", "numa_10s")
    assert host.on_time("disk_1s", DISKS[0], host.world.now_ns - 60 * SECOND, 60) == 1.0


def test_releasing_one_gpu_ends_every_process_that_may_have_it(host: Watched) -> None:
    """An open /dev/nvidia3 defeats the reset of GPU 3."""
    host.run(10)
    host.samplers.release(frozenset({GPUS[3]}), 60)
    assert host.samplers.may_hold(frozenset({GPUS[3]}))
    host.run(2)
    assert not host.samplers.may_hold(frozenset({GPUS[3]}))
    assert host.samplers.released().keys() == {GPUS[3]}
    assert told(host) == ({f"gpu {GPUS[3]}": QuarantineState.RELEASED}, [GPUS[3]])
    host.run(50)
    assert host.on_time("gpu_1s", GPUS[2], START, 60) >= 0.98
    assert host.on_time("gpu_1s", GPUS[3], host.world.now_ns - 40 * SECOND, 40) == 0.0
    host.run(20)  # taken back automatically
    assert host.on_time("gpu_1s", GPUS[3], host.world.now_ns - 5 * SECOND, 5) == 1.0
    assert told(host) == ({}, [])


def test_a_gpu_that_hangs_and_is_released_is_told_as_hung(host: Watched) -> None:
    """An operator at night must know that a reset waits for a stuck process."""
    host.run(10)
    hang(host, GPUS[3], holds=True)
    host.run(3)
    host.samplers.release(frozenset({GPUS[3]}), 60)
    assert told(host) == ({f"gpu {GPUS[3]}": QuarantineState.ABANDONED}, [GPUS[3]])


def test_releasing_all_gpus_ends_standby_and_lane(host: Watched) -> None:
    host.run(10)
    host.samplers.release(None, 3600)
    host.run(3)
    assert not host.samplers.may_hold(None)
    processes = host.samplers._supervisor.processes.values()
    assert not any(p.warmed for p in processes)
    assert told(host) == ({"gpu": QuarantineState.RELEASED}, [])
    host.run(60)
    assert host.on_time("gpu_1s", GPUS[3], host.world.now_ns - 50 * SECOND, 50) == 0.0
    assert host.on_time("disk_1s", DISKS[0], START, 70) == 1.0
    host.samplers.resume(None)
    host.run(10)
    assert host.on_time("gpu_1s", GPUS[3], host.world.now_ns - 8 * SECOND, 8) == 1.0


def test_a_gpu_that_is_to_be_left_alone_is_so_at_once_and_tried_later(host: Watched) -> None:
    """After XID 119 every call into the GPU waits for its firmware for seconds, and adds log lines."""
    host.run(10)
    host.samplers.quarantine_gpu(GPUS[0], "XID 119")
    host.run(50)
    assert states(host) == {f"gpu {GPUS[0]}": QuarantineState.LEFT_ALONE}
    assert host.on_time("gpu_1s", GPUS[0], host.world.now_ns - 45 * SECOND, 45) == 0.0
    assert host.on_time("gpu_1s", GPUS[1], START, 60) == 1.0
    host.run(60)
    assert host.on_time("gpu_1s", GPUS[0], host.world.now_ns - 30 * SECOND, 30) == 1.0


def test_what_a_collector_tells_in_its_sampler_arrives_and_what_a_trial_tells_does_not() -> None:
    class Alarm(Telling):
        def collect(self):  # type: ignore[no-untyped-def]
            if not hasattr(self, "teller"):
                return super().collect()
            self.teller.publish(telemetry_pb2.HealthEvent(name="gpu.lost", device="g"))
            self.teller.request_inventory("a GPU came")
            return super().collect()

    def lanes(world: World) -> dict[str, list[Collector]]:
        collectors = hosts_lanes(world)
        collectors["gpu"] = [Alarm(world, "gpu_1s", GPUS)]
        return collectors

    host = Watched(lanes)
    host.run(10)
    assert len(host.told("gpu.lost")) == 10
    hang(host, *GPUS)
    host.run(1)
    reported = len(host.told("gpu.lost"))
    host.run(30)  # only trials
    assert len(host.told("gpu.lost")) <= reported + 2


def test_late_turns_keep_their_time_and_have_a_frame_of_their_own() -> None:
    """A sweep of 0.7 s returns after its frame has left: readings of second N remain those of N."""

    def lanes(world: World) -> dict[str, list[Collector]]:
        world.devices.setdefault("node0", Device(seconds=0.7))
        return {"host": [SparingSweep(world, "disk_1s", ["node0"])]}

    host = Watched(lanes)
    host.run(3)
    seconds = [round(moment / SECOND) for moment in host.latest.times["disk_1s", "node0"]]
    assert seconds[:3] == [START // SECOND + n for n in range(3)]


def test_every_device_of_the_host_stuck_for_ever_leaves_the_count_of_processes_bounded() -> None:
    """A storage network that failed took sixty disks, four ports and eight GPUs' drivers with it."""
    disks = [f"disk{n}" for n in range(60)]

    def lanes(world: World) -> dict[str, list[Collector]]:
        for name in disks:
            world.devices.setdefault(name, Device())
        collectors = hosts_lanes(world)
        collectors["host"].append(SparingSweep(world, "net_1s", disks))
        return collectors

    host = Watched(lanes)
    host.run(5)
    hang(host, *disks, *GPUS, *PORTS, *DISKS, seconds=FOREVER / 4 / SECOND, holds=True)
    host.run(1800)
    assert host.world.most <= PROCESSES_MAX
    assert host.on_time("host_1s", "host", START, 1800) == 1.0
    kinds = [p.role for p in host.samplers._supervisor.processes.values()]
    assert kinds.count(ProcessRole.ABANDONED) == host.samplers.abandoned_count <= 10


@pytest.mark.slow
def test_thousands_of_takeovers_leave_no_socket_no_slot_and_no_memory(host: Watched) -> None:
    """An agent ran for a year on a host whose OOM killer killed a sampler each minute."""
    host.run(3)
    samplers, devices = host.samplers, [("host", name) for name in (*PORTS, *DISKS)]
    used: list[int] = []
    for number in range(3000):
        process = samplers._supervisor.group_process("host")
        if process is not None:
            child = host.world.children[process.serial]
            if number % 2:  # in a call: that device is unread for a while
                child.collector, device = "rdma_1s", devices[number % len(devices)][1]
                child.stuck_in = (host.world.now_ns, device, "read")
                child.show()
            child.die("died of SIGKILL")
            child.show()
        host.world.now_ns += 61 * SECOND
        samplers.poll(host.world.now_ns)
        ward = samplers._supervisor._quarantine
        used.append(
            len(samplers._workers)
            + len(ward._recovered)
            + len(ward._abandoned_totals)
            + len(ward.units)
        )
    assert samplers.takeovers_count > 2000
    assert max(used[2000:]) <= max(used[:1000])
    gone = [child for child in host.world.children.values() if child.dead]
    assert len(gone) > 2000
    assert sum(not each.closed for each in gone) <= 3  # not noticed yet
    assert max(child.slot for child in samplers._workers.values()) <= PROCESSES_MAX


def test_a_sampler_that_never_stops_talking_holds_nobody_up(host: Watched) -> None:
    """A collector in a loop sent whenever the socket was writable: the daemon read only from it."""
    host.run(10.5)
    child = host.child("gpu")
    child.talks = encode_round()
    turns = len(host.latest.times["host_1s", "host"])
    host.run(5)
    assert len(host.latest.times["host_1s", "host"]) == turns + 5
    assert child.talked < 100


def encode_round() -> bytes:
    return SampleBatchEncoder([]).encode(1, 0.0, 0, 0, [], NO_DEVICES)
