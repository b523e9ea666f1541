"""The jobs of processes on GPUs: normal cases, and cases in which the answer must be unknown."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.agent.collector import CollectOutcome
from gangline.agent.collectors import change_events
from gangline.agent.collectors.change_events import (
    AT_ONCE_MAX,
    REFILL_SECONDS,
    REPEAT_NS,
    event_bucket,
)
from gangline.agent.collectors.gpu_processes import _NAMESPACE_REMEDY, GpuJobs
from gangline.agent.collectors.process_listing import GpuProcess, GpuProcessList
from gangline.agent.collectors.process_tracker import (
    DEAD_OBSERVATIONS_MIN,
    FOREIGN,
    HIDDEN,
    NO_GROUP,
    RECHECK_TURNS,
    REUSED,
    ProcessTracker,
)
from gangline.agent.collectors.tasks import HIDEPID
from gangline.agent.hardware import process_state
from gangline.agent.hardware.process_state import ProcessSnapshot, ProcessState
from gangline.agent.sampler.worker import AllExcept
from tests.agent.jobs_host import (
    CONTAINER,
    GPU,
    OTHER_GPU,
    POD,
    POD_CGROUP,
    SECOND,
    SESSION,
    SLURM,
    JobsHost,
)


@pytest.fixture
def host(tmp_path: Path) -> JobsHost:
    return JobsHost(tmp_path)


def test_a_slurm_job_is_named(host: JobsHost) -> None:
    """A GPU was slow and its job was unknown."""
    host.process(4711, SLURM, start=5_000)
    attributes = host.settle(host.collector(), 4711)
    assert attributes == {
        "state": "running", "source": "slurm", "job_id": "123", "step": "0", "task": "0",
        "user_id": "1000", "start_nanoseconds": str(5_000 * 10_000_000),
    }  # fmt: skip


def test_a_pod_is_named_by_its_own_logs(host: JobsHost) -> None:
    """The control group has the UID, kubelet the name."""
    (host.proc.parent / f"var/log/pods/ml_trainer-0_{POD}").mkdir(parents=True)
    host.process(4711, POD_CGROUP, pids="4711\t17")
    attributes = host.settle(host.collector(), 4711)
    assert attributes["source"] == "kubernetes"
    assert (attributes["namespace"], attributes["pod"], attributes["pod_uid"]) == (
        "ml",
        "trainer-0",
        POD,
    )
    assert (attributes["container_id"], attributes["qos"], attributes["namespace_pid"]) == (
        CONTAINER,
        "burstable",
        "17",
    )


def test_one_event_for_each_process_on_each_gpu(host: JobsHost) -> None:
    """New, unchanged, ended: one id in rising revisions, so that the aggregator has one row."""
    host.process(4711, SESSION)
    collector = host.collector()
    both = [GpuProcess(GPU, 4711), GpuProcess(OTHER_GPU, 4711)]
    host.settle(collector, *both)
    host.turn(collector, both[0])
    host.turn(collector)
    ended = host.told()
    assert [(e.device, e.attributes["state"]) for e in ended] == [
        (OTHER_GPU, "ended"),
        (GPU, "ended"),
    ]
    host.settle(collector, *both)
    assert len({e.event_id for e in ended}) == 2
    assert all(len(e.event_id) <= 128 and e.process_id == 4711 for e in ended)
    assert (
        ended[0].message == "process 4711 (python3) of unit session-3.scope no longer holds the GPU"
    )
    assert ended[0].boottime_ns < ended[0].last_boottime_ns


def test_an_unchanged_list_costs_nothing(host: JobsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading /proc of every process every second was the most expensive work of the agent."""
    collector = host.running()
    reads: list[str] = []
    read = process_state._read

    def counted(path: str, most: int) -> bytes:
        reads.append(path)
        return read(path, most)

    monkeypatch.setattr(process_state, "_read", counted)
    blocks = [host.turn(collector, 4711).blocks for _ in range(RECHECK_TURNS - 2)]
    assert reads == []
    assert all(block is blocks[0][0] for (block,) in blocks)
    host.turn(collector, 4711)
    assert [path.rpartition("/")[2] for path in reads] == ["stat"]
    assert host.told() == []


