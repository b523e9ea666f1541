"""Jobs over months: queueing, placement, and runs that end normally or when a host fails."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from .incidents import HOUR, DrawContext
from .scenario import JobShapes, ScenarioError
from .timelines import BOOT_SECONDS, Downtime, HostTimelines

#: Assumed: share of the hosts, in whole hosts, that is left idle: a cluster is never quite full.
IDLE_SHARE = 0.03
#: Assumed: number of jobs that wait at any time. Each job that starts is followed by another draw, so each drawn job
#: runs.
QUEUED_JOBS = 64
#: More jobs are a mistake in a file.
JOBS_MAX = 500_000


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A gang: its hosts (sorted indexes), its begin and end, and its steps. Seconds and ratios."""

    number: int
    hosts: npt.NDArray[np.int64]
    begin: float
    end: float
    killed_by: int  # the cause; -1: it ended normally
    period_seconds: float
    communicate_ratio: float
    tensor_ratio: float  # share of a step for exchange within tensor groups, over NVLink
    power_ratio: float
    is_memory_bound: bool
    checkpoint_every_seconds: float
    checkpoint_seconds: float
    writes_alone: bool  # rank 0 writes for all; else the first GPU of each host writes its own part


@dataclass(slots=True)
class _QueuedJob:
    """A job that waits for its hosts; *job* is complete except for number, hosts and times."""

    job: SimulatedJob
    size: int
    seconds: float  # its duration if it is not interrupted
    not_before: float  # earliest start


class _EventKind(IntEnum):
    """Kinds of events; events at one moment occur in this order."""

    DOWN = 0
    KILL = 1
    END = 2
    UP = 3
    REBOOT = 4
    START = 5


