"""Follows runs that share a host: the effect of each neighbor on the pace, as rows and as faults of jobs.

Only windows beside a single neighbor count, and none in which a fault of a host or a link acts on the job. A slow host that
its gang reports is no such fault where the neighbor is: the neighbor may be its cause. Owned by the fleet's thread; no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import nan
from typing import Any, NamedTuple

from duckdb import DuckDBPyConnection as Connection

from ...fingerprints.colocation import WINDOWS_MAX, Effect, NeighborEffect, compare
from ..fleet.fleet import Fleet
from ..fleet.jobs import SlowedJob
from ..rule_catalogue import gang
from ..scoring.job_faults import NEIGHBOR, JobFault, Strength
from ..sql import quoted
from ..store.rows import replace_rows
from .accumulator import ActiveRun, RunAccumulator
from .job_windows import JobRecord

#: Neighbors remembered per run, the newest.
PER_RUN_MAX = 8
#: Windows after the neighbor left in which the pace may return.
AFTER_MAX = 12
#: Time after the neighbor left in which a gang's windows still show its effect, in ns.
LEFT_NS_MAX = 180 * 1_000_000_000
#: Age at which the resource and the price of a move are computed again.
CONTENTION_NS = 60 * 1_000_000_000
#: Rules by which a gang reports a slow member, whatever made it slow.
_GANG_RULES = frozenset(
    rule.name for rule in (gang.SLOW, gang.SLOW_GPU, gang.CONTENDED, gang.STALLED)
)
_COLUMNS = (
    "run_id:str job:str neighbor_run_id:str neighbor:str since:time until:time time:time hosts:texts effect:str "
    "slowdown_ratio:float slowdown_lower_ratio:float slowdown_upper_ratio:float resource:str windows_alone:int "
    "windows_beside:int message:str simulated:bool"
)


class StoredEffect(NamedTuple):
    """A neighbor that slowed a run before the aggregator's restart."""

    since_ns: int
    effect: NeighborEffect
    resource: str


class Contention(NamedTuple):
    """The resource that two runs contend for, the part of the host that supplies it, and the price of a move.

    All are "" if unknown.
    """

    resource: str = ""
    part: str = ""
    move: str = ""


@dataclass(slots=True)
class RunColocation:
    """A run beside a neighbor, from `since_ns` to `until_ns` (0: still)."""

    run: ActiveRun
    neighbor: ActiveRun
    since_ns: int
    measure: int
    hosts: tuple[int, ...] = ()
    host_names: tuple[str, ...] = ()
    until_ns: int = 0
    before: list[float] = field(default_factory=list)
    beside: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOWS_MAX))
    after: list[float] = field(default_factory=list)
    effect: NeighborEffect = field(default_factory=lambda: NeighborEffect(Effect.UNKNOWN))
    contention: Contention = field(default_factory=Contention)
    contention_ns: int = 0

    @property
    def message(self) -> str:
        """Return one line for people."""
        where = ", ".join(self.host_names[:3])
        if len(self.host_names) > 3:
            where += f" and {len(self.host_names) - 3} more"
        times = f"since {_clock(self.since_ns)} UTC"
        verb, details = "has slowed", [self.contention.part and f"both use {self.contention.part}"]
        if self.until_ns:
            verb, times = "slowed", f"from {_clock(self.since_ns)} to {_clock(self.until_ns)} UTC"
        else:
            details.append(self.contention.move)
        about = "; ".join(filter(None, details))
        return (
            f"job {self.neighbor.job} {verb} job {self.run.job} by {100 * self.effect.slowdown:.0f} % on {where} "
            f"{times}{about and ': '}{about}"
        )


def _clock(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // 1_000_000_000, UTC):%H:%M}"


#: Returns the contention of a pair of runs that slows the first.
FindContention = Callable[[RunColocation], Contention]


@dataclass(slots=True)
class _FollowedRun:
    """The recent windows of a run that was alone, and its neighbors by run id, the newest last."""

    run: ActiveRun
    measure: int = -1
    last_window_ns: int = 0
    alone: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOWS_MAX))
    colocations: dict[str, RunColocation] = field(default_factory=dict)
    #: Run ids of the neighbors in the last window.
    beside: frozenset[str] = frozenset()


