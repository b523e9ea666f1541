"""The agent's socket: real clients, hostile clients, dead and living predecessors."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpclib.client
import pytest
from grpclib.const import Cardinality
from grpclib.encoding.base import CodecBase
from h2.connection import H2Connection
from h2.events import PingAckReceived

from gangline.agent.local import grpc_session
from gangline.agent.local.grpc_session import CallRefused, DeferredResponse, Method, Peer
from gangline.agent.local.server import (
    ACCEPT_PAUSE_SECONDS,
    BURST_SECONDS,
    CPU_SHARE_MAX,
    CpuBudget,
    LocalServer,
    LocalServerLimits,
)
from gangline.agent.local.unix_listener import SocketInUse, UnixListener
from gangline.agent.transport.unary_call import CallFailed, NoListener, call
from tests.processes import GUARD_SECONDS, until

ECHO, SLOW, ASK = "/test.Test/Echo", "/test.Test/Slow", "/test.Test/Ask"
#: A uid that is neither root's nor the agent's, for processes without privileges.
NOBODY = 65534


def echo(message: bytes, peer: Peer) -> bytes:
    return message


def wrong(message: bytes, peer: Peer) -> bytes:
    raise {
        b"value": ValueError("naïve 100%"),
        b"refused": CallRefused("NOT_FOUND", "no GPU\n°C 5%"),
    }[message]


@contextmanager
def serving(
    folder: Path, methods: dict[str, Method] | None = None, limits: LocalServerLimits | None = None
) -> Iterator[LocalServer]:
    table = {ECHO: Method(echo), "/test.Test/Wrong": Method(wrong), **(methods or {})}
    server = LocalServer(folder / "agent.sock", table, limits)
    server.start()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def channel(folder: Path) -> Iterator[grpc.Channel]:
    client = grpc.insecure_channel(f"unix:{folder / 'agent.sock'}")
    try:
        yield client
    finally:
        client.close()


def unary(made: grpc.Channel, path: str) -> Callable[..., bytes]:
    return made.unary_unary(path)


@contextmanager
def raw(folder: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as created:
        created.settimeout(GUARD_SECONDS)
        created.connect(str(folder / "agent.sock"))
        yield created


def is_closed(made: socket.socket) -> bool:
    """Wait for the server to close; read everything before that."""
    try:
        while made.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def test_a_real_client_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path), channel(tmp_path) as client:
        ask = unary(client, ECHO)
        for size in (0, 1, 1000, grpc_session.MESSAGE_BYTES_MAX):
            message = os.urandom(size)
            assert ask(message, timeout=GUARD_SECONDS) == message


def test_many_calls_at_once_on_one_connection(tmp_path: Path) -> None:
    """More than the limit of a connection: the client waits, no call is refused."""
    with serving(tmp_path), channel(tmp_path) as client:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = client.unary_unary(ECHO)
        messages = [os.urandom(2000) for _ in range(4 * grpc_session.STREAMS_MAX)]
        calls = [ask.future(message, timeout=GUARD_SECONDS) for message in messages]
        assert [connection.result() for connection in calls] == messages


def test_a_client_of_another_make_is_answered(tmp_path: Path) -> None:
    """grpclib frames header and message differently from grpcio."""

    async def ask() -> bytes:
        channel = grpclib.client.Channel(path=str(tmp_path / "agent.sock"), codec=Raw())
        async with channel.request(ECHO, Cardinality.UNARY_UNARY, bytes, bytes) as stream:
            await stream.send_message(b"hello", end=True)
            answer = await stream.recv_message()
        channel.close()
        assert isinstance(answer, bytes)
        return answer

    with serving(tmp_path):
        assert asyncio.run(ask()) == b"hello"


class Raw(CodecBase):
    """Messages without encoding."""

    @property
    def __content_subtype__(self) -> str:
        return "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        assert isinstance(message, bytes)
        return message

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


@pytest.mark.parametrize(
    ("path", "message", "status", "details"),
    [
        ("/test.Test/None", b"", grpc.StatusCode.UNIMPLEMENTED, "no method '/test.Test/None'"),
        (ECHO, bytes((1 << 16) + 1), grpc.StatusCode.RESOURCE_EXHAUSTED, "of 65537 bytes, at most"),
        ("/test.Test/Wrong", b"value", grpc.StatusCode.INTERNAL, "ValueError: naïve 100%"),
        ("/test.Test/Wrong", b"refused", grpc.StatusCode.NOT_FOUND, "no GPU\n°C 5%"),
    ],
)
def test_an_error_has_a_status_and_words(
    tmp_path: Path, path: str, message: bytes, status: grpc.StatusCode, details: str
) -> None:
    with serving(tmp_path), channel(tmp_path) as client:
        with pytest.raises(grpc.RpcError) as raised:
            unary(client, path)(message, timeout=GUARD_SECONDS)
        assert isinstance(raised.value, grpc.Call)
        assert raised.value.code() is status
        assert details in (raised.value.details() or "")
        assert unary(client, ECHO)(b"again", timeout=GUARD_SECONDS) == b"again"


def test_an_answer_that_takes_its_time_holds_up_nobody(tmp_path: Path) -> None:
    """A release waits seconds for a sampler; the health check of the next rendezvous does not."""
    later = DeferredResponse()
    with (
        serving(tmp_path, {SLOW: Method(lambda message, peer: later)}),
        channel(tmp_path) as client,
    ):
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = client.unary_unary(SLOW)
        slow = ask.future(b"", timeout=GUARD_SECONDS)
        assert unary(client, ECHO)(b"quick", timeout=GUARD_SECONDS) == b"quick"
        assert not slow.done()
        later.respond(b"at last")
        later.refuse("INTERNAL", "once is enough")
        assert slow.result() == b"at last"


def test_a_keepalive_is_answered(tmp_path: Path) -> None:
    """A client whose ping is not answered takes the agent for dead."""
    with serving(tmp_path), raw(tmp_path) as created:
        client = H2Connection()
        client.initiate_connection()
        client.ping(b"12345678")
        created.sendall(client.data_to_send())
        answered: list[bytes] = []
        while not answered and (data := created.recv(1 << 16)):
            events = client.receive_data(data)
            answered += [e.ping_data for e in events if isinstance(e, PingAckReceived)]
        assert answered == [b"12345678"]


def test_headers_without_end_cost_only_their_sender(tmp_path: Path) -> None:
    with serving(tmp_path), raw(tmp_path) as hostile:
        client = H2Connection()
        client.initiate_connection()
        client.send_headers(1, [*head(ECHO), ("x", "y" * (grpc_session.HEADER_BYTES_MAX + 1))])
        hostile.sendall(client.data_to_send())
        assert is_closed(hostile)
        assert call(tmp_path / "agent.sock", ECHO, b"x", GUARD_SECONDS) == b"x"


def test_the_clients_deadline_counts(tmp_path: Path) -> None:
    """Tested with the agent's own client, because grpcio enforces the deadline itself."""
    later = DeferredResponse()
    with serving(tmp_path, {SLOW: Method(lambda message, peer: later)}) as server:
        with pytest.raises(CallFailed) as raised:
            call(tmp_path / "agent.sock", SLOW, b"", 0.05)
        assert raised.value.status == "DEADLINE_EXCEEDED"
        until(lambda: later.is_cancelled, "the server forgets a call whose time is over")
        later.respond(b"nobody waits")
        assert call(tmp_path / "agent.sock", ECHO, b"x", GUARD_SECONDS) == b"x"
        assert server.served == 2


