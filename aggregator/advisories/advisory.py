"""Types of an advisory: actions, scopes, states, cases. No logic.

The enumerations follow `contract/wire/advisory.proto`, number by number (a test holds it).
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
#: These move running work off the host.
MOVE_WORK = frozenset({Action.DRAIN_AT_CHECKPOINT, Action.EVICT_NOW})
#: All that a statistical verdict may ask of a host.
STATISTICAL_ACTIONS = frozenset({Action.AVOID, Action.DRAIN_AFTER_JOB})
#: What only a deterministic fault, or a job that is dead already, allows.
CERTAIN_ACTIONS = frozenset({Action.EVICT_NOW})


class Basis(IntEnum):
    """The basis of a verdict."""

    STATISTICAL = 1
    DETERMINISTIC = 2
    DEAD_JOB = 3  # nothing is lost by acting: the job on it is dead
    VERIFIED = 4  # of a return: the host was well for long enough
    SHARED_CAUSE = 5


class Scope(StrEnum):
    """What an action touches. `contract/xid/xid.toml` speaks of the same."""

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
    """Where an advisory is."""

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
#: Reasons that name a device of the host itself, and the scopes that such a fault may touch. Power, cooling, links,
#: fabric, storage and silence are shared with other hosts and are never in here.
OWN_DEVICE_REASONS = frozenset(
    {"XID_FATAL", "ECC_TREND", "HBM_REMAP", "DRIVER_HUNG", "GPU_UNUSABLE"}
)
OWN_DEVICE_SCOPES = frozenset({Scope.GPU, Scope.BASEBOARD, Scope.HOST})
#: Of a baseboard these are the host's own, too: its NVSwitches stand on it.
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
#: From -> to. Whatever is not here never happens.
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
    # PROPOSED again: its owner fell silent. WITHDRAWN: a graver one took its place.
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
    """GPU-hours, with the sums that gave them. `act_by_ns`: from then on waiting costs more; 0: no such time."""

    waiting_gpu_hours: float = 0.0
    acting_gpu_hours: float = 0.0
    act_by_ns: int = 0
    arithmetic: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is wrong with one host, and what the policy would do about it.

    `key` is the same for as long as it is the same incident, however often it is reported (`count`).
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
    place: FailureDomains = NOWHERE
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


def removes_host(action: Action) -> bool:
    """Return whether *action* costs the fleet a host for a time."""
    return action not in LEAVE_IN_SERVICE


def is_own_device_fault(case: Case) -> bool:
    """Return whether *case* is a certain fault of a device that no other host has a part in."""
    certain = case.basis in (Basis.DETERMINISTIC, Basis.DEAD_JOB)
    on_baseboard = case.scope is Scope.BASEBOARD
    reasons = OWN_BASEBOARD_REASONS if on_baseboard else OWN_DEVICE_REASONS
    return certain and case.reason in reasons and case.scope in OWN_DEVICE_SCOPES


def restrict_to_basis(case: Case) -> Case:
    """Return *case* with an action that its basis bears, the nearest to what it asked for, and words on the change.

    What follows a statistical verdict's drain is for people to say: its policy's words stand in the case.
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
        scope = Scope.HOST  # the widest that a host's own fault may touch
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
    state_words: str  # why it is in this state
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
        return self.state not in TERMINAL_STATES

    @property
    def etag(self) -> str:
        """What an answer to it has to name."""
        return f"{self.name}-{self.revision}"


# ----------------------------------------------------------------------
# What goes into the machine and what comes out. As JSON: `rows.py`.

# ---- in. Each carries `now_ns` of the aggregator's clock.


@dataclass(frozen=True, slots=True)
class CaseSeen:
    """A case begins, or is not any more what it was."""

    now_ns: int
    case: Case


