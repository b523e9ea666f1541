"""The period of a job's step: `ext.periods` on traces of a timeline at 10 ms, whose step is known.

A step is a gap, micro-batches of a forward and a backward part, an exchange and an optimizer; each length has jitter, and some
runs write checkpoints. Power is read as a delayed average (over 100 ms, or one second as on an A100). Utilization and GPM come at 5
Hz. Samples are late and some are lost. Other jobs have no step:
for these, only abstaining is right.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench.quality.markdown import table
from bench.quality.progress import Progress
from gangline.ext.periods import estimate

Floats = NDArray[np.float64]
SECONDS, RATE = 120.0, 10.0
FINE_SECONDS = 0.01
#: Bands of step lengths, seconds.
BANDS = ((0.1, 0.3), (0.3, 1.0), (1.0, 4.0), (4.0, 15.0), (15.0, 30.0))
APERIODIC = ("inference", "constant", "idle", "interactive")
PER_BAND = 60

HEADINGS = ("period", "abstained", "median error", "wrong period (half, double, or none)")


def timeline(random: np.random.Generator, period: float) -> tuple[Floats, Floats]:
    """Return power (watts) and share of busy SMs of a job, each 10 ms; its step is *period* s."""
    count = int(SECONDS / FINE_SECONDS)
    watts, busy = np.zeros(count), np.zeros(count)
    batches = int(random.integers(1, 9))
    gap, exchange, update = (
        random.uniform(0.0, 0.08),
        random.uniform(0.05, 0.25),
        random.uniform(0.01, 0.05),
    )
    jitter = random.uniform(0.001, 0.02)
    levels = {"gap": (95.0, 0.0), "forward": (random.uniform(420, 560), 0.85), "backward": (random.uniform(460, 600), 0.9),
              "between": (random.uniform(200, 420), random.uniform(0.2, 0.7)), "exchange": (150.0, 0.15),
              "update": (random.uniform(250, 380), 0.5)}  # fmt: skip
    compute = 1.0 - gap - exchange - update
    parts = [("gap", gap)]
    for _ in range(batches):
        share = compute / batches
        parts += [("forward", 0.31 * share), ("backward", 0.62 * share), ("between", 0.07 * share)]
    parts += [("exchange", exchange), ("update", update)]
    now, writes = 0.0, random.random() < 0.3
    next_checkpoint = random.uniform(20, 60)
    while now < SECONDS:
        if writes and now >= next_checkpoint:
            length = random.uniform(3, 8)
            _fill(watts, busy, now, length, (150.0, 0.05))
            now, next_checkpoint = now + length, now + random.uniform(30, 60)
        scale = period * (1 + jitter * random.standard_normal())
        for name, share in parts:
            length = share * scale * (1 + jitter * random.standard_normal())
            _fill(watts, busy, now, length, levels[name])
            now += length
    return watts, busy


def _fill(
    watts: Floats, busy: Floats, begin: float, length: float, level: tuple[float, float]
) -> None:
    at = slice(int(begin / FINE_SECONDS), int((begin + length) / FINE_SECONDS))
    watts[at], busy[at] = level


def aperiodic(random: np.random.Generator, kind: str) -> tuple[Floats, Floats]:
    """Return power and busy SMs of work without a step."""
    count = int(SECONDS / FINE_SECONDS)
    watts, busy = np.full(count, 95.0), np.zeros(count)
    if kind == "constant":
        watts[:], busy[:] = 520.0, 0.9
    elif kind != "idle":
        now, rate = 0.0, 2.0 if kind == "inference" else 0.08
        while now < SECONDS:
            now += random.exponential(1 / rate)
            length = random.lognormal(-1.0 if kind == "inference" else 1.0, 0.7)
            _fill(watts, busy, now, length, (random.uniform(250, 500), random.uniform(0.3, 0.9)))
    return watts, busy


def sampled(
    random: np.random.Generator, watts: Floats, busy: Floats, *, has_gpm: bool
) -> NDArray[np.float32]:
    """Return the driver's readings at 10 Hz: power, utilization, and SM activity with *has_gpm*."""
    times = np.arange(int(SECONDS * RATE)) / RATE + random.uniform(0, 0.01, int(SECONDS * RATE))
    delay = random.uniform(0.02, 0.15)

    def averaged(values: Floats, seconds: float) -> Floats:
        total = np.concatenate([[0.0], np.cumsum(values)]) * FINE_SECONDS
        edges = np.arange(total.size) * FINE_SECONDS
        end = np.interp(times - delay, edges, total)
        return np.asarray((end - np.interp(times - delay - seconds, edges, total)) / seconds)

    power = averaged(watts, 0.1 if has_gpm else random.choice([0.1, 1.0]))
    power *= 1 + 0.01 * random.standard_normal(power.size)
    resident = averaged((busy > 0).astype(float), random.uniform(0.17, 0.5))
    rows = [np.round(power, 1), np.round(resident, 2)]
    if has_gpm:
        rows += [averaged(busy, 0.2), averaged(busy * (watts > 400), 0.2)]
    result = np.array(rows, dtype=np.float32)
    result[1, ::2] = np.nan
    result[2:, 1::2] = np.nan
    result[:, random.random(power.size) < 0.01] = np.nan
    return np.ascontiguousarray(result)


