"""Who waits for whom, for those who ask about a host that is well: which host of its job is not.

Nothing of it enters a score. A host is named at the others of a job only for what holds a job up: what its gang says of it,
a pace that was measured, or a fault that stops what it runs. One that is itself so is told nothing of others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..counter_deltas import Codes
from ..fleet.jobs import Job
from ..model import Evidence, Reason, State
from .rule import Symptom
from .rules import agent, gang
from .score import Seen
from .view import Present

#: What evidence of it is called. Its unit: the number is that of hosts of the job that hold it up.
WAITS_FOR, HOSTS = "gang.waits_for", "hosts"
#: Said of a host by its gang: the others do wait for it.
_BY_GANG = frozenset(rule.name for rule in (gang.SLOW, gang.CONTENDED, gang.STALLED))
_HANGS = frozenset(rule.name for rule in (agent.DEVICE_HANGS, agent.DRIVER_HANGS, agent.HANGS))
#: What was last seen longer ago is of a job before: a slow host is remembered for an hour.
SEEN_SECONDS_MAX = 60.0


def _nobody() -> Codes:
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Waits:
    """*culprits*: what their jobs' other hosts are told; *jobs*: the name of the job of each, "" where it has none;
    *whose*: by node index, which of these, -1 for none."""

    culprits: tuple[Evidence, ...] = ()
    jobs: tuple[str, ...] = ()
    whose: Codes = field(default_factory=_nobody)

    def of(self, host: int) -> Evidence | None:
        """Return for whom *host* waits, as evidence that costs it nothing."""
        at = int(self.whose[host]) if host < self.whose.size else -1
        return self.culprits[at] if at >= 0 else None

    def job_of(self, host: int) -> str:
        """Return the name of the job in which *host* waits, "" for none."""
        at = int(self.whose[host]) if host < self.whose.size else -1
        return self.jobs[at] if at >= 0 else ""


class _Culprit(NamedTuple):
    host: int
    job: Job
    worst: Seen


def waits(present: Present, seen: Mapping[int, Sequence[Seen]]) -> Waits:
    """Return who waits for whom. *seen*: the symptoms that count, by host."""
    found = sorted(_culprits(present, seen), key=lambda one: one.worst.symptom.weight, reverse=True)
    if not found:
        return Waits()
    of_job: dict[int, list[_Culprit]] = defaultdict(list)
    for one in found:
        of_job[id(one.job)].append(one)
    whose = np.full(len(present.fleet), -1, dtype=np.int32)
    culprits: list[Evidence] = []
    jobs: list[str] = []
    for several in of_job.values():  # the gravest first
        for host in several[0].job.gpus.keys() - {one.host for one in several}:
            if whose[host] < 0:
                whose[host] = len(culprits)
        culprits.append(_evidence(present, several[0], len(several)))
        jobs.append(several[0].job.name)
    return Waits(tuple(culprits), tuple(jobs), whose)


def _culprits(present: Present, seen: Mapping[int, Sequence[Seen]]) -> Iterator[_Culprit]:
    """Yield who holds which job up, with the gravest of what says so."""
    for host, symptoms in seen.items():
        gravest: dict[int, _Culprit] = {}
        for one in symptoms:
            ago_seconds = (present.now_ns - one.seen_ns) / 1e9
            if ago_seconds > SEEN_SECONDS_MAX or not _holds_up(one.symptom):
                continue
            device = one.symptom.device
            gpu = device.partition("/")[0] if device.startswith("GPU-") else ""
            for job in present.fleet.jobs.of_several_hosts(host, gpu):
                before = gravest.get(id(job))
                if before is None or before.worst.symptom.weight < one.symptom.weight:
                    gravest[id(job)] = _Culprit(host, job, one)
        yield from gravest.values()


def _holds_up(symptom: Symptom) -> bool:
    """Say whether a job that runs there waits for it: what is only watched is no such word."""
    if symptom.host_state in (State.HEALTHY, State.WATCH) or symptom.rule.reason is Reason.POLICY:
        return False
    stops = symptom.host_state is State.UNHEALTHY or symptom.rule.name in _HANGS
    return symptom.speed < 1.0 or stops


def _evidence(present: Present, culprit: _Culprit, count: int) -> Evidence:
    name, symptom = present.fleet.names[culprit.host], culprit.worst.symptom
    job = f"job {culprit.job.name}" if culprit.job.name else "job"
    if symptom.rule.name in _BY_GANG:
        told = f"waits for {name} of its {job}"
    elif symptom.speed < 1.0:
        told = f"goes no faster than {name} of its {job}"
    else:
        told = f"may be held up by {name} of its {job}"
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
        words=f"{told} ({name}: {symptom.words}){more}; no fault of this host",
        observed_ns=culprit.worst.seen_ns,
        sql=symptom.sql,
    )
