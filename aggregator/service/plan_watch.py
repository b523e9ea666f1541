"""Watches a plan: checks it against each snapshot, and sends a new plan when it is needed.

A scheduler that polls gets another set of nodes whenever two cost nearly the same. A watched plan
stays the same while it holds and no other is cheaper by a margin.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...contract.text import counted
from ...contract.wire import placement_pb2 as wire
from ..arrays import Indexes
from ..decisions import elastic, node_search
from ..decisions.node_search import Candidates
from ..decisions.node_table import NodeTable
from ..decisions.planner import PlacementChoice
from ..decisions.quantity import Quantity
from ..decisions.requirements import GangRequirements
from ..decisions.violations import violations
from ..errors import CAPACITY_RETRY_SECONDS, InvalidArgument, ResourceExhausted
from ..principal import current_login
from ..scoring.evaluate import Judgement
from . import placement_messages as messages
from .caller_slots import CallerSlots
from .exchange_rates import RATE_MAX

#: Interval of checks for a new snapshot, and the maximum of open calls.
POLL_SECONDS, WATCHES_MAX = 0.1, 64
#: Versions between searches for a better plan, and the maximum between responses.
SEARCH_VERSIONS, QUIET_VERSIONS = 5, 10
#: Default margin as a share of GPUs x hours: only a plan that is cheaper by more replaces a valid
#: plan.
CHANGE_SHARE_MIN = 0.005
#: Maximum node names in a reason.
REASON_NODES_MAX = 5


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """A request with its terms from a snapshot."""

    table: NodeTable
    candidates: Candidates
    needs: GangRequirements
    communication: Quantity | None

    @property
    def snapshot(self) -> Judgement:
        """The snapshot that answers the request."""
        return self.table.snapshot


class WatchedPlan:
    """A request, and the nodes that its caller got last."""

    def __init__(self, request: wire.WatchPlanRequest, before: WatchedPlan | None = None) -> None:
        """*before*: the replaced watch, whose nodes stay by default. Raises InvalidArgument."""
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
        """Return a snapshot's response, if any. *answer*: computes a full plan.

        Raises InvalidArgument for impossible current nodes.
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
        gross = needs.nodes_max * node_search.gpus_of(question.table, needs) * needs.hours
        return self._margin or CHANGE_SHARE_MIN * gross

    def _evaluate(self, question: PlanQuestion) -> tuple[PlacementChoice | None, list[str]]:
        """Return the current price of the last plan; None with reasons if it no longer holds."""
        nodes, table = self._current, question.table
        if not question.needs.allows(nodes.size):
            return None, [
                f"{counted(nodes.size, 'node')} for {question.needs.nodes}"
            ] if nodes.size else []
        reasons = violations(table, question.needs, nodes)
        if (out := nodes[table.excluded[nodes]]).size:
            reasons = [reason for reason in reasons if "UNHEALTHY" not in reason]
            reasons.insert(0, f"{_names(question, out)}: UNHEALTHY, in maintenance, or gone")
        taken = nodes[
            ~node_search.roomy(table, question.candidates, question.needs)[nodes]
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
        """Search for a plan; return it if the caller should get it."""
        had_plan = self._current.size > 0
        if current is None and not had_plan and not self._is_first:
            # Nothing fit before, as reported: explain only if the result changed.
            options = elastic.plan(
                question.table, question.candidates, question.needs, question.communication
            )
            if not options:
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
        """Return the same nodes with their current price."""
        snapshot = question.snapshot
        plan = wire.PlanPlacementResponse(
            score_version=snapshot.version,
            dictionary_version=snapshot.dictionary_version,
            candidates_source=question.candidates.source,
            degraded=bool(snapshot.degraded_reason),
            degraded_reason=snapshot.degraded_reason,
        )
        explain, needs = self.request.explain, question.needs
        option = messages.option_message(question.table, current, explain=explain, needs=needs)
        plan.options.append(option)
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
            change=change,
            plan=plan,
            reasons=reasons,
            left_node_index=sorted(before.difference(nodes)),
            joined_node_index=sorted(set(nodes) - before),
        )


def _names(question: PlanQuestion, nodes: Indexes) -> str:
    names = [question.snapshot.names[node] for node in nodes[:REASON_NODES_MAX].tolist()]
    more = nodes.size - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


class PlanWatches:
    """The open watches of a service. They take turns: at most one of their plans runs or waits."""

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
        """Write responses until the caller disconnects.

        Raises InvalidArgument, ResourceExhausted, and the errors of *turn*.
        """
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
                    continue  # other plans run and wait: retry at the next poll
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
    """Queue the watch's last request; responses go on without further requests."""
    has_request, login = False, current_login()
    try:
        async for request in requests:
            has_request = True
            messages.claim_reservations(request.plan.candidates, login)
            while not latest.empty():
                latest.get_nowait()
            latest.put_nowait(request)
    except InvalidArgument as error:  # also for a malformed message
        latest.put_nowait(error)
        return
    if not has_request:
        latest.put_nowait(None)


async def _within_a_poll(latest: asyncio.Queue[Any]) -> Any:
    """Return a new request; None if none arrives within POLL_SECONDS."""
    try:
        return await asyncio.wait_for(latest.get(), POLL_SECONDS)
    except TimeoutError:
        return None
