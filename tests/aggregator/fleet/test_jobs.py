"""Owners of GPUs in memory: agents' reports of processes, against a plain count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.fleet.jobs import (
    PROCESSES_PER_HOST_MAX,
    REPORT_AGE_NS_MAX,
    SWEEP_SECONDS,
    Jobs,
    ResidentJob,
)
from gangline.contract.wire import telemetry_pb2 as wire

BOOT, NEXT_BOOT = "0b" * 16, "0c" * 16
SLURM = {"source": "slurm", "job_id": "123"}
SESSION = {"source": "systemd", "unit": "session-3.scope"}
POD = {"source": "kubernetes", "namespace": "ml", "pod": "trainer-0", "pod_uid": "u"}
OWNERS: tuple[dict[str, str], ...] = (SLURM, SESSION, POD, {"source": "unknown"})


def told(
    pid: int, owner: dict[str, str], state: str = "running", *, gpu: str = "GPU-0", at: int = 1,
    boot: str = BOOT, **more: Any,
) -> wire.HealthEvent:  # fmt: skip
    return wire.HealthEvent(
        event_id=f"{boot}/{gpu}//{pid}/5", device=gpu, name="gpu.process", boottime_ns=at,
        last_boottime_ns=at, attributes={**owner, "state": state, **more},
    )  # fmt: skip


def test_a_job_of_two_hosts_is_one_and_sessions_are_not() -> None:
    """Two sick hosts of one job belong to one gang; two sessions belong to two users."""
    jobs = Jobs()
    for host in (0, 1):
        for gpu in ("GPU-0", "GPU-1"):
            jobs.observe(host, BOOT, told(1, SLURM, gpu=gpu))
        jobs.observe(host, BOOT, told(2, SESSION, gpu="GPU-2"))
    first, second = jobs.on_host(0).jobs
    assert (first.name, first.gpus_count, first.gpus) == ("123", 4, {0: 2, 1: 2})
    assert (second.name, second.gpus_count) == ("session-3.scope", 1)
    assert jobs.on_host(1).jobs[0] is first and jobs.on_host(1).jobs[1] is not second


@pytest.mark.parametrize("text", ["²", "٣", "-1", "1e5", "1" * 11, "", "7\n"])
def test_an_invalid_rank_is_unknown(text: str) -> None:
    """A superscript is a digit without a number: it ended the ingest of the host's events."""
    jobs = Jobs()
    jobs.observe(0, BOOT, told(1, SLURM, rank="3"))
    assert jobs.rank_of(0, "GPU-0") == 3
    jobs.observe(0, BOOT, told(1, SLURM, rank=text))
    assert jobs.rank_of(0, "GPU-0") == -1


def test_the_name_of_a_gpu_is_in_memory_once() -> None:
    """Each of 80,000 GPU names was kept twice, and copied at each registration."""
    fleet, uuid = Fleet(), "GPU-6b1d0c1e-0000-0000-0000-000000000000"
    ids = set()
    for _ in range(2):
        device = wire.Device.FromString(wire.Device(kind="gpu", key=uuid).SerializeToString())
        fleet.register("a", simulated=False, boot_id=b"b" * 16, devices=[device])
        ids |= {id(key) for _, key in fleet.attributes[0]}
    fleet.jobs.observe(0, BOOT, told(1, SLURM, gpu=uuid))
    ids |= {
        id(process.gpu)
        for _, processes in fleet.jobs._hosts.values()
        for process in processes.values()
    }
    assert len(ids) == 1


