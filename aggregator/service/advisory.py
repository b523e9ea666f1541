"""AdvisoryService: what is advised, as it changes, and who answers it. Limits of each field are said in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from ...fingerprints.wire import advisory_pb2
from ...fingerprints.wire.advisory_pb2_grpc import AdvisoryServiceServicer
from ..access.caller import caller
from ..advice.advisory import Advisory, Case, State, gravity
from ..advice.book import Book
from ..advice.desk import Fuse
from ..advice.events import Acked
from ..advice.feed import WATCHERS_MAX, Change
from ..advice.limits import HOUR_NS, SECOND_NS
from ..refusals import ROOM_SECONDS, Invalid, NotFound, TooMuch
from . import advised, reports
from .advised import PREFIX
from .fields import (
    ACTOR_CHARACTERS_MAX,
    actor_with_login,
    bounded,
    node_of,
    page_size_of,
    time_ns_of,
    timestamp,
)
from .repeated import Answers

NAME_CHARACTERS_MAX = 32
TOKEN_CHARACTERS_MAX = 64
ETAG_CHARACTERS_MAX = 64
NOTE_CHARACTERS_MAX = 500
#: Nodes that others took out, and advice that has ended: so many are told one by one.
UNAVAILABLE_MAX = 1000
#: By so much our clock may be behind what was: more is told.
AHEAD_SECONDS_MAX = 60
#: What is called for and not proposed: so much is told one by one.
HELD_BACK_MAX = 1000


class AdvisoryService(AdvisoryServiceServicer):
    """Seven calls of grpc.aio. A `Refusal` becomes its status at the edge."""

    def __init__(self, book: Book, wall_ns: Callable[[], int], members: reports.Members) -> None:
        self._book, self._wall_ns, self._members = book, wall_ns, members
        self._answers = Answers()
        self._evaluating: asyncio.Task[advisory_pb2.EvaluateRuleResponse] | None = None

    async def WatchAdvisories(
        self, request: advisory_pb2.WatchAdvisoriesRequest, context: Any
    ) -> AsyncIterator[advisory_pb2.AdvisoryEvent]:
        """Yield what is open, or what came after the token, then each change. Raises Invalid, TooMuch."""
        feed = self._book.feed
        number = _number(request.resume_token, feed.begun_ms)
        if feed.watchers >= WATCHERS_MAX:
            words = f"{WATCHERS_MAX} watch advice already; one of them has to end"
            raise TooMuch(words, ROOM_SECONDS)
        feed.watchers += 1
        try:
            async for change in feed.watch(number):
                yield self._event(change, feed.begun_ms)
        finally:
            feed.watchers -= 1

    def _event(self, change: Change, begun_ms: int) -> advisory_pb2.AdvisoryEvent:
        token = "" if change.number is None else f"{begun_ms}-{change.number}"
        if change.advisory is None:
            now = timestamp(self._wall_ns())
            return advisory_pb2.AdvisoryEvent(resume_token=token, bookmark=now)
        return advisory_pb2.AdvisoryEvent(resume_token=token, advisory=self._told(change.advisory))

    def _told(self, one: Advisory) -> advisory_pb2.Advisory:
        return advised.message(one, self._book.expires_ns(one))

    async def ListAdvisories(
        self, request: advisory_pb2.ListAdvisoriesRequest, context: Any
    ) -> advisory_pb2.ListAdvisoriesResponse:
        """Return a page, newest first. Raises Invalid, NotFound."""
        size = page_size_of(request.page_size)
        node = node_of(request.node, "node") if request.node else ""
        before = _page(request.page_token)
        held_back = [] if request.page_token or self._book.shadow else self._held_back(node)
        found = [
            one for one in self._book.all_known()
            if (one.is_open or request.show_ended) and (not node or node in one.hosts)
            and number_of(one.name) < before
        ]  # fmt: skip
        if node and not found and self._members(node) is None:
            raise NotFound(f"no agent has registered as {node}")
        found.sort(key=lambda one: -number_of(one.name))
        page, more = found[:size], len(found) > size
        absent = self._book.machine.memory.absent
        out = [] if request.page_token else self._out_by_advice(node)
        return advisory_pb2.ListAdvisoriesResponse(
            advisories=map(self._told, page),
            next_page_token=str(number_of(page[-1].name)) if more else "",
            withheld_reason=self._withheld(),
            unavailable_nodes=[] if request.page_token else self._unavailable(node),
            unavailable_nodes_count=int(node in absent) if node else len(absent),
            held_back=[advised.held_back(*one) for one in held_back[:HELD_BACK_MAX]],
            held_back_count=len(held_back),
            out_by_advice=map(self._told, out[:UNAVAILABLE_MAX]),
            out_by_advice_count=len(out),
        )

    def _out_by_advice(self, node: str) -> list[Advisory]:
        """Return what has ended and holds a host out, by host; of *node* where it is named."""
        found = [one for one in self._book.standing() if node in ("", one.host)]
        return sorted(found, key=lambda one: one.host)

    def _held_back(self, node: str) -> list[tuple[Case, str]]:
        """Return what is called for and not proposed, with why, the gravest first; on *node* where it is named."""
        memory = self._book.machine.memory
        cases = [
            (memory.cases[key].case, told.words)
            for key, told in memory.held_back.items()
            if key in memory.cases and node in ("", memory.cases[key].case.host)
        ]
        return sorted(cases, key=lambda one: (-gravity(one[0].action), one[0].host, one[0].key))

    def _unavailable(self, node: str) -> list[advisory_pb2.UnavailableNode]:
        """Return who is out by others' word; of one host where *node* names it."""
        absent = self._book.machine.memory.absent
        hosts = [node] if node else sorted(absent)[:UNAVAILABLE_MAX]
        told = [(host, *one) for host in hosts for one in absent.get(host, {}).items()]
        return reports.unavailable(told[:UNAVAILABLE_MAX])

    def _withheld(self) -> str:
        memory = self._book.machine.memory
        if self._book.shadow:
            return "advice is in shadow mode (advice_shadow): see ops.advice_shadow"
        if memory.frozen:
            return f"the fleet's picture is in doubt: {memory.frozen}"
        if (ahead_ns := memory.now_ns - self._wall_ns()) > AHEAD_SECONDS_MAX * SECOND_NS:
            return f"our clock was set back: advice stands still until it has caught up {ahead_ns / HOUR_NS:,.1f} h"
        return _breaker(memory.fuse)

    async def GetAdvisory(
        self, request: advisory_pb2.GetAdvisoryRequest, context: Any
    ) -> advisory_pb2.Advisory:
        """Return one. Raises Invalid, NotFound."""
        return self._told(self._known(request.name))

    async def AckAdvisory(self, request: advisory_pb2.AckAdvisoryRequest, context: Any) -> bytes:
        """Take an answer. Raises Invalid, NotFound, Changed, OutOfDate, NotAllowed, NotReady."""
        actor, book = actor_with_login(caller(context), request.actor), self._book
        answer = acked_of(request, actor, self._wall_ns())
        return await self._answers.once(
            request, context, lambda: self._told(book.decide(answer)), book.flushed,
            would=lambda: advised.message(*book.would(answer)),
            now=lambda: self._told(self._known(request.name)),
        )  # fmt: skip

    async def ReportGangs(self, request: advisory_pb2.ReportGangsRequest, context: Any) -> bytes:
        """Keep what runs where. Raises Invalid, TooMuch, NotReady."""
        by, book = actor_with_login(caller(context), reports.actor_of(request.actor)), self._book
        gangs, unknown = reports.gangs_of(request, by, self._members, self._wall_ns())

        def said(check: Callable[[], None]) -> advisory_pb2.ReportGangsResponse:
            count = book.gangs.count_with(gangs, request.ended_workloads)
            check()
            return advisory_pb2.ReportGangsResponse(gangs_count=count, unknown_nodes=unknown)

        return await self._answers.once(
            request, context, lambda: said(lambda: book.take_gangs(gangs, request.ended_workloads)),
            book.flushed, would=lambda: said(lambda: book.check_gangs(gangs)),
        )  # fmt: skip

    async def ReportUnavailableNodes(
        self, request: advisory_pb2.ReportUnavailableNodesRequest, context: Any
    ) -> bytes:
        """Count nodes as out, or in service again. Raises Invalid, TooMuch, NotReady."""
        by, book = actor_with_login(caller(context), reports.actor_of(request.actor)), self._book
        memory = book.machine.memory
        # By a clock that was set back it would have ended at once.
        now_ns = max(self._wall_ns(), memory.now_ns)
        out = reports.out_of(request, by, self._members, now_ns)

        def said(check: Callable[[], None]) -> advisory_pb2.ReportUnavailableNodesResponse:
            before = {host for host, told in memory.absent.items() if by in told}
            check()
            new = {member.host for one in out.taken for member in one.members}
            return advisory_pb2.ReportUnavailableNodesResponse(
                nodes_count=len((before | new) - set(out.back.hosts)), unknown_nodes=out.unknown
            )

        return await self._answers.once(
            request, context, lambda: said(lambda: book.take_out(out.taken, out.back)),
            book.flushed, would=lambda: said(lambda: book.check_out(out.taken)),
        )  # fmt: skip

    async def EvaluateRule(
        self, request: advisory_pb2.EvaluateRuleRequest, context: Any
    ) -> advisory_pb2.EvaluateRuleResponse:
        """Return what a rule would have advised. Raises Invalid, TooMuch."""
        if self._evaluating is not None and not self._evaluating.done():
            raise TooMuch("another rule is being evaluated; try again when it is done", 5.0)
        now_ns = self._wall_ns()

        def work() -> advisory_pb2.EvaluateRuleResponse:
            return advised.evaluated(self._book.what_if(request.rule, request.days, now_ns))

        # Who hangs up does not end it: a thread cannot be ended, and the next has to wait for it all the same.
        self._evaluating = asyncio.create_task(asyncio.to_thread(work))
        self._evaluating.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._evaluating)

    def _known(self, name: str) -> Advisory:
        found = self._book.known(name_of(name))
        if found is None:
            shadow = (
                "; advice_shadow is on: FROM ops.advice has all of it" if self._book.shadow else ""
            )
            words = f"no advisory {name!r} is known, or it ended more than a day ago"
            raise NotFound(words + shadow)
        return found


