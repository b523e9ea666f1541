"""Running gangs as a scheduler reports them: hosts, size, and checkpoint interval, until each ends.

A gang belongs to the login that reported it. If a second login reports a gang under a name that is
in use, its gang is named `NAME (LOGIN)` everywhere, so that no answer mixes the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..fleet.fleet import Fleet
from ..fleet.jobs import HostJobs, Job, ScheduledGang
from ..model import HostScore
from ..principal import GRANTABLE_ROLES, login_of_actor
from ..scoring.evaluate import Judgement
from .costs import Workload
from .failure_domains import place_of
from .messages import Member

#: Maximum gangs at once, and hosts of all of them together.
GANGS_MAX, GANG_HOSTS_MAX = 50_000, 200_000
_NO_LOGIN = "no login"
_QUALIFIED = re.compile(rf"(.+) \(({_NO_LOGIN}|(?:{'|'.join(GRANTABLE_ROLES)}) [^()]*)\)")

JOB_CHARACTERS_MAX = 256


def qualified_name(workload: str, login: str) -> str:
    """Return the name of a second gang *workload*, which *login* reported."""
    return f"{workload} ({login or _NO_LOGIN})"


def reported_name(name: str) -> str:
    """Return the name under which the gang *name* was reported."""
    match = _QUALIFIED.fullmatch(name)
    return match[1] if match else name


def owner_of(name: str) -> str:
    """Return the login in a qualified name; "" for a name without one."""
    match = _QUALIFIED.fullmatch(name)
    return match[2] if match else ""


def name_for(name: str, login: str) -> str:
    """Return the gang's *name* for *login*: the reporting login gets its own name back."""
    return name.removesuffix(qualified_name("", login)) if login else name


class Gang(NamedTuple):
    """A workload. `reporter`: LOGIN/ACTOR.

    `gpus` 0: all GPUs of its hosts. `checkpoint_seconds` 0: unknown.
    """

    workload: str
    hosts: tuple[str, ...]
    gpus: int
    checkpoint_seconds: float
    until_ns: int
    reporter: str
    reported_ns: int

    @property
    def login(self) -> str:
        """The login that the gang belongs to; "": it was reported without a login."""
        return login_of_actor(self.reporter)


class ScheduledGangs:
    """The gangs that have not ended, by name and by host."""

    def __init__(self, gangs: Iterable[Gang] = ()) -> None:
        self._gangs: dict[str, Gang] = {}
        self._of_host: dict[str, dict[str, Gang]] = {}
        self._hosts = 0
        for gang in gangs:
            self.update(gang)

    def __len__(self) -> int:
        return len(self._gangs)

    def scheduled(self) -> Iterator[ScheduledGang]:
        """Yield the gangs in the form that judging uses."""
        return (
            ScheduledGang(gang.workload, gang.hosts, gang.gpus) for gang in self._gangs.values()
        )

    def named(self, one: Gang) -> Gang:
        """Return the gang *one* under the name that its login's gang has or would have here."""
        qualified = qualified_name(one.workload, one.login)
        holder = self._gangs.get(one.workload)
        if qualified in self._gangs or (holder and holder.login not in ("", one.login)):
            return one._replace(workload=qualified)
        return one

    def endable(self, workload: str, login: str, ends_any: bool) -> str:
        """Return the name of the gang that *login* ends by *workload*; "" for none.

        The login's own gang comes first. *ends_any*: the login may also end another login's gang,
        by its name here.
        """
        for name in (qualified_name(workload, login), workload):
            holder = self._gangs.get(name)
            if holder is not None and (holder.login in ("", login) or ends_any):
                return name
        return ""

    def has_room_for(self, gangs: Iterable[Gang]) -> bool:
        """Return whether *gangs*, under their names here, fit into the limits."""
        new = {gang.workload: gang for gang in gangs}
        replaced = [self._gangs[name] for name in new.keys() & self._gangs.keys()]
        hosts = self._hosts - sum(len(gang.hosts) for gang in replaced)
        hosts += sum(len(gang.hosts) for gang in new.values())
        return len(self._gangs.keys() | new.keys()) <= GANGS_MAX and hosts <= GANG_HOSTS_MAX

    def count_with(self, gangs: Iterable[Gang], ended: Iterable[str]) -> int:
        """Return the number of gangs with *gangs* added and *ended* removed."""
        return len((self._gangs.keys() | {gang.workload for gang in gangs}) - set(ended))

    def update(self, one: Gang) -> None:
        """Record the gang *one*, in place of the last report of its workload."""
        self.end(one.workload)
        self._gangs[one.workload] = one
        self._hosts += len(one.hosts)
        for host in one.hosts:
            self._of_host.setdefault(host, {})[one.workload] = one

    def end(self, workload: str) -> bool:
        """Remove *workload*; return whether it was known."""
        removed = self._gangs.pop(workload, None)
        if removed is None:
            return False
        self._hosts -= len(removed.hosts)
        for host in set(removed.hosts):
            host_gangs = self._of_host[host]
            del host_gangs[workload]
            if not host_gangs:
                del self._of_host[host]
        return True

    def expire(self, now_ns: int) -> list[str]:
        """Remove gangs that were not reported again in time, and return their names."""
        expired = [name for name, gang in self._gangs.items() if gang.until_ns <= now_ns]
        for name in expired:
            self.end(name)
        return expired

    def apply_clock_jump(self, jump_ns: int, now_ns: int) -> list[Gang]:
        """Extend earlier reports after our clock jumped by *jump_ns* to *now_ns*; return these."""
        before = [gang for gang in self._gangs.values() if gang.reported_ns <= now_ns - jump_ns]
        moved = [gang._replace(until_ns=gang.until_ns + jump_ns) for gang in before]
        for gang in moved:
            self.update(gang)
        return moved

    def on(self, host: str) -> Gang | None:
        """Return the gang on *host*, the largest of several; None if none was reported."""
        host_gangs = self._of_host.get(host)
        if not host_gangs:
            return None
        return max(
            host_gangs.values(), key=lambda gang: (len(gang.hosts), gang.gpus, gang.workload)
        )


