"""Watching scores: a snapshot, what changes after it, bookmarks; and the columns of GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.model import Evidence, HealthState, HostScore, Reason
from gangline.aggregator.rule_catalogue.agent import HOST_RETURNED as RETURNED
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.scoring.results import pack
from gangline.aggregator.service import score
from gangline.aggregator.service.score import ScoreChanges, ScoreService
from gangline.aggregator.service.status import ErrorInterceptor
from gangline.contract.wire import score_pb2
from gangline.contract.wire.score_pb2_grpc import (
    ScoreServiceStub,
    add_ScoreServiceServicer_to_server,
)
from tests.worlds import World, gpu_of, throttle

GUARD_SECONDS = 20.0


@dataclass
class Holder:
    snapshot: Judgement | None = None


@asynccontextmanager
async def serving(holder: Holder) -> AsyncIterator[Any]:
    server = grpc.aio.server(interceptors=[ErrorInterceptor()])
    add_ScoreServiceServicer_to_server(ScoreService(holder), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
    await server.stop(None)


def test_a_hundred_watchers_hear_of_a_fault_and_go_on_from_their_bookmark() -> None:
    """Executors drain by updates: none may miss a fault, or need a full list after a reconnect."""
    world, holder = World(hosts=4, gpus=2), Holder()
    holder.snapshot = world.run(10)

    async def scenario() -> None:
        async with serving(holder) as stub:
            request = score_pb2.WatchNodeScoresRequest()
            calls = [stub.WatchNodeScores(request, timeout=GUARD_SECONDS) for _ in range(100)]
            first = [await call.read() for call in calls]
            assert all(update.snapshot and len(update.node_index) == 4 for update in first)
            world.event(world.hosts[2], 79, gpu_of(world.hosts[2], 0))
            holder.snapshot = world.run(1)
            news = [await call.read() for call in calls]
            assert all(not update.snapshot and list(update.node_index) == [2] for update in news)
            assert all(update.state[0] == score_pb2.UNHEALTHY for update in news)
            for call in calls:
                call.cancel()
            again = stub.WatchNodeScores(
                score_pb2.WatchNodeScoresRequest(bookmark=first[0].bookmark), timeout=GUARD_SECONDS
            )
            missed = await again.read()
            assert not missed.snapshot and list(missed.node_index) == [2]
            again.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("bookmark", ["x", "1-", "-1", "7-x", "9" * 65 + "-1", "7-1-2"])
def test_a_bookmark_that_is_none_is_refused(bookmark: str) -> None:
    """A client's mistake is an error, instead of a whole fleet each second."""
    world, holder = World(hosts=1, gpus=1), Holder()
    holder.snapshot = world.run(1)

    async def scenario() -> None:
        async with serving(holder) as stub:
            call = stub.WatchNodeScores(
                score_pb2.WatchNodeScoresRequest(bookmark=bookmark), timeout=GUARD_SECONDS
            )
            with pytest.raises(grpc.aio.AioRpcError) as info:
                await call.read()
            assert info.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "bookmark" in str(info.value.details())

    asyncio.run(scenario())


def judged(version: int, hazards: list[float], epoch: int = 7) -> Judgement:
    hosts = tuple(
        HostScore(
            f"h{number}", number, False, float(np.exp(-8 * hazard)), 0.0, 1.0,
            HealthState.HEALTHY if hazard < 0.1 else HealthState.SUSPECT, hazard, 1.0, Reason.NONE, "", "", 1,
        )
        for number, hazard in enumerate(hazards)
    )  # fmt: skip
    return Judgement(
        version, version * 10**9, 28800.0, hosts, dictionary_version=epoch, columns=pack(hosts)
    )


fleets = st.lists(
    st.lists(st.sampled_from([0.001, 0.00101, 0.01, 0.5]), min_size=1, max_size=5),
    min_size=1, max_size=30,
)  # fmt: skip


@settings(deadline=None)
@given(fleets, st.integers(0, 40))
def test_who_goes_on_from_any_bookmark_knows_what_all_know(
    rounds: list[list[float]], behind: int
) -> None:
    """An update since any bookmark gives the state that the others have."""

    async def scenario() -> None:
        changes = ScoreChanges()
        known: dict[int, tuple[Any, ...]] = {}
        bookmark, fleet = -1, 0
        for version, hazards in enumerate(rounds, 1):
            fleet = max(fleet, len(hazards))
            hazards = [*hazards, *[0.001] * (fleet - len(hazards))]
            changes.take(judged(version, hazards))
            if version % (behind + 1) == 0 or version == len(rounds):
                bookmark, sent = changes.since(bookmark) or changes.whole()
                if sent:
                    update = score_pb2.NodeScoresUpdate.FromString(sent)
                    known = {} if update.snapshot else known
                    known |= rows_of(update)
                everyone = rows_of(score_pb2.NodeScoresUpdate.FromString(changes.whole()[1]))
                assert known == everyone

    asyncio.run(scenario())


def rows_of(update: score_pb2.NodeScoresUpdate) -> dict[int, tuple[Any, ...]]:
    return dict(
        zip(
            update.node_index,
            zip(update.score, update.hazard_per_hour, update.state, update.reason, strict=True),
            strict=True,
        )
    )


