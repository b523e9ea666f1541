"""Input of schedulers and people about advice, damaged: gangs, hosts out of service, outcomes, answers, rules."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import isfinite
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from gangline.aggregator.advisories.advisory import Action, AdvisoryState, Basis, Case, Scope
from gangline.aggregator.advisories.advisory_limits import HOUR_NS, SECOND_NS, AdvisoryLimits
from gangline.aggregator.advisories.failure_domains import FailureDomains
from gangline.aggregator.advisories.messages import (
    Acked,
    Act,
    CaseSeen,
    FleetSize,
    Member,
    Publish,
    Refused,
    Tick,
)
from gangline.aggregator.advisories.state_machine import AdvisoryStateMachine
from gangline.aggregator.calibration_log import RecoveryRecord
from gangline.aggregator.decisions.calibration import reported_factors
from gangline.aggregator.errors import InvalidArgument
from gangline.aggregator.service import advisory, outcome, recovery_report
from gangline.aggregator.service.advisory import ack_of
from gangline.contract.wire import advisory_pb2 as wire
from gangline.contract.wire import outcome_pb2, recovery_pb2
from tests.fuzzing.damage import ACCEPTED, REFUSED, flipped

NOW_NS = 1_760_000_000 * SECOND_NS
WEEK_NS = 7 * 24 * HOUR_NS
#: In place of a text, and of a number of seconds.
TEXTS = (
    "",
    " ",
    "a\nb",
    "x" * 129,
    "x" * 501,
    "nodes/",
    "nodes/h 1",
    "h1",
    "nodes/" + "h" * 300,
    "\x1b[31m",
    "\U0001f525",
)
SECONDS = (0, 1, -1, 604_800, 604_801, 2**33, -(2**62), 2**62)

M = TypeVar("M", bound=Message)


def member(host: str) -> Member | None:
    return Member(host, FailureDomains(rack="r1"), "job") if host == "h1" else None


def received(request: M, source: random.Random) -> M:
    """Return *request* as it comes off the wire, its bytes damaged now and then. Raises DecodeError."""
    data = request.SerializeToString()
    return type(request).FromString(flipped(data, source) if source.random() < 0.4 else data)


def refused(work: Callable[[], object]) -> bool:
    """Return whether *work* was refused; the error must be short, and name a field."""
    try:
        work()
    except (InvalidArgument, DecodeError) as error:
        assert isinstance(error, DecodeError) or (": " in str(error) and len(str(error)) < 700)
        return True
    return False


def fuzz_gangs(source: random.Random) -> str:
    """ReportGangs: gangs within every limit, or Invalid."""
    request = wire.ReportGangsRequest(actor="slurm", ended_workloads=["old"])
    gang = request.gangs.add(workload="w", nodes=["nodes/h1", "nodes/h2"], gpus_count=16)
    gang.checkpoint_interval.FromSeconds(1800)
    for _ in range(source.randrange(3)):
        text = source.choice(TEXTS)
        match source.randrange(6):
            case 0:
                gang.workload = text
            case 1:
                gang.nodes.extend([text] * source.choice((1, 10_000)))
            case 2:
                gang.gpus_count = source.choice((0, 1_000_000, 1_000_001, 2**32 - 1))
            case 3:
                gang.ttl.seconds, gang.ttl.nanos = (
                    source.choice(SECONDS),
                    source.choice((0, -1, 2**31 - 1)),
                )
            case 4:
                gang.checkpoint_interval.seconds = source.choice(SECONDS)
            case _:
                request.ended_workloads.extend([text] * source.choice((1, 10_001)))
    records: list[Any] = []

    def work() -> None:
        decoded = received(request, source)
        records.append(advisory.gangs_of(decoded, advisory.actor_of(decoded.actor), member, NOW_NS))

    if refused(work):
        return REFUSED
    gangs, unknown = records[0]
    assert len(unknown) <= advisory.UNKNOWN_MAX
    for parsed_gang in gangs:
        assert (
            0 < len(parsed_gang.workload) <= 256
            and parsed_gang.workload.isprintable()
            and parsed_gang.hosts
        )
        assert NOW_NS < parsed_gang.until_ns <= NOW_NS + WEEK_NS
        assert (
            parsed_gang.checkpoint_seconds == 0
            or 1 <= parsed_gang.checkpoint_seconds <= advisory.SECONDS_MAX
        )
    return ACCEPTED


def fuzz_unavailable(source: random.Random) -> str:
    """ReportUnavailableNodes: known hosts, for a week at most and with a reason, or Invalid."""
    request = wire.ReportUnavailableNodesRequest(actor="slurm", returned_nodes=["nodes/h3"])
    node = request.nodes.add(node="nodes/h1", reason="burn-in")
    for _ in range(source.randrange(3)):
        text = source.choice(TEXTS)
        match source.randrange(5):
            case 0:
                node.node = text
            case 1:
                node.reason = text
            case 2:
                node.ttl.seconds, node.ttl.nanos = (
                    source.choice(SECONDS),
                    source.choice((0, -1, 2**31 - 1)),
                )
            case 3:
                request.returned_nodes.append(source.choice((text, "nodes/h1")))
            case _:
                request.actor = text
    records: list[advisory.UnavailabilityReport] = []

    def work() -> None:
        decoded = received(request, source)
        records.append(
            advisory.unavailability_of(decoded, advisory.actor_of(decoded.actor), member, NOW_NS)
        )

    if refused(work):
        return REFUSED
    for event in records[0].taken:
        assert event.message.strip() and NOW_NS < event.until_ns <= NOW_NS + WEEK_NS
        assert {member.host for member in event.members} == {"h1"} and "h1" not in records[
            0
        ].back.hosts
    return ACCEPTED


def fuzz_outcomes(source: random.Random) -> str:
    """ReportOutcomes: ended jobs, on hosts with names, at a finite loss, or Invalid."""
    damaged_outcome = outcome_pb2.Outcome(
        outcome_id="job-7", advisory="advisories/a1", workload="w", nodes=["nodes/h1"], blamed_node="nodes/h1",
        lost_gpu_hours=5.0,
    )  # fmt: skip
    damaged_outcome.start_time.seconds, damaged_outcome.end_time.seconds = (
        NOW_NS // SECOND_NS - 3600,
        NOW_NS // SECOND_NS,
    )
    for _ in range(source.randrange(3)):
        text = source.choice(TEXTS)
        match source.randrange(7):
            case 0:
                damaged_outcome.outcome_id, damaged_outcome.end_reason = text, source.choice(TEXTS)
            case 1:
                damaged_outcome.nodes.extend([text] * source.choice((1, 4096)))
            case 2:
                damaged_outcome.lost_gpu_hours = source.choice(
                    (float("nan"), float("inf"), -1.0, 1e9, 1e10)
                )
            case 6:
                damaged_outcome.throughput = source.choice(
                    (float("nan"), float("inf"), -1.0, 1e-300, 1e15, 1e16)
                )
                damaged_outcome.queue_time.seconds = source.choice((-1, 0, 1 << 40))
            case 3:
                damaged_outcome.end_time.seconds = NOW_NS // SECOND_NS + source.choice(SECONDS)
            case 4:
                damaged_outcome.start_time.seconds, damaged_outcome.start_time.nanos = (
                    source.choice(SECONDS),
                    source.choice((0, -1)),
                )
            case _:
                damaged_outcome.advisory = source.choice(
                    (text, "advisories/", "advisories/b1", "advisories/a" + "9" * 40)
                )
    records: list[outcome_pb2.Outcome] = []

    def work() -> None:
        decoded = received(damaged_outcome, source)
        outcome.check_outcome(0, decoded, NOW_NS)
        records.append(decoded)

    if refused(work):
        return REFUSED
    (accepted,) = records
    assert (
        accepted.nodes
        and isfinite(accepted.lost_gpu_hours)
        and accepted.end_time.seconds > accepted.start_time.seconds
    )
    assert accepted.end_time.seconds * SECOND_NS <= NOW_NS + HOUR_NS
    assert 0.0 <= accepted.throughput <= 1e15 and accepted.queue_time.seconds >= 0
    return ACCEPTED


def fuzz_recoveries(source: random.Random) -> str:
    """ReportRecovery: times that ascend, and factors that are finite and within their intervals, or Invalid."""
    request = recovery_pb2.ReportRecoveryRequest(
        incident="i1", kind=recovery_pb2.RECOVERY_FREE_NODE, success=True
    )
    for index, name in enumerate(recovery_report.TIMES):
        getattr(request, name).seconds = NOW_NS // SECOND_NS - 3600 + index
    for _ in range(source.randrange(4)):
        match source.randrange(5):
            case 0:
                request.incident, request.note = source.choice(TEXTS), source.choice(TEXTS)
            case 1:
                request.kind = source.choice((0, 1, 7, 8, -1, 1 << 30))  # type: ignore[assignment]
            case 2:
                request.lost_gpu_hours = source.choice(
                    (float("nan"), float("inf"), -1.0, 1e9, 1e10)
                )
            case 3:
                request.ClearField(source.choice(recovery_report.TIMES))
            case _:
                time = getattr(request, source.choice(recovery_report.TIMES))
                time.seconds, time.nanos = (
                    NOW_NS // SECOND_NS + source.choice((*SECONDS, 0)),
                    source.choice((0, -1, 999_999_999, 1 << 30)),
                )
    records: list[RecoveryRecord] = []

    def work() -> None:
        decoded = received(request, source)
        records.append(recovery_report.record_of(decoded, "slurm", NOW_NS))

    if refused(work):
        return REFUSED
    report = records[0].report
    times = [moment for moment in report[4:9] if moment]
    assert times == sorted(times) and all(hour >= 0.0 for hour in report.hours().values())
    for factor in reported_factors([report], [], NOW_NS, 90.0).factors.values():
        assert 0.0 < factor.lower <= factor.value <= factor.upper < 1e6
    return ACCEPTED


def fuzz_answers(source: random.Random) -> str:
    """AckAdvisory on a state machine with a single proposal: a change with a message, or a refusal, never both."""
    machine = AdvisoryStateMachine(AdvisoryLimits(gather_seconds=0.0))
    machine.step(FleetSize(NOW_NS, 100))
    case = Case(
        "h1/x", "h1", "XID_FATAL", Basis.DETERMINISTIC, Action.EVICT_NOW, Scope.GPU, "x", NOW_NS
    )
    machine.step(CaseSeen(NOW_NS, case))
    machine.step(Tick(NOW_NS))
    (proposed,) = machine.state.advisories.values()
    states: list[Any] = [2, 2, 5, 6]
    others: list[Any] = [*states, 0, 1, 3, 4, 7, 8, 99]
    request = wire.AckAdvisoryRequest(
        name="advisories/a1",
        etag=proposed.etag,
        new_state=source.choice(states),
        actor="x",
        note="why",
    )
    for _ in range(source.randrange(3)):
        text = source.choice(TEXTS)
        match source.randrange(6):
            case 0:
                request.name = source.choice((text, "advisories/a2", "advisories/a01", "a1"))
            case 1:
                request.etag = source.choice((text, "a1-0"))
            case 2:
                request.actor, request.note = text, source.choice(TEXTS)
            case 3:
                request.new_state = source.choice(others)
            case 4:
                request.lease.seconds = source.choice(SECONDS)
            case _:
                request.defer_until_time.seconds = source.choice(SECONDS)
    records: list[Acked] = []

    def work() -> None:
        decoded = received(request, source)
        records.append(ack_of(decoded, decoded.actor, NOW_NS))

    if refused(work):
        return REFUSED
    changes = list(machine.step(records[0]))
    refusals = [change for change in changes if isinstance(change, Refused)]
    assert (
        changes and all(change.message for change in changes) and len(refusals) in (0, len(changes))
    )
    if refusals:
        return REFUSED
    (after,) = (change.advisory for change in changes if isinstance(change, Publish))
    assert after.state is records[0].to and after.revision == proposed.revision + 1
    assert (after.state is AdvisoryState.ACCEPTED) is any(
        isinstance(change, Act) for change in changes
    )
    assert max(after.deferred_until_ns, after.lease_until_ns) <= NOW_NS + WEEK_NS
    return ACCEPTED


TARGETS: dict[str, Callable[[random.Random], str]] = {
    "advice-gangs": fuzz_gangs,
    "advice-unavailable": fuzz_unavailable,
    "advice-outcomes": fuzz_outcomes,
    "advice-recoveries": fuzz_recoveries,
    "advice-answers": fuzz_answers,
}
