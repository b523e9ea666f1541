"""Jobs on each GPU, from the processes that agents report (in SQL: `ops.jobs`); shared hosts.

Stored by process, because processes begin and end; lookup by host and by job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...contract.isolation import ATTRIBUTE, HELD, HeldGpu, JobOnHost, parse_facts
from ...contract.job_names import CLUSTER_MANAGERS, job_name
from ...contract.wire.telemetry_pb2 import HealthEvent
from ..arrays import Codes, Flags, Indexes, Times
from .devices import Devices

PROCESS, REANNOUNCED = "gpu.process", "gpu.full_report"
EVENTS = (PROCESS, REANNOUNCED)
#: Further processes of a host are ignored.
PROCESSES_PER_HOST_MAX = 512
#: Processes are reported every 30 minutes; after this time without a report a process is removed.
REPORT_AGE_NS_MAX = 65 * 60 * 1_000_000_000
#: Each host is checked for such processes once in this many seconds.
SWEEP_SECONDS = 60
#: Counts and cadences with more digits are invalid.
DIGITS_MAX = 10
#: Manager of a job that only a scheduler reported.
SCHEDULER = "scheduler"


@dataclass(slots=True)
class Job:
    """A job on GPUs. `gpus`: count by host; each MIG instance counts."""

    key: tuple[str, str, int]  # manager, name, and the host if the job is local to it, else -1
    gpus: dict[int, int] = field(default_factory=dict)
    checkpoint_seconds: int = 0  # checkpoint cadence that it reported; 0: unknown
    user_id: str = ""  # of the last process with a user id

    @property
    def name(self) -> str:
        return self.key[1]

    @property
    def gpus_count(self) -> int:
        return sum(self.gpus.values())


class JobProcess(NamedTuple):
    """A process of a job on a GPU."""

    job: Job
    gpu: str
    is_dead: bool
    last_ns: int  # boot time of its host
    isolation: str = ""  # facts (`contract/isolation.py`), shared with equal ones
    rank: int = -1  # in its job; -1: unknown


class HostJobs(NamedTuple):
    """The jobs on a host, largest first, and whether all their processes are dead."""

    jobs: tuple[Job, ...]
    is_dead: bool


NO_JOBS = HostJobs((), False)


class ResidentJob(NamedTuple):
    """A job on a host that has GPUs free for another job, or several jobs."""

    name: str
    gpus_here: int
    gpus: int  # on all hosts


class SlowedJob(NamedTuple):
    """A job on a host that another job there slows, as measured on the job's pace (`runs.colocations`)."""

    manager: str
    name: str
    neighbor: str
    since_ns: int  # the neighbor came
    slowdown: float  # share of its speed that the job loses, with the limits of 90 %
    slowdown_lower: float
    slowdown_upper: float
    message: str


class ScheduledGang(NamedTuple):
    """A gang that a scheduler reported (ReportGangs). `gpus`: total; 0: all GPUs of the hosts."""

    workload: str
    hosts: tuple[str, ...]
    gpus: int


