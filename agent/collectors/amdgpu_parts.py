"""Parts of AMD GPUs: XGMI links, compute partitions, RAS error counters, and processes.

XGMI links use the tables of NVLinks, partitions those of MIG devices, and processes those of NVML's
processes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ...contract.block import Block
from ...contract.signals import index_of
from ...ext.amdgpu import FIRST, MEAN, TableFiles
from ...ext.nvml_parts import COMPUTE, Process
from ..clock import Clock
from ..collector import NoData
from ..hardware.amdgpu import AmdGpu
from ..hardware.files import Roots, device_key
from ..hardware.gpu_metrics import XGMI_LINKS_MAX, FieldPlace, MetricsLayout, busy_name
from ..hardware.processes import read_tasks
from .amdgpu import AmdCollector, MetricsTables
from .amdgpu_metrics import MetricSource, Targets, table_value
from .block_writer import put
from .gpu_parts import cleared_block
from .gpu_processes import ROWS_MAX, TICK_NS, process_key
from .process_listing import GpuProcess, GpuProcessList, process_listing_of

#: Bytes per second in one direction, per Gbit/s of a lane.
_GIGABIT_BYTES = 1e9 / 8
_LINK_SOURCES = (
    (MetricSource("nvlink.received_data_bytes", (), 1024.0), "xgmi_read_data_acc"),
    (MetricSource("nvlink.transmitted_data_bytes", (), 1024.0), "xgmi_write_data_acc"),
    (MetricSource("nvlink.link_state", (), 1.0, FIRST, 0, 1), "xgmi_link_status"),
)


def link_key(gpu: AmdGpu, link: int) -> str:
    """Return the key of an XGMI link's readings."""
    return device_key(f"{gpu.key}/link{link}")


def all_links_key(gpu: AmdGpu) -> str:
    """Return the key of the readings of all links of a GPU together."""
    return device_key(f"{gpu.key}/xgmi")


class XgmiLinks(AmdCollector):
    """The XGMI links of each GPU: bytes moved, link state, and one error count per GPU.

    The driver reports neither a link's far end nor errors per link.
    """

    tables = ("nvlink_10s", "nvlink_10s_changes")

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("xgmi_10s", roots, clock)

    def _build(self, gpus: Sequence[AmdGpu]) -> None:
        self._gpus = gpus
        links = [link_key(gpu, link) for gpu in gpus for link in range(XGMI_LINKS_MAX)]
        with_sums = [*links, *(all_links_key(gpu) for gpu in gpus)]
        self._rows = {key: row for row, key in enumerate(with_sums)}
        self._blocks = Block(self.tables[0], links), Block(self.tables[1], with_sums)
        self._targets = Targets(self._blocks)
        self._speeds: list[tuple[FieldPlace, FieldPlace] | None] = [None] * len(gpus)
        self._metrics = MetricsTables(gpus, self._targets.buffers)

    def _plan(self, files: TableFiles, number: int, layout: MetricsLayout) -> None:
        gpu, fields = self._gpus[number], layout.fields
        values = []
        for source, name in _LINK_SOURCES:
            place = fields.get(name, FieldPlace(0, "H", 0))
            for link in range(min(place.numbers, XGMI_LINKS_MAX)):
                cell = self._targets.cell(source.signal, self._rows[link_key(gpu, link)])
                element = FieldPlace(place.offset + link * place.element_bytes, place.type)
                if cell is not None:
                    values.append(table_value(source, element, cell))
        width, speed = fields.get("xgmi_link_width"), fields.get("xgmi_link_speed")
        minimum_bytes = max(width.end, speed.end) if width and speed else 0
        files.plan(number, layout.size, layout.marks, values, least_bytes=minimum_bytes)
        self._speeds[number] = (width, speed) if width and speed else None

    def _exclude(self, devices: frozenset[str]) -> None:
        if self._blocks:
            self._metrics.exclude(devices)

    def _read(self, now_ns: int) -> None:
        self._metrics.read(self._plan)
        errors = self._metrics.errors
        self.access_error = next(iter(errors.values())) if errors else ""
        changes = self._blocks[1]
        for number, gpu in enumerate(self._gpus):
            speed = self._speed(number)
            for link in range(XGMI_LINKS_MAX):
                row = self._rows[link_key(gpu, link)]
                cell = index_of("nvlink.link_state") * changes.rows + row
                is_there = bool(changes.valid[cell])
                put(changes, "nvlink.speed_bytes_per_second", row, speed if is_there else None)
            put(changes, "nvlink.crc_errors", self._rows[all_links_key(gpu)], self._errors(gpu))

    def _speed(self, number: int) -> float | None:
        places, data = self._speeds[number], self._metrics.data(number)
        if places is None or not data:
            return None
        width, speed = (
            struct.unpack_from(f"<{place.type}", data, place.offset)[0] for place in places
        )
        is_known = 0 < width <= 64 and 0 < speed < 0xFFFF
        return width * speed * _GIGABIT_BYTES if is_known else None

    def _errors(self, gpu: AmdGpu) -> int | None:
        counts = [
            self._session.ras.count(gpu, "xgmi_wafl", f"ras.{kind}_errors")
            for kind in ("corrected", "uncorrected")
        ]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None


