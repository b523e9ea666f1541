"""RecoveryService over a judged fleet: recovery options, and mistakes named by field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline import cli
from gangline.aggregator.declared.host_placement import HostPlacement
from gangline.aggregator.declared.model import NOTHING
from gangline.aggregator.errors import FailedPrecondition, InvalidArgument
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.service.placement import PlacementService
from gangline.aggregator.service.recovery import RecoveryService
from gangline.contract.wire import placement_pb2, recovery_pb2
from gangline.contract.wire.recovery_pb2_grpc import RecoveryServiceStub
from tests.aggregator.decisions.fleets import Node, snapshot_of
from tests.aggregator.service.test_placement_service import SnapshotStandIn, placed_world
from tests.aggregator.service.test_score_process import answer, handed_over, running
from tests.processes import GUARD_SECONDS
from tests.worlds import World, gpu_of

WRONG: list[tuple[Callable[[Any], None], str]] = [
    (lambda one: one.ClearField("current_node_index"), "current_node_index"),
    (lambda one: one.current_node_index.append(99), "current_node_index"),
    (lambda one: one.current_node_index.append(0), "current_node_index"),
    (lambda one: one.failed_node_index.append(7), "failed_node_index"),
    (lambda one: one.hot_spare_node_index.append(1), "hot_spare_node_index"),
    (lambda one: setattr(one, "nodes_min", 9), "nodes_min"),
    (lambda one: setattr(one, "failures_at_step", 1001), "failures_at_step"),
    (lambda one: setattr(one, "application_error", "x" * 201), "application_error"),
    (lambda one: setattr(one, "incident", "x" * 129), "incident"),
    (lambda one: setattr(one.gang, "nodes", 3), "gang.nodes"),
    (lambda one: one.checkpoint.replica_node_index.append(1), "replica_node_index"),
    (lambda one: one.checkpoint.age.FromSeconds(700_000), "checkpoint.age"),
    (lambda one: one.lenders.add(workload=""), r"lenders\[0\].workload"),
    (lambda one: one.lenders.extend([one.lenders.add(workload="x")] * 40), "lenders"),
]  # fmt: skip


def plan(
    snapshot: Judgement, request: recovery_pb2.PlanRecoveryRequest
) -> recovery_pb2.PlanRecoveryResponse:
    service = RecoveryService(PlacementService(SnapshotStandIn(snapshot)))
    return asyncio.run(service.PlanRecovery(request, None))


def request_of(current: range, **fields: Any) -> recovery_pb2.PlanRecoveryRequest:
    request = recovery_pb2.PlanRecoveryRequest(
        gang=placement_pb2.GangRequirements(gpus_per_node=fields.pop("gpus", 2)),
        current_node_index=current,
        **fields,
    )
    request.gang.length.FromSeconds(6 * 3600)
    return request


def test_three_of_64_hosts_on_two_leaves_die_and_61_go_on(tmp_path: Path) -> None:
    """Only the three ranks change, no healthy process stops, and the price is shown in parts."""
    world = World(72, 1)
    places = {
        f"h{number}": HostPlacement(
            rack=f"r{number // 4}", leaf=f"leaf-{number // 32}", spine="spine-0"
        )
        for number in range(72)
    }
    world.fleet.declared = replace(NOTHING, places=places, places_version=1)
    world.run(10)
    dead = [3, 9, 40]
    for number in dead:
        world.event(world.hosts[number], 79, gpu_of(world.hosts[number], 0))
    snapshot = world.run(5)
    request = request_of(
        range(64), gpus=1, hot_spare_node_index=range(64, 72), goes_on_in_process=True, nodes_min=32
    )
    expected = plan(handed_over(snapshot), request)

    async def scenario() -> Any:
        async with running(tmp_path, snapshot) as item:
            await answer(item)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{item.port}") as channel:
                stub: Any = RecoveryServiceStub(channel)  # type: ignore[no-untyped-call]
                return await stub.PlanRecovery(request, timeout=GUARD_SECONDS)

    reply = asyncio.run(scenario())
    assert reply == expected
    assert list(reply.failed_node_index) == dead and not reply.restart_is_futile
    assert not reply.domains  # three in two leaves and three racks have no shared cause
    best = reply.options[0]
    assert best.kind == recovery_pb2.RECOVERY_HOT_SPARE and not best.stopped_node_index
    assert [item.rank for item in best.replacements] == dead
    assert all(now == number for number, now in enumerate(best.node_index) if number not in dead)
    assert {best.node_index[number] for number in dead} <= set(range(64, 72))
    total = best.price.total_gpu_hours
    assert total.value == pytest.approx(sum(item.gpu_hours.value for item in best.price.parts))
    elsewhere = next(
        item for item in reply.options if item.kind == recovery_pb2.RECOVERY_RESTART_ELSEWHERE
    )
    assert len(elsewhere.stopped_node_index) == 61
    assert elsewhere.act_hours.value > best.act_hours.value


@pytest.mark.parametrize(("change", "field"), WRONG)
def test_a_mistake_is_named_by_field(change: Callable[[Any], None], field: str) -> None:
    """A recovery is planned under pressure: the error names the field and the correct form."""
    request = request_of(range(4))
    change(request)
    with pytest.raises(InvalidArgument, match=field):
        plan(placed_world().run(20), request)


def test_without_a_failure_there_is_nothing_to_recover() -> None:
    """A gang without a failed member is not torn down by a mistaken request."""
    snapshot = placed_world().run(20)
    with pytest.raises(InvalidArgument, match="expected the failed members"):
        plan(snapshot, request_of(range(3)))
    with pytest.raises(FailedPrecondition, match="GetNodeDictionary"):
        plan(snapshot, request_of(range(4), dictionary_version=3))


async def test_a_recovery_at_the_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`gangline recover` compares the options at 3 a.m.; without a gang it is wrong usage."""
    places = [("", "s0", f"l{number // 4}", f"r{number // 2}", "", "", "") for number in range(8)]
    nodes = [Node(f"gpu-{number:03d}", places=place, job="train" if number < 4 else "") for number, place in enumerate(places)]  # fmt: skip
    nodes[2] = replace(nodes[2], state=HealthState.UNHEALTHY)
    file = tmp_path / "members.txt"
    file.write_text("gpu-003 gpu-001\n")
    results: list[tuple[int, str]] = []
    async with running(tmp_path, snapshot_of(nodes)) as score_process:
        await answer(score_process)
        for arguments in (
            ["--job", "train", "--in-process", "--shrink-to", "2", "--checkpoint-age", "20m"],
            ["--job", "train", "--json"],
            ["--members", str(file), "--failed", "gpu-001", "--show", "99"],
            ["--members", str(file), "--failed", "gpu-004"],
            ["--job", "other"],
            ["--members", str(tmp_path / "absent")],
        ):
            server = ["--aggregator", f"127.0.0.1:{score_process.port}"]
            code = await asyncio.to_thread(cli.main, ["recover", *server, *arguments])
            captured = capsys.readouterr()
            results.append((code, captured.out + captured.err))
    job, as_json, members, stranger, unknown, absent = results
    assert job[0] == cli.OK and "1 failed: gpu-002" in job[1]
    assert "replace by free nodes" in job[1] and "shrink" in job[1] and "wait for repairs" in job[1]
    assert "rank 2: gpu-002 -> gpu-00" in job[1] and "lost work" in job[1]
    assert as_json[0] == cli.OK and json.loads(as_json[1])["failed_node_index"] == [2]
    assert members[0] == cli.OK and "1 failed: gpu-001" in members[1]
    assert stranger[0] == cli.FAILED and "(gpu-004) is not in current_node_index" in stranger[1]
    assert unknown[0] == cli.FAILED and "job 'other' is seen on no node" in unknown[1]
    assert absent[0] == cli.FAILED and "expected a file of host names" in absent[1]
    with pytest.raises(SystemExit) as ended:
        cli.main(["recover", "--failed", "gpu-001"])
    assert ended.value.code == cli.USAGE
    assert "--job NAME, or --members HOSTS" in capsys.readouterr().err
