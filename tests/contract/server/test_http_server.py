"""The HTTP server over a socket: bounded input, and slow clients delay no other client."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from gangline.aggregator.config import AggregatorConfig
from gangline.contract.server.http_server import (
    HEADER_BYTES_MAX,
    HttpError,
    HttpLimits,
    HttpServer,
    HttpThread,
    Routes,
    listener,
    metrics_routes,
)
from gangline.contract.settings import SettingsError, load
from tests.processes import GUARD_SECONDS

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
BODY = b"# EOF\n"
LIMITS = HttpLimits(connections_max=4, body_bytes_max=1000)


async def _echo(request: web.BaseRequest) -> web.Response:
    body = await request.read()
    if body == b"refuse":
        raise HttpError(422, "expected anything else")
    return web.Response(body=body.upper() or 1 // 0)


def routes() -> Routes:
    return {**metrics_routes(lambda accept: (BODY, "text/plain")), ("POST", "/echo"): _echo}


@asynccontextmanager
async def _served(limits: HttpLimits = LIMITS) -> AsyncIterator[HttpServer]:
    server = HttpServer(listener("127.0.0.1", 0), routes(), limits)
    await server.start()
    try:
        async with asyncio.timeout(GUARD_SECONDS):
            yield server
    finally:
        await server.close()


async def _asked(server: HttpServer, request: bytes) -> bytes:
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


def _post(body: bytes) -> bytes:
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


@pytest.mark.parametrize(
    ("request_bytes", "status", "message"),
    [
        (GET, b"200", BODY),
        (b"HEAD /metrics HTTP/1.0\r\n\r\n", b"200", b""),
        (b"GET / HTTP/1.0\r\n\r\n", b"404", b"expected one of /echo, /metrics"),
        (b"GET /echo HTTP/1.0\r\n\r\n", b"405", b"/echo is called with POST"),
        (_post(b"hello"), b"200", b"HELLO"),
        (_post(b"refuse"), b"422", b'{"error": "expected anything else"}'),
        (_post(b""), b"500", b"ZeroDivisionError"),
        (_post(b"x" * 1001), b"413", b"a body has at most 1000 bytes"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400", b""),
        (b"\x16\x03\x01\r\n\r\n", b"400", b""),
        (b"GET /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400", b""),
        (b"GET /" + b"x" * (2 * HEADER_BYTES_MAX) + b" HTTP/1.1\r\n\r\n", b"400", b""),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"b" * (2 * HEADER_BYTES_MAX), b"400", b""),
    ],
)
def test_every_request_has_its_answer(request_bytes: bytes, status: bytes, message: bytes) -> None:
    """A scanner, a gRPC client on the wrong port, a header without end: each gets its error."""
    answer = _one(request_bytes)
    assert answer.split(b" ")[1] == status and message in answer


def test_a_scraper_may_ask_for_gzip() -> None:
    """Prometheus does: a fleet's figures are tens of megabytes."""
    answer = _one(GET.replace(b"Host", b"Accept-Encoding: gzip\r\nHost"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"Content-Encoding: gzip" in head and gzip.decompress(body) == BODY


def test_a_request_that_never_ends_is_dropped() -> None:
    """Slow loris: occasional bytes would keep a connection open forever."""

    async def run() -> int:
        async with _served(HttpLimits(connections_max=4, request_seconds_max=0.01)) as server:
            with pytest.raises(ConnectionError):
                assert await _asked(server, b"GET /met") == b""
                raise ConnectionResetError
            return server.dropped_count

    assert asyncio.run(run()) == 1


def test_silent_clients_keep_nobody_out() -> None:
    """The connection without an answer for longest is closed; a scheduler keeps its own."""

    async def run() -> int:
        async with _served() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            keep = GET.replace(b"Connection: close\r\n", b"")

            async def ask() -> bytes:
                writer.write(keep)
                head = await reader.readuntil(b"\r\n\r\n")
                return head + await reader.readexactly(len(BODY))

            silent = []
            for _ in range(LIMITS.connections_max + 3):
                assert b"200 OK" in await ask()
                silent.append(await asyncio.open_connection("127.0.0.1", server.port))
            assert await silent[0][0].read() == b""
            assert b"200 OK" in await ask()
            for _, other in [*silent, (reader, writer)]:
                other.close()
            return server.dropped_count

    assert asyncio.run(run()) == 4


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

    asyncio.run(run())
    assert not caplog.records


def test_a_thread_serves_and_ends() -> None:
    """An executor has no event loop; its end must not wait for a scraper."""
    thread = HttpThread(listener("127.0.0.1", 0), routes(), LIMITS)
    thread.start()

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", thread.port)
        writer.write(GET)
        answer = await reader.read()
        writer.close()
        return answer

    assert asyncio.run(ask()).endswith(BODY)
    thread.close()
    assert not thread._thread.is_alive()


@pytest.mark.parametrize("text", ["9477", "127.0.0.1:", "127.0.0.1:99999", "x:y"])
def test_a_wrong_address_is_told_at_the_start(text: str) -> None:
    """A typing error in the settings, not a traceback an hour later."""
    with pytest.raises(SettingsError, match=r"metrics_listen = .*expected address:port") as caught:
        load(AggregatorConfig, None, [f"metrics_listen={text}"])
    assert str(caught.value).count("expected") == 1


def test_the_address_may_be_beyond_loopback() -> None:
    """Prometheus runs elsewhere as a rule; figures of the service name no host and no user."""
    assert load(AggregatorConfig, None, ["metrics_listen=0.0.0.0:9477"]).metrics_listen
