"""Types of an executor: nodes, jobs and holds of a scheduler, advice of the aggregator, and steps.

Nothing here belongs to one scheduler. Times are seconds since the epoch by this machine's clock.
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

#: Actions that keep new work off a node, the mildest first. The driver's wishes begin with a drain.
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
#: Actions that move running work. They are also carried out on nodes that take no new work.
MOVING_ACTIONS = ("DRAIN_AT_CHECKPOINT", "EVICT_NOW")
#: What an executor may be allowed to carry out.
ACTIONS = (*HOLDING_ACTIONS, REBOOT, RESET_GPU, RETURN)

#: States of an advisory in which it has not ended.
OPEN_STATES = ("PROPOSED", "ACCEPTED", "DEFERRED")
#: The state in which what was set stays in force until the advisory's expiry.
DONE = "DONE"

#: What is set in a scheduler bears one of these, so that it is known again.
HOLD_PREFIX = "gangline_"
EVICT_SUFFIX = "_evict"
REASON_PREFIX = "gangline:v1;"

ADVISORY_NAME = re.compile(r"a[0-9]{1,18}", re.ASCII)
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)


class SchedulerError(Exception):
    """The scheduler does not respond, or refused a command; the message is its own."""


# ---------------------------------------------------------------- what the scheduler says


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `out`: why a person keeps work off it; `down`: why the scheduler does; "" where nobody does."""

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
    #: In service, and no job can start there now.
    is_busy: bool = False
    #: Nodes of a lower weight are taken first; None: the scheduler has no weights.
    weight: int | None = None
    #: Address or host name by which the scheduler reaches it; "": only its name is known.
    address: str = ""


@dataclass(frozen=True, slots=True)
class ScheduledJob:
    """A job that runs, waits or has just ended. The parts of a heterogeneous job are one."""

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
    #: It starts its step again on healthy nodes of its own (`gangline gang`): ending the step is enough.
    restarts_itself: bool = False
    #: It waits only because it was requeued: it may start now.
    waits_for_begin_time: bool = False
    #: When the scheduler lets it start, while it waits for that time; 0: unknown.
    begins: float = 0.0
    #: Nodes of its run before, as this process saw them, while it waits.
    previous_nodes: frozenset[str] = frozenset()
    #: The scheduler's numbers of its parts.
    parts: tuple[str, ...] = ()
    #: The array that it is a task of, and which; "" for none.
    array: str = ""
    array_task: str = ""
    #: Addresses of its pods and of their nodes; Slurm's nodes have theirs in `Node`.
    addresses: frozenset[str] = frozenset()
    #: Why its nodes are unknown; "" if its nodes are known.
    problem: str = ""
    #: Which start of its processes this is, from 1, where its launcher tells (`cycle_info.py`); 0: not known.
    cycle: int = 0

    @property
    def is_running(self) -> bool:
        """Whether it holds nodes."""
        return self.state in ("RUNNING", "SUSPENDED", "CONFIGURING", "STAGE_OUT", "SIGNALING")


@dataclass(frozen=True, slots=True)
class NodeHold:
    """Something that keeps new work off nodes until `ends` (0: unlimited). `name` begins with HOLD_PREFIX if an executor set it."""

    name: str
    nodes: frozenset[str]
    ends: float = 0.0
    #: Devices of the nodes that it is about; () for the nodes themselves.
    devices: tuple[str, ...] = ()
    #: Its jobs start on its nodes although another hold is in force there.
    overrides_holds: bool = False

    @property
    def is_managed(self) -> bool:
        """Whether an executor set it."""
        return self.name.startswith(HOLD_PREFIX)


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """What was read last."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    jobs: Mapping[str, ScheduledJob] = field(default_factory=dict)
    holds: Mapping[str, NodeHold] = field(default_factory=dict)
    #: When the scheduler's controller started; 0: not read.
    started: float = 0.0

    def is_held_in_vain(self, node: str) -> bool:
        """Return whether a foreign hold lets jobs start on *node* although an executor holds the node."""
        return any(hold.overrides_holds and node in hold.nodes for hold in self.holds.values())

    def running_on(self, node: str) -> list[ScheduledJob]:
        """Return the jobs that hold *node*, by name."""
        return sorted(
            (job for job in self.jobs.values() if node in job.nodes and job.is_running),
            key=lambda job: job.name,
        )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this version of the scheduler can do."""

    version: str = ""
    #: A drain that ends by itself.
    drain_ends: bool = False
    #: A requeued job that starts again on a node within the same second of the controller's clock fails there.
    restart_next_second: bool = False
    #: Kinds of marks. A hold may be in force beside a foreign drain.
    has_drain: bool = True
    has_hold: bool = True


