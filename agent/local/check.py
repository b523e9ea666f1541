"""Verdict of `gangline check` from a status document; stale or uncertain means healthy. Pure.

`gangline check` loads it in each prolog, so it imports almost nothing: no dataclass, no typing.
"""

from __future__ import annotations

TYPE_CHECKING = (
    False  # stands for typing.TYPE_CHECKING: importing typing costs more than this module
)
if TYPE_CHECKING:
    from typing import Any


#: Version of the document's form. A document of another format is refused.
FORMAT = 1
#: A longer file was not written by Gangline.
STATUS_BYTES_MAX = 256 << 10
FINDINGS_MAX = 64
NAMES_MAX = 256
TEXT_CHARACTERS_MAX = 300
SECOND_NS = 1_000_000_000
#: Seconds for which a finding, and the document itself, are current.
FRESH_SECONDS = 30
#: Tolerated difference of the clocks of two processes on a host.
CLOCK_AHEAD_SECONDS_MAX = 2
#: A permit that ends later than this is ignored.
PERMIT_SECONDS_MAX = 60
#: Seconds for which a scheduler may rely on a drain reason without a renewal.
TTL_SECONDS = 3600

AGENT_COUNTS = (
    "pid", "since_ns", "waiting_frames", "waiting_bytes", "waiting_events", "lost_frames", "refused_frames",
    "lost_events", "write_errors", "sources_well",
)  # fmt: skip
FINDING_TEXTS = (
    "name", "device", "address", "severity", "problem", "message", "action", "scope", "clears_when",
)  # fmt: skip


class StatusError(ValueError):
    """A document that Gangline did not write; the message says what is wrong."""


def parse(content: bytes) -> dict[str, Any]:
    """Return the document in *content*, with each field of its right type. Raises StatusError."""
    if len(content) > STATUS_BYTES_MAX:
        raise StatusError(f"it is longer than {STATUS_BYTES_MAX} bytes")
    try:
        fields = _decode_json(content.decode())
    except (ValueError, RecursionError):
        raise StatusError("not JSON, or incomplete JSON") from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise StatusError(f"not of format {FORMAT}: agent and command have different versions")
    try:
        return _document(fields)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StatusError("a field is missing or has a wrong type") from None


class _ScannerOptions:
    """Options of the JSON scanner."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int, parse_constant = float, int, float


def _decode_json(document: str) -> object:
    """Return the value of the JSON *document*. Raises ValueError, RecursionError.

    Uses the scanner within `json`: importing `json` itself (re, enum, functools) costs more than
    this whole module.
    """
    try:
        from _json import make_scanner
    except ImportError:  # an interpreter that is not CPython
        import json

        return json.loads(document)
    options: Any = _ScannerOptions
    try:
        value, end = make_scanner(options)(document, 0)
    # SystemError: the scanner's own exception class exists only after an import of `json`.
    except (StopIteration, SystemError):
        raise ValueError("no JSON") from None
    if document[end:].strip():
        raise ValueError("more than one document")
    return value


def _document(fields: dict[str, Any]) -> dict[str, Any]:
    permit = fields["permit"]
    return {
        "format": FORMAT,
        "host": printable(fields["host"]),
        "agent_version": printable(fields["agent_version"]),
        "policy": printable(fields["policy"]),
        "boot_id": printable(fields["boot_id"]),
        "boottime_ns": _checked_ns(fields["boottime_ns"]),
        "enforcing": [printable(name) for name in _checked_list(fields["enforcing"], NAMES_MAX)],
        "permit": permit
        and {"until_ns": _checked_ns(permit["until_ns"]), "reason": printable(permit["reason"])},
        "notes": [printable(note) for note in _checked_list(fields["notes"], NAMES_MAX)],
        "findings": [
            _finding(finding) for finding in _checked_list(fields["findings"], FINDINGS_MAX)
        ],
        "left_out": _checked_ns(fields["left_out"]),
        "agent": _agent(fields.get("agent")),
    }


def _agent(agent: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the agent's own state; None if it cannot be read, as from another version.

    No verdict depends on it.
    """
    try:
        return agent and _agent_fields(agent)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _agent_fields(agent: dict[str, Any]) -> dict[str, Any]:
    if type(agent["connected"]) is not bool:
        raise TypeError
    last = agent["last_receipt_ns"]
    return {
        "aggregator": printable(agent["aggregator"]),
        "connected": agent["connected"],
        "last_error": printable(agent["last_error"]),
        "last_receipt_ns": None if last is None else _checked_ns(last),
        **{key: _checked_ns(agent[key]) for key in AGENT_COUNTS},
        "verdict": _verdict(agent.get("verdict")),
        "sources_unread": [
            _unread(source) for source in _checked_list(agent["sources_unread"], NAMES_MAX)
        ],
    }


