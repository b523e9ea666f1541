"""A job that hangs, from readings to its verdict: rank, host and cause, without a symptom of any part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gangline.aggregator.runs.verdicts import JobVerdict
from gangline.aggregator.scoring.job_faults import HANG
from tests.aggregator.runs.test_run_log import TRAINING, Runs
from tests.worlds import GPUS, gpu_of

WAITS = {"compute_ratio": 0.0, "wait_ratio": 1.0, "host_stall_ratio": 0.0, "idle_ratio": 0.0}
STALLS = WAITS | {"wait_ratio": 0.0, "host_stall_ratio": 1.0}
COMPUTES = WAITS | {"wait_ratio": 0.0, "compute_ratio": 1.0}
SECOND = 60


class Training(Runs):
    """A job on all GPUs of two hosts, which has worked for three minutes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for index, host in enumerate(self.world.hosts):
            for gpu in range(GPUS):
                device = gpu_of(host, gpu)
                rank = index * GPUS + gpu
                self.world.event(
                    host, 0, device, "gpu.process", event_id=f"/{device}//train", process_id=7,
                    attributes={"state": "running", "source": "slurm", "job_id": "train", "rank": str(rank)},
                )  # fmt: skip
        self.set_all(TRAINING)
        self.pass_seconds(180)

    def set_all(self, shares: dict[str, float]) -> None:
        for host in self.world.hosts:
            for gpu in range(GPUS):
                host.set("gpu_fast_1s", gpu_of(host, gpu), **shares)

    def set_one(self, shares: dict[str, float]) -> None:
        """Set the last GPU of the second host."""
        host = self.world.hosts[1]
        host.set("gpu_fast_1s", gpu_of(host, GPUS - 1), **shares)

    def hangs(self) -> list[JobVerdict]:
        (record,) = self.log.windows.records.values()
        verdicts = self.log.verdicts.of_run(record.run.run_id)
        return [v for v in verdicts if v.fault.verdict == HANG and not v.until_ns]


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


def test_the_rank_that_does_not_arrive_is_named_within_a_minute(training: Training) -> None:
    training.set_all(WAITS)
    training.set_one(STALLS)
    training.pass_seconds(SECOND)
    (hang,) = training.hangs()
    host = training.world.hosts[1]
    assert hang.fault.hosts == ("h1",) and hang.fault.device == gpu_of(host, GPUS - 1)
    late = f"rank {2 * GPUS - 1} ({hang.fault.device} of h1), which runs no kernel"
    assert hang.fault.message.endswith(f"{2 * GPUS - 1} other GPUs wait for {late}")
    assert hang.is_stopped and hang.slowdown == 1.0
    training.set_all(TRAINING)
    training.pass_seconds(60)
    assert training.hangs() == []
    training.close()


def test_all_wait_and_nobody_is_blamed(training: Training) -> None:
    training.set_all(WAITS)
    training.pass_seconds(SECOND)
    (hang,) = training.hangs()
    assert hang.fault.hosts == () and f"all {2 * GPUS} GPUs wait" in hang.fault.message
    training.close()


def test_a_silent_host_is_late(training: Training) -> None:
    training.set_all(WAITS)
    training.world.hosts[1].silent = True
    training.pass_seconds(SECOND)
    (hang,) = training.hangs()
    assert hang.fault.hosts == ("h1",) and "which send no readings" in hang.fault.message
    training.close()


def test_pauses_that_return_are_no_hang(training: Training) -> None:
    """A checkpoint of 25 s, then longer ones; an evaluation by one rank; a pause of all; a job that writes."""
    for seconds in (25, 45):
        training.set_all(WAITS)
        training.set_one(STALLS)
        training.pass_seconds(seconds)
        assert training.hangs() == []
        training.set_all(TRAINING)
        training.pass_seconds(20)
    training.set_all(WAITS)
    training.set_one(COMPUTES)
    training.pass_seconds(120)
    assert training.hangs() == []
    training.set_all(TRAINING)
    training.pass_seconds(20)
    training.set_all(STALLS)
    training.pass_seconds(400)
    assert training.hangs() == []
    training.close()


@pytest.mark.parametrize(("name", "count"), [("inference", 0), ("training", 1)])
def test_a_service_without_requests_does_not_hang(
    training: Training, name: str, count: int
) -> None:
    """Some engines leave all ranks but the first in a collective until the next request."""
    (assessment,) = training.log.latest.values()
    known = replace(assessment, workload_class=assessment.workload_class._replace(name=name))
    training.log.latest[assessment.summary.key] = known
    training.set_all(WAITS)
    training.set_one(STALLS)
    training.pass_seconds(45)
    assert len(training.hangs()) == count
    training.close()


def test_a_late_host_that_writes_has_more_time(training: Training) -> None:
    host = training.world.hosts[1]
    host.set("disk_1s", "nvme0n1", read_bytes=0, written_bytes=0)
    host.grow("disk_1s", "nvme0n1", written_bytes=1e9)
    training.pass_seconds(10)
    training.set_all(WAITS)
    training.set_one(STALLS)
    training.pass_seconds(120)
    assert training.hangs() == []
    training.close()
