"""A start recreates only wrong views and macros: to recreate all takes most of its time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gangline.aggregator.sql import quoted
from gangline.aggregator.store import duckdb_file, view_scripts, writer
from gangline.aggregator.store.duckdb_file import CONNECTION_CONFIG
from gangline.aggregator.store.store_folder import STORE_FILE, wal_of
from gangline.aggregator.store.view_scripts import run_scripts
from gangline.aggregator.store.writer import Writer

HOUR = "hours.gpu_1s__202611201000"
#: All that a start may create, as text: DuckDB changes the text when it parses it again.
STANDING = (
    "SELECT schema_name || '.' || view_name, comment, sql FROM duckdb_views() WHERE NOT internal",
    "SELECT schema_name || '.' || function_name, comment, macro_definition FROM duckdb_functions() WHERE NOT internal",
)

#: Each is found by itself: all scripts are run for any.
OF_SCRIPTS = (
    "CREATE OR REPLACE VIEW ops.hosts AS SELECT 1 AS host",
    "CREATE OR REPLACE VIEW snapshot AS SELECT 1 AS taken",
    "CREATE OR REPLACE MACRO ops.worst(n := 10) AS TABLE SELECT n AS host",
    "CREATE OR REPLACE MACRO history.by_part(part) AS TABLE SELECT part AS host",
    "DROP VIEW ops.freshness",
    "DROP MACRO TABLE ops.worst",
    "COMMENT ON VIEW ops.hosts IS 'mine'",
    "ALTER TABLE findings ADD COLUMN of_another_version DOUBLE",
    "DROP VIEW scripts_run",
    "COMMENT ON VIEW scripts_run IS NULL",
)
OF_HOURS = (
    "CREATE OR REPLACE VIEW live.gpu_1s AS SELECT 'a' AS host",
    "CREATE OR REPLACE VIEW latest.host_1s AS SELECT 'a' AS host",
    "DROP VIEW readings.gpu_1s",
    "COMMENT ON VIEW past.gpu_1s IS NULL",
)


class Listening:
    """A connection that records statements which create something."""

    def __init__(self, connection: Any) -> None:
        self.connection, self.made = connection, list[str]()

    def execute(self, text: str, *arguments: Any) -> Any:
        if text.lstrip().startswith(("CREATE", "--", "COMMENT")):
            self.made.append(text)
        return self.connection.execute(text, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was started and closed, with a table of readings."""
    path = tmp_path_factory.mktemp("made") / STORE_FILE
    start(path)
    by_hand(path, f"CREATE TABLE {HOUR} (host VARCHAR, device VARCHAR, time TIMESTAMP)")
    start(path)
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """A copy of `made`."""
    return Path(shutil.copy(made, tmp_path / STORE_FILE))


