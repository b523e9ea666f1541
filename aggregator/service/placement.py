"""PlacementService: the best nodes for a gang, from the last snapshot; calls change nothing."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from ...contract.wire import decision_pb2, placement_pb2
from ...contract.wire.placement_pb2_grpc import PlacementServiceServicer
from ...fingerprints.sensitivity import NETWORK, NVLINK, WorkloadNeeds
from ..arrays import Flags
from ..decisions import elastic, node_search
from ..decisions.inputs import DecisionInputs
from ..decisions.neighbors import NeighborPredictions, beside_neighbors
from ..decisions.node_table import (
    NeighborPrediction,
    NodeTable,
    excluded_now,
    excluded_since,
    node_table,
)
from ..decisions.planner import PlacementChoice
from ..decisions.quantity import Quantity, QuantitySource
from ..decisions.violations import violations
from ..errors import NotFound, ServiceUnavailable
from ..principal import current_login, current_role
from ..scoring.evaluate import Judgement
from . import placement_messages as messages
from .caller_slots import CallerSlots
from .decision_recorder import DecisionRecorder, decision_id
from .exchange_rates import notes_of
from .known_runs import visible_name
from .memory_needs import memory_notes, requirements_in, transfers_of
from .plan_reply import PlanReply, plan_reply
from .plan_watch import PlanQuestion, PlanWatches, WatchedPlan
from .resize_messages import resize_question
from .score import SnapshotSource, requested_workload
from .validation import check_text

#: Maximum workloads whose node tables are cached, until the next snapshot.
TABLES_MAX = 16
#: Maximum plans that run or wait; further callers must retry after RETRY_SECONDS.
PLANS_MAX, RETRY_SECONDS = 16, 1.0
#: Bounds of a workload's communication share, as factors (assumed): fingerprints count bytes, not
#: overlap.
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
        #: Predictions for partly used nodes, by the name of a job, and recorded ones for a replay.
        self._neighbors: dict[str, NeighborPredictions] = {}
        self._recorded: Mapping[int, NeighborPrediction] | None = None
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
        reply = PlanReply(request, question)
        is_quick = options_max == 1 and not question.needs.has_groups
        if self._is_dedicated and is_quick and not self._plans.count:
            reply.add_options(1)
        else:
            await self.run(lambda: reply.add_options(options_max))
        if not reply.message.options:
            await self.run(reply.add_blockers)
        reply.add_solve_time(began)
        self.record(decision_pb2.DECISION_PLACEMENT, request, reply.message, question.table)
        return reply.message

    async def WatchPlan(
        self, request_iterator: AsyncIterator[placement_pb2.WatchPlanRequest], context: Any
    ) -> None:
        """Write a plan, and another when it is outdated. Raises like PlanPlacement."""

        async def turn(watched: WatchedPlan) -> placement_pb2.WatchPlanResponse | None:
            question = self._question(watched.request)
            return await self.run(
                lambda: watched.turn(question, lambda: plan_reply(watched.request, question))
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
        needs = requirements_in(snapshot, gang)
        candidates = messages.candidates_of(placement_pb2.PlacementCandidates(), snapshot)
        table, communication = self.table(snapshot, gang)
        messages.check_groups(needs, nodes.size, node_search.gpus_of(table, needs))

        if needs.gpus_per_node:
            may_use = np.zeros(len(table), dtype=bool)
            may_use[nodes] = True
            table = self._beside_neighbors(table, gang, may_use)

        def evaluated() -> PlacementChoice:
            return elastic.evaluate_nodes(table, candidates, needs, nodes, communication)

        option = await self.run(evaluated) if needs.has_groups else evaluated()
        violated = violations(table, needs, nodes)
        reply = placement_pb2.EvaluatePlacementResponse(
            option=messages.option_message(
                table, option, explain=request.explain, violations=violated, needs=needs
            ),
            score_version=snapshot.version,
            dictionary_version=snapshot.dictionary_version,
            degraded=bool(snapshot.degraded_reason),
            degraded_reason=snapshot.degraded_reason,
            decision_id=decision_id(decision_pb2.DECISION_EVALUATION, request, snapshot),
            notes=[*notes_of(gang, snapshot), *memory_notes(table, needs, gang)],
        )
        self.record(decision_pb2.DECISION_EVALUATION, request, reply, table)
        return reply

    def record(self, kind: int, request: Any, reply: Any, table: NodeTable) -> None:
        """Record a decision; *table*: its nodes."""
        if self._recorder is not None:
            known_as = visible_name(request.gang.workload.job, table.snapshot.workloads.names) or ""
            self._recorder.record(kind, request, reply, table, known_as)

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
        needs = requirements_in(snapshot, request.gang)
        candidates = messages.candidates_of(request.candidates, snapshot)
        table, communication = self.table(snapshot, request.gang)
        needs = messages.grouped_sizes(needs, node_search.gpus_of(table, needs))
        messages.check_groups(needs, needs.nodes, node_search.gpus_of(table, needs))
        if needs.gpus_per_node:
            table = self._beside_neighbors(table, request.gang, candidates.nodes)
        return PlanQuestion(table, candidates, needs, communication)

    def _beside_neighbors(
        self, table: NodeTable, gang: placement_pb2.GangRequirements, may_use: Flags
    ) -> NodeTable:
        """Return *table* with the predicted speed beside running jobs, for a gang that takes a part of each node."""
        job, snapshot = gang.workload.job, table.snapshot
        if job not in self._neighbors:
            while len(self._neighbors) >= TABLES_MAX:
                self._neighbors.pop(next(iter(self._neighbors)))
            self._neighbors[job] = NeighborPredictions(snapshot, job, self._recorded)
        shared = [node for node in snapshot.residents if may_use[node]]
        return beside_neighbors(table, self._neighbors[job], shared)

    def table(
        self, snapshot: Judgement, gang: placement_pb2.GangRequirements
    ) -> tuple[NodeTable, Quantity | None]:
        """Return the nodes with this workload's speeds, and its communication share."""
        self._last_version = snapshot.version
        if self._tables_of is not snapshot:
            excluded = excluded_since(snapshot, self._excluded)
            self._begin(snapshot, node_table(snapshot, excluded=excluded))
        plain, _ = self._tables[b""]
        transfers = transfers_of(gang, snapshot)
        if not gang.HasField("workload") and transfers is None:
            return plain, None
        named: Any = placement_pb2.GangRequirements(workload=gang.workload, memory=gang.memory)
        # A name may be the run of another login for another caller.
        key = f"{current_login()} {current_role()} ".encode()
        key += named.SerializeToString(deterministic=True)
        entry = self._tables.get(key)
        if entry is None:
            needs, source, communication = None, "", None
            if gang.HasField("workload"):
                needs, source = requested_workload(snapshot, named.workload)
                communication = _communication(needs, source, by_job=bool(named.workload.job))
            table = node_table(snapshot, needs, source, plain.excluded, transfers)
            entry = self._tables[key] = table, communication
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
            return self.table(snapshot, placement_pb2.GangRequirements(memory=gang.memory))

    def begin_with(self, inputs: DecisionInputs) -> None:
        """Answer from the stored *inputs*, for a replay."""
        self._recorded = inputs.neighbors
        self._begin(inputs.snapshot, node_table(inputs.snapshot, excluded=inputs.excluded))

    def _begin(self, snapshot: Judgement, table: NodeTable) -> None:
        if not snapshot.degraded_reason:
            self._excluded = snapshot.dictionary_version, excluded_now(snapshot)
        self._neighbors = {}
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


def _communication(needs: WorkloadNeeds, source: str, *, by_job: bool) -> Quantity:
    """Return the communication share of a workload, with its interval."""
    share = needs.bound[NETWORK] + needs.bound[NVLINK]
    return Quantity(
        share,
        share * SHARE_INTERVAL[0],
        min(share * SHARE_INTERVAL[1], 1.0),
        QuantitySource.MEASURED if by_job else QuantitySource.DECLARED,
        f"share of a step bound by network and NVLink: {source}",
    )
