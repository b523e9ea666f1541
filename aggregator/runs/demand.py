"""Demand of each run on the resources that it could share: a histogram per run and resource, extended every second.

A reading counts only while the run is alone on its GPU, or on its host: readings of a shared part belong to no single job.
On a host with several jobs, the cores, disks and page cache of the run's control group count. Owned by the fleet's thread; no I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from duckdb import DuckDBPyConnection as Connection

from ...fingerprints.demand import (
    BINS,
    COUNT_MAX,
    DEMANDS,
    QUANTILES,
    RATE_UNIT,
    UNITS,
    Counts,
    bins_of,
    quantiles,
)
from ..arrays import Floats, Indexes
from ..fleet.fleet import Fleet
from ..fleet.tables import FAST_SECONDS
from ..store.rows import replace_rows
from .accumulator import ActiveRun, NewRows, RunAccumulator
from .run_history import WORKLOADS_MAX

#: Demand on a GPU -> columns of the fast table whose sum it is.
_FAST: Mapping[str, tuple[str, ...]] = {
    "sm": ("sm_active_ratio",),
    "hbm_bandwidth": ("memory_bandwidth_ratio",),
    "pcie_received": ("pcie_received_bytes_per_second",),
    "pcie_transmitted": ("pcie_transmitted_bytes_per_second",),
    "nvlink": ("nvlink_received_bytes_per_second", "nvlink_transmitted_bytes_per_second"),
    "tensor": ("tensor_active_ratio",),
}
#: Demand on a host -> table and its counters.
_HOST_COUNTERS: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "nic_received": (("rdma_1s", ("received_bytes",)),),
    "nic_transmitted": (("rdma_1s", ("transmitted_bytes",)),),
    "nic_waits": (("rdma_1s", ("transmit_wait_count",)),),
    "memory_bandwidth": (("l3_1s", ("memory_bytes",)),),
    "disk": (("disk_1s", ("read_bytes", "written_bytes")),),
    "network_fs": (
        ("nfs_10s", ("read_bytes", "written_bytes")),
        ("lustre_10s", ("read_bytes", "written_bytes")),
    ),
}
#: Turns between two searches for counts above COUNT_MAX, which takes a pass over all counts.
HALVING_TURNS = 600
#: Ended runs whose histograms wait to be written; the oldest are dropped.
ENDED_MAX = 20_000
_INDEX = {name: index for index, name in enumerate(DEMANDS)}
#: The newest runs that schedulers can name (`run_history.WORKLOADS_MAX`).
_KNOWN = f"""
SELECT run_id, resource, p50, p95, p99 FROM run_demand
SEMI JOIN (SELECT run_id FROM runs ORDER BY time DESC LIMIT {WORKLOADS_MAX}) USING (run_id)
"""
_COLUMNS = (
    "run_id:str job:str time:time resource:str unit:str p50:float p95:float p99:float high:float "
    "readings:int counts:counts"
)


class StoredDemand(NamedTuple):
    """A histogram as it was stored: `high` is the highest reading."""

    run_id: str
    resource: str
    counts: Sequence[int]
    high: float


class RunDemands:
    """Histograms of the active runs: `step` once a second, after the accumulator."""

    def __init__(self) -> None:
        #: (runs, DEMANDS, BINS) and (runs, DEMANDS), by the run's number.
        self._counts: Counts = np.zeros((0, len(DEMANDS), BINS), dtype=np.uint32)
        self._high: Floats = np.zeros((0, len(DEMANDS)))
        #: Number -> run that its histograms belong to.
        self._runs: dict[int, ActiveRun] = {}
        self._restored: dict[str, tuple[Counts, Floats]] = {}
        #: Run id -> rows of a run that has ended and is not yet written.
        self._ended: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
        self._new_rows = NewRows()
        self._turns = 0

    def restore(self, demands: Iterable[StoredDemand]) -> None:
        """Continue histograms from before a restart; those of another layout are ignored."""
        for run_id, resource, counts, high in demands:
            if resource in _INDEX and len(counts) == BINS:
                if run_id not in self._restored:
                    zeros = np.zeros((len(DEMANDS), BINS), dtype=np.uint32)
                    self._restored[run_id] = zeros, np.zeros(len(DEMANDS))
                histogram, highs = self._restored[run_id]
                histogram[_INDEX[resource]] = np.minimum(
                    np.array(counts, dtype=np.int64), COUNT_MAX
                )
                highs[_INDEX[resource]] = high

    def step(self, fleet: Fleet, accumulator: RunAccumulator) -> None:
        """Add the last second of all runs."""
        self._follow(accumulator.active_runs)
        self._turns += 1
        if self._turns % HALVING_TURNS == 0:
            self._counts[self._counts.max(axis=2, initial=0) > COUNT_MAX] //= 2
        gpus, fast_rows, run_of = accumulator.rows_of_runs()
        fast_at = np.append(self._new_rows.of(fleet.tables["gpu_fast_1s"]), False)[fast_rows]
        gpu_at = self._new_rows.of(fleet.tables["gpu_1s"])[gpus]
        fast = fleet.tables["gpu_fast_1s"]
        for name, columns in _FAST.items():
            values = sum(fast.gauge_at(column, fast_rows[fast_at]) for column in columns)
            self._add(_INDEX[name], run_of[fast_at], np.asarray(values))
        used = fleet.tables["gpu_1s"].gauge_at("memory_used_bytes", gpus[gpu_at])
        self._add(_INDEX["hbm_bytes"], run_of[gpu_at], used)
        hosts, run_of_host = self._alone(fleet, gpus, run_of, accumulator.jobs_of_hosts)
        for name, values in host_demands(fleet, hosts).items():
            self._add(_INDEX[name], run_of_host, values)
        rows, run_of_row = self._beside(fleet, accumulator)
        for name, values in group_demands(fleet, rows).items():
            self._add(_INDEX[name], run_of_row, values)

    def rows(self, run_ids: Collection[str]) -> list[dict[str, Any]]:
        """Return the rows of `run_demand` of these runs, active or ended; none for an unknown demand."""
        rows = [row for run_id in run_ids for row in self._ended.get(run_id, ())]
        for number, run in self._runs.items():
            if run.run_id in run_ids:
                rows += self._rows_of(number, run)
        return rows

    def forget(self, run_ids: Iterable[str]) -> None:
        """Drop the rows of ended runs, which are written."""
        for run_id in run_ids:
            self._ended.pop(run_id, None)

    def _rows_of(self, number: int, run: ActiveRun) -> list[dict[str, Any]]:
        counts = self._counts[number]
        known = np.minimum(quantiles(counts), self._high[number][:, None])
        return [
            {
                "run_id": run.run_id, "job": run.job, "resource": name, "unit": UNITS.get(name, RATE_UNIT),
                **dict(zip(("p50", "p95", "p99"), known[index].tolist(), strict=True)),
                "high": float(self._high[number, index]), "readings": int(counts[index].sum()), "counts": counts[index].tolist(),
            }
            for name, index in _INDEX.items()
            if np.isfinite(known[index, 0])
        ]  # fmt: skip

    def _follow(self, runs: Mapping[int, ActiveRun]) -> None:
        size = max(runs, default=-1) + 1
        if (missing := size - self._counts.shape[0]) > 0:
            missing = max(missing, self._counts.shape[0])
            self._counts = np.pad(self._counts, ((0, missing), (0, 0), (0, 0)))
            self._high = np.pad(self._high, ((0, missing), (0, 0)))
        for number, run in self._runs.items():
            if runs.get(number) is not run and (rows := self._rows_of(number, run)):
                self._ended[run.run_id] = rows
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
        for number, run in runs.items():
            if self._runs.get(number) is run:
                continue
            counts, high = self._restored.pop(run.run_id, (0, 0.0))
            self._counts[number], self._high[number] = counts, high
        self._runs = dict(runs)

    def _add(self, demand: int, numbers: Indexes, values: Floats) -> None:
        known = np.isfinite(values) & (values >= 0.0)
        numbers, values = numbers[known], values[known]
        cells = (numbers * len(DEMANDS) + demand) * BINS + bins_of(demand, values)
        np.add.at(self._counts.reshape(-1), cells, np.uint32(1))
        np.maximum.at(self._high[:, demand], numbers, values)

    def _alone(
        self, fleet: Fleet, gpus: Indexes, run_of: Indexes, jobs_of_hosts: Indexes
    ) -> tuple[Indexes, Indexes]:
        """Return the hosts with a single job whose readings are new, and the number of its run."""
        hosts, first = np.unique(fleet.devices["gpu"].host[gpus], return_index=True)
        table_1s = fleet.tables["host_1s"]
        is_fresh = np.zeros(len(fleet), dtype=bool)
        is_fresh[table_1s.devices.host] = self._new_rows.of(table_1s)
        alone = is_fresh[hosts] & (jobs_of_hosts[hosts] == 1)
        return hosts[alone].astype(np.intp), run_of[first[alone]]

    def _beside(self, fleet: Fleet, accumulator: RunAccumulator) -> tuple[Indexes, Indexes]:
        """Return the rows of control groups on hosts with several jobs that are new, and the numbers of their runs."""
        groups = fleet.tables["job_group_1s"]
        rows, numbers = list[int](), list[int]()
        for row in np.flatnonzero(self._new_rows.of(groups)).tolist():
            host, name = int(groups.devices.host[row]), groups.devices.names[row]
            jobs = [job for job in fleet.jobs.holding(host) if job.name == name]
            number = accumulator.number_of(jobs[0], fleet.names) if len(jobs) == 1 else -1
            if number >= 0 and accumulator.jobs_of_hosts[host] > 1:
                rows.append(row)
                numbers.append(number)
        return np.array(rows, dtype=np.intp), np.array(numbers, dtype=np.intp)


def group_demands(fleet: Fleet, rows: Indexes) -> dict[str, Floats]:
    """Return the present use of a host's resources by the control groups of jobs; NaN if it is not read."""
    groups = fleet.tables["job_group_1s"]
    now = np.zeros(groups.devices.count)

    def rate(column: str) -> Floats:
        known = groups.known(column)
        return np.where(known, groups.recent(column, now) / FAST_SECONDS, np.nan)[rows]

    return {
        "cores": rate("cpu_nanoseconds") / 1e9,
        "disk": rate("read_bytes") + rate("written_bytes"),
        "page_cache_bytes": groups.gauge("file_cache_active_bytes")[rows],
    }


