"""Statements that any client may send to Query: the check before a statement runs."""

from __future__ import annotations

import random
from functools import cache

import duckdb

from gangline.aggregator.query import sandbox
from gangline.aggregator.query.messages import QueryRefused
from gangline.aggregator.query.sandbox import explain_error
from tests.fuzzing.damage import ACCEPTED, REFUSED, damaged, flipped

STATEMENTS = (
    b"FROM ops.worst(n := 10)",
    b"EXPLAIN ANALYZE SELECT a, count(*) FILTER (b > 1) FROM t GROUP BY ALL -- why\n",
    b"WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT list_transform([x], lambda y: y) FROM t;",
    b"/* a */ SELECT write_log('x'), \"read_text\"('/etc/passwd'), {'k': [1, NULL]}, map {'a': 1}['a']",
    b"PIVOT t ON a IN ('x', 'y') USING max(b)",
    b"SELECT 1; DELETE FROM t",
)


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config={"threads": 1})
    connection.execute("SET errors_as_json = true")
    return connection


def fuzz_question(source: random.Random) -> str:
    """A statement passes as a single reading statement, or is refused with a printable message."""
    damage = source.choice((damaged, flipped))
    sql = damage(source.choice(STATEMENTS), source).decode(errors="replace")
    try:
        sandbox.check(_connection(), sql)
    except QueryRefused as refused:
        message = str(refused)
    except duckdb.Error as error:
        message = explain_error(error, sql, list)
    else:
        (statement,) = _connection().extract_statements(sql)
        assert statement.type.name in ("SELECT", "EXPLAIN"), sql
        return ACCEPTED
    assert message and all(word.isprintable() or word == "\n" for word in message), message
    return REFUSED


TARGETS = {"question": fuzz_question}
