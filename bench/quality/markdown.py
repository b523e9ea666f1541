"""Markdown tables that are readable both rendered and as text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TypeVar

from .intervals import wilson

#: Width of prose lines, as on every page of docs/.
COLUMNS_MAX = 120
#: The mark of a list item, with its indent.
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
#: Starts of unchanged lines: tables, headings, HTML, and code by its indent.
_AS_IS = ("|", "#", "<", "    ")

#: A text, or several: keys of a counted table.
CellText = TypeVar("CellText", str, tuple[str, str, str])


def most_common(
    counts: Mapping[CellText, int], most: int | None = None
) -> list[tuple[CellText, int]]:
    """Return falling counts, equal ones by text: a Counter would use the order of sets."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]


def table(head: str | Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, its columns aligned. *head*: "first | second", or a sequence."""
    names = head.split(" | ") if isinstance(head, str) else [*head]
    cells = [names, *([*row] for row in rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(names))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def wrapped(text: str) -> str:
    """Return a page with prose wrapped at COLUMNS_MAX; code and tables stay unchanged."""
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
    message = " ".join(line.strip() for line in (block[0][len(indent) :], *block[1:]))
    return textwrap.wrap(
        message,
        COLUMNS_MAX,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


def counted(hits: int, of: int) -> str:
    """Return "18 of 20, 0.90 [0.74, 0.97]", with its interval of 90 % (Wilson's); "-" if *of* is 0."""
    if of == 0:
        return "-"
    low, high = wilson(hits, of)
    return f"{hits} of {of}, {hits / of:.2f} [{low:.2f}, {high:.2f}]"


def percent(hits: int, of: int, evaluations: int = 1) -> str:
    """Return "3 of 74,014 [0.0016 %, 0.0099 %]": a small share with its interval of 90 %
    (Wilson's).

    *evaluations*: how often the same subjects were counted. The interval is that of one evaluation
    on average, because repeated evaluations of the same subjects carry no information about others.
    """
    low, high = wilson(hits / evaluations, of / evaluations)
    return f"{hits:,} of {of:,} [{100 * low:.2g} %, {100 * high:.2g} %]"


def number(value: float) -> str:
    """Return a number with about three digits; "-" if it is not finite."""
    if not isfinite(value):
        return "-"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
