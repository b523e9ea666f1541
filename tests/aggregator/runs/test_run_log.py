"""Runs of jobs from readings to the store and back: matched again, also after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.runs.accumulator import RUN_SECONDS_MIN, RunAccumulator
from gangline.aggregator.runs.run_history import DRIFT_HOSTS_MAX, DRIFT_RUNS_MAX, RunHistory
from gangline.aggregator.runs.run_log import RunLog, put_runs
from gangline.aggregator.store.store import Store
from gangline.fingerprints.fingerprint import NUMBERS, Fingerprint
from tests.worlds import GPUS, SECOND_NS, START_NS, World, gpu_of, tell

TRAINING = {"sm_active_ratio": 0.68, "tensor_active_ratio": 0.34, "compute_ratio": 0.8,
            "wait_ratio": 0.18, "host_stall_ratio": 0.02, "checkpoint_ratio": 0.0,
            "idle_ratio": 0.0, "memory_bandwidth_ratio": 0.45}  # fmt: skip
SERVING = {"sm_active_ratio": 0.25, "tensor_active_ratio": 0.05, "compute_ratio": 0.3,
           "wait_ratio": 0.0, "host_stall_ratio": 0.6, "checkpoint_ratio": 0.0,
           "idle_ratio": 0.1, "memory_bandwidth_ratio": 0.7}  # fmt: skip


class Runs:
    """A small fleet, a store, and the runs between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = World(hosts=2, gpus=GPUS)
        self.world.run(1)
        self.open()

    def open(self) -> None:
        config = AggregatorConfig(data=self.folder, commit_seconds=0.01, ops_seconds=3600.0)
        self.store = Store.open(self.folder, config, lambda: self.world.now_ns)
        self.log = RunLog(self.world.fleet, self.store)
        self.log.restore(self.world.now_ns)

    def run(self, job: str, work: Mapping[str, float], step: float, seconds: int = 70, *, end: bool = True) -> None:  # fmt: skip
        """Run *job* on all hosts, and end it."""
        for host in self.world.hosts:
            tell(self.world, host, job)
            for gpu in range(GPUS):
                host.set("gpu_fast_1s", gpu_of(host, gpu), **work)
                if step:
                    host.set("gpu_fast_10s", gpu_of(host, gpu), step_seconds=step)
        self.pass_seconds(seconds)
        if end:
            for host in self.world.hosts:
                tell(self.world, host, job, "ended")
            self.pass_seconds(2)

    def pass_seconds(self, seconds: int) -> None:
        async def steps() -> None:
            for _ in range(seconds):
                self.world.run(1, last_seconds=0, every_seconds=1000)
                self.world.fleet.advance(self.world.now_ns)
                self.log.step(self.world.now_ns)
            await self.log.settle()

        asyncio.run(steps())

    async def step(self, seconds_ahead: int) -> None:
        """Step once with a clock that is off by this many seconds."""
        self.log.step(self.world.now_ns + seconds_ahead * SECOND_NS)
        await self.log.settle()

    def close(self) -> None:
        assert self.log.error == "", "a step failed"
        asyncio.run(self.log.close(self.world.now_ns))
        assert self.store.close() == ""

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the stored rows by job."""
        with self.store.reading() as cursor:
            result = cursor.execute("FROM runs")
            names = [column[0] for column in result.description or ()]
            rows = [dict(zip(names, values, strict=True)) for values in result.fetchall()]
        return {row["job"]: row for row in rows}


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path / "store")


def restart(runs: Runs) -> None:
    runs.close()
    runs.open()


def test_a_second_run_finds_the_first_also_after_a_restart(runs: Runs) -> None:
    """Only last month's runs show that a run is slow from its first step."""
    runs.run("1", TRAINING, 2.0)
    runs.run("2", TRAINING, 2.02)
    runs.run("3", SERVING, 0.0)
    restart(runs)
    first, second, third = (runs.rows()[job] for job in "123")
    assert (first["earlier_runs"], second["earlier_runs"], third["earlier_runs"]) == (0, 1, 0)
    assert second["workload_id"] == first["workload_id"] != third["workload_id"]
    assert second["similarity"] > 0.5 and third["similarity"] is None
    runs.run("4", TRAINING, 2.5)  # a quarter slower from its first step
    restart(runs)
    slow = runs.rows()["4"]
    assert slow["earlier_runs"] == 2 and slow["workload_id"] == first["workload_id"]
    assert slow["pace_ratio"] == pytest.approx(2.01 / 2.5, rel=0.01)
    assert slow["pace_ratio_upper"] < 1
    assert runs.rows()["2"]["pace_ratio_upper"] > 1
    verdicts = [runs.rows()[job]["verdict"] for job in "1234"]
    assert verdicts == ["never seen", "as before", "never seen", "slower"]
    runs.close()


def test_a_job_that_hangs_is_no_other_workload_by_it(runs: Runs) -> None:
    """A job hung for a night after a GPU died, and got the fingerprint of a waiting job."""
    runs.run("1", TRAINING, 2.0, end=False)
    hangs = {**dict.fromkeys(TRAINING, 0.0), "wait_ratio": 1.0}
    runs.run("1", hangs, 0.0, seconds=300)
    restart(runs)
    row = runs.rows()["1"]
    assert row["wait_ratio"] < 0.6 and row["observed_gpu_seconds"] < GPUS * 2 * 200
    known = runs.log.workloads(runs.world.now_ns)
    assert known.find("1") and known.find(row["run_id"]) and known.find("2") is None
    runs.close()


