"""CPU of finding stragglers: 1,024 hosts of 8 GPUs in 200 gangs, one pass at the end of a window.

The same arrays as in `judging`, with 200 gangs of five or six hosts. A pass takes the window's
means, compares each host and each GPU with its gang and its own past, and runs the rules of gangs;
between two windows a second costs only the sums. The limit is 50 ms; the floor is the plain median
of each gang, for three readings.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from bench.judging import fill, move
from bench.measure import Result
from gangline.aggregator.fleet.gangs import WINDOW_NS
from gangline.aggregator.fleet.jobs import Job, ScheduledGang
from gangline.aggregator.scoring.rules import gang, gang_gaps
from gangline.aggregator.scoring.view import FleetView

HOSTS, GANGS, WINDOWS = 1024, 200, 24
PASS_SECONDS_MAX = 0.050


_READINGS = (
    ("gpu_fast_1s", "sm_active_ratio", 0.6),
    ("gpu_fast_1s", "tensor_active_ratio", 0.3),
    ("gpu_1s", "power_watts", 550.0),
)


def run(seed: int) -> list[Result]:
    """Measure passes of windows, after enough windows for a past."""
    fleet, random = fill(HOSTS), np.random.default_rng(seed)
    parts = np.array_split(np.arange(HOSTS), GANGS)
    gangs = [
        ScheduledGang(f"job-{index}", tuple(fleet.names[host] for host in part), 0)
        for index, part in enumerate(parts)
    ]
    fleet.jobs.scheduled = lambda: gangs
    assert all(isinstance(job, Job) for job in fleet.jobs.gangs(fleet.index, fleet.gpus))
    passes: list[float] = []
    floors: list[float] = []
    for window in range(WINDOWS):
        now_ns = move(fleet, 10 * window)
        for name, column, level in _READINGS:
            table = fleet.tables[name]
            values = level * random.normal(1.0, 0.01, table.devices.count)
            table._bits[table.column[column], : values.size] = values.view(np.uint64)
        energy = fleet.tables["gpu_1s"]
        joules = np.full(energy.devices.count, 5500.0 * (window + 1))
        energy._bits[energy.column["energy_joules"], : joules.size] = joules.view(np.uint64)
        fleet.advance(now_ns)
        fleet.gangs._begin_ns = now_ns - WINDOW_NS
        begin = time.process_time()
        fleet.gangs.advance(fleet, now_ns)
        view = FleetView(fleet, now_ns)
        for rule in (
            gang.slow_hosts,
            gang.slow_gpus,
            gang_gaps.gapped_hosts,
            gang_gaps.waiting_hosts,
        ):
            list(rule(view))
        passes.append(time.process_time() - begin)
        floors.append(_floor(fleet, parts))
    comparison = fleet.gangs.comparison
    assert comparison is not None and np.unique(comparison.gang).size >= 0.9 * GANGS
    assert comparison.gpu_change.is_usual.mean() > 0.9, "GPUs without a past are not judged"
    settled = passes[WINDOWS // 2 :]
    value = 1e3 * statistics.median(settled)
    note = f"worst {1e3 * max(settled):.1f} ms; {len(parts)} gangs, {HOSTS} hosts x 8 GPUs"
    return [
        Result("pass over gangs", value, "ms", "limit", 1e3 * PASS_SECONDS_MAX, note),
        Result(
            "pass over gangs", value, "ms", "medians of gangs",
            1e3 * statistics.median(floors[WINDOWS // 2 :]), "three readings of each GPU",
        ),
    ]  # fmt: skip


def _floor(fleet: object, parts: list[np.ndarray]) -> float:
    """Return the CPU seconds of the median of three readings in each gang, one gang after the
    other.
    """
    tables = fleet.tables  # type: ignore[attr-defined]
    host = tables["gpu_1s"].devices.host
    order = np.argsort(host, kind="stable")
    ends = np.cumsum([8 * part.size for part in parts])[:-1]
    readings = [tables[name].gauge(column) for name, column, _ in _READINGS]
    begin = time.process_time()
    for values in readings:
        for part in np.split(values[order], ends):
            np.median(part)
    return time.process_time() - begin
