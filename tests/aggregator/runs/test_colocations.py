"""Two jobs on a host: the neighbor is the cause of a slow pace only if it came with it, in verdicts and in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.runs.colocations import blamed_on_neighbors
from gangline.aggregator.runs.run_log import RunLog
from gangline.aggregator.scoring.job_faults import NEIGHBOR, NODE, JobFault, Strength
from gangline.aggregator.scoring.rules.gang_neighbors import hosts_beside_neighbors
from gangline.aggregator.scoring.symptom import short
from gangline.aggregator.scoring.view import FleetView
from tests.aggregator.runs.test_run_log import TRAINING, Runs
from tests.worlds import BUSY, GPUS, World, blamed, gpu_of, pass_steps, tell

ALONE, BESIDE = 180, 180


class Pair(Runs):
    """Job `train` on the first GPU of both hosts; `copy` comes to the second GPU of the first host."""

    def begin(self, job: str, host: int, gpu: int, step: float) -> None:
        place = self.world.hosts[host]
        tell(self.world, place, job, gpus=[gpu])
        place.set("gpu_fast_1s", gpu_of(place, gpu), **TRAINING)
        place.set("gpu_fast_10s", gpu_of(place, gpu), step_seconds=step)

    def end(self, job: str, host: int, gpu: int) -> None:
        tell(self.world, self.world.hosts[host], job, "ended", gpus=[gpu])

    def set_step(self, step: float) -> None:
        for host in self.world.hosts:
            host.set("gpu_fast_10s", gpu_of(host, 0), step_seconds=step)

    def colocation(self) -> dict[str, Any] | None:
        with self.store.reading() as cursor:
            result = cursor.execute("FROM ops.colocations WHERE job = 'train'")
            names = [column[0] for column in result.description or ()]
            rows = [dict(zip(names, values, strict=True)) for values in result.fetchall()]
        return rows[0] if rows else None

    def verdicts(self) -> list[str]:
        run_id = next(
            r.run.run_id for r in self.log.windows.records.values() if r.run.job == "train"
        )
        return [v.fault.verdict for v in self.log.verdicts.of_run(run_id) if not v.until_ns]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    result = Pair(tmp_path)
    for host in range(2):
        result.begin("train", host, 0, 2.0)
    result.pass_seconds(ALONE)
    return result


def test_a_neighbor_that_slows_a_job_is_named(pair: Pair) -> None:
    pair.begin("copy", 0, 1, 1.0)
    pair.set_step(2.2)
    pair.pass_seconds(BESIDE)
    row = pair.colocation()
    assert row is not None
    assert (row["neighbor"], row["hosts"], row["effect"], row["until"]) == (
        "copy",
        ["h0"],
        "slower",
        None,
    )
    assert row["slowdown_ratio"] == pytest.approx(0.09, abs=0.01)
    assert row["message"].startswith("job copy has slowed job train by 9 % on h0 since ")
    # 2 GPUs x 9 % x 24 h; both hosts have a job.
    assert row["message"].endswith(
        "the slowdown costs 4.4 GPU-hours in 24 h, and no host is free for job copy"
    )
    assert pair.verdicts()[0] == NEIGHBOR
    (symptom,) = hosts_beside_neighbors(FleetView(pair.world.fleet, pair.world.now_ns))
    with pair.store.reading() as cursor:
        (shown,) = cursor.execute(symptom.sql).fetchall()
    assert symptom.host == 0 and symptom.value == pytest.approx(shown[5], abs=0.001)
    assert symptom.message == shown[6] == row["message"]
    pair.end("copy", 0, 1)
    pair.set_step(2.0)
    pair.pass_seconds(120)
    assert NEIGHBOR not in pair.verdicts()
    row = pair.colocation()
    assert row is not None and row["until"] is not None and row["effect"] == "slower"
    pair.close()


@pytest.mark.parametrize("step_after", [2.2, 2.0])
def test_a_neighbor_stays_named_over_a_restart(pair: Pair, step_after: float) -> None:
    """After each upgrade the gang's rule would drain the host: the windows alone are lost."""
    pair.begin("copy", 0, 1, 1.0)
    pair.set_step(2.2)
    pair.pass_seconds(BESIDE)
    (before,) = pair.log.colocations.slowed_jobs(pair.world.now_ns)[0]
    pair.close()
    pair.open()
    assert pair.log.colocations.slowed_jobs(pair.world.now_ns) == {}
    pair.pass_seconds(100)
    (slowed,) = pair.log.colocations.slowed_jobs(pair.world.now_ns)[0]
    assert slowed[:4] == before[:4]
    assert slowed.slowdown_upper == pytest.approx(before.slowdown_upper)
    # The first windows alone decide whether it was the neighbor.
    pair.end("copy", 0, 1)
    pair.set_step(step_after)
    pair.pass_seconds(120)
    is_blamed = bool(pair.log.colocations.slowed_jobs(pair.world.now_ns))
    assert is_blamed == (step_after == 2.0)
    pair.close()


