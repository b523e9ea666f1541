"""The model: its sum, its stored text, its training, and the prior before it can learn."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.hazard.events import EventsError, parse_events
from gangline.aggregator.hazard.features import BASIC_FEATURE_NAMES, FEATURE_NAMES, FEATURES
from gangline.aggregator.hazard.history import ALL, HARDWARE, UnitState
from gangline.aggregator.hazard.model import (
    PUBLISHED_RATES,
    SPREAD_ASSUMED,
    SPREAD_MAX,
    HazardModel,
    ModelError,
    prior,
)
from gangline.aggregator.hazard.regression import fit
from gangline.aggregator.hazard.training import train
from tests.aggregator.hazard.fleets import data_of, recording

#: The features of a model before fault classes and measurements.
NAMES_OF_BEFORE = [
    "returned_1d", "returned_10d", "failed_before", "faults_7d", "faults_30d", "faults_90d", "returned", "faults_ever",
    "faults_last_7d",
]  # fmt: skip
NUMBERS = st.floats(-50, 50)
MODELS = st.builds(
    HazardModel,
    source=st.text(max_size=40),
    is_prior=st.booleans(),
    outcome=st.sampled_from([ALL, HARDWARE]),
    base_log_hazard_per_day=NUMBERS,
    weights=st.tuples(*[NUMBERS] * len(FEATURE_NAMES)),
    first_time=st.text(max_size=20),
    last_time=st.text(max_size=20),
    nodes=st.integers(0, 10**6),
    faults=st.integers(0, 10**6),
    ridge=st.floats(0, 1e6),
    metrics=st.dictionaries(st.text(max_size=10), st.floats(-1e6, 1e6), max_size=4),
    calibration=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=10).map(tuple),
    spread=st.floats(1, SPREAD_MAX),
)


@given(MODELS)
def test_a_model_comes_back_from_its_text(model: HazardModel) -> None:
    """After a restart the stored model is in use."""
    assert HazardModel.from_text(model.to_text()) == model


def test_a_model_of_an_earlier_version_keeps_its_text_and_version() -> None:
    """After an upgrade the prior returned, and scores named a model that `ops.models` lacked."""
    trained = replace(prior(), is_prior=False, last_time="2026-11-20 10:00:00")
    fields = json.loads(trained.to_text())
    assert "spread" not in fields
    assert list(fields["weights"]) == NAMES_OF_BEFORE
    old_text = json.dumps(fields, indent=1)  # as an earlier version wrote it
    model = HazardModel.from_text(old_text)
    assert model.to_text() == old_text and model.spread == SPREAD_ASSUMED
    assert model.version.endswith(hashlib.sha256(old_text.encode()).hexdigest()[:8])
    measured = HazardModel.from_text(replace(model, weights=(*model.weights[:-1], 0.7)).to_text())
    assert measured.weights == (*model.weights[:-1], 0.7)
    del fields["weights"][BASIC_FEATURE_NAMES[-1]]
    model = HazardModel.from_text(json.dumps(fields))
    assert model == trained and len(model.weights) == len(FEATURE_NAMES) == len(FEATURES)


@given(MODELS, st.lists(st.floats(0, 1), min_size=len(FEATURE_NAMES), max_size=len(FEATURE_NAMES)))
def test_contributions_add_up(model: HazardModel, row: list[float]) -> None:
    """An explanation's parts must add up to the score."""
    logs, parts = model.contributions(np.array([row]))
    assert parts.shape == (1, len(FEATURE_NAMES))
    total = model.base_log_hazard_per_day - math.log(24) + math.fsum(parts[0].tolist())
    assert logs[0] == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": {}}, "weights: expected some of"),
        ({"weights": {"age": 1.0}}, "weights: expected some of"),
        ({"base_log_hazard_per_day": 51}, "base_log_hazard_per_day: expected a number within"),
        ({"base_log_hazard_per_day": "x"}, "base_log_hazard_per_day: expected a number within"),
        ({"is_prior": 1}, "is_prior: expected true or false"),
        ({"nodes": -1}, "nodes: expected a whole number"),
        ({"source": "x" * 1001}, "source: expected at most 1000 characters"),
        ({"metrics": []}, "metrics: expected an object"),
        ({"calibration": [[1]]}, "calibration: expected pairs"),
        ({"spread": 0.9}, "spread: expected a factor from 1 to 30"),
        ({"spread": 100}, "spread: expected a number within -30 to 30"),
        ({"more": 1}, "fields that are missing or unknown: more"),
    ],
)
def test_a_text_that_is_no_model_is_refused(change: dict[str, object], message: str) -> None:
    """A row was edited by an operator, or written by a newer version."""
    with pytest.raises(ModelError) as refused:
        HazardModel.from_text(json.dumps({**json.loads(prior().to_text()), **change}))
    assert message in str(refused.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 30_000, "x" * 70_000, '{"a": NaN}'])
