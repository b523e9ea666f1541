"""The score process answers as the aggregator does, and may be killed, hang, or lose its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
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
from gangline.aggregator.service import score_process, score_process_main, shared_snapshot
from gangline.aggregator.service.score import ScoreService
from gangline.aggregator.service.score_process import ScoreProcess, ScoreProcessError
from gangline.aggregator.service.score_process_main import ScoreProcessSettings
from gangline.contract.settings import SettingsError
from gangline.contract.wire import score_pb2
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub
from gangline.contract.workers import packet_sockets
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
    server = ScoreProcess(config, LOCAL, AccessControl(config), CallCounters())
    await server.start()
    server.publish(snapshot)
    try:
        yield server
    finally:
        await server.close()


def stub(one: ScoreProcess) -> Any:
    # A new connection each time: a failed connection waits before a retry.
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{one.port}", options=options)
    return ScoreServiceStub(channel)  # type: ignore[no-untyped-call]


async def answer(one: ScoreProcess) -> Any:
    """Return all nodes' scores once the process answers."""
    async with asyncio.timeout(GUARD_SECONDS):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                return await stub(one).ScoreNodes(NODES, timeout=GUARD_SECONDS)
            await asyncio.sleep(0.02)


def unwell() -> World:
    """Return a fleet with a slow GPU, a GPU off the bus, and a silent host."""
    world = World(hosts=5, gpus=3, seconds=8)
    throttle(world.hosts[1], 2)
    world.event(world.hosts[2], 79, gpu_of(world.hosts[2], 0))
    world.hosts[3].silent = True
    return world


@pytest.mark.parametrize("made", [unwell, lambda: World(2, 0), lambda: World(0, 0)])
def test_what_was_handed_over_answers_as_the_snapshot_itself(made: Callable[[], World]) -> None:
    """A scheduler that uses both ports must not see two fleets."""
    snapshot = made().run(20)
    ours, theirs = (
        ScoreService(Holder(own_reply)) for own_reply in (snapshot, handed_over(snapshot))
    )
    bitmap = bytes([0b00110])
    requests: list[tuple[str, Any]] = [
        ("ScoreNodes", NODES),
        ("ScoreNodes", score_pb2.ScoreNodesRequest(gpus=True)),
        ("ListNodeScores", score_pb2.ListNodeScoresRequest(view=score_pb2.FULL)),
        ("GetNodeDictionary", NAMES),
        ("GetNodeDictionary", score_pb2.GetNodeDictionaryRequest(gpus=True)),
    ]
    if len(snapshot.names) == 5:
        requests += [
            ("ScoreNodes", score_pb2.ScoreNodesRequest(node_bitmap=bitmap, score_floor=0.5)),
            ("GetNodeScore", score_pb2.GetNodeScoreRequest(name="nodes/h1", view=score_pb2.FULL)),
        ]
    for name, request in requests:
        own_reply, other_reply = (
            asyncio.run(getattr(service, name)(request, None)) for service in (ours, theirs)
        )
        assert str(own_reply) == str(other_reply)
        if name == "ListNodeScores" and len(snapshot.names) == 5:
            assert any(host.contributions for host in own_reply.node_scores)


