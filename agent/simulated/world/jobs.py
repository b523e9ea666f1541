"""Jobs over months: who ran what where, until it was done or a host took it down. Event by event."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from .incidents import HOUR, Draws
from .lives import BOOT_SECONDS, Away, Lives
from .settings import SettingsError

#: Share of the hosts that is left idle: a cluster is never quite full.
IDLE_SHARE = 0.03
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


class _What(IntEnum):
    """What happens; at one moment in this order."""

    DOWN = 0
    KILL = 1
    END = 2
    UP = 3
    REBOOT = 4
    START = 5


class Cluster:
    """The free hosts and the running jobs; `run` goes through all that happens."""

    def __init__(
        self, draws: Draws, lives: Lives, reboots: Sequence[tuple[float, int, int]]
    ) -> None:
        """*reboots*: (when, host, cause) of those planned: done once no job is on the host."""
        self._draws, self._shapes = draws, draws.jobs
        self._random = draws.random("jobs")
        weights = np.array(self._shapes.weights)
        self._sizes, self._weights = np.array(self._shapes.hosts), weights / weights.sum()
        hosts = draws.hosts
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
        job = self._running.get(int(self._job_of[host]))
        if job is not None:
            self._end(job, now, cause)
            self._start_later(now, 60.0 * self._shapes.restart_minutes)

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

    def _start_later(self, now: float, median_seconds: float) -> None:
        wait = median_seconds * float(np.exp(0.5 * self._random.standard_normal()))
        self._push(now + wait, _What.START, 0)

    def _start(self, now: float) -> None:
        """Give the free hosts to jobs, next to each other where they are."""
        free = np.flatnonzero(self._free)
        keep = round(IDLE_SHARE * self._draws.hosts)
        while free.size > keep:
            size = int(self._random.choice(self._sizes, p=self._weights))
            size = min(size, free.size - keep)
            first = int(self._random.integers(free.size - size + 1))
            chosen = free[first : first + size]
            free = np.delete(free, np.s_[first : first + size])
            self._begin(now, np.asarray(chosen, np.int64))

    def _begin(self, now: float, hosts: npt.NDArray[np.int64]) -> None:
        shapes, random = self._shapes, self._random
        hours = shapes.duration_median_hours * np.exp(
            shapes.duration_sigma * random.standard_normal()
        )
        number = len(self.jobs) + len(self._running)
        if number >= JOBS_MAX:
            raise SettingsError(
                f"[jobs]: more than {JOBS_MAX:,} of them: expected a greater duration_median_hours or "
                "pause_median_minutes, or fewer hosts or days"
            )
        job = Job(
            number=number,
            hosts=hosts,
            begin=now,
            end=now + HOUR * float(min(hours, shapes.duration_hours_max)),
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
        self._running[number] = job
        self._job_of[hosts] = number
        self._free[hosts] = False
        self._push(job.end, _What.END, number)
