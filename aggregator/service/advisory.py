"""AdvisoryService: streams advisories as they change, and takes answers. Errors name the field and its limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration

from ...contract.wire import advisory_pb2 as wire
from ...contract.wire.advisory_pb2_grpc import AdvisoryServiceServicer
from ..advisories.advisory import (
    HOUR_NS,
    SECOND_NS,
    Acked,
    Advisory,
    AdvisoryState,
    Case,
    Member,
    PutBack,
    TakenOut,
    gravity,
)
from ..advisories.answers import LEASE_SECONDS_MIN
from ..advisories.engine import WATCHERS_MAX, AdvisoryChange, AdvisoryEngine
from ..advisories.replay import ReplayReport
from ..advisories.state import CircuitBreaker, DeclaredOut
from ..advisories.workloads import Gang, name_for, reported_name
from ..errors import CAPACITY_RETRY_SECONDS, InvalidArgument, NotFound, ResourceExhausted
from ..model import Reason
from ..principal import Role, current_login, current_principal, login_of_actor
from .caller_slots import CallerSlots
from .idempotency import IdempotencyCache
from .validation import (
    ACTOR_CHARACTERS_MAX,
    actor_with_login,
    check_text,
    check_unique,
    node_of,
    page_size_of,
    span_seconds,
    time_ns_of,
    timestamp,
)

# ----------------------------------------------------------------------
# Advice as the wire has it: of one advisory, of what is held back, of what a rule would have done.

PREFIX = "advisories/"
#: Roles that may end a gang that another login reported.
ENDS_ANY_GANG = frozenset({Role.OPERATOR, Role.ADMIN})
#: Episodes of a rule that are listed one by one.
EPISODES_MAX = 1000


def advisory_message(one: Advisory, expires_ns: int, store: str = "") -> wire.Advisory:
    """Return *one*, which expires then, as the wire has it."""
    reply = wire.Advisory(
        name=f"{PREFIX}{one.name}", subject=one.subject,
        nodes=[f"nodes/{host}" for host in one.hosts], devices=one.devices,
        action=_enum(one.action), then_action=_enum(one.then or 0), scope=one.scope.value,
        basis=_enum(one.basis), reason=_enum(Reason.__members__.get(one.reason, Reason.NONE)),
        reason_text=one.words, confidence=one.confidence, hazard_per_hour=one.hazard_per_hour,
        cost_of_waiting_gpu_hours=one.price.waiting_gpu_hours,
        cost_of_acting_gpu_hours=one.price.acting_gpu_hours, arithmetic=one.price.arithmetic,
        state=_enum(one.state), state_text=one.state_words, etag=one.etag, owner=one.owner,
        fencing_token=one.token, store=store, workload=one.job, count=one.count,
        propose_time=timestamp(one.proposed_ns), expire_time=timestamp(expires_ns),
        update_time=timestamp(one.changed_ns),
    )  # fmt: skip
    optional = {
        "act_by_time": one.price.act_by_ns,
        "lease_expire_time": one.lease_until_ns,
        "defer_until_time": one.deferred_until_ns,
    }
    for field, time_ns in optional.items():
        if time_ns:
            getattr(reply, field).CopyFrom(timestamp(time_ns))
    if one.checkpoint_seconds:
        reply.checkpoint_interval.FromMilliseconds(int(1000 * one.checkpoint_seconds))
    return reply


def held_back_message(case: Case, reason: str) -> wire.HeldBack:
    """Return what is called for and not proposed, for the wire."""
    return wire.HeldBack(
        node=f"nodes/{case.host}", action=_enum(case.action),
        reason_text=case.words, held_back_text=reason, devices=case.devices,
        cost_of_waiting_gpu_hours=case.price.waiting_gpu_hours, cost_of_acting_gpu_hours=case.price.acting_gpu_hours,
    )  # fmt: skip


def evaluation_message(report: ReplayReport) -> wire.EvaluateRuleResponse:
    """Return what a rule would have done, for the wire."""
    shown = report.episodes[-EPISODES_MAX:]
    costs = [one.case.price for one in report.episodes]
    return wire.EvaluateRuleResponse(
        episodes=[
            wire.RuleEpisode(
                node=f"nodes/{one.case.host}", start_time=timestamp(one.first_ns),
                end_time=timestamp(one.last_ns), action=_enum(one.case.action),
                advised=advised, words=one.case.words,
                followed_by_fault=one.faulty_ns > 0, held_back_text="" if advised else reason,
            )
            for one, advised, reason in zip(shown, report.are_advised(shown), report.withheld_reasons(shown), strict=True)
        ],
        episodes_count=len(report.episodes), advised_count=len(report.advisories),
        held_back_count=report.withheld_count, nodes_at_once_max=report.at_once_max,
        from_time=timestamp(report.from_ns),
        followed_count=sum(one.faulty_ns > 0 for one in report.episodes),
        acting_gpu_hours=sum(one.acting_gpu_hours for one in costs),
        waiting_gpu_hours=sum(one.waiting_gpu_hours for one in costs),
    )  # fmt: skip


def _enum(value: int) -> Any:
    """Return an enumerated value as protobuf takes it: its stubs know no IntEnum."""
    return int(value)


# ----------------------------------------------------------------------
# What schedulers tell AdvisoryService: what runs where, and which nodes they took out themselves.
# Checked as text.

GANGS_MAX, ENDED_MAX, NODES_MAX, NODES_OF_ALL_MAX = 1000, 10_000, 10_000, 100_000
WORKLOAD_CHARACTERS_MAX, REASON_CHARACTERS_MAX = 256, 500
GPUS_MAX = 1_000_000
#: Of a checkpoint's interval, and for which anything is reported.
SECONDS_MAX = 7 * 86_400
#: Names that are reported, of those that no agent has.
UNKNOWN_MAX = 100
#: Host -> what budgets count it by; None: no agent has registered under this name.
Members = Callable[[str], Member | None]


class UnavailabilityReport(NamedTuple):
    """A request about nodes that are out, as events: one for each reason and end."""

    taken: tuple[TakenOut, ...]
    back: PutBack
    unknown: list[str]


def actor_of(actor: str) -> str:
    """Return who tells. Raises InvalidArgument."""
    check_text("actor", actor, ACTOR_CHARACTERS_MAX)
    if not actor.strip():
        raise InvalidArgument("actor", f"the caller's name, 1 to {ACTOR_CHARACTERS_MAX} characters")
    return actor


def gangs_of(
    request: wire.ReportGangsRequest, by: str, members: Members, now_ns: int
) -> tuple[list[Gang], list[str]]:
    """Return the gangs of *request*, and the nodes in them that nobody knows. Raises InvalidArgument."""
    _check_count("gangs", len(request.gangs), GANGS_MAX)
    _check_count("ended_workloads", len(request.ended_workloads), ENDED_MAX)
    for at, name in enumerate(request.ended_workloads):
        check_text(f"ended_workloads[{at}]", name, WORKLOAD_CHARACTERS_MAX)
    if sum(len(one.nodes) for one in request.gangs) > NODES_OF_ALL_MAX:
        raise InvalidArgument(
            "gangs", f"more than {NODES_OF_ALL_MAX} nodes in all. Report them in parts"
        )
    found = [_gang(f"gangs[{at}]", one, by, now_ns) for at, one in enumerate(request.gangs)]
    check_unique("gangs", request.gangs, "workload")
    if both := {one.workload for one in found} & set(request.ended_workloads):
        raise InvalidArgument(
            "ended_workloads", f"{min(both)!r} is reported both as running and as ended"
        )
    unknown = _unknown((host for gang in found for host in gang.hosts), members)
    return found, unknown


def _gang(field: str, one: wire.Gang, by: str, now_ns: int) -> Gang:
    check_text(f"{field}.workload", one.workload, WORKLOAD_CHARACTERS_MAX)
    if not one.workload.strip():
        raise InvalidArgument(f"{field}.workload", "its name, as in its outcomes")
    if (name := reported_name(one.workload)) != one.workload:
        raise InvalidArgument(
            f"{field}.workload", f"{one.workload!r}, expected {name!r}: the service adds the login"
        )
    if not 1 <= len(one.nodes) <= NODES_MAX:
        raise InvalidArgument(f"{field}.nodes", f"{len(one.nodes)}, expected 1 to {NODES_MAX}")
    if one.gpus_count > GPUS_MAX:
        raise InvalidArgument(f"{field}.gpus_count", f"{one.gpus_count}, expected 0 to {GPUS_MAX}")
    hosts = tuple(sorted({node_of(node, f"{field}.nodes") for node in one.nodes}))
    seconds = 0.0
    if one.HasField("checkpoint_interval"):
        otherwise = "none where it is not known"
        seconds = _span(f"{field}.checkpoint_interval", one.checkpoint_interval, otherwise)
    until_ns = _until(f"{field}.ttl", one, now_ns)
    return Gang(one.workload, hosts, one.gpus_count, seconds, until_ns, by, now_ns)


def unavailability_of(
    request: wire.ReportUnavailableNodesRequest, by: str, members: Members, now_ns: int
) -> UnavailabilityReport:
    """Return who is out, and who is back, by *request*. Raises InvalidArgument."""
    _check_count("nodes", len(request.nodes), NODES_MAX)
    _check_count("returned_nodes", len(request.returned_nodes), NODES_MAX)
    check_unique("nodes", request.nodes, "node")
    reported: dict[str, tuple[str, int, bool]] = {}
    for at, one in enumerate(request.nodes):
        field = f"nodes[{at}]"
        check_text(f"{field}.reason", one.reason, REASON_CHARACTERS_MAX)
        if not one.reason.strip():
            raise InvalidArgument(f"{field}.reason", "why it is out of service")
        until_ns = _until(f"{field}.ttl", one, now_ns)
        reported[node_of(one.node, f"{field}.node")] = (
            one.reason, until_ns, one.new_work_only,
        )  # fmt: skip
    back = tuple(node_of(node, "returned_nodes") for node in request.returned_nodes)
    if both := sorted(reported.keys() & set(back)):
        raise InvalidArgument("returned_nodes", f"{both[0]!r} is reported both as out and as back")
    groups: dict[tuple[str, int, bool], list[Member]] = {}
    for host, why in reported.items():
        if (member := members(host)) is not None:
            groups.setdefault(why, []).append(member)
    taken = tuple(
        TakenOut(now_ns, by, reason, until_ns, tuple(each), new_work_only)
        for (reason, until_ns, new_work_only), each in groups.items()
    )
    return UnavailabilityReport(
        taken, PutBack(now_ns, by, back), _unknown([*reported, *back], members)
    )


def unavailable(entries: Iterable[tuple[str, str, DeclaredOut]]) -> list[wire.UnavailableNode]:
    """Return (host, by, why) as the wire has it."""
    return [
        wire.UnavailableNode(
            node=f"nodes/{host}", reason=one.words, expire_time=timestamp(one.until_ns), actor=by,
            since_time=timestamp(one.since_ns), new_work_only=one.new_work_only,
        )
        for host, by, one in entries
    ]  # fmt: skip


def _unknown(hosts: Iterable[str], members: Members) -> list[str]:
    """Return the nodes that no agent has registered as, at most as many as are listed."""
    unknown = sorted({host for host in hosts if members(host) is None})
    return [f"nodes/{host}" for host in unknown[:UNKNOWN_MAX]]


def _until(field: str, one: wire.Gang | wire.UnavailableNode, now_ns: int) -> int:
    """Return when it ends unless it is reported again. By a span: callers' clocks may be off."""
    if not one.HasField("ttl"):
        return now_ns + HOUR_NS
    return now_ns + int(_span(field, one.ttl, "none for an hour") * SECOND_NS)


