"""The history behind a question: found when it is named, never made before, never written."""

from __future__ import annotations

import json
import shutil
import types
from pathlib import Path

import duckdb
import pytest

from gangline.aggregator.query import sandbox, worker
from gangline.aggregator.query.messages import (
    HEADER,
    SUMMARY,
    QueryError,
    QuerySettings,
    Question,
)
from gangline.aggregator.store.parquet import views


@pytest.fixture
def folder(snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    (folder / "segments").mkdir(parents=True)
    shutil.copy(snapshot / "operators.duckdb", folder)
    for place in (folder / "segments", tmp_path):
        duckdb.sql(f"COPY (SELECT 7 AS watts) TO '{place / 'a.parquet'}'")
    files = [
        "CREATE SCHEMA IF NOT EXISTS past",
        f"CREATE OR REPLACE VIEW past.gone AS FROM read_parquet('{tmp_path / 'a.parquet'}')",
        f"CREATE OR REPLACE VIEW past.gpu AS FROM read_parquet('{folder}/segments/a.parquet')",
    ]
    monkeypatch.setattr(views, "statements", lambda _: files)
    return folder


def answer(folder: Path, sql: str) -> tuple[str, dict[str, object]]:
    """Return the end of a query answered in this process: the error message, and the summary."""
    written: list[bytes] = []
    stream = types.SimpleNamespace(write=written.append, flush=lambda: None)
    try:
        worker.run_question(Question(sql, 60.0), QuerySettings(folder, 1 << 30, 2), stream)
        message = ""
    except QueryError as error:
        message = str(error)
    last = written[-1] if written else b""
    return message, json.loads(last[HEADER.size :]) if last[:1] == SUMMARY else {}


@pytest.mark.slow
def test_the_past_is_there_when_it_is_named(folder: Path) -> None:
    """A year of files takes seconds to bind: a query of the latest data must not wait for them."""
    message, summary = answer(folder, "FROM past.gpu WHERE watts = 7")
    assert message == "" and summary["rows"] == 1
    assert str(summary["history_missing_reason"]).startswith("a part of the history")
    message, summary = answer(folder, "FROM hosts")
    assert message == "" and summary["history_missing_reason"] == "" and summary["taken_us"]
    message, _ = answer(folder, "FROM past.nothing")
    assert "nothing does not exist" in message


def test_a_view_reaches_no_further_than_the_history(folder: Path) -> None:
    """A manifest that names a file elsewhere on the machine shows nothing of it."""
    message, _ = answer(folder, "FROM past.gone")
    assert "does not exist" in message


def test_nothing_is_written_into_the_connections_own_database(folder: Path) -> None:
    """Unlike the snapshot the database is writable: only the transaction protects it."""
    with sandbox.open_snapshot(folder / "operators.duckdb") as connection:
        connection.execute("BEGIN TRANSACTION READ ONLY")
        with pytest.raises(duckdb.TransactionException, match="read-only"):
            connection.execute("CREATE TABLE memory.main.mine AS SELECT 1")