def test_jobs_of_several_hosts_by_the_gpu_that_they_hold() -> None:
    """A GPU's fault concerns neither the job on the next GPU, nor a job on this host alone."""
    jobs = Jobs()
    other = {"source": "slurm", "job_id": "124"}
    for host in (0, 1):
        jobs.observe(host, BOOT, told(1, SLURM, gpu="GPU-0"))
        jobs.observe(host, BOOT, told(2, other, gpu="GPU-1", gpu_instance="7"))
        jobs.observe(host, BOOT, told(3, SESSION, gpu="GPU-2"))

    def names(gpu: str = "") -> list[str]:
        return sorted(job.name for job in jobs.of_several_hosts(0, gpu))

    assert names() == ["123", "124"]
    assert (names("GPU-0"), names("GPU-1"), names("GPU-2"), names("GPU-3")) == (
        ["123"], ["124"], [], [],
    )  # fmt: skip
    assert jobs.of_several_hosts(9) == []


def test_a_job_of_which_only_the_dead_are_left_is_dead() -> None:
    """An ended process held 80 GB, and the drain waited for its job."""
    jobs = Jobs()
    jobs.observe(0, BOOT, told(1, SLURM))
    jobs.observe(0, BOOT, told(2, SLURM, gpu="GPU-1"))
    jobs.observe(0, BOOT, told(1, SLURM, "dead", dead="gone"))
    assert not jobs.on_host(0).is_dead
    jobs.observe(0, BOOT, told(2, SLURM, "ended", gpu="GPU-1"))
    assert jobs.on_host(0).is_dead and jobs.on_host(0).jobs[0].gpus_count == 1
    jobs.observe(0, BOOT, told(1, SLURM, "ended"))
    assert not jobs.on_host(0).jobs and not jobs.on_host(0).is_dead and len(jobs) == 0


def test_a_boot_and_a_collector_that_begins_anew_end_what_was() -> None:
    """The host crashed with its job, which was shown as running for a day."""
    jobs = Jobs()
    jobs.observe(0, BOOT, told(1, SLURM, at=10))
    jobs.observe(0, BOOT, told(2, SESSION, at=30))
    restart = wire.HealthEvent(
        event_id=f"{BOOT}/anew/gpu.process/GPU-0", device="GPU-0", name="gpu.full_report",
        boottime_ns=20, attributes={"what": "gpu.process"},
    )  # fmt: skip
    jobs.observe(0, BOOT, restart)
    assert [job.name for job in jobs.on_host(0).jobs] == ["session-3.scope"]
    jobs.observe(0, NEXT_BOOT, told(3, POD, boot=NEXT_BOOT))
    jobs.observe(0, NEXT_BOOT, told(2, SESSION))  # late, from the previous boot
    assert [job.name for job in jobs.on_host(0).jobs] == ["ml/trainer-0"]


def test_a_boot_ends_its_jobs_also_where_nothing_runs_after_it() -> None:
    """A host of ten days crashed and idled: drains waited ten more days for its job."""
    fleet, uptime_ns = Fleet(), 10 * 86_400 * 10**9
    boots = [bytes.fromhex(boot) for boot in (BOOT, NEXT_BOOT)]
    fleet.register("a", simulated=False, boot_id=boots[0], devices=[])
    fleet.observe_event("a", told(1, SLURM, at=uptime_ns), 1)
    assert fleet.jobs.on_host(0).jobs
    fleet.register("a", simulated=False, boot_id=boots[1], devices=[])
    assert not fleet.jobs.on_host(0).jobs and len(fleet.jobs) == 0
    fleet.observe_event("a", told(1, SLURM, at=uptime_ns), 2)
    assert not fleet.jobs.on_host(0).jobs


def test_what_runs_is_told_before_the_first_frame() -> None:
    """Events arrived before frames: one host in sixty lost its jobs for half an hour."""
    fleet, now_ns = Fleet(), 1_700_000_000 * 10**9
    fleet.register(
        "a", simulated=False, boot_id=bytes.fromhex(BOOT), devices=[], booted_ns=now_ns - 10**9
    )
    fleet.observe_event("a", told(1, SLURM, at=10**9), now_ns)
    for second in range(SWEEP_SECONDS):
        fleet.advance(now_ns + second * 10**9)
    assert fleet.jobs.on_host(0).jobs


