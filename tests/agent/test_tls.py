"""The agent's TLS, against gRPC's own server and against other servers."""

from __future__ import annotations

import os
import random
import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gangline.agent.config import AgentConfig
from gangline.agent.main import check
from gangline.agent.transport import client as client_module
from gangline.agent.transport.client import Client
from gangline.agent.transport.credentials import Credentials
from gangline.agent.transport.grpc_http2 import ClientSession
from gangline.agent.transport.http2 import SessionError
from gangline.agent.transport.tls import TlsSocket, handshake
from gangline.contract.settings import SettingsError
from gangline.contract.tls import TlsFiles
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from gangline.contract.wire.telemetry_pb2_grpc import add_TelemetryServiceServicer_to_server
from tests.agent.test_client import Agent, Aggregator, Told, told
from tests.aggregator.auth.secured import Secured
from tests.processes import GUARD_SECONDS

__all__ = ["told"]


class SecureAggregator(Aggregator):
    """The same by TLS; clients need a certificate."""

    def __init__(self, told: Told, secured: Secured, *, client_certificates: bool = True) -> None:
        super().__init__(told)
        self.secured, self.client_certificates = secured, client_certificates
        self.tokens: set[str] = set()

    async def _start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.http2.bdp_probe", 0)])
        add_TelemetryServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        server = self.secured.server
        credentials = grpc.ssl_server_credentials(
            [(server.key.read_bytes(), server.certificate.read_bytes())],
            self.secured.ca.read_bytes(),
            self.client_certificates,
        )
        self.port = self._server.add_secure_port(f"127.0.0.1:{self.port}", credentials)
        await self._server.start()

    async def RegisterNode(self, request, context):  # type: ignore[no-untyped-def]
        self.tokens |= {v for k, v in context.invocation_metadata() if k == "authorization"}
        return await super().RegisterNode(request, context)  # type: ignore[no-untyped-call]


class SecureAgent(Agent):
    credentials = Credentials()

    def client(self, port: int, live_hertz: float = 1.0, name: str = "127.0.0.1") -> Client:
        client = Client(
            f"{name}:{port}", self.register, self.spool, self.events,
            random_source=self.random, clock=self.clock, live_hertz=live_hertz,
            credentials=self.credentials,
        )  # fmt: skip
        self.clients.append(client)
        client.start()
        return client


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    folder = tmp_path_factory.mktemp("tls")
    return Secured(folder / "ca", folder / "data")


@pytest.fixture
def agent(told: Told, tmp_path: Path, secured: Secured) -> Iterator[SecureAgent]:
    agent = SecureAgent(told, tmp_path)
    agent.credentials = credentials(secured, "agent", "a")
    yield agent
    agent.end()


def credentials(secured: Secured, role: str = "", name: str = "", **others: str) -> Credentials:
    if not role:
        return Credentials(str(secured.ca), **others)
    files = secured.certificate(role, name, force=True)
    return Credentials(str(secured.ca), str(files.certificate), str(files.key), **others)


@contextmanager
def serving(agent: Agent, secured: Secured, **changes: bool) -> Iterator[SecureAggregator]:
    aggregator = SecureAggregator(agent.told, secured, **changes)
    aggregator.start()
    try:
        yield aggregator
    finally:
        aggregator.end()


