"""Advisories and the cases that they answer: their types, states and permitted transitions.

The enumerations follow `contract/wire/advisory.proto`, number by number (a test compares them).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum

from .failure_domains import NOWHERE, FailureDomains

#: The reason of a host that no longer reports.
SILENCE_REASON = "STALE_TELEMETRY"
#: Reasons that name a device of the host itself, and the scopes that such a fault may have. Power,
#: cooling, links, fabric, storage and silence are shared with other hosts and must never be added
#: here.
OWN_DEVICE_REASONS = frozenset(
    {"XID_FATAL", "ECC_TREND", "HBM_REMAP", "DRIVER_HUNG", "GPU_UNUSABLE"}
)
#: With scope BASEBOARD also these reasons: the baseboard carries the NVSwitches.
OWN_BASEBOARD_REASONS = OWN_DEVICE_REASONS | {"FABRIC", "NVLINK_ERRORS"}


class Action(IntEnum):
    """An advised action."""

    AVOID = 1  # start nothing new there
    DRAIN_AFTER_JOB = 2
    DRAIN_AT_CHECKPOINT = 3
    EVICT_NOW = 4
    RESET_GPU = 5
    REBOOT = 6
    RETURN_TO_SERVICE = 7
    RUN_DIAGNOSTIC = 8
    CAP_POWER = 9
    DRAIN_P2P = 10  # the driver requests it: end peer-to-peer work
    DRAIN_AND_RESET = 11  # the driver requests it: let jobs end, start none, reset
    RECOVER_IMEX_DOMAIN = 12  # the driver requests it
    INSPECT = 13  # a person inspects: cable, power supply, cooling, switch


#: From least to most severe. A host's advisory has the most severe action of its cases.
GRAVITY = (
    Action.RETURN_TO_SERVICE,
    Action.INSPECT,
    Action.CAP_POWER,
    Action.AVOID,
    Action.RUN_DIAGNOSTIC,
    Action.DRAIN_AFTER_JOB,
    Action.DRAIN_P2P,
    Action.RECOVER_IMEX_DOMAIN,
    Action.DRAIN_AND_RESET,
    Action.DRAIN_AT_CHECKPOINT,
    Action.RESET_GPU,
    Action.REBOOT,
    Action.EVICT_NOW,
)
#: Actions that leave the host in service: no budget counts them, and nothing must be undone.
LEAVE_IN_SERVICE = frozenset({Action.RETURN_TO_SERVICE, Action.INSPECT, Action.CAP_POWER})
#: Actions that move running work off the host.
MOVE_WORK = frozenset({Action.DRAIN_AT_CHECKPOINT, Action.EVICT_NOW})
#: The only actions that a statistical verdict may request for a host.
STATISTICAL_ACTIONS = frozenset({Action.AVOID, Action.DRAIN_AFTER_JOB})
#: Actions that need a deterministic fault or a dead job.
CERTAIN_ACTIONS = frozenset({Action.EVICT_NOW})


class Basis(IntEnum):
    """The basis of a verdict."""

    STATISTICAL = 1
    DETERMINISTIC = 2
    DEAD_JOB = 3  # acting costs nothing: the job on the host is dead
    VERIFIED = 4  # only for a return: the host was well for long enough
    SHARED_CAUSE = 5


class Scope(StrEnum):
    """The part that an action affects, as in `contract/xid/xid.toml`."""

    NONE = ""
    PROCESS = "process"
    GPU = "gpu"
    BASEBOARD = "baseboard"
    NVLINK_DOMAIN = "nvlink-domain"
    HOST = "host"
    DRIVER = "driver"
    RACK = "rack"
    POWER_DOMAIN = "power-domain"
    COOLING_DOMAIN = "cooling-domain"
    LEAF = "leaf"
    SPINE = "spine"
    FLEET = "fleet"


class AdvisoryState(IntEnum):
    """The state of an advisory."""

    PROPOSED = 1
    ACCEPTED = 2
    DONE = 3
    FAILED = 4
    REJECTED = 5
    DEFERRED = 6
    EXPIRED = 7
    WITHDRAWN = 8


OWN_DEVICE_SCOPES = frozenset({Scope.GPU, Scope.BASEBOARD, Scope.HOST})
TERMINAL_STATES = frozenset(
    {
        AdvisoryState.DONE,
        AdvisoryState.FAILED,
        AdvisoryState.REJECTED,
        AdvisoryState.EXPIRED,
        AdvisoryState.WITHDRAWN,
    }
)
#: From -> to. Any other transition is refused.
TRANSITIONS: dict[AdvisoryState, frozenset[AdvisoryState]] = {
    AdvisoryState.PROPOSED: frozenset(
        {
            AdvisoryState.ACCEPTED,
            AdvisoryState.REJECTED,
            AdvisoryState.DEFERRED,
            AdvisoryState.EXPIRED,
            AdvisoryState.WITHDRAWN,
        }
    ),
    # PROPOSED again: its owner fell silent. WITHDRAWN: a more severe advisory replaced it.
    AdvisoryState.ACCEPTED: frozenset(
        {
            AdvisoryState.DONE,
            AdvisoryState.FAILED,
            AdvisoryState.REJECTED,
            AdvisoryState.PROPOSED,
            AdvisoryState.WITHDRAWN,
        }
    ),
    AdvisoryState.DEFERRED: frozenset(
        {
            AdvisoryState.PROPOSED,
            AdvisoryState.REJECTED,
            AdvisoryState.EXPIRED,
            AdvisoryState.WITHDRAWN,
        }
    ),
}


@dataclass(frozen=True, slots=True)
class Price:
    """GPU-hours, with their arithmetic. `act_by_ns`: later, waiting costs more; 0: no such time."""

    waiting_gpu_hours: float = 0.0
    acting_gpu_hours: float = 0.0
    act_by_ns: int = 0
    arithmetic: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A fault of a host, and the action that the policy requests for it.

    `key` is stable during an incident, however often it is reported (`count`).
    """

    key: str
    host: str
    reason: str  # a name of ReasonCode
    basis: Basis
    action: Action
    scope: Scope
    message: str
    since_ns: int
    then: Action | None = None  # next action after the drain
    devices: tuple[str, ...] = ()
    place: FailureDomains = NOWHERE
    job: str = ""
    gang_gpus: int = 0  # size of the job; 0: unknown
    checkpoint_seconds: float = 0.0  # checkpoint period; 0: unknown
    confidence: float = 1.0
    count: int = 1
    price: Price = Price()
    hazard_per_hour: float = 0.0
    gpus: int = 0
    relative_speed: float = 1.0  # 1.0 if unknown
    #: Number of hosts in each domain of `place`, in the order of its fields; () if not counted.
    among: tuple[int, ...] = ()
    unseen: bool = False  # it began while the aggregator was down: `since_ns` is the restart


