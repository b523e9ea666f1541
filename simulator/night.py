"""The night that `docs/sql.md` is about: eight hosts in one job, the same in every run.

The world has the three faults of `three`; what it has no fault for is put over its readings here: one host flaps, one falls
silent, one waits for a row remap, one has an old driver, one a wrong clock, and one lacks memory. Who runs there is told here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..contract.block import Block
from ..contract.signals import TABLES
from ..contract.wire import telemetry_pb2
from . import machine as parts
from .readings import EVENT as PROCESS
from .readings import TELL_AGAIN_SECONDS
from .runner import LiveWorld, Reading
from .world import World

SCENARIO, HOSTS, SEED = "night", 8, 4050
SILENT, SILENT_AFTER_SECONDS = "sim-005", 150
FLAPPING, REMAPPING, OLD_DRIVER, WRONG_CLOCK = "sim-002", "sim-001", "sim-003", "sim-007"
#: Seconds of the night at which a link goes down, and from which a row of memory waits for its replacement.
FLAPS, REMAP_SECONDS = (100, 130, 190), 110
CLOCK_OFFSET_SECONDS = -3.2
DRIVER, DRIVERS = "580.65.06", {OLD_DRIVER: "570.124.06"}
#: One host's own label disagrees with what is declared of it, and it lacks a memory module.
MOVED, MEMORY_BYTES, MODULE_BYTES = "sim-002", 2 << 40, 64 << 30
POD_HOST = "sim-003"
JOB, JOB_MINUTES, JOB_BEFORE, JOB_BEFORE_MINUTES = "123", 50, "119", 170
SECOND_NS = 1_000_000_000


class NightWorld(LiveWorld):
    """The night in real time, as `Runner` wants it."""

    def __init__(self, uptime_seconds: float = 3600.0, start_wall_ns: int = 0) -> None:
        """*uptime_seconds*: the hosts' at the begin; *start_wall_ns*: of the truth log."""
        world = World(SCENARIO, SEED, hosts=HOSTS, start_wall_ns=start_wall_ns)
        super().__init__(world, uptime_seconds)
        self.gpus = {machine.name: machine.gpus for machine in world.machines}
        self._uptime_ns = int(uptime_seconds * SECOND_NS)
        self._told_seconds = -TELL_AGAIN_SECONDS

    def devices(self, host: str) -> list[telemetry_pb2.Device]:
        """Return what *host* registers with."""
        return [*_inventory(super().devices(host), host), *_around(self.gpus[host])]

    def labels(self, host: str) -> dict[str, str]:
        """Return what *host* says of itself."""
        return labels(host)

    def step(self, elapsed_seconds: float) -> list[Reading]:
        """Advance and return (host, blocks, events) of every host."""
        before = self.now_seconds
        readings = super().step(elapsed_seconds)
        told = self._told(before)
        return [
            (name, [], [])
            if name == SILENT and self.now_seconds > SILENT_AFTER_SECONDS
            else (
                name,
                [put_over(name, block, self.now_seconds) for block in blocks],
                [*(one for one in events if one.name != PROCESS), *told.get(name, ())],
            )
            for name, blocks, events in readings
        ]

    def _told(self, before: float) -> Mapping[str, list[telemetry_pb2.HealthEvent]]:
        """Return what the hosts tell beside what befalls them, by host."""
        told: dict[str, list[telemetry_pb2.HealthEvent]] = {}
        if self.now_seconds - self._told_seconds >= TELL_AGAIN_SECONDS:
            self._told_seconds = self.now_seconds
            hot = self.struck("thermal")
            for host, one in running(self.gpus, hot, self._uptime_ns):
                one.event_id, one.revision = event_id(one), 1 + int(self.now_seconds)
                told.setdefault(host, []).append(one)
        for at in FLAPS:
            if before < at <= self.now_seconds:
                one = flap()
                one.event_id = f"{event_id(one)}/{at}"
                told.setdefault(FLAPPING, []).append(one)
        return told

    def struck(self, class_name: str) -> tuple[str, str]:
        """Return the host and the GPU that a class strikes."""
        schedule = self.world.schedule
        (row,) = (r for r in schedule.rows if schedule.classes[int(r["cls"])].name == class_name)
        machine = self.world.machines[int(row["host"])]
        return machine.name, machine.gpus[int(row["part"])]

    def offset_ns(self, host: int) -> int:
        """Return how far the wall clock of a host, by its index, is off now."""
        wrong = self.world.names[host] == WRONG_CLOCK
        return round(CLOCK_OFFSET_SECONDS * SECOND_NS) if wrong else 0


