"""The world in real time: what `Runner` needs of a fleet, so that it speaks the wire as many hosts."""

from __future__ import annotations

from ....fingerprints.block import Block
from ....fingerprints.wire import telemetry_pb2
from .window import Moment
from .world import World

Reading = tuple[str, list[Block], list[telemetry_pb2.HealthEvent]]


class LiveWorld:
    """All hosts of *world* from its begin on. After the scenario's end nothing more befalls.

    A host that is silent has no blocks; one that is away is closed by the runner, and opened again as
    another boot. The clock since boot is this machine's: it does not begin anew.
    """

    def __init__(self, world: World, uptime_seconds: float = 3600.0) -> None:
        """*uptime_seconds*: the hosts' at the begin."""
        self.world = world
        self._view = world.open(range(world.scenario.hosts), 0.0, world.seconds, uptime_seconds)
        self._index = {name: i for i, name in enumerate(world.names)}
        #: Seconds of the world.
        self.now_seconds, self._before = 0.0, -1.0
        self._moment: Moment | None = None

    @property
    def names(self) -> list[str]:
        """The hosts' names, in order."""
        return self.world.names

    def devices(self, host: str) -> list[telemetry_pb2.Device]:
        """Return what *host* registers with. KeyError for a host that is not of this world."""
        return self.world.devices(self._index[host])

    def labels(self, host: str) -> dict[str, str]:
        """Return what *host* says of its place. KeyError for a host that is not of this world."""
        return self.world.labels(self._index[host])

    def step(self, elapsed_seconds: float) -> list[Reading]:
        """Advance and return (host, blocks, events) of every host.

        Blocks are those of the collectors whose turn came: read them before the next step. Events have no
        clock and an id that is unique within this world only.
        """
        self.now_seconds += max(elapsed_seconds, 0.0)
        self._moment = moment = self._view.step(self.now_seconds)
        before, self._before = self._before, self.now_seconds
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
        """Say whether a host, by its index, is switched off now."""
        return self.world.schedule.is_away(host, self.now_seconds)

    def offset_ns(self, host: int) -> int:
        """Return how far the wall clock of a host, by its index, is off now."""
        if self._moment is None:
            return 0
        return round(float(self._moment.now.channels.offset_seconds[host]) * 1e9)