def test_what_nobody_tells_any_more_is_forgotten() -> None:
    """An agent was killed in the night; the state of its jobs is unknown."""
    jobs = Jobs()
    jobs.observe(SWEEP_SECONDS, BOOT, told(1, SLURM, at=5))
    hosts = np.full(SWEEP_SECONDS + 1, 5 + REPORT_AGE_NS_MAX, dtype=np.int64)
    jobs.sweep(0, hosts)
    assert jobs.on_host(SWEEP_SECONDS).jobs
    jobs.sweep(0, hosts + 1)
    assert not jobs.on_host(SWEEP_SECONDS).jobs and len(jobs) == 0


def test_odd_words_say_nothing_and_too_many_are_left_out() -> None:
    """An agent of another version must not end judging, nor fill the memory."""
    jobs = Jobs()
    for cadence in ("", "-1", "1e9", "9" * 11, "٣"):
        jobs.observe(0, BOOT, told(1, SLURM, checkpoint_seconds=cadence))
    assert jobs.on_host(0).jobs[0].checkpoint_seconds == 0
    jobs.observe(0, BOOT, told(1, SLURM, checkpoint_seconds="900"))
    assert jobs.on_host(0).jobs[0].checkpoint_seconds == 900
    jobs.observe(0, BOOT, wire.HealthEvent(event_id="", name="gpu.process"))
    for pid in range(2, PROCESSES_PER_HOST_MAX + 50):
        jobs.observe(0, BOOT, told(pid, SLURM, gpu=f"GPU-{pid}"))
    assert jobs.on_host(0).jobs[0].gpus_count == PROCESSES_PER_HOST_MAX


class Counting(RuleBasedStateMachine):
    """Events in any order: each host's jobs are those of its last reported processes."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = Jobs()
        self.there: dict[tuple[int, str, int], tuple[int, bool]] = {}

    @rule(
        host=st.integers(0, 2), gpu=st.sampled_from(["GPU-0", "GPU-1"]), pid=st.integers(1, 3),
        owner=st.integers(0, 3), state=st.sampled_from(["running", "running", "dead", "ended", "x"]),
    )  # fmt: skip
    def tell(self, host: int, gpu: str, pid: int, owner: int, state: str) -> None:
        self.jobs.observe(host, BOOT, told(pid, OWNERS[owner], state, gpu=gpu))
        if state in ("running", "dead"):
            self.there[host, gpu, pid] = owner, state == "dead"
        else:
            self.there.pop((host, gpu, pid), None)

    @invariant()
    def all_is_counted(self) -> None:
        for host in range(3):
            own = {key: process for key, process in self.there.items() if key[0] == host}
            here = self.jobs.on_host(host)
            assert here.is_dead == (bool(own) and all(dead for _, dead in own.values()))
            assert len(here.jobs) == len({owner for owner, _ in own.values()})
            for job in here.jobs:
                source = job.key[0]
                wide = source in ("slurm", "kubernetes")
                gpus = {
                    key[:2] for key, (owner, _) in self.there.items()
                    if OWNERS[owner]["source"] == source and (wide or key[0] == host)
                }  # fmt: skip
                assert job.gpus_count == len(gpus)
        assert bool(len(self.jobs)) == bool(self.there)

    @invariant()
    def partly_used_hosts_have_their_jobs(self) -> None:
        """A host of two GPUs is missing only if it is idle, or if a single job has both."""
        expected = {
            host: tuple(
                sorted(ResidentJob(job.name, job.gpus[host], job.gpus_count) for job in jobs)
            )
            for host in range(3)
            if (jobs := list(self.jobs.on_host(host).jobs))
            and (len(jobs) > 1 or jobs[0].gpus[host] < 2)
        }
        assert self.jobs.residents(np.full(3, 2, dtype=np.int32)) == expected


TestCounting = Counting.TestCase
TestCounting.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, derandomize=True
)
