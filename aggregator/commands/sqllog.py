"""`gangline sql --log`: the aggregator's log of queries, the last lines as a table."""

from __future__ import annotations

import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

from ...cli import NO_ANSWER, OK
from ..query.querylog import FILE, OLDER_FILES
from .sqlforms import table

COLUMNS = ("time", "who", "outcome", "seconds", "rows", "sql")


def show_log(folder: Path, count: int) -> int:
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
        print(f"gangline sql: {path} cannot be read: {error.strerror}", file=sys.stderr)
        return NO_ANSWER
    from .sql import width

    rows = [[entry.get(name) for name in COLUMNS] for entry in map(_entry, lines)]
    print(table(COLUMNS, rows, width()))
    return OK


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError:
        return {"sql": line}
    return entry if isinstance(entry, dict) else {}