def _span(field: str, span: Duration, otherwise: str) -> float:
    seconds = span_seconds(field, span)
    if not 1.0 <= seconds <= SECONDS_MAX:
        raise InvalidArgument(field, f"{seconds:g} s, expected 1 s to 7 days, or {otherwise}")
    return seconds


def _check_count(field: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidArgument(field, f"{count}, at most {most}. Report them in parts")


NAME_CHARACTERS_MAX = 32
TOKEN_CHARACTERS_MAX = 64
ETAG_CHARACTERS_MAX = 64
NOTE_CHARACTERS_MAX = 500
#: At most this many nodes that others took out, and this much ended advice, are listed one by one.
UNAVAILABLE_MAX = 1000
#: By so much our clock may be behind what was: more is reported.
AHEAD_SECONDS_MAX = 60
#: At most this many actions that are due but not proposed are listed one by one.
HELD_BACK_MAX = 1000


class AdvisoryService(AdvisoryServiceServicer):
    """Seven calls of grpc.aio. A `ServiceError` becomes its status at the edge."""

    def __init__(
        self, engine: AdvisoryEngine, wall_ns: Callable[[], int], members: Members
    ) -> None:
        self._engine, self._wall_ns, self._members = engine, wall_ns, members
        self._idempotency_cache, self._watch_slots = IdempotencyCache(), CallerSlots()
        self._evaluating: asyncio.Task[wire.EvaluateRuleResponse] | None = None

    async def WatchAdvisories(
        self, request: wire.WatchAdvisoriesRequest, context: Any
    ) -> AsyncIterator[wire.AdvisoryEvent]:
        """Yield what is open, or what came after the token, then each change. Raises InvalidArgument, ResourceExhausted."""
        feed = self._engine.feed
        number = _number(request.resume_token, feed.started_ms)
        reason = "too many watch advice already; one of them has to end"
        with self._watch_slots.slot(WATCHERS_MAX, reason, CAPACITY_RETRY_SECONDS):
            feed.watchers += 1
            try:
                async for change in feed.watch(number):
                    yield self._event(change, feed.started_ms)
            finally:
                feed.watchers -= 1

    def _event(self, change: AdvisoryChange, started_ms: int) -> wire.AdvisoryEvent:
        token = "" if change.number is None else f"{started_ms}-{change.number}"
        if change.advisory is None:
            now = timestamp(self._wall_ns())
            return wire.AdvisoryEvent(resume_token=token, bookmark=now)
        return wire.AdvisoryEvent(resume_token=token, advisory=self._message(change.advisory))

    def _message(self, one: Advisory, expires_ns: int | None = None) -> wire.Advisory:
        """Return *one* with the workload's name as the caller's login reported it. *expires_ns*: None for the engine's."""
        until_ns = self._engine.expires_ns(one) if expires_ns is None else expires_ns
        message = advisory_message(one, until_ns, self._engine.store_identity)
        message.workload = name_for(one.job, current_login())
        return message

    async def ListAdvisories(
        self, request: wire.ListAdvisoriesRequest, context: Any
    ) -> wire.ListAdvisoriesResponse:
        """Return a page, newest first. Raises InvalidArgument, NotFound."""
        size = page_size_of(request.page_size)
        node = node_of(request.node, "node") if request.node else ""
        before = _page(request.page_token)
        held_back = [] if request.page_token or self._engine.shadow else self._held_back(node)
        found = [
            one for one in self._engine.known_advisories()
            if (one.is_open or request.show_ended) and (not node or node in one.hosts)
            and number_of(one.name) < before
        ]  # fmt: skip
        if node and not found and self._members(node) is None:
            raise NotFound(f"no agent has registered as {node}")
        found.sort(key=lambda one: -number_of(one.name))
        page, more = found[:size], len(found) > size
        unavailable_hosts = self._engine.machine.state.absent
        out = [] if request.page_token else self._out_by_advice(node)
        return wire.ListAdvisoriesResponse(
            advisories=map(self._message, page),
            next_page_token=str(number_of(page[-1].name)) if more else "",
            withheld_reason=self._withheld_reason(),
            unavailable_nodes=[] if request.page_token else self._unavailable(node),
            unavailable_nodes_count=int(node in unavailable_hosts)
            if node
            else len(unavailable_hosts),
            held_back=[held_back_message(*one) for one in held_back[:HELD_BACK_MAX]],
            held_back_count=len(held_back),
            out_by_advice=map(self._message, out[:UNAVAILABLE_MAX]),
            out_by_advice_count=len(out),
        )

    def _out_by_advice(self, node: str) -> list[Advisory]:
        """Return what has ended and holds a host out, by host; of *node* where it is named."""
        found = [one for one in self._engine.ended_with_holds() if node in ("", one.host)]
        return sorted(found, key=lambda one: one.host)

    def _held_back(self, node: str) -> list[tuple[Case, str]]:
        """Return what is called for and not proposed, with why, the gravest first; on *node* where it is named."""
        state = self._engine.machine.state
        cases = [
            (state.cases[key].case, reported.words)
            for key, reported in state.held_back.items()
            if key in state.cases and node in ("", state.cases[key].case.host)
        ]
        return sorted(cases, key=lambda one: (-gravity(one[0].action), one[0].host, one[0].key))

    def _unavailable(self, node: str) -> list[wire.UnavailableNode]:
        """Return who is out by others' word; of one host where *node* names it."""
        unavailable_hosts = self._engine.machine.state.absent
        hosts = [node] if node else sorted(unavailable_hosts)[:UNAVAILABLE_MAX]
        reported = [
            (host, *one) for host in hosts for one in unavailable_hosts.get(host, {}).items()
        ]
        return unavailable(reported[:UNAVAILABLE_MAX])

    def _withheld_reason(self) -> str:
        state = self._engine.machine.state
        if self._engine.shadow:
            return "advice is in shadow mode (advice_shadow): see ops.advice_shadow"
        if state.frozen:
            return f"the fleet's state is in doubt: {state.frozen}"
        if (ahead_ns := state.now_ns - self._wall_ns()) > AHEAD_SECONDS_MAX * SECOND_NS:
            return f"the aggregator's clock was set back: advice is paused until it has caught up {ahead_ns / HOUR_NS:,.1f} h"
        return _breaker_reason(state.fuse)

    async def GetAdvisory(self, request: wire.GetAdvisoryRequest, context: Any) -> wire.Advisory:
        """Return one. Raises InvalidArgument, NotFound."""
        return self._message(self._known(request.name))

    async def AckAdvisory(self, request: wire.AckAdvisoryRequest, context: Any) -> bytes:
        """Take an answer. Raises InvalidArgument, NotFound, EtagMismatch, FailedPrecondition, PermissionDenied, ServiceUnavailable."""
        actor, engine = actor_with_login(current_principal(context), request.actor), self._engine
        answer = ack_of(request, actor, self._wall_ns())
        return await self._idempotency_cache.once(
            request, context, lambda: self._message(engine.apply_answer(answer)), engine.answers_durable,
            preview=lambda: self._message(*engine.preview(answer)),
            current=lambda: self._message(self._known(request.name)),
        )  # fmt: skip

    async def ReportGangs(self, request: wire.ReportGangsRequest, context: Any) -> bytes:
        """Keep what runs where. Raises InvalidArgument, ResourceExhausted, ServiceUnavailable."""
        by, engine = (
            actor_with_login(current_principal(context), actor_of(request.actor)),
            self._engine,
        )
        reported, unknown = gangs_of(request, by, self._members, self._wall_ns())
        gangs = [engine.gangs.named(one) for one in reported]
        ends_any = current_principal(context).role in ENDS_ANY_GANG
        names = (
            engine.gangs.endable(one, login_of_actor(by), ends_any)
            for one in request.ended_workloads
        )
        ended = [name for name in names if name]

        def response(check: Callable[[], None]) -> wire.ReportGangsResponse:
            count = engine.gangs.count_with(gangs, ended)
            check()
            return wire.ReportGangsResponse(gangs_count=count, unknown_nodes=unknown)

        return await self._idempotency_cache.once(
            request, context, lambda: response(lambda: engine.update_gangs(gangs, ended)),
            engine.persisted, preview=lambda: response(lambda: engine.check_gangs(gangs)),
        )  # fmt: skip

    async def ReportUnavailableNodes(
        self, request: wire.ReportUnavailableNodesRequest, context: Any
    ) -> bytes:
        """Count nodes as out, or in service again. Raises InvalidArgument, ResourceExhausted, ServiceUnavailable."""
        by, engine = (
            actor_with_login(current_principal(context), actor_of(request.actor)),
            self._engine,
        )
        state = engine.machine.state
        # By a clock that was set back it would have ended at once.
        now_ns = max(self._wall_ns(), state.now_ns)
        out = unavailability_of(request, by, self._members, now_ns)

        def response(check: Callable[[], None]) -> wire.ReportUnavailableNodesResponse:
            before = {host for host, reported in state.absent.items() if by in reported}
            check()
            new = {member.host for one in out.taken for member in one.members}
            return wire.ReportUnavailableNodesResponse(
                nodes_count=len((before | new) - set(out.back.hosts)), unknown_nodes=out.unknown
            )

        return await self._idempotency_cache.once(
            request, context, lambda: response(lambda: engine.declare_out(out.taken, out.back)),
            engine.answers_durable, preview=lambda: response(lambda: engine.check_declared_out(out.taken)),
        )  # fmt: skip

    async def EvaluateRule(
        self, request: wire.EvaluateRuleRequest, context: Any
    ) -> wire.EvaluateRuleResponse:
        """Return what a rule would have advised. Raises InvalidArgument, ResourceExhausted."""
        if self._evaluating is not None and not self._evaluating.done():
            raise ResourceExhausted(
                "another rule is being evaluated. Try again when it is done", 5.0
            )
        now_ns = self._wall_ns()

        def work() -> wire.EvaluateRuleResponse:
            return evaluation_message(self._engine.what_if(request.rule, request.days, now_ns))

        # Who closes the connection does not end it: a thread cannot be ended, and the next has to wait for it all the same.
        self._evaluating = asyncio.create_task(asyncio.to_thread(work))
        self._evaluating.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._evaluating)

    def _known(self, name: str) -> Advisory:
        found = self._engine.find(name_of(name))
        if found is None:
            shadow = (
                "; advice_shadow is on: FROM ops.advice has all of it"
                if self._engine.shadow
                else ""
            )
            reason = f"no advisory {name!r} is known, or it ended more than a day ago"
            raise NotFound(reason + shadow)
        return found