@pytest.mark.parametrize("how", ["cancels", "is gone"])
def test_who_gives_up_is_waited_for_no_more(tmp_path: Path, how: str) -> None:
    """An operator's Ctrl-C, a killed launcher: the answer has no recipient."""
    later = DeferredResponse()
    began = threading.Event()

    def slow(message: bytes, peer: Peer) -> DeferredResponse:
        began.set()
        return later

    with serving(tmp_path, {SLOW: Method(slow)}), raw(tmp_path) as created:
        client = H2Connection()
        client.initiate_connection()
        client.send_headers(1, head(SLOW))
        client.send_data(1, bytes(5), end_stream=True)
        created.sendall(client.data_to_send())
        assert began.wait(GUARD_SECONDS)
        if how == "cancels":
            client.reset_stream(1, 8)
            created.sendall(client.data_to_send())
        else:
            created.close()
        until(lambda: later.is_cancelled, "the call of a client that gave up")
        later.respond(b"late")
        assert call(tmp_path / "agent.sock", ECHO, b"x", GUARD_SECONDS) == b"x"


def test_the_peer_is_who_the_kernel_says(tmp_path: Path) -> None:
    peers: list[Peer] = []

    def ask(message: bytes, peer: Peer) -> bytes:
        peers.append(peer)
        return b""

    with serving(tmp_path, {ASK: Method(ask)}), channel(tmp_path) as client:
        unary(client, ASK)(b"", timeout=GUARD_SECONDS)
    assert peers == [Peer(os.getpid(), os.getuid(), os.getgid())]


