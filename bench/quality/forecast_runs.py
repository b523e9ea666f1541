"""Runs whose future is known: what the aggregator sees of a gang each second, and the truth of that second.

- *Gangs* are played by the bulk-synchronous world (`bsp_world`), read at 10 Hz as a driver would, and classified by the
  tracker that runs on hosts.
- *Workloads* are drawn from the ranges of `bench/generated_fingerprints.py`, second by second, without a tracker. Their
  checkpoints have a jitter of up to a tenth, and one in twenty is missing.
- *Recordings* are power and utilization of eight H100s, through the same tracker. They have no log of steps. A pause is
  therefore where the mean power of the eight is below the middle between its 2nd and 98th percentile for 2 s or longer.
  The state of a second is what the tracker reported.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite, nan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.generated_fingerprints import CLASSES, generate
from bench.quality import bsp_world as bsp
from gangline.ext.periods import estimate
from gangline.ext.phases import SIGNALS, PhaseTracker
from gangline.fingerprints.fingerprint import NUMBERS
from gangline.fingerprints.forecast import (
    CHECKPOINT,
    COMPUTE,
    HOST_STALL,
    IDLE,
    STATES,
    WAIT,
    JobSecond,
)

Floats = NDArray[np.float64]
BEGIN_NS = 1_000_000_000_000
#: Seconds of each run, and kinds of gangs: no gang has a faulty host, most pause.
GANG_SECONDS, WORKLOAD_SECONDS = 1800, 2400
GANG_KINDS = (
    "healthy", "checkpoints_often", "checkpoints_rare", "evaluates", "stall_all", "sequence",
)  # fmt: skip
#: The shortest counted pause.
PAUSE_SECONDS_MIN = 2
#: Share of checkpoints that the generated workloads skip, and the largest change of their interval.
LEFT_OUT, JITTER_MAX = 0.05, 0.1
_SIGNAL = {name: index for index, name in enumerate(SIGNALS)}


@dataclass(frozen=True)
class KnownRun:
    """`seconds[t]` is the aggregator's view of second t; `state`, `demands` (seconds, DEMANDS) are
    the truth; NaN: unknown.

    `onsets`: kind of pause -> when each one begins, seconds.
    """

    name: str
    seconds: list[JobSecond]
    state: NDArray[np.int64]
    demands: Floats
    onsets: dict[int, list[float]]


def gang(kind: str, seed: int) -> KnownRun:
    plan = bsp.Plan(
        kind, 0.15, hosts=2, seed=seed, seconds=GANG_SECONDS, onset=600.0, culprits=(0,)
    )
    episode = bsp.play(plan)
    random = np.random.default_rng([seed, bsp.hash_of(kind)])
    shape = GANG_SECONDS, bsp.SLOTS_PER_SECOND, plan.hosts, bsp.GPUS
    true = episode.shares.reshape(*shape, bsp.STATES).mean(axis=(1, 2, 3))
    order = {
        COMPUTE: (bsp.COMPUTE,), WAIT: (bsp.WAIT, bsp.EXCHANGE), HOST_STALL: (bsp.STALL,), CHECKPOINT: (bsp.CHECKPOINT,),
        IDLE: (),
    }  # fmt: skip
    shares = np.stack([true[:, order[state]].sum(axis=1) for state in range(len(STATES))], axis=1)
    samples = _samples(episode, random)
    summaries = _tracked(samples, 1 / bsp.SLOTS_PER_SECOND)
    ports = episode.port_bytes.reshape(GANG_SECONDS, -1, plan.hosts).mean(axis=1).sum(axis=1)
    disks = episode.pressure.reshape(GANG_SECONDS, -1, plan.hosts, 2)[..., 1].mean(axis=(1, 2))
    power = episode.watts.reshape(shape).mean(axis=1).sum(axis=(1, 2))
    demands = np.stack([power, np.full(GANG_SECONDS, nan), bsp.GPUS * ports, disks], axis=1)
    seconds = [
        summary._replace(
            demands=(summary.demands[0], nan, float(demands[index, 2]), float(demands[index, 3]))
        )
        for index, summary in enumerate(summaries)
    ]
    onsets = {kind: _onsets(shares[:, kind] > 0.5) for kind in (CHECKPOINT, HOST_STALL)}
    return KnownRun(kind, seconds, shares.argmax(axis=1), demands, onsets)


def _samples(episode: bsp.Episode, random: np.random.Generator) -> NDArray[np.float32]:
    """Return the driver's readings of each GPU at 10 Hz: (GPUs, samples, SIGNALS)."""
    slots = episode.watts.shape[0]
    shares = episode.shares.reshape(slots, -1, bsp.STATES)
    gpus = shares.shape[1]
    result = np.full((gpus, slots, len(SIGNALS)), np.nan, dtype=np.float32)
    power = episode.watts.reshape(slots, gpus)
    power = power * (1 + 0.01 * random.standard_normal(power.shape))
    delay = episode.delay_slots
    power = np.concatenate([np.repeat(power[:1], delay, axis=0), power[:-delay]])
    result[:, :, _SIGNAL["power_watts"]] = power.T
    result[:, :, _SIGNAL["sm_clock_hertz"]] = episode.clock_hertz * episode.clock.reshape(slots, gpus).T  # fmt: skip
    resident = 1.0 - shares[..., bsp.STALL]
    resident[:, 0] -= 0.97 * shares[:, 0, bsp.CHECKPOINT]  # the writer's GPU is empty
    # Utilization and GPM alternate, each over the last two tenths.
    used = (resident[0::2] + resident[1::2]) / 2
    active = (shares * [0.0, episode.sm_levels[0], *[episode.sm_levels[1]] * 3]).sum(axis=2)
    active = (active[0::2] + active[1::2]) / 2 * (1 + 0.01 * random.standard_normal(used.shape))
    work = episode.work.reshape(slots, gpus)
    result[:, 0::2, _SIGNAL["utilization_ratio"]] = np.round(np.clip(used, 0, 1), 2).T
    result[:, 1::2, _SIGNAL["sm_active_ratio"]] = np.clip(active, 0, 1).T
    result[:, 1::2, _SIGNAL["tensor_active_ratio"]] = ((work[0::2] + work[1::2]) / 2).T
    return result


