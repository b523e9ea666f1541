"""Which jobs run on which GPUs, from the processes that agents report. `ops.jobs` shows the same in SQL.

Stored by process, because processes begin and end; looked up by host and by job.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...contract.wire.telemetry_pb2 import HealthEvent
from ..counter_deltas import Codes, Flags, Indexes, Times
from .devices import Devices

PROCESS, REANNOUNCED = "gpu.process", "gpu.told_anew"
EVENTS = (PROCESS, REANNOUNCED)
#: Processes of one host; more are not told apart, and what runs there is told without them.
PROCESSES_PER_HOST_MAX = 512
NAME_CHARACTERS_MAX = 256
#: Each is reported again every 30 minutes: anyone who was not for this long may be gone.
REPORT_AGE_NS_MAX = 65 * 60 * 1_000_000_000
#: A host is searched for these once in this many seconds.
SWEEP_SECONDS = 60
#: A count or a cadence that is reported in more digits is none.
DIGITS_MAX = 10
#: Of these managers a name means the same on every host; `session-3.scope` is on each another person's.
CLUSTER_MANAGERS = ("slurm", "kubernetes")
#: Who manages -> the attributes that name the job, the first that is there.
NAME_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "slurm": ("job_id",),
    "kubernetes": ("pod_uid", "container_id"),
    "container": ("container_id",),
    "systemd": ("user_unit", "unit"),
}


@dataclass(slots=True)
class Job:
    """A job on several GPUs. `gpus`: how many, by host; MIG instances count each."""

    key: tuple[str, str, int]  # who manages it, its name, and where that is of one host only: which
    gpus: dict[int, int] = field(default_factory=dict[int, int])
    checkpoint_seconds: int = 0  # its cadence, as it reported it; 0: unknown
    user_id: str = ""  # of the last process that has one

    @property
    def name(self) -> str:
        return self.key[1]

    @property
    def gpus_count(self) -> int:
        """GPUs of all of it, as far as agents see them."""
        return sum(self.gpus.values())


class JobProcess(NamedTuple):
    """A process on a GPU, as it was last reported."""

    job: Job
    gpu: str
    is_dead: bool
    last_ns: int  # boot time of its host


class HostJobs(NamedTuple):
    """What runs on a host: its jobs, the largest first, and whether all that is left of them is dead."""

    jobs: tuple[Job, ...]
    is_dead: bool


NO_JOBS = HostJobs((), False)


class ScheduledGang(NamedTuple):
    """A gang by a scheduler's word (ReportGangs). `gpus`: of all its hosts; 0: all that they have."""

    workload: str
    hosts: tuple[str, ...]
    gpus: int


#: Who manages a job that a scheduler reported and no process names.
SCHEDULER = "scheduler"


