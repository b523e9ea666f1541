"""Averages what each job's GPUs do while it runs: a sum and a count per GPU and number, in arrays.

Each second costs a few passes over the arrays of all GPUs, for any number of jobs. Owned by the fleet's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import numpy as np

from ...fingerprints.fingerprint import NUMBERS, Fingerprint
from ..arrays import Codes, Flags, Floats, Indexes, Times
from ..counter_deltas import grown
from ..fleet.fleet import Fleet
from ..fleet.jobs import Job, ScheduledGang
from ..fleet.tables import FAST_SECONDS, DeviceTable

#: Limit of active runs; further ones are ignored, and counted.
RUNS_ACTIVE_MAX = 50_000
#: Shorter runs are not stored.
RUN_SECONDS_MIN = 60.0
#: Hosts with more runs teach nothing about any pair of them.
RUNS_PER_HOST_MAX = 8
#: Limit of the host names stored with a run.
HOST_NAMES_MAX = 1024
#: A GPU that does nothing but wait for this many turns is idle.
WAIT_RATIO_STANDING, STANDING_TURNS = 0.98, 60
#: Source of a scheduler's gang without a reported process.
SCHEDULER = "scheduler"

#: Number in a fingerprint -> table and column whose mean it is.
_READINGS: Mapping[str, tuple[str, str]] = {
    "step_seconds": ("gpu_fast_10s", "step_seconds"),
    "compute_ratio": ("gpu_fast_1s", "compute_ratio"),
    "wait_ratio": ("gpu_fast_1s", "wait_ratio"),
    "host_stall_ratio": ("gpu_fast_1s", "host_stall_ratio"),
    "checkpoint_ratio": ("gpu_fast_1s", "checkpoint_ratio"),
    "idle_ratio": ("gpu_fast_1s", "idle_ratio"),
    "utilization_ratio": ("gpu_1s", "utilization_ratio"),
    "sm_ratio": ("gpu_fast_1s", "sm_active_ratio"),
    "tensor_ratio": ("gpu_fast_1s", "tensor_active_ratio"),
    "memory_bandwidth_ratio": ("gpu_fast_1s", "memory_bandwidth_ratio"),
    "checkpoint_interval_seconds": ("gpu_fast_10s", "checkpoint_interval_seconds"),
}
#: Power readings, as a share of the GPU's limit.
_POWERS: Mapping[str, tuple[str, str]] = {
    "power_ratio": ("gpu_1s", "power_watts"),
    "compute_power_ratio": ("gpu_fast_10s", "compute_watts"),
    "wait_power_ratio": ("gpu_fast_10s", "wait_watts"),
}
#: Sums of two columns of the fast table.
_TRAFFIC: Mapping[str, tuple[str, str]] = {
    "pcie_bytes_per_second": (
        "pcie_transmitted_bytes_per_second",
        "pcie_received_bytes_per_second",
    ),
    "nvlink_bytes_per_second": (
        "nvlink_transmitted_bytes_per_second",
        "nvlink_received_bytes_per_second",
    ),
}
#: Rows of the sums: NUMBERS, confidence of the step, and count of readings.
_CONFIDENCE, _SEEN = len(NUMBERS), len(NUMBERS) + 1
_WIDTH = len(NUMBERS) + 2
_AT = {name: index for index, name in enumerate(NUMBERS)}


@dataclass(slots=True, eq=False)
class ActiveRun:
    """A running job. `sums`, `counts`: of GPUs that it released, and from before a restart."""

    key: str
    job: str
    source: str
    begun_ns: int
    user_id: str = ""
    sums: Floats = field(default_factory=lambda: np.zeros(_WIDTH))
    counts: Floats = field(default_factory=lambda: np.zeros(_WIDTH))
    rows: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    #: GPUs that another run uses, too: no reading of them belongs to one run alone.
    shared_rows: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    hosts: tuple[str, ...] = ()
    gpus_max: int = 0
    gpu_model: str = ""
    simulated: bool = False

    @property
    def run_id(self) -> str:
        """Return the permanent id of the run."""
        return f"{self.key}@{self.begun_ns // 1000}"

    @property
    def all_rows(self) -> Indexes:
        """Return the rows of all its GPUs, shared ones included."""
        return np.concatenate((self.rows, self.shared_rows))

    @property
    def gpus_held_max(self) -> int:
        """Return the number of its GPUs, shared ones included."""
        return max(self.gpus_max, self.rows.size + self.shared_rows.size)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run until now, or until its end. `ended_ns` 0: it runs."""

    run_id: str
    key: str
    job: str
    source: str
    user_id: str
    begun_ns: int
    time_ns: int
    ended_ns: int
    observed_gpu_seconds: float
    fingerprint: Fingerprint
    hosts: tuple[str, ...]
    simulated: bool

    @property
    def observed_seconds(self) -> float:
        """Return the mean number of seconds in which a GPU was read."""
        return self.observed_gpu_seconds / max(1, self.fingerprint.gpus)


