"""Trains the model of interference: effects, boosted trees on their errors, and calibrated intervals.

Trees and calibration see only errors on pairs, or on whole families, that the effects behind them were not fitted to.
Otherwise they would learn how well the effects fit, not how well they predict. scikit-learn runs in a child process:

    python -m gangline.fingerprints.interference_training < co-locations.json > model.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..contract.workers import module_command
from .interference import (
    RESIDUAL_MAX,
    RISES,
    BaseSlowdowns,
    ColocatedWorkload,
    Colocation,
    GroupRows,
    InterferenceError,
    InterferenceModel,
    base_of,
    build_rows,
    decode_model,
    encode_model,
)
from .interference_effects import (
    CoRuns,
    Effects,
    Floats,
    Indexes,
    Shrinkage,
    WorkloadTable,
    fit_effects,
    names_of,
)
from .interference_pressure import SEPARATE, SHARINGS, SLOWDOWN_MAX
from .interference_trees import Forest

#: Limits of the training: fewer co-locations teach nothing, more of them take minutes.
COLOCATIONS_MIN, COLOCATIONS_MAX = 8, 20_000
#: Folds of the pairs, and of the families if there are more.
FOLDS = 5
#: Candidates of the cross-validation inside the training.
RANKS, SLOPE_RIDGES = (1, 2, 3), (1.0, 3.0, 10.0)
#: Shares of the residual that may be used: 0 if the trees gain nothing.
RESIDUAL_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Each tree is small: a prediction of 64 pairs takes less than a millisecond.
TREES, LEAVES_MAX, DEPTH_MAX, LEAF_ROWS_MIN, LEARNING_RATE = 40, 6, 3, 20, 0.08
#: Coverage of the intervals, and the quantiles of their limits.
COVERAGE, QUANTILE_LOW, MEDIAN, QUANTILE_HIGH = 0.9, 0.05, 0.5, 0.95
#: Rows from which a context has its own interval. If the training has a single family, the interval of an unseen workload
#: is UNSEEN_FACTOR times the interval of a seen workload.
CONTEXT_ROWS_MIN, UNSEEN_FACTOR = 50, 3.0
#: Limit of the time of a training in its process.
TRAINING_SECONDS_MAX = 600.0


class Measured(NamedTuple):
    """A co-location of two workloads: their slowdowns against their own pace alone, NaN unknown.

    `families`: names of the families of both; workloads of a family resemble each other, such as batch sizes of a model.
    """

    colocation: Colocation
    ratios: tuple[float, float]
    families: tuple[str, str] = ("", "")


class Corpus(NamedTuple):
    """All co-locations as arrays. `rows`: a row per member; `runs`, `pair`: only the members with a ratio."""

    keys: tuple[str, ...]
    contexts: tuple[str, ...]
    table: WorkloadTable
    rows: GroupRows
    is_measured: npt.NDArray[np.bool_]
    runs: CoRuns
    pair: Indexes


class HeldOutErrors(NamedTuple):
    """Logarithm of true over predicted ratio on held-out rows. `fold`: the fold in the cross-fit of the trees."""

    features: Floats
    error: Floats
    has_unseen: Indexes
    context: Indexes
    fold: Indexes

    def part(self, rows: npt.NDArray[Any]) -> HeldOutErrors:
        """Return the rows that the flags *rows* select."""
        return HeldOutErrors(**{name: array[rows] for name, array in self._asdict().items()})


def check_measured(measured: Sequence[Measured], sharing: str) -> None:
    """Raise InterferenceError for wrong data, or too few or too many co-locations."""
    if sharing not in SHARINGS or sharing == SEPARATE:
        raise InterferenceError(f"sharing {sharing!r}: nothing is learned of it")
    if not COLOCATIONS_MIN <= len(measured) <= COLOCATIONS_MAX:
        raise InterferenceError(
            f"{len(measured)} co-locations: expected {COLOCATIONS_MIN} to {COLOCATIONS_MAX}"
        )
    for run in measured:
        if len(run.colocation.workloads) != 2:
            raise InterferenceError(
                "a co-location of other than two workloads: the training takes pairs"
            )
        if any(isfinite(ratio) and not 0.0 < ratio <= 1e6 for ratio in run.ratios):
            raise InterferenceError(f"slowdowns {run.ratios}: expected numbers above 0")


def corpus_of(measured: Sequence[Measured], sharing: str) -> Corpus:
    """Return the arrays of *measured*, which `check_measured` accepts. Raises InterferenceError."""
    workloads = [workload for run in measured for workload in run.colocation.workloads]
    keys, index = names_of([workload.key for workload in workloads])
    if "" in keys:
        raise InterferenceError(
            "a co-location of a workload without a key: nothing can be learned of it"
        )
    _, family = names_of(
        [
            name or key
            for run in measured
            for name, key in zip(
                run.families, (w.key for w in run.colocation.workloads), strict=True
            )
        ]
    )
    contexts, context = names_of([workload.context for workload in workloads])
    first = np.unique(index, return_index=True)[1]
    pace = np.array([workloads[at].pace_seconds for at in first.tolist()])
    table = WorkloadTable(pace, family[first], context[first])
    rows = build_rows([run.colocation for run in measured], sharing, None)
    rows = rows._replace(known=index, context=context)
    ratio = np.clip(np.array([run.ratios for run in measured]).ravel(), None, SLOWDOWN_MAX)
    is_measured = np.isfinite(ratio)
    other = index.reshape(-1, 2)[:, ::-1].ravel()
    runs = CoRuns(index, other, np.maximum(ratio, 1.0), rows.excess).part(is_measured)
    pair = np.minimum(index, other) * len(keys) + np.maximum(index, other)
    pair = pair[is_measured]
    if (pairs := np.unique(pair).size) < FOLDS:
        raise InterferenceError(
            f"co-locations of {pairs} pairs: expected {FOLDS} or more different pairs"
        )
    return Corpus(keys, contexts, table, rows, is_measured, runs, pair)


def pair_folds(corpus: Corpus) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield flags of the rows of each fold; both rows of a pair are in one fold."""
    pairs, inverse = np.unique(corpus.pair, return_inverse=True)
    fold = np.random.default_rng(0).permutation(pairs.size) % FOLDS
    for at in range(FOLDS):
        yield fold[inverse] == at


