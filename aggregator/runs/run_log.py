"""Tracks runs of jobs each second: accumulates, compares with earlier runs, stores, and restores after a restart."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
from duckdb import DuckDBPyConnection as Connection

from ...fingerprints.demand import SHARED_RESOURCES
from ...fingerprints.fingerprint import NUMBERS, decode
from ...fingerprints.history import pace_of
from ...fingerprints.interference import ColocatedWorkload, predict
from ...fingerprints.interference_pressure import HOST, TIME_SLICING
from ...fingerprints.sensitivity import KnownWorkloads
from ...fingerprints.similarity import RUNS_MAX
from ..fleet.fleet import Fleet
from ..fleet.jobs import REPORT_AGE_NS_MAX, ScheduledGang
from ..scoring.job_faults import JobFault
from ..scoring.reported_factors import NOTHING_REPORTED
from ..store.rows import replace_rows
from ..store.store import Store
from .accumulator import ActiveRun, RunAccumulator, RunSummary, resumed, run_key
from .colocation_inputs import input_rows, put_inputs
from .colocations import (
    Colocations,
    Contention,
    RunColocation,
    blamed_on_neighbors,
    put_colocations,
    read_effects,
)
from .demand import (
    RunDemands,
    demand_of_rows,
    put_demands,
    read_demands,
    read_known_demands,
)
from .forecasts import RunForecasts, row_columns
from .job_rows import put_paces, put_verdicts, read_references, read_verdicts
from .job_windows import JobRecord, JobWindows
from .neighbor_moves import move_of, shared_part
from .run_history import RunAssessment, RunHistory
from .standstills import Standstills, explained_hang
from .supply import HostSupplies, put_measured, read_measured
from .verdicts import JobState, JobVerdicts

log = logging.getLogger(__name__)

#: Period of comparing and storing an active run; the first time is after a minute
#: (`accumulator.RUN_SECONDS_MIN`).
REPEAT_SECONDS = 600.0
#: Comparisons per turn: with 100,000 runs each takes milliseconds.
ASSESSED_PER_TURN = 4
#: Limit of runs waiting for a comparison, and of unwritten runs; the oldest are dropped.
WAITING_MAX = 20_000
#: Minimum time between writes.
WRITE_SECONDS = 5.0
#: Minimum time between writes of forecasts, and so their maximum age in SQL.
FORECASTS_SECONDS = 10.0
#: Minimum time between updates of the workloads that schedulers query.
WORKLOADS_SECONDS = 10.0
#: Minimum time between readings of `ops.oversized_runs`.
OVERSIZED_SECONDS = 600.0
#: Minimum time between searches for drifting hosts.
DRIFT_SECONDS = 300.0
#: Classes of workloads that wait for requests or people: a standstill is not a hang.
_SERVICES = ("inference", "interactive", "reserved")
_SECOND_NS = 1_000_000_000

_TIMES = ("begun", "time", "ended")
_INTEGERS = ("fingerprint_version", "hosts", "gpus", "earlier_runs")
_TEXTS = (
    "run_id",
    "job",
    "source",
    "user_id",
    "gpu_model",
    "workload_id",
    "workload_class",
    "verdict",
)
_COLUMNS = (
    "run_id", "job", "source", "user_id", "begun", "time", "ended", "observed_gpu_seconds", "fingerprint_version",
    "hosts", "gpus", "gpu_model", "step_confidence", *NUMBERS, "workload_id", "similarity", "earlier_runs",
    "workload_class", "class_confidence", "pace_ratio", "pace_ratio_lower", "pace_ratio_upper", "verdict",
    "slow_hosts", "host_names", "simulated",
)  # fmt: skip

_FORECAST_COLUMNS = row_columns()
_STORED = f"""
SELECT * REPLACE (epoch_ns(begun) AS begun, epoch_ns(time) AS time, epoch_ns(ended) AS ended)
FROM (FROM runs ORDER BY time DESC LIMIT {RUNS_MAX}) ORDER BY time
"""
_OVERSIZED = "SELECT run_id, message FROM ops.oversized_runs"


def _kind(column: str) -> str:
    if column in _TIMES:
        return "time"
    if column in _INTEGERS:
        return "int"
    if column in _TEXTS:
        return "str"
    return {"host_names": "texts", "slow_hosts": "texts", "simulated": "bool"}.get(column, "float")


_ARROW_COLUMNS = " ".join(f"{name}:{_kind(name)}" for name in _COLUMNS)


def put_runs(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the rows of runs. Raises duckdb.Error."""
    replace_rows(connection, "runs", _ARROW_COLUMNS, rows, ("run_id",))


