"""Builds an executor's reports about its scheduler: gangs, nodes taken out by others, and how jobs ended. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..contract.wire import advisory_pb2, outcome_pb2
from .ledger import ExecutorLedger
from .model import ScheduledJob, SchedulerState

#: A reported gang or unavailable node is valid this long; reports repeat after a third of this time.
TTL_SECONDS = 600.0
#: Limits of a request.
GANGS_PER_REQUEST, NODES_PER_GANG_MAX, NODES_PER_REQUEST = 1000, 10_000, 50_000
OUTCOMES_PER_REQUEST, OUTCOME_NODES_MAX = 1000, 4096
#: Limit of outcomes queued while the aggregator is unreachable; beyond it the oldest outcomes are dropped.
OUTCOMES_WAITING_MAX = 10_000

#: States of a job that a fault interrupted, not its owner or a preemption.
INTERRUPTED_STATES = frozenset({"NODE_FAIL", "BOOT_FAIL"})

HostOf = Callable[[str], str]


@dataclass(slots=True)
class Reported:
    """The state that was reported to the aggregator.

    After a start everything is reported again; only the names in `unavailable` come from the ledger.
    """

    gangs: dict[str, tuple[object, float]] = field(default_factory=dict)
    unavailable: dict[str, tuple[str, float]] = field(default_factory=dict)
    #: Jobs that ran at the last call of `collect_outcomes`.
    running: dict[str, ScheduledJob] = field(default_factory=dict)
    #: (evicted job, restarts) -> node of the advisory.
    evicted: dict[tuple[str, int], str] = field(default_factory=dict)
    outcomes: list[outcome_pb2.Outcome] = field(default_factory=list)
    dropped_count: int = 0


def earlier_reports(nodes: Iterable[str]) -> dict[str, tuple[str, float]]:
    """Return `Reported.unavailable` for *nodes*, which an earlier process reported.

    Nodes that are still out are then reported again, and the other nodes are reported as returned.
    """
    return {node: ("", -math.inf) for node in nodes}


def gang_updates(
    reported: Reported, state: SchedulerState, now: float, host_of: HostOf
) -> tuple[list[advisory_pb2.Gang], list[str]]:
    """Return (gangs to report, ended workloads) within the limits of a request; the next call returns the rest."""
    running = {job.name: job for job in state.jobs.values() if job.is_running and job.nodes}
    gangs: list[advisory_pb2.Gang] = []
    nodes = 0
    for job in running.values():
        key = _gang_key(job)
        before = reported.gangs.get(job.name)
        if before is not None and before[0] == key and now - before[1] < TTL_SECONDS / 3:
            continue
        nodes += len(job.nodes)
        if len(gangs) >= GANGS_PER_REQUEST or nodes > NODES_PER_REQUEST:
            break
        gangs.append(_gang(job, host_of))
    ended = [name for name in reported.gangs if name not in running][:NODES_PER_GANG_MAX]
    return gangs, ended


def _gang_key(job: ScheduledJob) -> object:
    """Return the values of a gang whose change is reported at once."""
    return job.nodes, job.gpus, job.restarts, job.checkpoint_seconds, job.cycle


def _gang(job: ScheduledJob, host_of: HostOf) -> advisory_pb2.Gang:
    hosts = sorted(host_of(node) for node in job.nodes)[:NODES_PER_GANG_MAX]
    gang = advisory_pb2.Gang(
        workload=job.name, nodes=[f"nodes/{host}" for host in hosts], gpus_count=job.gpus
    )
    gang.ttl.FromSeconds(int(TTL_SECONDS))
    if job.checkpoint_seconds:
        gang.checkpoint_interval.FromMilliseconds(int(1000 * job.checkpoint_seconds))
    return gang


def record_gangs(
    reported: Reported,
    state: SchedulerState,
    gangs: Iterable[advisory_pb2.Gang],
    ended: Iterable[str],
    now: float,
) -> None:
    """Record that the aggregator received *gangs* and *ended*."""
    for gang in gangs:
        job = state.jobs.get(gang.workload)
        if job is not None:
            reported.gangs[job.name] = _gang_key(job), now
    for name in ended:
        reported.gangs.pop(name, None)


def unavailable_updates(
    reported: Reported, state: SchedulerState, ledger: ExecutorLedger, now: float, host_of: HostOf
) -> tuple[dict[str, str], list[str]]:
    """Return (host taken out by others -> reason, returned hosts), without the marks of this executor."""
    managed = {entry.node for entry in ledger if entry.is_marked}
    out: dict[str, str] = {}
    for node in state.nodes.values():
        reason = node.out or node.down
        if reason and not node.is_managed:
            out[node.name] = reason
    for hold in state.holds.values():
        if not hold.is_managed and hold.name.lower().startswith("maint"):
            for name in hold.nodes:
                out.setdefault(name, f"reservation {hold.name}")
    fresh: dict[str, str] = {}
    for name, reason in out.items():
        if name in managed and not state.nodes[name].out:
            continue
        before = reported.unavailable.get(name)
        if before is None or before[0] != reason or now - before[1] > TTL_SECONDS / 3:
            fresh[host_of(name)] = reason
    back = [host_of(name) for name in reported.unavailable if name not in out]
    return fresh, back


def record_unavailable(
    reported: Reported, fresh: dict[str, str], back: Iterable[str], now: float, node_of: HostOf
) -> None:
    """Record that the aggregator received *fresh* and *back*."""
    for host, reason in fresh.items():
        reported.unavailable[node_of(host)] = reason, now
    for host in back:
        reported.unavailable.pop(node_of(host), None)


@dataclass(frozen=True, slots=True)
class ReportedCluster:
    """A cluster as of `now`."""

    name: str
    state: SchedulerState
    now: float
    host_of: HostOf


def collect_outcomes(reported: Reported, cluster: ReportedCluster, ledger: ExecutorLedger) -> None:
    """Add an outcome for each run that ended since the last call: the job ended, was requeued, or lost a node."""
    for entry in ledger:
        for name, progress in entry.jobs.items():
            if progress.state != "left":
                reported.evicted[name, progress.restarts] = entry.node
    marked = frozenset(entry.node for entry in ledger if entry.is_marked)
    state = cluster.state
    for name, before in list(reported.running.items()):
        after = state.jobs.get(name)
        if after is not None and after.is_running and _is_same_run(before, after):
            continue
        blamed = reported.evicted.pop((name, before.restarts), "")
        reported.outcomes.append(_outcome(before, after, blamed, cluster, marked))
    if (extra := len(reported.outcomes) - OUTCOMES_WAITING_MAX) > 0:
        del reported.outcomes[:extra]
        reported.dropped_count += extra
    running = {
        job.name: job for job in state.jobs.values() if job.is_running and job.nodes and job.started
    }
    for name, before in reported.running.items():
        after = running.get(name)
        if after and before.cycle and not after.cycle and after.restarts == before.restarts:
            running[name] = before  # the file of the job's launcher is temporarily unreadable
    reported.running = running


def _is_same_run(before: ScheduledJob, after: ScheduledJob) -> bool:
    """Return whether the job continues. A cycle number that becomes known or unknown does not begin a new run."""
    is_cycle_known = before.cycle and after.cycle
    return after.restarts == before.restarts and (not is_cycle_known or after.cycle == before.cycle)


def _outcome(
    before: ScheduledJob,
    after: ScheduledJob | None,
    evicted_from: str,
    cluster: ReportedCluster,
    marked: AbstractSet[str],
) -> outcome_pb2.Outcome:
    """Return the outcome of the run *before*. *after*: the job now; None if the scheduler has forgotten the job.

    *marked*: nodes that have an executor's mark. If a launcher restarted the job within its allocation, marked nodes that it left count as lost.
    """
    restarted = after is not None and 0 < before.cycle < after.cycle
    left = before.nodes - after.nodes if after is not None and restarted else frozenset()
    lost = [
        name
        for name in sorted(before.nodes)
        if (name in left and name in marked)
        or (
            (node := cluster.state.nodes.get(name)) is not None
            and (node.down or not node.is_responding)
        )
    ]
    requeued = after is not None and not after.ended and after.restarts >= before.restarts
    state_name = after.state if after is not None else "unknown"
    # A requeue without a lost node comes from a person or a preemption.
    interrupted = (
        bool(evicted_from) or (requeued and bool(lost)) or state_name in INTERRUPTED_STATES
    )
    if evicted_from:
        reason = "requeued by advice"
    elif restarted:
        reason = "restarted by its launcher" + (f"; lost: {', '.join(lost[:5])}" if lost else "")
    elif requeued:
        reason = f"requeued; lost: {', '.join(lost[:5])}" if lost else "requeued"
    else:
        reason = state_name
    blamed = evicted_from or (lost[0] if interrupted and len(lost) == 1 else "")
    outcome = outcome_pb2.Outcome(
        outcome_id=f"{cluster.name}-{before.name}-{before.submitted:.0f}-{before.restarts}"[:116]
        + (f"-c{before.cycle}" if before.cycle else ""),
        workload=before.name[:256],
        nodes=[
            f"nodes/{cluster.host_of(node)}" for node in sorted(before.nodes)[:OUTCOME_NODES_MAX]
        ],
        blamed_node=f"nodes/{cluster.host_of(blamed)}" if blamed in before.nodes else "",
        interrupted=interrupted,
        end_reason=reason[:200],
        advice_followed=bool(evicted_from) or bool(left & marked),
    )
    ended = after.ended if after is not None and after.ended else cluster.now
    outcome.start_time.FromMilliseconds(int(1000 * before.started))
    outcome.end_time.FromMilliseconds(int(1000 * max(min(cluster.now, ended), before.started)) + 1)
    return outcome
