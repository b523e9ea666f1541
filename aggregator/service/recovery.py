"""RecoveryService: how a gang continues after failures, from the last snapshot; changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...contract.wire import decision_pb2, placement_pb2, recovery_pb2
from ...contract.wire.recovery_pb2_grpc import RecoveryServiceServicer
from ..arrays import Indexes
from ..decisions.node_search import gpus_of
from ..decisions.node_table import NodeTable
from ..decisions.recovery import (
    CheckpointState,
    Incident,
    Lender,
    RecoveryOption,
    RecoveryPlan,
    plan_recovery,
)
from ..decisions.sampled_hours import ACT, DECIDE, DETECT, LOST_WORK, RESUME
from ..errors import FailedPrecondition, InvalidArgument
from ..principal import current_login
from ..scoring.evaluate import Judgement
from . import placement_messages as messages
from .decision_recorder import decision_id
from .exchange_rates import notes_of
from .memory_needs import requirements_in
from .placement import PlacementService
from .score import WORKLOAD_CHARACTERS_MAX
from .score_messages import packed
from .validation import check_range, check_text, hours_of

LENDERS_MAX, FAILURES_MAX = 32, 1000
INCIDENT_CHARACTERS_MAX, ERROR_CHARACTERS_MAX = 128, 200


class RecoveryService(RecoveryServiceServicer):
    """Coroutines of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(self, placement: PlacementService) -> None:
        """*placement*: shares its node table and its queue of plans."""
        self._placement = placement

    async def PlanRecovery(
        self, request: recovery_pb2.PlanRecoveryRequest, context: Any
    ) -> recovery_pb2.PlanRecoveryResponse:
        """Return the ways to continue.

        Raises InvalidArgument, NotFound, FailedPrecondition, ServiceUnavailable, ResourceExhausted.
        """
        snapshot = self._placement.snapshot()
        messages.check_epoch("dictionary_version", request.dictionary_version, snapshot)
        current = messages.members_of(
            request.current_node_index, request.gang.workload.job, snapshot
        )
        gang = placement_pb2.GangRequirements()
        requested_gang: Any = request.gang
        requested_candidates: Any = request.candidates
        messages.claim_reservations(requested_candidates, current_login())
        gang.CopyFrom(requested_gang)
        if gang.HasField("sizes"):
            reason = "expected unset: nodes_min says how far the gang may shrink"
            raise InvalidArgument("gang.sizes", reason)
        if gang.nodes not in (0, current.size):
            reason = f"{gang.nodes}, expected {current.size}, as in current_node_index, or 0"
            raise InvalidArgument("gang.nodes", reason)
        gang.nodes = current.size
        needs = requirements_in(snapshot, gang)
        candidates = messages.candidates_of(requested_candidates, snapshot)
        table, communication = self._placement.running_table(snapshot, gang)
        messages.check_groups(needs, current.size, gpus_of(table, needs))
        incident = incident_of(request, snapshot, table, current, candidates.priorities)
        plan = await self._placement.run(
            lambda: plan_recovery(table, candidates, needs, incident, communication)
        )
        reply = response_of(plan, table, explain=request.explain)
        reply.decision_id = decision_id(decision_pb2.DECISION_RECOVERY, request, snapshot)
        reply.candidates_source = candidates.source
        reply.notes.extend(notes_of(gang, snapshot))
        reply.notes.extend(lender_notes(incident.lenders, needs.priority))
        self._placement.record(decision_pb2.DECISION_RECOVERY, request, reply, table)
        return reply

    async def ReportRecovery(
        self, request: recovery_pb2.ReportRecoveryRequest, context: Any
    ) -> recovery_pb2.ReportRecoveryResponse:
        """Raise FailedPrecondition: only `RecoveryReportService` stores reports."""
        raise FailedPrecondition(
            "this port only answers from snapshots and stores nothing: call ReportRecovery on the aggregator's `listen` address"
        )


