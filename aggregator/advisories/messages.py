"""Events and instructions of the advisory state machine.

Each event carries `now_ns` of the aggregator's clock; `rows.py` converts events to JSON. `message` of
an instruction is its reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ServiceError
from .advisory import Action, Advisory, AdvisoryState, Case, Scope
from .failure_domains import NOWHERE, FailureDomains


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
    message: str


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
    message: str
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
    """The state of the fleet is in doubt; *message* "": no longer."""

    now_ns: int
    message: str


@dataclass(frozen=True, slots=True)
class Acked:
    """An actor answers an advisory. `etag` "": any revision."""

    now_ns: int
    name: str
    to: AdvisoryState
    actor: str
    message: str = ""
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


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the new state of an advisory."""

    advisory: Advisory
    message: str


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
    message: str


@dataclass(frozen=True, slots=True)
class Renew:
    """The effect of advisory *name* on *host* is extended."""

    name: str
    host: str
    until_ns: int
    message: str


@dataclass(frozen=True, slots=True)
class Clear:
    """The effect of advisory *name* on *host* must be undone, and nothing else."""

    name: str
    host: str
    owner: str
    message: str


@dataclass(frozen=True, slots=True)
class Probation:
    """A host is back, and watched until `until_ns`. *name*: the advisory whose effect ended."""

    host: str
    until_ns: int
    message: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Out:
    """An actor took a host out of service, or changed the reason."""

    host: str
    by: str
    until_ns: int
    message: str


@dataclass(frozen=True, slots=True)
class StillOut:
    """An actor repeated its report about these hosts."""

    by: str
    hosts: tuple[str, ...]
    until_ns: int
    message: str


@dataclass(frozen=True, slots=True)
class Back:
    """A host that an actor had reported out counts as in service again."""

    host: str
    by: str
    message: str


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A case requests an advisory that is withheld for now."""

    key: str
    host: str
    action: Action
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer without effect."""

    name: str
    error: ServiceError

    @property
    def message(self) -> str:
        return str(self.error)


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker: closed (hosts may be taken out), open (none), half-open (one, as a trial)."""

    position: str
    message: str


Instruction = (
    Publish | Act | Renew | Clear | Probation | Out | StillOut | Back | HeldBack | Refused | Breaker
)
