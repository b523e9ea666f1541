"""Simulated hosts and the real aggregator, as processes on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import grpc

from gangline.contract.wire import score_pb2
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub
from tests.processes import Process, free_port, listening, until

HOSTS = 3


def known(port: int) -> dict[str, score_pb2.NodeScore]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            stub: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
            answer = stub.ListNodeScores(score_pb2.ListNodeScoresRequest())
        except grpc.RpcError:
            return {}
        return {score.node: score for score in answer.node_scores}


def test_simulated_hosts_reach_store_and_scores_marked_as_simulated(tmp_path: Path) -> None:
    """Jobs would be placed on an unmarked simulated host; a frame stored twice or in part would
    falsify the training data.
    """
    port = free_port()
    store, data = tmp_path / "store", tmp_path / "simulated"
    serve = ["aggregator", "--data", str(store), "--listen", f"127.0.0.1:{port}"]
    play = ["simulate", "--hosts", str(HOSTS), "--data", str(data)]
    play += ["--aggregator", f"127.0.0.1:{port}"]
    with Process(serve, tmp_path / "aggregator.log") as aggregator:
        until(lambda: listening(port), "the aggregator listens")
        with Process(play, tmp_path / "simulate.log") as simulate:
            names = {f"nodes/sim-{i:03d}" for i in range(HOSTS)}
            until(lambda: known(port).keys() == names, "all hosts are known")
            until(
                lambda: all(s.relative_speed > 0 for s in known(port).values()), "GPUs are compared"
            )
            assert all(score.simulated for score in known(port).values())
            assert simulate.stop() == 0
        assert aggregator.stop() == 0
    with duckdb.connect(str(store / "gangline.duckdb"), read_only=True) as connection:
        simulated = connection.execute("SELECT DISTINCT simulated FROM hosts").fetchall()
        rows = connection.execute(
            "SELECT host, count(*), count(DISTINCT boottime_ns), count(DISTINCT device) "
            "FROM readings.gpu_1s GROUP BY host ORDER BY host"
        ).fetchall()
        jobs = connection.execute(
            "SELECT source, hosts, gpus_count, world_size FROM ops.jobs"
        ).fetchall()
    assert simulated == [(True,)]
    # The jobs of the processes were once reported with another boot's ID, and no job ran anywhere.
    assert jobs == [("slurm", [f"sim-{i:03d}" for i in range(HOSTS)], 8 * HOSTS, 8 * HOSTS)]
    assert [row[0] for row in rows] == [f"sim-{i:03d}" for i in range(HOSTS)]
    for _, count, frames, devices in rows:
        assert devices == 8 and count == 8 * frames >= 8
    left = [file.stat().st_size for file in data.glob("*/events/events")]
    assert left == [0] * HOSTS
