"""OutcomeService: what happened, as schedulers tell it. It is kept with what our scores had expected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import isfinite
from typing import Any

from ...contract.wire import outcome_pb2
from ...contract.wire.outcome_pb2_grpc import OutcomeServiceServicer
from ..advisories.advisory import HOUR_NS, SECOND_NS
from ..advisories.engine import Book
from ..advisories.rows import Expected, Happened, Span
from ..auth.principal import caller
from ..errors import Invalid
from ..store.rows import time_us
from .advisory import name_of
from .idempotency import Answers
from .validation import actor_with_login, bounded, node_of, time_ns_of

OUTCOMES_MAX = 1000
NODES_MAX = 4096
#: Of all outcomes of a call together.
NODES_OF_ALL_MAX = 100_000
ID_CHARACTERS_MAX = 128
WORKLOAD_CHARACTERS_MAX = 256
END_REASON_CHARACTERS_MAX = 200
LOST_GPU_HOURS_MAX = 1e9
SECONDS_MAX = 366 * 86_400
#: By so much a caller's clock may be ahead of ours.
AHEAD_SECONDS_MAX = 600


class OutcomeService(OutcomeServiceServicer):
    """One call of grpc.aio. A `Refusal` becomes its status at the edge."""

    def __init__(self, book: Book, wall_ns: Callable[[], int]) -> None:
        self._book, self._wall_ns = book, wall_ns
        self._answers = Answers()
        #: A call may ask for a hundred thousand hosts' scores of a year: one after the other.
        self._one = asyncio.Lock()

    async def ReportOutcomes(
        self, request: outcome_pb2.ReportOutcomesRequest, context: Any
    ) -> bytes:
        """Keep them, all or none. Raises Invalid, NotReady."""
        told = request.outcomes
        if not 1 <= len(told) <= OUTCOMES_MAX:
            raise Invalid("outcomes", f"{len(told)}, expected 1 to {OUTCOMES_MAX}")
        if sum(len(one.nodes) for one in told) > NODES_OF_ALL_MAX:
            raise Invalid(
                "outcomes", f"more than {NODES_OF_ALL_MAX} nodes in all; tell them in parts"
            )
        for at, one in enumerate(told):
            check(at, one, self._wall_ns())
        spans = [
            Span(at, host, *_span(one), one.interrupted, _is_suspect(one, host))
            for at, one in enumerate(told)
            for host in _hosts(one)
        ]
        only_told = request.validate_only or self._answers.has(request, context)
        async with self._one:
            expected = {} if only_told else await self._book.expected(spans)
        reporter = actor_with_login(caller(context), "scheduler")
        rows = [self._row(one, expected.get(at), reporter) for at, one in enumerate(told)]

        def said(new: int) -> outcome_pb2.ReportOutcomesResponse:
            return outcome_pb2.ReportOutcomesResponse(
                accepted_count=new, known_count=len(rows) - new
            )

        names = [one.outcome_id for one in told]
        return await self._answers.once(
            request, context, lambda: said(self._book.take_outcomes(rows, self._wall_ns())),
            self._book.flushed,
            would=lambda: said(self._book.unknown_outcomes(names)),
        )  # fmt: skip

    def _row(self, one: outcome_pb2.Outcome, expected: Expected | None, reporter: str) -> Happened:
        advisory = name_of(one.advisory) if one.advisory else ""
        known = self._book.known(advisory) if advisory else None
        (begun, ended), hosts = _span(one), _hosts(one)
        blamed = node_of(one.blamed_node) if one.blamed_node else ""
        host_hours = (ended - begun) / HOUR_NS * len(hosts)
        row = (
            time_us(self._wall_ns()), one.outcome_id, advisory, reporter, one.workload,
            hosts, time_us(begun), time_us(ended), one.interrupted,
            blamed, one.end_reason, one.advice_followed, one.lost_gpu_hours,
            host_hours, expected.interruptions if expected else None, known.reason if known else "",
            expected.by_hazard if expected else None,
            [share * one.interrupted for share in expected.shares] if expected else None,
        )  # fmt: skip
        return Happened(
            one.outcome_id, reporter, one.interrupted, expected, row, host_hours, len(hosts)
        )


def check(at: int, one: outcome_pb2.Outcome, now_ns: int) -> None:
    """Raise Invalid with the field's place among all."""
    try:
        _check_one(one, now_ns)
    except Invalid as error:
        raise Invalid(f"outcomes[{at}].{error.field}", error.field_words) from None


def _check_one(one: outcome_pb2.Outcome, now_ns: int) -> None:
    if not one.outcome_id:
        raise Invalid("outcome_id", f"expected 1 to {ID_CHARACTERS_MAX} characters of yours")
    bounded("outcome_id", one.outcome_id, ID_CHARACTERS_MAX)
    bounded("workload", one.workload, WORKLOAD_CHARACTERS_MAX)
    bounded("end_reason", one.end_reason, END_REASON_CHARACTERS_MAX)
    if not 1 <= len(one.nodes) <= NODES_MAX:
        raise Invalid("nodes", f"{len(one.nodes)}, expected 1 to {NODES_MAX}")
    if not (isfinite(one.lost_gpu_hours) and 0 <= one.lost_gpu_hours <= LOST_GPU_HOURS_MAX):
        raise Invalid("lost_gpu_hours", f"{one.lost_gpu_hours}, expected 0 to 1e9")
    for node in one.nodes:
        node_of(node, "nodes")
    if one.blamed_node:
        node_of(one.blamed_node, "blamed_node")
        if one.blamed_node not in one.nodes:
            raise Invalid("blamed_node", f"{one.blamed_node!r} is none of its nodes")
    if one.advisory:
        name_of(one.advisory, "advisory")
    _, ended = _span(one)
    if ended > now_ns + AHEAD_SECONDS_MAX * SECOND_NS:
        ahead = (ended - now_ns) / HOUR_NS
        raise Invalid("end_time", f"{ahead:,.1f} h ahead of our clock; tell it when it has ended")


def _hosts(one: outcome_pb2.Outcome) -> list[str]:
    """Return its hosts, each once."""
    return list(dict.fromkeys(map(node_of, one.nodes)))


def _is_suspect(one: outcome_pb2.Outcome, host: str) -> bool:
    """Say whether an interruption may have come of *host*: it is blamed, or nobody is."""
    return not one.blamed_node or node_of(one.blamed_node) == host


def _span(one: outcome_pb2.Outcome) -> tuple[int, int]:
    begun = time_ns_of("start_time", one.start_time)
    ended = time_ns_of("end_time", one.end_time)
    if not begun:
        raise Invalid("start_time", "is missing: when it began")
    if not begun < ended <= begun + SECONDS_MAX * SECOND_NS:
        raise Invalid("end_time", "expected later than start_time, by a year at most")
    return begun, ended
