"""PlacementService: the best nodes for a gang, from the last snapshot; calls change nothing."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np

from ...contract.wire import decision_pb2, placement_pb2
from ...contract.wire.placement_pb2_grpc import PlacementServiceServicer
from ...fingerprints.sensitivity import NETWORK, NVLINK
from ..counter_deltas import Flags, Indexes
from ..decisions import blockers, elastic, planner
from ..decisions.node_table import NodeTable, excluded_now, excluded_since, node_table
from ..decisions.planner import Candidates, PlacementChoice, gpus_of
from ..decisions.quantity import Quantity, QuantitySource
from ..decisions.requirements import GangRequirements
from ..decisions.resize import ResizeChoice, ResizePlan, ResizeTimes, plan_resize
from ..errors import InvalidArgument, NotFound, ServiceUnavailable
from ..principal import current_login
from ..scoring.evaluate import Judgement
from . import placement_messages as messages
from .caller_slots import CallerSlots
from .decision_recorder import DecisionRecorder, decision_id
from .exchange_rates import notes_of
from .gang_sizes import add_sizes
from .plan_watch import PlanQuestion, PlanWatches, WatchedPlan
from .score import SnapshotSource, requested_workload
from .validation import check_real, check_text, hours_of

#: Maximum workloads whose node tables are cached, until the next snapshot.
TABLES_MAX = 16
#: Maximum plans that run or wait; further callers must retry after RETRY_SECONDS.
PLANS_MAX, RETRY_SECONDS = 16, 1.0
#: Bounds of a workload's communication share, as factors: fingerprints count bytes, not overlap
#: (assumed).
SHARE_INTERVAL = (0.5, 1.5)

#: A new snapshot's nodes are prepared if a plan was requested within this many versions.
PREPARED_VERSIONS = 60

T = TypeVar("T")


class PlacementService(PlacementServiceServicer):
    """Coroutines of grpc.aio. A `ServiceError` becomes its status in the interceptor.

    Plans run in a thread, one at a time: the search releases the GIL, so that scores are answered
    meanwhile. In a dedicated process (*is_dedicated*) a plan of a single option without groups runs
    at once: a thread would take as long as the plan. Prices of groups take tens of milliseconds at
    thousands of nodes, so they always run in the thread.
    """

    def __init__(
        self,
        source: SnapshotSource,
        *,
        is_dedicated: bool = False,
        recorder: DecisionRecorder | None = None,
    ) -> None:
        """*recorder*: receives the decisions; None: they are not recorded."""
        self._source, self._is_dedicated, self._recorder = source, is_dedicated, recorder
        self._tables_of: Judgement | None = None
        self._tables: OrderedDict[bytes, tuple[NodeTable, Quantity | None]] = OrderedDict()
        #: Excluded nodes at the last snapshot that was not degraded: (dictionary version, flags).
        self._excluded: tuple[int, Flags] | None = None
        self._watches = PlanWatches()
        self._index: tuple[tuple[str, ...], dict[str, int]] = ((), {})
        self._lock = asyncio.Lock()
        self._plans = CallerSlots()
        #: The snapshot version of the last requested plan.
        self._last_version = -PREPARED_VERSIONS

    async def PlanPlacement(
        self, request: placement_pb2.PlanPlacementRequest, context: Any
    ) -> placement_pb2.PlanPlacementResponse:
        """Return options, or the constraints that prevent them.

        Raises InvalidArgument, NotFound, FailedPrecondition, ServiceUnavailable, ResourceExhausted.
        """
        began = time.perf_counter()
        messages.claim_reservations(request.candidates, current_login())
        question = self._question(request)
        options_max = messages.options_max_of(request.options_max)
        reply = _reply_to(request, question)
        is_quick = options_max == 1 and not question.needs.has_groups
        if self._is_dedicated and is_quick and not self._plans.count:
            _add_options(reply, request, question, 1)
        else:
            await self.run(lambda: _add_options(reply, request, question, options_max))
        if not reply.options:
            await self.run(lambda: _add_blockers(reply, request, question))
        reply.solve_time.FromNanoseconds(round((time.perf_counter() - began) * 1e9))
        self.record(decision_pb2.DECISION_PLACEMENT, request, reply, question.table)
        return reply

    async def WatchPlan(
        self, request_iterator: AsyncIterator[placement_pb2.WatchPlanRequest], context: Any
    ) -> None:
        """Write a plan, then another whenever it no longer holds or a better one is found.

        Raises like PlanPlacement.
        """

        async def turn(watched: WatchedPlan) -> placement_pb2.WatchPlanResponse | None:
            question = self._question(watched.request)
            return await self.run(
                lambda: watched.turn(question, lambda: _whole_reply(watched.request, question))
            )

        await self._watches.watch(request_iterator, self.snapshot, turn, context.write)

    async def PlanResize(
        self, request: placement_pb2.PlanResizeRequest, context: Any
    ) -> placement_pb2.PlanResizeResponse:
        """Return whether a running gang should change its size. Raises like PlanPlacement."""
        snapshot = self.snapshot()
        messages.claim_reservations(request.candidates, current_login())
        question = resize_question(request, snapshot)
        table, communication = self.running_table(snapshot, question.gang)
        question = question.in_groups(table)
        plan = await self.run(lambda: question.plan(table, communication))
        reply = question.reply(plan, table)
        reply.decision_id = decision_id(decision_pb2.DECISION_RESIZE, request, snapshot)
        reply.notes.extend(notes_of(question.gang, snapshot))
        reply.notes.extend(messages.size_notes(question.needs))
        self.record(decision_pb2.DECISION_RESIZE, request, reply, table)
        return reply

    async def ListTopologyDomains(
        self, request: placement_pb2.ListTopologyDomainsRequest, context: Any
    ) -> placement_pb2.ListTopologyDomainsResponse:
        """Return the domains of a tier. Raises InvalidArgument, FailedPrecondition, ServiceUnavailable."""
        snapshot = self.snapshot()
        messages.claim_reservations(request.candidates, current_login())
        candidates = messages.candidates_of(request.candidates, snapshot)
        table, _ = self.table(snapshot, placement_pb2.GangRequirements())
        return messages.domains_message(table, candidates, messages.listed_tier(request.tier))

    async def EvaluatePlacement(
        self, request: placement_pb2.EvaluatePlacementRequest, context: Any
    ) -> placement_pb2.EvaluatePlacementResponse:
        """Return the price of nodes that the caller chose. Raises like PlanPlacement."""
        snapshot = self.snapshot()
        nodes = messages.nodes_of(request, snapshot)
        gang = placement_pb2.GangRequirements()
        gang.CopyFrom(request.gang)
        if not gang.HasField("sizes"):
            gang.nodes = nodes.size
        needs = messages.requirements_of(gang, snapshot.reported_factors, snapshot.tenants)
        candidates = messages.candidates_of(placement_pb2.PlacementCandidates(), snapshot)
        table, communication = self.table(snapshot, gang)
        messages.check_groups(needs, nodes.size, planner.gpus_of(table, needs))

        def evaluated() -> PlacementChoice:
            return elastic.evaluate_nodes(table, candidates, needs, nodes, communication)

        option = await self.run(evaluated) if needs.has_groups else evaluated()
        violations = elastic.violations(table, needs, nodes)
        reply = placement_pb2.EvaluatePlacementResponse(
            option=messages.option_message(
                table, option, explain=request.explain, violations=violations, needs=needs
            ),
            score_version=snapshot.version,
            dictionary_version=snapshot.dictionary_version,
            degraded=bool(snapshot.degraded_reason),
            degraded_reason=snapshot.degraded_reason,
            decision_id=decision_id(decision_pb2.DECISION_EVALUATION, request, snapshot),
            notes=notes_of(gang, snapshot),
        )
        self.record(decision_pb2.DECISION_EVALUATION, request, reply, table)
        return reply

    def record(self, kind: int, request: Any, reply: Any, table: NodeTable) -> None:
        """Record a decision; *table*: its nodes."""
        if self._recorder is not None:
            self._recorder.record(kind, request, reply, table.snapshot, table.excluded)

    def snapshot(self) -> Judgement:
        """Return the last snapshot. Raises ServiceUnavailable."""
        snapshot = self._source.snapshot
        if not isinstance(snapshot, Judgement):
            raise ServiceUnavailable(
                "no snapshot yet: the first one comes within seconds of the start"
            )
        return snapshot

    def node_index(self, snapshot: Judgement) -> dict[str, int]:
        """Return each node's index by its name."""
        if self._index[0] is not snapshot.names:
            self._index = snapshot.names, {name: index for index, name in enumerate(snapshot.names)}
        return self._index[1]

    def _question(self, request: placement_pb2.PlanPlacementRequest) -> PlanQuestion:
        """Return *request*, checked, with its terms from the current snapshot."""
        snapshot = self.snapshot()
        check_text("request_id", request.request_id, messages.REQUEST_ID_CHARACTERS_MAX)
        needs = messages.requirements_of(request.gang, snapshot.reported_factors, snapshot.tenants)
        candidates = messages.candidates_of(request.candidates, snapshot)
        table, communication = self.table(snapshot, request.gang)
        needs = messages.grouped_sizes(needs, planner.gpus_of(table, needs))
        messages.check_groups(needs, needs.nodes, planner.gpus_of(table, needs))
        return PlanQuestion(table, candidates, needs, communication)

    def table(
        self, snapshot: Judgement, gang: placement_pb2.GangRequirements
    ) -> tuple[NodeTable, Quantity | None]:
        """Return the nodes with this workload's speeds, and its communication share."""
        self._last_version = snapshot.version
        if self._tables_of is not snapshot:
            excluded = excluded_since(snapshot, self._excluded)
            self._begin(snapshot, node_table(snapshot, excluded=excluded))
        plain, _ = self._tables[b""]
        if not gang.HasField("workload"):
            return plain, None
        key = gang.workload.SerializeToString(deterministic=True)
        entry = self._tables.get(key)
        if entry is None:
            workload: Any = gang.workload
            needs, source = requested_workload(snapshot, workload)
            share = needs.bound[NETWORK] + needs.bound[NVLINK]
            by_job = bool(gang.workload.job)
            communication = Quantity(
                share, share * SHARE_INTERVAL[0], min(share * SHARE_INTERVAL[1], 1.0),
                QuantitySource.MEASURED if by_job else QuantitySource.DECLARED,
                f"share of a step bound by network and NVLink: {source}",
            )  # fmt: skip
            entry = (
                node_table(snapshot, needs, source, plain.excluded), communication
            )  # fmt: skip
            self._tables[key] = entry
            while len(self._tables) > TABLES_MAX:
                self._tables.pop(next(cached_key for cached_key in self._tables if cached_key))
        return entry

    def running_table(
        self, snapshot: Judgement, gang: placement_pb2.GangRequirements
    ) -> tuple[NodeTable, Quantity | None]:
        """Return the table for a running gang.

        The table omits the workload if the job has no fingerprint yet.
        """
        try:
            return self.table(snapshot, gang)
        except NotFound:
            if gang.workload.job not in snapshot.jobs.values():
                raise
            plain = placement_pb2.GangRequirements()
            return self.table(snapshot, plain)

    def begin_with(self, snapshot: Judgement, excluded: Flags) -> None:
        """Answer from *snapshot* with the excluded nodes *excluded*, for a replay."""
        self._begin(snapshot, node_table(snapshot, excluded=excluded))

    def _begin(self, snapshot: Judgement, table: NodeTable) -> None:
        if not snapshot.degraded_reason:
            self._excluded = snapshot.dictionary_version, excluded_now(snapshot)
        self._tables_of, self._tables = snapshot, OrderedDict({b"": (table, None)})

    async def prepare(self) -> None:
        """Prepare and sort a new snapshot's nodes before the next plan, if plans are requested."""
        snapshot = self._source.snapshot
        if (
            not isinstance(snapshot, Judgement)
            or self._tables_of is snapshot
            or snapshot.version > self._last_version + PREPARED_VERSIONS
        ):
            return
        excluded = excluded_since(snapshot, self._excluded)

        def prepared() -> NodeTable:
            table = node_table(snapshot, excluded=excluded)
            table.order(None)
            return table

        async with self._lock:
            table = await asyncio.to_thread(prepared)
        if self._source.snapshot is snapshot and self._tables_of is not snapshot:
            self._begin(snapshot, table)

    async def run(self, work: Callable[[], T]) -> T:
        """Run *work* in a thread, after the waiting plans. Raises ResourceExhausted."""
        reason = f"{self._plans.count} plans run or wait already; send one after another"
        with self._plans.slot(PLANS_MAX, reason, RETRY_SECONDS):
            async with self._lock:
                return await asyncio.to_thread(work)


