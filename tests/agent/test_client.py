"""The client against real servers on loopback: grpc.aio, and servers that are not an aggregator."""

from __future__ import annotations

import asyncio
import http.server
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest

from gangline.agent.spool.event_queue import EventQueue
from gangline.agent.spool.spool import Spool
from gangline.agent.transport.client import Client, TargetError, parse_target
from gangline.agent.transport.protocol import ACK_SECONDS_MAX, RESPONSE_SECONDS_MAX
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.stream import Receiver
from gangline.contract.wire.telemetry_pb2 import (
    Device,
    HealthEvent,
    IngestAck,
    RefusedFrame,
    RegisterNodeRequest,
    RegisterNodeResponse,
    ReportEventsRequest,
    ReportEventsResponse,
    SequenceRange,
    TelemetryBatch,
)
from gangline.contract.wire.telemetry_pb2_grpc import (
    TelemetryServiceServicer,
    add_TelemetryServiceServicer_to_server,
)
from tests.agent.fakes import HandedClock
from tests.processes import GUARD_SECONDS


class Told:
    """A condition shared by all parts of a test; each change notifies it."""

    def __init__(self) -> None:
        self.condition = threading.Condition()

    def tell(self) -> None:
        with self.condition:
            self.condition.notify_all()

    def until(self, holds: Callable[[], object], what: str) -> None:
        with self.condition:
            assert self.condition.wait_for(holds, GUARD_SECONDS), f"guard: never {what}"


