"""AdvisoryService: streams advisories, accepts answers, and takes schedulers' reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration

from ...contract.wire import advisory_pb2 as wire
from ...contract.wire.advisory_pb2_grpc import AdvisoryServiceServicer
from ..advisories.advisory import Advisory, AdvisoryState, Case, gravity
from ..advisories.advisory_limits import HOUR_NS, SECOND_NS
from ..advisories.answers import LEASE_SECONDS_MIN
from ..advisories.engine import AdvisoryEngine
from ..advisories.messages import Acked, Member, PutBack, TakenOut
from ..advisories.replay import ReplayReport
from ..advisories.state import CircuitBreaker, DeclaredOut
from ..advisories.watch_feed import WATCHERS_MAX, AdvisoryChange
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

PREFIX = "advisories/"
#: Roles that may end a gang that another login reported.
ENDS_ANY_GANG = frozenset({Role.OPERATOR, Role.ADMIN})
#: Maximum episodes of a rule that are listed.
EPISODES_MAX = 1000

GANGS_MAX, ENDED_MAX, NODES_MAX, NODES_OF_ALL_MAX = 1000, 10_000, 10_000, 100_000
WORKLOAD_CHARACTERS_MAX, REASON_CHARACTERS_MAX = 256, 500
GPUS_MAX = 1_000_000
#: Maximum of a checkpoint interval, and of a report's validity.
SECONDS_MAX = 7 * 86_400
#: Maximum unknown nodes named in a response.
UNKNOWN_MAX = 100
NAME_CHARACTERS_MAX = 32
TOKEN_CHARACTERS_MAX = 64
ETAG_CHARACTERS_MAX = 64
NOTE_CHARACTERS_MAX = 500
#: Maximum listed nodes that others took out, and listed advisories that ended.
UNAVAILABLE_MAX = 1000
#: The advice clock may be this far ahead of the wall clock before it is reported.
AHEAD_SECONDS_MAX = 60
#: Maximum listed actions that are needed but not proposed.
HELD_BACK_MAX = 1000


def advisory_message(one: Advisory, expires_ns: int, store: str = "") -> wire.Advisory:
    """Return *one* as a message; it expires at *expires_ns*."""
    reply = wire.Advisory(
        name=f"{PREFIX}{one.name}", subject=one.subject,
        nodes=[f"nodes/{host}" for host in one.hosts], devices=one.devices,
        action=_enum(one.action), then_action=_enum(one.then or 0), scope=one.scope.value,
        basis=_enum(one.basis), reason=_enum(Reason.__members__.get(one.reason, Reason.NONE)),
        reason_text=one.message, confidence=one.confidence, hazard_per_hour=one.hazard_per_hour,
        cost_of_waiting_gpu_hours=one.price.waiting_gpu_hours,
        cost_of_acting_gpu_hours=one.price.acting_gpu_hours, arithmetic=one.price.arithmetic,
        state=_enum(one.state), state_text=one.state_message, etag=one.etag, owner=one.owner,
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
    """Return a case that is needed but not proposed as a message."""
    return wire.HeldBack(
        node=f"nodes/{case.host}",
        action=_enum(case.action),
        reason_text=case.message,
        held_back_text=reason,
        devices=case.devices,
        cost_of_waiting_gpu_hours=case.price.waiting_gpu_hours,
        cost_of_acting_gpu_hours=case.price.acting_gpu_hours,
    )


def evaluation_message(report: ReplayReport) -> wire.EvaluateRuleResponse:
    """Return the replay of a rule as a message."""
    shown = report.episodes[-EPISODES_MAX:]
    costs = [episode.case.price for episode in report.episodes]
    return wire.EvaluateRuleResponse(
        episodes=[
            wire.RuleEpisode(
                node=f"nodes/{episode.case.host}",
                start_time=timestamp(episode.first_ns),
                end_time=timestamp(episode.last_ns),
                action=_enum(episode.case.action),
                advised=advised,
                message=episode.case.message,
                followed_by_fault=episode.faulty_ns > 0,
                held_back_text="" if advised else reason,
            )
            for episode, advised, reason in zip(
                shown, report.are_advised(shown), report.withheld_reasons(shown), strict=True
            )
        ],
        episodes_count=len(report.episodes),
        advised_count=len(report.advisories),
        held_back_count=report.withheld_count,
        nodes_at_once_max=report.at_once_max,
        from_time=timestamp(report.from_ns),
        followed_count=sum(episode.faulty_ns > 0 for episode in report.episodes),
        acting_gpu_hours=sum(price.acting_gpu_hours for price in costs),
        waiting_gpu_hours=sum(price.waiting_gpu_hours for price in costs),
    )


def _enum(value: int) -> Any:
    """Return *value* as the type that protobuf's stubs accept; they do not know IntEnum."""
    return int(value)


