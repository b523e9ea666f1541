"""Stored scores can be recomputed from their rows, and equal the judged scores."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from gangline.aggregator.hazard.features import CLASS_FEATURES, RANK_FEATURE, SCORE_FEATURE_NAMES
from gangline.aggregator.hazard.measured import MEASURED
from gangline.aggregator.hazard.model import HazardModel, prior
from gangline.aggregator.model import HostScore
from gangline.aggregator.scoring.calibration import Calibration
from gangline.aggregator.scoring.evaluate import evaluate
from gangline.aggregator.scoring.recompute import over_horizon, recompute
from gangline.aggregator.scoring.score import Numbers, OutcomeFeedback
from gangline.aggregator.store import rows
from gangline.aggregator.store.duckdb_file import migrations
from tests.worlds import World, gpu_of, throttle

#: A trained model, made up: hosts that failed fail again.
TRAINED = HazardModel(
    "a test",
    False,
    "all classes",
    -5.0,
    (
        1.1,
        0.7,
        1.3,
        0.3,
        0.9,
        0.1,
        0.6,
        0.4,
        0.2,
        *[0.0] * len((*CLASS_FEATURES, RANK_FEATURE, *MEASURED)),
    ),
    last_time="2026-11-20",
)
#: A model that also learned from measurements.
MEASURING = replace(
    TRAINED,
    weights=(*TRAINED.weights[: -len(MEASURED)], 0.5, 0.8, 0.3, 0.6, 0.9, 0.7, 0.4, 0.35, 0.2),
    spread=4.5,
)

#: Schedulers reported more interruptions than were expected, of hosts with a symptom fewer.
SEEN = OutcomeFeedback(outcomes=Calibration((50.0,) * 4, (20.0,) * 4, (2.5, 2.0, 0.5, 0.5)))


@pytest.fixture
def world() -> World:
    """A hot GPU, a fatal XID, a silent host, a counted link error, and a host without a fault."""
    world = World(hosts=5, seconds=8)
    throttle(world.hosts[0], 3)
    world.event(world.hosts[1], 79, gpu_of(world.hosts[1], 0))
    world.event(world.hosts[1], 94, gpu_of(world.hosts[1], 2))
    world.hosts[2].silent = True
    world.hosts[3].grow("rdma_1s_changes", "mlx5_0/1", packet_sequence_errors=300)
    world.run(25)
    return world


def stored(world: World, hosts: list[HostScore]) -> list[dict[str, Any]]:
    """Return the rows of `scores` as DuckDB returns them."""
    assert world.snapshot is not None
    base = duckdb.connect()
    for _, text in migrations():
        base.execute(text)
    arrow = rows.scores(rows.snapshot_scores(world.snapshot, hosts))
    base.register("new_rows", arrow)
    base.execute("INSERT INTO scores BY NAME FROM new_rows")
    cursor = base.execute("FROM scores ORDER BY node_index")
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def numbers_of(host: HostScore) -> Numbers:
    return Numbers(
        host.score, host.score_lower, host.score_upper, host.hazard_per_hour, host.relative_speed,
        host.speed_lower, host.speed_upper,
    )  # fmt: skip


@pytest.mark.parametrize("model", [None, prior(), TRAINED, MEASURING])
def test_a_stored_score_computes_again_to_the_same_number(world: World, model: Any) -> None:
    """An operator who doubts last week's drain gets last week's number from the row alone."""
    world.snapshot = evaluate(world.fleet, world.now_ns, world.snapshot, model=model)
    hosts = list(world.snapshot.hosts)
    assert len({host.state for host in hosts}) >= 4
    for host, row in zip(hosts, stored(world, hosts), strict=True):
        assert repr(recompute(row)) == repr(numbers_of(host))
        assert row["hazard_model"] == ("prior" if model in (None, prior()) else model.version)
        assert set(row["features"]) == set(SCORE_FEATURE_NAMES)


def test_contributions_of_rules_and_model_add_up(world: World) -> None:
    """The base and the contributions add up to the hazard of each host."""
    snapshot = evaluate(world.fleet, world.now_ns, world.snapshot, model=TRAINED)
    for host in snapshot.hosts:
        assert host.inputs is not None
        total = host.inputs.log_hazard_base + sum(e.log_hazard_delta for e in host.evidence)
        assert np.exp(total) == pytest.approx(host.hazard_per_hour, rel=1e-12)
        of_model = [e for e in host.evidence if e.signal.startswith("hazard.")]
        # h1 has an XID and has not returned
        assert len(of_model) == (5 if host.node_index == 1 else 0)
        assert all(e.normal and e.unit and e.sql for e in of_model)
    assert np.allclose(
        snapshot.columns.hazard_per_hour, [h.hazard_per_hour for h in snapshot.hosts], rtol=1e-6
    )


def test_what_is_measured_is_told_in_words_and_adds_up(world: World) -> None:
    """Each part of a risen hazard is listed, with its normal value and its query."""
    sick = gpu_of(world.hosts[4], 5)
    world.hosts[4].grow("gpu_1s_changes", sick, ecc_corrected_volatile_errors=9.0)
    world.hosts[4].set("gpu_1s", gpu_of(world.hosts[4], 6), temperature_celsius=84)
    world.run(20)
    snapshot = evaluate(world.fleet, world.now_ns, world.snapshot, model=MEASURING)
    without = evaluate(world.fleet, world.now_ns, world.snapshot, model=TRAINED)
    for host, before in zip(snapshot.hosts, without.hosts, strict=True):
        assert host.inputs is not None
        total = host.inputs.log_hazard_base + sum(e.log_hazard_delta for e in host.evidence)
        assert np.exp(total) == pytest.approx(host.hazard_per_hour, rel=1e-12)
        assert host.hazard_per_hour >= before.hazard_per_hour * (1 - 1e-12)
        assert host.state is before.state  # the model changes scores, never a state
    by_signal = {e.signal: e for e in snapshot.hosts[4].evidence if e.signal.startswith("hazard.")}
    assert list(by_signal) == [
        f"hazard.{name}" for name in ("corrected_errors", "headroom_celsius", "faults_of_others")
    ]
    errors = by_signal["hazard.corrected_errors"]
    assert errors.value == pytest.approx(
        9.0 * 19, rel=0.1
    )  # the measured value, not the weighted one
    assert errors.log_hazard_delta == pytest.approx(0.5 * np.log1p(errors.value))
    assert errors.message.startswith(
        "corrected memory errors of its worst GPU within ten minutes: 1"
    )
    assert (errors.unit, errors.normal) == ("errors", "0")
    assert "readings.gpu_1s_changes" in errors.sql
    near = by_signal["hazard.headroom_celsius"]
    assert near.message == "5 °C remain to the limit of its hottest GPU"
    assert near.log_hazard_delta == pytest.approx(0.7 * 0.5)
    silent = [e.signal for e in snapshot.hosts[2].evidence]
    assert "hazard.silent_seconds" in silent


def test_a_row_of_before_says_that_it_has_no_inputs(tmp_path: Path) -> None:
    """A year of history has no inputs: recompute refuses instead of computing from nothing."""
    with pytest.raises(ValueError, match="before version 9"):
        recompute({"hazard_model": None})


def test_a_score_of_version_12_computes_again_as_it_was(world: World) -> None:
    """Factors of all devices were multiplied then: the stored number must not change."""
    [row, *_] = stored(world, [world.snapshot.hosts[1]])  # type: ignore[union-attr]
    row |= {"log_hazard_one_cause": None, "log_hazard_own_causes": None}
    row |= {"log_hazard_deltas": [np.log(5.0)] * 4, "relative_speed_factors": [1.0] * 4}
    hazard, hours = exp(row["log_hazard_base"] + sum(row["log_hazard_deltas"])), 8.0
    again = recompute(row)
    assert (again.hazard_per_hour, again.score) == (hazard, exp(-hazard * hours))
    assert (again.score_lower, again.score_upper) == (exp(-hazard * 3.0 * hours), exp(-hazard / 3.0 * hours))  # fmt: skip


def test_a_model_that_says_what_is_no_number_is_not_believed(world: World) -> None:
    """A NaN from a model would reach a scheduler: the prior is used instead."""
    no_number = replace(TRAINED, weights=(np.nan,) * 8)
    broken = evaluate(world.fleet, world.now_ns, world.snapshot, model=no_number)
    prior = evaluate(world.fleet, world.now_ns, world.snapshot)
    assert np.array_equal(broken.columns.score, prior.columns.score)
    assert broken.model == "prior"


def test_gpus_have_scores_beside_their_host(world: World) -> None:
    """One of eight GPUs is bad: repairing it restores the host's hazard."""
    snapshot = world.snapshot
    assert snapshot is not None
    for index, host in enumerate(snapshot.hosts):
        gpus = list(snapshot.gpus.of(index))
        assert len(gpus) == 8
        assert all(0 < g.hazard_lower < g.hazard_per_hour < g.hazard_upper for g in gpus)
        assert max(g.hazard_per_hour for g in gpus) <= host.hazard_per_hour * 1.0001
        assert sum(g.hazard_per_hour for g in gpus) <= host.hazard_per_hour * 1.0001
        assert all(g.speed_lower <= g.speed_upper for g in gpus)
    hot = list(snapshot.gpus.of(0))
    assert [g.state.name for g in hot].count("DEGRADED") == 1 and hot[3].state.name == "DEGRADED"
    assert hot[3].speed_lower < hot[3].relative_speed < hot[3].speed_upper < 0.75
    dead = list(snapshot.gpus.of(1))
    assert dead[0].state.name == "UNHEALTHY" and dead[1].state.name == "HEALTHY"
    assert dead[0].hazard_per_hour > 1000 * dead[1].hazard_per_hour
    silent = list(snapshot.gpus.of(2))
    assert {g.state.name for g in silent} == {"STALE"}
    assert all(np.isnan(g.relative_speed) and g.speed_upper - g.speed_lower > 0.5 for g in silent)


