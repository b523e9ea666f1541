"""A gang of 64 simulated hosts loses three on two leaves and goes on: planned and recovered by a real aggregator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.aggregator.commands.recover import recovery_text
from gangline.contract.wire import placement_pb2, recovery_pb2, score_pb2
from gangline.contract.wire.placement_pb2_grpc import PlacementServiceStub
from gangline.contract.wire.recovery_pb2_grpc import RecoveryServiceStub
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub
from gangline.simulator.world import World
from tests.processes import GUARD_SECONDS, Process, free_port, listening, until

#: With this seed the job has whole racks, and the lost hosts are in two leaves and three racks.
SCENARIO, SEED, HOSTS, GANG = "gang", 2, 72, 64
SEGMENT = 4


class Service:
    def __init__(self, channel: grpc.Channel) -> None:
        self._scores: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
        self._placement: Any = PlacementServiceStub(channel)  # type: ignore[no-untyped-call]
        self._recovery: Any = RecoveryServiceStub(channel)  # type: ignore[no-untyped-call]

    def scores(self) -> dict[str, score_pb2.NodeScore]:
        try:
            reply = self._scores.ListNodeScores(score_pb2.ListNodeScoresRequest())
        except grpc.RpcError:
            return {}
        return {score.node.removeprefix("nodes/"): score for score in reply.node_scores}

    def names(self) -> list[str]:
        reply = self._scores.GetNodeDictionary(score_pb2.GetNodeDictionaryRequest())
        return list(reply.names)

    def plan(
        self, gang: placement_pb2.GangRequirements, free: set[int]
    ) -> placement_pb2.PlanPlacementResponse:
        bitmap = bytearray(-(-HOSTS // 8))
        for index in free:
            bitmap[index // 8] |= 1 << index % 8
        request = placement_pb2.PlanPlacementRequest(
            gang=gang, candidates=placement_pb2.PlacementCandidates(node_bitmap=bytes(bitmap))
        )
        reply: placement_pb2.PlanPlacementResponse = self._placement.PlanPlacement(
            request, timeout=GUARD_SECONDS
        )
        return reply

    def recover(
        self, request: recovery_pb2.PlanRecoveryRequest
    ) -> recovery_pb2.PlanRecoveryResponse | None:
        try:
            reply: recovery_pb2.PlanRecoveryResponse = self._recovery.PlanRecovery(
                request, timeout=GUARD_SECONDS
            )
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
            return None
        return reply


def gang() -> placement_pb2.GangRequirements:
    result = placement_pb2.GangRequirements(nodes=GANG, gpus_per_node=8)
    result.length.FromSeconds(72 * 3600)
    result.invariants.segment_nodes = SEGMENT
    result.invariants.segment_tier = placement_pb2.TIER_RACK
    return result


@pytest.mark.slow
def test_a_gang_of_64_hosts_loses_three_and_61_never_stop(tmp_path: Path) -> None:
    """Most gangs are torn down for a single dead GPU: the advantage of continuing must hold end to end."""
    world = World(SCENARIO, SEED)
    (job,) = world.schedule.jobs
    lost = {world.names[int(row["host"])] for row in world.schedule.rows}
    leaves = {world.location(world.names.index(name)).leaf for name in lost}
    racks = {world.names[index]: world.location(index).rack for index in range(HOSTS)}
    assert len(lost) == 3 and len(leaves) == 2
    members = {world.names[index] for index in job.hosts.tolist()}
    port = free_port()
    serve = ["aggregator", "--data", str(tmp_path / "store"), "--listen", f"127.0.0.1:{port}"]
    play = ["simulate", "--scenario", SCENARIO, "--seed", str(SEED), "--data", str(tmp_path / "sim")]  # fmt: skip
    play += ["--aggregator", f"127.0.0.1:{port}"]
    with (
        Process(serve, tmp_path / "aggregator.log"),
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        until(lambda: listening(port), "the aggregator listens")
        with Process(play, tmp_path / "simulate.log"):
            service = Service(channel)
            until(
                lambda: (
                    sum(score.relative_speed > 0 for score in service.scores().values()) >= GANG
                ),
                "the gang computes",
            )
            names = service.names()
            assert sorted(names) == sorted(world.names)
            free = {names.index(name) for name in members}
            until(lambda: service.plan(gang(), free).options, "the gang fits on its hosts")
            before = service.plan(gang(), free).options[0]
            placed = list(before.node_index)
            assert {names[index] for index in placed} == members
            spares = sorted(set(range(HOSTS)) - set(placed))
            request = recovery_pb2.PlanRecoveryRequest(
                gang=gang(), current_node_index=placed, hot_spare_node_index=spares,
                goes_on_in_process=True, nodes_min=32,
            )  # fmt: skip
            replies: list[recovery_pb2.PlanRecoveryResponse] = []

            def all_are_lost() -> bool:
                reply = service.recover(request)
                if reply is not None and len(reply.failed_node_index) == len(lost):
                    replies.append(reply)
                return bool(replies)

            until(all_are_lost, "three hosts have failed", 300.0)
    reply = replies[0]
    assert {names[index] for index in reply.failed_node_index} == lost
    assert not reply.restart_is_futile and not reply.domains
    best = reply.options[0]
    assert best.kind == recovery_pb2.RECOVERY_HOT_SPARE and not best.stopped_node_index
    moved = [rank for rank, (was, now) in enumerate(zip(placed, best.node_index, strict=True)) if was != now]  # fmt: skip
    assert {names[placed[rank]] for rank in moved} == lost and len(moved) == 3
    # The racks of the gang have no other host: each replacement says that its segment is no longer whole.
    for replacement in best.replacements:
        segment = best.node_index[replacement.rank // SEGMENT * SEGMENT :][:SEGMENT]
        is_whole = len({racks[names[index]] for index in segment}) == 1
        assert replacement.keeps_segment == is_whole
    assert len(best.replacements) == 3
    waits = next(
        option for option in reply.options if option.kind == recovery_pb2.RECOVERY_WAIT_FOR_REPAIR
    )
    assert len(waits.stopped_node_index) == GANG - 3
    # Three racks have three hosts left: as whole segments of four the gang fits nowhere else.
    assert recovery_pb2.RECOVERY_RESTART_ELSEWHERE not in {option.kind for option in reply.options}
    # The price of the plan; and of the gang's hours from the loss on: undisturbed, and with the
    # plan.
    for price in (before.price, reply.undisturbed.price, best.price):
        total = price.total_gpu_hours
        assert total.lower <= total.value <= total.upper and total.value > 0.0
        assert total.value == pytest.approx(sum(part.gpu_hours.value for part in price.parts))
        print(f"{total.value:.0f} GPU-hours ({total.lower:.0f} to {total.upper:.0f})")
    assert best.price.total_gpu_hours.value > reply.undisturbed.price.total_gpu_hours.value
    shown = [line.split() for line in recovery_text(reply, names).splitlines()]
    (row,) = (cells for cells in shown if cells[-4:] == ["no", "member", "had", "failed"])
    assert float(row[1]) == pytest.approx(reply.undisturbed.price.total_gpu_hours.value, abs=0.06)
    assert {part.name for part in best.price.parts} >= {"detect", "decide", "resume", "lost work"}
