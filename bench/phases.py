"""CPU of job phases on a host: a ring with tracker, history and period, against a ring that copies.

Both take the same samples back to back, in simulated time; CPU time is the thread's own. The sweep
calls no driver: NVML is not included.
"""

from __future__ import annotations

import os
import random
import struct
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.quality import step_parts
from gangline.agent.collectors.gpu_fast import (
    COLUMN_NAMES,
    PERIOD_NS,
    PERIOD_SAMPLES,
    PERIOD_TURNS,
    StepPeriods,
)
from gangline.contract.block import Block
from gangline.contract.signals import index_of
from gangline.ext.nvml import Nvml, Sweep
from gangline.ext.nvml_gpm import Gpm
from gangline.ext.nvml_ring import SampleRing
from gangline.ext.phases import JOB_COLUMNS, SECOND_COLUMNS, SIGNALS, PhaseTracker, SampleHistory
from gangline.ext.step_parts import split
from tests.fake_nvml.build import build
from tests.fake_nvml.scenario import Scenario, gpus

from .measure import Result, pss_bytes

GPUS = 8
SAMPLES_PER_SECOND = 10
SECONDS = 1200
#: Limits of the issue: CPU in addition to the ring, and memory.
MICROSECONDS_MAX, PSS_BYTES_MAX = 150.0, 2_000_000
REPEATS = 3
#: Limit and repeats for the parts of a step.
PARTS_MICROSECONDS_MAX, PARTS_REPEATS = 20.0, 100


class PhaseLoad:
    """A ring of eight GPUs that train: steps of a second, a checkpoint of 10 s in each 70."""

    def __init__(self, nvml: Nvml, seed: int, *, follows: bool) -> None:
        columns = len(COLUMN_NAMES)
        self._cells = bytearray(8 * columns * GPUS)
        self._valid = bytearray(b"\1" * columns * GPUS)
        self.tracker = PhaseTracker(GPUS) if follows else None
        self.history = SampleHistory(GPUS) if follows else None
        sweep = Sweep(nvml, [f"0000:0{gpu}:00.0" for gpu in range(GPUS)], {})
        gpm, sources = Gpm(nvml, [0] * GPUS, []), [COLUMN_NAMES.index(name) for name in SIGNALS]
        self._ring = SampleRing(
            sweep, gpm, self._cells, self._valid, GPUS, [], PERIOD_NS,
            tracker=self.tracker, history=self.history, sources=sources,
        )  # fmt: skip
        self._states = [self._state(random.Random(seed + index), index) for index in range(64)]

    def _state(self, draw: random.Random, at: int) -> bytes:
        """Return the cells of a sample: computing in the first 48 of 64."""
        busy = 1.0 if at < 48 else 0.15
        values = {
            "power_watts": 550.0 if at < 48 else 150.0,
            "sm_clock_hertz": 1.98e9,
            "clock_event_reasons_flags": 0.0,
            "utilization_ratio": 1.0,
        }
        row = [values.get(name, 0.5 * busy) for name in COLUMN_NAMES]
        cells = [
            value * (1 + 0.01 * draw.random() * (value != 1)) for value in row for _ in range(GPUS)
        ]
        return struct.pack(f"<{len(cells)}d", *cells)

    def run(self, seconds: int) -> tuple[float, float]:
        """Take the samples of *seconds* seconds.

        Return the CPU seconds of the samples, and the CPU seconds of the work once a second.
        """
        block, jobs = Block("gpu_fast_1s", ["g"] * GPUS), Block("gpu_fast_10s", ["g"] * GPUS)
        second_columns = [index_of(f"gpu_fast.{name}") for name in SECOND_COLUMNS]
        job_columns = [index_of(f"gpu_fast.{name}") for name in JOB_COLUMNS]
        spent_samples = spent_seconds = now_ns = 0
        for second in range(seconds):
            states = [
                self._states[63 if second % 70 >= 60 else index * 6 + 2] for index in range(10)
            ]
            began = time.thread_time_ns()
            for state in states:
                now_ns += PERIOD_NS
                self._cells[:] = state
                self._ring.sample(now_ns)
            spent_samples += time.thread_time_ns() - began
            if self.tracker is not None:
                began = time.thread_time_ns()
                self.tracker.summarise(block, second_columns)
                if second % 10 == 0:
                    self.tracker.summarise_jobs(jobs, job_columns, now_ns)
                spent_seconds += time.thread_time_ns() - began
        return spent_samples / 1e9, spent_seconds / 1e9


