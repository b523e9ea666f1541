"""What goes into the machine and what comes out, and both as JSON: a run can be stored and replayed."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

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
class Released:
    """What we had set on a host was taken away by somebody else."""

    now_ns: int
    host: str
    by: str


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
    | Released
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
    """A host is back, and watched until then."""

    host: str
    until_ns: int
    words: str


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

EVENTS: dict[str, type[Event]] = {one.__name__: one for one in typing.get_args(Event)}
INSTRUCTIONS: dict[str, type[Instruction]] = {
    one.__name__: one for one in typing.get_args(Instruction)
}


def plain(value: Any) -> Any:
    """Return *value*, of dataclasses, tuples, enums and numbers, as JSON can bear it."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


def to_json(one: Event | Instruction) -> str:
    """Return the body of *one*; its kind is the name of its class."""
    return json.dumps(plain(one), separators=(",", ":"))


def event_of(kind: str, body: str) -> Event:
    """Return the event that was stored. Raises ValueError where it is none of ours."""
    try:
        return typing.cast(Event, made(EVENTS[kind], json.loads(body)))
    except (KeyError, TypeError) as error:
        raise ValueError(f"event {kind!r}: not one of ours: {error}") from error


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def made(kind: Any, value: Any) -> Any:
    """Return *value*, as `plain` left it, as *kind*. Keys that this version does not know are dropped.

    Raises TypeError, KeyError, ValueError.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return made(next(one for one in inner if one is not type(None)), value)
    if origin is tuple:
        return tuple(made(inner[0], one) for one in value)
    if origin is dict:
        return {key: made(inner[1], one) for key, one in value.items()}
    if is_dataclass(kind):
        hints = _hints(typing.cast(type, kind))
        given = {name: made(hints[name], one) for name, one in value.items() if name in hints}
        return typing.cast(type, kind)(**given)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return float(value) if kind is float else value
