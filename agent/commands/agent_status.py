"""`gangline agent status`: whether the agent of this host is connected, what waits, and what it cannot read."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from ...cli import NO_ANSWER, OK, json_object
from ..local.check import SECOND_NS, span
from .check import FOLDERS, read_status

NAMES_SHOWN = 6
#: Outcomes as a person reads them.
OUTCOMES = {"no_data": "no data"}


def main(arguments: list[str]) -> int:
    """Print it. 0: an agent runs; 3: none does, or none of this version."""
    options = _parser().parse_args(arguments)
    status, why = read_status((options.run_folder,) if options.run_folder else FOLDERS)
    if status is not None and status["agent"] is None:
        status, why = None, "the agent is of a version that does not say how it stands"
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
    """Return what `--json` prints: times as seconds before now."""
    shown = dict(status["agent"])
    last_ns, since_ns = shown.pop("last_receipt_ns"), shown.pop("since_ns")
    if said := shown["verdict"]:
        age = _seconds(said["at_ns"], now_ns)
        shown["verdict"] = {"state": said["state"], "reason": said["reason"], "age_seconds": age}
    return {
        "known": True,
        "host": status["host"],
        "agent_version": status["agent_version"],
        "age_seconds": _seconds(status["boottime_ns"], now_ns),
        **shown,
        "state_seconds": _seconds(since_ns, now_ns),
        "last_receipt_seconds": None if last_ns is None else _seconds(last_ns, now_ns),
        "notes": status["notes"],
    }


def lines(status: dict[str, Any], now_ns: int) -> Iterator[str]:
    """Yield what a person reads."""
    shown = document(status, now_ns)
    age = span(shown["age_seconds"])
    yield (
        f"{shown['host']}: agent {shown['agent_version']}, process {shown['pid']}, as of {age} ago"
    )
    since = span(shown["state_seconds"])
    last = shown["last_receipt_seconds"]
    receipt = "no receipt yet" if last is None else f"last receipt {span(last)} ago"
    if shown["connected"]:
        yield f"connected to {shown['aggregator']} for {since}, {receipt}"
    else:
        why = f": {shown['last_error']}" if shown["last_error"] else ""
        yield f"NOT CONNECTED to {shown['aggregator']} for {since}, {receipt}{why}"
    if said := shown["verdict"]:
        reason = f": {said['reason']}" if said["reason"] else ""
        yield f"the aggregator says {said['state']}{reason} ({span(said['age_seconds'])} ago)"
    yield (
        f"waiting for a receipt: {shown['waiting_frames']} frames ({_size(shown['waiting_bytes'])}), "
        f"{shown['waiting_events']} events"
    )
    if lost := _lost(shown):
        yield f"LOST since the agent started: {lost}"
    yield f"sources: {shown['sources_well']} read"
    for one in shown["sources_unread"]:
        names, more = one["names"][:NAMES_SHOWN], len(one["names"]) - NAMES_SHOWN
        listed = ", ".join(names) + (f" and {more} more" if more > 0 else "")
        yield f"  {OUTCOMES.get(one['outcome'], one['outcome'])}: {listed}: {one['words']}"
    for note in shown["notes"]:
        yield f"problem: {note}"


def _lost(shown: dict[str, Any]) -> str:
    counts = (
        ("lost_frames", "frames dropped"),
        ("refused_frames", "frames refused by the aggregator"),
        ("lost_events", "events dropped"),
        ("write_errors", "frames not written to disk"),
    )
    return ", ".join(f"{shown[key]} {words}" for key, words in counts if shown[key])


def _seconds(at_ns: int, now_ns: int) -> float:
    return round(max(0.0, (now_ns - at_ns) / SECOND_NS), 1)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1_000_000 else f"{count / 1e3:.0f} kB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline agent status",
        description="Say how the agent of this host stands: whether it is connected, since when its readings wait, "
        "what was lost, and which sources it cannot read, and why.",
        epilog="exit codes: 0 an agent runs (connected or not), 2 wrong usage, 3 none runs here",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--run-folder",
        metavar="FOLDER",
        help=f"the agent's folder (default: {' or '.join(FOLDERS)})",
    )
    return parser
