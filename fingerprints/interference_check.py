"""Trains a model of interference and compares it with physics alone on pairs that it was not fitted to.

    python -m gangline.fingerprints.interference_check < co-locations.json > model.json

Ranks, ridges and weights are chosen in each fold from its training part alone, so no choice sees the pairs that it is judged on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np

from .interference import (
    GROUPS_MAX,
    InterferenceError,
    InterferenceModel,
    Slowdown,
    decode_model,
    encode_model,
    predict_groups,
)
from .interference_training import (
    FOLDS,
    Measured,
    check_measured,
    decode_measured,
    encode_measured,
    fit_model,
    run_child,
)

#: With a smaller share of answers on held-out pairs a model abstains too often to be of use.
ANSWERED_SHARE_MIN = 0.5


class CheckedModel(NamedTuple):
    """A model of all co-locations, with the mean relative errors of the throughput on held-out rows.

    `physics_error`: the error of physics alone on the same rows. `answered`: rows that the model predicts, among `rows`.
    """

    model: InterferenceModel
    error: float
    physics_error: float
    answered: int
    rows: int

    @property
    def is_better(self) -> bool:
        """Whether the model answers often enough, with a lower error than physics alone."""
        return self.answered >= ANSWERED_SHARE_MIN * self.rows and self.error < self.physics_error


def train_and_check(measured: Sequence[Measured], sharing: str) -> CheckedModel:
    """Return the model of *measured*, with its held-out errors. Imports scikit-learn: run it by `check_in_child`."""
    check_measured(measured, sharing)
    errors: list[tuple[float, float]] = []
    rows = 0
    for is_test in _folds(measured):
        parts: tuple[list[Measured], list[Measured]] = ([], [])
        for run, test in zip(measured, is_test, strict=True):
            parts[test].append(run)
        model = fit_model(parts[0], sharing)
        for run, learned, physics in zip(
            parts[1],
            _predictions(parts[1], sharing, model),
            _predictions(parts[1], sharing, None),
            strict=True,
        ):
            for ratio, own, base in zip(run.ratios, learned, physics, strict=True):
                if isfinite(ratio):
                    rows += 1
                    if not own.abstained:
                        errors.append((_error(ratio, own), _error(ratio, base)))
    if not errors:
        raise InterferenceError(
            f"the model abstains on all of {rows} held-out slowdowns: wait for more co-locations of the same workloads"
        )
    learned_error, physics_error = np.mean(errors, axis=0).tolist()
    return CheckedModel(
        fit_model(measured, sharing), learned_error, physics_error, len(errors), rows
    )


def _folds(measured: Sequence[Measured]) -> Iterator[list[int]]:
    """Yield per fold whether each co-location is held out (0, 1); those of the same two workloads are in one fold."""
    pairs = [tuple(sorted(w.key for w in run.colocation.workloads)) for run in measured]
    names = sorted(set(pairs))
    order = np.random.default_rng(0).permutation(len(names)) % FOLDS
    fold = dict(zip(names, order.tolist(), strict=True))
    for at in range(FOLDS):
        yield [int(fold[pair] == at) for pair in pairs]


def _predictions(
    measured: Sequence[Measured], sharing: str, model: InterferenceModel | None
) -> list[list[Slowdown]]:
    groups = [run.colocation for run in measured]
    return [
        slowdowns
        for begin in range(0, len(groups), GROUPS_MAX)
        for slowdowns in predict_groups(groups[begin : begin + GROUPS_MAX], sharing, model)
    ]


def _error(ratio: float, predicted: Slowdown) -> float:
    """Return the relative error of the throughput; without a prediction, of no slowdown."""
    return abs(max(ratio, 1.0) / (1.0 if predicted.abstained else predicted.ratio) - 1.0)


def check_in_child(measured: Sequence[Measured], sharing: str) -> CheckedModel:
    """Return `train_and_check` of a child process. Raises InterferenceError with the child's reason."""
    answer = json.loads(run_child(__name__, encode_measured(measured, sharing)))
    return CheckedModel(decode_model(answer.pop("model")), **answer)


def main() -> int:
    """Train and check on the co-locations of standard input; print the model with its errors."""
    try:
        checked = train_and_check(*decode_measured(sys.stdin.read()))
    except InterferenceError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(checked._asdict() | {"model": encode_model(checked.model)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
