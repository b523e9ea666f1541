"""`/metrics` over a socket: bad requests are refused and delay no other client."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.config import AgentConfig, check_listen
from gangline.agent.latest import LatestReadings
from gangline.agent.local import metrics
from gangline.agent.local import metrics_http as local_http
from gangline.agent.local.exposition import Exposition
from gangline.agent.local.metrics import (
    CONNECTION_SECONDS_MAX,
    CONNECTIONS_MAX,
    ExpositionCache,
    LocalMetricsServer,
)
from gangline.agent.local.metrics_http import (
    REQUEST_BYTES_MAX,
    Request,
    RequestError,
    parse_request,
)
from gangline.agent.local.server import BURST_SECONDS
from gangline.agent.registration import Registration
from gangline.contract.exposition import ExpositionFormat
from gangline.contract.settings import SettingsError, load
from tests.agent.test_exposition import reading
from tests.processes import GUARD_SECONDS, until

BODY = b"# EOF\n"
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def render(accept: str) -> tuple[bytes, str]:
    return BODY, f"seen/{accept or 'nothing'}"


class HandedClock:
    """A clock that advances only by hand. The server's thread reads it, the test's advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def boottime_ns(self) -> int:
        return int(self.now * 1e9)

    def wall_ns(self) -> int:
        return 0


@contextlib.contextmanager
def serving(
    listen: str = "127.0.0.1:0",
    answer: local_http.Render = render,
    clock: HandedClock | None = None,
) -> Iterator[LocalMetricsServer]:
    server = LocalMetricsServer(listen, answer, clock or HandedClock())
    server.start()
    try:
        yield server
    finally:
        server.close()
        assert not server._thread.is_alive()


def connected(server: LocalMetricsServer) -> socket.socket:
    until(lambda: server.port, "the server listens")
    return socket.create_connection(("127.0.0.1", server.port), GUARD_SECONDS)


def all_of(client: socket.socket) -> bytes:
    """Return all data until the other side closes; nothing if the connection breaks."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := client.recv(65536):
            received += data
    return received


def asked(server: LocalMetricsServer, request: bytes) -> bytes:
    with connected(server) as client:
        client.sendall(request)
        return all_of(client)


def test_a_scraper_is_answered() -> None:
    with serving() as server:
        until(lambda: server.port, "the server listens")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=GUARD_SECONDS)
        connection.request("GET", "/metrics?x=1", headers={"Accept": "text/plain;version=0.0.4"})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, BODY)
        assert answer.headers["Content-Type"] == "seen/text/plain;version=0.0.4"
        connection.close()


def test_gzip_for_who_asks_for_it() -> None:
    asks = GET.replace(b"Host: x", b"accept-encoding: br, gzip;q=0.5")
    head, _, body = local_http.respond(asks.removesuffix(b"\r\n\r\n"), render).partition(
        b"\r\n\r\n"
    )
    assert b"Content-Encoding: gzip" in head
    assert zlib.decompress(body, 31) == BODY
    refuses = asks.replace(b"q=0.5", b"q=0.0").removesuffix(b"\r\n\r\n")
    assert b"gzip" not in local_http.respond(refuses, render)


@pytest.mark.parametrize(
    ("request_head", "status", "message"),
    [
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9", 405, b"only GET"),
        (b"GET / HTTP/1.1", 404, b"only /metrics is served"),
        (b"GET /metrics/../etc/passwd HTTP/1.1", 404, b"only /metrics is served"),
        (b"GET /metrics HTTP/2.0", 505, b"expected HTTP/1.1"),
        (b"GET /metrics", 400, b"expected a request line"),
        (b"", 400, b"expected a request line"),
        (b"GET /metrics HTTP/1.1\r\nno colon", 400, b"expected headers"),
        (b"GET /metrics HTTP/1.1\r\n folded: x", 400, b"expected headers"),
        (b"GET /metrics HTTP/1.1\r\nA: " + b"x" * REQUEST_BYTES_MAX, 431, b"at most 8192 bytes"),
        (b"GET /metrics HTTP/1.1" + b"\r\nA: x" * 65, 431, b"at most 64 headers"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, b"expected a request line"),
    ],
)
def test_bad_requests_are_refused(request_head: bytes, status: int, message: bytes) -> None:
    answer = local_http.respond(request_head, render)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert message in body
    assert b"Content-Length: %d\r\n" % len(body) in head
    assert (b"Allow: GET, HEAD" in head) is (status == 405)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    """A port scanner's probe must cause at most one log line."""
    try:
        assert isinstance(parse_request(data), Request)
    except RequestError as error:
        assert error.status in (400, 431, 505)


