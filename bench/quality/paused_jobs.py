"""Steps and checkpoints of random jobs that pause, as the agent reports them, against the truth.

Each job has a step of 0.1 to 60 s and power levels of its own. 70 % write checkpoints, after a number of steps or by the clock, 25 %
evaluate, 30 % stall at random moments, and a quarter has steps that no reading shows. Half of the GPUs have GPM. Power is read as a
mean over 0.02 to 1 s.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, field
from math import isfinite, nan

import numpy as np
from numpy.typing import NDArray

from bench.quality.followed_gpu import FollowedGpu
from bench.quality.markdown import table
from bench.quality.paused_jobs_world import CHECKPOINT, SECOND_NS, PlayedJob, play
from bench.quality.progress import Progress, in_processes
from gangline.agent.collectors.gpu_fast import PERIOD_TURNS
from gangline.ext.phases import STATES

JOBS, SECONDS = 200, 600
#: Judging begins here: the first minute contains the start of the job.
BEGIN_SECONDS = 60
#: Seconds of the bands of steps.
BANDS = ((0.1, 0.3), (0.3, 0.6), (0.6, 2.0), (2.0, 10.0), (10.0, 30.0), (30.0, 60.0))
#: A reported step is right within STEP_NEAR. A step within CYCLE_NEAR of the checkpoint cycle
#: counts as confused with the cycle.
STEP_NEAR, CYCLE_NEAR = 0.1, 0.12
#: Bands of stated probabilities.
PROBABILITIES = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.01)
#: A prediction came true if the checkpoint begins within this share of the interval.
PREDICTION_NEAR = 0.1
PREDICTION_SECONDS = 5


@dataclass
class Judged:
    """One job. Steps are counted by reports, one every PERIOD_TURNS seconds."""

    step_seconds: float
    right: int = 0
    wrong: int = 0
    cycles: int = 0
    none: int = 0
    jumps: int = 0
    checkpoint_seconds: float = 0.0
    labeled_seconds: float = 0.0
    false_seconds: float = 0.0
    #: Counted after the fourth checkpoint.
    known_seconds: float = 0.0
    known_labeled_seconds: float = 0.0
    #: Stated probability, whether it came true, its error, and the last interval's error (seconds).
    predictions: list[tuple[float, bool, float, float]] = field(
        default_factory=list[tuple[float, bool, float, float]]
    )


def judge(seed: int) -> Judged:
    """Play a random job into the agent's tracker and step estimator, and judge their reports."""
    job = play(seed, SECONDS)
    gpu = FollowedGpu()
    judged = Judged(job.step_seconds)
    labeled = np.zeros(SECONDS)
    last, begin = nan, 0
    for second in range(1, SECONDS + 1):
        now_ns = int(job.times_ns[0] // SECOND_NS * SECOND_NS) + second * SECOND_NS
        end = int(np.searchsorted(job.times_ns, now_ns, side="right"))
        gpu.push_second(job.times_ns[begin:end], job.samples[begin:end])
        begin = end
        shares = gpu.tracker.take_second(0)
        labeled[second - 1] = shares[STATES.index("checkpoint")] if shares else 0.0
        if second % PERIOD_TURNS == 0 and second >= BEGIN_SECONDS:
            last = _judge_step(judged, job, gpu.step_seconds, last)
        if second % PREDICTION_SECONDS == 0:
            _judge_prediction(judged, job, second, gpu.tracker.job(0, now_ns))
    _judge_labels(judged, job, labeled)
    return judged


def _judge_step(judged: Judged, job: PlayedJob, seconds: float, last: float) -> float:
    """Count a report; return the last reported step."""
    if not isfinite(seconds):
        judged.none += 1
        return last
    judged.jumps += not 0.5 < seconds / last < 2.0 if isfinite(last) else 0
    begins = [span.begin for span in job.of(CHECKPOINT)]
    if abs(seconds / job.step_seconds - 1) <= STEP_NEAR:
        judged.right += 1
    else:
        judged.wrong += 1
        cycle = statistics.median(np.diff(begins)) if len(begins) > 2 else nan
        judged.cycles += abs(seconds / cycle - 1) < CYCLE_NEAR
    return seconds


def _judge_prediction(
    judged: Judged, job: PlayedJob, second: int, reported: dict[str, float]
) -> None:
    spans = job.of(CHECKPOINT)
    past = [span.begin for span in spans if span.begin <= second]
    seconds = reported["next_checkpoint_seconds"]
    if len(past) == len(spans) or not isfinite(seconds):
        return
    # A checkpoint that began a moment ago may be the predicted one.
    begins = [span.begin for span in spans if span.end > second]
    error = min(abs(second + seconds - begin) for begin in begins)
    again = max(2 * past[-1] - past[-2], second) if len(past) > 1 else nan
    judged.predictions.append((
        reported["next_checkpoint_probability_ratio"],
        error <= PREDICTION_NEAR * reported["checkpoint_interval_seconds"],
        error, min(abs(again - begin) for begin in begins),
    ))  # fmt: skip


def _judge_labels(judged: Judged, job: PlayedJob, labeled: NDArray[np.float64]) -> None:
    seconds = np.arange(SECONDS)
    truth = np.zeros(SECONDS)
    spans = job.of(CHECKPOINT)
    for span in spans:
        truth += np.clip(
            np.minimum(seconds + 1, span.end) - np.maximum(seconds, span.begin), 0, None
        )
    judged.checkpoint_seconds = float(truth.sum())
    judged.labeled_seconds = float(np.minimum(labeled, truth).sum())
    judged.false_seconds = float(np.clip(labeled - truth, 0, None).sum())
    if len(spans) > 3:
        known = slice(int(spans[3].begin), None)
        judged.known_seconds = float(truth[known].sum())
        judged.known_labeled_seconds = float(np.minimum(labeled, truth)[known].sum())


def _step_rows(jobs: list[Judged]) -> list[list[str]]:
    rows: list[list[str]] = []
    for low, high in BANDS:
        band = [job for job in jobs if low <= job.step_seconds < high]
        right, wrong = sum(job.right for job in band), sum(job.wrong for job in band)
        total = right + wrong + sum(job.none for job in band)
        rows.append([
            f"{low:g} to {high:g} s", str(len(band)), f"{right / total:.0%}", f"{wrong / total:.1%}",
            f"{sum(job.cycles for job in band) / total:.1%}", str(sum(job.jumps for job in band)),
        ])  # fmt: skip
    return rows


def _probability_rows(jobs: list[Judged]) -> list[list[str]]:
    predictions = [prediction for job in jobs for prediction in job.predictions]
    rows: list[list[str]] = []
    for low, high in itertools.pairwise(PROBABILITIES):
        band = [prediction for prediction in predictions if low <= prediction[0] < high]
        if band:
            rows.append([
                f"{low:.2f} to {min(high, 1.0):.2f}", f"{len(band):,}", f"{statistics.mean(p for p, *_ in band):.2f}",
                f"{statistics.mean(came for _, came, *_ in band):.2f}",
            ])  # fmt: skip
    return rows


def section(seed: int, progress: Progress) -> str:
    jobs = in_processes(judge, range(1000 * seed, 1000 * seed + JOBS), progress, "paused jobs")
    compared = [
        prediction for job in jobs for prediction in job.predictions if isfinite(prediction[3])
    ]
    without = [job for job in jobs if not job.checkpoint_seconds]
    labeled = sum(job.known_labeled_seconds for job in jobs) / sum(
        job.known_seconds for job in jobs
    )
    false = sum(job.false_seconds for job in without) / (SECONDS * len(without))
    return "\n".join([
        "## Jobs that pause", "",
        "    python -m bench.quality.jobs --only paused_jobs", "",
        "*Simulated.* " + str(__doc__).split("\n\n", 1)[1].strip(), "",
        f"{JOBS} jobs of {SECONDS} s, judged every {PERIOD_TURNS} s from {BEGIN_SECONDS} s on. *Right*: within 10 %. *Cycle*: the time between two",
        "checkpoints was reported as the step. *Jumps*: the reported step changed by more than twice. The rest has no answer.", "",
        table(("step", "jobs", "right", "wrong", "of these cycles", "jumps"), _step_rows(jobs)), "",
        f"From a job's fourth checkpoint on, {labeled:.0%} of the checkpoint time is labeled checkpoint. In the {len(without)} jobs without",
        f"checkpoints (negative control), {false:.1%} of the time is.", "",
        "The next checkpoint, every 5 s: the stated probability that it begins within a tenth of the interval, and how often it did.", "",
        table(("stated", "predictions", "mean stated", "came true"), _probability_rows(jobs)), "",
        f"The median error is {statistics.median(p[2] for p in compared):.2f} s; with the last interval again, it is {statistics.median(p[3] for p in compared):.2f} s.",
    ])  # fmt: skip