class Colocations:
    """All pairs of runs on a host: `step` once a second, after the windows of jobs."""

    def __init__(self, find_contention: FindContention) -> None:
        self._find_contention = find_contention
        self._runs: dict[str, _FollowedRun] = {}
        self._changed: dict[tuple[str, str], RunColocation] = {}
        #: By run id and the neighbor's run id: effects from before a restart.
        self._stored: dict[tuple[str, str], StoredEffect] = {}

    def restore(self, stored: Mapping[tuple[str, str], StoredEffect]) -> None:
        """Continue these effects if both runs are still beside each other: their windows alone are lost."""
        self._stored = dict(stored)

    def step(
        self,
        fleet: Fleet,
        accumulator: RunAccumulator,
        records: Mapping[str, JobRecord],
        faults: Mapping[str, Sequence[JobFault]],
    ) -> None:
        """Add the windows that ended. *records*: by key; *faults*: by run id."""
        active = accumulator.active_runs
        keys = {run.key for run in active.values()}
        for key in [key for key in self._runs if key not in keys]:
            self._leave(self._runs.pop(key))
        for number, run in active.items():
            record = records.get(run.key)
            if record is None or not record.pace.windows:
                continue
            followed = self._runs.get(run.key)
            if followed is None or followed.run is not run:
                followed = self._runs[run.key] = _FollowedRun(run)
            window = record.pace.windows[-1]
            if window.time_ns == followed.last_window_ns:
                continue
            followed.last_window_ns = window.time_ns
            measure = record.pace.measure
            if measure != followed.measure:
                followed.measure = measure
                followed.alone.clear()
            work = window.works[measure]
            neighbors = {
                active[other].run_id: (active[other], hosts)
                for other, hosts in accumulator.neighbors.get(number, {}).items()
                if other in active
            }
            own_faults = faults.get(run.run_id, ())
            shared_hosts = {fleet.names[host] for _, hosts in neighbors.values() for host in hosts}
            if record.is_standing or any(
                _is_other_cause(fault, shared_hosts) for fault in own_faults
            ):
                work = nan
            self._add(fleet, followed, neighbors, work, window.time_ns)

    def faults(self) -> dict[str, list[JobFault]]:
        """Return run id -> its neighbors that slow it now."""
        result: dict[str, list[JobFault]] = {}
        for followed in self._runs.values():
            for colocation in followed.colocations.values():
                if colocation.effect.effect is Effect.SLOWER and not colocation.until_ns:
                    result.setdefault(followed.run.run_id, []).append(_fault(colocation))
        return result

    def slowed_jobs(self, now_ns: int) -> dict[int, list[SlowedJob]]:
        """Return node index -> jobs that a neighbor on that host slows, or slowed until recently."""
        result: dict[int, list[SlowedJob]] = {}
        for followed in self._runs.values():
            for colocation in followed.colocations.values():
                left_ns = now_ns - colocation.until_ns if colocation.until_ns else 0
                if colocation.effect.effect is Effect.SLOWER and left_ns <= LEFT_NS_MAX:
                    slowed = _slowed_job(colocation)
                    for host in colocation.hosts:
                        result.setdefault(host, []).append(slowed)
        return result

    def take_changes(self) -> list[RunColocation]:
        """Return the co-locations with a new comparison since the last call."""
        changes = list(self._changed.values())
        self._changed.clear()
        return changes

    def put_back(self, changes: Iterable[RunColocation]) -> None:
        """Return changes that could not be written."""
        for change in changes:
            self._changed.setdefault((change.run.run_id, change.neighbor.run_id), change)

    def _add(
        self,
        fleet: Fleet,
        followed: _FollowedRun,
        neighbors: Mapping[str, tuple[ActiveRun, tuple[int, ...]]],
        work: float,
        time_ns: int,
    ) -> None:
        beside = frozenset(neighbors)
        # The window in which a neighbor comes or goes belongs to neither side.
        is_steady, followed.beside = beside == followed.beside, beside
        for run_id, (neighbor, hosts) in neighbors.items():
            colocation = followed.colocations.get(run_id)
            if colocation is None:
                colocation = RunColocation(followed.run, neighbor, time_ns, followed.measure)
                colocation.before = list(followed.alone)
                if (stored := self._stored.pop((followed.run.run_id, run_id), None)) is not None:
                    colocation.since_ns, colocation.effect = stored.since_ns, stored.effect
                    colocation.contention = Contention(stored.resource)
                followed.colocations[run_id] = colocation
                while len(followed.colocations) > PER_RUN_MAX:
                    del followed.colocations[next(iter(followed.colocations))]
            if hosts != colocation.hosts:
                colocation.hosts, colocation.host_names = (
                    hosts,
                    tuple(fleet.names[host] for host in hosts),
                )
        for run_id, colocation in followed.colocations.items():
            if run_id in neighbors:
                colocation.until_ns = 0
                if is_steady and len(neighbors) == 1 and colocation.measure == followed.measure:
                    colocation.beside.append(work)
                    self._compare(colocation, time_ns)
            else:
                colocation.until_ns = colocation.until_ns or time_ns
                if is_steady and not neighbors and len(colocation.after) < AFTER_MAX:
                    colocation.after.append(work)
                    self._compare(colocation, time_ns)
        if is_steady and not neighbors:
            followed.alone.append(work)

    def _compare(self, colocation: RunColocation, time_ns: int) -> None:
        effect = compare(colocation.before, list(colocation.beside), colocation.after)
        if effect.effect is not Effect.UNKNOWN:
            colocation.effect = effect
            is_due = not 0 <= time_ns - colocation.contention_ns < CONTENTION_NS
            if effect.effect is Effect.SLOWER and not colocation.until_ns and is_due:
                colocation.contention_ns = time_ns
                colocation.contention = self._find_contention(colocation)
            self._changed[colocation.run.run_id, colocation.neighbor.run_id] = colocation

    def _leave(self, followed: _FollowedRun) -> None:
        for colocation in followed.colocations.values():
            colocation.until_ns = colocation.until_ns or followed.last_window_ns
            if colocation.effect.effect is not Effect.UNKNOWN:
                self._changed[colocation.run.run_id, colocation.neighbor.run_id] = colocation


