"""Processes on the GPUs, from the driver's list and /proc to an operator's question: agent and aggregator together."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.collector import CollectOutcome, run_collector
from gangline.agent.collectors.gpu_processes import GpuJobs, GpuProcesses
from gangline.agent.collectors.kubelet import KubeletAllocations
from gangline.agent.collectors.process_listing import GpuProcess
from gangline.agent.events import EventPublisher
from gangline.agent.frame_builder import FrameBuilder
from gangline.agent.hardware.kubelet import Allocation
from gangline.aggregator.store import snapshot_file
from gangline.aggregator.store.table_copies import COPIES
from gangline.contract.wire import telemetry_pb2 as wire
from tests.agent.jobs_host import GPU, OTHER_GPU, POD, POD_CGROUP, SESSION, SLURM, JobsHost
from tests.aggregator.conftest import Agent
from tests.fake_nvml.build import build
from tests.fake_nvml.parts_scenario import host_lines, mig_device, process, with_mig
from tests.fake_nvml.scenario import Scenario, gpus

SECOND = 1_000_000_000
#: The hosts' clocks begin this long ago: a reading of a future time is never the latest.
AGO_NS = 10 * SECOND

FILES = ("gangline.duckdb", "operators.duckdb")


class Fleet:
    """Hosts whose agents run in the test, and their reports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.hosts: dict[str, tuple[JobsHost, GpuJobs]] = {}

    def host(self, name: str) -> JobsHost:
        folder = self._folder / name
        folder.mkdir()
        host = JobsHost(folder)
        host.clock.now_ns = 3600 * SECOND  # as the agent of `conftest.py` has been up
        host.clock.wall_ahead_ns = time.time_ns() - AGO_NS - host.clock.now_ns
        self.hosts[name] = host, host.collector()
        return host

    def turn(self, name: str, *holdings: GpuProcess | int) -> None:
        host, collector = self.hosts[name]
        host.turn(collector, *holdings)

    def run(self, lab: Any) -> None:
        async def way() -> None:
            async with lab.aggregator() as aggregator:
                for index, (name, (host, _)) in enumerate(self.hosts.items()):
                    agent = Agent(name, bytes([index]) * 16, bytes.fromhex(boot_of(host)))
                    async with lab.agent(aggregator, agent) as connection:
                        request = wire.ReportEventsRequest(events=host.told() + host.anew)
                        host.anew.clear()
                        await connection.stub.ReportEvents(request, metadata=connection.metadata)

        asyncio.run(way())


def boot_of(host: JobsHost) -> str:
    return (host.proc / "sys/kernel/random/boot_id").read_text().strip().replace("-", "")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def rows_of_both(lab: Any, query: str) -> list[tuple[Any, ...]]:
    """Return the answer of the store and of the operators' file, which must be equal."""
    live, copied = (lab.rows(query, file) for file in FILES)
    assert live == copied, query
    return list(live)


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
def test_a_job_over_two_hosts_is_one_row(lab: Any, fleet: Fleet) -> None:
    """At 3 a.m.: host b is sick; which job is on it, and where else is that job?"""
    for name in ("a", "b"):
        host = fleet.host(name)
        host.process(4711, SLURM, start=60_000)
        host.process(4712, SLURM, start=60_000)
        for _ in range(3):
            fleet.turn(name, GpuProcess(GPU, 4711), GpuProcess(OTHER_GPU, 4712))
    fleet.run(lab)
    [row] = rows_of_both(
        lab, "SELECT source, job, hosts, gpus_count, processes_count, dead_count FROM ops.jobs"
    )
    assert row == ("slurm", "123", ["a", "b"], 4, 4, 0)
    since = [
        since_seconds
        for (since_seconds,) in rows_of_both(
            lab, "SELECT epoch(since) FROM ops.job(123) ORDER BY 1"
        )
    ]
    began = time.time() - 3600 + 600  # the process's own start, not when it was found
    assert since == pytest.approx([began] * 4, abs=60)
    query = "SELECT host, process_id, user_id FROM ops.job(123) WHERE gpu LIKE 'GPU-00000001%' ORDER BY host"
    assert rows_of_both(lab, query) == [("a", 4712, 1000), ("b", 4712, 1000)]
    assert rows_of_both(lab, "FROM ops.faults") == []  # a job is not a fault


@pytest.mark.slow
def test_what_ended_is_ended_and_kept(lab: Any, fleet: Fleet) -> None:
    """The post mortem needs past processes, the night shift the current ones."""
    host = fleet.host("a")
    host.process(4711, SLURM)
    for _ in range(3):
        fleet.turn("a", 4711)
    fleet.turn("a")
    fleet.run(lab)
    assert lab.rows("FROM ops.jobs") == []
    assert lab.rows("SELECT state FROM ops.job('123')") == [("ended",)]


