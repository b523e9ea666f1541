"""Averages what each job's GPUs do while it runs: a sum and a count per GPU and number, in arrays.

Each second costs a few passes over the arrays of all GPUs, for any number of jobs. Belongs to the fleet's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan

import numpy as np

from ...fingerprints.fingerprint import NUMBERS, Fingerprint
from ..counter_deltas import Codes, Flags, Floats, Indexes, Times, grown
from ..fleet.fleet import Fleet
from ..fleet.jobs import ScheduledGang
from ..fleet.tables import FAST_SECONDS, DeviceTable

#: Runs that are accumulated at once; more are left out, and counted.
RUNS_ACTIVE_MAX = 50_000
#: A run that was seen for less is not stored.
RUN_SECONDS_MIN = 60.0
#: Hosts that a run is stored with by name.
HOST_NAMES_MAX = 1024
#: A GPU that only waits for this many turns is idle.
WAIT_RATIO_STANDING, STANDING_TURNS = 0.98, 60
#: A scheduler's gang, where no process tells of a job.
SCHEDULER = "scheduler"

#: Number of a fingerprint -> table and column of the reading that it is the mean of.
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
#: Power, as a share of the GPU's limit.
_POWERS: Mapping[str, tuple[str, str]] = {
    "power_ratio": ("gpu_1s", "power_watts"),
    "compute_power_ratio": ("gpu_fast_10s", "compute_watts"),
    "wait_power_ratio": ("gpu_fast_10s", "wait_watts"),
}
#: Sums of two readings of the GPU's table of each second.
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
#: What is summed: the numbers, how sure the step is, and that the GPU was read at all.
_CONFIDENCE, _SEEN = len(NUMBERS), len(NUMBERS) + 1
_WIDTH = len(NUMBERS) + 2
_AT = {name: at for at, name in enumerate(NUMBERS)}


@dataclass(slots=True, eq=False)
class ActiveRun:
    """A job that runs. `sums`, `counts`: of GPUs that it held before, and of before a restart."""

    key: str
    job: str
    source: str
    begun_ns: int
    user_id: str = ""
    sums: Floats = field(default_factory=lambda: np.zeros(_WIDTH))
    counts: Floats = field(default_factory=lambda: np.zeros(_WIDTH))
    rows: Indexes = field(default_factory=lambda: np.zeros(0, dtype=np.intp))
    hosts: tuple[str, ...] = ()
    gpus_max: int = 0
    gpu_model: str = ""
    simulated: bool = False

    @property
    def run_id(self) -> str:
        """What names the run for ever."""
        return f"{self.key}@{self.begun_ns // 1000}"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run as it is now, or was when it ended. `ended_ns` 0: it runs."""

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
        """Seconds in which each GPU was read, on average."""
        return self.observed_gpu_seconds / max(1, self.fingerprint.gpus)


def run_key(job: tuple[str, str, int], host_names: Sequence[str]) -> str:
    """Return the key of the run of a job, as `Job.key` names it."""
    source, name, host = job
    return f"{source}/{host_names[host]}/{name}" if host >= 0 else f"{source}/{name}"


