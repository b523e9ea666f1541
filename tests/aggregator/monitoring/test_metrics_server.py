"""/metrics over a socket: bounded input, and slow clients delay no other client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.contract import http_server as metrics_server
from gangline.contract.http_server import CONNECTIONS_MAX, AggregatorMetricsServer, listener
from gangline.contract.metrics_http import REQUEST_BYTES_MAX
from gangline.contract.settings import SettingsError, load
from tests.processes import GUARD_SECONDS

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b"# EOF\n"


@asynccontextmanager
async def _served() -> AsyncIterator[AggregatorMetricsServer]:
    server = AggregatorMetricsServer(listener("127.0.0.1", 0), lambda accept: (BODY, "text/plain"))
    await server.start()
    try:
        async with asyncio.timeout(GUARD_SECONDS):
            yield server
    finally:
        await server.close()


async def _asked(server: AggregatorMetricsServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def _one(request: bytes) -> bytes:
    async def run() -> bytes:
        async with _served() as server:
            return await _asked(server, request)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (GET, b"200"),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"405"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"\x16\x03\x01\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 100 + b"\r\n", b"431"),
        (b"GET /" + b"x" * (2 * REQUEST_BYTES_MAX) + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"x" * (4 * REQUEST_BYTES_MAX), b"431"),
    ],
)
def test_every_request_has_its_answer(request_bytes: bytes, status: bytes) -> None:
    """A scanner, a gRPC client on the wrong port, a header without end: each gets an error in a single response."""
    assert _one(request_bytes).split(b" ")[1] == status


def test_one_request_is_answered_a_connection() -> None:
    """Pipelined requests are read and discarded; the response arrives complete."""
    answer = _one(GET * 3)
    assert answer.count(b"HTTP/1.1 200") == 1 and answer.endswith(BODY)


def test_who_never_ends_his_request_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow loris: occasional bytes would keep a connection open forever."""
    monkeypatch.setattr(metrics_server, "CONNECTION_SECONDS_MAX", 0.0)

    async def run() -> int:
        async with _served() as server:
            with pytest.raises(ConnectionError):
                assert await _asked(server, b"GET /met") == b""
                raise ConnectionResetError
            return server.dropped_count

    assert asyncio.run(run()) == 1


def test_slow_ones_keep_nobody_out() -> None:
    """With all slots taken by silent clients a scraper is answered: the oldest connection is closed."""

    async def run() -> tuple[bytes, int]:
        async with _served() as server:
            slow = [
                await asyncio.open_connection("127.0.0.1", server.port)
                for _ in range(CONNECTIONS_MAX + 3)
            ]
            answer = await _asked(server, GET)
            ended = await slow[0][0].read()  # the oldest connection was closed
            for _, writer in slow:
                writer.close()
            assert ended == b""
            return answer, server.dropped_count

    answer, let_go = asyncio.run(run())
    assert answer.endswith(BODY) and let_go == 4


def test_who_hangs_up_early_leaves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A load balancer's probe connects and goes, every second of a year."""

    async def run() -> int:
        async with _served() as server:
            for _ in range(50):
                _, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.close()
                await writer.wait_closed()
            await _asked(server, GET)
            while server._connections:
                await asyncio.sleep(0)
            return server.dropped_count

    assert asyncio.run(run()) == 0
    assert not caplog.records


@pytest.mark.parametrize("text", ["9477", "127.0.0.1:", "127.0.0.1:99999", "x:y"])
def test_a_wrong_address_is_told_at_the_start(text: str) -> None:
    """A typing error in the settings, not a traceback an hour later."""
    with pytest.raises(SettingsError, match=r"metrics_listen = .*expected address:port") as caught:
        load(AggregatorConfig, None, [f"metrics_listen={text}"])
    assert str(caught.value).count("expected") == 1


def test_the_address_may_be_beyond_loopback() -> None:
    """Prometheus runs elsewhere as a rule; figures of the service name no host and no user."""
    assert load(AggregatorConfig, None, ["metrics_listen=0.0.0.0:9477"]).metrics_listen
