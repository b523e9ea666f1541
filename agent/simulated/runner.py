"""The simulated world in real time: one loop at 1 Hz for all hosts, a client thread for each."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Protocol

from ...fingerprints.block import Block
from ...fingerprints.wire import telemetry_pb2
from ..clock import Clock
from ..transport.credentials import WITHOUT, Credentials
from .host import SimulatedHost
from .world.live import LiveWorld

#: On the wire, from one process.
HOSTS_MAX = 512
SECOND_NS = 1_000_000_000
#: All clients begin to connect within this, one after another.
STAGGER_NS = 20_000_000
STAGGER_NS_MAX = 2 * SECOND_NS
#: What a client may take to end; with the last tick it leaves room within the five promised.
CLOSE_SECONDS_MAX = 3.0
#: Descriptors that one host may hold: two locks, segment, event log, socket, two to be woken by,
#: and some to spare.
FILES_PER_HOST = 10
FILES_BESIDE = 64


class Host(Protocol):
    """What the loop needs of `SimulatedHost`."""

    def send(
        self,
        boottime_ns: int,
        wall_ns: int,
        blocks: Sequence[Block],
        events: Sequence[telemetry_pb2.HealthEvent],
    ) -> None: ...

    def start(self) -> None: ...

    def close(self, seconds_max: float) -> None: ...


class Runner:
    """Steps the model once a second. A tick that is late makes one longer step, never a burst."""

    def __init__(
        self,
        world: LiveWorld,
        hosts: Sequence[Host],
        clock: Clock,
        reopen: Callable[[str], Host] | None = None,
    ) -> None:
        """*hosts*: in the world's order. The first tick is due at once. *reopen*: makes a host that was
        away anew; None for a world where none ever is."""
        self._world, self._clock, self._reopen = world, clock, reopen
        #: Those that are there, by index.
        self.hosts: dict[int, Host] = dict(enumerate(hosts))
        self._leaving: dict[int, threading.Thread] = {}
        self._begin_ns = clock.boottime_ns()
        self._done = -1  # ticks since the begin

    def tick(self) -> int:
        """Do what is due now, and return the boot time (ns) of the next tick."""
        now_ns = self._clock.boottime_ns()
        tick = (now_ns - self._begin_ns) // SECOND_NS
        if tick > self._done:
            readings = self._world.step(float(tick - self._done))
            self._done = tick
            wall_ns = self._clock.wall_ns()
            for i, (name, blocks, events) in enumerate(readings):
                host = self._there(i, name)
                if host is not None and (blocks or events):  # else it is silent
                    host.send(now_ns, wall_ns + self._world.offset_ns(i), blocks, events)
        return self._begin_ns + (self._done + 1) * SECOND_NS

    def _there(self, index: int, name: str) -> Host | None:
        """Return a host unless it is away: then its connection and its spool are closed, beside the loop."""
        host = self.hosts.get(index)
        if self._reopen is None:
            return host
        if self._world.is_away(index):
            if host is not None:
                leaving = threading.Thread(target=host.close, args=(CLOSE_SECONDS_MAX,))
                self._leaving[index] = leaving
                del self.hosts[index]
                leaving.start()
        elif host is None and not self._leaving[index].is_alive():
            host = self.hosts[index] = self._reopen(name)
            host.start()
        return host

    def close(self) -> None:
        """Close all hosts at the same time, so that slow ones do not add up."""
        hosts = list(self.hosts.values())
        for leaving in self._leaving.values():
            leaving.join(CLOSE_SECONDS_MAX)
        if hosts:
            with ThreadPoolExecutor(len(hosts)) as pool:
                list(pool.map(lambda host: host.close(CLOSE_SECONDS_MAX), hosts))

    def run(self, stop: threading.Event, wait: Callable[[int], object]) -> None:
        """Tick until *stop* is set. *wait* returns at the boot time it is given (ns), or earlier
        when it has set *stop*."""
        while not stop.is_set():
            wait(self.tick())


def run(
    world: LiveWorld,
    aggregator: str,
    folder: Path,
    clock: Clock,
    stop: threading.Event,
    wait: Callable[[int], object],
    login: Credentials = WITHOUT,
) -> None:
    """Run *world* against *aggregator* until *stop* is set; spools are under *folder*/HOST.

    *wait*: as for `Runner.run`. Raises FolderError when a folder cannot be used, TargetError for an
    address that cannot, OSError when so many hosts need more open files than the system allows.
    """
    allow_files(FILES_BESIDE + FILES_PER_HOST * len(world.names))
    runner = Runner(
        world, (), clock, lambda name: _open(world, name, aggregator, folder, clock, login)
    )
    with closing(runner):
        for index, name in enumerate(world.names):
            runner.hosts[index] = _open(world, name, aggregator, folder, clock, login)
        pause_ns = min(STAGGER_NS, STAGGER_NS_MAX // len(world.names))
        for host in list(runner.hosts.values()):
            host.start()
            wait(clock.boottime_ns() + pause_ns)
            if stop.is_set():
                return
        runner.run(stop, wait)


def _open(
    world: LiveWorld,
    name: str,
    aggregator: str,
    folder: Path,
    clock: Clock,
    login: Credentials,
) -> SimulatedHost:
    return SimulatedHost(
        name,
        world.devices(name),
        world.labels(name),
        folder=folder / name,
        aggregator=aggregator,
        clock=clock,
        login=login,
    )


def allow_files(count: int) -> None:
    """Let this process open *count* files. Raises OSError, in words, if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise OSError(
                f"needs {count} open files, {hard} are allowed: name fewer hosts or raise `ulimit -n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