def test_what_was_told_is_told_again(host: JobsHost) -> None:
    """The aggregator got a new disk, and for a month it lacked all jobs that had begun before."""
    collector = host.running()
    host.process(4711, SLURM.replace("job_123", "job_124"))  # adopted by another job meanwhile
    host.clock.now_ns += REPEAT_NS
    for _ in range(RECHECK_TURNS + 1):
        host.turn(collector, 4711)
    [again] = host.told()
    assert again.attributes["job_id"] == "124"


def test_a_number_dealt_again_after_an_end_is_another_process(host: JobsHost) -> None:
    """PID 4711 of the second job was taken for the first's, because the number was the same."""
    collector = host.running(start=5_000)
    host.turn(collector)
    first = host.told()[-1]
    host.process(4711, SLURM.replace("123", "124"), start=9_000)
    assert host.settle(collector, 4711)["job_id"] == "124"
    host.turn(collector)
    assert host.told()[-1].event_id != first.event_id


def test_a_number_dealt_again_between_the_list_and_the_look_is_never_told(host: JobsHost) -> None:
    """A web server with the number of an ended process was reported as training."""
    host.process(4711, "0::/system.slice/nginx.service\n", start=100_000)
    collector = host.collector()
    host.turn(collector, 4711)
    for _ in range(RECHECK_TURNS + 1):
        host.turn(collector)
    assert host.told() == []


def test_a_number_dealt_again_while_it_is_listed_is_nobodys(host: JobsHost) -> None:
    """The driver still listed an ended process, until its number was a web server's."""
    collector = host.running(start=5_000)
    host.process(4711, "0::/system.slice/nginx.service\n", start=100_000)
    last = host.turns(RECHECK_TURNS + 1, collector, 4711)
    attributes = host.told()[-1].attributes
    assert (attributes["source"], attributes["unknown"]) == ("unknown", REUSED)
    assert "unit" not in attributes and "job_id" not in attributes
    assert host.counts(last)["unknown_count"] == 1


