"""Only jobs of known lower priority give up nodes; unknown priorities are stated."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.decisions.blockers import find_blockers
from gangline.aggregator.decisions.node_search import Candidates
from gangline.aggregator.decisions.relaxations import CANDIDATES
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.errors import InvalidArgument
from gangline.aggregator.service.placement import PlacementService
from gangline.aggregator.service.placement_messages import PRIORITIES_MAX, priorities_of
from gangline.aggregator.service.recovery import RecoveryService
from gangline.contract.wire import placement_pb2, recovery_pb2
from tests.aggregator.decisions.fleets import Node, snapshot_of, table_of
from tests.aggregator.decisions.test_exchange_rates import Source

BUSY = [
    Node("free"),
    Node("a1", free=False, job="a"),
    Node("b1", free=False, job="b"),
    Node("b2", free=False, job="b"),
]


def changes(priority: int | None, priorities: dict[str, int], nodes: int = 2) -> list[str]:
    """Return the changes in which other jobs give up nodes."""
    table, free = table_of(BUSY)
    candidates = Candidates(free.nodes, priorities=priorities)
    needs = GangRequirements(nodes, gpus_per_node=8, priority=priority)
    blockers_found = find_blockers(table, candidates, needs).blockers
    return [
        relaxation.change
        for blocker in blockers_found
        if blocker.constraint == CANDIDATES
        for relaxation in blocker.relaxations
        if relaxation.added_nodes.size
    ]


@pytest.mark.parametrize(
    ("priority", "priorities", "change"),
    [
        (None, {"a": 1}, "job a gives up 1 node (the gang's priority is not known)"),
        (5, {}, "job a gives up 1 node (its priority is not known)"),
        (5, {"a": 4}, "job a gives up 1 node (priority 4, below 5)"),
        (5, {"a": 5}, "job b gives up 1 node (its priority is not known)"),
        (5, {"b": 4}, "job b gives up 1 node (priority 4, below 5)"),
        (-5, {"a": -4, "b": -6}, "job b gives up 1 node (priority -6, below -5)"),
    ],
)
def test_who_gives_up_nodes(priority: int | None, priorities: dict[str, int], change: str) -> None:
    """A job of higher priority keeps its nodes; a known priority comes before an unknown one."""
    assert changes(priority, priorities) == [change]


def test_of_jobs_that_count_as_much_nobody_gives_up() -> None:
    """The candidates do not conflict then, and the message proposes no job."""
    assert changes(5, {"a": 5, "b": 9}) == []
    table, free = table_of([*BUSY, Node("idle", free=False)])
    candidates = Candidates(free.nodes, priorities={"a": 5, "b": 9})
    needs = GangRequirements(2, gpus_per_node=8, priority=5)
    (blocker,) = [
        item
        for item in find_blockers(table, candidates, needs).blockers
        if item.constraint == CANDIDATES
    ]
    assert "3 of them run jobs of at least the gang's priority" in blocker.message
    assert [item.added_nodes.tolist() for item in blocker.relaxations] == [[4]]


@given(
    priorities=st.dictionaries(st.sampled_from(("a", "b")), st.integers(-2, 2)),
    own=st.integers(-2, 2),
    nodes=st.integers(2, 4),
)
def test_no_change_takes_from_a_job_that_counts_as_much(
    priorities: dict[str, int], own: int, nodes: int
) -> None:
    """Holds for each relaxed constraint."""
    table, free = table_of(BUSY)
    candidates = Candidates(free.nodes, priorities=priorities)
    needs = GangRequirements(nodes, gpus_per_node=8, priority=own)
    for blocker in find_blockers(table, candidates, needs).blockers:
        for relaxation in blocker.relaxations:
            for node in relaxation.added_nodes.tolist():
                assert priorities.get(BUSY[node].job, own - 1) < own


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ([("", 1)], r"job_priorities\[0\].job: empty"),
        ([("a", 1), ("a", 2)], r"job_priorities\[1\].job: 'a' is listed twice"),
        ([("a" * 600, 1)], r"job_priorities\[0\].job"),
        ([(str(at), at) for at in range(PRIORITIES_MAX + 1)], "10001 jobs, expected at most 10000"),
    ],
)
def test_priorities_that_are_none(jobs: list[tuple[str, int]], told: str) -> None:
    """Each error names the limit."""
    message = placement_pb2.PlacementCandidates()
    for job, priority in jobs:
        message.job_priorities.add(job=job, priority=priority)
    with pytest.raises(InvalidArgument, match=told):
        priorities_of(message)


def recovered(**gang: Any) -> recovery_pb2.PlanRecoveryResponse:
    """Return the recovery of a gang of two that lost a node, with two jobs that may lend."""
    nodes = [Node("m1"), Node("m2"), Node("x", free=False), Node("y", free=False)]
    request = recovery_pb2.PlanRecoveryRequest(
        gang=placement_pb2.GangRequirements(**gang), current_node_index=[0, 1], failed_node_index=[0],
        candidates=placement_pb2.PlacementCandidates(node_bitmap=b"\x01"),
    )  # fmt: skip
    request.lenders.add(workload="low", node_index=[2], priority=1)
    request.lenders.add(workload="high", node_index=[3])
    request.candidates.job_priorities.add(job="high", priority=7)
    service = RecoveryService(PlacementService(Source(snapshot_of(nodes))))
    return asyncio.run(service.PlanRecovery(request, None))


def test_a_recovery_borrows_from_lower_priorities_only() -> None:
    """The lender's own priority counts, otherwise its job's."""

    def lenders(reply: recovery_pb2.PlanRecoveryResponse) -> list[str]:
        return [choice.lender for choice in reply.options if choice.lender]

    reply = recovered(priority=5)
    assert lenders(reply) == ["low"]
    assert list(reply.notes) == ["high lends nothing: its priority 7 is not below the gang's 5"]
    (option,) = [choice for choice in reply.options if choice.lender]
    assert "have low give up x (priority 1, below 5)" in option.steps
    assert lenders(recovered(priority=1)) == []
    reply = recovered()
    assert lenders(reply) and "gang.priority is not set" in reply.notes[0]
    (option,) = [choice for choice in reply.options if choice.lender]
    assert "it is unknown whether its priority is lower" in option.steps[0]
    assert np.isfinite(option.price.total_gpu_hours.value)
