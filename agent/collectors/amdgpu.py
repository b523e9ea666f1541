"""AMD GPUs, read from sysfs into the same tables and signals as NVIDIA GPUs.

Each lane reads `gpu_metrics` of every GPU in one pass without the GIL (`ext/amdgpu`). The read plan is built when a
table's header is first seen or changes. Values missing from the table come from small files beside it. A GPU's name is
ROCm's unique id, or its PCI address if it has none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...contract.block import Block, is_float
from ...contract.signals import BY_NAME, index_of
from ...contract.wire.telemetry_pb2 import HealthEvent
from ...ext.amdgpu import FAILED, READ, SHORT, SPARED, TableFiles
from ...ext.counterfiles import NUMBER, CounterFiles
from ...ext.nvml import ALL_BITS, Rows
from ..clock import Clock
from ..collector import NO_DATA_TURNS, Collector, call_slot_name
from ..events import EventPublisher
from ..hardware.amdgpu import (
    GENERATIONS,
    AmdGpu,
    is_off_bus,
    link_max,
    parse_levels_max,
    read_bad_pages,
)
from ..hardware.files import Roots, read_text
from ..hardware.gpu_metrics import FieldPlace, MetricsError, MetricsLayout, layout_of
from .amdgpu_metrics import STATUS_BITS, TIMES, Targets, held_of, values_of
from .amdgpu_session import MEMORY_BLOCK, amd_session_of
from .block_writer import Cells, put
from .gpu_lifecycle import GpuLifecycle

log = logging.getLogger(__name__)

#: A fall of the energy (a gauge of doubles) means that the GPU's counters restarted.
NEVER_FALL = {"gpu.energy_joules": 0}
#: hwmon of amdgpu: temp1 is the edge, temp2 the junction, temp3 the memory.
_SETTINGS: Mapping[str, tuple[str, float]] = {
    "power1_cap_default": ("gpu.power_limit_default_watts", 1e-6),
    "power1_cap_min": ("gpu.power_limit_min_watts", 1e-6),
    "power1_cap_max": ("gpu.power_limit_max_watts", 1e-6),
    "temp2_emergency": ("gpu.temperature_shutdown_celsius", 1e-3),
    "temp3_crit": ("gpu.memory_temperature_max_celsius", 1e-3),
}


class MetricsTables:
    """`gpu_metrics` of every GPU. An unreadable table leaves cells missing, and is in `errors`."""

    def __init__(
        self, gpus: Sequence[AmdGpu], buffers: Sequence[tuple[bytearray, bytearray]]
    ) -> None:
        self.errors: dict[int, str] = {}
        self._gpus = gpus
        self._files = TableFiles(buffers)
        for gpu in gpus:
            self._files.add_file(f"{gpu.folder}/gpu_metrics", call_slot_name(gpu.address))

    def add_number(self, number: int, path: str, cell: tuple[int, int]) -> None:
        """Read a file with a single number together with a GPU's table."""
        self._files.add_number(number, path, *cell)

    def exclude(self, devices: frozenset[str]) -> None:
        self._files.spare(devices)

    def read(self, plan: Callable[[TableFiles, int, MetricsLayout], None]) -> None:
        """Read all tables; never raises. `errors` has a text per missing table.

        *plan*: sets the values to take from the table of a GPU, by the GPU's number. It is passed
        to each read, because a stored reference would form a cycle that keeps the collector and its
        GPUs alive until the next garbage collection.
        """
        if not self._files.read():
            if self.errors:
                self.errors.clear()
            return
        is_new = False
        self.errors.clear()
        for number in range(len(self._gpus)):
            state = self._files.state(number)
            if state not in (READ, SPARED):
                is_new |= not self._is_current(number, state, plan)
        if is_new and self._files.read():
            for number in range(len(self._gpus)):
                if self._files.state(number) not in (READ, SPARED) and number not in self.errors:
                    self.errors[number] = self._error_of(
                        number, "gpu_metrics changes from read to read"
                    )

    def _is_current(
        self, number: int, state: int, plan: Callable[[TableFiles, int, MetricsLayout], None]
    ) -> bool:
        """Plan a table with a new header and return False.

        If the table is unreadable, add a text to `errors` and return True.
        """
        if state == FAILED:
            error = self._files.error(number)
            hint = ": let the agent read it" if error == 13 else ""
            self.errors[number] = self._error_of(number, f"gpu_metrics: {os.strerror(error)}{hint}")
            return True
        try:
            layout = layout_of(self._files.data(number))
            if state == SHORT:
                raise MetricsError(
                    f"gpu_metrics {layout.revision} is shorter than at the last reading"
                )
            plan(self._files, number, layout)
        except MetricsError as error:
            self.errors[number] = self._error_of(number, str(error))
            return True
        return False

    def _error_of(self, number: int, text: str) -> str:
        return f"GPU {self._gpus[number].address}: {text}"

    def is_failed(self, number: int) -> bool:
        """Return whether the kernel refused the last read."""
        return self._files.state(number) == FAILED

    def data(self, number: int) -> bytes:
        """Return the last table; empty if it was not read."""
        return self._files.data(number) if self._files.state(number) == READ else b""


