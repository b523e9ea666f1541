"""The parts of a job's step: `ext.step_parts` on traces of a timeline at 10 ms, whose parts are known.

A step loads data (no kernel, PCIe), then goes forward and backward. The backward pass takes twice as long, within a fifth, and moves
gradients over NVLink from its first eighth on. The step then waits for the rest of the exchange, and optimizes (bound by memory). Lengths differ from
step to step by up to 2 %. Readings come as a driver gives them: power ten times a second, delayed; utilization and GPM in turns, 1 % are
lost. The period is estimated from them; it is not the true one. In some jobs
some parts cannot be told apart: for these parts, only abstaining is right.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from math import isnan

import numpy as np
from numpy.typing import NDArray

from bench.quality.markdown import table
from bench.quality.progress import Progress
from gangline.ext.periods import estimate
from gangline.ext.step_parts import PARTS, split

Floats = NDArray[np.float64]
SECONDS, RATE, FINE_SECONDS = 120.0, 10.0, 0.01
RUNS = 40
POWER, UTILIZATION, SM, TENSOR, MEMORY, PCIE, NVLINK = range(7)
LOADING, FORWARD, BACKWARD, OPTIMIZER, FORWARD_BACKWARD = range(5)
#: Lengths of steps, seconds: without and with recognized parts.
SHORT_SECONDS, LONG_SECONDS = (2.0, 5.0), (5.0, 20.0)
#: Kind of job -> its distinguishable parts.
KINDS: dict[str, tuple[int, ...]] = {
    "data parallel": (LOADING, FORWARD, BACKWARD, OPTIMIZER),
    "no gap: data are loaded ahead": (FORWARD, BACKWARD, OPTIMIZER),
    "a gap without data": (FORWARD, BACKWARD, OPTIMIZER),
    "no burst of the optimizer": (LOADING, FORWARD, BACKWARD),
    "backward differs in its traffic only": (LOADING, OPTIMIZER, FORWARD_BACKWARD),
    "several micro-batches": (LOADING, OPTIMIZER),
    "tensor parallel: traffic always": (LOADING, OPTIMIZER),
    "sharded: traffic in both": (LOADING, OPTIMIZER),
    "pipeline: waits between": (LOADING, OPTIMIZER),
    "without GPM": (),
}
#: Allowed error of a share, relative to the step or to the share itself.
STEP_SHARE_MAX, OWN_SHARE_MAX = 0.03, 0.25

HEADINGS = (
    "job | part | can be told apart | reported | median error, of the step | wrong | confidence, "
    "median"
)


def timeline(random: np.random.Generator, kind: str, period: float) -> tuple[Floats, list[float]]:
    """Return the signals (7, samples of 10 ms) of a job, and the true share of each of PARTS."""
    loading = 0.0 if kind.startswith("no gap") else random.uniform(0.05, 0.2)
    optimizer = 0.0 if kind.startswith("no burst") else random.uniform(0.04, 0.1)
    exchange = random.uniform(0.0, 0.08)
    compute = 1.0 - loading - optimizer - exchange
    forward = compute / (1 + random.uniform(1.6, 2.4))
    bubble = random.uniform(0.1, 0.2) * compute if kind.startswith("pipeline") else 0.0
    batches = int(random.integers(2, 9)) if kind.startswith("several") else 1
    high, low = random.uniform(5e10, 2e11), random.uniform(0, 5e8)
    in_forward = {"tensor": high, "sharde": random.uniform(0.5, 0.7) * high}.get(kind[:6], low)
    data = 0.0 if kind.startswith("a gap") else random.uniform(2e9, 2e10)
    tensor = random.uniform(0.3, 0.6)
    #: power, utilization, busy SMs, tensor cores, memory bandwidth, PCIe, NVLink
    does = {
        "loading": (110, 0.0, 0.0, 0.0, 0.02, data + 5e6, low), "forward": (500, 1.0, 0.85, tensor, 0.4, 1e7, in_forward),
        "first": (540, 1.0, 0.88, tensor * 1.05, 0.45, 1e7, in_forward), "backward": (540, 1.0, 0.88, tensor * 1.05, 0.45, 1e7, high),
        "wait": (150, 1.0, 0.15, 0.0, 0.05, 1e7, low), "exchange": (160, 1.0, 0.15, 0.0, 0.08, 1e7, high),
        "optimizer": (350, 1.0, 0.8, 0.01, random.uniform(0.65, 0.85), 1e7, low),
    }  # fmt: skip
    if kind.startswith("backward differs"):
        does["first"] = does["forward"]
        does["backward"] = (*does["forward"][:-1], high)
    parts = [("loading", loading)]
    for batch in range(batches):
        share = (compute - bubble) / compute / batches
        is_last = batch == batches - 1
        back = (compute - forward) * share
        parts += [("forward", forward * share), ("wait", bubble / batches)]
        parts += [("first", 0.12 * back), ("backward" if is_last else "first", 0.88 * back)]
    parts += [("exchange", exchange), ("optimizer", optimizer)]
    count = int(SECONDS / FINE_SECONDS)
    result = np.zeros((7, count))
    jitter, now = random.uniform(0.002, 0.02), 0.0
    while now < SECONDS:
        for name, share in parts:
            end = now + share * period * (1 + jitter * random.standard_normal())
            result[:, int(now / FINE_SECONDS) : int(end / FINE_SECONDS)] = np.array(does[name])[:, None]  # fmt: skip
            now = end
    scale = 1.0 if not bubble else (compute - bubble) / compute
    true = [
        0.0 if kind.startswith("a gap") else loading, forward * scale, (compute - forward) * scale, optimizer, compute * scale,
    ]  # fmt: skip
    return result, true


def sampled(random: np.random.Generator, fine: Floats, *, has_gpm: bool) -> NDArray[np.float32]:
    """Return the driver's readings at 10 Hz, in the form of the agent's history."""
    count = int(SECONDS * RATE)
    times = np.arange(count) / RATE + random.uniform(0, 0.01, count)
    delay = random.uniform(0.02, 0.12)
    totals = np.concatenate([np.zeros((7, 1)), np.cumsum(fine, axis=1)], axis=1) * FINE_SECONDS
    edges = np.arange(totals.shape[1]) * FINE_SECONDS

    def averaged(at: int, seconds: float) -> Floats:
        end = np.interp(times - delay, edges, totals[at])
        return np.asarray((end - np.interp(times - delay - seconds, edges, totals[at])) / seconds)

    result = np.array([averaged(POWER, 0.1), averaged(UTILIZATION, random.uniform(0.17, 0.3))]
                     + [averaged(index, 0.2) for index in range(SM, NVLINK + 1)])  # fmt: skip
    result *= 1 + 0.02 * random.standard_normal(result.shape)
    result[UTILIZATION, ::2] = np.nan
    result[SM:, 1::2] = np.nan
    if not has_gpm:
        result[SM:] = np.nan
    result[:, random.random(count) < 0.01] = np.nan
    return np.ascontiguousarray(result, dtype=np.float32)


def run(
    seed: int, band: tuple[float, float], progress: Callable[[float], None] = lambda _: None
) -> list[list[str]]:
    """Return a row for each kind of job and part, for steps with a length in *band* (seconds)."""
    random = np.random.default_rng([seed, 11, round(band[0])])
    rows: list[list[str]] = []
    for index, kind in enumerate(KINDS):
        reported: list[list[tuple[float, float]]] = [[] for _ in PARTS]
        sure: list[float] = []
        for _ in range(RUNS):
            period = float(np.exp(random.uniform(*np.log(band))))
            fine, true = timeline(random, kind, period)
            signals = sampled(random, fine, has_gpm=kind != "without GPM")
            seconds, _ = estimate(signals.data, 1 / RATE)
            *shares, confidence = split(signals.data, 1 / RATE, seconds)
            for part, share in enumerate(shares):
                if not isnan(share):
                    reported[part].append((share, true[part]))
                    sure.append(confidence)
        for part, name in enumerate(PARTS):
            wrong = sum(abs(share - true) > max(STEP_SHARE_MAX, OWN_SHARE_MAX * true) for share, true in reported[part])  # fmt: skip
            errors = [abs(share - true) for share, true in reported[part]]
            rows.append([
                kind if not part else "", name.replace("_", " "), "yes" if part in KINDS[kind] else "no",
                f"{len(reported[part])} of {RUNS}", f"{100 * statistics.median(errors):.1f} %" if errors else "-", str(wrong),
                f"{statistics.median(sure):.2f}" if sure and not part else "",
            ])  # fmt: skip
        progress((index + 1) / len(KINDS))
    return rows


def section(seed: int, progress: Progress) -> str:
    short = run(seed, SHORT_SECONDS, lambda share: progress("parts of short steps", share))
    result = sum(int(row[3].split()[0]) for row in short)
    rows = run(seed, LONG_SECONDS, lambda share: progress("parts of a step", share))
    return "\n".join(
        [
            "## The parts of a step", "", "    python -m bench.quality.jobs --only step_parts", "",
            "*Simulated.* " + str(__doc__).split("\n\n", 1)[1].strip(), "",
            f"*Wrong*: off by more than {100 * STEP_SHARE_MAX:.0f} % of the step and {100 * OWN_SHARE_MAX:.0f} % of the part. The two recordings of H100s have",
            "no log of parts and no GPM: nothing is reported for them, nor for steps shorter than 5 s. When limits were set (seed 1),",
            "two of five shares of data loading in steps of 2 to 5 s were wrong.", "",
            f"Steps of 2 to 5 s: {result} of {RUNS * len(short):,} parts are reported. Steps of 5 to 20 s:", "", table(HEADINGS, rows), "",
        ]
    )  # fmt: skip
