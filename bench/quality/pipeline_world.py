"""A third world, that the judge never saw: gangs of pipeline, tensor and data parallel roles, as events on a timeline of 20 ms.

Each micro-batch of each stage is an event (schedule 1F1B: Narayanan et al. 2021, Megatron-LM): it begins when its predecessor's
activations are there, and ends when the slowest GPU of its tensor parallel group does. Without stages the whole gang meets at
each micro-batch, as fully sharded training does. Then each stage reduces its gradients over its replicas, all update, and the
next step begins. Bubbles, roles and the waiting of the victims follow from that; nobody writes them.

From measurements: healthy GPUs' speeds lie 2.3 to 3.0 % apart between quartiles in compute-bound work and 0.1 % in memory-bound
work (SGEMM, ResNet, PageRank of one cluster; the hotter part runs the lower clock); an H100 draws about 70 W idle, 150 W with a
collective resident and 430 to 560 W while it trains. Lengths of steps are lognormal. All other ranges are assumed. It shares no
code and no model with `bsp_world`, the simulator or the judge; `pipeline_readings` is what a driver makes of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shares = NDArray[np.float32]
Rows = NDArray[np.intp]

GPUS = 8
SLOT_SECONDS = 0.02
SLOTS_PER_SECOND = 50
FOREVER = 1e9

#: What can be wrong with a host.
FAULT_KINDS = ("thermal", "power_cap", "silent_host", "silent_gpu", "pcie", "nic", "host_cpu")
#: What a workload or a site does that is no host's fault.
CONTROL_KINDS = (
    "healthy", "sequence", "stages", "moe", "checkpoint_30s", "checkpoint_120s", "checkpoint_one_writer", "evaluation",
    "stall_all", "rotating_stalls", "slow_all", "starts", "ends", "mixed", "resize", "shared", "skewed", "agents_silent",
)  # fmt: skip


@dataclass(frozen=True)
class HostFault:
    """One thing that is wrong with one host. *slowdown*: how much longer its own part of a step takes at the fault's height."""

    kind: str
    slowdown: float
    host: int
    onset: float = 180.0
    heals: float = FOREVER
    gpu: int = 5  # of a fault of one GPU

    def strength(self, seconds: Floats) -> Floats:
        """Return how much of it is there at each of *seconds*, 0 to 1: heat and cooling take about a minute."""
        is_on = (seconds >= self.onset) & (seconds < self.heals)
        if self.kind != "thermal":
            return is_on.astype(float)
        rise = 1 - np.exp(-np.maximum(seconds - self.onset, 0) / 40.0)
        fall = np.exp(-np.maximum(seconds - self.heals, 0) / 30.0)
        return np.asarray(np.where(seconds >= self.onset, np.minimum(rise, 1.0) * fall, 0.0))


@dataclass(frozen=True)
class GangScenario:
    """One run of the world. *control*: what the workload or the site does beside the faults; "": nothing."""

    seed: int
    faults: tuple[HostFault, ...] = ()
    control: str = ""
    hosts: int = 16
    seconds: int = 480
    onset: float = 180.0  # of what a control does
    has_gpm: bool = True
    is_attributed: bool = True
    is_reported: bool = True  # by ReportGangs
    #: Host, and from which second to which its agent is silent.
    silences: tuple[tuple[int, float, float], ...] = ()
    #: Evidence that never arrives: names of `pipeline_readings.EVIDENCE`.
    withheld: frozenset[str] = frozenset()

    @property
    def culprits(self) -> frozenset[int]:
        """The hosts with a fault."""
        return frozenset(one.host for one in self.faults)


