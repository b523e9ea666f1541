"""`gangline explain decision ID`: a decision's request, answer, choice, and an optional replay."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from ...cli import json_object
from ...contract.client.connection import (
    FAILED,
    OK,
    CommandError,
    connected,
    read_connection_options,
)
from ...contract.client.plan_text import (
    DEADLINE_SECONDS,
    fold_names,
    option_lines,
    tier_title,
)
from ...contract.text import counted
from ...contract.wire import decision_pb2 as wire
from ...contract.wire import placement_pb2, recovery_pb2
from ...contract.wire.decision_pb2_grpc import DecisionServiceStub
from ..decisions.inputs import InputsError, checked_part, node_names, restored_inputs
from ..errors import ServiceError
from ..model import gangline_version
from ..scoring.evaluate import Judgement
from ..service.decision_recorder import answer_bytes
from ..service.decision_summary import MESSAGES, kind_name
from ..service.placement import PlacementService
from ..service.recovery import RecoveryService
from .plan import plan_text
from .recover import recovery_text
from .resize import resize_text

#: Fields of a request that are printed if set, besides those of the gang.
_FLAGS = {
    "goes_on_in_process": "healthy processes wait for the others",
    "checkpoint_on_demand": "a checkpoint can be written now",
}
_COUNTS = {
    "nodes_min": "it may shrink to {} nodes",
    "failures_at_step": "it failed at this step {} times",
}


def run_decision(options: argparse.Namespace) -> int:
    """Print a decision. Return 1 if a replay differs or fails. Raises CommandError."""
    stored = _fetched(options)
    request, answer = _messages(stored)
    parts = [_part(decision_input) for decision_input in stored.inputs]
    replayed = _replay_line(stored, parts) if options.replay else None
    if options.json:
        print(json_object(_fields(stored, request, answer, replayed)))
    else:
        print(decision_text(stored, request, answer, _NodeNames(stored, parts)))
        if replayed is not None:
            print(replayed[1])
    return OK if replayed is None or replayed[0] else FAILED


def _fetched(options: argparse.Namespace) -> wire.StoredDecision:
    with connected(read_connection_options(options)) as channel:
        stub: Any = DecisionServiceStub(channel)  # type: ignore[no-untyped-call]
        request = wire.GetDecisionRequest(decision_id=options.decision_id)
        decision: wire.StoredDecision = stub.GetDecision(request, timeout=DEADLINE_SECONDS)
    return decision


def _messages(stored: wire.StoredDecision) -> tuple[Any, Any]:
    if stored.kind not in MESSAGES:
        raise CommandError(
            f"decision {stored.decision_id} is of kind {stored.kind}, which this gangline does "
            "not know. Use the gangline of the aggregator",
            FAILED,
        )
    request_type, answer_type = MESSAGES[stored.kind]
    answer = answer_type.FromString(stored.answer)
    if stored.HasField("solve_time"):
        answer.solve_time.CopyFrom(stored.solve_time)
    return request_type.FromString(stored.request), answer


def _part(part: wire.DecisionInput) -> bytes:
    try:
        return checked_part(part.digest, part.data)
    except InputsError as error:
        raise CommandError(f"input {part.digest}: {error}", FAILED) from error


def _replay_line(stored: wire.StoredDecision, parts: Sequence[bytes]) -> tuple[bool, str]:
    """Recompute the decision; return (byte-identical, message)."""
    if stored.not_replayable:
        return False, f"replay: not possible: {stored.not_replayable}"
    try:
        again = asyncio.run(replayed_answer(stored.kind, stored.request, parts))
    except InputsError as error:
        return False, f"replay: failed: {error}"
    except Exception as error:  # noqa: BLE001 - another version's planner may reject the inputs
        return False, f"replay: failed: {type(error).__name__}: {error}{_versions(stored)}"
    if again == stored.answer:
        return True, f"replay: byte-identical, {len(again)} bytes from {len(parts)} inputs"
    return (
        False,
        f"replay: another answer, {len(again)} bytes for {len(stored.answer)}{_versions(stored)}",
    )


def _versions(stored: wire.StoredDecision) -> str:
    if stored.gangline_version == gangline_version():
        return ""
    return f"; {stored.gangline_version} answered, {gangline_version()} computed it again"


def _fields(
    stored: wire.StoredDecision, request: Any, answer: Any, replayed: tuple[bool, str] | None
) -> dict[str, Any]:
    about = wire.StoredDecision()
    about.CopyFrom(stored)
    for name in ("request", "answer", "inputs"):
        about.ClearField(name)  # type: ignore[arg-type, unused-ignore]
    fields: dict[str, Any] = MessageToDict(about, preserving_proto_field_name=True)
    fields["request"] = MessageToDict(request, preserving_proto_field_name=True)
    fields["answer"] = MessageToDict(answer, preserving_proto_field_name=True)
    if replayed is not None:
        fields["replay"] = {"identical": replayed[0], "message": replayed[1]}
    return fields


class _NodeNames(Sequence[str]):
    """Names of nodes by index; for unknown nodes a name from the stored hosts, else the index."""

    def __init__(self, stored: wire.StoredDecision, parts: Sequence[bytes]) -> None:
        self._names = node_names(parts)
        self._others = dict(zip(first_nodes(stored), stored.hosts, strict=False))

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice) or at < len(self._names):
            return self._names[at]
        return self._others.get(at, f"node {at}")


def first_nodes(stored: wire.StoredDecision) -> Sequence[int]:
    """Return the node indexes of the first option."""
    _, answer = _messages(stored)
    if stored.kind == wire.DECISION_EVALUATION:
        return tuple(answer.option.node_index)
    if not answer.options:
        return ()
    first = answer.options[0]
    return tuple((first.placement if stored.kind == wire.DECISION_RESIZE else first).node_index)


def decision_text(
    stored: wire.StoredDecision, request: Any, answer: Any, names: Sequence[str]
) -> str:
    """Format a decision: caller, request, answer, and reservations that chose an option."""
    time = stored.time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [
        f"{kind_name(stored.kind)} {stored.decision_id}, {time}, for {stored.caller or 'the aggregator itself'}",
        f"request: {'; '.join(request_lines(request, names))}",
        "",
    ]
    if isinstance(answer, placement_pb2.PlanPlacementResponse):
        lines.append(plan_text(answer, names, explain=True))
    elif isinstance(answer, placement_pb2.EvaluatePlacementResponse):
        lines += option_lines(answer.option, names, explain=True)
    elif isinstance(answer, placement_pb2.PlanResizeResponse):
        lines.append(resize_text(answer, names, explain=True))
    else:
        lines.append(recovery_text(answer, names, explain=True))
    lines.append("")
    for choice in stored.choices:
        until = choice.expire_time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC")
        option = f"option {choice.option}" if choice.option else "an option (not specified which)"
        lines.append(
            f"chosen: {option}, by {choice.owner}: {choice.reservation} of {choice.nodes} nodes with spares, reserved until {until}"
        )
    if not stored.choices:
        lines.append("chosen: no reservation names this decision")
    if stored.not_replayable:
        lines.append(f"not replayable: {stored.not_replayable}")
    return "\n".join(lines)


def request_lines(request: Any, names: Sequence[str]) -> list[str]:
    """Return a request as a list of phrases."""
    gang = request.gang
    phrases = [
        _size(gang, request),
        f"{gang.gpus_per_node} GPUs a node" if gang.gpus_per_node else "whole nodes",
    ]
    if gang.HasField("length"):
        phrases.append(f"for {gang.length.seconds / 3600:g} h")
    phrases += _invariants(gang)
    if gang.workload.job:
        phrases.append(f"as job {gang.workload.job}")
    if gang.tenant:
        phrases.append(f"tenant {gang.tenant}")
    if gang.HasField("groups"):
        groups = gang.groups
        sizes = " x ".join(
            str(max(size, 1)) for size in (groups.tensor, groups.pipeline, groups.data)
        )
        phrases.append(f"groups of {sizes} (tensor x pipeline x data)")
    if gang.HasField("priority"):
        phrases.append(f"priority {gang.priority}")
    if gang.node_score_min:
        phrases.append(f"score of each node at least {gang.node_score_min:.4g}")
    if gang.survival_min:
        phrases.append(f"survival at least {gang.survival_min:.4g}")
    for name, title in (
        ("node_index", "nodes"),
        ("current_node_index", "now on"),
        ("failed_node_index", "failed"),
        ("suspect_node_index", "suspected"),
        ("hot_spare_node_index", "hot spares"),
    ):
        if nodes := list(getattr(request, name, ())):
            phrases.append(f"{title} {' '.join(fold_names([names[index] for index in nodes]))}")
    candidates = getattr(request, "candidates", None)
    if candidates is not None and candidates.node_bitmap:
        count = int.from_bytes(candidates.node_bitmap, "little").bit_count()
        phrases.append(f"{count} candidates")
    phrases += [phrase for name, phrase in _FLAGS.items() if getattr(request, name, False)]
    phrases += [
        phrase.format(getattr(request, name))
        for name, phrase in _COUNTS.items()
        if getattr(request, name, 0)
    ]
    if isinstance(request, recovery_pb2.PlanRecoveryRequest) and request.application_error:
        phrases.append(f"error {request.application_error!r}")
    return phrases


def _size(gang: placement_pb2.GangRequirements, request: Any) -> str:
    sizes = gang.sizes
    if sizes.allowed_nodes:
        return f"{', '.join(map(str, sizes.allowed_nodes))} nodes"
    if gang.HasField("sizes"):
        return f"{sizes.min_nodes} to {sizes.max_nodes} nodes"
    nodes = gang.nodes or len(
        getattr(request, "node_index", ()) or getattr(request, "current_node_index", ())
    )
    return counted(nodes, "node") if nodes else "the nodes of its job"


def _invariants(gang: placement_pb2.GangRequirements) -> list[str]:
    held, phrases = gang.invariants, list[str]()
    if held.within:
        phrases.append(f"within one {tier_title(held.within)}")
    if held.segment_nodes > 1:
        phrases.append(
            f"segments of {held.segment_nodes} nodes in one {tier_title(held.segment_tier)}"
        )
    if held.same_rails:
        phrases.append("the same rails")
    if held.spread_over:
        phrases.append(
            f"at most {held.spread_nodes_max} nodes in one {tier_title(held.spread_over)}"
        )
    return phrases


@dataclass(frozen=True, slots=True)
class _StoredSnapshot:
    """Source of the snapshot for a service."""

    snapshot: Judgement


async def replayed_answer(kind: int, request: bytes, parts: Iterable[bytes]) -> bytes:
    """Return the answer to *request*, recomputed from *parts*. Raises InputsError."""
    inputs = restored_inputs(parts)
    placement = PlacementService(_StoredSnapshot(inputs.snapshot))
    placement.begin_with(inputs)
    calls: dict[int, Callable[[Any, Any], Awaitable[Any]]] = {
        wire.DECISION_PLACEMENT: placement.PlanPlacement,
        wire.DECISION_EVALUATION: placement.EvaluatePlacement,
        wire.DECISION_RESIZE: placement.PlanResize,
        wire.DECISION_RECOVERY: RecoveryService(placement).PlanRecovery,
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
