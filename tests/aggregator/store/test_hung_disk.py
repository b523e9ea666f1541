"""A disk that never answers: the aggregator still ends in bounded time, with an error message."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.ingest import ingest
from gangline.aggregator.ingest.ingest import EventWriter
from gangline.aggregator.model import Finding
from gangline.aggregator.store import store as store_module
from gangline.aggregator.store.duckdb_file import THREAD_NAME_PREFIX
from gangline.aggregator.store.journal import EventJournal, StoredEvent
from gangline.aggregator.store.store import Store
from gangline.aggregator.store.writer import Writer
from gangline.contract.wire import telemetry_pb2 as wire
from tests.aggregator.process import Process
from tests.processes import GUARD_SECONDS

#: The command, on a disk whose commits hang for ever once the file HANG is there.
PROGRAM = """
import os, sys, threading
from gangline import cli
from gangline.aggregator.store import store, writer

store.HANGING_SECONDS_MAX = 0.1
commit = writer.Writer.commit

def hangs(self, *arguments):
    if os.path.exists(sys.argv[1]):
        open(sys.argv[1] + ".met", "w").close()
        threading.Event().wait()
    commit(self, *arguments)

writer.Writer.commit = hangs
writer.Writer.close = lambda self: threading.Event().wait()  # as DuckDB's does behind a commit
sys.exit(cli.main(sys.argv[2:]))
"""


class Disk:
    """Calls of `hang` block until `answers` is set."""

    def __init__(self) -> None:
        self.answers, self.asked = threading.Event(), threading.Event()

    def hang(self, *_: Any) -> None:
        self.asked.set()
        assert self.answers.wait(GUARD_SECONDS)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setattr(store_module, "HANGING_SECONDS_MAX", 0.05)
    monkeypatch.setattr(ingest, "CLOSE_SECONDS", 0.05)
    threads_before, hung_disk = {*threading.enumerate()}, Disk()
    yield hung_disk
    hung_disk.answers.set()
    for thread in {
        *threading.enumerate()
    } - threads_before:  # threads left behind end with the test
        if thread.name.startswith(THREAD_NAME_PREFIX):
            thread.join(GUARD_SECONDS)


@pytest.mark.parametrize("where", ["commit", "close", "ops"])
def test_a_store_on_a_disk_that_hangs_is_left(
    where: str, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """An NFS server went away: `systemctl stop` hung in fsync, as did the next start."""
    config = AggregatorConfig(data=tmp_path / "d", ops_seconds=3600, commit_seconds=0.01)
    store = Store.open(tmp_path / "d", config)
    if where == "ops":
        store.refresh.request(time.time_ns()).result(GUARD_SECONDS)  # the next file is an hour away
        monkeypatch.setattr(store, "write_ops", disk.hang)
        store.refresh.cost = replace(
            store.refresh.cost, write_seconds=0
        )  # otherwise a slow machine has no time for another file
    else:
        monkeypatch.setattr(Writer, where, disk.hang)
        monkeypatch.setattr(Writer, "close", disk.hang)  # as DuckDB's close blocks behind a commit
    store.submit_findings([Finding("h", "x", "first", "", 1)])
    if where == "commit":
        assert disk.asked.wait(GUARD_SECONDS)
    with caplog.at_level(logging.ERROR):
        message = store.close(5.0 if where == "ops" else 0.1)
    assert disk.asked.wait(GUARD_SECONDS)
    assert message.startswith(f"{tmp_path / 'd'}: its disk did not answer for 0 s")
    assert "acknowledged data is safe" in message and message in caplog.text
    assert not store._claim.file.closed, "who opens it next would write beside us"


def test_events_that_hang_in_the_journal_hold_up_no_end(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their fsync never returns: they are not acknowledged, and their agent sends them again."""
    config = AggregatorConfig(data=tmp_path / "d", ops_seconds=3600)
    store = Store.open(tmp_path / "d", config)
    monkeypatch.setattr(EventJournal, "append", disk.hang)

    async def append_and_close() -> bool:
        lane = EventWriter(store)
        event = StoredEvent("h", 1, 1, wire.HealthEvent(event_id="e"))
        receipt = asyncio.create_task(lane.append([event]))
        assert await asyncio.to_thread(disk.asked.wait, GUARD_SECONDS)
        lane.close()
        is_acknowledged = receipt.done()
        receipt.cancel()
        return is_acknowledged

    assert asyncio.run(append_and_close()) is False
    assert any(t.name.startswith(THREAD_NAME_PREFIX + "events") for t in threading.enumerate())
    monkeypatch.undo()
    store.close()


@pytest.mark.slow
def test_the_process_ends_and_what_was_receipted_is_there(
    lab: Any, connect: Any, make_agent: Any, until: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """In Python 3.11 asyncio's end waits without a limit for threads that wait for the store."""
    hang, agent = tmp_path / "hang", make_agent()
    process = Process(lab.folder, "--set", "judge_seconds=0.1", program=("-c", PROGRAM, str(hang)))

    async def send_frames() -> None:
        connection = connect(process.port, agent)
        await connection.register()
        await connection.send(agent.message(1))
        hang.touch()
        await connection.stream.write(agent.message(2))
        await until(lambda: (tmp_path / "hang.met").exists())
        assert connection.durable == {1}
        await connection.close()

    asyncio.run(send_frames())
    begin = time.monotonic()
    assert process.end(signal.SIGTERM) == 1
    assert time.monotonic() - begin < GUARD_SECONDS
    stderr = capfd.readouterr().err
    assert "its disk did not answer" in stderr and "send them again" in stderr, stderr
    assert "Traceback" not in stderr

    async def again() -> None:
        async with lab.aggregator() as aggregator:
            connection = connect(aggregator.port, agent)
            await connection.register()
            await connection.send(agent.message(2))
            await connection.close()

    asyncio.run(again())
    assert lab.rows("SELECT count(*), count(DISTINCT power_watts) FROM readings.gpu_1s") == [(4, 2)]
