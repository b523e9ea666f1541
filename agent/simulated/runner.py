"""The simulated fleet in real time: one loop at 1 Hz for all hosts, a client thread for each."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from ...fingerprints.block import Block
from ...fingerprints.wire import telemetry_pb2
from ..clock import Clock
from ..transport.credentials import WITHOUT, Credentials
from .fleet import SimulatedFleet
from .host import SimulatedHost

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


class Runner:
    """Steps the model once a second. A tick that is late makes one longer step, never a burst."""

    def __init__(self, fleet: SimulatedFleet, hosts: Sequence[Host], clock: Clock) -> None:
        """*hosts*: in the fleet's order. The first tick is due at once."""
        self._fleet, self._hosts, self._clock = fleet, hosts, clock
        self._begin_ns = clock.boottime_ns()
        self._done = -1  # ticks since the begin

    def tick(self) -> int:
        """Do what is due now, and return the boot time (ns) of the next tick."""
        now_ns = self._clock.boottime_ns()
        tick = (now_ns - self._begin_ns) // SECOND_NS
        if tick > self._done:
            readings = self._fleet.step(float(tick - self._done))
            self._done = tick
            wall_ns = self._clock.wall_ns()
            for host, (_, blocks, events) in zip(self._hosts, readings, strict=True):
                host.send(now_ns, wall_ns, blocks, events)
        return self._begin_ns + (self._done + 1) * SECOND_NS

    def run(self, stop: threading.Event, wait: Callable[[int], object]) -> None:
        """Tick until *stop* is set. *wait* returns at the boot time it is given (ns), or earlier
        when it has set *stop*."""
        while not stop.is_set():
            wait(self.tick())


def run(
    fleet: SimulatedFleet,
    aggregator: str,
    folder: Path,
    clock: Clock,
    stop: threading.Event,
    wait: Callable[[int], object],
    login: Credentials = WITHOUT,
) -> None:
    """Run *fleet* against *aggregator* until *stop* is set; spools are under *folder*/HOST.

    *wait*: as for `Runner.run`. Raises FolderError when a folder cannot be used, TargetError for an
    address that cannot, OSError when so many hosts need more open files than the system allows.
    """
    allow_files(FILES_BESIDE + FILES_PER_HOST * len(fleet.names))
    with ExitStack() as stack:
        hosts: list[SimulatedHost] = []
        stack.callback(_close, hosts)
        for name in fleet.names:
            hosts.append(_open(fleet, name, aggregator, folder, clock, login))
        pause_ns = min(STAGGER_NS, STAGGER_NS_MAX // len(hosts))
        for host in hosts:
            host.start()
            wait(clock.boottime_ns() + pause_ns)
            if stop.is_set():
                return
        Runner(fleet, hosts, clock).run(stop, wait)


def _open(
    fleet: SimulatedFleet,
    name: str,
    aggregator: str,
    folder: Path,
    clock: Clock,
    login: Credentials,
) -> SimulatedHost:
    return SimulatedHost(
        name,
        fleet.devices(name),
        folder=folder / name,
        aggregator=aggregator,
        clock=clock,
        login=login,
    )


def _close(hosts: Sequence[SimulatedHost]) -> None:
    """Close all at the same time, so that slow ones do not add up."""
    if hosts:
        with ThreadPoolExecutor(len(hosts)) as pool:
            list(pool.map(lambda host: host.close(CLOSE_SECONDS_MAX), hosts))


def allow_files(count: int) -> None:
    """Let this process open *count* files. Raises OSError, in words, if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise OSError(
                f"needs {count} open files, {hard} are allowed: name fewer hosts or raise `ulimit -n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
