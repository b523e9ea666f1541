"""A connection at rest, against a real server on loopback: whoever adds a frame sends it, and is held up by nothing."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable
from typing import cast

import pytest

from gangline.agent.transport.client import Client
from gangline.agent.transport.connection import IDLE_RECEIVE_BYTES_MAX, Connection
from gangline.agent.transport.protocol import ACK_SECONDS_MAX, IDLE_FRAMES_MAX
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.wire.telemetry_pb2 import HealthEvent, IngestAck, SequenceRange
from tests.agent.test_client import Agent, Aggregator, Told, agent, aggregator, told
from tests.processes import GUARD_SECONDS

__all__ = ["agent", "aggregator", "told"]


class Wire:
    """The client's socket, with a peer or a kernel that behaves badly for the next bytes sent."""

    def __init__(self, line: Connection) -> None:
        self.connection = line._socket
        self.sends: Callable[[bytes], int] | None = None
        line._socket = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> object:
        return getattr(self.connection, name)

    def send(self, data: bytes) -> int:
        sends, self.sends = self.sends, None
        return sends(data) if sends is not None else self.connection.send(data)


class Resting:
    """A client at rest: it has had its first receipt, and its thread waits."""

    def __init__(
        self, told: Told, aggregator: Aggregator, agent: Agent, live_hertz: float = 1.0
    ) -> None:
        self.told, self.aggregator, self.agent = told, aggregator, agent
        aggregator.context_bytes, aggregator.credit_frames = 1 << 15, 2 * IDLE_FRAMES_MAX
        self.sent: dict[int, bytes] = {}
        self.wakings = 0
        self.client = agent.client(aggregator.port, live_hertz)
        told.until(lambda: aggregator.streams, "streaming")
        self.add()
        told.until(lambda: agent.spool.unacknowledged_frames == 0, "receipted")
        self.line = self.rest()

    def add(self) -> None:
        """Spool a frame of readings, as the daemon does, and say so."""
        sequence = self.agent.spool.next_sequence()
        block = Block("gpu_1s", ["GPU-0"])
        block.put_int(0, 0, sequence)
        stamp = frames.Stamp(self.agent.spool.run_id, b"b" * 16, sequence, sequence, sequence)
        self.sent[sequence] = frames.encode(stamp, [block], deflate=False)
        self.agent.spool.append(sequence, self.sent[sequence])
        self.client.notify()

    def rest(self) -> Connection:
        """Return the line once its thread waits."""
        while (line := self.client._connection) is None or not line._idle:
            with self.told.condition:
                self.told.condition.wait(0.01)
        return line

    def arrived(self, count: int) -> None:
        self.told.until(lambda: len(self.aggregator.batches) >= count, f"{count} frames")

    def restored(self) -> dict[int, bytes]:
        """What the aggregator holds, of differences and whole frames."""
        whole = {
            batch.sequence: frames.inflate_frame(batch.frame)
            for batch in self.aggregator.batches
            if batch.frame
        }
        return whole | self.aggregator.restored


@pytest.fixture
def resting(told: Told, aggregator: Aggregator, agent: Agent) -> Resting:
    return Resting(told, aggregator, agent)


@pytest.fixture
def long_resting(told: Told, aggregator: Aggregator, agent: Agent) -> Resting:
    """One whose thread does not look by itself before the test is over."""
    return Resting(told, aggregator, agent, 1 / (2 * GUARD_SECONDS))


def counting_wakings(resting: Resting, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.eventfd_write

    def counted(descriptor: int, value: int) -> None:
        resting.wakings += 1
        real(descriptor, value)

    monkeypatch.setattr(os, "eventfd_write", counted)


def test_a_frame_is_sent_and_nobody_woken(
    long_resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waking a thread each second cost more than all that it then did."""
    resting = long_resting
    counting_wakings(resting, monkeypatch)
    for count in range(2, 2 + IDLE_FRAMES_MAX):
        resting.add()
        resting.arrived(count)
    assert resting.wakings == 0
    assert resting.agent.spool.unacknowledged_frames == IDLE_FRAMES_MAX, "nothing was read"
    resting.add()  # which reads first
    resting.told.until(lambda: resting.agent.spool.unacknowledged_frames < 3, "receipts")
    resting.arrived(len(resting.sent))
    assert resting.restored() == resting.sent
    assert resting.aggregator.streams == 1


def test_while_the_thread_holds_the_line_nobody_waits_for_it(
    resting: Resting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's thread was in the middle of a registration when the second was over: the daemon samples on."""
    counting_wakings(resting, monkeypatch)
    daemon = threading.Thread(target=resting.add)
    with resting.line:
        daemon.start()
        daemon.join(GUARD_SECONDS)
        assert not daemon.is_alive()
        assert resting.wakings == 1
        assert len(resting.aggregator.batches) == 1, "not from under the holder"
    resting.arrived(2)
    assert resting.restored() == resting.sent


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), ValueError("odd")])
def test_what_fails_is_the_threads_to_handle(resting: Resting, error: Exception) -> None:
    """The aggregator went away in this very second: who samples never hears of it."""

    def fails(_: bytes) -> int:
        raise error

    Wire(resting.line).sends = fails
    resting.add()
    resting.told.until(lambda: resting.agent.random.asked, "told")
    assert str(error.args[-1]) in resting.client.last_error
    resting.told.until(lambda: resting.aggregator.streams == 2, "back")
    resting.agent.clock.advance(5.0)  # backlog may go
    resting.client.notify()
    resting.told.until(lambda: len(resting.restored()) == 2, "the lost one again")
    assert resting.restored() == resting.sent


