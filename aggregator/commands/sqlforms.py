"""How rows are written: a table or a record for a person, a plan as it is drawn, CSV and JSON for programs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from typing import Any, TextIO

from ..query.words import visible
from .sqlvalues import plain

#: A text or a heading is not cut further than this, whatever the terminal.
TEXT_CHARACTERS_MIN, HEADING_CHARACTERS_MIN = 20, 8
#: So much of a text comes before whole headings.
TEXT_CHARACTERS = 40
#: So many columns that had no room are named.
NAMED_MAX = 4


def write_json(names: Sequence[str], rows: Iterable[Any], out: TextIO) -> int:
    """Write an array of one object per row, a row at a time; return how many."""
    count, narrow = 0, "utf" not in (out.encoding or "utf").lower()
    for row in rows:
        one = dict(zip(names, map(plain, row), strict=True))
        out.write("[\n " if count == 0 else ",\n ")
        out.write(json.dumps(one, ensure_ascii=narrow))
        count += 1
    out.write("\n]\n" if count else "[]\n")
    return count


def write_csv(names: Sequence[str], rows: Iterable[Any], out: TextIO) -> int:
    """Write a header and a line per row, a row at a time; NULL is empty. Return how many rows."""
    writer, count = csv.writer(out, lineterminator="\n"), 0
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if one is None else plain(one) for one in row])
        count += 1
    return count


def plan(rows: Sequence[Any]) -> str:
    """Return the plans that EXPLAIN answers with, line by line as DuckDB drew them."""
    lines = [line for row in rows for line in str(row[-1]).splitlines()]
    return "\n".join(map(_cell, lines))


def table(names: Sequence[str], rows: Sequence[Any], width: int) -> str:
    """Return a table of at most *width* characters a line (0: any).

    Long texts are cut, then headings; numbers and times never: half of one is another. Columns that have
    no room then are left out from the right, and named.
    """
    names = list(map(visible, names))
    cells = [[_cell(value) for value in row] for row in rows]
    columns = [
        _Column.of(name, [row[at] for row in rows], [line[at] for line in cells])
        for at, name in enumerate(names)
    ]
    sizes = _sizes(columns, width)
    numeric = [column.numeric for column in columns]
    lines = [_line(line, sizes, numeric) for line in (names, *cells)]
    return "\n".join((*lines, _counted(rows), *_no_room(names[len(sizes) :])))


@dataclass(frozen=True, slots=True)
class _Column:
    """How wide a column is at least, and becomes where there is room."""

    least: int
    stages: tuple[int, int, int]  # a text that says something, the heading, everything
    numeric: bool

    @classmethod
    def of(cls, name: str, values: Sequence[Any], cells: Sequence[str]) -> _Column:
        known = [value for value in values if value is not None]
        rigid = all(isinstance(value, int | float | Decimal | date | time) for value in known)
        numeric = bool(known) and all(isinstance(value, int | float | Decimal) for value in known)
        whole = max(map(len, cells), default=0)
        heading = min(len(name), HEADING_CHARACTERS_MIN)
        least = max(whole if rigid else min(whole, TEXT_CHARACTERS_MIN), heading)
        some = max(least, min(whole, TEXT_CHARACTERS))
        return cls(least, (some, max(some, len(name)), max(whole, len(name))), numeric)


def _sizes(columns: Sequence[_Column], width: int) -> list[int]:
    """Return the width of each column that has room in *width* characters, from the left."""
    if not width:
        return [column.stages[-1] for column in columns]
    sizes: list[int] = []
    for column in columns:
        if sizes and sum(sizes) + 2 * len(sizes) + column.least > width:
            break
        sizes.append(min(column.least, width))
    spare = width - sum(sizes) - 2 * (len(sizes) - 1)
    for wanted in zip(*(column.stages for column in columns), strict=True):
        while spare > 0 and (short := [at for at, size in enumerate(sizes) if size < wanted[at]]):
            sizes[min(short, key=sizes.__getitem__)] += 1
            spare -= 1
    return sizes


def _no_room(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    such = ", ".join(names[:NAMED_MAX]) + ", …" * (len(names) > NAMED_MAX)
    return [f"no room for {len(names)} more: {such} (all: \\x at the prompt, --csv, --json)"]


def records(names: Sequence[str], rows: Sequence[Any]) -> str:
    """Return a line per value, for rows that are too wide for any terminal (the shell's `\\x`)."""
    size = max(map(len, names), default=0)
    lines = []
    for at, row in enumerate(rows, 1):
        lines.append(f"-- {at} " + "-" * 40)
        lines += [
            f"{visible(name).ljust(size)}  {_cell(value)}"
            for name, value in zip(names, row, strict=True)
        ]
    return "\n".join((*lines, _counted(rows)))


def _counted(rows: Sequence[Any]) -> str:
    return f"({len(rows)} row{'' if len(rows) == 1 else 's'})"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    text = value if isinstance(value, str) else str(plain(value))
    return visible(text)


def _line(cells: Sequence[str], sizes: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = []
    for text, size, right in zip(cells, sizes, numeric, strict=False):  # no room for the others
        cut = text if len(text) <= size else text[: size - 1] + "…"
        parts.append(cut.rjust(size) if right else cut.ljust(size))
    return "  ".join(parts).rstrip()
