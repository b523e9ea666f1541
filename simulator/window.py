"""A set of hosts through a span of time: their state from step to step, and that of who shares their jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .faults import EFFECTS, Channels, Flags, Ints, Struck
from .incidents import Rows
from .jobs import Job
from .noise import Floats, Noise
from .physics import Gangs, Hardware, Now, Physics
from .schedule import Schedule

#: Ticks of the noise: a reading is a function of the second it is of.
TICKS_PER_SECOND = 1


@dataclass(slots=True)
class Moment:
    """All that is so at one step. Arrays are (slots,) or (slots, 8)."""

    seconds: float
    step_seconds: float
    now: Now
    silent: Flags  # nothing is heard of the host: away, dark, or a gap
    booted: Flags  # since the step before
    jobs: Ints  # (slots,): the number of the job that runs there, -1 for none
    due: Rows  # incidents whose onset is over since the step before


class Window:
    """Steps through time; what is read at a step is a function of seed, hosts, begin and the steps."""

    def __init__(
        self,
        schedule: Schedule,
        hardware: Hardware,
        seed: int,
        hosts: Ints,
        begin: float,
        end: float,
        by_span: bool = False,
    ) -> None:
        """*hosts*: whose readings are wanted, by index; they come first in all arrays. *by_span*: means are of the
        time since the step before, as where that is a second; else of whole steps of the jobs."""
        self._schedule, self._seed, self._by_span = schedule, seed, by_span
        self.begin, self.end = begin, end
        self._jobs = [j for j in _jobs_of(schedule, hosts) if j.begin < end and j.end > begin]
        others = np.concatenate([hosts, *(job.hosts for job in self._jobs)])
        _, first = np.unique(others, return_index=True)
        self.hosts: Ints = others[np.sort(first)]  # as asked for, then who shares their jobs
        self._slot = np.full(schedule.hosts, -1)
        self._slot[self.hosts] = np.arange(self.hosts.size)
        self._take_rows(begin, end)
        self.physics = Physics(hardware, self.hosts)
        self.noise = Noise(seed, self.hosts[:, None] * 8 + np.arange(8))
        self._seconds = begin
        self._gangs: Gangs | None = None
        edges = {edge for job in self._jobs for edge in (job.begin, job.end)}
        self._edges: Floats = np.array(sorted(edges))
        self._regime = -1

    def _take_rows(self, begin: float, end: float) -> None:
        rows = self._schedule.rows
        mine = (self._slot[rows["host"]] >= 0) & (rows["begin"] < end) & (rows["end"] > begin)
        self._rows: Rows = rows[mine]
        self._row_slot: Ints = self._slot[self._rows["host"]]
        self._row_due: Floats = self._rows["begin"] + self._rows["onset"]
        self._told: Flags = self._row_due < begin
        away = [
            (self._slot[a.host], a.begin, a.end)
            for a in self._schedule.away
            if self._slot[a.host] >= 0 and a.begin < end and a.end > begin - 1.0
        ]
        self._away: npt.NDArray[np.float64] = np.array(away).reshape(-1, 3)

    def step(self, seconds: float) -> Moment:
        """Go on to *seconds* of the world, later than before, and say how it is then."""
        elapsed = max(seconds - self._seconds, 0.0)
        slot, begins, ends = self._away.T
        booted = np.zeros(self.hosts.size, bool)
        booted[slot[(ends > self._seconds) & (ends <= seconds)].astype(int)] = True
        stands = (self._rows["begin"] <= seconds) & (self._rows["end"] > self._seconds)
        # What ended since the step before is told once more, but not by a host that is there again: it was repaired.
        stands &= ~booted[self._row_slot] | (self._rows["end"] > seconds)
        due = seconds >= self._row_due
        new = stands & due & ~self._told
        channels = self._channels(stands, due, new, seconds)
        gangs, tick = self._gangs_at(seconds), int(seconds * TICKS_PER_SECOND)
        work, clock = self.physics.speeds(gangs, channels)
        shares = gangs.shares(seconds, tick, work, channels, self.noise)
        span = shares
        if self._by_span:
            shares, span = gangs.of_span(shares, elapsed)
        now = self.physics.now(gangs, shares, span, channels, clock, self.noise, tick)
        self.physics.counters.clear(booted)
        self.physics.advance(now, elapsed, self.noise, tick)
        silent = channels.silent.copy()
        silent[slot[(begins <= seconds) & (seconds < ends)].astype(int)] = True
        self._told |= new
        self._seconds = seconds
        return Moment(seconds, elapsed, now, silent, booted, gangs.numbers, self._rows[new])

    def _channels(self, stands: Flags, due: Flags, new: Flags, seconds: float) -> Channels:
        channels = Channels(self.hosts.size)
        rows, age = self._rows, seconds - self._rows["begin"]
        strength = np.clip(age / np.maximum(rows["onset"], 1e-9), 0.0, 1.0)
        for number in np.unique(rows["cls"][stands]).tolist():
            mine = np.flatnonzero(stands & (rows["cls"] == number))
            each = self._schedule.classes[number]
            EFFECTS[each.name](
                channels,
                Struck(
                    each,
                    self._row_slot[mine],
                    rows["part"][mine].astype(np.int64),
                    strength[mine],
                    rows["amount"][mine],
                    rows["variant"][mine],
                    age[mine],
                    due[mine],
                    rows["end"][mine] <= seconds,
                    new[mine],
                ),
            )
        return channels

    def _gangs_at(self, seconds: float) -> Gangs:
        regime = int(np.searchsorted(self._edges, seconds, side="right"))
        if self._gangs is None or regime != self._regime:
            running = [job for job in self._jobs if job.begin <= seconds < job.end]
            slots = [self._slot[job.hosts] for job in running]
            domains = self._schedule.places.nvlink[self.hosts]
            self._gangs, self._regime = Gangs(running, slots, domains, self._seed), regime
        return self._gangs


def _jobs_of(schedule: Schedule, hosts: Ints) -> list[Job]:
    numbers = sorted({n for host in hosts.tolist() for n in schedule.stints.get(host, [])})
    return [schedule.jobs[number] for number in numbers]
