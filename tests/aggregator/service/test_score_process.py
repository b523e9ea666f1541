"""The process that answers schedulers: the same answers as the aggregator's, and it may be killed, hang, or lose its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.aggregator import server, workers
from gangline.aggregator.auth.access import AccessControl
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.metrics import CallCounters
from gangline.aggregator.scoring.evaluate import Judgement
from gangline.aggregator.server import StartError
from gangline.aggregator.service import score_process, shared_snapshot
from gangline.aggregator.service.score import ScoreService
from gangline.aggregator.service.score_process import ScoreProcess, ScoreProcessError
from gangline.contract.settings import SettingsError
from gangline.contract.wire import score_pb2
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub
from tests.aggregator.auth.secured import Secured, bearer
from tests.aggregator.query.asking import children
from tests.processes import GUARD_SECONDS, Process
from tests.processes import until as looked_until
from tests.worlds import World, gpu_of, throttle

LOCAL = ("127.0.0.1", 0)
NODES, NAMES = score_pb2.ScoreNodesRequest(), score_pb2.GetNodeDictionaryRequest()


@dataclass
class Holder:
    snapshot: Judgement | None = None


def handed_over(snapshot: Judgement) -> Judgement:
    names, rest = shared_snapshot.dictionary_file(snapshot), shared_snapshot.snapshot_file(snapshot)
    try:
        return shared_snapshot.snapshot_of(rest, shared_snapshot.NameDictionary(names))
    finally:
        os.close(names)
        os.close(rest)


@asynccontextmanager
async def running(
    folder: Path, snapshot: Judgement, **settings: Any
) -> AsyncIterator[ScoreProcess]:
    config = AggregatorConfig(data=folder, **settings)
    one = ScoreProcess(config, LOCAL, AccessControl(config), CallCounters())
    await one.start()
    one.publish(snapshot)
    try:
        yield one
    finally:
        await one.close()


def stub(one: ScoreProcess) -> Any:
    # A connection of its own each time: one that failed waits before it is tried again.
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{one.port}", options=options)
    return ScoreServiceStub(channel)  # type: ignore[no-untyped-call]


async def answer(one: ScoreProcess) -> Any:
    """Return all nodes' scores once there is somebody who answers."""
    async with asyncio.timeout(GUARD_SECONDS):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await stub(one).ScoreNodes(NODES, timeout=GUARD_SECONDS)
            await asyncio.sleep(0.02)


def unwell() -> World:
    """Return a fleet with a slow GPU, one off the bus, and a host that fell silent."""
    world = World(hosts=5, gpus=3)
    world.run(8)
    throttle(world.hosts[1], 2)
    world.event(world.hosts[2], 79, gpu_of(world.hosts[2], 0))
    world.hosts[3].silent = True
    return world


@pytest.mark.parametrize("made", [unwell, lambda: World(2, 0), lambda: World(0, 0)])
def test_what_was_handed_over_answers_as_the_snapshot_itself(made: Callable[[], World]) -> None:
    """A scheduler that asks one port and then the other must not see two fleets."""
    snapshot = made().run(20)
    ours, theirs = (ScoreService(Holder(one)) for one in (snapshot, handed_over(snapshot)))
    some = bytes([0b00110])
    asked: list[tuple[str, Any]] = [
        ("ScoreNodes", NODES),
        ("ScoreNodes", score_pb2.ScoreNodesRequest(gpus=True)),
        ("ListNodeScores", score_pb2.ListNodeScoresRequest(view=score_pb2.FULL)),
        ("GetNodeDictionary", NAMES),
        ("GetNodeDictionary", score_pb2.GetNodeDictionaryRequest(gpus=True)),
    ]
    if len(snapshot.names) == 5:
        asked += [
            ("ScoreNodes", score_pb2.ScoreNodesRequest(node_bitmap=some, score_floor=0.5)),
            ("GetNodeScore", score_pb2.GetNodeScoreRequest(name="nodes/h1", view=score_pb2.FULL)),
        ]
    for name, request in asked:
        one, other = (asyncio.run(getattr(each, name)(request, None)) for each in (ours, theirs))
        assert str(one) == str(other)
        if name == "ListNodeScores" and len(snapshot.names) == 5:
            assert any(host.contributions for host in one.node_scores)


