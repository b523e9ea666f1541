"""Classes of jobs (*simulated*): generated jobs of two generators, one of which the model has never
seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench.quality.class_jobs import JOBS, fingerprint_values
from bench.quality.markdown import counted, table
from bench.quality.progress import Bar
from bench.workload_kinds import KINDS, generate_kinds
from gangline.fingerprints.fingerprint import Floats
from gangline.fingerprints.workload_class import ClassAnswers, ClassModel, answers, load_model

RUNS_OF_KIND = 200
BINS = (0.0, 0.5, 0.7, 0.85, 0.9, 0.95, 0.98, 1.01)

METHOD = """*All of this is simulated*: no fingerprints of jobs with a known class are public. Two generators share no code
and no assumption. The model is fitted to jobs that are drawn from ranges (`bench/workload_kinds.py`, seeds 1 to 5).
Jobs that follow from the activities of a program (`bench/quality/class_jobs.py`) are for judging; ranges were widened after
a look at its seed 3. An answer below 85 % is not given, and no answer is surer than 98 %.

Fine-tuning counts as training. A fifth of the runs have no GPM. A service with few requests and a notebook have the same
averages: both are often unknown. So is training without GPM, which resembles a solver. Jobs without a class are the
negative controls: each answer for them is wrong.
"""


class JudgedClasses(NamedTuple):
    """Runs of one generator. `kind`: index in `names`; `truth`: class of each kind, "" for none."""

    names: Sequence[str]
    truth: Sequence[str]
    kind: npt.NDArray[np.intp]
    answer: ClassAnswers
    is_right: npt.NDArray[np.bool_]


def judge(model: ClassModel, names: Sequence[str], truth: Sequence[str], kind: npt.NDArray[np.intp], values: Floats) -> JudgedClasses:  # fmt: skip
    """Classify runs and compare with the truth."""
    answer = answers(values, model)
    wanted = np.array([model.classes.index(name) for name in truth])[kind]
    return JudgedClasses(names, truth, kind, answer, answer.likeliest == wanted)


def unseen_jobs(model: ClassModel, seed: int) -> JudgedClasses:
    """Judge the jobs of `class_jobs.py`. Fine-tuning is training."""
    random = np.random.default_rng(seed)
    draws = [draw for _, draw in JOBS.values() for _ in range(RUNS_OF_KIND)]
    values = np.array([fingerprint_values(random, draw(random)) for draw in draws])
    truth = ["training" if name == "fine-tuning" else name or "" for name, _ in JOBS.values()]
    return judge(model, list(JOBS), truth, np.repeat(np.arange(len(JOBS)), RUNS_OF_KIND), values)


def kinds_table(judged: JudgedClasses) -> str:
    """Return the table of answers by kind of run."""
    rows = []
    for index, name in enumerate(judged.names):
        is_kind = judged.kind == index
        given = is_kind & judged.answer.is_answer
        count, right = int(is_kind.sum()), int((given & judged.is_right).sum())
        wrong = int(given.sum()) - right
        rows.append([name, judged.truth[index] or "none", str(count), str(right), str(wrong), f"{100 * (1 - given.sum() / count):.0f} %"])  # fmt: skip
    return table(["job", "class", "runs", "right", "wrong", "unknown"], rows)


def calibration_table(parts: Sequence[tuple[str, JudgedClasses]]) -> str:
    """Return, by confidence, the share of right answers; below CONFIDENCE_MIN no answer is given."""
    rows = []
    for low, high in pairwise(BINS):
        cells = [f"{100 * low:.0f} to {min(100 * high, 98):.0f} %" if low < 0.98 else "98 %"]
        for _, judged in parts:
            inside = (judged.answer.confidence >= low) & (judged.answer.confidence < high)
            if low >= 0.85:
                inside &= judged.answer.is_answer
            count = int(inside.sum())
            stated = f"{100 * judged.answer.confidence[inside].mean():.0f} %" if count else "-"
            cells += [str(count), stated, counted(int(judged.is_right[inside].sum()), count)]
        rows.append(cells)
    heads = [f"{name}: {what}" for name, _ in parts for what in ("runs", "stated", "right")]
    return table(["confidence", *heads], rows)


def summary(name: str, judged: JudgedClasses) -> str:
    """Return right, wrong and unknown answers in one line."""
    has_class = np.array([bool(truth) for truth in judged.truth])[judged.kind]
    given, right = judged.answer.is_answer, judged.answer.is_answer & judged.is_right
    return (
        f"- **{name}**: {counted(int(right.sum()), int(given.sum()))} of the answers are right; "
        f"{100 * (1 - given[has_class].mean()):.0f} % of the runs with a class are unknown. "
        f"Control, jobs without a class: {counted(int(given[~has_class].sum()), int((~has_class).sum()))} got one."
    )


def section(seed: int, progress: Bar) -> str:
    model = load_model()
    assert model is not None, "no model: python -m bench.fingerprint_quality --train"
    runs = generate_kinds(seed, RUNS_OF_KIND)
    truth = [kind.label for kind in KINDS.values()]
    seen = judge(model, list(KINDS), truth, runs.kind, runs.values)
    unseen = unseen_jobs(model, seed)
    parts = (("jobs of activities", unseen), ("jobs of ranges", seen))
    lines = [
        "## Classes of jobs", "",
        *(summary(name, judged) for name, judged in parts), "",
        f"    python -m bench.quality.jobs --only workload_classes --seed {seed}", "",
        METHOD,
        "### Jobs of activities (never trained on)", "", kinds_table(unseen), "",
        "### Jobs of ranges (other seeds)", "", kinds_table(seen), "",
        "### Confidence", "",
        "Share of runs whose likeliest class is right, with its 90 % interval. From 85 % on only answers that are given.", "",
        calibration_table(parts),
    ]  # fmt: skip
    return "\n".join(lines)
