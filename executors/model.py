"""Types of an executor: nodes, jobs and holds of a scheduler, advice of the aggregator, and steps.

These types are independent of the scheduler. Times are seconds since the epoch by this machine's clock.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")

#: Actions that keep new work off a node, the mildest first. Actions that the driver recommends begin with a drain.
HOLDING_ACTIONS = (
    "AVOID",
    "DRAIN_AFTER_JOB",
    "DRAIN_P2P",
    "RECOVER_IMEX_DOMAIN",
    "DRAIN_AND_RESET",
    "DRAIN_AT_CHECKPOINT",
    "EVICT_NOW",
)
RETURN = "RETURN_TO_SERVICE"
REBOOT, RESET_GPU = "REBOOT", "RESET_GPU"
#: Actions that move running jobs, also off nodes that already take no new work.
MOVING_ACTIONS = ("DRAIN_AT_CHECKPOINT", "EVICT_NOW")
#: All actions that an operator may allow an executor to carry out.
ACTIONS = (*HOLDING_ACTIONS, REBOOT, RESET_GPU, RETURN)

#: States of an advisory in which it has not ended.
OPEN_STATES = ("PROPOSED", "ACCEPTED", "DEFERRED")
#: State of an advisory whose mark stays in force until the advisory expires.
DONE = "DONE"

#: Prefixes and suffix of the names and reasons by which an executor recognizes its own marks.
HOLD_PREFIX = "gangline_"
EVICT_SUFFIX = "_evict"
REASON_PREFIX = "gangline:v1;"

ADVISORY_NAME = re.compile(r"a[0-9]{1,18}", re.ASCII)
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)

#: Limit of commands and calls that run in parallel.
TOGETHER_MAX = 8


class SchedulerError(Exception):
    """The scheduler does not respond, or it refused a command; the message is the scheduler's."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `out`: why a person keeps work off it; `down`: why the scheduler does; "" else."""

    name: str
    state: str
    reason: str = ""
    is_responding: bool = True
    out: str = ""
    down: str = ""
    #: Set by an executor: `reason` begins with REASON_PREFIX and the node is drained or down.
    is_managed: bool = False
    #: False: the node has a foreign drain, whose reason a drain would overwrite.
    may_drain: bool = True
    #: The node is in service, and no further job can start there now.
    is_busy: bool = False
    #: The scheduler prefers nodes of a lower weight; None: the scheduler has no weights.
    weight: int | None = None
    #: Address or host name by which the scheduler reaches the node; "": only the node's name is known.
    address: str = ""


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job that runs, waits or has just ended. A heterogeneous job is a single ScheduledJob with several parts."""

    name: str
    state: str
    nodes: frozenset[str] = frozenset()
    restarts: int = 0
    may_requeue: bool = False
    gpus: int = 0
    submitted: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    checkpoint_seconds: float = 0.0
    #: The job restarts its step on its healthy nodes (`gangline gang`), so ending the step is enough.
    restarts_itself: bool = False
    #: Only the delay of its requeue keeps the job waiting; the delay may be lifted.
    waits_for_begin_time: bool = False
    #: Earliest start that the scheduler allows while the job waits for this time; 0: unknown.
    begins: float = 0.0
    #: Nodes of the job's previous run, as this process saw them, while the job waits.
    previous_nodes: frozenset[str] = frozenset()
    #: The scheduler's numbers of the job's parts.
    parts: tuple[str, ...] = ()
    #: Job array, and the index of this job in it; "" if the job is not an array task.
    array: str = ""
    array_task: str = ""
    #: Addresses of the job's pods and of their nodes; addresses of Slurm's nodes are in `Node`.
    addresses: frozenset[str] = frozenset()
    #: Why the job's nodes are unknown; "" if they are known.
    problem: str = ""
    #: Number of this start of the job's processes, from 1, if its launcher reports it (`cycle_info.py`); 0: unknown.
    cycle: int = 0

    @property
    def is_running(self) -> bool:
        """Whether the job holds nodes."""
        return self.state in ("RUNNING", "SUSPENDED", "CONFIGURING", "STAGE_OUT", "SIGNALING")


@dataclass(frozen=True, slots=True)
class NodeHold:
    """A hold: keeps new work off nodes until `ends` (0: unlimited)."""

    name: str
    nodes: frozenset[str]
    ends: float = 0.0
    #: The held devices of the nodes; () if the hold covers whole nodes.
    devices: tuple[str, ...] = ()
    #: Jobs of this hold (for example a reservation) start on its nodes although another hold is in force there.
    overrides_holds: bool = False

    @property
    def is_managed(self) -> bool:
        """Whether an executor set the hold."""
        return self.name.startswith(HOLD_PREFIX)


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """The scheduler's state as of the last read."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    jobs: Mapping[str, ScheduledJob] = field(default_factory=dict)
    holds: Mapping[str, NodeHold] = field(default_factory=dict)
    #: When the scheduler's controller started; 0: unknown.
    started: float = 0.0

    def is_held_in_vain(self, node: str) -> bool:
        """Return whether jobs of a foreign hold may start on *node* although an executor holds the node."""
        return any(hold.overrides_holds and node in hold.nodes for hold in self.holds.values())

    def running_on(self, node: str) -> list[ScheduledJob]:
        """Return the jobs that hold *node*, by name."""
        return sorted(
            (job for job in self.jobs.values() if node in job.nodes and job.is_running),
            key=lambda job: job.name,
        )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of this version of the scheduler."""

    version: str = ""
    #: A drain ends by itself after a given time.
    drain_ends: bool = False
    #: A requeued job fails if it restarts on a node within the same second of the controller's clock.
    restart_next_second: bool = False
    #: Supported kinds of marks. A hold may be in force together with a foreign drain.
    has_drain: bool = True
    has_hold: bool = True


@dataclass(frozen=True, slots=True)
class Advice:
    """An advisory as an executor needs it; `node` is the scheduler's name of the host."""

    name: str
    etag: str
    action: str
    state: str
    node: str
    scope: str = ""
    cause: str = ""
    reason: str = ""
    owner: str = ""
    token: int = 0
    expires: float = 0.0
    lease_until: float = 0.0
    workload: str = ""
    checkpoint_seconds: float = 0.0
    proposed: float = 0.0
    #: UUIDs of the GPUs concerned.
    devices: tuple[str, ...] = ()
    #: Kind of evidence: DETERMINISTIC, DEAD_JOB, STATISTICAL, ...
    basis: str = ""
    #: Identity of the aggregator's store. Names and tokens are unique within it; "": unknown.
    store: str = ""

    @property
    def hold_name(self) -> str:
        """Name of the hold for this advisory."""
        suffix = EVICT_SUFFIX if self.action == "EVICT_NOW" else ""
        return f"{HOLD_PREFIX}{self.name}{suffix}"


