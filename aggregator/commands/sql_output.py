"""Output formats of `gangline sql`: tables, records, query plans, CSV, JSON, Parquet and Arrow.

DuckDB converts all values to text, for CSV, JSON and tables alike, so it can read back what is printed.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import duckdb
import pyarrow as pa
import pyarrow.dataset  # DuckDB's Arrow scan needs it: 60 ms, while the query's process starts
import pyarrow.ipc

from ...cli import FAILED, NO_ANSWER, OK, USAGE
from ...contract.client.connection import CommandError
from ...contract.text import counted
from ..query.log import FILE, OLDER_FILES
from ..query.sandbox import visible
from .sql_backends import ArrowAnswer
from .sql_options import width

#: Texts and headings are never cut below these widths, however narrow the terminal.
TEXT_CHARACTERS_MIN, HEADING_CHARACTERS_MIN = 20, 8
#: A text is widened to this width before other columns get more.
TEXT_CHARACTERS = 40
#: Columns omitted for lack of space that the note below a table names.
NAMED_MAX = 4
#: SQL that converts a value to text. Floats have six digits in a table, all digits in CSV and JSON.
_TEXT, _JSON = "{0}::VARCHAR", "to_json({0})::VARCHAR"
_ROUNDED = "format(if(abs({0}) < 1e6, '{{:.6g}}', '{{:.0f}}'), {0})"


#: Spreadsheets take a cell that begins with one of these for a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

_BINARY = frozenset({"parquet", "arrow"})
#: Columns of the table; the other forms show all columns.
COLUMNS = ("time", "who", "outcome", "seconds", "rows", "sql")
LOG_FORMS = ("table", "csv", "json")


@functools.cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """Return a database without tables or file access, which only converts values to text."""
    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
            "threads": 1,
        }
    )
    connection.execute("SET TimeZone = 'UTC'; SET enable_external_access = false")
    return connection


def texts(part: Any, form: str = _TEXT, float_form: str = "") -> list[tuple[str | None, ...]]:
    """Return the rows of an Arrow table or batch as text by SQL *form*; NULL becomes None."""
    names = [
        f"c{index}" for index in range(part.num_columns)
    ]  # columns of an answer may share a name
    wanted = [
        (float_form if float_form and pa.types.is_floating(kind) else form).format(name)
        for name, kind in zip(names, part.schema.types, strict=True)
    ]
    relation = _duckdb().from_arrow(part.rename_columns(names))
    return cast("list[tuple[str | None, ...]]", relation.project(", ".join(wanted)).fetchall())


def write_csv(names: Sequence[str], parts: Iterable[Any], out: TextIO) -> None:
    """Write a header, then a line per row of Arrow *parts*; NULL is empty.

    Hosts choose names: a terminal gets no control characters, a spreadsheet an apostrophe before
    formulas.
    """
    shown = visible if out.isatty() else _csv_text
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(shown, names))
    for part in parts:
        writer.writerows(["" if v is None else shown(v) for v in row] for row in texts(part))


def _csv_text(text: str) -> str:
    """Return *text* without control characters except tab and newline, and with an apostrophe before a formula."""
    if not text.isprintable():
        text = "".join(c if c in "\t\n" or c.isprintable() else "?" for c in text)
    return f"'{text}" if text.startswith(FORMULA_STARTS) and not _reads_as_number(text) else text


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def write_json(parts: Iterable[Any], out: TextIO) -> None:
    """Write an array with an object per row of Arrow *parts*; NaN and infinity become text."""
    shown = visible if out.isatty() else str
    ascii_only = "utf" not in (out.encoding or "utf").lower()
    between = "[\n "
    for part in parts:
        keys = [json.dumps(name, ensure_ascii=ascii_only) for name in part.schema.names]
        for row in texts(part, _JSON):
            values = dict(zip(keys, (value or "null" for value in row), strict=True))
            line = "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"
            if ascii_only or "NaN" in line or "Infinity" in line:
                value = json.loads(line, parse_constant=lambda constant: str(float(constant)))
                line = json.dumps(value, ensure_ascii=ascii_only)
            out.write(between + shown(line))
            between = ",\n "
    out.write("[]\n" if between == "[\n " else "\n]\n")


def text(answer: Any, width: int, *, expanded: bool = False) -> str:
    """Return an Arrow table as a plan, a line per value (*expanded*), or a table."""
    if answer.schema.names == ["explain_key", "explain_value"]:
        lines = [line for row in texts(answer) for line in (row[-1] or "").splitlines()]
        return "\n".join(map(visible, lines))
    return records(answer) if expanded else table(answer, width)


def table(answer: Any, width: int) -> str:
    """Return an Arrow table in lines of at most *width* characters (0: unlimited).

    Long texts are cut, then headings; numbers and times never, because a part reads as another
    value. Columns that then do not fit are omitted from the right, and named.
    """
    lines = [list(map(visible, answer.schema.names)), *_cells(answer)]
    needed = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sizes = _sizes(answer.schema, lines, needed, width) if width else needed
    adjust = [str.rjust if _is_number(kind) else str.ljust for kind in answer.schema.types]
    shown = [
        "  ".join(
            to_size(cell if len(cell) <= size else cell[: size - 1] + "…", size)
            for cell, size, to_size in zip(line, sizes, adjust, strict=False)
        ).rstrip()
        for line in lines
    ]
    return "\n".join((*shown, _row_count(answer), *_no_room(lines[0][len(sizes) :])))


def _sizes(schema: Any, lines: list[list[str]], needed: list[int], width: int) -> list[int]:
    """Return the widths of the columns that fit in *width* characters, from the left."""
    sizes: list[int] = []
    for index, kind in enumerate(schema.types):
        body = max((len(line[index]) for line in lines[1:]), default=0)
        rigid = _is_number(kind) or pa.types.is_temporal(kind)
        minimum = body if rigid else min(body, TEXT_CHARACTERS_MIN)
        minimum = max(minimum, min(len(lines[0][index]), HEADING_CHARACTERS_MIN))
        if sizes and sum(sizes) + 2 * len(sizes) + minimum > width:
            break
        sizes.append(min(minimum, width))
    left = width - sum(sizes) - 2 * (len(sizes) - 1)
    for wanted in ([min(size, TEXT_CHARACTERS) for size in needed], needed):
        while left > 0 and (
            short := [index for index, size in enumerate(sizes) if size < wanted[index]]
        ):
            sizes[min(short, key=sizes.__getitem__)] += 1
            left -= 1
    return sizes


def _is_number(kind: Any) -> bool:
    types = pa.types
    tests = types.is_integer, types.is_floating, types.is_decimal, types.is_boolean
    return any(test(kind) for test in tests)


def _no_room(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[:NAMED_MAX]) + ", …" * (len(names) > NAMED_MAX)
    return [f"no room for {len(names)} more: {shown} (all: \\x at the prompt, --csv, --json)"]


def records(answer: Any) -> str:
    """Return a line per value, for rows too wide for a terminal (the shell's `\\x`)."""
    names = list(map(visible, answer.schema.names))
    size = max(map(len, names), default=0)
    lines = []
    for number, row in enumerate(_cells(answer), 1):
        lines.append(f"-- {number} " + "-" * 40)
        lines += [f"{name.ljust(size)}  {cell}" for name, cell in zip(names, row, strict=True)]
    return "\n".join((*lines, _row_count(answer)))


def _row_count(answer: Any) -> str:
    return f"({counted(answer.num_rows, 'row')})"


def _cells(answer: Any) -> list[list[str]]:
    return [
        ["-" if value is None else visible(value) for value in row]
        for row in texts(answer, float_form=_ROUNDED)
    ]


def write(answer: ArrowAnswer, form: str, output: Path | None, *, rows_max: int, width: int) -> str:
    """Write the answer to *output* (None: standard output); return why it was cut, or "".

    *rows_max*: 0 for all rows. A file appears only when it is complete. Raises QueryError,
    CommandError.
    """
    reader = pa.ipc.open_stream(cast(Any, io.BufferedReader(answer, 1 << 18)))
    if form in _BINARY:
        with _binary(output, form) as file:
            _write_batches(reader, form, file)
            cut = answer.finish().truncated_reason
            _check_whole(cut, output, rows_max)
        return cut
    with _text(output) as out:
        parts = _first_rows(reader, rows_max) if rows_max else reader
        if form == "csv":
            write_csv(reader.schema.names, parts, out)
        elif form == "json":
            write_json(parts, out)
        else:
            print(text(pa.Table.from_batches(parts, reader.schema), width), file=out)
        cut = answer.finish().truncated_reason
        _check_whole(cut, output, rows_max)
    return cut


def _check_whole(cut: str, output: Path | None, rows_max: int) -> None:
    """Fail on a truncated file, because it looks complete, unless the caller set the row limit."""
    if cut and output is not None and not rows_max:
        raise CommandError(
            f"{output} is not written, because the answer is truncated: {cut}. Query less, or "
            "set --rows N",
            FAILED,
        )


def _first_rows(batches: Iterable[Any], count: int) -> Iterator[Any]:
    for batch in batches:
        yield batch.slice(0, count)
        count -= batch.num_rows
        if count <= 0:
            return


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
    from pyarrow.parquet import ParquetWriter  # 50 ms, only for this form

    return ParquetWriter(file, schema, compression="zstd")


@contextlib.contextmanager
def _text(output: Path | None) -> Iterator[TextIO]:
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
    """Yield a temporary path that becomes *output* on success and is removed otherwise."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.replace(output)
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}", FAILED) from error
    finally:
        with contextlib.suppress(OSError):  # the file or its folder may be missing
            temporary.unlink()


def show_log(folder: Path, count: int, form: str) -> int:
    """Print the last *count* lines of the log in *folder*, the newest last."""
    path = folder / FILE
    files = [folder / f"{FILE}.{number}" for number in range(OLDER_FILES, 0, -1)] + [path]
    lines: deque[str] = deque(maxlen=count)
    try:
        for log_file in files:
            if log_file.exists():
                with open(log_file, encoding="utf-8", errors="replace") as file:
                    lines.extend(file)
    except OSError as error:
        print(
            f"gangline sql: {path} cannot be read: {error.strerror}; only the aggregator's user "
            "and root may read it",
            file=sys.stderr,
        )
        return NO_ANSWER
    _write([_entry(line) for line in lines], form)
    if not lines:
        print(
            f"no queries are logged: {path} does not exist. It lists queries sent to an "
            "aggregator (--server); queries of the local file are not logged",
            file=sys.stderr,
        )
    return OK


def _write(entries: list[dict[str, Any]], form: str) -> None:
    if form == "table":
        print(table(_arrow(entries, COLUMNS), width()))
        return
    names = tuple(dict.fromkeys([*COLUMNS, *(name for entry in entries for name in entry)]))
    parts = _arrow(entries, names).to_batches()
    if form == "json":
        write_json(parts, sys.stdout)
    else:
        write_csv(names, parts, sys.stdout)


def _arrow(entries: list[dict[str, Any]], names: Sequence[str]) -> Any:
    return pa.table([_column([entry.get(name) for entry in entries]) for name in names], names)


def _column(values: list[Any]) -> Any:
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):  # a line from another writer
        return pa.array([None if value is None else str(value) for value in values])


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {"sql": line}
    return entry if isinstance(entry, dict) else {}
