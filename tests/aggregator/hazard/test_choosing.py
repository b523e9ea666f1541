"""The choice of a form: the average rank, unless the learned model clearly ranks better."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
import pytest

from gangline.aggregator.arrays import Floats
from gangline.aggregator.hazard import training
from gangline.aggregator.hazard.events import EventsError, FaultTable, parse_events
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
    """Return two forms on one fold: the first adds *more* to the first nodes, which fail."""
    source, positives = np.random.default_rng(1), len(more)
    node = np.tile(np.arange(NODES), DAYS)
    came = (node < positives).astype(np.float64)
    plain = np.tile(source.uniform(0.0, 1.0, NODES), DAYS)
    shift = np.tile(np.append(more, np.zeros(NODES - positives)), DAYS)
    fold = TimeFold(node, np.repeat(np.arange(DAYS), NODES), came, (plain + shift, plain))
    return FormEvaluation([fold], 0, NODES), FormEvaluation([fold], 1, NODES)


@pytest.mark.parametrize(
    ("more", "gains", "bound", "is_taken"),
    [
        # Without other forms, a cluster with lasting differences of hosts is ranked by chance.
        pytest.param([0.4] * 60, True, "above", True, id="many nodes"),
        # A gain by one host ends with it: by likelihood, its units counted as separate proofs.
        pytest.param([0.9] + [-0.02] * (NODES_POSITIVE_MIN - 1), True, "below", False, id="a few nodes"),
        # Hardware faults before day 120: in every draw all features led, by 0.001 of AUC.
        pytest.param([0.003] * 60, False, "above", False, id="next to nothing"),
        # With one host's faults, every draw has the same AUC, so each preferred the other form.
        pytest.param([0.6], True, "none", False, id="one node failed"),
        pytest.param([0.6] * (NODES_POSITIVE_MIN - 1), True, "none", False, id="few nodes failed"),
    ],
)  # fmt: skip
def test_a_richer_form_is_taken_if_it_is_clearly_better(
    more: list[float], gains: bool, bound: str, is_taken: bool
) -> None:
    better, plain = ahead(more)
    assert better.figures[0] > plain.figures[0]
    assert (better.figures[0] > plain.figures[0] + GAINS_MIN[0]) is gains
    estimate = better.bootstraps[0].minus(plain.bootstraps[0]).estimate()
    if bound == "none":
        for drawn in (estimate, *(bootstrap.estimate() for bootstrap in better.bootstraps)):
            assert isnan(drawn.lower) and isnan(drawn.upper)
    else:
        assert (estimate.lower > 0.0) is (bound == "above")
    assert ranks_better(better, plain) is is_taken
    assert not ranks_better(plain, better)
    assert not ranks_better(plain, plain)


def test_a_chance_is_one_at_the_most() -> None:
    """All of the worst hosts failed: a chance of 1.0000000000000004 made the model unreadable."""
    node = np.arange(21)
    came = (node >= 14).astype(np.float64)
    fold = TimeFold(node, np.zeros(21, dtype=np.intp), came, (np.where(came > 0, 1.0, node / 50),))
    bins = FormEvaluation([fold], 0, 21).calibration()[1]
    assert max(max(column) for column in bins) == 1.0


def test_one_host_that_fails_again_and_again_chooses_no_form() -> None:
    """In a new fleet with one bad host, the ranking that suited it was chosen for all."""
    lemon = [day + 0.3 for day in range(2, 100, 2) if not 30 < day < 47]
    rows = [row for day in lemon for row in fault("lemon", day, day + 0.2)]
    # These failed once, before the first fold: only a count separates the lemon on the first days.
    rows += [row for day in range(30) for row in fault(f"once-{day}", 40.3, 40.5)]
    rows.sort(key=lambda row: float(row["event_time"]))
    faults = parse_events(data_of(rows)).with_nodes(60)
    choice = choose_form(units_of(faults, 1), units_of(faults), ALL, faults.end_days, 60)
    assert choice.form == AVERAGE_RANK


def test_one_that_is_better_by_auc_and_worse_by_recall_is_not() -> None:
    """Hardware faults of the real recording: equal AUC, recall 0.154 against 0.177 of the rank."""
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
    """Without a fault in the second half, no later day can test the forms."""
    start = np.linspace(1.0, 20.0, 30)
    faults = FaultTable(
        tuple(f"n{number}" for number in range(30)),
        np.arange(30),
        start,
        start + 0.5,
        np.ones(30, dtype=bool),
        100.0,
    )
    with pytest.raises(EventsError, match="no ranking can be chosen"):
        choose_form(units_of(faults, 1), units_of(faults), ALL, 100.0, 30)


def test_a_form_without_weights_ranks_nobody() -> None:
    """Uninformative faults: the last bit of a sum ranked failed hosts above or below all others."""
    later = training._FutureUnits(units_of(parse_events(data_of(recording())).with_nodes(90)))
    for base in np.linspace(-9.0, -3.0, 60):
        assert len(np.unique(later.chance(float(base), (0.0,) * len(FEATURE_NAMES)))) == 1


def test_a_fold_is_judged_by_what_was_learned_before_its_first_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ranking chosen by days that it has seen is chosen for knowing them."""
    faults = parse_events(data_of(recording(rate=0.006))).with_nodes(80)
    daily, weekly, learned_units = units_of(faults, 1), units_of(faults), list[int]()

    def counted_fit(
        features: Floats, outcome: Floats, *more: Any
    ) -> tuple[float, tuple[float, ...]]:
        learned_units.append(len(outcome))
        return fit(features, outcome, *more)

    monkeypatch.setattr(training, "fit", counted_fit)
    folds = training.folds_of(daily, weekly, ALL, faults.end_days, [AVERAGE_RANK])
    assert len(folds) == len(learned_units) == len(training.FOLD_SHARES)
    for fold, units in zip(folds, learned_units, strict=True):
        assert units == (daily.day < fold.day.min()).sum()