def test_other_texts_are_refused(text: str) -> None:
    """With any text in the column, judging continues with the prior."""
    with pytest.raises(ModelError):
        HazardModel.from_text(text)


def test_the_prior_says_that_it_is_one_and_keeps_near_the_published_rates() -> None:
    """On its first day a new cluster's rates are within a factor of two of published rates."""
    model = prior()
    assert model.is_prior
    assert "a prior" in model.source
    since = np.array([days for days, _ in PUBLISHED_RATES])
    zeros = np.zeros(len(since))
    state = UnitState(since, zeros, dict.fromkeys((7.0, 30.0, 90.0), zeros), zeros)
    rates = 1000 * model.expected(state, 1)
    assert np.all(np.abs(np.log(rates / [rate for _, rate in PUBLISHED_RATES])) < math.log(2.2))
    assert len(FEATURES) == len(model.weights)


def test_training_learns_that_who_returned_falls_again() -> None:
    """The record shows that the hazard is high after a return, and fades."""
    model = train(parse_events(data_of(recording())).with_nodes(80), ALL, "a test")
    day, month = np.array([0.5, 30.0, np.inf]), np.zeros(3)
    logs = model.expected(
        UnitState(day, month, dict.fromkeys((7.0, 30.0, 90.0), np.exp([-0.1, -2.0, -50.0])), month),
        1,
    )
    assert logs[0] > 5 * logs[1] > 5 * 0.9 * logs[2]
    assert not model.is_prior
    assert all(weight >= 0 for weight in model.weights)
    assert model.metrics["auc"] > 0.6
    assert 0.3 < sum(forecast for forecast, _ in model.calibration) / sum(c for _, c in model.calibration) < 3  # fmt: skip


def test_the_fit_finds_the_rates_that_made_the_data() -> None:
    """Ten thousand days of a known hazard: the fit finds its weights."""
    source = np.random.default_rng(1)
    features = np.zeros((40_000, len(FEATURE_NAMES)))
    features[:8000, 0] = 1.0
    hazard = np.where(features[:, 0] > 0, 0.2, 0.02)
    outcome = (source.random(40_000) < -np.expm1(-hazard)).astype(np.float64)
    base, weights = fit(features, outcome, 1.0)
    assert base == pytest.approx(math.log(0.02), abs=0.1)
    assert weights[0] == pytest.approx(math.log(10), abs=0.15)
    assert weights[1:] == (0.0,) * (len(FEATURE_NAMES) - 1)
    # A feature that lowers the hazard has no weight: a fault makes a host no better.
    assert fit(features, 1.0 - outcome, 1.0)[1] == (0.0,) * len(FEATURE_NAMES)


def test_too_few_faults_teach_nothing() -> None:
    """Three faults would make an overconfident model."""
    faults = parse_events(data_of(recording(nodes=10, days=60)))
    with pytest.raises(EventsError, match=r"fault starts \(all classes\); expected at least 20"):
        train(faults, ALL, "a test")
    with pytest.raises(EventsError, match=r"0 fault starts \(hardware\)"):
        train(replace(faults, hardware=np.zeros(len(faults.node), dtype=bool)), HARDWARE, "a test")
