"""Steps of a gang of the third world: its workload, its GPUs and their faults, and its events."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.quality.pipeline_scenario import (
    GPUS,
    SLOT_SECONDS,
    Floats,
    GangRun,
    GangScenario,
    Rows,
    Shares,
)


class Workload:
    """The random settings of one job: its layout, lengths and power levels."""

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
        # First and last stages have additional layers.
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
class EventLog:
    """Events of one run, as arrays by (GPU, event): time and weight."""

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
        for index, gpu in enumerate(gpu_order.ravel()):
            # Empty events, of other stages, may lie anywhere.
            real = np.flatnonzero(ends[:, index] > begins[:, index])
            order = real[np.argsort(begins[real, index], kind="stable")]
            begin, end = begins[order, index], ends[order, index]
            if not order.size:
                continue
            total = np.concatenate([[0.0], np.cumsum((end - begin) * weights[order, index])])
            times = np.column_stack([begin, end]).ravel()
            values = np.column_stack([total[:-1], total[1:]]).ravel()
            into[:, gpu] += np.diff(np.interp(edges, times, values)) / SLOT_SECONDS


def batch_orders(stages: int, batches: int) -> list[tuple[int, bool, int]]:
    """Return a step's micro-batches in 1F1B order: (stage, is backward, number)."""
    plans: list[list[tuple[bool, int]]] = []
    for stage in range(stages):
        warm = min(stages - stage - 1, batches)
        plan = [(False, m) for m in range(warm)]
        for m in range(batches - warm):
            plan += [(False, warm + m), (True, m)]
        plans.append(plan + [(True, m) for m in range(batches - warm, batches)])
    done: set[tuple[int, bool, int]] = set()
    result: list[tuple[int, bool, int]] = []
    while any(plans):
        for stage, plan in enumerate(plans):
            while plan:
                backward, m = plan[0]
                needs = (stage + 1, True, m) if backward else (stage - 1, False, m)
                if 0 <= needs[0] < stages and needs not in done:
                    break
                done.add((stage, backward, m))
                result.append((stage, backward, m))
                plan.pop(0)
    return result


class StepPlayer:
    """Plays one run of a scenario, step by step."""

    def __init__(
        self,
        scenario: GangScenario,
        run: GangRun,
        load: Workload,
        parts: GpuParts,
        random: np.random.Generator,
    ) -> None:
        self.scenario, self.run, self.load = scenario, run, load
        self.parts, self.random = parts, random
        self.shape = run.gpus.shape
        self.compute, self.work, self.power = EventLog(), EventLog(), EventLog()
        self.stall, self.checkpoint, self.exchange = EventLog(), EventLog(), EventLog()
        self.step_ends: list[float] = []
        self.checkpoint_begins: list[float] = []
        self.orders = batch_orders(load.stages, load.batches)
        self.hosts = run.gpus // GPUS
        self.is_in = np.ones(self.shape)
        base = load.step * (1 - load.exchange - load.update - load.load)
        bubbles = load.batches + load.stages - 1
        #: Seconds of a forward and a backward micro-batch; backward takes twice as long.
        self.forward, self.backward = base / bubbles / 3, 2 * base / bubbles / 3
        #: The popularity of the experts on each GPU, a random walk.
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
        """Play an evaluation: forward only, with gaps between batches; ranks wait at the end."""
        seconds = self.random.uniform(6.0, 14.0)
        count = 12
        for index in range(count):
            begin = np.full(self.shape, now + index * seconds / count)
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
        loading = load.load * load.step * random.lognormal(0, 0.3, self.shape[:2])[..., None]
        gap = self._stalls(now, loading * np.ones(self.shape))
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
                begin = np.full_like(begin, begin.max())  # fully sharded: all wait for the last
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
        self, stage: int, begin: Floats, started: Floats, finished: Floats, effects: StepEffects
    ) -> None:
        """Record a micro-batch of one stage; the other stages' GPUs get an empty event."""

        def whole(values: Floats, fill: float) -> Floats:
            result = np.full(self.shape, fill)
            result[stage] = values
            return result

        at = float(begin[0])
        starts, ends = whole(started, at), whole(finished, at)
        if (started > begin[:, None]).any():
            self.stall.put(whole(np.broadcast_to(begin[:, None], started.shape), at), starts)
        self.compute.put(starts, ends)
        # The same tensor cycles, spread over a longer time.
        self.work.put(starts, ends, whole(1 / effects.time[stage], 0.0))
        self.power.put(
            starts, ends, whole(effects.power[stage] * self.load.stage_power[stage], 0.0)
        )

    def _reduce(self, previous: dict[int, Floats], effects: StepEffects, scale: float) -> float:
        """Reduce gradients over the replicas of each stage; return the end of the last reduction."""
        ends = []
        for stage, ready in previous.items():
            begin = float(ready.max())
            slow = float(effects.network[stage].max()) * self.load.step
            usual = self.load.exchange * self.load.step
            length = usual * scale * float(self.random.lognormal(0, 0.03)) + slow
            begins = np.full(self.shape, begin)
            finish = begins.copy()
            finish[stage] += length
            self.exchange.put(begins, finish, usual / max(length, 1e-9))
            ends.append(begin + length)
        return max(ends)

    def _stretch(self, now: float) -> Floats:
        """Return the work factor per rank: (stages, replicas, ranks[, micro-batches])."""
        control, random = self.scenario.control, self.random
        if control == "sequence":
            # Long-tailed documents: a replica's micro-batch takes as long as its longest document,
            # on all its stages.
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
class StepEffects:
    """Effects of parts and faults on a step at one moment, by (stage, replica, rank)."""

    time: Floats  # factor of a micro-batch's duration
    power: Floats  # relative to usual computing
    gap: Floats  # added before micro-batches, as a share of a step
    network: Floats  # added to the exchange, as a share of a step