def family_folds(corpus: Corpus) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield flags of the workloads of each fold; a family is in one fold."""
    families = np.unique(corpus.table.family)
    fold = np.random.default_rng(0).permutation(families.size) % max(
        min(families.size, 2 * FOLDS), 2
    )
    for at in range(int(fold.max()) + 1):
        yield np.isin(corpus.table.family, families[fold == at])


def held_out(corpus: Corpus, shrinkage: Shrinkage) -> HeldOutErrors:
    """Return the errors of the effects on pairs, and on families, that they were not fitted to."""
    parts: list[tuple[BaseSlowdowns, npt.NDArray[np.bool_], int]] = []
    for at, is_test in enumerate(pair_folds(corpus)):
        effects = fit_effects(corpus.runs.part(~is_test), corpus.table, shrinkage)
        parts.append((_base(corpus, effects, is_test, None), is_test, at))
    for at, is_unseen in enumerate(family_folds(corpus)):
        is_test = is_unseen[corpus.runs.own] | is_unseen[corpus.runs.other]
        if is_test.all() or not is_test.any():
            continue
        effects = fit_effects(corpus.runs.part(~is_test), corpus.table, shrinkage)
        base = _base(corpus, effects, is_test, is_unseen)
        parts.append((base, is_test, at % FOLDS))
    return HeldOutErrors(
        np.concatenate([base.features for base, _, _ in parts]),
        np.concatenate([np.log(corpus.runs.ratio[rows] / base.ratio) for base, rows, _ in parts]),
        np.concatenate([base.has_unseen for base, _, _ in parts]),
        np.concatenate([corpus.table.context[corpus.runs.own[rows]] for _, rows, _ in parts]),
        np.concatenate([np.full(int(rows.sum()), fold) for _, rows, fold in parts]),
    )


def _base(
    corpus: Corpus,
    effects: Effects,
    is_test: npt.NDArray[np.bool_],
    is_unseen: npt.NDArray[np.bool_] | None,
) -> BaseSlowdowns:
    known = corpus.rows.known
    if is_unseen is not None:
        known = np.where(is_unseen[known], -1, known)
    base = base_of(corpus.rows._replace(known=known), effects)
    rows = np.flatnonzero(corpus.is_measured)[is_test]
    return BaseSlowdowns(
        base.ratio[rows], base.features[rows], base.by_resource[rows], base.has_unseen[rows]
    )


def throughput_error(errors: HeldOutErrors, residual: Floats | float = 0.0) -> Floats:
    """Return the relative error of the throughput of each row."""
    return np.asarray(np.abs(np.exp(errors.error - residual) - 1.0))


def choose_shrinkage(corpus: Corpus) -> tuple[Shrinkage, HeldOutErrors]:
    """Return the shrinkage with the least error on held-out pairs and held-out families, and its errors.

    First the rank is chosen, then the ridge of the slopes.
    """
    ranked = [(trial, held_out(corpus, trial)) for trial in map(Shrinkage, RANKS)]
    rank = min(ranked, key=lambda result: _loss(result[1]))[0].rank
    trials = [Shrinkage(rank, slope_ridge) for slope_ridge in SLOPE_RIDGES]
    return min(
        ((trial, held_out(corpus, trial)) for trial in trials), key=lambda result: _loss(result[1])
    )


def _loss(errors: HeldOutErrors) -> float:
    relative = throughput_error(errors)
    strata = [relative[errors.has_unseen == stratum] for stratum in (0, 1)]
    return sum(float(stratum.mean()) for stratum in strata if stratum.size)


def train(measured: Sequence[Measured], sharing: str) -> InterferenceModel:
    """Return the model of *measured*. Imports scikit-learn: run it in a process of its own (`train_in_child`).

    Raises InterferenceError for wrong data, or too few or too many co-locations.
    """
    check_measured(measured, sharing)
    return fit_model(measured, sharing)


def fit_model(measured: Sequence[Measured], sharing: str) -> InterferenceModel:
    """Return the model of co-locations that are checked, or of a part of them."""
    corpus = corpus_of(measured, sharing)
    shrinkage, errors = choose_shrinkage(corpus)
    seen = errors.part(errors.has_unseen == 0)
    residual = np.clip(crossed(errors, MEDIAN), -RESIDUAL_MAX, RESIDUAL_MAX)
    share = min(
        RESIDUAL_SHARES, key=lambda share: float(throughput_error(errors, share * residual).mean())
    )
    outside = np.maximum(
        crossed(seen, QUANTILE_LOW) - seen.error, seen.error - crossed(seen, QUANTILE_HIGH)
    )
    contexts = len(corpus.contexts)
    widening = by_context(outside, seen.context, contexts)
    distance, is_unseen = np.abs(errors.error - share * residual), errors.has_unseen == 1
    if is_unseen.any():
        unseen_width = by_context(distance[is_unseen], errors.context[is_unseen], contexts)
    else:
        unseen_width = UNSEEN_FACTOR * by_context(distance, errors.context, contexts)
    median = _scaled(fit_forest(errors.features, errors.error, MEDIAN), share)
    low, high = (
        fit_forest(seen.features, seen.error, quantile)
        for quantile in (QUANTILE_LOW, QUANTILE_HIGH)
    )
    effects = fit_effects(corpus.runs, corpus.table, shrinkage)
    total = np.nan_to_num(corpus.rows.own, nan=-np.inf)[:, :, -1] + corpus.rows.others[:, :, -1]
    greatest = total[corpus.is_measured].max(axis=0)
    return InterferenceModel(
        sharing, corpus.keys, corpus.contexts, effects, median, (low, high), widening, unseen_width,
        np.where(np.isfinite(greatest), greatest, np.nan),
    )  # fmt: skip


def crossed(errors: HeldOutErrors, quantile: float) -> Floats:
    """Return the quantile of each row by trees that were fitted to the other folds."""
    result = np.zeros(errors.error.size)
    for fold in range(FOLDS):
        is_test = errors.fold == fold
        forest = fit_forest(errors.features[~is_test], errors.error[~is_test], quantile)
        result[is_test] = forest.predict(errors.features[is_test])
    return result


def by_context(scores: Floats, context: Indexes, contexts: int) -> Floats:
    """Return the conformal quantile of *scores* per context and, last, of all rows.

    A context with fewer than CONTEXT_ROWS_MIN rows gets the quantile of all rows.
    """
    result = np.full(contexts + 1, _conformal(scores))
    for at in range(contexts):
        if np.count_nonzero(context == at) >= CONTEXT_ROWS_MIN:
            result[at] = _conformal(scores[context == at])
    return result


def _conformal(scores: Floats) -> float:
    """Return the quantile of *scores* that covers COVERAGE of new rows."""
    rank = min(int(np.ceil((scores.size + 1) * COVERAGE)), scores.size)
    return float(np.sort(scores)[rank - 1])


def _scaled(forest: Forest, share: float) -> Forest:
    """Return the forest with *share* of its values; without trees for 0."""
    if not share:
        empty = {
            name: array[:0]
            for name, array in forest._asdict().items()
            if name not in ("baseline", "depth")
        }
        return Forest(baseline=0.0, depth=0, **empty)
    return forest._replace(baseline=share * forest.baseline, value=share * forest.value)


def fit_forest(features: Floats, target: Floats, quantile: float) -> Forest:
    """Return boosted trees for a quantile of *target*, monotone in the features that RISES names."""
    return export_forest(fit_booster(features, target, quantile))


def fit_booster(features: Floats, target: Floats, quantile: float) -> Any:
    """Return the fitted regressor of scikit-learn, with monotone leaves.

    The library refits the leaves to the quantile after a tree has grown, and the refit ignores the constraints. So the
    leaves are limited again, in the library's own arrays: it and the exported forest stay equal.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    booster: Any = HistGradientBoostingRegressor()
    booster.set_params(
        loss="quantile", quantile=quantile, monotonic_cst=list(RISES), max_iter=TREES, max_leaf_nodes=LEAVES_MAX,
        max_depth=DEPTH_MAX, min_samples_leaf=LEAF_ROWS_MIN, learning_rate=LEARNING_RATE, early_stopping=False,
        random_state=0,
    )  # fmt: skip
    # The library cannot bin a column without any number. No tree splits a constant column.
    booster.fit(np.where(np.isnan(features).all(axis=0), 0.0, features), target)
    for (predictor,) in booster._predictors:
        make_monotone(predictor.nodes)
    return booster


