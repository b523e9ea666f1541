"""After an hour offline an agent's spooled frames are stored slowly, with their own times."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from gangline.aggregator.ingest import backlog
from gangline.aggregator.ingest.backlog import BURST_FRAMES
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.signals import TABLES
from gangline.contract.wire import telemetry_pb2 as wire

HOUR_NS = 3600 * 10**9
GPU = [signal.column for signal in TABLES["gpu_1s"]]


def frame(agent: Any, sequence: int, ago_ns: int, power: float, energy: float) -> bytes:
    """Encode a frame that was made *ago_ns* ago."""
    block = Block("gpu_1s", ["GPU-0"])
    block.put_float(GPU.index("power_watts"), 0, power)
    block.put_float(GPU.index("energy_joules"), 0, energy)
    now = time.time_ns() - ago_ns
    stamp = frames.Stamp(agent.run_id, agent.boot_id, sequence, now - agent.booted_ns, now)
    return frames.encode(stamp, [block])


def late(agent: Any, sequence: int, ago_ns: int, power: float) -> wire.TelemetryBatch:
    data = frame(agent, sequence, ago_ns, power, power)
    return wire.TelemetryBatch(sequence=sequence, frame=data, backlog=True)


@pytest.mark.slow
@pytest.mark.usefixtures("operators_file")
async def test_the_past_is_stored_as_the_past_and_the_present_stands(
    lab: Any, make_agent: Any
) -> None:
    """During an hour's backlog every dashboard and score showed the state of an hour ago."""
    agent = make_agent(booted_ns=time.time_ns() - 2 * HOUR_NS)
    async with lab.aggregator() as aggregator, lab.agent(aggregator, agent) as connection:
        live = frame(agent, 100, 0, 500.0, 5e6)
        await connection.send(wire.TelemetryBatch(sequence=100, frame=live))
        fleet = aggregator.fleet
        table = fleet.tables["gpu_1s"]
        before = (
            int(fleet.last_received_ns[0]), int(fleet._boottime_ns[0]), table.gauge("power_watts")[0]
        )  # fmt: skip
        error_ns = aggregator._ingest._clocks["host-1"].error_ns
        late_messages = [late(agent, n, HOUR_NS - n * 10**9, float(n)) for n in range(1, 7)]
        other_boot = make_agent(
            boot_id=b"before the boot.", booted_ns=agent.booted_ns - 5 * HOUR_NS
        )
        late_messages.append(late(other_boot, 7, 3 * HOUR_NS, 7.0))
        await connection.send(*late_messages)
        assert connection.durable == {*range(1, 8), 100}
        after = (
            int(fleet.last_received_ns[0]), int(fleet._boottime_ns[0]), table.gauge("power_watts")[0]
        )  # fmt: skip
        assert after == before and int(fleet.boot[0]) == 1
        assert aggregator._ingest._clocks["host-1"].error_ns == error_ns
        assert fleet.backlog_age_seconds(0, time.time_ns()) < 60
    ages = lab.rows(
        "SELECT power_watts, round(epoch(h.registered - r.time)) FROM readings.gpu_1s r, hosts h "
        "WHERE power_watts < 100 ORDER BY 1"
    )
    assert [power for power, _ in ages] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert [abs(age - (3600 - power)) < 30 for power, age in ages[:6]] == [True] * 6
    assert abs(ages[6][1] - 3 * 3600) < 30
    latest = "SELECT power_watts FROM latest.gpu_1s"
    assert lab.rows(latest, "operators.duckdb") == lab.rows(latest) == [(500.0,)]


