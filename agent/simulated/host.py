"""One simulated host's way to the aggregator: the agent's own framer, spool, event queue and client."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ...fingerprints.block import Block
from ...fingerprints.catalogue import TABLES
from ...fingerprints.wire import telemetry_pb2
from ..clock import Clock
from ..framing import Framer
from ..own import OWN_SECONDS, Own
from ..registration import Registration
from ..spool.events import EventQueue
from ..spool.spool import Spool
from ..transport.client import Client
from ..transport.credentials import WITHOUT, Credentials

#: A spool this full forgets its oldest frames: more than an hour of one host.
SPOOL_BYTES_MAX = 16 << 20
LABELS = {"simulated": "true"}


@dataclass(frozen=True, slots=True)
class Inventory:
    """What `Registration.update` takes."""

    devices: Sequence[telemetry_pb2.Device]
    labels: dict[str, str]
    words: str = ""
    left_out: frozenset[str] | None = frozenset()


class SimulatedHost:
    """Spools what the model says of one host and sends it, as the daemon of a real one does.

    Each start is a boot of its own: the faults of an earlier run are gone, as after a reboot.
    """

    def __init__(
        self,
        name: str,
        devices: Sequence[telemetry_pb2.Device],
        labels: Mapping[str, str],
        *,
        folder: Path,
        aggregator: str,
        clock: Clock,
        login: Credentials = WITHOUT,
    ) -> None:
        """*labels*: beside that it is simulated. *folder* is made if need be. Raises FolderError when it
        cannot be used, TargetError for an address that cannot."""
        self.name = name
        boot_id = os.urandom(16)
        self.spool = Spool.open(
            folder / "spool",
            bytes_max=SPOOL_BYTES_MAX,
            boot_id=boot_id,
            owner=f"simulated host {name}",
        )
        with ExitStack() as undo:
            undo.callback(self.spool.close)
            self.events = EventQueue.open(folder / "events")
            undo.callback(self.events.close)
            self.client = Client(
                aggregator,
                self.request,
                self.spool,
                self.events,
                random_source=random.Random(boot_id),
                clock=clock,
                credentials=login,
            )
            undo.pop_all()
        self._registration = Registration(name, self.spool.run_id, boot_id, clock)
        self._registration.update(Inventory(devices, {**LABELS, **labels}))
        self._framer = Framer(self.spool.run_id, boot_id)
        self._own = Own((), _counts(self))
        self._told = 0  # the own blocks' last turn, counted from the boot

    def request(self) -> telemetry_pb2.RegisterNodeRequest:
        """Return what the host registers with, as of now."""
        request = self._registration.request()
        request.simulated = True
        return request

    def start(self) -> None:
        """Begin to connect, in a thread of its own."""
        self.client.start()

    def send(
        self,
        boottime_ns: int,
        wall_ns: int,
        blocks: Sequence[Block],
        events: Iterable[telemetry_pb2.HealthEvent],
    ) -> None:
        """Spool one frame and queue the events; the client sends them when it can. Never raises."""
        sequence = self.spool.next_sequence()
        frame = self._framer.frame(
            sequence, boottime_ns, wall_ns, [*blocks, *self._own_blocks(boottime_ns)]
        )
        self.spool.append(sequence, frame)
        for event in events:
            # Unique across runs too: the next run's XID is another event. Of a boot, as agents say it.
            event.event_id = f"{self.spool.boot_id.hex()}/{event.event_id.removeprefix('/')}"
            event.boottime_ns, event.wall_time_ns = boottime_ns, wall_ns
            self.events.put(event)
        self.client.notify()

    def _own_blocks(self, boottime_ns: int) -> Sequence[Block]:
        before, self._told = self._told, boottime_ns // (OWN_SECONDS * 1_000_000_000)
        return self._own.blocks() if self._told != before else ()

    def close(self, seconds_max: float) -> None:
        """End the client within *seconds_max* and let go of the folder."""
        self.client.close(seconds_max)
        self.events.close()
        self.spool.close()


def _counts(host: SimulatedHost) -> Callable[[], dict[str, float | None]]:
    """Return what returns the signals of `agent_10s`. CPU and memory are of a process that all
    hosts share: they say nothing of one agent, and are missing."""
    missing: dict[str, float | None] = dict.fromkeys(s.name for s in TABLES["agent_10s"])
    return lambda: (
        missing
        | {
            "agent.spool_bytes": host.spool.bytes,
            "agent.spool_dropped_frames": host.spool.dropped_frames,
            "agent.spool_write_errors": host.spool.write_errors,
            "agent.refused_frames": host.spool.refused_frames,
            "agent.unacknowledged_frames": host.spool.unacknowledged_frames,
            "agent.reconnects_count": host.client.reconnects,
            "agent.dropped_events": host.events.dropped_events,
        }
    )
