"""Frames as differences on a real stream: stored unchanged, and an error ends only the stream."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import grpc
import pytest

from gangline.aggregator.model import HealthState
from gangline.aggregator.service.score_messages import verdict_of
from gangline.contract import frame
from gangline.contract.stream import CONTEXT_BYTES_MAX, Sender
from gangline.contract.wire import telemetry_pb2 as wire


def difference(sender: Sender, message: wire.TelemetryBatch) -> wire.TelemetryBatch:
    """Encode the message as a new agent does."""
    data = sender.encode(frame.inflate_frame(message.frame))
    return wire.TelemetryBatch(sequence=message.sequence, differences=data)


@pytest.mark.slow
async def test_differences_and_whole_frames_on_one_stream(lab: Any) -> None:
    """Live frames, with the backlog of a night between them."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        answer = await agent.register()
        assert answer.stream_context_bytes == CONTEXT_BYTES_MAX
        sender, make = Sender(answer.stream_context_bytes), agent.agent.message
        live = [difference(sender, make(n)) for n in range(3, 7)]
        old = [wire.TelemetryBatch(sequence=n, frame=make(n).frame, backlog=True) for n in (1, 2)]
        await agent.send(live[0], old[0], live[1], live[2], old[1], live[3])
        assert agent.durable == set(range(1, 7))
    assert lab.rows("SELECT power_watts, count(*) FROM readings.gpu_1s GROUP BY 1 ORDER BY 1") == [
        (float(n), 2) for n in range(1, 7)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "ends early"),
        (lambda data: b"\0" + b"wron" + data[5:], "checksum"),
        (lambda data: random.Random(1).randbytes(60), "begins with"),
    ],
)
async def test_what_the_stream_cannot_follow_ends_it_and_nothing_else(
    lab: Any, damage: Any, message: str
) -> None:
    """The error names the cause; the session continues, and a new stream accepts all frames."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        sender, make = Sender(CONTEXT_BYTES_MAX), agent.agent.message
        await agent.send(difference(sender, make(1)))
        bad = difference(sender, make(2))
        bad.differences = damage(bad.differences)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await agent.send(bad)
        assert error.value.code() == grpc.StatusCode.DATA_LOSS
        assert message in str(error.value.details())
        agent.open()
        sender = Sender(CONTEXT_BYTES_MAX)
        await agent.send(*(difference(sender, make(n)) for n in (1, 2, 3)))
    assert lab.rows("SELECT power_watts, count(*) FROM readings.gpu_1s GROUP BY 1 ORDER BY 1") == [
        (1.0, 2), (2.0, 2), (3.0, 2),
    ]  # fmt: skip


@pytest.mark.slow
def test_each_receipt_says_how_the_host_stands(lab: Any, until: Any) -> None:
    """A person at the host asked its agent, which did not know the aggregator's verdict."""

    async def read_verdict() -> str:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            await agent.register()
            await agent.send(agent.agent.message(1))
            first = aggregator.snapshot_holder.snapshot
            await until(lambda: aggregator.snapshot_holder.snapshot is not first)
            await agent.stream.write(agent.agent.message(2))
            verdict = (await agent.acknowledgement()).verdict
            hosts = aggregator.snapshot_holder.snapshot.hosts
            watched_score = replace(hosts[0], state=HealthState.WATCH, reason_message="x" * 999)
            watched = replace(
                aggregator.snapshot_holder.snapshot, hosts=hosts.with_scores({0: watched_score})
            )
            verdict_message = verdict_of(watched, {"host-1": 0}, "host-1")
            assert verdict_message is not None
            assert (verdict_message.state, len(verdict_message.reason)) == ("WATCH", 300)
            assert verdict_of(watched, {"host-1": 0}, "host-2") is None, "it is not known"
            assert verdict_of(watched, {"host-1": 9}, "host-1") is None, "nor judged yet"
            assert verdict_of(None, {"host-1": 0}, "host-1") is None
            return str(verdict.state)

    assert asyncio.run(read_verdict()) in HealthState.__members__