def test_a_symptoms_factor_is_no_surer_for_a_model_that_was_trained(world: World) -> None:
    """A fleet of similar hosts gave a factor of 20,000, never measured, an interval of 30 %."""
    alike = replace(TRAINED, spread=1.2)
    hosts = evaluate(world.fleet, world.now_ns, world.snapshot, model=alike)
    spreads = [host.inputs.hazard_spread for host in hosts.hosts if host.inputs]
    assert spreads == [3.0, 3.0, 100.0, 3.0, 1.2]
    for index, spread in enumerate(spreads):
        for gpu in hosts.gpus.of(index):
            assert gpu.hazard_upper == pytest.approx(spread * gpu.hazard_per_hour)


def test_over_a_short_time_a_large_hazard_leaves_an_interval(world: World) -> None:
    """Over a minute the lower bound was 0, taken to a power from the eight-hour bound."""
    snapshot = evaluate(
        world.fleet, world.now_ns, world.snapshot, model=replace(TRAINED, spread=30.0)
    )
    host = snapshot.hosts[1]
    large = replace(host, hazard_per_hour=3.6, score=exp(-28.8), score_lower=0.0)
    minute = over_horizon(large, 1 / 60)
    assert minute.score_lower == pytest.approx(exp(-3.6 * 30 / 60))
    assert minute.score == pytest.approx(exp(-3.6 / 60))


