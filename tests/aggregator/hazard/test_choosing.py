"""The choice of a form: the average rank, unless the learned model plainly ranks better on days ahead."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
import pytest

from gangline.aggregator.hazard import training
from gangline.aggregator.hazard.events import EventsError, FaultTable, Floats, parse_events
from gangline.aggregator.hazard.features import AVERAGE_RANK, FEATURE_NAMES
from gangline.aggregator.hazard.history import ALL, units_of
from gangline.aggregator.hazard.metrics import NODES_POSITIVE_MIN
from gangline.aggregator.hazard.regression import fit
from gangline.aggregator.hazard.training import (
    GAINS_MIN,
    FormEvaluation,
    TimeFold,
    choose_form,
    ranks_better,
)
from tests.aggregator.hazard.fleets import data_of, fault, recording

NODES, DAYS = 200, 4


def ahead(more: list[float]) -> tuple[FormEvaluation, FormEvaluation]:
    """Two forms on one fold: the first tells *more* of the first nodes, those that fail; each on all of its days."""
    source, positives = np.random.default_rng(1), len(more)
    node = np.tile(np.arange(NODES), DAYS)
    came = (node < positives).astype(np.float64)
    plain = np.tile(source.uniform(0.0, 1.0, NODES), DAYS)
    shift = np.tile(np.append(more, np.zeros(NODES - positives)), DAYS)
    fold = TimeFold(node, np.repeat(np.arange(DAYS), NODES), came, (plain + shift, plain))
    return FormEvaluation([fold], 0, NODES), FormEvaluation([fold], 1, NODES)


def test_a_richer_form_that_is_better_for_many_nodes_is_taken() -> None:
    """Held to the simple ranking for ever, a cluster whose hosts differ for good is ranked by chance."""
    better, plain = ahead([0.4] * 60)
    assert ranks_better(better, plain)
    assert not ranks_better(plain, better)
    assert not ranks_better(plain, plain)


def test_a_chance_is_one_at_the_most() -> None:
    """All of the worst hosts failed, as was told: 1.0000000000000004 of them, and a model that nobody could read again."""
    node = np.arange(21)
    came = (node >= 14).astype(np.float64)
    fold = TimeFold(node, np.zeros(21, dtype=np.intp), came, (np.where(came > 0, 1.0, node / 50),))
    bins = FormEvaluation([fold], 0, 21).calibration()[1]
    assert max(max(one) for one in bins) == 1.0


def test_one_that_is_better_by_a_few_nodes_is_not() -> None:
    """A gain that one host makes is gone with it: by likelihood, units of one node counted as so many proofs."""
    better, plain = ahead([0.9] + [-0.02] * (NODES_POSITIVE_MIN - 1))
    assert better.figures[0] > plain.figures[0] + GAINS_MIN[0]
    assert better.bootstraps[0].minus(plain.bootstraps[0]).estimate().lower <= 0.0
    assert not ranks_better(better, plain)


def test_of_a_few_nodes_that_failed_none_is_plainly_better() -> None:
    """One host's faults: drawn often or seldom, its AUC is the same, so that every draw had the other form ahead."""
    for positives in (1, NODES_POSITIVE_MIN - 1):
        better, plain = ahead([0.6] * positives)
        assert better.figures[0] > plain.figures[0] + GAINS_MIN[0]
        for drawn in (*better.bootstraps, better.bootstraps[0].minus(plain.bootstraps[0])):
            estimate = drawn.estimate()
            assert isnan(estimate.lower) and isnan(estimate.upper)
        assert not ranks_better(better, plain)


def test_one_host_that_fails_again_and_again_chooses_no_form() -> None:
    """A new fleet with one bad host: whichever ranking that host suited was taken for all."""
    lemon = [at + 0.3 for at in range(2, 100, 2) if not 30 < at < 47]
    rows = [row for at in lemon for row in fault("lemon", at, at + 0.2)]
    # They failed once, before the first fold, and last: only a count tells the lemon from them on the first days.
    rows += [row for at in range(30) for row in fault(f"once-{at}", 40.3, 40.5)]
    rows.sort(key=lambda row: float(row["event_time"]))
    faults = parse_events(data_of(rows)).with_nodes(60)
    found = choose_form(units_of(faults, 1), units_of(faults), ALL, faults.end_days, 60)
    assert found.form == AVERAGE_RANK


def test_one_that_is_better_by_next_to_nothing_is_not() -> None:
    """Hardware faults before day 120: every draw of nodes had all features ahead, by 0.001 of AUC."""
    better, plain = ahead([0.003] * 60)
    assert 0.0 < better.figures[0] - plain.figures[0] < GAINS_MIN[0]
    assert better.bootstraps[0].minus(plain.bootstraps[0]).estimate().lower > 0.0
    assert not ranks_better(better, plain)


def test_one_that_is_better_by_auc_and_worse_by_recall_is_not() -> None:
    """Hardware faults of the real recording: AUC level, recall 0.154 where the simple ranking has 0.177."""
    node = np.arange(NODES)
    came = (node < 40).astype(np.float64)
    plain = np.where(
        node < 10, 1.0, np.where(came > 0, 0.3, 0.4)
    )  # ten of forty on top, the others below all
    above = 0.4 + 0.2 * came + 0.3 * ((node >= 40) & (node < 60))  # twenty healthy ones on top
    fold = TimeFold(node, np.zeros(NODES, dtype=np.intp), came, (above, plain))
    richer, simple = FormEvaluation([fold], 0, NODES), FormEvaluation([fold], 1, NODES)
    assert richer.figures[0] > simple.figures[0] + 0.1
    assert richer.figures[1] < simple.figures[1]
    assert not ranks_better(richer, simple)


def test_nothing_to_choose_by_is_an_error() -> None:
    """No fault in the second half: there is no day ahead to check on."""
    start = np.linspace(1.0, 20.0, 30)
    faults = FaultTable(
        tuple(f"n{at}" for at in range(30)),
        np.arange(30),
        start,
        start + 0.5,
        np.ones(30, dtype=bool),
        100.0,
    )
    with pytest.raises(EventsError, match="no ranking can be chosen"):
        choose_form(units_of(faults, 1), units_of(faults), ALL, 100.0, 30)


def test_a_form_without_weights_ranks_nobody() -> None:
    """Fitted to faults that tell nothing, it put who had failed before above or below all others by the last bit of a sum."""
    later = training._FutureUnits(units_of(parse_events(data_of(recording())).with_nodes(90)))
    for base in np.linspace(-9.0, -3.0, 60):
        assert len(np.unique(later.chance(float(base), (0.0,) * len(FEATURE_NAMES)))) == 1


def test_a_fold_is_judged_by_what_was_learned_before_its_first_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ranking that was chosen by days that it had seen is chosen for knowing them."""
    faults = parse_events(data_of(recording(rate=0.006))).with_nodes(80)
    daily, weekly, learned = units_of(faults, 1), units_of(faults), list[int]()

    def noted(features: Floats, outcome: Floats, *more: Any) -> tuple[float, tuple[float, ...]]:
        learned.append(len(outcome))
        return fit(features, outcome, *more)

    monkeypatch.setattr(training, "fit", noted)
    found = training.folds_of(daily, weekly, ALL, faults.end_days, [AVERAGE_RANK])
    assert len(found) == len(learned) == len(training.FOLD_SHARES)
    for fold, units in zip(found, learned, strict=True):
        assert units == (daily.day < fold.day.min()).sum()