def _breaker(fuse: Fuse) -> str:
    """Return what the breaker keeps from being advised; "" for nothing. What takes no host out is advised all the same."""
    lately = "as so much was advised, or failed, lately"
    if fuse.position == "open":
        until = f"{datetime.fromtimestamp(fuse.until_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
        return f"the breaker is open, {lately}: no more hosts are taken out until {until}"
    if fuse.position == "half-open":
        trial = f"{fuse.trial} is tried" if fuse.trial else "one host may be taken out, to try"
        return f"the breaker is half-open, {lately}: {trial}, and no more until that went well"
    return ""


def acked_of(request: advisory_pb2.AckAdvisoryRequest, actor: str, now_ns: int) -> Acked:
    """Return an answer as the machine takes it. *actor*: with its login. Raises Invalid."""
    bounded("etag", request.etag, ETAG_CHARACTERS_MAX)
    bounded("actor", request.actor, ACTOR_CHARACTERS_MAX)
    bounded("note", request.note, NOTE_CHARACTERS_MAX)
    if not request.actor.strip():
        raise Invalid("actor", f"who answers, in 1 to {ACTOR_CHARACTERS_MAX} characters")
    try:
        to = State(request.new_state)
    except ValueError:
        raise Invalid(
            "new_state", f"{request.new_state}: ACCEPTED, REJECTED, DEFERRED, DONE or FAILED"
        ) from None
    name = name_of(request.name)
    until_ns = time_ns_of("defer_until_time", request.defer_until_time)
    return Acked(now_ns, name, to, actor, request.note, request.etag, until_ns)