def labels(host: str) -> dict[str, str]:
    """Return what *host* registers with."""
    said = {
        "hostname": host,
        "kernel": "6.8.0-48-generic",
        "nvidia_driver_version": DRIVERS.get(host, DRIVER),
        "memory_bytes": str(MEMORY_BYTES),
    }
    if host == MOVED:
        said |= {"gangline.leaf": "leaf-2", "memory_bytes": str(MEMORY_BYTES - MODULE_BYTES)}
    return said


def _inventory(
    devices: Sequence[telemetry_pb2.Device], host: str
) -> Iterator[telemetry_pb2.Device]:
    for device in devices:
        if device.kind == "gpu":
            device.attributes["driver"] = DRIVERS.get(host, DRIVER)
            device.attributes["vbios"] = "96.00.99.00.01"
        yield device


def _around(gpus: Sequence[str]) -> Iterator[telemetry_pb2.Device]:
    """What a real agent's inventory tells beside: the PCIe function of each GPU, and its NVLinks."""
    for at, gpu in enumerate(gpus):
        near = {"numa_node": str(parts.NUMA_NODES[at]), "nearest_rdma": parts.RDMA_PORTS[at],
                "nearest_rdma_at": "same switch"}  # fmt: skip
        yield telemetry_pb2.Device(kind="pcie", key=parts.GPU_ADDRESSES[at], attributes=near)
        for link in range(parts.LINKS):
            far = {"gpu": gpu, "active": "1", "remote_kind": "switch",
                   "remote_pci_address": f"0000:{7 + link % 4:02x}:00.0"}  # fmt: skip
            yield telemetry_pb2.Device(kind="nvlink", key=f"{gpu}/link{link}", attributes=far)


def put_over(host: str, block: Block, seconds: float) -> Block:
    """Put the faults that the world has none for over a block of *host*, at *seconds* of the night; return the block."""
    if host == FLAPPING and block.table == "net_1s_changes":
        _put(block, 0, carrier_down_events=sum(seconds >= at for at in FLAPS))
    if host == FLAPPING and block.table == "rdma_1s_changes":
        _put(block, 2, link_downed_events=sum(seconds >= at for at in FLAPS[1:]))
    if host == REMAPPING and block.table == "gpu_10s_changes" and seconds >= REMAP_SECONDS:
        _put(block, 4, remap_pending_state=1, remapped_uncorrectable_rows=1)
    return block


def _put(block: Block, row: int, **values: int) -> None:
    columns = [signal.column for signal in TABLES[block.table]]
    for column, value in values.items():
        block.put_int(columns.index(column), row, value)


def running(
    gpus: Mapping[str, Sequence[str]], hot: tuple[str, str], uptime_ns: int
) -> Iterator[tuple[str, telemetry_pb2.HealthEvent]]:
    """Yield (host, event) of what runs on the GPUs of each host, without clocks and ids: a job of all hosts, a job before it
    on the GPU *hot* (host, GPU), and a pod that holds a GPU and does nothing with it. *uptime_ns*: of the hosts, at the begin."""
    rank = 0
    for host, own in gpus.items():
        for gpu in own:
            job = {"state": "running", "source": "slurm", "job_id": JOB, "step": "0",
                   "rank": str(rank), "world_size": str(len(gpus) * parts.GPUS)}  # fmt: skip
            yield host, _process(gpu, 4000 + rank, job, uptime_ns, JOB_MINUTES)
            rank += 1
    host, gpu = hot
    other = {"state": "ended", "source": "slurm", "job_id": JOB_BEFORE, "rank": "0"}
    yield host, _process(gpu, 3200, other, uptime_ns, JOB_BEFORE_MINUTES)
    pod = {"state": "held", "namespace": "ml", "pod": "notebook-0", "container": "main"}
    yield POD_HOST, _event("gpu.allocation", gpus[POD_HOST][0], attributes=pod)


def flap() -> telemetry_pb2.HealthEvent:
    """Return what the flapping host tells when its link goes down, without clocks and id."""
    told = {"operational": "down", "history": "down up"}
    return _event("net.link", "eth0", attributes=told, message="carrier lost")


def _process(
    gpu: str, pid: int, attributes: dict[str, str], uptime_ns: int, minutes_ago: int
) -> telemetry_pb2.HealthEvent:
    started_ns = max(1, uptime_ns - minutes_ago * 60 * SECOND_NS)
    told = attributes | {"start_nanoseconds": str(started_ns)}
    return _event(PROCESS, gpu, process_id=pid, process_name="python3", attributes=told)


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


def event_id(one: telemetry_pb2.HealthEvent) -> str:
    """Return an event's id, without the boot that it is of."""
    return f"/{one.name}/{one.device}/{one.process_id}"