@pytest.mark.parametrize("step_after", [2.0, 2.2])
def test_a_neighbor_that_changes_nothing_is_not_blamed(pair: Pair, step_after: float) -> None:
    """The pace is unchanged, or falls three minutes before the neighbor comes."""
    pair.set_step(step_after)
    pair.pass_seconds(600 if step_after > 2.0 else 10)
    pair.begin("copy", 0, 1, 1.0)
    pair.pass_seconds(BESIDE)
    assert NEIGHBOR not in pair.verdicts()
    row = pair.colocation()
    assert row is not None and row["effect"] == "not slower"
    pair.close()


def test_a_pace_that_does_not_return_has_another_cause(pair: Pair) -> None:
    pair.begin("copy", 0, 1, 1.0)
    pair.set_step(2.2)
    pair.pass_seconds(BESIDE)
    pair.end("copy", 0, 1)
    pair.pass_seconds(180)
    row = pair.colocation()
    assert row is not None and row["effect"].startswith("slower, but its pace did not return")
    pair.close()


def test_a_slow_member_beside_the_neighbor_is_its_effect() -> None:
    slow = JobFault(
        job=("", "train", -1), identity="host h0", strength=Strength.SLOWS, verdict=NODE, cause="gang.slow_host",
        reason="STRAGGLER", hosts=("h0",), device="", slowdown=0.1, slowdown_lower=0.05, slowdown_upper=0.15,
        message="", sql="",
    )  # fmt: skip
    neighbor = replace(slow, identity="neighbor x", verdict=NEIGHBOR, cause="job.neighbor")
    elsewhere = replace(slow, hosts=("h1",))
    broken = replace(slow, cause="gpu.thermal_slowdown")
    assert blamed_on_neighbors([slow, elsewhere, broken], [neighbor]) == [
        elsewhere,
        broken,
        neighbor,
    ]


