"""The table of hosts as text: worst at the bottom, where a terminal ends, and a caption below it."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Any

from ...fingerprints.wire import score_pb2
from .client import Listing

HEADINGS = ("HOST", "SCORE", "STATE", "HAZARD/DAY", "SPEED", "HEARD", "REASON")
#: Columns that are numbers, set to the right.
RIGHT = ("SCORE", "HAZARD/DAY", "SPEED", "HEARD")
#: On a narrower terminal the reason has the room of this column, which says what the score says.
NARROW_CHARACTERS, NOT_WHEN_NARROW = 100, "HAZARD/DAY"
HOST_CHARACTERS_MAX = 32
REASON_CHARACTERS_MIN = 24
#: Above this a hazard is said to be above it.
HAZARD_PER_DAY_MAX = 99.0

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_COLOURS = {
    score_pb2.UNHEALTHY: "\x1b[31m",
    score_pb2.SUSPECT: "\x1b[35m",
    score_pb2.DEGRADED: "\x1b[33m",
    score_pb2.WATCH: "\x1b[36m",
    score_pb2.STALE: "\x1b[2m",
    score_pb2.UNKNOWN: "\x1b[2m",
}


def render(hosts: Iterable[score_pb2.NodeScore], width: int, *, colour: bool = False) -> str:
    """Return the table of *hosts*, given worst first, no line longer than *width* characters."""
    scores = list(hosts)[::-1]
    if not scores:
        return "no hosts yet: none has registered with this aggregator"
    shown = [h for h in HEADINGS if width >= NARROW_CHARACTERS or h != NOT_WHEN_NARROW]
    rows = [[cells[heading] for heading in shown] for cells in map(row, scores)]
    widths = [max(len(r[i]) for r in [shown, *rows]) for i in range(len(shown))]
    left = width - sum(widths[:-1]) - 2 * (len(widths) - 1)
    widths[-1] = max(REASON_CHARACTERS_MIN, left)
    right = [heading in RIGHT for heading in shown]
    lines = [_line(shown, widths, right)[:width].rstrip()]
    if colour:
        lines[0] = f"{_BOLD}{lines[0]}{_PLAIN}"
    for score, cells in zip(scores, rows, strict=True):
        line = _line(cells, widths, right)[:width].rstrip()
        paint = _COLOURS.get(score.state, "") if colour else ""
        lines.append(f"{paint}{line}{_PLAIN}" if paint else line)
    return "\n".join(lines)


def enum_name(kind: Any, number: int) -> str:
    """Return the name of a value of the enumeration *kind*; of one that only a later aggregator knows, its number."""
    return str(kind.Name(number)) if number in kind.values() else str(number)


def row(score: score_pb2.NodeScore) -> dict[str, str]:
    """Return a host's cells by heading."""
    return {
        "HOST": cut(host_of(score), HOST_CHARACTERS_MAX) + (" (sim)" if score.simulated else ""),
        "SCORE": share(score.score, 4),
        "STATE": enum_name(score_pb2.HealthState, score.state),
        "HAZARD/DAY": hazard_per_day(score.hazard_per_hour),
        "SPEED": "-" if math.isnan(score.relative_speed) else f"{score.relative_speed:.2f}",
        "HEARD": age(score),
        "REASON": reason(score),
    }


def reason(score: score_pb2.NodeScore) -> str:
    """Return why the host stands where it stands.

    What moved nothing is for `gangline explain`: beside real reasons it is noise. That a host is
    silent, and its state frozen, is a real one.
    """
    if score.state != score_pb2.HEALTHY or score.reason == score_pb2.REASON_STALE_TELEMETRY:
        return score.reason_words
    return "nothing wrong (a note)" if score.reason_words else "nothing wrong"


def caption(listing: Listing, width: int, hidden: int = 0) -> str:
    """Return how many hosts stand how, how they are sorted, and what SCORE means: lines of *width*.

    *hidden*: how many of them the table above leaves out (`fitting`).
    """
    if not listing.scores:
        return ""
    counts = Counter(score.state for score in listing.scores)
    states = ", ".join(
        f"{counts[state]} {enum_name(score_pb2.HealthState, state)}"
        for state in dict.fromkeys(score.state for score in listing.scores[::-1])
    )
    first = listing.scores[0]
    at = first.compute_time.ToDatetime(UTC).astimezone()
    hours = first.horizon.ToNanoseconds() / 3600e9
    count = len(listing.scores)
    parts = [
        f"{count} host{'' if count == 1 else 's'} at {at:%H:%M:%S %Z}: {states}",
        "by state, then score",
        f"SCORE: chance of {hours:g} h without a fault of the host",
    ]
    if hidden:
        parts.insert(1, f"{hidden} more not shown (healthy first)")
    if any(score.state == score_pb2.HEALTHY and score.reason_words for score in listing.scores):
        parts.append("notes: gangline explain HOST")
    lines = [parts[0]]
    for part in parts[1:]:
        joined = f"{lines[-1]}; {part}"
        lines[-1:] = [joined] if len(joined) <= width else [lines[-1], part]
    return "\n".join(cut(line, width) for line in lines)


def fitting(scores: Sequence[score_pb2.NodeScore], count_max: int) -> list[score_pb2.NodeScore]:
    """Return at most *count_max* of *scores*, in their order, worst first.

    HEALTHY simulated hosts are left out first, then HEALTHY real ones, then simulated ones, then real
    ones: of each the best first.
    """

    def worth(at: int) -> tuple[bool, bool, int]:
        score = scores[at]
        return score.state != score_pb2.HEALTHY, not score.simulated, -at

    kept = sorted(range(len(scores)), key=worth, reverse=True)[: max(0, count_max)]
    return [scores[at] for at in sorted(kept)]


def host_of(score: score_pb2.NodeScore) -> str:
    """Return the host's name without its collection."""
    return score.node.removeprefix("nodes/")


def share(value: float, digits: int) -> str:
    """Return *value* cut, not rounded, to *digits*: what is not certain must not read 1.0000."""
    scale = 10.0**digits
    return f"{math.floor(value * scale + 1e-6) / scale:.{digits}f}"


def hazard_per_day(per_hour: float) -> str:
    """Return a hazard as people read it: expected interruptions per day."""
    per_day = 24.0 * per_hour
    if per_day > HAZARD_PER_DAY_MAX:
        return f">{HAZARD_PER_DAY_MAX:.0f}"
    return f"{per_day:.4f}" if per_day < 0.1 else f"{per_day:.2f}"


def age(score: score_pb2.NodeScore) -> str:
    """Return how old the last live reading is."""
    if not score.HasField("data_age"):
        return "never"
    seconds = score.data_age.seconds + score.data_age.nanos / 1e9
    if seconds < 100:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 6000 else f"{seconds / 3600:.0f} h ago"


def cut(text: str, characters_max: int) -> str:
    """Return *text*, ending in an ellipsis when it is too long. Control characters are not shown."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain if len(plain) <= characters_max else plain[: characters_max - 1] + "…"


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = [
        cut(cell, width).rjust(width) if to_right else cut(cell, width).ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(placed)


def width_of(stream: Any) -> int:
    """Return the columns to fill: COLUMNS, else the terminal's, else enough for any line."""
    said = os.environ.get("COLUMNS", "")
    if said.isascii() and said.isdecimal() and int(said[:6]) > 0:
        return int(said[:6])
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 240
    return columns or 240


def wants_colour(stream: Any = None) -> bool:
    """Say whether to paint: on a terminal, unless NO_COLOR is set."""
    stream = sys.stdout if stream is None else stream
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR")
