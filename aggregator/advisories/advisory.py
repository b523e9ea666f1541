"""Advisories: their types, events and instructions of the state machine, limits, locations.

The enumerations follow `contract/wire/advisory.proto`, number by number (a test compares them).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import NamedTuple

from ..config import AggregatorConfig
from ..declared.model import Declared


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


#: The reason of a host that no longer reports.
SILENCE_REASON = "STALE_TELEMETRY"
#: Reasons that name a device of the host itself, and the scopes that such a fault may have. Power,
#: cooling, links, fabric, storage and silence are shared with other hosts and must never be added
#: here.
OWN_DEVICE_REASONS = frozenset(
    {"XID_FATAL", "ECC_TREND", "HBM_REMAP", "DRIVER_HUNG", "GPU_UNUSABLE"}
)
OWN_DEVICE_SCOPES = frozenset({Scope.GPU, Scope.BASEBOARD, Scope.HOST})
#: With scope BASEBOARD also these reasons: the baseboard carries the NVSwitches.
OWN_BASEBOARD_REASONS = OWN_DEVICE_REASONS | {"FABRIC", "NVLINK_ERRORS"}
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
class FailureDomains:
    """A host's location, for budgets and shared causes; "" if unknown."""

    rack: str = ""
    power_domain: str = ""
    cooling_domain: str = ""
    leaf: str = ""
    spine: str = ""
    nvlink_domain: str = ""


NOWHERE = FailureDomains()


@dataclass(frozen=True, slots=True)
class Price:
    """GPU-hours, with their arithmetic.

    `act_by_ns`: after this time waiting costs more; 0: no such time.
    """

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
    words: str
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
    message = f"{case.words}; {reason}, so {action.name}" if reason else case.words
    return replace(case, action=action, then=then, scope=scope, words=message)


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
    words: str
    state: AdvisoryState
    state_words: str
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


# Events. Each carries `now_ns` of the aggregator's clock. `rows.py` converts them to JSON.


@dataclass(frozen=True, slots=True)
class CaseSeen:
    """A case began or changed."""

    now_ns: int
    case: Case


@dataclass(frozen=True, slots=True)
class CaseGone:
    """A case is no longer observed."""

    now_ns: int
    key: str
    words: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A host is out of service for another reason than our advisories."""

    now_ns: int
    host: str
    by: str
    place: FailureDomains = NOWHERE
    job: str = ""


@dataclass(frozen=True, slots=True)
class Available:
    """A host that was Unavailable is back."""

    now_ns: int
    host: str


@dataclass(frozen=True, slots=True)
class Member:
    """A host with its location and job, for the budgets."""

    host: str
    place: FailureDomains = NOWHERE
    job: str = ""


@dataclass(frozen=True, slots=True)
class TakenOut:
    """An actor reports hosts that it took out until `until_ns`; reports are repeated."""

    now_ns: int
    by: str
    words: str
    until_ns: int
    members: tuple[Member, ...]
    new_work_only: bool = False  # jobs there continue, and may have to leave


@dataclass(frozen=True, slots=True)
class PutBack:
    """An actor reports that hosts are in service again."""

    now_ns: int
    by: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Well:
    """A host with a hold reports without faults, or no longer does."""

    now_ns: int
    host: str
    well: bool


@dataclass(frozen=True, slots=True)
class FleetSize:
    """The number of hosts in the fleet."""

    now_ns: int
    hosts: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """The state of the fleet is in doubt; *words* "": no longer."""

    now_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class Acked:
    """An actor answers an advisory. `etag` "": any revision."""

    now_ns: int
    name: str
    to: AdvisoryState
    actor: str
    words: str = ""
    etag: str = ""
    until_ns: int = 0  # end of DEFERRED
    lease_seconds: float = 0.0  # lease of ACCEPTED; 0: the default


@dataclass(frozen=True, slots=True)
class Tick:
    """The passage of time."""

    now_ns: int


Event = (
    CaseSeen
    | CaseGone
    | Unavailable
    | Available
    | TakenOut
    | PutBack
    | Well
    | FleetSize
    | Frozen
    | Acked
    | Tick
)

# Instructions. `words` of each is the reason.


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the new state of an advisory."""

    advisory: Advisory
    words: str


@dataclass(frozen=True, slots=True)
class Act:
    """The owner may now act. The effect lasts until `until_ns`, unless a Renew comes."""

    name: str
    host: str  # "" for a shared cause
    action: Action
    scope: Scope
    owner: str
    token: int
    until_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class Renew:
    """The effect of advisory *name* on *host* is extended."""

    name: str
    host: str
    until_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class Clear:
    """The effect of advisory *name* on *host* must be undone, and nothing else."""

    name: str
    host: str
    owner: str
    words: str