def test_head_is_answered_without_a_body() -> None:
    answer = local_http.respond(b"HEAD /metrics HTTP/1.1", render)
    assert answer.endswith(b"\r\n\r\n") and b"Content-Length: 6\r\n" in answer


def test_a_rendering_that_fails_is_said_and_the_next_one_served() -> None:
    fails = [True]

    def once(accept: str) -> tuple[bytes, str]:
        if fails.pop():
            fails.append(False)
            raise KeyError("odd")
        return render(accept)

    with serving(answer=once) as server:
        assert b"500 Internal Server Error" in asked(server, GET)
        assert asked(server, GET).endswith(BODY)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + bytes(300_000), b" 405 "),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 2000, b" 431 "),
    ],
    ids=["a long body", "headers without end"],
)
def test_a_long_request_is_answered(data: bytes, status: bytes) -> None:
    """Closing a socket with unread bytes resets the connection, and the answer is lost."""
    with serving() as server, connected(server) as client:
        client.sendall(data)
        assert status in all_of(client)


def test_who_says_nothing_is_let_go_when_his_time_is_over() -> None:
    """A load balancer opened idle connections and never closed them."""
    clock = HandedClock()
    with serving(clock=clock) as server, connected(server) as silent:
        silent.sendall(b"GET /metr")
        until(lambda: server._connections, "it is accepted")
        clock.now = CONNECTION_SECONDS_MAX
        assert asked(server, GET).endswith(BODY)  # this also wakes the thread
        assert all_of(silent) == b""


def test_slow_ones_never_keep_out_others() -> None:
    """Slow loris: many connections, with a header byte now and then on each."""
    clock = HandedClock()
    with serving(clock=clock) as server, contextlib.ExitStack() as stack:
        slow = []
        for _ in range(2 * CONNECTIONS_MAX):
            clock.now += 0.01
            slow.append(stack.enter_context(connected(server)))
            slow[-1].sendall(b"GET ")
        assert asked(server, GET).endswith(BODY)
        assert len(server._connections) <= CONNECTIONS_MAX
        assert all_of(slow[0]) == b"", "the oldest is let go"


def test_many_at_once_are_all_answered() -> None:
    with serving() as server:
        answers: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: answers.append(asked(server, GET)))
            for _ in range(CONNECTIONS_MAX)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD_SECONDS)
    assert [answer.endswith(BODY) for answer in answers] == [True] * CONNECTIONS_MAX


