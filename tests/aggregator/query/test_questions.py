"""The check before execution, over generated statements."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.aggregator.query import sandbox
from gangline.aggregator.query.messages import QueryRefused
from gangline.aggregator.query.sandbox import located, visible
from tests.aggregator.query.asking import ask_all
from tests.aggregator.query.corpus import FOLDER, statements

WORDS = sorted(
    {
        word
        for path in FOLDER.glob("*.sql")
        for statement in statements(path.name)
        if len(statement.sql) < 2000
        for word in re.findall(r"'[^']*'|\w+|[^\w\s]", statement.sql)
    }
)


@pytest.fixture(scope="module")
def connection(snapshot: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with sandbox.open_snapshot(snapshot / "operators.duckdb") as connection:
        yield connection


@pytest.mark.slow
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=25))
def test_the_check_passes_only_what_reads(
    connection: duckdb.DuckDBPyConnection, words: list[str]
) -> None:
    """Any text is refused with a message, or is a single SELECT or EXPLAIN."""
    sql = " ".join(words)
    try:
        sandbox.check(connection, sql)
    except (QueryRefused, duckdb.Error):
        return
    (statement,) = connection.extract_statements(sql)
    assert statement.type.name in ("SELECT", "EXPLAIN")


def mutated(source: random.Random, known: list[str]) -> str:
    """Return a statement with pieces of others in it."""
    tokens = source.choice(known).split(" ")
    for _ in range(source.randrange(1, 4)):
        other = source.choice(known).split(" ")
        position, begin = source.randrange(len(tokens) + 1), source.randrange(len(other))
        tokens[position : position + source.randrange(3)] = other[
            begin : begin + source.randrange(1, 5)
        ]
    return " ".join(tokens)


@pytest.mark.slow
def test_mutants_of_the_corpus_write_nothing(snapshot: Path) -> None:
    """`snapshot` checks that no byte changed, `ask_all` that no process is left; each query ends
    with rows or an error.
    """
    source = random.Random(1)
    known = [
        statement.sql
        for path in sorted(FOLDER.glob("*.sql"))
        if path.name != "bombs.sql"  # their mutants are bombs, and take the time of bombs
        for statement in statements(path.name)
    ]
    questions = [mutated(source, known) for _ in range(80)]
    for question, reply in zip(questions, ask_all(snapshot, questions, seconds=0.3), strict=True):
        assert (reply.summary is None) != (reply.error is None), question
        assert reply.summary or str(reply.error).strip(), question


@given(st.text(max_size=300), st.integers(-5, 2000))
def test_a_mark_stands_below_what_it_marks(sql: str, position: int) -> None:
    """Tabs, several lines, letters of several bytes, a place beyond the end: words, never a traceback."""
    message = located(sql, position, "is wrong")
    assert all(character.isprintable() or character == "\n" for character in message)
    if 0 <= position < len(sql.encode()) and sql.isascii():
        head, line, mark = message.split("\n")
        assert head.endswith("is wrong")
        character = sql[position]
        if character != "\n":
            assert line[mark.index("^") : mark.index("^") + 1] in (
                character,
                visible(character),
                "",
            )


def test_what_is_allowed_is_there(connection: duckdb.DuckDBPyConnection) -> None:
    """An allowed name that DuckDB does not have would hide a typing error in the list."""
    rows = connection.execute(
        "SELECT DISTINCT lower(function_name) FROM duckdb_functions()"
    ).fetchall()
    known_names = {name for (name,) in rows}
    #: Names that the parser gives to other syntax, and keywords that it treats as functions.
    spoken = {"!", "->", "coalesce", "current_time", "current_timestamp", "grouping", "grouping_id"}
    newer = {*sandbox._SCALAR_FUNCTION_NAMES_SINCE_2.split(), *sandbox._OPERATORS_SINCE_2}
    assert (sandbox.FUNCTIONS | sandbox.TABLE_FUNCTIONS) - known_names - newer <= spoken


def test_no_view_of_duckdbs_shows_where_we_are(
    connection: duckdb.DuckDBPyConnection, snapshot: Path
) -> None:
    """`FROM pg_settings` gave 160 settings, among them absolute paths: no permitted view of DuckDB
    may contain a path.
    """
    views = connection.execute("SELECT schema_name, view_name FROM duckdb_views() WHERE internal")
    passed = set()
    for schema, name in views.fetchall():
        for sql in (f"FROM {schema}.{name}", f"FROM system.{schema}.{name}", f"FROM {name}"):
            try:
                sandbox.check(connection, sql)
                rows = connection.cursor().execute(sql).fetchall()
            except QueryRefused:
                continue
            except duckdb.CatalogException:
                assert schema == "information_schema" and "." not in sql
                continue
            passed.add(name)
            assert str(snapshot) not in str(rows), sql
    assert passed <= sandbox.CATALOG_VIEWS
    for name in sorted(sandbox.TABLE_FUNCTIONS):
        if name.startswith(("duckdb_", "pg_")):
            rows = connection.cursor().execute(f"FROM {name}()").fetchall()
            assert rows and str(snapshot) not in str(rows), name
    ours = "SELECT count(*) FROM duckdb_views() AS a WHERE NOT internal AND view_name IN (SELECT view_name FROM duckdb_views() WHERE internal)"
    assert connection.execute(ours).fetchall() == [(0,)]


def test_a_write_within_a_cte_meets_the_transaction(snapshot: Path, tmp_path: Path) -> None:
    """DuckDB 2.0 takes `WITH d AS (DELETE ..) SELECT` for a SELECT: the transaction alone stops it, or the check."""
    copy = tmp_path / "operators.duckdb"
    copy.write_bytes((snapshot / "operators.duckdb").read_bytes())
    sql = "WITH gone AS (DELETE FROM hosts RETURNING *) SELECT count(*) FROM gone"
    with duckdb.connect(str(copy)) as connection:
        if duckdb.__version__.startswith("1."):
            with pytest.raises(duckdb.ParserException):
                connection.extract_statements(sql)
            pytest.skip("DuckDB 1 does not know it")
        assert connection.extract_statements(sql)[0].type.name == "SELECT"
        connection.execute("BEGIN TRANSACTION READ ONLY")
        with pytest.raises(duckdb.Error):
            connection.execute(sql)
