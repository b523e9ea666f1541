"""Refused calls: their memory, error details and log lines."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Iterator
from typing import Any

import grpc
import pytest

from gangline.aggregator.errors import (
    DISK_RETRY_SECONDS,
    InvalidArgument,
    ResourceExhausted,
    ServiceError,
    ServiceUnavailable,
    StreamRefused,
)
from gangline.aggregator.metrics import CallCounters
from gangline.aggregator.service import status as errors
from gangline.aggregator.service.status import with_error_status
from gangline.aggregator.store.store_folder import StoreError
from gangline.contract.wire import status_pb2
from tests.processes import GUARD_SECONDS


class Request:
    """A message whose deletion can be observed."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disable garbage collection: the aggregator's runs once in fifty million objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_store_that_cannot_be_used_is_no_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    """On a full disk each call that reads the store ended with INTERNAL and a traceback."""

    class Context:
        answer: tuple[Any, ...] = ()

        async def abort(self, *answer: Any) -> None:
            self.answer = answer

    async def read(request: object, context: object) -> None:
        raise StoreError("no space left on /data")

    context = Context()
    asyncio.run(_run(with_error_status(read, CallCounters(), "S/M")(None, context)))
    assert context.answer[:2] == (grpc.StatusCode.UNAVAILABLE, "no space left on /data")
    assert not caplog.records


@pytest.mark.parametrize(
    "error", [InvalidArgument("name", "too long"), ValueError("a fault of ours")]
)
def test_a_refused_request_goes_at_once(
    error: Exception, uncollected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused registrations of 1 MB each were kept: ten megabytes a second for minutes."""
    del uncollected
    requests: list[weakref.ref[Request]] = []

    def read(_: bytes) -> Request:
        request = Request()
        requests.append(weakref.ref(request))
        return request

    async def refuse(request: object, context: object) -> bytes:
        raise error.with_traceback(None)

    async def call_twice() -> None:
        handler: Any = grpc.unary_unary_rpc_method_handler(
            with_error_status(refuse, CallCounters(), "M"), read
        )
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("t.T", {"M": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary("/t.T/M")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"registration")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"registration")
            # A call's task may end after its response was read.
            async with asyncio.timeout(GUARD_SECONDS):
                while any(request_ref() for request_ref in requests):
                    error.__traceback__ = None  # one error object serves both calls
                    await asyncio.sleep(0)
        await server.stop(0)

    # A stored log record has the traceback, and the request with it.
    monkeypatch.setattr(errors.log, "disabled", True)
    asyncio.run(call_twice())
    assert len(requests) == 2
    assert [request_ref() for request_ref in requests] == [None, None]


def read(refusal: ServiceError) -> dict[str, bytes]:
    """Return the details of *refusal* by kind, as a client reads them."""
    trailers = dict(errors.details_of(refusal))
    status = status_pb2.ErrorStatus.FromString(bytes(trailers[errors.DETAILS_KEY]))  # type: ignore[arg-type]
    assert status.code == errors.STATUS[type(refusal)].value[0]
    return {detail.type_url.rpartition(".")[2]: detail.value for detail in status.details}


@pytest.mark.parametrize(
    "refusal",
    [InvalidArgument("gangs[3].ttl", "0 s, expected 1 s to 7 days"), StreamRefused("32 in a row")],
)
def test_a_wrong_field_is_named_in_the_details(refusal: ServiceError) -> None:
    """An adapter parsed the field out of a message, which differs between versions."""
    assert errors.STATUS[type(refusal)] is grpc.StatusCode.INVALID_ARGUMENT
    bad = status_pb2.ErrorBadRequest.FromString(read(refusal)["BadRequest"])
    (wrong,) = bad.field_violations
    assert (wrong.field, wrong.description) == (refusal.field, refusal.field_message)
    assert wrong.field and wrong.field in ("gangs[3].ttl", "frame")


def test_whoever_is_too_much_is_told_when_to_come_again() -> None:
    """Seven of ten limits had no RetryInfo, and clients gave up, or retried at once."""
    for code, kind in ((code, kind) for kind, code in errors.STATUS.items()):
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            assert kind is ResourceExhausted
    retry = status_pb2.ErrorRetry.FromString(read(ResourceExhausted("full", 2.5))["RetryInfo"])
    assert retry.retry_delay.ToMilliseconds() == 2500
    assert ("grpc-retry-pushback-ms", "2500") in errors.details_of(ResourceExhausted("full", 2.5))
    with pytest.raises(TypeError):
        ResourceExhausted("full")  # type: ignore[call-arg]


def test_who_comes_too_early_is_told_when_to_come_again() -> None:
    """While the disk was full executors retried at once, continuously."""
    for code, kind in ((code, kind) for kind, code in errors.STATUS.items()):
        if code is grpc.StatusCode.UNAVAILABLE:
            assert kind is ServiceUnavailable
    retry = status_pb2.ErrorRetry.FromString(
        read(ServiceUnavailable("the disk is full"))["RetryInfo"]
    )
    assert retry.retry_delay.ToMilliseconds() == 1000 * DISK_RETRY_SECONDS


def test_words_without_end_still_arrive() -> None:
    """A statement of Chinese characters was quoted in full, and exceeded the trailer limit."""
    message = "\u4e16" * 5000
    (_, details), *_ = errors.details_of(InvalidArgument("sql", message))
    assert (
        len(errors.cut_utf8(message, errors.MESSAGE_BYTES_MAX).encode()) <= errors.MESSAGE_BYTES_MAX
    )
    assert 3 * errors.MESSAGE_BYTES_MAX + len(details) * 4 / 3 < 8192


async def _run(work: Awaitable[Any]) -> None:
    await work


def test_a_malformed_message_is_a_line_of_the_log_and_an_error_of_its_field(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each malformed request logged a traceback: a client that sends garbage filled the log."""

    async def handled(request: Any, context: Any) -> None:
        async for _ in request:
            pass
        raise AssertionError("the service saw it")

    class Context:
        def __init__(self) -> None:
            self.answer: tuple[Any, ...] = ()

        def peer(self) -> str:
            return "ipv4:10.0.0.1:4711"

        async def abort(self, *answer: Any) -> None:
            self.answer = answer

    async def stream(request: Any) -> Any:
        yield request

    read = errors.deserialised(status_pb2.ErrorStatus.FromString)
    assert read is not None and isinstance(read(b"\xff\xff"), errors.Malformed)
    assert read(status_pb2.ErrorStatus(code=3).SerializeToString()).code == 3
    handler = with_error_status(handled, CallCounters(), "ScoreService/ScoreNodes")
    for request in (read(b"\xff\xff"), stream(read(b"\xff\xff"))):
        context = Context()
        caplog.clear()
        asyncio.run(_run(handler(request, context)))
        assert context.answer[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert "malformed protobuf message" in context.answer[1]
        (record,) = caplog.records
        assert record.exc_info is None and "10.0.0.1" in record.getMessage()
