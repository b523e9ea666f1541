"""Messages of several late frames: each frame is handled as if it had arrived alone."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.agent.spool.event_queue import EventQueue
from gangline.agent.spool.spool import Spool
from gangline.agent.transport.client import Client
from gangline.aggregator.ingest.backlog import BURST_FRAMES
from gangline.contract import frame as frames
from gangline.contract.stream import CONTEXT_BYTES_MAX, LATE_FRAMES_MAX, Sender
from gangline.contract.wire import telemetry_pb2 as wire
from tests.aggregator.conftest import Agent, Connection
from tests.processes import GUARD_SECONDS

AT_ONCE = {"backlog_frames_per_second": 10_000}

DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda body: body[:-1],
    lambda body: b"\2" + body[1:],
    lambda body: body[:1] + bytes(4) + body[5:],  # another checksum
]


def together(*made: bytes) -> wire.TelemetryBatch:
    sender = Sender(CONTEXT_BYTES_MAX)
    late = [sender.encode(frames.inflate_frame(frame)) for frame in made]
    sequence = frames.read_stamp(made[0]).sequence
    return wire.TelemetryBatch(sequence=sequence, late=late, backlog=True)


def of(agent: Agent, *sequences: int) -> wire.TelemetryBatch:
    return together(*(agent.frame(n) for n in sequences))


async def until_heard(connection: Connection, sequences: set[int]) -> None:
    async with asyncio.timeout(GUARD_SECONDS):
        while not sequences <= connection.durable | connection.refused.keys():
            await connection.acknowledgement()


@pytest.mark.slow
async def test_each_frame_of_a_message_is_stored_and_receipted_once(lab: Any) -> None:
    """The message arrived twice, once with a frame that had also arrived alone."""
    async with lab.aggregator(**AT_ONCE) as aggregator, lab.agent(aggregator) as connection:
        answer = await connection.register()
        assert answer.late_frames_max == LATE_FRAMES_MAX
        agent = connection.agent
        alone = wire.TelemetryBatch(sequence=3, frame=agent.frame(3), backlog=True)
        await connection.send(alone)
        for _ in range(2):
            connection.durable.clear()
            await connection.stream.write(of(agent, 1, 2, 3, 700, 701))
            await until_heard(connection, {1, 2, 3, 700, 701})
        assert not connection.refused
        assert (
            aggregator.admission_control.backlog.waiting_frames
            == aggregator.admission_control.backlog.waiting_bytes
            == 0
        )
        assert aggregator._ingest.backlog_frames == 11
    counted = lab.rows("SELECT count(*), count(DISTINCT power_watts) FROM readings.gpu_1s")
    assert counted == [(10, 5)]


@pytest.mark.slow
async def test_frames_are_paced_not_messages_and_live_ones_do_not_wait(lab: Any) -> None:
    """With sixteen frames from every host at once, the promised rate was exceeded 16 times."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as connection:
        agent, began = connection.agent, time.monotonic()
        connection.open()
        await connection.stream.write(of(agent, *range(1, 17)))
        await connection.stream.write(of(agent, *range(17, 33)))
        await connection.send(*(agent.message(n) for n in (101, 102)))
        admission = aggregator.admission_control
        (stream,) = admission.streams
        waiting = admission.backlog.frames_of(stream)
        assert 32 - waiting <= BURST_FRAMES + 2 * 2 + 2 * (time.monotonic() - began)
        await until_heard(connection, set(range(1, BURST_FRAMES + 5)))
        late_sequences = {n for n in connection.durable if n < 100}
        assert late_sequences == set(range(1, len(late_sequences) + 1))
    assert admission.backlog.waiting_frames == admission.backlog.waiting_bytes == 0


@pytest.mark.slow
async def test_a_bad_frame_among_good_ones_costs_itself(lab: Any, make_agent: Any) -> None:
    """A frame of another run and a malformed frame made the aggregator refuse all valid frames.

    The checksum of the malformed frame is right, so it arrived as it was sent: a second attempt
    would not help.
    """
    other_run = make_agent(run_id=b"another spool's ")
    async with lab.aggregator(**AT_ONCE) as aggregator, lab.agent(aggregator) as connection:
        connection.open()
        agent = connection.agent
        bad = frames.inflate_frame(agent.frame(4)).replace(b"GPU-1", b"GPU\xff1")
        bad = frames._with_checksum(bad[:72], bad[72:])
        message = together(agent.frame(1), other_run.frame(2), agent.frame(3), bad, agent.frame(5))
        await connection.stream.write(message)
        await until_heard(connection, {1, 2, 3, 4, 5})
        assert connection.durable == {1, 3, 5}
        assert "register with the spool" in connection.refused[2]
        assert "utf-8" in connection.refused[4]


