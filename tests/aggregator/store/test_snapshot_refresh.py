"""The operators' file is written on request, as often as its cost allows, and rarely otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.aggregator.query.messages import newest_moment_us, staleness_message
from gangline.aggregator.store import snapshot_refresh
from gangline.aggregator.store.snapshot_refresh import Refresh, RefreshCost, RequestFile

NOW_US = 1_700_000_000_000_000  # 2023-11-14 22:13:20
MINUTE_US = 60_000_000


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Refresh]:
    """A refresh that wrote a file at 100 s, with 1 s of CPU."""
    refresh = Refresh(RefreshCost(15.0), RequestFile(tmp_path))
    assert refresh.due_seconds(0.0) == 0  # the first is written at once
    refresh.started()
    refresh.written(1_000, RefreshCost(15.0, 1.5, 1.0), 100.0)
    yield refresh
    refresh.requests.close()


def test_without_a_question_a_small_file_is_written_every_two_minutes(made: Refresh) -> None:
    """33 hosts cost 10 % of a core for a file every 15 s that nobody read."""
    assert made.due_seconds(100.0) == 120.0


def test_who_asks_for_a_newer_moment_has_a_file_of_it_after_a_rest_by_its_cost(
    made: Refresh,
) -> None:
    """The SQL of `explain` found no rows: it named a moment newer than the file."""
    assert made.request(1_000).done()  # it has that moment
    future = made.request(2_000)
    assert not future.done() and made.due_seconds(100.5) == 1.5 and made.due_seconds(103.0) == 0
    assert made.expected_seconds(100.5) == 3.0
    made.started()
    made.written(1_999, RefreshCost(15.0, 1.5, 1.0), 104.0)
    assert not future.done() and made.due_seconds(106.0) == 0
    made.written(2_000, RefreshCost(15.0, 1.5, 1.0), 107.0)
    assert future.done() and made.due_seconds(107.0) == 120.0


def test_a_dear_file_is_written_by_the_clock_and_not_more_often_for_who_asks(made: Refresh) -> None:
    """The file of 10,000 hosts takes 16 s of CPU: requests must not use up a processor."""
    made.written(2_000, RefreshCost(15.0, 16.0, 16.0), 200.0)
    assert made.due_seconds(200.0) == 14.0
    made.request(3_000)
    assert made.due_seconds(200.0) == 14.0


def test_who_waits_for_a_file_that_cannot_be_written_goes_on(made: Refresh) -> None:
    """On a full disk the query uses the last file, and the next write follows after a period."""
    future = made.request(2_000)
    made.failed(110.0)
    assert future.done() and made.due_seconds(110.0) == 15.0


def test_a_process_beside_asks_by_a_file_and_knows_whether_anybody_looks(
    made: Refresh, tmp_path: Path
) -> None:
    """`gangline sql` on the aggregator's machine has its folder and no connection."""
    cost = snapshot_refresh.read_cost(tmp_path)
    assert cost == RefreshCost(15.0, 1.5, 1.0)
    assert made.due_seconds(102.0) == 118.0
    assert snapshot_refresh.request(tmp_path) and made.due_seconds(102.0) == 0
    made.started()
    made.written(2_000, RefreshCost(15.0, 1.5, 1.0), 103.0)
    assert made.due_seconds(103.0) == 120.0
    made.requests.close()
    assert snapshot_refresh.read_cost(tmp_path) is None and not snapshot_refresh.request(tmp_path)


@pytest.mark.parametrize("content", ["", "[1, 2", "[1, 2]", '["a", 2, 3]', "3", "x" * 1000])
def test_a_request_file_that_is_no_such_file_is_as_none(
    made: Refresh, tmp_path: Path, content: str
) -> None:
    """Any user who may enter the folder may write to it."""
    (tmp_path / snapshot_refresh.REQUESTS_FILE).write_text(content)
    assert snapshot_refresh.read_cost(tmp_path) is None


@pytest.mark.parametrize(
    ("sql", "moment_us"),
    [
        ("FROM ops.peers('sim-018', TIMESTAMP '2023-11-14 22:13:00.361623')", NOW_US - 19_638_377),
        ("WHERE time BETWEEN '2023-11-14 22:10:00' AND '2023-11-14 22:12:20'", NOW_US - MINUTE_US),
        ("WHERE time < TIMESTAMP '2023-11-14T22:13:24'", NOW_US),  # evidence may be slightly ahead
        ("WHERE time < TIMESTAMP '2033-11-14 22:13:24'", 0),
        ("SELECT '2023-99-14 22:13', '2023-11-14', 'GPU-2023'", 0),
        ("FROM ops.worst(n := 5)", 0),
    ],
)
def test_the_newest_moment_that_a_statement_names_is_found(sql: str, moment_us: int) -> None:
    """The file must cover that moment."""
    assert newest_moment_us(sql, NOW_US) == moment_us


def test_an_answer_from_a_file_that_is_too_old_says_when_to_try_again() -> None:
    """No rows without a message look like wrong evidence."""
    assert staleness_message(NOW_US, NOW_US, 5.0) == staleness_message(NOW_US, 0, 5.0) == ""
    assert staleness_message(NOW_US, NOW_US - MINUTE_US, 12.4) == (
        "22:13:20 UTC is newer than the file (as of 22:12:20 UTC): try again in 12 s"
    )
