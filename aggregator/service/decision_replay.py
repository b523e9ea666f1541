"""Recomputes a stored decision with the code that answers calls: the same inputs give the same bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from ...contract.wire import decision_pb2
from ..decisions.inputs import InputsError, restored_inputs
from ..errors import ServiceError
from ..scoring.evaluate import Judgement
from .decision_recorder import answer_bytes
from .decision_summary import MESSAGES
from .placement import PlacementService
from .recovery import RecoveryService


@dataclass(frozen=True, slots=True)
class _StoredSnapshot:
    """Where a service takes its snapshot from."""

    snapshot: Judgement


async def replayed_answer(kind: int, request: bytes, parts: Iterable[bytes]) -> bytes:
    """Return the answer to *request*, as it is stored, computed from *parts*. Raises InputsError."""
    inputs = restored_inputs(parts)
    placement = PlacementService(_StoredSnapshot(inputs.snapshot))
    placement.begin_with(inputs.snapshot, inputs.excluded)
    calls: dict[int, Callable[[Any, Any], Awaitable[Any]]] = {
        decision_pb2.DECISION_PLACEMENT: placement.PlanPlacement,
        decision_pb2.DECISION_EVALUATION: placement.EvaluatePlacement,
        decision_pb2.DECISION_RESIZE: placement.PlanResize,
        decision_pb2.DECISION_RECOVERY: RecoveryService(placement).PlanRecovery,
    }
    if kind not in calls:
        raise InputsError(f"a decision of kind {kind}: a later version answered it; use that one")
    try:
        message = MESSAGES[kind][0].FromString(request)
    except DecodeError as error:
        raise InputsError(f"the request cannot be read: {error}") from error
    try:
        return answer_bytes(await calls[kind](message, None))
    except ServiceError as error:
        raise InputsError(f"the request is rejected now: {error}") from error
