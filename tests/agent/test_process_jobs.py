"""The job of a process that a driver names in the kernel log."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.agent.collectors import process_jobs
from gangline.agent.collectors.process_jobs import PROCESSES_MAX, ProcessJobs
from gangline.agent.hardware.process_state import ProcessSnapshot, ProcessState
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.processes import GUARD_SECONDS

CGROUP = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n"
JOB = {"job": "Slurm job 42 step 0", "job_source": "slurm", "job_id": "42"}


def process(proc: Path, pid: int, cgroup: str = CGROUP) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    numbers = " ".join(["0"] * 16 + ["1", "0", "7777"] + ["0"] * 30)
    (folder / "stat").write_text(f"{pid} (trap) R {numbers}\n")
    (folder / "status").write_text("Uid:\t1000\t1000\t1000\t1000\n")
    (folder / "cgroup").write_text(cgroup)


def reported(pid: int, **attributes: str) -> HealthEvent:
    return HealthEvent(name="gpu.process", process_id=pid, attributes=attributes)


def test_a_process_is_of_the_job_that_its_event_or_its_control_group_names(tmp_path: Path) -> None:
    """A job of a second met XID 31; the list of processes, read each second, did not contain it."""
    process(tmp_path, 17)
    process(tmp_path, 18, "0::/\n")
    jobs = ProcessJobs(tmp_path)
    assert jobs.attributes(17) == JOB
    assert jobs.attributes(18) == jobs.attributes(19) == {}
    jobs.observe(reported(20, source="slurm", job_id="42", step="0", state="running"))
    jobs.observe(reported(21, source="unknown", unknown="hidden"))
    jobs.observe(HealthEvent(name="gpu.xid", process_id=22))
    assert jobs.attributes(20) == JOB  # also after its end
    assert jobs.attributes(21) == jobs.attributes(22) == {}
    for pid in range(100, 100 + PROCESSES_MAX):
        jobs.observe(reported(pid, source="kubernetes", namespace="ml", pod="train-0", pod_uid="u"))
    assert jobs.attributes(20) == {}
    assert jobs.attributes(100)["job"] == "pod ml/train-0"


@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_stuck_proc(
    tmp_path: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control group that is being removed holds the kernel's lock, and blocks every reader of it."""
    process(tmp_path, 17)
    started: list[int] = []

    def read(proc: Path, pid: int) -> ProcessSnapshot:
        started.append(pid)
        held.wait(GUARD_SECONDS)
        return ProcessSnapshot(ProcessState.GONE)

    monkeypatch.setattr(process_jobs, "read_process", read)
    monkeypatch.setattr(process_jobs, "LOOKUP_SECONDS_MAX", 0.0)
    jobs = ProcessJobs(tmp_path)
    assert jobs.attributes(17) == jobs.attributes(17) == {}
    assert started == [17]  # no second thread joins the first


def test_a_number_of_another_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container of its own the agent would blame the process with the same number there."""
    process(tmp_path, 17)
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[4026532001]")
    assert ProcessJobs(tmp_path).attributes(17) == {}
