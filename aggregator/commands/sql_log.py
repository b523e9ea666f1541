"""`gangline sql --log`: the aggregator's log of queries, the last lines as a table, JSON or CSV."""

from __future__ import annotations

import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

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
            f"gangline sql: {path} cannot be read: {error.strerror}; it is the aggregator's user's (and root's)",
            file=sys.stderr,
        )
        return NO_ANSWER
    _write([_entry(line) for line in lines], form)
    if not lines:
        print(
            f"nothing is logged: there is no {path}. It has what was asked of an aggregator (--server); "
            "who asks the file here is not logged",
            file=sys.stderr,
        )
    return OK


def _write(entries: list[dict[str, Any]], form: str) -> None:
    if form == "table":
        from .sql import width

        rows = [[entry.get(name) for name in COLUMNS] for entry in entries]
        print(table(COLUMNS, rows, width()))
        return
    names = list(dict.fromkeys([*COLUMNS, *(name for entry in entries for name in entry)]))
    all_of_it = ([entry.get(name) for name in names] for entry in entries)
    write = write_json if form == "json" else write_csv
    write(names, all_of_it, sys.stdout)


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {"sql": line}
    return entry if isinstance(entry, dict) else {}
