"""Explains one kernel log line without an XID: the event and the policy row, or why the agent ignores the line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...contract.faults.policy import ClearedBy, FindingSeverity, PolicyRow
from ...contract.faults.table import builtin
from ...contract.signals import BY_NAME
from ..kernel_log.network_rules import BACK, reported_when
from ..kernel_log.record import LinePart, ParsedLine, printable
from ..kernel_log.rules import classify, why_ignored

#: Prefixes of dmesg, the journal, syslog and /dev/kmsg before the kernel's text.
_PREFIX = re.compile(
    r"\s*(?:\d+,\d+,\d+,[^;\n]{0,64};"
    r"|(?:.{0,200}?\bkernel: ?)?(?:kern *:\w+ *: ?)?(?:<\d{1,3}>)?"
    r"(?:\[ *\d+\.\d+\](?:\[ *[TC]\d+\])? ?|\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\] ?|\d{4}-\d\d-\d\dT\S+ )?)"
)
#: A longer line is cut in the output.
LINE_CHARACTERS_MAX = 400

_SEVERITIES = {
    FindingSeverity.FATAL: "fatal: no job may start on the host until it is cleared",
    FindingSeverity.DEGRADED: "degraded: jobs may run, and run slower or with fewer devices",
    FindingSeverity.HAZARD: "hazard: jobs may run; the host is reported as at risk",
    FindingSeverity.APPLICATION: "application: caused by the program; the host's state does not change",
}
_PARTS = {
    LinePart.DETAIL: "it adds to the event of the lines before it; alone it is none",
    LinePart.BODY: "it counts only where the line that announces it is missing",
    LinePart.OUTCOME: "it counts only where the error before it is missing, or was corrected",
}


@dataclass(frozen=True)
class LineQuery:
    """A kernel log line. `event`: the agent's interpretation; None if the agent ignores the line."""

    text: str
    event: ParsedLine | None

    @property
    def known(self) -> bool:
        """Whether the line becomes an event."""
        return self.event is not None

    @property
    def is_end(self) -> bool:
        """Whether the line says that an earlier event is over."""
        return self.event is not None and self.event.attributes.get("state") == BACK

    @property
    def row(self) -> PolicyRow | None:
        """The row of the host policy that reports the event."""
        event = self.event
        if event is None or self.is_end:
            return None
        for row in builtin().rows:
            is_row_of_code = row.event == event.name and (not row.codes or event.code in row.codes)
            if is_row_of_code and (
                not row.contains or any(phrase in self.text for phrase in row.contains)
            ):
                return row
        return None


def parse(text: str) -> LineQuery:
    """Return the interpretation of a line, with or without the prefix of a log."""
    bare = text[_PREFIX.match(text).end() :]  # type: ignore[union-attr]  # it matches also nothing
    for candidate in (text.strip(), bare.strip()):
        if event := classify(candidate):
            return LineQuery(candidate, event)
    return LineQuery(bare.strip(), None)


def fields(query: LineQuery) -> Iterator[tuple[str, str]]:
    """Yield label and text of each field; the action comes first."""
    yield "The line", printable(query.text, LINE_CHARACTERS_MAX)
    if query.event is None:
        yield "Ignored", why_ignored(query.text)
        return
    row = query.row
    if query.is_end:
        yield "Do", "nothing: it ends the finding about the adapter"
    elif row is None:
        yield (
            "Do",
            "nothing on the host: its policy has no row for it; the aggregator counts it, and may judge it",
        )
    else:
        yield "Do", row.action
        yield "We call it", _SEVERITIES[row.severity]
        yield "Why", row.source
        yield "Touches", row.scope
        yield "Cleared when", _cleared(row)
    yield from _event_fields(query.event, query.text)


def heading(query: LineQuery) -> str:
    """Return the first line of the card."""
    if query.event is None:
        return "The agent ignores this line"
    row = query.row
    return f"{query.event.name} (code {query.event.code}){f': {row.message}' if row else ''}"


def document(query: LineQuery) -> dict[str, Any]:
    """Return the answer as JSON."""
    event, row = query.event, query.row
    if event is None:
        return {"line": query.text, "known": False, "why": why_ignored(query.text)}
    return {
        "line": query.text,
        "known": True,
        "event": event.name,
        "code": event.code,
        "device": event.device,
        "attributes": dict(event.attributes),
        "part": event.part.value,
        "row": dataclasses.asdict(row) if row else None,
    }


def _event_fields(event: ParsedLine, text: str) -> Iterator[tuple[str, str]]:
    yield "Device", event.device
    if event.process_id or event.process_name:
        yield "Process", " ".join(filter(None, (event.process_name, f"pid {event.process_id}")))
    if event.attributes:
        yield "It says", ", ".join(f"{name} {value}" for name, value in event.attributes.items())
    yield "Event", BY_NAME[event.name].description
    if note := _PARTS.get(event.part) or reported_when(event, text):
        yield "Note", note


def _cleared(row: PolicyRow) -> str:
    if row.clears is ClearedBy.TIME:
        return f"it does not recur for {row.clear_seconds / 60:.0f} minutes"
    return {
        ClearedBy.REBOOT: "the host boots",
        ClearedBy.RESET: "the GPU is reset, or the host boots",
    }.get(row.clears, row.clears.value)
