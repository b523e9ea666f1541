"""Client of ScoreService: loops ask the score process if there is one, other calls `listen`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, isinf
from typing import Any, NamedTuple, Self, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from ..wire import score_pb2
from ..wire.score_pb2_grpc import ScoreServiceStub
from .connection import (
    DEADLINE_SECONDS,
    REPLY_BYTES_MAX,
    ConnectionOptions,
    command_error,
    open_channel,
)

#: Pause before the score process is searched again after it failed or was missing.
REST_SECONDS = 10.0
#: Time limit for the node dictionary; after a timeout it is requested again later.
DICTIONARY_SECONDS = 2.0
PAGE_SIZE = 1000

T = TypeVar("T")


class ScorePort:
    """Calls the score process of an aggregator, or `listen` whenever the process does not answer.

    The first call goes to `listen`, whose node dictionary names the process's port. A firewall may
    close that port, or a forwarding may lead elsewhere: a failure there never fails the call.
    """

    def __init__(
        self,
        address: str,
        channel: grpc.Channel,
        connect: Callable[[str], grpc.Channel],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*address*, *channel*: of `listen`. *connect*: opens a channel to another address."""
        self._host, _, self._port = address.rpartition(":")
        self._connect, self._clock = connect, clock
        self._listen: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
        self._process: Any = None
        self._channel: grpc.Channel | None = None
        self._next_search = inf

    def close(self) -> None:
        """Close the channel to the score process."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._process = None

    def ask(self, question: Callable[[Any], T]) -> T:
        """Return *question*'s result for a ScoreService stub; raise only errors from `listen`."""
        if self._process is None and self._clock() >= self._next_search:
            self._search()
        if self._process is not None:
            try:
                return question(self._process)
            except grpc.RpcError:
                self.close()
                self._next_search = self._clock() + REST_SECONDS
        answer = question(self._listen)
        if isinf(self._next_search):
            self._next_search = self._clock()
        return answer

    def _search(self) -> None:
        """Open a channel to the score process if `listen` names it."""
        self._next_search = self._clock() + REST_SECONDS
        try:
            dictionary = self._listen.GetNodeDictionary(
                score_pb2.GetNodeDictionaryRequest(), timeout=DICTIONARY_SECONDS
            )
        except grpc.RpcError:
            return
        if dictionary.scores_port not in (0, int(self._port)):
            self._channel = self._connect(f"{self._host}:{dictionary.scores_port}")
            self._process = ScoreServiceStub(self._channel)  # type: ignore[no-untyped-call]


def score_port(
    connection_options: ConnectionOptions, channel: grpc.Channel, options: Sequence[tuple[str, Any]]
) -> ScorePort:
    """Return a port to the score process, with *channel* as its fallback."""

    def connect(address: str) -> grpc.Channel:
        return open_channel(dataclasses.replace(connection_options, aggregator=address), options)

    return ScorePort(connection_options.aggregator, channel, connect)


