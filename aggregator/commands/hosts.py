"""`gangline hosts`: every host with score, state and main reason, once or refreshed."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import textwrap
import threading
from enum import Enum
from typing import Any

from google.protobuf.json_format import MessageToDict

from ...cli import json_object
from ...contract.client import command_line, connection
from ...contract.client.score_client import ExpectedSlowdowns, ScoreClient, ScoreListing
from ...contract.client.terminal import (
    cut,
    refreshed,
    screen_rows,
    table_width,
    wants_colour,
    width_of,
)
from ...contract.options import duration
from ...contract.wire import score_pb2
from .host_table import FoldedHosts, Row, caption, fitting, fold_causes, folded, host_of, render

#: Values of `--state`.
STATES = [name.lower() for name in score_pb2.HealthState.keys()[1:]]
#: Period of `--watch` without a number.
WATCH_SECONDS = 1.0


def main(arguments: list[str]) -> int:
    """Print the table, worst last; with --watch until Ctrl-C. Exit code 3: no aggregator answers at first."""
    options = _parser().parse_args(arguments)
    if options.watch is None:
        return connection.guarded("hosts", lambda: _run(options))
    try:
        return connection.guarded("hosts", lambda: _run_watch(options))
    except KeyboardInterrupt:
        return connection.OK


def _run(options: argparse.Namespace) -> int:
    with ScoreClient(connection.read_connection_options(options)) as client:
        listing = client.hosts(options.hours)
        slowdowns = client.expected_slowdowns(options.job) if options.job else None
    chosen = selected(listing, options.state)
    if options.json:
        print(json_object(document(chosen, slowdowns)))
        return connection.OK
    is_terminal = sys.stdout.isatty()
    rows: list[Row] = list(chosen.scores)
    # Up to three lines follow below the table.
    if is_terminal and not options.all:
        rows = fold_causes(chosen.scores)
        if len(rows) + 4 > screen_rows():
            rows = folded(chosen.scores, screen_rows() - 4, slowdowns)
    if listing.scores and not chosen.scores:
        print(_none_in_state(listing, options.state))
    else:
        print(render(rows, table_width(), colour=wants_colour(), slowdowns=slowdowns))
    if slowdowns:
        print(_slower_note(slowdowns))
    is_folded = any(isinstance(row, FoldedHosts) for row in rows)
    explain_command = make_explain_command(options) if is_terminal else ""
    if about := caption(chosen, width_of(), is_folded=is_folded, explain_command=explain_command):
        print(about)
    if listing.degraded_reason:
        print(f"degraded: {listing.degraded_reason}", file=sys.stderr)
    for alarm in listing.alarms:
        print(f"aggregator: {alarm}", file=sys.stderr)
    return connection.OK


def _none_in_state(listing: ScoreListing, states: list[str]) -> str:
    return f"none of {len(listing.scores)} hosts is {' or '.join(s.upper() for s in states)}"


def _slower_note(slowdowns: ExpectedSlowdowns) -> str:
    step = f"how much longer a step of job {slowdowns.job} would take"
    note = f"SLOWER: {step}, as {slowdowns.source} ran"
    if slowdowns.neighbors:
        note += "\nNEIGHBORS: the same beside the other jobs there; ~ predicted, ? unknown"
    return note


def make_explain_command(options: argparse.Namespace) -> str:
    """Return the start of a command that explains a host, over the same connection as *options*."""
    arguments = ["gangline", "explain"]
    if options.aggregator and options.aggregator != os.environ.get(connection.ADDRESS_VARIABLE):
        arguments += ["--server", options.aggregator]
    for name in ("ca", "certificate", "key", "token_file", "server_name"):
        if value := getattr(options, name):
            option = "cert" if name == "certificate" else name.replace("_", "-")
            arguments += [f"--{option}", value]
    return shlex.join(arguments)


def selected(listing: ScoreListing, states: list[str]) -> ScoreListing:
    """Return the hosts of *listing* in one of *states*; all when none is named."""
    if not states or not listing.scores:
        return listing
    numbers = {score_pb2.HealthState.Value(state.upper()) for state in states}
    scores = [score for score in listing.scores if score.state in numbers]
    return ScoreListing(scores, listing.version, listing.degraded_reason, listing.alarms)


def document(listing: ScoreListing, slowdowns: ExpectedSlowdowns | None = None) -> dict[str, Any]:
    """Return the hosts as JSON, worst first; null is unknown. *slowdowns*: a job's slowdowns."""
    hosts = [as_dict(score) for score in listing.scores]
    for host in hosts if slowdowns else ():
        slowdown = slowdowns.by_host.get(host["host"], math.nan) if slowdowns else math.nan
        host["expected_slowdown"] = slowdown if math.isfinite(slowdown) else None
        neighbors = slowdowns.neighbors.get(host["host"]) if slowdowns else None
        host["neighbors"] = _neighbors_document(neighbors) if neighbors else None
    return {
        "version": listing.version,
        "degraded_reason": listing.degraded_reason,
        "alarms": listing.alarms,
        "hosts": hosts,
    }


