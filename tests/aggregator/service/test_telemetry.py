"""Readings from gRPC into the store, and their receipts."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from gangline.aggregator.service.telemetry import REFUSED_IN_ROW_MAX, TelemetryStream
from gangline.contract.block import Block
from gangline.contract.signals import index_of
from gangline.contract.wire import telemetry_pb2 as wire
from tests.processes import GUARD_SECONDS

BAD: list[tuple[str, Any]] = [
    ("truncated", lambda good: good[:40]),
    ("foreign protocol", lambda good: b"GET / HTTP/1.1\r\n" + good),
    ("checksum", lambda good: good[:-1] + bytes((good[-1] ^ 1,))),
    ("oversized", lambda good: good + bytes(1 << 20)),
]


@pytest.mark.slow
def test_a_reading_comes_back_from_the_store(lab: Any) -> None:
    """An acknowledged reading is visible in SQL."""

    async def send_frames() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            await agent.send(agent.agent.message(1), agent.agent.message(2))
            assert agent.durable == {1, 2}

    asyncio.run(send_frames())
    assert lab.rows("SELECT host, device, power_watts FROM readings.gpu_1s ORDER BY ALL") == [
        ("host-1", "GPU-0", 1.0),
        ("host-1", "GPU-0", 2.0),
        ("host-1", "GPU-1", 1.0),
        ("host-1", "GPU-1", 2.0),
    ]
    assert lab.rows("SELECT sm_clock_hertz FROM readings.gpu_1s LIMIT 1") == [(None,)]
    assert lab.rows("SELECT host, labels['rack'] FROM hosts") == [("host-1", "r1")]
    assert lab.rows("SELECT device, attributes['product'] FROM devices") == [("GPU-0", "H100")]
    assert lab.rows(  # a row for each commit
        "SELECT unnest(range(first_sequence::BIGINT, last_sequence::BIGINT + 1)) FROM received ORDER BY 1"
    ) == [(1,), (2,)]


@pytest.mark.slow
def test_what_an_earlier_agent_says_of_itself_goes_by_its_name_of_now(lab: Any) -> None:
    """After an update of the aggregator, hung collectors of older agents were not visible."""
    turns = Block("collector_10s", ["gpu_1s"])
    turns.put_int(index_of("collector.outcome_state"), 0, 4)
    turns.table = "collector_1s"

    async def send_frames() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            await agent.send(agent.agent.message(1, blocks=[turns]))
            assert agent.durable == {1}

    asyncio.run(send_frames())
    assert lab.rows("SELECT device, outcome_state FROM readings.collector_10s") == [("gpu_1s", 4)]


@pytest.mark.slow
def test_a_resend_never_doubles(lab: Any) -> None:
    """An agent whose connection broke before the receipt sends again, also to the next process."""

    async def send_frames() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            await agent.send(agent.agent.message(1))
            await agent.send(agent.agent.message(1), agent.agent.message(1), agent.agent.message(2))
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            await agent.send(agent.agent.message(2), agent.agent.message(1))
            assert agent.durable == {1, 2}

    asyncio.run(send_frames())
    assert lab.rows("SELECT count(*) FROM readings.gpu_1s") == [(4,)]
    assert lab.rows("SELECT first_sequence, last_sequence FROM received") == [(1, 2)]


@pytest.mark.slow
def test_health_and_reflection(lab: Any, until: Any) -> None:
    """A load balancer asks per service; grpcurl lists the services."""

    async def ask_services() -> list[str]:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            stub: Any = health_pb2_grpc.HealthStub(agent.channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="gangline.v1.ScoreService"))
            async with asyncio.timeout(GUARD_SECONDS):
                while (await watch.read()).status != health_pb2.HealthCheckResponse.SERVING:
                    pass
            watch.cancel()
            telemetry = "gangline.v1.TelemetryService"
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=telemetry))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            return await asyncio.to_thread(_services, aggregator.port)

    services = asyncio.run(ask_services())
    assert {"gangline.v1.TelemetryService", "gangline.v1.ScoreService"} <= set(services)


def _services(port: int) -> list[str]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        return list(ProtoReflectionDescriptorDatabase(channel).get_services())


@pytest.mark.slow
@pytest.mark.parametrize(("message", "damage"), BAD, ids=[message for message, _ in BAD])
def test_a_bad_frame_is_refused_with_words(lab: Any, message: str, damage: Any) -> None:
    """A damaged frame is refused; the stream and all other frames continue."""

    async def send_frames() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            bad = wire.TelemetryBatch(sequence=1, frame=damage(agent.agent.frame(1)))
            await agent.send(bad, agent.agent.message(2))
            assert message in agent.refused[1]
            assert agent.durable == {2}

    asyncio.run(send_frames())


def test_a_frame_of_another_run_or_sequence_is_refused(lab: Any) -> None:
    """Two agents share a spool folder: the frame identifies its agent."""

    async def send_frames() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            good = agent.agent.frame(4)
            await agent.send(
                agent.agent.message(1, run_id=b"x" * 16),
                wire.TelemetryBatch(sequence=3, frame=good),
            )
            assert "run" in agent.refused[1] and agent.agent.run_id.hex() in agent.refused[1]
            assert "sequence 4" in agent.refused[3]

    asyncio.run(send_frames())


@pytest.mark.slow
def test_a_stream_of_nothing_but_bad_frames_is_closed(lab: Any) -> None:
    """A program that is not an agent loses its stream, with the reason."""

    async def send_frames() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                bad = range(1, REFUSED_IN_ROW_MAX + 1)  # a write after the last would race the end
                await agent.send(*(wire.TelemetryBatch(sequence=n, frame=b"hello") for n in bad))
                await agent.acknowledgement()
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "32 frames in a row" in str(error.value.details())
            assert "truncated" in agent.refused[1]

    asyncio.run(send_frames())


@pytest.mark.slow
def test_an_agent_that_reads_no_answers_is_not_read_for_ever(
    lab: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unread refusals stayed in memory: ten bytes of a hostile host took a thousand."""
    monkeypatch.setattr("gangline.aggregator.service.telemetry.UNREAD_MAX", 16)
    monkeypatch.setattr("gangline.aggregator.service.telemetry.REFUSED_IN_ROW_MAX", 1 << 30)
    gate = asyncio.Event()

    async def held(self: Any, context: Any) -> None:
        await gate.wait()

    async def send_frames() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            answer = TelemetryStream._answer
            monkeypatch.setattr(TelemetryStream, "_answer", held)
            agent.open()
            for number in range(1, 101):
                await agent.stream.write(wire.TelemetryBatch(sequence=number, frame=b"hello"))
            (stream,) = await until(lambda: aggregator._telemetry._streams)
            await until(lambda: len(stream._refused) >= 16)
            assert len(stream._refused) == 16
            monkeypatch.setattr(TelemetryStream, "_answer", answer)
            gate.set()
            while len(agent.refused) < 100:
                await agent.acknowledgement()

    asyncio.run(send_frames())


