"""What jobs notice of the symptoms of their hosts: which component is slow, and who waits for whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...fingerprints.sensitivity import (
    COMPONENTS,
    COMPUTE,
    HOST_CPU,
    NETWORK,
    NVLINK,
    PCIE,
    SPEED_MIN,
    STORAGE,
    Singles,
)
from ..counter_deltas import Codes, Flags, Floats
from ..fleet.jobs import Job
from ..model import Evidence, HealthState, Reason
from ..rule_catalogue import gang
from .job_faults import OBSERVED_SECONDS_MAX, Strength, strength_of
from .score import ObservedSymptom
from .symptom import Symptom
from .view import FleetView

# ----------------------------------------------------------------------
# How fast each component of each host is: what a workload that depends on it, and only that, notices.
#
# `relative_speed` says what a job whose step is bound by the slowest part notices. Here the same symptoms are told
# apart by the part that they slow: a hot GPU computes slower and reads its memory as fast, a host with a port down
# does neither.

_EVERY = slice(None)
_BY_REASON: Mapping[Reason, int | slice] = {
    Reason.THERMAL_THROTTLE: COMPUTE,
    Reason.POWER_CAP: COMPUTE,
    Reason.STRAGGLER: _EVERY,
    Reason.PCIE: PCIE,
    Reason.NVLINK_ERRORS: NVLINK,
    Reason.RAIL_DOWN: NETWORK,
    Reason.FABRIC: NETWORK,
    Reason.HOST_CPU: HOST_CPU,
    Reason.STORAGE: STORAGE,
}
_CLOCK_SIGNAL = "gpu.sm_clock_hertz"


def component_of(symptom: Symptom) -> int | slice:
    """Return which component a symptom slows; all of them where nothing says which."""
    if symptom.signal == _CLOCK_SIGNAL:
        return COMPUTE
    reason = symptom.rule.reason if symptom.reason is None else symptom.reason
    return _BY_REASON.get(reason, _EVERY)


def component_speeds(
    relative_speed: Floats, is_known: Flags, observed: Mapping[int, Sequence[ObservedSymptom]]
) -> Singles:
    """Return (hosts, components): 1 at full speed, NaN of a host of which nothing *is_known*, or on which no job runs on.

    *relative_speed*: of each host's slowest computing GPU against its peers, NaN where it is not known: an idle host is taken
    to be as fast as its symptoms say. *observed*: the symptoms that count, by host.
    """
    speeds = np.ones((relative_speed.size, len(COMPONENTS)), dtype=np.float32)
    measured = np.isfinite(relative_speed)
    speeds[measured, COMPUTE] = np.minimum(relative_speed[measured], 1.0)
    for host, symptoms in observed.items():
        for symptom in (one.symptom for one in symptoms):
            left = min(symptom.speed, symptom.capacity_ratio)
            if left >= 1.0 and symptom.host_state is HealthState.UNHEALTHY:
                speeds[host] = np.nan  # what is broken, nothing says
            elif left < 1.0:
                which = component_of(symptom)
                speeds[host, which] = np.minimum(speeds[host, which], max(left, SPEED_MIN))
    speeds[~is_known] = np.nan
    return speeds


# ----------------------------------------------------------------------
# Who waits for whom, for those who ask about a host that is well: which host of its job is not.
#
# Nothing of it enters a score. A host is named at the others of a job only for what holds a job up: what its gang
# says of it, a pace that was measured, or a fault that stops what it runs. One that is itself so is told nothing of
# others.

#: What evidence of it is called. Its unit: the number is that of hosts of the job that hold it up.
WAITS_FOR, HOSTS = "gang.waits_for", "hosts"
#: Said of a host by its gang: the others do wait for it.
_GANG_RULES = frozenset(
    rule.name for rule in (gang.SLOW, gang.SLOW_GPU, gang.CONTENDED, gang.STALLED, gang.SLOW_LINK)
)


def _no_hosts() -> Codes:
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class GangWaits:
    """*culprits*: what their jobs' other hosts are told; *jobs*: the name of the job of each, "" where it has none;
    *culprit_index*: by node index, which of these, -1 for none."""

    culprits: tuple[Evidence, ...] = ()
    jobs: tuple[str, ...] = ()
    culprit_index: Codes = field(default_factory=_no_hosts)

    def evidence_for(self, host: int) -> Evidence | None:
        """Return for whom *host* waits, as evidence that costs it nothing."""
        at = int(self.culprit_index[host]) if host < self.culprit_index.size else -1
        return self.culprits[at] if at >= 0 else None

    def job_of(self, host: int) -> str:
        """Return the name of the job in which *host* waits, "" for none."""
        at = int(self.culprit_index[host]) if host < self.culprit_index.size else -1
        return self.jobs[at] if at >= 0 else ""


class _Culprit(NamedTuple):
    host: int
    job: Job
    worst: ObservedSymptom


def find_waits(view: FleetView, observed: Mapping[int, Sequence[ObservedSymptom]]) -> GangWaits:
    """Return who waits for whom. *observed*: the symptoms that count, by host."""
    found = sorted(
        _culprits(view, observed), key=lambda one: one.worst.symptom.weight, reverse=True
    )
    if not found:
        return GangWaits()
    of_job: dict[int, list[_Culprit]] = defaultdict(list)
    for one in found:
        of_job[id(one.job)].append(one)
    culprit_index = np.full(len(view.fleet), -1, dtype=np.int32)
    culprits: list[Evidence] = []
    jobs: list[str] = []
    for several in of_job.values():  # the gravest first
        for host in several[0].job.gpus.keys() - {one.host for one in several}:
            if culprit_index[host] < 0:
                culprit_index[host] = len(culprits)
        culprits.append(_evidence(view, several[0], len(several)))
        jobs.append(several[0].job.name)
    return GangWaits(tuple(culprits), tuple(jobs), culprit_index)


def _culprits(
    view: FleetView, observed: Mapping[int, Sequence[ObservedSymptom]]
) -> Iterator[_Culprit]:
    """Yield who holds which job up, with the gravest of what says so."""
    for host, symptoms in observed.items():
        gravest: dict[int, _Culprit] = {}
        for one in symptoms:
            ago_seconds = (view.now_ns - one.observed_ns) / 1e9
            if ago_seconds > OBSERVED_SECONDS_MAX or not _slows_job(one.symptom):
                continue
            device = one.symptom.device
            gpu = device.partition("/")[0] if device.startswith("GPU-") else ""
            jobs = view.fleet.jobs.of_several_hosts(host, gpu)
            for job in jobs or view.fleet.gangs.unattributed_jobs(host):
                before = gravest.get(id(job))
                if before is None or before.worst.symptom.weight < one.symptom.weight:
                    gravest[id(job)] = _Culprit(host, job, one)
        yield from gravest.values()


def _slows_job(symptom: Symptom) -> bool:
    strength = strength_of(symptom)
    return strength is not None and strength >= Strength.SLOWS


def _evidence(view: FleetView, culprit: _Culprit, count: int) -> Evidence:
    name, symptom = view.fleet.names[culprit.host], culprit.worst.symptom
    job = f"job {culprit.job.name}" if culprit.job.name else "job"
    if symptom.rule.name in _GANG_RULES:
        statement = f"waits for {name} of its {job}"
    elif symptom.speed < 1.0:
        statement = f"goes no faster than {name} of its {job}"
    else:
        statement = f"may be slowed down by {name} of its {job}"
    more = f"; {count - 1} more of that job would hold it up, too" if count > 1 else ""
    return Evidence(
        signal=WAITS_FOR,
        device=name,
        value=float(count),
        unit=HOSTS,
        normal="none of its job is slow or broken",
        log_hazard_delta=0.0,
        relative_speed_factor=1.0,
        score_delta=0.0,
        reason=Reason.NONE,
        words=f"{statement} ({name}: {symptom.message}){more}; no fault of this host",
        observed_ns=culprit.worst.observed_ns,
        sql=symptom.sql,
    )
