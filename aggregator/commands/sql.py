"""`gangline sql`: ask the operators' file. Read-only, one statement, nothing but that file."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from ...cli import FAILED, NO_ANSWER, OK, USAGE
from ..store.storefile import OPS_FILE
from .sqlerrors import explained, short
from .sqlforms import plan, table, write_csv, write_json

#: An older file is said to be old: the aggregator writes it every 15 s.
OLD_SECONDS = 60
#: Rows that a table shows unless `--rows` says otherwise.
TABLE_ROWS = 1000
#: A table is laid out in memory; for more there is `--csv`.
TABLE_ROWS_MAX = 100_000
#: Rows taken from DuckDB at a time, so that an answer of any length takes little memory.
BATCH_ROWS = 2048
#: A question must not take the host down: past this DuckDB refuses, and it spills nothing to disk.
LIMITS: dict[str, str | bool | int | float | list[str]] = {
    "memory_limit": "1GB",
    "threads": 2,
    "temp_directory": "",
    "max_temp_directory_size": "0B",
}
#: What this process may take, DuckDB and Python together.
MEMORY_BYTES_MAX = 2 << 30
#: What a question may begin with.
TAKEN = "only one SELECT, FROM, WITH, EXPLAIN, DESCRIBE or SHOW is taken"

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

A table shows the first 1,000 rows (--rows N: other than that), --csv and --json all of them. A question
may take 1 GB of memory.

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
    with connection, bounded_memory():
        return _answer(connection, _query(options), options)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let this process take no more than MEMORY_BYTES_MAX: DuckDB's limit does not hold for one cell
    of a gigabyte, which is copied on its way out. Past it there is a MemoryError."""
    low, high = resource.getrlimit(resource.RLIMIT_DATA)
    if low == resource.RLIM_INFINITY:
        allowed = [one for one in (MEMORY_BYTES_MAX, high) if one != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(allowed), high))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (low, high))


def _answer(connection: duckdb.DuckDBPyConnection, query: str, options: argparse.Namespace) -> int:
    try:
        names, rows = ask(connection, query)
        print(age_words(_age_seconds(connection), options.data), file=sys.stderr)
        _show(names, rows, options)
    except Refused as refusal:
        print(f"gangline sql: {refusal}", file=sys.stderr)
        return USAGE
    except (duckdb.OutOfMemoryException, MemoryError):
        print(f"gangline sql: {out_of_memory()}", file=sys.stderr)
        return FAILED
    except duckdb.Error as error:
        words = explained(error, lambda: what_there_is(connection))
        print(f"gangline sql: {words}", file=sys.stderr)
        return USAGE
    return OK


def _show(names: list[str], rows: Iterable[Any], options: argparse.Namespace) -> None:
    """Write the rows, as many as asked for, and say so when there are more. Raises duckdb.Error."""
    streamed = options.json or options.csv
    rows_max: int | None = options.rows if options.rows or streamed else TABLE_ROWS
    rest = iter(rows)
    shown = itertools.islice(rest, rows_max)
    if options.json:
        write_json(names, shown, sys.stdout)
    elif options.csv:
        write_csv(names, shown, sys.stdout)
    elif names == ["explain_key", "explain_value"]:
        print(plan(list(shown)))
    else:
        print(table(names, list(shown), _width()))
    if rows_max is not None and next(rest, None) is not None:
        sys.stdout.flush()
        more = "--rows N" if streamed else "--csv or --rows N"
        print(f"first {rows_max} rows; {more} for more", file=sys.stderr)


def _width() -> int:
    """The characters of a line: the terminal's, COLUMNS where it is set, else any."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size((160, 24)).columns
    return 0


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
            **LIMITS,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        },
    )
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def ask(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[list[str], Iterator[Any]]:
    """Return (column names, rows) of the one statement in *query*; rows come as they are taken.

    Raises Refused, duckdb.Error; the rows may raise duckdb.Error too, the first has come already.
    """
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise Refused(f"{TAKEN}, not {len(statements)} statements")
    if statements[0].type.name not in ("SELECT", "EXPLAIN"):
        raise Refused(f"{TAKEN}, not {first_word(query)}: this reads a snapshot")
    cursor = connection.cursor().execute(statements[0])
    names = [column[0] for column in cursor.description or ()]
    first = cursor.fetchmany(BATCH_ROWS)
    return names, itertools.chain(first, _rest(cursor) if first else ())


def _rest(cursor: duckdb.DuckDBPyConnection) -> Iterator[Any]:
    while batch := cursor.fetchmany(BATCH_ROWS):
        yield from batch


def first_word(query: str) -> str:
    """Return the word that *query* begins with, after comments."""
    match = re.match(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*(\w{1,40})", query, re.DOTALL)
    return match[1].upper() if match else "this"


def out_of_memory() -> str:
    """Return what to do about a question that took too much."""
    return (
        f"the question takes more than {LIMITS['memory_limit']} of memory, which it may not: ask for "
        "less (WHERE, fewer columns), or leave out what must hold all rows at once (ORDER BY "
        "without LIMIT, GROUP BY)"
    )


def what_there_is(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the names of what can be asked: ops.worst, latest.gpu_1s."""
    _, rows = ask(connection, WHAT_THERE_IS)
    return [str(row[0]).partition("(")[0] for row in rows]


def _age_seconds(connection: duckdb.DuckDBPyConnection) -> float:
    row = connection.cursor().execute("SELECT epoch_us(taken) FROM snapshot").fetchone()
    return time.time() - row[0] / 1e6 if row else math.inf


def age_words(seconds: float, folder: Path) -> str:
    """Return how old the answer is, and what to do when that is too old."""
    if seconds <= OLD_SECONDS:
        return f"as of {max(0.0, seconds):.0f} s ago"
    return (
        f"as of {seconds:.0f} s ago: no aggregator seems to be writing to {folder}. "
        "Start one there (gangline aggregator), or name another folder with --data"
    )


def _query(options: argparse.Namespace) -> str:
    if options.query is not None:
        return str(options.query)
    return WHAT_THERE_IS if sys.stdin.isatty() else sys.stdin.read() or WHAT_THERE_IS


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= TABLE_ROWS_MAX):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a number of rows, 1 to {TABLE_ROWS_MAX}"
        )
    return int(text)


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
        "--rows",
        type=_count,
        metavar="N",
        help=f"at most N rows (default: {TABLE_ROWS} in a table, all with --csv and --json)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("var/aggregator"),
        metavar="DIR",
        help="the aggregator's data folder (default: %(default)s)",
    )
    return parser