class Cluster:
    """The free hosts, the running jobs and the queue; `run` processes all events."""

    def __init__(
        self,
        context: DrawContext,
        timelines: HostTimelines,
        reboots: Sequence[tuple[float, int, int]],
    ) -> None:
        """*reboots*: planned reboots as (when, host, cause), done as soon as no job is on the host."""
        self._context, self._shapes = context, context.jobs
        self._random = context.random_source("jobs")
        hosts = context.hosts
        self._idle_hosts = int(IDLE_SHARE * hosts)
        self._sizes, self._weights = _feasible_sizes(self._shapes, hosts - self._idle_hosts)
        self._queue: list[_QueuedJob] = []
        self._is_up = np.ones(hosts, bool)
        self._is_free = np.ones(hosts, bool)
        self._job_of = np.full(hosts, -1)
        self._pending_reboots: dict[int, int] = {}  # host -> cause of its pending reboot
        self._running: dict[int, SimulatedJob] = {}
        self.jobs: list[SimulatedJob] = []
        self.reboot_downtimes: list[Downtime] = []
        self._heap: list[tuple[float, int, int, int, int]] = []
        self._order = 0
        self._down_times: dict[int, list[float]] = {}
        for downtime in timelines.downtimes:
            self._push(downtime.begin, _EventKind.DOWN, downtime.host, downtime.cause)
            self._down_times.setdefault(downtime.host, []).append(downtime.begin)
            self._push(downtime.end, _EventKind.UP, downtime.host)
        for when, host, cause in timelines.kills:
            self._push(when, _EventKind.KILL, host, cause)
        for when, host, cause in reboots:
            self._push(when, _EventKind.REBOOT, host, cause)
        self._push(0.0, _EventKind.START, 0)

    def _push(self, when: float, kind: _EventKind, subject: int, cause: int = -1) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when, int(kind), self._order, subject, cause))

    def run(self) -> None:
        """Process all events, in order of time."""
        while self._heap and self._heap[0][0] < self._context.seconds:
            now, kind, _, subject, cause = heapq.heappop(self._heap)
            self._handle(now, _EventKind(kind), subject, cause)
        for job in list(self._running.values()):
            self._end(job, self._context.seconds, -1)
        self.jobs.sort(key=lambda job: job.number)

    def _handle(self, now: float, kind: _EventKind, subject: int, cause: int) -> None:
        if kind is _EventKind.START:
            self._start(now)
        elif kind is _EventKind.END:
            if subject in self._running:
                self._end(self._running[subject], now, -1)
                self._start_later(now, 60.0 * self._shapes.pause_median_minutes)
        elif kind is _EventKind.REBOOT:
            self._pending_reboots[subject] = cause
            job = self._running.get(int(self._job_of[subject]))
            if job is not None and self._context.scenario.parade_seconds:
                self._end(job, now, -1)  # a parade cannot wait for the job's end
                self._start_later(now, 60.0 * self._shapes.pause_median_minutes)
            self._reboot(now, subject)
        elif kind is _EventKind.UP:
            self._is_up[subject] = self._is_free[subject] = True
            self._start_later(now, 60.0)
        else:
            self._kill(now, subject, cause)
            if kind is _EventKind.DOWN:
                self._is_up[subject] = self._is_free[subject] = False
                self._pending_reboots.pop(subject, None)

    def _kill(self, now: float, host: int, cause: int) -> None:
        """End the job on a host; it goes to the head of the queue, with the same size, for its remaining time."""
        job = self._running.get(int(self._job_of[host]))
        if job is not None:
            self._end(job, now, cause)
            ready = self._start_later(now, 60.0 * self._shapes.restart_minutes)
            self._queue.insert(0, _QueuedJob(job, job.hosts.size, job.end - now, ready))

    def _end(self, job: SimulatedJob, now: float, cause: int) -> None:
        del self._running[job.number]
        values = {name: getattr(job, name) for name in SimulatedJob.__slots__}
        self.jobs.append(SimulatedJob(**values | {"end": now, "killed_by": cause}))
        self._job_of[job.hosts] = -1
        self._is_free[job.hosts] = self._is_up[job.hosts]
        for host in job.hosts.tolist():
            self._reboot(now, host)

    def _reboot(self, now: float, host: int) -> None:
        """Carry out a planned reboot, if one is pending and the host is free."""
        if (
            host in self._pending_reboots
            and self._is_free[host]
            and not self._fails_soon(now, host)
        ):
            self.reboot_downtimes.append(
                Downtime(now, now + BOOT_SECONDS, host, self._pending_reboots.pop(host))
            )
            self._is_up[host] = self._is_free[host] = False
            self._push(now + BOOT_SECONDS, _EventKind.UP, host)

    def _fails_soon(self, now: float, host: int) -> bool:
        return any(now <= down < now + BOOT_SECONDS for down in self._down_times.get(host, []))

    def _start_later(self, now: float, median_seconds: float) -> float:
        """Start queued jobs after a pause; return the time of that start."""
        wait = median_seconds * float(np.exp(0.5 * self._random.standard_normal()))
        self._push(now + wait, _EventKind.START, 0)
        return now + wait

    def _start(self, now: float) -> None:
        """Start queued jobs in order; a later job may start if it does not delay the first blocked job."""
        self._draw_queue()
        position, free_hosts = 0, self._free_count()
        until, extra_hosts = np.inf, 0  # start of the first blocked job, and hosts that it leaves
        while free_hosts > 0 and position < len(self._queue):
            queued = self._queue[position]
            is_longer = now + queued.seconds > until
            if queued.not_before <= now and queued.size <= (
                min(free_hosts, extra_hosts) if is_longer else free_hosts
            ):
                self._launch(now, self._queue.pop(position))
                self._draw_queue()
                free_hosts -= queued.size
                extra_hosts -= queued.size * is_longer
                continue
            if until == np.inf:
                until, extra_hosts = self._reservation(now, queued)
            position += 1

    def _free_count(self) -> int:
        return int(self._is_free.sum()) - self._idle_hosts

    def _reservation(self, now: float, queued: _QueuedJob) -> tuple[float, int]:
        """Return when enough hosts are free, as running jobs end, and how many further hosts are free then."""
        when, free_hosts = max(now, queued.not_before), self._free_count()
        for job in sorted(self._running.values(), key=lambda job: job.end):
            if free_hosts >= queued.size and job.end > when:
                break
            when, free_hosts = max(when, job.end), free_hosts + job.hosts.size
        return (when, free_hosts - queued.size) if free_hosts >= queued.size else (np.inf, 0)

    def _draw_queue(self) -> None:
        while len(self._queue) < QUEUED_JOBS:
            self._queue.append(self._draw_job())

    def _draw_job(self) -> _QueuedJob:
        shapes, random = self._shapes, self._random
        size = int(random.choice(self._sizes, p=self._weights))
        hours = shapes.duration_median_hours * np.exp(
            shapes.duration_sigma * random.standard_normal()
        )
        job = SimulatedJob(
            number=-1,
            hosts=np.zeros(0, np.int64),
            begin=0.0,
            end=0.0,
            killed_by=-1,
            period_seconds=float(random.uniform(*shapes.period_seconds)),
            communicate_ratio=float(random.uniform(*shapes.communicate_ratio)),
            tensor_ratio=shapes.tensor_ratio,
            power_ratio=float(random.uniform(*shapes.power_ratio)),
            is_memory_bound=bool(random.random() < shapes.memory_bound_ratio),
            checkpoint_every_seconds=60.0 * float(random.uniform(*shapes.checkpoint_minutes)),
            checkpoint_seconds=float(random.uniform(*shapes.checkpoint_seconds)),
            writes_alone=bool(random.random() < 0.5),
        )
        return _QueuedJob(job, size, HOUR * float(min(hours, shapes.duration_hours_max)), 0.0)

    def _launch(self, now: float, queued: _QueuedJob) -> None:
        """Start a job on free hosts, next to each other if possible."""
        number = len(self.jobs) + len(self._running)
        if number >= JOBS_MAX:
            raise ScenarioError(
                f"[jobs]: more than {JOBS_MAX:,} of them: expected a greater duration_median_hours or "
                "pause_median_minutes, or fewer hosts or days"
            )
        free = np.flatnonzero(self._is_free)
        first = int(self._random.integers(free.size - queued.size + 1))
        hosts = np.asarray(free[first : first + queued.size], np.int64)
        end = now + queued.seconds
        job = replace(queued.job, number=number, hosts=hosts, begin=now, end=end)
        self._running[number] = job
        self._job_of[hosts] = number
        self._is_free[hosts] = False
        self._push(end, _EventKind.END, number)


def _feasible_sizes(
    shapes: JobShapes, hosts: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the job sizes that fit *hosts*, and their probabilities; if none fits, one job of all hosts."""
    sizes, weights = np.array(shapes.hosts), np.array(shapes.weights)
    fit = (sizes <= hosts) & (weights > 0)
    if not fit.any():
        return np.array([hosts]), np.ones(1)
    return sizes[fit], weights[fit] / weights[fit].sum()
