"""Each host's clock against ours, as it is stored: seldom, and when it matters at once."""

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


class Host:
    """A host whose wall clock is off by *error* seconds and whose messages take *delay*."""

    def __init__(self) -> None:
        self.clock, self.error, self.delay, self.now = HostClock(), 0.0, 0.001, START

    def speak(self, seconds: float = 1.0) -> ClockSample:
        self.now += round(seconds * SECOND)
        sent = self.now - round(self.delay * SECOND)
        self.clock.observe(b"b" * 16, sent - START, sent + round(self.error * SECOND), self.now)
        return ClockSample("h", self.clock, self.now)


def test_a_clock_is_written_when_it_changed_and_every_five_minutes() -> None:
    """Ten thousand hosts that each wrote their clock every second would be a table of its own."""
    host, log, written = Host(), ClockLog(), []
    for second in range(3 * REPEAT_SECONDS):
        if second == 400:
            host.error = 2 * CHANGE_SECONDS
        written += [(second, record.offset_seconds) for record in log.due([host.speak()])]
    assert [second for second, _ in written] == [0, 300, 400, 700]
    assert [round(offset, 2) for _, offset in written] == [0.0, 0.0, 0.2, 0.2]


def test_a_silent_host_is_not_written_again() -> None:
    """What it says of itself is as old as its last word; a clock of ours that was set back is no silence."""
    host, log = Host(), ClockLog()
    heard = host.speak()
    assert len(log.due([heard])) == 1
    assert log.due([heard]) == log.due([heard]) == []
    assert [r.measured_ns for r in log.due([heard._replace(last_received_ns=START - SECOND)])] == [
        START - SECOND
    ]


def test_how_far_an_offset_may_be_off() -> None:
    """Unknown while one span is known; then how much two differ, such as by a queue on the way, and drift."""
    host, log = Host(), ClockLog()
    [record] = log.due([host.speak()])
    assert math.isnan(record.error_seconds)
    host.delay = 0.051  # a congested link: what is smallest in ten minutes is 50 ms more
    host.speak(WINDOW_SECONDS + 1)
    [record] = log.due([host.speak()])
    assert record.error_seconds == pytest.approx(0.05 + DRIFT_SECONDS, abs=1e-6)
    assert record.offset_seconds == pytest.approx(0.0, abs=0.06)


def test_what_could_not_be_written_is_written_later() -> None:
    """The disk was full just then."""
    host, log = Host(), ClockLog()
    heard = host.speak()
    log.forget(log.due([heard]))
    assert len(log.due([heard])) == 1


@pytest.mark.usefixtures("operators_file")
def test_a_clock_is_stored_and_shown(
    lab: Any, make_agent: Any, until: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Why are this host's readings off by an hour?": a row for each host, and words where it matters."""
    monkeypatch.setattr(clocks, "CHECK_SECONDS", 0)
    right = make_agent(host="right", run_id=b"r" * 16)
    wrong = make_agent(host="wrong", run_id=b"w" * 16, clock_error_ns=-3_600 * SECOND)

    async def way() -> None:
        async with (
            lab.aggregator() as aggregator,
            lab.agent(aggregator, right) as one,
            lab.agent(aggregator, wrong) as two,
        ):
            for connection in (one, two):
                await connection.send(connection.agent.message(1))
            writer = aggregator._clocks
            await until(lambda: len(writer._log._written) == 2 and writer._task.done())
            await until(lambda: aggregator.snapshot_holder.snapshot.version > 2)
            there = ["--aggregator", f"127.0.0.1:{aggregator.port}"]
            assert await asyncio.to_thread(hosts.main, there) == 0
            assert await asyncio.to_thread(explain.main, ["wrong", *there]) == 0

    asyncio.run(way())
    said = capsys.readouterr().out
    assert said.count("60.0 minutes behind") >= 1
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
    """The last is what counts; a history of clocks is what `clock_10s` keeps."""
    agent = make_agent()

    async def life() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator, agent) as connection:
            await connection.send(wire.TelemetryBatch(sequence=1, frame=agent.frame(1)))
            await until(lambda: aggregator._clocks._task and aggregator._clocks._task.done())

    asyncio.run(life())
    agent.clock_error_ns = 5 * SECOND
    asyncio.run(life())
    assert lab.rows("SELECT host, round(offset_seconds) FROM clocks") == [("host-1", 5.0)]
