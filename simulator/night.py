"""The night of `docs/sql.md`: eight hosts in one job, the same in every run.

The world has the three faults of `three`. This module adds other faults to its readings: one host flaps, one host falls
silent, one waits for a row remap, one has an old driver, one a wrong clock, and one lacks memory. The job is defined
here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..contract.block import Block
from ..contract.signals import TABLES
from ..contract.wire import telemetry_pb2
from . import machine as parts
from .event_readings import PROCESS_EVENT as PROCESS
from .event_readings import REPEAT_SECONDS
from .runner import HostOutput, LiveWorld
from .world import World

SCENARIO, HOSTS, SEED = "night", 8, 4050
SILENT_HOST, SILENT_AFTER_SECONDS = "sim-005", 150
FLAPPING_HOST, REMAPPING_HOST = "sim-002", "sim-001"
OLD_DRIVER_HOST, WRONG_CLOCK_HOST = "sim-003", "sim-007"
#: Seconds of the night at which a link goes down, and from which a memory row waits for its remapping.
FLAP_SECONDS, REMAP_SECONDS = (100, 130, 190), 110
CLOCK_OFFSET_SECONDS = -3.2
DRIVER, DRIVERS = "580.65.06", {OLD_DRIVER_HOST: "570.124.06"}
#: One host's own label contradicts its declaration, and the host lacks a memory module.
MOVED_HOST, MEMORY_BYTES, MODULE_BYTES = "sim-002", 2 << 40, 64 << 30
POD_HOST = "sim-003"
JOB_ID, JOB_MINUTES, EARLIER_JOB_ID, EARLIER_JOB_MINUTES = "123", 50, "119", 170
SECOND_NS = 1_000_000_000


class NightWorld(LiveWorld):
    """The night in real time, for `SimulationRunner`."""

    def __init__(self, uptime_seconds: float = 3600.0, start_wall_ns: int = 0) -> None:
        """*uptime_seconds*: uptime of the hosts at the beginning; *start_wall_ns*: for the truth log."""
        world = World(SCENARIO, SEED, hosts=HOSTS, start_wall_ns=start_wall_ns)
        super().__init__(world, uptime_seconds)
        self.gpus = {machine.name: machine.gpus for machine in world.machines}
        self._uptime_ns = int(uptime_seconds * SECOND_NS)
        self._reported_seconds = -REPEAT_SECONDS

    def devices(self, host: str) -> list[telemetry_pb2.Device]:
        return [*_inventory(super().devices(host), host), *_topology_devices(self.gpus[host])]

    def labels(self, host: str) -> dict[str, str]:
        return labels(host)

    def step(self, elapsed_seconds: float) -> list[HostOutput]:
        """Advance and return (host, blocks, events) of every host."""
        before = self.now_seconds
        readings = super().step(elapsed_seconds)
        extra = self._extra_events(before)
        return [
            (name, [], [])
            if name == SILENT_HOST and self.now_seconds > SILENT_AFTER_SECONDS
            else (
                name,
                [overlay_faults(name, block, self.now_seconds) for block in blocks],
                [*(event for event in events if event.name != PROCESS), *extra.get(name, ())],
            )
            for name, blocks, events in readings
        ]

    def _extra_events(self, before: float) -> Mapping[str, list[telemetry_pb2.HealthEvent]]:
        """Return events beyond those of the world's incidents, by host."""
        extra: dict[str, list[telemetry_pb2.HealthEvent]] = {}
        if self.now_seconds - self._reported_seconds >= REPEAT_SECONDS:
            self._reported_seconds = self.now_seconds
            hot = self.affected_gpu("thermal")
            for host, event in process_events(self.gpus, hot, self._uptime_ns):
                event.event_id, event.revision = event_id(event), 1 + int(self.now_seconds)
                extra.setdefault(host, []).append(event)
        for at in FLAP_SECONDS:
            if before < at <= self.now_seconds:
                event = flap_event()
                event.event_id = f"{event_id(event)}/{at}"
                extra.setdefault(FLAPPING_HOST, []).append(event)
        return extra

    def affected_gpu(self, class_name: str) -> tuple[str, str]:
        schedule = self.world.schedule
        (row,) = (r for r in schedule.rows if schedule.classes[int(r["cls"])].name == class_name)
        machine = self.world.machines[int(row["host"])]
        return machine.name, machine.gpus[int(row["part"])]

    def offset_ns(self, host: int) -> int:
        """Return the present error of the wall clock of the host with index *host*."""
        is_wrong = self.world.names[host] == WRONG_CLOCK_HOST
        return round(CLOCK_OFFSET_SECONDS * SECOND_NS) if is_wrong else 0


def labels(host: str) -> dict[str, str]:
    values = {
        "hostname": host,
        "kernel": "6.8.0-48-generic",
        "nvidia_driver_version": DRIVERS.get(host, DRIVER),
        "memory_bytes": str(MEMORY_BYTES),
    }
    if host == MOVED_HOST:
        values |= {"gangline.leaf": "leaf-2", "memory_bytes": str(MEMORY_BYTES - MODULE_BYTES)}
    return values


