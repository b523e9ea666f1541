"""The policy of findings: what a host may find wrong with itself without asking anybody. `policy_table.py` reads it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from enum import StrEnum

from .xid import policy as xid_rows
from .xid import sxid_policy as sxid_rows

#: A reading that is well again must stay so for this long, unless a row says otherwise.
LEAVE_SECONDS = 10.0
#: How findings of the tables of codes are called.
CODE_NAME = re.compile(r"(xid|sxid)([1-9][0-9]{0,5}|0)")


class Severity(StrEnum):
    """What a finding means for the host, gravest first."""

    FATAL = "fatal"
    DEGRADED = "degraded"
    HAZARD = "hazard"
    APPLICATION = "application"


class Ends(StrEnum):
    """What ends a finding."""

    READING = "reading"
    RESET = "reset"
    REBOOT = "reboot"
    TIME = "time"


class PolicyError(ValueError):
    """A policy cannot be used; the words name the line, what is wrong and what would be right."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison: *signal* with *values*, or with the signal *other* of the same device."""

    signal: str
    compare: str
    values: tuple[float, ...] = ()
    other: str = ""

    @property
    def signals(self) -> tuple[str, ...]:
        """What it reads."""
        return (self.signal, self.other) if self.other else (self.signal,)

    def holds(self, left: float, right: float | None) -> bool:
        """Compare; *right* is the reading of `other`, None where that is none or is not known."""
        match self.compare:
            case "in":
                return left in self.values
            case "has":
                return bool(int(left) & int(self.values[0]))
        value = right if self.other else self.values[0]
        return value is not None and COMPARE[self.compare](left, value)


COMPARE = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of finding. `policy.toml` tells the fields' meaning; times are seconds."""

    name: str
    source: str
    when: tuple[Condition, ...] = ()
    device: str = ""
    unless: tuple[Condition, ...] = ()
    hidden_by: str = ""
    judged: str = ""
    event: str = ""
    policy: str = ""
    codes: tuple[int, ...] = ()
    says: tuple[str, ...] = ()
    ends_with: str = ""
    severity: Severity = Severity.HAZARD
    words: str = ""
    action: str = ""
    scope: str = "host"
    clears: Ends = Ends.READING
    clear_seconds: float = 0.0
    for_seconds: float = 0.0
    leave_seconds: float = LEAVE_SECONDS
    after_boot_seconds: float = 0.0
    once_otherwise: bool = False
    enforceable: bool = False

    @property
    def device_kind(self) -> str:
        """What carries the reading: `gpu`, `rdma`; "" of a row without readings."""
        return self.when[0].signal.partition(".")[0] if self.when else ""

    @property
    def about(self) -> str:
        """The signal that evidence of it bears: of its event, its judge's rule, or its first reading."""
        return self.event or self.judged or self.signals[0]

    @property
    def signals(self) -> tuple[str, ...]:
        """What its conditions read, the first's first; none of a row without readings."""
        conditions = (*self.when, *self.unless)
        return tuple(name for each in conditions for name in each.signals)

    def concerns(self, device: str) -> bool:
        """Say whether the row is about *device*."""
        wanted = self.device
        return (
            not wanted or device == wanted or (wanted[-1] == "*" and device.startswith(wanted[:-1]))
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole table. `version` is its maker's word; `rollout_share` of the hosts take it, by their names."""

    version: str
    rollout_share: float
    rows: tuple[Row, ...]
    off: frozenset[str] = field(default_factory=frozenset[str])

    def taken_by(self, host: str) -> bool:
        """Say whether *host* is among the share that takes it: the same hosts first each time."""
        return self.rollout_share >= 1.0 or _place(host) < self.rollout_share

    def enforceable(self, name: str) -> bool:
        """Say whether `enforcing` may name *name*: a row that allows it, or a code of one, as `xid79`."""
        coded = CODE_NAME.fullmatch(name)
        wanted = coded[1] if coded else name
        row = next((row for row in self.rows if row.name == wanted), None)
        if row is None or not row.enforceable or bool(coded) != bool(row.policy):
            return False
        table = xid_rows if row.policy == "xid" else sxid_rows
        return not coded or int(coded[2]) in table()

    def refusal(self, name: str) -> str:
        """Return what is wrong with *name* among `enforcing`; "" if nothing is."""
        if self.enforceable(name):
            return ""
        known = [row.name for row in self.rows if row.enforceable and not row.policy]
        known += [
            "xid79" if row.policy == "xid" else "sxid20034" for row in self.rows if row.policy
        ]
        if any(row.name == name for row in self.rows):
            return f"{name!r} cannot be enforced: name one of {', '.join(known)}"
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
        return f"no finding is called {name!r}{hint}"


def _place(host: str) -> float:
    """Return where *host* stands among all hosts, 0 to 1, the same for ever."""
    import hashlib  # with libcrypto a megabyte, which only those pay whose policy wants it

    return int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big") / 2**64