def test_a_stream_without_a_session_is_refused(lab: Any) -> None:
    """After a restart of the aggregator a session is invalid: the agent must register again."""

    async def send_frames() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            for metadata in ((), (("gangline-session", "of-another-life"),)):
                agent.metadata, agent.stream = metadata, None
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await agent.send(agent.agent.message(1))
                assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
                assert "RegisterNode" in str(error.value.details())

    asyncio.run(send_frames())


@pytest.mark.slow
def test_an_ended_stream_still_gets_its_receipts(lab: Any) -> None:
    """A stopping agent ends its stream and waits for the last receipts, to send nothing twice."""

    async def send_frames() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            agent.open()
            await agent.stream.write(agent.agent.message(1))
            await agent.stream.done_writing()
            await agent.acknowledgement()
            assert agent.durable == {1}
            assert await agent.stream.read() is grpc.aio.EOF
            assert await agent.stream.code() == grpc.StatusCode.OK

    asyncio.run(send_frames())


@pytest.mark.slow
def test_closing_commits_and_receipts_what_is_queued(
    lab: Any, connect: Any, make_agent: Any, until: Any
) -> None:
    """On SIGTERM under load, accepted frames are committed and acknowledged."""

    async def send_frames() -> None:
        async with lab.aggregator(commit_seconds=30.0) as aggregator:
            agent = connect(aggregator.port, make_agent())
            await agent.register()
            agent.open()
            await agent.stream.write(agent.agent.message(1))
            await until(lambda: aggregator.store.room < 1.0)
            receipt = asyncio.create_task(agent.acknowledgement())
        async with asyncio.timeout(GUARD_SECONDS):
            await receipt
        await agent.close()
        assert agent.durable == {1}

    asyncio.run(send_frames())
    assert lab.rows("SELECT count(*) FROM readings.gpu_1s") == [(2,)]