#: Host -> the groups that limits count; None: no agent has registered under this name.
Members = Callable[[str], Member | None]


class UnavailabilityReport(NamedTuple):
    """Events of a request about nodes that are out: an event per reason and end."""

    taken: tuple[TakenOut, ...]
    back: PutBack
    unknown: list[str]


def actor_of(actor: str) -> str:
    """Return the reporting actor. Raises InvalidArgument."""
    check_text("actor", actor, ACTOR_CHARACTERS_MAX)
    if not actor.strip():
        raise InvalidArgument("actor", f"the caller's name, 1 to {ACTOR_CHARACTERS_MAX} characters")
    return actor


def gangs_of(
    request: wire.ReportGangsRequest, by: str, members: Members, now_ns: int
) -> tuple[list[Gang], list[str]]:
    """Return the gangs of *request*, and its unknown nodes. Raises InvalidArgument."""
    _check_count("gangs", len(request.gangs), GANGS_MAX)
    _check_count("ended_workloads", len(request.ended_workloads), ENDED_MAX)
    for index, name in enumerate(request.ended_workloads):
        check_text(f"ended_workloads[{index}]", name, WORKLOAD_CHARACTERS_MAX)
    if sum(len(gang.nodes) for gang in request.gangs) > NODES_OF_ALL_MAX:
        raise InvalidArgument(
            "gangs", f"more than {NODES_OF_ALL_MAX} nodes in all. Report them in parts"
        )
    gangs = [_gang(f"gangs[{index}]", gang, by, now_ns) for index, gang in enumerate(request.gangs)]
    check_unique("gangs", request.gangs, "workload")
    if both := {gang.workload for gang in gangs} & set(request.ended_workloads):
        raise InvalidArgument(
            "ended_workloads", f"{min(both)!r} is reported both as running and as ended"
        )
    unknown = _unknown((host for gang in gangs for host in gang.hosts), members)
    return gangs, unknown


def _gang(field: str, reported: wire.Gang, by: str, now_ns: int) -> Gang:
    check_text(f"{field}.workload", reported.workload, WORKLOAD_CHARACTERS_MAX)
    if not reported.workload.strip():
        raise InvalidArgument(f"{field}.workload", "its name, as in its outcomes")
    if (name := reported_name(reported.workload)) != reported.workload:
        raise InvalidArgument(
            f"{field}.workload",
            f"{reported.workload!r}, expected {name!r}: the service adds the login",
        )
    if not 1 <= len(reported.nodes) <= NODES_MAX:
        raise InvalidArgument(f"{field}.nodes", f"{len(reported.nodes)}, expected 1 to {NODES_MAX}")
    if reported.gpus_count > GPUS_MAX:
        raise InvalidArgument(
            f"{field}.gpus_count", f"{reported.gpus_count}, expected 0 to {GPUS_MAX}"
        )
    hosts = tuple(sorted({node_of(node, f"{field}.nodes") for node in reported.nodes}))
    seconds = 0.0
    if reported.HasField("checkpoint_interval"):
        otherwise = "none where it is not known"
        seconds = _span(f"{field}.checkpoint_interval", reported.checkpoint_interval, otherwise)
    until_ns = _until(f"{field}.ttl", reported, now_ns)
    return Gang(
        workload=reported.workload,
        hosts=hosts,
        gpus=reported.gpus_count,
        checkpoint_seconds=seconds,
        until_ns=until_ns,
        reporter=by,
        reported_ns=now_ns,
    )


