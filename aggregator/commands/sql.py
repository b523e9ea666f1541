"""`gangline sql`: read-only SQL, once or at a prompt, on the local snapshot file or a remote aggregator."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ...cli import FAILED, NO_ANSWER, OK, USAGE
from ...contract.client import command_line, connection
from ...contract.options import add_former_names, duration
from ..query import messages
from ..query.messages import AnswerSummary
from .sql_backends import QueryBackend, QuerySession, RemoteBackend, SnapshotBackend
from .sql_options import (
    FORMS,
    LIST_QUERY,
    STREAMED,
    TABLE_ROWS,
    TABLE_ROWS_MAX,
    TIMEOUT_SECONDS_MAX,
    AnswerOptions,
    width,
)

#: Age from which a snapshot is reported as old: a running aggregator rewrites it for a query.
OLD_SECONDS = 60
#: Data folder of `--log` without --data.
DATA_DEFAULT = Path("var/aggregator")
#: Maximum of --rows, except in a table.
ROWS_MAX = 10**12
#: Extension of --output -> form.
ENDINGS = {
    ".csv": "csv",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "table",
}
EXAMPLES = """\
examples:
  gangline sql                      an interactive prompt with history and completion; \\? for help
  gangline sql '\\d'                 list all views and macros
  gangline sql "FROM ops.worst(n := 5)"
  gangline sql "FROM ops.explain('host-17')"
  gangline sql "FROM ops.gpu_history('GPU-6f5e..')" --output gpu.csv
  gangline sql "SELECT host, max(temperature_celsius) FROM latest.gpu_1s GROUP BY host ORDER BY 2 DESC"
  gangline sql --server agg-1:7600 "FROM ops.freshness" --output fresh.parquet
  gangline sql --data /var/lib/gangline-aggregator "FROM ops.worst"      also after the aggregator has ended
  echo "FROM ops.freshness" | gangline sql --json

The query runs on the same aggregator as `gangline hosts`, within its limits; with --data, on this machine without them.
Queries read a snapshot file and the history beside it. The file has the latest value of every signal, the last five
minutes of readings and the last hour of error counters. The aggregator rewrites it for a query if it is older than 15 s,
or older than a time in the query. Any DuckDB can open it, but without `gangline sql` it can be two minutes old:
duckdb -readonly DIR/operators.duckdb. Times are UTC. docs/sql.md answers common questions.

A table shows the first 1,000 rows; change that with --rows N. The other formats have all rows. A query may use 2 GB of
memory. --output writes the file completely or not at all.

exit codes: 0 done, 1 failed or truncated, 2 wrong usage or SQL not allowed, 3 no snapshot or no aggregator
"""


def main(arguments: list[str]) -> int:
    """Answer a query, or those of a prompt."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.log is not None:
        return _show_log(parser, options)
    form = options.form or (ENDINGS.get(options.output.suffix, "") if options.output else "table")
    if not form:
        parser.error(f"--output {options.output}: give its format with --format {'|'.join(FORMS)}")
    if form == "table" and options.rows > TABLE_ROWS_MAX:
        parser.error(f"--rows: a table has 1 to {TABLE_ROWS_MAX} rows; use --csv for more")
    answer_options = AnswerOptions(form, options.output, options.rows, options.timeout)
    return connection.guarded("sql", lambda: _run(options, answer_options))


def _run(options: argparse.Namespace, answer_options: AnswerOptions) -> int:
    backend = _backend(options)
    if options.data is None and options.server is None:
        answer_options = replace(answer_options, source=backend.name)
    with QuerySession(backend) as query_session:
        sql = _query(options)
        if sql is None:
            # prompt_toolkit takes 100 ms, which a query in a script should not pay.
            from .sql_shell import Shell

            return Shell(query_session, answer_options, width).run()
        return with_query_errors(lambda: run_query(query_session, sql, answer_options))


