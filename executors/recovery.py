"""Recovery of a gang whose job was requeued: builds the plan request and the report of the recovery's duration. No I/O.

The scheduler chooses the nodes; a plan is advice. Waiting for the plan never delays the job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ..contract.wire import recovery_pb2
from .model import ScheduledJob, SchedulerState

#: Timeout of a plan request.
PLAN_SECONDS = 0.5
#: A recovery is reported as failed if the job does not run after this time.
RECOVERY_SECONDS_MAX = 900.0
#: Period of the reads of a requeued job's state until the job runs, and the limit of their duration.
RECOVERY_POLL_SECONDS, RECOVERY_POLLED_SECONDS = 0.2, 10.0
#: Limit of followed recoveries, and of reports queued while the aggregator is unreachable.
RECOVERIES_MAX = 1000
CHECKPOINT_SECONDS_MIN, CHECKPOINT_SECONDS_MAX = 1.0, 7 * 86_400.0
GPUS_PER_NODE_MAX = 255

#: Kinds of recovery that a requeue can carry out: the job restarts on given nodes.
FOLLOWED = (
    recovery_pb2.RECOVERY_HOT_SPARE,
    recovery_pb2.RECOVERY_FREE_NODE,
    recovery_pb2.RECOVERY_RESTART_ELSEWHERE,
)


@dataclass(frozen=True, slots=True)
class PlannedRecovery:
    """The aggregator's plan, with the scheduler's names of nodes."""

    #: Kind of the cheapest option: `FREE_NODE`, `SHRINK`, ...
    kind: str
    decision: str
    gpu_hours: float
    #: (node, its replacement).
    replacements: tuple[tuple[str, str], ...]
    #: Nodes of the job in the cheapest option of a FOLLOWED kind.
    nodes: frozenset[str]
    #: Why a restart will fail again; "" if the aggregator gave no such reason.
    futile: str = ""

    def text(self) -> str:
        """Return the plan as text of at most 200 characters."""
        moves = ", ".join(f"{by} for {node}" for node, by in self.replacements[:4])
        more = f" and {len(self.replacements) - 4} more" if len(self.replacements) > 4 else ""
        futile = f"; a restart is futile: {self.futile}" if self.futile else ""
        return f"plan {self.kind}{f' ({moves}{more})' if moves else ''}, {self.gpu_hours:.3g} GPU-hours{futile}"[
            :200
        ]


@dataclass(slots=True)
class FollowedRecovery:
    """A job requeued off `node`, until it runs again. Times: seconds of this machine's clock."""

    advisory: str
    job: ScheduledJob
    node: str
    detected: float
    decided: float = 0.0
    plan: PlannedRecovery | None = None


