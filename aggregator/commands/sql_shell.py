"""The prompt of `gangline sql`: history, completion, multi-line statements; Ctrl-C cancels only the query."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings

from ...cli import OK
from ...contract.client.connection import CommandError
from ..query.messages import AnswerSummary, QueryError, Question
from ..query.sandbox import visible
from .sql_backends import QuerySession
from .sql_options import LIST_QUERY, TABLE_ROWS, TABLE_ROWS_MAX, TIMEOUT_SECONDS_MAX, AnswerOptions
from .sql_output import text, texts

#: A query for all names, as rows (kind, name).
NAMES = """
SELECT 'macro', schema_name || '.' || function_name || '(' FROM duckdb_functions() WHERE schema_name IN ('ops', 'history')
UNION ALL SELECT 'view', table_schema || '.' || table_name FROM information_schema.tables WHERE table_type = 'VIEW'
UNION ALL SELECT 'table', if(schema_name = 'main', '', schema_name || '.') || table_name FROM duckdb_tables()
UNION ALL SELECT DISTINCT 'column', column_name FROM duckdb_columns() WHERE NOT internal
"""
_OFTEN_USED = (
    "SELECT FROM WHERE GROUP BY ORDER HAVING QUALIFY WINDOW PARTITION LIMIT OFFSET JOIN LEFT RIGHT FULL "
    "OUTER INNER CROSS ASOF LATERAL USING ON AS AND OR NOT IN IS NULL LIKE ILIKE BETWEEN CASE WHEN THEN "
    "ELSE END DISTINCT UNION ALL EXCEPT INTERSECT WITH RECURSIVE VALUES EXPLAIN ANALYZE DESCRIBE "
    "SUMMARIZE SHOW TABLES PIVOT UNPIVOT ASC DESC NULLS FIRST LAST INTERVAL TIMESTAMP FILTER OVER EXCLUDE "
    "REPLACE COLUMNS SAMPLE CAST count sum avg min max now list first arg_max arg_min time_bucket "
    "date_trunc lag lead row_number quantile_cont"
)
SQL_KEYWORDS = tuple(_OFTEN_USED.split())
COMMANDS = ("\\d", "\\x", "\\rows", "\\timeout", "\\q", "\\?")
_TYPED = re.compile(r"[\\\w.]+$")
#: After these words only tables are offered.
_TABLE_NEXT = re.compile(r"\b(FROM|JOIN|DESCRIBE|SUMMARIZE|SHOW|\\d)\s+$", re.IGNORECASE)

HELP = """\
A statement ends with ; and may have several lines. Only queries are allowed: SELECT, FROM, WITH, EXPLAIN, ..
  \\d            list tables and views        \\d NAME       its columns
  \\x            a line per value, or a table again
  \\rows N       show N rows (now {rows})       \\timeout S    cut off after S seconds (now {seconds})
  \\q, Ctrl-D    leave                       Ctrl-C        cancel the question
"""
#: Pagers for output larger than the terminal: PAGER scrolls sideways, PAGER_EXPANDED wraps.
PAGER, PAGER_EXPANDED = ("less", "-SRFX"), ("less", "-RFX")


class NameCompleter(Completer):
    """Completes *names*, rows of (kind, name)."""

    def __init__(self, names: Sequence[tuple[str, str]] = ()) -> None:
        self.names = names

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield the completions of the word before the cursor."""
        before = document.text_before_cursor
        match = _TYPED.search(before)
        typed = match[0] if match else ""
        tables_only = bool(_TABLE_NEXT.search(before[: len(before) - len(typed)]))
        if not typed and not tables_only:
            return
        offered = set()
        for what, name in self._candidates(tables_only):
            if name.lower().startswith(typed.lower()) and name not in offered:
                offered.add(name)
                yield Completion(name, start_position=-len(typed), display_meta=what)

    def _candidates(self, tables_only: bool) -> Iterator[tuple[str, str]]:
        yield from (entry for entry in self.names if not (tables_only and entry[0] == "column"))
        if not tables_only:
            yield from (("", word) for word in (*SQL_KEYWORDS, *COMMANDS))


def names_of(rows: Iterable[Any]) -> list[tuple[str, str]]:
    """Return the rows of NAMES as texts, tables before columns."""
    order = {"view": 0, "macro": 0, "table": 1, "column": 2}
    entries = [(str(what), str(name)) for what, name in rows]
    return sorted(entries, key=lambda entry: (order.get(entry[0], 3), entry[1]))


