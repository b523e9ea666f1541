"""Jobs over months: who waited for how many hosts, and ran what where until it was done or a host took it down."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from .incidents import BOOT_SECONDS, HOUR, Away, Draws, Lives
from .scenario import JobShapes, SettingsError

#: Assumed: share of the hosts, in whole hosts, that is left idle: a cluster is never quite full.
IDLE_SHARE = 0.03
#: Assumed: so many jobs wait at any time. Who starts is followed by another draw, so each that is drawn runs.
QUEUED_JOBS = 64
#: More jobs than this are a slip in a file.
JOBS_MAX = 500_000


@dataclass(frozen=True, slots=True)
class Job:
    """One gang: its hosts (sorted indexes), when, and how it steps. Seconds and ratios."""

    number: int
    hosts: npt.NDArray[np.int64]
    begin: float
    end: float
    killed_by: int  # the cause; -1: it was done
    period_seconds: float
    communicate_ratio: float
    tensor_ratio: float  # of a step, exchanged within its tensor groups, over NVLink
    power_ratio: float
    is_memory_bound: bool
    checkpoint_every_seconds: float
    checkpoint_seconds: float
    writes_alone: bool  # rank 0 for all, or the first GPU of each host its own part


@dataclass(slots=True)
class _Waiting:
    """A job that waits for its hosts; of *job* all but its number, hosts and times is drawn."""

    job: Job
    size: int
    seconds: float  # that it runs for, if nothing ends it
    ready: float  # not before


class _What(IntEnum):
    """What happens; at one moment in this order."""

    DOWN = 0
    KILL = 1
    END = 2
    UP = 3
    REBOOT = 4
    START = 5


class Cluster:
    """The free hosts, the running jobs and those that wait; `run` goes through all that happens."""

    def __init__(
        self, draws: Draws, lives: Lives, reboots: Sequence[tuple[float, int, int]]
    ) -> None:
        """*reboots*: (when, host, cause) of those planned: done once no job is on the host."""
        self._draws, self._shapes = draws, draws.jobs
        self._random = draws.random("jobs")
        hosts = draws.hosts
        self._keep = int(IDLE_SHARE * hosts)
        self._sizes, self._weights = _fitting(self._shapes, hosts - self._keep)
        self._queue: list[_Waiting] = []
        self._there = np.ones(hosts, bool)
        self._free = np.ones(hosts, bool)
        self._job_of = np.full(hosts, -1)
        self._wanted: dict[int, int] = {}  # host -> cause of the reboot that it waits for
        self._running: dict[int, Job] = {}
        self.jobs: list[Job] = []
        self.rebooted: list[Away] = []
        self._heap: list[tuple[float, int, int, int, int]] = []
        self._order = 0
        self._downs: dict[int, list[float]] = {}
        for away in lives.away:
            self._push(away.begin, _What.DOWN, away.host, away.cause)
            self._downs.setdefault(away.host, []).append(away.begin)
            self._push(away.end, _What.UP, away.host)
        for when, host, cause in lives.kills:
            self._push(when, _What.KILL, host, cause)
        for when, host, cause in reboots:
            self._push(when, _What.REBOOT, host, cause)
        self._push(0.0, _What.START, 0)

    def _push(self, when: float, what: _What, which: int, cause: int = -1) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when, int(what), self._order, which, cause))

    def run(self) -> None:
        """Let all of it happen."""
        while self._heap and self._heap[0][0] < self._draws.seconds:
            now, what, _, which, cause = heapq.heappop(self._heap)
            self._happen(now, _What(what), which, cause)
        for job in list(self._running.values()):
            self._end(job, self._draws.seconds, -1)
        self.jobs.sort(key=lambda job: job.number)

    def _happen(self, now: float, what: _What, which: int, cause: int) -> None:
        if what is _What.START:
            self._start(now)
        elif what is _What.END:
            if which in self._running:
                self._end(self._running[which], now, -1)
                self._start_later(now, 60.0 * self._shapes.pause_median_minutes)
        elif what is _What.REBOOT:
            self._wanted[which] = cause
            job = self._running.get(int(self._job_of[which]))
            if job is not None and self._draws.scenario.parade_seconds:
                self._end(job, now, -1)  # a parade cannot wait for it
                self._start_later(now, 60.0 * self._shapes.pause_median_minutes)
            self._reboot(now, which)
        elif what is _What.UP:
            self._there[which] = self._free[which] = True
            self._start_later(now, 60.0)
        else:
            self._kill(now, which, cause)
            if what is _What.DOWN:
                self._there[which] = self._free[which] = False
                self._wanted.pop(which, None)

    def _kill(self, now: float, host: int, cause: int) -> None:
        """End the job on a host; it wants as many hosts again, before all others, for the time that it had left."""
        job = self._running.get(int(self._job_of[host]))
        if job is not None:
            self._end(job, now, cause)
            ready = self._start_later(now, 60.0 * self._shapes.restart_minutes)
            self._queue.insert(0, _Waiting(job, job.hosts.size, job.end - now, ready))

    def _end(self, job: Job, now: float, cause: int) -> None:
        del self._running[job.number]
        values = {name: getattr(job, name) for name in Job.__slots__}
        self.jobs.append(Job(**values | {"end": now, "killed_by": cause}))
        self._job_of[job.hosts] = -1
        self._free[job.hosts] = self._there[job.hosts]
        for host in job.hosts.tolist():
            self._reboot(now, host)

    def _reboot(self, now: float, host: int) -> None:
        """Carry out a planned reboot, if one is wanted and the host is free."""
        if host in self._wanted and self._free[host] and not self._fails_soon(now, host):
            self.rebooted.append(Away(now, now + BOOT_SECONDS, host, self._wanted.pop(host)))
            self._there[host] = self._free[host] = False
            self._push(now + BOOT_SECONDS, _What.UP, host)

    def _fails_soon(self, now: float, host: int) -> bool:
        return any(now <= down < now + BOOT_SECONDS for down in self._downs.get(host, []))

    def _start_later(self, now: float, median_seconds: float) -> float:
        """Let who waits start when a pause is over; return when that is."""
        wait = median_seconds * float(np.exp(0.5 * self._random.standard_normal()))
        self._push(now + wait, _What.START, 0)
        return now + wait

    def _start(self, now: float) -> None:
        """Start who waits, first come first served; behind the first who must wait longer, whoever does not delay it."""
        self._draw_queue()
        at, room = 0, self._room()
        until, spare = np.inf, 0  # when the one that is held starts, and the hosts it leaves
        while room > 0 and at < len(self._queue):
            waiting = self._queue[at]
            is_longer = now + waiting.seconds > until
            if waiting.ready <= now and waiting.size <= (min(room, spare) if is_longer else room):
                self._begin(now, self._queue.pop(at))
                self._draw_queue()
                room -= waiting.size
                spare -= waiting.size * is_longer
                continue
            if until == np.inf:
                until, spare = self._reserved(now, waiting)
            at += 1

    def _room(self) -> int:
        return int(self._free.sum()) - self._keep

    def _reserved(self, now: float, waiting: _Waiting) -> tuple[float, int]:
        """Return when its hosts will be free, as jobs end that run now, and how many others will be then."""
        when, room = max(now, waiting.ready), self._room()
        for job in sorted(self._running.values(), key=lambda job: job.end):
            if room >= waiting.size and job.end > when:
                break
            when, room = max(when, job.end), room + job.hosts.size
        return (when, room - waiting.size) if room >= waiting.size else (np.inf, 0)

    def _draw_queue(self) -> None:
        while len(self._queue) < QUEUED_JOBS:
            self._queue.append(self._drawn())

    def _drawn(self) -> _Waiting:
        shapes, random = self._shapes, self._random
        size = int(random.choice(self._sizes, p=self._weights))
        hours = shapes.duration_median_hours * np.exp(
            shapes.duration_sigma * random.standard_normal()
        )
        job = Job(
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
        return _Waiting(job, size, HOUR * float(min(hours, shapes.duration_hours_max)), 0.0)

    def _begin(self, now: float, waiting: _Waiting) -> None:
        """Give free hosts to a job, next to each other where they are."""
        number = len(self.jobs) + len(self._running)
        if number >= JOBS_MAX:
            raise SettingsError(
                f"[jobs]: more than {JOBS_MAX:,} of them: expected a greater duration_median_hours or "
                "pause_median_minutes, or fewer hosts or days"
            )
        free = np.flatnonzero(self._free)
        first = int(self._random.integers(free.size - waiting.size + 1))
        hosts = np.asarray(free[first : first + waiting.size], np.int64)
        end = now + waiting.seconds
        job = replace(waiting.job, number=number, hosts=hosts, begin=now, end=end)
        self._running[number] = job
        self._job_of[hosts] = number
        self._free[hosts] = False
        self._push(end, _What.END, number)


def _fitting(
    shapes: JobShapes, hosts: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the sizes of jobs that *hosts* have room for, and how often each is drawn; else one job of them all."""
    sizes, weights = np.array(shapes.hosts), np.array(shapes.weights)
    fit = (sizes <= hosts) & (weights > 0)
    if not fit.any():
        return np.array([hosts]), np.ones(1)
    return sizes[fit], weights[fit] / weights[fit].sum()
