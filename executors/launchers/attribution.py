"""NVIDIA's attribution service, from host health: recommends STOP, RESTART or UNKNOWN for a failed job. No I/O.

STOP ends a job until a person submits it again. Therefore STOP is returned only for a host that the job's launcher reports
in use after the failure, and only if the host's fault is certain and not cured by a restart. An answer is always about a
job of the client's own host, so that no client can map the log of a foreign job to a job with a broken host.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..model import DONE, OPEN_STATES, Advice, ScheduledJob, SchedulerState
from .attribution_clients import AttributionClients
from .cycle_info import CycleInfo, allocations, is_current, launcher_job, members

STOP, RESTART, UNKNOWN = "STOP", "RESTART", "UNKNOWN"
#: Bases of advice that are certain: no statistical basis, and no fault that hosts share.
CERTAIN = ("DETERMINISTIC", "DEAD_JOB")
#: Actions that no job on the host can outlive; under milder actions the job continues there.
INCURABLE_ACTIONS = ("DRAIN_AT_CHECKPOINT", "EVICT_NOW")
#: Limit of remembered logs per job; a further log replaces the oldest.
LOGS_PER_JOB_MAX = 100
LOG_PATH_CHARACTERS_MAX = 4096
JOB_CHARACTERS_MAX = 128
#: How long answers name a host that a job has lost.
LOST_SECONDS = 3600.0
REASONS_MAX = 5


class AttributionRequestError(Exception):
    """The request is invalid or not permitted; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Recommendation:
    """An answer of the service. `is_final`: False if the launcher must ask again."""

    action: str
    reason: str
    is_final: bool = True


@dataclass(frozen=True, slots=True)
class JobView:
    """A job by its launcher and scheduler. `active`: its newest cycle's hosts, if reported."""

    name: str
    allocated: frozenset[str]
    active: frozenset[str] | None = None
    cycle_started: float = 0.0
    log_file: str = ""
    #: Names and addresses of the job's nodes and pods.
    addresses: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class HealthView:
    """Inputs of a recommendation, as of the executor's last turn."""

    jobs: Mapping[str, JobView] = field(default_factory=dict)
    #: Node -> its newest advisory with a fault that is certain and that a restart does not cure.
    faults: Mapping[str, Advice] = field(default_factory=dict)
    #: Job -> node that it has used and does not use now -> time until which answers name the node.
    lost: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    is_live: bool = False


def incurable(advice: Iterable[Advice], now: float) -> dict[str, Advice]:
    """Return node -> its newest advisory in force whose fault is certain and not cured by a restart."""
    return {
        one.node: one
        for one in sorted(advice, key=lambda one: int(one.name[1:]))
        if one.basis in CERTAIN
        and one.action in INCURABLE_ACTIONS
        and (one.state in OPEN_STATES or (one.state == DONE and one.expires > now))
    }


def health_view(
    state: SchedulerState,
    cycles: Mapping[str, CycleInfo],
    advice: Iterable[Advice],
    before: HealthView,
    now: float,
    *,
    is_live: bool,
) -> HealthView:
    """Return the current view, with the hosts that jobs have lost since *before*."""
    faults = incurable(advice, now)
    jobs: dict[str, JobView] = {}
    lost: dict[str, dict[str, float]] = {}
    for name, parts in allocations(state).items():
        allocated = frozenset().union(*(part.nodes for part in parts))
        info = cycles.get(name)
        view = JobView(name, allocated, addresses=_addresses(state, parts))
        if info is not None and is_current(info, parts) and members(info, allocated)[0]:
            active, log_file = members(info, allocated)[0], info.log_file
            view = replace(view, active=active, cycle_started=info.started, log_file=log_file)
        jobs[name] = view
        used = _used(view)
        gone = {node: until for node, until in before.lost.get(name, {}).items() if until > now}
        if name in before.jobs:
            gone |= dict.fromkeys(_used(before.jobs[name]), now + LOST_SECONDS)
        # The advice names the job that it protects, whether or not this process saw the job on the node.
        numbers = {part.name for part in parts} | {name}
        gone |= {n: now + LOST_SECONDS for n, one in faults.items() if one.workload in numbers}
        lost[name] = {node: until for node, until in gone.items() if node not in used}
    # A requeued job keeps its name, so its lost hosts are kept while it waits.
    waiting = {launcher_job(job) for job in state.jobs.values() if not job.ended} - jobs.keys()
    for name in waiting & (before.jobs.keys() | before.lost.keys()):
        gone = dict(before.lost.get(name, {}))
        if name in before.jobs:
            gone |= dict.fromkeys(_used(before.jobs[name]), now + LOST_SECONDS)
        lost[name] = gone
    return HealthView(jobs, faults, lost, is_live)


def _addresses(state: SchedulerState, parts: Iterable[ScheduledJob]) -> frozenset[str]:
    nodes = frozenset().union(*(part.nodes for part in parts))
    known = (state.nodes[node].address for node in nodes if node in state.nodes)
    return nodes.union(filter(None, known), *(part.addresses for part in parts))


def _used(view: JobView) -> frozenset[str]:
    return view.allocated if view.active is None else view.active


def recommend(
    view: HealthView, job: str, log_path: str, requested: float, now: float, wait_seconds: float
) -> Recommendation:
    """Return the recommendation for *job*, whose cycle with the log *log_path* had failed by *requested*."""
    if not view.is_live:
        return Recommendation(UNKNOWN, "Gangline: the aggregator is not connected")
    known = view.jobs.get(job)
    if known is None:
        return Recommendation(UNKNOWN, f"Gangline: no job {job[:40]} runs here")
    bad = sorted(_used(known) & view.faults.keys())
    if bad:
        is_next = (
            known.active is not None
            and known.cycle_started >= requested
            and known.log_file != log_path
        )
        return _of_bad_hosts(view, known, bad, is_next, now - requested < wait_seconds)
    gone = sorted(view.lost.get(job, {}).keys() & view.faults.keys())
    if gone:
        return Recommendation(RESTART, f"Gangline: out of the job: {_named(view, gone)}")
    return Recommendation(UNKNOWN, "Gangline: no host of this job has a certain fault")


