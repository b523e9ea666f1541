"""Measurements of hosts count in a trained model only if they predict faults."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gangline.aggregator.arrays import Floats
from gangline.aggregator.hazard.events import FaultTable
from gangline.aggregator.hazard.features import (
    AVERAGE_RANK,
    FEATURE_NAMES,
    HISTORY_FEATURE_NAMES,
    MEASURED_FORM,
    features_of,
)
from gangline.aggregator.hazard.history import ALL, WINDOW_DAYS, units_of
from gangline.aggregator.hazard.measured import MEASURED, MODEL_INPUT_MAX, HostDays, model_inputs
from gangline.aggregator.hazard.metrics import Ranking
from gangline.aggregator.hazard.model import HazardModel
from gangline.aggregator.hazard.training import KNOWN_SHARE_MIN, train
from tests.aggregator.hazard.fleets import DAYS, days_of, normal, planted

SPLIT = 110


def auc_later(model: HazardModel, faults: FaultTable, days: HostDays | None) -> float:
    """Return the AUC of *model* on the days after SPLIT."""
    later = units_of(faults, days_measured=days).between(SPLIT + 1, DAYS)
    ranked = Ranking(model.probability(later.state, WINDOW_DAYS), later.positives(ALL))
    return ranked.auc(np.ones(len(later.day)))


def weight(model: HazardModel, name: str) -> float:
    return model.weights[FEATURE_NAMES.index(name)]


@pytest.mark.slow
@pytest.mark.parametrize("known_share", [1.0, 0.5])
def test_what_tells_of_faults_is_learned(known_share: float) -> None:
    """Corrected errors rose for days before each fault; a model of past faults ranked these last.

    Half of the days may be unknown: an aggregator that was down every other midnight.
    """
    faults, values = planted()
    known = np.random.default_rng(2).random(values.shape[:2]) < known_share
    days, before = days_of(values, faults, known), faults.before(SPLIT + 1.0)
    simple, model = train(before, ALL, ""), train(before, ALL, "", days)
    assert model.source.endswith(MEASURED_FORM.name)
    assert weight(model, "corrected_errors") > 0.2
    gain = auc_later(model, faults, days) - auc_later(simple, faults, days)
    assert gain > 0.2 * known_share
    assert model.metrics["auc"] > simple.metrics["auc"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("known_share", [1.0, 0.5])
def test_noise_leaves_the_simple_ranking_in_use(seed: int, known_share: float) -> None:
    """Negative control: all values are known, and independent of faults."""
    faults, values = planted(seed)
    source = np.random.default_rng(100 + seed)
    noise = source.lognormal(0.0, 1.5, values.shape)
    noise[..., [feature.name for feature in MEASURED].index("speed")] = source.normal(0.97, 0.03, values.shape[:2])  # fmt: skip
    known = source.random(values.shape[:2]) < known_share
    simple = train(faults, ALL, "")
    model = train(faults, ALL, "", days_of(noise, faults, known))
    assert model.source == simple.source
    assert model.source.endswith(AVERAGE_RANK.name)
    assert model.weights == pytest.approx(simple.weights, abs=1e-9)
    assert not any(model.weights[len(HISTORY_FEATURE_NAMES) :])


@pytest.mark.slow
def test_what_is_normal_or_not_known_changes_nothing_at_all() -> None:
    """Normal or unrecorded days give the earlier model, to the last bit."""
    faults, _ = planted()
    values = normal()
    unknown = np.zeros(values.shape[:2], dtype=bool)
    model = train(faults, ALL, "")
    for days in (days_of(values, faults), days_of(values, faults, unknown), days_of(np.full_like(values, np.nan), faults)):  # fmt: skip
        assert train(faults, ALL, "", days) == model
        units, plain = units_of(faults, days_measured=days), units_of(faults)
        features = features_of(units.state)
        assert features.shape == (len(units.day), len(FEATURE_NAMES))
        assert np.array_equal(features[:, : len(HISTORY_FEATURE_NAMES)], features_of(plain.state))
        assert not features[:, len(HISTORY_FEATURE_NAMES) :].any()


@pytest.mark.slow
def test_too_few_days_on_record_are_not_learned_from() -> None:
    """A week after an upgrade only the last days are known; all others would count as well."""
    faults, values = planted()
    known = np.zeros(values.shape[:2], dtype=bool)
    first = int(DAYS * 0.82 * (1 - KNOWN_SHARE_MIN)) + 2  # cut of the last fold
    known[:, first:] = True
    model = train(faults, ALL, "", days_of(values, faults, known))
    assert model.source.endswith(AVERAGE_RANK.name)
    known[:, first // 2 :] = True  # two months later
    assert train(faults, ALL, "", days_of(values, faults, known)).source.endswith(
        MEASURED_FORM.name
    )


def test_what_a_fault_did_to_its_host_is_no_warning_of_it() -> None:
    """Errors measured after a fault of the same night were used as its warning."""
    names, hardware = ("a", "b", "c"), np.ones(3, dtype=bool)
    minute = 1 / 1440
    start = np.array([3 + minute, 3 + 3 * minute, -0.5])
    faults = FaultTable(names, np.array([0, 1, 2]), start, start + 0.1, hardware, 20.0)
    node = np.array([0, 1, 2, 0])
    days = HostDays.of(node, np.array([3, 3, 3, 4]) + 2 * minute, normal(1, 4)[0] + 7.0, faults)
    day_values = days.at(np.array([0, 1, 2, 0, 1]), np.array([3, 3, 3, 4, 4]))
    assert np.isfinite(day_values).all(axis=1).tolist() == [False, True, True, True, False]


@given(arrays(np.float64, (20, len(MEASURED)), elements=st.floats(allow_nan=True)))
def test_whatever_is_measured_weighs_zero_to_its_limit(values: Floats) -> None:
    """A sensor's 1e300, or a value below absolute zero, must not make any hazard NaN or tiny."""
    with np.errstate(over="ignore"):
        inputs = model_inputs(values)
    assert np.all((inputs >= 0.0) & (inputs <= MODEL_INPUT_MAX))
    assert not inputs[np.isnan(values)].any()


@pytest.mark.parametrize("at", range(len(MEASURED)), ids=lambda at: MEASURED[at].name)
def test_worse_weighs_more(at: int) -> None:
    """More errors, less headroom, or a slower GPU never lower the hazard."""
    grid = (
        np.linspace(0.0, 1.2, 50) if MEASURED[at].name == "speed" else np.linspace(0.0, 500.0, 50)
    )
    values = np.full((50, len(MEASURED)), np.nan)
    falls = MEASURED[at].name in ("speed", "headroom_celsius")
    values[:, at] = grid[::-1] if falls else grid
    inputs = model_inputs(values)[:, at]
    assert inputs[0] == 0.0 and inputs[-1] > 0.5
    assert np.all(np.diff(inputs) >= 0.0)
