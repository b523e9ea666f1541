"""Summary of a decision, from its request and response: the columns of `ops.decisions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...contract.wire import decision_pb2, placement_pb2, recovery_pb2
from ..store.decision_records import OptionSummary

#: At most this many obstacles are stored for SQL; the answer has all.
BLOCKERS_MAX, BLOCKER_CHARACTERS_MAX = 16, 300
#: Hosts of the first option that are stored for SQL.
HOSTS_MAX = 64

#: The messages of each kind of decision.
MESSAGES: dict[int, tuple[Any, Any]] = {
    decision_pb2.DECISION_PLACEMENT: (
        placement_pb2.PlanPlacementRequest,
        placement_pb2.PlanPlacementResponse,
    ),
    decision_pb2.DECISION_EVALUATION: (
        placement_pb2.EvaluatePlacementRequest,
        placement_pb2.EvaluatePlacementResponse,
    ),
    decision_pb2.DECISION_RESIZE: (
        placement_pb2.PlanResizeRequest,
        placement_pb2.PlanResizeResponse,
    ),
    decision_pb2.DECISION_RECOVERY: (
        recovery_pb2.PlanRecoveryRequest,
        recovery_pb2.PlanRecoveryResponse,
    ),
}


class DecisionSummary(NamedTuple):
    """The options, the nodes of the first by index, and the obstacles."""

    options: tuple[OptionSummary, ...]
    nodes: Sequence[int]
    blockers: tuple[str, ...]


def kind_name(kind: int) -> str:
    """Return a kind as it is stored: placement, evaluation, resize or recovery."""
    return decision_pb2.DecisionKind.Name(kind).removeprefix("DECISION_").lower()


def kind_of(name: str) -> int:
    """Return the kind of a stored name. Raises ValueError."""
    return int(decision_pb2.DecisionKind.Value(f"DECISION_{name.upper()}"))


def summary_of(kind: int, reply: Any) -> DecisionSummary:
    """Return the answer *reply* of *kind* in short."""
    if kind == decision_pb2.DECISION_RECOVERY:
        recoveries = tuple(_recovery(one) for one in reply.options)
        nodes = reply.options[0].node_index if reply.options else ()
        futile = (reply.futile_reason[:BLOCKER_CHARACTERS_MAX],) if reply.futile_reason else ()
        return DecisionSummary(recoveries, nodes, futile)
    if kind == decision_pb2.DECISION_RESIZE:
        named = [
            (placement_pb2.ResizeKind.Name(one.kind).removeprefix("RESIZE_"), one.placement)
            for one in reply.options
        ]
        blockers: tuple[str, ...] = ()
    elif kind == decision_pb2.DECISION_EVALUATION:
        named, blockers = [("", reply.option)], tuple(reply.option.violations)
    else:
        named = [("", one) for one in reply.options]
        blockers = tuple(f"{one.constraint}: {one.message}" for one in reply.blockers)
    return DecisionSummary(
        tuple(_placement(what.lower(), one) for what, one in named),
        named[0][1].node_index if named else (),
        tuple(one[:BLOCKER_CHARACTERS_MAX] for one in blockers[:BLOCKERS_MAX]),
    )


def _placement(what: str, one: placement_pb2.PlacementOption) -> OptionSummary:
    total = one.price.total_gpu_hours
    return OptionSummary(
        what, len(one.node_index), total.value, total.lower, total.upper, one.survival.value, one.speed.value
    )  # fmt: skip


def _recovery(one: recovery_pb2.RecoveryOption) -> OptionSummary:
    total = one.price.total_gpu_hours
    what = recovery_pb2.RecoveryKind.Name(one.kind).removeprefix("RECOVERY_").lower()
    survival = 1.0 - one.second_failure_probability.value
    return OptionSummary(
        what, len(one.node_index), total.value, total.lower, total.upper, survival, one.speed.value
    )  # fmt: skip