# ---------------------------------------------------------------- what the aggregator says


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
    #: GPUs that it is about, by UUID.
    devices: tuple[str, ...] = ()
    #: How sure it is: DETERMINISTIC, DEAD_JOB, STATISTICAL, ...
    basis: str = ""
    #: Identity of the aggregator's store. Names and tokens are unique within it; "": unknown.
    store: str = ""

    @property
    def hold_name(self) -> str:
        """The name of what is set in the scheduler for it."""
        suffix = EVICT_SUFFIX if self.action == "EVICT_NOW" else ""
        return f"{HOLD_PREFIX}{self.name}{suffix}"


@dataclass(frozen=True, slots=True)
class ExecutorPolicy:
    """Actions and limits that the operator allows."""

    actions: frozenset[str] = frozenset((*HOLDING_ACTIONS, RETURN))
    mark: str = "auto"
    #: At most this many marks at one time, whatever the aggregator grants.
    marks_max: int = 100
    lease_seconds: float = 600.0
    #: How our answers name us; the aggregator may put a login before it.
    actor: str = ""
    #: EVICT_NOW also ends the replicas of torchft on the node.
    kill_replicas: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """Inputs of a decision. `is_live`: *advice* is complete and current; otherwise nothing new begins."""

    advice: Mapping[str, Advice]
    scheduler: SchedulerState
    now: float
    is_live: bool
    capabilities: Capabilities = field(default_factory=Capabilities)
    policy: ExecutorPolicy = field(default_factory=ExecutorPolicy)


# ---------------------------------------------------------------- what is done, each step with its reason


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do. `advisory`: for which; `why`: as text."""

    advisory: str
    why: str


@dataclass(frozen=True, slots=True)
class Accept(Step):
    """Ask the aggregator for the advisory."""


@dataclass(frozen=True, slots=True)
class Restore(Step):
    """Keep the advisory in the ledger again: its mark ended during an outage, and its fault is active."""


@dataclass(frozen=True, slots=True)
class AdoptStore(Step):
    """Begin the ledger for another store of the aggregator, once all earlier marks are removed."""

    store: str


@dataclass(frozen=True, slots=True)
class RenewLease(Step):
    """Keep the lease. `note`: which jobs are still on the node, and why."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Answer(Step):
    """Tell the aggregator what came of it: DONE, FAILED or REJECTED, with `why` as the note."""

    state: str


@dataclass(frozen=True, slots=True)
class Forget(Step):
    """Nothing of it is left; take it out of the ledger."""


@dataclass(frozen=True, slots=True)
class GiveBack(Step):
    """A person took away what was set on *node*: tell the aggregator, and do not set it again."""

    node: str


@dataclass(frozen=True, slots=True)
class PlaceHold(Step):
    """Keep new work off *node* for this long; what runs there continues."""

    hold: str
    node: str
    seconds: float
    #: Another hold is in force on the node.
    overlaps: bool = False
    #: GPUs that it is about, by UUID, where that is not the whole node: a scheduler that takes out single GPUs may hold these alone.
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtendHold(Step):
    """Let the hold end this many seconds from now."""

    hold: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RemoveHold(Step):
    """Take the hold away."""

    hold: str