def gravity(action: Action) -> int:
    """Return the severity of *action*: higher is more severe."""
    return GRAVITY.index(action)


def removes_host(action: Action) -> bool:
    """Return whether *action* costs the fleet a host for a time."""
    return action not in LEAVE_IN_SERVICE


def is_own_device_fault(case: Case) -> bool:
    """Return whether *case* is a certain fault of a device that belongs to its host alone."""
    certain = case.basis in (Basis.DETERMINISTIC, Basis.DEAD_JOB)
    on_baseboard = case.scope is Scope.BASEBOARD
    reasons = OWN_BASEBOARD_REASONS if on_baseboard else OWN_DEVICE_REASONS
    return certain and case.reason in reasons and case.scope in OWN_DEVICE_SCOPES


def restrict_to_basis(case: Case) -> Case:
    """Return *case* with the nearest action that its basis allows, and a message about the change.

    A statistical verdict has no action after the drain: people decide, with the policy's message.
    """
    action, reason = case.action, ""
    then = None if case.basis is Basis.STATISTICAL else case.then
    if case.basis is Basis.STATISTICAL and action not in STATISTICAL_ACTIONS:
        milder = gravity(action) < gravity(Action.DRAIN_AFTER_JOB)
        action = Action.AVOID if milder else Action.DRAIN_AFTER_JOB
        reason = "a statistical verdict asks for AVOID or DRAIN_AFTER_JOB only"
    elif action in CERTAIN_ACTIONS and case.basis not in (Basis.DETERMINISTIC, Basis.DEAD_JOB):
        action, reason = Action.DRAIN_AFTER_JOB, "no fault is certain and no job is dead"
    elif action is Action.DRAIN_AT_CHECKPOINT and not case.checkpoint_seconds > 0:
        action, reason = Action.DRAIN_AFTER_JOB, "when it checkpoints is not known"
    scope = case.scope
    if scope is Scope.NONE:
        scope = Scope.HOST  # the widest scope of a host's own fault
    if not reason and scope is case.scope and then is case.then:
        return case
    message = f"{case.message}; {reason}, so {action.name}" if reason else case.message
    return replace(case, action=action, then=then, scope=scope, message=message)


@dataclass(frozen=True, slots=True)
class Advisory:
    """The current state of an advisory. `revision` grows with each change, and is its etag."""

    name: str
    subject: str  # "host sim-003", "rack r7"
    hosts: tuple[str, ...]
    action: Action
    scope: Scope
    basis: Basis
    reason: str
    message: str
    state: AdvisoryState
    state_message: str
    proposed_ns: int
    expires_ns: int
    changed_ns: int
    revision: int = 1
    then: Action | None = None
    devices: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    place: FailureDomains = NOWHERE
    job: str = ""
    confidence: float = 1.0
    count: int = 1
    checkpoint_seconds: float = 0.0
    price: Price = Price()
    hazard_per_hour: float = 0.0
    since_ns: int = 0  # start of a shared cause on the first of its hosts
    owner: str = ""
    lease_until_ns: int = 0
    token: int = 0  # grows with each owner: an executor with an older token does not act
    deferred_until_ns: int = 0

    @property
    def host(self) -> str:
        """The advisory's host; "" for a shared cause."""
        return self.hosts[0] if self.subject.startswith("host ") else ""

    @property
    def is_open(self) -> bool:
        """Whether the state may still change."""
        return self.state not in TERMINAL_STATES

    @property
    def etag(self) -> str:
        """The revision that an answer must name."""
        return f"{self.name}-{self.revision}"
