"""Markdown tables that are readable both rendered and as text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TypeVar

from .intervals import wilson

#: Columns at which lines of prose end, as on every page of docs/.
COLUMNS_MAX = 120
#: The mark of a list item, with what stands before it.
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
#: What is kept as it is: tables, headings, HTML, and code by its indent.
_AS_IS = ("|", "#", "<", "    ")

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


def wrapped(text: str) -> str:
    """Return a page whose paragraphs and list items end at `COLUMNS_MAX`. Code, tables and short lines stay as they are."""
    lines: list[str] = []
    block: list[str] = []
    is_code = False
    for line in [*text.split("\n"), ""]:
        is_fence = line.startswith("```")
        is_prose = bool(line.strip()) and not (is_fence or is_code or line.startswith(_AS_IS))
        if block and (not is_prose or _ITEM.match(line)):
            lines += _wrapped_block(block)
            block = []
        is_code ^= is_fence
        (block if is_prose else lines).append(line)
    return "\n".join(lines[:-1])


def _wrapped_block(block: list[str]) -> list[str]:
    if all(len(line) <= COLUMNS_MAX for line in block):
        return block
    item = _ITEM.match(block[0])
    indent = item[0] if item else block[0][: len(block[0]) - len(block[0].lstrip())]
    words = " ".join(line.strip() for line in (block[0][len(indent) :], *block[1:]))
    return textwrap.wrap(
        words,
        COLUMNS_MAX,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


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
