"""Tables that read well both rendered and as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, its columns aligned."""
    cells = [[*head], *([*row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def share(hits: int, of: int, interval: tuple[float, float]) -> str:
    """Return "18 of 20, 0.90 [0.74, 0.97]"."""
    if of == 0:
        return "-"
    return f"{hits} of {of}, {hits / of:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def number(value: float) -> str:
    """Return a number with about three digits; "-" for none."""
    if not isfinite(value):
        return "-"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