class RunLog:
    """Follows all runs. Owned by the event loop. `step` never raises, so that scoring continues."""

    def __init__(
        self, fleet: Fleet, store: Store, gangs: Callable[[], Iterable[ScheduledGang]] = tuple
    ) -> None:
        self._fleet, self._store = fleet, store
        self.accumulator = RunAccumulator(gangs)
        self.history = RunHistory()
        self.forecasts = RunForecasts()
        self.demands, self.supplies = RunDemands(), HostSupplies()
        self.colocations = Colocations(self._contention)
        self.standstills = Standstills()
        #: Factors of prices that schedulers report.
        self.reported_factors = NOTHING_REPORTED
        #: The last minutes of each job, and its verdicts, for `gangline job`.
        self.windows, self.verdicts = JobWindows(), JobVerdicts()
        #: Run id -> message on HBM that its workload never uses (`ops.oversized_runs`).
        self.oversized: Mapping[str, str] = {}
        self._oversized_ns = 0
        self._forecasts_version, self._forecasts_ns = 0, 0
        self._due_ns: dict[str, int] = {}
        self._ended: deque[RunSummary] = deque(maxlen=WAITING_MAX)
        self._unwritten: OrderedDict[str, RunAssessment] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        self._write_ns = 0
        self._resumable: dict[str, RunSummary] = {}
        self._resumable_until_ns = 0
        #: The last exception of a step; "" without one.
        self.error = ""
        self._drift_version, self._drift_ns = 0, 0
        self._workloads, self._workloads_version, self._workloads_ns = KnownWorkloads(), -1, 0
        #: The last comparison of each active run, by key.
        self.latest: dict[str, RunAssessment] = {}

    def restore(self, now_ns: int) -> None:
        """Restore stored runs. Raises duckdb.Error."""
        with self._store.reading() as cursor:
            run_rows = cursor.execute(_STORED)
            names = [column[0] for column in run_rows.description or ()]
            for values in run_rows.fetchall():
                row = dict(zip(names, values, strict=True))
                if self.history.restore(row) is not None and row["ended"] is None:
                    self._restore_open(row)
            self.verdicts.restore(read_verdicts(cursor))
            self.supplies.restore(read_measured(cursor))
            self.colocations.restore(read_effects(cursor))
            self.demands.restore(read_demands(cursor))
            for run_id, demand in read_known_demands(cursor).items():
                self.history.set_demand(run_id, demand)
            for run_id, references in read_references(cursor).items():
                self.windows.restore(run_id.rpartition("@")[0], references)
        self._resumable_until_ns = now_ns + REPORT_AGE_NS_MAX
        self._find_drifting_hosts(now_ns)

    def _restore_open(self, row: Mapping[str, Any]) -> None:
        run_id = str(row["run_id"])
        summary = RunSummary(
            run_id=run_id,
            key=run_id.rpartition("@")[0],
            job=str(row["job"]),
            source=str(row["source"]),
            user_id=str(row["user_id"] or ""),
            begun_ns=int(row["begun"]),
            time_ns=int(row["time"]),
            ended_ns=0,
            observed_gpu_seconds=float(row["observed_gpu_seconds"] or 0.0),
            fingerprint=decode(row),
            hosts=tuple(row["host_names"] or ()),
            simulated=bool(row["simulated"]),
        )
        self.accumulator.resume(resumed(summary))
        self._resumable[summary.key] = summary

    def workloads(self, now_ns: int) -> KnownWorkloads:
        """Return the known workloads by job name, at most WORKLOADS_SECONDS old."""
        if self._workloads_version != self.history.version and not (
            0 <= now_ns - self._workloads_ns < WORKLOADS_SECONDS * _SECOND_NS
        ):
            self._workloads_version, self._workloads_ns = self.history.version, now_ns
            self._workloads = self.history.workloads()
        return self._workloads

    def step(self, now_ns: int, faults: Sequence[JobFault] = ()) -> None:
        """Follow jobs and *faults*, compare runs, start due writes. Never raises."""
        try:
            self._step(now_ns, faults)
        except Exception as error:
            if (failed := f"{type(error).__name__}: {error}") != self.error:
                log.exception("fingerprints of runs failed; judging continues")
                self.error = failed

    def _step(self, now_ns: int, faults: Sequence[JobFault]) -> None:
        self.observe(now_ns, faults)
        self._ended.extend(self.accumulator.take_ended())
        self._end_unseen(now_ns)
        for _ in range(min(ASSESSED_PER_TURN, len(self._ended))):
            summary = self._ended.popleft()
            self._keep(self.history.assess(summary))
            self.latest.pop(summary.key, None)
            self._due_ns.pop(summary.key, None)
        self._assess_active(now_ns)
        if self.history.version != self._drift_version and not (
            0 <= now_ns - self._drift_ns < DRIFT_SECONDS * _SECOND_NS
        ):
            self._find_drifting_hosts(now_ns)
        self._write_due(now_ns)

    def observe(self, now_ns: int, faults: Sequence[JobFault]) -> None:
        """Add the readings of the last second and the current *faults*. No I/O."""
        self.accumulator.advance(self._fleet, now_ns)
        self.demands.step(self._fleet, self.accumulator)
        self.supplies.step(self._fleet, now_ns)
        self.standstills.step(self._fleet, self.accumulator, now_ns)
        ended = self.windows.step(self._fleet, self.accumulator, now_ns)
        self._judge_jobs(ended, faults, now_ns)
        self.forecasts.step(self._fleet, self.accumulator, now_ns)

    def _judge_jobs(
        self, ended: Sequence[JobRecord], faults: Sequence[JobFault], now_ns: int
    ) -> None:
        records = self.windows.records
        by_run: dict[str, list[JobFault]] = defaultdict(list)
        for fault in faults:
            if (record := records.get(run_key(fault.job, self._fleet.names))) is not None:
                by_run[record.run.run_id].append(fault)
        self.colocations.step(self._fleet, self.accumulator, records, by_run)
        self._fleet.slowed_by_neighbor = self.colocations.slowed_jobs(now_ns)
        for run_id, neighbors in self.colocations.faults().items():
            by_run[run_id] = blamed_on_neighbors(by_run[run_id], neighbors)
        services = {
            assessment.summary.run_id
            for assessment in self.latest.values()
            if assessment.workload_class.name in _SERVICES
        }
        hangs = {
            run_id: hang
            for run_id, hang in self.standstills.faults().items()
            if run_id not in services
        }
        for run_id, hang in hangs.items():
            by_run[run_id] = explained_hang(by_run[run_id], hang)
        states = (
            JobState(
                record.run.run_id,
                record.run.job,
                record.run.gpus_max,
                record.pace.current,
                record.pace.reference.name if record.pace.reference else "",
                record.is_standing or record.run.run_id in hangs,
            )
            for record in records.values()
        )
        self.verdicts.step(states, by_run, now_ns)
        for record in ended:
            self.verdicts.end_run(record.run.run_id, now_ns)

    def _contention(self, colocation: RunColocation) -> Contention:
        """Return the resource that binds a pair of runs, the part that supplies it, and the price of moving the neighbor."""
        pair, fleet = (colocation.run, colocation.neighbor), self._fleet
        resource = colocation.contention.resource or self._contended_resource(
            pair, colocation.hosts[0]
        )
        part = shared_part(fleet, pair, colocation.hosts[0], resource)
        assessed = self.latest.get(colocation.neighbor.key)
        interval_seconds = nan
        if assessed is not None:
            interval_seconds = assessed.summary.fingerprint.value("checkpoint_interval_seconds")
        move = move_of(
            fleet,
            pair,
            colocation.hosts,
            colocation.effect.slowdown,
            interval_seconds,
            self.reported_factors,
        )
        return Contention(resource, part, str(move))

    def _contended_resource(self, pair: tuple[ActiveRun, ActiveRun], host: int) -> str:
        """Return the resource that binds two runs on a host by their demands; "" if that is unknown."""
        demands = [self.history.demand(run.run_id) for run in pair]
        supply = self.supplies.current
        if host >= supply.switch.size:
            return ""
        values, sharing = supply.on_hosts(np.array([host]))[0], HOST
        if np.intersect1d(pair[0].shared_rows, pair[1].shared_rows).size:
            values, sharing = supply.values[host].astype(np.float64), TIME_SLICING
        workloads = [
            ColocatedWorkload(demand=demand[: len(SHARED_RESOURCES)]) for demand in demands
        ]
        (slowdown, _) = predict(workloads, values, sharing)
        return slowdown.binding

    def _find_drifting_hosts(self, now_ns: int) -> None:
        self._drift_version, self._drift_ns = self.history.version, now_ns
        self.history.find_drifting_hosts()
        self._fleet.drifting_hosts = self.history.drifting

    def _assess_active(self, now_ns: int) -> None:
        assessed = 0
        for key in self.accumulator.keys():  # noqa: SIM118 - not a mapping
            due_ns = self._due_ns.setdefault(key, now_ns + 60 * _SECOND_NS)
            # After the clock was set back, a run must not wait that long for its next comparison.
            if now_ns < due_ns <= now_ns + round(REPEAT_SECONDS) * _SECOND_NS:
                continue
            if (summary := self.accumulator.summary_if_long(key, now_ns)) is None:
                self._due_ns[key] = now_ns + 10 * _SECOND_NS
                continue
            self._due_ns[key] = now_ns + round(REPEAT_SECONDS) * _SECOND_NS
            self.latest[key] = assessment = self.history.assess(summary)
            if (record := self.windows.records.get(key)) is not None:
                pace = assessment.pace
                own = pace_of(summary.fingerprint)
                record.pace.set_earlier(own / pace.ratio if pace and pace.ratio > 0.0 else nan)
            self.forecasts.set_prior(key, assessment.earlier_checkpoint_interval_seconds)
            self._keep(assessment)
            assessed += 1
            if assessed >= ASSESSED_PER_TURN:
                return

    def _end_unseen(self, now_ns: int) -> None:
        """End the runs from before the restart whose jobs were not reported again."""
        if not self._resumable or now_ns < self._resumable_until_ns:
            return
        for key in self.accumulator.drop_resumable():
            if (summary := self._resumable.get(key)) is not None:
                self._ended.append(replace(summary, ended_ns=summary.time_ns))
        self._resumable.clear()

    def _keep(self, assessment: RunAssessment) -> None:
        run_id = assessment.summary.run_id
        self._unwritten[run_id] = assessment
        self.history.set_demand(run_id, demand_of_rows(self.demands.rows((run_id,))))
        while len(self._unwritten) > WAITING_MAX:
            self._unwritten.popitem(last=False)

    def _write_due(self, now_ns: int) -> None:
        busy = self._task is not None and not self._task.done()
        forecasts_are_due = self._forecasts_version != self.forecasts.version and not (
            0 <= now_ns - self._forecasts_ns < FORECASTS_SECONDS * _SECOND_NS
        )
        if busy or not (self._unwritten or forecasts_are_due):
            return
        if 0 <= now_ns - self._write_ns < WRITE_SECONDS * _SECOND_NS:
            return
        self._write_ns = now_ns
        if forecasts_are_due:
            self._forecasts_ns = now_ns
        self._task = asyncio.get_running_loop().create_task(self._write(forecasts_are_due))

    async def _write(self, with_forecasts: bool) -> None:
        taken, self._unwritten = self._unwritten, OrderedDict()
        rows = [assessment.row() for assessment in taken.values()]
        demands = self.demands.rows(taken.keys())
        forecasts = self.forecasts.rows() if with_forecasts else []
        records = list(self.windows.records.values())
        changes = self.verdicts.take_changes() if with_forecasts else None
        measured = self.supplies.take_changes() if with_forecasts else []
        colocations = self.colocations.take_changes() if with_forecasts else []
        inputs = input_rows(colocations, self.history, self.supplies.current, self._write_ns)
        version, now_ns = self.forecasts.version, self._write_ns

        def put(connection: Connection) -> None:
            if rows:
                put_runs(connection, rows)
                put_demands(connection, demands, now_ns)
            if changes is not None:
                replace_rows(connection, "job_forecasts", _FORECAST_COLUMNS, forecasts)
                put_paces(connection, records, now_ns)
                put_verdicts(connection, changes, now_ns)
                put_measured(connection, measured, now_ns)
                put_colocations(connection, colocations, now_ns)
                put_inputs(connection, inputs)

        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._store.in_transaction, put)
            self.demands.forget(taken)
            if rows and not 0 <= now_ns - self._oversized_ns < OVERSIZED_SECONDS * _SECOND_NS:
                self._oversized_ns = now_ns
                self.oversized = await loop.run_in_executor(None, self._read_oversized)
            if with_forecasts:
                self._forecasts_version = version
        except asyncio.CancelledError:  # written anyway or not: writing a row again is harmless
            self._unwritten = OrderedDict({**taken, **self._unwritten})
            self.supplies.put_back(measured)
            self.colocations.put_back(colocations)
            if changes is not None:
                self.verdicts.put_back(changes)
            raise
        except Exception as error:  # noqa: BLE001 - the store reports its own failures
            log.debug("%d runs were not written: %s", len(rows), error)
            self._unwritten = OrderedDict({**taken, **self._unwritten})
            self.supplies.put_back(measured)
            self.colocations.put_back(colocations)
            if changes is not None:
                self.verdicts.put_back(changes)

    def _read_oversized(self) -> Mapping[str, str]:
        try:
            with self._store.reading() as cursor:
                return dict(cursor.execute(_OVERSIZED).fetchall())
        except Exception as error:  # noqa: BLE001 - the store reports its own failures
            log.debug("ops.oversized_runs cannot be read: %s", error)
            return self.oversized

    async def settle(self) -> None:
        """Wait for the current write. Never raises."""
        task, self._task = self._task, None
        if task is not None:
            with suppress(Exception, asyncio.CancelledError):
                await task

    async def close(self, now_ns: int) -> None:
        """Write pending runs, and the active runs as they are now. Never raises."""
        await self.settle()
        for summary in [*self._ended, *self.accumulator.active(now_ns)]:
            self._keep(self.history.assess(summary))
        self._ended.clear()
        if self._unwritten or self._forecasts_version != self.forecasts.version:
            self._write_ns = now_ns
            await self._write(with_forecasts=True)
