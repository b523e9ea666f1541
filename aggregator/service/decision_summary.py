"""Summary of a decision, from its request and response: the columns of `ops.decisions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...contract.wire import decision_pb2, placement_pb2, recovery_pb2
from ..store.decision_records import OptionSummary

#: Maximum blockers stored for SQL, and their length; the answer has all.
BLOCKERS_MAX, BLOCKER_CHARACTERS_MAX = 16, 300
#: Maximum hosts of the first option stored for SQL.
HOSTS_MAX = 64

#: Kind of decision -> request and response types.
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
    """The options, the first option's node indexes, and the blockers."""

    options: tuple[OptionSummary, ...]
    nodes: Sequence[int]
    blockers: tuple[str, ...]


def kind_name(kind: int) -> str:
    """Return the stored name of a kind: placement, evaluation, resize or recovery."""
    return decision_pb2.DecisionKind.Name(kind).removeprefix("DECISION_").lower()


def kind_of(name: str) -> int:
    """Return the kind with a stored name. Raises ValueError."""
    return int(decision_pb2.DecisionKind.Value(f"DECISION_{name.upper()}"))


def summary_of(kind: int, reply: Any) -> DecisionSummary:
    """Return the summary of *reply*, an answer of *kind*."""
    if kind == decision_pb2.DECISION_RECOVERY:
        recoveries = tuple(_recovery(option) for option in reply.options)
        nodes = reply.options[0].node_index if reply.options else ()
        futile = (reply.futile_reason[:BLOCKER_CHARACTERS_MAX],) if reply.futile_reason else ()
        return DecisionSummary(recoveries, nodes, futile)
    if kind == decision_pb2.DECISION_RESIZE:
        named = [
            (placement_pb2.ResizeKind.Name(option.kind).removeprefix("RESIZE_"), option.placement)
            for option in reply.options
        ]
        blockers: tuple[str, ...] = ()
    elif kind == decision_pb2.DECISION_EVALUATION:
        named, blockers = [("", reply.option)], tuple(reply.option.violations)
    else:
        named = [("", option) for option in reply.options]
        blockers = tuple(f"{blocker.constraint}: {blocker.message}" for blocker in reply.blockers)
    return DecisionSummary(
        tuple(_placement(what.lower(), option) for what, option in named),
        named[0][1].node_index if named else (),
        tuple(blocker[:BLOCKER_CHARACTERS_MAX] for blocker in blockers[:BLOCKERS_MAX]),
    )


def _placement(what: str, option: placement_pb2.PlacementOption) -> OptionSummary:
    total = option.price.total_gpu_hours
    return OptionSummary(
        what=what,
        nodes=len(option.node_index),
        price_gpu_hours=total.value,
        price_lower=total.lower,
        price_upper=total.upper,
        survival=option.survival.value,
        speed=option.speed.value,
    )


def _recovery(option: recovery_pb2.RecoveryOption) -> OptionSummary:
    total = option.price.total_gpu_hours
    what = recovery_pb2.RecoveryKind.Name(option.kind).removeprefix("RECOVERY_").lower()
    survival = 1.0 - option.second_failure_probability.value
    return OptionSummary(
        what=what,
        nodes=len(option.node_index),
        price_gpu_hours=total.value,
        price_lower=total.lower,
        price_upper=total.upper,
        survival=survival,
        speed=option.speed.value,
    )
