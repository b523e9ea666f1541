"""Scores of nodes from the aggregator, for executors that publish them in their scheduler."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from ...contract.wire import score_pb2
from ...contract.wire.score_pb2_grpc import ScoreServiceStub
from ..mirror_format import BUCKETS, NODES_MAX
from .client import CALL_SECONDS, LATER, ClientError
from .ledger import ExecutorLedger, WeightChange
from .model import Node, SetWeight

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
    """Return the health of each node in *reply*.

    Raises ClientError if the columns differ in length or have more than NODES_MAX entries.
    """
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
                min(reply.bucket[at], BUCKETS - 1), bool(reply.allowed_bitmap[at >> 3] >> (at & 7) & 1),
                _STATES.get(reply.state[at], "UNKNOWN"), _REASONS.get(reply.reason[at], ""),
            )  # fmt: skip
    return found


#: Reads the health of all nodes; raises ClientError.
ReadHealth = Callable[[], Mapping[str, NodeHealth]]


# ----------------------------------------------------------------------
# Weights of nodes: a hint to the scheduler to prefer healthier nodes; a weight refuses no job. No I/O.
#
# A node's weight is set to its original weight plus its bucket: 0 for the best, 3 for the worst. The ledger keeps the
# original weight, which is restored afterwards.

#: `advisory` of steps about weights: they belong to no advisory.
NO_ADVISORY = ""


def weight_steps(
    nodes: Mapping[str, Node],
    buckets: Mapping[str, int],
    preferred: Collection[str],
    ledger: ExecutorLedger,
) -> list[SetWeight]:
    """Return a step for each new weight, with the nodes that get it.

    Nodes in neither *buckets* nor *preferred* get back their original weight.
    """
    groups: dict[int, list[str]] = {}
    for name in sorted({*buckets, *preferred, *ledger.weights}):
        node = nodes.get(name)
        if node is None or node.weight is None:
            continue
        base = base_weight(node.weight, ledger.weights.get(name))
        wanted = base + min(max(buckets.get(name, 0), 0), BUCKETS - 1)
        if name in preferred:
            wanted = max(0, base - 1)
        if wanted != node.weight:
            groups.setdefault(wanted, []).append(name)
    return [
        SetWeight(NO_ADVISORY, _why(weight, preferred, names), tuple(names), weight)
        for weight, names in sorted(groups.items())
    ]


def _why(weight: int, preferred: Collection[str], names: list[str]) -> str:
    if any(name in preferred for name in names):
        return "a plan has a requeued job run there"
    return f"weight {weight} by the buckets of their scores"


def base_weight(weight: int, change: WeightChange | None) -> int:
    """Return the node's weight without the executor's change.

    A *weight* that the executor did not set is kept: a person set it, or the scheduler read it from its configuration at a
    restart.
    """
    if change is None or weight not in (change.before, change.given, change.earlier):
        return weight
    return change.before


def record_weight_intent(
    step: SetWeight, nodes: Mapping[str, Node], ledger: ExecutorLedger
) -> None:
    """Record in *ledger* the weight that is about to be set, and the original weight."""
    for name in step.nodes:
        node = nodes.get(name)
        if node is None or node.weight is None:
            continue
        before = base_weight(node.weight, ledger.weights.get(name))
        ledger.weights[name] = WeightChange(before, step.weight, node.weight)


def forget_restored(nodes: Mapping[str, Node], ledger: ExecutorLedger) -> bool:
    """Forget nodes with their original weight or a weight that no executor set; return whether there were any."""
    done = [
        name
        for name, change in ledger.weights.items()
        if (node := nodes.get(name)) is not None
        and node.weight is not None
        and (node.weight == change.given == change.before or node.weight not in (change.given, change.earlier))
    ]  # fmt: skip
    for name in done:
        del ledger.weights[name]
    return bool(done)


def restore_steps(nodes: Mapping[str, Node], ledger: ExecutorLedger) -> list[SetWeight]:
    """Return the steps that restore the original weights; a weight that a person has set since stays."""
    return weight_steps(nodes, {}, (), ledger)