def number_of(name: str) -> int:
    """Return the number of an advisory: higher is later."""
    return int(name[1:])


def name_of(resource: str, field: str = "name") -> str:
    """Return `a12` of `advisories/a12`, which stands in *field*. Raises Invalid."""
    name = resource.removeprefix(PREFIX)
    digits = name[1:]
    if (
        not resource.startswith(PREFIX)
        or len(resource) > NAME_CHARACTERS_MAX
        or not (name.startswith("a") and digits.isascii() and digits.isdecimal())
    ):
        raise Invalid(field, f"{resource[:80]!r}, expected {PREFIX}a12")
    return name


def _page(token: str) -> int:
    if not token:
        return 1 << 62
    if not (token.isascii() and token.isdecimal() and len(token) < 19):
        raise Invalid("page_token", "expected what the page before gave")
    return int(token)


def _number(token: str, begun_ms: int) -> int | None:
    """Return where to go on; None: with all that is open. Raises Invalid."""
    if not token:
        return None
    begun, dash, number = token.partition("-")
    digits = (begun + number).isascii() and begun.isdecimal() and number.isdecimal()
    if not dash or not digits or len(token) > TOKEN_CHARACTERS_MAX:
        raise Invalid("resume_token", "expected the token of an earlier event, or none")
    if int(begun) != begun_ms:
        return None  # of a start before: what is open tells more than what is gone
    return int(number)