class Jobs:
    """The running jobs by process. Owned by the fleet's thread; hosts are node indexes."""

    def __init__(self) -> None:
        #: The gangs that schedulers report.
        self.scheduled: Callable[[], Iterable[ScheduledGang]] = tuple
        self._hosts: dict[int, tuple[str, dict[int, JobProcess]]] = {}
        self._jobs: dict[tuple[str, str, int], Job] = {}
        #: Host -> name of its largest job; updated only for hosts in `_changed`.
        self._largest: dict[int, str] = {}
        #: Host -> its jobs, for hosts with free GPUs or several jobs; updated for `_changed_residents`.
        self._partly_used: dict[int, tuple[Job, ...]] = {}
        self._changed_residents: set[int] = set()
        self._residents: tuple[int, dict[int, tuple[ResidentJob, ...]]] = -1, {}
        self._changed: set[int] = set()
        #: Changes whenever a job acquires or releases a GPU.
        self.version = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def all(self) -> list[Job]:
        return list(self._jobs.values())

    def gangs(self, index: Mapping[str, int], gpus: Codes) -> list[Job]:
        """Return the running jobs, and gangs known only from a scheduler.

        *index*: node index by name; *gpus*: count per host. Reported processes of a job of several hosts take
        precedence, because they show which GPUs it holds.
        """
        jobs = self.all()
        named = {host for job in jobs if len(job.gpus) > 1 for host in job.gpus}
        for gang in self.scheduled():
            hosts = sorted({index[name] for name in gang.hosts if name in index})
            if len(hosts) < 2 or not named.isdisjoint(hosts):
                continue
            held = {host: int(gpus[host]) for host in hosts}
            if 0 < gang.gpus < sum(held.values()):
                held = dict.fromkeys(hosts, max(gang.gpus // len(hosts), 1))
            jobs.append(Job((SCHEDULER, gang.workload, -1), held))
            named.update(hosts)
        return jobs

    def observe(self, host: int, boot: str, event: HealthEvent) -> None:
        """Store a report of *host* about a process. *boot*: its boot id in hex. Never raises."""
        if event.event_id.partition("/")[0] not in ("", boot):
            return  # from an earlier boot: the process has ended
        processes = self._of_boot(host, boot)
        if event.name == REANNOUNCED:
            if event.attributes.get("what") == PROCESS:
                gpu, since_ns = event.device, event.boottime_ns
                self._drop(host, lambda p: p.gpu.partition("/")[0] == gpu and p.last_ns < since_ns)
            return
        key = hash(event.event_id)
        self._remove(host, key)
        if (
            event.attributes.get("state") in ("running", "dead")
            and len(processes) < PROCESSES_PER_HOST_MAX
        ):
            self._add(host, key, event)

    def clear_host(self, host: int) -> None:
        """Remove all processes of *host*, which rebooted or was replaced."""
        self._drop(host, lambda process: True)

    def _of_boot(self, host: int, boot: str) -> dict[int, JobProcess]:
        known = self._hosts.get(host)
        if known is None or known[0] != boot:
            self.clear_host(host)
            known = self._hosts[host] = boot, {}
        return known[1]

    def _add(self, host: int, key: int, event: HealthEvent) -> None:
        attributes, gpu = event.attributes, event.device
        if instance := attributes.get("gpu_instance"):
            gpu = f"{gpu}/{instance}"
        job = self._job(host, attributes)
        job.checkpoint_seconds = (
            parse_count(attributes.get("checkpoint_seconds")) or job.checkpoint_seconds
        )
        job.user_id = attributes.get("user_id", job.user_id)[:DIGITS_MAX]
        last_ns = max(event.boottime_ns, event.last_boottime_ns)
        isolation = sys.intern(attributes.get(ATTRIBUTE, ""))
        rank = -1 if (number := parse_number(attributes.get("rank"))) is None else number
        is_dead = attributes.get("state") == "dead"
        process = JobProcess(job, sys.intern(gpu), is_dead, last_ns, isolation, rank)
        processes = self._hosts[host][1]
        if not any(other.job is job and other.gpu == process.gpu for other in processes.values()):
            job.gpus[host] = job.gpus.get(host, 0) + 1
            self._note_change(host)
        processes[key] = process

    def _job(self, host: int, attributes: Mapping[str, str]) -> Job:
        source = attributes.get("source", "")
        name = job_name(source, attributes)
        key = source, name, -1 if source in CLUSTER_MANAGERS and name else host
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = Job(key)
        return job

    def _remove(self, host: int, key: int) -> None:
        processes = self._hosts[host][1]
        gone = processes.pop(key, None)
        if gone is None or any(
            process.job is gone.job and process.gpu == gone.gpu for process in processes.values()
        ):
            return
        self._note_change(host)
        job = gone.job
        job.gpus[host] -= 1
        if not job.gpus[host]:
            del job.gpus[host]
        if not job.gpus:
            del self._jobs[job.key]

    def _drop(self, host: int, is_gone: Callable[[JobProcess], bool]) -> None:
        _, processes = self._hosts.get(host, ("", {}))
        for key in [key for key, process in processes.items() if is_gone(process)]:
            self._remove(host, key)

    def sweep(self, now_ns: int, host_now_ns: Times) -> None:
        """Remove processes without recent reports on some of the hosts.

        *host_now_ns*: each host's CLOCK_BOOTTIME at *now_ns*.
        """
        for host in range(now_ns // 1_000_000_000 % SWEEP_SECONDS, len(host_now_ns), SWEEP_SECONDS):
            if host in self._hosts:
                self._forget(host, int(host_now_ns[host]) - REPORT_AGE_NS_MAX)

    def _forget(self, host: int, before_ns: int) -> None:
        self._drop(host, lambda process: process.last_ns < before_ns)

    def holding(self, host: int, gpu: str = "") -> list[Job]:
        """Return the jobs on *host*; with *gpu*, only those that hold that GPU."""
        _, processes = self._hosts.get(host, ("", {}))
        held_by = (p.job for p in processes.values() if not gpu or p.gpu.partition("/")[0] == gpu)
        return list({id(job): job for job in held_by}.values())

    def of_several_hosts(self, host: int, gpu: str = "") -> list[Job]:
        """Return those of `holding` that also run on other hosts."""
        return [job for job in self.holding(host, gpu) if len(job.gpus) > 1]

    def isolation_of(self, host: int, job: Job) -> JobOnHost:
        """Return the GPUs that *job* holds on *host*, and the facts of its processes."""
        _, processes = self._hosts.get(host, ("", {}))
        own = [p for p in processes.values() if p.job is job and not p.is_dead]
        held = (p.gpu.partition("/") for p in own)
        return JobOnHost(
            job.name,
            frozenset(HeldGpu(gpu, parse_count(i) if i else None) for gpu, _, i in held),
            tuple({**parse_facts(p.isolation), HELD: p.gpu.partition("/")[0]} for p in own),
        )

    def gpu_assignments(self, host: int) -> Iterator[tuple[Job, str]]:
        """Yield (job, GPU) on *host*, possibly repeated; for a MIG instance its GPU."""
        _, processes = self._hosts.get(host, ("", {}))
        for process in processes.values():
            yield process.job, process.gpu.partition("/")[0]

    def rank_of(self, host: int, gpu: str) -> int:
        """Return the rank of the only process on *gpu*; -1 if it is unknown, or for several ranks."""
        _, processes = self._hosts.get(host, ("", {}))
        ranks = {p.rank for p in processes.values() if p.gpu.partition("/")[0] == gpu}
        return ranks.pop() if len(ranks) == 1 else -1

    def largest(self) -> Mapping[int, str]:
        """Return a copy of host -> name of its largest job, without jobs that have no name."""
        for host in self._changed:
            jobs = self.on_host(host).jobs
            if jobs and jobs[0].name:
                self._largest[host] = jobs[0].name
            else:
                self._largest.pop(host, None)
        self._changed.clear()
        return dict(self._largest)

    def residents(self, gpus: Codes) -> Mapping[int, tuple[ResidentJob, ...]]:
        """Return host -> its jobs by name, for hosts with free GPUs or several jobs. *gpus*: count by host."""
        for host in self._changed_residents:
            jobs = self.on_host(host).jobs
            self._partly_used.pop(host, None)
            if len(jobs) > 1 or (jobs and jobs[0].gpus[host] < gpus[host]):
                self._partly_used[host] = jobs
        self._changed_residents.clear()
        if self._residents[0] != self.version:
            hosts = {
                host: tuple(
                    sorted(ResidentJob(job.name, job.gpus[host], job.gpus_count) for job in jobs)
                )
                for host, jobs in self._partly_used.items()
            }
            self._residents = self.version, hosts
        return self._residents[1]

    def _note_change(self, host: int) -> None:
        self._changed.add(host)
        self._changed_residents.add(host)
        self.version += 1

    def on_host(self, host: int) -> HostJobs:
        """Return the jobs on *host*."""
        _, processes = self._hosts.get(host, ("", {}))
        if not processes:
            return NO_JOBS
        jobs = {id(process.job): process.job for process in processes.values()}
        ordered = sorted(jobs.values(), key=lambda job: (-job.gpus_count, job.name))
        return HostJobs(tuple(ordered), all(process.is_dead for process in processes.values()))


def parse_number(text: str | None) -> int | None:
    """Return a reported whole number; None for none or an invalid one. Digits of other scripts are invalid."""
    is_valid = text is not None and text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    return int(text) if is_valid and text is not None else None


def parse_count(text: str | None) -> int:
    """Return a reported count; 0 for none or an invalid one."""
    return parse_number(text) or 0


def are_shared(devices: Devices, gpus_held: Indexes) -> Flags:
    """Return which hosts have more GPUs than their gang's job holds.

    On shared hosts only the GPUs that a job holds show its work and waiting; a mean over all GPUs of
    the host would mix jobs. *gpus_held*: by host, including MIG instances; -1: no gang.
    """
    return (gpus_held >= 0) & (gpus_held < np.bincount(devices.host, minlength=gpus_held.size))


def gangs_of_gpus(
    devices: Devices, gang: Indexes, shared: Flags, jobs: Sequence[Job], running: Jobs
) -> Indexes:
    """Return the index in *jobs* for which each GPU computes, -1: none.

    That is the host's *gang*, or on *shared* hosts the job that holds the GPU. A GPU with several
    holders is its host's gang's if that is one of them, else nobody's.
    """
    result = gang[devices.host]
    result[shared[devices.host]] = -1
    indexes = {id(job): index for index, job in enumerate(jobs)}
    for host in np.flatnonzero(shared).tolist():
        holders: dict[str, set[int]] = {}
        for job, gpu in running.gpu_assignments(host):
            if id(job) in indexes:
                holders.setdefault(gpu, set()).add(indexes[id(job)])
        for gpu, holding_jobs in holders.items():
            row, host_gang = devices.find(host, gpu), int(gang[host])
            if row >= 0 and (host_gang in holding_jobs or len(holding_jobs) == 1):
                result[row] = host_gang if host_gang in holding_jobs else min(holding_jobs)
    return result


def are_divided(devices: Devices, gpu_gang: Indexes, hosts: int) -> Flags:
    """Return which hosts have GPUs of different jobs. *gpu_gang*: from `gangs_of_gpus`."""
    divided, is_assigned = np.zeros(hosts, dtype=bool), gpu_gang >= 0
    one_gang = np.full(hosts, -1, dtype=np.intp)
    one_gang[devices.host[is_assigned]] = gpu_gang[is_assigned]
    divided[devices.host[is_assigned & (gpu_gang != one_gang[devices.host])]] = True
    return divided


def jobs_of_hosts(jobs: Sequence[Job]) -> dict[int, frozenset[int]]:
    """Return the indexes of jobs of several hosts on each host."""
    result: dict[int, set[int]] = {}
    for place, job in enumerate(jobs):
        if len(job.gpus) > 1:
            for host in job.gpus:
                result.setdefault(host, set()).add(place)
    return {host: frozenset(places) for host, places in result.items()}


def with_inferred(jobs: list[Job], inferred: Sequence[Job]) -> list[Job]:
    """Return *jobs*, and *inferred* jobs without a host that has a job of several hosts."""
    named = {host for job in jobs if len(job.gpus) > 1 for host in job.gpus}
    return jobs + [job for job in inferred if named.isdisjoint(job.gpus)]
