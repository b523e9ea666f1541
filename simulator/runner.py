"""Runs the simulated world in real time: one loop at 1 Hz for all hosts, one client thread per host."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Protocol

from ..agent.clock import Clock
from ..agent.transport.credentials import NO_CREDENTIALS, Credentials
from ..contract.block import Block
from ..contract.wire import telemetry_pb2
from .simulated_host import SimulatedHost
from .window import StepState
from .world import World

HostOutput = tuple[str, list[Block], list[telemetry_pb2.HealthEvent]]

#: Limit of the hosts that one process connects to an aggregator.
HOSTS_MAX = 512
SECOND_NS = 1_000_000_000
#: Time between the connection starts of two clients, and the limit for all clients.
STAGGER_NS = 20_000_000
STAGGER_NS_MAX = 2 * SECOND_NS
#: Time for a client to end; together with the last tick it fits into the promised five seconds.
CLOSE_SECONDS_MAX = 3.0
#: Open files that one host may need: two locks, segment, event log, socket, two for wake-ups,
#: and a reserve.
FILES_PER_HOST = 10
FILES_BASE = 64


class LiveWorld:
    """All hosts of *world* from its beginning. Incidents occur only until the scenario's end.

    A silent host has no blocks; the runner closes a host that is away, and opens it again as another boot. The clock
    since boot is this machine's boot clock, which does not restart.
    """

    def __init__(self, world: World, uptime_seconds: float = 3600.0) -> None:
        """*uptime_seconds*: uptime of the hosts at the beginning."""
        self.world = world
        self._view = world.open(range(world.scenario.hosts), 0.0, world.seconds, uptime_seconds)
        self._index = {name: i for i, name in enumerate(world.names)}
        #: Seconds of the world.
        self.now_seconds, self._before_seconds = 0.0, -1.0
        self._moment: StepState | None = None

    @property
    def names(self) -> list[str]:
        return self.world.names

    def devices(self, host: str) -> list[telemetry_pb2.Device]:
        """Return the devices that *host* registers. KeyError for a host outside this world."""
        return self.world.devices(self._index[host])

    def labels(self, host: str) -> dict[str, str]:
        """Return the location labels of *host*. KeyError for a host outside this world."""
        return self.world.labels(self._index[host])

    def step(self, elapsed_seconds: float) -> list[HostOutput]:
        """Advance and return (host, blocks, events) of every host.

        The blocks are those of the collectors that became due: read them before the next step. Events have no clock,
        and an id that is unique within this world only.
        """
        self.now_seconds += max(elapsed_seconds, 0.0)
        self._moment = moment = self._view.step(self.now_seconds)
        before, self._before_seconds = self._before_seconds, self.now_seconds
        return [
            (name, [], [])
            if moment.silent[slot]
            else (
                name,
                self._view.readings.blocks(slot, before, self.now_seconds),
                self._view.events(slot),
            )
            for slot, name in enumerate(self.world.names)
        ]

    def is_away(self, host: int) -> bool:
        """Return whether the host with index *host* is switched off now."""
        return self.world.schedule.is_away(host, self.now_seconds)

    def offset_ns(self, host: int) -> int:
        """Return the present error of the wall clock of the host with index *host*."""
        if self._moment is None:
            return 0
        return round(float(self._moment.gauges.effects.offset_seconds[host]) * 1e9)


class FrameSender(Protocol):
    """The methods of `SimulatedHost` that the loop needs."""

    def send(
        self,
        boottime_ns: int,
        wall_ns: int,
        blocks: Sequence[Block],
        events: Sequence[telemetry_pb2.HealthEvent],
    ) -> None: ...

    def start(self) -> None: ...

    def close(self, seconds_max: float) -> None: ...


class SimulationRunner:
    """Steps the model once a second. After a late tick the next step is longer, never a burst of steps."""

    def __init__(
        self,
        world: LiveWorld,
        hosts: Sequence[FrameSender],
        clock: Clock,
        reopen: Callable[[str], FrameSender] | None = None,
    ) -> None:
        """*hosts*: in the world's order. The first tick is due at once. *reopen*: opens a host again that was away;
        None for a world in which no host is ever away."""
        self._world, self._clock, self._reopen = world, clock, reopen
        #: The hosts that are not away, by index.
        self.hosts: dict[int, FrameSender] = dict(enumerate(hosts))
        self._closing: dict[int, threading.Thread] = {}
        self._begin_ns = clock.boottime_ns()
        self._last_tick = -1  # ticks since the begin

    def tick(self) -> int:
        """Step the world if due, and return the boot time (ns) of the next tick."""
        now_ns = self._clock.boottime_ns()
        tick = (now_ns - self._begin_ns) // SECOND_NS
        if tick > self._last_tick:
            readings = self._world.step(float(tick - self._last_tick))
            self._last_tick = tick
            wall_ns = self._clock.wall_ns()
            for i, (name, blocks, events) in enumerate(readings):
                host = self._present_host(i, name)
                if host is not None and (blocks or events):  # else it is silent
                    host.send(now_ns, wall_ns + self._world.offset_ns(i), blocks, events)
        return self._begin_ns + (self._last_tick + 1) * SECOND_NS

    def _present_host(self, index: int, name: str) -> FrameSender | None:
        """Return a host, or None if it is away: then a thread closes its connection and its spool."""
        host = self.hosts.get(index)
        if self._reopen is None:
            return host
        if self._world.is_away(index):
            if host is not None:
                closing_thread = threading.Thread(target=host.close, args=(CLOSE_SECONDS_MAX,))
                self._closing[index] = closing_thread
                del self.hosts[index]
                closing_thread.start()
        elif host is None and not self._closing[index].is_alive():
            host = self.hosts[index] = self._reopen(name)
            host.start()
        return host

    def close(self) -> None:
        """Close all hosts at the same time, so that slow ones do not add up."""
        hosts = list(self.hosts.values())
        for closing_thread in self._closing.values():
            closing_thread.join(CLOSE_SECONDS_MAX)
        if hosts:
            with ThreadPoolExecutor(len(hosts)) as pool:
                list(pool.map(lambda host: host.close(CLOSE_SECONDS_MAX), hosts))

    def run(self, stop: threading.Event, wait: Callable[[int], object]) -> None:
        """Tick until *stop* is set. *wait* returns at the given boot time (ns), or earlier when it has set *stop*."""
        while not stop.is_set():
            wait(self.tick())


def run(
    world: LiveWorld,
    aggregator: str,
    folder: Path,
    clock: Clock,
    stop: threading.Event,
    wait: Callable[[int], object],
    login: Credentials = NO_CREDENTIALS,
) -> None:
    """Run *world* against *aggregator* until *stop* is set; spools are under *folder*/HOST.

    *wait*: as for `SimulationRunner.run`. Raises FolderError for an unusable folder, TargetError for an unusable
    address, OSError if the hosts need more open files than the system allows.
    """
    raise_file_limit(FILES_BASE + FILES_PER_HOST * len(world.names))

    def open_host(name: str) -> SimulatedHost:
        return SimulatedHost(
            name,
            world.devices(name),
            world.labels(name),
            folder=folder / name,
            aggregator=aggregator,
            clock=clock,
            login=login,
        )

    runner = SimulationRunner(world, (), clock, open_host)
    with closing(runner):
        for index, name in enumerate(world.names):
            runner.hosts[index] = open_host(name)
        pause_ns = min(STAGGER_NS, STAGGER_NS_MAX // len(world.names))
        for host in list(runner.hosts.values()):
            host.start()
            wait(clock.boottime_ns() + pause_ns)
            if stop.is_set():
                return
        runner.run(stop, wait)


def raise_file_limit(count: int) -> None:
    """Raise the limit of open files to *count* if it is lower. Raises OSError if the system does not allow that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise OSError(
                f"needs {count} open files, {hard} are allowed. Use fewer hosts, or raise `ulimit "
                "-n`"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