def test_a_run_goes_on_over_a_restart_of_ours(runs: Runs) -> None:
    """After each upgrade every job would have restarted, and each run would be two."""
    runs.run("1", TRAINING, 2.0, end=False)
    restart(runs)
    before = runs.rows()["1"]
    assert before["ended"] is None and before["observed_gpu_seconds"] > RUN_SECONDS_MIN
    runs.run("1", TRAINING, 2.0)
    restart(runs)
    (row,) = runs.rows().values()
    assert row["run_id"] == before["run_id"] and row["ended"] is not None
    assert row["observed_gpu_seconds"] > 1.8 * before["observed_gpu_seconds"]
    runs.close()


def test_a_job_of_ten_seconds_leaves_no_row(runs: Runs) -> None:
    """A test suite submits thousands of them, without information about any workload."""
    runs.run("1", TRAINING, 2.0, seconds=10)
    restart(runs)
    assert runs.rows() == {}
    runs.close()


def test_a_stored_fingerprint_of_another_version_is_unknown(runs: Runs) -> None:
    """After a downgrade, the fingerprints of a later version would have been compared."""
    runs.run("1", TRAINING, 2.0)
    restart(runs)
    runs.store.in_transaction(lambda c: c.execute("UPDATE runs SET fingerprint_version = 99"))
    restart(runs)
    assert runs.log.history.unknown_version_count == 1 and len(runs.log.history) == 0
    runs.run("2", TRAINING, 2.0)
    restart(runs)
    assert runs.rows()["2"]["earlier_runs"] == 0
    runs.close()


def test_a_gpu_that_changes_hands_is_counted_for_each_job_once(tmp_path: Path) -> None:
    """Two jobs in turn on the same GPUs: the second must not inherit the first job's work."""
    world, accumulator = World(hosts=1, gpus=GPUS), RunAccumulator()
    world.run(1)
    accumulator.advance(world.fleet, world.now_ns)  # earlier readings belong to no run
    (host,) = world.hosts
    for job, busy in (("1", 1.0), ("2", 0.25)):
        tell(world, host, job)
        for gpu in range(GPUS):
            host.set("gpu_1s", gpu_of(host, gpu), utilization_ratio=busy)
        for _ in range(80):
            world.run(1, last_seconds=0, every_seconds=1000)
            accumulator.advance(world.fleet, world.now_ns)
        tell(world, host, job, "ended")
        accumulator.advance(world.fleet, world.now_ns)
    first, second = accumulator.take_ended()
    assert first.fingerprint.value("utilization_ratio") == pytest.approx(1.0)
    assert second.fingerprint.value("utilization_ratio") == pytest.approx(0.25, abs=0.02)
    assert first.observed_gpu_seconds == second.observed_gpu_seconds == 80 * GPUS
    assert first.ended_ns > START_NS


class Row(dict[str, Any]):
    """A row whose other columns are None."""

    def __missing__(self, name: str) -> None:
        return None


def history_row(at: int, job: str, hosts: Sequence[str], ratio: float) -> Row:
    return Row({
        **Fingerprint((2.0, 0.8, 0.2) + (nan,) * (len(NUMBERS) - 3)).columns(),
        "run_id": f"{job}@{at}", "job": job, "workload_id": job, "begun": at * SECOND_NS, "time": at * SECOND_NS, "ended": at * SECOND_NS, "host_names": list(hosts), "pace_ratio": ratio,
    })  # fmt: skip


def test_a_host_on_which_several_workloads_are_slow_is_watched(runs: Runs) -> None:
    """A host slows one job after the other, and each job's owner blames the job's code."""
    rows = []
    for number in range(12):
        slow = number % 2 == 0
        hosts = ("h0", f"x{number}") if slow else ("h1", f"x{number}")
        rows.append(history_row(number + 1, f"w{number // 2 % 3}", hosts, 0.8 if slow else 1.0))
    runs.store.in_transaction(lambda connection: put_runs(connection, rows))
    restart(runs)
    runs.world.run(2)
    slow_host, healthy_host = (runs.world.score(host) for host in runs.world.hosts)
    (evidence,) = (
        evidence_row
        for evidence_row in slow_host.evidence
        if evidence_row.signal == "runs.slow_host"
    )
    assert slow_host.state.name == "WATCH" and slow_host.relative_speed == pytest.approx(
        0.8, abs=0.02
    )
    assert "6 runs of 3 workloads were 20 % slower with this host" in evidence.message
    assert not any(
        evidence_row.signal == "runs.slow_host" for evidence_row in healthy_host.evidence
    )
    runs.close()


def test_pace_is_remembered_of_the_newest_runs_alone() -> None:
    """A job on 4,096 hosts runs again each hour."""
    history = RunHistory()
    for number in range(2 * DRIFT_RUNS_MAX):
        history.restore(history_row(number, "w", ["a", "b"], 1.0))
    assert len(history.paces) == DRIFT_RUNS_MAX
    names = [f"h{host}" for host in range(1024)]
    for number in range(100):
        history.restore(history_row(number, "big", names, 1.0))
    assert sum(len(pace.hosts) for pace in history.paces) <= DRIFT_HOSTS_MAX


def test_a_clock_that_steps_costs_no_run(runs: Runs) -> None:
    """An hour back and forward in a run: one run, compared and stored, with a valid end."""
    runs.run("1", TRAINING, 2.0, end=False)
    for step_seconds in (-3600, 7200):
        asyncio.run(runs.step(step_seconds))
    runs.run("1", TRAINING, 2.0)
    runs.run("2", TRAINING, 2.0)
    restart(runs)
    rows = runs.rows()
    assert set(rows) == {"1", "2"} and rows["2"]["earlier_runs"] == 1
    assert all(
        row["begun"] <= row["time"] and row["begun"] <= row["ended"] for row in rows.values()
    )
    runs.close()
