"""The scripts of views and macros (`ops`, `history`) in the live file: run only when what stands is not what they make.

To run them takes more than all else at a start. The comment of a view `scripts_run`, made after them in the same
transaction, is a digest of the scripts, of DuckDB's version, of what lies beneath and of what then stood: another version
of ours, a view that somebody replaced by hand, or a table with other columns is found by it, and all is made anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

import duckdb

NOTE = "scripts_run"
#: Of `readings` the comments alone: they say which columns (`hours.py`). What is in Parquet comes and goes.
_VIEWS = (
    "SELECT schema_name, view_name, comment, if(schema_name = 'readings', '', sql) FROM duckdb_views() "
    f"WHERE schema_name IN ('main', 'ops', 'history', 'readings') AND NOT internal AND view_name <> '{NOTE}'"
)
_MACROS = (
    "SELECT schema_name, function_name, parameters, comment, macro_definition "
    "FROM duckdb_functions() WHERE NOT internal"
)
_TABLES = "SELECT table_name, comment, sql FROM duckdb_tables() WHERE schema_name = 'main'"
_WORD = re.compile(r"\w+")
#: DuckDB writes the same text otherwise once it has read it from the file: other parentheses and quotes, another order
#: of names, a comma or nothing for these, and a row of names for a lambda's.
_EITHER_WAY = {"CROSS", "JOIN", "MATERIALIZED", "lambda", "row"}


def run_scripts(connection: duckdb.DuckDBPyConnection, scripts: Iterable[str]) -> bool:
    """Run the scripts if need be, in the transaction of the caller; say whether they were. Raises duckdb.Error."""
    text = ";\n".join(scripts)
    note = _note(connection)
    if note and note == _digest(connection, text):
        return False
    connection.execute(text)
    connection.execute(f"CREATE OR REPLACE VIEW {NOTE} AS SELECT 'its comment' AS digest")
    connection.execute(f"COMMENT ON VIEW {NOTE} IS '{_digest(connection, text)}'")
    return True


def _note(connection: duckdb.DuckDBPyConnection) -> str:
    found = connection.execute(
        "SELECT comment FROM duckdb_views() WHERE schema_name = 'main' AND view_name = ?", [NOTE]
    ).fetchall()
    return found[0][0] or "" if found else ""


def _digest(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    """Return the digest of what there is to run, and of what stands."""
    stands = [
        (*names, sorted(word for word in _WORD.findall(sql or "") if word not in _EITHER_WAY))
        for query in (_VIEWS, _MACROS, _TABLES)
        for *names, sql in connection.execute(query).fetchall()
    ]
    told = duckdb.__version__, text, sorted(map(repr, stands))
    return sha256(repr(told).encode()).hexdigest()
