"""DuckDB's messages as an operator needs them: short, with the place in the SQL, and a hint at what is there."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

#: A message of DuckDB is cut to so many lines, and the line of SQL shown with it to so many characters.
MESSAGE_LINES_MAX, SHOWN_CHARACTERS_MAX = 4, 100
#: What lists all there is to ask; every door takes it.
HINT = "`gangline sql '\\d'` lists what there is to ask"


class Refused(Exception):
    """The statement is not one that we run; the words say what would be, and where it went wrong."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What DuckDB said, taken apart. `position`: bytes into the SQL, None when it said none."""

    text: str
    position: int | None
    missing: str


def complaint(error: Exception) -> Complaint:
    """Return what *error*, of DuckDB or of Arrow that cites it, says; its text is JSON (`errors_as_json`), except for a few kinds."""
    text = str(error)
    try:
        told = json.loads(text[text.index("{") :])
        position = told.get("position")
        missing = told["name"] if told.get("error_subtype") == "MISSING_ENTRY" else ""
        words = f"{told['exception_type']} error: {told['exception_message']}"
        return Complaint(words, int(position) if position else None, missing)
    except (ValueError, KeyError, TypeError):
        return Complaint(text, None, "")


def explained(error: duckdb.Error, sql: str, names: Callable[[], list[str]]) -> str:
    """Return DuckDB's message, short, with its place in *sql* and what may help; *names*: of what can be asked."""
    import duckdb  # 0.1 s, which who shows an answer need not pay

    said = complaint(error)
    text = short(said.text)
    if "memory exhausted at or near" in text or "Max expression depth" in text:
        text = "the statement is nested too deeply"
    elif isinstance(error, duckdb.PermissionException):
        text = f"files and settings are out of reach here, only the snapshot is not: {text}"
    elif "read-only" in text.lower():
        text = f"writing is refused, this reads a snapshot: {text}"
    elif said.missing:
        text = suggested(text, said.missing, names())
    elif isinstance(error, duckdb.BinderException):
        text = f"{text}\nhint: DESCRIBE <table> names its columns; {HINT}"
    return located(sql, said.position, text)


def located(sql: str, position: int | None, words: str) -> str:
    """Return *words* after line and column of *position* (bytes into *sql*), with that line and a mark below it."""
    if position is None or position < 0:
        return words
    before = sql.encode(errors="replace")[:position].decode(errors="replace")
    line_at = before.count("\n")
    column = len(before) - (before.rfind("\n") + 1)
    line = visible(sql.split("\n")[line_at])
    begin = max(0, column - SHOWN_CHARACTERS_MAX // 2)
    shown = line[begin : begin + SHOWN_CHARACTERS_MAX]
    mark = " " * (column - begin) + "^"
    head, newline, rest = words.partition("\n")
    return f"line {line_at + 1}, column {column + 1}: {head}\n  {shown}\n  {mark}{newline}{rest}"


def visible(text: str) -> str:
    """Return *text* with a space for each character that a terminal would act on."""
    return "".join(one if one.isprintable() else " " for one in text)


def suggested(text: str, missing: str, names: list[str]) -> str:
    """Return *text* with a guess of ours, of *names*, in place of DuckDB's among all of its own."""
    kept = [line for line in text.splitlines() if not line.startswith("Did you mean")]
    last = {name.partition("(")[0].rpartition(".")[2]: name for name in reversed(names)}
    near = difflib.get_close_matches(missing.rpartition(".")[2].lower(), last, n=1, cutoff=0.7)
    hint = _meant(last[near[0]], missing.rpartition(".")[2].lower() == near[0]) if near else ""
    return "\n".join([*kept, f"hint: {hint}{HINT}"])


def _meant(name: str, exactly: bool) -> str:
    """Return the guess *name*; of one that is there *exactly* so: how it is asked, a view or a macro."""
    return (
        f"it is asked as FROM {name}; " if exactly else f"did you mean {name.partition('(')[0]}? "
    )


def short(text: str) -> str:
    """Return the first lines."""
    lines = [visible(line) for line in text.splitlines() if line.strip()]
    return "\n".join(line[:400] for line in lines[:MESSAGE_LINES_MAX])
