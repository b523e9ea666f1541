"""A second world, independent of the simulator: a bulk-synchronous gang, step by step.

The barrier, the slowest port and the host's gaps decide when a step ends. The timeline of each rank
is integrated exactly, cut into tenths of a second, and read like a driver: power as a delayed noisy
average (0.1 s, without GPM 1 s), utilization as the share of time with a kernel. Levels are drawn
from assumed ranges, except for measured or published values: an H100 draws about 150 W waiting and
550 W computing; healthy parts differ by 2 to 3 % between quartiles if the clock decides, by 0.1 % if
the memory does; NVML samples power for a quarter of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GPUS = 8
SLOT_SECONDS = 0.1
SLOTS_PER_SECOND = 10
STALL, COMPUTE, WAIT, EXCHANGE, CHECKPOINT = range(5)
STATES = 5
#: Seconds over which heat lowers a clock.
HEAT_SECONDS = 25.0

#: Faults of a host or one of its GPUs; and slowdowns without a culprit.
NODE_KINDS = (
    "heat", "cap", "cpu", "storage", "pcie", "link", "nvlink", "silent", "gpu",
)  # fmt: skip
CONTROL_KINDS = (
    "healthy", "sequence", "stages", "checkpoints_often", "checkpoints_rare", "stall_all", "starts", "ends", "slow_all",
    "evaluates", "congestion",
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """One episode. *slowdown*: share of the culprit's work; *onset*, *heals*: seconds."""

    kind: str
    slowdown: float = 0.1
    hosts: int = 16
    seed: int = 1
    seconds: int = 480
    onset: float = 200.0
    heals: float = 1e9
    culprits: tuple[int, ...] = (3,)
    has_gpm: bool = True
    is_attributed: bool = True
    silent_hosts: tuple[int, ...] = ()
    stages: int = 1


@dataclass
class Episode:
    """The episode as arrays over tenths of a second, hosts and GPUs, and the truth."""

    plan: Plan
    shares: Floats  # (slots, hosts, 8, STATES): of the time
    watts: Floats  # (slots, hosts, 8)
    clock: Floats  # (slots, hosts, 8): ratio to the usual clock
    work: Floats  # (slots, hosts, 8): tensor cycles, as a share of the maximum
    port_bytes: Floats  # (slots, hosts): sent and received by each port
    congested: Floats  # (slots, hosts): share of time in which ports wait for the network
    pressure: Floats  # (slots, hosts, 2): tasks waiting for a core, and for a disk
    clock_hertz: float
    idle_watts: float
    limit_watts: float
    capped_watts: float  # power limit of a capped host: its draw at the lowered clock
    period_seconds: float
    sm_levels: tuple[float, float] = (
        0.86,
        0.15,
    )  # busy SMs of a computing and of a waiting rank
    delay_slots: int = 1  # delay of power readings
    steps: Floats = field(default_factory=lambda: np.zeros(0))  # ends of steps, seconds
    blamed_on: tuple[int, ...] = ()


class _Levels:
    """Random levels of an episode's parts and workload."""

    def __init__(self, plan: Plan, random: np.random.Generator) -> None:
        shape = plan.hosts, GPUS
        self.period = float(np.exp(random.uniform(np.log(0.4), np.log(6.0))))
        self.exchange = random.uniform(0.06, 0.25)
        self.gap = random.uniform(0.005, 0.02)
        self.jitter = random.uniform(0.002, 0.01)
        self.is_memory_bound = bool(random.random() < 0.25)
        spread = 0.001 if self.is_memory_bound else random.uniform(0.012, 0.02)
        self.clock = 1.0 + spread * np.clip(random.standard_normal(shape), -2.5, 2.5)
        self.idle = random.uniform(65.0, 90.0)
        self.wait = random.uniform(55.0, 95.0)  # above idle
        self.compute = random.uniform(380.0, 520.0)
        self.power_spread = 1.0 + 0.02 * random.standard_normal(shape)
        self.sm_compute = random.uniform(0.75, 0.95)
        self.sm_wait = random.uniform(0.05, 0.25)
        self.tensor = random.uniform(0.3, 0.6)
        self.delay_slots = int(random.integers(1, 3))
        self.bytes_per_step = random.uniform(2e8, 2e9) * self.period


