"""OutcomeService: what happened, as schedulers tell it. It is kept with what our scores had expected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import isfinite
from typing import Any

from ...fingerprints.wire import outcome_pb2
from ...fingerprints.wire.outcome_pb2_grpc import OutcomeServiceServicer
from ..access.caller import caller
from ..advice.book import Book
from ..advice.limits import HOUR_NS, SECOND_NS
from ..advice.rows import Happened
from ..refusals import Invalid
from ..store.records import time_us
from .advisory import name_of
from .fields import actor_with_login, bounded, node_of, time_ns_of
from .repeated import Answers

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
        spans = [(at, host, *_span(one)) for at, one in enumerate(told) for host in _hosts(one)]
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
            request, context, lambda: said(self._book.take_outcomes(rows)), self._book.flushed,
            would=lambda: said(self._book.unknown_outcomes(names)),
        )  # fmt: skip

    def _row(self, one: outcome_pb2.Outcome, expected: float | None, reporter: str) -> Happened:
        advisory = name_of(one.advisory) if one.advisory else ""
        known = self._book.known(advisory) if advisory else None
        (begun, ended), hosts = _span(one), _hosts(one)
        blamed = node_of(one.blamed_node) if one.blamed_node else ""
        row = (
            time_us(self._wall_ns()), one.outcome_id, advisory, reporter, one.workload,
            hosts, time_us(begun), time_us(ended), one.interrupted,
            blamed, one.end_reason, one.advice_followed, one.lost_gpu_hours,
            (ended - begun) / HOUR_NS * len(hosts), expected, known.reason if known else "",
        )  # fmt: skip
        return Happened(one.outcome_id, one.interrupted, expected, row, len(hosts))


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


def _span(one: outcome_pb2.Outcome) -> tuple[int, int]:
    begun = time_ns_of("start_time", one.start_time)
    ended = time_ns_of("end_time", one.end_time)
    if not begun:
        raise Invalid("start_time", "is missing: when it began")
    if not begun < ended <= begun + SECONDS_MAX * SECOND_NS:
        raise Invalid("end_time", "expected later than start_time, by a year at most")
    return begun, ended
