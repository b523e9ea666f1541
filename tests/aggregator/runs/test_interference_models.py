"""Models of interference: trained on stored pairs of real runs, used only if better than physics alone, served, and given up safely."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gangline import cli
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.runs import interference_models
from gangline.aggregator.runs.colocation_inputs import input_rows, read_measured
from gangline.aggregator.runs.colocations import RunColocation
from gangline.aggregator.runs.interference_models import InterferenceModels
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.service.interference import InterferenceService
from gangline.aggregator.store.store import Store
from gangline.contract.wire import interference_pb2 as wire
from gangline.contract.wire.placement_pb2 import ESTIMATE_ASSUMED, ESTIMATE_MEASURED
from gangline.fingerprints.demand import DEMANDS, QUANTILES, SHARED_RESOURCES, HostSupply
from gangline.fingerprints.interference import InterferenceError, encode_model, predict
from gangline.fingerprints.interference_check import CheckedModel
from gangline.fingerprints.interference_pressure import HOST
from gangline.fingerprints.interference_training import COLOCATIONS_MIN, Measured
from gangline.fingerprints.sensitivity import COMPONENTS, KnownWorkloads
from tests.aggregator.runs.test_colocations import ALONE, BESIDE, Pair
from tests.aggregator.service.test_score_process import handed_over
from tests.fingerprints.test_interference import WORLD, measured_world
from tests.processes import GUARD_SECONDS

GPU_MODEL = "NVIDIA H100 80GB HBM3"
NOW_NS = 1_790_000_000 * 10**9
LEARNED = WORLD[:24]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    result = Store.open(tmp_path, AggregatorConfig(data=tmp_path))
    yield result
    result.close()


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> CheckedModel:
    """Train once, in a child: a dozen trainings of this file would take minutes."""
    folder = tmp_path_factory.mktemp("store")
    store = Store.open(folder, AggregatorConfig(data=folder))
    put_pairs(store, LEARNED)
    result = models_of(store).train()
    store.close()
    assert result.accepted, result.reason
    return result.checked


@pytest.fixture
def trained(checked: CheckedModel, monkeypatch: pytest.MonkeyPatch) -> CheckedModel:
    monkeypatch.setattr(interference_models, "check_in_child", lambda *_: checked)
    return checked


def put_pairs(store: Store, measured: Sequence[Measured], *, simulated: bool = False) -> None:
    """Store each pair as two rows, as the aggregator does for two runs beside each other."""

    def put(connection: Any) -> None:
        for number, run in enumerate(measured):
            first, second = run.colocation.workloads
            members = (
                (f"run-{number}-a", first, run.ratios[0]),
                (f"run-{number}-b", second, run.ratios[1]),
            )
            for (own_id, own, ratio), (other_id, other, _) in (members, members[::-1]):
                slowdown = max(1.0 - 1.0 / ratio, 0.0)
                connection.execute(
                    "INSERT INTO colocations BY NAME SELECT ? AS run_id, ? AS neighbor_run_id, ? AS slowdown_ratio, "
                    "? AS effect, ? AS simulated, make_timestamp(?) AS time",
                    [
                        own_id,
                        other_id,
                        slowdown,
                        "slower" if slowdown > 0.03 else "not slower",
                        simulated,
                        number,
                    ],
                )
                connection.execute(
                    "INSERT INTO colocation_inputs BY NAME SELECT ? AS run_id, ? AS neighbor_run_id, 'host' AS sharing, "
                    "? AS gpu_model, ? AS workload_id, ? AS neighbor_workload_id, ?::DOUBLE[] AS demand, "
                    "?::DOUBLE[] AS neighbor_demand, ?::DOUBLE[] AS supply",
                    [
                        own_id, other_id, GPU_MODEL, own.key, other.key, np.ravel(own.demand).tolist(),
                        np.ravel(other.demand).tolist(), np.asarray(run.colocation.supply).tolist(),
                    ],
                )  # fmt: skip

    store.in_transaction(put)


def models_of(store: Store) -> InterferenceModels:
    models = InterferenceModels(store, lambda: NOW_NS)
    models.load()
    return models


def judgement(models: InterferenceModels) -> Judgement:
    """Return a snapshot with the runs `w0` and `w1` of the world, on a host with its supply."""
    known_demands = np.full((2, len(DEMANDS), len(QUANTILES)), np.nan, dtype=np.float32)
    workloads = {w.key: w for run in WORLD for w in run.colocation.workloads}
    for row, key in enumerate(("w0", "w1")):
        known_demands[row, : len(SHARED_RESOURCES)] = workloads[key].demand
    known = KnownWorkloads(
        {"w0": 0, "w1": 1}, ("", ""), np.zeros((2, 2 * len(COMPONENTS)), dtype=np.float32),
        known_demands, ("", ""), ("w0", "w1"), (GPU_MODEL, GPU_MODEL),
    )  # fmt: skip
    supplies = HostSupply(
        np.ones((1, len(SHARED_RESOURCES)), dtype=np.float32), np.full(1, 80e9, np.float32),
        np.ones(1, np.float32), np.full(1, 1e12, np.float32), (GPU_MODEL,),
    )  # fmt: skip
    return Judgement(
        version=1, computed_ns=1, horizon_seconds=1.0, hosts=(), names=("h0",), workloads=known,
        supplies=supplies, component_speeds=np.ones((1, len(COMPONENTS)), dtype=np.float32),
        interference=models.in_use,
    )  # fmt: skip


class SnapshotSource:
    def __init__(self, snapshot: Judgement) -> None:
        self.snapshot = snapshot


def predicted(snapshot: Judgement, **fields: str) -> wire.ColocationPrediction:
    colocation = wire.Colocation(
        workloads=[wire.ColocatedWorkload(run=run) for run in ("w0", "w1")], **fields
    )
    service: Any = InterferenceService(SnapshotSource(snapshot))
    request = wire.PredictInterferenceRequest(colocations=[colocation])
    reply: wire.PredictInterferenceResponse = asyncio.run(
        service.PredictInterference(request, None)
    )
    return reply.predictions[0]


def test_stored_pairs_become_measured_pairs(store: Store) -> None:
    """Both rows of a pair are one co-location; the key has the GPU model."""
    put_pairs(store, WORLD[:20])
    with store.reading() as cursor:
        measured = read_measured(cursor, HOST)
    assert len(measured) == 20
    stored = {run.families + tuple(np.round(np.maximum(run.ratios, 1.0), 6)) for run in measured}
    for run in WORLD[:20]:
        keys = tuple(workload.key for workload in run.colocation.workloads)
        ratios = tuple(np.round(np.maximum(run.ratios, 1.0), 6))
        assert keys + ratios in stored or keys[::-1] + ratios[::-1] in stored
    assert measured[0].colocation.workloads[0].key.endswith(f" on {GPU_MODEL}")
    assert measured[0].colocation.workloads[0].context == GPU_MODEL


def test_a_better_model_is_served_with_its_evidence_also_by_the_score_process(
    store: Store, trained: CheckedModel
) -> None:
    models = models_of(store)
    before = predicted(judgement(models), node="nodes/h0").slowdowns[0].slowdown
    assert before.source == ESTIMATE_ASSUMED and "physics alone" in before.evidence
    result = models.train()
    assert result.accepted and trained.error < trained.physics_error
    assert result.reason.startswith("error of the throughput on held-out pairs")
    snapshot = judgement(models)
    after = predicted(snapshot, node="nodes/h0")
    assert after.slowdowns[0].slowdown.source == ESTIMATE_MEASURED
    assert "co-locations of the workload" in after.slowdowns[0].slowdown.evidence
    assert predicted(handed_over(snapshot), node="nodes/h0") == after
    named = predicted(snapshot, gpu_model="H100").slowdowns[0].slowdown
    assert named.evidence == after.slowdowns[0].slowdown.evidence, "a part of the model's name"
    other = snapshot.supplies._replace(gpu_models=("NVIDIA A100-SXM4-80GB",))
    elsewhere = predicted(replace(snapshot, supplies=other), node="nodes/h0").slowdowns[0]
    assert "co-locations of the workload" not in elsewhere.slowdown.evidence
    again = models_of(store)
    assert [encode_model(model) for model in again.in_use] == [encode_model(trained.model)]


@pytest.mark.parametrize(
    "errors",
    [{"error": 0.2, "physics_error": 0.2}, {"error": 0.2, "physics_error": 0.1}, {"answered": 1}],
)
def test_the_newest_training_decides(
    store: Store, checked: CheckedModel, errors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is no longer better, or abstains too often, gives way to physics, also after a restart."""
    monkeypatch.setattr(interference_models, "check_in_child", lambda *_: checked)
    models = models_of(store)
    assert models.train().accepted and models_of(store).in_use
    worse = checked._replace(**errors)
    monkeypatch.setattr(interference_models, "check_in_child", lambda *_: worse)
    result = models.train()
    assert not result.accepted and result.reason.endswith("so physics alone is used")
    assert models.in_use == () == models_of(store).in_use