def unavailability_of(
    request: wire.ReportUnavailableNodesRequest, by: str, members: Members, now_ns: int
) -> UnavailabilityReport:
    """Return the hosts of *request* that are out and back. Raises InvalidArgument."""
    _check_count("nodes", len(request.nodes), NODES_MAX)
    _check_count("returned_nodes", len(request.returned_nodes), NODES_MAX)
    check_unique("nodes", request.nodes, "node")
    reported: dict[str, tuple[str, int, bool]] = {}
    for index, node in enumerate(request.nodes):
        field = f"nodes[{index}]"
        check_text(f"{field}.reason", node.reason, REASON_CHARACTERS_MAX)
        if not node.reason.strip():
            raise InvalidArgument(f"{field}.reason", "why it is out of service")
        until_ns = _until(f"{field}.ttl", node, now_ns)
        reported[node_of(node.node, f"{field}.node")] = (node.reason, until_ns, node.new_work_only)
    back = tuple(node_of(node, "returned_nodes") for node in request.returned_nodes)
    if both := sorted(reported.keys() & set(back)):
        raise InvalidArgument("returned_nodes", f"{both[0]!r} is reported both as out and as back")
    groups: dict[tuple[str, int, bool], list[Member]] = {}
    for host, why in reported.items():
        if (member := members(host)) is not None:
            groups.setdefault(why, []).append(member)
    taken = tuple(
        TakenOut(now_ns, by, reason, until_ns, tuple(group), new_work_only)
        for (reason, until_ns, new_work_only), group in groups.items()
    )
    return UnavailabilityReport(
        taken, PutBack(now_ns, by, back), _unknown([*reported, *back], members)
    )


def unavailable(entries: Iterable[tuple[str, str, DeclaredOut]]) -> list[wire.UnavailableNode]:
    """Return entries of (host, actor, report) as messages."""
    return [
        wire.UnavailableNode(
            node=f"nodes/{host}",
            reason=report.message,
            expire_time=timestamp(report.until_ns),
            actor=by,
            since_time=timestamp(report.since_ns),
            new_work_only=report.new_work_only,
        )
        for host, by, report in entries
    ]


def _unknown(hosts: Iterable[str], members: Members) -> list[str]:
    """Return the hosts without a registered agent, at most UNKNOWN_MAX."""
    unknown = sorted({host for host in hosts if members(host) is None})
    return [f"nodes/{host}" for host in unknown[:UNKNOWN_MAX]]


def _until(field: str, report: wire.Gang | wire.UnavailableNode, now_ns: int) -> int:
    """Return the end of the report's validity, from its `ttl`: callers' clocks may be wrong."""
    if not report.HasField("ttl"):
        return now_ns + HOUR_NS
    return now_ns + int(_span(field, report.ttl, "none for an hour") * SECOND_NS)


def _span(field: str, span: Duration, otherwise: str) -> float:
    seconds = span_seconds(field, span)
    if not 1.0 <= seconds <= SECONDS_MAX:
        raise InvalidArgument(field, f"{seconds:g} s, expected 1 s to 7 days, or {otherwise}")
    return seconds


def _check_count(field: str, count: int, maximum: int) -> None:
    if count > maximum:
        raise InvalidArgument(field, f"{count}, at most {maximum}. Report them in parts")