def _period_seconds(load: PhaseLoad) -> float:
    """Return the CPU seconds to estimate the period of one GPU from its last minutes."""
    assert load.history is not None
    assert load.tracker is not None
    steps = StepPeriods(load.history, load.tracker)
    began = time.thread_time_ns()
    for _ in range(GPUS):
        steps.estimate_next()
    return (time.thread_time_ns() - began) / GPUS / 1e9


def _parts_seconds(seed: int) -> float:
    """Return the CPU seconds to find the parts of a step of one GPU in its last two minutes.

    The result is the maximum over three lengths of a step.
    """
    result: list[float] = []
    for period in (5.0, 8.0, 20.0):
        draw = np.random.default_rng(seed)
        fine, _ = step_parts.timeline(draw, "data parallel", period)
        signals = step_parts.sampled(draw, fine, has_gpm=True).data
        began = time.thread_time_ns()
        for _ in range(PARTS_REPEATS):
            split(signals, PERIOD_NS / 1e9, period)
        result.append((time.thread_time_ns() - began) / PARTS_REPEATS / 1e9)
    return max(result)


def run(seed: int) -> list[Result]:
    """Measure both, the best of three: this excludes most of the load of other processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["GANGLINE_FAKE_NVML"] = str(folder / "scenario")
        Scenario(folder / "scenario", gpus(1))
        nvml = Nvml(str(build(folder)))
        try:
            copied = min(
                PhaseLoad(nvml, seed, follows=False).run(SECONDS)[0] for _ in range(REPEATS)
            )
            before = pss_bytes([os.getpid()])
            loads = [PhaseLoad(nvml, seed, follows=True)]
            spent = [loads[0].run(SECONDS)]
            memory = pss_bytes([os.getpid()]) - before
            for _ in range(REPEATS - 1):
                loads.append(PhaseLoad(nvml, seed, follows=True))
                spent.append(loads[-1].run(SECONDS))
        finally:
            nvml.close()
    samples, seconds = min(spent)
    parts = _parts_seconds(seed)
    period = _period_seconds(loads[0])
    over = (samples - copied + seconds + SECONDS * period / PERIOD_TURNS) / SECONDS
    return [
        Result(
            "phases of 8 GPUs at 10 Hz: CPU over the ring", 1e6 * over, "us/s", "target", MICROSECONDS_MAX,
            f"samples {1e6 * (samples - copied) / SECONDS:.1f}, sums {1e6 * seconds / SECONDS:.1f}, period of "
            f"{PERIOD_SAMPLES / SAMPLES_PER_SECOND:.0f} s, one GPU each {PERIOD_TURNS} s: {1e6 * period:.0f} us; {SECONDS} s simulated",
        ),
        Result(
            "the ring with phases", 1e6 * (samples + seconds) / SECONDS, "us/s", "the ring that only copies",
            1e6 * copied / SECONDS,
        ),
        Result(
            "parts of a step, of 8 GPUs", 1e6 * parts / PERIOD_TURNS, "us/s", "target", PARTS_MICROSECONDS_MAX,
            f"one GPU each {PERIOD_TURNS} s: {1e6 * parts:.0f} us, where the step is 5 s or longer",
        ),
        Result("phases of 8 GPUs: memory", memory / 1e6, "MB PSS", "target", PSS_BYTES_MAX / 1e6),
    ]  # fmt: skip