def make_monotone(nodes: Any) -> None:
    """Limit the leaves of a tree in place, so that its value rises with each feature of RISES."""
    pending = [(0, -np.inf, np.inf)]
    while pending:
        at, low, high = pending.pop()
        node = nodes[at]
        if node["is_leaf"]:
            nodes["value"][at] = min(max(float(node["value"]), low), high)
            continue
        left, right = int(node["left"]), int(node["right"])
        left_high, right_low = high, low
        if RISES[int(node["feature_idx"])]:
            middle = (_mean_leaf(nodes, left) + _mean_leaf(nodes, right)) / 2.0
            left_high = right_low = min(max(middle, low), high)
        pending += [(left, low, left_high), (right, right_low, high)]


def _mean_leaf(nodes: Any, root: int) -> float:
    """Return the mean value of the leaves below *root*, by their rows."""
    total, rows, pending = 0.0, 0, [root]
    while pending:
        node = nodes[pending.pop()]
        if node["is_leaf"]:
            total += float(node["value"]) * int(node["count"])
            rows += int(node["count"])
        else:
            pending += [int(node["left"]), int(node["right"])]
    return total / max(rows, 1)


def export_forest(booster: Any) -> Forest:
    """Return the arrays of a fitted HistGradientBoostingRegressor."""
    trees = [predictor.nodes for (predictor,) in booster._predictors]
    sizes = np.array([len(nodes) for nodes in trees])
    roots = np.cumsum(sizes) - sizes
    nodes, offset = np.concatenate(trees), np.repeat(roots, sizes)
    is_leaf = nodes["is_leaf"].astype(bool)
    itself = np.arange(nodes.size)
    # A split between missing and known values has an infinite threshold.
    threshold = np.clip(nodes["num_threshold"], None, np.finfo(np.float64).max)
    return Forest(
        float(np.ravel(booster._baseline_prediction)[0]),
        roots,
        np.where(is_leaf, 0, nodes["feature_idx"]).astype(np.intp),
        np.where(is_leaf, 0.0, threshold),
        np.where(is_leaf, itself, nodes["left"] + offset).astype(np.intp),
        np.where(is_leaf, itself, nodes["right"] + offset).astype(np.intp),
        np.where(is_leaf, nodes["value"], 0.0),
        nodes["missing_go_to_left"].astype(bool),
        int(nodes["depth"].max()),
    )


