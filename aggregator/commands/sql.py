"""`gangline sql`: ask the operators' file. Read-only, one statement, nothing but that file."""

from __future__ import annotations

import argparse
import csv
import json
import math
import shutil
import sys
import time
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import duckdb

from ...cli import FAILED, NO_ANSWER, OK, USAGE
from ..store.storefile import OPS_FILE

#: An older file is said to be old: the aggregator writes it every 15 s.
OLD_SECONDS = 60
#: A message of DuckDB is cut to so many lines.
MESSAGE_LINES_MAX = 4
#: Columns narrower than this are not cut further, whatever the terminal.
COLUMN_CHARACTERS_MIN = 8

EXAMPLES = """\
examples:
  gangline sql "FROM ops.worst(n := 5)"
  gangline sql "FROM ops.explain('host-17')"
  gangline sql "FROM ops.gpu_history('GPU-6f5e..')" --csv > gpu.csv
  gangline sql "SELECT host, max(temperature_celsius) FROM latest.gpu_1s GROUP BY host ORDER BY 2 DESC"
  echo "FROM ops.freshness" | gangline sql --json
  gangline sql                      what there is to ask

What is asked is a file that the aggregator writes every 15 s: the latest of everything, the last five
minutes of readings, and the last hour of error counters. Any DuckDB opens it: duckdb -readonly
var/aggregator/operators.duckdb. Questions of the night with their answers: docs/sql.md

exit codes: 0 done, 1 failed, 2 wrong usage or SQL that is refused, 3 no file there yet
"""

WHAT_THERE_IS = """
FROM (
SELECT 'ops.' || view_name AS ask, comment AS answers FROM duckdb_views()
WHERE schema_name = 'ops' AND comment IS NOT NULL
UNION ALL
SELECT 'ops.' || function_name || '(' || array_to_string(parameters, ', ') || ')', comment
FROM duckdb_functions() WHERE schema_name = 'ops' AND comment IS NOT NULL
UNION ALL
SELECT if(schema_name = 'main', '', schema_name || '.') || table_name, comment FROM duckdb_tables()
)
ORDER BY starts_with(ask, 'ops.') DESC, contains(ask, '.'), ask
"""


class Refused(Exception):
    """The statement is not one that we run; the words say what would be."""


def main(arguments: list[str]) -> int:
    """Run one query and print its rows."""
    options = _parser().parse_args(arguments)
    file: Path = options.data / OPS_FILE
    try:
        connection = open_read_only(file)
    except FileNotFoundError:
        print(
            f"gangline sql: {file} is not there: no aggregator has written to this folder yet. "
            "Start one (gangline aggregator), or name its data folder with --data",
            file=sys.stderr,
        )
        return NO_ANSWER
    except duckdb.Error as error:
        print(f"gangline sql: {file} cannot be opened: {short(str(error))}", file=sys.stderr)
        return FAILED
    with connection:
        return _answer(connection, _query(options), options)


def _answer(connection: duckdb.DuckDBPyConnection, query: str, options: argparse.Namespace) -> int:
    try:
        names, rows = ask(connection, query)
    except Refused as refusal:
        print(f"gangline sql: {refusal}", file=sys.stderr)
        return USAGE
    except duckdb.Error as error:
        print(f"gangline sql: {explained(error)}", file=sys.stderr)
        return USAGE
    print(age_words(_age_seconds(connection), options.data), file=sys.stderr)
    if options.json:
        write_json(names, rows, sys.stdout)
    elif options.csv:
        write_csv(names, rows, sys.stdout)
    else:
        width = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else 0
        print(table(names, rows, width))
    return OK


