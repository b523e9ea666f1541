"""ScoreService for commands that ask in a loop: the score process where the aggregator names one, else `listen` itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf, isinf
from typing import Any, TypeVar

import grpc

from ...contract.wire import score_pb2
from ...contract.wire.score_pb2_grpc import ScoreServiceStub

#: For so long nobody asks again where the score process is, after it did not answer or there was none.
REST_SECONDS = 10.0
#: A dictionary that takes longer is asked for again later.
DICTIONARY_SECONDS = 2.0

T = TypeVar("T")


class ScorePort:
    """Asks the score process of an aggregator, and `listen` whenever the process does not answer.

    The first question goes to `listen`; where the process is, the node dictionary says. A firewall may close that port, and
    a port that is forwarded may lead elsewhere: no failure there is a failure of the question.
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
        """Return what *question* returns of a stub of ScoreService. Raises what it raises of that of `listen`."""
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
        """Open a channel to the score process, where `listen` names one."""
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
