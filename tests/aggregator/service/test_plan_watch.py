"""Watched plans: messages when a plan breaks or a better plan exists, and otherwise none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.decisions import planner
from gangline.aggregator.decisions.node_search import Candidates
from gangline.aggregator.decisions.node_table import node_table
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.errors import InvalidArgument, ResourceExhausted
from gangline.aggregator.model import HealthState
from gangline.aggregator.service import placement_messages as messages
from gangline.aggregator.service import plan_watch
from gangline.aggregator.service.placement import PlacementService
from gangline.aggregator.service.plan_watch import PlanQuestion, WatchedPlan
from gangline.aggregator.service.status import ErrorInterceptor
from gangline.contract.wire import placement_pb2 as wire
from gangline.contract.wire.placement_pb2_grpc import (
    PlacementServiceStub,
    add_PlacementServiceServicer_to_server,
)
from tests.aggregator.decisions.fleets import Node, snapshot_of, violations
from tests.aggregator.decisions.test_planner import fleets, gangs
from tests.aggregator.service.test_placement_service import (
    SnapshotStandIn,
    everyone,
    gang,
    placed_world,
)
from tests.processes import GUARD_SECONDS
from tests.worlds import gpu_of


def bitmap(*nodes: int) -> wire.PlacementCandidates:
    return wire.PlacementCandidates(node_bitmap=bytes([sum(1 << node for node in nodes)]))


@asynccontextmanager
async def connected(holder: SnapshotStandIn) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    add_PlacementServiceServicer_to_server(PlacementService(holder), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


@asynccontextmanager
async def serving(holder: SnapshotStandIn) -> AsyncIterator[Any]:
    async with connected(holder) as channel:
        yield PlacementServiceStub(channel)  # type: ignore[no-untyped-call]


async def test_a_plan_stays_until_a_member_breaks() -> None:
    """A waiting scheduler learns at once that its plan is broken, why, and its replacement."""
    world, holder = placed_world(), SnapshotStandIn()
    holder.snapshot = world.run(20)
    async with serving(holder) as stub:
        call = stub.WatchPlan(timeout=GUARD_SECONDS)
        request = wire.WatchPlanRequest(
            plan=wire.PlanPlacementRequest(gang=gang(4), candidates=everyone(8))
        )
        await call.write(request)
        first = await call.read()
        assert first.change == wire.PLAN_FIRST
        nodes = list(first.plan.options[0].node_index)
        assert sorted(first.joined_node_index) == sorted(nodes) and 3 not in nodes
        broken = nodes[1]
        world.event(world.hosts[broken], 79, gpu_of(world.hosts[broken], 0))
        holder.snapshot = world.run(1)
        second = await call.read()
        assert second.change == wire.PLAN_BROKEN and f"h{broken}" in second.reasons[0]
        assert broken in second.left_node_index
        now = list(second.plan.options[0].node_index)
        assert broken not in now and second.score_version == holder.snapshot.version
        # With fewer free nodes the earlier plan stays if it still holds.
        free = sorted({*now, 3})
        request.plan.candidates.CopyFrom(bitmap(*free))
        await call.write(request)
        third = await call.read()
        assert third.change == wire.PLAN_FIRST and list(third.plan.options[0].node_index) == now
        request.plan.candidates.CopyFrom(bitmap(*now[1:]))
        await call.write(request)
        fourth = await call.read()
        assert fourth.change == wire.PLAN_BROKEN and "no longer free" in fourth.reasons[0]
        assert not fourth.plan.options and fourth.plan.blockers
        await call.done_writing()  # grpcurl sends one request and keeps reading
        for _ in range(plan_watch.QUIET_VERSIONS):
            holder.snapshot = world.run(1)
            await asyncio.sleep(2 * plan_watch.POLL_SECONDS)
        assert (await call.read()).change == wire.PLAN_UNCHANGED
        call.cancel()


@st.composite
def changed(draw: Any, nodes: list[Node]) -> list[Node]:
    """Return the fleet a second later: a few nodes break, are repaired, taken or given back."""
    later = list(nodes)
    for _ in range(draw(st.integers(0, 2))):
        number = draw(st.integers(0, len(nodes) - 1))
        later[number] = replace(
            later[number],
            state=draw(st.sampled_from((HealthState.HEALTHY, HealthState.UNHEALTHY))),
            free=draw(st.booleans()),
            hazard=draw(st.sampled_from((1e-5, 2e-3))),
        )
    return later


@given(nodes=fleets(8), needs=gangs(6), data=st.data())
def test_what_was_told_last_holds_in_each_snapshot(
    nodes: list[Node], needs: GangRequirements, data: Any
) -> None:
    """The last plan that was sent always holds, and changes only for a reason."""
    watched = WatchedPlan(wire.WatchPlanRequest())
    last_plan: list[int] = []
    for version in range(1, 9):
        nodes = data.draw(changed(nodes)) if version > 1 else nodes
        table = node_table(replace(snapshot_of(nodes), version=version))
        free = Candidates(np.array([node.free for node in nodes], dtype=bool))
        question = PlanQuestion(table, free, needs, None)

        def answer(question: PlanQuestion = question) -> wire.PlanPlacementResponse:
            options = planner.plan(question.table, question.candidates, question.needs)
            return wire.PlanPlacementResponse(
                options=[
                    messages.option_message(question.table, option, explain=False)
                    for option in options
                ]
            )

        response = watched.turn(question, answer)
        before, is_broken = last_plan, bool(last_plan) and violations(nodes, last_plan, needs)
        if response is not None and response.HasField("plan"):
            last_plan = list(response.plan.options[0].node_index) if response.plan.options else []
        if last_plan:
            assert violations(nodes, last_plan, needs) == []
        else:
            assert not planner.plan(table, free, needs)
        if is_broken:
            assert response is not None and response.change == wire.PLAN_BROKEN
        elif before and last_plan != before:
            assert response is not None and response.change == wire.PLAN_CHEAPER
        assert watched.turn(question, answer) is None


class SilentContext:
    """The context of a refused call: nothing is written."""

    async def write(self, message: Any) -> None:
        raise AssertionError(message)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (wire.WatchPlanRequest(plan=wire.PlanPlacementRequest(gang=gang(1), options_max=2)), "options_max"),
        (wire.WatchPlanRequest(plan=wire.PlanPlacementRequest(gang=gang(1)), change_gpu_hours_min=-1), "change_gpu"),
        (wire.WatchPlanRequest(plan=wire.PlanPlacementRequest(gang=gang(1)), change_gpu_hours_min=float("nan")), "change"),
        (wire.WatchPlanRequest(plan=wire.PlanPlacementRequest(gang=gang(1)), current_node_index=[9]), "current_node"),
        (wire.WatchPlanRequest(plan=wire.PlanPlacementRequest(gang=gang(2)), current_node_index=[1, 1]), "current_node"),
        (wire.WatchPlanRequest(), "gang.nodes"),
        (None, "plan"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_watched_is_refused(
    request_: wire.WatchPlanRequest | None, field: str
) -> None:
    """A mistake is named by field, instead of an endless silent stream."""
    service = PlacementService(SnapshotStandIn(placed_world().run(20)))

    async def requests() -> AsyncIterator[wire.WatchPlanRequest]:
        if request_ is not None:
            yield request_

    with pytest.raises(InvalidArgument, match=field):
        asyncio.run(service.WatchPlan(requests(), SilentContext()))


def test_a_malformed_request_ends_the_watch_at_once() -> None:
    """The watch waited for a request until the caller's deadline."""

    async def ask() -> grpc.StatusCode:
        async with connected(SnapshotStandIn(placed_world().run(20))) as channel:
            watch: Any = channel.stream_stream("/gangline.v1.PlacementService/WatchPlan")
            code: grpc.StatusCode = await asyncio.wait_for(
                watch(iter([b"\xff"])).code(), GUARD_SECONDS
            )
            return code

    assert asyncio.run(ask()) is grpc.StatusCode.INVALID_ARGUMENT


