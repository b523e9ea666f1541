"""Plan requests and recovery reports of an executor: the real service accepts them; unknown names send none."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gangline.aggregator.service.placement import PlacementService
from gangline.aggregator.service.recovery import RecoveryService
from gangline.aggregator.service.recovery_report import record_of
from gangline.contract.wire import recovery_pb2
from gangline.executors.model import Node, NodeHold, ScheduledJob, SchedulerState
from gangline.executors.recovery import (
    RECOVERY_SECONDS_MAX,
    FollowedRecovery,
    PlannedRecovery,
    free_nodes,
    plan_request,
    read_plan,
    report_of,
)
from tests.aggregator.service.test_placement_service import SnapshotStandIn, placed_world

NOW = 1_800_000_000.0
JOB = ScheduledJob(
    "17", "RUNNING", frozenset({"n0", "n1", "n2"}), 0, True, 6, NOW - 900, NOW - 800, checkpoint_seconds=1800.0,
)  # fmt: skip
FOLLOWED = FollowedRecovery("a1", JOB, "n1", NOW - 1, NOW)


def test_the_real_service_plans_it() -> None:
    """The service accepts the executor's request, and its answer names nodes of the scheduler."""
    snapshot = placed_world().run(20)
    hosts = list(snapshot.names)
    indexes = {name: index for index, name in enumerate(hosts)}
    job = replace(JOB, nodes=frozenset(f"node-{name}" for name in hosts[:3]))
    failed = f"node-{hosts[1]}"
    request = plan_request(
        job, failed, indexes, snapshot.dictionary_version, lambda node: node.removeprefix("node-"),
        [f"node-{name}" for name in hosts],
    )  # fmt: skip
    assert request is not None
    service = RecoveryService(PlacementService(SnapshotStandIn(snapshot)))
    reply = asyncio.run(service.PlanRecovery(request, None))
    plan = read_plan(reply, hosts, lambda host: f"node-{host}")
    assert plan is not None and plan.decision
    assert failed not in plan.nodes and len(plan.nodes) == 3
    assert plan.text().startswith(f"plan {plan.kind}")


@pytest.mark.parametrize(
    ("node", "known"), [("n1", ["n0", "n2"]), ("n9", ["n0", "n1", "n2", "n9"]), ("n1", [])]
)
def test_nothing_is_asked_of_nodes_that_nobody_knows(node: str, known: list[str]) -> None:
    """A host without an agent has no index; a job that has left the node has nothing to replace."""
    indexes = {name: index for index, name in enumerate(known)}
    assert plan_request(JOB, node, indexes, 1, str, []) is None


def test_candidates_are_nodes_that_the_scheduler_could_give() -> None:
    """Candidates are idle nodes without a hold and the job's own nodes, except the lost node."""
    nodes = {
        "n0": Node("n0", "ALLOCATED"),
        "n1": Node("n1", "ALLOCATED"),
        "n2": Node("n2", "ALLOCATED"),
        "n3": Node("n3", "IDLE"),
        "n4": Node("n4", "IDLE"),
        "n5": Node("n5", "IDLE*", is_responding=False),
        "n6": Node("n6", "IDLE+DRAIN", out="DRAIN: bad fan"),
    }
    state = SchedulerState(nodes, {}, {"maint": NodeHold("maint", frozenset({"n4"}))})
    free = free_nodes(state)
    assert free == ["n3"]
    indexes = {name: index for index, name in enumerate(nodes)}
    request = plan_request(JOB, "n1", indexes, 7, str, free)
    assert request is not None
    assert request.candidates.node_bitmap == bytes([0b1101])
    assert (request.gang.gpus_per_node, request.gang.checkpoint_interval.seconds) == (2, 1800)


def test_an_answer_of_a_newer_service_is_read() -> None:
    """A newer service may send a kind without a name here, and an index beyond the known names."""
    reply = recovery_pb2.PlanRecoveryResponse(decision_id="d", futile_reason="the same NaN")
    assert read_plan(reply, ["n0"], str) is None
    reply.restart_is_futile = True
    best = reply.options.add(node_index=[0])
    best.MergeFromString(b"\x08\x63")  # kind 99
    reply.options.add(kind=recovery_pb2.RECOVERY_FREE_NODE, node_index=[0, 5])
    plan = read_plan(reply, ["n0"], str)
    assert plan is not None
    assert plan == PlannedRecovery("99", "d", 0.0, (), frozenset(), "the same NaN")
    assert plan.text().endswith("; a restart is futile: the same NaN")
    assert len(replace(plan, futile="x" * 900).text()) <= 200


@pytest.mark.parametrize(
    ("after", "seconds", "kind", "success"),
    [
        (replace(JOB, nodes=frozenset({"n0", "n2", "n3"}), restarts=1), 1.0, "FREE_NODE", True),
        (replace(JOB, nodes=frozenset({"n3", "n4", "n5"}), restarts=1), 1.0, "RESTART_ELSEWHERE", True),
        (replace(JOB, state="PENDING", nodes=frozenset(), restarts=1), 1.0, None, None),
        (replace(JOB, state="PENDING", nodes=frozenset(), restarts=1), RECOVERY_SECONDS_MAX, "KIND_UNSPECIFIED", False),
        (replace(JOB, state="FAILED", ended=NOW), 1.0, "KIND_UNSPECIFIED", False),
        (JOB, 1.0, None, None),  # not requeued yet
        (None, 1.0, "KIND_UNSPECIFIED", False),
    ],
)  # fmt: skip
def test_what_is_reported(
    after: ScheduledJob | None, seconds: float, kind: str | None, success: bool | None
) -> None:
    """The service accepts each report; a clock that is behind never makes times descend."""
    state = SchedulerState(jobs={} if after is None else {"17": after})
    followed_job = replace(FOLLOWED, detected=NOW + 0.5)  # the aggregator's clock is ahead
    report = report_of(followed_job, state, NOW + seconds, "slurm", 0.0)
    if kind is None:
        assert report is None
        return
    assert report is not None and report.success == success
    assert recovery_pb2.RecoveryKind.Name(report.kind) == f"RECOVERY_{kind}"
    record = record_of(report, "executor", int((NOW + seconds) * 1e9))
    assert record.report.decide_ns >= record.report.detect_ns > 0
    assert (record.report.act_ns > 0) == success