class Shell:
    """An interactive prompt that runs queries."""

    def __init__(
        self, query_session: QuerySession, answer_options: AnswerOptions, width: Callable[[], int]
    ) -> None:
        self._query_session = query_session
        self._rows = answer_options.rows or TABLE_ROWS
        self._seconds = answer_options.seconds
        self._width = width
        self._expanded = False
        self._names = NameCompleter()
        self._session: PromptSession[str] = PromptSession(
            "gangline> ",
            history=_history(),
            completer=self._names,
            complete_while_typing=False,
            multiline=True,
            prompt_continuation="      ... ",
            key_bindings=_keys(),
        )

    def run(self) -> int:
        """Prompt until Ctrl-D or \\q; return the exit code."""
        print(
            f"Asking {self._query_session.backend.name}, read-only; times are UTC. \\d: list "
            "tables; \\?: help; Ctrl-D: quit"
        )
        self._load_names()
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # at the prompt, or Ctrl-C pressed twice
                try:
                    line = self._session.prompt().strip()
                except EOFError:
                    return OK
                if line in ("\\q", "exit", "quit", "exit;", "quit;"):
                    return OK
                if line:
                    self._guarded(line)

    def _guarded(self, line: str) -> None:
        try:
            self._command(line) if line.startswith("\\") or line == "help" else self._query(line)
        except KeyboardInterrupt:
            print("cancelled", file=sys.stderr)
        except (QueryError, CommandError) as error:
            print(error, file=sys.stderr)

    def _command(self, line: str) -> None:
        word, _, argument = line.rstrip(";").partition(" ")
        argument = argument.strip()
        if word == "\\d":
            self._query(f"DESCRIBE {argument}" if argument else LIST_QUERY)
        elif word == "\\x":
            self._expanded = not self._expanded
            print("one line per value" if self._expanded else "a table")
        elif word == "\\rows" and argument.isdecimal() and 0 < int(argument[:9]) <= TABLE_ROWS_MAX:
            self._rows = int(argument)
        elif (
            word == "\\timeout"
            and argument.isdecimal()
            and int(argument[:9]) <= TIMEOUT_SECONDS_MAX
        ):
            self._seconds = float(argument)
        elif word in ("\\?", "\\h", "help"):
            print(HELP.format(rows=self._rows, seconds=self._seconds or "never"), end="")
        else:
            print(
                f"'{visible(line[:60])}' is not a command, or its number is out of range "
                f"(\\rows 1 to {TABLE_ROWS_MAX}, \\timeout 0 to {TIMEOUT_SECONDS_MAX:.0f}); \\? "
                "helps",
                file=sys.stderr,
            )

    def _query(self, sql: str) -> None:
        begin = time.monotonic()
        answer, end = self._answer(sql, self._rows)
        took = time.monotonic() - begin
        self._show(answer)
        age = ""
        if end.taken_us:
            age = f", as of {max(0.0, time.time() - end.taken_us / 1e6):.0f} s ago"
        cut = f", {end.truncated_reason} (\\rows N for more)" if end.truncated_reason else ""
        print(f"{took:.2f} s{age}{cut}", file=sys.stderr)
        if end.history_missing_reason:
            print(end.history_missing_reason, file=sys.stderr)

    def _answer(self, sql: str, rows_max: int) -> tuple[Any, AnswerSummary]:
        """Return the answer as an Arrow table, and its summary."""
        with self._query_session.answer(Question(sql, self._seconds, rows_max=rows_max)) as answer:
            return pa.ipc.open_stream(answer).read_all(), answer.finish()

    def _show(self, answer: Any) -> None:
        size = shutil.get_terminal_size()
        whole = text(answer, 0, expanded=self._expanded)
        lines = whole.splitlines()
        wraps = [len(line) // size.columns for line in lines]
        fits = len(lines) + sum(wraps) < size.lines and (self._expanded or not any(wraps))
        if not fits and shutil.which(PAGER[0]):
            pager = PAGER_EXPANDED if self._expanded else PAGER
            subprocess.run(pager, input=whole.encode(errors="replace"), check=False)
        else:
            print(whole if fits else text(answer, self._width(), expanded=self._expanded))

    def _load_names(self) -> None:
        """Load the completion names; a failure is printed, and the prompt works without them."""
        try:
            self._names.names = names_of(texts(self._answer(NAMES, 20_000)[0]))
        except (QueryError, CommandError) as error:
            print(error, file=sys.stderr)


def _history() -> History:
    """Return this user's history, in a file with mode 0600; in memory if that fails."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(state) / "gangline" / "sql_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        path.chmod(0o600)
    except OSError as error:
        print(f"no history: {path}: {error.strerror}", file=sys.stderr)
        return InMemoryHistory()
    return FileHistory(str(path))


def _keys() -> KeyBindings:
    """Bind Enter: run a command or a statement that ends with ;, otherwise insert a new line."""
    keys = KeyBindings()

    @Condition
    def whole() -> bool:
        from prompt_toolkit.application import get_app

        typed = get_app().current_buffer.text.strip()
        return (
            not typed
            or typed.endswith(";")
            or typed[0] == "\\"
            or typed in ("help", "exit", "quit")
        )

    @keys.add("enter", filter=whole)
    def _(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    return keys
