"""Simulated hosts with AMD GPUs: the same model, with the values, names and missing signals of an MI300X host.

The model's GPU is an H100. MI300X values are the same work scaled to its own limits (750 W, 2100 MHz: AMD's data
sheet). Signals that its driver lacks are missing, and faults appear in the kernel log as amdgpu's own lines.
"""

from __future__ import annotations

import numpy as np

from ..agent.collectors.amdgpu_metrics import HELD, SOURCES
from ..contract.block import Block, is_float
from ..contract.signals import BY_ID
from .machine import AMD_MEMORY_BYTES, GPU_MEMORY_BYTES, POWER_LIMIT_WATTS, SM_CLOCK_MAX_HERTZ

CLOCK_MAX_HERTZ, LIMIT_WATTS, MEMORY_CLOCK_HERTZ = 2100e6, 750.0, 1300e6
LINKS = 7  # XGMI links of an OAM module in a fully connected host of eight
LINK_BYTES_PER_SECOND = 64e9
SLOWDOWN_CELSIUS, SHUTDOWN_CELSIUS = 100.0, 105.0
#: Kinds of sources that AMD hosts lack.
ABSENT_KINDS = ("gpu_fast", "gpu_fabric", "nvml_events")
NO_DATA = 1  # collector.outcome_state

_CLOCK, _POWER = CLOCK_MAX_HERTZ / SM_CLOCK_MAX_HERTZ, LIMIT_WATTS / POWER_LIMIT_WATTS
#: Signal -> factor on the H100's value.
SCALED = {
    "gpu.sm_clock_hertz": _CLOCK,
    "gpu.sm_clock_max_hertz": _CLOCK,
    "gpu.power_watts": _POWER,
    "gpu.energy_joules": _POWER,
    "gpu.power_limit_watts": _POWER,
    "gpu.power_limit_default_watts": _POWER,
    "gpu.power_limit_max_watts": _POWER,
    "gpu.memory_used_bytes": AMD_MEMORY_BYTES / GPU_MEMORY_BYTES,
}
#: Signal -> value on an MI300X.
CONSTANTS = {
    "gpu.memory_clock_hertz": MEMORY_CLOCK_HERTZ,
    "gpu.memory_clock_max_hertz": MEMORY_CLOCK_HERTZ,
    "gpu.memory_total_bytes": AMD_MEMORY_BYTES,
    "gpu.bar1_total_bytes": AMD_MEMORY_BYTES,
    "gpu.temperature_slowdown_celsius": SLOWDOWN_CELSIUS,
    "gpu.temperature_shutdown_celsius": SHUTDOWN_CELSIUS,
    "nvlink.speed_bytes_per_second": LINK_BYTES_PER_SECOND,
}
#: Further signals of AMD's collectors, beyond those in SOURCES and HELD.
_BESIDE = frozenset(
    f"gpu.{name}"
    for name in (
        "memory_used_bytes", "processes_count", "calls_failed_errors", "lost_state", "counter_epoch_count",
        "clock_event_reasons_flags", "ecc_corrected_volatile_errors", "ecc_uncorrected_volatile_errors",
        "sm_clock_max_hertz", "power_limit_watts", "temperature_slowdown_celsius", "memory_total_bytes",
        "pcie_generation_number", "pcie_generation_max_number", "pcie_width_max_lanes", "bar1_used_bytes",
        "bar1_total_bytes", "mig_mode_state", "ecc_corrected_volatile_device_errors",
        "ecc_uncorrected_volatile_device_errors", "power_limit_default_watts", "power_limit_min_watts",
        "power_limit_max_watts", "temperature_shutdown_celsius", "memory_clock_max_hertz",
        "pcie_replays_count",
    )
) | {
    "nvlink.transmitted_data_bytes", "nvlink.received_data_bytes", "nvlink.link_state",
    "nvlink.speed_bytes_per_second", "nvlink.crc_errors",
}  # fmt: skip
AMD_SIGNALS = _BESIDE | {source.signal for source in SOURCES} | {signal for signal, _, _ in HELD}

#: Class of a fault -> lines of its kernel log.
KERNEL_LINES = {
    "nvlink": (
        "amdgpu {gpu}.0: amdgpu: 1 uncorrectable hardware errors detected in xgmi_wafl block",
    ),
    "gsp_hang": ("amdgpu {gpu}.0: amdgpu: HWS hang",),
    "gpu_lost": ("amdgpu {gpu}.0: amdgpu: device lost from bus!",),
    "gpu_fault": (
        "amdgpu {gpu}.0: amdgpu: ring comp_1.0.1 timeout, signaled seq=1042, emitted seq=1044",
    ),
    "hbm": (
        "amdgpu {gpu}.0: amdgpu: 1 uncorrectable hardware errors detected in umc block",
        "amdgpu {gpu}.0: amdgpu: GPU reset begin!",
    ),
}


def as_amd(block: Block) -> None:
    """Convert a block of the model into a block of an MI300X host, in place. A second call would scale twice."""
    kind = BY_ID[block.signal_ids[0]].device_kind
    valid = np.frombuffer(block.valid, np.uint8).reshape(len(block.signal_ids), block.rows)
    if kind == "collector":
        for row, name in enumerate(block.devices):
            if name.rpartition("_")[0] in ABSENT_KINDS:
                _outcome(block, row)
    if kind in ABSENT_KINDS:
        valid[:] = 0
    if kind not in ("gpu", "nvlink"):
        return
    if kind == "nvlink":
        absent = [row for row, name in enumerate(block.devices) if _link_number(name) >= LINKS]
        valid[:, absent] = 0
    floats = np.frombuffer(block.cells, np.float64).reshape(valid.shape)
    for column, signal_id in enumerate(block.signal_ids):
        name = BY_ID[signal_id].name
        if name not in AMD_SIGNALS:
            valid[column] = 0
        elif name in CONSTANTS and is_float(signal_id):
            floats[column] = CONSTANTS[name]
        elif name in SCALED:
            floats[column] *= SCALED[name]


def _outcome(block: Block, row: int) -> None:
    for column, signal_id in enumerate(block.signal_ids):
        if BY_ID[signal_id].column == "outcome_state":
            block.put_int(column, row, NO_DATA)


def _link_number(name: str) -> int:
    digits = name.rpartition("/link")[2]
    return int(digits) if digits.isdecimal() else 0
