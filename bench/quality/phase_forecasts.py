"""States and forecasts of the agent's tracker (`ext.phases`) against the truth of the second and third worlds.

*Checkpoint state* is judged by seconds: a second is positive if half of it or more is checkpoint.

- *As reported*: the share that the agent sends at that second. It cannot know a cadence before the third checkpoint.
- *In the end*: the segments when the run has ended; by then earlier checkpoints are recognized too.
- Both use only samples at 10 Hz.
- *evaluation*: runs whose pauses are evaluations, with few checkpoints. A pause reported as checkpoint is wrong there.

*The next checkpoint*: every ten seconds the tracker states its time (`next_checkpoint_seconds`), and the probability p that
it begins within a tenth of the interval of that time. It states no other probability. These two give one for any window:
p is spread evenly over that tenth to both sides, and the rest over the whole interval.

Three methods are compared at the same moments. *Persistence*: the present state continues. *The interval alone*: the last
begin plus one interval, with certainty. *The base rate* of the interval. No window is longer than the interval.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bench.quality import bsp_world as bsp
from bench.quality.followed_gpu import FollowedGpu
from bench.quality.markdown import table
from bench.quality.pipeline_readings import RATE, DriverReadings
from bench.quality.pipeline_scenario import GPUS, Floats, GangScenario
from bench.quality.pipeline_world import play
from bench.quality.progress import Progress, in_processes
from gangline.ext.phases import SIGNALS, STATES

SECOND_NS = 1_000_000_000
CHECKPOINT = STATES.index("checkpoint")
SECONDS, HOSTS = 900, 4
#: GPUs followed in each run: the writer of a checkpoint, if there is one, and others.
FOLLOWED = (0, 3, 17, 30)
#: Forecasts are read at the interval at which agents send them. Windows, and the horizon of a state,
#: in seconds.
FORECAST_SECONDS = 10
WINDOWS = (30.0, 60.0)
HORIZON = 30.0
#: Interval of reading segments: the tracker keeps 128 per GPU.
SEGMENT_SECONDS = 10
#: A cadence needs this many past checkpoints.
KNOWN_AFTER = 3
PER_WORLD = 8

PREDICTORS = ("tracker", "persistence", "interval", "base")
#: World and kind: with frequent checkpoints, with rare ones, and with a single writer.
RUNS = (
    ("second", "checkpoints_often"), ("second", "checkpoints_rare"), ("third", "checkpoint_30s"),
    ("third", "checkpoint_120s"), ("third", "checkpoint_one_writer"), ("third", "evaluation"),
)  # fmt: skip
STATE_HEADINGS = (
    "world | runs | GPM | checkpoint F1 (precision / recall), as reported | from the fourth on | in"
    " the end | all five states right"
)
NEXT_HEADINGS = (
    "world | runs | GPM | forecast stated | lead time s, p50 / p10 | of checkpoints | within | "
    + " | ".join((*PREDICTORS, "came"))
)


class TracedGpu(NamedTuple):
    """One GPU's readings at 10 Hz, and the truth."""

    samples: np.ndarray  # float32 (samples, SIGNALS)
    checkpoint: Floats  # share of each second
    begins: Floats  # of checkpoints, seconds
    state: Floats  # (seconds, STATES): shares; wait holds collectives


@dataclass
class ForecastScore:
    """Sums over moments: squared errors by predictor, and number of moments and events."""

    squares: dict[str, float] = field(default_factory=dict[str, float])
    moments: int = 0
    events: int = 0

    def add(self, came: bool, **probabilities: float) -> None:
        self.moments += 1
        self.events += came
        for name, value in probabilities.items():
            self.squares[name] = self.squares.get(name, 0.0) + (value - came) ** 2

    def merge(self, other: ForecastScore) -> None:
        self.moments += other.moments
        self.events += other.events
        for name, value in other.squares.items():
            self.squares[name] = self.squares.get(name, 0.0) + value

    def brier(self, name: str) -> str:
        return f"{self.squares.get(name, 0.0) / self.moments:.3f}" if self.moments else "-"


