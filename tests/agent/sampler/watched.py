"""A complete daemon over a world of fake processes, with the content of its frames."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from gangline.agent.collector import Collector
from gangline.agent.daemon import Daemon
from gangline.agent.events import EventPublisher
from gangline.agent.frame_builder import FrameBuilder
from gangline.agent.latest import LatestReadings
from gangline.agent.main import SAMPLER_GRACE_NS
from gangline.agent.sampler.pool import SamplerPool
from gangline.contract.block import Block
from gangline.contract.signal import Pace
from gangline.contract.wire import telemetry_pb2
from tests.agent.fakes import KeptEvents
from tests.agent.sampler.world import SECOND, Child, Device, SparingSweep, World

START = 1200 * SECOND
GPUS = [f"0000:{n:02x}:00.0" for n in range(0x1A, 0x22)]
PORTS = [f"mlx5_{n}/1" for n in range(4)]
DISKS = ["nvme0n1", "nvme1n1"]


def hosts_lanes(world: World) -> dict[str, list[Collector]]:
    """Return eight GPUs in two collectors, four ports and two disks."""
    for name in (*GPUS, *PORTS, *DISKS):
        world.devices.setdefault(name, Device())
    return {
        "gpu": [
            SparingSweep(world, "gpu_1s", GPUS, call="nvmlDeviceGetFieldValues"),
            SparingSweep(world, "gpu_fast_1s", GPUS, call="nvmlGpmSampleGet"),
        ],
        "host": [
            SparingSweep(world, "rdma_1s", PORTS, call="read counters/port_rcv_data"),
            SparingSweep(world, "disk_1s", DISKS, call="read stat"),
        ],
    }


@dataclass
class Nowhere:
    """A spool and a client that discard everything."""

    sequence: int = 1
    dropped_frames: int = 0
    write_errors: int = 0
    refused_frames: int = 0
    unacknowledged_frames: int = 0
    reconnects: int = 0

    def next_sequence(self) -> int:
        return self.sequence

    def append(self, sequence: int, frame: bytes) -> None:
        self.sequence = sequence + 1

    def notify(self) -> None:
        pass

    @property
    def bytes(self) -> int:
        return 0


class Noting(LatestReadings):
    """Records each reading's time by table and device, and the last rows of the probe's tables."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.probe: list[tuple[int, dict[str, tuple[float, int, int]]]] = []

    def update(self, boottime_ns: int, blocks: Iterable[Block]) -> None:
        for block in blocks:
            at_ns = boottime_ns + block.offset_ns
            if block.table == "probe_1s":
                rows = {}
                for row, device in enumerate(block.devices):
                    hung, state, count = block.floats[row], *_ints(block, row)
                    rows[device] = (hung, state, count)
                self.probe.append((boottime_ns, rows))
            else:
                for row, device in enumerate(block.devices):
                    if block.valid[row]:
                        self.times[block.table, device].append(at_ns)


def _ints(block: Block, row: int) -> tuple[int, int]:
    return block.ints[block.rows + row], block.ints[2 * block.rows + row]


class Here(Collector):
    """A collector of the daemon's own."""

    name, pace, enters_driver = "host_1s", Pace.SECOND, False

    def __init__(self) -> None:
        self._block = Block("host_1s", ["host"])

    def collect(self) -> list[Block]:
        self._block.put_float(0, 0, 1.0)
        return [self._block]


class Watched:
    """The world under test: run it, make devices faulty, and query the results."""

    def __init__(self, lanes=hosts_lanes) -> None:  # type: ignore[no-untyped-def]
        self.world = World(lanes, START)
        created = lanes(self.world)
        self.events, self.latest, nowhere = KeptEvents(), Noting(), Nowhere()
        ids = (str(number) for number in itertools.count())
        teller = EventPublisher(self.world, self.events, nowhere.notify, lambda: next(ids))
        known = [gpu for gpu in GPUS if gpu in self.world.devices]
        self.samplers = SamplerPool(created, self.world, self.world, devices_of=lambda: known)
        collectors = [Here(), *(device for those in created.values() for device in those)]
        self.daemon = Daemon(
            collectors,
            clock=self.world,
            spool=cast(Any, nowhere),
            events=cast(Any, self.events),
            client=cast(Any, nowhere),
            frame_builder=FrameBuilder(b"r" * 16, b"b" * 16),
            publisher=teller,
            samplers=self.samplers,
            latest=self.latest,
        )
        self.samplers.start()
        self.samplers.publish_to(teller)
        self._stop = threading.Event()
        self.wakings = 0  # of the daemon

    def run(self, seconds: float) -> None:
        end_ns = self.world.now_ns + int(seconds * SECOND)
        self._stop.clear()

        def wait(until_ns: int) -> list[int]:
            self.wakings += 1
            if until_ns % SECOND == 0:
                until_ns += SAMPLER_GRACE_NS
            ready = self.world.wait(min(until_ns, end_ns), self.samplers.descriptors())
            if self.world.now_ns >= end_ns:
                self._stop.set()
            return ready

        self.daemon.run(self._stop, wait)

    def on_time(self, table: str, device: str, first_ns: int, seconds: int) -> float:
        """Return the share of seconds from *first_ns* with a sample near its grid point."""
        times = self.latest.times[table, device]
        hit = {round(moment / SECOND) for moment in times if moment >= first_ns - SECOND // 2}
        grid = range(first_ns // SECOND, first_ns // SECOND + seconds)
        return sum(point in hit for point in grid) / seconds

    def child(self, group: str) -> Child:
        """Return the process that samples a group."""
        process = self.samplers._supervisor.group_process(group)
        assert process is not None
        return self.world.children[process.serial]

    def told(self, name: str) -> list[telemetry_pb2.HealthEvent]:
        return [event for event in self.events.events if event.name == name]

    @property
    def alive(self) -> int:
        return sum(not child.dead for child in self.world.children.values())
