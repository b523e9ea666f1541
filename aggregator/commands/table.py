"""The table of hosts as text: worst at the bottom, where a terminal ends."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ...fingerprints.wire import score_pb2

HEADINGS = ("HOST", "SCORE", "STATE", "HAZARD/DAY", "SPEED", "HEARD", "REASON")
#: Columns that are numbers, set to the right.
RIGHT = (1, 3, 4, 5)
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
    rows = [row(score) for score in scores]
    widths = [max(len(r[i]) for r in [HEADINGS, *rows]) for i in range(len(HEADINGS))]
    left = width - sum(widths[:-1]) - 2 * (len(widths) - 1)
    widths[-1] = max(REASON_CHARACTERS_MIN, left)
    lines = [_line(HEADINGS, widths)[:width].rstrip()]
    if colour:
        lines[0] = f"{_BOLD}{lines[0]}{_PLAIN}"
    for score, cells in zip(scores, rows, strict=True):
        line = _line(cells, widths)[:width].rstrip()
        paint = _COLOURS.get(score.state, "") if colour else ""
        lines.append(f"{paint}{line}{_PLAIN}" if paint else line)
    return "\n".join(lines)


def row(score: score_pb2.NodeScore) -> tuple[str, ...]:
    """Return a host's cells, in the order of HEADINGS."""
    name = cut(host_of(score), HOST_CHARACTERS_MAX)
    reason = score.reason_words or ("nothing wrong" if score.state == score_pb2.HEALTHY else "")
    if score.simulated:
        reason = f"[simulated] {reason}"
    return (
        name,
        share(score.score, 4),
        score_pb2.HealthState.Name(score.state),
        hazard_per_day(score.hazard_per_hour),
        "-" if math.isnan(score.relative_speed) else f"{score.relative_speed:.2f}",
        age(score),
        reason,
    )


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


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    placed = [
        cut(cell, width).rjust(width) if i in RIGHT else cut(cell, width).ljust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(placed)


def width_of(stream: Any) -> int:
    """Return the columns to fill: the terminal's, or enough for any line where there is none."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 240
    return columns or 240


def wants_colour(stream: Any = None) -> bool:
    """Say whether to paint: on a terminal, unless NO_COLOR is set."""
    stream = sys.stdout if stream is None else stream
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR")
