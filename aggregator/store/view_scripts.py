"""Runs the scripts of the live file's views and macros if their digest changed.

Running the scripts takes longer than the rest of a start. The comment of the view DIGEST_VIEW,
created after them in the same transaction, is a digest of the scripts, DuckDB's version, the tables
and the resulting views and macros. After an update, a manual change of a view or a change of
columns the digest differs, and everything is recreated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

import duckdb
from duckdb import DuckDBPyConnection as Connection

DIGEST_VIEW = "scripts_run"
#: For `readings` only the comments, which name the columns (`live_tables.py`): the Parquet files
#: change often.
_VIEWS = (
    "SELECT schema_name, view_name, comment, if(schema_name = 'readings', '', sql) FROM duckdb_views() "
    f"WHERE schema_name IN ('main', 'ops', 'history', 'readings') AND NOT internal AND view_name <> '{DIGEST_VIEW}'"
)
_MACROS = (
    "SELECT schema_name, function_name, parameters, comment, macro_definition "
    "FROM duckdb_functions() WHERE NOT internal"
)
_TABLES = "SELECT table_name, comment, sql FROM duckdb_tables() WHERE schema_name = 'main'"
_WORD = re.compile(r"\w+")
#: DuckDB changes a definition when it reads it back from the file: parentheses, quotes, the order
#: of names, a comma for these words, and `row` for `lambda`.
_IGNORED_WORDS = {"CROSS", "JOIN", "MATERIALIZED", "lambda", "row"}


def run_scripts(connection: Connection, scripts: Iterable[str]) -> bool:
    """Run the scripts if their digest changed; return whether they ran. Raises duckdb.Error.

    They run in the caller's transaction.
    """
    text = ";\n".join(scripts)
    stored_digest = _stored_digest(connection)
    if stored_digest and stored_digest == _digest(connection, text):
        return False
    connection.execute(text)
    connection.execute(f"CREATE OR REPLACE VIEW {DIGEST_VIEW} AS SELECT 'its comment' AS digest")
    connection.execute(f"COMMENT ON VIEW {DIGEST_VIEW} IS '{_digest(connection, text)}'")
    return True


def _stored_digest(connection: Connection) -> str:
    rows = connection.execute(
        "SELECT comment FROM duckdb_views() WHERE schema_name = 'main' AND view_name = ?",
        [DIGEST_VIEW],
    ).fetchall()
    return rows[0][0] or "" if rows else ""


def _digest(connection: Connection, text: str) -> str:
    existing = [
        (*names, sorted(word for word in _WORD.findall(sql or "") if word not in _IGNORED_WORDS))
        for query in (_VIEWS, _MACROS, _TABLES)
        for *names, sql in connection.execute(query).fetchall()
    ]
    content = duckdb.__version__, text, sorted(map(repr, existing))
    return sha256(repr(content).encode()).hexdigest()
