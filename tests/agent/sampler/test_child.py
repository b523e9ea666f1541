"""A sampler's rest, in this process: a command comes while a collector works, away from the socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest

from gangline.agent.collector import Collector
from gangline.agent.sampler.messages import End, SamplerTask, encode_command
from gangline.agent.sampler.worker import serve
from gangline.contract.block import Block
from gangline.contract.signal import Pace
from gangline.ext import place
from tests.agent.fakes import HandedClock

#: A test with more rests would never end.
RESTS_MAX = 10


class Rests(Collector):
    """A collector that rests like the ring of samples: until the given time."""

    name = "gpu_fast_1s"
    pace = Pace.SECOND
    enters_driver = True

    def __init__(self, clock: HandedClock) -> None:
        self.clock = clock
        self.rests = 0
        self.meanwhile: Callable[[int], None] = lambda _: None

    def collect(self) -> Sequence[Block]:
        return ()

    def idle(self, until_ns: int) -> None:
        self.rests += 1
        if self.rests == RESTS_MAX:
            raise SystemExit("the sampler never ends")
        self.meanwhile(self.rests)
        self.clock.now_ns = until_ns


class Daemon:
    """The daemon's side of a sampler with that collector, which has its task."""

    def __init__(self) -> None:
        self.memory = bytearray(place.SIZE_BYTES)
        self.here, self.there = socket.socketpair()
        self.bell = os.eventfd(0)
        self.here.sendall(encode_command(SamplerTask("gpu")))
        self.clock = HandedClock(5_000_000_000)
        self.rests = Rests(self.clock)

    def run(self) -> bool:
        place.use(self.memory)
        return serve({"gpu": [self.rests]}, self.there, self.clock, self.bell)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    created = Daemon()
    yield created
    created.here.close()
    created.there.close()
    os.close(created.bell)
    place.use(bytearray(place.SIZE_BYTES))


def test_an_order_is_heard_when_the_sampler_is_called(daemon: Daemon) -> None:
    """Its socket is not polled between samples: a command without a notification would wait."""

    def meanwhile(rest: int) -> None:
        if rest == 2:
            daemon.here.sendall(encode_command(End()))
        if rest == 4:
            place.call(daemon.memory)

    daemon.rests.meanwhile = meanwhile
    assert daemon.run() is False
    assert daemon.rests.rests == 4


def test_all_orders_are_heard_at_one_call(daemon: Daemon) -> None:
    """Thousands of excluded GPUs: a long command's second part arrived only with the next one."""

    def meanwhile(rest: int) -> None:
        if rest == 2:
            names = frozenset(f"{number:0900}" for number in range(100))
            daemon.here.sendall(
                encode_command(SamplerTask("gpu", excluded_devices=names)) + encode_command(End())
            )
            place.call(daemon.memory)

    daemon.rests.meanwhile = meanwhile
    daemon.run()
    assert daemon.rests.rests == 2


def test_a_sampler_ends_with_its_daemon(daemon: Daemon) -> None:
    """No further notification comes: the sampler must notice that the socket is closed."""

    def meanwhile(rest: int) -> None:
        if rest == 3:
            daemon.here.close()

    daemon.rests.meanwhile = meanwhile
    assert daemon.run() is False
    assert daemon.rests.rests == 3