def incident_of(
    request: recovery_pb2.PlanRecoveryRequest,
    snapshot: Judgement,
    table: NodeTable,
    current: Indexes,
    priorities: Mapping[str, int],
) -> Incident:
    """Return the incident that the request describes. Raises InvalidArgument."""
    check_text("incident", request.incident, INCIDENT_CHARACTERS_MAX)
    check_text("application_error", request.application_error, ERROR_CHARACTERS_MAX)
    check_range("nodes_min", request.nodes_min, 0, current.size)
    check_range("failures_at_step", request.failures_at_step, 0, FAILURES_MAX)
    failed = messages.node_list_of("failed_node_index", request.failed_node_index, snapshot)
    if not np.isin(failed, current).all():
        other = int(failed[~np.isin(failed, current)][0])
        reason = f"{other} ({snapshot.names[other]}) is not in current_node_index, expected members of the gang"
        raise InvalidArgument("failed_node_index", reason)
    if not failed.size and not table.excluded[current].any() and not request.suspect_node_index:
        reason = "empty, and no member is UNHEALTHY, in maintenance, or gone; expected the failed members"
        raise InvalidArgument("failed_node_index", reason)
    return Incident(
        current=current,
        failed=failed,
        suspects=messages.node_list_of("suspect_node_index", request.suspect_node_index, snapshot),
        standbys=_standbys(request, snapshot, current),
        lenders=_lenders(request.lenders, snapshot, priorities),
        checkpoint=_checkpoint(request.checkpoint, snapshot, current.size),
        goes_on_in_process=request.goes_on_in_process,
        nodes_min=request.nodes_min,
        failures_at_step=request.failures_at_step,
        application_error=request.application_error,
    )


def _standbys(
    request: recovery_pb2.PlanRecoveryRequest, snapshot: Judgement, current: Indexes
) -> Indexes:
    standbys = messages.node_list_of("hot_spare_node_index", request.hot_spare_node_index, snapshot)
    if np.isin(standbys, current).any():
        node = int(standbys[np.isin(standbys, current)][0])
        reason = f"{node} is in current_node_index too, expected nodes that are not members"
        raise InvalidArgument("hot_spare_node_index", reason)
    requested_candidates: Any = request.candidates
    reserved = messages.reserved_nodes(requested_candidates, snapshot)
    return standbys[~np.isin(standbys, reserved)]


def _lenders(
    requested: Sequence[recovery_pb2.LenderWorkload],
    snapshot: Judgement,
    priorities: Mapping[str, int],
) -> tuple[Lender, ...]:
    if len(requested) > LENDERS_MAX:
        raise InvalidArgument("lenders", f"{len(requested)} jobs, expected at most {LENDERS_MAX}")
    lenders: list[Lender] = []
    for index, lender in enumerate(requested):
        field = f"lenders[{index}]"
        check_text(f"{field}.workload", lender.workload, WORKLOAD_CHARACTERS_MAX)
        if not lender.workload:
            raise InvalidArgument(f"{field}.workload", "empty, expected the name of a job")
        hours = hours_of(f"{field}.length_left", lender, "length_left", messages.YEAR_SECONDS)
        lenders.append(
            Lender(
                lender.workload,
                messages.node_list_of(f"{field}.node_index", lender.node_index, snapshot),
                hours,
                lender.priority if lender.HasField("priority") else priorities.get(lender.workload),
            )
        )
    return tuple(lenders)


def lender_notes(lenders: Sequence[Lender], priority: int | None) -> list[str]:
    """Return notes on jobs that lend no nodes, and on unknown priorities."""
    notes = [
        f"{lender.name} lends nothing: its priority {lender.priority} is not below the gang's {priority}"
        for lender in lenders
        if not lender.may_lend(priority)
    ]
    if lenders and priority is None:
        notes.append("gang.priority is not set: it is unknown whether lenders have a lower one")
    elif unknown := [lender.name for lender in lenders if lender.priority is None]:
        names = ", ".join(unknown[:4]) + (f" and {len(unknown) - 4} more" if unknown[4:] else "")
        notes.append(f"the priority of {names} is unknown: they may lend")
    return notes