def _tracked(samples: NDArray[np.float32], seconds_per_sample: float) -> list[JobSecond]:
    """Return the hosts' reports of *samples* (GPUs, samples, SIGNALS) per second, as gang means."""
    gpus, count, _ = samples.shape
    per_second = round(1 / seconds_per_sample)
    tracker = PhaseTracker(gpus)
    for gpu in range(gpus):
        tracker.begin_job(gpu)
    times = BEGIN_NS + (np.arange(count + 1)[1:] * seconds_per_sample * 1e9).astype(np.int64)
    result: list[JobSecond] = []
    for second in range(count // per_second):
        span = slice(second * per_second, (second + 1) * per_second)
        taken, learned = [], []
        for gpu in range(gpus):
            if second and second % 120 == 0:
                tracker.set_step(gpu, _period(samples[gpu, span.stop - 120 * per_second : span.stop], seconds_per_sample))  # fmt: skip
            tracker.push_samples(gpu, times[span].data, np.ascontiguousarray(samples[gpu, span]).data)  # fmt: skip
            if (one := tracker.take_second(gpu)) is not None:
                taken.append(one)
            if second % 10 == 0:
                job = tracker.job(gpu, int(times[span.stop - 1]))
                learned.append((job["checkpoint_interval_seconds"], job["next_checkpoint_seconds"]))
        mean = np.mean(taken, axis=0).tolist() if taken else [nan] * (len(STATES) + 1)
        middle = [nan, nan]
        if known := [pair for pair in learned if isfinite(pair[0]) and isfinite(pair[1])]:
            middle = np.median(known, axis=0).tolist()
        power = float(np.nanmean(samples[:, span, 0], axis=1).sum())
        result.append(JobSecond(mean[:5], (power, nan, nan, nan), mean[5], *middle))
    return result


def _period(samples: NDArray[np.float32], seconds_per_sample: float) -> float:
    names = ("power_watts", "utilization_ratio", "sm_active_ratio", "tensor_active_ratio")
    rows = np.ascontiguousarray(samples[:, [_SIGNAL[name] for name in names]].T)
    return estimate(rows[np.isfinite(rows).any(axis=1)].copy().data, seconds_per_sample)[0]


def workloads(seed: int, count: int) -> list[KnownRun]:
    """Return *count* runs of drawn workloads that pause at predictable times."""
    random = np.random.default_rng([seed, 7])
    drawn = generate(seed, 40 * count, 1)
    result: list[KnownRun] = []
    for values, label in zip(drawn.values, drawn.label, strict=True):
        row: dict[str, float] = dict(zip(NUMBERS, values.tolist(), strict=True))
        interval = row["checkpoint_interval_seconds"]
        if len(result) < count and 40 <= interval <= 400 and isfinite(row["compute_ratio"]):
            result.append(_workload(random, row, CLASSES[label]))
    return result


def _workload(random: np.random.Generator, at: Mapping[str, float], name: str) -> KnownRun:
    count = WORKLOAD_SECONDS
    mix = np.array([at["compute_ratio"], at["wait_ratio"], at["host_stall_ratio"], 0.0, 0.0])
    shares = random.dirichlet(np.maximum(mix / mix.sum(), 1e-3) * 30, count)
    jitter = random.uniform(0.0, JITTER_MAX)
    duration = max(3.0, 0.04 * at["checkpoint_interval_seconds"])
    now = random.uniform(0, at["checkpoint_interval_seconds"])
    onsets: list[float] = []
    while now < count:
        if random.random() >= LEFT_OUT:
            length = max(2.0, duration * (1 + 0.2 * random.standard_normal()))
            onsets.append(now)
            shares[int(now) : int(now + length)] = np.eye(len(STATES))[CHECKPOINT]
        now += at["checkpoint_interval_seconds"] * (1 + jitter * random.standard_normal())
    # Hosts call a pause a checkpoint after three of them.
    seen = shares.copy()
    hidden = int(onsets[3]) if len(onsets) > 3 else count
    seen[:hidden, WAIT] += seen[:hidden, CHECKPOINT]
    seen[:hidden, CHECKPOINT] = 0.0
    watts = shares @ np.array([700 * at["compute_power_ratio"], 250.0, 130.0, 160.0, 80.0])
    watts *= 1 + 0.02 * random.standard_normal(count)
    bytes_ = [np.full(count, nan)] * 2
    if isfinite(nic := at["nic_bytes_per_second"]):
        bytes_[1] = nic * shares[:, COMPUTE] * (1 + 0.15 * random.standard_normal(count))
    demands = np.stack([64 * watts, *bytes_, np.full(count, nan)], axis=1)
    seconds = [
        JobSecond(share, demand)
        for share, demand in zip(seen.tolist(), demands.tolist(), strict=True)
    ]
    return KnownRun(name, seconds, shares.argmax(axis=1), demands, {CHECKPOINT: onsets})


def recording(path: Path) -> KnownRun:
    """Return a recorded run. Its truth is the tracker's state, except for the pauses."""
    with path.open(newline="") as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file)][1:]
    gpus = 8
    count = len(rows) // gpus
    samples = np.full((gpus, count, len(SIGNALS)), np.nan, dtype=np.float32)
    for index, row in enumerate(rows[: count * gpus]):
        samples[index % gpus, index // gpus, 0] = float(row[1].split()[0])
        samples[index % gpus, index // gpus, _SIGNAL["utilization_ratio"]] = float(row[2].split()[0]) / 100  # fmt: skip
    stamps = [
        datetime.strptime(rows[row][0], "%Y/%m/%d %H:%M:%S.%f") for row in (0, (count - 1) * gpus)
    ]
    per_sample = (stamps[1] - stamps[0]).total_seconds() / (count - 1)
    samples = _resampled(samples, per_sample)
    summaries = _tracked(samples, 0.1)
    shares = np.array([summary.shares for summary in summaries])
    demands = np.array([summary.demands for summary in summaries])
    power = demands[:, 0]
    middle = float(np.mean(np.percentile(power, (2, 98))))
    pauses = _onsets(power < middle)
    return KnownRun(path.stem, summaries, np.nan_to_num(shares).argmax(axis=1), demands, {CHECKPOINT: pauses})  # fmt: skip


def _resampled(samples: NDArray[np.float32], seconds_per_sample: float) -> NDArray[np.float32]:
    """Return *samples* at 10 Hz: the latest sample at each tenth."""
    count = int(samples.shape[1] * seconds_per_sample * 10) // 10 * 10
    row = np.minimum(
        (np.arange(count) * 0.1 / seconds_per_sample).astype(int), samples.shape[1] - 1
    )
    return np.ascontiguousarray(samples[:, row])


def _onsets(is_on: NDArray[np.bool_]) -> list[float]:
    """Return the starts of stretches of PAUSE_SECONDS_MIN seconds or longer."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_on.astype(int), [0]])))
    return [
        float(begin)
        for begin, end in zip(edges[0::2], edges[1::2], strict=True)
        if end - begin >= PAUSE_SECONDS_MIN
    ]
