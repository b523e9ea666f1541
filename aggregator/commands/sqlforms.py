"""How rows are written: a table or a record for a person, a plan as it is drawn, CSV and JSON for programs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, TextIO

from ..query.words import visible
from .sqlvalues import plain

#: Columns narrower than this are not cut further, whatever the terminal.
COLUMN_CHARACTERS_MIN = 8


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
    """Return a table of at most *width* characters a line (0: any), cutting the widest columns."""
    names = list(map(visible, names))
    cells = [[_cell(value) for value in row] for row in rows]
    sizes = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    over = sum(sizes) + 2 * (len(sizes) - 1) - width
    while width and over > 0 and max(sizes) > COLUMN_CHARACTERS_MIN:
        sizes[sizes.index(max(sizes))] -= 1
        over -= 1
    numeric = [
        any(row[at] is not None for row in rows)
        and all(row[at] is None or isinstance(row[at], int | float | Decimal) for row in rows)
        for at in range(len(names))
    ]
    lines = [_line(line, sizes, numeric) for line in (names, *cells)]
    lines.append(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")
    return "\n".join(lines)


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
    lines.append(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    text = value if isinstance(value, str) else str(plain(value))
    return visible(text)


def _line(cells: Sequence[str], sizes: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = []
    for text, size, right in zip(cells, sizes, numeric, strict=True):
        cut = text if len(text) <= size else text[: size - 1] + "…"
        parts.append(cut.rjust(size) if right else cut.ljust(size))
    return "  ".join(parts).rstrip()
