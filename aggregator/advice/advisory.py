"""The words of advice: actions, scopes, states, cases, advisories. Nothing here decides.

The enumerations follow `fingerprints/wire/advisory.proto`, number by number (a test holds it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum


class Action(IntEnum):
    """What is advised."""

    AVOID = 1  # start nothing new there
    DRAIN_AFTER_JOB = 2
    DRAIN_AT_CHECKPOINT = 3
    EVICT_NOW = 4
    RESET_GPU = 5
    REBOOT = 6
    RETURN_TO_SERVICE = 7
    RUN_DIAGNOSTIC = 8
    CAP_POWER = 9
    DRAIN_P2P = 10  # the driver asks: end peer-to-peer work
    DRAIN_AND_RESET = 11  # the driver asks: let jobs end, start none, reset
    RECOVER_IMEX_DOMAIN = 12  # the driver asks
    INSPECT = 13  # a person looks: cable, power supply, cooling, switch


#: Mild to grave. What is asked of a host is the gravest of its cases.
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
#: These leave the host in service: no budget counts them, and there is nothing to take back.
LEAVE_IN_SERVICE = frozenset({Action.RETURN_TO_SERVICE, Action.INSPECT, Action.CAP_POWER})
#: All that a statistical verdict may ask of a host.
OF_STATISTICS = frozenset({Action.AVOID, Action.DRAIN_AFTER_JOB})
#: What only a deterministic fault, or a job that is dead already, allows.
OF_CERTAINTY = frozenset({Action.EVICT_NOW})


class Basis(IntEnum):
    """What a verdict stands on."""

    STATISTICAL = 1
    DETERMINISTIC = 2
    DEAD_JOB = 3  # nothing is lost by acting: the job on it is dead
    VERIFIED = 4  # of a return: the host was well for long enough
    SHARED_CAUSE = 5


class Scope(StrEnum):
    """What an action touches. `fingerprints/xid.toml` speaks of the same."""

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


class State(IntEnum):
    """Where an advisory is."""

    PROPOSED = 1
    ACCEPTED = 2
    DONE = 3
    FAILED = 4
    REJECTED = 5
    DEFERRED = 6
    EXPIRED = 7
    WITHDRAWN = 8


#: The reason under which a host stands that is heard of no more.
SILENCE = "STALE_TELEMETRY"
ENDED = frozenset({State.DONE, State.FAILED, State.REJECTED, State.EXPIRED, State.WITHDRAWN})
#: From -> to. Whatever is not here never happens.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.PROPOSED: frozenset(
        {State.ACCEPTED, State.REJECTED, State.DEFERRED, State.EXPIRED, State.WITHDRAWN}
    ),
    # PROPOSED again: its owner fell silent. WITHDRAWN: a graver one took its place.
    State.ACCEPTED: frozenset(
        {State.DONE, State.FAILED, State.REJECTED, State.PROPOSED, State.WITHDRAWN}
    ),
    State.DEFERRED: frozenset({State.PROPOSED, State.REJECTED, State.EXPIRED, State.WITHDRAWN}),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host stands, for budgets and shared causes; "" where nobody has said."""

    rack: str = ""
    power_domain: str = ""
    cooling_domain: str = ""
    leaf: str = ""
    spine: str = ""
    nvlink_domain: str = ""


NOWHERE = Place()


@dataclass(frozen=True, slots=True)
class Price:
    """GPU-hours, with the sums that gave them. `act_by_ns`: from then on waiting costs more; 0: no such time."""

    waiting_gpu_hours: float = 0.0
    acting_gpu_hours: float = 0.0
    act_by_ns: int = 0
    arithmetic: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is wrong with one host, and what the policy would do about it.

    `key` is the same for as long as it is the same incident, however often it is told (`count`).
    """

    key: str
    host: str
    reason: str  # a name of ReasonCode
    basis: Basis
    action: Action
    scope: Scope
    words: str
    since_ns: int
    then: Action | None = None  # once it is drained
    devices: tuple[str, ...] = ()
    place: Place = NOWHERE
    job: str = ""
    gang_gpus: int = 0  # of that job; 0: not known
    checkpoint_seconds: float = 0.0  # its cadence, where somebody tells
    confidence: float = 1.0
    count: int = 1
    price: Price = Price()
    hazard_per_hour: float = 0.0
    gpus: int = 0  # of the host
    relative_speed: float = 1.0  # of the host; 1.0 where it is not known
    #: How many hosts stand in each domain of `place`, in the order of its fields; () where nobody counted.
    among: tuple[int, ...] = ()
    unseen: bool = False  # it began while we were away: `since_ns` is when we came back


def gravity(action: Action) -> int:
    """Return how grave *action* is: higher is graver."""
    return GRAVITY.index(action)


def takes_out(action: Action) -> bool:
    """Say whether *action* costs the fleet a host for a time."""
    return action not in LEAVE_IN_SERVICE


def lawful(case: Case) -> Case:
    """Return *case* with an action that its basis bears, the nearest to what it asked for, and words on the change.

    What follows a statistical verdict's drain is for people to say: its policy's words stand in the case.
    """
    action, words = case.action, ""
    then = None if case.basis is Basis.STATISTICAL else case.then
    if case.basis is Basis.STATISTICAL and action not in OF_STATISTICS:
        milder = gravity(action) < gravity(Action.DRAIN_AFTER_JOB)
        action = Action.AVOID if milder else Action.DRAIN_AFTER_JOB
        words = "a statistical verdict asks for AVOID or DRAIN_AFTER_JOB only"
    elif action in OF_CERTAINTY and case.basis not in (Basis.DETERMINISTIC, Basis.DEAD_JOB):
        action, words = Action.DRAIN_AFTER_JOB, "no fault is certain and no job is dead"
    elif action is Action.DRAIN_AT_CHECKPOINT and not case.checkpoint_seconds > 0:
        action, words = Action.DRAIN_AFTER_JOB, "when it checkpoints is not known"
    scope = case.scope
    if scope is Scope.NONE:
        scope = Scope.HOST  # the widest that a host's own fault may touch
    if not words and scope is case.scope and then is case.then:
        return case
    said = f"{case.words}; {words}, so {action.name}" if words else case.words
    return replace(case, action=action, then=then, scope=scope, words=said)


@dataclass(frozen=True, slots=True)
class Advisory:
    """An advisory as it stands. `revision` grows with each change, and is its etag."""

    name: str
    subject: str  # "host sim-003", "rack r7"
    hosts: tuple[str, ...]
    action: Action
    scope: Scope
    basis: Basis
    reason: str
    words: str
    state: State
    state_words: str  # why it is in this state
    proposed_ns: int
    expires_ns: int
    changed_ns: int
    revision: int = 1
    then: Action | None = None
    devices: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    place: Place = NOWHERE
    job: str = ""
    confidence: float = 1.0
    count: int = 1
    checkpoint_seconds: float = 0.0
    price: Price = Price()
    hazard_per_hour: float = 0.0
    since_ns: int = 0  # of a shared cause: when the first of its hosts fell
    owner: str = ""
    lease_until_ns: int = 0
    token: int = 0  # grows with each owner: an executor with an older one does not act
    deferred_until_ns: int = 0

    @property
    def host(self) -> str:
        """The one host that it is about; "" of a shared cause."""
        return self.hosts[0] if self.subject.startswith("host ") else ""

    @property
    def is_open(self) -> bool:
        """Whether anything may come of it still."""
        return self.state not in ENDED

    @property
    def etag(self) -> str:
        """What an answer to it has to name."""
        return f"{self.name}-{self.revision}"