def test_what_only_judging_needs_is_not_handed_over() -> None:
    """A new driver on the whole fleet, which lacked what was declared: 10,000 symptoms were read, in the loop that answers
    within 5 ms, with each judgement."""
    snapshot = unwell().run(20)
    rule, (one, *_) = next(item for item in snapshot.rule_symptoms.items() if item[1])
    many = replace(
        snapshot, rule_symptoms={rule: [replace(one, host=host) for host in range(1000)]}
    )
    assert not handed_over(snapshot).rule_symptoms
    assert file_bytes(many) == file_bytes(snapshot)


def file_bytes(snapshot: Judgement) -> int:
    descriptor = shared_snapshot.snapshot_file(snapshot)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def test_a_snapshot_that_was_handed_over_cannot_change() -> None:
    """The aggregator goes on judging: an answer must not be half of one moment and half of the next."""
    snapshot = unwell().run(20)
    descriptor = shared_snapshot.snapshot_file(snapshot)
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"x", 100)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 10)
    os.close(descriptor)
    columns = handed_over(snapshot).columns
    with pytest.raises(ValueError, match="read-only"):
        columns.score[0] = 0.0


@pytest.mark.slow
def test_it_is_killed_or_hangs_and_another_answers_and_watches_go_on(
    tmp_path: Path, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory kills it: schedulers see a lost connection, then the same port, the same epoch, no lost delta."""
    monkeypatch.setattr(score_process, "REST_SECONDS_MAX", 0.01)
    world = unwell()

    async def scenario() -> None:
        async with running(tmp_path, world.run(10)) as one:
            first = await answer(one)
            assert len(first.node_index) == 5
            watch = stub(one).WatchNodeScores(
                score_pb2.WatchNodeScoresRequest(), timeout=GUARD_SECONDS
            )
            told = await watch.read()
            assert told.snapshot
            killed, port = one.pid, one.port
            os.kill(killed, signal.SIGKILL)
            with pytest.raises(grpc.aio.AioRpcError):
                while await watch.read() is not grpc.aio.EOF:
                    pass
                await watch
            world.event(world.hosts[4], 79, gpu_of(world.hosts[4], 0))
            one.publish(world.run(2))
            again = await answer(one)
            assert (one.port, one.started_count) == (port, 2) and one.pid != killed
            assert again.dictionary_version == first.dictionary_version
            assert again.score_version > first.score_version
            request = score_pb2.WatchNodeScoresRequest(bookmark=told.bookmark)
            resumed = stub(one).WatchNodeScores(request, timeout=GUARD_SECONDS)
            missed = await resumed.read()
            assert missed.score_version == again.score_version
            assert missed.state[list(missed.node_index).index(4)] == score_pb2.UNHEALTHY
            one.publish(world.run(2))
            await until(lambda: one.version > again.score_version)
            assert one._calls.started["ScoreService/WatchNodeScores"] == 1  # of the second's life
            # It stands still (a sick kernel, a debugger): its last snapshot would be of an hour ago.
            monkeypatch.setattr(score_process, "ANSWER_SECONDS_MAX", 0.2)
            monkeypatch.setattr(workers, "END_SECONDS", 0.1)
            os.kill(one.pid, signal.SIGSTOP)
            one.publish(world.run(1))
            await until(lambda: one.started_count == 3)
            monkeypatch.setattr(score_process, "ANSWER_SECONDS_MAX", GUARD_SECONDS)
            await until(lambda: one.version)
            newest = world.run(1)
            one.publish(newest)
            await until(lambda: one.version == newest.version)
            assert (await answer(one)).score_version == newest.version

    asyncio.run(scenario())


def test_logins_are_those_of_the_aggregator(tmp_path: Path, until: Any) -> None:
    """A second port that let everybody in would be the first thing that a stranger finds."""
    (tmp_path / "data").mkdir()
    secured, world = Secured(tmp_path / "ca", tmp_path / "data"), unwell()
    scheduler, agent = secured.token("scheduler", "slurm"), secured.token("agent", "host-1")

    async def code(channel: Any, token: str) -> grpc.StatusCode:
        asked = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
        call = asked.ScoreNodes(NODES, metadata=bearer(token), timeout=GUARD_SECONDS)
        return await call.code()  # type: ignore[no-any-return]

    async def scenario() -> None:
        settings = secured.settings(client_certificates=False)
        async with running(secured.data, world.run(1), **settings) as one:
            await until(lambda: one.version)
            channel = secured.channel(one.port)
            assert await code(channel, scheduler) == grpc.StatusCode.OK
            assert await code(channel, agent) == grpc.StatusCode.PERMISSION_DENIED
            assert await code(channel, "gl_made-up") == grpc.StatusCode.UNAUTHENTICATED
            one.publish(world.run(1))
            await until(lambda: one._access_control.refused_count == 2)
            assert one._calls.started["ScoreService/ScoreNodes"] == 3
            secured.revoke("slurm")
            async with asyncio.timeout(GUARD_SECONDS):
                while await code(channel, scheduler) != grpc.StatusCode.UNAUTHENTICATED:
                    await asyncio.sleep(0.05)
            await channel.close()

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_said_at_the_start(tmp_path: Path, lab: Any) -> None:
    """Two aggregators with one config: the second says which setting, not a trace; and no process is left behind."""

    async def scenario(port: int) -> None:
        with pytest.raises(StartError, match="--set listen_scores="):
            async with lab.aggregator(listen_scores=f"127.0.0.1:{port}"):
                pass
        config = AggregatorConfig(data=tmp_path)
        late = ScoreProcess(config, ("127.0.0.1", port), AccessControl(config), CallCounters())
        with pytest.raises(ScoreProcessError, match="cannot serve"):
            await late.start()
        assert late.pid == 0

    with socket.create_server(("127.0.0.1", 0)) as other:
        asyncio.run(scenario(other.getsockname()[1]))


@pytest.mark.parametrize(
    ("listen", "scores", "expected"),
    [
        ("127.0.0.1:7600", "auto", ("127.0.0.1", 7601)),
        ("127.0.0.1:0", "auto", ("127.0.0.1", 0)),
        ("127.0.0.1:7600", "127.0.0.2:7700", ("127.0.0.2", 7700)),
        ("127.0.0.1:7600", "off", None),
        ("127.0.0.1:7600", "", None),
        ("127.0.0.1:65535", "auto", None),
    ],
)
def test_where_the_score_process_listens(
    listen: str, scores: str, expected: tuple[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "check_endpoint_free", lambda endpoint: None)
    found = server.scores_endpoint(AggregatorConfig(listen=listen, listen_scores=scores))
    assert (found[:2] if found else None) == expected


def test_without_a_port_of_its_own_the_aggregator_starts_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An upgrade must start where port 7601 was given to something else: it says so, and what to set."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        before = f"127.0.0.1:{other.getsockname()[1] - 1}"
        assert server.scores_endpoint(AggregatorConfig(listen=before)) is None
    assert "answered on `listen` alone" in caplog.text and "listen_scores" in caplog.text
    with pytest.raises(
        SettingsError, match=r"listen_scores = '7601': expected .*, or auto, or off"
    ):
        server.scores_endpoint(AggregatorConfig(listen_scores="7601"))


@pytest.mark.slow
def test_a_start_that_fails_leaves_nothing(
    tmp_path: Path, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ports answered on, from a store that was closed, until the process was gone; agents took it for alive."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

    async def failed(self: ScoreProcess) -> None:
        raise ScoreProcessError("no memory")

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ScoreProcess, "start", failed)
            with pytest.raises(StartError, match=r"listen_scores = .*no memory"):
                async with lab.aggregator(listen=f"127.0.0.1:{port}", listen_scores="127.0.0.1:0"):
                    pass
        async with lab.aggregator(listen=f"127.0.0.1:{port}") as again:
            assert again.port == port

    asyncio.run(scenario())


@pytest.mark.slow
def test_it_ends_with_an_aggregator_that_is_killed(tmp_path: Path) -> None:
    """Left behind it would hold the port, and answer from a snapshot that nobody makes anew."""
    log = tmp_path / "log"
    given = ["aggregator", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    with Process([*given, "--set", "listen_scores=127.0.0.1:0"], log) as aggregator:
        looked_until(lambda: "listening on" in log.read_text(), "the aggregator listens")
        (child,) = (
            pid
            for pid in children(aggregator.pid)
            if Path(f"/proc/{pid}/comm").read_text() == "gangline-score\n"
        )
        maps = Path(f"/proc/{child}/maps").read_text()
        assert "grpc" in maps and "duckdb" not in maps and "arrow" not in maps, "memory for nothing"
        ended = os.pidfd_open(child)
        aggregator.kill()
        assert select.select([ended], [], [], GUARD_SECONDS)[0]
        os.close(ended)
