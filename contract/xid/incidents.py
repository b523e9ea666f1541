"""What an XID or SXID means beside the codes that came near it: the same on its host and at the aggregator.

Pure: who keeps records, for how long, and what ends one, is each side's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .decode import Decoded, decode
from .policy import Companion, Settled, Severity, Xid, lookup, lookup_sxid, refined, settled

#: What makes two events of one device and code different things: their decoded parts.
VARIANT_ATTRIBUTES = ("unit", "link", "severity")
#: XID 154 tells which recovery the driver asks for: what it asked before no longer holds.
RECOVERY = 154
_GRAVEST_FIRST = tuple(Severity)


class Coded(NamedTuple):
    """One line: its policy's row as the line refines it, what tells it from others, what was decoded."""

    row: Xid
    variant: str
    decoded: Decoded


def coded(code: int, message: str, driver_version: str, table: str) -> Coded:
    """Read a line of *code*. *table*: "xid" or "sxid". Never raises, whatever *message* holds."""
    decoded = decode(code, message, driver_version, table)
    row = refined((lookup if table == "xid" else lookup_sxid)(code), decoded.attributes)
    parts = (decoded.attributes.get(name, "") for name in VARIANT_ATTRIBUTES)
    return Coded(row, " ".join(parts).strip(), decoded)


@dataclass(slots=True)
class Incident:
    """One event by its id, over all its revisions. Times are boot time; `heard_ns`: the listener's clock."""

    first_ns: int
    last_ns: int
    heard_ns: int  # first
    #: Code of the same device that explains this one -> how near it came to its first line, in nanoseconds.
    apart_ns: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)
    #: The same to its last line, and the farthest of those that were its last.
    last_apart_ns: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)
    left_apart_ns: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)
    last_heard_ns: int = field(default=0, kw_only=True)  # its last line; 0: with its first

    def go_on(self, last_ns: int, heard_ns: int, row: Xid | None) -> None:
        """Take a later revision of it. What nothing explained while there was time, nothing later does."""
        if last_ns <= self.last_ns:
            return
        wait_ns = row.wait_seconds * 1e9 if row else 0.0
        if heard_ns - (self.last_heard_ns or self.heard_ns) >= wait_ns:
            for code, apart_ns in self.last_apart_ns.items():
                self.left_apart_ns[code] = max(apart_ns, self.left_apart_ns.get(code, 0))
        self.last_ns, self.last_heard_ns = last_ns, heard_ns
        self.last_apart_ns.clear()

    def meets(self, code: int, other: Incident) -> None:
        """Note how near an incident of *code* is, by the lines of both that are known."""
        for ours_ns, apart_ns in (
            (self.first_ns, self.apart_ns),
            (self.last_ns, self.last_apart_ns),
        ):
            nearest = min(abs(ours_ns - other.first_ns), abs(ours_ns - other.last_ns))
            apart_ns[code] = min(nearest, apart_ns.get(code, nearest))

    def settled(self, row: Xid, now_ns: int) -> Settled:
        """Return what it means now, *now_ns* on the clock of `heard_ns`.

        It waits from when it was heard, however old it is: its companion may be in the next message.
        """
        is_new = now_ns - (self.last_heard_ns or self.heard_ns) < row.wait_seconds * 1e9
        apart = {
            companion.code: self._apart_ns(companion, row, is_new=is_new) / 1e9
            for companion in row.companions
            if companion.code in self.apart_ns
        }
        return settled(row, apart, (now_ns - self.heard_ns) / 1e9)

    def _apart_ns(self, companion: Companion, row: Xid, *, is_new: bool) -> int:
        """Return how far *companion* is: one that excuses from the worst of our lines, any other from the nearest.

        *is_new*: what explains the last line may not have been heard yet.
        """
        code = companion.code
        first_ns, last_ns = self.apart_ns[code], self.last_apart_ns.get(code)
        if companion.severity is None or not _is_milder(companion.severity, row.severity):
            return first_ns if last_ns is None else min(first_ns, last_ns)
        known_ns = [] if is_new or last_ns is None else [last_ns]
        return max(first_ns, self.left_apart_ns.get(code, 0), *known_ns)


def _is_milder(one: Severity, other: Severity) -> bool:
    return _GRAVEST_FIRST.index(one) > _GRAVEST_FIRST.index(other)


def note_neighbours(
    row: Xid, incident: Incident, others: Iterable[tuple[Xid, Iterable[Incident]]]
) -> None:
    """Note which incidents of *others* of the device came near *incident*, where one explains the other."""
    for other, besides in others:
        ours, theirs = _explains(other, row), _explains(row, other)
        for beside in besides if ours or theirs else ():
            if ours:
                incident.meets(other.code, beside)
            if theirs:
                beside.meets(row.code, incident)


def _explains(one: Xid, other: Xid) -> bool:
    """Say whether *one* is a companion that *other* waits for."""
    return any(companion.code == one.code for companion in other.companions)


def gravest(row: Xid, incidents: Iterable[Incident], now_ns: int) -> Settled:
    """Return what incidents of *row* mean now: each is settled by itself, and the gravest counts.

    That the last one was contained does not undo one that was not.
    """
    each = [incident.settled(row, now_ns) for incident in incidents]
    return min(each, key=lambda one: _GRAVEST_FIRST.index(one.severity))
