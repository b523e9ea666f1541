"""Power, clock, heat and counters of a set of hosts, advanced in steps of any length.

power = idle + dynamic * activity * (clock / unbraked clock) ** 2.2: the levels of an H100 are 75 W
idle, 150 W waiting, 550 W computing. Activity levels are assumed: a rank that waits in a collective
keeps the few SMs of its communication kernel busy, and no tensor core.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from . import machine
from .faults import Flags, HostEffects
from .gang_model import GangModel, TimeShares
from .incidents import named_random
from .machine import GPUS, SimulatedMachine, build_machines
from .noise import Floats, Noise
from .scenario import PartVariation
from .tables import EXCHANGE_SHARE, OVERLAPPED_SHARE, PORT_BYTES_PER_SECOND

#: Time constant with which dies and coolers follow their load.
HEAT_SECONDS = 40.0
#: A lowered power limit, over the power drawn at work.
POWER_LIMIT_MARGIN = 1.01

# Clock event reasons (nvml.h, nvmlClocksEventReason*).
REASON_GPU_IDLE = 0x1
REASON_SW_POWER_CAP = 0x4
REASON_HW_SLOWDOWN = 0x8
REASON_SW_THERMAL = 0x20
REASON_POWER_BRAKE = 0x80
#: Dynamic power falls with the clock and with the voltage, which follows the clock.
POWER_EXPONENT = 2.2
POWER_NOISE = 0.01
CLOCK_HERTZ = 1755e6
CLOCK_STEP_HERTZ = 15e6
CLOCK_IDLE_HERTZ = 345e6
#: Temperature at which the brake holds the die of a failed cooler.
BRAKED_CELSIUS = 88.3
#: Readings per second of the agent's fast lane.
SAMPLES_PER_SECOND = 10
WAIT_ACTIVITY = 0.16
#: Share of the SMs, and of the warps, that the communication kernel uses while waiting.
WAIT_SM_ACTIVE, WAIT_OCCUPANCY = 0.18, 0.04


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
        inlet_celsius = random.uniform(25.0, 31.0, (hosts, 1))
        self.ambient_celsius: Floats = inlet_celsius + random.uniform(0, 3, shape)
        self.resistance: Floats = random.uniform(0.058, 0.072, shape)
        prone = random.random(shape) < 0.06
        #: Harmless corrected errors: median zero, heavy tail.
        self.corrected: Floats = np.floor(
            np.where(prone, np.exp(random.normal(2.5, 2.0, shape)), 0.0)
        )
        # Rates a second; `resent` is on good ports too.
        self.trickle: Floats = np.where(prone, np.exp(random.normal(-7.5, 1.0, shape)), 0.0)
        self.resent: Floats = np.where(random.random(shape) < 0.15, 0.02, 0.0)
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

    joules: Floats
    moved: Floats
    thermal_ns: Floats
    power_ns: Floats
    brake_ns: Floats
    corrected: Floats
    uncorrected: Floats
    replays: Floats
    crc: Floats
    resent: Floats
    symbols: Floats
    marked: Floats
    downed: Floats

    @classmethod
    def zero(cls, shape: tuple[int, int]) -> SimulatedCounters:
        return cls(*(np.zeros(shape) for _ in fields(cls)))

    def clear(self, hosts: Flags) -> None:
        """Restart the counters of *hosts*, which have booted."""
        for counter in fields(self):
            getattr(self, counter.name)[hosts] = 0.0


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
        self.counters = SimulatedCounters.zero(self.shape)
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
        for number, (name, rate) in enumerate(
            (
                ("corrected", effects.corrected + self._part["trickle"]),
                ("replays", effects.replays),
                ("crc", effects.crc),
                ("resent", effects.retransmits + self._part["resent"]),
                ("symbols", effects.symbols),
                ("marked", effects.wait_ticks),
            )
        ):
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


class Phase(IntEnum):
    """Activity of a rank that does not wait for others."""

    COMPUTE = 0
    COMMUNICATE = 1
    GAP = 2  # the host prepares the next batch, or a checkpoint is written: no kernel runs


#: Activity as a share of the dynamic power: in each phase, and while waiting.
PHASE_ACTIVITY = {Phase.COMPUTE: 1.0, Phase.COMMUNICATE: 0.26, Phase.GAP: 0.10}
PHASE_SM_ACTIVE = {Phase.COMPUTE: 0.88, Phase.COMMUNICATE: WAIT_SM_ACTIVE, Phase.GAP: 0.0}
PHASE_OCCUPANCY = {Phase.COMPUTE: 0.24, Phase.COMMUNICATE: WAIT_OCCUPANCY, Phase.GAP: 0.0}
PHASE_TENSOR_ACTIVE = {Phase.COMPUTE: 0.47, Phase.COMMUNICATE: 0.0, Phase.GAP: 0.0}
PHASE_BANDWIDTH = {Phase.COMPUTE: 0.42, Phase.COMMUNICATE: 0.10, Phase.GAP: 0.0}
