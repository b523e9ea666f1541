"""A small fleet is cheap: fixed costs arise less often, or on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.store import queue, writer
from gangline.aggregator.store.queue import FEW_ROWS, Pending, Queue
from gangline.aggregator.store.writer import Writer
from gangline.contract.wire import query_pb2
from tests.aggregator.query.test_service import client, responses


@pytest.mark.parametrize(
    ("rows", "waits"), [(1, [(122_880, 2.0), (FEW_ROWS, 3.0)]), (FEW_ROWS, [(122_880, 2.0)])]
)
def test_a_commit_of_few_rows_may_be_later(
    monkeypatch: pytest.MonkeyPatch, rows: int, waits: list[tuple[int, float]]
) -> None:
    """33 hosts cost 4 % of a core for a commit of 45 tables every 2 s; 300 hosts keep that pace."""
    waited = list[tuple[int, float]]()
    monkeypatch.setattr(
        queue.Queue, "_wait_for_rows", lambda _, *wait: waited.append(wait), raising=True
    )
    pending_queue = Queue(AggregatorConfig())
    pending_queue._pending.rows = rows
    pending_queue._pending.own_health.append((0, "calls", 1.0, ""))
    taken = pending_queue._take_pending()
    assert taken is not None and waited == waits


def test_the_log_of_a_small_fleet_is_folded_in_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data that waits for a checkpoint was the largest part of 33 hosts' memory."""
    store_writer = Writer(tmp_path / "gangline.duckdb", retention_hours=1, history_days=1)

    def threshold() -> str:
        with store_writer.cursor() as cursor:
            return str(cursor.execute("SELECT current_setting('checkpoint_threshold')").fetchall())

    try:
        large = threshold()
        store_writer.commit(Pending(), 1)
        small = threshold()
        assert small != large and "61.0 MiB" in small
        monkeypatch.setattr(writer, "SMALL_COMMIT_ROWS", 0)
        store_writer.commit(Pending(), 2)
        assert threshold() == large
        store_writer.hold_checkpoints()
        held = threshold()
        monkeypatch.undo()
        store_writer.commit(Pending(), 3)
        assert threshold() == held, "a backup's copy is of one moment"
        store_writer.resume_checkpoints()
        store_writer.commit(Pending(), 4)
        assert threshold() == small
    finally:
        store_writer.close()


@pytest.mark.slow
@pytest.mark.usefixtures("live_operators_files")
async def test_no_process_stands_ready_for_questions_that_nobody_asks(lab: Any) -> None:
    """It holds DuckDB and Arrow, 80 MB; the first query starts it."""
    async with lab.aggregator() as aggregator, client(aggregator) as stub:
        before = aggregator.query.pool.fork_server_pid
        await responses(stub.Query(query_pb2.QueryRequest(sql="SELECT 1")))
        after = aggregator.query.pool.fork_server_pid
    assert not before and after
