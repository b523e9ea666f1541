"""What runs on a host that is not well: by a scheduler's word, else by the processes on its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..fleet.fleet import Fleet
from ..fleet.jobs import Here, Job
from ..judgement.judge import Judgement
from ..verdicts import HostScore
from .costs import Workload
from .events import Member
from .gangs import Gang, Gangs
from .places import place_of

JOB_CHARACTERS_MAX = 256


class Works:
    """Asked of the unwell only. Belongs to the loop, as *fleet* and *gangs* do."""

    def __init__(self, fleet: Fleet, gangs: Gangs) -> None:
        self._fleet, self._gangs = fleet, gangs

    def __call__(self, host: HostScore, judged: Judgement) -> Workload | None:
        """Return what *host* works at; None: it has not spoken since our start."""
        index = self._fleet.index.get(host.host)
        if index is None or not self._fleet.first_ns[index]:
            return None
        here = self._fleet.jobs.on(index)
        if (gang := self._gangs.on(host.host)) is not None:
            return self._told(gang, here, judged)
        return self._seen(index, here, judged) if here.jobs else Workload()

    def member(self, host: str) -> Member | None:
        """Return what budgets count *host* by; None: no agent has registered under this name."""
        index = self._fleet.index.get(host)
        if index is None:
            return None
        gang, jobs = self._gangs.on(host), self._fleet.jobs.on(index).jobs
        job = gang.workload if gang else self._name(index, jobs[0]) if jobs else ""
        return Member(host, place_of(self._fleet.declared, host), job)

    def _told(self, gang: Gang, here: Here, judged: Judgement) -> Workload:
        known = [self._fleet.index[name] for name in gang.hosts if name in self._fleet.index]
        gpus = gang.gpus or int(self._fleet.gpus[known].sum())
        cadence = gang.checkpoint_seconds or float(_cadence(here.jobs))
        return Workload(gang.workload, gpus, _hazard(judged, known), cadence, here.is_dead)

    def _seen(self, index: int, here: Here, judged: Judgement) -> Workload:
        """Return the largest job as the one it is named by; all that is there ends with the host."""
        largest = here.jobs[0]
        gpus = sum(job.gpus_count for job in here.jobs)
        hosts = sorted(set().union(*(job.gpus for job in here.jobs)))
        return Workload(
            self._name(index, largest), gpus, _hazard(judged, hosts),
            float(_cadence(here.jobs)), here.is_dead,
        )  # fmt: skip

    def _name(self, index: int, job: Job) -> str:
        """Return the name by which budgets count: a session of two hosts is not one job."""
        _, name, of_host = job.key
        if not name or of_host < 0:
            return name
        return f"{self._fleet.names[index]}/{name}"[:JOB_CHARACTERS_MAX]


def _cadence(jobs: Sequence[Job]) -> int:
    """Return the cadence at which all of *jobs* write; 0 where that of one is not known."""
    told = [job.checkpoint_seconds for job in jobs]
    return max(told) if told and all(told) else 0


def _hazard(judged: Judgement, hosts: Sequence[int]) -> float:
    """Return the hazard of *hosts* together."""
    known = np.array(
        [host for host in hosts if host < judged.columns.hazard_per_hour.size], dtype=np.intp
    )
    return float(judged.columns.hazard_per_hour[known].sum())