def plan_request(
    job: ScheduledJob,
    node: str,
    indexes: Mapping[str, int],
    version: int,
    host_of: Callable[[str], str],
    free: Collection[str],
) -> recovery_pb2.PlanRecoveryRequest | None:
    """Return the plan request for *job*, which loses *node*.

    None if the aggregator does not know the job's nodes. *free*: nodes that the scheduler could
    give the job.
    """
    members = sorted(job.nodes)
    hosts = [host_of(one) for one in members]
    if node not in job.nodes or any(host not in indexes for host in hosts):
        return None
    request = recovery_pb2.PlanRecoveryRequest(
        dictionary_version=version,
        current_node_index=[indexes[host] for host in hosts],
        failed_node_index=[indexes[host_of(node)]],
        incident=job.name[:128],
    )
    each, rest = divmod(job.gpus, len(members))
    if not rest and each <= GPUS_PER_NODE_MAX:
        request.gang.gpus_per_node = each
    # The request has no workload: the service refuses a job whose run it has not seen for long enough.
    if CHECKPOINT_SECONDS_MIN <= job.checkpoint_seconds <= CHECKPOINT_SECONDS_MAX:
        request.gang.checkpoint_interval.FromMilliseconds(int(1000 * job.checkpoint_seconds))
    # The job's own nodes are free again once the job has left them.
    candidates = {indexes[host] for one in {*free, *members} if (host := host_of(one)) in indexes}
    bitmap = bytearray(max(indexes.values(), default=0) // 8 + 1)
    for index in candidates - {indexes[host_of(node)]}:
        bitmap[index // 8] |= 1 << index % 8
    request.candidates.node_bitmap = bytes(bitmap)
    return request


def free_nodes(state: SchedulerState) -> list[str]:
    """Return the idle nodes in service that no hold covers."""
    held = {name for hold in state.holds.values() for name in hold.nodes}
    return [
        node.name
        for node in state.nodes.values()
        if node.state.startswith("IDLE")
        and node.is_responding
        and not node.is_busy
        and not node.out
        and not node.down
        and node.name not in held
    ]


def read_plan(
    reply: recovery_pb2.PlanRecoveryResponse, names: Sequence[str], node_of: Callable[[str], str]
) -> PlannedRecovery | None:
    """Return the plan of *reply*; None if it has no option. The plan has no nodes if one of them is unknown."""

    def name_of(index: int) -> str:
        return node_of(names[index]) if index < len(names) else ""

    if not reply.options:
        return None
    best = reply.options[0]
    kinds = recovery_pb2.RecoveryKind
    kind = kinds.Name(best.kind) if best.kind in kinds.values() else f"RECOVERY_{best.kind}"
    follow = next((one for one in reply.options if one.kind in FOLLOWED), None)
    nodes = frozenset(name_of(index) for index in follow.node_index) if follow else frozenset()
    return PlannedRecovery(
        kind.removeprefix("RECOVERY_"), reply.decision_id, best.price.total_gpu_hours.value,
        tuple((name_of(one.failed_node_index), name_of(one.by_node_index)) for one in best.replacements),
        nodes if "" not in nodes else frozenset(),
        reply.futile_reason[:100] if reply.restart_is_futile else "",
    )  # fmt: skip


def report_of(
    one: FollowedRecovery, state: SchedulerState, now: float, cluster: str, ahead: float
) -> recovery_pb2.ReportRecoveryRequest | None:
    """Return the report of a finished recovery; None while the recovery continues.

    *ahead*: seconds by which the aggregator's clock is ahead of this machine's clock.
    """
    job = state.jobs.get(one.job.name)
    runs = (
        job is not None
        and job.is_running
        and (job.restarts > one.job.restarts or one.node not in job.nodes)
    )
    has_ended = job is None or bool(job.ended)
    if not runs and not has_ended and now - one.decided < RECOVERY_SECONDS_MAX:
        return None
    request = recovery_pb2.ReportRecoveryRequest(
        incident=f"{cluster}-{one.job.name}-{one.job.submitted:.0f}-{one.job.restarts}"[:128],
        decision_id=one.plan.decision[:128] if one.plan else "",
        kind=_kind(one, job) if job is not None and runs else recovery_pb2.RECOVERY_KIND_UNSPECIFIED,
        success=runs,
        restarted_processes=True,
        workload=one.job.name[:256],
        note="" if runs else "it had ended when it was next checked" if has_ended else "it waits for nodes",
    )  # fmt: skip
    # Clocks of two machines differ: no reported time may be before the preceding time.
    at = max(0.0, one.detected)
    for field, when in (
        ("detect_time", at),
        ("decide_time", one.decided),
        ("act_time", now if runs else 0.0),
    ):
        if when:
            at = max(at, when)
            getattr(request, field).FromMilliseconds(int(1000 * (at + ahead)))
    return request


def _kind(followed: FollowedRecovery, job: ScheduledJob) -> recovery_pb2.RecoveryKind:
    """Return FREE_NODE if the job kept all its healthy nodes, else RESTART_ELSEWHERE."""
    if job.nodes >= followed.job.nodes - {followed.node}:
        return recovery_pb2.RECOVERY_FREE_NODE
    return recovery_pb2.RECOVERY_RESTART_ELSEWHERE