@pytest.mark.slow
def test_pairs_that_physics_explains_train_no_model(store: Store) -> None:
    """Negative control: there is nothing to learn."""
    pairs: list[Measured] = []
    for run in WORLD[:16]:
        first, second = predict(*run.colocation, HOST)
        pairs.append(run._replace(ratios=(first.ratio, second.ratio)))
    put_pairs(store, pairs)
    result = models_of(store).train()
    assert not result.accepted, result.reason


def test_simulated_pairs_train_nothing(store: Store) -> None:
    put_pairs(store, WORLD[:COLOCATIONS_MIN], simulated=True)
    with pytest.raises(InterferenceError, match=f"0 co-locations: expected {COLOCATIONS_MIN}"):
        models_of(store).train()


@pytest.mark.slow
def test_the_least_number_of_pairs_is_enough_to_train(store: Store) -> None:
    put_pairs(store, measured_world(5, COLOCATIONS_MIN))
    result = models_of(store).train()
    assert result.pairs == COLOCATIONS_MIN


def test_a_slowdown_of_another_cause_teaches_nothing(store: Store) -> None:
    put_pairs(store, WORLD[:COLOCATIONS_MIN])
    store.in_transaction(
        lambda connection: connection.execute(
            "UPDATE colocations SET effect = 'slower, but its pace did not return when the neighbor left' "
            "WHERE run_id LIKE 'run-0-%'"
        )
    )
    with pytest.raises(InterferenceError, match=f"{COLOCATIONS_MIN - 1} co-locations"):
        models_of(store).train()


