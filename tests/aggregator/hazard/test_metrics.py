"""The figures: against the definition, with ties, with weights, and with a known answer."""

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
    score, outcome, weight = (
        np.array(column, dtype=np.float64) for column in zip(*units, strict=True)
    )
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
    """Nodes with equal ranks must not win by their position in the file."""
    day = np.repeat([0, 1], 100)
    outcome = np.zeros(200)
    outcome[[0, 150]] = 1
    weights = np.ones(200)
    assert Ranking(np.zeros(200), outcome, day).recall(weights) == pytest.approx(0.05)
    score = outcome + (day == 0) * 10.0  # all of day 0 rank above all of day 1
    assert Ranking(score, outcome, day).recall(weights) == pytest.approx(1.0)
    assert Ranking(score, outcome).recall(weights) == pytest.approx(
        0.5
    )  # the top 10 are all of day 0


def test_recall_without_positives_is_unknown() -> None:
    """A missing value differs from zero."""
    assert isnan(Ranking(np.ones(3), np.zeros(3)).recall(np.ones(3)))


def test_ece_of_what_is_calibrated_and_what_is_not() -> None:
    """Units with equal forecasts form a bin: file order must not spoil a calibrated constant."""
    outcome = np.repeat([1.0, 0.0], [200, 800])
    weights = np.ones(1000)
    assert CalibrationBins(np.full(1000, 0.2), outcome).error(weights) == pytest.approx(0.0)
    assert CalibrationBins(np.full(1000, 0.5), outcome).error(weights) == pytest.approx(0.3)
    # Too high for one half and too low for the other: the mean is right, the bins are wrong.
    forecast = np.where(np.arange(1000) % 2, 0.3, 0.1)
    assert CalibrationBins(forecast, outcome).error(weights) == pytest.approx(0.1)


def test_the_bootstrap_draws_nodes_not_days() -> None:
    """A node that fails each day is one observation: draws by day give too narrow an interval."""
    node = np.repeat(np.arange(10), 50)
    outcome = (node == 0).astype(np.float64)
    drawn = bootstrap(lambda weight: float((weight * outcome).sum() / 500), node, 10, 300, 1)
    estimate = drawn.estimate()
    assert estimate.value == pytest.approx(0.1)
    assert estimate.lower == 0.0  # a fleet without that node
    assert estimate.upper == pytest.approx(0.3)
    again = bootstrap(lambda weight: float((weight * outcome).sum() / 500), node, 10, 300, 1)
    assert estimate == again.estimate()
    assert set(drawn.minus(again).draws.tolist()) == {0.0}  # the same fleets


def test_what_is_calibrated_has_no_lower_end_above_what_is_true() -> None:
    """ "0.0004 [0.0004, 0.0037]": draws add noise to distances, so no interval contains 0."""
    source, nodes = np.random.default_rng(1), 100
    node = np.tile(np.arange(nodes), 20)
    for seed in range(5):
        forecast = source.uniform(0.0, 0.1, len(node))
        came = (source.random(len(node)) < forecast).astype(np.float64)
        drawn = bootstrap(CalibrationBins(forecast, came).error, node, nodes, 100, seed)
        assert drawn.estimate().lower > 0.0
        bound = drawn.at_most()
        assert isnan(bound.lower)
        assert bound.upper >= bound.value == drawn.value


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=60))
def test_isotonic_rises_and_keeps_the_mean(pairs: list[tuple[int, bool]]) -> None:
    """A calibration never reverses a ranking."""
    rank, outcome = (np.array(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    curve = fit_isotonic(rank, outcome)
    calibrated = curve(np.arange(-1.0, 8.0))
    assert (np.diff(calibrated) >= 0).all()
    assert outcome.min() <= calibrated.min() <= calibrated.max() <= outcome.max()


@pytest.mark.slow
def test_auc_and_isotonic_steps_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours sort once for all bootstrap draws, 20 times faster; the definition must be the same."""
    from sklearn.isotonic import IsotonicRegression
    from sklearn.metrics import roc_auc_score

    monkeypatch.setattr(
        baselines, "SHRINK_UNITS", 0.0
    )  # the steps themselves, not shrunk to the mean
    source = np.random.default_rng(1)
    for _ in range(20):
        rank = np.round(source.random(500), int(source.integers(1, 4)))
        outcome = (source.random(500) < 0.1 + 0.3 * rank).astype(np.float64)
        weight = source.integers(0, 4, 500).astype(np.float64)
        auc = roc_auc_score(outcome, rank, sample_weight=weight)
        assert Ranking(rank, outcome).auc(weight) == pytest.approx(auc, abs=1e-9)
        fitted = IsotonicRegression().fit(rank, outcome).predict(rank)
        assert fit_isotonic(rank, outcome)(rank) == pytest.approx(fitted, abs=1e-9)
