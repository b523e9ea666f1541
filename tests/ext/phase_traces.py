"""Traces of a GPU with known states, as in NVML at 10 Hz: power as a filtered reading, use as a
share of a window, GPM as means since the previous sample.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gangline.ext.phases import SIGNALS, STATES, PhaseTracker

NS = 1_000_000_000
#: Time step of the world.
TICK_SECONDS = 0.02
TICKS_PER_SAMPLE = 5
#: NVML's utilization covers the last sixth of a second to a second; this many ticks.
USE_TICKS = 10
BEGIN_NS = 1000 * NS

COMPUTE, WAIT, HOST_STALL, CHECKPOINT, IDLE = range(len(STATES))
NAN = math.nan

#: (state, seconds), one after another
Plan = Iterable[tuple[int, float]]


@dataclass(frozen=True)
class Levels:
    """Watts in each state; a checkpoint has the level of waiting."""

    compute: float = 550.0
    wait: float = 150.0
    stall: float = 115.0
    idle: float = 70.0

    def of(self, state: int) -> float:
        return (self.compute, self.wait, self.stall, self.wait, self.idle)[state]


class Trace(NamedTuple):
    """Samples of one GPU, and for each second the true share of each state."""

    times: array[int]
    samples: memoryview[float]
    truth: list[tuple[float, ...]]


def steps(
    count: int, compute: float, wait: float = 0.0, stall: float = 0.0
) -> list[tuple[int, float]]:
    """Return the plan of *count* steps, each with these seconds of each state."""
    step = [(HOST_STALL, stall), (COMPUTE, compute), (WAIT, wait)]
    return [part for _ in range(count) for part in step if part[1] > 0]


def trace(
    plan: Plan,
    *,
    levels: Levels = Levels(),
    gpm: bool = True,
    uses: bool = True,
    power: bool = True,
    smooth_seconds: float = 0.1,
    writer: bool = False,
    floor_watts: float = 0.0,
    noise: float = 0.02,
    seed: int = 1,
    begin_ns: int = BEGIN_NS,
) -> Trace:
    """Return the readings of a plan.

    *smooth_seconds*: time constant of the power reading. *writer*: the GPU writes the checkpoints,
    and shows 3 % use meanwhile. *floor_watts*: minimum power draw of power smoothing while a job
    runs.
    """
    draw = random.Random(seed)
    times, values = array("q"), array("f")
    truth: list[tuple[float, ...]] = []
    used: deque[float] = deque(maxlen=USE_TICKS)
    reading, active, tensor, known = levels.idle, 0.0, 0.0, 0
    counts = [0] * len(STATES)
    fade = 1 - math.exp(-TICK_SECONDS / smooth_seconds)
    for number, state in enumerate(_states(plan)):
        watts = max(levels.of(state), floor_watts if state != IDLE else 0.0)
        reading += fade * (watts * (1 + noise * draw.gauss(0, 1)) - reading)
        is_resident = state in (COMPUTE, WAIT) or (state == CHECKPOINT and not writer)
        used.append(1.0 if is_resident else 0.03 if state == CHECKPOINT else 0.0)
        active += 0.9 if state == COMPUTE else 0.15 if is_resident else 0.0
        tensor += 0.5 if state == COMPUTE else 0.0
        known += 1
        counts[state] += 1
        if (number + 1) % TICKS_PER_SAMPLE == 0:
            times.append(begin_ns + (number + 1) * NS // 50)
            row = [NAN] * len(SIGNALS)
            if power:
                row[0] = reading
            row[1] = 1.98e9 if state != IDLE else 0.345e9
            if (number + 1) % (2 * TICKS_PER_SAMPLE):
                if uses:  # alternating with GPM, like the ring
                    row[3] = round(sum(used) / len(used), 2)
            else:
                if gpm:
                    row[4], row[5] = active / known, tensor / known
                active, tensor, known = 0.0, 0.0, 0
            values.extend(row)
        if (number + 1) % 50 == 0:
            truth.append(tuple(count / 50 for count in counts))
            counts = [0] * len(STATES)
    shaped = memoryview(values).cast("B").cast("f", (len(times), len(SIGNALS)))
    return Trace(times, shaped, truth)


def _states(plan: Plan) -> Iterator[int]:
    at = end = 0.0
    for state, seconds in plan:
        end += seconds
        while at < end - TICK_SECONDS / 2:
            yield state
            at += TICK_SECONDS


class Seen(NamedTuple):
    """A tracker's results for a trace: the five shares of each second, and its confidence."""

    shares: list[tuple[float, ...]]
    confidence: list[float]

    def mean(self, state: int, first: int = 0) -> float:
        chosen = [second[state] for second in self.shares[first:]]
        return math.fsum(chosen) / len(chosen)


def follow(tracker: PhaseTracker, made: Trace, row: int = 0) -> Seen:
    """Run a tracker on a trace, and return its seconds."""
    shares: list[tuple[float, ...]] = []
    confidence: list[float] = []
    for first in range(0, len(made.times) // 10 * 10, 10):
        tracker.push_samples(
            row,
            made.times[first : first + 10],
            made.samples[first : first + 10],
        )
        taken = tracker.take_second(row)
        assert taken is not None
        shares.append(taken[:5])
        confidence.append(taken[5])
    return Seen(shares, confidence)


def true_mean(made: Trace, state: int, first: int = 0) -> float:
    chosen = [second[state] for second in made.truth[first:]]
    return math.fsum(chosen) / len(chosen)
