"""How rows are written: a table or a record for a person, a plan as it is drawn, CSV and JSON for programs."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO, cast

import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc

from ...cli import FAILED, USAGE
from ..query.sandbox import visible
from .connection import CommandError
from .sql_backends import ArrowAnswer

# ----------------------------------------------------------------------
# From Arrow to what people and programs read: rows of Python values, and a value as JSON knows it.

Converter = Callable[[Any], Any]


def rows(batches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of record *batches*; maps are dicts, spans of time text, nanoseconds text."""
    for batch in batches:
        yield from zip(*map(values, batch.columns), strict=True)


def values(column: Any) -> list[Any]:
    """Return the values of an Arrow array."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return list(column.cast(pa.string()).to_pylist())
    converter = _converter(kind)
    plain = column.cast(_coarser(kind), safe=False) if _has_nanoseconds(kind) else column
    found: list[Any] = plain.to_pylist()
    return [None if one is None else converter(one) for one in found] if converter else found


def _converter(kind: Any) -> Converter | None:
    """Return what makes of a value of this type what is shown, None when it is that already."""
    if pa.types.is_interval(kind):
        return span
    if pa.types.is_map(kind):
        return dict
    if pa.types.is_struct(kind):
        inner = {field.name: _converter(field.type) for field in kind}
        return lambda one: {name: _convert(inner[name], v) for name, v in one.items()}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        each = _converter(kind.value_type)
        return (lambda one: [_convert(each, v) for v in one]) if each else None
    return None


def _convert(converter: Converter | None, value: Any) -> Any:
    return value if converter is None or value is None else converter(value)


def _has_nanoseconds(kind: Any) -> bool:
    return "[ns" in str(kind) and not pa.types.is_timestamp(kind)


def _coarser(kind: Any) -> Any:
    """Return the type with microseconds for nanoseconds, which Python's own times do not have."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_coarser(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_coarser(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_coarser(kind.key_type), _coarser(kind.item_type))
    return kind


def span(value: Any) -> str:
    """Return a span of time as DuckDB writes it: 2 months 1 day 03:00:00."""
    years, months = divmod(abs(value.months), 12)
    sign = "-" if value.months < 0 else ""
    parts = [
        f"{sign}{years} year{'s' * (years > 1)}" if years else "",
        f"{sign}{months} month{'s' * (months > 1)}" if months else "",
        f"{value.days} day{'s' * (abs(value.days) > 1)}" if value.days else "",
    ]
    seconds, nanoseconds = divmod(abs(value.nanoseconds), 10**9)
    if value.nanoseconds or not any(parts):
        fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
        minus = "-" if value.nanoseconds < 0 else ""
        parts.append(
            f"{minus}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
        )
    return " ".join(filter(None, parts))


def plain(value: Any) -> Any:
    """Return *value* as JSON knows it; what JSON does not know, as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else str(value)


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
    return "\n".join((*lines, _row_count_line(rows), *_no_room(names[len(sizes) :])))


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
    remaining = width - sum(sizes) - 2 * (len(sizes) - 1)
    for wanted in zip(*(column.stages for column in columns), strict=True):
        while remaining > 0 and (
            short := [at for at, size in enumerate(sizes) if size < wanted[at]]
        ):
            sizes[min(short, key=sizes.__getitem__)] += 1
            remaining -= 1
    return sizes


def _no_room(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:NAMED_MAX]) + ", …" * (len(names) > NAMED_MAX)
    return [f"no room for {len(names)} more: {shown} (all: \\x at the prompt, --csv, --json)"]


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
    return "\n".join((*lines, _row_count_line(rows)))


def _row_count_line(rows: Sequence[Any]) -> str:
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


# ----------------------------------------------------------------------
# An answer written somewhere: to the terminal, a pipe, or a file that is there whole or not at all.

_BINARY = frozenset({"parquet", "arrow"})


def write(answer: ArrowAnswer, form: str, output: Path | None, *, rows_max: int, width: int) -> str:
    """Write the answer in *form* to *output* (None: standard output); return why it was cut, "" if not.

    *rows_max*: 0 for all. A file is put in place when all of it is there. Raises QueryError, CommandError.
    """
    reader = pa.ipc.open_stream(cast(Any, _buffered(answer)))
    if form in _BINARY:
        with _binary(output, form) as file:
            _write_batches(reader, form, file)
            cut = answer.finish().truncated_reason
            _check_whole(cut, output, rows_max)
        return cut
    with _text(output) as out:
        shown = itertools.islice(rows(reader), rows_max or None)
        _write_text(list(reader.schema.names), shown, form, out, width)
        cut = answer.finish().truncated_reason
        _check_whole(cut, output, rows_max)
    return cut


def _check_whole(cut: str, output: Path | None, rows_max: int) -> None:
    """A file that looks complete and is not misleads whoever finds it: unless so many rows were asked for."""
    if cut and output is not None and not rows_max:
        raise CommandError(
            f"{output} is not written, as the answer is cut: {cut}. Ask for less, or say --rows N",
            FAILED,
        )


def _buffered(answer: ArrowAnswer) -> Any:
    return io.BufferedReader(answer, 1 << 18)


def _write_text(
    names: list[str], shown: Iterator[Any], form: str, out: IO[str], width: int
) -> None:
    if form == "json":
        write_json(names, shown, cast(Any, out))
    elif form == "csv":
        write_csv(names, shown, cast(Any, out))
    else:
        print(text(names, list(shown), width), file=out)


def text(names: list[str], shown: list[Any], width: int, *, expanded: bool = False) -> str:
    """Return rows as a person reads them."""
    if names == ["explain_key", "explain_value"]:
        return plan(shown)
    return records(names, shown) if expanded else table(names, shown, width)


def _write_batches(reader: Any, form: str, file: BinaryIO) -> None:
    try:
        with _writer(reader.schema, form, file) as writer:
            for batch in reader:
                writer.write_batch(batch)
    except pa.ArrowNotImplementedError as error:
        raise CommandError(
            f"{form} has no such type: {error}. Cast the column: column::VARCHAR", USAGE
        ) from error


def _writer(schema: Any, form: str, file: BinaryIO) -> Any:
    if form == "arrow":
        return pa.ipc.new_stream(file, schema)
    from pyarrow.parquet import ParquetWriter  # 50 ms, which only this form pays

    return ParquetWriter(file, schema, compression="zstd")


@contextlib.contextmanager
def _text(output: Path | None) -> Iterator[IO[str]]:
    if output is None:
        yield sys.stdout
        return
    with _atomic_file(output) as temporary, open(temporary, "w", encoding="utf-8") as file:
        yield file


@contextlib.contextmanager
def _binary(output: Path | None, form: str) -> Iterator[BinaryIO]:
    if output is not None:
        with _atomic_file(output) as temporary, open(temporary, "wb") as file:
            yield file
        return
    if sys.stdout.isatty():
        raise CommandError(f"{form} is not for a terminal: name a file with --output", USAGE)
    yield sys.stdout.buffer


@contextlib.contextmanager
def _atomic_file(output: Path) -> Iterator[Path]:
    """A name to write under, which becomes *output* when all went well and vanishes otherwise."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.replace(output)
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}", FAILED) from error
    finally:
        with contextlib.suppress(OSError):  # not there, nor the folder it would be in
            temporary.unlink()