@dataclass
class TrackedRun:
    """Counts over the followed GPUs of one run."""

    world: str
    has_gpm: bool
    kind: str
    online: list[int] = field(default_factory=lambda: [0, 0, 0])  # true and false positives, misses
    later: list[int] = field(
        default_factory=lambda: [0, 0, 0]
    )  # the same, counted after the fourth checkpoint
    in_the_end: list[int] = field(default_factory=lambda: [0, 0, 0])
    right_seconds: int = 0  # seconds whose largest share is the true state's
    seconds: int = 0
    windows: dict[float, ForecastScore] = field(default_factory=dict[float, ForecastScore])
    state: ForecastScore = field(default_factory=ForecastScore)
    leads: list[float] = field(default_factory=list[float])
    checkpoints: int = 0  # predictable: the fourth and later
    unstated: int = 0  # moments without a forecast
    asked: int = 0


def third_world(seed: int, control: str, *, has_gpm: bool) -> list[TracedGpu]:
    """Play a run of the third world, and return the followed GPUs."""
    scenario = GangScenario(seed, control=control, hosts=HOSTS, seconds=SECONDS, has_gpm=has_gpm)
    record = play(scenario)
    readings = DriverReadings(record, np.random.default_rng([seed, 9]))
    per = record.compute.shape[0] // SECONDS

    def by_second(values: np.ndarray, gpu: int) -> Floats:
        return np.asarray(values[:, gpu].reshape(SECONDS, per).mean(axis=1), dtype=float)

    result = []
    for gpu in FOLLOWED:
        compute, writes = by_second(record.compute, gpu), by_second(record.checkpoint, gpu)
        stall = by_second(record.stall * (record.checkpoint < 0.5), gpu)
        idle = by_second(record.idle, gpu)
        wait = np.clip(1 - compute - writes - stall - idle, 0, 1)
        state = np.column_stack([compute, wait, stall, writes, idle])
        result.append(TracedGpu(readings.samples(gpu), writes, record.checkpoint_begins, state))
    return result


