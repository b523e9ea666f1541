"""Pairs of training jobs on one GPU (*real*): Gavel's measured throughputs on two kinds of card.

Each protocol trains on a part and judges the rest. All choices are made by cross-validation inside the training part.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.quality.progress import Progress
from gangline.fingerprints.demand import SHARED_RESOURCES
from gangline.fingerprints.interference import (
    GROUPS_MAX,
    Colocation,
    InterferenceModel,
    Workload,
    predict_groups,
)
from gangline.fingerprints.interference_effects import Floats
from gangline.fingerprints.interference_pressure import TIME_SLICING
from gangline.fingerprints.interference_training import Measured, train

FILE = Path(__file__).resolve().parents[3] / "shared/data/interference/gavel_pairs_k80_p100.json"
FOLDS = 5
UNKNOWN_SUPPLY = np.full(len(SHARED_RESOURCES), nan)


class Judged(NamedTuple):
    """Predictions of held-out rows: a row per member of each pair. `abstained`: left out of all errors."""

    card: Sequence[str]
    family: Sequence[str]
    true: Floats
    ratio: Floats
    lower: Floats
    upper: Floats

    @property
    def is_answer(self) -> np.ndarray:
        """Return whether the model answered."""
        return np.isfinite(self.ratio)

    def error(self) -> Floats:
        """Return the relative errors of the throughput."""
        answer = self.is_answer
        return np.asarray(np.abs(self.true[answer] / self.ratio[answer] - 1.0))

    def coverage(self) -> float:
        """Return the share of the intervals that hold the truth."""
        answer = self.is_answer
        true = self.true[answer]
        return float(np.mean((self.lower[answer] <= true) & (true <= self.upper[answer])))

    def of_card(self, card: str) -> Judged:
        """Return the rows of a card."""
        rows = [at for at, name in enumerate(self.card) if name == card]
        return Judged(
            [card] * len(rows), [self.family[at] for at in rows],
            self.true[rows], self.ratio[rows], self.lower[rows], self.upper[rows],
        )  # fmt: skip


def read_pairs(path: Path = FILE) -> list[Measured]:
    """Return the pairs of jobs with one GPU that fit into memory together."""
    measured = []
    for card, jobs in json.loads(path.read_text()).items():
        facts = {}
        for name, row in jobs.items():
            job, gpus = ast.literal_eval(name)
            if gpus == 1:
                facts[name] = (job, re.sub(r" \(batch size \d+\)", "", job), float(row["null"]))
        names = list(facts)
        for at, first in enumerate(names):
            for second in names[at:]:
                pace = jobs[first].get(second, (0.0, 0.0))
                if min(pace) <= 0.0:
                    continue
                workloads = [
                    Workload(f"{card}: {facts[name][0]}", card, 1.0 / facts[name][2])
                    for name in (first, second)
                ]
                ratios = (facts[first][2] / pace[0], facts[second][2] / pace[1])
                # Both members of a pair of equal jobs are one measurement.
                ratios = (ratios[0], nan) if first == second else ratios
                measured.append(
                    Measured(
                        Colocation(workloads, UNKNOWN_SUPPLY),
                        ratios,
                        (facts[first][1], facts[second][1]),
                    )
                )
    return measured


def judge(
    model: InterferenceModel, held_out: Sequence[Measured]
) -> list[tuple[str, str, float, float, float, float]]:
    """Return card, family, truth and prediction of each member."""
    rows = []
    for begin in range(0, len(held_out), GROUPS_MAX):
        part = held_out[begin : begin + GROUPS_MAX]
        answers = predict_groups([run.colocation for run in part], TIME_SLICING, model)
        for run, answer in zip(part, answers, strict=True):
            for at, slowdown in enumerate(answer):
                if isfinite(run.ratios[at]):
                    card = run.colocation.workloads[at].context
                    rows.append((card, run.families[at], run.ratios[at], *slowdown[:3]))
    return rows


def joined(rows: Sequence[tuple[str, str, float, float, float, float]]) -> Judged:
    """Return rows as columns."""
    card, family, *numbers = zip(*rows, strict=True)
    return Judged(card, family, *(np.array(column) for column in numbers))


Trainer = Callable[[Sequence[Measured]], InterferenceModel]


def trained(measured: Sequence[Measured]) -> InterferenceModel:
    """Return the model of *measured*, all of them time-sliced."""
    return train(measured, TIME_SLICING)


def unseen_pairs(measured: Sequence[Measured], seed: int, progress: Progress) -> Judged:
    """Leave out a fifth of the pairs of each card in turn."""
    order, rows = np.random.default_rng(seed).permutation(len(measured)), []
    for fold in range(FOLDS):
        is_test = np.isin(np.arange(len(measured)), order[fold::FOLDS])
        model = trained([run for run, test in zip(measured, is_test, strict=True) if not test])
        rows += judge(model, [run for run, test in zip(measured, is_test, strict=True) if test])
        progress("unseen pairs", (fold + 1) / FOLDS)
    return joined(rows)


def unseen_models(measured: Sequence[Measured], progress: Progress) -> Judged:
    """Leave out each model with all of its batch sizes, on all cards, in turn."""
    families = sorted({family for run in measured for family in run.families})
    rows = []
    for at, family in enumerate(families):
        model = trained([run for run in measured if family not in run.families])
        rows += judge(model, [run for run in measured if family in run.families])
        progress("unseen models", (at + 1) / len(families))
    return joined(rows)