def damaged(model: str) -> str:
    return model[: len(model) // 2]


def of_another_version(model: str) -> str:
    return json.dumps(json.loads(model) | {"version": 99})


@pytest.mark.parametrize("change", [damaged, of_another_version])
def test_an_unusable_model_falls_back_to_physics(
    store: Store, trained: CheckedModel, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert models_of(store).train().accepted
    stored = change(encode_model(trained.model))
    store.in_transaction(
        lambda connection: connection.execute("UPDATE interference_models SET model = ?", [stored])
    )
    with caplog.at_level(logging.ERROR):
        models = models_of(store)
    assert models.in_use == () and "physics alone is" in caplog.text
    slowdown = predicted(judgement(models), node="nodes/h0").slowdowns[0].slowdown
    assert slowdown.source == ESTIMATE_ASSUMED and "physics alone" in slowdown.evidence


def test_the_command_reports_too_few_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(tmp_path, AggregatorConfig(data=tmp_path))
    store.close()
    command = ["admin", "train", "--interference", "--data", str(tmp_path)]
    assert cli.main(command) == cli.FAILED
    assert f"0 co-locations: expected {COLOCATIONS_MIN}" in capsys.readouterr().err
    assert cli.main([*command, "--json"]) == cli.FAILED
    with pytest.raises(SystemExit):
        cli.main([*command, "--simulated"])
    assert "--interference excludes --simulated" in capsys.readouterr().err


def test_the_command_reports_the_training(
    tmp_path: Path, trained: CheckedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(tmp_path, AggregatorConfig(data=tmp_path))
    store.close()
    command = ["admin", "train", "--interference", "--data", str(tmp_path)]
    assert cli.main(command) == cli.OK
    assert (
        "in use from now on: error of the throughput on held-out pairs" in capsys.readouterr().out
    )
    assert cli.main([*command, "--json"]) == cli.OK
    document = json.loads(capsys.readouterr().out)
    assert document["accepted"] and document["error_ratio"] == trained.error


def test_runs_beside_each_other_store_the_facts_of_a_pair(tmp_path: Path) -> None:
    """Frames of two jobs on one host become a pair to learn from, with the supply and the GPU model."""
    pair = Pair(tmp_path)
    for host in range(2):
        pair.begin("train", host, 0, 2.0)
    pair.pass_seconds(ALONE)
    pair.begin("copy", 0, 1, 1.0)
    pair.set_step(2.2)
    pair.pass_seconds(BESIDE)
    with pair.store.reading() as cursor:
        (measured,) = read_measured(cursor, HOST)
    assert measured.ratios[0] == pytest.approx(1.1, abs=0.02)
    train, copy = measured.colocation.workloads
    assert train.context == "H100" and train.key.endswith("on H100") and train.key != copy.key
    assert measured.colocation.supply[SHARED_RESOURCES.index("nvlink")] == np.inf
    pair.close()


def test_runs_that_share_a_gpu_are_no_pair_of_the_host(tmp_path: Path) -> None:
    """Their form of sharing is not known, so nothing is learned of it."""
    pair = Pair(tmp_path)
    pair.begin("train", 0, 0, 2.0)
    pair.begin("copy", 0, 1, 2.0)
    pair.pass_seconds(90)
    runs = [record.run for record in pair.log.windows.records.values()]
    colocation = RunColocation(runs[0], runs[1], 0, 0, hosts=(0,))
    supply = pair.log.supplies.current
    assert len(input_rows([colocation], pair.log.history, supply, 1)) == 1
    pair.begin("train", 0, 1, 2.0)
    pair.pass_seconds(5)
    assert input_rows([colocation], pair.log.history, supply, 1) == []
    pair.close()


@pytest.mark.slow
async def test_a_running_aggregator_trains_and_judges_with_the_model(
    lab: Any, trained: CheckedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a restart, the next snapshot has the new model."""
    async with lab.aggregator() as aggregator:
        address = ["--data", str(lab.folder), "--aggregator", f"127.0.0.1:{aggregator.port}"]
        command = ["admin", "train", "--interference", *address]
        assert await asyncio.to_thread(cli.main, command) == cli.OK
        assert "in use from now on" in capsys.readouterr().out
        async with asyncio.timeout(GUARD_SECONDS):
            while not aggregator.snapshot_holder.snapshot.interference:
                await asyncio.sleep(0.05)
        (model,) = aggregator.snapshot_holder.snapshot.interference
        assert encode_model(model) == encode_model(trained.model)
