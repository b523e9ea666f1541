"""Random jobs that pause: checkpoints, evaluations and stalls, as one GPU's driver shows them.

The timeline is exact; a reading is the mean over the driver's own window. No recording was used to
choose a range.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gangline.ext.phases import SIGNALS

Floats = NDArray[np.float64]

SECOND_NS = 1_000_000_000
STEP_SECONDS = (0.1, 60.0)
CHECKPOINT_SECONDS = (8.0, 240.0)
PAUSE_SECONDS = (0.7, 40.0)
#: A checkpoint comes after at least this many steps.
CHECKPOINT_STEPS_MIN = 10
#: Windows over which drivers average power, seconds.
POWER_WINDOWS = (0.02, 0.1, 0.5, 1.0)
STEP, CHECKPOINT, EVALUATION, STALL, START = "step", "checkpoint", "evaluation", "stall", "start"


class Level(NamedTuple):
    """Readings of one part of a step: watts, shares of time, bytes a second."""

    watts: float
    active: float
    tensor: float
    bandwidth: float
    resident: float
    sent: float = 2e5
    received: float = 2e7


class Span(NamedTuple):
    """A part of the timeline, in seconds."""

    kind: str
    begin: float
    end: float


@dataclass(frozen=True)
class PlayedJob:
    """Readings of one GPU, and the truth."""

    times_ns: NDArray[np.int64]
    samples: NDArray[np.float32]  # (samples, SIGNALS)
    step_seconds: float
    spans: list[Span]
    has_gpm: bool
    power_window: float
    #: Whether any reading differs between the parts of a step.
    has_structure: bool
    batches: int

    def of(self, kind: str) -> list[Span]:
        """Return the spans of *kind*, oldest first."""
        return [span for span in self.spans if span.kind == kind]


@dataclass
class _Timeline:
    """Parts of constant level, one after another."""

    now: float = 0.0
    ends: list[float] = field(default_factory=list[float])
    levels: list[Level] = field(default_factory=list[Level])
    spans: list[Span] = field(default_factory=list[Span])

    def add(self, level: Level, seconds: float) -> None:
        self.now += max(seconds, 0.0)
        self.ends.append(self.now)
        self.levels.append(level)

    def mark(self, kind: str, begin: float) -> None:
        """Record that *kind* lasted from *begin* until now."""
        self.spans.append(Span(kind, begin, self.now))


def log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    """Return a value distributed evenly in its logarithm."""
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


class JobDraw:
    """The random settings of a job. A checkpoint comes after some steps, or after a time."""

    def __init__(self, random: np.random.Generator, **fixed: float) -> None:
        """*fixed*: attributes with given values."""
        self.random = random
        self.step_seconds = fixed.get("step_seconds", log_uniform(random, *STEP_SECONDS))
        self.jitter = random.uniform(0.001, 0.02)
        compute = random.uniform(250, 1000)
        stalled = random.uniform(60, 130)
        waiting = stalled + random.uniform(10, 80)
        self.stall = Level(stalled, 0.0, 0.0, 0.0, 0.0)
        self.wait = Level(waiting, random.uniform(0.05, 0.3), 0.0, 0.01, 1.0)
        tensor = random.uniform(0.2, 0.9)
        forward = Level(compute * random.uniform(0.85, 1.0), 0.92, tensor, 0.35, 1.0)
        backward = Level(compute, 0.95, tensor * random.uniform(0.85, 1.1), 0.4, 1.0)
        update = Level(0.7 * compute, 0.9, 0.02, 0.85, 1.0)
        self.has_structure = random.random() < fixed.get("structured", 0.75)
        self.batches = 1
        self.parts = [(backward, 1.0)]
        if self.has_structure:
            gap = random.uniform(0.02, 0.3) if random.random() < 0.6 else 0.0
            exchange = random.uniform(0.03, 0.25) if random.random() < 0.7 else 0.0
            optimizer = random.uniform(0.01, 0.06)
            self.batches = 1 if random.random() < 0.6 else int(random.integers(2, 9))
            share = (1 - gap - exchange - optimizer) / self.batches
            self.parts = [(self.stall, gap)]
            for _ in range(self.batches):
                self.parts += [(forward, 0.32 * share), (backward, 0.62 * share)]
                self.parts += [(self.wait, 0.06 * share)]
            self.parts += [(self.wait, exchange), (update, optimizer)]
        self.checkpoints = random.random() < fixed.get("checkpoints", 0.7)
        self.every_seconds = fixed.get("every_seconds", log_uniform(random, *CHECKPOINT_SECONDS))
        self.by_time = random.random() < 0.3
        self.pause_seconds = fixed.get("pause_seconds", log_uniform(random, *PAUSE_SECONDS))
        self.every_steps = max(CHECKPOINT_STEPS_MIN, round(self.every_seconds / self.step_seconds))
        self.pause_seconds = min(
            self.pause_seconds, 8 * max(self.every_steps * self.step_seconds, 1.0)
        )
        self.pause_spread = random.uniform(0.02, 0.2)
        self.pause_growth = random.uniform(1.0, 3.0) if random.random() < 0.2 else 1.0
        self.is_writer = random.random() < 0.5
        self.write_bytes = log_uniform(random, 2e8, 2e10)
        self.evaluates = random.random() < fixed.get("evaluations", 0.25)
        self.evaluation_every = random.uniform(60, 300)
        self.evaluation_seconds = random.uniform(5, 60)
        self.evaluation_ratio = random.uniform(0.2, 0.6)
        self.stalls = random.random() < fixed.get("stalls", 0.3)
        self.stall_every = log_uniform(random, 20, 200)

    def play(self, seconds: float) -> _Timeline:
        """Return the timeline of *seconds*."""
        random, line = self.random, _Timeline()
        self._begin(line)
        steps, checkpoint_at = 0, line.now + self.every_seconds
        evaluation_at = line.now + self.evaluation_every
        stall_at = line.now + random.exponential(self.stall_every)
        while line.now < seconds:
            self._step(line, 1.0, self.parts)
            line.mark(STEP, line.now - 1e-9)
            steps += 1
            is_due = line.now >= checkpoint_at if self.by_time else steps >= self.every_steps
            if self.checkpoints and is_due and steps >= CHECKPOINT_STEPS_MIN:
                self._pause(line, 1 + (self.pause_growth - 1) * line.now / seconds)
                steps, checkpoint_at = 0, checkpoint_at + self.every_seconds
            if self.evaluates and line.now >= evaluation_at:
                self._evaluate(line)
                evaluation_at = line.now + self.evaluation_every
            if self.stalls and line.now >= stall_at:
                begin = line.now
                line.add(self.stall, random.lognormal(0.7, 0.8))
                line.mark(STALL, begin)
                stall_at = line.now + random.exponential(self.stall_every)
        return line

    def _begin(self, line: _Timeline) -> None:
        """Add the start of the job: import, compile and load, bursts of any length."""
        random, begin = self.random, line.now
        for _ in range(int(random.integers(0, 6))):
            line.add(self.stall, random.exponential(3.0))
            line.add(self.parts[0][0], random.exponential(0.5))
        line.mark(START, begin)

    def _step(self, line: _Timeline, ratio: float, parts: list[tuple[Level, float]]) -> None:
        random = self.random
        scale = self.step_seconds * ratio * (1 + self.jitter * random.standard_normal())
        for level, share in parts:
            line.add(level, share * scale * (1 + self.jitter * random.standard_normal()))

    def _pause(self, line: _Timeline, growth: float) -> None:
        random, begin = self.random, line.now
        length = self.pause_seconds * growth * random.lognormal(0.0, self.pause_spread)
        if self.is_writer:
            copy = min(random.uniform(0.2, 0.8) * length, 5.0)
            line.add(self.stall._replace(sent=self.write_bytes, resident=0.04), copy)
            line.add(self.stall._replace(resident=0.02), length - copy)
        else:
            line.add(self.wait, length)
        line.mark(CHECKPOINT, begin)

    def _evaluate(self, line: _Timeline) -> None:
        begin = line.now
        parts = [
            (level._replace(watts=self.stall.watts + 0.8 * (level.watts - self.stall.watts)), share)
            for level, share in self.parts
        ]
        line.add(self.stall, self.random.uniform(0.1, 1.0))
        while line.now < begin + self.evaluation_seconds:
            self._step(line, self.evaluation_ratio, parts)
        line.mark(EVALUATION, begin)


def play(seed: int, seconds: float = 600.0, **fixed: float) -> PlayedJob:
    """Return a random job; *fixed*: attributes of `JobDraw`, `gpm`, `power_window`, `gaps`."""
    random = np.random.default_rng([seed, 35])
    draw = JobDraw(random, **fixed)
    line = draw.play(seconds)
    has_gpm = random.random() < fixed.get("gpm", 0.5)
    power_window = fixed.get("power_window", float(random.choice(POWER_WINDOWS)))
    times = _sample_times(random, seconds, fixed.get("gaps", 0.2))
    means = _Means(line)
    delay = random.uniform(0.0, 0.1)
    noise = random.uniform(0.003, 0.04)
    result = np.full((times.size, len(SIGNALS)), np.nan, dtype=np.float32)

    def put(name: str, values: Floats) -> None:
        result[:, SIGNALS.index(name)] = values

    power = means.over("watts", times - delay, power_window)
    put("power_watts", np.round(power * (1 + noise * random.standard_normal(times.size)), 2))
    put("sm_clock_hertz", np.full(times.size, 1.7e9))
    put("clock_event_reasons_flags", np.zeros(times.size))
    resident = means.over("resident", times, random.uniform(0.17, 0.5))
    put("utilization_ratio", np.round(resident, 2))
    if has_gpm:
        gpm_noise = 1 + 0.01 * random.standard_normal(times.size)
        for name, attribute in (
            ("sm_active_ratio", "active"), ("tensor_active_ratio", "tensor"), ("memory_bandwidth_ratio", "bandwidth"),
            ("pcie_transmitted_bytes_per_second", "sent"), ("pcie_received_bytes_per_second", "received"),
        ):  # fmt: skip
            put(name, means.over(attribute, times, 0.2) * gpm_noise)
        put("nvlink_received_bytes_per_second", np.zeros(times.size))
        put("nvlink_transmitted_bytes_per_second", np.zeros(times.size))
    result[1::2, SIGNALS.index("sm_active_ratio") :] = np.nan
    result[::2, SIGNALS.index("utilization_ratio")] = np.nan
    return PlayedJob(
        (1000 * SECOND_NS + times * SECOND_NS).astype(np.int64), np.ascontiguousarray(result), draw.step_seconds,
        [span for span in line.spans if span.begin < seconds], has_gpm, power_window, draw.has_structure, draw.batches,
    )  # fmt: skip


def _sample_times(random: np.random.Generator, seconds: float, gaps: float) -> Floats:
    """Return the sample times: ten a second, late; a share *gaps* of jobs lose some."""
    count = int(seconds * 10)
    times = (np.arange(count) + 1) / 10 + random.uniform(0, 0.008, count)
    if random.random() < gaps:
        begins = np.cumsum(random.exponential(30.0, count))
        for begin in begins[begins < seconds]:
            times = times[(times < begin) | (times > begin + random.uniform(0.2, 3.0))]
    return times


class _Means:
    """Means of a timeline's levels over any window."""

    def __init__(self, line: _Timeline) -> None:
        self.edges = np.concatenate([[-10.0, 0.0], line.ends])
        lengths = np.diff(self.edges)
        levels = [line.levels[0], *line.levels]
        self.sums = {
            name: np.concatenate([[0.0], np.cumsum(lengths * np.array([getattr(level, name) for level in levels]))])
            for name in Level._fields
        }  # fmt: skip

    def over(self, name: str, times: Floats, seconds: float) -> Floats:
        """Return the means over the *seconds* before each time."""
        total = self.sums[name]
        ends = np.interp(times, self.edges, total)
        return np.asarray((ends - np.interp(times - seconds, self.edges, total)) / seconds)