@dataclass(frozen=True, slots=True)
class CaseGone:
    """Nothing shows it any more."""

    now_ns: int
    key: str
    words: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A host is out of service, and not by an advisory of ours."""

    now_ns: int
    host: str
    by: str
    place: FailureDomains = NOWHERE
    job: str = ""


@dataclass(frozen=True, slots=True)
class Available:
    """Anyone who had taken it out has put it back."""

    now_ns: int
    host: str


@dataclass(frozen=True, slots=True)
class Member:
    """A host with what budgets count it by."""

    host: str
    place: FailureDomains = NOWHERE
    job: str = ""


@dataclass(frozen=True, slots=True)
class TakenOut:
    """Somebody says that he took hosts out himself; until then, unless he says it again."""

    now_ns: int
    by: str
    words: str
    until_ns: int
    members: tuple[Member, ...]
    new_work_only: bool = False  # jobs there continue, and may have to leave


@dataclass(frozen=True, slots=True)
class PutBack:
    """He says that they are in service again."""

    now_ns: int
    by: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Well:
    """A host that is out shows nothing wrong, and is heard; or that is over."""

    now_ns: int
    host: str
    well: bool


@dataclass(frozen=True, slots=True)
class FleetSize:
    """So many hosts there are."""

    now_ns: int
    hosts: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """The fleet's picture is in doubt; "" when it no longer is."""

    now_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class Acked:
    """Somebody answers an advisory. `etag` "": whatever it is now."""

    now_ns: int
    name: str
    to: AdvisoryState
    actor: str
    words: str = ""
    etag: str = ""
    until_ns: int = 0  # of DEFERRED
    lease_seconds: float = 0.0  # of ACCEPTED; 0: none is named


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes."""

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

# ---- out. Each carries `words`: why.


@dataclass(frozen=True, slots=True)
class Publish:
    """The advisory is now so."""

    advisory: Advisory
    words: str


@dataclass(frozen=True, slots=True)
class Act:
    """Its owner may carry it out now. What is set lasts until `until_ns`, unless a Renew comes."""

    name: str
    host: str  # "" of a shared cause
    action: Action
    scope: Scope
    owner: str
    token: int
    until_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class Renew:
    """What we set on *host* by advisory *name* is extended."""

    name: str
    host: str
    until_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class Clear:
    """What we set on *host* by advisory *name*, and nothing else, must be taken away."""

    name: str
    host: str
    owner: str
    words: str


@dataclass(frozen=True, slots=True)
class Probation:
    """A host is back, and watched until then. *name*: the advisory that has nothing set on it any more."""

    host: str
    until_ns: int
    words: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Out:
    """Somebody took a host out himself, or says another reason for it."""

    host: str
    by: str
    until_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class StillOut:
    """He says so again of these."""

    by: str
    hosts: tuple[str, ...]
    until_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class Back:
    """What he took out counts as in service again."""

    host: str
    by: str
    words: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A case calls for an advisory that is not given for now."""

    key: str
    host: str
    action: Action
    words: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer changes nothing. `why`: missing, etag, state, owner, frozen, field."""

    name: str
    why: str
    words: str


@dataclass(frozen=True, slots=True)
class Breaker:
    """Whether advice that takes hosts out is given: closed (it is), open (none), half-open (one, to try)."""

    position: str
    words: str


Instruction = (
    Publish | Act | Renew | Clear | Probation | Out | StillOut | Back | HeldBack | Refused | Breaker
)


# ----------------------------------------------------------------------
# How much advice there may be at once, and how long things last. An operator's settings.

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS


@dataclass(frozen=True, slots=True)
class AdvisoryLimits:
    """Hosts are counted no matter who took them out. Times are seconds."""

    rack_hosts_max: int = 2
    job_hosts_max: int = 2
    cluster_hosts_min: int = 1  # this many may go of a small fleet, whatever its share
    cluster_share_max: float = 0.02
    hosts_per_hour_max: int = 8
    #: Grants are held for this long once a limit of the hour, or failures, say that we may be wrong; twice as long
    #: each time that the trial fails, up to the maximum.
    breaker_seconds: float = 900.0
    breaker_seconds_max: float = 14_400.0
    failures_max: int = 3  # advice that failed in a row: then the breaker opens
    proposal_seconds: float = 3600.0  # a proposal that nobody answers expires
    lease_seconds: float = 600.0  # an owner that is silent for longer has lost it
    hold_seconds: float = 7200.0  # how long a hold lasts; it is renewed while its cause lasts
    #: Of a host that shows no fault, and is not well either (silent, or known no more), what we set is renewed for so
    #: long: who was repaired, and not switched on again within a day, is taken to be gone (assumed).
    missed_seconds: float = 86_400.0
    #: A new case waits this long for others of the same cause. A certain fault of a host's own device does not
    #: (`proposals.py`).
    gather_seconds: float = 3.0
    #: A host that is silent alone may be booting, or its agent is: this long nobody is sent to it.
    silent_seconds: float = 1800.0
    shared_seconds: float = 2.0  # so close they begin
    shared_hosts_min: int = 3
    shared_unplaced_hosts_min: int = 8  # where nobody has said which rack they stand in
    shared_join_seconds: float = 600.0  # a later one is of the same cause, for this long
    verify_seconds: float = 900.0  # a host is well for this long before its return is proposed
    probation_seconds: float = 7 * 86_400.0
    again_seconds: float = 3600.0  # what expired, failed or was done is not proposed again sooner
    rejected_seconds: float = 86_400.0  # what was rejected is not proposed again sooner
    flap_seconds: float = 300.0  # what was withdrawn is not proposed again sooner
    defer_seconds: float = 900.0  # a deferral that names no time
    defer_seconds_max: float = 7 * 86_400.0
    ended_seconds: float = 86_400.0  # what has ended is remembered for this long
    ended_max: int = 10_000
    open_max: int = 1000  # advisories that are open at once

    def cluster_hosts_max(self, hosts: int) -> int:
        """Return how many of *hosts* may be out at once."""
        return max(self.cluster_hosts_min, int(self.cluster_share_max * hosts))


def limits_of(settings: AggregatorConfig) -> AdvisoryLimits:
    """Return what an operator set; the rest is as it is here."""
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
    """Return *seconds* in nanoseconds."""
    return int(seconds * SECOND_NS)


# ----------------------------------------------------------------------
# Where hosts stand, as advice has it, and how many there are in each domain.

DOMAIN_FIELDS = tuple(FailureDomains.__dataclass_fields__)


class DomainSizes(NamedTuple):
    """A host's place. `among`: how many hosts stand in each domain of it, in the order of its fields."""

    place: FailureDomains
    among: tuple[int, ...]


def place_of(declared: Declared | None, host: str) -> FailureDomains:
    """Return the location of *host*; "" if unknown."""
    if declared is None:
        return NOWHERE
    declared_place = declared.place(host)
    return FailureDomains(*(getattr(declared_place, name) for name in DOMAIN_FIELDS))


class DomainCounts:
    """Counts again when places change, or hosts come."""

    def __init__(self) -> None:
        self._declared: Declared | None = None
        self._counted: tuple[int, int] | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._names: Sequence[str] = ()

    def update(self, declared: Declared | None, names: Sequence[str]) -> None:
        """Answer from now on by *declared* for a fleet of *names*."""
        self._declared, self._names = declared, names

    def sizes(self, host: str) -> DomainSizes:
        """Return the location of *host*."""
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
