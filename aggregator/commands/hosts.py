"""`gangline hosts` and `gangline watch`: every host with score, state and main reason."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import textwrap
import threading
from collections.abc import Mapping
from enum import Enum
from typing import Any

from google.protobuf.json_format import MessageToDict

from ...cli import json_object
from ...contract.client import command_line, connection
from ...contract.client.score_client import ScoreClient, ScoreListing
from ...contract.client.terminal import (
    cut,
    refreshed,
    screen_rows,
    table_width,
    wants_colour,
    width_of,
)
from ...contract.wire import score_pb2
from .host_table import FoldedHosts, Row, caption, fitting, fold_causes, folded, host_of, render

#: Values of `--state`.
STATES = [name.lower() for name in score_pb2.HealthState.keys()[1:]]


def main(arguments: list[str]) -> int:
    """Print the table, worst last. Exit code 3: no aggregator answers."""
    options = _parser().parse_args(arguments)
    return connection.guarded("hosts", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    with ScoreClient(connection.read_connection_options(options)) as client:
        listing = client.hosts(options.hours)
        slowdowns, source = client.expected_slowdowns(options.job) if options.job else ({}, "")
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
            rows = folded(chosen.scores, screen_rows() - 4)
    if listing.scores and not chosen.scores:
        print(
            f"none of {len(listing.scores)} hosts is {' or '.join(s.upper() for s in options.state)}"
        )
    else:
        print(render(rows, table_width(), colour=wants_colour(), slowdowns=slowdowns))
    if source:
        print(f"SLOWER: how much longer a step of job {options.job} would take, as {source} ran")
    is_folded = any(isinstance(row, FoldedHosts) for row in rows)
    explain_command = make_explain_command(options) if is_terminal else ""
    if about := caption(chosen, width_of(), is_folded=is_folded, explain_command=explain_command):
        print(about)
    if listing.degraded_reason:
        print(f"degraded: {listing.degraded_reason}", file=sys.stderr)
    for alarm in listing.alarms:
        print(f"aggregator: {alarm}", file=sys.stderr)
    return connection.OK


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


def document(listing: ScoreListing, slowdowns: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the hosts as JSON, worst first; null is unknown. *slowdowns*: a job's, by host."""
    hosts = [as_dict(score) for score in listing.scores]
    for host in hosts if slowdowns else ():
        slowdown = (slowdowns or {}).get(host["host"], math.nan)
        host["expected_slowdown"] = slowdown if math.isfinite(slowdown) else None
    return {
        "version": listing.version,
        "degraded_reason": listing.degraded_reason,
        "alarms": listing.alarms,
        "hosts": hosts,
    }


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
        help="also how much longer a step of this job would take on each host, from its last run",
    )
    return parser


class FoldMode(Enum):
    """When HEALTHY hosts share rows of the table; without a terminal they never do."""

    NEVER = "never"
    WHEN_LONG = "when long"  # if the table is longer than the screen
    ALWAYS = "always"


def watch_main(arguments: list[str]) -> int:
    """Show the table until Ctrl-C (exit code 0). Exit code 3: no aggregator answers at first."""
    options = _watch_parser().parse_args(arguments)
    try:
        return connection.guarded("watch", lambda: _run_watch(options))
    except KeyboardInterrupt:
        return connection.OK


def _run_watch(options: argparse.Namespace) -> int:
    stop = threading.Event()
    with ScoreClient(
        connection.read_connection_options(options), in_loop=not options.once
    ) as client:
        listing, message = client.hosts(), ""
        in_place = sys.stdout.isatty() and not (options.json or options.once)
        with refreshed(in_place=in_place) as show:
            while True:
                if options.json:
                    show(json_object(document(listing)))
                else:
                    text = hosts_text(
                        listing,
                        message,
                        is_terminal=sys.stdout.isatty(),
                        in_place=in_place,
                        fold=FoldMode.NEVER if options.all else FoldMode.WHEN_LONG,
                        explain_command=make_explain_command(options),
                    )
                    show(text)
                if options.once or stop.wait(options.seconds):
                    return connection.OK
                listing, message = _next(client, listing)


def _next(client: ScoreClient, before: ScoreListing) -> tuple[ScoreListing, str]:
    """Return the current hosts; if the call fails, those of *before* with a message."""
    try:
        listing = client.hosts()
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
) -> str:
    """Return the table and its notes.

    On a terminal rows are folded by *fold*; *in_place* the text is cut to the screen.

    *message*: an additional note. *explain_command*: shown on a terminal.
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
        shown = folded(listing.scores, rows - 1 - len(below))
        below = notes(0)
    if in_place and 1 + len(shown) + len(below) > rows:
        room = max(1, rows - 1 - len(notes(len(listing.scores))))
        shown = list(fitting(shown, room))
        below = notes(len(listing.scores) - sum(map(_count, shown)))
    return "\n".join([render(shown, table_width(), colour=wants_colour()), *below])


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


def _watch_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline watch",
        description="Refreshes the `gangline hosts` table in place; when not on a terminal, prints a new "
        "table each time.",
    )
    command_line.add_options(parser)
    add_all(parser)
    parser.add_argument("--once", action="store_true", help="print the table once and exit")
    parser.add_argument(
        "--seconds", type=_seconds, default=1.0, metavar="N", help="refresh interval; default 1"
    )
    return parser


_seconds = command_line.number_option(0.1, 3600.0, ": expected 0.1 to 3600 seconds")