class AmdPartitions(AmdCollector):
    """The compute partitions of each split GPU (all modes except SPX), reported as MIG devices."""

    tables = ("mig_10s", "mig_10s_changes")

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("amdgpu_partition_10s", roots, clock)

    def _build(self, gpus: Sequence[AmdGpu]) -> None:
        self._gpus = [gpu for gpu in gpus if gpu.is_split and gpu.partitions]
        keys = [
            gpu.partition_key(partition.number)
            for gpu in self._gpus
            for partition in gpu.partitions
        ]
        self._rows = {key: row for row, key in enumerate(keys)}
        self._blocks = tuple(Block(table, keys) for table in self.tables)
        self._targets = Targets(self._blocks)
        self._metrics = MetricsTables(self._gpus, self._targets.buffers)
        changes = self._blocks[1]
        for gpu in self._gpus:
            for partition in gpu.partitions:
                row = self._rows[gpu.partition_key(partition.number)]
                put(changes, "mig.gpu_instance_number", row, partition.number)
                put(changes, "mig.gpu_slices_count", row, partition.compute_dies)
                put(changes, "mig.multiprocessors_count", row, partition.compute_units or None)
                put(changes, "mig.memory_total_bytes", row, partition.memory_bytes or None)

    def _plan(self, files: TableFiles, number: int, layout: MetricsLayout) -> None:
        gpu, values = self._gpus[number], []
        for partition in gpu.partitions:
            place = layout.fields.get(busy_name(partition.number))
            row = self._rows[gpu.partition_key(partition.number)]
            cell = self._targets.cell("mig.sm_active_ratio", row)
            if place and cell:
                source = MetricSource("mig.sm_active_ratio", (), 0.01, MEAN, 0, 100)
                values.append(table_value(source, place, cell))
        files.plan(number, layout.size, layout.marks, values)

    def _exclude(self, devices: frozenset[str]) -> None:
        if self._blocks:
            self._metrics.exclude(devices)

    def _read(self, now_ns: int) -> None:
        if not self._gpus:
            raise NoData("no AMD GPU is split into compute partitions (all are in SPX)")
        self._metrics.read(self._plan)
        errors = self._metrics.errors
        self.access_error = next(iter(errors.values())) if errors else ""
        used: dict[int, int] = {}
        holdings = self._session.read_holdings(now_ns)
        for holding in holdings or ():
            used[holding.kfd_id] = used.get(holding.kfd_id, 0) + (holding.memory_bytes or 0)
        for gpu in self._gpus:
            for partition in gpu.partitions:
                row = self._rows[gpu.partition_key(partition.number)]
                used_bytes = None if holdings is None else float(used.get(partition.kfd_id, 0))
                put(self._blocks[0], "mig.memory_used_bytes", row, used_bytes)


class RasBlocks(AmdCollector):
    """Error counts of each RAS block of each GPU since the driver loaded."""

    tables = ("ras_10s_changes",)

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("ras_10s", roots, clock)

    def _build(self, gpus: Sequence[AmdGpu]) -> None:
        self._blocks = (self._session.ras.block,)

    def _read(self, now_ns: int) -> None:
        """Read the counts that `amdgpu_1s` has not read: it reads one GPU per turn."""
        if not self._blocks[0].rows:
            raise NoData("no AMD GPU shows RAS counts (ras/*_err_count): its RAS features are off")
        self._session.ras.read(now_ns, len(self._session.gpus))


class KfdProcesses(AmdCollector):
    """The processes that hold a GPU or a partition, by KFD."""

    tables = ("gpu_process_1s_changes",)

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("kfd_process_1s", roots, clock)
        self._listing = process_listing_of(roots)  # for `gpu_job_1s`, whose turn is later
        self._process_list = GpuProcessList((), ())
        self._last: object = None

    def _build(self, gpus: Sequence[AmdGpu]) -> None:
        self._blocks, self._last = (Block(self.tables[0], ()),), None
        self._partition_of = self._session.partition_of()

    def _read(self, now_ns: int) -> None:
        holdings = self._session.read_holdings(now_ns)
        if holdings is None:
            raise NoData(
                "KFD shows no processes (/sys/class/kfd/kfd/proc): ROCm's driver is older than 5.13, or is not loaded"
            )
        if holdings is not self._last:  # the same object until the next read
            self._last = holdings
            self._fill()
        self._listing.put(self.name, self._process_list)

    def _fill(self) -> None:
        owned: list[tuple[AmdGpu, Process]] = []
        for holding in self._session.holdings or ():
            owner = self._partition_of.get(holding.kfd_id)
            if owner is not None:
                gpu, number = owner
                instance = number if gpu.is_split else None
                owned.append(
                    (gpu, Process(holding.pid, holding.memory_bytes, instance, None, COMPUTE))
                )
        is_over_limit = len(owned) > ROWS_MAX
        self.access_error = (
            f"{len(owned)} processes on GPUs, only {ROWS_MAX} are reported" if is_over_limit else ""
        )
        owned = owned[:ROWS_MAX]
        gpus = tuple(gpu.key for gpu in self._session.gpus)
        self._process_list = GpuProcessList(
            gpus,
            tuple(
                GpuProcess(gpu.key, p.pid, p.gpu_instance, None, p.memory_bytes) for gpu, p in owned
            ),
        )
        tasks = read_tasks(self._roots.proc, map(str, sorted({p.pid for _, p in owned})))
        starts = {task.number: task.start_ticks * TICK_NS for task in tasks}
        rows = {device_key(process_key(gpu.key, process)): process for gpu, process in owned}
        block = cleared_block(self._blocks[0], self.tables[0], rows)
        for row, process in enumerate(rows.values()):
            put(block, "gpu_process.memory_used_bytes", row, process.memory_bytes)
            put(block, "gpu_process.kinds_flags", row, process.kinds)
            put(block, "gpu_process.start_nanoseconds", row, starts.get(process.pid))
            put(block, "gpu_process.gpu_instance_number", row, process.gpu_instance)
        self._blocks = (block,)
