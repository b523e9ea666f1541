"""A gang beside running jobs: the predicted slowdown of both sides is in the price, and an unknown one costs nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np
import pytest

from gangline.aggregator.commands.decision import replayed_answer
from gangline.aggregator.decisions.inputs import input_parts, neighbors_part, workload_part
from gangline.aggregator.decisions.neighbors import (
    NEIGHBORHOODS_MAX,
    NODES_MAX,
    NeighborPredictions,
    beside_neighbors,
    decoded_predictions,
    encoded_predictions,
)
from gangline.aggregator.decisions.node_search import Candidates
from gangline.aggregator.decisions.node_table import node_table
from gangline.aggregator.decisions.planner import PlacementChoice, plan
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.fleet.jobs import ResidentJob, SlowedJob
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.service.decision_recorder import answer_bytes
from gangline.aggregator.service.placement import PlacementService
from gangline.aggregator.service.score import ScoreService
from gangline.contract.wire import decision_pb2, placement_pb2, score_pb2
from gangline.fingerprints.demand import DEMANDS, QUANTILES, SHARED_RESOURCES, HostSupply
from gangline.fingerprints.sensitivity import COMPONENTS, PCIE, KnownWorkloads
from tests.aggregator.decisions.fleets import Node, snapshot_of

PCIE_ROW = SHARED_RESOURCES.index("pcie_received")
LINK = 50e9
HALF = GangRequirements(1, gpus_per_node=4)


def shared_fleet(residents: Sequence[str], load: float = 0.8, nodes: int = 4) -> Judgement:
    """Nodes with one PCIe switch, of which the first have half of their GPUs free beside these jobs.

    Jobs `new` and `reader` load the switch by *load* of its rate, `idle` by nothing; `stranger` has no demand.
    """
    snapshot = snapshot_of([Node(f"n{index}") for index in range(nodes)])
    jobs = ("new", "reader", "idle")
    demands = np.zeros((len(jobs), len(DEMANDS), len(QUANTILES)), dtype=np.float32)
    demands[:2, PCIE_ROW] = load * LINK
    values = np.ones((nodes, len(SHARED_RESOURCES)), dtype=np.float32)
    values[:, PCIE_ROW] = LINK
    return replace(
        snapshot,
        residents={index: (ResidentJob(job, 4, 16),) for index, job in enumerate(residents) if job},
        workloads=KnownWorkloads(
            {job: at for at, job in enumerate(jobs)},
            ("its last run",) * len(jobs),
            np.zeros((len(jobs), 2 * len(COMPONENTS)), dtype=np.float32),
            demands,
        ),
        supplies=HostSupply(
            values, np.full(nodes, 80e9, np.float32), np.full(nodes, LINK, np.float32)
        ),
    )


def options(snapshot: Judgement, needs: GangRequirements = HALF, job: str = "new", among: int = 4) -> list[PlacementChoice]:  # fmt: skip
    count = len(snapshot.names)
    masks = {node: 0b11110000 for node in snapshot.residents}
    candidates = Candidates(np.arange(count) < among, masks)
    predictions = NeighborPredictions(snapshot, job)
    table = beside_neighbors(node_table(snapshot), predictions, sorted(snapshot.residents))
    return plan(table, candidates, needs)


def parts(choice: PlacementChoice) -> dict[str, float]:
    return {part.name: part.gpu_hours.value for part in choice.price.parts}


def evidence(choice: PlacementChoice, name: str) -> str:
    return next(part.gpu_hours.evidence for part in choice.price.parts if part.name == name)


def test_the_slowdown_of_both_sides_is_in_the_price() -> None:
    (choice,) = options(shared_fleet(["reader"]), among=1)
    # 0.8 + 0.8 - 1: each takes 1.6 times as long.
    assert parts(choice)["neighbors"] == pytest.approx(4 * 24 * (1 - 1 / 1.6), rel=0.02)
    assert parts(choice)["slowed neighbors"] == pytest.approx(16 * 24 * (1 - 1 / 1.6), rel=0.01)
    assert sum(parts(choice).values()) == pytest.approx(choice.price.total.value)
    assert "1 node beside running jobs, slowest beside reader: 60.0 % longer (pcie_received)" in (
        evidence(choice, "neighbors")
    )
    assert evidence(choice, "slowed neighbors") == "over 24 h: reader 37.5 % of 16 GPUs"


def test_nodes_without_a_slowdown_are_preferred() -> None:
    (choice,) = options(shared_fleet(["reader", "reader", "idle", "reader"]))
    assert choice.nodes.tolist() == [2]
    assert parts(choice)["neighbors"] == parts(choice)["slowed neighbors"] == 0.0
    (choice,) = options(shared_fleet(["reader", "reader", "reader", ""]))
    assert choice.nodes.tolist() == [3] and "neighbors" not in parts(choice)


def test_a_degraded_link_raises_the_price() -> None:
    """The prices were equal, and the job was placed beside another on the node whose link had lost its lanes."""
    snapshot = shared_fleet(["reader", "reader"], load=0.3)
    speeds = snapshot.component_speeds.copy()
    speeds[0, PCIE] = 0.5
    degraded = replace(snapshot, component_speeds=speeds)
    assert parts(options(degraded, among=1)[0])["neighbors"] > 0.0
    assert parts(options(snapshot, among=1)[0])["neighbors"] == 0.0
    assert options(degraded, among=2)[0].nodes.tolist() == [1]


@pytest.mark.parametrize(
    ("job", "resident", "reason"),
    [
        ("new", "stranger", "the demand of stranger is unknown"),
        ("", "reader", "the demand of the gang is unknown"),
        ("new", "", "the demand of a job without a name is unknown"),
    ],
)
def test_the_unknown_costs_nothing_and_is_named(job: str, resident: str, reason: str) -> None:
    snapshot = shared_fleet(["reader"])
    snapshot = replace(snapshot, residents={0: (ResidentJob(resident, 4, 16),)})
    (choice,) = options(snapshot, job=job, among=1)
    assert parts(choice)["neighbors"] == 0.0 and "slowed neighbors" not in parts(choice)
    assert evidence(choice, "neighbors").endswith(f"not predicted for 1: {reason}")
    alone = options(replace(snapshot, residents={}), job=job, among=1)[0]
    assert choice.price.total.value == alone.price.total.value


def test_a_job_on_several_nodes_loses_its_speed_once() -> None:
    two = GangRequirements(2, gpus_per_node=4)
    (choice,) = options(shared_fleet(["reader", "reader"]), two, among=2)
    assert parts(choice)["slowed neighbors"] == pytest.approx(16 * 24 * (1 - 1 / 1.6), rel=0.01)


def test_limits_of_a_request_abstain_and_are_named() -> None:
    nodes = NODES_MAX + 1
    snapshot = shared_fleet(["reader"] * nodes, nodes=nodes)
    values = snapshot.supplies.switch.copy()
    values[: NEIGHBORHOODS_MAX + 1] += np.arange(NEIGHBORHOODS_MAX + 1) * 1e8
    snapshot = replace(snapshot, supplies=snapshot.supplies._replace(switch=values))
    predictions = NeighborPredictions(snapshot, "new").of(range(nodes))
    reasons = {prediction.abstained for prediction in predictions.values()}
    assert reasons == {
        "",
        f"over {NEIGHBORHOODS_MAX} neighborhoods differ",
        f"its supply is unknown, or over {NODES_MAX} candidates are shared",
    }


def test_scored_nodes_have_the_neighbors_of_a_job() -> None:
    """The measured effect on a host counts, not a prediction for the same host."""
    slowed = SlowedJob("slurm", "new", "reader", 1, 0.2, 0.1, 0.3, "it has slowed it")
    snapshot = replace(
        shared_fleet(["reader", "reader", "stranger"]),
        slowed_by_neighbor={0: [slowed]},
        hosts=(None,) * 4,  # type: ignore[arg-type]
    )
    service = ScoreService(Source(snapshot))
    request = score_pb2.ScoreNodesRequest(workload=score_pb2.Workload(job="new"), node_bitmap=b"\x0f")  # fmt: skip
    reply = score_pb2.ScoreNodesResponse.FromString(asyncio.run(service.ScoreNodes(request, None)))
    measured, predicted, unknown = reply.neighbors
    assert [n.node_index for n in reply.neighbors] == [0, 1, 2] and len(reply.node_index) == 4
    assert (measured.measured, measured.message) == (True, "it has slowed it")
    assert measured.slowdown == pytest.approx(0.25)
    assert [*predicted.jobs, predicted.message] == ["reader", "pcie_received"]
    assert predicted.slowdown == pytest.approx(0.6) and not predicted.measured
    assert isnan(unknown.slowdown) and unknown.message == "the demand of stranger is unknown"


@dataclass
class Source:
    snapshot: Judgement


@pytest.mark.parametrize("is_evaluation", [False, True])
def test_a_replay_gives_the_same_answer(is_evaluation: bool) -> None:
    """The inputs of a decision have the predictions, and not the demands of other jobs."""
    snapshot = shared_fleet(["reader", "stranger"])
    records: list[tuple[Any, ...]] = []

    class Recorder:
        def record(self, *values: Any) -> None:
            records.append(values)

    service = PlacementService(Source(snapshot), recorder=Recorder())  # type: ignore[arg-type]
    gang: Any = placement_pb2.GangRequirements(nodes=2, gpus_per_node=4)
    gang.workload.job = "new"
    request: Any = placement_pb2.EvaluatePlacementRequest(
        gang=gang, node_index=[0, 1], explain=True
    )
    call: Any = service.EvaluatePlacement
    if not is_evaluation:
        candidates = placement_pb2.PlacementCandidates(
            node_bitmap=b"\x03", shared_node_index=[0, 1], shared_gpu_mask=b"\xf0\xf0"
        )
        request = placement_pb2.PlanPlacementRequest(gang=gang, candidates=candidates, explain=True)
        call = service.PlanPlacement
    reply = asyncio.run(call(request, None))
    ((kind, _, _, table, _),) = records
    neighbors = table.neighbors
    assert {node: bool(p.abstained) for node, p in neighbors.items()} == {0: False, 1: True}
    assert decoded_predictions(json.loads(json.dumps(encoded_predictions(neighbors)))) == neighbors
    stored = [part for _, part in input_parts(table.snapshot, table.excluded)]
    stored += [workload_part(table.snapshot, "new", "new")[1], neighbors_part(neighbors)[1]]
    kind = decision_pb2.DECISION_EVALUATION if is_evaluation else decision_pb2.DECISION_PLACEMENT
    replayed = asyncio.run(replayed_answer(kind, request.SerializeToString(), stored))
    assert replayed == answer_bytes(reply)
    options = [reply.option] if is_evaluation else reply.options
    names = [part.name for part in options[0].price.parts]
    assert {"neighbors", "slowed neighbors"} <= set(names)
