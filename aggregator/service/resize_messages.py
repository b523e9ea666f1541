"""A request to resize a running gang: checked terms, the plan, and the reply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ...contract.wire import placement_pb2
from ..arrays import Indexes
from ..decisions.node_search import Candidates, gpus_of
from ..decisions.node_table import NodeTable
from ..decisions.quantity import Quantity
from ..decisions.requirements import GangRequirements
from ..decisions.resize import ResizeChoice, ResizePlan, ResizeTimes, plan_resize
from ..errors import InvalidArgument
from ..scoring.evaluate import Judgement
from . import placement_messages as messages
from .memory_needs import requirements_in
from .validation import check_real, hours_of

GAIN_GPU_HOURS_MAX = 1e9


@dataclass(frozen=True, slots=True)
class ResizeQuestion:
    """A checked resize request with its terms from a snapshot."""

    request: placement_pb2.PlanResizeRequest
    gang: placement_pb2.GangRequirements
    snapshot: Judgement
    candidates: Candidates
    needs: GangRequirements
    current: Indexes
    times: ResizeTimes

    def in_groups(self, table: NodeTable) -> Self:
        """Return a copy with only the sizes that the groups can form. Raises InvalidArgument."""
        gpus = gpus_of(table, self.needs)
        messages.check_groups(self.needs, self.current.size, gpus)
        return replace(self, needs=messages.grouped_sizes(self.needs, gpus))

    def plan(self, table: NodeTable, communication: Quantity | None) -> ResizePlan:
        """Return the possible changes, with their prices."""
        return plan_resize(
            table, self.candidates, self.needs, self.current, self.times, communication,
            self.request.gain_gpu_hours_min,
        )  # fmt: skip

    def reply(self, plan: ResizePlan, table: NodeTable) -> placement_pb2.PlanResizeResponse:
        """Return *plan* as a message."""
        snapshot = self.snapshot
        return placement_pb2.PlanResizeResponse(
            options=[self._option(choice, plan, table) for choice in plan.choices],
            gain_gpu_hours_min=plan.margin_gpu_hours,
            score_version=snapshot.version,
            dictionary_version=snapshot.dictionary_version,
            candidates_source=self.candidates.source,
            degraded=bool(snapshot.degraded_reason),
            degraded_reason=snapshot.degraded_reason,
        )

    def _option(
        self, choice: ResizeChoice, plan: ResizePlan, table: NodeTable
    ) -> placement_pb2.ResizeOption:
        explain = self.request.explain
        before, after = self.current.size, choice.choice.nodes.size
        if choice is plan.stay:
            kind = placement_pb2.RESIZE_STAY
        elif after == before:
            kind = placement_pb2.RESIZE_MOVE
        else:
            kind = placement_pb2.RESIZE_GROW if after > before else placement_pb2.RESIZE_SHRINK
        option = placement_pb2.ResizeOption(
            kind=kind,
            placement=messages.option_message(table, choice.choice, explain=explain),
            joined_node_index=choice.joined.tolist(),
            left_node_index=choice.left.tolist(),
            stop_hours=messages.estimate_message(choice.stop, explain=explain),
            gain_gpu_hours=messages.estimate_message(choice.gain, explain=explain),
            reason=choice.reason,
        )
        option.wait.FromNanoseconds(round(choice.wait_hours * 3600e9))
        return option


def resize_question(
    request: placement_pb2.PlanResizeRequest, snapshot: Judgement
) -> ResizeQuestion:
    """Return *request*, checked. Raises InvalidArgument, FailedPrecondition."""
    gang = placement_pb2.GangRequirements()
    gang.CopyFrom(request.gang)
    if not gang.HasField("sizes"):
        reason = "unset, expected the sizes that the gang may have: min_nodes and max_nodes, or allowed_nodes"
        raise InvalidArgument("gang.sizes", reason)
    if not gang.HasField("length"):
        raise InvalidArgument("gang.length", "unset, expected the remaining time of the job")
    current = messages.members_of(request.current_node_index, gang.workload.job, snapshot)
    if gang.nodes not in (0, current.size):
        reason = f"{gang.nodes}, expected {current.size}, the size of now, or 0"
        raise InvalidArgument("gang.nodes", reason)
    gang.nodes = current.size
    needs = requirements_in(snapshot, gang)
    if (gpus := snapshot.facts.gpus[current]).size and not np.all(
        gpus >= max(gang.gpus_per_node, 1)
    ):
        node = int(current[gpus < max(gang.gpus_per_node, 1)][0])
        reason = f"{gang.gpus_per_node}, and member {node} has {int(snapshot.facts.gpus[node])}"
        raise InvalidArgument("gang.gpus_per_node", reason)
    check_real("gain_gpu_hours_min", request.gain_gpu_hours_min, GAIN_GPU_HOURS_MAX)
    week = messages.WEEK_SECONDS
    return ResizeQuestion(
        request=request,
        gang=gang,
        snapshot=snapshot,
        candidates=messages.candidates_of(request.candidates, snapshot),
        needs=needs,
        current=current,
        times=ResizeTimes(
            hours_of("reshard", request, "reshard", week),
            hours_of("checkpoint_age", request, "checkpoint_age", week),
            request.checkpoint_on_demand,
        ),
    )
