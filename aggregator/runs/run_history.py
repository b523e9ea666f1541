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

from ...fingerprints.fingerprint import Fingerprint, FingerprintVersionError, decode
from ...fingerprints.history import (
    HostDrift,
    PaceComparison,
    RunPace,
    RunVerdict,
    compare_pace,
    drifting_hosts,
    is_comparable,
    pace_of,
    verdict_of,
)
from ...fingerprints.sensitivity import COMPONENTS, KnownWorkloads, needs_of
from ...fingerprints.similarity import RUNS_MAX, RunIndex
from ...fingerprints.workload_class import ClassEstimate, classify
from .accumulator import RunSummary

#: Runs that schedulers may ask for by name: the newest.
WORKLOADS_MAX = 2048
#: Runs, and hosts of runs, by which hosts on which several workloads are slow are found: the newest.
DRIFT_RUNS_MAX, DRIFT_HOSTS_MAX = 512, 65_536


class KnownRun(NamedTuple):
    """An earlier run, without what is in the index."""

    run_id: str
    workload_id: str
    begun_ns: int
    fingerprint: Fingerprint
    job: str = ""
    user_id: str = ""


@dataclass(frozen=True, slots=True)
class RunAssessment:
    """What memory says of a run. `similarity` NaN: it was never seen, and `workload_id` is its own."""

    summary: RunSummary
    workload_id: str
    similarity: float
    earlier_runs: int
    workload_class: ClassEstimate
    pace: PaceComparison | None
    verdict: RunVerdict
    #: Its hosts on which other workloads were slow, too.
    slow_hosts: tuple[str, ...] = ()
    #: Seconds between two checkpoints of the earlier runs of its workload, NaN if none is known.
    earlier_checkpoint_interval_seconds: float = nan

    @property
    def is_seen(self) -> bool:
        """Whether an earlier run of its workload is known."""
        return self.earlier_runs > 0

    def row(self) -> dict[str, Any]:
        """Return it as a row of the table `runs`; times in ns."""
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
    """Belongs to the fleet's thread. The oldest runs make room for later ones."""

    def __init__(self, runs_max: int = RUNS_MAX) -> None:
        self._index = RunIndex(runs_max)
        self._runs_max = runs_max
        #: Number in the index -> run, oldest first.
        self._runs: OrderedDict[int, KnownRun] = OrderedDict()
        self._number: dict[str, int] = {}
        #: Rows of another version of fingerprints: stored, and compared with nothing.
        self.unknown_version_count = 0
        #: Rises with each run that comes or changes.
        self.version = 0
        #: Run -> its pace against its workload's, the newest last.
        self._paces: OrderedDict[str, RunPace] = OrderedDict()
        self._pace_hosts = 0
        #: Hosts on which several workloads are slow, by name (`find_drifting_hosts`).
        self.drifting: Mapping[str, HostDrift] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def restore(self, row: Mapping[str, Any]) -> Fingerprint | None:
        """Take over a stored run; return its fingerprint, None for one of another version."""
        try:
            fingerprint = decode(row)
        except FingerprintVersionError:
            self.unknown_version_count += 1
            return None
        run_id = str(row["run_id"])
        workload_id = str(row.get("workload_id") or run_id)
        job, user_id = str(row.get("job") or ""), str(row.get("user_id") or "")
        begun_ns = int(row.get("begun") or 0)
        self._put(KnownRun(run_id, workload_id, begun_ns, fingerprint, job, user_id))
        ratio = row.get("pace_ratio")
        if isinstance(ratio, float) and isfinite(ratio):
            self._put_pace(run_id, RunPace(workload_id, ratio, tuple(row.get("host_names") or ())))
        return fingerprint

    @property
    def paces(self) -> tuple[RunPace, ...]:
        """The runs by which hosts are looked for, oldest first."""
        return tuple(self._paces.values())

    def find_drifting_hosts(self) -> None:
        """Look for hosts on which several workloads are slow. Takes at most some 50 ms for the largest number of runs."""
        found = drifting_hosts(self.paces)
        self.drifting = {one.host: one for one in found}

    def assess(self, summary: RunSummary) -> RunAssessment:
        """Compare a run with the earlier ones, and remember it as it is now."""
        own = self._number.get(summary.run_id)
        nearest = self._index.same_workload(
            summary.fingerprint, user=summary.user_id, without=() if own is None else (own,)
        )
        earlier = [
            (one, known)
            for one in nearest
            if (known := self._runs.get(one.run)) is not None and known.begun_ns < summary.begun_ns
        ]
        workload_id = earlier[0][1].workload_id if earlier else summary.run_id
        same = [known.fingerprint for _, known in earlier if known.workload_id == workload_id]
        comparable = [one for one in same if is_comparable(one, summary.fingerprint)]
        pace = compare_pace(pace_of(summary.fingerprint), map(pace_of, comparable))
        intervals = [one.value("checkpoint_interval_seconds") for one in same]
        intervals = [one for one in intervals if isfinite(one) and one > 0]
        self._put(
            KnownRun(
                summary.run_id, workload_id, summary.begun_ns, summary.fingerprint, summary.job, summary.user_id,
            )
        )  # fmt: skip
        if pace is not None:
            self._put_pace(summary.run_id, RunPace(workload_id, pace.ratio, summary.hosts))
        verdict = verdict_of(
            pace, summary.fingerprint, comparable or same, self.drifting, summary.hosts
        )
        slow_hosts = tuple(host for host in summary.hosts if host in self.drifting)
        return RunAssessment(
            summary, workload_id, earlier[0][0].similarity if earlier else nan, len(same),
            classify(summary.fingerprint), pace, verdict, slow_hosts if verdict is RunVerdict.SLOW_HOST else (),
            median(intervals) if intervals else nan,
        )  # fmt: skip

    def workloads(self, names_max: int = WORKLOADS_MAX) -> KnownWorkloads:
        """Return what the newest run of each job needs, by the job's name and by the run's id: of the newest *names_max*."""
        names: dict[str, int] = {}
        descriptions: list[str] = []
        rows: list[tuple[float, ...]] = []
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
        table = np.array(rows, dtype=np.float32).reshape(len(rows), 2 * len(COMPONENTS))
        return KnownWorkloads(names, tuple(descriptions), table)

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
        number = self._index.add(run.fingerprint, run.user_id)
        self._runs[number], self._number[run.run_id] = run, number

    def _put_pace(self, run_id: str, pace: RunPace) -> None:
        before = self._paces.pop(run_id, None)
        self._pace_hosts += len(pace.hosts) - (len(before.hosts) if before else 0)
        self._paces[run_id] = pace
        while len(self._paces) > DRIFT_RUNS_MAX or self._pace_hosts > DRIFT_HOSTS_MAX:
            _, oldest = self._paces.popitem(last=False)
            self._pace_hosts -= len(oldest.hosts)
