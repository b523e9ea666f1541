"""CPU of runs of jobs: one second of 1,024 hosts in 200 jobs, forecasts, and the most similar runs
of 100,000.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bench.generated_fingerprints import generate
from bench.measure import Result
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.runs.accumulator import RunAccumulator
from gangline.aggregator.runs.forecasts import RunForecasts
from gangline.contract.wire import telemetry_pb2
from gangline.fingerprints.fingerprint import Fingerprint, features_of
from gangline.fingerprints.similarity import RunIndex

RUNS, TURNS = 100_000, 21
HOSTS, GPUS, JOBS = 1024, 8, 200
#: Seconds of a job that writes a checkpoint of 5 s each minute; number of measured seconds.
FORECAST_SECONDS, FORECAST_SECONDS_MEASURED = 420, 40
FORECAST_BUDGET_SECONDS = 0.030
SEARCH_BUDGET_SECONDS, SECOND_BUDGET_SECONDS = 0.010, 0.010


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _search(seed: int) -> Result:
    base = generate(seed, 600, 2).values
    random = np.random.default_rng(seed)
    values = base[random.integers(0, len(base), RUNS)] * random.normal(1, 0.02, (RUNS, 1))
    index = RunIndex()
    for row in values:
        index.add(Fingerprint(tuple(row.tolist())))
    features = features_of(values)
    query = Fingerprint(tuple(values[7].tolist()))
    of_query = features_of(query.values)
    ours, plain = [], []
    for _ in range(TURNS):  # alternating, so that other load affects both equally
        ours.append(_seconds(lambda: index.nearest(query)))
        plain.append(
            _seconds(lambda: np.argsort(np.nanmean((features - of_query) ** 2, axis=1))[:32])
        )
    return Result(
        f"earlier runs most like one of {RUNS:,}", float(np.median(ours)) * 1e3, "ms",
        "a plain numpy pass", float(np.median(plain)) * 1e3, f"budget {SEARCH_BUDGET_SECONDS * 1e3:.0f} ms",
    )  # fmt: skip


def _fleet() -> Fleet:
    fleet = Fleet()
    boot = bytes(16)
    for host in range(HOSTS):
        names = [f"GPU-{host:05d}-{gpu}" for gpu in range(GPUS)]
        devices = [telemetry_pb2.Device(kind="gpu", key=name, attributes={"name": "H100"}) for name in names]  # fmt: skip
        node = fleet.register(f"h{host}", simulated=False, boot_id=boot, devices=devices)
        for table in ("gpu_1s", "gpu_10s", "gpu_fast_1s", "gpu_fast_10s"):
            fleet.tables[table].ensure_rows(node, names)
        fleet.tables["host_1s"].ensure_rows(node, ["host"])
        for name in names:
            event = telemetry_pb2.HealthEvent(
                event_id=f"{boot.hex()}/{name}//1/1", device=name, name="gpu.process", boottime_ns=1,
                attributes={"state": "running", "source": "slurm", "job_id": str(host % JOBS)},
            )  # fmt: skip
            fleet.jobs.observe(node, boot.hex(), event)
    for each in fleet.tables.values():
        if each.is_tracked and each.devices.count >= HOSTS:
            each._fit()
            each._valid[:] = True
            each._bits[:] = np.full(each._bits.shape, 0.5).view(np.uint64)
    return fleet


def _forecasts(seed: int) -> list[Result]:
    fleet, accumulator, forecasts = _fleet(), RunAccumulator(), RunForecasts()
    random = np.random.default_rng(seed)
    fast = fleet.tables["gpu_fast_1s"]
    count = fast.devices.count
    accumulator.advance(fleet, 1)
    ours, floor = [], []
    jobs = np.arange(count) % JOBS
    phase = random.integers(0, 60, HOSTS)[np.arange(count) // GPUS % JOBS]
    for second in range(1, FORECAST_SECONDS):
        saves = (second + phase) % 60 < 5
        work = np.clip(0.8 + 0.05 * random.standard_normal(count), 0, 1)
        shares = {"compute": np.where(saves, 0.0, work), "wait": np.where(saves, 0.0, 1 - work),
                  "host_stall": np.zeros(count), "checkpoint": saves.astype(float), "idle": np.zeros(count)}  # fmt: skip
        for name, values in shares.items():
            fast._bits[fast.column[f"{name}_ratio"], :count] = values.astype(np.float64).view(np.uint64)  # fmt: skip
        fast._boottime_ns[:] = second
        now_ns = second * 1_000_000_000
        begin = time.process_time()
        forecasts.step(fleet, accumulator, now_ns)
        ours.append(time.process_time() - begin)
        rows = [fast.gauge(f"{name}_ratio") for name in shares] * 2
        begin = time.process_time()
        for row in rows:
            np.bincount(jobs, row)
        floor.append(time.process_time() - begin)
    assert len(forecasts) == JOBS and all(row["reason"] == "" for row in forecasts.rows())
    measured = ours[-FORECAST_SECONDS_MEASURED:]
    return [
        Result(
            f"forecasts: a second of {HOSTS} hosts x {GPUS} GPUs in {JOBS} jobs", float(np.mean(measured)) * 1e3, "ms",
            "ten sums by job in numpy", float(np.median(floor)) * 1e3,
            f"budget {FORECAST_BUDGET_SECONDS * 1e3:.0f} ms; the longest {max(measured) * 1e3:.0f} ms; each job every 10 s",
        )
    ]  # fmt: skip


def _second(seed: int) -> list[Result]:
    fleet, accumulator = _fleet(), RunAccumulator()
    first = _seconds(lambda: accumulator.advance(fleet, 1))
    ours, floor = [], []
    cells = np.random.default_rng(seed).random((18, HOSTS * GPUS))
    sums = np.zeros_like(cells)
    for turn in range(TURNS):
        for name in ("gpu_1s", "gpu_10s", "gpu_fast_1s", "gpu_fast_10s", "host_1s"):
            fleet.tables[name]._boottime_ns[:] = turn + 1
        ours.append(_seconds(lambda: accumulator.advance(fleet, 1)))
        floor.append(_seconds(lambda: np.add(sums, cells, out=sums)))
    return [
        Result(
            f"runs: a second of {HOSTS} hosts x {GPUS} GPUs in {JOBS} jobs", float(np.median(ours)) * 1e3, "ms",
            "adding as many numbers in numpy", float(np.median(floor)) * 1e3,
            f"budget {SECOND_BUDGET_SECONDS * 1e3:.0f} ms; a second in which jobs change: {first * 1e3:.0f} ms",
        )
    ]  # fmt: skip


def run(seed: int) -> list[Result]:
    return [_search(seed), *_second(seed), *_forecasts(seed)]