def _is_other_cause(fault: JobFault, shared_hosts: set[str]) -> bool:
    """Return whether *fault* may change the pace, and is not the effect of the neighbor."""
    if fault.strength is Strength.EXPLAINS or fault.verdict == NEIGHBOR:
        return False
    return fault.cause not in _GANG_RULES or not shared_hosts.issuperset(fault.hosts)


def blamed_on_neighbors(
    faults: Sequence[JobFault], neighbors: Sequence[JobFault]
) -> list[JobFault]:
    """Return *faults* and *neighbors* without slow members whose host a neighbor slows."""
    hosts = {host for neighbor in neighbors for host in neighbor.hosts}
    own = [
        fault
        for fault in faults
        if fault.cause not in _GANG_RULES or not hosts.issuperset(fault.hosts)
    ]
    return [*own, *neighbors]


def _slowed_job(colocation: RunColocation) -> SlowedJob:
    return SlowedJob(
        manager=colocation.run.source,
        name=colocation.run.job,
        neighbor=colocation.neighbor.job,
        since_ns=colocation.since_ns,
        slowdown=colocation.effect.slowdown,
        slowdown_lower=max(1.0 - 1.0 / colocation.effect.lower, 0.0),
        slowdown_upper=max(1.0 - 1.0 / colocation.effect.upper, 0.0),
        message=colocation.message,
    )


def _fault(colocation: RunColocation) -> JobFault:
    effect = colocation.effect
    return JobFault(
        job=("", colocation.run.job, -1),
        identity=f"neighbor {colocation.neighbor.run_id}",
        strength=Strength.SLOWS,
        verdict=NEIGHBOR,
        cause="job.neighbor",
        reason="NONE",
        hosts=colocation.host_names,
        device="",
        slowdown=effect.slowdown,
        slowdown_lower=max(1.0 - 1.0 / effect.lower, 0.0),
        slowdown_upper=max(1.0 - 1.0 / effect.upper, 0.0),
        message=colocation.message,
        sql=f"FROM ops.colocations WHERE run_id = {quoted(colocation.run.run_id)}",
    )


def row(colocation: RunColocation, now_ns: int) -> dict[str, Any]:
    """Return the row of the table `colocations`; times in ns."""
    effect = colocation.effect
    return {
        "run_id": colocation.run.run_id, "job": colocation.run.job, "neighbor_run_id": colocation.neighbor.run_id,
        "neighbor": colocation.neighbor.job, "since": colocation.since_ns, "until": colocation.until_ns, "time": now_ns,
        "hosts": list(colocation.host_names), "effect": effect.effect.value, "slowdown_ratio": effect.slowdown,
        "slowdown_lower_ratio": max(1.0 - 1.0 / effect.lower, 0.0),
        "slowdown_upper_ratio": max(1.0 - 1.0 / effect.upper, 0.0), "resource": colocation.contention.resource or None,
        "windows_alone": len(colocation.before) + len(colocation.after), "windows_beside": len(colocation.beside),
        "message": colocation.message if effect.effect is Effect.SLOWER else effect.effect.value,
        "simulated": colocation.run.simulated,
    }  # fmt: skip


def put_colocations(connection: Connection, changes: Sequence[RunColocation], now_ns: int) -> None:
    """Replace the rows of these co-locations. Raises duckdb.Error."""
    rows = [row(change, now_ns) for change in changes]
    replace_rows(connection, "colocations", _COLUMNS, rows, ("run_id", "neighbor_run_id"))


def read_effects(connection: Connection) -> dict[tuple[str, str], StoredEffect]:
    """Return the neighbors that slowed a run when they were stored last. Raises duckdb.Error."""
    rows = connection.execute(
        "SELECT run_id, neighbor_run_id, epoch_ns(since), slowdown_ratio, slowdown_lower_ratio, slowdown_upper_ratio, "
        "coalesce(resource, '') FROM colocations WHERE until IS NULL AND effect = ?",
        [Effect.SLOWER.value],
    ).fetchall()
    return {
        (run_id, neighbor): StoredEffect(
            since_ns,
            NeighborEffect(Effect.SLOWER, *(1.0 / (1.0 - share) for share in shares)),
            resource,
        )
        for run_id, neighbor, since_ns, *shares, resource in rows
    }
