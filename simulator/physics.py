"""Power, clock, heat and counters of a set of hosts, advanced in steps of any length."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
import numpy.typing as npt

from . import machine
from .faults import Flags, HostEffects
from .incidents import named_random
from .jobs import SimulatedJob
from .machine import (
    BRAKED_CELSIUS,
    CLOCK_HERTZ,
    CLOCK_IDLE_HERTZ,
    CLOCK_STEP_HERTZ,
    GPUS,
    PHASE_ACTIVITY,
    PHASE_BANDWIDTH,
    PHASE_SM_ACTIVE,
    PHASE_TENSOR_ACTIVE,
    POWER_EXPONENT,
    POWER_NOISE,
    REASON_GPU_IDLE,
    REASON_HW_SLOWDOWN,
    REASON_POWER_BRAKE,
    REASON_SW_POWER_CAP,
    REASON_SW_THERMAL,
    WAIT_ACTIVITY,
    WAIT_SM_ACTIVE,
    Phase,
    SimulatedMachine,
    build_machines,
)
from .noise import Floats, Noise
from .scenario import PartVariation
from .tables import EXCHANGE_SHARE, OVERLAPPED_SHARE, PORT_BYTES_PER_SECOND

# ----------------------------------------------------------------------
# The hardware of the whole world: differences from part to part, drawn once.


class FleetHardware:
    """The parts of all hosts; arrays are (hosts, 8)."""

    def __init__(
        self, spread: PartVariation, seed: int, hosts: int, amd_ratio: float = 0.0
    ) -> None:
        self.machines: list[SimulatedMachine] = build_machines(
            hosts, named_random(seed, "machines"), amd_ratio
        )
        random = named_random(seed, "parts")
        shape = hosts, GPUS
        self.clock: Floats = _clocks(spread, random, shape)
        bound = np.clip(random.standard_normal(shape), -3, 3)
        self.memory_bound: Floats = 1 + spread.memory_bound_sigma * bound
        self.idle_watts: Floats = random.normal(75.0, 2.0, shape)
        self.dynamic_watts: Floats = random.normal(475.0, 9.0, shape)
        self.ambient_celsius: Floats = random.uniform(25.0, 31.0, (hosts, 1)) + random.uniform(
            0, 3, shape
        )
        self.resistance: Floats = random.uniform(0.058, 0.072, shape)
        prone = random.random(shape) < 0.06
        #: Harmless corrected errors: median zero, heavy tail.
        self.corrected: Floats = np.floor(
            np.where(prone, np.exp(random.normal(2.5, 2.0, shape)), 0.0)
        )
        self.trickle: Floats = np.where(
            prone, np.exp(random.normal(-7.5, 1.0, shape)), 0.0
        )  # a second
        self.resent: Floats = np.where(
            random.random(shape) < 0.15, 0.02, 0.0
        )  # a second, on good ports
        self.user: Floats = random.uniform(0.08, 0.16, hosts)
        self.pressure: Floats = random.uniform(0.001, 0.008, hosts)
        self.uptime_seconds: Floats = random.uniform(1.0, 60.0, hosts) * 86400.0


def _clocks(spread: PartVariation, random: np.random.Generator, shape: tuple[int, int]) -> Floats:
    limit = spread.clock_limit
    ratios = 1 + np.clip(random.normal(0, spread.clock_sigma, shape), -limit, limit)
    outlier = random.random(shape) < spread.outlier_ratio
    sign = np.where(random.random(shape) < 0.5, -1.0, 1.0)
    offset = sign * random.uniform(spread.outlier_low, spread.outlier_high, shape)
    return np.where(outlier, 1 + offset, ratios)


# ----------------------------------------------------------------------
# How the gangs step at one moment: the ranks that compute, and the ranks that wait. Arrays are
# (hosts, 8) or (hosts,).
#
# need    = compute seconds of a rank's step at its own speed
# delay   = loss of a tensor group (the job's ranks in one NVLink domain) to its slowest NVLink
# period  = (greatest need + delay + exchange at the slowest port + gap) / (1 - time lost to hosts)
# busy    = need / period: the culprit is the rank that does not wait

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
        wait = np.where(self.at_work[:, None], np.maximum(1 - compute - sends - gap, 0.0), 0.0)
        pace = np.where(runs[:, 0], 1 / period, 0.0)
        phase = self._phase.uniform(tick, 1)[self._job_or_zero]
        clock = self._checkpoint_clock(now, writing, pace)
        return TimeShares(
            self.at_work, compute, sends, wait, gap, writes, pace, phase, 1 / slowness, clock
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

    def _gang_max(self, values: Floats, least: float) -> Floats:
        """Return for each host the maximum of *values* over the hosts of its gang, or *least*."""
        highest = np.full(self._begin.size, least)
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


#: Time constant with which dies and coolers follow their load.
HEAT_SECONDS = 40.0
#: A lowered power limit, over the power drawn at work.
POWER_LIMIT_MARGIN = 1.01


@dataclass(slots=True)
class GaugeState:
    """The gauges of one moment; arrays are (hosts, 8)."""

    shares: TimeShares
    effects: HostEffects
    watts: Floats  # at this moment: computing or waiting
    mean_watts: Floats
    compute_watts: Floats  # while computing; wait_watts: while waiting
    wait_watts: Floats
    clock_hertz: Floats
    mean_clock_hertz: Floats
    limit_watts: Floats
    flags: np.typing.NDArray[np.int64]
    sm_active: Floats
    tensor_active: Floats
    bandwidth: Floats
    port_bytes_per_second: Floats
    link_idle: Flags  # the link sleeps: it moves no data


@dataclass(slots=True)
class SimulatedCounters:
    """Totals since the boot, or over the lifetime. Arrays are (hosts, 8)."""

    shape: tuple[int, int]
    joules: Floats = field(init=False)
    moved: Floats = field(init=False)
    thermal_ns: Floats = field(init=False)
    power_ns: Floats = field(init=False)
    brake_ns: Floats = field(init=False)
    corrected: Floats = field(init=False)
    uncorrected: Floats = field(init=False)
    replays: Floats = field(init=False)
    crc: Floats = field(init=False)
    resent: Floats = field(init=False)
    symbols: Floats = field(init=False)
    marked: Floats = field(init=False)
    downed: Floats = field(init=False)

    def __post_init__(self) -> None:
        for name in COUNTERS:
            setattr(self, name, np.zeros(self.shape))

    def clear(self, hosts: Flags) -> None:
        """Restart the counters of *hosts*, which have booted."""
        for name in COUNTERS:
            getattr(self, name)[hosts] = 0.0


COUNTERS = (
    "joules", "moved", "thermal_ns", "power_ns", "brake_ns", "corrected", "uncorrected", "replays",
    "crc", "resent", "symbols", "marked", "downed",
)  # fmt: skip


class Physics:
    """The state of a set of hosts that the next step needs."""

    def __init__(self, hardware: FleetHardware, hosts: np.typing.NDArray[np.int64]) -> None:
        """*hosts*: their indexes in the world."""
        self._part = {
            name: getattr(hardware, name)[hosts]
            for name in ("clock", "memory_bound", "idle_watts", "dynamic_watts", "resistance",
                         "ambient_celsius", "trickle", "resent")
        }  # fmt: skip
        self.shape = self._part["clock"].shape
        self.counters = SimulatedCounters(self.shape)
        self.celsius: Floats = self._part["ambient_celsius"] + self._part["resistance"] * 420.0

    def speeds(self, gangs: GangModel, effects: HostEffects) -> tuple[Floats, Floats]:
        """Return each part's pace at the work of its job, and its clock over the nominal clock."""
        clock = self._part["clock"] * effects.speed
        bound = self._part["memory_bound"] * effects.speed
        work = np.where(gangs.is_memory_bound[:, None], bound, clock) * effects.work
        return work, clock

    def gauges(
        self,
        gangs: GangModel,
        shares: TimeShares,
        span: TimeShares,
        effects: HostEffects,
        clock: Floats,
        noise: Noise,
        tick: int,
    ) -> GaugeState:
        """Return the values of the gauges; only `advance` changes the state.

        *shares*: the activity at this moment; *span*: the activity over which means are taken.
        """
        idle, dynamic = self._part["idle_watts"], self._part["dynamic_watts"] * gangs.power[:, None]
        slow = effects.speed**POWER_EXPONENT
        phase = shares.phase[:, None] * np.ones(machine.GPUS)
        at_work = shares.at_work[:, None] & ~effects.lost
        gap = at_work & (phase < shares.gap)
        computes = at_work & ~gap & (phase < shares.gap + shares.compute)
        sends = at_work & (phase >= 1 - shares.exchange)
        exchange, pause = PHASE_ACTIVITY[Phase.COMMUNICATE], PHASE_ACTIVITY[Phase.GAP]
        activity = np.select([gap, computes, sends], [pause, slow, exchange], WAIT_ACTIVITY)
        mean = span.compute * slow + span.exchange * exchange + span.gap * pause
        mean = mean + span.wait * WAIT_ACTIVITY
        jitter = 1 + POWER_NOISE * noise.normal(tick, 3)
        watts = (idle + dynamic * np.where(at_work, activity, 0.0)) * jitter
        mean_watts = (idle + dynamic * np.where(at_work, mean, 0.0)) * jitter
        hertz = np.minimum(
            CLOCK_HERTZ * clock * (1 + 0.002 * noise.normal(tick, 4)), machine.SM_CLOCK_MAX_HERTZ
        )
        hertz = np.where(
            at_work, np.round(hertz / CLOCK_STEP_HERTZ) * CLOCK_STEP_HERTZ, CLOCK_IDLE_HERTZ
        )
        lowered = (idle + dynamic * slow) * POWER_LIMIT_MARGIN
        overlapped = shares.exchange * OVERLAPPED_SHARE / (1 - OVERLAPPED_SHARE)
        moved = (span.exchange + overlapped) * EXCHANGE_SHARE * PORT_BYTES_PER_SECOND
        # A collective ties its ports together: in a step all ports move the same amount.
        moved = moved * shares.port[:, None] * at_work * ~effects.port_down
        return GaugeState(
            shares=span,
            effects=effects,
            watts=watts,
            mean_watts=mean_watts,
            compute_watts=idle + dynamic * slow,
            wait_watts=idle + dynamic * WAIT_ACTIVITY,
            clock_hertz=hertz,
            mean_clock_hertz=np.where(at_work, CLOCK_HERTZ * clock, CLOCK_IDLE_HERTZ),
            limit_watts=np.where(effects.limit < 1, np.round(lowered), machine.POWER_LIMIT_WATTS),
            flags=self._flags(effects, computes, at_work, noise, tick),
            sm_active=mean_over_step(span, PHASE_SM_ACTIVE, WAIT_SM_ACTIVE) * at_work,
            # All ranks finish their work in the same wall time: a rank with less work per cycle is busy for longer.
            tensor_active=mean_over_step(span, PHASE_TENSOR_ACTIVE, 0.0) * effects.work * at_work,
            bandwidth=mean_over_step(span, PHASE_BANDWIDTH, 0.0) * effects.work * at_work,
            port_bytes_per_second=moved,
            link_idle=~at_work,
        )

    def _flags(
        self, effects: HostEffects, computes: Flags, at_work: Flags, noise: Noise, tick: int
    ) -> np.typing.NDArray[np.int64]:
        draw = noise.uniform(tick, 5)
        flags = np.where(at_work, 0, REASON_GPU_IDLE).astype(np.int64)
        flags |= np.where(at_work & (draw < effects.thermal), REASON_SW_THERMAL, 0)
        flags |= np.where(computes & (draw < effects.capped), REASON_SW_POWER_CAP, 0)
        is_braked = at_work & (draw < effects.braked)
        return flags | np.where(is_braked, REASON_POWER_BRAKE | REASON_HW_SLOWDOWN, 0)

    def advance(self, gauges: GaugeState, seconds: float, noise: Noise, tick: int) -> None:
        """Advance heat, energy and counters by *seconds* under *gauges*."""
        effects, counters = gauges.effects, self.counters
        target = self._part["ambient_celsius"] + self._part["resistance"] * gauges.mean_watts
        hot = effects.heat * gauges.shares.at_work[:, None]
        target = target + hot * np.maximum(BRAKED_CELSIUS + 0.5 - target, 0.0)
        # The heat of an onset follows the onset itself; only the remaining difference follows the lag.
        fade = np.maximum(-np.expm1(-seconds / HEAT_SECONDS), hot)
        self.celsius = self.celsius + (target - self.celsius) * fade
        working = gauges.shares.at_work[:, None] * np.ones(machine.GPUS)
        counters.joules += gauges.mean_watts * seconds
        counters.moved += gauges.port_bytes_per_second * seconds
        counters.thermal_ns += np.floor(effects.thermal * working * seconds * 1e9)
        counters.power_ns += np.floor(effects.capped * gauges.shares.compute * seconds * 1e9)
        counters.brake_ns += np.floor(effects.braked * working * seconds * 1e9)
        counters.uncorrected += effects.uncorrected
        counters.downed += effects.downed
        for number, (name, rate) in enumerate((
            ("corrected", effects.corrected + self._part["trickle"]),
            ("replays", effects.replays),
            ("crc", effects.crc),
            ("resent", effects.retransmits + self._part["resent"]),
            ("symbols", effects.symbols),
            ("marked", effects.wait_ticks),
        )):  # fmt: skip
            total = getattr(counters, name)
            total += _draw_counts(rate * seconds, noise, tick, 10 + 2 * number)


def _draw_counts(mean: Floats, noise: Noise, tick: int, channel: int) -> Floats:
    """Return whole random numbers with these means, and a deviation of about the square root of each mean."""
    drawn = np.maximum(mean + np.sqrt(mean) * noise.normal(tick, channel) * (mean > 4), 0.0)
    return np.asarray(np.floor(drawn + noise.uniform(tick, channel + 1)))


def mean_over_step(shares: TimeShares, by_phase: dict[Phase, float], waiting: float) -> Floats:
    """Return the mean over the step of the values of each phase and of waiting."""
    return (
        shares.compute * by_phase[Phase.COMPUTE]
        + shares.exchange * by_phase[Phase.COMMUNICATE]
        + shares.gap * by_phase[Phase.GAP]
        + shares.wait * waiting
    )