def _reply_to(
    request: placement_pb2.PlanPlacementRequest, question: PlanQuestion
) -> placement_pb2.PlanPlacementResponse:
    snapshot = question.snapshot
    return placement_pb2.PlanPlacementResponse(
        decision_id=decision_id(decision_pb2.DECISION_PLACEMENT, request, snapshot),
        score_version=snapshot.version,
        dictionary_version=snapshot.dictionary_version,
        allocation_version=request.candidates.allocation_version,
        candidates_source=question.candidates.source,
        degraded=bool(snapshot.degraded_reason),
        degraded_reason=snapshot.degraded_reason,
        notes=[*notes_of(request.gang, snapshot), *messages.size_notes(question.needs)],
    )


def _whole_reply(
    request: placement_pb2.PlanPlacementRequest, question: PlanQuestion
) -> placement_pb2.PlanPlacementResponse:
    """Return the answer with an option, or with the constraints that prevent it."""
    began = time.perf_counter()
    reply = _reply_to(request, question)
    _add_options(reply, request, question, 1)
    if not reply.options:
        _add_blockers(reply, request, question)
    reply.solve_time.FromNanoseconds(round((time.perf_counter() - began) * 1e9))
    return reply


def _add_options(
    reply: placement_pb2.PlanPlacementResponse,
    request: placement_pb2.PlanPlacementRequest,
    question: PlanQuestion,
    options_max: int,
) -> None:
    """Add up to *options_max* options to *reply*."""
    table, needs = question.table, question.needs
    terms = (table, question.candidates, needs, question.communication)
    if needs.elastic is None:
        options = elastic.plan(*terms, options_max=options_max)
    else:
        plan = elastic.plan_sizes(*terms, options_max=options_max, every_size=request.explain)
        options = plan.options
        add_sizes(reply, needs.elastic, plan.sizes, explain=request.explain)
    for option in options:
        reply.options.append(
            messages.option_message(table, option, explain=request.explain, needs=needs)
        )


