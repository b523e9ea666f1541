"""A set of hosts over a time span: their state from step to step, and the state of hosts that share their jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .faults import EFFECTS, ActiveFaults, Flags, HostEffects, Ints
from .gang_model import GangModel
from .incidents import Rows
from .jobs import SimulatedJob
from .noise import Floats, Noise
from .physics import FleetHardware, GaugeState, Physics
from .schedule import WorldSchedule

#: Ticks of the noise: the noise of a reading depends on the second of the reading.
TICKS_PER_SECOND = 1


@dataclass(slots=True)
class StepState:
    """The complete state at one step. Arrays are (slots,) or (slots, 8)."""

    seconds: float
    step_seconds: float
    gauges: GaugeState
    silent: Flags  # no data from the host: away, dark, or a gap
    booted: Flags  # booted since the previous step
    jobs: Ints  # (slots,): the number of the job that runs there, -1 for none
    neighbor_gpus: Ints  # (slots,): the GPU that another job uses there, too; -1: none
    due_incidents: Rows  # incidents whose onset ended since the previous step


class SimulationWindow:
    """Steps through time; the readings of a step depend only on seed, hosts, begin and the steps."""

    def __init__(
        self,
        schedule: WorldSchedule,
        hardware: FleetHardware,
        seed: int,
        hosts: Ints,
        begin: float,
        end: float,
        by_span: bool = False,
    ) -> None:
        """*hosts*: hosts to read, by index; they come first in all arrays. *by_span*: means cover the time since the
        previous step, as for steps of one second; else they cover whole steps of the jobs."""
        self._schedule, self._seed, self._by_span = schedule, seed, by_span
        self.begin, self.end = begin, end
        self._jobs = [j for j in _jobs_of(schedule, hosts) if j.begin < end and j.end > begin]
        others = np.concatenate([hosts, *(job.hosts for job in self._jobs)])
        _, first = np.unique(others, return_index=True)
        self.hosts: Ints = others[
            np.sort(first)
        ]  # the requested hosts, then hosts that share their jobs
        self._slot = np.full(schedule.hosts, -1)
        self._slot[self.hosts] = np.arange(self.hosts.size)
        self._select_rows(begin, end)
        self.physics = Physics(hardware, self.hosts)
        self.noise = Noise(seed, self.hosts[:, None] * 8 + np.arange(8))
        self._seconds = begin
        self._gangs: GangModel | None = None
        edges = {edge for job in self._jobs for edge in (job.begin, job.end)}
        self._edges: Floats = np.array(sorted(edges))
        self._edge_index = -1

    def _select_rows(self, begin: float, end: float) -> None:
        rows = self._schedule.rows
        selected = (self._slot[rows["host"]] >= 0) & (rows["begin"] < end) & (rows["end"] > begin)
        self._rows: Rows = rows[selected]
        self._row_slot: Ints = self._slot[self._rows["host"]]
        self._row_due: Floats = self._rows["begin"] + self._rows["onset"]
        self._reported: Flags = self._row_due < begin
        downtimes = [
            (self._slot[a.host], a.begin, a.end)
            for a in self._schedule.downtimes
            if self._slot[a.host] >= 0 and a.begin < end and a.end > begin - 1.0
        ]
        self._downtimes: npt.NDArray[np.float64] = np.array(downtimes).reshape(-1, 3)

    def step(self, seconds: float) -> StepState:
        """Advance to *seconds* of the world, which must be later than before, and return the state there."""
        elapsed = max(seconds - self._seconds, 0.0)
        slot, begins, ends = self._downtimes.T
        booted = np.zeros(self.hosts.size, bool)
        booted[slot[(ends > self._seconds) & (ends <= seconds)].astype(int)] = True
        active = (self._rows["begin"] <= seconds) & (self._rows["end"] > self._seconds)
        # An incident that ended since the previous step counts once more, except on a host that booted: it was
        # repaired.
        active &= ~booted[self._row_slot] | (self._rows["end"] > seconds)
        due = seconds >= self._row_due
        new = active & due & ~self._reported
        effects = self._effects(active, due, new, seconds)
        gangs, tick = self._gangs_at(seconds), int(seconds * TICKS_PER_SECOND)
        work, clock = self.physics.speeds(gangs, effects)
        shares = gangs.shares(seconds, tick, work, effects, self.noise)
        span = shares
        if self._by_span:
            shares, span = gangs.over_span(shares, elapsed)
        gauges = self.physics.gauges(gangs, shares, span, effects, clock, self.noise, tick)
        self.physics.counters.clear(booted)
        self.physics.advance(gauges, elapsed, self.noise, tick)
        silent = effects.silent.copy()
        silent[slot[(begins <= seconds) & (seconds < ends)].astype(int)] = True
        self._reported |= new
        self._seconds = seconds
        return StepState(
            seconds=seconds,
            step_seconds=elapsed,
            gauges=gauges,
            silent=silent,
            booted=booted,
            jobs=gangs.numbers,
            neighbor_gpus=effects.neighbor_gpu,
            due_incidents=self._rows[new],
        )

    def _effects(self, active: Flags, due: Flags, new: Flags, seconds: float) -> HostEffects:
        effects = HostEffects(self.hosts.size)
        rows, age = self._rows, seconds - self._rows["begin"]
        strength = np.clip(age / np.maximum(rows["onset"], 1e-9), 0.0, 1.0)
        for number in np.unique(rows["cls"][active]).tolist():
            members = np.flatnonzero(active & (rows["cls"] == number))
            each = self._schedule.classes[number]
            EFFECTS[each.name](
                effects,
                ActiveFaults(
                    fault_class=each,
                    slot=self._row_slot[members],
                    gpu=rows["part"][members].astype(np.int64),
                    strength=strength[members],
                    amount=rows["amount"][members],
                    variant=rows["variant"][members],
                    seconds=age[members],
                    is_due=due[members],
                    is_over=rows["end"][members] <= seconds,
                    is_new=new[members],
                ),
            )
        return effects

    def _gangs_at(self, seconds: float) -> GangModel:
        edge_index = int(np.searchsorted(self._edges, seconds, side="right"))
        if self._gangs is None or edge_index != self._edge_index:
            running = [job for job in self._jobs if job.begin <= seconds < job.end]
            slots = [self._slot[job.hosts] for job in running]
            domains = self._schedule.topology.nvlink[self.hosts]
            self._gangs = GangModel(running, slots, domains, self._seed)
            self._edge_index = edge_index
        return self._gangs


def _jobs_of(schedule: WorldSchedule, hosts: Ints) -> list[SimulatedJob]:
    numbers = sorted({n for host in hosts.tolist() for n in schedule.jobs_by_host.get(host, [])})
    return [schedule.jobs[number] for number in numbers]