@pytest.mark.slow
async def test_damage_on_the_way_ends_the_stream_and_nothing_is_forgotten(lab: Any) -> None:
    """Later frames build on it: a refused message would cost the agent sixteen good frames."""
    async with lab.aggregator(**AT_ONCE) as aggregator, lab.agent(aggregator) as connection:
        agent = connection.agent
        for damage in DAMAGES:
            connection.open()
            message = of(agent, 1, 2, 3, 4)
            message.late[1] = damage(message.late[1])
            await connection.stream.write(message)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await until_heard(connection, {1, 2, 3, 4})
            assert error.value.code() == grpc.StatusCode.DATA_LOSS
            details = str(error.value.details())
            assert "frame 2 of 4 late ones in message 1 is not a valid frame" in details
            assert not connection.refused and connection.durable <= {1}
        connection.open()
        intact = [
            wire.TelemetryBatch(sequence=n, frame=agent.frame(n), backlog=True) for n in range(1, 5)
        ]
        await connection.send(*intact)
        assert connection.durable == {1, 2, 3, 4}


def too_many(agent: Agent) -> wire.TelemetryBatch:
    return of(agent, *range(1, LATE_FRAMES_MAX + 2))


def another_beside(agent: Agent) -> wire.TelemetryBatch:
    message = of(agent, 1, 2)
    message.frame = agent.frame(3)
    return message


def not_said(agent: Agent) -> wire.TelemetryBatch:
    message = of(agent, 1, 2)
    message.backlog = False
    return message


@pytest.mark.slow
async def test_a_message_that_is_not_as_agreed_ends_the_stream(lab: Any) -> None:
    """Its frames are valid, and a refusal would lose them."""
    async with lab.aggregator(**AT_ONCE) as aggregator, lab.agent(aggregator) as connection:
        for make, expected in (
            (too_many, "17 late frames in a message, at most 16"),
            (another_beside, "and another frame"),
            (not_said, "does not set backlog"),
        ):
            connection.open()
            await connection.stream.write(make(connection.agent))
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await connection.acknowledgement()
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert expected in str(error.value.details())
        assert not connection.refused and not connection.durable
        assert aggregator.admission_control.backlog.waiting_frames == 0


@pytest.mark.slow
async def test_a_store_that_fills_in_the_middle_of_a_message_loses_none_of_it(lab: Any) -> None:
    """The frame without room had already changed the state on which the next frames build."""
    async with lab.aggregator(**AT_ONCE) as aggregator, lab.agent(aggregator) as connection:
        submit, asked = aggregator.store.submit_frame, 0

        def every_third(*args: Any) -> bool:
            nonlocal asked
            asked += 1
            return asked % 3 == 0 and bool(submit(*args))

        aggregator.store.submit_frame = every_third
        connection.open()
        await connection.stream.write(of(connection.agent, *range(1, 9)))
        await until_heard(connection, set(range(1, 9)))
        assert not connection.refused and aggregator._ingest.backlog_frames == 8
    assert lab.rows("SELECT count(DISTINCT power_watts) FROM readings.gpu_1s") == [(8,)]


@pytest.mark.slow
def test_the_backlog_of_a_real_agent_comes_in_few_messages(
    lab: Any, tmp_path: Path, until: Any
) -> None:
    """All parts together: spool, client, socket, aggregator, receipts, and an empty spool."""
    agent = Agent()
    spool = Spool.open(tmp_path / "spool", bytes_max=1 << 20, boot_id=agent.boot_id, owner="m")
    agent.run_id = spool.run_id
    for n in range(1, 41):
        spool.append(n, agent.frame(n))
    events = EventQueue.open(tmp_path / "events")

    async def run_client() -> None:
        async with lab.aggregator(**AT_ONCE) as aggregator:
            late_counts: list[int] = []
            enqueue = aggregator.admission_control.backlog.enqueue

            def counting(lane: Any, message: wire.TelemetryBatch) -> bool:
                late_counts.append(len(message.late))
                return bool(enqueue(lane, message))

            aggregator.admission_control.backlog.enqueue = counting
            client = Client(
                f"127.0.0.1:{aggregator.port}", agent.registration, spool, events,
                random_source=random.Random(1), live_hertz=50.0,
            )  # fmt: skip
            client.start()
            try:
                await until(lambda: not spool.unacknowledged_frames)
            finally:
                await asyncio.to_thread(client.close)
            assert sum(late_counts) == 40 and len(late_counts) <= 5 and not spool.refused_frames

    try:
        asyncio.run(run_client())
    finally:
        spool.close()
        events.close()
    assert lab.rows("SELECT count(DISTINCT power_watts) FROM readings.gpu_1s") == [(40,)]
