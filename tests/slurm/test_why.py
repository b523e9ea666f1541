"""`gangline why JOB` on a real Slurm: drained, reserved and busy nodes are counted; the aggregator's part is asked for and priced."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline import cli
from gangline.contract.wire import placement_pb2, score_pb2
from gangline.contract.wire.placement_pb2_grpc import (
    PlacementServiceServicer,
    add_PlacementServiceServicer_to_server,
)
from gangline.contract.wire.score_pb2_grpc import (
    ScoreServiceServicer,
    add_ScoreServiceServicer_to_server,
)
from tests.slurm.plugin_cluster import sbatch
from tests.slurm_cluster import MISSING, SlurmCluster, has_slurm, running_slurm

pytestmark = pytest.mark.skipif(not has_slurm(), reason=MISSING)

NAMES = [f"gpu{index}" for index in range(1, 7)]


class Fleet(ScoreServiceServicer, PlacementServiceServicer):
    """An aggregator that knows the six nodes; gpu5 has a fault. Nothing fits, and a lower floor would help."""

    def __init__(self) -> None:
        self.asked: list[placement_pb2.PlanPlacementRequest] = []

    def GetNodeDictionary(self, request: Any, context: Any) -> score_pb2.NodeDictionary:
        return score_pb2.NodeDictionary(version=7, names=NAMES)

    def ScoreNodes(self, request: Any, context: Any) -> score_pb2.ScoreNodesResponse:
        assert request.dictionary_version == 7
        reply = score_pb2.ScoreNodesResponse(
            dictionary_version=7, node_index=range(6), score=[0.9] * 6, hazard_per_hour=[0.1] * 6, relative_speed=[1.0] * 6,
            state=bytes([1, 1, 1, 1, 5, 1]), bucket=bytes(6), reason=bytes(6), allowed_bitmap=bytes([0b101111]),
        )  # fmt: skip
        reply.valid_until.FromNanoseconds(time.time_ns() + 15 * 10**9)
        return reply

    def PlanPlacement(self, request: Any, context: Any) -> placement_pb2.PlanPlacementResponse:
        """Return why nothing fits."""
        self.asked.append(request)
        reply = placement_pb2.PlanPlacementResponse(proven=True)
        blocker = reply.blockers.add(constraint="node_score_min", message="2 nodes are below 0.95")
        change = blocker.relaxations.add(change="node_score_min 0.95 -> 0.90")
        change.price.total_gpu_hours.value = 12.5
        return reply


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Yield a cluster of six nodes: one drained, one reserved, one busy."""
    with running_slurm(tmp_path_factory.mktemp("slurm"), 6) as slurm:
        slurm.command(
            "scontrol", "update", "nodename=gpu1", "state=drain", "reason=burn-in for a day"
        )
        slurm.command(
            "scontrol", "create", "reservation", "reservationname=window", "nodes=gpu2", "starttime=now", "duration=60", "users=root",
        )  # fmt: skip
        number, _ = sbatch(slurm, "-w", "gpu3", "--gpus-per-node=4", "--job-name=busy")
        slurm.until(lambda: slurm.job(number)["JobState"] == "RUNNING", "a busy node")
        yield slurm


@pytest.fixture
def aggregator() -> Iterator[tuple[Fleet, str]]:
    with ThreadPoolExecutor(2) as pool:
        server: Any = grpc.server(pool)
        fleet = Fleet()
        add_ScoreServiceServicer_to_server(fleet, server)  # type: ignore[no-untyped-call]
        add_PlacementServiceServicer_to_server(fleet, server)  # type: ignore[no-untyped-call]
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield fleet, address
        finally:
            server.stop(None).wait()


@pytest.fixture
def job(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    number, message = sbatch(cluster, "-N4", "--gpus-per-node=4")
    assert number, message
    yield number
    cluster.command("scancel", number)


def test_nodes_are_counted_and_changes_priced(
    job: str, aggregator: tuple[Fleet, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan covers Slurm's remaining nodes: floor and domain belong to the plan, so that they can be relaxed."""
    fleet, address = aggregator
    arguments = ["why", job, "--aggregator", address, "--score-min", "0.95", "--within", "leaf"]
    assert cli.main(arguments) == cli.OK
    output = capsys.readouterr().out
    assert "from 'in use' on too few nodes are left: 3 of the 4 that it needs" in output
    for expected in (
        "5     state", "gpu1", "1 DRAIN: burn-in for a day", "4     reservations", "1 window", "3     in use", "1 GPUs in use",
        "2     health", "UNHEALTHY: score 0.900", "it does not fit", "node_score_min 0.95 -> 0.90", "12.5 GPU-hours",
    ):  # fmt: skip
        assert expected in output, (expected, output)
    (request,) = fleet.asked
    assert request.candidates.node_bitmap == bytes([0b111000])
    assert (request.gang.nodes, request.gang.gpus_per_node) == (4, 4)
    assert request.gang.invariants.within == placement_pb2.TIER_LEAF
    assert abs(request.gang.node_score_min - 0.95) < 1e-6


def test_without_an_aggregator_slurms_part_is_said(job: str, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    arguments = ["why", job, "--aggregator", "127.0.0.1:9"]
    assert cli.main(arguments) == cli.NO_ANSWER
    output = capsys.readouterr().out
    assert "3     in use" in output and "are unknown: no aggregator answers" in output
    assert cli.main([*arguments, "--json"]) == cli.NO_ANSWER
    fields = json.loads(capsys.readouterr().out)
    assert fields["left"] == ["gpu4", "gpu5", "gpu6"] and fields["plan"] is None


def test_a_job_that_is_not_there(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["why", "99999"]) == cli.NOT_FOUND
    assert "Invalid job id" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["all"], ["4;x"], ["4", "--score-min", "2"], ["4", "--within", "moon"]])  # fmt: skip
def test_mistakes_are_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["why", *arguments])
    assert ended.value.code == cli.USAGE and "error:" in capsys.readouterr().err


def test_where_slurm_is_not_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli.main(["why", "1"]) == cli.FAILED
    assert "Run this on a machine with Slurm" in capsys.readouterr().err