@dataclass(frozen=True, slots=True)
class Probation:
    """A host is back, and watched until `until_ns`. *name*: the advisory whose effect ended."""

    host: str
    until_ns: int
    words: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Out:
    """An actor took a host out of service, or changed the reason."""

    host: str
    by: str
    until_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class StillOut:
    """An actor repeated its report about these hosts."""

    by: str
    hosts: tuple[str, ...]
    until_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class Back:
    """A host that an actor had reported out counts as in service again."""

    host: str
    by: str
    words: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A case requests an advisory that is withheld for now."""

    key: str
    host: str
    action: Action
    words: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer without effect. `why`: missing, etag, state, owner, frozen, field."""

    name: str
    why: str
    words: str


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker's position for advice that takes hosts out.

    Closed (allowed), open (none), half-open (one, as a trial).
    """

    position: str
    words: str


Instruction = (
    Publish | Act | Renew | Clear | Probation | Out | StillOut | Back | HeldBack | Refused | Breaker
)


SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS


@dataclass(frozen=True, slots=True)
class AdvisoryLimits:
    """An operator's limits of advice. Times are seconds.

    Hosts count regardless of the actor that took them out.
    """

    rack_hosts_max: int = 2
    job_hosts_max: int = 2
    cluster_hosts_min: int = 1  # minimum for a small fleet, whatever its share
    cluster_share_max: float = 0.02
    hosts_per_hour_max: int = 8
    #: Grants are withheld for this long after the hourly limit or repeated failures suggest wrong
    #: advice; twice as long after each failed trial, up to the maximum.
    breaker_seconds: float = 900.0
    breaker_seconds_max: float = 14_400.0
    failures_max: int = 3  # failures in a row that open the breaker
    proposal_seconds: float = 3600.0  # an unanswered proposal expires
    lease_seconds: float = 600.0  # a silent owner loses the advisory
    hold_seconds: float = 7200.0  # duration of a hold; it is renewed while its cause lasts
    #: On a host without a fault that is not well (silent, or unknown), our effect is renewed for
    #: this long: a repaired host that is not switched on within a day is assumed to be gone.
    missed_seconds: float = 86_400.0
    #: A new case waits this long for others of the same cause. A certain fault of a host's own
    #: device does not (`proposals.py`).
    gather_seconds: float = 3.0
    #: A host that is silent alone may be booting, as may its agent: INSPECT waits this long.
    silent_seconds: float = 1800.0
    shared_seconds: float = 2.0  # starts of one cause lie within this
    shared_hosts_min: int = 3
    shared_unplaced_hosts_min: int = 8  # if their racks are not declared
    shared_join_seconds: float = 600.0  # later cases join a cause for this long
    verify_seconds: float = 900.0  # a host is well for this long before its return is proposed
    probation_seconds: float = 7 * 86_400.0
    # after EXPIRED, FAILED or DONE, minimum time to the next proposal
    again_seconds: float = 3600.0
    rejected_seconds: float = 86_400.0  # after REJECTED, minimum time to the next proposal
    flap_seconds: float = 300.0  # after WITHDRAWN, minimum time to the next proposal
    defer_seconds: float = 900.0  # a deferral without a time
    defer_seconds_max: float = 7 * 86_400.0
    ended_seconds: float = 86_400.0  # ended advisories are remembered for this long
    ended_max: int = 10_000
    open_max: int = 1000  # open advisories

    def cluster_hosts_max(self, hosts: int) -> int:
        """Return how many of *hosts* may be out at once."""
        return max(self.cluster_hosts_min, int(self.cluster_share_max * hosts))


def limits_of(settings: AggregatorConfig) -> AdvisoryLimits:
    """Return the limits that an operator configured, with the defaults for the rest."""
    return AdvisoryLimits(
        rack_hosts_max=settings.advice_rack_hosts_max,
        job_hosts_max=settings.advice_job_hosts_max,
        cluster_share_max=settings.advice_cluster_share_max,
        hosts_per_hour_max=settings.advice_hosts_per_hour_max,
        proposal_seconds=settings.advice_proposal_seconds,
        lease_seconds=settings.advice_lease_seconds,
        hold_seconds=settings.advice_hold_seconds,
        verify_seconds=settings.advice_verify_seconds,
        probation_seconds=settings.advice_probation_seconds,
    )


def seconds_ns(seconds: float) -> int:
    return int(seconds * SECOND_NS)


DOMAIN_FIELDS = tuple(FailureDomains.__dataclass_fields__)


class DomainSizes(NamedTuple):
    """A host's location. `among`: number of hosts in each of its domains."""

    place: FailureDomains
    among: tuple[int, ...]


def place_of(declared: Declared | None, host: str) -> FailureDomains:
    """Return the location of *host*; "" if unknown."""
    if declared is None:
        return NOWHERE
    declared_place = declared.place(host)
    return FailureDomains(*(getattr(declared_place, name) for name in DOMAIN_FIELDS))


class DomainCounts:
    """Numbers of hosts per domain; counted again when locations or hosts change."""

    def __init__(self) -> None:
        self._declared: Declared | None = None
        self._counted: tuple[int, int] | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._names: Sequence[str] = ()

    def update(self, declared: Declared | None, names: Sequence[str]) -> None:
        """Use *declared* and the fleet of *names* from now on."""
        self._declared, self._names = declared, names

    def sizes(self, host: str) -> DomainSizes:
        """Return the location of *host* with its domain sizes."""
        place = place_of(self._declared, host)
        if place == NOWHERE or self._declared is None:
            return DomainSizes(place, ())
        version = self._declared.places_version, len(self._names)
        if version != self._counted:
            self._counted, self._counts = version, self._count(self._declared)
        return DomainSizes(
            place, tuple(self._counts[name, getattr(place, name)] for name in DOMAIN_FIELDS)
        )

    def _count(self, declared: Declared) -> Counter[tuple[str, str]]:
        places = [declared.place(host) for host in self._names]
        return Counter((name, getattr(place, name)) for place in places for name in DOMAIN_FIELDS)