def play(plan: Plan) -> Episode:
    """Play one episode. The same plan gives the same episode."""
    random = np.random.default_rng(
        [plan.seed, hash_of(f"{plan.kind} {plan.slowdown}"), plan.hosts, plan.has_gpm]
    )
    levels = _Levels(plan, random)
    slots = plan.seconds * SLOTS_PER_SECOND
    edges = np.arange(slots + 1) * SLOT_SECONDS
    breaks, states, ends, clocks, stretch = _steps(plan, levels, random)
    shares = np.zeros((slots, plan.hosts, GPUS, STATES))
    shape = plan.hosts * GPUS
    flat_breaks = breaks.reshape(breaks.shape[0], shape)
    for rank in range(shape):
        at = flat_breaks[:, rank]
        length = np.diff(at)
        for state in range(STATES):
            total = np.concatenate([[0.0], np.cumsum(np.where(states == state, length, 0.0))])
            inside = np.diff(np.interp(edges, at, total))
            shares[:, rank // GPUS, rank % GPUS, state] = inside / SLOT_SECONDS
    shares = np.clip(shares, 0.0, 1.0)
    middle = np.asarray(edges[:-1] + SLOT_SECONDS / 2, np.float64)
    step_of = np.minimum(np.searchsorted(ends, middle), len(ends) - 1)
    clock = clocks[step_of]
    factor = np.clip(clock / levels.clock, 0.3, 1.2)
    exponent = random.uniform(1.8, 2.6)
    level = np.array(
        [0.12 * levels.wait, levels.compute, levels.wait, 1.4 * levels.wait, 0.9 * levels.wait]
    )
    dynamic = (shares * level).sum(axis=3) * levels.power_spread
    watts = levels.idle + dynamic * factor**exponent
    if plan.kind in ("starts", "ends"):
        is_off = middle < plan.onset if plan.kind == "starts" else middle >= plan.onset
        shares[is_off] = 0.0
        watts[is_off] = levels.idle
    # All ranks do the same work per step while they compute: more cycles per second at a higher
    # clock.
    work = levels.tensor * shares[..., COMPUTE] * _work_rate(plan, levels, clock, step_of, stretch)
    port_bytes = (
        levels.bytes_per_step / levels.exchange / levels.period * shares[..., EXCHANGE].mean(axis=2)
    )
    return Episode(
        plan, shares, watts, clock, work, port_bytes, _congested(plan, middle, shares, random),
        _pressure(plan, middle, random), random.uniform(1.5e9, 1.9e9), levels.idle,
        levels.idle + levels.compute * 1.35,
        1.01 * float(levels.idle + levels.compute * factor[:, plan.culprits[0]].min() ** exponent),
        levels.period, (levels.sm_compute, levels.sm_wait), levels.delay_slots, ends,
        plan.culprits if plan.kind in NODE_KINDS else (),
    )  # fmt: skip


def hash_of(text: str) -> int:
    """Return a number of *text* that is the same in every process."""
    return crc32(text.encode())


def _strength(plan: Plan, now: float) -> float:
    """Return the strength of the fault at *now*: 0 to 1."""
    if not plan.onset <= now < plan.heals:
        return 0.0
    return min((now - plan.onset) / HEAT_SECONDS, 1.0) if plan.kind == "heat" else 1.0


def _steps(
    plan: Plan, levels: _Levels, random: np.random.Generator
) -> tuple[Floats, NDArray[np.int64], Floats, Floats, Floats]:
    """Return breaks (parts + 1, hosts, 8), the state of each part, and arrays by step.

    The arrays by step are its end, and the clock and the work of each rank.
    """
    breaks = [np.zeros((plan.hosts, GPUS))]
    states: list[int] = []
    ends: list[float] = []
    clocks: list[Floats] = []
    stretches: list[Floats] = []
    now, last_checkpoint = 0.0, 0.0
    every = {
        "checkpoints_often": random.uniform(30, 60),
        "checkpoints_rare": random.uniform(200, 260),
    }.get(plan.kind, random.uniform(250, 400))
    checkpoint_seconds = random.uniform(4.0, 12.0)
    while now < plan.seconds:
        strength = _strength(plan, now)
        step = _Step(plan, levels, strength, random)
        begin = np.full((plan.hosts, GPUS), now)
        if now - last_checkpoint >= every:
            last_checkpoint, now = now, now + checkpoint_seconds
            begin = _append(
                breaks, states, begin, np.full_like(begin, checkpoint_seconds), CHECKPOINT
            )
        if plan.kind == "evaluates" and len(ends) % 40 == 39:
            pause = random.uniform(5.0, 10.0)
            begin = _append(breaks, states, begin, np.full_like(begin, 0.4 * pause), COMPUTE)
            begin = _append(breaks, states, begin, np.full_like(begin, 0.6 * pause), STALL)
            now += pause
        ready = step.gap[:, None] + step.compute
        slowest = float((ready + step.nvlink[:, None]).max())
        last = slowest + step.exchange
        end = _append(breaks, states, begin, step.gap[:, None] * np.ones(GPUS), STALL)
        end = _append(breaks, states, end, step.compute, COMPUTE)
        end = _append(breaks, states, end, now + slowest - end, WAIT)
        _append(breaks, states, end, now + last - end, EXCHANGE)
        now += last
        ends.append(now)
        clocks.append(step.clock)
        stretches.append(step.stretch)
    return np.array(breaks), np.array(states), np.array(ends), np.array(clocks), np.array(stretches)


def _append(
    breaks: list[Floats], states: list[int], begin: Floats, length: Floats, state: int
) -> Floats:
    breaks.append(begin + np.maximum(length, 0.0))
    states.append(state)
    return breaks[-1]


class _Step:
    """One step of a gang: each rank's work in seconds, and its speed."""

    def __init__(
        self, plan: Plan, levels: _Levels, strength: float, random: np.random.Generator
    ) -> None:
        shape, period = (plan.hosts, GPUS), levels.period
        slow = plan.slowdown * strength
        base = period * (1.0 - levels.exchange - levels.gap)
        #: Extra work of each rank, caused by the workload itself.
        self.stretch = np.ones(shape)
        if plan.stages > 1:
            stage = np.arange(plan.hosts) * plan.stages // plan.hosts
            self.stretch *= (1.0 + 0.06 * (stage == plan.stages - 1))[:, None]
        if plan.kind == "sequence" and strength:
            self.stretch += plan.slowdown * 2 * random.random(shape) ** 3
        if plan.kind == "stages" and strength:
            self.stretch[-max(plan.hosts // 4, 1) :] += plan.slowdown
        self.clock = levels.clock.copy()
        speed = np.ones(shape)
        self.gap = np.full(plan.hosts, levels.gap * period) * (1 + 0.3 * random.random(plan.hosts))
        self.nvlink = np.zeros(plan.hosts)
        self.exchange = levels.exchange * period
        for culprit in plan.culprits if plan.kind in NODE_KINDS else ():
            self._harm(plan, levels, slow, culprit, speed)
        if plan.kind == "slow_all":
            self.clock /= 1.0 + slow
        if plan.kind == "stall_all" and strength:
            self.gap += slow * period * (0.7 + 0.6 * random.random(plan.hosts))
        if plan.kind == "congestion":
            self.exchange *= 1.0 + 3.0 * slow
        pace = speed * (1.0 if levels.is_memory_bound else self.clock)
        jitter = 1.0 + levels.jitter * random.standard_normal(shape)
        self.compute = base * self.stretch / pace * jitter

    def _harm(self, plan: Plan, levels: _Levels, slow: float, culprit: int, speed: Floats) -> None:
        period = levels.period
        if plan.kind in ("heat", "cap"):
            self.clock[culprit, :] /= 1.0 + slow * (2.5 if levels.is_memory_bound else 1.0)
            if levels.is_memory_bound:
                speed[culprit] /= 1.0 + slow
        elif plan.kind == "silent":
            speed[culprit] /= 1.0 + slow
        elif plan.kind == "gpu":
            speed[culprit, 5] /= 1.0 + slow
        elif plan.kind in ("cpu", "storage", "pcie"):
            self.gap[culprit] += slow * period
        elif plan.kind == "nvlink":
            self.nvlink[culprit] += slow * period
        elif plan.kind == "link":
            self.exchange += slow * period


def _work_rate(
    plan: Plan, levels: _Levels, clock: Floats, step_of: NDArray[np.int64], stretch: Floats
) -> Floats:
    """Return tensor cycles per moment of computing relative to usual: ranks with equal work have
    equal sums per step.

    A rank that is slow at a normal clock does less per cycle; a rank with more work (*stretch*, by
    step) works longer.

    """
    pace = np.ones_like(stretch[step_of]) if levels.is_memory_bound else clock.copy()
    is_slow = plan.kind in ("silent", "gpu") or (
        plan.kind in ("heat", "cap") and levels.is_memory_bound
    )
    if is_slow:
        span = slice(
            int(plan.onset * SLOTS_PER_SECOND),
            int(min(plan.heals, plan.seconds) * SLOTS_PER_SECOND),
        )
        gpus = slice(5, 6) if plan.kind == "gpu" else slice(None)
        for culprit in plan.culprits:
            pace[span, culprit, gpus] /= 1.0 + plan.slowdown
    return np.asarray(pace)


def _congested(plan: Plan, middle: Floats, shares: Floats, random: np.random.Generator) -> Floats:
    result: Floats = 0.01 * shares[..., EXCHANGE].mean(axis=2)
    result = np.asarray(result * (1 + 0.2 * random.standard_normal(result.shape)))
    if plan.kind == "congestion":
        result *= np.where((middle >= plan.onset) & (middle < plan.heals), 4.0, 1.0)[:, None]
    return np.asarray(np.maximum(result, 0.0))


def _pressure(plan: Plan, middle: Floats, random: np.random.Generator) -> Floats:
    result: Floats = np.abs(0.004 * random.standard_normal((middle.size, plan.hosts, 2))) + 0.004
    is_on = (middle >= plan.onset) & (middle < plan.heals)
    for culprit in plan.culprits:
        if plan.kind in ("cpu", "storage"):
            which = int(plan.kind == "storage")
            result[is_on, culprit, which] += min(0.2 + 2 * plan.slowdown, 0.9)
    if plan.kind == "stall_all":
        result[is_on, :, 1] += 0.3
    return result