def _neighbors_document(neighbors: score_pb2.NodeNeighbors) -> dict[str, Any]:
    fields: dict[str, Any] = MessageToDict(
        neighbors, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    del fields["node_index"]
    result: dict[str, Any] = _without_nan(fields)
    return result


def as_dict(score: score_pb2.NodeScore) -> dict[str, Any]:
    """Return a host as JSON, with the wire's field names and `host`."""
    fields: dict[str, Any] = MessageToDict(
        score, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    age_seconds: float | None = None
    if score.HasField("data_age"):
        age_seconds = score.data_age.seconds + score.data_age.nanos / 1e9
    for name in ("horizon", "data_age"):
        fields.pop(name, None)
    fields["horizon_seconds"] = score.horizon.ToNanoseconds() / 1e9
    fields["data_age_seconds"] = age_seconds
    return {"host": host_of(score), **_without_nan(fields)}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if value in ("NaN", "Infinity", "-Infinity") else value


def add_all(parser: argparse.ArgumentParser) -> None:
    """Add --all."""
    parser.add_argument(
        "--all",
        action="store_true",
        help="one row per host; by default HEALTHY hosts share rows if the table is longer than the terminal",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline hosts",
        description="Lists every host: score (the probability of no fault within --hours), state, expected faults "
        "per day, speed relative to its peers, and the strongest reason. The worst host is last.",
        epilog="--watch replaces the table in place on a terminal; elsewhere it prints a new table, or with --json a new "
        "object, each time. Ctrl-C ends it with exit code 0.",
    )
    command_line.add_options(parser)
    add_all(parser)
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        choices=STATES,
        help="only hosts in this state; may be repeated",
    )
    command_line.add_hours(parser)
    parser.add_argument(
        "--job",
        metavar="JOB",
        default="",
        help="also how much longer a step of this job would take on each host, from its last run, and beside the other jobs there",
    )
    add = parser.add_argument
    add(
        "--watch",
        nargs="?",
        type=_period,
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"refresh the table at this interval (default: {WATCH_SECONDS:g}s)",
    )
    # Options of the former command `gangline watch`.
    add("--seconds", dest="watch", type=_period, help=argparse.SUPPRESS)
    add("--once", action="store_true", help=argparse.SUPPRESS)
    return parser


class FoldMode(Enum):
    """When HEALTHY hosts share rows of the table; without a terminal they never do."""

    NEVER = "never"
    WHEN_LONG = "when long"  # if the table is longer than the screen
    ALWAYS = "always"


def _run_watch(options: argparse.Namespace) -> int:
    stop = threading.Event()
    with ScoreClient(
        connection.read_connection_options(options), in_loop=not options.once
    ) as client:
        listing, message = client.hosts(options.hours), ""
        slowdowns = client.expected_slowdowns(options.job) if options.job else None
        in_place = sys.stdout.isatty() and not (options.json or options.once)
        with refreshed(in_place=in_place) as show:
            while True:
                chosen = selected(listing, options.state)
                if options.json:
                    show(json_object(document(chosen, slowdowns)))
                else:
                    notes = [message, _slower_note(slowdowns) if slowdowns else ""]
                    if listing.scores and not chosen.scores:
                        notes.append(_none_in_state(listing, options.state))
                    text = hosts_text(
                        chosen,
                        "\n".join(filter(None, notes)),
                        is_terminal=sys.stdout.isatty(),
                        in_place=in_place,
                        fold=FoldMode.NEVER if options.all else FoldMode.WHEN_LONG,
                        explain_command=make_explain_command(options),
                        slowdowns=slowdowns,
                    )
                    show(text)
                if options.once or stop.wait(options.watch):
                    return connection.OK
                listing, message = _next(client, listing, options.hours)


def _next(
    client: ScoreClient, before: ScoreListing, hours: float | None
) -> tuple[ScoreListing, str]:
    """Return the current hosts; if the call fails, those of *before* with a message."""
    try:
        listing = client.hosts(hours)
    except connection.CommandError as error:
        return before, f"this table is old: {error}"
    return listing, ""


def hosts_text(
    listing: ScoreListing,
    message: str,
    *,
    is_terminal: bool,
    in_place: bool,
    fold: FoldMode = FoldMode.WHEN_LONG,
    explain_command: str = "",
    slowdowns: ExpectedSlowdowns | None = None,
) -> str:
    """Return the table and its notes.

    On a terminal rows are folded by *fold*; *in_place* the text is cut to the screen.

    *message*: additional notes. *explain_command*: shown on a terminal. *slowdowns*: a job's slowdowns.
    """
    is_folding = is_terminal and fold is not FoldMode.NEVER
    shown = fold_causes(listing.scores) if is_folding else list[Row](listing.scores)
    rows = screen_rows()
    degraded = f"degraded: {listing.degraded_reason}" if listing.degraded_reason else ""
    alarms = _alarms(listing, width_of(), rows if in_place else None)

    def notes(hidden: int) -> list[str]:
        is_folded = any(isinstance(row, FoldedHosts) for row in shown)
        command = explain_command if is_terminal else ""
        about = caption(listing, width_of(), hidden, is_folded=is_folded, explain_command=command)
        paragraphs = (about, degraded, *alarms, message)
        lines = [line for note in paragraphs if note for line in note.split("\n")]
        if in_place:
            return [wrapped for line in lines for wrapped in textwrap.wrap(line, width_of())]
        return lines

    below = notes(0)
    is_long = 1 + len(shown) + len(below) > rows
    if is_terminal and (fold is FoldMode.ALWAYS or (is_long and fold is FoldMode.WHEN_LONG)):
        shown = folded(listing.scores, rows - 1 - len(below), slowdowns)
        below = notes(0)
    if in_place and 1 + len(shown) + len(below) > rows:
        room = max(1, rows - 1 - len(notes(len(listing.scores))))
        shown = list(fitting(shown, room))
        below = notes(len(listing.scores) - sum(map(_count, shown)))
    table = render(shown, table_width(), colour=wants_colour(), slowdowns=slowdowns)
    return "\n".join([table, *below])


def _count(row: Row) -> int:
    return len(row.scores) if isinstance(row, FoldedHosts) else 1


def _alarms(listing: ScoreListing, width: int, rows: int | None) -> list[str]:
    """Return a line per alarm; with *rows*, at most a sixth of them, cut to *width*."""
    alarms = listing.alarms
    if rows is None:
        return [f"aggregator: {alarm}" for alarm in alarms]
    shown = alarms[: max(1, rows // 6)]  # else they would push the hosts out of sight
    if len(shown) == len(alarms):
        return [cut(f"aggregator: {alarm}", width) for alarm in shown]
    return [cut(f"aggregator ({n} of {len(alarms)}): {a}", width) for n, a in enumerate(shown, 1)]


_period = duration(0.1, 3600.0)
