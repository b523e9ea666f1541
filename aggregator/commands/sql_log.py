"""`gangline sql --log`: the aggregator's log of queries, the last lines as a table, JSON or CSV."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...cli import NO_ANSWER, OK
from ..query.log import FILE, OLDER_FILES
from .sql_output import table, write_csv, write_json

#: What a table has room for; the other forms show all that is logged.
COLUMNS = ("time", "who", "outcome", "seconds", "rows", "sql")
LOG_FORMS = ("table", "csv", "json")


def show_log(folder: Path, count: int, form: str) -> int:
    """Print the last *count* lines of the log in *folder*, the newest last."""
    path = folder / FILE
    found = [folder / f"{FILE}.{number}" for number in range(OLDER_FILES, 0, -1)] + [path]
    lines: deque[str] = deque(maxlen=count)
    try:
        for one in found:
            if one.exists():
                with open(one, encoding="utf-8", errors="replace") as file:
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
        from .sql import width

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
    except (pa.ArrowException, OverflowError):  # a line that somebody else wrote
        return pa.array([None if one is None else str(one) for one in values])


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {"sql": line}
    return entry if isinstance(entry, dict) else {}
