"""Watches a plan: checks it against each snapshot, and sends a new one when it is invalid or another is better.

A scheduler that polls gets another set of nodes whenever two cost nearly the same. A watched plan stays the same while it holds
and no other is cheaper by a margin.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...contract.wire import placement_pb2 as wire
from ..counter_deltas import Indexes
from ..decisions import elastic, planner
from ..decisions.node_table import NodeTable
from ..decisions.planner import Candidates, PlacementChoice
from ..decisions.quantity import Quantity
from ..decisions.requirements import GangRequirements
from ..errors import CAPACITY_RETRY_SECONDS, InvalidArgument, ResourceExhausted
from ..principal import current_login
from ..scoring.evaluate import Judgement
from . import placement_messages as messages
from .caller_slots import CallerSlots
from .exchange_rates import RATE_MAX

#: How often a new snapshot is looked for, and calls that are open at one time.
POLL_SECONDS, WATCHES_MAX = 0.1, 64
#: A better plan is looked for with every few versions; without anything new a response says so after this many.
SEARCH_VERSIONS, QUIET_VERSIONS = 5, 10
#: A plan that holds gives way to one that costs less by more than this share of GPUs x hours, unless the request says otherwise.
CHANGE_SHARE_MIN = 0.005
#: Names in one reason.
REASON_NODES_MAX = 5


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """A request as one snapshot answers it."""

    table: NodeTable
    candidates: Candidates
    needs: GangRequirements
    communication: Quantity | None

    @property
    def snapshot(self) -> Judgement:
        """The snapshot that answers."""
        return self.table.snapshot


class WatchedPlan:
    """One request, and the nodes that its caller got last."""

    def __init__(self, request: wire.WatchPlanRequest, before: WatchedPlan | None = None) -> None:
        """*before*: of the request that this one replaces; its nodes stay unless the request names others. Raises InvalidArgument."""
        if request.plan.options_max > 1:
            reason = f"{request.plan.options_max}, expected 0 or 1: one plan is watched"
            raise InvalidArgument("plan.options_max", reason)
        if not 0.0 <= request.change_gpu_hours_min <= RATE_MAX:
            reason = f"{request.change_gpu_hours_min:g}, expected 0 to {RATE_MAX:g}"
            raise InvalidArgument("change_gpu_hours_min", reason)
        self.request = request.plan
        self._margin = request.change_gpu_hours_min
        self._current: Indexes = np.array(request.current_node_index, dtype=np.intp)
        if before is not None and not self._current.size:
            self._current = before._current
        self._offered_gpu_hours = np.nan
        self._is_first = True
        self._searched_version = self._announced_version = 0

    def turn(
        self, question: PlanQuestion, answer: Callable[[], wire.PlanPlacementResponse]
    ) -> wire.WatchPlanResponse | None:
        """Return what there is to tell about a snapshot, None where there is nothing. *answer*: a whole answer to the request.

        Raises InvalidArgument for current nodes that cannot be.
        """
        version = question.snapshot.version
        if self._is_first:
            self._check_current(question)
        current, reasons = self._evaluate(question)
        is_due = version >= self._searched_version + SEARCH_VERSIONS
        has_moved = current is not None and not (
            abs(current.price.total.value - self._offered_gpu_hours) <= self._margin_of(question)
        )
        response: wire.WatchPlanResponse | None = None
        if self._is_first or current is None or is_due or has_moved:
            self._searched_version = version
            response = self._search(question, answer, current, reasons)
        if response is None and has_moved and current is not None:
            response = self._repriced(question, current)
        if response is None and version >= self._announced_version + QUIET_VERSIONS:
            response = wire.WatchPlanResponse(change=wire.PLAN_UNCHANGED)
        if response is not None:
            response.score_version = self._announced_version = version
        self._is_first = False
        return response

    def _check_current(self, question: PlanQuestion) -> None:
        nodes, count = self._current, len(question.table)
        if nodes.size and nodes.max() >= count:
            reason = f"{nodes.max()}, expected below {count}, the number of nodes"
            raise InvalidArgument("current_node_index", reason)
        if np.unique(nodes).size != nodes.size:
            raise InvalidArgument(
                "current_node_index", "a node is listed twice, expected each once"
            )

    def _margin_of(self, question: PlanQuestion) -> float:
        needs = question.needs
        gross = needs.nodes_max * planner.gpus_of(question.table, needs) * needs.hours
        return self._margin or CHANGE_SHARE_MIN * gross

    def _evaluate(self, question: PlanQuestion) -> tuple[PlacementChoice | None, list[str]]:
        """Return what the plan of before costs now, None where it does not hold, and why not."""
        nodes, table = self._current, question.table
        if not question.needs.allows(nodes.size):
            return None, [f"{nodes.size} nodes for {question.needs.nodes}"] if nodes.size else []
        reasons = elastic.violations(table, question.needs, nodes)
        if (out := nodes[table.excluded[nodes]]).size:
            reasons = [one for one in reasons if "UNHEALTHY" not in one]
            reasons.insert(0, f"{_names(question, out)}: UNHEALTHY, in maintenance, or gone")
        taken = nodes[
            ~planner.roomy(table, question.candidates, question.needs)[nodes]
            | ~question.candidates.nodes[nodes]
        ]
        if taken.size:
            reasons.insert(0, f"{_names(question, taken)}: no longer free")
        if reasons:
            return None, reasons
        choice = elastic.evaluate_nodes(
            table, question.candidates, question.needs, nodes, question.communication
        )
        return choice, []

    def _search(
        self,
        question: PlanQuestion,
        answer: Callable[[], wire.PlanPlacementResponse],
        current: PlacementChoice | None,
        reasons: list[str],
    ) -> wire.WatchPlanResponse | None:
        """Look for a plan; return it if its caller must get it."""
        had_plan = self._current.size > 0
        if current is None and not had_plan and not self._is_first:
            # Nothing did fit: whether something does now is a matter of a search, and why not has been said.
            found = elastic.plan(
                question.table, question.candidates, question.needs, question.communication
            )
            if not found:
                return None
        plan = answer()
        if current is not None:
            best = plan.options[0].price.total_gpu_hours.value if plan.options else np.inf
            if best >= current.price.total.value - self._margin_of(question):
                return self._repriced(question, current) if self._is_first else None
        change = wire.PLAN_CHEAPER
        if current is None:
            change = wire.PLAN_BROKEN if had_plan else wire.PLAN_FIRST
        return self._announced(plan, change, reasons)

    def _repriced(self, question: PlanQuestion, current: PlacementChoice) -> wire.WatchPlanResponse:
        """Return the same nodes with their price of now."""
        snapshot = question.snapshot
        plan = wire.PlanPlacementResponse(
            score_version=snapshot.version,
            dictionary_version=snapshot.dictionary_version,
            candidates_source=question.candidates.source,
            degraded=bool(snapshot.degraded_reason),
            degraded_reason=snapshot.degraded_reason,
        )
        plan.options.append(
            messages.option_message(
                question.table, current, explain=self.request.explain, needs=question.needs
            )
        )
        change = wire.PLAN_FIRST if self._is_first else wire.PLAN_REPRICED
        return self._announced(plan, change, [])

    def _announced(
        self, plan: wire.PlanPlacementResponse, change: Any, reasons: list[str]
    ) -> wire.WatchPlanResponse:
        before = set(self._current.tolist())
        nodes = list(plan.options[0].node_index) if plan.options else []
        self._current = np.array(nodes, dtype=np.intp)
        self._offered_gpu_hours = (
            plan.options[0].price.total_gpu_hours.value if plan.options else np.nan
        )
        return wire.WatchPlanResponse(
            change=change, plan=plan, reasons=reasons,
            left_node_index=sorted(before.difference(nodes)),
            joined_node_index=sorted(set(nodes) - before),
        )  # fmt: skip


def _names(question: PlanQuestion, nodes: Indexes) -> str:
    names = [question.snapshot.names[at] for at in nodes[:REASON_NODES_MAX].tolist()]
    more = nodes.size - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


class PlanWatches:
    """All open watches of one service. They take turns: of all of them at most one plan runs or waits."""

    def __init__(self) -> None:
        self._slots = CallerSlots()
        self._turn = asyncio.Lock()

    async def watch(
        self,
        requests: AsyncIterator[wire.WatchPlanRequest],
        snapshot: Callable[[], Judgement],
        turn: Callable[[WatchedPlan], Awaitable[wire.WatchPlanResponse | None]],
        write: Callable[[wire.WatchPlanResponse], Awaitable[object]],
    ) -> None:
        """Write responses until the caller is gone. Raises InvalidArgument, ResourceExhausted, and what *turn* raises."""
        reason = "no further plan can be watched; end some, or ask PlanPlacement"
        with self._slots.slot(WATCHES_MAX, reason, CAPACITY_RETRY_SECONDS):
            await self._watch(requests, snapshot, turn, write)

    async def _watch(
        self,
        requests: AsyncIterator[wire.WatchPlanRequest],
        snapshot: Callable[[], Judgement],
        turn: Callable[[WatchedPlan], Awaitable[wire.WatchPlanResponse | None]],
        write: Callable[[wire.WatchPlanResponse], Awaitable[object]],
    ) -> None:
        latest: asyncio.Queue[Any] = asyncio.Queue()
        reader = asyncio.create_task(_read(requests, latest))
        try:
            request = _raised(await latest.get())
            if request is None:
                raise InvalidArgument("plan", "the call ended without a request")
            watched, version = WatchedPlan(request), -1
            while True:
                if (request := _raised(await _within_a_poll(latest))) is not None:
                    watched, version = WatchedPlan(request, watched), -1
                if (now := snapshot().version) == version:
                    continue
                try:
                    async with self._turn:
                        response = await turn(watched)
                except ResourceExhausted:
                    continue  # others' plans run and wait: at the next look
                version = now
                if response is not None:
                    await write(response)
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reader


def _raised(
    request: wire.WatchPlanRequest | InvalidArgument | None,
) -> wire.WatchPlanRequest | None:
    if isinstance(request, InvalidArgument):
        raise request
    return request


async def _read(requests: AsyncIterator[wire.WatchPlanRequest], latest: asyncio.Queue[Any]) -> None:
    """Leave the last request for the watch. A caller that sends no more still listens."""
    has_request, login = False, current_login()
    try:
        async for request in requests:
            has_request = True
            messages.claim_reservations(request.plan.candidates, login)
            while not latest.empty():
                latest.get_nowait()
            latest.put_nowait(request)
    except InvalidArgument as error:  # a malformed message, too
        latest.put_nowait(error)
        return
    if not has_request:
        latest.put_nowait(None)


async def _within_a_poll(latest: asyncio.Queue[Any]) -> Any:
    """Return a new request, None where none comes until it is time to look for a snapshot."""
    try:
        return await asyncio.wait_for(latest.get(), POLL_SECONDS)
    except TimeoutError:
        return None
