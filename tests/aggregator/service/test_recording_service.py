"""Recordings on demand through a real aggregator: results, refusals, and bad uploads."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import grpc
import pytest

from gangline.aggregator import recordings as exchange_module
from gangline.aggregator.errors import (
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServiceError,
)
from gangline.aggregator.recordings import (
    ANSWER_BYTES_MAX,
    PIECE_BYTES_MAX,
    REQUEST_SECONDS_MAX,
    REQUESTS_PER_HOST_MAX,
    RecordingExchange,
)
from gangline.contract.recording import RECORDING_BYTES_MAX, GpuRecording, encode_recording
from gangline.contract.wire import recording_pb2
from gangline.contract.wire import telemetry_pb2 as wire
from gangline.contract.wire.recording_pb2_grpc import RecordingServiceStub

FILE = encode_recording(
    GpuRecording(
        ("GPU-1",),
        ("power_watts",),
        (),
        1,
        array("q", range(6000)),
        array("f", [1.5] * 6000),
    ),
    level=0,
)


def stub(connection: Any) -> Any:
    return RecordingServiceStub(connection.channel)  # type: ignore[no-untyped-call]


async def record(connection: Any, **fields: Any) -> bytes:
    """Request a recording; return its file. Raises the error of the call."""
    data = b""
    async for response in stub(connection).RecordHost(recording_pb2.RecordHostRequest(**fields)):
        data += response.data
    return data


async def refusal(connection: Any, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await record(connection, **fields)
    return error.value.code(), str(error.value.details())


async def streaming(agent: Any, **registration: Any) -> None:
    """Register with a flight recorder and open a stream that has sent a frame."""
    await agent.register(**({"recording_seconds_max": 300} | registration))
    await agent.send(agent.agent.message(1))


async def next_request(agent: Any) -> wire.RecordingRequest:
    while not (ack := await agent.acknowledgement()).recordings:
        pass
    (request,) = ack.recordings
    assert isinstance(request, wire.RecordingRequest)
    return request


async def upload(agent: Any, number: str, data: bytes, size: int = 10_000, **more: Any) -> None:
    for offset in range(0, max(len(data), 1), size):
        piece = wire.UploadRecordingRequest(
            id=number,
            offset=offset,
            total_bytes=len(data),
            data=data[offset : offset + size],
            **more,
        )
        await agent.stub.UploadRecording(piece, metadata=agent.metadata)


async def test_a_recording_comes_as_the_host_sent_it(lab: Any) -> None:
    """A request goes down with a receipt, the file comes up in pieces, and memory is freed."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        await streaming(agent)
        recording_task = asyncio.create_task(record(agent, host="host-1", seconds=20))
        request = await next_request(agent)
        assert (request.seconds, request.list, request.name) == (20, False, "")
        await upload(agent, request.id, FILE)
        assert await recording_task == FILE
        assert await refused_upload(agent, request.id) == grpc.StatusCode.NOT_FOUND


async def refused_upload(agent: Any, number: str) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await agent.stub.UploadRecording(piece(number, 0, b"x", 1), metadata=agent.metadata)
    code: grpc.StatusCode = error.value.code()
    return code


async def test_who_cannot_be_recorded_is_said_why(lab: Any) -> None:
    """Unknown, not connected, too old, not answering, unable: each has its status and message."""
    code = grpc.StatusCode
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        service = aggregator._services["gangline.v1.RecordingService"]
        service._answer_seconds_max = 0.2
        assert await refusal(agent, host="hots-1", seconds=5) == (
            code.NOT_FOUND, "no host 'hots-1'; did you mean host-1?",
        )  # fmt: skip
        status, message = await refusal(agent, host="host-1", seconds=5)
        assert (status, "has no flight recorder" in message) == (code.FAILED_PRECONDITION, True)
        await agent.register(recording_seconds_max=300)
        status, message = await refusal(agent, host="host-1", seconds=5)
        assert (status, "is not connected" in message) == (code.UNAVAILABLE, True)
        await streaming(agent)
        status, message = await refusal(agent, host="host-1", seconds=7)
        assert (status, "did not answer within 0.2 s" in message) == (
            code.DEADLINE_EXCEEDED,
            True,
        )
        for wrong in ({"seconds": 0}, {"seconds": 301}, {"seconds": 5, "list": True}):
            status, _ = await refusal(agent, host="host-1", **wrong)
            assert status == code.INVALID_ARGUMENT
        service._answer_seconds_max = 60.0
        requests: list[tuple[dict[str, Any], grpc.StatusCode]] = [
            ({"seconds": 5}, code.FAILED_PRECONDITION),
            ({"name": "20260102T030405Z-0a1b2c3d"}, code.NOT_FOUND),
        ]
        for fields, expected in requests:
            refusal_task = asyncio.create_task(refusal(agent, host="host-1", **fields))
            request = await next_request(agent)
            while request.seconds != fields.get("seconds", 0):
                request = await next_request(agent)
            await upload(agent, request.id, b"", error="no GPU here")
            assert await refusal_task == (expected, "host-1: no GPU here")