def _breaker_reason(breaker: CircuitBreaker) -> str:
    """Return what the breaker keeps from being advised; "" for nothing. What takes no host out is advised all the same."""
    cause = "because too much was advised or failed recently"
    if breaker.position == "open":
        until = f"{datetime.fromtimestamp(breaker.until_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M} UTC"
        return f"the breaker is open, {cause}: no more hosts are taken out until {until}"
    if breaker.position == "half-open":
        trial = (
            f"{breaker.trial} is tried" if breaker.trial else "one host may be taken out as a trial"
        )
        return f"the breaker is half-open, {cause}: {trial}, and no more until that succeeds"
    return ""


def ack_of(request: wire.AckAdvisoryRequest, actor: str, now_ns: int) -> Acked:
    """Return an answer as the machine takes it. *actor*: with its login. Raises InvalidArgument."""
    check_text("etag", request.etag, ETAG_CHARACTERS_MAX)
    check_text("actor", request.actor, ACTOR_CHARACTERS_MAX)
    check_text("note", request.note, NOTE_CHARACTERS_MAX)
    if not request.actor.strip():
        raise InvalidArgument("actor", f"the caller's name, 1 to {ACTOR_CHARACTERS_MAX} characters")
    try:
        to = AdvisoryState(request.new_state)
    except ValueError:
        raise InvalidArgument(
            "new_state", f"{request.new_state}: ACCEPTED, REJECTED, DEFERRED, DONE or FAILED"
        ) from None
    name = name_of(request.name)
    until_ns = time_ns_of("defer_until_time", request.defer_until_time)
    lease = _lease_seconds(request)
    return Acked(now_ns, name, to, actor, request.note, request.etag, until_ns, lease)