@pytest.mark.parametrize("taken_bytes", [0, 10])
def test_what_the_socket_does_not_take_goes_first_later(resting: Resting, taken_bytes: int) -> None:
    """Its buffer was full in the middle of a frame: the next must not come in between."""
    wire = Wire(resting.line)

    def full(data: bytes) -> int:
        if not taken_bytes:
            raise BlockingIOError
        return wire.connection.send(data[:taken_bytes])

    wire.sends = full
    resting.add()
    resting.add()
    resting.add()
    resting.arrived(4)
    assert resting.aggregator.sequences == [1, 2, 3, 4]
    assert resting.restored() == resting.sent
    assert (resting.aggregator.streams, resting.client.last_error) == (1, "")


def test_an_end_that_lies_there_with_the_receipts_is_the_threads(resting: Resting) -> None:
    """It hung up, and the kernel had no time yet to say so."""
    wire = Wire(resting.line)
    wire.recv = lambda _: b""  # type: ignore[attr-defined]
    for count in range(2, 2 + IDLE_FRAMES_MAX):
        resting.add()
        resting.arrived(count)
    resting.add()
    resting.told.until(lambda: resting.agent.random.asked, "told")
    assert "closed the connection" in resting.client.last_error


def test_events_and_registrations_are_the_threads(resting: Resting) -> None:
    """Beside a frame there was an XID to report, and an inventory that had changed."""
    resting.agent.events.put(HealthEvent(event_id="xid-1"))
    resting.add()
    resting.told.until(lambda: not len(resting.agent.events), "reported")
    resting.rest()
    resting.client.reregister()
    resting.add()
    resting.told.until(lambda: len(resting.aggregator.registrations) == 2, "registered")
    resting.arrived(3)
    assert resting.aggregator.events == ["xid-1"]
    assert resting.restored() == resting.sent


def test_many_who_notify_keep_the_streams_order(resting: Resting) -> None:
    """Kernel log, network listener and daemon each say that there is something: one stream, one order."""
    ended = threading.Event()

    def notifying() -> None:
        while not ended.is_set():
            resting.client.notify()

    others = [threading.Thread(target=notifying) for _ in range(3)]
    for other in others:
        other.start()
    try:
        for count in range(2, 200):
            resting.add()
            if count % IDLE_FRAMES_MAX == 0:  # no more than may be live
                resting.arrived(count)
    finally:
        ended.set()
        for other in others:
            other.join(GUARD_SECONDS)
    resting.arrived(199)
    assert resting.aggregator.sequences == list(range(1, 200))
    assert resting.restored() == resting.sent
    assert (resting.aggregator.streams, resting.client.last_error) == (1, "")


def test_closing_at_rest_takes_the_last_receipts(resting: Resting) -> None:
    """`systemctl stop` finds the thread waiting, and receipts unread."""
    resting.add()
    resting.arrived(2)
    resting.client.close(GUARD_SECONDS)
    assert resting.agent.spool.unacknowledged_frames == 0
    resting.client.notify()  # harmless afterwards


def test_receipts_are_read_though_no_frame_comes(resting: Resting) -> None:
    """The daemon hangs: what it sent before is forgotten all the same."""
    resting.add()
    resting.arrived(2)
    resting.told.until(lambda: resting.agent.spool.unacknowledged_frames == 0, "receipted")
    assert isinstance(resting.client, Client) and resting.client.connected


def receipts_lie_there(resting: Resting, sequence: int) -> None:
    """Return once the socket holds the receipt, unread."""
    done = SequenceRange(first=sequence, last=sequence)
    said = IngestAck(durable=[done], credit_frames=resting.aggregator.credit_frames)
    while said.SerializeToString() not in _peek(cast(socket.socket, resting.line._socket)):
        with resting.told.condition:
            resting.told.condition.wait(0.01)


def _peek(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


def test_receipts_that_lie_there_are_read_before_patience_ends(long_resting: Resting) -> None:
    """The agent was frozen for a minute (a cgroup, a debugger): it gave a sound connection up, and began anew."""
    resting = long_resting
    resting.add()
    receipts_lie_there(resting, 2)
    resting.agent.clock.advance(ACK_SECONDS_MAX + 1)
    resting.client.notify()
    resting.told.until(lambda: resting.agent.spool.unacknowledged_frames == 0, "receipted")
    resting.rest()
    assert (resting.aggregator.streams, resting.client.last_error) == (1, "")


def test_a_frame_longer_than_the_peers_window_does_not_wait(long_resting: Resting) -> None:
    """The peer opened it again at once, and that was read when eight more frames had come."""
    resting = long_resting
    frame = random.Random(1).randbytes(200_000)
    resting.agent.spool.append(resting.agent.spool.next_sequence(), frame)
    resting.client.notify()
    resting.arrived(2)
    assert resting.aggregator.batches[-1].frame == frame


def test_who_adds_a_frame_takes_little_of_what_a_peer_says(long_resting: Resting) -> None:
    """64 kB of pings that were asked for beside the receipts are the client's thread's to answer."""
    resting = long_resting
    wire, asked = Wire(resting.line), []

    def recv(size: int) -> bytes:
        if threading.current_thread() is threading.main_thread():
            asked.append(size)
        return wire.connection.recv(size)

    wire.recv = recv  # type: ignore[attr-defined]
    for count in range(2, 3 + IDLE_FRAMES_MAX):
        resting.add()
        resting.arrived(count)
    assert asked and max(asked) <= IDLE_RECEIVE_BYTES_MAX