@dataclass(frozen=True)
class GangRun:
    """A job that runs on some GPUs for some time. *gpus*: flat numbers by (stage, replica, tensor rank)."""

    job_id: int
    gpus: Rows
    begin: float
    end: float

    @property
    def hosts(self) -> tuple[int, ...]:
        """The hosts that it runs on."""
        return tuple(sorted(set((self.gpus.ravel() // GPUS).tolist())))


@dataclass
class GangRecord:
    """What happened, over slots and flat GPUs, and by host and slot where it is so small; the truth with it."""

    scenario: GangScenario
    runs: list[GangRun]
    compute: Shares  # share of the slot in which it computes
    stall: Shares  # no kernel is resident, though its job runs
    checkpoint: Shares  # its job writes one
    idle: Shares  # no job
    work: Shares  # tensor cycles a second, over the most at the usual clock
    watts: Shares  # what it draws
    clock: Shares  # over the usual one of its part
    port_bytes: Floats  # (slots, hosts): a second, by each port
    congestion: Floats  # (seconds, hosts): share of the time in which ports wait for the network
    cpu_pressure: Floats  # (seconds, hosts)
    io_pressure: Floats  # (seconds, hosts)
    resident_in_checkpoint: bool
    clock_hertz: Floats  # by GPU
    idle_watts: float
    limit_watts: Floats  # by GPU
    sm_levels: tuple[float, float]
    is_older: NDArray[np.bool_]  # by host: the other model of GPU, without GPM
    step_ends: Floats
    checkpoint_begins: Floats
    step_seconds: float


class _Workload:
    """What a job draws once: its layout, lengths and power levels."""

    def __init__(self, scenario: GangScenario, random: np.random.Generator, gpus: int) -> None:
        control = scenario.control
        self.tensor_ranks = 4 if control == "shared" else int(random.choice([4, 8]))
        groups = gpus // self.tensor_ranks
        choices = [n for n in (1, 2, 4) if groups % n == 0 and groups // n >= 2]
        if control == "stages":
            choices = [n for n in choices if n > 1]
        self.stages = int(random.choice(choices))
        self.replicas = groups // self.stages
        self.batches = int(
            random.choice([1, 2, 4]) if self.stages == 1 else random.choice([2, 4]) * self.stages
        )
        self.step = float(np.exp(random.uniform(np.log(0.8), np.log(8.0))))
        self.exchange = random.uniform(0.04, 0.2)
        self.update = random.uniform(0.01, 0.04)
        self.load = random.uniform(0.003, 0.02)  # share of a step in which data is loaded
        self.step_sigma = random.uniform(0.005, 0.05)
        self.rank_sigma = random.uniform(0.002, 0.01)
        self.memory_share = random.uniform(0.1, 0.5)
        # Last and first stages have layers of their own.
        self.stage_work = 1 + random.uniform(-0.04, 0.04, self.stages)
        self.stage_power = random.uniform(0.85, 1.0, self.stages)
        if control == "stages":
            self.stage_work[-1] += random.uniform(0.1, 0.3)
        self.compute_watts = random.uniform(330.0, 480.0)  # above idle
        self.wait_watts = random.uniform(55.0, 90.0)
        self.power_exponent = random.uniform(1.6, 2.4)
        self.tensor = random.uniform(0.3, 0.6)
        self.sm_levels = (random.uniform(0.7, 0.95), random.uniform(0.04, 0.2))
        self.bytes_a_step = random.uniform(1e9, 1e10) * self.step
        self.is_evaluated = control == "evaluation" or (not control and random.random() < 0.25)
        self.evaluates_every = random.uniform(70.0, 150.0)
        every = {"checkpoint_30s": 30.0, "checkpoint_120s": 120.0}.get(
            control, random.uniform(180.0, 400.0)
        )
        self.steps_per_checkpoint = max(round(every * random.uniform(0.85, 1.15) / self.step), 2)
        self.one_writer = control == "checkpoint_one_writer" or bool(random.random() < 0.4)
        if control == "checkpoint_one_writer":
            self.steps_per_checkpoint = max(round(60.0 / self.step), 2)
        self.checkpoint_seconds = random.uniform(3.0, 14.0)


@dataclass
class _Log:
    """Events of one run, as arrays by (GPU, event): when, and at which weight."""

    begins: list[Floats] = field(default_factory=list)
    ends: list[Floats] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)

    def put(self, begin: Floats, end: Floats, weight: Floats | float = 1.0) -> None:
        """Add an event of all GPUs of a run, (stages, replicas, ranks), or (GPUs,)."""
        self.begins.append(begin.ravel())
        self.ends.append(end.ravel())
        self.weights.append(np.broadcast_to(weight, begin.shape).ravel())

    def shares(self, edges: Floats, gpu_order: Rows, into: Shares) -> None:
        """Add the weighted share of each slot to the rows of *into*, (slots, GPUs)."""
        if not self.begins:
            return
        begins, ends, weights = (np.array(x) for x in (self.begins, self.ends, self.weights))
        for at, gpu in enumerate(gpu_order.ravel()):
            # Empty events, of other stages, lie anywhere.
            real = np.flatnonzero(ends[:, at] > begins[:, at])
            order = real[np.argsort(begins[real, at], kind="stable")]
            begin, end = begins[order, at], ends[order, at]
            if not order.size:
                continue
            total = np.concatenate([[0.0], np.cumsum((end - begin) * weights[order, at])])
            times = np.column_stack([begin, end]).ravel()
            values = np.column_stack([total[:-1], total[1:]]).ravel()
            into[:, gpu] += np.diff(np.interp(edges, times, values)) / SLOT_SECONDS


def _orders(stages: int, batches: int) -> list[tuple[int, bool, int]]:
    """Return the micro-batches of a step, (stage, is backward, number), each after all that it needs: 1F1B."""
    plans: list[list[tuple[bool, int]]] = []
    for stage in range(stages):
        warm = min(stages - stage - 1, batches)
        plan = [(False, m) for m in range(warm)]
        for m in range(batches - warm):
            plan += [(False, warm + m), (True, m)]
        plans.append(plan + [(True, m) for m in range(batches - warm, batches)])
    done: set[tuple[int, bool, int]] = set()
    found: list[tuple[int, bool, int]] = []
    while any(plans):
        for stage, plan in enumerate(plans):
            while plan:
                backward, m = plan[0]
                needs = (stage + 1, True, m) if backward else (stage - 1, False, m)
                if 0 <= needs[0] < stages and needs not in done:
                    break
                done.add((stage, backward, m))
                found.append((stage, backward, m))
                plan.pop(0)
    return found


class _Player:
    """Plays one run of a scenario, step by step."""

    def __init__(
        self,
        scenario: GangScenario,
        run: GangRun,
        load: _Workload,
        parts: _Parts,
        random: np.random.Generator,
    ) -> None:
        self.scenario, self.run, self.load, self.parts, self.random = (
            scenario,
            run,
            load,
            parts,
            random,
        )
        self.shape = run.gpus.shape
        self.compute, self.work, self.power, self.stall = _Log(), _Log(), _Log(), _Log()
        self.checkpoint, self.exchange = _Log(), _Log()
        self.step_ends: list[float] = []
        self.checkpoint_begins: list[float] = []
        self.orders = _orders(load.stages, load.batches)
        self.hosts = run.gpus // GPUS
        self.is_in = np.ones(self.shape)
        base = load.step * (1 - load.exchange - load.update - load.load)
        bubbles = load.batches + load.stages - 1
        #: Seconds of a forward and a backward micro-batch; backward takes twice as long.
        self.forward, self.backward = base / bubbles / 3, 2 * base / bubbles / 3
        #: The popularity of the experts that each GPU has, which wanders.
        self.popularity = np.zeros(self.shape)
        self.bias: Floats = np.zeros(self.shape[1])
        if scenario.control == "sequence" and scenario.seed % 2:
            self.bias = np.asarray(random.normal(0, 0.03, self.shape[1]))
        self.rotating = (0.0, -1)

    def play(self) -> None:
        """Play steps until the run ends."""
        load, now, count, last_evaluation = self.load, self.run.begin, 0, self.run.begin
        while now < self.run.end:
            if count and count % load.steps_per_checkpoint == 0:
                now = self._write_checkpoint(now)
            if load.is_evaluated and now - last_evaluation > load.evaluates_every:
                now = last_evaluation = self._evaluate(now)
            now = self._step(now)
            self.step_ends.append(now)
            count += 1

    def _write_checkpoint(self, now: float) -> float:
        seconds = self.load.checkpoint_seconds * float(self.random.lognormal(0, 0.15))
        begin = np.full(self.shape, now)
        self.checkpoint_begins.append(now)
        self.checkpoint.put(begin, begin + seconds)
        if not self.load.one_writer:  # each copies its own part: no kernel runs
            own = seconds * self.random.uniform(0.75, 1.0, self.shape)
            self.stall.put(begin, begin + own)
        else:
            first = np.where(self.run.gpus == self.run.gpus.min(), seconds, 0.0)
            self.stall.put(begin, begin + first)
        return now + seconds

    def _evaluate(self, now: float) -> float:
        """Forward only, with gaps between the batches: nobody waits for anybody but at the end."""
        seconds = self.random.uniform(6.0, 14.0)
        count = 12
        for at in range(count):
            begin = np.full(self.shape, now + at * seconds / count)
            length = seconds / count * np.clip(self.random.normal(0.6, 0.08, self.shape), 0.2, 0.95)
            self.stall.put(begin, begin + 0.2 * seconds / count)
            begin = begin + 0.2 * seconds / count
            self._computes(begin, begin + 0.8 * length, 0.8)
        return now + seconds

    def _computes(self, begin: Floats, end: Floats, weight: Floats | float) -> None:
        self.compute.put(begin, end)
        self.work.put(begin, end, 0.6 * np.asarray(weight))
        self.power.put(begin, end, weight)

    def _step(self, now: float) -> float:
        load, random, scenario = self.load, self.random, self.scenario
        effects = self.parts.effects(now, self.run.gpus, load)
        scale = float(random.lognormal(0, load.step_sigma))
        stretch = self._stretch(now)
        ready = np.full(self.shape[:2], now)
        gap = (
            load.load
            * load.step
            * random.lognormal(0, 0.3, self.shape[:2])[..., None]
            * np.ones(self.shape)
        )
        gap = self._stalls(now, gap)
        gap[1:] = 0.0  # only the first stage loads data
        per_batch = effects.gap * load.step / (2 * load.batches)
        previous = {stage: ready[stage].copy() for stage in range(load.stages)}
        ends: dict[tuple[int, bool, int], Floats] = {}
        for stage, is_backward, m in self.orders:
            before = (stage + 1, True, m) if is_backward else (stage - 1, False, m)
            begin = previous[stage]
            if before in ends:
                begin = np.maximum(begin, ends[before] + 0.002)
            if load.stages == 1:
                begin = np.full_like(begin, begin.max())  # fully sharded: all meet
            usual = (
                (self.backward if is_backward else self.forward) * load.stage_work[stage] * scale
            )
            own = stretch[stage] if stretch.ndim == 3 else stretch[stage, :, :, m]
            noise = 1 + load.rank_sigma * random.standard_normal(self.shape[1:])
            length = usual * own * effects.time[stage] * noise
            wait = per_batch[stage] * random.lognormal(-0.02, 0.2, self.shape[1:])
            if m == 0 and not is_backward:
                wait = wait + gap[stage]
            started = begin[:, None] + wait
            finished = started + length
            self._log_batch(stage, begin, started, finished, effects)
            previous[stage] = ends[stage, is_backward, m] = finished.max(axis=1)
        last = self._reduce(previous, effects, scale)
        update = load.update * load.step * scale
        begin = np.full(self.shape, last)
        self._computes(begin, begin + update, 0.6)
        if scenario.control == "moe":
            self.popularity = 0.985 * self.popularity + 0.02 * random.standard_normal(self.shape)
        return last + update

    def _log_batch(
        self, stage: int, begin: Floats, started: Floats, finished: Floats, effects: _Effects
    ) -> None:
        """Note a micro-batch of one stage; the other stages' GPUs have an empty event."""

        def whole(values: Floats, fill: float) -> Floats:
            found = np.full(self.shape, fill)
            found[stage] = values
            return found

        at = float(begin[0])
        starts, ends = whole(started, at), whole(finished, at)
        if (started > begin[:, None]).any():
            self.stall.put(whole(np.broadcast_to(begin[:, None], started.shape), at), starts)
        self.compute.put(starts, ends)
        # The same tensor cycles, spread over as long as it takes.
        self.work.put(starts, ends, whole(1 / effects.time[stage], 0.0))
        self.power.put(
            starts, ends, whole(effects.power[stage] * self.load.stage_power[stage], 0.0)
        )

    def _reduce(self, previous: dict[int, Floats], effects: _Effects, scale: float) -> float:
        """Reduce gradients over the replicas of each stage; return when all have."""
        ends = []
        for stage, ready in previous.items():
            begin = float(ready.max())
            slow = float(effects.network[stage].max()) * self.load.step
            length = (
                self.load.exchange * self.load.step * scale * float(self.random.lognormal(0, 0.03))
                + slow
            )
            begins = np.full(self.shape, begin)
            finish = begins.copy()
            finish[stage] += length
            self.exchange.put(
                begins, finish, self.load.exchange * self.load.step / max(length, 1e-9)
            )
            ends.append(begin + length)
        return max(ends)

    def _stretch(self, now: float) -> Floats:
        """Return how much more than usual each has to do: (stages, replicas, ranks), or with micro-batches behind."""
        control, random = self.scenario.control, self.random
        if control == "sequence":
            # Long-tailed documents: a replica's micro-batch is as long as its longest; all its stages have it.
            drawn = (
                random.lognormal(-0.02, 0.2, (self.shape[1], self.load.batches))
                + self.bias[:, None]
            )
            return np.asarray(
                np.broadcast_to(drawn[None, :, None, :], (*self.shape, self.load.batches))
            )
        if control == "moe":
            return np.asarray(0.5 + 0.5 * np.exp(self.popularity))
        return np.ones(self.shape)

    def _stalls(self, now: float, gap: Floats) -> Floats:
        control, load, random = self.scenario.control, self.load, self.random
        if now < self.scenario.onset:
            return gap
        if control == "stall_all":
            return np.asarray(
                gap + load.step * random.uniform(0.08, 0.2, self.shape[:2])[..., None]
            )
        if control == "rotating_stalls":
            until, group = self.rotating
            if now >= until:
                self.rotating = until, group = (
                    now + random.uniform(10, 40),
                    int(random.integers(self.shape[1])),
                )
            gap = gap.copy()
            gap[0, group] += 0.12 * load.step
        return gap


@dataclass
class _Effects:
    """What parts and faults make of a step at one moment, by (stage, replica, rank)."""

    time: Floats  # how many times as long a micro-batch takes
    power: Floats  # over the usual of computing
    gap: Floats  # added before micro-batches, as a share of a step
    network: Floats  # added to the exchange, as a share of a step


class _Parts:
    """The GPUs of all hosts: healthy spread, models and faults."""

    def __init__(self, scenario: GangScenario, random: np.random.Generator) -> None:
        count = scenario.hosts * GPUS
        self.scenario = scenario
        sigma = random.uniform(0.012, 0.019)
        speed = sigma * np.clip(random.standard_normal(count), -2.5, 2.5)
        #: Most of the spread is the clock that the part's leakage allows; the rest nothing shows.
        self.clock = 1 + 0.85 * speed
        self.hidden = 1 + 0.15 * speed + 0.002 * random.standard_normal(count)
        self.power = 1 + 0.02 * random.standard_normal(count)
        self.is_older = np.zeros(scenario.hosts, dtype=bool)
        if scenario.control == "mixed":
            self.is_older[random.permutation(scenario.hosts)[: scenario.hosts // 2]] = True
        self.older_time = random.uniform(1.1, 1.5)
        #: Heat does not come to all GPUs of a host alike.
        self.heat_share = random.uniform(0.75, 1.0, (scenario.hosts, GPUS))
        self.heat_share[np.arange(scenario.hosts), random.integers(GPUS, size=scenario.hosts)] = 1.0

    def clock_factor(self, seconds: Floats, memory_share: float) -> Floats:
        """Return the clock while computing, over each part's own: (times, GPUs)."""
        found = np.ones((seconds.size, self.clock.size))
        for one in self.scenario.faults:
            if one.kind not in ("thermal", "power_cap"):
                continue
            strength = one.slowdown * one.strength(seconds)[:, None]
            if one.kind == "thermal":
                strength = strength * self.heat_share[one.host]
            rows = slice(one.host * GPUS, (one.host + 1) * GPUS)
            # The share of the time that the memory decides stays as long as it was.
            found[:, rows] *= (1 - memory_share) / (1 - memory_share + strength)
        if self.scenario.control == "slow_all":
            found[seconds >= self.scenario.onset] *= (1 - memory_share) / (1 - memory_share + 0.12)
        return found

    def effects(self, now: float, gpus: Rows, load: _Workload) -> _Effects:
        """Return what they make of a step that begins at *now*."""
        at = np.array([now])
        clock = (self.clock * self.clock_factor(at, load.memory_share)[0])[gpus]
        memory = load.memory_share
        time = (memory + (1 - memory) / clock) / self.hidden[gpus]
        power = self.power[gpus] * clock**load.power_exponent
        gap, network = np.zeros(gpus.shape), np.zeros(gpus.shape)
        older = self.is_older[gpus // GPUS]
        time = np.where(older, time * self.older_time, time)
        power = np.where(older, 0.6 * power, power)
        for one in self.scenario.faults:
            slow = one.slowdown * float(one.strength(at)[0])
            there, gpu = gpus // GPUS == one.host, one.host * GPUS + one.gpu
            if one.kind in ("silent_host", "silent_gpu"):
                where = there if one.kind == "silent_host" else gpus == gpu
                time = np.where(where, time * (1 + slow), time)
                power = np.where(where, power * (1 - 0.5 * slow), power)
            elif one.kind == "host_cpu":
                gap = gap + slow * there
            elif one.kind == "pcie":
                gap = gap + slow * (gpus == gpu)
            elif one.kind == "nic":
                network = network + slow * there
        return _Effects(time, power, gap, network)


def _runs(scenario: GangScenario, random: np.random.Generator) -> list[tuple[GangRun, _Workload]]:
    """Return who runs where, and when."""
    everything = np.arange(scenario.hosts * GPUS)
    end, found = float(scenario.seconds), []

    def add(job: int, gpus: Rows, begin: float, end: float, load: _Workload | None = None) -> None:
        load = _Workload(scenario, random, gpus.size) if load is None else load
        shape = load.stages, gpus.size // load.tensor_ranks // load.stages, load.tensor_ranks
        found.append((GangRun(job, gpus.reshape(shape), begin, end), load))

    if scenario.control == "shared":
        halves = everything.reshape(-1, 2, GPUS // 2)
        add(77, halves[:, 0].ravel(), 0.0, end)
        add(78, halves[: scenario.hosts // 2, 1].ravel(), 20.0, end)
    elif scenario.control == "resize":
        fewer = everything[: scenario.hosts // 2 * GPUS] if scenario.seed % 2 else everything
        more = everything if scenario.seed % 2 else everything[: scenario.hosts // 2 * GPUS]
        load = _Workload(scenario, random, min(more.size, fewer.size))
        add(77, fewer, 0.0, scenario.onset - 90.0, load)
        add(77, more, scenario.onset - 60.0, end, load)
    else:
        begin = scenario.onset if scenario.control == "starts" else 0.0
        add(77, everything, begin, scenario.onset if scenario.control == "ends" else end)
    return found


def _begin(scenario: GangScenario) -> tuple[_Parts, np.random.Generator]:
    """Return the parts and what all else is drawn from. The sizes of faults change neither."""
    text = f"{scenario.control} {[one.kind for one in scenario.faults]}"
    random = np.random.default_rng([scenario.seed, crc32(text.encode()), scenario.hosts])
    return _Parts(scenario, random), random


def step_ends(scenario: GangScenario) -> Floats:
    """Return when the steps of the last run of a scenario end, in seconds."""
    parts, random = _begin(scenario)
    runs = _runs(scenario, random)
    random.uniform()
    for run, load in runs:
        player = _Player(scenario, run, load, parts, random)
        player.play()
    return np.array(player.step_ends)


def play(scenario: GangScenario) -> GangRecord:
    """Play a scenario. The same scenario gives the same record."""
    parts, random = _begin(scenario)
    count, slots = scenario.hosts * GPUS, scenario.seconds * SLOTS_PER_SECOND
    edges = np.asarray(np.arange(slots + 1) * SLOT_SECONDS, np.float64)
    compute, stall, checkpoint, work, power, exchange, idle = (
        np.zeros((slots, count), dtype=np.float32) for _ in range(7)
    )
    runs = _runs(scenario, random)
    middle = edges[:-1] + SLOT_SECONDS / 2
    idle[:] = 1.0
    port_bytes = np.zeros((slots, scenario.hosts))
    watts = np.zeros((slots, count), dtype=np.float32)
    first = runs[0][1]
    idle_watts = float(random.uniform(65.0, 85.0))
    players = []
    for run, load in runs:
        player = _Player(scenario, run, load, parts, random)
        player.play()
        players.append(player)
        for log, into in (
            (player.compute, compute), (player.stall, stall), (player.checkpoint, checkpoint), (player.work, work),
            (player.power, power), (player.exchange, exchange),
        ):  # fmt: skip
            log.shares(edges, run.gpus, into)
        rows = np.sort(run.gpus.ravel())
        off = (middle < run.begin) | (middle >= run.end)
        for values in (compute, stall, checkpoint, work, power, exchange):
            values[np.ix_(off, rows)] = 0.0
        idle[np.ix_(~off, rows)] = 0.0
        work[:, rows] *= load.tensor
        watts[:, rows] = load.compute_watts * power[:, rows]
        waits = 1 - compute[:, rows] - stall[:, rows] - idle[:, rows]
        watts[:, rows] += load.wait_watts * np.clip(waits, 0, 1)
        rate = load.bytes_a_step / (load.exchange * load.step)
        hosts = rows // GPUS
        held = np.maximum(np.bincount(hosts, minlength=scenario.hosts), 1)
        for host in run.hosts:
            port_bytes[:, host] += rate * exchange[:, rows[hosts == host]].sum(axis=1) / held[host]
    clock = parts.clock_factor(
        np.arange(scenario.seconds, dtype=np.float64) + 0.5, first.memory_share
    )
    clock = np.repeat(clock, SLOTS_PER_SECOND, axis=0).astype(np.float32)
    # A GPU that waits has room to boost, but where heat holds the clock down.
    hot = {one.host for one in scenario.faults if one.kind == "thermal"}
    boost = 1 + 0.02 * np.clip(1 - compute, 0, 1)
    held_down = np.repeat([host in hot for host in range(scenario.hosts)], GPUS)
    capped = np.where(held_down | (compute > 0.5), clock, 1.0)
    clock = (capped * boost * parts.clock).astype(np.float32)
    cpu, io, congestion = _host_levels(scenario, random)
    writes = checkpoint.reshape(scenario.seconds, SLOTS_PER_SECOND, scenario.hosts, GPUS).mean(
        axis=(1, 3)
    )
    writers = np.ones(scenario.hosts) if not first.one_writer else (np.arange(scenario.hosts) == 0)
    io = io + 0.4 * writes * writers
    hertz = np.where(np.repeat(parts.is_older, GPUS), 1.41e9, random.uniform(1.6e9, 1.9e9))
    limit = np.where(np.repeat(parts.is_older, GPUS), 400.0, 700.0)
    return GangRecord(
        scenario, [run for run, _ in runs], compute, stall, checkpoint, idle, work, watts + np.float32(idle_watts), clock,
        port_bytes, congestion, cpu, io, first.one_writer, hertz, idle_watts, limit, first.sm_levels, parts.is_older,
        np.array(players[-1].step_ends), np.array([t for p in players for t in p.checkpoint_begins]), first.step,
    )  # fmt: skip


def _host_levels(
    scenario: GangScenario, random: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Return pressure on cores and disks, and congestion of ports: (seconds, hosts)."""
    shape = scenario.seconds, scenario.hosts
    seconds = np.arange(scenario.seconds, dtype=np.float64) + 0.5
    cpu = 0.01 * random.lognormal(0, 0.5, shape)
    io = 0.005 * random.lognormal(0, 0.8, shape)
    congestion = 0.004 * random.lognormal(0, 0.5, shape)
    for one in scenario.faults:
        on = one.strength(seconds)
        if one.kind == "host_cpu":
            cpu[:, one.host] += (
                on * (0.1 + 1.5 * one.slowdown) * random.lognormal(0, 0.2, seconds.size)
            )
        elif one.kind == "nic":
            # The port itself is slow to drain; those that send to it are held back.
            congestion += on[:, None] * one.slowdown * 0.05
            congestion[:, one.host] += on * one.slowdown * 0.3
    if scenario.control == "stall_all":
        io += 0.25 * (seconds >= scenario.onset)[:, None] * random.lognormal(0, 0.2, shape)
    return np.clip(cpu, 0, 1), np.clip(io, 0, 1), congestion


def with_faults(scenario: GangScenario, *faults: HostFault) -> GangScenario:
    """Return *scenario* with these faults."""
    return replace(scenario, faults=faults)