@dataclass(frozen=True, slots=True)
class Drain(Step):
    """Drain *node* under `reason`, for at most this many seconds if the scheduler supports it. `down`: it does not respond."""

    node: str
    reason: str
    seconds: float
    down: bool = False


@dataclass(frozen=True, slots=True)
class Resume(Step):
    """End our drain of *node*. Never sent to a node whose reason is not ours."""

    node: str


@dataclass(frozen=True, slots=True)
class Requeue(Step):
    """Stop *job* and put it back into the queue. `restarts`: how often it had been before; `node`: the node that it must leave."""

    job: str
    restarts: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class StartNow(Step):
    """Lift the delay that a requeue puts on *job*."""

    job: str
    #: Not before this second of the scheduler's clock; 0: now.
    begin: float = 0.0
    #: Of the job, by the scheduler's numbers; empty: not known.
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EndStep(Step):
    """End the steps of *job* that run on *node*; the job starts them again on its other nodes. Without any there is nothing to do."""

    job: str
    node: str
    #: How often the job had been requeued before.
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Reboot(Step):
    """Reboot *node* once it is free, and take it back into service."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResetGpus(Step):
    """Run the site's own command that resets the GPUs of *node*."""

    node: str


@dataclass(frozen=True, slots=True)
class SetWeight(Step):
    """Give *nodes* this weight."""

    nodes: tuple[str, ...]
    weight: int


@dataclass(frozen=True, slots=True)
class KillReplicas(Step):
    """End the replicas of torchft on *node*: the others of their job continue at once. Not a step of the scheduler's (`torchft.py`)."""

    node: str


#: Steps that change the scheduler: the ledger is written before each.
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


#: Commands and calls that run at one time.
TOGETHER_MAX = 8


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return what each of *calls* returns, in order; several run at one time, each in a thread."""
    if len(calls) <= 1:
        return [call() for call in calls]
    with ThreadPoolExecutor(min(len(calls), TOGETHER_MAX)) as pool:
        return list(pool.map(lambda call: call(), calls))


def attempt(call: Callable[[], object]) -> str:
    """Return the error of *call*; "" where it succeeds."""
    try:
        call()
    except SchedulerError as error:
        return str(error)
    return ""


def apply_each(steps: Iterable[Step], apply_one: Callable[[Step], None]) -> dict[Step, str]:
    """Apply *steps* one after the other; return the error of each that failed."""
    errors: dict[Step, str] = {}
    for step in steps:
        try:
            apply_one(step)
        except SchedulerError as error:
            errors[step] = str(error)
    return errors


class DoctorLevel(StrEnum):
    """How grave a finding is."""

    OK = "ok"
    NOTE = "note"
    SLOW = "slow"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line: how grave, what is so, and what to do."""

    level: DoctorLevel
    text: str


class Scheduler(ABC):
    """What an executor needs of a scheduler. Each method raises SchedulerError, and waits for a bounded time."""

    #: How answers and outcomes name it.
    name = "scheduler"

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what this version can do."""

    @abstractmethod
    def read_nodes(self, names: Collection[str] | None = None) -> dict[str, Node]:
        """Return nodes by name; all if *names* is None. Unknown names are left out."""

    @abstractmethod
    def read_jobs(self) -> dict[str, ScheduledJob]:
        """Return jobs that run, wait or have just ended, by name."""

    @abstractmethod
    def read_holds(self) -> dict[str, NodeHold]:
        """Return the holds that stand now, by name."""

    def started(self) -> float:
        """Return when its controller started, 0 where that is not known: what it lost then nobody took away."""
        return 0.0

    def remove_expired(self) -> None:
        """Take away what executors set and what is past its end, where the scheduler does not do so by itself."""
        return

    def clear_health(self) -> tuple[list[str], list[str]]:
        """Take away what executors publish about nodes' health; return (what was done, what failed)."""
        return [], []

    @abstractmethod
    def apply(self, steps: Iterable[Step]) -> dict[Step, str]:
        """Carry out *steps* of SCHEDULER_STEPS; return the error of each that failed. A step that is so already is no error."""
