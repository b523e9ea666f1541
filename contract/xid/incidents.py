"""Interprets an XID or SXID by the codes close to it in time, equally on the host and at the aggregator.

Pure: each side decides how long it keeps records, and when a record ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .decode import DecodedLine, decode
from .policy import Companion, Xid, XidAssessment, XidSeverity, assess, lookup, lookup_sxid, refine

#: Decoded parts that make two events of the same device and code different incidents.
VARIANT_ATTRIBUTES = ("unit", "link", "severity")
#: XID 154 reports the recovery that the driver asks for; it replaces the recovery of an earlier XID 154.
RECOVERY_XID = 154
_GRAVEST_FIRST = tuple(XidSeverity)


class ClassifiedLine(NamedTuple):
    """A line: its policy row as refined by the line, the text of VARIANT_ATTRIBUTES, and the decoded line."""

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
    """An event by its id, over all its revisions. Times are boot time; `received_ns`: the listener's clock."""

    first_ns: int
    last_ns: int
    received_ns: int  # first
    #: Code of the same device that explains this incident -> smallest distance to its first line, in nanoseconds.
    apart_ns: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)
    #: The same for its last line, and the greatest of these distances over earlier last lines that are final.
    last_apart_ns: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)
    final_apart_ns: dict[int, int] = field(default_factory=dict[int, int], kw_only=True)
    last_received_ns: int = field(default=0, kw_only=True)  # its last line; 0: with its first

    def extend(self, last_ns: int, received_ns: int, row: Xid | None) -> None:
        """Take a later revision of this incident. A line without an explanation at the end of its wait has none."""
        if last_ns <= self.last_ns:
            return
        wait_ns = row.wait_seconds * 1e9 if row else 0.0
        if received_ns - (self.last_received_ns or self.received_ns) >= wait_ns:
            for code, apart_ns in self.last_apart_ns.items():
                self.final_apart_ns[code] = max(apart_ns, self.final_apart_ns.get(code, 0))
        self.last_ns, self.last_received_ns = last_ns, received_ns
        self.last_apart_ns.clear()

    def note_distance(self, code: int, other: XidIncident) -> None:
        """Note the distance of *other*, an incident of *code*, by the known lines of both."""
        for line_ns, apart_ns in (
            (self.first_ns, self.apart_ns),
            (self.last_ns, self.last_apart_ns),
        ):
            nearest = min(abs(line_ns - other.first_ns), abs(line_ns - other.last_ns))
            apart_ns[code] = min(nearest, apart_ns.get(code, nearest))

    def assess(self, row: Xid, now_ns: int) -> XidAssessment:
        """Return its meaning at *now_ns*, a time on the clock of `received_ns`.

        The wait begins when the line was received, however old the line is: its companion may be in the next message.
        """
        is_new = now_ns - (self.last_received_ns or self.received_ns) < row.wait_seconds * 1e9
        apart = {
            companion.code: self._apart_ns(companion, row, is_new=is_new) / 1e9
            for companion in row.companions
            if companion.code in self.apart_ns
        }
        return assess(row, apart, (now_ns - self.received_ns) / 1e9)

    def _apart_ns(self, companion: Companion, row: Xid, *, is_new: bool) -> int:
        """Return the distance of *companion*: from the worst line if it makes the incident milder, else the nearest.

        *is_new*: the explanation of the last line may not have been received yet.
        """
        code = companion.code
        first_ns, last_ns = self.apart_ns[code], self.last_apart_ns.get(code)
        if companion.severity is None or not _is_milder(companion.severity, row.severity):
            return first_ns if last_ns is None else min(first_ns, last_ns)
        known_ns = [] if is_new or last_ns is None else [last_ns]
        return max(first_ns, self.final_apart_ns.get(code, 0), *known_ns)


def _is_milder(severity: XidSeverity, other: XidSeverity) -> bool:
    return _GRAVEST_FIRST.index(severity) > _GRAVEST_FIRST.index(other)


def note_neighbours(
    row: Xid, incident: XidIncident, others: Iterable[tuple[Xid, Iterable[XidIncident]]]
) -> None:
    """Note the distances between *incident* and *others* of its device, where either code explains the other."""
    for other, other_incidents in others:
        other_explains, row_explains = _explains(other, row), _explains(row, other)
        for neighbour in other_incidents if other_explains or row_explains else ():
            if other_explains:
                incident.note_distance(other.code, neighbour)
            if row_explains:
                neighbour.note_distance(row.code, incident)


def _explains(companion_row: Xid, other: Xid) -> bool:
    """Return whether *companion_row* is a companion that *other* waits for."""
    return any(companion.code == companion_row.code for companion in other.companions)


def gravest(row: Xid, incidents: Iterable[XidIncident], now_ns: int) -> XidAssessment:
    """Return the gravest present meaning of incidents of *row*, each of which is assessed by itself.

    A contained last incident does not excuse an earlier uncontained incident.
    """
    each = [incident.assess(row, now_ns) for incident in incidents]
    return min(each, key=lambda one: _GRAVEST_FIRST.index(one.severity))