class AmdCollector(Collector):
    """A lane of AMD GPUs that fills the same blocks as NVIDIA's.

    `collect` raises NoData if the driver shows no GPU.
    """

    enters_driver = True
    #: Tables to fill, in the order of the blocks.
    tables: tuple[str, ...] = ()

    def __init__(self, name: str, roots: Roots, clock: Clock | None = None) -> None:
        self.name = name
        self._roots = roots
        self._session = amd_session_of(roots, clock)
        self._generation = -1
        self._turns_without = 0  # since a turn without a GPU
        self._publisher: EventPublisher | None = None
        self._blocks: tuple[Block, ...] = ()

    def start(self, publisher: EventPublisher) -> None:
        """Take the publisher, to report changes of a GPU at once."""
        self._publisher = publisher

    def close(self) -> None:
        """Release all files; the next turn reopens them."""
        self._generation, self._blocks = -1, ()

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip these GPUs; their rows stay, with missing cells."""
        self._session.exclude(devices)
        self._exclude(devices)

    def skip(self) -> bool:
        """Without a GPU, run one turn in ten, and the turns that list the GPUs."""
        if not 0 < self._turns_without < NO_DATA_TURNS or not self._session.rests:
            return False
        self._turns_without += 1
        return True

    def collect(self) -> Sequence[Block]:
        """Read every GPU that is not excluded."""
        self._turns_without = 1
        now_ns = self._session.refresh()
        self._turns_without = 0
        if self._generation != self._session.generation:
            self._generation = self._session.generation
            self._build(self._session.gpus)
            self._exclude(self._session.excluded)
        self._read(now_ns)
        return self._blocks

    def _exclude(self, devices: frozenset[str]) -> None:
        """Skip the files of these GPUs."""

    def _build(self, gpus: Sequence[AmdGpu]) -> None:
        raise NotImplementedError

    def _read(self, now_ns: int) -> None:
        raise NotImplementedError


class AmdTables(AmdCollector):
    """A lane that reads `gpu_metrics` and small files into one row per GPU."""

    def _build(self, gpus: Sequence[AmdGpu]) -> None:
        self._blocks = tuple(Block(table, [gpu.key for gpu in gpus]) for table in self.tables)
        self._cells = Cells(self._blocks)
        self._targets = Targets(self._blocks)
        self._metrics = MetricsTables(gpus, self._targets.buffers)
        self._files = CounterFiles(self._targets.buffers, kept_max=8 * len(gpus))
        self._has_files = False
        for row, gpu in enumerate(gpus):
            for path, signal, scale in self._files_of(gpu):
                self._add_file(gpu, row, path, signal, scale)

    def _files_of(self, gpu: AmdGpu) -> Iterator[tuple[str, str, float]]:
        """Yield path, signal and scale of each small file that is read every turn."""
        yield from ()

    def _add_file(self, gpu: AmdGpu, row: int, path: str, signal: str, scale: float) -> None:
        cell = self._targets.cell(signal, row)
        if cell is not None and os.path.exists(path):
            self._has_files = True
            self._files.add_file(path, group=gpu.key, device=call_slot_name(gpu.address))
            gauge = is_float(BY_NAME[signal].signal_id)
            self._files.add_cell(cell[1], target=cell[0], shape=NUMBER, scale=scale, gauge=gauge)

    def _plan(self, files: TableFiles, row: int, layout: MetricsLayout) -> None:
        values = [*values_of(layout, self._targets, row)]
        held = [*held_of(layout, self._targets, row)]
        cycles = layout.fields.get("accumulation_counter")
        time = next(
            ((layout.fields[name], ns) for name, ns in TIMES if name in layout.fields), None
        )
        status = layout.fields.get("indep_throttle_status")
        files.plan(
            row, layout.size, layout.marks, values, held,
            cycles=cycles and (cycles.offset, cycles.type),
            time=time and (time[0].offset, time[0].type, time[1]),
            flags=self._targets.cell("gpu.clock_event_reasons_flags", row) if cycles or status else None,
            status=status and (status.offset, STATUS_BITS),
            least_bytes=max((place.end for place in self._beside(layout)), default=0),
        )  # fmt: skip

    def _beside(self, layout: MetricsLayout) -> list[FieldPlace]:
        """Return the fields that the lane itself reads from the table."""
        return []

    def _exclude(self, devices: frozenset[str]) -> None:
        if self._blocks:
            self._metrics.exclude(devices)
            self._files.spare(devices)

    def _read(self, now_ns: int) -> None:
        self._metrics.read(self._plan)
        if self._has_files:
            self._files.read()
        errors = self._metrics.errors
        self.access_error = next(iter(errors.values())) if errors else ""


class AmdGpuSecond(AmdTables):
    """Signals that change within a second: clocks, throttling, power, heat, use, memory, RAS sums.

    Reports `gpu.lost` once when a GPU falls off the bus and once when it is back. Requests a new
    inventory when the GPUs change. A GPU whose counters restarted gets a new epoch.
    """

    tables = ("gpu_1s", "gpu_1s_changes")

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("amdgpu_1s", roots, clock)
        self._lifecycle = GpuLifecycle()
        self._is_any_lost = False
        self._errors_count: dict[str, int] = {}

    def _build(self, gpus: Sequence[AmdGpu]) -> None:
        super()._build(gpus)
        self._gpus = gpus
        for row, gpu in enumerate(gpus):
            cell = self._targets.cell("gpu.memory_used_bytes", row)
            if cell is not None:
                self._metrics.add_number(row, f"{gpu.folder}/mem_info_vram_used", cell)
        self._ras_changes = [-1] * len(gpus)
        self._holdings: object = None
        self._total = [_number(f"{gpu.folder}/mem_info_vram_total") for gpu in gpus]
        columns = [(*self._cells.column_of(name), mask) for name, mask in NEVER_FALL.items()]
        self._counts = Rows(len(gpus), columns)
        self._used = Rows(len(gpus), [(*self._cells.column_of("gpu.memory_used_bytes"), ALL_BITS)])
        changes = self._lifecycle.update({gpu.key: gpu.address for gpu in gpus}, "", 0)
        if changes:
            self._request_inventory("; ".join(changes))
        for row, gpu in enumerate(gpus):
            self._cells.put("gpu.lost_state", row, 0)
            self._cells.put("gpu.calls_failed_errors", row, self._errors_count.get(gpu.key, 0))
            self._put_epoch(row)

    def _read(self, now_ns: int) -> None:
        super()._read(now_ns)
        for row in self._used.changed():
            used, total = self._cells.number("gpu.memory_used_bytes", row), self._total[row]
            free = None if used is None or total is None else max(0.0, total - used)
            put(self._blocks[0], "gpu.memory_free_bytes", row, free)
        if self._metrics.errors or self._is_any_lost:
            self._check_lost()
        for row in self._counts.fallen():
            self._lifecycle.restart([self._gpus[row].key])
            self._request_inventory(f"GPU {self._gpus[row].key} was reset: its counters restarted")
            self._put_epoch(row)
        self._session.ras.read(now_ns, 1)
        changes = self._session.ras.changes
        if changes != self._ras_changes:
            for row, count in enumerate(changes):
                if count != self._ras_changes[row]:
                    self._put_errors(row)
            self._ras_changes = [*changes]
        if self._session.holdings is not self._holdings:
            self._holdings = self._session.holdings
            self._put_processes()

    def _put_errors(self, row: int) -> None:
        for kind in ("corrected", "uncorrected"):
            count = self._session.ras.total(self._gpus[row], f"ras.{kind}_errors")
            self._cells.put(f"gpu.ecc_{kind}_volatile_errors", row, count)

    def _put_processes(self) -> None:
        holdings = self._session.holdings
        numbers = {
            partition.kfd_id: row
            for row, gpu in enumerate(self._gpus)
            for partition in gpu.partitions
        }
        pids: list[set[int]] = [set() for _ in self._gpus]
        for holding in holdings or ():
            if holding.kfd_id in numbers:
                pids[numbers[holding.kfd_id]].add(holding.pid)
        for row, gpu_pids in enumerate(pids):
            count = None if holdings is None else float(len(gpu_pids))
            put(self._blocks[0], "gpu.processes_count", row, count)

    def _check_lost(self) -> None:
        """Check the GPUs that have no table, and the lost ones, and report changes."""
        errors = self._metrics.errors
        if errors:
            self._session.check_soon()
        lost: dict[str, bool] = {}
        for row, gpu in enumerate(self._gpus):
            if row in errors and self._metrics.is_failed(row):
                count = self._errors_count[gpu.key] = self._errors_count.get(gpu.key, 0) + 1
                self._cells.put("gpu.calls_failed_errors", row, count)
            if gpu.address not in self._session.excluded:
                lost[gpu.key] = row in errors and is_off_bus(gpu.folder)
                self._cells.put("gpu.lost_state", row, int(lost[gpu.key]))
        for change in self._lifecycle.update_lost(lost):
            message = "fell off the bus" if change.state == "lost" else "answers again"
            text = f"GPU {change.key} at {change.address} {message}"
            self._request_inventory(text)
            if self._publisher:
                self._publisher.publish(
                    HealthEvent(
                        device_kind="gpu",
                        device=change.address,
                        name="gpu.lost",
                        message=text,
                        attributes={"state": change.state, "uuid": change.key},
                    )
                )
        self._is_any_lost = self._lifecycle.any_lost
        for row in range(len(self._gpus)):
            self._put_epoch(row)

    def _put_epoch(self, row: int) -> None:
        self._cells.put(
            "gpu.counter_epoch_count", row, self._lifecycle.epochs.get(self._gpus[row].key, 0)
        )

    def _request_inventory(self, reason: str) -> None:
        log.info("%s", reason, extra={"cause": "gpu.lifecycle"})
        if self._publisher:
            self._publisher.request_inventory(reason)


class AmdGpuTenSeconds(AmdTables):
    """Signals that change slowly: limits, PCIe link and its errors, bad pages, partitioning."""

    tables = ("gpu_10s", "gpu_10s_changes")

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("amdgpu_10s", roots, clock)

    def _files_of(self, gpu: AmdGpu) -> Iterator[tuple[str, str, float]]:
        yield f"{gpu.folder}/mem_info_vram_total", "gpu.memory_total_bytes", 1.0
        yield f"{gpu.folder}/mem_info_vis_vram_used", "gpu.bar1_used_bytes", 1.0
        yield f"{gpu.folder}/mem_info_vis_vram_total", "gpu.bar1_total_bytes", 1.0
        if gpu.hwmon:
            yield f"{gpu.hwmon}/power1_cap", "gpu.power_limit_watts", 1e-6
            yield f"{gpu.hwmon}/temp2_crit", "gpu.temperature_slowdown_celsius", 1e-3

    def _build(self, gpus: Sequence[AmdGpu]) -> None:
        super()._build(gpus)
        self._gpus = gpus
        self._speeds: list[FieldPlace | None] = [None] * len(gpus)
        for row, gpu in enumerate(gpus):
            generation, lanes = link_max(self._roots.sys, gpu)
            ten = self._blocks[0]
            put(ten, "gpu.pcie_generation_max_number", row, generation)
            put(ten, "gpu.pcie_width_max_lanes", row, lanes)
            put(
                ten,
                "gpu.sm_clock_max_hertz",
                row,
                parse_levels_max(read_text(f"{gpu.folder}/pp_dpm_sclk")),
            )
            self._cells.put(
                "gpu.mig_mode_state", row, int(gpu.is_split) if gpu.compute_mode else None
            )

    def _plan(self, files: TableFiles, row: int, layout: MetricsLayout) -> None:
        super()._plan(files, row, layout)
        self._speeds[row] = layout.fields.get("pcie_link_speed")
        if "pcie_replay_count_acc" not in layout.fields:
            path = f"{self._gpus[row].folder}/pcie_replay_count"
            self._add_file(self._gpus[row], row, path, "gpu.pcie_replays_count", 1.0)

    def _read(self, now_ns: int) -> None:
        super()._read(now_ns)
        for row, gpu in enumerate(self._gpus):
            put(self._blocks[0], "gpu.pcie_generation_number", row, self._generation_number(row))
            if call_slot_name(gpu.address) not in self._session.excluded:
                self._put_memory(row, gpu)

    def _beside(self, layout: MetricsLayout) -> list[FieldPlace]:
        return [layout.fields[name] for name in ("pcie_link_speed",) if name in layout.fields]

    def _generation_number(self, row: int) -> float | None:
        place, data = self._speeds[row], self._metrics.data(row)
        if place is None or not data:
            return None
        return GENERATIONS.get(int.from_bytes(data[place.offset : place.offset + 2], "little"))

    def _put_memory(self, row: int, gpu: AmdGpu) -> None:
        pages = read_bad_pages(gpu.folder)
        self._cells.put(
            "gpu.retired_uncorrected_pages", row, None if pages is None else pages.reserved
        )
        self._cells.put(
            "gpu.retirement_pending_state", row, None if pages is None else int(pages.pending > 0)
        )
        for kind in ("corrected", "uncorrected"):
            count = self._session.ras.count(gpu, MEMORY_BLOCK, f"ras.{kind}_errors")
            self._cells.put(f"gpu.ecc_{kind}_volatile_device_errors", row, count)


class AmdGpuMinute(AmdCollector):
    """Settings and properties: limits of power and heat, the highest memory clock."""

    tables = ("gpu_60s",)

    def __init__(self, roots: Roots, clock: Clock | None = None) -> None:
        super().__init__("amdgpu_60s", roots, clock)

    def _build(self, gpus: Sequence[AmdGpu]) -> None:
        self._gpus = gpus
        block = Block(self.tables[0], [gpu.key for gpu in gpus])
        self._blocks = (block,)
        self._files = CounterFiles([(block.cells, block.valid)], kept_max=0)
        for row, gpu in enumerate(gpus):
            for name, (signal, scale) in _SETTINGS.items() if gpu.hwmon else ():
                self._files.add_file(
                    f"{gpu.hwmon}/{name}", group=gpu.key, device=call_slot_name(gpu.address)
                )
                self._files.add_cell(index_of(signal) * block.rows + row, scale=scale, gauge=True)

    def _exclude(self, devices: frozenset[str]) -> None:
        if self._blocks:
            self._files.spare(devices)

    def _read(self, now_ns: int) -> None:
        self._files.read()
        for row, gpu in enumerate(self._gpus):
            if call_slot_name(gpu.address) not in self._session.excluded:
                levels = read_text(f"{gpu.folder}/pp_dpm_mclk")
                put(self._blocks[0], "gpu.memory_clock_max_hertz", row, parse_levels_max(levels))


def _number(path: str) -> float | None:
    text = read_text(path)
    return float(text) if text and text.isdecimal() else None