@pytest.mark.slow
def test_sessions_of_two_hosts_are_not_one_job(lab: Any, fleet: Fleet) -> None:
    """session-3.scope is on every host another person's."""
    for name in ("a", "b"):
        fleet.host(name).process(4711, SESSION)
        for _ in range(3):
            fleet.turn(name, 4711)
    fleet.run(lab)
    assert lab.rows("SELECT job, hosts FROM ops.jobs ORDER BY hosts") == [
        ("session-3.scope", ["a"]),
        ("session-3.scope", ["b"]),
    ]


def test_a_gpu_that_a_dead_process_holds_shows(lab: Any, fleet: Fleet) -> None:
    """Which job left 80 GB behind?"""
    host = fleet.host("a")
    host.process(4711, SLURM)
    for _ in range(3):
        fleet.turn("a", 4711)
    host.end(4711)
    for _ in range(13):
        fleet.turn("a", 4711)
    fleet.run(lab)
    assert lab.rows("SELECT job, dead_count FROM ops.jobs") == [("123", 1)]
    assert lab.rows("SELECT state, attributes['dead'] FROM ops.gpu_processes") == [("dead", "gone")]


@pytest.mark.slow
def test_a_boot_ends_all_processes(lab: Any, fleet: Fleet) -> None:
    """The host crashed with its job, and the job was shown as running on it for a day."""
    host = fleet.host("a")
    host.process(4711, SLURM)
    for _ in range(3):
        fleet.turn("a", 4711)
    fleet.run(lab)
    boot = host.proc / "sys/kernel/random/boot_id"
    boot.write_text("ffffffff-0000-4000-8000-000000000000\n")
    fleet.run(lab)
    assert lab.rows("SELECT state FROM ops.gpu_processes") == [("ended",)]


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
def test_what_ended_while_nobody_looked_has_ended(lab: Any, fleet: Fleet) -> None:
    """The agent was upgraded, and for an hour the GPU belonged to two jobs: the one that had ended meanwhile, and the next."""
    host = fleet.host("a")
    host.process(4711, SLURM)
    host.process(4713, SESSION)
    for _ in range(3):
        fleet.turn("a", 4711, GpuProcess(OTHER_GPU, 4713))
    fleet.run(lab)
    host.process(4712, SLURM.replace("123", "124"))
    fleet.hosts["a"] = host, host.collector()
    for _ in range(3):
        fleet.turn("a", 4712, GpuProcess(OTHER_GPU, 4713))
    fleet.run(lab)
    assert rows_of_both(lab, "SELECT job FROM ops.jobs ORDER BY job") == [
        ("124",),
        ("session-3.scope",),
    ]
    assert rows_of_both(lab, "SELECT state FROM ops.job(123)") == [("ended",)]


@pytest.mark.slow
def test_a_gpu_that_does_not_answer_after_a_restart_ends_nothing(lab: Any, fleet: Fleet) -> None:
    """The driver hung, the agent was restarted, and the job that hung with it was reported as ended."""
    host = fleet.host("a")
    host.process(4711, SLURM)
    for _ in range(3):
        fleet.turn("a", 4711)
    collector = host.collector()
    for _ in range(3):
        host.turn(collector, gpus=[OTHER_GPU])
    fleet.run(lab)
    assert lab.rows("SELECT state FROM ops.job(123)") == [("running",)]


@pytest.mark.slow
def test_what_is_not_told_any_more_is_not_shown_as_running(lab: Any, fleet: Fleet) -> None:
    """An agent was killed in the night; whether its jobs continue is unknown."""
    host = fleet.host("a")
    host.process(4711, SLURM)
    host.clock.wall_ahead_ns -= 7200 * SECOND
    for _ in range(3):
        fleet.turn("a", 4711)
    fleet.run(lab)
    assert lab.rows("FROM ops.jobs") == []
    assert lab.rows("SELECT state FROM ops.job(123)") == [("no longer reported",)]


