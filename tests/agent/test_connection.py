"""One connection to a real server: only the client's thread uses the socket; adding never waits."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable

import pytest

from gangline.agent.transport import client as client_module
from gangline.agent.transport.client import RECEIVE_BYTES_MAX, Client, Connection
from gangline.agent.transport.http2 import SessionError
from gangline.agent.transport.protocol import ACK_SECONDS_MAX, TelemetryProtocol
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.wire.telemetry_pb2 import HealthEvent, IngestAck, SequenceRange
from tests.agent.test_client import Agent, Aggregator, Told, agent, aggregator, told
from tests.processes import GUARD_SECONDS

__all__ = ["agent", "aggregator", "told"]
#: Maximum live frames in flight.
CREDIT_FRAMES = 16


class Wire:
    """The client's socket, with a peer or a kernel that behaves badly for the next bytes sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.sends: Callable[[bytes], int] | None = None
        self.reads = 0

    def fileno(self) -> int:
        return self.connection.fileno()

    def recv(self, size: int) -> bytes:
        self.reads += 1
        return self.connection.recv(size)

    def send(self, data: bytes) -> int:
        sends, self.sends = self.sends, None
        return sends(data) if sends is not None else self.connection.send(data)


class Streaming:
    """A client after its first receipt."""

    def __init__(
        self,
        told: Told,
        aggregator: Aggregator,
        agent: Agent,
        monkeypatch: pytest.MonkeyPatch,
        live_hertz: float = 1.0,
    ) -> None:
        self.told, self.aggregator, self.agent = told, aggregator, agent
        aggregator.context_bytes, aggregator.credit_frames = 1 << 15, CREDIT_FRAMES
        self.sent: dict[int, bytes] = {}
        self.wires: list[Wire] = []

        def watched(plain: socket.socket, protocol: TelemetryProtocol, wake: int) -> Connection:
            self.wires.append(Wire(plain))
            return Connection(self.wires[-1], protocol, wake)

        monkeypatch.setattr(client_module, "Connection", watched)
        self.client: Client = agent.client(aggregator.port, live_hertz)
        told.until(lambda: aggregator.streams, "streaming")
        self.add()
        self.receipted()

    def add(self) -> None:
        sequence = self.agent.spool.next_sequence()
        block = Block("gpu_1s", ["GPU-0"])
        block.put_int(0, 0, sequence)
        stamp = frames.Stamp(self.agent.spool.run_id, b"b" * 16, sequence, sequence, sequence)
        self.sent[sequence] = frames.encode(stamp, [block], deflate=False)
        self.agent.spool.append(sequence, self.sent[sequence])
        self.client.notify()

    def arrived(self, count: int) -> None:
        self.told.until(lambda: len(self.aggregator.batches) >= count, f"{count} frames")

    def receipted(self) -> None:
        self.told.until(lambda: self.agent.spool.unacknowledged_frames == 0, "receipted")

    def restored(self) -> dict[int, bytes]:
        """Return the aggregator's frames, from differences and complete frames."""
        whole = {
            batch.sequence: frames.inflate_frame(batch.frame)
            for batch in self.aggregator.batches
            if batch.frame
        }
        return whole | self.aggregator.restored


@pytest.fixture
def streaming(
    told: Told, aggregator: Aggregator, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> Streaming:
    return Streaming(told, aggregator, agent, monkeypatch)


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ValueError("odd")])
def test_what_fails_in_sending_is_sent_again(streaming: Streaming, error: Exception) -> None:
    """The aggregator disappears at this moment: the sampling thread must not notice."""

    def fails(_: bytes) -> int:
        raise error

    streaming.wires[-1].sends = fails
    streaming.add()
    streaming.told.until(lambda: streaming.agent.random.asked, "told")
    assert str(error.args[-1]) in streaming.client.last_error
    streaming.told.until(lambda: streaming.aggregator.streams == 2, "back")
    streaming.agent.clock.advance(5.0)  # allows backlog
    streaming.client.notify()
    streaming.told.until(lambda: len(streaming.restored()) == 2, "the lost one again")
    assert streaming.restored() == streaming.sent


