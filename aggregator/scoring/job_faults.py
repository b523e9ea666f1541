"""Faults that slow or stop each job now: one per host, or per shared cause. Verdicts begin here.

`hosts`, `job`, `ops.stragglers` and advice name the same symptom. An explanation that blames no
host (more work, a shared storage) counts only if no host, link or shared cause is at fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import nan

from ..fleet.jobs import Job
from ..model import HealthState, Reason
from ..rule_catalogue import agent, gang, network
from .score import ObservedSymptom, speed_interval
from .symptom import Symptom
from .view import FleetView

#: A symptom last seen earlier belongs to an earlier job: a slow host's symptom lasts for an hour.
OBSERVED_SECONDS_MAX = 60.0
LINK_REASONS = frozenset((Reason.NVLINK_ERRORS, Reason.FABRIC, Reason.RAIL_DOWN, Reason.PCIE))
HANGS = frozenset(rule.name for rule in (agent.DEVICE_HANGS, agent.DRIVER_HANGS, agent.HANGS))
_SHARED_RULES = frozenset((gang.SHARED.name, network.CONGESTED.name))
_WORKLOAD_RULES = frozenset((gang.WORKLOAD.name,))
_UNKNOWN_RULES = frozenset((gang.UNKNOWN.name, gang.DATA.name, gang.CORES.name))
#: Names of the party at fault in a verdict.
NODE, LINK, SHARED, WORKLOAD, UNKNOWN = "node", "link", "shared service", "workload", "unknown"
#: Another job on a host (`runs/colocations.py`), and a standstill of all GPUs of a job (`runs/standstills.py`).
NEIGHBOR, HANG = "neighbor", "hang"


class Strength(IntEnum):
    """Certainty that a fault slows the job; only the strongest kind of a job is its verdict."""

    EXPLAINS = 1  # blames no host
    MAY_SLOW = 2  # a link with errors: it slows the job if the pace fell
    SLOWS = 3
    STOPS = 4  # a broken host; if the job does not compute, the host stopped the job


@dataclass(frozen=True, slots=True)
class JobFault:
    """A cause that acts on a job. Slowdowns are shares of the job's speed.

    `hosts`: the members that show the cause, the worst first.
    """

    job: tuple[str, str, int]
    identity: str  # the same as long as the fault is the same
    strength: Strength
    verdict: str
    cause: str
    reason: str
    hosts: tuple[str, ...]
    device: str
    slowdown: float  # NaN: not measured at the host
    slowdown_lower: float
    slowdown_upper: float
    message: str
    sql: str
    shared_cause: str = ""
    advisory: str = ""


def find_job_faults(
    view: FleetView, observed: Mapping[int, Sequence[ObservedSymptom]]
) -> list[JobFault]:
    """Return the faults of all jobs. *observed*: the active symptoms, by host."""
    gravest: dict[tuple[int, str], tuple[Job, dict[int, Symptom]]] = {}
    for host, job, symptom in _symptoms_of_jobs(view, observed):
        identity = _identity(view.fleet.names[host], symptom)
        _, by_host = gravest.setdefault((id(job), identity), (job, {}))
        before = by_host.get(host)
        if before is None or _rank(before) < _rank(symptom):
            by_host[host] = symptom
    return [
        _fault(view, job, identity, by_host) for (_, identity), (job, by_host) in gravest.items()
    ]


def by_job(faults: Sequence[JobFault]) -> dict[tuple[str, str, int], list[JobFault]]:
    groups: dict[tuple[str, str, int], list[JobFault]] = defaultdict(list)
    for fault in faults:
        groups[fault.job].append(fault)
    return dict(groups)


def _symptoms_of_jobs(
    view: FleetView, observed: Mapping[int, Sequence[ObservedSymptom]]
) -> Iterator[tuple[int, Job, Symptom]]:
    for host, symptoms in observed.items():
        for observed_symptom in symptoms:
            ago_seconds = (view.now_ns - observed_symptom.observed_ns) / 1e9
            if ago_seconds > OBSERVED_SECONDS_MAX or strength_of(observed_symptom.symptom) is None:
                continue
            device = observed_symptom.symptom.device
            gpu = device.partition("/")[0] if device.startswith("GPU-") else ""
            jobs = view.fleet.jobs.holding(host, gpu) or view.fleet.gangs.unattributed_jobs(host)
            for job in jobs:
                yield host, job, observed_symptom.symptom


def strength_of(symptom: Symptom) -> Strength | None:
    """Return the strength of *symptom* as a cause of a slow job; None if it is not a cause."""
    name, reason = symptom.rule.name, _reason(symptom)
    if reason is Reason.POLICY:
        return None
    if name in _SHARED_RULES or name in _WORKLOAD_RULES or name in _UNKNOWN_RULES:
        return Strength.EXPLAINS
    if symptom.host_state is HealthState.UNHEALTHY or name in HANGS:
        return Strength.STOPS
    if symptom.host_state in (HealthState.HEALTHY, HealthState.WATCH) and not symptom.shared_cause:
        return None
    if symptom.speed < 1.0:
        return Strength.SLOWS
    return Strength.MAY_SLOW if reason in LINK_REASONS else None


def _rank(symptom: Symptom) -> tuple[int, float, tuple[int, float, tuple[float, ...]]]:
    return int(strength_of(symptom) or 0), 1.0 - symptom.speed, symptom.weight


def _identity(host: str, symptom: Symptom) -> str:
    """Return the key of a fault, equal as long as the fault lasts."""
    if symptom.shared_cause is not None:
        return f"cause {symptom.shared_cause.subject}"
    if strength_of(symptom) is Strength.EXPLAINS:
        return f"rule {symptom.rule.name}"
    return f"host {host}"


def _fault(view: FleetView, job: Job, identity: str, by_host: Mapping[int, Symptom]) -> JobFault:
    names = view.fleet.names
    order = sorted(by_host, key=lambda host: (_rank(by_host[host]), names[host]), reverse=True)
    worst = by_host[order[0]]
    slowdown = lower = upper = nan
    if worst.speed < 1.0:
        slowest, fastest = speed_interval(worst.speed, nan, is_reporting=True)
        slowdown, lower, upper = 1.0 - worst.speed, max(1.0 - fastest, 0.0), 1.0 - slowest
    cause = worst.shared_cause
    return JobFault(
        job=job.key,
        identity=identity,
        strength=strength_of(worst) or Strength.EXPLAINS,
        verdict=_verdict(worst),
        cause=worst.rule.name,
        reason=_reason(worst).name,
        hosts=tuple(names[host] for host in order),
        device=worst.device,
        slowdown=slowdown,
        slowdown_lower=lower,
        slowdown_upper=upper,
        message=worst.message,
        sql=worst.sql,
        shared_cause=cause.subject if cause else "",
        advisory=cause.advisory if cause else "",
    )


def _verdict(symptom: Symptom) -> str:
    name = symptom.rule.name
    if name in _WORKLOAD_RULES:
        return WORKLOAD
    if name in _UNKNOWN_RULES:
        return UNKNOWN
    if name in _SHARED_RULES:
        return SHARED
    if _reason(symptom) in LINK_REASONS:
        return LINK
    return SHARED if symptom.shared_cause else NODE


def _reason(symptom: Symptom) -> Reason:
    return symptom.rule.reason if symptom.reason is None else symptom.reason