def encode_measured(measured: Sequence[Measured], sharing: str) -> str:
    """Return co-locations as the JSON that a child process trains on."""
    runs = [
        {
            "workloads": [
                {"key": w.key, "context": w.context, "pace_seconds": w.pace_seconds, "demand": np.asarray(w.demand).tolist()}
                for w in run.colocation.workloads
            ],
            "supply": np.asarray(run.colocation.supply).tolist(), "ratios": run.ratios, "families": run.families,
        }
        for run in measured
    ]  # fmt: skip
    return json.dumps({"sharing": sharing, "runs": runs})


def decode_measured(text: str) -> tuple[list[Measured], str]:
    """Return the co-locations and the form of sharing that `encode_measured` wrote. Raises InterferenceError for anything else."""
    try:
        stored = json.loads(text)
        measured = [
            Measured(
                Colocation(
                    [
                        ColocatedWorkload(
                            w["key"],
                            w["context"],
                            float(w["pace_seconds"]),
                            np.array(w["demand"], dtype=np.float64),
                        )
                        for w in run["workloads"]
                    ],
                    np.array(run["supply"], dtype=np.float64),
                ),
                (float(run["ratios"][0]), float(run["ratios"][1])),
                (str(run["families"][0]), str(run["families"][1])),
            )
            for run in stored["runs"]
        ]
        return measured, str(stored["sharing"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InterferenceError(f"not co-locations: {error!r}; use encode_measured") from None


def train_in_child(measured: Sequence[Measured], sharing: str) -> InterferenceModel:
    """Return the model, trained in a child process. Raises InterferenceError with the child's reason."""
    return decode_model(run_child(__name__, encode_measured(measured, sharing)))


def run_child(module: str, text: str) -> str:
    """Return the output of *module* in a child process that gets *text*. Raises InterferenceError with its reason.

    The child has one thread: the trees are small, and threads that wait for each other on a busy machine took 180 times as long.
    """
    try:
        result = subprocess.run(
            module_command(module), input=text, capture_output=True, text=True, timeout=TRAINING_SECONDS_MAX, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InterferenceError(
            f"the training took longer than {TRAINING_SECONDS_MAX:.0f} s: train on fewer co-locations"
        ) from None
    if result.returncode:
        reason = (result.stderr.strip() or f"exit status {result.returncode}").splitlines()[-1]
        raise InterferenceError(f"the training failed: {reason}")
    return result.stdout


def main() -> int:
    """Train on the co-locations of standard input; print the model."""
    try:
        print(encode_model(train(*decode_measured(sys.stdin.read()))))
    except InterferenceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