def host_demands(fleet: Fleet, hosts: Indexes) -> dict[str, Floats]:
    """Return the present use of each resource of *hosts*, without those of their GPUs; NaN if it is not read."""
    readings = fleet.tables["host_1s"]
    cores = np.full(len(fleet), np.nan)
    busy = readings.gauge("cpu_user_ratio") + readings.gauge("cpu_system_ratio")
    cores[readings.devices.host] = busy
    cached = np.full(len(fleet), np.nan)
    slow = fleet.tables["host_10s"]
    cached[slow.devices.host] = slow.gauge("file_cache_active_bytes")
    result = {"cores": (cores * core_counts(fleet))[hosts], "page_cache_bytes": cached[hosts]}
    for name, sources in _HOST_COUNTERS.items():
        total = np.full(len(fleet), np.nan)
        for table_name, columns in sources:
            rates = _rates(fleet, table_name, columns)
            total = np.where(np.isnan(total), rates, total + np.nan_to_num(rates))
        result[name] = total[hosts]
    return result


def core_counts(fleet: Fleet) -> Floats:
    """Return the number of cores of each host; NaN if unknown."""
    cores = np.full(len(fleet), np.nan)
    slow = fleet.tables["host_60s"]
    cores[slow.devices.host] = slow.gauge("cores_count")
    return cores