def _add_blockers(
    reply: placement_pb2.PlanPlacementResponse,
    request: placement_pb2.PlanPlacementRequest,
    question: PlanQuestion,
) -> None:
    """Add the constraints that prevent a plan to *reply*."""
    result = blockers.find_blockers(
        question.table, question.candidates, question.needs, question.communication
    )
    reply.proven = result.is_proven
    for blocked_by in result.blockers:
        blocker = reply.blockers.add(
            constraint=blocked_by.constraint,
            message=blocked_by.message,
            nodes_excluded=blocked_by.nodes_excluded,
        )
        for change in blocked_by.relaxations:
            relaxation = blocker.relaxations.add(change=change.change)
            relaxation.gang.CopyFrom(request.gang)
            messages.apply_change(relaxation.gang, change.needs)
            relaxation.added_node_index.extend(sorted(change.added_nodes.tolist()))
            relaxation.price.CopyFrom(messages.price_message(change.price, explain=request.explain))
            relaxation.survival.CopyFrom(
                messages.estimate_message(change.price.survival, explain=request.explain)
            )
            if change.start_hours is not None:
                median, late = change.start_hours
                relaxation.start_p50.FromNanoseconds(round(median * 3600e9))
                relaxation.start_p90.FromNanoseconds(round(late * 3600e9))


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
        self, one: ResizeChoice, plan: ResizePlan, table: NodeTable
    ) -> placement_pb2.ResizeOption:
        explain = self.request.explain
        before, after = self.current.size, one.choice.nodes.size
        if one is plan.stay:
            kind = placement_pb2.RESIZE_STAY
        elif after == before:
            kind = placement_pb2.RESIZE_MOVE
        else:
            kind = placement_pb2.RESIZE_GROW if after > before else placement_pb2.RESIZE_SHRINK
        option = placement_pb2.ResizeOption(
            kind=kind,
            placement=messages.option_message(table, one.choice, explain=explain),
            joined_node_index=one.joined.tolist(),
            left_node_index=one.left.tolist(),
            stop_hours=messages.estimate_message(one.stop, explain=explain),
            gain_gpu_hours=messages.estimate_message(one.gain, explain=explain),
            reason=one.reason,
        )
        option.wait.FromNanoseconds(round(one.wait_hours * 3600e9))
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
    needs = messages.requirements_of(gang, snapshot.reported_factors, snapshot.tenants)
    if (gpus := snapshot.facts.gpus[current]).size and not np.all(
        gpus >= max(gang.gpus_per_node, 1)
    ):
        node = int(current[gpus < max(gang.gpus_per_node, 1)][0])
        reason = f"{gang.gpus_per_node}, and member {node} has {int(snapshot.facts.gpus[node])}"
        raise InvalidArgument("gang.gpus_per_node", reason)
    check_real("gain_gpu_hours_min", request.gain_gpu_hours_min, GAIN_GPU_HOURS_MAX)
    week = messages.WEEK_SECONDS
    return ResizeQuestion(
        request, gang, snapshot, messages.candidates_of(request.candidates, snapshot), needs, current,
        ResizeTimes(
            hours_of("reshard", request, "reshard", week),
            hours_of("checkpoint_age", request, "checkpoint_age", week),
            request.checkpoint_on_demand,
        ),
    )  # fmt: skip
