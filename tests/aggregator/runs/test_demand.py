"""Demands of runs, from readings to SQL: quantiles over the seconds in which a run is alone, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.runs import demand
from gangline.fingerprints.demand import (
    BINS,
    COUNT_MAX,
    DEMANDS,
    FLOORS,
    QUANTILES,
    READINGS_MIN,
    bins_of,
    quantiles,
)
from tests.aggregator.runs.test_run_log import TRAINING, Runs
from tests.worlds import GPUS, gpu_of, tell

CORES, PCIE, PORT, DISK, TRAFFIC = 32.0, 8e9, 2e9, 5e8, 4e10
CACHE, WAITS = 2e11, 5e5


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    result = Runs(tmp_path)
    for host in result.world.hosts:
        host.set("host_60s", "host", cores_count=CORES)
        host.set("host_1s", "host", cpu_user_ratio=0.20, cpu_system_ratio=0.05)
        host.set("host_10s", "host", file_cache_active_bytes=CACHE)
        host.set(
            "rdma_1s", "mlx5_0/1", received_bytes=0, transmitted_bytes=0, transmit_wait_count=0
        )
        host.grow("rdma_1s", "mlx5_0/1", received_bytes=PORT, transmit_wait_count=WAITS)
        host.set("disk_1s", "nvme0n1", read_bytes=0, written_bytes=0)
        host.grow("disk_1s", "nvme0n1", read_bytes=DISK)
        for group, bytes_per_second in (("0", 0.75 * TRAFFIC), ("job7/0", 0.25 * TRAFFIC)):
            host.set("l3_1s", group, memory_bytes=0)
            host.grow("l3_1s", group, memory_bytes=bytes_per_second)
        for gpu in range(GPUS):
            host.set("gpu_1s", gpu_of(host, gpu), memory_used_bytes=31e9)
            host.set("gpu_fast_1s", gpu_of(host, gpu), pcie_received_bytes_per_second=PCIE)
    result.pass_seconds(65)  # cores_count is read every minute
    return result


def demands(runs: Runs, job: str) -> dict[str, dict[str, Any]]:
    """Return the rows of ops.run_demand of *job* by resource."""
    with runs.store.reading() as cursor:
        result = cursor.execute("FROM ops.run_demand WHERE job = ?", [job])
        names = [column[0] for column in result.description or ()]
        return {
            row["resource"]: row
            for row in (dict(zip(names, values, strict=True)) for values in result.fetchall())
        }


def test_demand_of_a_run_is_in_sql(runs: Runs) -> None:
    runs.run("train", TRAINING, 2.0, seconds=90)
    runs.close()
    runs.open()
    rows = demands(runs, "train")
    expected = {
        "sm": 0.68, "tensor": 0.34, "hbm_bandwidth": 0.45, "pcie_received": PCIE, "hbm_bytes": 31e9,
        "nic_received": PORT, "disk": DISK, "memory_bandwidth": TRAFFIC, "page_cache_bytes": CACHE, "nic_waits": WAITS, "cores": 0.25 * CORES,
    }  # fmt: skip
    for resource, value in expected.items():
        assert rows[resource]["p50"] == pytest.approx(value, rel=0.12), resource
        assert rows[resource]["p99"] == pytest.approx(value, rel=0.2), resource
    assert "network_fs" not in rows, "no host has such a file system"
    runs.store.close()


def test_a_host_with_two_jobs_counts_for_neither(runs: Runs) -> None:
    for host in runs.world.hosts:
        tell(runs.world, host, "other", gpus=[0])
    runs.run("train", TRAINING, 2.0, seconds=90)
    rows = demands(runs, "train")
    assert not {"cores", "disk", "nic_received"} & rows.keys()
    runs.close()


def test_control_groups_show_the_use_of_each_job_on_a_shared_host(runs: Runs) -> None:
    """A job that always had a neighbor never had a demand of the host."""
    shares = {"train": 3.0, "other": 1.0}
    for host in runs.world.hosts:
        tell(runs.world, host, "other", gpus=[0])
        for job, share in shares.items():
            host.set(
                "job_group_1s",
                job,
                cpu_nanoseconds=0,
                read_bytes=0,
                written_bytes=0,
                file_cache_active_bytes=share * CACHE,
            )
            host.grow(
                "job_group_1s",
                job,
                cpu_nanoseconds=share * 1e9,
                read_bytes=share * DISK,
                written_bytes=share * DISK,
            )
    runs.run("train", TRAINING, 2.0, seconds=90)
    rows = demands(runs, "train")
    expected = {"cores": 3.0, "disk": 6.0 * DISK, "page_cache_bytes": 3.0 * CACHE}
    assert {name: rows[name]["p50"] for name in expected} == pytest.approx(expected, rel=0.12)
    assert "nic_received" not in rows
    runs.close()


def test_control_groups_do_not_count_twice_on_a_host_of_one_job(runs: Runs) -> None:
    for host in runs.world.hosts:
        host.set("job_group_1s", "train", cpu_nanoseconds=0)
        host.grow("job_group_1s", "train", cpu_nanoseconds=1e9)
    runs.run("train", TRAINING, 2.0, seconds=90)
    assert demands(runs, "train")["cores"]["p50"] == pytest.approx(0.25 * CORES, rel=0.12)
    runs.close()


def test_a_restart_continues_the_histogram(runs: Runs) -> None:
    runs.run("train", TRAINING, 2.0, seconds=90, end=False)
    runs.close()
    before = None
    runs.open()
    before = demands(runs, "train")["sm"]["readings"]
    runs.run("train", TRAINING, 2.0, seconds=90)
    assert demands(runs, "train")["sm"]["readings"] > 1.5 * before
    runs.close()


def test_schedulers_can_name_the_demand(runs: Runs) -> None:
    runs.run("train", TRAINING, 2.0, seconds=90)
    for _ in range(2):
        known = runs.log.workloads(runs.world.now_ns)
        demand = known.demands[known.names["train"]]
        assert demand[DEMANDS.index("sm"), 0] == pytest.approx(0.68, rel=0.12)
        assert np.isnan(demand[DEMANDS.index("network_fs")]).all()
        runs.close()
        runs.open()
    runs.store.close()


@given(st.lists(st.floats(0.0, 1e13), min_size=READINGS_MIN, max_size=200))
def test_quantiles_are_near_those_of_the_readings(values: list[float]) -> None:
    demand = DEMANDS.index("nic_received")
    counts = np.zeros((len(DEMANDS), BINS), dtype=np.uint32)
    np.add.at(counts[demand], bins_of(demand, np.array(values)), 1)
    result = quantiles(counts)[demand]
    floor = FLOORS[demand]
    highest = floor * 2.0**17
    for share, value in zip(QUANTILES, result, strict=True):
        below = np.quantile(values, share, method="inverted_cdf")
        assert min(below, highest) / 1.2 - floor <= value <= max(min(below, highest), floor) * 1.2
    assert list(result) == sorted(result)


def test_few_readings_are_no_demand() -> None:
    counts = np.zeros((len(DEMANDS), BINS), dtype=np.uint32)
    counts[:, 3] = READINGS_MIN - 1
    assert np.isnan(quantiles(counts)).all()
    counts[:, 3] = COUNT_MAX
    assert np.isfinite(quantiles(counts)).all()


def test_a_run_of_months_does_not_overflow(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are halved beyond COUNT_MAX; the quantiles stay."""
    monkeypatch.setattr(demand, "COUNT_MAX", 40)
    monkeypatch.setattr(demand, "HALVING_TURNS", 30)
    runs.run("train", TRAINING, 2.0, seconds=90)
    row = demands(runs, "train")["sm"]
    assert row["readings"] < 90 * 2 * GPUS and row["p50"] == pytest.approx(0.68, rel=0.12)
    runs.close()
