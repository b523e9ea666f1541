"""Signals of the GPU tables in AMD's metrics: which field of which version gives which value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...contract.block import Block, is_float
from ...contract.signals import BY_NAME, TABLES
from ...ext.amdgpu import FIRST, MEAN, HeldTime, TableValue
from ..hardware.gpu_metrics import FieldPlace, MetricsLayout

#: Bits of `gpu.clock_event_reasons_flags` (nvml.h, nvmlClocksEventReason*), by AMD's names.
POWER_CAP, SOFTWARE_THERMAL, HARDWARE_THERMAL, POWER_BRAKE = 0x4, 0x20, 0x40, 0x80
#: A reason is active if it held the GPU for this share of the time between two tables.
HELD_SHARE_MIN = 0.05
#: Bits of `indep_throttle_status` (SMU_THROTTLER_* of drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h) -> reasons.
STATUS_BITS = (
    (0xFF, POWER_CAP),  # PPT0 to PPT3, SPL, FPPT, SPPT, SPPT_APU
    (0xFF << 16, POWER_CAP),  # currents: TDC_*, EDC_*, APCC
    (0x3F << 32, SOFTWARE_THERMAL),  # GPU, core, memory, edge, hot spot, SoC
    (0xFF << 38, HARDWARE_THERMAL),  # voltage regulators and their VRHOT, liquid
    (0x3 << 46, POWER_BRAKE),  # PROCHOT
)

MEGAHERTZ = 1e6
_SOCKET, _REGULATOR = "socket_thm_residency_acc", "vr_thm_residency_acc"
_MEMORY = "hbm_thm_residency_acc"
#: Throttled time in firmware cycles: signal, its counters, and the reason's flag.
HELD = (
    ("gpu.violation_power_nanoseconds", ("ppt_residency_acc",), POWER_CAP),
    ("gpu.violation_hw_power_brake_nanoseconds", ("prochot_residency_acc",), POWER_BRAKE),
    ("gpu.violation_socket_thermal_nanoseconds", (_SOCKET,), SOFTWARE_THERMAL),
    ("gpu.violation_memory_thermal_nanoseconds", (_MEMORY,), SOFTWARE_THERMAL),
    ("gpu.violation_regulator_thermal_nanoseconds", (_REGULATOR,), HARDWARE_THERMAL),
    ("gpu.violation_thermal_nanoseconds", (_SOCKET, _MEMORY, _REGULATOR), 0),
)
#: Field with the table's time -> nanoseconds per unit.
TIMES = (("firmware_timestamp", 10), ("system_clock_counter", 1))


class MetricSource(NamedTuple):
    """A signal and its fields: the first field present is used. Bounds apply before scaling."""

    signal: str
    fields: tuple[str, ...]
    scale: float = 1.0
    reduce: int = FIRST
    least: float = 0.0
    most: float = 2.0**64
    bits: int = 64


SOURCES = (
    # Each compute die (XCD) has its own clock; a die that the part lacks reads as all ones.
    MetricSource("gpu.sm_clock_hertz", ("current_gfxclk",), MEGAHERTZ, MEAN, 1, 10_000),
    MetricSource("gpu.memory_clock_hertz", ("current_uclk",), MEGAHERTZ, FIRST, 1, 10_000),
    # One die of an MI250X reports the power of the package, the other 0.
    MetricSource(
        "gpu.power_watts", ("curr_socket_power", "average_socket_power"), 1.0, FIRST, 1, 10_000
    ),
    MetricSource("gpu.energy_joules", ("energy_accumulator",), 2.0**-16, FIRST, 1),
    MetricSource("gpu.temperature_celsius", ("temperature_hotspot",), 1.0, FIRST, 1, 200),
    MetricSource("gpu.memory_temperature_celsius", ("temperature_mem",), 1.0, FIRST, 1, 200),
    MetricSource("gpu.utilization_ratio", ("average_gfx_activity",), 0.01, FIRST, 0, 100),
    MetricSource("gpu.memory_utilization_ratio", ("average_umc_activity",), 0.01, FIRST, 0, 100),
    MetricSource("gpu.video_clock_hertz", ("current_vclk0",), MEGAHERTZ, FIRST, 1, 10_000),
    MetricSource("gpu.jpeg_utilization_ratio", ("jpeg_activity",), 0.01, MEAN, 0, 100),
    MetricSource("gpu.pcie_width_lanes", ("pcie_link_width",), 1.0, FIRST, 1, 32),
    MetricSource("gpu.pcie_replays_count", ("pcie_replay_count_acc",), bits=32),
    MetricSource("gpu.pcie_replay_rollovers_count", ("pcie_replay_rover_count_acc",), bits=32),
    MetricSource("gpu.pcie_recoveries_count", ("pcie_l0_to_recov_count_acc",), bits=32),
    MetricSource("gpu.pcie_naks_sent_count", ("pcie_nak_sent_count_acc",), bits=32),
    MetricSource("gpu.pcie_naks_received_count", ("pcie_nak_rcvd_count_acc",), bits=32),
)


class Targets:
    """The cells of a lane's blocks, by signal and row."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.buffers = [(block.cells, block.valid) for block in blocks]
        self._columns = {
            signal.name: (number, column, block.rows)
            for number, block in enumerate(blocks)
            for column, signal in enumerate(TABLES[block.table])
        }

    def cell(self, signal: str, row: int) -> tuple[int, int] | None:
        """Return target and index of a row's cell; None if the lane does not have the signal."""
        if signal not in self._columns:
            return None
        number, column, rows = self._columns[signal]
        return number, column * rows + row


def table_value(source: MetricSource, place: FieldPlace, cell: tuple[int, int]) -> TableValue:
    """Return the read plan from a field of the table to a cell."""
    gauge = is_float(BY_NAME[source.signal].signal_id)
    return TableValue(
        *cell, gauge, place.offset, place.type, place.numbers,
        source.reduce, source.scale, source.least, source.most, source.bits,
    )  # fmt: skip


def values_of(layout: MetricsLayout, targets: Targets, row: int) -> Iterator[TableValue]:
    """Yield the table values of a GPU that the lane reports."""
    for source in SOURCES:
        cell = targets.cell(source.signal, row)
        field = next((name for name in source.fields if name in layout.fields), "")
        if cell is not None and field:
            yield table_value(source, layout.fields[field], cell)


def held_of(layout: MetricsLayout, targets: Targets, row: int) -> Iterator[HeldTime]:
    """Yield the throttle times of a GPU for which its table has counters."""
    for signal, names, flag in HELD:
        cell = targets.cell(signal, row)
        places = [layout.fields[name] for name in names if name in layout.fields]
        if cell is not None and places:
            yield HeldTime(
                *cell, [(place.offset, place.type) for place in places], flag, HELD_SHARE_MIN
            )