def test_a_number_reused_in_the_read(host: JobsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start of one and control group of another made a process that never existed."""
    host.process(4711, SLURM, start=5_000)
    read = process_state._read_or_nothing

    def deal_again(path: str, most: int) -> bytes:
        if path.endswith("status"):
            host.process(4711, "0::/system.slice/nginx.service\n", start=100_000)
        return read(path, most)

    monkeypatch.setattr(process_state, "_read_or_nothing", deal_again)
    assert process_state.read_process(host.proc, 4711) == ProcessSnapshot(ProcessState.CHANGED)


@pytest.mark.parametrize("zombie", [True, False])
def test_a_process_that_has_ended_and_holds_a_gpu(host: JobsHost, zombie: bool) -> None:
    """80 GB were held by an ended process that no `kill` reached; the next jobs ran out of memory."""
    collector = host.running()
    if zombie:
        host.process(4711, SLURM, state="Z", threads=1)
    else:
        host.end(4711)
    last = host.turns(RECHECK_TURNS + DEAD_OBSERVATIONS_MIN, collector, 4711)
    counts = host.counts(last)
    assert (counts["dead_count"], counts["dead_memory_bytes"]) == (1, 1 << 30)
    assert (counts["unknown_count"], counts["in_jobs_count"]) == (0, 0)
    [event] = host.told()
    assert event.attributes["state"] == "dead"
    assert event.attributes["dead"] == ("zombie" if zombie else "gone")
    assert event.attributes["job_id"] == "123"


def test_a_zombie_keeps_its_owner_when_it_is_told_again(host: JobsHost) -> None:
    """After half an hour the GPU's dead process had no owner: zombies are in no group."""
    collector = host.running()
    host.process(4711, "0::/\n", state="Z", threads=1)
    host.turns(RECHECK_TURNS + DEAD_OBSERVATIONS_MIN, collector, 4711)
    host.clock.now_ns += REPEAT_NS
    host.turns(RECHECK_TURNS, collector, 4711)
    assert [(e.attributes["state"], e.attributes["job_id"]) for e in host.told()] == [
        ("dead", "123"),
        ("dead", "123"),
    ]


def test_a_zombie_in_no_group_was_seen(host: JobsHost) -> None:
    """ "It ended before it was seen" was reported about a process followed for a day."""
    host.process(4711, "0::/\n", state="Z", threads=1)
    attributes = host.settle(host.collector(), 4711)
    assert (attributes["state"], attributes["unknown"]) == ("dead", NO_GROUP)


def test_a_process_that_was_gone_before_the_agent_came(host: JobsHost) -> None:
    """The agent was restarted because of memory without an owner, and saw no process."""
    collector = host.collector()
    attributes = host.settle(collector, 4711)
    assert (attributes["state"], attributes["source"], attributes["dead"]) == (
        "dead",
        "unknown",
        "gone",
    )


def test_a_process_that_ends_as_others_do_is_no_finding(host: JobsHost) -> None:
    """Between its end and the driver's next list every process is missing but listed, once."""
    collector = host.running()
    host.end(4711)
    host.turn(collector, 4711, GpuProcess(OTHER_GPU, 1))
    last = host.turn(collector, GpuProcess(OTHER_GPU, 1))
    assert host.counts(last)["dead_count"] == 0
    assert [e.attributes["state"] for e in host.told() if e.process_id == 4711] == ["ended"]


def test_a_first_thread_that_ended_is_no_zombie(host: JobsHost) -> None:
    """The main thread had left by pthread_exit; seven others computed, and it was reported dead."""
    host.process(4711, SLURM, state="Z", threads=7)
    collector = host.collector()
    assert host.settle(collector, 4711)["state"] == "running"


def test_a_hidden_process_is_unknown_and_not_gone(host: JobsHost) -> None:
    """/proc was mounted with hidepid=2: every process on the host was reported as ended."""
    host.end(1)
    collector = host.collector()
    reported = host.settle(collector, 4711)
    last = host.turn(collector, 4711)
    for _ in range(RECHECK_TURNS):
        host.turn(collector, 4711)
    reported = reported or dict(host.told()[-1].attributes)
    assert (reported["source"], reported["unknown"], reported["state"]) == (
        "unknown",
        HIDDEN,
        "running",
    )
    assert (last.outcome, last.message) == (CollectOutcome.BLIND, HIDEPID[:240])
    assert (host.counts(last)["unknown_count"], host.counts(last)["dead_count"]) == (1, 0)


def test_an_unreadable_stat_is_hidden(host: JobsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """hidepid=1 shows the folders but not their content."""

    def refuse(path: str, most: int) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(process_state, "_read", refuse)
    assert process_state.read_process(host.proc, 4711) == ProcessSnapshot(ProcessState.HIDDEN)


def test_numbers_of_another_namespace_are_not_looked_up(host: JobsHost) -> None:
    """In a PID namespace the agent found a shell under the number of a training process."""
    host.in_namespace("pid:[4026532761]")
    host.process(4711, SLURM)
    collector = host.collector()
    last = host.turns(RECHECK_TURNS + 2, collector, 4711)
    attributes = host.told()[-1].attributes
    assert (attributes["source"], attributes["unknown"]) == ("unknown", FOREIGN)
    assert (last.outcome, last.message) == (CollectOutcome.BLIND, _NAMESPACE_REMEDY)
    assert host.counts(last)["unknown_count"] == 1


def test_an_agent_in_a_container_sees_paths_from_where_it_is(host: JobsHost) -> None:
    """/host/proc in a pod: paths began with /../.. and no process had an owner."""
    host.process(4711, POD_CGROUP.replace("0::/kubepods.slice/", "0::/../../../"))
    assert host.settle(host.collector(), 4711)["pod_uid"] == POD
    host.process(4712, "0::/../..\n")
    collector = host.collector()
    host.settle(collector, 4712)
    last = host.turn(collector, 4712)
    assert last.outcome is CollectOutcome.BLIND and "--cgroupns=host" in last.message


def test_a_process_in_no_group_is_said_to_be(host: JobsHost) -> None:
    """No guess: a process started by hand in a rescue shell has no known owner."""
    host.process(4711, "0::/\n")
    assert host.settle(host.collector(), 4711)["unknown"] == NO_GROUP


def test_mig_instances_are_told_apart(host: JobsHost) -> None:
    """Two jobs on the instances of one GPU do not share it by mistake, and each has its own row."""
    host.process(4711, SLURM)
    host.process(4712, SLURM.replace("123", "124"))
    collector = host.collector()
    rows = [GpuProcess(GPU, 4711, 1, 0, 1), GpuProcess(GPU, 4712, 2, 0, 1)]
    last = host.turns(3, collector, *rows)
    reported = host.told()
    assert [(e.attributes["job_id"], e.attributes["gpu_instance"]) for e in reported] == [
        ("123", "1"),
        ("124", "2"),
    ]
    assert len({e.event_id for e in reported}) == 2
    assert host.counts(last)["jobs_count"] == 2


def test_a_gpu_that_does_not_answer_keeps_its_processes(host: JobsHost) -> None:
    """GPU 0 returned an error for a second, and all its jobs were reported as ended."""
    collector = host.running()
    last = host.turn(collector, gpus=[OTHER_GPU])
    assert last.blocks[0].devices == (OTHER_GPU,)
    host.turn(collector, 4711)
    assert host.told() == []


def test_while_a_gpu_does_not_answer_nobody_dies_on_it(host: JobsHost) -> None:
    """The driver hung, the job was killed meanwhile, and its number reused."""
    collector = host.running(start=5_000)
    host.end(4711)
    for _ in range(RECHECK_TURNS + DEAD_OBSERVATIONS_MIN):
        host.turn(collector, gpus=[OTHER_GPU])
    assert host.told() == []
    host.process(4711, SLURM.replace("123", "124"), start=90_000)
    for _ in range(3):
        host.turn(collector, 4711)
    reported = [(e.attributes["job_id"], e.attributes["state"]) for e in host.told()]
    assert reported == [("123", "ended"), ("124", "running")]


def test_a_sampler_of_one_gpu_looks_as_well(host: JobsHost) -> None:
    """A slow GPU's own sampler excludes all other devices: /proc is not a GPU."""
    host.process(4711, SLURM)
    collector = host.collector()
    collector.exclude(AllExcept.of(GPU, [OTHER_GPU]))
    assert host.turn(collector, 4711, gpus=[GPU]).outcome is CollectOutcome.OK


def test_memory_that_comes_and_goes_is_no_news(host: JobsHost) -> None:
    """A server's memory changed every second, and all processes were reported and read again."""
    host.process(4711, SLURM)
    collector = host.collector()
    host.settle(collector, GpuProcess(GPU, 4711, None, None, 1))
    blocks = {
        id(host.turn(collector, GpuProcess(GPU, 4711, None, None, n)).blocks[0]) for n in range(5)
    }
    assert len(blocks) == 1 and host.told() == []


def test_without_a_list_there_is_no_data(host: JobsHost) -> None:
    """The driver's collector failed; its last list must not remain."""
    collector = host.running()
    from gangline.agent.collector import run_collector

    assert run_collector(collector, host.clock).outcome is CollectOutcome.NO_DATA
    assert host.told() == []


def test_a_proc_that_held_a_sampler_is_left_alone(host: JobsHost) -> None:
    """The lock of all control groups was stuck, and one sampler after another with it."""
    host.process(4711, SLURM)
    collector = host.collector()
    collector.exclude(frozenset({process_state.DEVICE_NAME}))
    assert host.turn(collector, 4711).outcome is CollectOutcome.BLIND
    collector.exclude(frozenset())
    assert host.turn(collector, 4711).outcome is CollectOutcome.OK


def test_a_storm_of_processes_is_held_back(host: JobsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand short processes on each of a thousand hosts: the aggregator did nothing else."""
    monkeypatch.setattr(change_events, "AT_ONCE_MAX", 8)
    many = 20
    for pid in range(2, 2 + many):
        host.process(pid, SESSION)
    collector = host.collector()
    for _ in range(3):
        host.turn(collector, *range(2, 2 + many))
    assert len(host.told()) == 8
    host.clock.now_ns += 3 * int(REFILL_SECONDS * SECOND)
    for _ in range(RECHECK_TURNS):
        host.turn(collector, *range(2, 2 + many))
    assert 3 <= len(host.told()) <= 6


def test_who_takes_over_says_from_when_on_all_was_told_anew(host: JobsHost) -> None:
    """A job that ended during a takeover was shown as running for another hour."""
    host.process(4711, SLURM)
    host.process(4712, SESSION)
    before = host.collector()
    host.settle(before, 4711, 4712)
    [known] = {e.boottime_ns for e in host.anew}
    host.anew.clear()
    after = host.collector()
    host.turn(after, 4712)
    assert [e.device for e in host.anew] == [OTHER_GPU]  # without processes
    host.turn(after, 4712)
    host.turn(after, 4712)
    [other, anew] = host.anew
    [again] = host.told()
    assert (again.process_id, anew.device) == (4712, GPU)
    assert known < anew.boottime_ns < again.last_boottime_ns
    assert anew.revision > 0 and anew.event_id != other.event_id
    host.turns(RECHECK_TURNS + 1, after, 4712)
    assert len(host.anew) == 2  # once


def test_held_back_is_not_reported(host: JobsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a takeover in a storm, processes whose events did not fit would have counted as ended."""
    monkeypatch.setattr(change_events, "AT_ONCE_MAX", 8)
    many = range(2, 12)
    for pid in many:
        host.process(pid, SESSION)
    collector = host.collector()
    for _ in range(3):
        host.turn(collector, *many)
    assert {e.device for e in host.anew} == {OTHER_GPU}
    host.clock.now_ns += 4 * int(REFILL_SECONDS * SECOND)
    host.turns(RECHECK_TURNS, collector, *many)
    assert {e.device for e in host.anew} == {GPU, OTHER_GPU}


def test_what_found_no_room_is_told_at_the_next_turn(host: JobsHost) -> None:
    """The daemon was busy when 200 processes ended: the last forty were shown for an hour."""
    pids = range(2, 12)
    for pid in pids:
        host.process(pid, SLURM)
    collector = host.collector()
    host.room = 3
    host.turns(3, collector, *pids)
    assert len(host.told()) == 2 and len(host.anew) == 1
    host.room = None
    host.turn(collector, *pids)
    assert len(host.told()) == 8
    host.room = 4
    host.turn(collector)
    host.room = None
    host.turn(collector)
    ended = host.told()
    assert sorted(e.process_id for e in ended) == list(pids)
    assert {e.attributes["state"] for e in ended} == {"ended"}
    host.turn(collector)
    assert host.told() == []


def test_a_process_shown_later(host: JobsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc was remounted without hidepid: each process was listed twice, for an hour."""
    host.process(4711, SLURM)
    host.end(1)
    collector = host.collector()
    assert host.settle(collector, 4711)["source"] == "slurm"  # /proc shows it now
    host.end(4711)
    hidden = host.collector()
    host.settle(hidden, 4711)
    host.process(4711, SLURM)
    host.turns(2 * RECHECK_TURNS, hidden, 4711)
    host.turn(hidden)
    reported = host.told()
    assert [e.attributes["source"] for e in reported][-2:] == ["slurm", "slurm"]
    assert [e.attributes["state"] for e in reported][-1] == "ended"
    assert len({e.event_id for e in reported}) == 1


def test_a_name_that_a_process_chose_breaks_nothing(host: JobsHost) -> None:
    """A process called itself `) R 1 (x` and another by invalid UTF-8."""
    host.process(4711, SLURM, name=") R 1 (x")
    assert host.settle(host.collector(), 4711)["job_id"] == "123"
    folder = host.process(4712, SLURM)
    stat = (folder / "stat").read_bytes()
    (folder / "stat").write_bytes(stat.replace(b"python3", b"\xff" * 200))
    collector = host.collector()
    host.turns(3, collector, 4712)
    [event] = host.told()
    assert event.attributes["job_id"] == "123" and len(event.process_name) == 63


def test_of_this_machine() -> None:
    """Test with the kernel itself: this process, and an ended one."""
    me = process_state.read_process(Path("/proc"), os.getpid())
    assert (me.state, me.user_id) == (ProcessState.RUNNING, os.getuid())
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert process_state.read_process(Path("/proc"), child).state is ProcessState.ZOMBIE
    os.waitpid(child, 0)
    assert process_state.read_process(Path("/proc"), child).state is ProcessState.GONE


class ProcessTable:
    """Processes that start, end and reuse numbers, and the driver's list."""

    def __init__(self) -> None:
        self.starts: dict[int, int] = {}

    def look(self, pid: int) -> ProcessSnapshot:
        start = self.starts.get(pid)
        if start is None:
            return ProcessSnapshot(ProcessState.GONE)
        return replace(ProcessSnapshot(ProcessState.RUNNING, start, "p", 0), user_id=start)


Steps = st.lists(
    st.tuples(
        st.dictionaries(st.integers(1, 3), st.integers(1, 4), max_size=3),  # PID -> start
        st.sets(st.integers(1, 3)),  # listed PIDs
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(Steps)
def test_what_is_believed_of_a_number_held_at_two_looks(steps: object) -> None:
    """An identity belongs to a process seen under that number, and a dead process does not exist."""
    table = ProcessTable()
    known = ProcessTracker(table.look, table.look)
    assert isinstance(steps, list)
    for now, (starts, listed) in enumerate(steps):
        table.starts = starts
        known.observe(
            GpuProcessList((GPU,), tuple(GpuProcess(GPU, pid) for pid in sorted(listed))), now
        )
        held = {one.gpu_process.pid: one for one in known}
        assert held.keys() == listed
        for pid, one in held.items():
            if one.identity and not one.is_unsettled and one.state is ProcessState.RUNNING:
                assert one.observations >= 2
            if one.is_dead:
                assert one.ended_observations >= DEAD_OBSERVATIONS_MIN and not one.is_reused
            if one.is_reused:
                assert one.identity is None and one.source == ""
            assert one.identity is None or one.identity[0] == pid


@given(st.lists(st.integers(0, 20 * SECOND), max_size=60))
def test_a_budget_is_never_overdrawn(waits: list[int]) -> None:
    """In any span the number of events is at most the initial budget plus its refill."""
    budget, now, taken = event_bucket(), 0, 0
    for wait in waits:
        now += wait
        taken += sum(not budget.try_take(now / SECOND) for _ in range(AT_ONCE_MAX))
    assert taken <= AT_ONCE_MAX + now / SECOND / REFILL_SECONDS + 1e-6


def test_a_collector_may_be_made_without_a_host(tmp_path: Path) -> None:
    """A folder without /proc: no data, no error."""
    from gangline.agent.clock import SystemClock
    from gangline.agent.collector import run_collector
    from gangline.agent.hardware.files import Roots

    gpu_jobs = GpuJobs(Roots(sys=tmp_path, proc=tmp_path / "proc"))
    assert run_collector(gpu_jobs, SystemClock()).outcome is CollectOutcome.NO_DATA