def _show_log(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from .sql_output import LOG_FORMS, show_log

    form = options.form or "table"
    if options.server or options.query or options.output or form not in LOG_FORMS:
        parser.error(
            "--log reads queries.log in --data, on the aggregator's machine; it allows only "
            f"--format {'|'.join(LOG_FORMS)}"
        )
    return show_log(options.data or DATA_DEFAULT, options.log, form)


def _backend(options: argparse.Namespace) -> SnapshotBackend | RemoteBackend:
    """Return the backend. Raises CommandError."""
    if options.data is not None:
        return SnapshotBackend(options.data)
    options.aggregator = options.server
    return RemoteBackend(connection.read_connection_options(options))


def with_query_errors(work: Callable[[], int]) -> int:
    """Return the result of *work*. Raises CommandError for query errors."""
    try:
        return work()
    except messages.NoSnapshot as error:
        start = "Start one (gangline aggregator), or name its data folder with --data"
        raise connection.CommandError(f"{error}. {start}", NO_ANSWER) from error
    except messages.QueryError as error:
        refused = isinstance(error, messages.QueryRefused)
        raise connection.CommandError(str(error), USAGE if refused else FAILED) from error


def run_query(query_session: QuerySession, sql: str, answer_options: AnswerOptions) -> int:
    """Write the answer of a query, and its notes. Raises QueryError, CommandError."""
    from .sql_output import write  # imports Arrow: 0.1 s, while the query's process starts

    with query_session.answer(answer_options.question(sql)) as answer:
        cut = write(
            answer,
            answer_options.form,
            answer_options.output,
            rows_max=answer_options.rows,
            width=width(),
        )
        end = answer.finish()
    sys.stdout.flush()
    for note in notes(end, query_session.backend, cut, answer_options):
        print(note, file=sys.stderr)
    return FAILED if cut and answer_options.form in STREAMED and not answer_options.rows else OK


def notes(
    end: AnswerSummary, backend: QueryBackend, cut: str, answer_options: AnswerOptions
) -> list[str]:
    """Return the notes on an answer: age, missing history, truncation."""
    more = "--rows N" if answer_options.form in STREAMED else "--csv or --rows N"
    age = age_message(time.time() - end.taken_us / 1e6 if end.taken_us else math.inf, backend)
    return [
        f"{answer_options.source}, {age}" if answer_options.source else age,
        *([end.history_missing_reason] if end.history_missing_reason else []),
        *([f"{cut}; {more} for more"] if cut else []),
    ]


def age_message(seconds: float, backend: QueryBackend) -> str:
    """Return the age of the answer, and advice if it is too old."""
    age = f"as of {max(0.0, seconds):.0f} s ago" if math.isfinite(seconds) else "of unknown age"
    if seconds <= OLD_SECONDS:
        return age
    if backend.has_aggregator():
        return f"{age}: the aggregator of {backend.name} runs, but has not written a newer operators' file: it is busy, or its disk is slow"
    return (
        f"{age}: no aggregator runs in {backend.name}. Start one there (gangline aggregator), name another "
        "folder with --data, or query a running aggregator with --server"
    )


def _query(options: argparse.Namespace) -> str | None:
    """Return the query; None for a prompt."""
    if options.query is None and sys.stdin.isatty() and sys.stdout.isatty():
        return None
    if options.query is None and sys.stdin.isatty():  # the answer goes into a pipe or file
        return LIST_QUERY
    text = sys.stdin.read() if options.query is None else str(options.query)
    if not text.strip():  # a shell variable that is not set
        message = "the query is empty; expected SQL, or \\d for tables and views"
        raise connection.CommandError(message, USAGE)
    return LIST_QUERY if text.strip() == "\\d" else text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= ROWS_MAX):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: expected a number of rows, 1 to {TABLE_ROWS_MAX} in a table"
        )
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline sql",
        description="Queries the store in SQL, read-only. Without a query, starts an interactive prompt.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("query", nargs="?", metavar="QUERY", help="one SELECT (or FROM, WITH, ..)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        dest="form",
        choices=FORMS,
        help="default: by the extension of --output, else table",
    )
    form.add_argument(
        "--json", dest="form", action="store_const", const="json", help="JSON: an array of objects"
    )
    form.add_argument(
        "--csv", dest="form", action="store_const", const="csv", help="CSV with a header"
    )
    add(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write to this file, completely or not at all",
    )
    add(
        "--rows",
        type=_count,
        default=0,
        metavar="N",
        help=f"at most N rows (default: {TABLE_ROWS} in a table, else all)",
    )
    add(
        "--timeout",
        type=duration(0.001, TIMEOUT_SECONDS_MAX),
        default=0.0,
        metavar="SECONDS",
        help=(
            "stop the query after this time (default: the server's limit; none for the "
            "operators' file)"
        ),
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="query the data folder of an aggregator on this machine, also of a stopped one",
    )
    server = place.add_argument(
        "--server",
        type=command_line.parse_address,
        metavar="ADDRESS:PORT",
        help=f"query this aggregator (default: as `gangline hosts`, {connection.ADDRESS_DEFAULT})",
    )
    add_former_names(parser, server, "--aggregator")
    command_line.add_login(parser)
    add(
        "--log",
        nargs="?",
        type=_count,
        const=20,
        metavar="N",
        help=f"show the last N lines (20) of queries.log in --data (default: {DATA_DEFAULT}): who ran which query; also --json, --csv",
    )
    return parser