class Aggregator(TelemetryServiceServicer):
    """TelemetryService on grpc.aio in a thread; it records its input."""

    def __init__(self, told: Told, credit_frames: int = 8) -> None:
        self.told = told
        self.credit_frames = credit_frames
        self.registrations: list[RegisterNodeRequest] = []
        self.batches: list[TelemetryBatch] = []
        self.restored: dict[int, bytes] = {}  # decoded from differences
        self.sessions: set[str] = set()
        self.events: list[str] = []
        self.streams = 0
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.receipts = True
        self.refuse_sequence = 0
        self.context_bytes = 0
        self.lose_sequence = 0
        self.refuse_event = ""
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._server: grpc.aio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def start(self) -> None:
        self._do(self._start())

    def stop(self) -> None:
        self._do(self._stop())

    def end(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(GUARD_SECONDS)
        self._loop.close()

    def _do(self, what: object) -> None:
        assert asyncio.iscoroutine(what)
        asyncio.run_coroutine_threadsafe(what, self._loop).result(GUARD_SECONDS)

    async def _start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.http2.bdp_probe", 0)])  # as the real one
        add_TelemetryServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def _stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def sequences(self) -> list[int]:
        return [batch.sequence for batch in self.batches]

    async def RegisterNode(self, request, context):  # type: ignore[no-untyped-def]
        self.registrations.append(request)
        self.told.tell()
        if self.refusal is not None:
            await context.abort(*self.refusal)
        session = f"session-{len(self.registrations)}"
        return RegisterNodeResponse(
            session=session,
            credit_frames=self.credit_frames,
            stream_context_bytes=self.context_bytes,
        )

    async def StreamTelemetry(self, request_iterator, context) -> AsyncIterator[IngestAck]:  # type: ignore[no-untyped-def]
        self.sessions.update(v for k, v in context.invocation_metadata() if k == "gangline-session")
        self.streams += 1
        self.told.tell()
        receiver = Receiver(self.context_bytes)
        async for batch in request_iterator:
            if batch.differences and batch.sequence == self.lose_sequence:
                self.lose_sequence = 0
                await context.abort(grpc.StatusCode.DATA_LOSS, "a wrong checksum")
            if batch.differences:
                self.restored[batch.sequence] = receiver.decode(batch.differences)
            self.batches.append(batch)
            self.told.tell()
            if batch.sequence == self.refuse_sequence:
                yield IngestAck(refused=[RefusedFrame(sequence=batch.sequence, reason="damaged")])
            elif self.receipts:
                done = SequenceRange(first=batch.sequence, last=batch.sequence)
                yield IngestAck(durable=[done], credit_frames=self.credit_frames)

    async def ReportEvents(self, request: ReportEventsRequest, context):  # type: ignore[no-untyped-def]
        ids = [event.event_id for event in request.events]
        if self.refuse_event in ids:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such event name")
        self.events += ids
        self.told.tell()
        return ReportEventsResponse(accepted=len(ids))


class ToldRandom(random.Random):
    """Notifies that a connection failed (`last_error` is set by then), and shortens the next delay."""

    def __init__(self, told: Told) -> None:
        super().__init__(1)
        self.told = told
        self.asked: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.asked.append((a, b))
        self.told.tell()
        return 0.01


class ToldSpool(Spool):
    told: Told

    def acknowledge(self, first: int, last: int) -> None:
        super().acknowledge(first, last)
        self.told.tell()

    def mark_refused(self, sequence: int, reason: str) -> None:
        super().mark_refused(sequence, reason)
        self.told.tell()


class ToldEvents(EventQueue):
    told: Told

    def acknowledge(self, event_ids) -> None:  # type: ignore[no-untyped-def]
        super().acknowledge(event_ids)
        self.told.tell()

    def mark_refused(self, event_ids, reason: str) -> None:  # type: ignore[no-untyped-def]
        super().mark_refused(event_ids, reason)
        self.told.tell()


class Agent:
    """Spool, queue and client of one host; every change notifies `told`."""

    def __init__(self, told: Told, folder: Path) -> None:
        self.told = told
        self.folder = folder
        spool = ToldSpool.open(folder / "s", bytes_max=1 << 22, boot_id=b"b" * 16, owner="m")
        events = ToldEvents.open(folder / "e")
        assert isinstance(spool, ToldSpool) and isinstance(events, ToldEvents)
        spool.told = events.told = told
        self.spool, self.events = spool, events
        self.random = ToldRandom(told)
        self.clock = HandedClock()
        self.devices = 1
        self.clients: list[Client] = []

    def register(self) -> RegisterNodeRequest:
        return RegisterNodeRequest(
            protocol_version=1, node="a", devices=[Device(kind="gpu")] * self.devices
        )

    def client(self, port: int, live_hertz: float = 1.0) -> Client:
        client = Client(
            f"127.0.0.1:{port}", self.register, self.spool, self.events,
            random_source=self.random, clock=self.clock, live_hertz=live_hertz,
        )  # fmt: skip
        self.clients.append(client)
        client.start()
        return client

    def stream(self, aggregator: Aggregator, live_hertz: float = 1.0) -> Client:
        client = self.client(aggregator.port, live_hertz)
        self.until(lambda: aggregator.streams, "streaming")
        return client

    def append(self, count: int, frame: bytes = b"frame") -> None:
        for _ in range(count):
            self.spool.append(self.spool.next_sequence(), frame)

    def deliver(self, client: Client, count: int = 0) -> None:
        """Append frames, and wait for all receipts."""
        self.append(count)
        client.notify()
        self.until(lambda: self.spool.unacknowledged_frames == 0, "receipted")

    def until(self, holds: Callable[[], object], what: str) -> None:
        self.told.until(holds, what)

    def end(self) -> None:
        for client in self.clients:
            client.close(0.0)
        self.spool.close()
        self.events.close()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def aggregator(told: Told) -> Iterator[Aggregator]:
    aggregator = Aggregator(told)
    aggregator.start()
    yield aggregator
    aggregator.end()


@pytest.fixture
def agent(told: Told, tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(told, tmp_path)
    yield agent
    agent.end()


def test_delivered_once_and_deleted_by_receipts(aggregator: Aggregator, agent: Agent) -> None:
    """A new agent, half a minute of frames in its spool, a live one, two events."""
    agent.append(30, bytes(3000))
    for number in (1, 2):
        agent.events.put(HealthEvent(event_id=f"xid-{number}"))
    client = agent.stream(aggregator)
    # Also wait for the answer: an unanswered old request ends the connection, and nothing is due on
    # the next.
    agent.until(lambda: len(agent.events) == 0, "receipted events")
    agent.append(1)
    client.notify()
    agent.until(
        lambda: agent.spool.unacknowledged_frames == 28, "one live, two of before receipted"
    )
    agent.clock.advance(60.0)  # backlog goes by the second
    agent.deliver(client)
    assert sorted(aggregator.sequences) == list(range(1, 32))
    assert [batch.sequence for batch in aggregator.batches if not batch.backlog] == [31]
    assert aggregator.batches[0].sequence == 31, "the present first"
    assert aggregator.events == ["xid-1", "xid-2"]
    assert aggregator.sessions == {"session-1"}
    [registration] = aggregator.registrations
    assert (registration.run_id, registration.boot_id) == (agent.spool.run_id, b"b" * 16)
    assert (client.connected, client.reconnects, client.last_error) == (True, 1, "")


def test_a_killed_aggregator_gets_the_rest(aggregator: Aggregator, agent: Agent) -> None:
    """It ended with frames in flight; they are sent again, with later frames."""
    client = agent.stream(aggregator, live_hertz=1000.0)
    agent.deliver(client, 1)
    aggregator.receipts = False
    agent.append(3)
    client.notify()
    agent.until(lambda: len(aggregator.batches) == 4, "sent")
    aggregator.stop()
    agent.until(lambda: agent.random.asked, "noticed")
    assert not client.connected and client.last_error
    agent.append(20)
    aggregator.receipts = True
    aggregator.start()
    agent.until(lambda: aggregator.streams == 2, "back")
    agent.clock.advance(60.0)
    while agent.spool.unacknowledged_frames:
        before = agent.spool.unacknowledged_frames
        client.notify()
        agent.until(lambda b=before: agent.spool.unacknowledged_frames < b, "receipted")  # type: ignore[misc]
        agent.clock.advance(1.0)
    assert sorted(aggregator.sequences) == sorted([*range(1, 25), 2, 3, 4])
    assert client.reconnects == 2


def test_a_lost_stream_restarts_with_whole_frames(aggregator: Aggregator, agent: Agent) -> None:
    """One turned bit: that frame comes complete on the next stream, later ones as differences."""
    aggregator.context_bytes, aggregator.lose_sequence = 1 << 15, 3
    client = agent.client(aggregator.port, live_hertz=1000.0)
    sent: dict[int, bytes] = {}

    def send(streams: int, *sequences: int) -> None:
        agent.until(lambda: client.connected and aggregator.streams == streams, "streaming")
        for sequence in sequences:
            stamp = frames.Stamp(agent.spool.run_id, b"b" * 16, sequence, sequence, sequence)
            block = Block("gpu_1s", ["GPU-0"])
            block.put_int(0, 0, sequence)
            sent[sequence] = frames.encode(stamp, [block], deflate=False)
            agent.spool.append(sequence, sent[sequence])
        agent.clock.advance(1.0)  # allows backlog, too
        client.notify()

    send(1, 1, 2, 3)
    agent.until(lambda: agent.random.asked, "ended")
    assert "DATA_LOSS: a wrong checksum" in client.last_error
    send(2, 4)
    agent.until(lambda: agent.spool.unacknowledged_frames == 0, "receipted")
    assert sorted(aggregator.restored) == [1, 2], "the second stream had none"
    aggregator.stop()
    agent.until(lambda: len(agent.random.asked) > 1, "gone")
    aggregator.start()
    send(3, 5, 6)
    agent.until(lambda: agent.spool.unacknowledged_frames == 0, "receipted")
    assert sorted(aggregator.restored) == [1, 2, 5, 6]
    whole = {b.sequence: frames.inflate_frame(b.frame) for b in aggregator.batches if b.frame}
    assert aggregator.restored | whole == sent


def test_a_refused_name_is_told_and_tried_again_late(aggregator: Aggregator, agent: Agent) -> None:
    """A second host has the name of a first: it must not retry every second."""
    aggregator.refusal = (grpc.StatusCode.ALREADY_EXISTS, "host a is spoken for by run 0f0f…")
    client = agent.client(aggregator.port)
    agent.until(lambda: agent.random.asked, "refused")
    assert "RegisterNode: ALREADY_EXISTS: host a is spoken for by run 0f0f…" in client.last_error
    assert agent.random.asked[0] == (30.0, 60.0)
    aggregator.refusal = None
    agent.until(lambda: client.reconnects == 0 or client.connected, "tried again")


def test_refused_frames_and_events_hold_up_no_others(aggregator: Aggregator, agent: Agent) -> None:
    """One frame and one event that this aggregator always refuses, among others."""
    aggregator.refuse_sequence, aggregator.refuse_event = 2, "bad"
    for name in ("good", "bad", "fine"):
        agent.events.put(HealthEvent(event_id=name))
    client = agent.client(aggregator.port)
    agent.until(lambda: aggregator.streams and not len(agent.events), "all events settled")
    agent.deliver(client, 3)
    assert (agent.spool.refused_frames, agent.spool.last_refusal) == (1, "damaged")
    assert aggregator.events == ["good", "fine"]
    assert agent.events.refused_events == 1 and "no such event name" in agent.events.last_error


def test_a_changed_inventory_is_sent_again(aggregator: Aggregator, agent: Agent) -> None:
    """A GPU fell off the bus: the device list changes, the stream goes on."""
    client = agent.stream(aggregator)
    agent.devices = 2
    client.reregister()
    agent.until(lambda: len(aggregator.registrations) == 2, "registered again")
    agent.deliver(client, 1)
    assert [len(r.devices) for r in aggregator.registrations] == [1, 2]
    assert (client.reconnects, aggregator.sessions) == (1, {"session-1"})


def test_an_aggregator_that_sends_no_receipts_is_left(aggregator: Aggregator, agent: Agent) -> None:
    """Its writer hangs, its sockets do not: without this the agent would wait forever."""
    aggregator.receipts = False
    client = agent.stream(aggregator)
    agent.append(1)
    client.notify()
    agent.until(lambda: aggregator.batches, "sent")
    aggregator.receipts = True
    agent.clock.advance(ACK_SECONDS_MAX)
    client.notify()
    agent.until(lambda: agent.random.asked, "left")
    assert "no acknowledgment within 30 s" in client.last_error
    agent.until(lambda: aggregator.streams == 2, "came back")
    agent.clock.advance(ACK_SECONDS_MAX / 2)
    agent.deliver(client)
    assert aggregator.sequences == [1, 1]


def test_closing_sends_what_is_live(aggregator: Aggregator, agent: Agent) -> None:
    """`systemctl stop`: the last second, with the host's final event, must not be missing."""
    client = agent.stream(aggregator)
    agent.deliver(client, 1)
    agent.append(3)
    agent.events.put(HealthEvent(event_id="goodbye"))
    client.close(GUARD_SECONDS)
    assert agent.spool.unacknowledged_frames == 0 and len(agent.events) == 0
    assert aggregator.sequences == [1, 2, 3, 4] and aggregator.events == ["goodbye"]
    client.notify()  # harmless afterwards


@contextmanager
def listening(answer: bytes | None) -> Iterator[int]:
    """Yield a port that reads from each connection and sends *answer*; None: nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if answer is None:
            yield listener.getsockname()[1]
            return
        thread = threading.Thread(target=_answer_all, args=(listener, answer))
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(GUARD_SECONDS)


def _answer_all(listener: socket.socket, answer: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(9999)
            connection.sendall(answer)


@contextmanager
def http_server() -> Iterator[int]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(GUARD_SECONDS)


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        (http_server, ""),
        (lambda: listening(b"HTTP/1.0 200 OK\r\n\r\n"), "HTTP/1 server"),
        (lambda: listening(b"+OK POP3 ready\r\n"), "does not speak HTTP/2"),
        (lambda: listening(bytes(range(256)) * 9), "does not speak HTTP/2"),
        (lambda: listening(b""), "closed the connection"),
    ],
)
def test_other_servers_are_reported(agent: Agent, peer: Callable[[], object], message: str) -> None:
    """The wrong port in the config: the agent reports it, continues sampling, and keeps trying."""
    with peer() as port:  # type: ignore[attr-defined]
        client = agent.client(port)
        agent.until(lambda: len(agent.random.asked) >= 3, "tried again")
        agent.append(2)
        client.notify()
        assert message in client.last_error and client.last_error.startswith(f"127.0.0.1:{port}: ")
        assert (client.connected, client.reconnects) == (False, 0)
        assert agent.spool.unacknowledged_frames == 2
        client.close()
    spread = [high for _, high in agent.random.asked[:3]]
    assert spread == [1.0, 2.0, 4.0]


def test_a_port_where_nobody_listens(agent: Agent) -> None:
    """The aggregator is not started yet: refused, with the kernel's message."""
    with listening(None) as port:
        pass
    client = agent.client(port)
    agent.until(lambda: agent.random.asked, "failed")
    assert client.last_error == f"127.0.0.1:{port}: Connection refused"


def test_a_server_that_never_answers_holds_up_nobody(agent: Agent) -> None:
    """A process stopped in a debugger accepts through its kernel, and never answers."""
    with listening(None) as port:
        client = agent.client(port)
        began = time.monotonic()
        for _ in range(500):
            agent.append(1, bytes(1000))
            client.notify()
        assert time.monotonic() - began < GUARD_SECONDS / 2
        while not agent.random.asked:
            agent.clock.advance(RESPONSE_SECONDS_MAX)
            client.notify()
            with agent.told.condition:
                agent.told.condition.wait_for(lambda: agent.random.asked, 0.2)
        assert "no answer to RegisterNode within 10 s" in client.last_error
        assert agent.spool.unacknowledged_frames == 500
        client.close(0.5)


def test_a_peer_that_does_not_read_is_left(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ping is echoed: a peer that sends pings and reads no echo filled the agent's memory."""
    monkeypatch.setattr("gangline.agent.transport.client.OUT_BYTES_MAX", 1 << 16)
    # A kernel that cannot deliver ends the connection after this time, also while the queue grows.
    monkeypatch.setattr(
        "gangline.agent.transport.client.PEER_SILENCE_SECONDS_MAX", int(2 * GUARD_SECONDS)
    )
    real = socket.create_connection

    def with_small_buffer(address: tuple[str, int], timeout: float) -> socket.socket:
        result = real(address, timeout)
        result.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return result

    monkeypatch.setattr(socket, "create_connection", with_small_buffer)
    settings, ping = bytes(3) + b"\4" + bytes(5), b"\0\0\x08\6" + bytes(13)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client = agent.client(listener.getsockname()[1])
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # until the client closes it
            connection.sendall(settings)
            while not agent.random.asked:
                connection.sendall(ping * 5000)
        agent.until(lambda: agent.random.asked, "left")
        # Checked while the listener is open: the next connection fails with another message.
        assert "reads nothing" in client.last_error


def test_no_request(aggregator: Aggregator, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inventory raised within the registration: the thread must continue, and report it."""
    whole = agent.register
    broken = True

    def register() -> RegisterNodeRequest:
        if broken:
            raise KeyError("devices")
        return whole()

    monkeypatch.setattr(agent, "register", register)
    client = agent.client(aggregator.port)
    agent.until(lambda: agent.random.asked, "failed")
    assert "KeyError: 'devices'" in client.last_error
    broken = False
    agent.until(lambda: aggregator.streams, "streaming")


def test_peer_is_gone(
    aggregator: Aggregator, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregator's machine lost power: the socket options must notice it within 20 s."""
    result: list[socket.socket] = []
    real = socket.create_connection

    def remembering(address: tuple[str, int], timeout: float) -> socket.socket:
        result.append(real(address, timeout))
        return result[-1]

    monkeypatch.setattr(socket, "create_connection", remembering)
    agent.stream(aggregator)
    options = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT]
    idle, interval, probes = (result[0].getsockopt(socket.IPPROTO_TCP, o) for o in options)
    assert result[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + interval * probes <= 20
    assert result[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("127.0.0.1:7600", ("127.0.0.1", 7600)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("10.0.0.1:7600", "Set tls_ca_file"),
        ("aggregator.example:7600", "Set tls_ca_file"),
        ("[2001:db8::1]:7600", "Set tls_ca_file"),
        ("127.0.0.1", "expected HOST:PORT"),
        (":7600", "expected HOST:PORT"),
        ("::1:7600", "expected HOST:PORT"),
        ("http://127.0.0.1:7600", "expected HOST:PORT"),
        ("127.0.0.1:0", "expected HOST:PORT"),
        ("127.0.0.1:٧٦", "expected HOST:PORT"),
    ],
)
def test_targets_without_tls(target: str, expected: str | tuple[str, int]) -> None:
    """Telemetry of a whole cluster in plain text over a public network; allowed only if set."""
    if isinstance(expected, tuple):
        assert parse_target(target) == expected
        return
    with pytest.raises(TargetError, match=expected):
        parse_target(target)
    if "tls" in expected:
        host = target.rpartition(":")[0].strip("[]")
        assert parse_target(target, allow_plaintext=True) == (host, 7600)
