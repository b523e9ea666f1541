"""`gangline agent status`: the agent's connection, its unsent data, and the sources it cannot read."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from ...cli import NO_ANSWER, OK, json_object
from ..local.check import SECOND_NS, format_duration
from .check import FOLDERS, read_status

NAMES_SHOWN = 6
#: Outcome -> text.
OUTCOMES = {"no_data": "no data"}


def main(arguments: list[str]) -> int:
    """Print the status. Returns 0 if an agent runs; 3 if none runs, or of an older version."""
    options = _parser().parse_args(arguments)
    status, why = read_status((options.run_folder,) if options.run_folder else FOLDERS)
    if status is not None and status["agent"] is None:
        status, why = None, "the agent's version is too old to report its state"
    if status is None:
        if options.json:
            print(json_object({"known": False, "why": why}))
        else:
            print(f"gangline agent status: {why}", file=sys.stderr)
        return NO_ANSWER
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    print(
        json_object(document(status, now_ns)) if options.json else "\n".join(lines(status, now_ns))
    )
    return OK


def document(status: dict[str, Any], now_ns: int) -> dict[str, Any]:
    """Return the object for `--json`, with ages in seconds instead of times."""
    fields = dict(status["agent"])
    last_ns, since_ns = fields.pop("last_receipt_ns"), fields.pop("since_ns")
    if verdict := fields["verdict"]:
        age = _seconds(verdict["at_ns"], now_ns)
        fields["verdict"] = {
            "state": verdict["state"],
            "reason": verdict["reason"],
            "age_seconds": age,
        }
    return {
        "known": True,
        "host": status["host"],
        "agent_version": status["agent_version"],
        "age_seconds": _seconds(status["boottime_ns"], now_ns),
        **fields,
        "state_seconds": _seconds(since_ns, now_ns),
        "last_receipt_seconds": None if last_ns is None else _seconds(last_ns, now_ns),
        "notes": status["notes"],
    }


def lines(status: dict[str, Any], now_ns: int) -> Iterator[str]:
    """Yield the lines for a person."""
    fields = document(status, now_ns)
    age = format_duration(fields["age_seconds"])
    yield (
        f"{fields['host']}: agent {fields['agent_version']}, process {fields['pid']}, as of {age} ago"
    )
    since = format_duration(fields["state_seconds"])
    last = fields["last_receipt_seconds"]
    last_ack = "no receipt yet" if last is None else f"last receipt {format_duration(last)} ago"
    if fields["connected"]:
        yield f"connected to {fields['aggregator']} for {since}, {last_ack}"
    else:
        why = f": {fields['last_error']}" if fields["last_error"] else ""
        yield f"NOT CONNECTED to {fields['aggregator']} for {since}, {last_ack}{why}"
    if verdict := fields["verdict"]:
        reason = f": {verdict['reason']}" if verdict["reason"] else ""
        yield f"the aggregator says {verdict['state']}{reason} ({format_duration(verdict['age_seconds'])} ago)"
    yield (
        f"waiting for a receipt: {fields['waiting_frames']} frames ({_size(fields['waiting_bytes'])}), "
        f"{fields['waiting_events']} events"
    )
    if lost := _lost(fields):
        yield f"LOST since the agent started: {lost}"
    yield f"sources: {fields['sources_well']} read"
    for source in fields["sources_unread"]:
        names, more = source["names"][:NAMES_SHOWN], len(source["names"]) - NAMES_SHOWN
        listed = ", ".join(names) + (f" and {more} more" if more > 0 else "")
        yield f"  {OUTCOMES.get(source['outcome'], source['outcome'])}: {listed}: {source['message']}"
    for note in fields["notes"]:
        yield f"problem: {note}"


def _lost(fields: dict[str, Any]) -> str:
    counts = (
        ("lost_frames", "frames dropped"),
        ("refused_frames", "frames rejected by the aggregator"),
        ("lost_events", "events dropped"),
        ("write_errors", "frames not written to disk"),
    )
    return ", ".join(f"{fields[key]} {label}" for key, label in counts if fields[key])


def _seconds(at_ns: int, now_ns: int) -> float:
    return round(max(0.0, (now_ns - at_ns) / SECOND_NS), 1)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1_000_000 else f"{count / 1e3:.0f} kB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline agent status",
        description="Shows the state of this host's agent: whether it is connected, since when its readings wait, "
        "what was lost, and which sources it cannot read, and why.",
        epilog="exit codes: 0 an agent runs (connected or not), 2 wrong usage, 3 no agent runs here",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--run-folder",
        metavar="FOLDER",
        help=f"the agent's folder (default: {' or '.join(FOLDERS)})",
    )
    return parser