class RunAccumulator:
    """Belongs to the fleet's thread. `advance` once a second, then `take_ended`."""

    def __init__(self, gangs: Callable[[], Iterable[ScheduledGang]] = tuple) -> None:
        self._gangs = gangs
        self._active: dict[str, ActiveRun] = {}
        self._runs: list[ActiveRun | None] = []  # by number
        self._free: list[int] = []
        self._number: dict[str, int] = {}
        self._resumable: dict[str, ActiveRun] = {}
        self._ended: list[RunSummary] = []
        self._version: tuple[int, int, frozenset[ScheduledGang]] | None = None
        self._read_ns: dict[str, Times] = {}
        self._row_run: Indexes = np.full(64, -1, dtype=np.intp)
        #: GPU's row -> for how many turns on end it has done nothing but wait.
        self._waiting_turns: Codes = np.zeros(64, dtype=np.int32)
        #: GPU's row -> its row among what is sampled fast; -1: none.
        self._fast_row: Indexes = np.full(64, -1, dtype=np.intp)
        self._sums: Floats = np.zeros((_WIDTH, 64))
        self._counts: Floats = np.zeros((_WIDTH, 64))
        #: Jobs that were left out because too many ran.
        self.left_out_count = 0

    def __len__(self) -> int:
        return len(self._active)

    def resume(self, run: ActiveRun) -> None:
        """Go on with a run of before a restart, once its job is seen again."""
        if len(self._resumable) < RUNS_ACTIVE_MAX:
            self._resumable[run.key] = run

    def drop_resumable(self) -> list[str]:
        """Forget the runs of before the restart whose jobs were not seen again, and return their keys."""
        keys = list(self._resumable)
        self._resumable.clear()
        return keys

    def advance(self, fleet: Fleet, now_ns: int) -> None:
        """Add what was read since the last call, and follow which jobs began and ended."""
        gangs = frozenset(self._gangs())
        version = fleet.jobs.version, fleet.shape_version, gangs
        if version != self._version:
            self._fit(fleet.devices["gpu"].capacity)
            self._assign(fleet, now_ns, gangs)
            self._version = version
        self._sample(fleet)  # without any run, too: what was read before a run is none of its own

    def take_ended(self) -> list[RunSummary]:
        """Return the runs that ended since the last call and were long enough."""
        ended, self._ended = self._ended, []
        return ended

    def active(self, now_ns: int) -> list[RunSummary]:
        """Return the runs that run, as they are now, and have run long enough."""
        several = (self._summary(run, now_ns) for run in self._active.values())
        return [one for one in several if one.observed_seconds >= RUN_SECONDS_MIN]

    def summary_if_long(self, key: str, now_ns: int) -> RunSummary | None:
        """Return the run of that key, if it runs and has run long enough."""
        run = self._active.get(key)
        summary = None if run is None else self._summary(run, now_ns)
        return summary if summary and summary.observed_seconds >= RUN_SECONDS_MIN else None

    def keys(self) -> list[str]:
        """Return the keys of the runs that run."""
        return list(self._active)

    @property
    def active_runs(self) -> Mapping[int, ActiveRun]:
        """The runs that run, by number."""
        return {self._number[key]: run for key, run in self._active.items()}

    def rows_of_runs(self) -> tuple[Indexes, Indexes, Indexes]:
        """Return of each GPU that a run holds: its row, its row among what is sampled fast (-1: none), its run's number."""
        held = np.flatnonzero(self._row_run >= 0)
        return held, self._fast_row[held], self._row_run[held]

    # Which GPU computes for which run ------------------------------------------------------------

    def _fit(self, capacity: int) -> None:
        before = self._row_run.size
        if before < capacity:
            self._row_run = grown(self._row_run, capacity)
            self._row_run[before:] = -1
            self._waiting_turns = grown(self._waiting_turns, capacity)
            self._sums, self._counts = grown(self._sums, capacity), grown(self._counts, capacity)

    def _assign(self, fleet: Fleet, now_ns: int, gangs: frozenset[ScheduledGang]) -> None:
        holders = self._holders(fleet, now_ns, gangs)
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
                first, last = np.searchsorted(numbers, (number, number + 1))
                self._describe(fleet, run, order[first:last])

    def _holders(
        self, fleet: Fleet, now_ns: int, gangs: frozenset[ScheduledGang]
    ) -> dict[int, int]:
        """Return GPU's row -> number of its run; one that two jobs hold is nobody's. Ends the runs that are over."""
        devices, seen = fleet.devices["gpu"], set[str]()
        holders: dict[int, int] = {}
        shared: set[int] = set()
        hosts = set().union(*(job.gpus for job in fleet.jobs.all()))
        for host in hosts:
            for job, gpu in fleet.jobs.gpu_assignments(host):
                source, name, _ = job.key
                key = run_key(job.key, fleet.names)
                number = self._number_of(key, name, source, now_ns, seen)
                row = devices.find(host, gpu)
                if number < 0 or row < 0:
                    continue
                if (run := self._runs[number]) is not None:
                    run.user_id = job.user_id
                if holders.setdefault(row, number) != number:
                    shared.add(row)
        for workload, names, _ in gangs:
            known = [fleet.index[name] for name in names if name in fleet.index]
            if known and not any(host in hosts for host in known):
                number = self._number_of(
                    f"{SCHEDULER}/{workload}", workload, SCHEDULER, now_ns, seen
                )
                for row in np.flatnonzero(np.isin(devices.host, known)).tolist():
                    if number >= 0 and holders.setdefault(row, number) != number:
                        shared.add(row)
        for key in self._active.keys() - seen:
            self._end(key, now_ns)
        return {row: number for row, number in holders.items() if row not in shared}

    def _number_of(self, key: str, name: str, source: str, now_ns: int, seen: set[str]) -> int:
        """Return the number of a run, begun if need be; -1: there is no room."""
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
        """Move the sums of *rows* to the runs that they were of."""
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

    # What was read -------------------------------------------------------------------------------

    def _sample(self, fleet: Fleet) -> None:
        """Add each reading that is new, of GPUs of a run, once."""
        tables, held = fleet.tables, self._rows_at_work(fleet, np.flatnonzero(self._row_run >= 0))
        fast, slow = tables["gpu_fast_1s"], tables["gpu_fast_10s"]
        # What is sampled fast has rows of its own: (row of the GPU, row of the table), of what is new.
        of_fast = self._fast_row[held]
        sampled, of_fast = held[of_fast >= 0], of_fast[of_fast >= 0]
        new = {
            table.name: (gpus[(fresh := self._fresh(table))[at]], at[fresh[at]])
            for table, gpus, at in (
                (tables["gpu_1s"], held, held),
                (fast, sampled, of_fast),
                (slow, sampled, of_fast),
            )
        }
        rows = new["gpu_1s"][0]
        self._sums[_SEEN, rows] += 1.0
        self._counts[_SEEN, rows] += 1.0
        steps = self.reported_steps(fleet)
        self._add(_AT["step_seconds"], rows, steps[rows])
        self._add(_CONFIDENCE, rows, np.where(np.isfinite(steps[rows]), 1.0, np.nan))
        for name, (table, column) in _READINGS.items():
            gpus, at = new[table]
            values = tables[table].gauge_at(column, at)
            # A period is not inferred where the job's own ranks report it.
            is_reported = np.isfinite(steps[gpus]) & (name == "step_seconds")
            self._add(_AT[name], gpus, np.where(is_reported, np.nan, values))
        gpus, at = new[slow.name]
        sure = np.where(
            np.isfinite(steps[gpus]), np.nan, slow.gauge_at("step_confidence_ratio", at)
        )
        self._add(_CONFIDENCE, gpus, sure)
        for name, (table, column) in _POWERS.items():
            gpus, at = new[table]
            limits = tables["gpu_10s"].gauge_at("power_limit_watts", gpus)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = tables[table].gauge_at(column, at) / limits
            self._add(_AT[name], gpus, ratios)
        gpus, at = new[fast.name]
        for name, (sent, received) in _TRAFFIC.items():
            self._add(_AT[name], gpus, fast.gauge_at(sent, at) + fast.gauge_at(received, at))
        self._sample_hosts(fleet, rows)

    def reported_steps(self, fleet: Fleet) -> Floats:
        """Return the step time that the ranks of each GPU's run report on its host, by GPU's row; NaN where none do."""
        found = np.full(self._row_run.size, np.nan)
        hosts, jobs, seconds = fleet.gangs.steps.current
        if not hosts.size:
            return found
        count = int(jobs.max()) + 2
        keys = hosts * count + jobs  # ascending, as they are sorted by host and job
        held = np.flatnonzero(self._row_run >= 0)
        code = np.array(
            [count - 1 if run is None else fleet.gangs.steps.code(run.job) for run in self._runs],
            dtype=np.intp,
        )[self._row_run[held]]
        wanted = fleet.devices["gpu"].host[held].astype(np.intp) * count + code
        at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        is_found = (keys[at] == wanted) & (code >= 0)
        found[held[is_found]] = seconds[at[is_found]]
        return found

    def _rows_at_work(self, fleet: Fleet, held: Indexes) -> Indexes:
        """Return the GPUs of *held* whose run does not stand still: a job that hangs for hours is no other workload by it."""
        fast = fleet.tables["gpu_fast_1s"]
        sampled = held[self._fast_row[held] >= 0]
        waits = fast.gauge_at("wait_ratio", self._fast_row[sampled]) > WAIT_RATIO_STANDING
        self._waiting_turns[sampled] = np.where(waits, self._waiting_turns[sampled] + 1, 0)
        return held[self._waiting_turns[held] <= STANDING_TURNS]

    def _sample_hosts(self, fleet: Fleet, rows: Indexes) -> None:
        """Add what the hosts of the GPUs in *rows* do: CPU, waiting for disks, bytes of NICs for each GPU."""
        of = fleet.devices["gpu"].host[rows]
        cpu, disks = host_pressures(fleet)
        self._add(_AT["host_cpu_ratio"], rows, cpu[of])
        self._add(_AT["disk_pressure_ratio"], rows, disks[of])
        self._add(_AT["nic_bytes_per_second"], rows, nic_bytes_per_gpu(fleet)[of])

    def _fresh(self, table: DeviceTable) -> Flags:
        """Say which rows were read since they were last asked for."""
        now = table.read_ns
        before = self._read_ns.get(table.name)
        self._read_ns[table.name] = now.copy()
        if before is None:
            return np.zeros(now.size, dtype=bool)
        if before.size < now.size:
            before = np.pad(before, (0, now.size - before.size))
        return np.asarray(now != before[: now.size])

    def _add(self, at: int, rows: Indexes, values: Floats) -> None:
        known = np.isfinite(values) & (values >= 0)
        rows = rows[known]
        self._sums[at, rows] += values[known]
        self._counts[at, rows] += 1.0

    def _summary(self, run: ActiveRun, now_ns: int, ended_ns: int = 0) -> RunSummary:
        sums = run.sums + self._sums[:, run.rows].sum(axis=1)
        counts = run.counts + self._counts[:, run.rows].sum(axis=1)
        means = np.where(counts > 0, sums / np.maximum(counts, 1.0), nan)
        fingerprint = Fingerprint(
            tuple(means[: len(NUMBERS)].tolist()), float(means[_CONFIDENCE]), run.gpus_max, len(run.hosts), run.gpu_model,
        )  # fmt: skip
        return RunSummary(
            run.run_id, run.key, run.job, run.source, run.user_id, run.begun_ns, max(now_ns, run.begun_ns), ended_ns,
            float(counts[_SEEN]), fingerprint, run.hosts, run.simulated,
        )  # fmt: skip


