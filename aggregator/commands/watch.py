"""`gangline watch`: the table of hosts, kept fresh."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
from typing import TextIO

from .client import OK, Client, CommandError, Listing, add_options, guarded, way_of
from .hosts import document
from .table import caption, cut, fitting, render, wants_colour, width_of

#: Home, and clear from there on: less flicker than clearing first.
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR_ALL = "\x1b[2J"


def main(arguments: list[str]) -> int:
    """Show the table until Ctrl-C, which exits 0. 3 when no aggregator answers at first."""
    options = _parser().parse_args(arguments)
    try:
        return guarded("watch", lambda: _run(options))
    except KeyboardInterrupt:
        return OK


def _run(options: argparse.Namespace) -> int:
    stop = threading.Event()
    with Client(way_of(options)) as client:
        listing, words = client.hosts(), ""
        in_place = sys.stdout.isatty() and not (options.json or options.once)
        if in_place:
            sys.stdout.write(_CLEAR_ALL)
        while True:
            show(listing, words, as_json=options.json, in_place=in_place)
            if options.once or stop.wait(options.seconds):
                return OK
            listing, words = _next(client, listing)


def _next(client: Client, before: Listing) -> tuple[Listing, str]:
    """Return the hosts of now; if nobody answers, those of before and why they are old."""
    try:
        listing = client.hosts()
    except CommandError as error:
        return before, f"what you see is old: {error}"
    return listing, ""


def show(
    listing: Listing, words: str, *, as_json: bool, in_place: bool, stream: TextIO | None = None
) -> None:
    """Write the table once. *words*: what else is to be said of it."""
    out: TextIO = stream or sys.stdout
    if as_json:
        text = json.dumps(document(listing))
    else:
        text = _table(listing, words, out, _rows() if in_place else None)
    out.write(placed(text, in_place=in_place))
    out.flush()


def _table(listing: Listing, words: str, out: TextIO, rows: int | None) -> str:
    """Return the table and what is said below it, folded to *rows* lines if need be."""
    width, scores = width_of(out), listing.scores
    degraded = f"degraded: {listing.degraded_reason}" if listing.degraded_reason else ""
    alarms = _alarms(listing, width, rows)

    def notes(hidden: int) -> list[str]:
        said = (caption(listing, width, hidden), degraded, *alarms, words)
        return [line for note in said if note for line in note.split("\n")]

    below = notes(0)
    if rows is not None and 1 + len(scores) + len(below) > rows:
        scores = fitting(scores, max(1, rows - 1 - len(notes(len(scores)))))
        below = notes(len(listing.scores) - len(scores))
    return "\n".join([render(scores, width, colour=wants_colour(out)), *below])


def _alarms(listing: Listing, width: int, rows: int | None) -> list[str]:
    """Return what stands against the aggregator itself, a line each; of *rows* lines no more than a sixth, cut to *width*."""
    alarms = listing.alarms
    if rows is None:
        return [f"aggregator: {one}" for one in alarms]
    shown = alarms[: max(1, rows // 6)]  # else they would push the hosts out of sight
    if len(shown) == len(alarms):
        return [cut(f"aggregator: {one}", width) for one in shown]
    return [
        cut(f"aggregator ({number} of {len(alarms)}): {one}", width)
        for number, one in enumerate(shown, 1)
    ]


def _rows() -> int:
    return max(2, shutil.get_terminal_size().lines - 1)


def placed(text: str, *, in_place: bool) -> str:
    """Return *text* as it is written: over the table before, or below it.

    In place, only the heading and the last lines that fit are written: the worst hosts stand there.
    """
    if not in_place:
        return f"{text}\n"
    rows = _rows()
    lines = text.split("\n")
    if len(lines) > rows:
        lines = [lines[0], *lines[len(lines) - rows + 1 :]]
    body = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
    return f"{_HOME}{body}{_CLEAR_BELOW}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline watch",
        description="The table of `gangline hosts`, kept fresh in place; below each other when "
        "the output is no terminal.",
    )
    add_options(parser)
    parser.add_argument("--once", action="store_true", help="print it once and exit")
    parser.add_argument(
        "--seconds", type=_seconds, default=1.0, metavar="N", help="between two looks; default 1"
    )
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text[:32]!r}: expected 0.1 to 3600 seconds")
    return seconds
