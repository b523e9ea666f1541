"""Earlier runs in memory: finds the workload of a run and compares its pace. Bounded; no I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from math import isfinite, nan
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ...fingerprints.demand import DEMANDS, QUANTILES, Floats
from ...fingerprints.drift import HostDrift, RunPace, RunVerdict, drifting_hosts, verdict_of
from ...fingerprints.fingerprint import Fingerprint, FingerprintVersionError, decode
from ...fingerprints.history import PaceComparison, compare_pace, is_comparable, pace_of
from ...fingerprints.sensitivity import COMPONENTS, KnownWorkloads, needs_of
from ...fingerprints.similarity import RUNS_MAX, RunIndex
from ...fingerprints.workload_class import ClassEstimate, classify
from .accumulator import RunSummary

#: Limit of the runs that schedulers can query by name, newest first.
WORKLOADS_MAX = 2048
#: Limit of the newest runs, and of their hosts, in the search for drifting hosts.
DRIFT_RUNS_MAX, DRIFT_HOSTS_MAX = 512, 65_536


class KnownRun(NamedTuple):
    """An earlier run, without its entry in the index."""

    run_id: str
    workload_id: str
    begun_ns: int
    fingerprint: Fingerprint
    job: str = ""
    user_id: str = ""
    workload_class: str = ""


@dataclass(frozen=True, slots=True)
class RunAssessment:
    """Comparison of a run with earlier runs.

    `similarity` NaN: no earlier run is similar, and `workload_id` is the run's own id.
    """

    summary: RunSummary
    workload_id: str
    similarity: float
    earlier_runs: int
    workload_class: ClassEstimate
    pace: PaceComparison | None
    verdict: RunVerdict
    #: Its hosts on which other workloads were slow, too.
    slow_hosts: tuple[str, ...] = ()
    #: Checkpoint interval in earlier runs of its workload, NaN if unknown.
    earlier_checkpoint_interval_seconds: float = nan

    @property
    def is_seen(self) -> bool:
        """Return whether an earlier run of its workload is known."""
        return self.earlier_runs > 0

    def row(self) -> dict[str, Any]:
        """Return the row of the table `runs`; times in ns."""
        run, pace = self.summary, self.pace
        return {
            "run_id": run.run_id, "job": run.job, "source": run.source, "user_id": run.user_id, "begun": run.begun_ns,
            "time": run.time_ns, "ended": run.ended_ns, "observed_gpu_seconds": run.observed_gpu_seconds,
            **run.fingerprint.columns(),
            "workload_id": self.workload_id, "similarity": self.similarity, "earlier_runs": self.earlier_runs,
            "workload_class": self.workload_class.name, "class_confidence": self.workload_class.confidence,
            "pace_ratio": pace.ratio if pace else nan, "pace_ratio_lower": pace.lower if pace else nan,
            "pace_ratio_upper": pace.upper if pace else nan,
            "verdict": self.verdict.value, "slow_hosts": list(self.slow_hosts),
            "host_names": list(run.hosts), "simulated": run.simulated,
        }  # fmt: skip


class RunHistory:
    """Earlier runs, bounded: the oldest are removed. Owned by the fleet's thread."""

    def __init__(self, runs_max: int = RUNS_MAX) -> None:
        self._index = RunIndex(runs_max)
        self._runs_max = runs_max
        #: Number in the index -> run, oldest first.
        self._runs: OrderedDict[int, KnownRun] = OrderedDict()
        self._number: dict[str, int] = {}
        #: Stored runs with another version of fingerprints, which are not comparable.
        self.unknown_version_count = 0
        #: Run id -> its demand (DEMANDS, QUANTILES).
        self._demands: dict[str, Floats] = {}
        #: Changes with each new or updated run.
        self.version = 0
        #: Run -> its pace relative to its workload, the newest last.
        self._paces: OrderedDict[str, RunPace] = OrderedDict()
        self._pace_hosts = 0
        #: Hosts on which several workloads are slow, by name (`find_drifting_hosts`).
        self.drifting: Mapping[str, HostDrift] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def restore(self, row: Mapping[str, Any]) -> Fingerprint | None:
        """Restore a stored run; return its fingerprint, None for another version."""
        try:
            fingerprint = decode(row)
        except FingerprintVersionError:
            self.unknown_version_count += 1
            return None
        run_id = str(row["run_id"])
        workload_id = str(row.get("workload_id") or run_id)
        job, user_id = str(row.get("job") or ""), str(row.get("user_id") or "")
        begun_ns = int(row.get("begun") or 0)
        workload_class = str(row.get("workload_class") or "")
        self._put(
            KnownRun(run_id, workload_id, begun_ns, fingerprint, job, user_id, workload_class)
        )
        ratio = row.get("pace_ratio")
        if isinstance(ratio, float) and isfinite(ratio):
            self._put_pace(run_id, RunPace(workload_id, ratio, tuple(row.get("host_names") or ())))
        return fingerprint

    @property
    def paces(self) -> tuple[RunPace, ...]:
        """Return the paces used to find drifting hosts, oldest first."""
        return tuple(self._paces.values())

    def find_drifting_hosts(self) -> None:
        """Find hosts on which several workloads are slow. Takes at most about 50 ms."""
        drifts = drifting_hosts(self.paces)
        self.drifting = {drift.host: drift for drift in drifts}

    def assess(self, summary: RunSummary) -> RunAssessment:
        """Compare a run with earlier ones, and add or update it."""
        own = self._number.get(summary.run_id)
        nearest = self._index.same_workload(
            summary.fingerprint, user=summary.user_id, without=() if own is None else (own,)
        )
        earlier = [
            (match, known)
            for match in nearest
            if (known := self._runs.get(match.run)) is not None
            and known.begun_ns < summary.begun_ns
        ]
        workload_id = earlier[0][1].workload_id if earlier else summary.run_id
        same = [known.fingerprint for _, known in earlier if known.workload_id == workload_id]
        comparable = [f for f in same if is_comparable(f, summary.fingerprint)]
        pace = compare_pace(pace_of(summary.fingerprint), map(pace_of, comparable))
        workload_class = classify(summary.fingerprint)
        intervals = [fingerprint.value("checkpoint_interval_seconds") for fingerprint in same]
        intervals = [interval for interval in intervals if isfinite(interval) and interval > 0]
        self._put(
            KnownRun(
                summary.run_id, workload_id, summary.begun_ns, summary.fingerprint, summary.job, summary.user_id,
                workload_class.name,
            )
        )  # fmt: skip
        if pace is not None:
            self._put_pace(summary.run_id, RunPace(workload_id, pace.ratio, summary.hosts))
        verdict = verdict_of(
            pace, summary.fingerprint, comparable or same, self.drifting, summary.hosts
        )
        slow_hosts = tuple(host for host in summary.hosts if host in self.drifting)
        return RunAssessment(
            summary=summary,
            workload_id=workload_id,
            similarity=earlier[0][0].similarity if earlier else nan,
            earlier_runs=len(same),
            workload_class=workload_class,
            pace=pace,
            verdict=verdict,
            slow_hosts=slow_hosts if verdict is RunVerdict.SLOW_HOST else (),
            earlier_checkpoint_interval_seconds=median(intervals) if intervals else nan,
        )

    def set_demand(self, run_id: str, demand: Floats) -> None:
        """Set the demand (DEMANDS, QUANTILES) of a known run; without any known number it is not changed."""
        if run_id in self._number and np.isfinite(demand).any():
            self._demands[run_id] = demand
            self.version += 1

    def known_run(self, run_id: str) -> KnownRun | None:
        """Return a run; None if it is too short, or no longer known."""
        number = self._number.get(run_id)
        return None if number is None else self._runs[number]

    def demand(self, run_id: str) -> Floats:
        """Return the demand (DEMANDS, QUANTILES) of a run, NaN if unknown."""
        unknown = np.full((len(DEMANDS), len(QUANTILES)), nan)
        return self._demands.get(run_id, unknown)

    def workloads(self, names_max: int = WORKLOADS_MAX) -> KnownWorkloads:
        """Return needs and demands of jobs' newest runs, by name and run id, for *names_max* runs."""
        names: dict[str, int] = {}
        descriptions: list[str] = []
        classes: list[str] = []
        workload_ids: list[str] = []
        gpu_models: list[str] = []
        rows: list[tuple[float, ...]] = []
        demands: list[Floats] = []
        for run in islice(reversed(self._runs.values()), names_max):
            if (needs := needs_of(run.fingerprint)) is None:
                continue
            names[run.run_id] = len(rows)
            names.setdefault(run.job, len(rows))
            begun = datetime.fromtimestamp(run.begun_ns // 1_000_000_000, UTC)
            descriptions.append(
                f"the run of {begun:%Y-%m-%d %H:%M} UTC on {run.fingerprint.gpus} GPUs ({run.run_id})"
            )
            rows.append((*needs.bound, *needs.in_use))
            demands.append(self.demand(run.run_id))
            classes.append(run.workload_class)
            workload_ids.append(run.workload_id)
            gpu_models.append(run.fingerprint.gpu_model)
        table = np.array(rows, dtype=np.float32).reshape(len(rows), 2 * len(COMPONENTS))
        demand_table = np.array(demands, dtype=np.float32)
        demand_table = demand_table.reshape(-1, len(DEMANDS), len(QUANTILES))
        return KnownWorkloads(
            names, tuple(descriptions), table, demand_table, tuple(classes), tuple(workload_ids), tuple(gpu_models)
        )  # fmt: skip

    def _put(self, run: KnownRun) -> None:
        self.version += 1
        number = self._number.get(run.run_id)
        if number is not None:
            self._index.replace(number, run.fingerprint, run.user_id)
            self._runs[number] = run
            return
        if len(self._runs) >= self._runs_max:
            _, oldest = self._runs.popitem(last=False)
            del self._number[oldest.run_id]
            self._demands.pop(oldest.run_id, None)
        number = self._index.add(run.fingerprint, run.user_id)
        self._runs[number], self._number[run.run_id] = run, number

    def _put_pace(self, run_id: str, pace: RunPace) -> None:
        before = self._paces.pop(run_id, None)
        self._pace_hosts += len(pace.hosts) - (len(before.hosts) if before else 0)
        self._paces[run_id] = pace
        while len(self._paces) > DRIFT_RUNS_MAX or self._pace_hosts > DRIFT_HOSTS_MAX:
            _, oldest = self._paces.popitem(last=False)
            self._pace_hosts -= len(oldest.hosts)