@pytest.mark.skipif(os.getuid() != 0, reason="only root may be somebody else")
def test_only_root_and_our_own_user_may_take_a_gpu_from_us() -> None:
    """A job that makes the agent release its GPU would hide its behavior from the fleet."""
    with (
        tempfile.TemporaryDirectory() as name,  # pytest's own folders are closed to other users
        serving(tmp_path := Path(name), {ASK: Method(echo, privileged=True)}),
    ):
        tmp_path.chmod(0o755)
        code = (
            "import os, sys; from pathlib import Path;"
            "from gangline.agent.transport.unary_call import CallFailed, call;"
            f"os.setuid({NOBODY}); path = Path({str(tmp_path / 'agent.sock')!r});"
            f"assert call(path, {ECHO!r}, b'x', 30) == b'x'\n"
            f"try: call(path, {ASK!r}, b'x', 30)\n"
            "except CallFailed as error: print(error.status, error)"
        )
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
    assert out.stdout == (
        "PERMISSION_DENIED Ask is for root and the agent's own user (uid 0); you are uid 65534\n"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(range(256)) * 16,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x08\x06\x01\0\0\0\0",
    ],
    ids=["http1", "binary", "a frame too long", "ping with a wrong length"],
)
def test_garbage_costs_only_its_sender(tmp_path: Path, data: bytes) -> None:
    with serving(tmp_path), raw(tmp_path) as hostile:
        hostile.sendall(data)
        assert call(tmp_path / "agent.sock", ECHO, b"x", GUARD_SECONDS) == b"x"
        if data[:3] == b"PRI" and data[24:25] == b"\0":
            hostile.shutdown(socket.SHUT_WR)
        assert is_closed(hostile)


def test_half_a_request_is_not_waited_for(tmp_path: Path) -> None:
    limits = LocalServerLimits(first_call_seconds_max=0.05)
    with serving(tmp_path, limits=limits), raw(tmp_path) as slow, raw(tmp_path) as silent:
        client = H2Connection()
        client.initiate_connection()
        client.send_headers(1, head(ECHO))
        client.send_data(1, b"\0\0\0\0\x10abc")
        with suppress(BrokenPipeError, ConnectionResetError):  # if the server closed first
            slow.sendall(client.data_to_send())
        assert is_closed(slow) and is_closed(silent)