def _checkpoint(
    requested: recovery_pb2.CheckpointState, snapshot: Judgement, count: int
) -> CheckpointState:
    replicas = np.array(requested.replica_node_index, dtype=np.intp)
    if replicas.size not in (0, count):
        reason = f"{replicas.size} nodes, expected {count}, one for each of the gang's, or none"
        raise InvalidArgument("checkpoint.replica_node_index", reason)
    if replicas.size and replicas.max() >= len(snapshot.names):
        reason = f"{replicas.max()}, expected below {len(snapshot.names)}, the number of nodes"
        raise InvalidArgument("checkpoint.replica_node_index", reason)
    week = messages.WEEK_SECONDS
    return CheckpointState(
        hours_of("checkpoint.age", requested, "age", week),
        hours_of("checkpoint.local_restore", requested, "local_restore", week),
        hours_of("checkpoint.remote_restore", requested, "remote_restore", week),
        replicas,
    )


def response_of(
    plan: RecoveryPlan, table: NodeTable, *, explain: bool
) -> recovery_pb2.PlanRecoveryResponse:
    """Return a plan as a message."""
    snapshot = table.snapshot
    reply = recovery_pb2.PlanRecoveryResponse(
        failed_node_index=np.sort(plan.failed).tolist(),
        restart_is_futile=bool(plan.futile_reason),
        futile_reason=plan.futile_reason,
        culprit_node_index=max(plan.culprit, 0),
        culprit_probability=plan.culprit_probability,
        score_version=snapshot.version,
        dictionary_version=snapshot.dictionary_version,
        degraded=bool(snapshot.degraded_reason),
        degraded_reason=snapshot.degraded_reason,
    )
    for domain in plan.domains:
        tier: Any = int(domain.tier)
        reply.domains.add(
            tier=tier,
            name=domain.name,
            failed_nodes=domain.failed,
            member_nodes=domain.members,
            chance=domain.chance,
        )
    before, undisturbed = plan.undisturbed, reply.undisturbed
    undisturbed.p50_gpu_hours = before.p50_gpu_hours
    undisturbed.p90_gpu_hours = before.p90_gpu_hours
    messages_of: dict[str, Any] = {
        "price": messages.parts_message(before.total, before.parts, explain=explain),
        "interruption_probability": messages.estimate_message(before.interruption, explain=explain),
        "speed": messages.estimate_message(before.running.speed, explain=explain),
    }
    for name, message in messages_of.items():
        getattr(undisturbed, name).CopyFrom(message)
    reply.options.extend(_option_message(option, explain=explain) for option in plan.options)
    return reply


def _option_message(option: RecoveryOption, *, explain: bool) -> recovery_pb2.RecoveryOption:
    kind: Any = int(option.kind)
    price: Any = messages.parts_message(option.total, option.parts, explain=explain)
    second: Any = messages.estimate_message(option.second_failure, explain=explain)
    speed: Any = messages.estimate_message(option.running.speed, explain=explain)
    reply = recovery_pb2.RecoveryOption(
        kind=kind,
        lender=option.lender,
        price=price,
        p50_gpu_hours=option.p50_gpu_hours,
        p90_gpu_hours=option.p90_gpu_hours,
        second_failure_probability=second,
        speed=speed,
        steps=option.steps,
    )
    names = {
        DETECT: "detect_hours",
        DECIDE: "decide_hours",
        ACT: "act_hours",
        RESUME: "resume_hours",
        LOST_WORK: "lost_work_hours",
    }
    for index, name in names.items():
        getattr(reply, name).CopyFrom(
            messages.estimate_message(option.hours[index], explain=explain)
        )
    columns = {"node_index": option.nodes, "stopped_node_index": option.stopped}
    reply.MergeFromString(packed(recovery_pb2.RecoveryOption, columns))
    for index, failed in enumerate(option.replaced.tolist()):
        rank = int(option.places[index])
        reply.replacements.add(
            rank=rank,
            failed_node_index=failed,
            by_node_index=int(option.nodes[rank]),
            keeps_segment=option.keeps_segment[index],
            keeps_rails=option.keeps_rails[index],
        )
    return reply