@pytest.mark.parametrize("model", [None, TRAINED])
def test_outcomes_are_a_part_of_every_score_and_compute_again(world: World, model: Any) -> None:
    """Twice as many jobs died as the scores predicted, and the scores never changed."""
    before = evaluate(world.fleet, world.now_ns, world.snapshot, model=model)
    after = evaluate(world.fleet, world.now_ns, world.snapshot, model=model, feedback=SEEN)
    world.snapshot = after
    hosts = list(after.hosts)
    for uncalibrated, host, row in zip(before.hosts, hosts, stored(world, hosts), strict=True):
        factor = SEEN.outcomes.at(uncalibrated.hazard_per_hour).factor
        if uncalibrated.hazard_per_hour < 1.0:
            assert host.hazard_per_hour == pytest.approx(factor * uncalibrated.hazard_per_hour)
        outcome_evidence = [e for e in host.evidence if e.signal == "hazard.outcomes"]
        assert len(outcome_evidence) == 1
        assert outcome_evidence[0].value == pytest.approx(factor)
        assert "ops.outcomes" in outcome_evidence[0].sql
        assert (
            outcome_evidence[0].score_delta < 0
            if factor > 1.0
            else outcome_evidence[0].score_delta >= 0
        )
        assert repr(recompute(row)) == repr(numbers_of(host))
        assert (
            row["log_hazard_outcomes"]
            == outcome_evidence[0].log_hazard_delta
            == pytest.approx(np.log(factor))
        )
    assert np.allclose(after.columns.hazard_per_hour, [h.hazard_per_hour for h in hosts], rtol=1e-6)
    for index, host in enumerate(hosts):
        gpus = [gpu.hazard_per_hour for gpu in after.gpus.of(index)]
        assert sum(gpus) <= host.hazard_per_hour * 1.0001