def test_an_idle_connection_ends_and_its_client_does_not_notice(tmp_path: Path) -> None:
    """A launcher keeps its channel for days; its next call automatically opens another connection."""
    with (
        serving(tmp_path, limits=LocalServerLimits(idle_seconds_max=0.05)) as server,
        channel(tmp_path) as client,
    ):
        ask = unary(client, ECHO)
        states: list[grpc.ChannelConnectivity] = []
        client.subscribe(states.append)
        for _ in range(3):
            assert ask(b"x", timeout=GUARD_SECONDS) == b"x"
            until(lambda: not server._connections, "the idle connection's end")
            # a call in flight while the connection ends may fail
            until(
                lambda: states[-1] is not grpc.ChannelConnectivity.READY, "the client's end of it"
            )


def test_a_connection_has_a_limit_of_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """h2 remembers every stream of a connection: an endless connection would be a leak."""
    monkeypatch.setattr("gangline.agent.local.server.CALLS_MAX", 5)
    with serving(tmp_path) as server, channel(tmp_path) as client:
        for number in range(23):
            message = str(number).encode()
            answer = unary(client, ECHO)(message, timeout=GUARD_SECONDS, wait_for_ready=True)
            assert answer == message
        assert server.served == 23


def test_a_crowd_does_not_lock_out_the_operator(tmp_path: Path) -> None:
    """A job opens all allowed connections; root's `release` is still answered."""
    limits = LocalServerLimits(
        connections_max=8, connections_reserved=3, connections_per_user_max=4
    )
    with serving(tmp_path, limits=limits) as server:
        server._privileged_users = {12345}  # as if run by another user
        crowd = [socket.socket(socket.AF_UNIX) for _ in range(7)]
        for connection in crowd:
            connection.settimeout(GUARD_SECONDS)
            connection.connect(str(tmp_path / "agent.sock"))
        assert all(is_closed(connection) for connection in crowd[4:])
        assert server.refused_connections == 3
        server._privileged_users = {os.getuid()}
        assert call(tmp_path / "agent.sock", ECHO, b"x", GUARD_SECONDS) == b"x"
        for connection in crowd:
            connection.close()


def test_who_does_not_read_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that calls repeatedly and reads no answer: the buffer is bounded."""
    monkeypatch.setattr("gangline.agent.local.server.UNSENT_BYTES_MAX", 1 << 18)
    big = os.urandom(1 << 16)
    with serving(tmp_path, {ASK: Method(lambda message, peer: big)}) as server:
        with raw(tmp_path) as hostile:
            client = H2Connection()
            client.initiate_connection()
            for number in range(1, 21, 2):
                client.send_headers(number, head(ASK))
                client.send_data(number, bytes(5), end_stream=True)
            hostile.sendall(client.data_to_send())
            until(lambda: server.served, "the first call")
            until(lambda: not server._connections, "the end of who does not read")
        assert call(tmp_path / "agent.sock", ECHO, b"x", GUARD_SECONDS) == b"x"


def test_a_busy_user_is_read_at_a_tenth_of_a_processor(tmp_path: Path) -> None:
    """A loop of calls by a job would take half of the daemon's interpreter from the sampling."""
    with serving(tmp_path) as server:
        server._privileged_users = set()
        server._budget.spend(os.getuid(), BURST_SECONDS + CPU_SHARE_MAX * 0.2, time.monotonic())
        path = tmp_path / "agent.sock"
        assert call(path, ECHO, b"the connection is made at once", GUARD_SECONDS)
        until(lambda: server._budget.left_seconds(os.getuid(), time.monotonic()) >= 0, "a share")
        assert call(path, ECHO, b"x", GUARD_SECONDS) == b"x"