class WorkloadLookup:
    """Finds the workload of an unwell host: by a scheduler, else by processes on its GPUs.

    Used only on the event loop, as *fleet* and *gangs* are.
    """

    def __init__(self, fleet: Fleet, gangs: ScheduledGangs) -> None:
        self._fleet, self._gangs = fleet, gangs

    def __call__(self, host: HostScore, judgement: Judgement) -> Workload | None:
        """Return the workload of *host*; None: it has not reported since our start."""
        index = self._fleet.index.get(host.host)
        if index is None or not self._fleet.first_received_ns[index]:
            return None
        jobs = self._fleet.jobs.on_host(index)
        if (gang := self._gangs.on(host.host)) is not None:
            return self._from_scheduler(gang, jobs, judgement)
        return self._from_processes(index, jobs, judgement) if jobs.jobs else Workload()

    def member(self, host: str) -> Member | None:
        """Return *host* for the budgets; None if no agent has registered under this name."""
        index = self._fleet.index.get(host)
        if index is None:
            return None
        gang, jobs = self._gangs.on(host), self._fleet.jobs.on_host(index).jobs
        job = gang.workload if gang else self._name(index, jobs[0]) if jobs else ""
        return Member(host, place_of(self._fleet.declared, host), job)

    def _from_scheduler(self, gang: Gang, here: HostJobs, judgement: Judgement) -> Workload:
        known = [self._fleet.index[name] for name in gang.hosts if name in self._fleet.index]
        gpus = gang.gpus or int(self._fleet.gpus[known].sum())
        cadence = gang.checkpoint_seconds or float(_checkpoint_cadence(here.jobs))
        return Workload(gang.workload, gpus, _hazard(judgement, known), cadence, here.is_dead)

    def _from_processes(self, index: int, here: HostJobs, judgement: Judgement) -> Workload:
        """Return the largest job, with the GPUs and hosts of all: they end with the host."""
        largest = here.jobs[0]
        gpus = sum(job.gpus_count for job in here.jobs)
        hosts = sorted(set().union(*(job.gpus for job in here.jobs)))
        return Workload(
            self._name(index, largest), gpus, _hazard(judgement, hosts),
            float(_checkpoint_cadence(here.jobs)), here.is_dead,
        )  # fmt: skip

    def _name(self, index: int, job: Job) -> str:
        """Return the job's name for budgets: sessions on two hosts are not one job."""
        _, name, of_host = job.key
        if not name or of_host < 0:
            return name
        return f"{self._fleet.names[index]}/{name}"[:JOB_CHARACTERS_MAX]


def _checkpoint_cadence(jobs: Sequence[Job]) -> int:
    """Return the longest checkpoint period of *jobs*; 0 if any is unknown."""
    cadences = [job.checkpoint_seconds for job in jobs]
    return max(cadences) if cadences and all(cadences) else 0


def _hazard(judgement: Judgement, hosts: Sequence[int]) -> float:
    known = np.array(
        [host for host in hosts if host < judgement.columns.hazard_per_hour.size], dtype=np.intp
    )
    return float(judgement.columns.hazard_per_hour[known].sum())