def _verdict(fields: dict[str, Any] | None) -> dict[str, Any] | None:
    return fields and {
        "state": printable(fields["state"]),
        "reason": printable(fields["reason"]),
        "at_ns": _checked_ns(fields["at_ns"]),
    }


def _unread(source: dict[str, Any]) -> dict[str, Any]:
    return {
        "outcome": printable(source["outcome"]),
        "message": printable(source["message"]),
        "names": [printable(name) for name in _checked_list(source["names"], NAMES_MAX)],
    }


def _finding(finding: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {key: printable(finding[key]) for key in FINDING_TEXTS}
    for key in ("since_ns", "confirmed_ns", "count"):
        fields[key] = _checked_ns(finding[key])
    if type(finding["enforceable"]) is not bool:
        raise TypeError
    fields["enforceable"] = finding["enforceable"]
    return fields


def printable(value: object) -> str:
    """Return *value* cut to TEXT_CHARACTERS_MAX, with blanks for control characters."""
    if not isinstance(value, str):
        raise TypeError
    cut = value[:TEXT_CHARACTERS_MAX]
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)


def _checked_ns(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError
    return value


def _checked_list(value: object, items_max: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > items_max:
        raise TypeError
    return value


def stale_reason(status: dict[str, Any], now_ns: int) -> str:
    """Return why *status* is not current (too old, or ahead of the clock); "" if it is."""
    age = (now_ns - status["boottime_ns"]) / SECOND_NS
    if age < -CLOCK_AHEAD_SECONDS_MAX:
        return "its time is ahead of this host's clock"
    return f"it is {format_duration(age)} old" if age > FRESH_SECONDS else ""


def not_enforced_reason(status: dict[str, Any], finding: dict[str, Any], now_ns: int) -> str:
    """Return why *finding* is not enforced; "" if it is. All must be certain and current."""
    if finding["problem"] != "node":
        return "it is caused by a program"
    if finding["severity"] != "fatal" or not finding["enforceable"]:
        return "a finding of this kind is never enforced"
    if finding["name"] not in status["enforcing"]:
        return "report-only: enforcing is not enabled for it"
    permit = status["permit"]
    if not permit:
        return "the aggregator gives no permit"
    left = permit["until_ns"] - now_ns
    if left <= 0:
        return "the aggregator's permit has expired"
    if left > PERMIT_SECONDS_MAX * SECOND_NS:
        return "the permit is longer than the maximum"
    age = (now_ns - finding["confirmed_ns"]) / SECOND_NS
    if not -CLOCK_AHEAD_SECONDS_MAX <= age < FRESH_SECONDS:
        return (
            f"it was last confirmed {format_duration(age)} ago" if age > 0 else "its time is ahead"
        )
    return stale_reason(status, now_ns)


def enforced_findings(status: dict[str, Any], now_ns: int) -> list[dict[str, Any]]:
    """Return the findings for which no job may start on this host."""
    return [
        finding
        for finding in status["findings"]
        if not not_enforced_reason(status, finding, now_ns)
    ]


def drain_reason(finding: dict[str, Any]) -> str:
    """Return the drain reason for a scheduler's log, in the grammar that all of Gangline uses."""
    location = "".join(c for c in _location(finding) if c.isalnum() or c in ":.-_/")[:64]
    cause = "".join(c for c in finding["name"] if c.isalnum() or c == "_")
    return f"gangline:v1;act=drain;cause={cause};dev={location};ttl={TTL_SECONDS}"


def summary(status: dict[str, Any], now_ns: int) -> str:
    """Return the host's state in one line: the first finding, and why it is enforced or not."""
    findings = status["findings"]
    notes = "".join(f"; [agent_problem] {note}" for note in status["notes"])
    if not findings:
        age = max(0.0, (now_ns - status["boottime_ns"]) / SECOND_NS)
        return f"{status['host']}: nothing is wrong, as of {format_duration(age)} ago{notes}"
    blocking = enforced_findings(status, now_ns)
    first = blocking[0] if blocking else findings[0]
    others = [finding for finding in findings if finding is not first]
    line = f"{status['host']}: {describe(first, now_ns)}"
    if blocking:
        line += f". ENFORCED by permit: {status['permit']['reason']}"
    else:
        line += f". Not enforced: {not_enforced_reason(status, first, now_ns)}"
    return f"{line}{_other_findings(others, status['left_out'])}{notes}"


def agent_lines(status: dict[str, Any], now_ns: int) -> list[str]:
    """Return lines on the aggregator's state of this host, and on sources that are not read."""
    agent = status["agent"]
    if not agent:
        return []
    lines = []
    since = format_duration(max(0.0, (now_ns - agent["since_ns"]) / SECOND_NS))
    verdict = agent["verdict"]
    if not agent["connected"]:
        why = f" ({agent['last_error']})" if agent["last_error"] else ""
        lines.append(
            f"the aggregator is not reachable: {since}{why}: its findings are unknown here"
        )
    elif verdict and now_ns - verdict["at_ns"] > FRESH_SECONDS * SECOND_NS:
        age = format_duration((now_ns - verdict["at_ns"]) / SECOND_NS)
        lines.append(
            f"the aggregator reports no state of this host, because {age}: `gangline agent status`"
        )
    elif verdict and verdict["state"] != "HEALTHY":
        reason = f": {verdict['reason']}" if verdict["reason"] else ""
        host = status["host"]
        lines.append(f"the aggregator says {verdict['state']}{reason} (`gangline explain {host}`)")
    for source in agent["sources_unread"]:
        if source["outcome"] != "no_data":
            lines.append(
                f"{source['outcome']}: {', '.join(source['names'][:3])}: {source['message']}"
            )
    return lines


def describe(finding: dict[str, Any], now_ns: int) -> str:
    """Return a finding as text: kind of problem, name, place, detail, action, end condition."""
    times = f", {finding['count']} times" if finding["count"] > 1 else ""
    since = format_duration(max(0.0, (now_ns - finding["since_ns"]) / SECOND_NS))
    return (
        f"[{finding['problem']}_problem] {finding['name']} on {_location(finding)}: {finding['message']}"
        f" (for {since}{times}). Do: {finding['action']}. Clears when {finding['clears_when']}"
    )


def _location(finding: dict[str, Any]) -> str:
    return str(finding["address"] or finding["device"])


def _other_findings(others: list[dict[str, Any]], left_out: int) -> str:
    """Return up to three other findings as text, and the number of the rest."""
    if not others and not left_out:
        return ""
    listed = [f"{finding['name']} {_location(finding)}" for finding in others[:3]]
    rest = len(others) - len(listed) + left_out
    return f". Also: {', '.join(listed)}" + (f" and {rest} more" if rest else "")


def format_duration(seconds: float) -> str:
    """Return *seconds* as text in s, min, h or days."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
