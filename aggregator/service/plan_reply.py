"""Builds the reply to a plan of a gang: its options, or the constraints that prevent them."""

from __future__ import annotations

import time

from ...contract.wire import decision_pb2, placement_pb2
from ..decisions import blockers, elastic
from ..decisions.node_search import SearchEffort
from . import placement_messages as messages
from .decision_recorder import decision_id
from .exchange_rates import notes_of
from .gang_sizes import add_sizes
from .memory_needs import memory_notes
from .plan_watch import PlanQuestion


class PlanReply:
    """The reply to *request*, whose terms are *question*. `message` grows as parts are added."""

    def __init__(self, request: placement_pb2.PlanPlacementRequest, question: PlanQuestion) -> None:
        snapshot = question.snapshot
        self._request, self._question = request, question
        self.message = placement_pb2.PlanPlacementResponse(
            decision_id=decision_id(decision_pb2.DECISION_PLACEMENT, request, snapshot),
            score_version=snapshot.version,
            dictionary_version=snapshot.dictionary_version,
            allocation_version=request.candidates.allocation_version,
            candidates_source=question.candidates.source,
            degraded=bool(snapshot.degraded_reason),
            degraded_reason=snapshot.degraded_reason,
            notes=[
                *notes_of(request.gang, snapshot),
                *messages.size_notes(question.needs),
                *memory_notes(question.table, question.needs, request.gang),
            ],
        )

    def add_options(self, options_max: int) -> None:
        """Add up to *options_max* options."""
        question, needs, explain = self._question, self._question.needs, self._request.explain
        effort = SearchEffort(options_max=options_max, every_size=explain)
        terms = (question.table, question.candidates, needs, question.communication)
        if needs.elastic is None:
            options = elastic.plan(*terms, effort)
        else:
            plan = elastic.plan_sizes(*terms, effort)
            options = plan.options
            add_sizes(self.message, needs.elastic, plan.sizes, explain=explain)
        self.message.options.extend(
            messages.option_message(question.table, option, explain=explain, needs=needs)
            for option in options
        )

    def add_blockers(self) -> None:
        """Add the constraints that prevent a plan."""
        question, explain = self._question, self._request.explain
        result = blockers.find_blockers(
            question.table, question.candidates, question.needs, question.communication
        )
        self.message.proven = result.is_proven
        for blocked_by in result.blockers:
            blocker = self.message.blockers.add(
                constraint=blocked_by.constraint,
                message=blocked_by.message,
                nodes_excluded=blocked_by.nodes_excluded,
            )
            for change in blocked_by.relaxations:
                relaxation = blocker.relaxations.add(change=change.change)
                relaxation.gang.CopyFrom(self._request.gang)
                messages.apply_change(relaxation.gang, change.needs)
                relaxation.added_node_index.extend(sorted(change.added_nodes.tolist()))
                price = change.price
                relaxation.price.CopyFrom(messages.price_message(price, explain=explain))
                relaxation.survival.CopyFrom(
                    messages.estimate_message(price.survival, explain=explain)
                )
                if change.start_hours is not None:
                    median, late = change.start_hours
                    relaxation.start_p50.FromNanoseconds(round(median * 3600e9))
                    relaxation.start_p90.FromNanoseconds(round(late * 3600e9))

    def add_solve_time(self, began_seconds: float) -> None:
        """Add the time since *began_seconds*, by `time.perf_counter`."""
        self.message.solve_time.FromNanoseconds(round((time.perf_counter() - began_seconds) * 1e9))


def plan_reply(
    request: placement_pb2.PlanPlacementRequest, question: PlanQuestion
) -> placement_pb2.PlanPlacementResponse:
    """Return the reply with an option, or with the constraints that prevent it."""
    began = time.perf_counter()
    reply = PlanReply(request, question)
    reply.add_options(1)
    if not reply.message.options:
        reply.add_blockers()
    reply.add_solve_time(began)
    return reply.message
