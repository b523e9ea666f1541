"""What a refused call leaves behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gangline.aggregator.health.calls import Calls
from gangline.aggregator.refusals import Invalid
from gangline.aggregator.service import errors
from gangline.aggregator.service.errors import translated
from tests.processes import GUARD_SECONDS


class Request:
    """A message that can be seen to go."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage collection: the aggregator's goes through everything once in fifty million objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("error", [Invalid("name", "too long"), ValueError("a fault of ours")])
def test_a_refused_request_goes_at_once(
    error: Exception, uncollected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One hostile agent's refused registrations, of a megabyte each, were kept: ten megabytes a second for minutes."""
    del uncollected
    made: list[weakref.ref[Request]] = []

    def read(_: bytes) -> Request:
        request = Request()
        made.append(weakref.ref(request))
        return request

    async def refuse(request: object, context: object) -> bytes:
        raise error.with_traceback(None)

    async def way() -> None:
        handler: Any = grpc.unary_unary_rpc_method_handler(translated(refuse, Calls(), "M"), read)
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
            # A call's task may end after its answer was read.
            async with asyncio.timeout(GUARD_SECONDS):
                while any(one() for one in made):
                    error.__traceback__ = None  # ours: it is one object for both calls
                    await asyncio.sleep(0)
        await server.stop(0)

    # A record that is kept has the traceback, and the request with it.
    monkeypatch.setattr(errors.log, "disabled", True)
    asyncio.run(way())
    assert len(made) == 2
    assert [one() for one in made] == [None, None]