def _of_bad_hosts(
    view: HealthView, job: JobView, bad: list[str], is_next: bool, is_early: bool
) -> Recommendation:
    """Return the recommendation for a job with the broken hosts *bad*.

    *is_next*: the job's next cycle runs; *is_early*: the next cycle may still begin without these hosts.
    """
    named = _named(view, bad)
    if is_next:
        return Recommendation(
            STOP, f"Gangline: restarted on a host that a restart does not cure: {named}"
        )
    if is_early:  # the launcher or the executor may be about to exclude the host
        return Recommendation(UNKNOWN, f"Gangline: waiting for the next cycle: {named}", False)
    if job.active is None:
        return Recommendation(
            UNKNOWN,
            f"Gangline: {named}; whether the job still uses it is not known without cycle-info files",
        )
    return Recommendation(UNKNOWN, f"Gangline: {named}; the next cycle has not begun")


def _named(view: HealthView, nodes: list[str]) -> str:
    some = [
        f"{node}: {view.faults[node].reason} ({view.faults[node].name})"
        for node in nodes[:REASONS_MAX]
    ]
    more = f"; and {len(nodes) - REASONS_MAX} more" if len(nodes) > REASONS_MAX else ""
    return "; ".join(some) + more


class AttributionBoard:
    """The newest view, and the logs that launchers announced. Safe for several threads."""

    def __init__(self, wait_seconds: float, clients: AttributionClients | None = None) -> None:
        self._wait_seconds = wait_seconds
        self._clients = clients or AttributionClients()
        self._lock = threading.Lock()
        #: Job -> announced log -> time by which the log's cycle had failed.
        self._failures: dict[str, OrderedDict[str, float]] = {}
        self.view = HealthView()

    def submit(self, log_path: str, job: str, client: str, now: float) -> None:
        """Record that *log_path* belongs to *job* ("": not reported), and that its cycle failed by *now*.

        Raises AttributionRequestError if a client of another job claimed the log first, or if *client* is not the address of a
        host of the job.
        """
        view = self.view
        owner = owner_of_log(view, log_path)
        if owner and job not in ("", owner):
            raise AttributionRequestError(409, "log_path: it is the log of another job")
        name = owner or (job if job in view.jobs else job_of_log(view, log_path))
        if not name:
            return  # no such job runs here, so the answer is UNKNOWN anyway
        if not self._clients.is_of(view.jobs[name].addresses, client):
            reason = f"the address {client} is of no host of job {name}"
            raise AttributionRequestError(403, f"job_id: {reason}")
        others = [one for one in self._claimants(view, log_path) if one != name]
        if not owner and any(
            self._clients.is_of(view.jobs[other].addresses, client) for other in others
        ):
            raise AttributionRequestError(409, "log_path: it is the log of another job")
        self._remember(name, log_path, now, is_new=True)

    def _claimants(self, view: HealthView, log_path: str) -> list[str]:
        with self._lock:
            return [
                name
                for name, logs in self._failures.items()
                if log_path in logs and name in view.jobs
            ]

    def _remember(self, job: str, log_path: str, now: float, *, is_new: bool) -> float:
        """Record *log_path* as a log of *job*; return when its cycle failed. *is_new*: the cycle failed now."""
        view = self.view
        with self._lock:
            for name in self._failures.keys() - view.jobs.keys() - view.lost.keys():
                del self._failures[name]
            logs = self._failures.setdefault(job, OrderedDict())
            failed = now if is_new else logs.get(log_path, now)
            logs.pop(log_path, None)
            logs[log_path] = failed
            while len(logs) > LOGS_PER_JOB_MAX:
                logs.popitem(last=False)
        return failed

    def answer(self, log_path: str, client: str, now: float, *, wait: bool) -> Recommendation:
        """Return the recommendation for the job of *log_path* on the host with the address *client*.

        *wait*: the launcher asks only once, so the answer is final.
        """
        view = self.view
        owner = owner_of_log(view, log_path)
        names = [owner] if owner else [*self._claimants(view, log_path), job_of_log(view, log_path)]
        names = list(filter(None, names))
        if not names:
            return Recommendation(UNKNOWN, "Gangline: it is not known which job writes this log")
        own = (name for name in names if self._clients.is_of(view.jobs[name].addresses, client))
        job = next(own, "")
        if not job:
            return Recommendation(
                UNKNOWN, f"Gangline: the address {client} is of no host of the job of this log"
            )
        wait_seconds = 0.0 if wait else self._wait_seconds
        failed = self._remember(job, log_path, now, is_new=False)
        return recommend(view, job, log_path, failed, now, wait_seconds)


def owner_of_log(view: HealthView, log_path: str) -> str:
    """Return the job whose cycle-info file names *log_path*; "" unless exactly one running job does."""
    named = [job.name for job in view.jobs.values() if job.log_file == log_path]
    return named[0] if len(named) == 1 else ""


def job_of_log(view: HealthView, log_path: str) -> str:
    """Return the only running job whose cycle-info file names *log_path*, or whose name is in it; "" if not unique."""
    if owner := owner_of_log(view, log_path):
        return owner
    words = {*re.findall(r"[0-9]+", log_path), *log_path.split("/")}
    named = [name for name in view.jobs if name in words or name.rpartition("/")[2] in words]
    return named[0] if len(named) == 1 else ""