def host_pressures(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return the share of its cores that each host uses, and of the time in which tasks wait for disks; NaN: not read."""
    cpu, disks = (np.full(len(fleet), np.nan) for _ in range(2))
    table = fleet.tables["host_1s"]
    of = table.devices.host
    cpu[of] = table.gauge("cpu_user_ratio") + table.gauge("cpu_system_ratio")
    disks[of] = table.gauge("pressure_io_some_ratio")
    return cpu, disks


def nic_bytes_per_gpu(fleet: Fleet) -> Floats:
    """Return the bytes a second of the ports of each host, for each of its GPUs; NaN without ports."""
    ports = fleet.tables["rdma_1s"]
    traffic = sum(
        (ports.recent(name, np.zeros(ports.devices.count))
        for name in ("received_bytes", "transmitted_bytes")),
        start=np.zeros(ports.devices.count),
    )  # fmt: skip
    of = ports.devices.host
    bytes_ = np.bincount(of, traffic / FAST_SECONDS, minlength=len(fleet))
    has_ports = np.bincount(of, minlength=len(fleet)) > 0
    gpus = np.maximum(np.bincount(fleet.devices["gpu"].host, minlength=len(fleet)), 1)
    return np.where(has_ports, bytes_ / gpus, np.nan)


def resumed(summary: RunSummary) -> ActiveRun:
    """Return the run of *summary*, to continue with: its means weigh as much as they were observed for."""
    means = np.array([*summary.fingerprint.values, summary.fingerprint.step_confidence, 1.0])
    counts = np.where(np.isfinite(means), summary.observed_gpu_seconds, 0.0)
    return ActiveRun(
        summary.key, summary.job, summary.source, summary.begun_ns, summary.user_id,
        np.where(np.isfinite(means), means, 0.0) * counts, counts, hosts=summary.hosts,
        gpus_max=summary.fingerprint.gpus, gpu_model=summary.fingerprint.gpu_model, simulated=summary.simulated,
    )  # fmt: skip