def test_more_watches_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that opens a watch each second and ends none reaches a limit, with a remedy."""
    monkeypatch.setattr(plan_watch, "WATCHES_MAX", 0)
    service = PlacementService(SnapshotStandIn(placed_world().run(20)))

    async def requests() -> AsyncIterator[wire.WatchPlanRequest]:
        yield wire.WatchPlanRequest()

    with pytest.raises(ResourceExhausted, match="end some"):
        asyncio.run(service.WatchPlan(requests(), SilentContext()))


def test_domains_are_listed_with_who_is_free() -> None:
    """A scheduler sees which leaf has room, and which of its nodes are excluded."""
    service = PlacementService(SnapshotStandIn(placed_world().run(20)))
    request = wire.ListTopologyDomainsRequest(tier=wire.TIER_LEAF, candidates=bitmap(1, 2, 3, 4))
    reply = asyncio.run(service.ListTopologyDomains(request, None))
    domains = [
        (domain.name, list(domain.node_index), domain.free_nodes, domain.usable_nodes)
        for domain in reply.domains
    ]
    assert domains == [("leaf-0", [0, 1, 2, 3], 3, 2), ("leaf-1", [4, 5, 6, 7], 1, 1)]
    assert reply.excluded_bitmap == bytes([0b1000]) and reply.free_bitmap == bytes([0b11110])
    nowhere = wire.ListTopologyDomainsRequest(tier=wire.TIER_NVLINK_DOMAIN)
    assert len(asyncio.run(service.ListTopologyDomains(nowhere, None)).unknown_node_index) == 8
    for tier in (0, 9):
        wrong: Any = tier
        with pytest.raises(InvalidArgument, match="TIER_NVLINK_DOMAIN"):
            asyncio.run(
                service.ListTopologyDomains(wire.ListTopologyDomainsRequest(tier=wrong), None)
            )