def open_read_only(file: Path) -> duckdb.DuckDBPyConnection:
    """Open the operators' file so that nothing else can be reached through it.

    Raises FileNotFoundError or duckdb.Error.
    """
    if not file.exists():
        raise FileNotFoundError(file)
    connection = duckdb.connect(
        str(file),
        read_only=True,
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        },
    )
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def ask(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[list[str], list[Any]]:
    """Return (column names, rows) of the one statement in *query*. Raises Refused, duckdb.Error."""
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise Refused(f"{len(statements)} statements: expected exactly one")
    kind = statements[0].type.name
    if kind not in ("SELECT", "EXPLAIN"):
        raise Refused(
            f"a statement of type {kind} is refused: this reads a snapshot. Expected SELECT, FROM, "
            "WITH, EXPLAIN, DESCRIBE or SHOW"
        )
    cursor = connection.execute(statements[0])
    return [column[0] for column in cursor.description or ()], cursor.fetchall()


def explained(error: duckdb.Error) -> str:
    """Return DuckDB's message, short, with what may help."""
    text = short(str(error))
    if isinstance(error, duckdb.InvalidInputException) and "read-only" in text.lower():
        return f"writing is refused, this reads a snapshot: {text}"
    if isinstance(error, duckdb.PermissionException):
        return f"files and settings are out of reach here, only the snapshot is not: {text}"
    if isinstance(error, duckdb.BinderException):
        return (
            f"{text}\nhint: DESCRIBE <table> names its columns; `gangline sql` alone lists tables"
        )
    if isinstance(error, duckdb.CatalogException):
        return f"{text}\nhint: `gangline sql` alone lists what there is to ask"
    return text


def short(text: str) -> str:
    """Return the first lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:MESSAGE_LINES_MAX])


def _age_seconds(connection: duckdb.DuckDBPyConnection) -> float:
    row = connection.execute("SELECT epoch_us(taken) FROM snapshot").fetchone()
    return time.time() - row[0] / 1e6 if row else math.inf


def age_words(seconds: float, folder: Path) -> str:
    """Return how old the answer is, and what to do when that is too old."""
    if seconds <= OLD_SECONDS:
        return f"as of {max(0.0, seconds):.0f} s ago"
    return (
        f"as of {seconds:.0f} s ago: no aggregator seems to be writing to {folder}. "
        "Start one there (gangline aggregator), or name another folder with --data"
    )


def plain(value: Any) -> Any:
    """Return *value* as JSON knows it; what JSON does not know, as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else str(value)


def write_json(names: Sequence[str], rows: Sequence[Any], out: TextIO) -> None:
    """Write an array of one object per row."""
    objects = [dict(zip(names, map(plain, row), strict=True)) for row in rows]
    json.dump(objects, out, indent=1, ensure_ascii=False)
    out.write("\n")


def write_csv(names: Sequence[str], rows: Sequence[Any], out: TextIO) -> None:
    """Write a header and a line per row; NULL is empty."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if one is None else plain(one) for one in row])


def table(names: Sequence[str], rows: Sequence[Any], width: int) -> str:
    """Return a table of at most *width* characters a line (0: any), cutting the widest columns."""
    cells = [[_cell(value) for value in row] for row in rows]
    sizes = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    over = sum(sizes) + 2 * (len(sizes) - 1) - width
    while width and over > 0 and max(sizes) > COLUMN_CHARACTERS_MIN:
        sizes[sizes.index(max(sizes))] -= 1
        over -= 1
    numeric = [
        any(row[at] is not None for row in rows)
        and all(row[at] is None or isinstance(row[at], int | float) for row in rows)
        for at in range(len(names))
    ]
    lines = [_line(line, sizes, numeric) for line in (list(names), *cells)]
    lines.append(f"({len(rows)} row{'' if len(rows) == 1 else 's'})")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    text = value if isinstance(value, str) else str(plain(value))
    return "".join(" " if unicodedata.category(one)[0] == "C" else one for one in text)


def _line(cells: Sequence[str], sizes: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = []
    for text, size, right in zip(cells, sizes, numeric, strict=True):
        cut = text if len(text) <= size else text[: size - 1] + "…"
        parts.append(cut.rjust(size) if right else cut.ljust(size))
    return "  ".join(parts).rstrip()


def _query(options: argparse.Namespace) -> str:
    if options.query is not None:
        return str(options.query)
    return WHAT_THERE_IS if sys.stdin.isatty() else sys.stdin.read() or WHAT_THERE_IS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline sql",
        description="Ask the store in SQL, read-only. Without a query: what there is to ask.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("query", nargs="?", metavar="QUERY", help="one SELECT (or FROM, WITH, ..)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="an array of objects")
    form.add_argument("--csv", action="store_true", help="a header and a line per row")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("var/aggregator"),
        metavar="DIR",
        help="the aggregator's data folder (default: %(default)s)",
    )
    return parser
