"""How the gangs step at one moment: who computes, who waits for whom. Arrays are (hosts, 8) or (hosts,).

need    = compute seconds of a rank's step at its own speed
delay   = what its tensor group, the job's ranks in one NVLink domain, loses to the slowest of its NVLinks
period  = (the greatest need + delay + exchange at the slowest port + gap) / (1 - time lost to hosts)
busy    = need / period: the culprit is the rank that does not wait
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from ..parts import GPUS
from .channels import Channels, Flags
from .jobs import Job
from .noise import Floats, Noise

Ints = npt.NDArray[np.int64]

GAP_RATIO = 0.012
#: The last quarter of a job's hosts holds its last pipeline stage; of fewer than four, the last one does.
LAST_STAGE = 0.75
#: What a writer of a checkpoint shows of utilisation.
WRITER_RESIDENCY = 0.03


@dataclass(slots=True)
class Shares:
    """What each rank does with its time; the shares of one rank add up to 1 where a job runs."""

    at_work: Flags  # (hosts,): a job runs there
    compute: Floats
    exchange: Floats
    wait: Floats
    gap: Floats
    writes: Flags  # a checkpoint, now
    pace: Floats  # (hosts,): steps over those of a healthy gang
    phase: Floats  # (hosts,): where in the step this moment is, the same for a gang
    port: Floats  # (hosts,): the pace of the gang's slowest port, at which all of them send


class Gangs:
    """The jobs on a set of hosts while none begins or ends."""

    def __init__(self, jobs: list[Job], slots: list[Ints], domains: Ints, seed: int) -> None:
        """*slots*: of each job, its hosts' places in the arrays, of those that are there. *domains*: (hosts,), the
        NVLink domain of each."""
        hosts = domains.size
        self._job: Ints = np.full(hosts, -1, np.int64)
        self._rank: Floats = np.zeros(hosts)  # of the host within its job, 0 to 1
        self._is_last: Flags = np.zeros(hosts, bool)  # it holds the last stage
        for number, own in enumerate(slots):
            self._job[own] = number
            self._rank[own] = np.arange(own.size) / max(own.size, 1)
            last = min(ceil(LAST_STAGE * own.size), own.size - 1)
            self._is_last[own[max(last, 1) :]] = True  # a host alone has all stages
        self.at_work: Flags = self._job >= 0
        self._safe = np.maximum(self._job, 0)
        numbers = np.array([job.number for job in jobs] or [-1], np.int64)
        #: The number of each host's job, -1 for none.
        self.numbers: Ints = np.where(self.at_work, numbers[self._safe], -1)
        self._begin = _of(jobs, "begin")
        self._every = _of(jobs, "checkpoint_every_seconds")
        self._writing = _of(jobs, "checkpoint_seconds")
        self._alone = np.array([job.writes_alone for job in jobs] or [False], bool)
        self._communicate = _of(jobs, "communicate_ratio")
        self._tensor = _of(jobs, "tensor_ratio")
        pairs = np.stack([self._job, domains])
        groups = np.unique(pairs, axis=1, return_inverse=True)[1]
        self._group: Ints = np.asarray(groups, np.int64).ravel()  # the tensor group of each host
        self._period_seconds: Floats = _of(jobs, "period_seconds")[self._safe]
        self.power: Floats = _of(jobs, "power_ratio")[self._safe]
        bound = np.array([job.is_memory_bound for job in jobs] or [False], bool)
        self.is_memory_bound: Flags = bound[self._safe] & self.at_work
        self._phase = Noise(seed, _of(jobs, "number").astype(np.int64))
        self._progress: Floats = self._phase.uniform(0, 1)[self._safe][:, None]

    def shares(
        self, now: float, tick: int, speed: Floats, channels: Channels, noise: Noise
    ) -> Shares:
        """Return what everybody does at *now*. *speed*: of each rank's work, 1.0 nominal."""
        exchange = self._communicate[self._safe]
        need = (1 - exchange - GAP_RATIO)[:, None] / speed * self._uneven(channels, tick, noise)
        needed = np.asarray(need.max(axis=1), np.float64) + self._delays(channels)
        slowest = self._most(needed, 0.0)
        slowness = self._most(np.asarray(1 / channels.port.min(axis=1), np.float64), 1.0)
        exchange = exchange * slowness
        lost = 1 - (1 - channels.stall) * (1 - channels.starved)
        period = (slowest + exchange + GAP_RATIO) / (1 - np.minimum(self._most(lost, 0.0), 0.95))
        hangs = self._most(channels.hangs.astype(np.float64), 0.0) > 0
        writing = self._is_writing(now)
        runs = (self.at_work & ~hangs & ~writing)[:, None]
        compute = np.where(runs, need / period[:, None], 0.0)
        sends = np.where(runs, (exchange / period)[:, None], 0.0) * np.ones(GPUS)
        gap = np.where(runs, (lost + GAP_RATIO / period)[:, None], 0.0) * np.ones(GPUS)
        writes = self._writers() & (writing & self.at_work)[:, None]
        gap = np.where(writes, 1 - WRITER_RESIDENCY, gap)
        wait = np.where(self.at_work[:, None], np.maximum(1 - compute - sends - gap, 0.0), 0.0)
        pace = np.where(runs[:, 0], 1 / period, 0.0)
        phase = self._phase.uniform(tick, 1)[self._safe]
        return Shares(self.at_work, compute, sends, wait, gap, writes, pace, phase, 1 / slowness)

    def _delays(self, channels: Channels) -> Floats:
        """Return how much longer each host's tensor group exchanges, in healthy steps: its NVLinks are as fast as the
        slowest of them. Nobody computes meanwhile."""
        slowest = np.ones(self._group.max(initial=0) + 1)
        np.minimum.at(slowest, self._group, channels.nvlink.min(axis=1))
        return np.asarray(self._tensor[self._safe] * (1 / slowest[self._group] - 1))

    def of_span(self, shares: Shares, seconds: float) -> tuple[Shares, Shares]:
        """Go on by *seconds* from the call before; return the shares at the end of them, and those within them.

        A step is gap, work, waiting, exchange; a span shorter than a step holds some of it, and the next one others.
        """
        steps = (shares.pace * seconds / self._period_seconds)[:, None]
        first, last = self._progress, self._progress + steps
        self._progress = last % 1.0
        moment = replace(shares, phase=self._progress[:, 0])

        def part(begin: Floats, length: Floats) -> Floats:
            done = _passed(last, begin, length) - _passed(first, begin, length)
            return np.where(steps > 0, done / np.maximum(steps, 1e-9), length)

        compute = part(shares.gap, shares.compute)
        exchange = part(1 - shares.exchange, shares.exchange)
        gap = part(np.zeros_like(shares.gap), shares.gap)
        left = np.maximum(1 - compute - exchange - gap, 0.0)
        wait = np.where(shares.at_work[:, None], left, 0.0)
        return moment, replace(moment, compute=compute, exchange=exchange, gap=gap, wait=wait)

    def _uneven(self, channels: Channels, tick: int, noise: Noise) -> Floats:
        """Return each rank's share of the work: even, but for what the workload itself does."""
        draw = noise.uniform(tick, 2)
        # One rank of the gang has the longest sequence of this step: another one in the next.
        longest = draw == self._most(draw.max(axis=1), 0.0)[:, None]
        uneven = channels.imbalance[:, None] * np.where(longest, 1.0, 0.5 * draw**2)
        return np.asarray((1 + uneven) * (1 + channels.stage * self._is_last)[:, None])

    def _most(self, values: Floats, least: float) -> Floats:
        """Return for each host the most of *values* over the hosts of its gang."""
        most = np.full(self._begin.size, least)
        np.maximum.at(most, self._job[self.at_work], values[self.at_work])
        return np.asarray(most[self._safe])

    def _is_writing(self, now: float) -> Flags:
        age = now - self._begin
        writing = (age >= self._every) & (age % self._every < self._writing)
        return np.asarray(writing[self._safe] & self.at_work)

    def _writers(self) -> Flags:
        first = np.zeros((self._rank.size, GPUS), bool)
        first[:, 0] = ~self._alone[self._safe] | (self._rank == 0)
        return first


def _passed(when: Floats, begin: Floats, length: Floats) -> Floats:
    """Return how much of a part of each step has passed at *when*, in steps: the integral of being in it."""
    whole = np.floor(when)
    return np.asarray(whole * length + np.clip(when - whole - begin, 0.0, length))


def _of(jobs: list[Job], name: str) -> Floats:
    return np.array([float(getattr(job, name)) for job in jobs] or [1.0])