@dataclass(frozen=True, slots=True)
class ExecutorPolicy:
    """Actions and limits that the operator allows."""

    actions: frozenset[str] = frozenset((*HOLDING_ACTIONS, RETURN))
    mark: str = "auto"
    #: Limit of simultaneous marks, even if the aggregator grants more.
    marks_max: int = 100
    lease_seconds: float = 600.0
    #: Name of this executor in its answers; the aggregator may prefix a login.
    actor: str = ""
    #: EVICT_NOW also ends the replicas of torchft on the node.
    kill_replicas: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """Inputs of a decision. `is_live`: `advice` is complete and current; otherwise no new advisory is accepted."""

    advice: Mapping[str, Advice]
    scheduler: SchedulerState
    now: float
    is_live: bool
    capabilities: Capabilities = field(default_factory=Capabilities)
    policy: ExecutorPolicy = field(default_factory=ExecutorPolicy)


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the executor. `advisory`: name of its advisory; `why`: the reason, as text."""

    advisory: str
    why: str


@dataclass(frozen=True, slots=True)
class Accept(Step):
    """Accept the advisory at the aggregator."""


@dataclass(frozen=True, slots=True)
class Restore(Step):
    """Add the advisory to the ledger again: its mark ended during an outage, and its fault is active."""


@dataclass(frozen=True, slots=True)
class AdoptStore(Step):
    """Begin the ledger for another store of the aggregator, once all earlier marks are removed."""

    store: str


@dataclass(frozen=True, slots=True)
class RenewLease(Step):
    """Renew the lease. `note`: the jobs that are still on the node, and why."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Answer(Step):
    """Report the advisory's outcome to the aggregator: DONE, FAILED or REJECTED, with `why` as the note."""

    state: str


@dataclass(frozen=True, slots=True)
class Forget(Step):
    """Remove the advisory from the ledger: none of its marks is left."""


@dataclass(frozen=True, slots=True)
class GiveBack(Step):
    """Report to the aggregator that a person removed the mark on `node`, and do not set it again."""

    node: str


