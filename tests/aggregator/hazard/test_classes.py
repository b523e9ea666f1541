"""Classes of faults: a model weighs them separately if that ranks hosts clearly better."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import duckdb
import numpy as np
import pytest

from gangline.aggregator.hazard import fault_classes
from gangline.aggregator.hazard.events import parse_events
from gangline.aggregator.hazard.fault_classes import CLASSES
from gangline.aggregator.hazard.features import (
    BASIC_AND_CLASS_NAMES,
    BASIC_FEATURE_NAMES,
    CLASS_FEATURES,
    FEATURE_NAMES,
    features_of,
)
from gangline.aggregator.hazard.history import ALL, units_of
from gangline.aggregator.hazard.model import HazardModel
from gangline.aggregator.hazard.models import ModelRegistry
from gangline.aggregator.rule_catalogue import FAULTS
from gangline.aggregator.scoring.evaluate import evaluate
from tests.aggregator.hazard.fleets import data_of, fault
from tests.aggregator.hazard.test_model import NAMES_OF_BEFORE
from tests.aggregator.hazard.test_models import NOW_US, opened
from tests.worlds import SECOND_NS, World, gpu_of


def test_the_query_of_a_class_returns_the_findings_of_it() -> None:
    """An operator's query must return the counted findings."""
    for fault_class in CLASSES:
        rows = duckdb.execute(
            f"SELECT name FROM (SELECT unnest(?) AS name) WHERE {fault_classes.class_condition(fault_class.name)}", [list(FAULTS)]
        ).fetchall()  # fmt: skip
        assert [name for (name,) in rows] == [
            name for name, class_name in FAULTS.items() if class_name is fault_class.name
        ]


def test_counts_fade_by_class() -> None:
    """Power supply failures of a node and removals for unknown errors were counted alike."""
    rows = [*fault("a", 1.5, 2.0), *fault("a", 4.0, 4.5, "Other Failure"), *fault("z", 19.5, 20.0)]
    units = units_of(parse_events(data_of(rows)))
    (state,) = (units.take((units.node == 0) & (units.day == 6)).state,)
    feature_of = dict(zip(FEATURE_NAMES, features_of(state)[0], strict=False))
    assert feature_of["faults_hardware_30d"] == pytest.approx(np.log1p(np.exp(-4.5 / 30)))
    assert feature_of["faults_other_30d"] == pytest.approx(np.log1p(np.exp(-2.0 / 30)))
    assert sum(feature_of[feature.name] > 0 for feature in CLASS_FEATURES) == 2
    feature_ahead = dict(zip(FEATURE_NAMES, features_of(state, 3.0)[0], strict=False))
    assert feature_ahead["faults_other_30d"] == pytest.approx(np.log1p(np.exp(-5.0 / 30)))


def test_remaps_are_told_as_a_rate() -> None:
    """A count of pending remaps shows nothing if rows are remapped each week, and reset."""
    world = World(hosts=2, gpus=2, seconds=5)
    sick = gpu_of(world.hosts[0], 1)
    world.hosts[0].set("gpu_10s_changes", sick, remap_pending_state=1)
    world.run(30)
    world.hosts[0].set("gpu_10s_changes", sick, remap_pending_state=0)
    world.hosts[0].reboot(world.now_ns)
    world.register(world.hosts[0], 2)
    world.run(200)
    weights = tuple(1.0 if name == "faults_remap_30d" else 0.0 for name in FEATURE_NAMES)
    model = HazardModel("a test", False, ALL, -5.0, weights, last_time="2026-11-20")
    later_ns = world.now_ns + 15 * 86_400 * SECOND_NS
    snapshot = evaluate(world.fleet, later_ns, world.snapshot, model=model)
    (evidence,) = [e for e in snapshot.hosts[0].evidence if e.signal.startswith("hazard.")]
    assert evidence.signal == "hazard.faults_remap_30d"
    assert evidence.log_hazard_delta == pytest.approx(np.log1p(np.exp(-0.5)), rel=1e-3)
    assert (
        evidence.message
        == "row remaps that waited for a reset, or failed, each fading over 30 days: 0.61"
    )
    assert "name IN ('gpu.remap_pending', 'gpu.remap_failed')" in evidence.sql
    assert not [e for e in snapshot.hosts[1].evidence if e.signal.startswith("hazard.")]


@pytest.mark.slow
def test_a_stored_model_of_before_is_in_use_as_it_was(tmp_path: Path) -> None:
    """After an upgrade the prior returned, or weights applied to other features."""
    weights = {name: 0.1 * (number + 1) for number, name in enumerate(NAMES_OF_BEFORE)} | {
        "link_errors": 0.7
    }
    stored = {
        "source": "the store; ranking: all", "is_prior": False, "outcome": ALL, "base_log_hazard_per_day": -5.5, "weights": weights,
        "first_time": "2026-06-01 00:00:00", "last_time": "2026-11-20 10:00:00", "nodes": 60, "faults": 90, "ridge": 5.0,
        "metrics": {"auc": 0.6}, "calibration": [[0.1, 0.2]],
    }  # fmt: skip
    text = json.dumps(stored, indent=1)  # as an earlier version wrote it
    with opened(tmp_path) as store:
        store.in_transaction(
            lambda connection: connection.execute(
                "INSERT INTO models (time, accepted, model) VALUES (now()::TIMESTAMP, true, ?)",
                [text],
            )
        )
    with opened(tmp_path) as store:
        models = ModelRegistry(store, lambda: NOW_US * 1000)
        models.load()
    model = models.in_use
    assert (
        dict(zip(FEATURE_NAMES, model.weights, strict=True))
        == dict.fromkeys(FEATURE_NAMES, 0.0) | weights
    )
    assert model.to_text() == text
    assert model.version.endswith(hashlib.sha256(text.encode()).hexdigest()[:8])
    world = World(hosts=2, gpus=2, seconds=5)
    world.event(world.hosts[0], 79, gpu_of(world.hosts[0], 0))
    world.run(5)
    host = evaluate(world.fleet, world.now_ns, world.snapshot, model=model).hosts[0]
    assert host.inputs is not None and host.inputs.model == model.version
    by_class = host.inputs.features[len(BASIC_FEATURE_NAMES) : len(BASIC_AND_CLASS_NAMES)]
    assert by_class[fault_classes.CLASS_NAMES.index("driver")] == pytest.approx(
        np.log(2.0), rel=1e-3
    )
    assert not [
        e
        for e in host.evidence
        if e.signal in {f"hazard.{feature.name}" for feature in CLASS_FEATURES}
    ]
    assert [e for e in host.evidence if e.signal == "hazard.faults_30d"]