def _lease_seconds(request: wire.AckAdvisoryRequest) -> float:
    """Return the lease that *request* names, 0 for none. Raises InvalidArgument for one that is no time; the machine bounds it."""
    if not request.HasField("lease"):
        return 0.0
    seconds = span_seconds("lease", request.lease)
    if not seconds > 0:
        raise InvalidArgument("lease", f"{seconds:g} s, expected {LEASE_SECONDS_MIN:g} s to 7 days")
    return seconds


def number_of(name: str) -> int:
    """Return the number of an advisory: higher is later."""
    return int(name[1:])


def name_of(resource: str, field: str = "name") -> str:
    """Return `a12` of `advisories/a12`, the value of *field*. Raises InvalidArgument."""
    name = resource.removeprefix(PREFIX)
    digits = name[1:]
    if (
        not resource.startswith(PREFIX)
        or len(resource) > NAME_CHARACTERS_MAX
        or not (name.startswith("a") and digits.isascii() and digits.isdecimal())
    ):
        raise InvalidArgument(field, f"{resource[:80]!r}, expected {PREFIX}a12")
    return name


def _page(token: str) -> int:
    if not token:
        return 1 << 62
    if not (token.isascii() and token.isdecimal() and len(token) < 19):
        raise InvalidArgument("page_token", "expected the token of the previous page")
    return int(token)


def _number(token: str, started_ms: int) -> int | None:
    """Return where to continue; None: with all that is open. Raises InvalidArgument."""
    if not token:
        return None
    started, dash, number = token.partition("-")
    digits = (started + number).isascii() and started.isdecimal() and number.isdecimal()
    if not dash or not digits or len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidArgument("resume_token", "expected the token of an earlier event, or none")
    if int(started) != started_ms:
        return None  # of a start before: what is open tells more than what is gone
    return int(number)
