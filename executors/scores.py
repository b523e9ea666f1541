"""Scores of nodes from the aggregator, for executors that publish them in their scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from ..contract.wire import score_pb2
from ..contract.wire.score_pb2_grpc import ScoreServiceStub
from .client import CALL_SECONDS, LATER, ClientError
from .mirror_format import BUCKETS, NODES_MAX

#: Names by protobuf number. Number 0 (unspecified) is left out of _STATES.
_STATES = {number: name for name, number in score_pb2.HealthState.items() if number}
_REASONS = {n: name.removeprefix("REASON_") for name, n in score_pb2.ReasonCode.items() if n}
#: States of a host without a current report.
UNKNOWN_STATES = frozenset({"STALE", "UNKNOWN"})


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The health of a node. `bucket`: 0 (best) to 3; `is_allowed`: new work may be placed on the node."""

    bucket: int
    is_allowed: bool
    state: str
    reason: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the node's agent reports."""
        return self.state not in UNKNOWN_STATES


class ScoreReader:
    """Reads scores over *channel*. For a single thread."""

    def __init__(self, channel: grpc.Channel, node_of_host: Callable[[str], str]) -> None:
        """*node_of_host*: returns the scheduler's name of a host, "" if the scheduler does not know the host."""
        self._stub: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
        self._node_of_host = node_of_host
        self._names_version, self._names = 0, list[str]()

    def read(self) -> dict[str, NodeHealth]:
        """Return the health of each node by name; empty while the aggregator's data is degraded. Raises ClientError."""
        try:
            reply = self._stub.ScoreNodes(score_pb2.ScoreNodesRequest(), timeout=CALL_SECONDS)
            self._follow_names(reply)
        except grpc.RpcError as error:
            call: Any = error
            raise ClientError(
                f"scores: {call.code().name}: {call.details()}", call.code() in LATER
            ) from error
        return {} if reply.degraded else health_of(reply, self._names, self._node_of_host)

    def _follow_names(self, reply: score_pb2.ScoreNodesResponse) -> None:
        highest = max(reply.node_index, default=-1)
        if reply.dictionary_version == self._names_version and highest < len(self._names):
            return
        dictionary = self._stub.GetNodeDictionary(
            score_pb2.GetNodeDictionaryRequest(), timeout=CALL_SECONDS
        )
        if dictionary.version != reply.dictionary_version or highest >= len(dictionary.names):
            raise ClientError("scores: the aggregator restarted between two calls", True)
        self._names_version, self._names = dictionary.version, list(dictionary.names)


def health_of(
    reply: score_pb2.ScoreNodesResponse, names: list[str], node_of_host: Callable[[str], str]
) -> dict[str, NodeHealth]:
    """Return the health of each node in *reply*. Raises ClientError for wrong columns."""
    count = len(reply.node_index)
    columns = (reply.state, reply.bucket, reply.reason)
    if count > NODES_MAX:
        raise ClientError(f"scores: {count} nodes, expected at most {NODES_MAX}", False)
    if {len(column) for column in columns} != {count} or 8 * len(reply.allowed_bitmap) < count:
        raise ClientError("scores: columns of several lengths", False)
    found: dict[str, NodeHealth] = {}
    for at, index in enumerate(reply.node_index):
        node = node_of_host(names[index])
        if node:
            found[node] = NodeHealth(
                min(reply.bucket[at], BUCKETS - 1),
                bool(reply.allowed_bitmap[at >> 3] >> (at & 7) & 1),
                _STATES.get(reply.state[at], "UNKNOWN"),
                _REASONS.get(reply.reason[at], ""),
            )
    return found


#: Reads the health of all nodes; raises ClientError.
ReadHealth = Callable[[], Mapping[str, NodeHealth]]
