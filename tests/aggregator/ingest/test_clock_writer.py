"""Each host's clock against ours in the store: written seldom, and at once after a change."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from gangline.aggregator.commands import explain, hosts
from gangline.aggregator.ingest import clocks
from gangline.aggregator.ingest.clocks import (
    CHANGE_SECONDS,
    DRIFT_SECONDS,
    REPEAT_SECONDS,
    WINDOW_SECONDS,
    ClockLog,
    ClockSample,
    HostClock,
)
from gangline.contract.wire import telemetry_pb2 as wire

SECOND = 1_000_000_000
START = 1_000_000 * SECOND


class ClockOfHost:
    """A host whose wall clock is off by *error* seconds and whose messages take *delay*."""

    def __init__(self) -> None:
        self.clock, self.error, self.delay, self.now = HostClock(), 0.0, 0.001, START

    def speak(self, seconds: float = 1.0) -> ClockSample:
        self.now += round(seconds * SECOND)
        sent = self.now - round(self.delay * SECOND)
        self.clock.observe(b"b" * 16, sent - START, sent + round(self.error * SECOND), self.now)
        return ClockSample("h", self.clock, self.now)


def test_a_clock_is_written_when_it_changed_and_every_five_minutes() -> None:
    """If 10,000 hosts each wrote their clock every second, the table would be huge."""
    host, log, written = ClockOfHost(), ClockLog(), []
    for second in range(3 * REPEAT_SECONDS):
        if second == 400:
            host.error = 2 * CHANGE_SECONDS
        written += [(second, record.offset_seconds) for record in log.due([host.speak()])]
    assert [second for second, _ in written] == [0, 300, 400, 700]
    assert [round(offset, 2) for _, offset in written] == [0.0, 0.0, 0.2, 0.2]


def test_a_silent_host_is_not_written_again() -> None:
    """Its clock is as old as its last frame; a step back of our clock does not make it silent."""
    host, log = ClockOfHost(), ClockLog()
    sample = host.speak()
    assert len(log.due([sample])) == 1
    assert log.due([sample]) == log.due([sample]) == []
    assert [r.measured_ns for r in log.due([sample._replace(last_received_ns=START - SECOND)])] == [
        START - SECOND
    ]


def test_how_far_an_offset_may_be_off() -> None:
    """It is unknown after one span; later it is the difference of two spans, plus drift."""
    host, log = ClockOfHost(), ClockLog()
    [record] = log.due([host.speak()])
    assert math.isnan(record.error_seconds)
    host.delay = 0.051  # a congested link: the smallest delay in ten minutes is 50 ms longer
    host.speak(WINDOW_SECONDS + 1)
    [record] = log.due([host.speak()])
    assert record.error_seconds == pytest.approx(0.05 + DRIFT_SECONDS, abs=1e-6)
    assert record.offset_seconds == pytest.approx(0.0, abs=0.06)


def test_what_could_not_be_written_is_written_later() -> None:
    """The disk was full at that moment."""
    host, log = ClockOfHost(), ClockLog()
    sample = host.speak()
    log.forget(log.due([sample]))
    assert len(log.due([sample])) == 1


@pytest.mark.usefixtures("operators_file")
async def test_a_clock_is_stored_and_shown(
    lab: Any, make_agent: Any, until: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Why are this host's readings off by an hour?": each host has a row."""
    monkeypatch.setattr(clocks, "CHECK_SECONDS", 0)
    right = make_agent(host="right", run_id=b"r" * 16)
    wrong = make_agent(host="wrong", run_id=b"w" * 16, clock_error_ns=-3_600 * SECOND)
    async with (
        lab.aggregator() as aggregator,
        lab.agent(aggregator, right) as right_connection,
        lab.agent(aggregator, wrong) as wrong_connection,
    ):
        for connection in (right_connection, wrong_connection):
            await connection.send(connection.agent.message(1))
        writer = aggregator._clocks
        await until(lambda: len(writer._log._written) == 2 and writer._task.done())
        await until(lambda: aggregator.snapshot_holder.snapshot.version > 2)
        address = ["--aggregator", f"127.0.0.1:{aggregator.port}"]
        assert await asyncio.to_thread(hosts.main, address) == 0
        assert await asyncio.to_thread(explain.main, ["wrong", *address]) == 0
    output = capsys.readouterr().out
    assert output.count("60.0 minutes behind") >= 1
    rows = lab.rows(
        "SELECT host, round(offset_seconds), error_seconds, measured IS NOT NULL FROM clocks ORDER BY host"
    )
    assert rows == [("right", 0.0, None, True), ("wrong", -3600.0, None, True)]
    assert lab.rows("SELECT count(*) FROM clocks", "operators.duckdb") == [(2,)]
    [(comment,)] = lab.rows(
        "SELECT comment FROM duckdb_tables() WHERE table_name = 'clocks'", "operators.duckdb"
    )
    assert "ahead" in comment


@pytest.mark.slow
def test_a_clock_put_twice_is_one_row(lab: Any, make_agent: Any, until: Any) -> None:
    """The last write counts; `clock_10s` keeps the history of clocks."""
    agent = make_agent()

    async def connect_once() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator, agent) as connection:
            await connection.send(wire.TelemetryBatch(sequence=1, frame=agent.frame(1)))
            await until(lambda: aggregator._clocks._task and aggregator._clocks._task.done())

    asyncio.run(connect_once())
    agent.clock_error_ns = 5 * SECOND
    asyncio.run(connect_once())
    assert lab.rows("SELECT host, round(offset_seconds) FROM clocks") == [("host-1", 5.0)]