def run_key(job: tuple[str, str, int], host_names: Sequence[str]) -> str:
    """Return the key of the run of a job; *job*: `Job.key`."""
    source, name, host = job
    return f"{source}/{host_names[host]}/{name}" if host >= 0 else f"{source}/{name}"


class NewRows:
    """Rows of tables with a reading since the last look."""

    def __init__(self) -> None:
        self._read_ns: dict[str, Times] = {}

    def of(self, table: DeviceTable) -> Flags:
        """Return which rows have new readings since the last call for *table*; none at the first call."""
        now = table.read_ns
        before = self._read_ns.get(table.name, now)
        self._read_ns[table.name] = now.copy()
        before = np.pad(before, (0, max(0, now.size - before.size)))
        return np.asarray(now != before[: now.size])


class RunAccumulator:
    """Accumulates all runs: `advance` once a second, then `take_ended`, in one thread."""

    def __init__(self, gangs: Callable[[], Iterable[ScheduledGang]] = tuple) -> None:
        self._gangs = gangs
        self._active: dict[str, ActiveRun] = {}
        self._runs: list[ActiveRun | None] = []  # by number
        self._free: list[int] = []
        self._number: dict[str, int] = {}
        self._resumable: dict[str, ActiveRun] = {}
        self._ended: list[RunSummary] = []
        self._version: tuple[int, int, frozenset[ScheduledGang]] | None = None
        self._new_rows = NewRows()
        self._row_run: Indexes = np.full(64, -1, dtype=np.intp)
        #: GPU's row -> number of consecutive turns in which it only waited.
        self._waiting_turns: Codes = np.zeros(64, dtype=np.int32)
        #: GPU's row -> its row in the fast tables, -1: none.
        self._fast_row: Indexes = np.full(64, -1, dtype=np.intp)
        self._sums: Floats = np.zeros((_WIDTH, 64))
        self._counts: Floats = np.zeros((_WIDTH, 64))
        #: Jobs on the GPUs of each host, by node index.
        self.jobs_of_hosts: Indexes = np.zeros(0, dtype=np.intp)
        #: Number of each run -> number of each neighbor on a host -> hosts that both use.
        self.neighbors: dict[int, dict[int, tuple[int, ...]]] = {}
        #: Jobs ignored at RUNS_ACTIVE_MAX.
        self.left_out_count = 0

    def __len__(self) -> int:
        return len(self._active)

    def resume(self, run: ActiveRun) -> None:
        """Continue a run from before a restart, once its job is reported again."""
        if len(self._resumable) < RUNS_ACTIVE_MAX:
            self._resumable[run.key] = run

    def drop_resumable(self) -> list[str]:
        """Remove runs whose jobs were not reported since the restart; return their keys."""
        keys = list(self._resumable)
        self._resumable.clear()
        return keys

    def advance(self, fleet: Fleet, now_ns: int) -> None:
        """Add the readings since the last call, and begin and end runs."""
        gangs = frozenset(self._gangs())
        version = fleet.jobs.version, fleet.shape_version, gangs
        if version != self._version:
            self._fit(fleet.devices["gpu"].capacity)
            self._assign(fleet, now_ns, gangs)
            self._version = version
        # Even without a run: readings from before a run must not count for it.
        self._sample(fleet)

    def take_ended(self) -> list[RunSummary]:
        """Return the runs that ended since the last call and were long enough."""
        ended, self._ended = self._ended, []
        return ended

    def active(self, now_ns: int) -> list[RunSummary]:
        """Return summaries of the active runs that are long enough."""
        summaries = (self._summary(run, now_ns) for run in self._active.values())
        return [summary for summary in summaries if summary.observed_seconds >= RUN_SECONDS_MIN]

    def summary_if_long(self, key: str, now_ns: int) -> RunSummary | None:
        """Return the summary of an active run that is long enough."""
        run = self._active.get(key)
        summary = None if run is None else self._summary(run, now_ns)
        return summary if summary and summary.observed_seconds >= RUN_SECONDS_MIN else None

    def keys(self) -> list[str]:
        """Return the keys of the active runs."""
        return list(self._active)

    @property
    def active_runs(self) -> Mapping[int, ActiveRun]:
        """Return the active runs by number."""
        return {self._number[key]: run for key, run in self._active.items()}

    def rows_of_runs(self) -> tuple[Indexes, Indexes, Indexes]:
        """Return for each GPU of a run: its row, its row in the fast tables, its run's number.

        -1: the GPU has no row in the fast tables.
        """
        held = np.flatnonzero(self._row_run >= 0)
        return held, self._fast_row[held], self._row_run[held]

    def _fit(self, capacity: int) -> None:
        before = self._row_run.size
        if before < capacity:
            self._row_run = grown(self._row_run, capacity)
            self._row_run[before:] = -1
            self._waiting_turns = grown(self._waiting_turns, capacity)
            self._sums, self._counts = grown(self._sums, capacity), grown(self._counts, capacity)

    def _assign(self, fleet: Fleet, now_ns: int, gangs: frozenset[ScheduledGang]) -> None:
        holders, sharers = self._holders(fleet, now_ns, gangs)
        shared_rows: dict[int, list[int]] = {}
        for row, runs in sharers.items():
            for number in runs:
                shared_rows.setdefault(number, []).append(row)
        new = np.full(self._row_run.size, -1, dtype=np.intp)
        for row, number in holders.items():
            new[row] = number
        self._fold(np.flatnonzero((self._row_run != new) & (self._row_run >= 0)))
        self._row_run = new
        gpus, fast = fleet.devices["gpu"], fleet.devices["gpu_fast"]
        self._fast_row = np.full(new.size, -1, dtype=np.intp)
        for row in np.flatnonzero(new >= 0).tolist():
            self._fast_row[row] = fast.find(int(gpus.host[row]), gpus.names[row])
        order = np.argsort(new, kind="stable")
        numbers = new[order]
        for number, run in enumerate(self._runs):
            if run is not None:
                run.shared_rows = np.array(sorted(shared_rows.get(number, ())), dtype=np.intp)
                first, last = np.searchsorted(numbers, (number, number + 1))
                self._describe(fleet, run, order[first:last])

    def _holders(
        self, fleet: Fleet, now_ns: int, gangs: frozenset[ScheduledGang]
    ) -> tuple[dict[int, int], dict[int, set[int]]]:
        """Return GPU row -> run's number, and for GPUs of several jobs all their runs. End the runs that are over."""
        devices, seen = fleet.devices["gpu"], set[str]()
        self.jobs_of_hosts = np.zeros(len(fleet), dtype=np.intp)
        holders: dict[int, int] = {}
        sharers: dict[int, set[int]] = {}
        hosts = set().union(*(job.gpus for job in fleet.jobs.all()))
        runs_on_host: dict[int, set[int]] = {}
        for host in hosts:
            assignments = list(fleet.jobs.gpu_assignments(host))
            self.jobs_of_hosts[host] = len({job.key for job, _ in assignments})
            for job, gpu in assignments:
                source, name, _ = job.key
                key = run_key(job.key, fleet.names)
                number = self._number_of(key, name, source, now_ns, seen)
                row = devices.find(host, gpu)
                if number < 0 or row < 0:
                    continue
                runs_on_host.setdefault(host, set()).add(number)
                if (run := self._runs[number]) is not None:
                    run.user_id = job.user_id
                if (first := holders.setdefault(row, number)) != number:
                    sharers.setdefault(row, {first}).add(number)
        for workload, names, _ in gangs:
            known = [fleet.index[name] for name in names if name in fleet.index]
            if known and not any(host in hosts for host in known):
                number = self._number_of(
                    f"{SCHEDULER}/{workload}", workload, SCHEDULER, now_ns, seen
                )
                self.jobs_of_hosts[known] += 1
                for row in np.flatnonzero(np.isin(devices.host, known)).tolist():
                    if number >= 0 and (first := holders.setdefault(row, number)) != number:
                        sharers.setdefault(row, {first}).add(number)
        for key in self._active.keys() - seen:
            self._end(key, now_ns)
        self.neighbors = _neighbors(runs_on_host)
        own = {row: number for row, number in holders.items() if row not in sharers}
        return own, sharers

    def number_of(self, job: Job, host_names: Sequence[str]) -> int:
        """Return the number of the active run of *job*; -1: none."""
        return self._number.get(run_key(job.key, host_names), -1)

    def _number_of(self, key: str, name: str, source: str, now_ns: int, seen: set[str]) -> int:
        """Return the number of a run, which is begun if necessary; -1: too many runs."""
        seen.add(key)
        if key in self._number:
            return self._number[key]
        if len(self._active) >= RUNS_ACTIVE_MAX:
            self.left_out_count += 1
            return -1
        run = self._resumable.pop(key, None) or ActiveRun(key, name, source, now_ns)
        number = self._free.pop() if self._free else len(self._runs)
        if number == len(self._runs):
            self._runs.append(run)
        else:
            self._runs[number] = run
        self._active[key], self._number[key] = run, number
        return number

    def _end(self, key: str, now_ns: int) -> None:
        number, run = self._number.pop(key), self._active.pop(key)
        self._fold(np.flatnonzero(self._row_run == number))
        self._row_run[self._row_run == number] = -1
        run.rows = np.zeros(0, dtype=np.intp)
        summary = self._summary(run, now_ns, ended_ns=max(now_ns, run.begun_ns))
        if summary.observed_seconds >= RUN_SECONDS_MIN:
            self._ended.append(summary)
        self._runs[number] = None
        self._free.append(number)

    def _fold(self, rows: Indexes) -> None:
        """Move the sums of *rows* to their runs."""
        numbers = self._row_run[rows]
        for number in np.unique(numbers).tolist():
            run, own_rows = self._runs[number], rows[numbers == number]
            if run is not None:
                run.sums += self._sums[:, own_rows].sum(axis=1)
                run.counts += self._counts[:, own_rows].sum(axis=1)
        self._sums[:, rows] = self._counts[:, rows] = 0.0

    def _describe(self, fleet: Fleet, run: ActiveRun, rows: Indexes) -> None:
        run.rows = rows
        if not rows.size:
            return
        devices = fleet.devices["gpu"]
        hosts = np.unique(devices.host[rows])
        run.gpus_max = max(run.gpus_max, int(rows.size))
        run.hosts = tuple(fleet.names[host] for host in hosts[:HOST_NAMES_MAX].tolist())
        run.simulated = bool(fleet.simulated[hosts].any())
        first = int(rows[0])
        inventory = fleet.attributes[int(devices.host[first])]
        run.gpu_model = inventory.get(("gpu", devices.names[first]), {}).get("name", run.gpu_model)

    def _sample(self, fleet: Fleet) -> None:
        """Add each new reading of the runs' GPUs once."""
        tables, held = fleet.tables, self._rows_at_work(fleet, np.flatnonzero(self._row_run >= 0))
        fast, slow = tables["gpu_fast_1s"], tables["gpu_fast_10s"]
        # Fast tables have other rows; pairs of (GPU's row, table's row) of the new readings.
        fast_at = self._fast_row[held]
        sampled, fast_at = held[fast_at >= 0], fast_at[fast_at >= 0]
        new = {
            table.name: (
                gpus[(fresh := self._new_rows.of(table))[table_rows]],
                table_rows[fresh[table_rows]],
            )
            for table, gpus, table_rows in (
                (tables["gpu_1s"], held, held),
                (fast, sampled, fast_at),
                (slow, sampled, fast_at),
            )
        }
        rows = new["gpu_1s"][0]
        self._sums[_SEEN, rows] += 1.0
        self._counts[_SEEN, rows] += 1.0
        steps = self.reported_steps(fleet)
        self._add(_AT["step_seconds"], rows, steps[rows])
        self._add(_CONFIDENCE, rows, np.where(np.isfinite(steps[rows]), 1.0, np.nan))
        for name, (table, column) in _READINGS.items():
            gpus, table_rows = new[table]
            values = tables[table].gauge_at(column, table_rows)
            # The period is not inferred if the job's ranks report it.
            is_reported = np.isfinite(steps[gpus]) & (name == "step_seconds")
            self._add(_AT[name], gpus, np.where(is_reported, np.nan, values))
        gpus, table_rows = new[slow.name]
        sure = np.where(
            np.isfinite(steps[gpus]), np.nan, slow.gauge_at("step_confidence_ratio", table_rows)
        )
        self._add(_CONFIDENCE, gpus, sure)
        for name, (table, column) in _POWERS.items():
            gpus, table_rows = new[table]
            limits = tables["gpu_10s"].gauge_at("power_limit_watts", gpus)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = tables[table].gauge_at(column, table_rows) / limits
            self._add(_AT[name], gpus, ratios)
        gpus, table_rows = new[fast.name]
        for name, (sent, received) in _TRAFFIC.items():
            total = fast.gauge_at(sent, table_rows) + fast.gauge_at(received, table_rows)
            self._add(_AT[name], gpus, total)
        self._sample_hosts(fleet, rows)

    def reported_steps(self, fleet: Fleet) -> Floats:
        """Return the reported step time of each GPU's run on its host; NaN: none."""
        result = np.full(self._row_run.size, np.nan)
        hosts, jobs, seconds = fleet.gangs.steps.current
        if not hosts.size:
            return result
        count = int(jobs.max()) + 2
        keys = hosts * count + jobs  # ascending, as they are sorted by host and job
        held = np.flatnonzero(self._row_run >= 0)
        code = np.array(
            [count - 1 if run is None else fleet.gangs.steps.code(run.job) for run in self._runs],
            dtype=np.intp,
        )[self._row_run[held]]
        wanted = fleet.devices["gpu"].host[held].astype(np.intp) * count + code
        positions = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        is_found = (keys[positions] == wanted) & (code >= 0)
        result[held[is_found]] = seconds[positions[is_found]]
        return result

    def _rows_at_work(self, fleet: Fleet, held: Indexes) -> Indexes:
        """Return the GPUs of *held* that work: hours of hanging must not change the fingerprint."""
        fast = fleet.tables["gpu_fast_1s"]
        sampled = held[self._fast_row[held] >= 0]
        waits = fast.gauge_at("wait_ratio", self._fast_row[sampled]) > WAIT_RATIO_STANDING
        self._waiting_turns[sampled] = np.where(waits, self._waiting_turns[sampled] + 1, 0)
        return held[self._waiting_turns[held] <= STANDING_TURNS]

    def _sample_hosts(self, fleet: Fleet, rows: Indexes) -> None:
        """Add CPU use, disk pressure and NIC bytes per GPU of the hosts of *rows*."""
        host_of_row = fleet.devices["gpu"].host[rows]
        cpu, disks = host_pressures(fleet)
        self._add(_AT["host_cpu_ratio"], rows, cpu[host_of_row])
        self._add(_AT["disk_pressure_ratio"], rows, disks[host_of_row])
        self._add(_AT["nic_bytes_per_second"], rows, nic_bytes_per_gpu(fleet)[host_of_row])

    def _add(self, number: int, rows: Indexes, values: Floats) -> None:
        known = np.isfinite(values) & (values >= 0)
        rows = rows[known]
        self._sums[number, rows] += values[known]
        self._counts[number, rows] += 1.0

    def _summary(self, run: ActiveRun, now_ns: int, ended_ns: int = 0) -> RunSummary:
        sums = run.sums + self._sums[:, run.rows].sum(axis=1)
        counts = run.counts + self._counts[:, run.rows].sum(axis=1)
        means = np.where(counts > 0, sums / np.maximum(counts, 1.0), nan)
        fingerprint = Fingerprint(
            tuple(means[: len(NUMBERS)].tolist()),
            float(means[_CONFIDENCE]),
            run.gpus_max,
            len(run.hosts),
            run.gpu_model,
        )
        return RunSummary(
            run_id=run.run_id,
            key=run.key,
            job=run.job,
            source=run.source,
            user_id=run.user_id,
            begun_ns=run.begun_ns,
            time_ns=max(now_ns, run.begun_ns),
            ended_ns=ended_ns,
            observed_gpu_seconds=float(counts[_SEEN]),
            fingerprint=fingerprint,
            hosts=run.hosts,
            simulated=run.simulated,
        )


