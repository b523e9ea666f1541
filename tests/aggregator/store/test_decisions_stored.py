"""Stored decisions: each once, bounded by age and bytes, with a correct `replayable`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.store import queue
from gangline.aggregator.store.decision_records import (
    ChoiceRecord,
    DecisionCommit,
    DecisionLimits,
    DecisionRecord,
    OptionSummary,
)
from gangline.aggregator.store.decisions import drop_old_decisions, put_decisions, read_decision
from gangline.aggregator.store.store import Store
from tests.aggregator.advisories.served import Tables

SECOND_NS, DAY_NS = 10**9, 86_400 * 10**9
START_NS = 1_800_000_000 * SECOND_NS
WIDE = DecisionLimits()


def decision(at: int, *inputs: str, time_ns: int = 0, size: int = 10) -> DecisionRecord:
    return DecisionRecord(
        f"d{at:020x}", time_ns or START_NS + at * SECOND_NS, "placement", "admin 'local' (by local)", "", at, 7, "0.1",
        0.001, False, (OptionSummary("", 2, 1.5, 1.0, 2.0), OptionSummary("", 2, 1.6, 1.0, 2.0, 0.9, 1.0)),
        ("h1", "h2"), (), b"q" * size, b"a" * size, inputs,
    )  # fmt: skip


@pytest.fixture
def connection() -> Iterator[Any]:
    tables = Tables()
    yield tables.connection
    tables.close()


def put(
    connection: Any, records: list[DecisionRecord], limits: DecisionLimits = WIDE, **inputs: bytes
) -> list[str]:
    return put_decisions(connection, [DecisionCommit(records, inputs)], limits)


def replayable(connection: Any) -> list[bool]:
    rows = connection.execute("SELECT replayable FROM decisions ORDER BY time").fetchall()
    return [is_replayable for (is_replayable,) in rows]


def test_a_decision_is_stored_once_with_parts_that_others_share(connection: Any) -> None:
    """The same request about the same snapshot has the same id: repeated, it is a single row."""
    assert put(connection, [decision(1, "aa", "bb")], aa=b"1", bb=b"2") == []
    assert put(connection, [decision(1, "aa", "bb"), decision(2, "aa", "cc")], cc=b"3") == []
    assert replayable(connection) == [True, True]
    stored = read_decision(connection, decision(2).decision)
    assert stored is not None and stored.inputs == {"aa": b"1", "cc": b"3"}
    assert stored.record.request == b"q" * 10 and stored.record.time_ns == START_NS + 2 * SECOND_NS
    assert read_decision(connection, decision(3).decision) is None
    ((options,),) = connection.execute("SELECT options FROM decisions LIMIT 1").fetchall()
    assert options[0]["survival"] is None and options[1]["survival"] == 0.9


def test_a_part_that_never_came_is_named(connection: Any) -> None:
    """After a dropped batch of the score process, missing parts are named, to be sent again."""
    assert put(connection, [decision(1, "aa", "bb")], aa=b"1") == ["bb"]
    assert replayable(connection) == [False]
    stored = read_decision(connection, decision(1).decision)
    assert stored is not None and stored.inputs is None


def test_the_oldest_inputs_go_first(connection: Any) -> None:
    """Beyond their limit the oldest inputs are deleted, except shared ones in use."""
    limits = DecisionLimits(inputs_bytes_max=1000)
    dropped: list[str] = []
    for number in range(8):
        part = {f"p{number}": bytes(200), "names": bytes(100)}
        dropped += put(connection, [decision(number, "names", f"p{number}")], limits, **part)
        ((total,),) = connection.execute("SELECT sum(bytes) FROM decision_inputs").fetchall()
        assert total <= 1000
    assert dropped == ["p0", "p1", "p2", "p3"]
    assert replayable(connection) == [False] * 4 + [True] * 4
    for number in range(8):
        stored = read_decision(connection, decision(number).decision)
        assert stored is not None and (stored.inputs is not None) == (number >= 4)
    assert put(connection, [decision(9, "names")], DecisionLimits(inputs_bytes_max=0)) != []
    assert not any(replayable(connection))


def test_the_oldest_decisions_go_by_bytes_and_by_age(connection: Any) -> None:
    """Twenty plans a second must not fill the disk; a plan of a quarter ago is deleted."""
    limits = DecisionLimits(bytes_max=10_000)
    for number in range(10):
        put(connection, [decision(number, size=500)], limits)
    rows = connection.execute("SELECT decision FROM decisions ORDER BY time").fetchall()
    assert [decision_id for (decision_id,) in rows] == [
        decision(number).decision for number in range(6, 10)
    ]
    choice = ChoiceRecord("reservations/1", decision(9).decision, 1, "slurm", START_NS, START_NS, 2)
    put_decisions(connection, [DecisionCommit(choices=[choice, choice])], limits)
    put(connection, [decision(20, time_ns=START_NS + 29 * DAY_NS)], limits)
    drop_old_decisions(connection, START_NS + DAY_NS)
    for name, count in (("decisions", 1), ("decision_records", 1), ("decision_choices", 0)):
        assert connection.execute(f"SELECT count(*) FROM {name}").fetchall() == [(count,)]


def test_a_choice_is_stored_once(connection: Any) -> None:
    """Each restart notes active reservations again: the time of the choice does not change."""
    first = ChoiceRecord("reservations/5", decision(1).decision, 2, "slurm", START_NS, START_NS, 4)
    later = first._replace(time_ns=START_NS + DAY_NS)
    put(connection, [decision(1)])
    for choice in (first, later):
        put_decisions(connection, [DecisionCommit(choices=[choice])], WIDE)
    stored = read_decision(connection, decision(1).decision)
    assert stored is not None and stored.choices == (first,)


def test_decisions_wait_within_bounds_and_are_stored_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk for a day must not cost memory for a day of plans; dropped ones are counted."""
    monkeypatch.setattr(queue, "DECISION_BYTES_WAITING_MAX", 5000)
    store = Store.open(tmp_path, AggregatorConfig(commit_seconds=60.0, ops_seconds=0.0))
    taken = [store.submit_decisions(DecisionCommit([decision(number)])) for number in range(8)]
    assert taken == [True] * 4 + [False] * 4 and store.dropped_decisions == 4
    store.request_commit()
    store.run_on_writer_thread(lambda _: None)
    assert store.submit_decisions(DecisionCommit([decision(9, "lost")]))
    store.request_commit()
    store.run_on_writer_thread(lambda _: None)
    with store.reading() as cursor:
        assert cursor.execute("SELECT count(*) FROM ops.decisions").fetchall() == [(5,)]
    assert list(store.missing_inputs) == ["lost"]
    assert store.close() == ""