class ScoreClient:
    """Score calls, each with a deadline. Raises CommandError."""

    def __init__(
        self,
        target: str | ConnectionOptions,
        deadline_seconds: float = DEADLINE_SECONDS,
        *,
        in_loop: bool = False,
    ) -> None:
        """*target*: options, or a plain-text address for calls without a login.

        *in_loop*: the caller calls `hosts` in a loop, so use the score process if there is one.
        """
        self.connection_options = ConnectionOptions(target) if isinstance(target, str) else target
        self._deadline_seconds = deadline_seconds
        options = [("grpc.max_receive_message_length", REPLY_BYTES_MAX), ("grpc.enable_retries", 0)]
        #: Also used for calls of other services.
        self.channel = open_channel(self.connection_options, options)
        self._stub: Any = ScoreServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self._score_port: ScorePort | None = None
        if in_loop:
            self._score_port = score_port(self.connection_options, self.channel, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._score_port is not None:
            self._score_port.close()
        self.channel.close()

    def hosts(self, hours: float | None = None, *, full: bool = False) -> ScoreListing:
        """Return every host, worst first. *hours*: horizon; None: the aggregator's default."""
        view = score_pb2.FULL if full else score_pb2.BASIC

        def listed(stub: Any) -> ScoreListing:
            scores: list[score_pb2.NodeScore] = []
            token = ""
            while True:
                request = score_pb2.ListNodeScoresRequest(
                    page_size=PAGE_SIZE, page_token=token, view=view, horizon=_horizon(hours)
                )
                reply = stub.ListNodeScores(request, timeout=self._deadline_seconds)
                scores += reply.node_scores
                token = reply.next_page_token
                if not token:
                    break
            ended = None
            if not scores:
                dictionary = stub.GetNodeDictionary(
                    score_pb2.GetNodeDictionaryRequest(), timeout=self._deadline_seconds
                )
                ended = len(dictionary.names)
            return ScoreListing(
                scores, reply.version, reply.degraded_reason, reply.alarms, ended_hosts=ended
            )

        try:
            return self._score_port.ask(listed) if self._score_port else listed(self._stub)
        except grpc.RpcError as error:
            raise command_error(error, self.connection_options) from error

    def host(self, name: str, hours: float | None = None) -> score_pb2.NodeScore:
        """Return one host in full. Raises CommandError(NOT_FOUND)."""
        request = score_pb2.GetNodeScoreRequest(
            name=f"nodes/{name}", view=score_pb2.FULL, horizon=_horizon(hours)
        )
        score: score_pb2.NodeScore = self._call(self._stub.GetNodeScore, request)
        return score

    def expected_slowdowns(self, job: str) -> ExpectedSlowdowns:
        """Return how much longer a step of *job* takes on each host, and beside its neighbors there.

        Raises CommandError(NOT_FOUND).
        """
        workload = score_pb2.Workload(job=job)
        reply = self._call(self._stub.ScoreNodes, score_pb2.ScoreNodesRequest(workload=workload))
        names = self.names()
        by_host = zip(reply.node_index, reply.expected_slowdown, strict=True)
        return ExpectedSlowdowns(
            job,
            {names[index]: slowdown for index, slowdown in by_host},
            reply.workload_source,
            {names[neighbors.node_index]: neighbors for neighbors in reply.neighbors},
        )

    def names(self) -> list[str]:
        """Return the names of all hosts."""
        return list(self._dictionary().names)

    def scores_address(self) -> str:
        """Return the address for schedulers that poll; "" if it is this connection's address."""
        port = self._dictionary().scores_port
        host, _, own = self.connection_options.aggregator.rpartition(":")
        return f"{host}:{port}" if port not in (0, int(own)) else ""

    def _dictionary(self) -> score_pb2.NodeDictionary:
        reply: score_pb2.NodeDictionary = self._call(
            self._stub.GetNodeDictionary, score_pb2.GetNodeDictionaryRequest()
        )
        return reply

    def _call(self, method: Callable[..., T], request: object) -> T:
        try:
            return method(request, timeout=self._deadline_seconds)
        except grpc.RpcError as error:
            raise command_error(error, self.connection_options) from error


class ExpectedSlowdowns(NamedTuple):
    """Relative slowdowns of a step of *job* by host, the run on which they are based, and its neighbors by host."""

    job: str
    by_host: Mapping[str, float]
    source: str
    neighbors: Mapping[str, score_pb2.NodeNeighbors]


class ScoreListing:
    """All hosts of one snapshot."""

    def __init__(
        self,
        scores: Iterable[score_pb2.NodeScore],
        version: int,
        degraded_reason: str,
        alarms: Iterable[str] = (),
        *,
        ended_hosts: int | None = None,
    ) -> None:
        """*alarms*: messages about the aggregator itself.

        *ended_hosts*: number of simulated hosts that have ended; None if other hosts are listed.
        """
        self.ended_hosts = ended_hosts
        self.scores = list(scores)
        self.version = version
        self.degraded_reason = degraded_reason
        self.alarms = list(alarms)


def _horizon(hours: float | None) -> Duration | None:
    if hours is None:
        return None
    horizon = Duration()
    horizon.FromNanoseconds(round(hours * 3600e9))
    return horizon