def _neighbors(runs_on_host: Mapping[int, set[int]]) -> dict[int, dict[int, tuple[int, ...]]]:
    """Return run -> neighbor -> hosts. A host of more than RUNS_PER_HOST_MAX runs is left out."""
    result: dict[int, dict[int, tuple[int, ...]]] = {}
    for host, numbers in runs_on_host.items():
        if 1 < len(numbers) <= RUNS_PER_HOST_MAX:
            for own in numbers:
                beside = result.setdefault(own, {})
                for other in numbers - {own}:
                    beside[other] = (*beside.get(other, ()), host)
    return result


def host_pressures(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return each host's shares of used cores and of time waiting for disks; NaN: not read."""
    cpu, disks = (np.full(len(fleet), np.nan) for _ in range(2))
    table = fleet.tables["host_1s"]
    host_of_row = table.devices.host
    cpu[host_of_row] = table.gauge("cpu_user_ratio") + table.gauge("cpu_system_ratio")
    disks[host_of_row] = table.gauge("pressure_io_some_ratio")
    return cpu, disks


def nic_bytes_per_gpu(fleet: Fleet) -> Floats:
    """Return the bytes per second of each host's ports, per GPU; NaN without ports."""
    ports = fleet.tables["rdma_1s"]
    now = np.zeros(ports.devices.count)
    directions = (ports.recent(name, now) for name in ("received_bytes", "transmitted_bytes"))
    traffic = sum(directions, start=np.zeros(ports.devices.count))
    host_of_port = ports.devices.host
    bytes_per_second = np.bincount(host_of_port, traffic / FAST_SECONDS, minlength=len(fleet))
    has_ports = np.bincount(host_of_port, minlength=len(fleet)) > 0
    gpus = np.maximum(np.bincount(fleet.devices["gpu"].host, minlength=len(fleet)), 1)
    return np.where(has_ports, bytes_per_second / gpus, np.nan)


def resumed(summary: RunSummary) -> ActiveRun:
    """Return the run to continue after a restart: its means keep their weight."""
    means = np.array([*summary.fingerprint.values, summary.fingerprint.step_confidence, 1.0])
    counts = np.where(np.isfinite(means), summary.observed_gpu_seconds, 0.0)
    return ActiveRun(
        key=summary.key,
        job=summary.job,
        source=summary.source,
        begun_ns=summary.begun_ns,
        user_id=summary.user_id,
        sums=np.where(np.isfinite(means), means, 0.0) * counts,
        counts=counts,
        hosts=summary.hosts,
        gpus_max=summary.fingerprint.gpus,
        gpu_model=summary.fingerprint.gpu_model,
        simulated=summary.simulated,
    )