def run(
    seed: int, *, has_gpm: bool, progress: Callable[[float], None] = lambda _: None
) -> tuple[list[list[str]], dict[str, float]]:
    """Return rows by band, and the figures of all bands that 10 Hz sampling can resolve."""
    random = np.random.default_rng([seed, has_gpm])
    rows: list[list[str]] = []
    every: list[float] = []
    octaves = answers = total = 0
    for number, (low, high) in enumerate(BANDS):
        errors: list[float] = []
        wrong = reported = 0
        for _ in range(PER_BAND):
            period = float(np.exp(random.uniform(np.log(low), np.log(high))))
            seconds, _ = estimate(
                sampled(random, *timeline(random, period), has_gpm=has_gpm).data, 1 / RATE
            )
            if np.isnan(seconds):
                continue
            reported += 1
            ratio = seconds / period
            errors.append(abs(ratio - 1))
            wrong += not 0.8 < ratio < 1.25
        progress((number + 1) / len(BANDS))
        rows.append([
            f"{low:g} to {high:g} s", f"{PER_BAND - reported} of {PER_BAND}",
            f"{100 * statistics.median(errors):.2f} %" if errors else "-", f"{wrong} of {reported}",
        ])  # fmt: skip
        if low >= 0.3:
            every += errors
            octaves, answers, total = octaves + wrong, answers + reported, total + PER_BAND
    for kind in APERIODIC:
        reported = 0
        for _ in range(PER_BAND):
            samples = sampled(random, *aperiodic(random, kind), has_gpm=has_gpm)
            reported += not np.isnan(estimate(samples.data, 1 / RATE)[0])
        abstained = f"{PER_BAND - reported} of {PER_BAND}"
        rows.append([f"no step: {kind}", abstained, "-", f"{reported} of {reported}"])
    figures = {
        "median_error": statistics.median(every), "wrong": octaves / max(answers, 1), "abstained": 1 - answers / total,
    }  # fmt: skip
    return rows, figures


def section(seed: int, progress: Progress) -> str:
    method = str(__doc__).split("\n\n", 1)[1].strip()
    lines = ["## The period of a step", "", f"*Simulated.* {method}", ""]
    for has_gpm in (True, False):
        rows, figures = run(
            seed, has_gpm=has_gpm, progress=lambda share: progress("periods", share)
        )
        lines += [
            f"{'With' if has_gpm else 'Without'} GPM, periods of 0.3 s and more: median error {100 * figures['median_error']:.2f} %,",
            f"a wrong period in {100 * figures['wrong']:.1f} % of the answers, no answer in {100 * figures['abstained']:.0f} %.", "",
            table(HEADINGS, rows), "",
        ]  # fmt: skip
    return "\n".join(lines)