@pytest.mark.usefixtures("operators_file")
def test_allocation_beside_processes(
    lab: Any, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holding is not using: one pod computes, one has its GPU idle, one meets a stranger on it."""
    host = fleet.host("a")
    (host.proc.parent / f"var/log/pods/ml_trainer-0_{POD}").mkdir(parents=True)
    host.process(4711, POD_CGROUP)
    host.process(4712, SESSION)
    third = GPU.replace("00000000-", "00000002-", 1)
    for _ in range(3):
        fleet.turn("a", GpuProcess(GPU, 4711), GpuProcess(third, 4712))
    given = [
        Allocation("ml", pod, "main", "nvidia.com/gpu", gpu)
        for pod, gpu in (("trainer-0", GPU), ("idle-0", OTHER_GPU), ("robbed-0", third))
    ]
    monkeypatch.setattr(
        "gangline.agent.hardware.kubelet.list_allocations", lambda path, seconds: given
    )
    kubelet = KubeletAllocations(host.roots, host.clock)
    kubelet.start(EventPublisher(host.clock, host, lambda: None))
    kubelet.collect()
    fleet.run(lab)
    assert rows_of_both(
        lab,
        "SELECT pod, processes_count, other_processes_count FROM ops.gpu_allocations ORDER BY gpu",
    ) == [("trainer-0", 1, 0), ("idle-0", 0, 0), ("robbed-0", 0, 1)]
    assert rows_of_both(lab, "SELECT job FROM ops.jobs WHERE source = 'kubernetes'") == [
        ("ml/trainer-0",)
    ]


@pytest.mark.usefixtures("operators_file")
def test_many_jobs_leave_room_for_faults(
    lab: Any, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operators' file keeps the last 100,000 events, and of a large fleet all of those were jobs."""
    short = [replace(copy, rows_max=1) if copy.table == "events" else copy for copy in COPIES]
    monkeypatch.setattr(snapshot_file, "COPIES", short)
    host = fleet.host("a")
    host.put(wire.HealthEvent(event_id="x", device_kind="gpu", device=GPU, name="gpu.xid", code=79))
    for pid in range(4711, 4715):
        host.process(pid, SLURM)
    for _ in range(3):
        fleet.turn("a", *range(4711, 4715))
    fleet.run(lab)
    names = {name for (name,) in lab.rows("SELECT name FROM events", "operators.duckdb")}
    of_jobs = names - {"gpu.xid"}
    assert len(of_jobs) == 1 and names > of_jobs, (
        "one of each kind, whichever of those of one moment"
    )
    assert of_jobs <= {"gpu.process", "gpu.full_report"}
    ((left_out,),) = lab.rows("SELECT left_out FROM snapshot", "operators.duckdb")
    assert [re.sub("of [0-9]+", "of N", message) for message in left_out] == [
        "events: the newest 1 of N rows"
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
def test_from_the_driver_to_the_question(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole path: NVML's lists, MIG, /proc, frames and events, the store, ops.jobs."""
    library = build(tmp_path / "library")
    host = JobsHost(tmp_path, nvml_library=str(library))
    host.clock.now_ns = 3600 * SECOND
    host.clock.wall_ahead_ns = time.time_ns() - AGO_NS - host.clock.now_ns
    first, second = gpus(2)
    first.lines += [process(4711, 60 << 30), process(4712, 1 << 30)]
    second = with_mig(second)
    second.lines += [process(4713, 8 << 30, instance=1, compute=0)]
    monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
    Scenario(
        tmp_path / "scenario",
        [first, second, mig_device(1, 1)],
        host=host_lines([first, second, mig_device(1, 1)]),
    )
    host.process(4711, SLURM)
    host.process(4713, SLURM.replace("task_0", "task_1"))  # and 4712 has ended
    lister, collector = GpuProcesses(host.roots), host.collector()
    framer = FrameBuilder(b"r" * 16, bytes.fromhex(boot_of(host)))
    batches = []
    for sequence in range(1, 4):
        host.clock.now_ns += SECOND
        turns = [run_collector(turning, host.clock) for turning in (lister, collector)]
        assert [turn.outcome for turn in turns] == [CollectOutcome.OK, CollectOutcome.OK], turns
        blocks = [block for turn in turns for block in turn.blocks]
        frame = framer.build(sequence, host.clock.now_ns, host.clock.wall_ns(), blocks)
        batches.append(wire.TelemetryBatch(sequence=sequence, frame=frame))

    async def way() -> None:
        agent = Agent("a", b"r" * 16, bytes.fromhex(boot_of(host)))
        async with lab.aggregator() as aggregator, lab.agent(aggregator, agent) as connection:
            await connection.send(*batches)
            assert not connection.refused
            request = wire.ReportEventsRequest(events=host.told())
            await connection.stub.ReportEvents(request, metadata=connection.metadata)

    asyncio.run(way())
    lister._session.close()
    for file in FILES:
        assert lab.rows(
            "SELECT job, hosts, gpus_count, processes_count FROM ops.jobs WHERE source = 'slurm'",
            file,
        ) == [("123", ["a"], 2, 2)]
        assert lab.rows("SELECT gpu, gpu_instance FROM ops.job(123) ORDER BY gpu", file) == [
            (first.uuid, None),
            (second.uuid, 1),
        ]
        assert lab.rows(
            "SELECT process_id FROM ops.gpu_processes WHERE state = 'dead' AND source = 'unknown'",
            file,
        ) == [(4712,)]
        assert lab.rows(
            "SELECT device, in_jobs_count, dead_count, dead_memory_bytes FROM latest.gpu_job_1s_changes "
            "ORDER BY device",
            file,
        ) == [(first.uuid, 1, 1, float(1 << 30)), (second.uuid, 1, 0, 0)]
        # text columns join number columns
        assert lab.rows(
            "SELECT j.process_id, p.memory_used_bytes FROM ops.job(123) AS j "
            "JOIN latest.gpu_process_1s_changes AS p ON p.host = j.host AND "
            "p.start_nanoseconds::VARCHAR = j.attributes['start_nanoseconds'] AND "
            "p.device LIKE j.gpu || '/%' ORDER BY 1",
            file,
        ) == [(4711, float(60 << 30)), (4713, float(8 << 30))]
