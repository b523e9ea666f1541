"""When a sampler wakes the daemon: batches wait for the daemon's second, urgent messages do not."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from gangline.agent.main import ProcessSignals
from gangline.agent.sampler.messages import SampleBatch, SampleBatchDecoder, SamplerTask
from gangline.agent.sampler.worker import MessageSender, Worker
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.sampler.watched import START, Watched
from tests.agent.sampler.world import SECOND, Device, Telling, World, feed


@pytest.fixture
def bell() -> Iterator[int]:
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    yield descriptor
    os.close(descriptor)


def rang(bell: int) -> int:
    try:
        return os.eventfd_read(bell)
    except BlockingIOError:
        return 0


def test_what_is_said_at_once_rings_and_what_is_only_said_does_not(bell: int) -> None:
    """Each sampler woke the daemon each second, which doubled the cost of the readings."""
    daemon_end, sampler_end = socket.socketpair()
    with daemon_end, sampler_end:
        mouth = MessageSender(sampler_end, bell)
        assert mouth.send(b"a round")
        assert rang(bell) == 0
        assert mouth.send_urgent(b", an XID") and mouth.send_urgent(b" and another")
        assert rang(bell) == 2
        assert daemon_end.recv(100) == b"a round, an XID and another"


def test_a_bell_that_was_rung_too_often_stops_nobody(bell: int) -> None:
    os.eventfd_write(bell, (1 << 64) - 2)
    daemon_end, sampler_end = socket.socketpair()
    with daemon_end, sampler_end:
        assert MessageSender(sampler_end, bell).send_urgent(b"XID")


def test_an_event_is_said_at_once_and_a_round_is_not() -> None:
    world = World(lambda _: {}, START)
    world.devices["a"] = Device()
    collector = Telling(world, "gpu_1s", ["a"])
    reported: list[str] = []

    def say(how: str) -> bool:
        reported.append(how)
        return True

    sampler = Worker(
        {"gpu": [collector]}, world, lambda _: say("round"), send_urgent=lambda _: say("at once")
    )
    sampler.handle(SamplerTask("gpu"))
    collector.teller.publish(HealthEvent(name="gpu.xid"))
    collector.teller.request_inventory("a GPU came")
    assert reported == ["at once", "at once"]
    collector.collect = list  # type: ignore[method-assign]
    sampler.tick()
    assert reported == ["at once", "at once", "round"]


class Poll:
    """Never readable; records the requested waits in milliseconds."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def register(self, *_: int) -> None:
        pass

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        self.waits.append(milliseconds)
        return []


def test_the_daemon_waits_for_the_first_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight GPUs answer after 30 ms: a daemon that came with the second had to come again."""
    poll = Poll()
    monkeypatch.setattr("gangline.agent.main.select.poll", lambda: poll)
    signals = ProcessSignals(World(lambda _: {}, 5 * SECOND - 10_000_000))
    with signals.caught():
        signals.wait(5 * SECOND)
        signals.wait(5 * SECOND + SECOND // 2)
        signals.wait(4 * SECOND)
    assert poll.waits == [60.0, 510.0, 0.0]


class Passes(Telling):
    """A collector that skips every other turn."""

    turns = 0

    def skip(self) -> bool:
        self.turns += 1
        return self.turns % 2 == 0


def test_a_turn_that_is_passed_over_is_in_no_round() -> None:
    """The turn comes again later; that second's batch, the sign of life, is still sent."""
    world, reported = World(lambda _: {}, START), bytearray()

    def say(message: bytes) -> bool:
        reported.extend(message)
        return True

    decoder = SampleBatchDecoder(["gpu_1s"])
    sampler = Worker({"gpu": [Passes(world, "gpu_1s", [])]}, world, say)
    sampler.handle(SamplerTask("gpu"))
    for _ in range(4):
        sampler.tick()
        world.now_ns += SECOND
    feed(decoder, bytes(reported))
    rounds = [decoder.next() for _ in range(4)]
    assert [len(each.results) for each in rounds if isinstance(each, SampleBatch)] == [1, 0, 1, 0]


def test_a_lane_is_polled_only_while_it_is_waited_for() -> None:
    """It sends each second, when the daemon comes anyway."""
    host = Watched()
    host.run(5.5)
    lanes = [host.samplers._supervisor.group_process(lane) for lane in ("gpu", "host")]
    links = {1000 + process.serial for process in lanes if process}
    assert len(links) == 2
    polled = set(host.samplers.descriptors())
    assert len(polled) == 3 and not polled & links  # the fork server's two and the standby's
    assert not host.samplers.waiting(host.world.now_ns // SECOND * SECOND)
    assert host.samplers.waiting(host.world.now_ns // SECOND * SECOND + SECOND)
    assert links < set(host.samplers.descriptors())
    host.run(2)
    assert not links & set(host.samplers.descriptors())