def _inventory(
    devices: Sequence[telemetry_pb2.Device], host: str
) -> Iterator[telemetry_pb2.Device]:
    for device in devices:
        if device.kind == "gpu":
            device.attributes["driver"] = DRIVERS.get(host, DRIVER)
            device.attributes["vbios"] = "96.00.99.00.01"
        yield device


def _topology_devices(gpus: Sequence[str]) -> Iterator[telemetry_pb2.Device]:
    """Yield further devices of a real agent's inventory: the PCIe function of each GPU, and its NVLinks."""
    for at, gpu in enumerate(gpus):
        pcie_attributes = {
            "numa_node": str(parts.NUMA_NODES[at]),
            "nearest_rdma": parts.RDMA_PORTS[at],
            "nearest_rdma_at": "same switch",
        }
        yield telemetry_pb2.Device(
            kind="pcie", key=parts.GPU_ADDRESSES[at], attributes=pcie_attributes
        )
        for link in range(parts.NVLINKS_PER_GPU):
            link_attributes = {
                "gpu": gpu,
                "active": "1",
                "remote_kind": "switch",
                "remote_pci_address": f"0000:{7 + link % 4:02x}:00.0",
            }
            yield telemetry_pb2.Device(
                kind="nvlink", key=f"{gpu}/link{link}", attributes=link_attributes
            )


def overlay_faults(host: str, block: Block, seconds: float) -> Block:
    """Put faults that the world lacks into a block of *host*, at *seconds* of the night; return the block."""
    if host == FLAPPING_HOST and block.table == "net_1s_changes":
        _put(block, 0, carrier_down_events=sum(seconds >= at for at in FLAP_SECONDS))
    if host == FLAPPING_HOST and block.table == "rdma_1s_changes":
        _put(block, 2, link_downed_events=sum(seconds >= at for at in FLAP_SECONDS[1:]))
    if host == REMAPPING_HOST and block.table == "gpu_10s_changes" and seconds >= REMAP_SECONDS:
        _put(block, 4, remap_pending_state=1, remapped_uncorrectable_rows=1)
    return block


def _put(block: Block, row: int, **values: int) -> None:
    columns = [signal.column for signal in TABLES[block.table]]
    for column, value in values.items():
        block.put_int(columns.index(column), row, value)


def process_events(
    gpus: Mapping[str, Sequence[str]], hot: tuple[str, str], uptime_ns: int
) -> Iterator[tuple[str, telemetry_pb2.HealthEvent]]:
    """Yield (host, event) of the processes on each host's GPUs, without clocks and ids.

    The processes are a job of all hosts, an earlier job on the GPU *hot* (host, GPU), and a pod with an unused GPU.
    *uptime_ns*: uptime of the hosts at the beginning.
    """
    rank = 0
    for host, host_gpus in gpus.items():
        for gpu in host_gpus:
            job = {"state": "running", "source": "slurm", "job_id": JOB_ID, "step": "0",
                   "rank": str(rank), "world_size": str(len(gpus) * parts.GPUS)}  # fmt: skip
            yield host, _process_event(gpu, 4000 + rank, job, uptime_ns, JOB_MINUTES)
            rank += 1
    host, gpu = hot
    earlier = {"state": "ended", "source": "slurm", "job_id": EARLIER_JOB_ID, "rank": "0"}
    yield host, _process_event(gpu, 3200, earlier, uptime_ns, EARLIER_JOB_MINUTES)
    pod = {"state": "held", "namespace": "ml", "pod": "notebook-0", "container": "main"}
    yield POD_HOST, _event("gpu.allocation", gpus[POD_HOST][0], attributes=pod)


def flap_event() -> telemetry_pb2.HealthEvent:
    """Return the event of the flapping host when its link goes down, without clocks and id."""
    attributes = {"operational": "down", "history": "down up"}
    return _event("net.link", "eth0", attributes=attributes, message="carrier lost")


def _process_event(
    gpu: str, pid: int, attributes: dict[str, str], uptime_ns: int, minutes_ago: int
) -> telemetry_pb2.HealthEvent:
    started_ns = max(1, uptime_ns - minutes_ago * 60 * SECOND_NS)
    with_start = attributes | {"start_nanoseconds": str(started_ns)}
    return _event(PROCESS, gpu, process_id=pid, process_name="python3", attributes=with_start)


def _event(
    name: str,
    device: str,
    *,
    attributes: Mapping[str, str],
    message: str = "",
    process_id: int = 0,
    process_name: str = "",
) -> telemetry_pb2.HealthEvent:
    return telemetry_pb2.HealthEvent(
        device_kind=name.partition(".")[0],
        device=device,
        name=name,
        count=1,
        attributes=dict(attributes),
        message=message,
        process_id=process_id,
        process_name=process_name,
    )


def event_id(event: telemetry_pb2.HealthEvent) -> str:
    """Return an event's id, without the boot."""
    return f"/{event.name}/{event.device}/{event.process_id}"