class Gang(Pair):
    """Job `train` on the first GPU of six hosts that are judged each ten seconds."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.world = World(hosts=6, gpus=GPUS, spread=0.01)
        self.log = RunLog(self.world.fleet, self.store)
        for host in range(6):
            self.begin("train", host, 0, 2.0)
        self.pass_steps(20)

    def pass_steps(self, steps: int) -> None:
        for _ in range(steps):
            pass_steps(self.world, 1)
            assert self.world.snapshot is not None
            self.log.observe(self.world.now_ns, self.world.snapshot.job_faults)

    def slow_down(self, host: int, ratio: float) -> None:
        """Let *host* compute longer by *ratio*, and the job with it; 1: as at the start."""
        place = self.world.hosts[host]
        place.set("gpu_fast_1s", gpu_of(place, 0), sm_active_ratio=BUSY * ratio)
        self.set_step(2.0 * (1.0 + BUSY * (ratio - 1.0)))


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    result = Gang(tmp_path)
    yield result
    result.close()


@pytest.mark.parametrize("ratio", [1.09, 1.2])
def test_a_host_beside_a_neighbor_that_slows_its_job_is_not_sick(gang: Gang, ratio: float) -> None:
    """The gang's rule drained a host whose only fault was the job beside."""
    gang.begin("copy", 0, 1, 1.0)
    gang.slow_down(0, ratio)
    gang.pass_steps(40)
    assert blamed(gang.world) == []
    score = gang.world.score(gang.world.hosts[0])
    assert score.state is HealthState.HEALTHY and score.relative_speed > 0.97
    (evidence,) = [e for e in score.evidence if e.signal == "gang.neighbor"]
    assert "job copy has slowed job train by" in evidence.message
    assert gang.verdicts() == [NEIGHBOR]
    assert gang.world.snapshot is not None
    assert gang.world.snapshot.columns.reason[0] == Reason.NEIGHBOR
    assert {e.signal for e in score.evidence} == {"gang.neighbor", "runs.neighbor"}
    gang.end("copy", 0, 1)
    gang.slow_down(0, 1.0)
    gang.pass_steps(30)
    assert blamed(gang.world) == [] and gang.verdicts() == []


def test_a_slow_host_without_the_neighbor_is_blamed(gang: Gang) -> None:
    """The other host slowed down as the neighbor came: the job's pace alone would blame the neighbor."""
    gang.begin("copy", 0, 1, 1.0)
    gang.slow_down(3, 1.09)
    gang.pass_steps(30)
    assert blamed(gang.world) == ["h3"]


def test_a_host_that_stays_slow_after_the_neighbor_left_is_blamed(gang: Gang) -> None:
    gang.begin("copy", 0, 1, 1.0)
    gang.slow_down(0, 1.09)
    gang.pass_steps(40)
    gang.end("copy", 0, 1)
    gang.pass_steps(20)
    assert blamed(gang.world) == ["h0"]


def test_a_host_that_was_slow_before_the_neighbor_came_is_blamed(gang: Gang) -> None:
    gang.slow_down(0, 1.2)
    gang.pass_steps(30)
    assert blamed(gang.world) == ["h0"]
    gang.begin("copy", 0, 1, 1.0)
    gang.set_step(2.4)
    gang.pass_steps(30)
    assert NEIGHBOR in gang.verdicts()
    assert blamed(gang.world) == ["h0"]


def test_a_neighbor_that_costs_less_than_the_host_explains_nothing(gang: Gang) -> None:
    gang.begin("copy", 0, 1, 1.0)
    gang.slow_down(0, 1.4)
    gang.set_step(2.1)
    gang.pass_steps(30)
    assert NEIGHBOR in gang.verdicts()
    assert blamed(gang.world) == ["h0"]


def test_jobs_on_one_gpu_are_compared_by_the_steps_that_ranks_report(tmp_path: Path) -> None:
    """No reading of a GPU belongs to one of two jobs on it, so the pair was not followed."""
    result = Pair(tmp_path)
    result.begin("train", 0, 0, 0.0)
    host = result.world.hosts[0]
    host.set("step_1s", "train/0", step_seconds=1.0)
    result.pass_seconds(ALONE)
    result.begin("copy", 0, 0, 0.0)
    host.set("step_1s", "train/0", step_seconds=1.25)
    result.pass_seconds(BESIDE)
    row = result.colocation()
    assert row is not None and row["effect"] == "slower"
    assert row["slowdown_ratio"] == pytest.approx(0.2, abs=0.01)
    assert f"both use {short(gpu_of(host, 0))}; the slowdown costs 4.8 GPU-hours" in row["message"]
    run = next(run for run in result.log.accumulator.active_runs.values() if run.job == "train")
    assert (run.rows.size, run.gpus_held_max) == (0, 1)
    result.close()