@pytest.fixture(autouse=True)
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Record the statements of each writer."""
    opened = duckdb_file.open_store
    monkeypatch.setattr(writer, "open_store", lambda path: Listening(opened(path)))
    yield


def start(path: Path) -> list[str]:
    """Start and end a writer; return the statements that it ran."""
    opened_writer = Writer(path, retention_hours=24, history_days=30)
    statements: list[str] = getattr(opened_writer._connection, "made", [])
    opened_writer.close()
    return statements


def by_hand(path: Path, statement: str) -> None:
    with duckdb.connect(str(path), config=CONNECTION_CONFIG) as connection:
        connection.execute(statement)


def standing(path: Path) -> set[str]:
    with duckdb.connect(str(path), config=CONNECTION_CONFIG, read_only=True) as connection:
        rows = [row for query in STANDING for row in connection.execute(query).fetchall()]
    return {
        f"{name} {comment} {sorted(view_scripts._WORD.findall(sql))}" for name, comment, sql in rows
    }


def test_nothing_is_made_where_all_is_right(path: Path) -> None:
    """Each restart ran 700 statements without an effect."""
    before = standing(path)
    assert len(before) > 300
    assert start(path) == []
    assert standing(path) == before


@pytest.mark.slow
def test_each_change_by_hand_is_found(path: Path) -> None:
    """A view tried out on the stopped store must not stay."""
    texts = (
        duckdb_file.script("live.sql"),
        duckdb_file.ops_script(),
        duckdb_file.script("history.sql"),
    )
    with duckdb.connect(str(path), config=CONNECTION_CONFIG) as connection:
        ((comment,),) = connection.execute(
            "SELECT comment FROM duckdb_functions() WHERE function_name = 'severity'"
        ).fetchall()
        commented = f"COMMENT ON MACRO ops.severity IS {quoted(comment)}"  # equal to the original
        again = f"CREATE OR REPLACE MACRO ops.severity(state_name) AS 3; {commented}"
        for change in (*OF_SCRIPTS, again):
            connection.execute("BEGIN")
            assert not run_scripts(connection, texts)
            connection.execute(change)
            assert run_scripts(connection, texts), change
            assert not run_scripts(connection, texts), change
            connection.execute("ROLLBACK")


def test_what_was_changed_by_hand_is_made_anew(path: Path) -> None:
    """All changes are undone, in one start."""
    before = standing(path)
    by_hand(path, "; ".join((OF_SCRIPTS[0], *OF_HOURS)))
    assert standing(path) != before
    start(path)
    assert standing(path) == before
    assert start(path) == []


def test_of_the_hours_only_what_came_is_made(path: Path) -> None:
    """The comment of each view names its sources."""
    by_hand(path, f"DROP TABLE {HOUR}")
    statements = start(path)
    assert [text.partition(" AS ")[0].partition(" IS ")[0] for text in statements] == [
        'CREATE OR REPLACE VIEW live."gpu_1s"',
        'COMMENT ON VIEW live."gpu_1s"',
    ]
    with duckdb.connect(str(path), config=CONNECTION_CONFIG) as connection:
        assert connection.execute("FROM readings.gpu_1s").fetchall() == []


def test_other_columns_beneath_make_all_above_anew(path: Path) -> None:
    """DuckDB stores a view's columns: a view over `SELECT *` fails once the table has others."""
    by_hand(path, f"ALTER TABLE {HOUR} ADD COLUMN of_another_version DOUBLE")
    statements = start(path)
    assert any("readings." in text for text in statements)
    assert any("ops.worst" in text for text in statements)


def test_another_duckdb_makes_all_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored form of a view belongs to its DuckDB version."""
    monkeypatch.setattr(duckdb, "__version__", "9.9")
    statements = "".join(start(path))
    assert 'VIEW latest."host_1s"' in statements and "ops.worst" in statements
    assert start(path) == []


def test_up_and_down_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version has its own views, whichever ran before it."""
    script, before = duckdb_file.ops_script(), standing(path)
    ours = "SELECT host, state FROM scores"
    with monkeypatch.context() as newer:
        text = f"{script}CREATE OR REPLACE VIEW ops.freshness AS {ours};"
        newer.setattr(writer, "ops_script", lambda: text)
        assert ours in "".join(start(path))
        assert start(path) == []
    start(path)
    assert standing(path) == before


def test_a_version_before_that_knows_nothing_of_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version replaces all views, and leaves this version's note."""
    before = standing(path)
    by_hand(path, duckdb_file.ops_script().replace("'UNHEALTHY'", "'BAD'"))
    assert standing(path) != before
    start(path)
    assert standing(path) == before


@pytest.mark.slow
@pytest.mark.parametrize("at", ["VIEW scripts_run AS", "COMMIT"])
def test_killed_in_the_middle(path: Path, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `kill -9` at any moment the next start creates all that is missing."""
    before, killed = standing(path), path.with_name("killed.duckdb")
    by_hand(path, "CREATE OR REPLACE VIEW ops.hosts AS SELECT 1 AS host; DROP VIEW latest.host_1s")
    execute = Listening.execute

    def dying(self: Listening, text: str, *arguments: Any) -> Any:
        if at in text and not killed.exists():
            shutil.copy(path, killed)
            if wal_of(path).exists():
                shutil.copy(wal_of(path), wal_of(killed))
        return execute(self, text, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Listening, "execute", dying)
        assert start(path)
    assert standing(killed) != before
    start(killed)
    assert standing(killed) == before
    assert start(killed) == []
