"""One simulated host at the aggregator: the agent's own framer, spool, event queue and client."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..agent.clock import Clock
from ..agent.frame_builder import FrameBuilder
from ..agent.registration import Registration
from ..agent.self_metrics import SELF_METRICS_SECONDS, SelfMetrics
from ..agent.spool.event_queue import EventQueue
from ..agent.spool.spool import Spool
from ..agent.transport.client import Client
from ..agent.transport.credentials import NO_CREDENTIALS, Credentials
from ..agent.transport.recording_uploads import RecordingUploads
from ..contract.block import Block
from ..contract.signals import TABLES
from ..contract.wire import telemetry_pb2
from .recording import SimulatedRecorder

#: Above this size a spool drops its oldest frames: more than an hour of one host.
SPOOL_BYTES_MAX = 16 << 20
LABELS = {"simulated": "true"}


@dataclass(frozen=True, slots=True)
class SimulatedInventory:
    """The inventory argument of `Registration.update`."""

    devices: Sequence[telemetry_pb2.Device]
    labels: dict[str, str]
    reason: str = ""
    left_out: frozenset[str] | None = frozenset()


class SimulatedHost:
    """Spools one host's readings of the model and sends them, as the daemon of a real host does.

    Each start is a new boot: the faults of an earlier run are gone, as after a reboot.
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
        login: Credentials = NO_CREDENTIALS,
    ) -> None:
        """*labels*: in addition to LABELS. *folder* is created if missing. Raises FolderError for an unusable folder,
        TargetError for an unusable address."""
        self.name = name
        boot_id = os.urandom(16)
        self.spool = Spool.open(
            folder / "spool",
            bytes_max=SPOOL_BYTES_MAX,
            boot_id=boot_id,
            owner=f"simulated host {name}",
        )
        uploads = RecordingUploads()
        self._recorder = SimulatedRecorder(name, boot_id, uploads)
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
                on_permit=self._recorder.on_response,
                uploads=uploads,
            )
            undo.pop_all()
        self._registration = Registration(name, self.spool.run_id, boot_id, clock)
        self._registration.update(SimulatedInventory(devices, {**LABELS, **labels}))
        self._framer = FrameBuilder(self.spool.run_id, boot_id)
        self._self_metrics = SelfMetrics((), _self_metric_values(self))
        self._last_period = 0  # period of the last own blocks, counted from the boot

    def request(self) -> telemetry_pb2.RegisterNodeRequest:
        """Return the host's present registration request."""
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
        frame = self._framer.build(
            sequence, boottime_ns, wall_ns, [*blocks, *self._self_metric_blocks(boottime_ns)]
        )
        self.spool.append(sequence, frame)
        self._recorder.update(boottime_ns, wall_ns, blocks)
        for event in events:
            # Unique across runs too: the next run's XID is another event. Agents put the boot into ids, too.
            event.event_id = f"{self.spool.boot_id.hex()}/{event.event_id.removeprefix('/')}"
            event.boottime_ns, event.wall_time_ns = boottime_ns, wall_ns
            self.events.put(event)
        self.client.notify()

    def _self_metric_blocks(self, boottime_ns: int) -> Sequence[Block]:
        before = self._last_period
        self._last_period = boottime_ns // (SELF_METRICS_SECONDS * 1_000_000_000)
        return self._self_metrics.blocks() if self._last_period != before else ()

    def close(self, seconds_max: float) -> None:
        """End the client within *seconds_max* and release the folder."""
        self.client.close(seconds_max)
        self.events.close()
        self.spool.close()


def _self_metric_values(host: SimulatedHost) -> Callable[[], dict[str, float | None]]:
    """Return a function that returns the signals of `agent_10s`.

    CPU and memory are missing: all hosts share the process, so its values do not describe one agent.
    """
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
