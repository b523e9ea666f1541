"""A third world, unknown to the judge: gangs with parallel roles, as events on a timeline of 20 ms.

Each micro-batch of each stage is an event (schedule 1F1B: Narayanan et al. 2021, Megatron-LM): it
begins when its predecessor's activations arrive, and ends with the slowest GPU of its tensor
parallel group. Without stages the whole gang synchronizes at each micro-batch, like fully sharded
training. Then each stage reduces its gradients over its replicas, and all update.

Measured values: healthy GPUs' speeds differ by 2.3 to 3.0 % between quartiles in compute-bound work
and 0.1 % in memory-bound work (SGEMM, ResNet, PageRank of one cluster; the hotter part has the
lower clock); an H100 draws about 70 W idle, 150 W with a resident collective and 430 to 560 W in
training. All other ranges are assumed. This world shares no code and
no model with `bsp_world`, the simulator or the judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from bench.quality.pipeline_scenario import (
    GPUS,
    SLOT_SECONDS,
    SLOTS_PER_SECOND,
    Floats,
    GangRun,
    GangScenario,
    Rows,
    Shares,
)
from bench.quality.pipeline_steps import GpuParts, StepPlayer, Workload


@dataclass
class GangRecord:
    """The events over slots and flat GPUs, or by host and slot; and the truth."""

    scenario: GangScenario
    runs: list[GangRun]
    compute: Shares  # share of the slot with computing
    stall: Shares  # no resident kernel, although its job runs
    checkpoint: Shares  # its job writes a checkpoint
    idle: Shares  # no job
    work: Shares  # tensor cycles a second, relative to the maximum at the usual clock
    watts: Shares  # power draw
    clock: Shares  # relative to the part's usual clock
    port_bytes: Floats  # (slots, hosts): bytes per second of each port
    congestion: Floats  # (seconds, hosts): share of time in which ports wait for the network
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


def _runs(scenario: GangScenario, random: np.random.Generator) -> list[tuple[GangRun, Workload]]:
    """Return the runs with their GPUs and times, and their workloads."""
    everything = np.arange(scenario.hosts * GPUS)
    end, result = float(scenario.seconds), []

    def add(job: int, gpus: Rows, begin: float, end: float, load: Workload | None = None) -> None:
        load = Workload(scenario, random, gpus.size) if load is None else load
        shape = load.stages, gpus.size // load.tensor_ranks // load.stages, load.tensor_ranks
        result.append((GangRun(job, gpus.reshape(shape), begin, end), load))

    if scenario.control == "shared":
        halves = everything.reshape(-1, 2, GPUS // 2)
        add(77, halves[:, 0].ravel(), 0.0, end)
        add(78, halves[: scenario.hosts // 2, 1].ravel(), 20.0, end)
    elif scenario.control == "resize":
        fewer = everything[: scenario.hosts // 2 * GPUS] if scenario.seed % 2 else everything
        more = everything if scenario.seed % 2 else everything[: scenario.hosts // 2 * GPUS]
        load = Workload(scenario, random, min(more.size, fewer.size))
        add(77, fewer, 0.0, scenario.onset - 90.0, load)
        add(77, more, scenario.onset - 60.0, end, load)
    else:
        begin = scenario.onset if scenario.control == "starts" else 0.0
        add(77, everything, begin, scenario.onset if scenario.control == "ends" else end)
    return result


def _begin(scenario: GangScenario) -> tuple[GpuParts, np.random.Generator]:
    """Return the parts and the generator of other draws; sizes of faults do not change them."""
    text = f"{scenario.control} {[fault.kind for fault in scenario.faults]}"
    random = np.random.default_rng([scenario.seed, crc32(text.encode()), scenario.hosts])
    return GpuParts(scenario, random), random


def step_ends(scenario: GangScenario) -> Floats:
    """Return the ends of steps, seconds: of the last run, or of that on the first fault's GPU."""
    parts, random = _begin(scenario)
    runs = _runs(scenario, random)
    random.uniform()
    result: list[float] = []
    for run, load in runs:
        player = StepPlayer(scenario, run, load, parts, random)
        player.play()
        gpus = [fault.host * GPUS + fault.gpu for fault in scenario.faults[:1]]
        if np.isin(gpus, run.gpus).all():
            result = player.step_ends
    return np.array(result)


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
        player = StepPlayer(scenario, run, load, parts, random)
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
    # A waiting GPU can boost, unless heat limits its clock.
    hot = {fault.host for fault in scenario.faults if fault.kind == "thermal"}
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
    for fault in scenario.faults:
        on = fault.strength(seconds)
        if fault.kind == "host_cpu":
            cpu[:, fault.host] += (
                on * (0.1 + 1.5 * fault.slowdown) * random.lognormal(0, 0.2, seconds.size)
            )
        elif fault.kind == "nic":
            # The port itself drains slowly and delays its senders.
            congestion += on[:, None] * fault.slowdown * 0.05
            congestion[:, fault.host] += on * fault.slowdown * 0.3
    if scenario.control == "stall_all":
        io += 0.25 * (seconds >= scenario.onset)[:, None] * random.lognormal(0, 0.2, shape)
    return np.clip(cpu, 0, 1), np.clip(io, 0, 1), congestion
