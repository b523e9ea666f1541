"""The fences around a question: what the connection can reach, and which statements are let through."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from ..sql import quoted
from ..store.storefile import OPS_FILE
from . import functions, history
from .limits import SQL_BYTES_MAX
from .words import Refused, located, short, visible

#: What a question may begin with.
TAKEN = "only one SELECT, FROM, WITH, VALUES, EXPLAIN, DESCRIBE, SHOW or SUMMARIZE is taken"
#: Without them DuckDB would first make a type of what it finds.
PIVOT = "a PIVOT needs its values named: PIVOT t ON column IN ('a', 'b')"
#: DuckDB cuts the words that it cites after so many bytes, which may be in the middle of a letter.
UNREADABLE = "the statement is wrong, and DuckDB's words on it cannot be read: look for odd letters"
#: Of the memory of its process so much is DuckDB's, before it says no by itself.
DUCKDB_MEMORY_SHARE = 0.6

_BLANK = r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)"
_FIRST_WORD = re.compile(rf"{_BLANK}*(\w{{1,40}})", re.DOTALL)
_EXPLAIN = re.compile(
    rf"{_BLANK}*EXPLAIN\b(?:{_BLANK}*ANALYZE\b)?(?:{_BLANK}*\([\w\s,]*\))?",
    re.DOTALL | re.IGNORECASE,
)


def opened(
    file: Path, *, memory_bytes_max: int = 2 << 30, threads: int = 2
) -> duckdb.DuckDBPyConnection:
    """Open a file of the data folder so that nothing but it, and the history beside it, can be reached.

    It is read-only; the connection's own database, `memory`, holds nothing but empty schemas for the views of
    the history. Raises FileNotFoundError or duckdb.Error.
    """
    if not file.exists():
        raise FileNotFoundError(file)
    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
            "allow_persistent_secrets": False,
            "memory_limit": f"{int(memory_bytes_max * DUCKDB_MEMORY_SHARE)}B",
            "threads": threads,
            "temp_directory": "",
            "max_temp_directory_size": "0B",
        },
    )
    for schema in history.SCHEMAS:
        connection.execute(f"CREATE SCHEMA {schema}")
    connection.execute(f"ATTACH {quoted(str(file))} AS {file.stem} (READ_ONLY)")
    _fence(connection, file.parent.absolute())
    look_in(connection, file.stem)
    connection.execute("SET lock_configuration = true")
    return connection


def _fence(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    reachable = ", ".join(quoted(str(folder / name)) for name in history.FOLDERS)
    connection.execute(f"SET allowed_directories = [{reachable}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET errors_as_json = true")


def look_in(connection: duckdb.DuckDBPyConnection, database: str) -> None:
    """Have names mean those of the snapshot, then those of the history."""
    path = ",".join([f"{database}.main", *(f"memory.{schema}" for schema in history.SCHEMAS)])
    connection.execute(f"SET search_path = '{path}'")


def snapshot_of(folder: Path) -> Path:
    """Return where the operators' file is."""
    return folder / OPS_FILE


def check(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Let pass one statement that reads and calls nothing but what computes.

    Raises Refused with words and place, or duckdb.Error when it cannot be parsed.
    """
    size = len(sql.encode(errors="replace"))
    if size > SQL_BYTES_MAX:
        raise Refused(f"the statement has {size} bytes, more than the {SQL_BYTES_MAX} it may have")
    if "\0" in sql:
        raise Refused(located(sql, sql.index("\0"), "a NUL byte is not SQL"))
    statements = _statements(connection, sql)
    if len(statements) > 1 and statements[0].type.name == "CREATE" and not statements[0].query:
        raise Refused(f"{TAKEN}; {PIVOT}")
    if len(statements) != 1:
        raise Refused(f"{TAKEN}, not {len(statements)} statements")
    kind = statements[0].type.name
    if kind == "EXPLAIN":
        sql = _unexplained(connection, sql)
    elif kind != "SELECT":
        raise Refused(f"{TAKEN}, not {_first_word(sql)}: {_instead(sql)}")
    for function, where, place in _called(_tree(connection, sql)):
        if function.get("schema") in functions.OURS and (place or _is_ours(connection, function)):
            continue
        _check_function(sql, function, where, place)


def _is_ours(connection: duckdb.DuckDBPyConnection, function: dict[str, Any]) -> bool:
    """Whether `ops.NAME(...)` in an expression is our macro: else `ops` may be a column, and NAME any function."""
    found = connection.execute(
        "SELECT 1 FROM duckdb_functions() WHERE schema_name = ? AND function_name = lower(?) "
        "AND function_type = 'macro'",
        [function["schema"], str(function["function_name"])],
    )
    return found.fetchone() is not None


def _statements(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Any]:
    try:
        return list(connection.extract_statements(sql))
    except UnicodeError:
        raise Refused(UNREADABLE) from None


def _instead(sql: str) -> str:
    return PIVOT if _first_word(sql) == "PIVOT" else "this reads a snapshot"


def _unexplained(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return the statement after EXPLAIN, at its place."""
    match = _EXPLAIN.match(sql)
    if not match:
        raise Refused(f"{TAKEN}; write EXPLAIN as the first word")
    inner = " " * match.end() + sql[match.end() :]
    statements = _statements(connection, inner)
    if len(statements) != 1 or statements[0].type.name != "SELECT":
        raise Refused(f"{TAKEN}, and EXPLAIN only of those: writing is refused, also in a plan")
    return inner


def _tree(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    rows = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    try:
        tree = json.loads(rows[0][0])
    except RecursionError:
        raise Refused("the statement is nested too deeply") from None
    if not tree["error"]:
        return tree
    if tree.get("error_type") == "not implemented":
        raise Refused(f"{TAKEN}, not {_first_word(sql)}: this reads a snapshot")
    raise Refused(short(str(tree.get("error_message", "the statement cannot be taken apart"))))


def _called(tree: Any) -> Iterator[tuple[dict[str, Any], frozenset[str], str]]:
    """Yield (function, what is allowed where it stands, that place) of every call in *tree*."""
    left = [tree]
    in_from: set[int] = set()
    while left:
        node = left.pop()
        if isinstance(node, list):
            left += node
        elif isinstance(node, dict):
            left += node.values()
            if node.get("type") == "TABLE_FUNCTION" and isinstance(node.get("function"), dict):
                in_from.add(id(node["function"]))
            if node.get("function_name"):
                if id(node) in in_from:
                    yield node, functions.TABLE_FUNCTIONS, " in FROM"
                else:
                    yield node, functions.FUNCTIONS, ""


def _check_function(
    sql: str, function: dict[str, Any], allowed: frozenset[str], place: str
) -> None:
    name = str(function["function_name"]).lower()
    if name in allowed:
        return
    at = function.get("query_location")
    words = f"the function {visible(name)[:60]}{place} is not allowed: only what computes, and what is in ops and history, is"
    raise Refused(located(sql, at if isinstance(at, int) and at < len(sql) * 4 else None, words))


def _first_word(sql: str) -> str:
    match = _FIRST_WORD.match(sql)
    return match[1].upper() if match else "this"
