"""Types of options that the commands of every part share: durations, points in time, and former names.

Imports nothing of gRPC: commands of a GPU host use it too.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from datetime import UTC, datetime

#: Seconds of each unit of a duration.
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
#: Longest duration of an option without a limit of its own: a hundred years.
SECONDS_MAX = 36_500 * UNITS["d"]
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd]?)")
_MOMENT_EXAMPLE = "2026-01-02T03:04"


def duration(
    low: float, high: float = SECONDS_MAX, *, unit: str = "s", note: str = ""
) -> Callable[[str], float]:
    """Return an option type for a duration of *low* to *high* seconds, such as 90s, 1.5h or 7d; its value is in *unit*.

    A number without a unit counts in *unit*. *note*: ends the error message.
    """

    def parse(text: str) -> float:
        match = _DURATION.fullmatch(text)
        seconds = float(match[1]) * UNITS[match[2] or unit] if match else -1.0
        if not low <= seconds <= high:
            limits = f"from {_short(low)} to {_short(high)}"
            if high == SECONDS_MAX:
                limits = f"of at least {_short(low)}"
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r}: expected a duration {limits}, such as 90s, 30m, 8h or 2d{note}"
            )
        return seconds / UNITS[unit]

    return parse


def whole_duration(
    low: float, high: float = SECONDS_MAX, *, unit: str = "s", note: str = ""
) -> Callable[[str], int]:
    """Return `duration` whose value is a whole number of *unit*."""
    parse = duration(low, high, unit=unit, note=note)

    def parse_whole(text: str) -> int:
        value = parse(text)
        if not value.is_integer():
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r}: expected a multiple of {_short(UNITS[unit])}"
            )
        return int(value)

    return parse_whole


def _short(seconds: float) -> str:
    """Return *seconds* in the largest unit that divides it."""
    unit = next((u for u in reversed(UNITS) if seconds and seconds % UNITS[u] == 0), "s")
    return f"{seconds / UNITS[unit]:g}{unit}"


def moment(text: str) -> float:
    """Return a point in time in seconds since 1970. Without an offset it is UTC. Raises ArgumentTypeError."""
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: expected a time in UTC, such as {_MOMENT_EXAMPLE}"
        ) from None


def add_former_names(
    parser: argparse._ActionsContainer, action: argparse.Action, *names: str
) -> None:
    """Accept *names* for *action*, without showing them in the help."""
    # argparse shows `option_strings`, and looks options up here.
    parser._option_string_actions.update(dict.fromkeys(names, action))
