"""DuckDB's messages as an operator needs them: short, and with a hint at what is there to ask."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

import duckdb

#: A message of DuckDB is cut to so many lines.
MESSAGE_LINES_MAX = 4


def explained(error: duckdb.Error, names: Callable[[], list[str]]) -> str:
    """Return DuckDB's message, short, with what may help; *names*: of what can be asked."""
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
        return suggested(text, names())
    return text


def suggested(text: str, names: list[str]) -> str:
    """Return *text* with a guess of ours, of *names*, in place of DuckDB's among all of its own."""
    kept = [line for line in text.splitlines() if not line.startswith("Did you mean")]
    missing = re.search(r"with name \"?([\w.]+)\"? does not exist", text)
    near: list[str] = []
    if missing:
        wanted = missing[1].rpartition(".")[2].lower()
        last = {name.rpartition(".")[2]: name for name in reversed(names)}
        near = [last[one] for one in difflib.get_close_matches(wanted, last, n=1, cutoff=0.7)]
    hint = f"did you mean {near[0]}? " if near else ""
    return "\n".join([*kept, f"hint: {hint}`gangline sql` alone lists what there is to ask"])


def short(text: str) -> str:
    """Return the first lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[:MESSAGE_LINES_MAX])
