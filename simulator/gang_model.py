"""The steps of gangs at one moment: the ranks that compute and the ranks that wait.

Arrays are (hosts, 8) or (hosts,).

need    = compute seconds of a rank's step at its own speed
delay   = loss of a tensor group (the job's ranks in one NVLink domain) to its slowest NVLink
period  = (greatest need + delay + exchange at the slowest port + gap) / (1 - time lost to hosts)
busy    = need / period: the culprit is the rank that does not wait
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from .faults import Flags, HostEffects
from .jobs import SimulatedJob
from .machine import GPUS
from .noise import Floats, Noise

Ints = npt.NDArray[np.int64]
GAP_RATIO = 0.012
#: The last quarter of a job's hosts, at least the last host, has its last pipeline stage; a single host has all stages.
LAST_STAGE = 0.75
#: Share of the time in which the writer of a checkpoint shows utilization.
WRITER_RESIDENCY = 0.03


@dataclass(slots=True)
class CheckpointClock:
    """Position of the hosts' jobs in their checkpoint cycles; arrays are (hosts,)."""

    writes: Flags  # the job writes a checkpoint now
    step_seconds: Floats  # seconds per step at the present pace; infinite at pace 0
    interval_seconds: Floats
    duration_seconds: Floats
    age_seconds: Floats  # the job's age


@dataclass(slots=True)
class TimeShares:
    """How each rank spends its time; the shares of a rank add up to 1 where a job runs."""

    at_work: Flags  # (hosts,): a job runs there
    compute: Floats
    exchange: Floats
    wait: Floats
    gap: Floats
    writes: Flags  # writes a checkpoint now
    pace: Floats  # (hosts,): steps over the steps of a healthy gang
    phase: Floats  # (hosts,): position of this moment in the step, the same for a gang
    port: Floats  # (hosts,): pace of the gang's slowest port, at which all its ports send
    clock: CheckpointClock