@dataclass(frozen=True, slots=True)
class PlaceHold(Step):
    """Keep new work off `node` for `seconds`; running jobs continue."""

    hold: str
    node: str
    seconds: float
    #: Another hold is in force on the node.
    overlaps: bool = False
    #: UUIDs of the GPUs to hold, () for the whole node. A scheduler that supports it may hold only these GPUs.
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtendHold(Step):
    """Move the end of the hold to `seconds` from now."""

    hold: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RemoveHold(Step):
    """Remove the hold."""

    hold: str


@dataclass(frozen=True, slots=True)
class Drain(Step):
    """Drain `node` for at most `seconds`, if supported. `down`: the node does not respond."""

    node: str
    reason: str
    seconds: float
    down: bool = False


@dataclass(frozen=True, slots=True)
class Resume(Step):
    """End the executor's drain of `node`. Never sent for a node whose reason a person or another program set."""

    node: str


@dataclass(frozen=True, slots=True)
class Requeue(Step):
    """Stop `job` and requeue it off `node`. `restarts`: number of its earlier requeues."""

    job: str
    restarts: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class StartNow(Step):
    """Lift the delay that a requeue puts on `job`."""

    job: str
    #: Earliest start, in seconds of the scheduler's clock; 0: now.
    begin: float = 0.0
    #: The scheduler's numbers of the job's parts; empty: unknown.
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EndStep(Step):
    """End the steps of `job` on `node`, if any; the job restarts them on its other nodes."""

    job: str
    node: str
    #: Number of earlier requeues of the job.
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Reboot(Step):
    """Reboot `node` once it is free, then return it to service."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResetGpus(Step):
    """Run the site's command that resets the GPUs of `node`."""

    node: str


@dataclass(frozen=True, slots=True)
class SetWeight(Step):
    """Set the scheduling weight of `nodes`."""

    nodes: tuple[str, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class KillReplicas(Step):
    """End the torchft replicas on `node`, by `torchft.py`, so that other replicas continue."""

    node: str


#: Steps that change the scheduler. The ledger is written before these steps, except before StartNow alone.
SCHEDULER_STEPS = (
    PlaceHold,
    ExtendHold,
    RemoveHold,
    Drain,
    Resume,
    Requeue,
    StartNow,
    EndStep,
    Reboot,
    ResetGpus,
    SetWeight,
    KillReplicas,
)


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of *calls*, in order; up to TOGETHER_MAX run in parallel, each in a thread."""
    if len(calls) <= 1:
        return [call() for call in calls]
    with ThreadPoolExecutor(min(len(calls), TOGETHER_MAX)) as pool:
        return list(pool.map(lambda call: call(), calls))


def attempt(call: Callable[[], object]) -> str:
    """Return the error of *call*; "" if it succeeds."""
    try:
        call()
    except SchedulerError as error:
        return str(error)
    return ""


def apply_each(steps: Iterable[Step], apply_one: Callable[[Step], None]) -> dict[Step, str]:
    """Apply *steps* in sequence; return the error of each failed step."""
    errors: dict[Step, str] = {}
    for step in steps:
        try:
            apply_one(step)
        except SchedulerError as error:
            errors[step] = str(error)
    return errors


class DoctorLevel(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    NOTE = "note"
    SLOW = "slow"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """A finding: its severity, and a line that says the fact and the remedy."""

    level: DoctorLevel
    text: str


class Scheduler(ABC):
    """Interface of a scheduler. Each method raises SchedulerError, and waits for a bounded time."""

    #: Name of the scheduler in answers and outcomes.
    name = "scheduler"

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return the capabilities of this version."""

    @abstractmethod
    def read_nodes(self, names: Collection[str] | None = None) -> dict[str, Node]:
        """Return nodes by name; all if *names* is None. Unknown names are left out."""

    @abstractmethod
    def read_jobs(self) -> dict[str, ScheduledJob]:
        """Return jobs that run, wait or have just ended, by name."""

    @abstractmethod
    def read_holds(self) -> dict[str, NodeHold]:
        """Return the holds in force, by name."""

    def started(self) -> float:
        """Return when the scheduler's controller started; 0: unknown.

        A mark that the controller lost in this restart was not removed by a person.
        """
        return 0.0

    def remove_expired(self) -> None:
        """Remove expired marks of executors, if the scheduler does not remove them by itself."""
        return

    def clear_health(self) -> tuple[list[str], list[str]]:
        """Remove the health that executors published on nodes; return (completed actions, failures)."""
        return [], []

    @abstractmethod
    def apply(self, steps: Iterable[Step]) -> dict[Step, str]:
        """Carry out *steps* of SCHEDULER_STEPS; return the error of each failed step.

        A step whose effect already exists succeeds.
        """
