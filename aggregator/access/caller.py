"""Who calls: set once, by the guard, before a service's own code runs."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..refusals import NotAllowed


class Role(StrEnum):
    """What a caller is, which says what it may do (`methods.py`)."""

    AGENT = "agent"  #: writes as its own host, and reads nothing
    SCHEDULER = "scheduler"  #: reads scores, plans, acknowledges
    OPERATOR = "operator"  #: reads everything, SQL, permits
    ADMIN = "admin"  #: everything
    #: Plain text beyond loopback, turned on by name, with no login configured: nobody knows who it is.
    ANYONE = "anyone"


#: The roles that a certificate or a token can give.
GIVEN = (Role.AGENT, Role.SCHEDULER, Role.OPERATOR, Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever makes a call. Two of equal `role`, `name` and `way` are one caller to every limit.

    `host`: the one host that an agent writes as; "" for the others. `way`: how it was recognised. `proof`: of two
    that claim one host name the one with the greater proof has it: (0, 0) none, (1, when its token was made),
    (2, when its certificate was issued), both in s of Unix time. `until`: when that ends, in s; 0: never.
    """

    role: Role
    name: str
    host: str = ""
    way: str = "local"  # "certificate", "token", or without any login: "local", "plain"
    proof: tuple[int, int] = (0, 0)
    until: int = 0

    @property
    def known(self) -> bool:
        """Whether it has proved who it is."""
        return bool(self.proof[0])

    def writes_as(self, host: str) -> bool:
        """Whether it may register as *host* and send its readings."""
        return self.role is not Role.AGENT or self.host == host

    def __str__(self) -> str:
        return f"{self.role} {self.name!r} (by {self.way})"


#: On plain loopback without any login configured: whoever is on this machine may do everything.
LOCAL = Caller(Role.ADMIN, "local")
#: The same beyond loopback.
ANYONE = Caller(Role.ANYONE, "anyone", way="plain")

_CALLER: ContextVar[Caller] = ContextVar("caller")


def caller(context: Any) -> Caller:
    """Return who makes the call that is being answered. Raises NotAllowed where no guard let it in."""
    try:
        return _CALLER.get()
    except LookupError:
        raise NotAllowed("nobody has been asked who calls: this service has no guard") from None


def answer_for(one: Caller) -> None:
    """From here on this task answers *one*."""
    _CALLER.set(one)