def test_who_only_connects_pays_for_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`while true; do nc -zU agent.sock; done` used a whole processor."""
    monkeypatch.setattr("gangline.agent.local.server.CPU_SHARE_MAX", 1e-6)
    monkeypatch.setattr("gangline.agent.local.server.BURST_SECONDS", 1e-6)
    with serving(tmp_path) as server:
        server._privileged_users = set()
        pauses, pause = list[float](), server._pause_accepting

        def held_up(seconds: float) -> None:
            pauses.append(seconds)
            pause(seconds)

        monkeypatch.setattr(server, "_pause_accepting", held_up)
        with raw(tmp_path), raw(tmp_path):
            until(lambda: pauses == [ACCEPT_PAUSE_SECONDS] * 2, "both held up the line")
        server._privileged_users = {os.getuid()}
        assert call(tmp_path / "agent.sock", ECHO, b"x", GUARD_SECONDS) == b"x"


def test_the_budget_is_per_user_and_comes_back() -> None:
    budget = CpuBudget()
    budget.spend(1, 2 * BURST_SECONDS, 100.0)
    assert budget.left_seconds(1, 100.0) == -BURST_SECONDS
    assert budget.left_seconds(2, 100.0) == BURST_SECONDS
    assert budget.available_at(2, 100.0) == 0.0
    again = budget.available_at(1, 100.0)
    assert again == 100.0 + BURST_SECONDS / CPU_SHARE_MAX
    assert budget.left_seconds(1, again + 1e-6) >= 0
    assert budget.left_seconds(1, again + 1e6) == BURST_SECONDS
    for user in range(10_000):
        budget.spend(user, 0.001, 200.0)
    assert len(budget._buckets) <= 256


def head(path: str, **more: str) -> list[tuple[str, str]]:
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return [*fields.items(), *((k.replace("_", "-"), v) for k, v in more.items())]


def test_the_socket_of_a_killed_agent_is_replaced(tmp_path: Path) -> None:
    """kill -9 leaves the file; the next agent must not need an operator to remove it."""
    path = tmp_path / "agent.sock"
    code = f"from pathlib import Path; from gangline.agent.local.server import UnixListener; import os, signal; UnixListener(Path({str(path)!r})); os.kill(os.getpid(), signal.SIGKILL)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert path.is_socket()
    with pytest.raises(NoListener, match="no answer at"):
        call(path, ECHO, b"x", GUARD_SECONDS)
    with serving(tmp_path):
        assert call(path, ECHO, b"x", GUARD_SECONDS) == b"x"
        assert path.stat().st_mode & 0o777 == 0o666
        assert list(tmp_path.iterdir()) == [path]
    assert not path.exists()


def test_the_socket_of_a_living_agent_is_left_alone(tmp_path: Path) -> None:
    """A second agent started by mistake would take the clients of the first."""
    with serving(tmp_path):
        with pytest.raises(SocketInUse, match=f"process {os.getpid()} answers at"):
            UnixListener(tmp_path / "agent.sock")
        assert call(tmp_path / "agent.sock", ECHO, b"x", GUARD_SECONDS) == b"x"


def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "agent.sock").write_text("precious")
    with pytest.raises(OSError, match="is not a socket"):
        UnixListener(tmp_path / "agent.sock")
    assert (tmp_path / "agent.sock").read_text() == "precious"


def test_a_path_too_long_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"too long for a Unix socket .* run_folder"):
        UnixListener(tmp_path / ("x" * 100) / "agent.sock")


def test_the_folder_is_made_for_all_to_enter(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        listener = UnixListener(tmp_path / "run" / "agent.sock")
    finally:
        os.umask(before)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o755
    listener.close()
    listener.close()


def test_nobody_asks_and_the_server_sleeps(tmp_path: Path) -> None:
    """A wake-up a second on each of ten thousand hosts would be wasted."""
    with serving(tmp_path) as server:
        assert server._seconds_to_sleep() is None
        call(tmp_path / "agent.sock", ECHO, b"x", GUARD_SECONDS)
        until(lambda: not server._connections, "the caller's end")
        assert server._seconds_to_sleep() is None


def test_the_end_is_quick_with_clients_connected(tmp_path: Path) -> None:
    with (
        futures.ThreadPoolExecutor(1) as pool,
        serving(tmp_path) as server,
        raw(tmp_path) as idle,
    ):
        until(lambda: server._connections, "the connection")
        assert pool.submit(server.close).result(GUARD_SECONDS) is None
        assert is_closed(idle)