class GangModel:
    """The jobs on a set of hosts while no job begins or ends."""

    def __init__(
        self, jobs: list[SimulatedJob], slots: list[Ints], domains: Ints, seed: int
    ) -> None:
        """*slots*: per job, the indexes in the arrays of its hosts that are in the set. *domains*: (hosts,), the NVLink
        domain of each."""
        hosts = domains.size
        self._job: Ints = np.full(hosts, -1, np.int64)
        self._rank: Floats = np.zeros(hosts)  # position of the host within its job, 0 to 1
        self._is_last: Flags = np.zeros(hosts, bool)  # the host has the last stage
        for number, job_slots in enumerate(slots):
            self._job[job_slots] = number
            self._rank[job_slots] = np.arange(job_slots.size) / max(job_slots.size, 1)
            last = min(ceil(LAST_STAGE * job_slots.size), job_slots.size - 1)
            self._is_last[job_slots[max(last, 1) :]] = True  # a single host has all stages
        self.at_work: Flags = self._job >= 0
        self._job_or_zero = np.maximum(self._job, 0)
        numbers = np.array([job.number for job in jobs] or [-1], np.int64)
        #: The job number of each host, -1 for none.
        self.numbers: Ints = np.where(self.at_work, numbers[self._job_or_zero], -1)
        self._begin = _job_column(jobs, "begin")
        self._checkpoint_every = _job_column(jobs, "checkpoint_every_seconds")
        self._checkpoint_seconds = _job_column(jobs, "checkpoint_seconds")
        self._writes_alone = np.array([job.writes_alone for job in jobs] or [False], bool)
        self._communicate = _job_column(jobs, "communicate_ratio")
        self._tensor = _job_column(jobs, "tensor_ratio")
        pairs = np.stack([self._job, domains])
        groups = np.unique(pairs, axis=1, return_inverse=True)[1]
        self._group: Ints = np.asarray(groups, np.int64).ravel()  # the tensor group of each host
        self._period_seconds: Floats = _job_column(jobs, "period_seconds")[self._job_or_zero]
        self.power: Floats = _job_column(jobs, "power_ratio")[self._job_or_zero]
        bound = np.array([job.is_memory_bound for job in jobs] or [False], bool)
        self.is_memory_bound: Flags = bound[self._job_or_zero] & self.at_work
        self._phase = Noise(seed, _job_column(jobs, "number").astype(np.int64))
        self._progress: Floats = self._phase.uniform(0, 1)[self._job_or_zero][:, None]

    def shares(
        self, now: float, tick: int, speed: Floats, effects: HostEffects, noise: Noise
    ) -> TimeShares:
        """Return the activity of all ranks at *now*. *speed*: speed of each rank's work, 1.0 nominal."""
        exchange = self._communicate[self._job_or_zero]
        need = (1 - exchange - GAP_RATIO)[:, None] / speed * self._work_shares(effects, tick, noise)
        needed = np.asarray(need.max(axis=1), np.float64) + self._exchange_delays(effects)
        slowest = self._gang_max(needed, 0.0)
        slowness = self._gang_max(np.asarray(1 / effects.port.min(axis=1), np.float64), 1.0)
        exchange = exchange * slowness
        lost = 1 - (1 - effects.stall) * (1 - effects.starved)
        period = (slowest + exchange + GAP_RATIO) / (
            1 - np.minimum(self._gang_max(lost, 0.0), 0.95)
        )
        hangs = self._gang_max(effects.hangs.astype(np.float64), 0.0) > 0
        writing = self._is_writing(now) & ~hangs  # all ranks meet before a checkpoint
        runs = (self.at_work & ~hangs & ~writing)[:, None]
        compute = np.where(runs, need / period[:, None], 0.0)
        sends = np.where(runs, (exchange / period)[:, None], 0.0) * np.ones(GPUS)
        gap = np.where(runs, (lost + GAP_RATIO / period)[:, None], 0.0) * np.ones(GPUS)
        writes = self._writers() & (writing & self.at_work)[:, None]
        gap = np.where(writes, 1 - WRITER_RESIDENCY, gap)
        gap = np.where(effects.stopped & self.at_work[:, None], 1.0, gap)
        wait = np.where(self.at_work[:, None], np.maximum(1 - compute - sends - gap, 0.0), 0.0)
        pace = np.where(runs[:, 0], 1 / period, 0.0)
        phase = self._phase.uniform(tick, 1)[self._job_or_zero]
        clock = self._checkpoint_clock(now, writing, pace)
        return TimeShares(
            at_work=self.at_work,
            compute=compute,
            exchange=sends,
            wait=wait,
            gap=gap,
            writes=writes,
            pace=pace,
            phase=phase,
            port=1 / slowness,
            clock=clock,
        )

    def _checkpoint_clock(self, now: float, writing: Flags, pace: Floats) -> CheckpointClock:
        with np.errstate(divide="ignore"):
            step_seconds = self._period_seconds / pace
        return CheckpointClock(
            writing & self.at_work,
            step_seconds,
            self._checkpoint_every[self._job_or_zero],
            self._checkpoint_seconds[self._job_or_zero],
            now - self._begin[self._job_or_zero],
        )

    def _exchange_delays(self, effects: HostEffects) -> Floats:
        """Return the additional exchange time of each host's tensor group, in healthy steps.

        All NVLinks of a group are as fast as its slowest NVLink. No rank of the group computes meanwhile.
        """
        slowest = np.ones(self._group.max(initial=0) + 1)
        np.minimum.at(slowest, self._group, effects.nvlink.min(axis=1))
        return np.asarray(self._tensor[self._job_or_zero] * (1 / slowest[self._group] - 1))

    def over_span(self, shares: TimeShares, seconds: float) -> tuple[TimeShares, TimeShares]:
        """Advance by *seconds* since the previous call; return the shares at the end, and the shares within the span.

        A step is gap, work, waiting, exchange; a span shorter than a step covers only some of these phases.
        """
        steps = (shares.pace * seconds / self._period_seconds)[:, None]
        first, last = self._progress, self._progress + steps
        self._progress = last % 1.0
        moment = replace(shares, phase=self._progress[:, 0])

        def part(begin: Floats, length: Floats) -> Floats:
            done = _elapsed_share(last, begin, length) - _elapsed_share(first, begin, length)
            return np.where(steps > 0, done / np.maximum(steps, 1e-9), length)

        compute = part(shares.gap, shares.compute)
        exchange = part(1 - shares.exchange, shares.exchange)
        gap = part(np.zeros_like(shares.gap), shares.gap)
        remaining = np.maximum(1 - compute - exchange - gap, 0.0)
        wait = np.where(shares.at_work[:, None], remaining, 0.0)
        return moment, replace(moment, compute=compute, exchange=exchange, gap=gap, wait=wait)

    def _work_shares(self, effects: HostEffects, tick: int, noise: Noise) -> Floats:
        """Return each rank's share of the work: even, except for the imbalance of the workload itself."""
        draw = noise.uniform(tick, 2)
        # One rank of the gang has the longest sequence of this step; another rank has it in the next step.
        longest = draw == self._gang_max(draw.max(axis=1), 0.0)[:, None]
        uneven = effects.imbalance[:, None] * np.where(longest, 1.0, 0.5 * draw**2)
        return np.asarray((1 + uneven) * (1 + effects.stage_imbalance * self._is_last)[:, None])

    def _gang_max(self, values: Floats, minimum: float) -> Floats:
        """Return for each host the maximum of *values* over the hosts of its gang, or *minimum*."""
        highest = np.full(self._begin.size, minimum)
        np.maximum.at(highest, self._job[self.at_work], values[self.at_work])
        return np.asarray(highest[self._job_or_zero])

    def _is_writing(self, now: float) -> Flags:
        age = now - self._begin
        writing = (age >= self._checkpoint_every) & (
            age % self._checkpoint_every < self._checkpoint_seconds
        )
        return np.asarray(writing[self._job_or_zero] & self.at_work)

    def _writers(self) -> Flags:
        first = np.zeros((self._rank.size, GPUS), bool)
        first[:, 0] = ~self._writes_alone[self._job_or_zero] | (self._rank == 0)
        return first


def _elapsed_share(when: Floats, begin: Floats, length: Floats) -> Floats:
    """Return the time that each part of a step has taken up to *when*, in steps."""
    whole = np.floor(when)
    return np.asarray(whole * length + np.clip(when - whole - begin, 0.0, length))


def _job_column(jobs: list[SimulatedJob], name: str) -> Floats:
    return np.array([float(getattr(job, name)) for job in jobs] or [1.0])