class Jobs:
    """Belongs to the fleet's thread. Hosts are node indexes."""

    def __init__(self) -> None:
        #: The gangs that schedulers report.
        self.scheduled: Callable[[], Iterable[ScheduledGang]] = tuple
        self._hosts: dict[int, tuple[str, dict[int, JobProcess]]] = {}
        self._jobs: dict[tuple[str, str, int], Job] = {}
        #: Host -> the name of its largest job; looked up again only for hosts where something began or ended.
        self._largest: dict[int, str] = {}
        self._changed: set[int] = set()
        #: Rises whenever a GPU begins or ends to compute for a job.
        self.version = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def all(self) -> list[Job]:
        """Return the jobs that run."""
        return list(self._jobs.values())

    def gangs(self, index: Mapping[str, int], gpus: Codes) -> list[Job]:
        """Return the jobs that run, and the gangs that only a scheduler tells of. *index*: of hosts; *gpus*: of each host.

        Where processes name a job of several hosts they are the better word: they tell which GPUs it holds.
        """
        jobs = self.all()
        named = {host for job in jobs if len(job.gpus) > 1 for host in job.gpus}
        for one in self.scheduled():
            hosts = sorted({index[name] for name in one.hosts if name in index})
            if len(hosts) < 2 or not named.isdisjoint(hosts):
                continue
            held = {host: int(gpus[host]) for host in hosts}
            if 0 < one.gpus < sum(held.values()):
                held = dict.fromkeys(hosts, max(one.gpus // len(hosts), 1))
            jobs.append(Job((SCHEDULER, one.workload, -1), held))
            named.update(hosts)
        return jobs

    def observe(self, host: int, boot: str, event: HealthEvent) -> None:
        """Take over what *host*, in the boot of that id in hex, tells of a process. Never raises."""
        if event.event_id.partition("/")[0] not in ("", boot):
            return  # the boot that it is of is over, and it with it
        processes = self._of_boot(host, boot)
        if event.name == REANNOUNCED:
            if event.attributes.get("what") == PROCESS:
                gpu, since_ns = event.device, event.boottime_ns
                self._drop(
                    host,
                    lambda one: one.gpu.partition("/")[0] == gpu and one.last_ns < since_ns,
                )
            return
        key = hash(event.event_id)
        self._remove(host, key)
        if (
            event.attributes.get("state") in ("running", "dead")
            and len(processes) < PROCESSES_PER_HOST_MAX
        ):
            self._add(host, key, event)

    def clear_host(self, host: int) -> None:
        """Let nothing run on *host*: it booted, or somebody else has its name."""
        self._drop(host, lambda one: True)

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
        one = JobProcess(job, sys.intern(gpu), attributes.get("state") == "dead", last_ns)
        processes = self._hosts[host][1]
        if not any(other.job is job and other.gpu == one.gpu for other in processes.values()):
            job.gpus[host] = job.gpus.get(host, 0) + 1
            self._changed.add(host)
            self.version += 1
        processes[key] = one

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
        if gone is None or any(o.job is gone.job and o.gpu == gone.gpu for o in processes.values()):
            return
        self._changed.add(host)
        self.version += 1
        job = gone.job
        job.gpus[host] -= 1
        if not job.gpus[host]:
            del job.gpus[host]
        if not job.gpus:
            del self._jobs[job.key]

    def _drop(self, host: int, is_gone: Callable[[JobProcess], bool]) -> None:
        _, processes = self._hosts.get(host, ("", {}))
        for key in [key for key, one in processes.items() if is_gone(one)]:
            self._remove(host, key)

    def sweep(self, now_ns: int, host_now_ns: Times) -> None:
        """Forget what was not reported for long, of a share of the hosts at a time. *host_now_ns*: their boot time now."""
        for host in range(now_ns // 1_000_000_000 % SWEEP_SECONDS, len(host_now_ns), SWEEP_SECONDS):
            if host in self._hosts:
                self._forget(host, int(host_now_ns[host]) - REPORT_AGE_NS_MAX)

    def _forget(self, host: int, before_ns: int) -> None:
        self._drop(host, lambda one: one.last_ns < before_ns)

    def holding(self, host: int, gpu: str = "") -> list[Job]:
        """Return the jobs on *host*; with *gpu*, only those that hold that GPU."""
        _, processes = self._hosts.get(host, ("", {}))
        there = (p.job for p in processes.values() if not gpu or p.gpu.partition("/")[0] == gpu)
        return list({id(job): job for job in there}.values())

    def of_several_hosts(self, host: int, gpu: str = "") -> list[Job]:
        """Return those of `holding` that run on other hosts too."""
        return [job for job in self.holding(host, gpu) if len(job.gpus) > 1]

    def gpu_assignments(self, host: int) -> Iterator[tuple[Job, str]]:
        """Yield each GPU that a job holds on *host*, and each of MIG's as the GPU that it is of; some more than once."""
        _, processes = self._hosts.get(host, ("", {}))
        for one in processes.values():
            yield one.job, one.gpu.partition("/")[0]

    def largest(self) -> Mapping[int, str]:
        """Return the name of the largest job of each host that runs one, by host: a copy. A job without a name is left out."""
        for host in self._changed:
            jobs = self.on_host(host).jobs
            if jobs and jobs[0].name:
                self._largest[host] = jobs[0].name
            else:
                self._largest.pop(host, None)
        self._changed.clear()
        return dict(self._largest)

    def on_host(self, host: int) -> HostJobs:
        """Return what runs on *host*, as far as it has reported."""
        _, processes = self._hosts.get(host, ("", {}))
        if not processes:
            return NO_JOBS
        jobs = {id(one.job): one.job for one in processes.values()}
        ordered = sorted(jobs.values(), key=lambda job: (-job.gpus_count, job.name))
        return HostJobs(tuple(ordered), all(one.is_dead for one in processes.values()))


def job_name(source: str, attributes: Mapping[str, str]) -> str:
    """Return the name of the job that a process is of, as `ops.jobs` has it; "" where nobody tells."""
    if source == "kubernetes" and "namespace" in attributes and "pod" in attributes:
        return f"{attributes['namespace']}/{attributes['pod']}"[:NAME_CHARACTERS_MAX]
    found = (attributes[name] for name in NAME_ATTRIBUTES.get(source, ()) if attributes.get(name))
    return next(found, "")[:NAME_CHARACTERS_MAX]


def parse_count(text: str | None) -> int:
    """Return a reported count; 0 for none, or for what is no count."""
    good = text is not None and text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    return int(text) if good and text is not None else 0


# ----------------------------------------------------------------------
# Hosts that jobs share: which of their GPUs compute for whom.
#
# A job's work and waiting show on the GPUs that it holds. What another does beside it says nothing
# of the host, and of a job that holds two of eight GPUs the mean of all says nothing at all.


def are_shared(devices: Devices, gpus_held: Indexes) -> Flags:
    """Say which hosts have more GPUs than their gang's job holds. *gpus_held*: by host, MIG's each; -1: it is in no gang."""
    return np.asarray(
        (gpus_held >= 0) & (gpus_held < np.bincount(devices.host, minlength=gpus_held.size))
    )


def gangs_of_gpus(
    devices: Devices, gang: Indexes, shared: Flags, jobs: Sequence[Job], running: Jobs
) -> Indexes:
    """Return for which of *jobs* each GPU computes, -1 for none: for its host's *gang*, but where *shared* for whom holds it.

    One that two hold is its host's gang's, if that is one of them, and else nobody's.
    """
    found = gang[devices.host]
    found[shared[devices.host]] = -1
    places = {id(job): place for place, job in enumerate(jobs)}
    for host in np.flatnonzero(shared).tolist():
        holders: dict[str, set[int]] = {}
        for job, gpu in running.gpu_assignments(host):
            if id(job) in places:
                holders.setdefault(gpu, set()).add(places[id(job)])
        for gpu, those in holders.items():
            row, host_gang = devices.find(host, gpu), int(gang[host])
            if row >= 0 and (host_gang in those or len(those) == 1):
                found[row] = host_gang if host_gang in those else min(those)
    return found


def are_divided(devices: Devices, gpu_gang: Indexes, hosts: int) -> Flags:
    """Say which of *hosts* have GPUs that compute for one job and GPUs that do for another. *gpu_gang*: by `gangs_of_gpus`."""
    divided, some = np.zeros(hosts, dtype=bool), gpu_gang >= 0
    one = np.full(hosts, -1, dtype=np.intp)
    one[devices.host[some]] = gpu_gang[some]
    divided[devices.host[some & (gpu_gang != one[devices.host])]] = True
    return divided
