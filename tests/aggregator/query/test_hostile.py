"""Statements that would write, read files, or exhaust the machine: each is refused or cut off with a message."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest

from gangline.aggregator.query import sandbox
from gangline.aggregator.query.messages import QueryOutOfMemory, QueryOutOfTime, QueryRefused
from tests.aggregator.query.asking import Reply, ask_all
from tests.aggregator.query.corpus import FOLDER, Statement, statements

#: The time of a bomb; a second later it is killed.
BOMB_SECONDS = 0.2
#: A sample of one in this number of the statements that the fence refuses is also sent to a
#: process.
SENT_ONE_IN = 8
FILES = sorted(path.name for path in FOLDER.glob("*.sql"))


def wrong(statement: Statement, reply: Reply) -> str:
    """Return the difference from the corpus' expectation, "" if there is none."""
    error, summary = reply.error, reply.summary
    reported = f"{statement.name}: {type(error).__name__ if error else summary}: {error}"
    if statement.outcome == "refused":
        good = isinstance(error, QueryRefused) and statement.message in str(error)
    elif statement.outcome == "cut":
        good = isinstance(error, QueryOutOfTime | QueryOutOfMemory) and (
            "ran longer" in str(error) or "more than" in str(error)
        )
    elif statement.outcome == "cut rows":
        good = summary is not None and summary.truncated_reason.startswith("first ")
    else:
        good = summary is not None and summary.rows == reply.table.num_rows
    shown = all(character.isprintable() or character == "\n" for character in str(error or ""))
    return "" if good and shown and len(str(error)) < 2000 else reported[:600]


def at_the_fence(folder: Path, known: Sequence[Statement]) -> dict[str, Reply]:
    """Return the statements of *known* that are refused before they run, by name, on a single connection."""
    refused_replies: dict[str, Reply] = {}
    with sandbox.open_snapshot(sandbox.snapshot_path(folder)) as connection:
        for statement in known:
            with suppress(duckdb.Error):  # a parse error; the process words it differently
                try:
                    sandbox.check(connection, statement.sql)
                except QueryRefused as refused:
                    refused_replies[statement.name] = Reply(error=refused)
    return refused_replies


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_the_corpus(snapshot: Path, file: str) -> None:
    """Every statement ends as its file says, and no process is left. SENT_ONE_IN = 1 sends all to a process."""
    known = statements(file)
    bombs = [statement for statement in known if statement.outcome == "cut"]
    fence = at_the_fence(
        snapshot, [statement for statement in known if statement.outcome == "refused"]
    )
    refused = [statement for statement in known if statement.name in fence]
    others = [
        statement
        for statement in known
        if statement.name not in fence and statement.outcome != "cut"
    ]
    others += refused[::SENT_ONE_IN]
    replies = ask_all(snapshot, [other.sql for other in others])
    cut = ask_all(snapshot, [bomb.sql for bomb in bombs], at_once=8, seconds=BOMB_SECONDS)
    trouble = [*map(wrong, others + bombs, replies + cut)]
    trouble += [
        wrong(refused_statement, fence[refused_statement.name]) for refused_statement in refused
    ]
    assert not any(trouble), "\n".join(filter(None, trouble))


def test_the_corpus_is_large_enough() -> None:
    """Each group that once got through somewhere has its statements, under names of their own."""
    names = [statement.name for file in FILES for statement in statements(file)]
    assert len(names) == len(set(names))
    assert (
        sum(
            statement.outcome in ("refused", "cut")
            for file in FILES
            for statement in statements(file)
        )
        > 150
    )