class GpuParts:
    """The GPUs of all hosts: healthy spread, models and faults."""

    def __init__(self, scenario: GangScenario, random: np.random.Generator) -> None:
        count = scenario.hosts * GPUS
        self.scenario = scenario
        sigma = random.uniform(0.012, 0.019)
        speed = sigma * np.clip(random.standard_normal(count), -2.5, 2.5)
        #: Most of the spread is the clock that the part's leakage allows; the rest is invisible.
        self.clock = 1 + 0.85 * speed
        self.hidden = 1 + 0.15 * speed + 0.002 * random.standard_normal(count)
        self.power = 1 + 0.02 * random.standard_normal(count)
        self.is_older = np.zeros(scenario.hosts, dtype=bool)
        if scenario.control == "mixed":
            self.is_older[random.permutation(scenario.hosts)[: scenario.hosts // 2]] = True
        self.older_time = random.uniform(1.1, 1.5)
        #: Heat affects the GPUs of a host differently.
        self.heat_share = random.uniform(0.75, 1.0, (scenario.hosts, GPUS))
        self.heat_share[np.arange(scenario.hosts), random.integers(GPUS, size=scenario.hosts)] = 1.0

    def clock_factor(self, seconds: Floats, memory_share: float) -> Floats:
        """Return the clock while computing, relative to each part's own: (times, GPUs)."""
        result = np.ones((seconds.size, self.clock.size))
        for fault in self.scenario.faults:
            if fault.kind not in ("thermal", "power_cap"):
                continue
            strength = fault.slowdown * fault.strength(seconds)[:, None]
            if fault.kind == "thermal":
                strength = strength * self.heat_share[fault.host]
            rows = slice(fault.host * GPUS, (fault.host + 1) * GPUS)
            # Memory-bound time is not affected by the clock.
            result[:, rows] *= (1 - memory_share) / (1 - memory_share + strength)
        if self.scenario.control == "slow_all":
            result[seconds >= self.scenario.onset] *= (1 - memory_share) / (1 - memory_share + 0.12)
        return result

    def effects(self, now: float, gpus: Rows, load: Workload) -> StepEffects:
        """Return the effects on a step that begins at *now*."""
        at = np.array([now])
        clock = (self.clock * self.clock_factor(at, load.memory_share)[0])[gpus]
        memory = load.memory_share
        time = (memory + (1 - memory) / clock) / self.hidden[gpus]
        power = self.power[gpus] * clock**load.power_exponent
        gap, network = np.zeros(gpus.shape), np.zeros(gpus.shape)
        older = self.is_older[gpus // GPUS]
        time = np.where(older, time * self.older_time, time)
        power = np.where(older, 0.6 * power, power)
        for fault in self.scenario.faults:
            slow = fault.slowdown * float(fault.strength(at)[0])
            there, gpu = gpus // GPUS == fault.host, fault.host * GPUS + fault.gpu
            if fault.kind in ("silent_host", "silent_gpu"):
                where = there if fault.kind == "silent_host" else gpus == gpu
                time = np.where(where, time * (1 + slow), time)
                power = np.where(where, power * (1 - 0.5 * slow), power)
            elif fault.kind == "host_cpu":
                gap = gap + slow * there
            elif fault.kind == "pcie":
                gap = gap + slow * (gpus == gpu)
            elif fault.kind == "nic":
                network = network + slow * there
        return StepEffects(time, power, gap, network)