def test_everything_is_delivered_by_tls(
    secured: Secured,
    agent: SecureAgent,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thirty seconds of frames, a live one, an event; then frames one by one."""
    token = tmp_path / "token"
    token.write_text("secret-of-a\n")
    agent.credentials = credentials(secured, "agent", "a", token_file=str(token))
    with serving(agent, secured) as aggregator:
        agent.append(30, random.Random(1).randbytes(30_000))
        agent.events.put(HealthEvent(event_id="xid-1"))
        sessions: list[bool] = []

        def session(authority: str, token: str, *, tls: bool) -> ClientSession:
            sessions.append(tls)
            return ClientSession(authority, token, tls=tls)

        monkeypatch.setattr(client_module, "ClientSession", session)
        client = agent.stream(aggregator, live_hertz=200.0)
        assert all(sessions) and sessions, "the scheme is https"
        # Also wait for the answer: an unanswered old request ends the connection, and nothing is
        # due on the next.
        agent.until(lambda: not len(agent.events), "reported")
        agent.clock.advance(60.0)
        agent.deliver(client)
        for number in range(20):
            agent.append(1, random.Random(number).randbytes(5000))
            agent.deliver(client)
        assert sorted(aggregator.sequences) == list(range(1, 51))
        sent = {batch.sequence: batch.frame for batch in aggregator.batches}
        assert sent[50] == random.Random(19).randbytes(5000)
        assert (aggregator.events, aggregator.tokens) == (["xid-1"], {"Bearer secret-of-a"})
        assert (client.connected, client.reconnects, client.last_error) == (True, 1, "")


def test_a_reader_that_is_slow_costs_nothing_but_time(secured: Secured, agent: SecureAgent) -> None:
    """OpenSSL takes parts, and requires the same bytes in the next call."""
    with serving(agent, secured) as aggregator:
        aggregator.credit_frames = 64
        frame = random.Random(2).randbytes(900_000)
        agent.append(4, frame)
        client = agent.stream(aggregator)
        agent.clock.advance(60.0)
        agent.deliver(client)
        assert [batch.frame == frame for batch in aggregator.batches] == [True] * 4


def test_renewed_credentials(secured: Secured, agent: SecureAgent, tmp_path: Path) -> None:
    """A certificate was renewed on disk, which would have required a restart on ten thousand hosts."""
    token = tmp_path / "token"
    token.write_text("old")
    agent.credentials = credentials(secured, "agent", "a", token_file=str(token))
    with serving(agent, secured) as aggregator:
        agent.stream(aggregator)
        secured.certificate("agent", "a", force=True)
        token.write_text("new")
        aggregator.stop()
        agent.until(lambda: agent.random.asked, "noticed")
        aggregator.start()
        agent.until(lambda: aggregator.streams == 2, "back")
        assert aggregator.tokens == {"Bearer old", "Bearer new"}


def failure(agent: SecureAgent, port: int, name: str = "127.0.0.1") -> str:
    client = agent.client(port, name=name)
    agent.until(lambda: client.last_error, "failed")
    client.close(0.0)
    return client.last_error


def test_no_certificate_of_ours(secured: Secured, agent: SecureAgent) -> None:
    """The aggregator requires a certificate, and disconnects after the handshake without a message."""
    agent.credentials = credentials(secured)
    with serving(agent, secured) as aggregator:
        assert "requires a client certificate, and none is set" in failure(agent, aggregator.port)


def test_a_certificate_of_another_ca(secured: Secured, agent: SecureAgent, tmp_path: Path) -> None:
    """The host of a neighboring cluster."""
    other = credentials(Secured(tmp_path / "other", tmp_path / "data"), "agent", "a")
    agent.credentials = Credentials(str(secured.ca), other.tls_certificate_file, other.tls_key_file)
    with serving(agent, secured) as aggregator:
        assert "rejects the client certificate" in failure(agent, aggregator.port)


def test_an_aggregator_of_another_ca(secured: Secured, agent: SecureAgent, tmp_path: Path) -> None:
    """A server in its place must receive nothing, least of all the token."""
    other = Secured(tmp_path / "other", tmp_path / "data")
    with serving(agent, other, client_certificates=False) as aggregator:
        message = failure(agent, aggregator.port)
        assert str(secured.ca) in message and "no CA in" in message
        assert not aggregator.registrations


def test_a_name_that_the_certificate_has_not(secured: Secured, agent: SecureAgent) -> None:
    """Called by an address missing in the certificate; `tls_server_name` helps."""
    with serving(agent, secured) as aggregator:
        message = failure(agent, aggregator.port, "127.0.0.2")
        assert "not for '127.0.0.2'" in message or "refused" in message.lower()
        ours = agent.credentials
        agent.credentials = Credentials(
            ours.tls_ca_file, ours.tls_certificate_file, ours.tls_key_file, "head.example"
        )
        message = failure(agent, aggregator.port)
        assert "not for 'head.example'" in message
        agent.credentials = Credentials(
            ours.tls_ca_file, ours.tls_certificate_file, ours.tls_key_file, "localhost"
        )
        agent.client(aggregator.port)
        agent.until(lambda: aggregator.registrations, "registered")


@pytest.mark.parametrize(
    ("ago", "expected"),
    [(timedelta(days=60), "has expired"), (-timedelta(days=2), "is not valid yet")],
)
def test_a_certificate_of_another_time(
    ago: timedelta, expected: str, secured: Secured, agent: SecureAgent, tmp_path: Path
) -> None:
    """The battery of a mainboard is empty: the host wakes in 2019, and no certificate is valid yet."""
    shutil.copytree(secured.folder, tmp_path / "ca")
    theirs = Secured.__new__(Secured)
    theirs.folder = tmp_path / "ca"
    theirs.server = theirs.authority(ago).issue_server(["127.0.0.1"], 30, force=True)
    with serving(agent, theirs, client_certificates=False) as aggregator:
        message = failure(agent, aggregator.port)
        assert expected in message and "clock" in message and "UTC" in message


def test_tls_against_plain_text_and_the_reverse(secured: Secured, agent: SecureAgent) -> None:
    plain = Aggregator(agent.told)
    plain.start()
    try:
        assert "uses plain text, but this side uses TLS" in failure(agent, plain.port)
    finally:
        plain.end()
    agent.credentials = Credentials()
    with serving(agent, secured) as aggregator:
        assert "If it uses TLS, set tls_ca_file" in failure(agent, aggregator.port)


@pytest.mark.parametrize("what", ["tls_ca_file", "tls_key_file", "token_file"])
@pytest.mark.parametrize("how", ["missing", "garbage", "empty"])
def test_files_that_cannot_be_used_are_named(
    what: str, how: str, secured: Secured, agent: SecureAgent, tmp_path: Path
) -> None:
    """A half-copied deployment: the message names the file, but never shows its content."""
    file = tmp_path / "file"
    if how != "missing":
        file.write_text("" if how == "empty" else "-----BEGIN top secret-----\n two words")
    ours = agent.credentials
    values = {
        "tls_ca_file": ours.tls_ca_file,
        "tls_certificate_file": ours.tls_certificate_file,
        "tls_key_file": ours.tls_key_file,
    }
    agent.credentials = Credentials(**{**values, what: str(file)})
    with serving(agent, secured) as aggregator:
        message = failure(agent, aggregator.port)
    assert str(file) in message and "top secret" not in message and "two words" not in message


def listening(answer: Callable[[socket.socket], None]) -> tuple[int, threading.Thread]:
    """Serve one connection by *answer* in a thread; return the port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with server, server.accept()[0] as connection, suppress(OSError):
            answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return int(server.getsockname()[1]), thread


def test_whatever_listens_there_ends_in_words(secured: Secured) -> None:
    """A port scanner's honeypot, an SSH server, a server that disconnects, a silent server."""
    files = TlsFiles(str(secured.ca))
    answers: list[Callable[[socket.socket], object]] = [
        lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"),
        lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        lambda connection: connection.sendall(os.urandom(2000)),
        lambda connection: connection.recv(10),
        lambda connection: connection.sendall(b"\x15\x03\x03\x00\x02\x02\x28"),  # an alert
    ]
    for answer in answers:
        port, thread = listening(answer)  # type: ignore[arg-type]
        connection = socket.create_connection(("127.0.0.1", port), GUARD_SECONDS)
        with connection, pytest.raises(SessionError) as refused:
            handshake(connection, files, "127.0.0.1")
        assert len(str(refused.value)) > 20
        thread.join(GUARD_SECONDS)
    silent = socket.create_server(("127.0.0.1", 0))
    with (
        silent,
        socket.create_connection(silent.getsockname(), 0.05) as connection,
        pytest.raises(SessionError, match="no answer to the handshake in time"),
    ):
        handshake(connection, files, "127.0.0.1")


@contextmanager
def pair_of(secured: Secured) -> Iterator[tuple[TlsSocket, ssl.SSLSocket]]:
    """Yield a TLS socket like the client's, and the other end."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secured.server.certificate, secured.server.key)
    context.set_alpn_protocols(["h2"])
    here, there = socket.socketpair()
    ends: list[ssl.SSLSocket] = []
    thread = threading.Thread(
        target=lambda: ends.append(context.wrap_socket(there, server_side=True))
    )
    thread.start()
    ours = handshake(here, TlsFiles(str(secured.ca)), "localhost")
    thread.join(GUARD_SECONDS)
    ours.setblocking(False)
    try:
        yield ours, ends[0]
    finally:
        ours.close()
        ends[0].close()


def test_nothing_is_left_where_poll_does_not_see_it(secured: Secured) -> None:
    """A record of 16 kB, read four at a time: receipts remained decrypted in OpenSSL."""
    with pair_of(secured) as (ours, other):
        data = os.urandom(40_000)
        other.sendall(data)
        got = b""
        while len(got) < len(data):
            try:
                got += ours.recv(4096)
            except BlockingIOError:
                continue
            assert ours._wrapped.pending() == 0
        assert got == data
        with pytest.raises(BlockingIOError):
            ours.recv(4096)


def test_a_full_socket_takes_the_same_bytes_later(secured: Secured) -> None:
    """Parts accepted, refused, offered again with more data."""
    with pair_of(secured) as (ours, other):
        data, sent, grown = os.urandom(3_000_000), 0, 1 << 20
        received = bytearray()

        def read() -> None:
            while len(received) < len(data) and (part := other.recv(1 << 16)):
                received.extend(part)

        refusals = 0
        reader = threading.Thread(target=read)
        while sent < len(data):
            try:
                sent += ours.send(data[sent:grown])
            except BlockingIOError:
                refusals += 1
                grown = len(data)
                if not reader.is_alive():
                    reader.start()
            grown = max(grown, min(len(data), sent + 1))
        reader.join(GUARD_SECONDS)
        assert refusals and bytes(received) == data


def test_settings_that_do_not_go_together_are_refused_at_the_start() -> None:
    """A forgotten line would send a token over a public network in plain text."""
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"token_file": "t", "aggregator": "10.0.0.1:7600", "allow_plaintext": True},
            "sent unencrypted",
        ),
        ({"tls_certificate_file": "c", "tls_key_file": "k"}, "Set tls_ca_file"),
        ({"tls_ca_file": "a", "tls_key_file": "k"}, "go together"),
        ({"aggregator": "10.0.0.1:7600"}, "without TLS"),
    ]
    for settings, message in wrong:
        with pytest.raises(SettingsError, match=message):
            check(AgentConfig(**settings))
    check(AgentConfig(tls_ca_file="a", aggregator="10.0.0.1:7600", token_file="t"))