def test_a_bucket_that_changes_alone_is_told() -> None:
    """Probation without weight ended beneath a WATCH; watchers ranked the host last for hours."""

    async def scenario() -> None:
        changes = ScoreChanges()
        well = judged(1, [0.001, 0.001])
        watched = replace(well.hosts[1], state=HealthState.WATCH)
        just_back = Evidence(
            RETURNED.name, "host", 1.0, "days", "", 0.0, 1.0, 0.0, RETURNED.reason, "", 1, ""
        )
        for version, evidence in ((1, (just_back,)), (2, ())):
            hosts = well.hosts[0], replace(watched, evidence=evidence)
            changes.take(replace(well, version=version, hosts=hosts, columns=pack(hosts)))
        changes_found = changes.since(1)
        assert changes_found is not None
        update = score_pb2.NodeScoresUpdate.FromString(changes_found[1])
        assert (list(update.node_index), update.bucket) == ([1], b"\1")

    asyncio.run(scenario())


def test_a_quiet_fleet_sends_bookmarks_and_an_epoch_begins_anew() -> None:
    """Silence looks like a dead connection; indexes of another process mean other hosts."""

    async def scenario() -> None:
        changes, bookmarks, bookmark = ScoreChanges(), list[int](), 1
        for version in range(1, 32):
            changes.take(judged(version, [0.001, 0.001]))
            bookmark, sent = changes.since(bookmark) or changes.whole()
            if sent:
                bookmarks.append(bookmark)
                assert not score_pb2.NodeScoresUpdate.FromString(sent).node_index
        assert bookmarks == [11, 21, 31]
        changes.take(judged(1, [0.5], epoch=8))
        assert changes.since(1) == (1, b"") and changes.since(31) is None
        assert score_pb2.NodeScoresUpdate.FromString(changes.whole()[1]).dictionary_version == 8

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_storm_costs_no_memory_and_slow_watchers_no_time() -> None:
    """Updates are shared between watchers, and their memory is bounded.

    A fleet that flapped for an hour before 1,000 watchers, each a little further behind, took 100
    MB of updates, each built for one watcher.
    """

    async def scenario() -> None:
        changes, nodes, versions = ScoreChanges(), 1000, 400
        for version in range(1, versions + 1):
            changes.take(judged(version, [(0.001, 0.5)[version % 2]] * nodes))
        two = [changes.since(versions - 300) for _ in range(2)]
        assert two[0] and two[1] and two[0][1] is two[1][1], "made once for both"
        assert len(score_pb2.NodeScoresUpdate.FromString(two[0][1]).node_index) == nodes
        for version in range(1, versions):
            assert changes.since(version)
        kept = [changes._changed_in.nbytes, *map(len, changes._updates.values())]
        assert len(kept) == 1 + score.UPDATES_MAX
        assert sum(kept) < 20 * len(changes.whole()[1])

    asyncio.run(scenario())


def test_more_watchers_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that opens watches and forgets them must not block other clients."""
    monkeypatch.setattr(score, "WATCHERS_MAX", 2)
    world, holder = World(hosts=1, gpus=1), Holder()
    holder.snapshot = world.run(1)

    async def scenario() -> None:
        async with serving(holder) as stub:
            request = score_pb2.WatchNodeScoresRequest()
            held = [stub.WatchNodeScores(request, timeout=GUARD_SECONDS) for _ in range(2)]
            for call in held:
                await call.read()
            with pytest.raises(grpc.aio.AioRpcError) as info:
                await stub.WatchNodeScores(request, timeout=GUARD_SECONDS).read()
            assert info.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            for call in held:
                call.cancel()

    asyncio.run(scenario())


def test_columns_and_names_of_gpus_on_request() -> None:
    """A scheduler that places single GPUs must know which of the eight is slow."""
    world, holder = World(hosts=3, gpus=4), Holder()
    world.run(8)
    throttle(world.hosts[1], 2)
    holder.snapshot = world.run(20)

    async def scenario() -> None:
        async with serving(holder) as stub:
            plain = await stub.ScoreNodes(score_pb2.ScoreNodesRequest())
            assert not plain.gpu_index
            reply = await stub.ScoreNodes(score_pb2.ScoreNodesRequest(gpus=True))
            names = (
                await stub.GetNodeDictionary(score_pb2.GetNodeDictionaryRequest(gpus=True))
            ).gpus
            assert len(reply.gpu_index) == len(names) == 12
            slow = [
                position
                for position, state in enumerate(reply.gpu_state)
                if state == score_pb2.DEGRADED
            ]
            assert [names[reply.gpu_index[position]] for position in slow] == [
                gpu_of(world.hosts[1], 2)
            ]
            assert reply.gpu_relative_speed_upper[slow[0]] < 0.8
            selected = await stub.ScoreNodes(
                score_pb2.ScoreNodesRequest(gpus=True, node_bitmap=bytes([0b10]))
            )
            assert set(selected.gpu_node_index) == {1} and len(selected.gpu_state) == 4
            full = await stub.GetNodeScore(
                score_pb2.GetNodeScoreRequest(name="nodes/h1", view=score_pb2.FULL)
            )
            assert len(full.gpus) == 4 and full.gpus[2].state == score_pb2.DEGRADED
            assert full.hazard_lower < full.hazard_per_hour < full.hazard_upper
            assert full.hazard_model == "prior"

    asyncio.run(scenario())
