"""The supervisor's promises, for any fate of its processes, in any order."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.agent.sampler.collector_groups import PROCESSES_MAX
from gangline.agent.sampler.forkserver import StallReason
from gangline.agent.sampler.messages import (
    Action,
    AssignTask,
    EndSampler,
    Fork,
    Kill,
    ReportEvent,
    SamplerTask,
    WarmSampler,
)
from gangline.agent.sampler.process_table import ProcessRole
from gangline.agent.sampler.quarantine import TRY_NS, TRY_NS_MAX, QuarantineState
from gangline.agent.sampler.reconciler import PROBES_MAX
from gangline.agent.sampler.supervisor import Supervisor
from gangline.ext.place import Seen

SECOND = 1_000_000_000
START = 1000 * SECOND
LANES = {"gpu": {"gpu_1s": True}, "host": {"rdma_1s": True, "tasks_10s": False}}
DEVICES = {"gpu": ["g0", "g1", "g2"], "host": ["r0", "r1", ""]}


@dataclass
class Model:
    """Processes that obey commands, on devices that answer or not."""

    machine: Supervisor = field(default_factory=lambda: Supervisor(LANES))
    now_ns: int = START
    alive: dict[int, SamplerTask | None] = field(default_factory=dict)
    stuck: dict[int, tuple[int, str, str]] = field(default_factory=dict)  # since, collector, device
    killed: set[int] = field(default_factory=set)
    hung: dict[str, bool] = field(
        default_factory=dict
    )  # device -> whether it holds its caller forever
    told: list[ReportEvent] = field(default_factory=list)
    tries: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    most: int = 0

    def __post_init__(self) -> None:
        self.machine.set_devices("gpu", DEVICES["gpu"])
        self.do(self.machine.start(self.now_ns))

    def do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Fork):
                self.alive[action.serial] = None
                self.most = max(self.most, len(self.alive))
            elif isinstance(action, AssignTask) and action.serial in self.alive:
                if action.task.only_device and self.alive[action.serial] is None:
                    self.tries[action.task.only_device].append(self.now_ns)
                self.alive[action.serial] = action.task
            elif isinstance(action, Kill | EndSampler):
                self.killed.add(action.serial)
            elif isinstance(action, ReportEvent):
                self.told.append(action)
        self.check()

    def check(self) -> None:
        processes = self.machine.processes.values()
        # without a new request there is nothing to do later either
        if self.machine._reconciler.is_settled:
            assert self.machine._reconciler.reconcile(self.now_ns + 3600 * SECOND) == []
        left_behind = Counter(p.unit for p in processes if p.role is ProcessRole.ABANDONED)
        assert all(count == 1 for count in left_behind.values()), left_behind
        solo = [p.unit for p in processes if p.role is ProcessRole.PROBE]
        assert not set(solo) & set(left_behind), "tried while one that was left behind lives"
        assert len(solo) == len(set(solo)) <= PROBES_MAX
        assert len(processes) <= PROCESSES_MAX
        assert sum(p.role is ProcessRole.STANDBY for p in processes) <= 1
        for lane in LANES:
            process = self.machine.group_process(lane)
            if process is not None and process.task is not None:
                released = {task for task in self.machine.released() if task}
                sick = {device for of, device, _ in self.machine.quarantined if of == lane}
                assert process.task.excluded_devices <= sick | released, (
                    "a healthy device is spared"
                )

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.second()

    def second(self, rounds: bool = True) -> None:
        """Advance a second: processes sweep their devices or hang in one; then they are checked."""
        self.now_ns += SECOND
        for serial in sorted(self.killed):
            held = serial in self.stuck and self.hung.get(self.stuck[serial][2])
            if serial in self.alive and not held:
                self._die(serial, "died of SIGKILL")
        for serial in [s for s in self.stuck if self.stuck[s][2] not in self.hung]:
            del self.stuck[serial]
        for serial, task in list(self.alive.items()):
            if task is not None and serial in self.alive and serial not in self.stuck:
                self._sweep(serial, task, rounds)
        seen = {serial: self._seen(serial) for serial in self.alive}
        self.do(self.machine.check(self.now_ns, seen))

    def _sweep(self, serial: int, task: SamplerTask, rounds: bool) -> None:
        for collector, spares in LANES[task.group].items():
            if collector in task.excluded_collectors or task.only_collector not in ("", collector):
                continue
            for device in DEVICES[task.group]:
                skipped = spares and (
                    device in task.excluded_devices or task.only_device not in ("", device)
                )
                if device in self.hung and not skipped and (device or not spares):
                    self.stuck[serial] = (self.now_ns - SECOND * 19 // 20, collector, device)
                    return
        if rounds:
            self.do(self.machine.batch_received(self.now_ns, serial, 0.01))

    def _seen(self, serial: int) -> Seen:
        since, collector, device = self.stuck.get(serial, (0, "", ""))
        return Seen(since, self.now_ns, collector, device, "read" if since else "")

    def _die(self, serial: int, message: str) -> None:
        seen = self._seen(serial)
        del self.alive[serial]
        self.stuck.pop(serial, None)
        self.do(self.machine.died(self.now_ns, serial, message, seen))

    def kill_somebody(self, number: int) -> None:
        if self.alive:
            self._die(sorted(self.alive)[number % len(self.alive)], "died of SIGKILL")


devices = st.sampled_from(["g0", "g1", "g2", "r0", "r1", ""])
happenings = st.one_of(
    st.tuples(st.just("hang"), devices, st.booleans()),
    st.tuples(st.just("answer"), devices),
    st.tuples(st.just("seconds"), st.integers(1, 40)),
    st.tuples(st.just("silence"), st.integers(1, 8)),
    st.tuples(st.just("sleep"), st.integers(1, 5000)),
    st.tuples(st.just("kill"), st.integers(0, 9)),
    st.tuples(st.just("release"), st.sampled_from([None, "g0", "g1"]), st.integers(1, 60)),
    st.tuples(st.just("resume"), st.sampled_from([None, "g0"])),
    st.tuples(st.just("alone"), st.sampled_from(["g0", "g1", "g2"])),
    st.tuples(st.just("orphans")),
)


def happen(model: Model, what: tuple[object, ...]) -> None:
    match what:
        case ("hang", str(device), bool(holds)):
            model.hung[device] = holds
        case ("answer", str(device)):
            model.hung.pop(device, None)
        case ("seconds", int(count)):
            model.seconds(count)
        case ("silence", int(count)):
            for _ in range(count):
                model.second(rounds=False)
        case ("sleep", int(seconds)):  # the host was suspended
            model.now_ns += seconds * SECOND
        case ("kill", int(number)):
            model.kill_somebody(number)
        case ("release", device, int(seconds)):
            which = None if device is None else frozenset({str(device)})
            model.do(model.machine.release(model.now_ns, which, seconds))
        case ("resume", device):
            which = None if device is None else frozenset({str(device)})
            model.do(model.machine.resume(model.now_ns, which))
        case ("alone", str(device)):
            model.do(model.machine.quarantine_gpu(model.now_ns, device, "XID 79"))
        case ("orphans",):
            model.killed |= set(model.alive)
            model.do(model.machine.fork_server_replaced(model.now_ns))


@settings(max_examples=120, deadline=None)
@given(st.lists(happenings, max_size=30))
def test_the_promises_hold_in_any_course(course: list[tuple[object, ...]]) -> None:
    """At the end all devices answer: three processes sample them within the longest interval."""
    model = Model()
    for what in course:
        happen(model, what)
    model.hung.clear()
    for _ in range(2 * TRY_NS_MAX // SECOND + 100):
        model.second()
        if not model.machine.quarantined and not model.machine.released() and len(model.alive) == 3:
            break
    assert not model.machine.quarantined
    assert len(model.alive) == 3
    for lane in LANES:
        process = model.machine.group_process(lane)
        assert process is not None and process.task == SamplerTask(lane)
    assert model.most <= PROCESSES_MAX


def test_intervals_between_trials_grow_to_ten_minutes_and_no_further() -> None:
    model = Model()
    model.hung["g1"] = False
    model.seconds(4 * 3600)
    gaps = [
        (b - a) / SECOND for a, b in zip(model.tries["g1"], model.tries["g1"][1:], strict=False)
    ]
    expected = [min(TRY_NS << n, TRY_NS_MAX) / SECOND for n in range(1, len(gaps) + 1)]
    assert len(gaps) > 20
    assert gaps == pytest.approx(expected, abs=3)


def test_a_device_that_comes_and_goes_keeps_its_interval() -> None:
    """A GPU that hung, answered and hung again every minute had its sampler killed every minute."""
    model = Model()
    for _ in range(20):
        model.hung["g1"] = False
        model.seconds(10)
        model.hung.clear()
        model.seconds(20)
    assert len(model.tries["g1"]) <= 10


def test_a_neighbour_is_out_for_no_longer_than_the_takeover() -> None:
    model = Model()
    model.seconds(5)
    model.hung["g1"] = True
    model.second()
    process = model.machine.group_process("gpu")
    assert process is not None and process.task == SamplerTask("gpu", frozenset({"g1"}))
    assert process.assigned_ns == model.now_ns


@pytest.mark.parametrize(
    ("since", "checks", "hung"),
    [
        (0.0, (0.1, 7200.0), False),
        (0.0, (0.1, 7200.0, 7201.0), True),
        (0.5, (0.5, 2.5), False),
        (0.0, (2.0, 4.0, 6.0), True),
    ],
    ids=[
        "suspended for two hours within a call",
        "suspended, and hung afterwards",
        "a virtual machine was moved",
        "a daemon whose disk takes 1.6 s to write",
    ],
)
def test_a_host_that_stood_still(since: float, checks: tuple[float, ...], hung: bool) -> None:
    """A standstill is no hang; a daemon that is always late sees a hang all the same."""
    machine = started()
    seen = {1: Seen(START + int(since * SECOND), 1, "gpu_1s", "g0", "read")}
    for second in checks:
        machine.check(START + int(second * SECOND), seen)
    assert machine.quarantined.keys() == ({("gpu", "g0", "")} if hung else set())


def started(**settings: Any) -> Supervisor:
    machine = Supervisor(LANES, **settings)
    machine.start(START)
    return machine


def excused(because: StallReason | None) -> tuple[Supervisor, dict[int, Seen]]:
    """Return a lane in a call that the kernel explains by another reason than its driver."""
    reasons = [because]
    return started(stall_reason=lambda _: reasons[0]), {1: Seen(START, 1, "gpu_1s", "g0", "read")}


def test_a_process_that_only_waits_for_a_cpu_hangs_in_nothing() -> None:
    """A host with a load of 50: eight healthy GPUs were reported as hung, and drained."""
    machine, seen = excused(StallReason.STARVED)
    for tick in range(1, 9):
        now_ns = START + tick * SECOND
        assert machine.next_ns(now_ns - SECOND // 2, seen) is not None
        assert not any(isinstance(task, Kill | ReportEvent) for task in machine.check(now_ns, seen))
        assert machine.report_late(now_ns, "gpu", seen[1]) == []
        assert machine.states(now_ns) == []
    seen[1] = Seen(0, 1, "", "", "")
    machine.check(START + 9 * SECOND, seen)
    assert machine.abandoned_count == machine.takeovers_count == 0


def test_a_kernel_that_says_so_of_everybody_for_ever_is_not_believed() -> None:
    """A sandbox in whose /proc every process is running, but has used no CPU."""
    machine, seen = excused(StallReason.STARVED)
    for tick in range(1, 12):
        machine.check(START + tick * SECOND, seen)
    assert machine.quarantined.keys() == {("gpu", "g0", "")}


def test_a_process_that_was_stopped_within_a_call_accuses_no_device() -> None:
    machine, seen = excused(StallReason.STOPPED)
    for tick in (1, 2):
        assert Kill(1) not in machine.check(START + tick * SECOND, seen)
    actions = machine.check(START + 3 * SECOND, seen)
    assert Kill(1) in actions and not machine.quarantined
    follower = machine.group_process("gpu")
    assert follower is not None and follower.serial != 1


def test_a_process_that_an_agent_before_left_behind_is_counted_and_its_device_not_entered() -> None:
    """Each restart of the agent left another process in the same GPU forever."""
    machine, nowhere = Supervisor(LANES), Seen(START - SECOND, 0, "gpu_1s", "g1", "read")
    serial = machine.inherit(START, ("gpu", "g1", ""), nowhere)
    assert machine.inherit(START, ("gpu", "g1", ""), nowhere) == 0  # already known
    assert machine.inherit(START, ("tape", "t0", ""), nowhere) == 0  # no such lane
    machine.start(START)
    process = machine.group_process("gpu")
    assert process is not None and process.task == SamplerTask("gpu", frozenset({"g1"}))
    assert machine.may_hold(frozenset({"g1"})) and not machine.abandoned_count
    for second in range(1, 30):
        machine.check(START + second * SECOND, {serial: nowhere})
    (state,) = machine.states(START + 30 * SECOND)
    assert (state.state, state.device, state.hung_seconds) == (
        QuarantineState.ABANDONED,
        "g1",
        30.0,
    )
    actions = machine.died(START + 30 * SECOND, serial, "has ended", nowhere)
    actions += machine.check(START + 31 * SECOND, {})
    trial = [action.task for action in actions if isinstance(action, AssignTask)]
    assert [task.only_device for task in trial] == ["g1"]


def test_a_call_that_opens_a_gpu_may_take_longer_and_is_shown_meanwhile() -> None:
    """Without persistence mode the first call attaches the GPU: 2 s for each, which is normal."""
    machine = started()
    seen = {1: Seen(START + SECOND, 1, "gpu_1s", "g0", "nvmlDeviceGetHandleByPciBusId_v2")}
    for second in (1, 2, 3):
        machine.check(START + second * SECOND, seen)
    assert not machine.quarantined
    (state,) = machine.states(START + 3 * SECOND)
    assert (state.state, state.device, state.hung_seconds) == (QuarantineState.HUNG, "g0", 2.0)
    for second in (4, 5, 6):
        assert not machine.quarantined
        machine.check(START + second * SECOND, seen)
    assert machine.quarantined.keys() == {("gpu", "g0", "")}


def test_a_standby_that_cannot_be_made_ready_harms_no_lane() -> None:
    """Loading the library hung in a container without device nodes; a loaded lane continued."""
    machine = started()
    standby = next(p for p in machine.processes.values() if p.role is ProcessRole.STANDBY)
    actions: list[Action] = []
    for second in range(1, 8):
        seen = {standby.serial: Seen(START, 1, "gpu_1s", "", "nvmlInitWithFlags")}
        actions = machine.check(START + second * SECOND, seen)
        if Kill(standby.serial) in actions:
            break
    assert standby.role is ProcessRole.ENDING and not machine.quarantined
    assert machine.group_process("gpu") is not None
    assert not any(isinstance(action, WarmSampler) for action in actions)


def test_a_standby_that_dies_of_being_made_ready_is_not_forked_in_a_storm() -> None:
    """A library of a half-installed driver crashed each process that loaded it."""
    machine, warms, deaths = Supervisor(LANES), 0, 0
    actions = machine.start(START)
    for second in range(1, 600):
        now_ns = START + second * SECOND
        for warm in [action for action in actions if isinstance(action, WarmSampler)]:
            warms += 1
            if warm.serial in machine.processes:
                deaths += 1
                nowhere = Seen(now_ns, 1, "gpu_1s", "", "nvmlInitWithFlags")
                machine.died(now_ns, warm.serial, "died of SIGSEGV", nowhere)
        actions = machine.check(now_ns, {})
    assert 5 <= deaths <= warms <= 12
    assert machine.group_process("gpu") is not None and not machine.quarantined


def test_when_nothing_can_be_forked_it_is_tried_ever_more_rarely() -> None:
    """A training job had forked up to the limit of processes."""
    machine, now_ns, forks = Supervisor(LANES), START, 0
    actions = machine.start(now_ns)
    for second in range(600):
        for fork in [action for action in actions if isinstance(action, Fork)]:
            forks += 1
            machine.died(now_ns, fork.serial, "could not be forked", None)
        now_ns = START + second * SECOND
        actions = machine.check(now_ns, {})
    assert 5 <= forks <= 40


def test_a_sampler_whose_library_is_of_another_driver_takes_the_standby_along() -> None:
    """The driver was updated under a running agent: the standby had already loaded the old library."""
    machine = started()
    lane = machine.group_process("gpu")
    standby = next(p for p in machine.processes.values() if p.role is ProcessRole.STANDBY)
    assert lane is not None and standby.warmed
    nowhere = Seen(0, 1, "", "", "")
    actions = machine.died(START + SECOND, lane.serial, "ended with 75", nowhere)
    assert EndSampler(standby.serial) in actions
    follower = machine.group_process("gpu")
    assert follower is not None and follower.serial not in (lane.serial, standby.serial)


def test_a_lane_that_dies_again_and_again_by_itself_starts_ever_later() -> None:
    """The OOM killer of a full host killed it each time: a fork a second does not help."""
    machine, now_ns, starts = Supervisor(LANES), START, 0
    machine.start(now_ns)
    for second in range(600):
        now_ns = START + second * SECOND
        machine.check(now_ns, {})
        lane = machine.group_process("host")
        if lane is not None:
            starts += 1
            machine.batch_received(now_ns, lane.serial, 0.01)
            machine.died(now_ns, lane.serial, "died of SIGKILL", Seen(0, 1, "", "", ""))
    assert 8 <= starts <= 20


def test_what_was_warm_has_the_driver_open_in_whatever_lane() -> None:
    """The standby had NVML open and took over the disk lane: `rmmod nvidia` was refused all day."""
    model = Model()
    model.hung["r0"] = True
    model.second()
    process = model.machine.group_process("host")
    assert process is not None and process.warmed
    model.do(model.machine.release(model.now_ns, None, 3600))
    assert model.machine.may_hold(None)
    model.seconds(3)
    follower = model.machine.group_process("host")
    assert follower is not None and not follower.warmed
    del model.hung["r0"]
    model.second()
    model.second()
    assert not model.machine.may_hold(None)


def test_what_was_released_before_the_start_is_entered_by_nobody() -> None:
    """The agent was killed in the middle of a repair, and the next one opened the GPU at once."""
    machine = Supervisor(LANES)
    machine.start(START, {"g1": START + 60 * SECOND})
    process = machine.group_process("gpu")
    assert process is not None and process.task == SamplerTask("gpu", frozenset({"g1"}))
    machine = Supervisor(LANES)
    actions = machine.start(START, {None: START + 60 * SECOND})
    assert machine.group_process("gpu") is None and not machine.may_hold(None)
    assert not any(isinstance(action, WarmSampler) for action in actions)
    machine.check(START + 60 * SECOND, {})
    assert machine.group_process("gpu") is not None


def test_a_gpu_that_its_driver_gave_up_is_tried_ever_later() -> None:
    """After XID 79: first after a minute, then, after a failed trial, five seconds later."""
    model = Model()
    model.hung["g1"] = False
    model.do(model.machine.quarantine_gpu(model.now_ns, "g1", "XID 79"))
    model.seconds(1800)
    times = [START, *model.tries["g1"]]
    waits = [(after - before) // SECOND for before, after in itertools.pairwise(times)]
    assert waits[0] == 60 and waits == sorted(waits) and max(waits) <= 605
    assert len(waits) >= 4


def test_a_storm_of_words_about_a_gpu_does_not_put_its_trial_off_for_long() -> None:
    """XID 119 came each 45 s; after the last of them the GPU was unread for ten minutes."""
    model = Model()
    for _ in range(10):
        model.do(model.machine.quarantine_gpu(model.now_ns, "g1", "XID 119"))
        model.seconds(45)
    assert not model.tries["g1"]
    model.seconds(20)
    assert len(model.tries["g1"]) == 1 and not model.machine.quarantined


def test_a_gpu_that_was_repaired_is_tried_at_once_when_it_is_taken_back() -> None:
    """XID 79, release, reset, resume: and then the GPU was not read for ten minutes."""
    model = Model()
    model.do(model.machine.quarantine_gpu(model.now_ns, "g1", "XID 79"))
    model.second()
    model.do(model.machine.release(model.now_ns, frozenset(("g1",)), 600))
    model.second()
    model.do(model.machine.resume(model.now_ns, frozenset(("g1",))))
    model.seconds(3)
    assert len(model.tries["g1"]) == 1 and not model.machine.quarantined
