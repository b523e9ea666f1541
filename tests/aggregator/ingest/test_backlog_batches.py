"""Messages of several late frames: each frame is paced, stored, receipted and refused as if it had come alone."""

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
def test_each_frame_of_a_message_is_stored_and_receipted_once(lab: Any) -> None:
    """The message came twice, once with another of its frames that had come by itself."""

    async def way() -> None:
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

    asyncio.run(way())
    counted = lab.rows("SELECT count(*), count(DISTINCT power_watts) FROM readings.gpu_1s")
    assert counted == [(10, 5)]


@pytest.mark.slow
def test_frames_are_paced_not_messages_and_live_ones_do_not_wait(lab: Any) -> None:
    """Sixteen at once, of every host: it would have been sixteen times the rate that was promised."""

    async def way() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as connection:
            agent, began = connection.agent, time.monotonic()
            connection.open()
            await connection.stream.write(of(agent, *range(1, 17)))
            await connection.stream.write(of(agent, *range(17, 33)))
            await connection.send(*(agent.message(n) for n in (101, 102)))
            turns = aggregator.admission_control
            (stream,) = turns.streams
            waiting = turns.backlog.frames_of(stream)
            assert 32 - waiting <= BURST_FRAMES + 2 * 2 + 2 * (time.monotonic() - began)
            await until_heard(connection, set(range(1, BURST_FRAMES + 5)))
            past = {n for n in connection.durable if n < 100}
            assert past == set(range(1, len(past) + 1))
        assert turns.backlog.waiting_frames == turns.backlog.waiting_bytes == 0

    asyncio.run(way())


@pytest.mark.slow
def test_a_bad_frame_among_good_ones_costs_itself(lab: Any, make_agent: Any) -> None:
    """One of another run lay in the spool, one was made badly, and all good ones were refused with them.

    The checksum of the second is right, so it came as it was sent: sending it again would not help.
    """
    other = make_agent(run_id=b"another spool's ")

    async def way() -> None:
        async with lab.aggregator(**AT_ONCE) as aggregator, lab.agent(aggregator) as connection:
            connection.open()
            agent = connection.agent
            bad = frames.inflate_frame(agent.frame(4)).replace(b"GPU-1", b"GPU\xff1")
            bad = frames._with_checksum(bad[:72], bad[72:])
            message = together(agent.frame(1), other.frame(2), agent.frame(3), bad, agent.frame(5))
            await connection.stream.write(message)
            await until_heard(connection, {1, 2, 3, 4, 5})
            assert connection.durable == {1, 3, 5}
            assert "register with the spool" in connection.refused[2]
            assert "utf-8" in connection.refused[4]

    asyncio.run(way())


@pytest.mark.slow
def test_damage_on_the_way_ends_the_stream_and_nothing_is_forgotten(lab: Any) -> None:
    """What follows builds on it; refused, the agent would have forgotten sixteen good frames."""

    async def way() -> None:
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
                words = str(error.value.details())
                assert "frame 2 of 4 late ones in message 1 is not a valid frame" in words
                assert not connection.refused and connection.durable <= {1}
            connection.open()
            whole = [
                wire.TelemetryBatch(sequence=n, frame=agent.frame(n), backlog=True)
                for n in range(1, 5)
            ]
            await connection.send(*whole)
            assert connection.durable == {1, 2, 3, 4}

    asyncio.run(way())


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
def test_a_message_that_is_not_as_agreed_ends_the_stream(lab: Any) -> None:
    """It is nobody's frame that is bad: to refuse its frames would lose them."""

    async def way() -> None:
        async with lab.aggregator(**AT_ONCE) as aggregator, lab.agent(aggregator) as connection:
            for make, words in (
                (too_many, "17 late frames in a message, at most 16"),
                (another_beside, "and another frame"),
                (not_said, "does not set backlog"),
            ):
                connection.open()
                await connection.stream.write(make(connection.agent))
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await connection.acknowledgement()
                assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert words in str(error.value.details())
            assert not connection.refused and not connection.durable
            assert aggregator.admission_control.backlog.waiting_frames == 0

    asyncio.run(way())


@pytest.mark.slow
def test_a_store_that_fills_in_the_middle_of_a_message_loses_none_of_it(lab: Any) -> None:
    """The frame for which there was no room had moved what the next ones build on."""

    async def way() -> None:
        async with lab.aggregator(**AT_ONCE) as aggregator, lab.agent(aggregator) as connection:
            submit, asked = aggregator.store.submit_frame, 0

            def now_and_then(*args: Any) -> bool:
                nonlocal asked
                asked += 1
                return asked % 3 == 0 and bool(submit(*args))

            aggregator.store.submit_frame = now_and_then
            connection.open()
            await connection.stream.write(of(connection.agent, *range(1, 9)))
            await until_heard(connection, set(range(1, 9)))
            assert not connection.refused and aggregator._ingest.backlog_frames == 8

    asyncio.run(way())
    assert lab.rows("SELECT count(DISTINCT power_watts) FROM readings.gpu_1s") == [(8,)]


@pytest.mark.slow
def test_the_backlog_of_a_real_agent_comes_in_few_messages(
    lab: Any, tmp_path: Path, until: Any
) -> None:
    """All of it together: spool, client, socket, aggregator, receipts, and the spool empty again."""
    agent = Agent()
    spool = Spool.open(tmp_path / "spool", bytes_max=1 << 20, boot_id=agent.boot_id, owner="m")
    agent.run_id = spool.run_id
    for n in range(1, 41):
        spool.append(n, agent.frame(n))
    events = EventQueue.open(tmp_path / "events")

    async def way() -> None:
        async with lab.aggregator(**AT_ONCE) as aggregator:
            held: list[int] = []
            hold = aggregator.admission_control.backlog.enqueue

            def counting(lane: Any, message: wire.TelemetryBatch) -> bool:
                held.append(len(message.late))
                return bool(hold(lane, message))

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
            assert sum(held) == 40 and len(held) <= 5 and not spool.refused_frames

    try:
        asyncio.run(way())
    finally:
        spool.close()
        events.close()
    assert lab.rows("SELECT count(DISTINCT power_watts) FROM readings.gpu_1s") == [(40,)]
