"""The policy of findings that a host makes without an aggregator: rows, conditions, and which of them apply to a host."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from enum import StrEnum

from ..xid.policy import policy as xid_rows
from ..xid.policy import sxid_policy as sxid_rows

#: A reading that is healthy again must stay healthy for this time, unless a row says otherwise.
LEAVE_SECONDS = 10.0
#: Names of findings from the tables of codes.
CODE_NAME = re.compile(r"(xid|sxid)([1-9][0-9]{0,5}|0)")

#: Events that only the agent uses: the aggregator derives the same from the registered devices.
LOCAL_EVENTS = frozenset({"gpu.missing"})
COMPARE = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "beyond": lambda a, b: abs(a) > b,
}


class FindingSeverity(StrEnum):
    """Meaning of a finding for the host, gravest first."""

    FATAL = "fatal"
    DEGRADED = "degraded"
    HAZARD = "hazard"
    APPLICATION = "application"


class ClearedBy(StrEnum):
    """Event that ends a finding."""

    READING = "reading"
    RESET = "reset"
    REBOOT = "reboot"
    TIME = "time"


class PolicyError(ValueError):
    """A policy cannot be used; the message has the line, the fault and the expected form."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison: *signal* with *values*, or with the signal *other* of the same device."""

    signal: str
    compare: str
    values: tuple[float, ...] = ()
    other: str = ""

    @property
    def signals(self) -> tuple[str, ...]:
        return (self.signal, self.other) if self.other else (self.signal,)

    def holds(self, left: float, right: float | None) -> bool:
        """Return whether the comparison holds; *right* is the reading of `other`, None if absent or unknown."""
        match self.compare:
            case "in":
                return left in self.values
            case "has":
                return bool(int(left) & int(self.values[0]))
        value = right if self.other else self.values[0]
        return value is not None and COMPARE[self.compare](left, value)


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One kind of finding. `contract/faults/README.md` explains the fields; times are seconds."""

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
    contains: tuple[str, ...] = ()
    ends_with: str = ""
    severity: FindingSeverity = FindingSeverity.HAZARD
    message: str = ""
    action: str = ""
    scope: str = "host"
    clears: ClearedBy = ClearedBy.READING
    clear_seconds: float = 0.0
    for_seconds: float = 0.0
    leave_seconds: float = LEAVE_SECONDS
    after_boot_seconds: float = 0.0
    once_otherwise: bool = False
    enforceable: bool = False

    @property
    def device_kind(self) -> str:
        """Kind of device of the readings: `gpu`, `rdma`; "" for a row without readings."""
        return self.when[0].signal.partition(".")[0] if self.when else ""

    @property
    def evidence_signal(self) -> str:
        """The signal of its evidence: its event, its judge's rule, or its first reading."""
        return self.event or self.judged or self.signals[0]

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals of its conditions, those of `when` first; empty for a row without readings."""
        conditions = (*self.when, *self.unless)
        return tuple(name for each in conditions for name in each.signals)

    def matches_device(self, device: str) -> bool:
        wanted = self.device
        return (
            not wanted or device == wanted or (wanted[-1] == "*" and device.startswith(wanted[:-1]))
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole table. `version`: its author's text; `rollout_share` of the hosts use it, selected by name."""

    version: str
    rollout_share: float
    rows: tuple[PolicyRow, ...]
    off: frozenset[str] = field(default_factory=frozenset[str])

    def applies_to(self, host: str) -> bool:
        """Return whether *host* is in the share that uses the table; a greater share keeps earlier hosts."""
        return self.rollout_share >= 1.0 or _rollout_position(host) < self.rollout_share

    def is_enforceable(self, name: str) -> bool:
        """Return whether `enforcing` may contain *name*: a row that allows it, or a code of such a row, as `xid79`."""
        coded = CODE_NAME.fullmatch(name)
        wanted = coded[1] if coded else name
        row = next((row for row in self.rows if row.name == wanted), None)
        if row is None or not row.enforceable or bool(coded) != bool(row.policy):
            return False
        table = xid_rows if row.policy == "xid" else sxid_rows
        return not coded or int(coded[2]) in table()

    def enforce_error(self, name: str) -> str:
        """Return the error of *name* in `enforcing`; "" if it is valid."""
        if self.is_enforceable(name):
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


def _rollout_position(host: str) -> float:
    """Return the position of *host* among all hosts, 0 to 1; it never changes."""
    import hashlib  # with libcrypto a megabyte: loaded only if a policy needs it

    return int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big") / 2**64
