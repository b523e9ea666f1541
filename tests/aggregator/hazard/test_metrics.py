"""The figures: against the definition, with ties, with weights, and with an answer that is known."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.hazard import baselines
from gangline.aggregator.hazard.baselines import fit_isotonic
from gangline.aggregator.hazard.metrics import CalibrationBins, Ranking, bootstrap

UNITS = st.lists(
    st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), min_size=2, max_size=30
)


@given(UNITS)
@settings(max_examples=60)
def test_auc_is_the_share_of_pairs_in_order(units: list[tuple[int, bool, int]]) -> None:
    """A weight of 2 is a unit twice; equal ranks count half."""
    score, outcome, weight = (np.array(one, dtype=np.float64) for one in zip(*units, strict=True))
    repeated = [(s, o) for s, o, w in units for _ in range(w)]
    pairs = [
        1.0 if up > down else 0.5 if up == down else 0.0
        for up, good in repeated
        for down, bad in repeated
        if good and not bad
    ]
    auc = Ranking(score, outcome).auc(weight)
    assert isnan(auc) if not pairs else auc == pytest.approx(np.mean(pairs))


def test_recall_is_of_each_day_and_shares_ties() -> None:
    """A rank that all nodes share must not catch those that happen to stand first in the file."""
    day = np.repeat([0, 1], 100)
    outcome = np.zeros(200)
    outcome[[0, 150]] = 1
    one = np.ones(200)
    assert Ranking(np.zeros(200), outcome, day).recall(one) == pytest.approx(0.05)
    score = outcome + (day == 0) * 10.0  # all of day 0 rank above all of day 1
    assert Ranking(score, outcome, day).recall(one) == pytest.approx(1.0)
    assert Ranking(score, outcome).recall(one) == pytest.approx(0.5)  # the top 10 are all of day 0


def test_recall_without_positives_is_unknown() -> None:
    """Missing is not zero."""
    assert isnan(Ranking(np.ones(3), np.zeros(3)).recall(np.ones(3)))


def test_ece_of_what_is_calibrated_and_what_is_not() -> None:
    """Units told alike are one: the order of the file must not make a calibrated constant look wrong."""
    outcome = np.repeat([1.0, 0.0], [200, 800])
    one = np.ones(1000)
    assert CalibrationBins(np.full(1000, 0.2), outcome).error(one) == pytest.approx(0.0)
    assert CalibrationBins(np.full(1000, 0.5), outcome).error(one) == pytest.approx(0.3)
    # Overstated for one half and understated for the other: the mean is right, the bins are not.
    told = np.where(np.arange(1000) % 2, 0.3, 0.1)
    assert CalibrationBins(told, outcome).error(one) == pytest.approx(0.1)


def test_the_bootstrap_draws_nodes_not_days() -> None:
    """One node that fails each day is one observation: drawn by day, the interval would be too narrow."""
    node = np.repeat(np.arange(10), 50)
    outcome = (node == 0).astype(np.float64)
    drawn = bootstrap(lambda weight: float((weight * outcome).sum() / 500), node, 10, 300, 1)
    found = drawn.estimate()
    assert found.value == pytest.approx(0.1)
    assert found.lower == 0.0  # a fleet without that node
    assert found.upper == pytest.approx(0.3)
    again = bootstrap(lambda weight: float((weight * outcome).sum() / 500), node, 10, 300, 1)
    assert found == again.estimate()
    assert set(drawn.minus(again).draws.tolist()) == {0.0}  # of the same fleets


def test_what_is_calibrated_has_no_lower_end_above_what_is_true() -> None:
    """ "0.0004 [0.0004, 0.0037]": a draw adds chance to a sum of distances, so that no such interval holds the truth, 0."""
    source, nodes = np.random.default_rng(1), 100
    node = np.tile(np.arange(nodes), 20)
    for seed in range(5):
        told = source.uniform(0.0, 0.1, len(node))
        came = (source.random(len(node)) < told).astype(np.float64)
        drawn = bootstrap(CalibrationBins(told, came).error, node, nodes, 100, seed)
        assert drawn.estimate().lower > 0.0
        found = drawn.at_most()
        assert isnan(found.lower)
        assert found.upper >= found.value == drawn.value


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=60))
def test_isotonic_rises_and_keeps_the_mean(pairs: list[tuple[int, bool]]) -> None:
    """A calibration never turns a ranking round."""
    rank, outcome = (np.array(one, dtype=np.float64) for one in zip(*pairs, strict=True))
    curve = fit_isotonic(rank, outcome)
    told = curve(np.arange(-1.0, 8.0))
    assert (np.diff(told) >= 0).all()
    assert outcome.min() <= told.min() <= told.max() <= outcome.max()


@pytest.mark.slow
def test_auc_and_isotonic_steps_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours sort once for all draws of the bootstrap, which is 20 times quicker; they must not be another definition."""
    from sklearn.isotonic import IsotonicRegression
    from sklearn.metrics import roc_auc_score

    monkeypatch.setattr(
        baselines, "SHRINK_UNITS", 0.0
    )  # the steps themselves, not drawn to the mean
    source = np.random.default_rng(1)
    for _ in range(20):
        rank = np.round(source.random(500), int(source.integers(1, 4)))
        outcome = (source.random(500) < 0.1 + 0.3 * rank).astype(np.float64)
        weight = source.integers(0, 4, 500).astype(np.float64)
        auc = roc_auc_score(outcome, rank, sample_weight=weight)
        assert Ranking(rank, outcome).auc(weight) == pytest.approx(auc, abs=1e-9)
        fitted = IsotonicRegression().fit(rank, outcome).predict(rank)
        assert fit_isotonic(rank, outcome)(rank) == pytest.approx(fitted, abs=1e-9)
