"""Interprets an XID or SXID by the codes close to it in time, equally on the host and at the aggregator.

Pure: each side decides how long it keeps records, and what ends one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .decode import DecodedLine, decode
from .policy import Companion, Xid, XidAssessment, XidSeverity, assess, lookup, lookup_sxid, refine

#: What makes two events of one device and code different things: their decoded parts.
VARIANT_ATTRIBUTES = ("unit", "link", "severity")
#: XID 154 tells which recovery the driver asks for: what it asked before no longer holds.
RECOVERY_XID = 154
_GRAVEST_FIRST = tuple(XidSeverity)


class ClassifiedLine(NamedTuple):
    """One line: its policy's row as the line refines it, what tells it from others, what was decoded."""

    row: Xid
    variant: str
    decoded: DecodedLine


def classify_line(code: int, message: str, driver_version: str, table: str) -> ClassifiedLine:
    """Read a line of *code*. *table*: "xid" or "sxid". Never raises, whatever *message* holds."""
    decoded = decode(code, message, driver_version, table)
    row = refine((lookup if table == "xid" else lookup_sxid)(code), decoded.attributes)
    parts = (decoded.attributes.get(name, "") for name in VARIANT_ATTRIBUTES)
    return ClassifiedLine(row, " ".join(parts).strip(), decoded)


@dataclass(slots=True)
class XidIncident:
    """One event by its id, over all its revisions. Times are boot time; `received_ns`: the listener's clock."""

    first_ns: int
    last_ns: int
    received_ns: int  # first
    #: Code of the same device that explains this one -> how near it came to its first line, in nanoseconds.
    apart_ns: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)
    #: The same to its last line, and the farthest of those that were its last.
    last_apart_ns: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)
    final_apart_ns: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)
    last_received_ns: int = field(default=0, kw_only=True)  # its last line; 0: with its first

    def extend(self, last_ns: int, received_ns: int, row: Xid | None) -> None:
        """Take a later revision of it. What nothing explained while there was time, nothing later does."""
        if last_ns <= self.last_ns:
            return
        wait_ns = row.wait_seconds * 1e9 if row else 0.0
        if received_ns - (self.last_received_ns or self.received_ns) >= wait_ns:
            for code, apart_ns in self.last_apart_ns.items():
                self.final_apart_ns[code] = max(apart_ns, self.final_apart_ns.get(code, 0))
        self.last_ns, self.last_received_ns = last_ns, received_ns
        self.last_apart_ns.clear()

    def note_distance(self, code: int, other: XidIncident) -> None:
        """Note how near an incident of *code* is, by the lines of both that are known."""
        for line_ns, apart_ns in (
            (self.first_ns, self.apart_ns),
            (self.last_ns, self.last_apart_ns),
        ):
            nearest = min(abs(line_ns - other.first_ns), abs(line_ns - other.last_ns))
            apart_ns[code] = min(nearest, apart_ns.get(code, nearest))

    def assess(self, row: Xid, now_ns: int) -> XidAssessment:
        """Return what it means now, *now_ns* on the clock of `received_ns`.

        It waits from when it was heard, however old it is: its companion may be in the next message.
        """
        is_new = now_ns - (self.last_received_ns or self.received_ns) < row.wait_seconds * 1e9
        apart = {
            companion.code: self._apart_ns(companion, row, is_new=is_new) / 1e9
            for companion in row.companions
            if companion.code in self.apart_ns
        }
        return assess(row, apart, (now_ns - self.received_ns) / 1e9)

    def _apart_ns(self, companion: Companion, row: Xid, *, is_new: bool) -> int:
        """Return how far *companion* is: one that excuses from the worst of our lines, any other from the nearest.

        *is_new*: what explains the last line may not have been heard yet.
        """
        code = companion.code
        first_ns, last_ns = self.apart_ns[code], self.last_apart_ns.get(code)
        if companion.severity is None or not _is_milder(companion.severity, row.severity):
            return first_ns if last_ns is None else min(first_ns, last_ns)
        known_ns = [] if is_new or last_ns is None else [last_ns]
        return max(first_ns, self.final_apart_ns.get(code, 0), *known_ns)


def _is_milder(one: XidSeverity, other: XidSeverity) -> bool:
    return _GRAVEST_FIRST.index(one) > _GRAVEST_FIRST.index(other)


def note_neighbours(
    row: Xid, incident: XidIncident, others: Iterable[tuple[Xid, Iterable[XidIncident]]]
) -> None:
    """Note which incidents of *others* of the device came near *incident*, where one explains the other."""
    for other, other_incidents in others:
        other_explains, row_explains = _explains(other, row), _explains(row, other)
        for neighbour in other_incidents if other_explains or row_explains else ():
            if other_explains:
                incident.note_distance(other.code, neighbour)
            if row_explains:
                neighbour.note_distance(row.code, incident)


def _explains(one: Xid, other: Xid) -> bool:
    """Return whether *one* is a companion that *other* waits for."""
    return any(companion.code == one.code for companion in other.companions)


def gravest(row: Xid, incidents: Iterable[XidIncident], now_ns: int) -> XidAssessment:
    """Return what incidents of *row* mean now: each is settled by itself, and the gravest counts.

    That the last one was contained does not undo one that was not.
    """
    each = [incident.assess(row, now_ns) for incident in incidents]
    return min(each, key=lambda one: _GRAVEST_FIRST.index(one.severity))