def _rates(fleet: Fleet, table_name: str, columns: Sequence[str]) -> Floats:
    """Return the increase per second of counters, summed over each host's devices; NaN for a host without such a device."""
    readings = fleet.tables[table_name]
    now = np.zeros(readings.devices.count)
    rates = sum((readings.recent(column, now) for column in columns), start=now) / FAST_SECONDS
    hosts = readings.devices.host
    count = np.bincount(hosts, minlength=len(fleet))
    return np.where(count > 0, np.bincount(hosts, rates, minlength=len(fleet)), np.nan)


def put_demands(connection: Connection, rows: Sequence[Mapping[str, Any]], now_ns: int) -> None:
    """Replace the demands of runs. Raises duckdb.Error."""
    timed = [{**row, "time": now_ns} for row in rows]
    replace_rows(connection, "run_demand", _COLUMNS, timed, ("run_id",))


def demand_of_rows(rows: Iterable[Mapping[str, Any]]) -> Floats:
    """Return the demand (DEMANDS, QUANTILES) of one run's rows, NaN if unknown."""
    demand = np.full((len(DEMANDS), len(QUANTILES)), np.nan)
    for row in rows:
        if (index := _INDEX.get(row["resource"])) is not None:
            demand[index] = [row["p50"], row["p95"], row["p99"]]
    return demand


def read_known_demands(connection: Connection) -> dict[str, Floats]:
    """Return the demands of the stored runs by id. Raises duckdb.Error."""
    rows = connection.execute(_KNOWN)
    columns = ("run_id", "resource", "p50", "p95", "p99")
    by_run: dict[str, list[dict[str, Any]]] = {}
    for values in rows.fetchall():
        by_run.setdefault(values[0], []).append(dict(zip(columns, values, strict=True)))
    return {run_id: demand_of_rows(own) for run_id, own in by_run.items()}


def read_demands(connection: Connection) -> list[StoredDemand]:
    """Return the histograms of the runs that were active at the last write. Raises duckdb.Error."""
    rows = connection.execute(
        "SELECT run_id, resource, counts, high FROM run_demand SEMI JOIN "
        "(FROM runs WHERE ended IS NULL) USING (run_id)"
    )
    return [StoredDemand(*row) for row in rows.fetchall()]
