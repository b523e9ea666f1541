"""Forecasts of jobs from a fleet's readings to SQL: served only while the job runs."""

from __future__ import annotations

import asyncio
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.runs.accumulator import RunAccumulator
from gangline.aggregator.runs.forecasts import JOBS_MAX, RunForecasts
from gangline.aggregator.runs.run_log import RunLog
from gangline.aggregator.store.store import Store
from gangline.contract.wire import telemetry_pb2
from tests.worlds import GPUS, SECOND_NS, START_NS, World, gpu_of, tell

RUN = {
    "compute_ratio": 0.8,
    "wait_ratio": 0.2,
    "host_stall_ratio": 0.0,
    "checkpoint_ratio": 0.0,
    "idle_ratio": 0.0,
}
SAVES = {**dict.fromkeys(RUN, 0.0), "checkpoint_ratio": 1.0}
INTERVAL, DURATION = 40, 4


class ForecastWorld:
    """Two hosts that run one job, which saves every 40 s, and the aggregator's runs."""

    def __init__(self, folder: Path) -> None:
        self.world = World(hosts=2, gpus=GPUS)
        self.world.run(1)
        config = AggregatorConfig(data=folder, commit_seconds=0.01, ops_seconds=3600.0)
        self.store = Store.open(folder, config, lambda: self.world.now_ns)
        self.log = RunLog(self.world.fleet, self.store)
        self.second = 0

    def run(self, seconds: int) -> None:
        async def steps() -> None:
            for _ in range(seconds):
                self.second += 1
                saves = self.second % INTERVAL < DURATION and self.second > INTERVAL - 1
                for host in self.world.hosts:
                    for gpu in range(GPUS):
                        values = {**(SAVES if saves else RUN), "power_mean_watts": 150.0 if saves else 550.0,
                                  "phase_confidence_ratio": 0.9}  # fmt: skip
                        host.set("gpu_fast_1s", gpu_of(host, gpu), **values)
                self.world.run(1, last_seconds=0, every_seconds=1000)
                self.log.step(self.world.now_ns)
                await self.log.settle()

        asyncio.run(steps())

    def rows(self) -> list[dict[str, Any]]:
        """Return the stored rows, the nearest horizon first."""
        with self.store.reading() as cursor:
            result = cursor.execute("FROM job_forecasts ORDER BY job, horizon_seconds")
            names = [column[0] for column in result.description or ()]
            return [dict(zip(names, values, strict=True)) for values in result.fetchall()]


@pytest.fixture
def jobs(tmp_path: Path) -> ForecastWorld:
    return ForecastWorld(tmp_path / "store")


def test_a_job_is_forecast_while_it_runs(jobs: ForecastWorld) -> None:
    """A drain waits for the next checkpoint; an ended job has no forecast."""
    for host in jobs.world.hosts:
        tell(jobs.world, host, "7")
    jobs.run(30)
    assert [row["reason"] for row in jobs.rows()][:1] != [None] and jobs.rows()[0][
        "compute_probability"
    ] is None
    jobs.run(270)
    rows = jobs.rows()
    assert [row["horizon_seconds"] for row in rows] == [10, 30, 60, 300] and len(
        {row["job"] for row in rows}
    ) == 1
    first = rows[0]
    forecast_ns = round(first["time"].replace(tzinfo=UTC).timestamp()) * SECOND_NS
    forecast_second = jobs.second - round((jobs.world.now_ns - forecast_ns) / SECOND_NS)
    due = INTERVAL - forecast_second % INTERVAL
    low, high = first["next_checkpoint_lower_90"], first["next_checkpoint_upper_90"]
    assert low - 2 <= due <= high + 2 and high - low < 12
    total = 2 * GPUS * 550.0
    assert first["power_watts_upper"] == pytest.approx(total) and first["gpus"] == 2 * GPUS
    for host in jobs.world.hosts:
        tell(jobs.world, host, "7", "ended")
    jobs.run(25)
    assert jobs.rows() == [] and len(jobs.log.forecasts) == 0
    asyncio.run(jobs.log.close(jobs.world.now_ns))
    assert jobs.store.close() == ""


def test_an_earlier_run_of_the_workload_is_a_prior() -> None:
    """The same training starts each night: its first checkpoint is due as it was yesterday."""
    world, accumulator, forecasts = World(hosts=1, gpus=GPUS), RunAccumulator(), RunForecasts()
    world.run(1)
    tell(world, world.hosts[0], "7")
    for _ in range(70):
        for gpu in range(GPUS):
            host = world.hosts[0]
            host.set("gpu_fast_1s", gpu_of(host, gpu), **RUN, phase_confidence_ratio=0.9)
        world.run(1, last_seconds=0, every_seconds=1000)
        accumulator.advance(world.fleet, world.now_ns)
        forecasts.step(world.fleet, accumulator, world.now_ns)
        for key in accumulator.keys():  # noqa: SIM118 - no mapping
            forecasts.set_prior(key, 100.0)
    row = forecasts.rows()[0]
    assert row["next_checkpoint_lower_90"] < 100 - 60 < row["next_checkpoint_upper_90"]


def test_more_jobs_than_the_limit_are_left_out_the_smallest_first() -> None:
    """A cluster with 50,000 jobs of one GPU would have spent a second of each second on them."""
    fleet, accumulator, forecasts = Fleet(), RunAccumulator(), RunForecasts()
    gpus = 256
    for host in range(JOBS_MAX // gpus + 2):
        names = [f"GPU-{host}-{gpu:06}" for gpu in range(gpus)]
        devices = [telemetry_pb2.Device(kind="gpu", key=name) for name in names]
        node = fleet.register(f"h{host}", simulated=False, boot_id=bytes(16), devices=devices)
        fleet.tables["gpu_1s"].ensure_rows(node, names)
        for number, name in enumerate(names):
            event = telemetry_pb2.HealthEvent(
                event_id=f"{bytes(16).hex()}/{name}//1/1", device=name, name="gpu.process", boottime_ns=1,
                attributes={"state": "running", "source": "slurm", "job_id": f"{host}-{number}" if host else "large"},
            )  # fmt: skip
            fleet.jobs.observe(node, bytes(16).hex(), event)
    accumulator.advance(fleet, START_NS)
    forecasts.step(fleet, accumulator, START_NS)
    assert len(forecasts) == JOBS_MAX < len(accumulator)
    assert "slurm/large" in forecasts
