"""Tables that read well both rendered and as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TypeVar

from .intervals import wilson

#: Words, or several: what a table counts.
CellText = TypeVar("CellText", str, tuple[str, str, str])


def most_common(
    counts: Mapping[CellText, int], most: int | None = None
) -> list[tuple[CellText, int]]:
    """Return what was counted, the most first, and of as many by their words: a Counter leaves it to the order of sets."""
    return sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:most]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, its columns aligned."""
    cells = [[*head], *([*row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def counted(hits: int, of: int) -> str:
    """Return "18 of 20, 0.90 [0.74, 0.97]", with its interval of 90 % (Wilson's); "-" of nothing."""
    if of == 0:
        return "-"
    low, high = wilson(hits, of)
    return f"{hits} of {of}, {hits / of:.2f} [{low:.2f}, {high:.2f}]"


def percent(hits: int, of: int, evaluations: int = 1) -> str:
    """Return "3 of 74,014 [0.0016 %, 0.0099 %]": of a share that is small, its interval of 90 % (Wilson's).

    *evaluations*: how often the same were looked at and counted. The interval is that of one look in the mean, as if each
    were what it is for good: more looks at the same tell nothing of others.
    """
    low, high = wilson(hits / evaluations, of / evaluations)
    return f"{hits:,} of {of:,} [{100 * low:.2g} %, {100 * high:.2g} %]"


def number(value: float) -> str:
    """Return a number with about three digits; "-" for none."""
    if not isfinite(value):
        return "-"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