@pytest.mark.slow
async def test_an_agent_that_pours_its_past_out_is_paced_and_its_present_is_not_held(
    lab: Any,
) -> None:
    """An agent without a limit sent its hour at once: receipts of its live frames waited."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as connection:
        agent, began = connection.agent, time.monotonic()
        connection.open()
        for n in range(1, 41):
            await connection.stream.write(late(agent, n, HOUR_NS, float(n)))
        await connection.send(*(agent.message(n) for n in (101, 102, 103)))
        admission = aggregator.admission_control
        late_sequences = {n for n in connection.durable if n < 100}
        elapsed = time.monotonic() - began
        assert len(late_sequences) <= BURST_FRAMES + 2 * 3 + 2 * elapsed
        assert admission.backlog.waiting_frames > 0
        # and the late frames continue, in order
        while len(connection.durable) < 3 + BURST_FRAMES + 6:
            await connection.acknowledgement()
        late_sequences = {n for n in connection.durable if n < 100}
        assert late_sequences == set(range(1, len(late_sequences) + 1))
    assert admission.backlog.waiting_frames == admission.backlog.waiting_bytes == 0


@pytest.mark.slow
async def test_what_had_no_room_to_wait_is_sent_again(
    lab: Any, monkeypatch: pytest.MonkeyPatch, until: Any
) -> None:
    """10,000 hosts catch up: memory stays bounded, and no frame that had no room is lost.

    A host that has sent its allowed late frames sends no more before the next acknowledgement.
    """
    monkeypatch.setattr(backlog, "WAITING_FRAMES_MAX", 4)
    async with (
        lab.aggregator(backlog_frames_per_second=10_000) as aggregator,
        lab.agent(aggregator) as connection,
    ):
        agent, admission = connection.agent, aggregator.admission_control
        connection.open()
        with pytest.MonkeyPatch.context() as patch:
            # The stream ends once a frame has no room: only after all are written, else the
            # client's own error is raised.
            patch.setattr(admission.backlog, "passed_over", lambda _: [])
            for n in range(1, 21):
                await connection.stream.write(late(agent, n, HOUR_NS, float(n)))
        await until(
            lambda: admission.backlog.passed_over_frames and not admission.backlog.waiting_frames
        )
        with pytest.raises(grpc.aio.AioRpcError) as error:
            while True:
                await connection.acknowledgement()
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "late frames arrived when the queue was full" in str(error.value.details())
        retry = dict(error.value.trailing_metadata() or ())["grpc-retry-pushback-ms"]
        assert retry == "500"  # a single host reconnects at once
        connection.open()
        for n in sorted(set(range(1, 21)) - connection.durable):
            await connection.send(late(agent, n, HOUR_NS, float(n)))
        assert connection.durable == set(range(1, 21))
    counted = lab.rows("SELECT count(*), count(DISTINCT power_watts) FROM readings.gpu_1s")
    assert counted == [(20, 20)]


@pytest.mark.slow
async def test_agents_are_told_to_send_less_of_their_past_while_much_of_it_waits(lab: Any) -> None:
    """The acknowledgement limits late frames; an older agent obeys the credit for all frames.

    Waiting late frames do not count against the credit, else live frames would wait for them.
    """
    async with (
        lab.aggregator(queue_bytes_max=1 << 20) as aggregator,
        lab.agent(aggregator) as connection,
    ):
        answer = await connection.register()
        assert (answer.backlog_frames, answer.credit_frames) == (backlog.BACKLOG_FRAMES, 64)
        agent, admission = connection.agent, aggregator.admission_control
        admission.backlog.step = lambda *_: None  # other hosts have their turn first
        connection.open()
        n = 0
        while not admission.backlog.is_pressed:
            n += 1
            data = late(agent, n, HOUR_NS, 1.0)
            data.frame += bytes(60_000)
            await connection.stream.write(data)
            await asyncio.sleep(0)
        await connection.stream.write(agent.message(1000))
        ack = wire.IngestAck()
        while 1000 not in connection.durable:
            ack = await connection.acknowledgement()
        assert (ack.backlog_frames, ack.credit_frames) == (1, n + backlog.CREDIT_FRAMES_PRESSED)


@pytest.mark.slow
async def test_a_late_frame_as_differences_is_refused(lab: Any) -> None:
    """It would need decoding before its turn; agents send late frames whole."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as connection:
        bad = wire.TelemetryBatch(sequence=1, differences=b"\0", backlog=True)
        await connection.send(bad, connection.agent.message(2))
        assert "must be complete" in connection.refused[1] and connection.durable == {2}


@pytest.mark.slow
async def test_a_frame_that_is_a_commit_by_itself_is_refused(lab: Any) -> None:
    """Half a megabyte of single cells would be 150 MB of rows; no host has that many devices."""
    names, table = [f"mlx5_{port}/1" for port in range(4096)], "rdma_10s_changes"
    blocks = [Block(table, names, (TABLES[table][0].signal_id,)) for _ in range(60)]
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as connection:
        agent, now = connection.agent, time.time_ns()
        stamp = frames.Stamp(agent.run_id, agent.boot_id, 1, now - agent.booted_ns, now)
        large = wire.TelemetryBatch(sequence=1, frame=frames.encode(stamp, blocks, deflate=True))
        await connection.send(large, agent.message(2))
        assert "in a commit, at most 64" in connection.refused[1]
        assert connection.durable == {2}


@pytest.mark.slow
async def test_the_rows_of_late_frames_count(lab: Any) -> None:
    """A logged-in agent has a limit of rows a second, for late rows as well."""
    charged_rows: list[int] = []

    class Pace:
        def take(self, frames: int, size_bytes: int, rows: int) -> float:
            charged_rows.append(rows)
            return 0.0

    async with lab.aggregator() as aggregator, lab.agent(aggregator) as connection:
        await connection.send(connection.agent.message(1))
        (stream,) = aggregator.admission_control.streams
        stream._rate_limit = Pace()
        await connection.send(late(connection.agent, 2, HOUR_NS, 2.0))
        assert connection.durable == {1, 2}
    assert sorted(charged_rows) == [0, 1]


@pytest.mark.slow
async def test_a_late_frame_that_is_bad_is_refused_in_its_turn(lab: Any) -> None:
    """A spool on a dying disk: the bad frame is refused with the reason, the next are stored."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as connection:
        bad = wire.TelemetryBatch(sequence=1, frame=b"hello", backlog=True)
        await connection.send(bad, late(connection.agent, 2, HOUR_NS, 2.0))
        assert "truncated" in connection.refused[1] and connection.durable == {2}