def test_a_taken_port(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another exporter with the same port must not end the agent."""
    monkeypatch.setattr(metrics, "LISTEN_RETRY_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = LocalMetricsServer(f"127.0.0.1:{port}", render)
        server.start()
        until(lambda: "cannot be listened on: Address already in use" in caplog.text, "it is said")
    assert asked(server, GET).endswith(BODY)
    server.close()


def test_a_dead_unix_socket_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with serving(f"unix:{path}") as server:
        until(lambda: server._listener is not None, "the server listens")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(GUARD_SECONDS)
            client.connect(str(path))
            client.sendall(GET)
            assert all_of(client).endswith(BODY)
        assert path.stat().st_mode & 0o777 == 0o660
    assert not path.exists()
    path.write_text("an operator's notes")
    with serving(f"unix:{path}"):
        until(lambda: "exists and is not a socket" in caplog.text, "it is said")
    assert path.read_text() == "an operator's notes"


def test_a_live_unix_socket_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A second agent was started by hand, and Prometheus then read that one, and later nothing."""
    path = tmp_path / "metrics.sock"
    with serving(f"unix:{path}") as server:
        until(lambda: server._listener is not None, "the server listens")
        with serving(f"unix:{path}"):
            until(lambda: f"answers at {path}" in caplog.text, "it is said")
        assert path.is_socket()


def test_a_crowd_of_scrapers_takes_a_tenth_of_a_processor() -> None:
    """A loop around `curl --compressed` made the samples of the whole host late."""
    clock, spent, turns = HandedClock(), [0.0], [0]

    def costly(accept: str) -> tuple[bytes, str]:
        spent[0] += BURST_SECONDS + 0.001
        return render(accept)

    class Counted(LocalMetricsServer):
        def _run_once(self) -> bool:
            turns[0] += 1
            return super()._run_once()

    server = Counted("127.0.0.1:0", costly, clock, lambda: spent[0])
    server.start()
    assert asked(server, GET).endswith(BODY)
    with connected(server) as second:
        second.sendall(GET)
        before = turns[0]
        until(lambda: turns[0] > before + 2, "it looks at the time")
        assert not any(connection.answer for connection in server._connections.values())
        assert spent[0] < 2 * BURST_SECONDS, "nothing is rendered for the second one"
        clock.now += 1.0
        assert all_of(second).endswith(BODY)
    server.close()


@pytest.mark.parametrize("where", ["", "127.0.0.1:9476", "[::1]:9476", "unix:/run/gangline/m"])
def test_where_it_may_listen(where: str) -> None:
    check_listen(where)


@pytest.mark.parametrize(
    "where", ["9476", ":9476", "127.0.0.1", "127.0.0.1:0", "unix:relative", f"unix:/{'x' * 107}"]
)
def test_where_it_cannot_listen_is_said_with_the_key(where: str) -> None:
    with pytest.raises(SettingsError, match=r"metrics_listen = .*expected .*unix:"):
        load(AgentConfig, assignments=[f"metrics_listen={where}"])


def test_rendered_at_most_once_a_second_and_in_the_form_asked_for() -> None:
    """A client scraped in a loop; the agent used a whole core for it."""
    clock, latest = HandedClock(), LatestReadings()
    latest.update(0, [reading("gpu_1s", ["GPU-a"], temperature_celsius=[50.0])])
    rendered = ExpositionCache(
        Exposition(latest, clock.boottime_ns, dict, {"version": "1", "host": "a"}, 400), clock
    )
    body, media_type = rendered("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert (body.endswith(b"# EOF\n"), media_type) == (True, ExpositionFormat.OPENMETRICS.value)
    assert rendered("*/*")[1] == ExpositionFormat.OPENMETRICS.value
    text, media_type = rendered("text/plain;version=0.0.4")
    assert (b"EOF" in text, media_type) == (False, ExpositionFormat.TEXT.value)
    clock.now = 0.9
    latest.update(0, [reading("gpu_1s", ["GPU-a"], temperature_celsius=[51.0])])
    assert rendered("")[0] is body
    clock.now = 1.0
    assert b"} 51.0" in rendered("")[0]


def test_what_is_served_is_named_as_the_inventory_has_it(tmp_path: Path) -> None:
    """The path from the settings to the socket."""
    clock, latest = HandedClock(), LatestReadings()
    latest.update(0, [reading("gpu_1s", ["GPU-a"], temperature_celsius=[50.0])])
    registration = Registration("gpu-017", bytes(16), bytes(16), clock)
    registration._request.devices.add(
        kind="gpu", key="GPU-a", attributes={"pci_address": "0000:9b:00.0"}
    )
    path = tmp_path / "m"
    config = AgentConfig(host="gpu-017", metrics_listen=f"unix:{path}")
    server = metrics.serve(config, latest, registration, clock)
    try:
        until(path.exists, "the server listens")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(GUARD_SECONDS)
            until(lambda: client.connect_ex(str(path)) == 0, "it accepts")
            client.sendall(GET)
            response = all_of(client).decode()
    finally:
        server.close()
    assert (
        'gangline_gpu_temperature_celsius{uuid="GPU-a",pci_address="0000:9b:00.0"} 50.0\n'
        in response
    )
    assert 'host="gpu-017"} 1\n' in response
