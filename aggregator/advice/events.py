"""What goes into the machine and what comes out. As JSON: `stored.py`."""

from __future__ import annotations

from dataclasses import dataclass

from .advisory import NOWHERE, Action, Advisory, Case, Place, Scope, State

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
    place: Place = NOWHERE
    job: str = ""


@dataclass(frozen=True, slots=True)
class Available:
    """Whoever had taken it out has put it back."""

    now_ns: int
    host: str


@dataclass(frozen=True, slots=True)
class Member:
    """A host with what budgets count it by."""

    host: str
    place: Place = NOWHERE
    job: str = ""


@dataclass(frozen=True, slots=True)
class TakenOut:
    """Somebody says that he took hosts out himself; until then, unless he says it again."""

    now_ns: int
    by: str
    words: str
    until_ns: int
    members: tuple[Member, ...]


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
    to: State
    actor: str
    words: str = ""
    etag: str = ""
    until_ns: int = 0  # of DEFERRED


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
    """What we set on *host* by advisory *name* stands for longer."""

    name: str
    host: str
    until_ns: int
    words: str


@dataclass(frozen=True, slots=True)
class Clear:
    """What we set on *host* by advisory *name*, and nothing else, is to be taken away."""

    name: str
    host: str
    owner: str
    words: str


@dataclass(frozen=True, slots=True)
class Probation:
    """A host is back, and watched until then. *name*: the advisory of which nothing is set on it any more."""

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
