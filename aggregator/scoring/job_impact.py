"""Effects of symptoms on jobs: the slow component, and the host for which others wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...fingerprints import sensitivity
from ..arrays import Codes, Flags, Floats
from ..fleet.jobs import Job
from ..model import Evidence, HealthState, Reason
from ..rule_catalogue import gang
from .job_faults import OBSERVED_SECONDS_MAX, Strength, strength_of
from .score import ObservedSymptom
from .symptom import Symptom
from .view import FleetView

# `relative_speed` is the speed of a job whose step is bound by the slowest part. The speeds of this
# table divide the same symptoms by the component that they slow: a hot GPU computes slower and
# reads its memory as fast; a host with a port down is slow in neither.

_EVERY = slice(None)
_BY_REASON: Mapping[Reason, int | slice] = {
    Reason.THERMAL_THROTTLE: sensitivity.COMPUTE,
    Reason.POWER_CAP: sensitivity.COMPUTE,
    Reason.STRAGGLER: _EVERY,
    Reason.PCIE: sensitivity.PCIE,
    Reason.NVLINK_ERRORS: sensitivity.NVLINK,
    Reason.RAIL_DOWN: sensitivity.NETWORK,
    Reason.FABRIC: sensitivity.NETWORK,
    Reason.HOST_CPU: sensitivity.HOST_CPU,
    Reason.STORAGE: sensitivity.STORAGE,
}
_CLOCK_SIGNAL = "gpu.sm_clock_hertz"

#: Signal and unit of the evidence; its value is the number of hosts that hold the job up.
WAITS_FOR, HOSTS = "gang.waits_for", "hosts"
#: Rules by which a gang reports that it waits for a host.
_GANG_RULES = frozenset(
    rule.name for rule in (gang.SLOW, gang.SLOW_GPU, gang.CONTENDED, gang.STALLED, gang.SLOW_LINK)
)


def component_of(symptom: Symptom) -> int | slice:
    """Return the component that a symptom slows; all components if that is unknown."""
    if symptom.signal == _CLOCK_SIGNAL:
        return sensitivity.COMPUTE
    reason = symptom.rule.reason if symptom.reason is None else symptom.reason
    return _BY_REASON.get(reason, _EVERY)


def component_speeds(
    relative_speed: Floats, is_known: Flags, observed: Mapping[int, Sequence[ObservedSymptom]]
) -> sensitivity.Singles:
    """Return (hosts, components): 1 at full speed; NaN if unknown, or if no job continues there.

    *relative_speed*: of each host's slowest computing GPU against its peers, NaN if unknown: only
    its symptoms slow an idle host. *observed*: the active symptoms, by host.
    """
    speeds = np.ones((relative_speed.size, len(sensitivity.COMPONENTS)), dtype=np.float32)
    measured = np.isfinite(relative_speed)
    speeds[measured, sensitivity.COMPUTE] = np.minimum(relative_speed[measured], 1.0)
    for host, symptoms in observed.items():
        for symptom in (observed_symptom.symptom for observed_symptom in symptoms):
            left = min(symptom.speed, symptom.capacity_ratio)
            if left >= 1.0 and symptom.host_state is HealthState.UNHEALTHY:
                speeds[host] = np.nan  # the remaining speed of a broken host is unknown
            elif left < 1.0:
                which = component_of(symptom)
                speeds[host, which] = np.minimum(
                    speeds[host, which], max(left, sensitivity.SPEED_MIN)
                )
    speeds[~is_known] = np.nan
    return speeds


@dataclass(frozen=True, slots=True)
class GangWaits:
    """Culprits: the evidence for their jobs' other hosts, and the job's name ("" if it has none).

    *culprit_index*: index of the culprit by node index, -1 for none. A host is a culprit only if
    its gang reports it, its measured pace is low, or a fault stops its work. A culprit gets no
    evidence about others, and no evidence affects a score.
    """

    culprits: tuple[Evidence, ...] = ()
    jobs: tuple[str, ...] = ()
    culprit_index: Codes = field(default_factory=lambda: np.zeros(0, dtype=np.int32))

    def evidence_for(self, host: int) -> Evidence | None:
        """Return the culprit for which *host* waits, as evidence without cost."""
        culprit = int(self.culprit_index[host]) if host < self.culprit_index.size else -1
        return self.culprits[culprit] if culprit >= 0 else None

    def job_of(self, host: int) -> str:
        """Return the name of the job in which *host* waits, "" for none."""
        culprit = int(self.culprit_index[host]) if host < self.culprit_index.size else -1
        return self.jobs[culprit] if culprit >= 0 else ""


class _Culprit(NamedTuple):
    host: int
    job: Job
    worst: ObservedSymptom


def find_waits(view: FleetView, observed: Mapping[int, Sequence[ObservedSymptom]]) -> GangWaits:
    """Return the culprits of all jobs. *observed*: the active symptoms, by host."""
    all_culprits = sorted(
        _culprits(view, observed), key=lambda culprit: culprit.worst.symptom.weight, reverse=True
    )
    if not all_culprits:
        return GangWaits()
    by_job: dict[int, list[_Culprit]] = defaultdict(list)
    for culprit in all_culprits:
        by_job[id(culprit.job)].append(culprit)
    culprit_index = np.full(len(view.fleet), -1, dtype=np.int32)
    culprits: list[Evidence] = []
    jobs: list[str] = []
    for job_culprits in by_job.values():  # the worst first
        for host in job_culprits[0].job.gpus.keys() - {culprit.host for culprit in job_culprits}:
            if culprit_index[host] < 0:
                culprit_index[host] = len(culprits)
        culprits.append(_evidence(view, job_culprits[0], len(job_culprits)))
        jobs.append(job_culprits[0].job.name)
    return GangWaits(tuple(culprits), tuple(jobs), culprit_index)


def _culprits(
    view: FleetView, observed: Mapping[int, Sequence[ObservedSymptom]]
) -> Iterator[_Culprit]:
    """Yield each host that holds a job up, with its worst symptom."""
    for host, symptoms in observed.items():
        worst: dict[int, _Culprit] = {}
        for observed_symptom in symptoms:
            ago_seconds = (view.now_ns - observed_symptom.observed_ns) / 1e9
            if ago_seconds > OBSERVED_SECONDS_MAX or not _slows_job(observed_symptom.symptom):
                continue
            device = observed_symptom.symptom.device
            gpu = device.partition("/")[0] if device.startswith("GPU-") else ""
            jobs = view.fleet.jobs.of_several_hosts(host, gpu)
            for job in jobs or view.fleet.gangs.unattributed_jobs(host):
                before = worst.get(id(job))
                if before is None or before.worst.symptom.weight < observed_symptom.symptom.weight:
                    worst[id(job)] = _Culprit(host, job, observed_symptom)
        yield from worst.values()


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
        message=f"{statement} ({name}: {symptom.message}){more}; no fault of this host",
        observed_ns=culprit.worst.observed_ns,
        sql=symptom.sql,
    )
