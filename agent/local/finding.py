"""One finding: something wrong with this host that a row of the policy names."""

from __future__ import annotations

from dataclasses import dataclass

from ...fingerprints.policy import Severity

_GRAVEST_FIRST = {severity: number for number, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class Finding:
    """What stands against a device. Times are boot time.

    `name`: the row's, or of a code (`xid79`). `confirmed_ns`: when it was last known to be so: the last
    reading that shows it, or, of an event, now, for as long as nothing has ended it.
    """

    name: str
    device: str
    severity: Severity
    words: str
    action: str
    scope: str
    clears_when: str
    since_ns: int
    confirmed_ns: int
    enforceable: bool = False
    count: int = 1

    @property
    def weight(self) -> tuple[int, int, str, str]:
        """Sort key: gravest first, of those the newest, in an order that never wavers."""
        return _GRAVEST_FIRST[self.severity], -self.since_ns, self.name, self.device

    @property
    def told(self) -> tuple[object, ...]:
        """What makes it worth telling anew: all but the time that it was last confirmed at."""
        return self.name, self.device, self.severity, self.words, self.action, self.count


@dataclass(frozen=True, slots=True)
class Cleared:
    """A finding that is over, and why."""

    finding: Finding
    cleared_ns: int
    why: str