async def test_a_silent_host_is_said_so(lab: Any) -> None:
    """A host known only from the store after a restart, or without frames for a minute."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        await streaming(agent)
        session = aggregator._ingest.sessions.of_host("host-1")
        session.last_received_ns -= 3600 * 10**9
        status, message = await refusal(agent, host="host-1", seconds=5)
        assert status == grpc.StatusCode.UNAVAILABLE and "host host-1 is silent" in message


async def test_a_restarted_aggregator_wants_nothing_of_before(lab: Any) -> None:
    """Pending requests end with the process; the upload is refused, readings continue."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        await streaming(agent)
        refusal_task = asyncio.create_task(refusal(agent, host="host-1", seconds=5))
        number = (await next_request(agent)).id
        refusal_task.cancel()
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        await streaming(agent)
        assert await refused_upload(agent, number) == grpc.StatusCode.NOT_FOUND
        await agent.send(agent.agent.message(2))


async def test_a_host_that_comes_back_is_asked_again(lab: Any) -> None:
    """A host gets a request that it missed on its next connection, once per session."""
    exchange = RecordingExchange(lambda: 0.0)
    with exchange.request("a", seconds=5) as pending:
        assert [recording_request.id for recording_request in exchange.requests("a", "s1")] == [
            pending.request.id
        ]
        assert exchange.requests("a", "s1") == [] == exchange.requests("b", "s9")
        assert len(exchange.requests("a", "s2")) == 1
    assert len(exchange) == 0


def piece(number: str, offset: int, data: bytes, total: int, **more: Any) -> Any:
    return wire.UploadRecordingRequest(
        id=number, offset=offset, data=data, total_bytes=total, **more
    )


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([(0, b"a" * (PIECE_BYTES_MAX + 1), PIECE_BYTES_MAX + 1)], InvalidArgument),
        ([(0, b"a", RECORDING_BYTES_MAX + 1)], InvalidArgument),
        ([(1, b"a", 2)], InvalidArgument),
        ([(0, b"", 2)], InvalidArgument),
        ([(0, b"abc", 2)], InvalidArgument),
        ([(0, b"a", 2), (1, b"b", 3)], InvalidArgument),
        ([(0, b"a", 3), (2, b"b", 3)], InvalidArgument),
    ],
)
async def test_a_host_that_sends_what_it_may_not_is_refused(
    pieces: list[tuple[int, bytes, int]], error: type[ServiceError]
) -> None:
    """The caller gets the error at once, and memory stays within limits."""
    exchange = RecordingExchange(lambda: 0.0)
    with exchange.request("a", seconds=5) as pending:
        for piece_fields in pieces[:-1]:
            exchange.receive("a", piece(pending.request.id, *piece_fields))
        with pytest.raises(error):
            exchange.receive("a", piece(pending.request.id, *pieces[-1]))
        await pending.done
        assert "rejected" in pending.error
        with pytest.raises(NotFound):
            exchange.receive("a", piece(pending.request.id, 0, b"x", 1))


async def test_pieces_of_another_host_or_sent_twice() -> None:
    """A host uploads only its own recording; a repeated piece counts once."""
    exchange = RecordingExchange(lambda: 0.0)
    with exchange.request("a", seconds=5) as pending:
        number = pending.request.id
        with pytest.raises(NotFound):
            exchange.receive("b", piece(number, 0, b"x", 1))
        for offset, data in ((0, b"ab"), (0, b"ab"), (2, b"c")):
            exchange.receive("a", piece(number, offset, data, 3))
        await pending.done
        assert (bytes(pending.data), pending.error) == (b"abc", "")


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests per host, 128 MiB in all, a minute each."""
    now = [0.0]
    exchange = RecordingExchange(lambda: now[0])
    waiting = [exchange.request("a", seconds=5) for _ in range(REQUESTS_PER_HOST_MAX)]
    pending = [request_context.__enter__() for request_context in waiting]
    with pytest.raises(ResourceExhausted, match="already requested"):
        exchange.request("a", seconds=5).__enter__()
    monkeypatch.setattr(exchange_module, "ANSWER_BYTES_MAX", 5)
    exchange.receive("a", piece(pending[0].request.id, 0, b"abc", 4))
    with pytest.raises(ResourceExhausted, match="already being sent"):
        exchange.receive("a", piece(pending[1].request.id, 0, b"abc", 4))
    now[0] = REQUEST_SECONDS_MAX
    with exchange.request("a", seconds=5):
        assert len(exchange) == 1
    with pytest.raises(NotFound):
        exchange.receive("a", piece(pending[0].request.id, 3, b"d", 4))
    for request_context in waiting:
        request_context.__exit__(None, None, None)
    assert len(exchange) == 0 == exchange.answer_bytes < ANSWER_BYTES_MAX
