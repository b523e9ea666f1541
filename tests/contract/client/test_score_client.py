"""Commands that ask in a loop: by the score process where there is one, and by `listen` whenever it does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from gangline.contract.client.score_client import REST_SECONDS, ScoreClient, ScorePort
from gangline.contract.wire import score_pb2
from gangline.contract.wire.score_pb2_grpc import (
    ScoreServiceServicer,
    add_ScoreServiceServicer_to_server,
)
from tests.processes import free_port


class Scores(ScoreServiceServicer):
    """Answers with its name; its dictionary names a port."""

    def __init__(self, name: str, pool: ThreadPoolExecutor) -> None:
        self.name, self.scores_port, self.fails, self.questions = name, 0, False, 0
        self.server: Any = grpc.server(pool)
        add_ScoreServiceServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def ListNodeScores(self, request: Any, context: Any) -> score_pb2.ListNodeScoresResponse:
        """Return one node, with our name; half of all pages where it fails."""
        self.questions += 1
        if self.fails and request.page_token:
            context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
        reply = score_pb2.ListNodeScoresResponse(
            node_scores=[score_pb2.NodeScore(node=f"nodes/{self.name}")]
        )
        if self.fails:
            reply.next_page_token = "more"
        return reply

    def GetNodeDictionary(self, request: Any, context: Any) -> score_pb2.NodeDictionary:
        return score_pb2.NodeDictionary(version=1, scores_port=self.scores_port)


@pytest.fixture
def servers() -> Iterator[tuple[Scores, Scores]]:
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(4))
        services = Scores("listen", pool), Scores("process", pool)
        for service in services:
            stack.callback(lambda server: server.stop(None).wait(), service.server)
        services[0].scores_port = services[1].port
        yield services


def answered(client: ScoreClient) -> str:
    (score,) = client.hosts().scores
    return score.node


def test_who_asks_in_a_loop_asks_the_score_process(servers: tuple[Scores, Scores]) -> None:
    """`gangline hosts --watch` of 10,000 hosts waited for judging each second, although the score process had the answer."""
    listen, process = servers
    with ScoreClient(f"127.0.0.1:{listen.port}", in_loop=True) as client:
        assert [answered(client) for _ in range(3)] == ["nodes/listen"] + 2 * ["nodes/process"]
        # It fails after one page: none of that listing is taken, and `listen` answers.
        process.fails = True
        assert answered(client) == "nodes/listen"
        assert process.questions == 4
    with ScoreClient(f"127.0.0.1:{listen.port}") as once:
        assert [answered(once), answered(once)] == 2 * ["nodes/listen"]


def test_a_port_that_nobody_reaches_is_tried_again_later(servers: tuple[Scores, Scores]) -> None:
    """A firewall lets `listen` through alone: each refresh would have waited for the other port."""
    listen, process = servers
    now, tried = [0.0], list[str]()

    def connect(address: str) -> grpc.Channel:
        tried.append(address)
        return grpc.insecure_channel(address)

    with grpc.insecure_channel(f"127.0.0.1:{listen.port}") as channel:
        port = ScorePort(f"127.0.0.1:{listen.port}", channel, connect, lambda: now[0])

        def asked() -> str:
            request = score_pb2.ListNodeScoresRequest()
            reply = port.ask(lambda stub: stub.ListNodeScores(request, timeout=10.0))
            return str(reply.node_scores[0].node)

        closed = listen.scores_port = free_port()
        assert [asked() for _ in range(4)] == 4 * ["nodes/listen"]
        assert tried == [f"127.0.0.1:{closed}"]
        now[0] += REST_SECONDS
        listen.scores_port = process.port
        assert asked() == "nodes/process"
        listen.scores_port = 0  # no longer advertised: the channel stays while it answers
        assert asked() == "nodes/process"
        port.close()


def test_without_a_score_process_listen_is_asked_alone(servers: tuple[Scores, Scores]) -> None:
    """Also if the server names its own port: the client is then connected to the score process."""
    listen, _ = servers
    for named in (0, listen.port):
        listen.scores_port = named
        with ScoreClient(f"127.0.0.1:{listen.port}", in_loop=True) as client:
            assert [answered(client) for _ in range(3)] == 3 * ["nodes/listen"]