def test_what_only_judging_needs_is_not_handed_over() -> None:
    """Symptoms that only judging needs are not handed over.

    After a driver update of the whole fleet 10,000 symptoms were parsed with each judgement, in the
    loop that answers within 5 ms.
    """
    snapshot = unwell().run(20)
    rule, (symptom, *_) = next(item for item in snapshot.rule_symptoms.items() if item[1])
    many = replace(
        snapshot, rule_symptoms={rule: [replace(symptom, host=host) for host in range(1000)]}
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
    """The aggregator continues to judge: a response must not mix two moments."""
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
async def test_it_is_killed_or_hangs_and_another_answers_and_watches_go_on(
    tmp_path: Path, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an out-of-memory kill schedulers reconnect: same port and epoch, and no lost delta."""
    monkeypatch.setattr(score_process, "REST_SECONDS_MAX", 0.01)
    world = unwell()
    async with running(tmp_path, world.run(10)) as score_server:
        first = await answer(score_server)
        assert len(first.node_index) == 5
        watch = stub(score_server).WatchNodeScores(
            score_pb2.WatchNodeScoresRequest(), timeout=GUARD_SECONDS
        )
        first_update = await watch.read()
        assert first_update.snapshot
        killed, port = score_server.pid, score_server.port
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError):
            while await watch.read() is not grpc.aio.EOF:
                pass
            await watch
        world.event(world.hosts[4], 79, gpu_of(world.hosts[4], 0))
        score_server.publish(world.run(2))
        again = await answer(score_server)
        assert (score_server.port, score_server.started_count) == (port, 2)
        assert score_server.pid != killed
        assert again.dictionary_version == first.dictionary_version
        assert again.score_version > first.score_version
        request = score_pb2.WatchNodeScoresRequest(bookmark=first_update.bookmark)
        resumed = stub(score_server).WatchNodeScores(request, timeout=GUARD_SECONDS)
        missed = await resumed.read()
        assert missed.score_version == again.score_version
        assert missed.state[list(missed.node_index).index(4)] == score_pb2.UNHEALTHY
        score_server.publish(world.run(2))
        await until(lambda: score_server.version > again.score_version)
        assert score_server._calls.started["ScoreService/WatchNodeScores"] == 1  # since the restart
        # A stopped process (a kernel bug, a debugger) would serve an old snapshot.
        monkeypatch.setattr(score_process, "ANSWER_SECONDS_MAX", 0.2)
        monkeypatch.setattr(workers, "END_SECONDS", 0.1)
        os.kill(score_server.pid, signal.SIGSTOP)
        score_server.publish(world.run(1))
        await until(lambda: score_server.started_count == 3)
        monkeypatch.setattr(score_process, "ANSWER_SECONDS_MAX", GUARD_SECONDS)
        await until(lambda: score_server.version)
        newest = world.run(1)
        score_server.publish(newest)
        await until(lambda: score_server.version == newest.version)
        assert (await answer(score_server)).score_version == newest.version


def test_logins_are_those_of_the_aggregator(tmp_path: Path, until: Any) -> None:
    """A second port without logins would be an open door."""
    (tmp_path / "data").mkdir()
    secured, world = Secured(tmp_path / "ca", tmp_path / "data"), unwell()
    scheduler, agent = secured.token("scheduler", "slurm"), secured.token("agent", "host-1")

    async def code(channel: Any, token: str) -> grpc.StatusCode:
        score_stub = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
        call = score_stub.ScoreNodes(NODES, metadata=bearer(token), timeout=GUARD_SECONDS)
        return await call.code()  # type: ignore[no-any-return]

    async def scenario() -> None:
        settings = secured.settings(client_certificates=False)
        async with running(secured.data, world.run(1), **settings) as score_server:
            await until(lambda: score_server.version)
            channel = secured.channel(score_server.port)
            assert await code(channel, scheduler) == grpc.StatusCode.OK
            assert await code(channel, agent) == grpc.StatusCode.PERMISSION_DENIED
            assert await code(channel, "gl_made-up") == grpc.StatusCode.UNAUTHENTICATED
            score_server.publish(world.run(1))
            await until(lambda: score_server._access_control.refused_count == 2)
            assert score_server._calls.started["ScoreService/ScoreNodes"] == 3
            secured.revoke("slurm")
            async with asyncio.timeout(GUARD_SECONDS):
                while await code(channel, scheduler) != grpc.StatusCode.UNAUTHENTICATED:
                    await asyncio.sleep(0.05)
            await channel.close()

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_said_at_the_start(tmp_path: Path, lab: Any) -> None:
    """The second aggregator of a config names the setting, and leaves no process behind."""

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
    endpoint = server.scores_endpoint(AggregatorConfig(listen=listen, listen_scores=scores))
    assert (endpoint[:2] if endpoint else None) == expected


def test_without_a_port_of_its_own_the_aggregator_starts_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An upgrade starts even if port 7601 is taken, and logs which setting to change."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        before = f"127.0.0.1:{other.getsockname()[1] - 1}"
        assert server.scores_endpoint(AggregatorConfig(listen=before)) is None
    assert "answered on `listen` alone" in caplog.text and "listen_scores" in caplog.text
    with pytest.raises(
        SettingsError, match=r"listen_scores = '7601': expected .*, or auto, or off"
    ):
        server.scores_endpoint(AggregatorConfig(listen_scores="7601"))


@pytest.mark.slow
async def test_a_start_that_fails_leaves_nothing(
    tmp_path: Path, lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed start its ports still answered, from a closed store, and agents stayed."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

    async def failed(self: ScoreProcess) -> None:
        raise ScoreProcessError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(ScoreProcess, "start", failed)
        with pytest.raises(StartError, match=r"listen_scores = .*no memory"):
            async with lab.aggregator(listen=f"127.0.0.1:{port}", listen_scores="127.0.0.1:0"):
                pass
    async with lab.aggregator(listen=f"127.0.0.1:{port}") as again:
        assert again.port == port


@pytest.mark.slow
def test_an_aggregator_that_ends_during_the_start_leaves_no_traceback(tmp_path: Path) -> None:
    """An aggregator on a full disk ended early; its log showed a broken pipe of this process."""
    ours, theirs = packet_sockets()
    config = AggregatorConfig(data=tmp_path)
    ours.send(pickle.dumps(ScoreProcessSettings(config, *LOCAL, os.getpid())))
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", score_process_main.__name__],
            stdin=theirs.fileno(),
            stderr=subprocess.PIPE,
            text=True,
        )
    ours.close()
    _, stderr = child.communicate(timeout=GUARD_SECONDS)
    assert (child.returncode, stderr) == (0, "")


def test_it_ends_with_an_aggregator_that_is_killed(tmp_path: Path) -> None:
    """A leftover process would hold the port, and answer from an old snapshot."""
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