def second_world(seed: int, kind: str, *, has_gpm: bool) -> list[TracedGpu]:
    """Play an episode of the second world, and return the followed GPUs."""
    random = np.random.default_rng([seed, 11])
    plan = bsp.Plan(kind, 0.0, hosts=HOSTS, seed=seed, seconds=SECONDS, has_gpm=has_gpm)
    episode = bsp.play(plan)
    result = []
    for gpu in FOLLOWED:
        shares = episode.shares[:, gpu // GPUS, gpu % GPUS]
        power = episode.watts[:, gpu // GPUS, gpu % GPUS]
        if not has_gpm:
            power = np.convolve(power, np.ones(RATE) / RATE)[: power.size]
        delay = episode.delay_slots + (not has_gpm)
        power = np.concatenate([np.repeat(power[:1], delay), power[:-delay]])
        power = power * (1 + 0.01 * random.standard_normal(power.size))
        samples = np.full((power.size, len(SIGNALS)), np.nan, dtype=np.float32)
        samples[:, SIGNALS.index("power_watts")] = np.round(power, 1)
        samples[:, SIGNALS.index("sm_clock_hertz")] = 1.7e9
        samples[:, SIGNALS.index("clock_event_reasons_flags")] = 0
        is_writer = gpu == 0
        resident = shares[:, (bsp.COMPUTE, bsp.WAIT, bsp.EXCHANGE)].sum(axis=1)
        resident = resident + shares[:, bsp.CHECKPOINT] * (0.03 if is_writer else 1.0)
        samples[1::2, SIGNALS.index("utilization_ratio")] = np.clip(resident, 0, 1)[1::2]
        if has_gpm:
            high, low = episode.sm_levels
            active = shares[:, bsp.COMPUTE] * high + low * np.clip(
                resident - shares[:, bsp.COMPUTE], 0, 1
            )
            samples[::2, SIGNALS.index("sm_active_ratio")] = active[::2]
            samples[::2, SIGNALS.index("tensor_active_ratio")] = episode.work[
                ::2, gpu // GPUS, gpu % GPUS
            ]
        each = shares.reshape(SECONDS, RATE, bsp.STATES).mean(axis=1)
        writes = each[:, bsp.CHECKPOINT]
        begins = (
            np.flatnonzero((writes > 0) & (np.concatenate([[0.0], writes[:-1]]) == 0))
            + 1
            - writes[(writes > 0) & (np.concatenate([[0.0], writes[:-1]]) == 0)]
        )
        wait = each[:, bsp.WAIT] + each[:, bsp.EXCHANGE]
        state = np.column_stack(
            [each[:, bsp.COMPUTE], wait, each[:, bsp.STALL], writes, np.zeros(SECONDS)]
        )
        result.append(TracedGpu(samples, writes, begins, state))
    return result


def follow(run: TrackedRun, gpu: TracedGpu) -> None:
    """Run a tracker on one GPU, and add its results to *run*."""
    followed = FollowedGpu()
    tracker = followed.tracker
    times = ((np.arange(len(gpu.samples)) + 1) * (SECOND_NS // RATE)).astype(np.int64)
    reported = np.zeros((SECONDS, len(STATES)))
    forecasts: list[tuple[float, float, float]] = []  # time, predicted time, probability
    segments: dict[int, tuple[str, int]] = {}  # by their begin: state and end, ns
    for second in range(SECONDS):
        at = slice(second * RATE, (second + 1) * RATE)
        followed.push_second(times[at], gpu.samples[at])
        shares = tracker.take_second(0)
        reported[second] = shares[: len(STATES)] if shares is not None else math.nan
        if second % SEGMENT_SECONDS == 0 or second == SECONDS - 1:
            # The tracker keeps only recent segments; their last state counts.
            segments |= {begin: (state, end) for state, begin, end, _, _ in tracker.segments(0)}
        if second % FORECAST_SECONDS == 0:
            job = tracker.job(0, int(times[at][-1]))
            _score_moment(run, gpu, job, second + 1, reported[second], forecasts)
    truth = gpu.checkpoint >= 0.5
    online = reported[:, CHECKPOINT] >= 0.5
    _count(run.online, online, truth)
    if gpu.begins.size > KNOWN_AFTER:
        later = int(gpu.begins[KNOWN_AFTER])
        _count(run.later, online[later:], truth[later:])
    ended = np.zeros(SECONDS)
    edges = np.arange(SECONDS + 1) * float(SECOND_NS)
    for begin_ns, (state, end_ns) in segments.items():
        if state == "checkpoint":
            ended += (
                np.clip(np.minimum(edges[1:], end_ns) - np.maximum(edges[:-1], begin_ns), 0, None)
                / SECOND_NS
            )
    _count(run.in_the_end, ended >= 0.5, truth)
    run.right_seconds += int((reported.argmax(axis=1) == gpu.state.argmax(axis=1)).sum())
    run.seconds += SECONDS
    _add_leads(run, gpu.begins, forecasts)


def _count(counts: list[int], said: np.ndarray, truth: np.ndarray) -> None:
    for index, which in enumerate((said & truth, said & ~truth, ~said & truth)):
        counts[index] += int(which.sum())


def window_probability(
    seconds: float, tenth: float, probability: float, interval: float, begin: float, end: float
) -> float:
    """Return the stated probability of a checkpoint between *begin* and *end* seconds from now."""
    low, high = max(seconds - tenth, 0.0), max(seconds + tenth, 0.1)
    inside = max(min(high, end) - max(low, begin), 0.0) / (high - low)
    return min(probability * inside + (1 - probability) * min((end - begin) / interval, 1.0), 1.0)


def _score_moment(
    run: TrackedRun, gpu: TracedGpu, job: dict[str, float], now: float, reported: Floats,
    forecasts: list[tuple[float, float, float]],
) -> None:  # fmt: skip
    if now < 60 or now + max(WINDOWS) > SECONDS:
        return
    run.asked += 1
    seconds, probability = job["next_checkpoint_seconds"], job["next_checkpoint_probability_ratio"]
    interval, duration = job["checkpoint_interval_seconds"], job["checkpoint_duration_seconds"]
    if not all(map(math.isfinite, (seconds, probability, interval))):
        run.unstated += 1
        return
    forecasts.append((now, now + seconds, probability))
    is_writing = float(reported[CHECKPOINT] >= 0.5)
    duration = duration if math.isfinite(duration) else 0.0
    tenth = 0.1 * interval
    for window in WINDOWS:
        came = bool(((gpu.begins > now) & (gpu.begins <= now + window)).any())
        run.windows.setdefault(window, ForecastScore()).add(
            came, tracker=window_probability(seconds, tenth, probability, interval, 0.0, window), persistence=0.0,
            interval=float(seconds <= window), base=min(window / interval, 1.0),
        )  # fmt: skip
    is_then = bool(gpu.checkpoint[min(int(now + HORIZON), SECONDS - 1)] >= 0.5)
    at = HORIZON - duration
    run.state.add(
        is_then, tracker=window_probability(seconds, tenth, probability, interval, at, HORIZON), persistence=is_writing,
        interval=float(at < seconds <= HORIZON), base=min(duration / interval, 1.0),
    )  # fmt: skip


def _add_leads(
    run: TrackedRun, begins: Floats, forecasts: Sequence[tuple[float, float, float]]
) -> None:
    """Add how long before each checkpoint its forecast became right, and stayed right.

    A forecast is right within a tenth of the interval.
    """
    for before, begin in itertools.pairwise(begins[2:]):
        run.checkpoints += 1
        lead = 0.0
        for now, at, _ in sorted(forecasts, reverse=True):
            if not before < now <= begin:
                continue
            if abs(at - begin) > 0.1 * (begin - before):
                break
            lead = begin - now
        if lead:
            run.leads.append(lead)


def track(run: tuple[str, str, int, bool]) -> TrackedRun:
    """Play one run of a world, and follow its GPUs."""
    world, kind, seed, has_gpm = run
    played = (third_world if world == "third" else second_world)(seed, kind, has_gpm=has_gpm)
    tracked_run = TrackedRun(world, has_gpm, kind)
    for gpu in played:
        follow(tracked_run, gpu)
    return tracked_run


def _f1(counts: Sequence[int]) -> str:
    hits, false, missed = counts
    if not hits + missed:
        return "-"
    return f"{2 * hits / (2 * hits + false + missed):.2f} ({hits / max(hits + false, 1):.2f} / {hits / (hits + missed):.2f})"


def _together(runs: Sequence[TrackedRun]) -> TrackedRun:
    tracked_run = TrackedRun("", True, "")
    for run in runs:
        for name in ("online", "later", "in_the_end"):
            pairs = zip(getattr(tracked_run, name), getattr(run, name), strict=True)
            setattr(tracked_run, name, [first + second for first, second in pairs])
        for window, score in run.windows.items():
            tracked_run.windows.setdefault(window, ForecastScore()).merge(score)
        tracked_run.state.merge(run.state)
        tracked_run.leads += run.leads
        for name in ("checkpoints", "unstated", "asked", "right_seconds", "seconds"):
            setattr(tracked_run, name, getattr(tracked_run, name) + getattr(run, name))
    return tracked_run


def rows(runs: Sequence[TrackedRun]) -> tuple[list[list[str]], list[list[str]]]:
    states, forecasts = [], []
    for world, kind, has_gpm in dict.fromkeys((run.world, run.kind, run.has_gpm) for run in runs):
        total = _together(
            [run for run in runs if (run.world, run.kind, run.has_gpm) == (world, kind, has_gpm)]
        )
        head = [world, kind, "yes" if has_gpm else "no"]
        checkpoints = map(_f1, (total.online, total.later, total.in_the_end))
        states.append([*head, *checkpoints, f"{100 * total.right_seconds / total.seconds:.0f} %"])
        leads = sorted(total.leads)
        lead = f"{statistics.median(leads):.0f} / {leads[len(leads) // 10]:.0f}" if leads else "-"
        stated = f"{total.asked - total.unstated} of {total.asked}"
        head += [stated, lead, f"{len(leads)} of {total.checkpoints}"]
        scores = [(f"{window:.0f} s", score) for window, score in sorted(total.windows.items())]
        for name, score in [*scores, (f"writing in {HORIZON:.0f} s", total.state)]:
            came = f"{score.events / score.moments:.2f}" if score.moments else "-"
            forecasts.append([*head, name, *(score.brier(p) for p in PREDICTORS), came])
            head = [""] * len(head)
    return states, forecasts


def section(seed: int, progress: Progress) -> str:
    plans = [
        (world, kind, 1000 * seed + number, has_gpm)
        for world, kind in RUNS for has_gpm in (True, False) for number in range(PER_WORLD if has_gpm else PER_WORLD // 2)
    ]  # fmt: skip
    states, forecasts = rows(in_processes(track, plans, progress, "phase forecasts"))
    return "\n".join([
        "## States and the next checkpoint", "", "*Simulated.* " + str(__doc__).strip(), "",
        f"Runs of {SECONDS} s, {len(FOLLOWED)} GPUs of each. A forecast counts for the lead time if it is within a tenth of the interval, and remains so.",
        "Brier scores: 0 is best. *Base* is the score of a forecast that only knows the frequency.", "",
        table(STATE_HEADINGS, states), "", table(NEXT_HEADINGS, forecasts), "",
    ])  # fmt: skip
