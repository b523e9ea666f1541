"""Jobs that hold more HBM than their workload ever uses: by the high-water mark of enough runs, never by a mean."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.runs.run_log import RunLog
from gangline.aggregator.service.job import JobService
from gangline.contract.wire import job_pb2 as wire
from tests.aggregator.runs.test_run_log import TRAINING, Runs
from tests.worlds import StoredWorld, gpu_of

HOUR = 3600
#: A run: readings per GPU in seconds, high-water mark (None: unknown), days since it was last seen.
Use = tuple[int, float | None, float]
ENOUGH: list[Use] = [(10 * HOUR, 20e9, 10.0), (10 * HOUR, 31e9, 5.0), (10 * HOUR, 30e9, 0.0)]
CASES: dict[str, tuple[list[Use], str | None]] = {
    "enough": (ENOUGH, "holds 2 x 80 GB and never used more than 31 GB of a GPU in 11 days (3 runs, 30 h of readings)"),
    "one phase of one run uses all": ([*ENOUGH, (60, 79e9, 3.0)], None),
    "memory of a run is unknown": ([*ENOUGH, (10 * HOUR, None, 3.0)], None),
    "two runs": (ENOUGH[1:], None),
    "three runs, one of them short": ([*ENOUGH[1:], (60, 20e9, 1.0)], None),
    "three runs of two hours": ([(2 * HOUR, 20e9, day) for day in (2.0, 1.0, 0.0)], None),
    "a larger run is older than 14 days": ([*ENOUGH, (10 * HOUR, 79e9, 15.0)], "never used more than 31 GB"),
    "old runs are no evidence": ([(10 * HOUR, 20e9, 20.0)] * 5 + ENOUGH[2:], None),
    "more than half is used": ([*ENOUGH, (10 * HOUR, 41e9, 1.0)], None),
}  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StoredWorld]:
    world = StoredWorld(1, tmp_path, gpus=2)
    for gpu in range(2):
        world.hosts[0].set("gpu_10s", gpu_of(world.hosts[0], gpu), memory_total_bytes=80e9)
    world.run(20)
    assert world.store
    yield world
    world.store.close()


def put_run(connection: Any, number: int, use: Use, *, runs_now: bool) -> None:
    seconds, high, days = use
    now_seconds = connection.execute("SELECT epoch(ops.taken())").fetchall()[0][0]
    run_id, last_seen = f"slurm/train-{number}@0", now_seconds - days * 86_400
    connection.execute(
        "INSERT INTO runs BY NAME SELECT ? AS run_id, ? AS job, to_timestamp(?)::TIMESTAMP AS begun, "
        "to_timestamp(?)::TIMESTAMP AS time, if(?, NULL, to_timestamp(?)::TIMESTAMP) AS ended, 2 AS gpus, 1 AS hosts, "
        "'H100' AS gpu_model, 'w' AS workload_id, ['h0'] AS host_names, false AS simulated",
        [run_id, f"train-{number}", last_seen - seconds, last_seen, runs_now, last_seen],
    )
    if high is not None:
        connection.execute(
            "INSERT INTO run_demand BY NAME SELECT ? AS run_id, 'hbm_bytes' AS resource, ? AS high, ? AS readings, "
            "to_timestamp(?)::TIMESTAMP AS time",
            [run_id, high, 2 * seconds, last_seen],
        )


def messages_of(world: StoredWorld) -> dict[str, str]:
    assert world.store
    with world.store.reading() as cursor:
        return dict(cursor.execute("SELECT job, message FROM ops.oversized_runs").fetchall())


@pytest.mark.parametrize("case", CASES)
def test_only_enough_evidence_gives_advice(world: StoredWorld, case: str) -> None:
    uses, expected = CASES[case]
    assert world.store

    def put(connection: Any) -> None:
        for number, use in enumerate(uses):
            put_run(connection, number, use, runs_now=use[2] == 0.0)

    world.store.in_transaction(put)
    messages = messages_of(world)
    assert len(messages) == (expected is not None)
    assert not expected or all(expected in message for message in messages.values())


def test_another_gpu_model_is_other_evidence(world: StoredWorld) -> None:
    """A run on GPUs of another model may use another batch."""
    assert world.store

    def put(connection: Any) -> None:
        for number, use in enumerate(ENOUGH):
            put_run(connection, number, use, runs_now=use[2] == 0.0)
        connection.execute("UPDATE runs SET gpu_model = 'A100' WHERE ended IS NULL")

    world.store.in_transaction(put)
    assert messages_of(world) == {}


def test_the_job_page_shows_it(tmp_path: Path) -> None:
    """The line of `gangline job` is the row of SQL, without another rule."""
    runs = Runs(tmp_path)
    host = runs.world.hosts[0]
    for gpu in range(2):
        host.set("gpu_10s", gpu_of(host, gpu), memory_total_bytes=80e9)
    runs.run("train", TRAINING, 2.0, seconds=90, end=False)
    runs.log.oversized = {run_id: "holds too much" for run_id in _run_ids(runs.log)}
    service = JobService(runs.log, runs.world.fleet, tuple, lambda: runs.world.now_ns)
    story = _story(service)
    assert story.run.memory_message == "holds too much"
    runs.close()


def _run_ids(log: RunLog) -> list[str]:
    return [assessment.summary.run_id for assessment in log.latest.values()]


def _story(service: JobService) -> wire.JobStory:
    return asyncio.run(service.GetJob(wire.GetJobRequest(job="train"), None))