@pytest.mark.parametrize("taken_bytes", [0, 10])
def test_untaken_bytes_go_first_later(streaming: Streaming, taken_bytes: int) -> None:
    """Its buffer was full in the middle of a frame: the next must not come in between."""
    wire = streaming.wires[-1]

    def full(data: bytes) -> int:
        if not taken_bytes:
            raise BlockingIOError
        return wire.connection.send(data[:taken_bytes])

    wire.sends = full
    for _ in range(3):
        streaming.add()
    streaming.arrived(4)
    assert streaming.aggregator.sequences == [1, 2, 3, 4]
    assert streaming.restored() == streaming.sent
    assert (streaming.aggregator.streams, streaming.client.last_error) == (1, "")


def test_events_and_registrations_go_beside_frames(streaming: Streaming) -> None:
    """In addition to a frame there was an XID to report, and a changed inventory."""
    streaming.agent.events.put(HealthEvent(event_id="xid-1"))
    streaming.add()
    streaming.told.until(lambda: not len(streaming.agent.events), "reported")
    streaming.client.reregister()
    streaming.add()
    streaming.told.until(lambda: len(streaming.aggregator.registrations) == 2, "registered")
    streaming.arrived(3)
    assert streaming.aggregator.events == ["xid-1"]
    assert streaming.restored() == streaming.sent


def test_many_who_notify_keep_the_streams_order(streaming: Streaming) -> None:
    """Kernel log, network listener and daemon each notify: one stream, one order."""
    ended = threading.Event()

    def notifying() -> None:
        while not ended.is_set():
            streaming.client.notify()

    others = [threading.Thread(target=notifying) for _ in range(3)]
    for other in others:
        other.start()
    try:
        for count in range(2, 200):
            streaming.add()
            if count % (CREDIT_FRAMES // 2) == 0:  # at most the live frames
                streaming.arrived(count)
    finally:
        ended.set()
        for other in others:
            other.join(GUARD_SECONDS)
    streaming.arrived(199)
    assert streaming.aggregator.sequences == list(range(1, 200))
    assert streaming.restored() == streaming.sent
    assert (streaming.aggregator.streams, streaming.client.last_error) == (1, "")


def test_closing_takes_the_last_receipts(streaming: Streaming) -> None:
    """`systemctl stop` finds the thread waiting, and a frame without its receipt."""
    streaming.add()
    streaming.client.close(GUARD_SECONDS)
    assert streaming.agent.spool.unacknowledged_frames == 0
    streaming.client.notify()  # harmless afterwards


def test_a_frame_and_the_receipt_before_it_are_one_waking(
    told: Told, aggregator: Aggregator, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waking for each receipt cost more than the receipt is worth."""
    streaming = Streaming(told, aggregator, agent, monkeypatch, 1 / (2 * GUARD_SECONDS))
    wire = streaming.wires[-1]
    before = wire.reads
    for count in range(2, 7):
        streaming.add()
        streaming.arrived(count)
    assert wire.reads - before == 5
    assert agent.spool.unacknowledged_frames > 0, "the last receipt lies there"
    assert streaming.restored() == streaming.sent


def test_receipts_are_read_though_no_frame_comes(streaming: Streaming) -> None:
    """The daemon hangs: receipted frames are still deleted."""
    streaming.add()
    streaming.receipted()


def test_receipts_that_lie_there_are_read_before_patience_ends() -> None:
    """The agent was frozen for a minute: it closed a healthy connection, and reconnected."""
    ours, peer = socket.socketpair()
    wake = os.eventfd(1)
    with ours, peer:
        ours.setblocking(False)
        ack = IngestAck(durable=[SequenceRange(first=2, last=2)]).SerializeToString()
        peer.sendall(ack)
        connection = Connection(ours, Idle(), wake)  # type: ignore[arg-type]
        assert connection.wait(ACK_SECONDS_MAX, quiet=True) == ack, "with the waking"
        assert connection.wait(0.0) == b""
        peer.sendall(bytes(RECEIVE_BYTES_MAX + 1))
        assert len(connection.wait(None)) == RECEIVE_BYTES_MAX
        assert connection.wait(0.0, quiet=True) == b"\0", "when the time is over"
        peer.close()
        with pytest.raises(SessionError, match="closed the connection"):
            connection.wait(None, quiet=True)
    os.close(wake)


class Idle:
    """A protocol without output."""


def test_a_frame_longer_than_the_peers_window_does_not_wait(streaming: Streaming) -> None:
    """The peer opened it again at once, which was read only eight frames later."""
    frame = random.Random(1).randbytes(200_000)
    streaming.agent.spool.append(streaming.agent.spool.next_sequence(), frame)
    streaming.client.notify()
    streaming.arrived(2)
    assert streaming.aggregator.batches[-1].frame == frame
    streaming.receipted()