class AdvisoryService(AdvisoryServiceServicer):
    """Coroutines of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(
        self, engine: AdvisoryEngine, wall_ns: Callable[[], int], members: Members
    ) -> None:
        self._engine, self._wall_ns, self._members = engine, wall_ns, members
        self._idempotency_cache, self._watch_slots = IdempotencyCache(), CallerSlots()
        self._evaluating: asyncio.Task[wire.EvaluateRuleResponse] | None = None

    async def WatchAdvisories(
        self, request: wire.WatchAdvisoriesRequest, context: Any
    ) -> AsyncIterator[wire.AdvisoryEvent]:
        """Yield the open advisories, or the changes since the token, then each change.

        Raises InvalidArgument, ResourceExhausted.
        """
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

    def _message(self, advisory: Advisory, expires_ns: int | None = None) -> wire.Advisory:
        """Return the message with the workload's name as reported, without a login.

        *expires_ns*: None: the engine's time.
        """
        until_ns = self._engine.expires_ns(advisory) if expires_ns is None else expires_ns
        message = advisory_message(advisory, until_ns, self._engine.store_identity)
        message.workload = name_for(advisory.job, current_login())
        return message

    async def ListAdvisories(
        self, request: wire.ListAdvisoriesRequest, context: Any
    ) -> wire.ListAdvisoriesResponse:
        size = page_size_of(request.page_size)
        node = node_of(request.node, "node") if request.node else ""
        before = _page(request.page_token)
        held_back = [] if request.page_token or self._engine.shadow else self._held_back(node)
        advisories = [
            advisory
            for advisory in self._engine.known_advisories()
            if (advisory.is_open or request.show_ended)
            and (not node or node in advisory.hosts)
            and number_of(advisory.name) < before
        ]
        if node and not advisories and self._members(node) is None:
            raise NotFound(f"no agent has registered as {node}")
        advisories.sort(key=lambda advisory: -number_of(advisory.name))
        page, more = advisories[:size], len(advisories) > size
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
            held_back=[held_back_message(*case) for case in held_back[:HELD_BACK_MAX]],
            held_back_count=len(held_back),
            out_by_advice=map(self._message, out[:UNAVAILABLE_MAX]),
            out_by_advice_count=len(out),
        )

    def _out_by_advice(self, node: str) -> list[Advisory]:
        """Return ended advisories that hold a host out, by host; of all hosts if *node* is ""."""
        advisories = [a for a in self._engine.ended_with_holds() if node in ("", a.host)]
        return sorted(advisories, key=lambda advisory: advisory.host)

    def _held_back(self, node: str) -> list[tuple[Case, str]]:
        """Return withheld cases with reasons, gravest first; of all hosts if *node* is ""."""
        state = self._engine.machine.state
        cases = [
            (state.cases[key].case, reported.message)
            for key, reported in state.held_back.items()
            if key in state.cases and node in ("", state.cases[key].case.host)
        ]
        return sorted(
            cases, key=lambda entry: (-gravity(entry[0].action), entry[0].host, entry[0].key)
        )

    def _unavailable(self, node: str) -> list[wire.UnavailableNode]:
        """Return the hosts that others took out; only *node* if it is set."""
        unavailable_hosts = self._engine.machine.state.absent
        hosts = [node] if node else sorted(unavailable_hosts)[:UNAVAILABLE_MAX]
        reported = [(host, *r) for host in hosts for r in unavailable_hosts.get(host, {}).items()]
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
        """Return an advisory. Raises InvalidArgument, NotFound."""
        return self._message(self._known(request.name))

    async def AckAdvisory(self, request: wire.AckAdvisoryRequest, context: Any) -> bytes:
        """Apply an answer.

        Raises InvalidArgument, NotFound, EtagMismatch, FailedPrecondition, PermissionDenied,
        ServiceUnavailable.
        """
        actor, engine = actor_with_login(current_principal(context), request.actor), self._engine
        answer = ack_of(request, actor, self._wall_ns())
        return await self._idempotency_cache.once(
            request,
            context,
            lambda: self._message(engine.apply_answer(answer)),
            engine.answers_durable,
            preview=lambda: self._message(*engine.preview(answer)),
            current=lambda: self._message(self._known(request.name)),
        )

    async def ReportGangs(self, request: wire.ReportGangsRequest, context: Any) -> bytes:
        """Store running gangs. Raises InvalidArgument, ResourceExhausted, ServiceUnavailable."""
        by = actor_with_login(current_principal(context), actor_of(request.actor))
        engine = self._engine
        reported, unknown = gangs_of(request, by, self._members, self._wall_ns())
        gangs = [engine.gangs.named(gang) for gang in reported]
        ends_any = current_principal(context).role in ENDS_ANY_GANG
        names = (
            engine.gangs.endable(workload, login_of_actor(by), ends_any)
            for workload in request.ended_workloads
        )
        ended = [name for name in names if name]

        def response(check: Callable[[], None]) -> wire.ReportGangsResponse:
            count = engine.gangs.count_with(gangs, ended)
            check()
            return wire.ReportGangsResponse(gangs_count=count, unknown_nodes=unknown)

        return await self._idempotency_cache.once(
            request,
            context,
            lambda: response(lambda: engine.update_gangs(gangs, ended)),
            engine.persisted,
            preview=lambda: response(lambda: engine.check_gangs(gangs)),
        )

    async def ReportUnavailableNodes(
        self, request: wire.ReportUnavailableNodesRequest, context: Any
    ) -> bytes:
        """Count nodes as out, or in service again.

        Raises InvalidArgument, ResourceExhausted, ServiceUnavailable.
        """
        by = actor_with_login(current_principal(context), actor_of(request.actor))
        engine = self._engine
        state = engine.machine.state
        # With a clock that was set back the report would end at once.
        now_ns = max(self._wall_ns(), state.now_ns)
        out = unavailability_of(request, by, self._members, now_ns)

        def response(check: Callable[[], None]) -> wire.ReportUnavailableNodesResponse:
            before = {host for host, reported in state.absent.items() if by in reported}
            check()
            new = {member.host for event in out.taken for member in event.members}
            return wire.ReportUnavailableNodesResponse(
                nodes_count=len((before | new) - set(out.back.hosts)), unknown_nodes=out.unknown
            )

        return await self._idempotency_cache.once(
            request,
            context,
            lambda: response(lambda: engine.declare_out(out.taken, out.back)),
            engine.answers_durable,
            preview=lambda: response(lambda: engine.check_declared_out(out.taken)),
        )

    async def EvaluateRule(
        self, request: wire.EvaluateRuleRequest, context: Any
    ) -> wire.EvaluateRuleResponse:
        """Replay a rule on past evidence. Raises InvalidArgument, ResourceExhausted."""
        if self._evaluating is not None and not self._evaluating.done():
            raise ResourceExhausted(
                "another rule is being evaluated. Try again when it is done", 5.0
            )
        now_ns = self._wall_ns()

        def work() -> wire.EvaluateRuleResponse:
            return evaluation_message(self._engine.what_if(request.rule, request.days, now_ns))

        # Disconnecting does not end it: a thread cannot be ended, and the next caller waits.
        self._evaluating = asyncio.create_task(asyncio.to_thread(work))
        self._evaluating.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._evaluating)

    def _known(self, name: str) -> Advisory:
        advisory = self._engine.find(name_of(name))
        if advisory is None:
            shadow = ""
            if self._engine.shadow:
                shadow = "; advice_shadow is on: FROM ops.advice has all of it"
            reason = f"no advisory {name!r} is known, or it ended more than a day ago"
            raise NotFound(reason + shadow)
        return advisory


def _breaker_reason(breaker: CircuitBreaker) -> str:
    """Return a message on the breaker, "" if closed; actions that take no host out continue."""
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
    """Return the answer as an event. *actor*: with its login. Raises InvalidArgument."""
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
    return Acked(
        now_ns=now_ns,
        name=name,
        to=to,
        actor=actor,
        message=request.note,
        etag=request.etag,
        until_ns=until_ns,
        lease_seconds=lease,
    )


def _lease_seconds(request: wire.AckAdvisoryRequest) -> float:
    """Return the requested lease, 0 for none; the machine limits it. Raises InvalidArgument."""
    if not request.HasField("lease"):
        return 0.0
    seconds = span_seconds("lease", request.lease)
    if not seconds > 0:
        raise InvalidArgument("lease", f"{seconds:g} s, expected {LEASE_SECONDS_MIN:g} s to 7 days")
    return seconds


def number_of(name: str) -> int:
    """Return the number of an advisory; later advisories have higher numbers."""
    return int(name[1:])


def name_of(resource: str, field: str = "name") -> str:
    """Return `a12` from `advisories/a12`, the value of *field*. Raises InvalidArgument."""
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
    """Return the number to continue after; None: all open advisories. Raises InvalidArgument."""
    if not token:
        return None
    started, dash, number = token.partition("-")
    digits = (started + number).isascii() and started.isdecimal() and number.isdecimal()
    if not dash or not digits or len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidArgument("resume_token", "expected the token of an earlier event, or none")
    if int(started) != started_ms:
        return None  # token of an earlier start: the open advisories matter more than old changes
    return int(number)
