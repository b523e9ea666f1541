"""Tables as the amdgpu driver makes them, for tests: an independent packer.

Written from drivers/gpu/drm/amd/include/kgd_pp_interface.h (declarations in the header's order,
sizes of arrays by its constants) and smu_cmn.h's DECLARE_SMU_METRICS_CLASS, not from the agent's
parser: ctypes gives the offsets, by the C compiler's layout. Unset fields are all ones, as the
driver initializes its tables.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from typing import Any

U16, U32, U64 = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
NUM_HBM_INSTANCES, NUM_XGMI_LINKS, MAX_GFX_CLKS, MAX_CLKS, NUM_VCN = 4, 8, 8, 4, 4
NUM_JPEG_ENG, NUM_JPEG_ENG_V1, MAX_XCC, NUM_XCP = 32, 40, 8, 8

Value = int | Sequence[int]
Field = tuple[str, Any]

HEADER = [
    ("structure_size", U16),
    ("format_revision", ctypes.c_uint8),
    ("content_revision", ctypes.c_uint8),
]
#: enum amdgpu_metrics_attr_id, in the header's order.
ATTRIBUTES = (
    "temperature_hotspot", "temperature_mem", "temperature_vrsoc", "curr_socket_power", "average_gfx_activity",
    "average_umc_activity", "mem_max_bandwidth", "energy_accumulator", "system_clock_counter",
    "accumulation_counter", "prochot_residency_acc", "ppt_residency_acc", "socket_thm_residency_acc",
    "vr_thm_residency_acc", "hbm_thm_residency_acc", "gfxclk_lock_status", "pcie_link_width", "pcie_link_speed",
    "xgmi_link_width", "xgmi_link_speed", "gfx_activity_acc", "mem_activity_acc", "pcie_bandwidth_acc",
    "pcie_bandwidth_inst", "pcie_l0_to_recov_count_acc", "pcie_replay_count_acc", "pcie_replay_rover_count_acc",
    "pcie_nak_sent_count_acc", "pcie_nak_rcvd_count_acc", "xgmi_read_data_acc", "xgmi_write_data_acc",
    "xgmi_link_status", "firmware_timestamp", "current_gfxclk", "current_socclk", "current_vclk0",
    "current_dclk0", "current_uclk", "num_partition", "pcie_lc_perf_other_end_recovery", "gfx_busy_inst",
    "jpeg_busy", "vcn_busy", "gfx_busy_acc", "gfx_below_host_limit_ppt_acc", "gfx_below_host_limit_thm_acc",
    "gfx_low_utilization_acc", "gfx_below_host_limit_total_acc", "temperature_hbm", "temperature_mid",
)  # fmt: skip
#: enum amdgpu_metrics_attr_type.
TYPES = ("B", "b", "H", "h", "I", "i", "Q", "q")
#: Fields of 32 bits in drivers of Linux 6.18, and of 64 bits in later drivers.
COUNTERS = ATTRIBUTES[9:15] + ATTRIBUTES[20:22] + ATTRIBUTES[27:29]


def _each(kind: Any, *names: str) -> list[Field]:
    return [(name, kind) for name in names]


def _array(kind: Any, count: int, *names: str) -> list[Field]:
    return [(name, kind * count) for name in names]


def _structure(name: str, fields: Sequence[Field]) -> Any:
    return type(name, (ctypes.LittleEndianStructure,), {"_fields_": list(fields)})


_CLOCKS = [
    *_array(U16, MAX_GFX_CLKS, "current_gfxclk"),
    *_array(U16, MAX_CLKS, "current_socclk", "current_vclk0", "current_dclk0"),
    ("current_uclk", U16),
]
_LINKS = _each(U16, "pcie_link_width", "pcie_link_speed", "xgmi_link_width", "xgmi_link_speed")
_ACTIVITY = _each(U32, "gfx_activity_acc", "mem_activity_acc")
_PCIE = _each(
    U64, "pcie_bandwidth_acc", "pcie_bandwidth_inst", "pcie_l0_to_recov_count_acc", "pcie_replay_count_acc",
    "pcie_replay_rover_count_acc",
)  # fmt: skip
_NAK = _each(U32, "pcie_nak_sent_count_acc", "pcie_nak_rcvd_count_acc")
_XGMI = _array(U64, NUM_XGMI_LINKS, "xgmi_read_data_acc", "xgmi_write_data_acc")
_HEAT_AND_POWER = _each(
    U16, "temperature_hotspot", "temperature_mem", "temperature_vrsoc", "curr_socket_power",
    "average_gfx_activity", "average_umc_activity",
)  # fmt: skip
_ENERGY = _each(U64, "energy_accumulator", "system_clock_counter")
_RESIDENCIES = _each(
    U32, "accumulation_counter", "prochot_residency_acc", "ppt_residency_acc", "socket_thm_residency_acc",
    "vr_thm_residency_acc", "hbm_thm_residency_acc",
)  # fmt: skip

V1_3 = _structure(
    "V1_3",
    [
        *HEADER,
        *_each(U16, "temperature_edge", "temperature_hotspot", "temperature_mem", "temperature_vrgfx",
               "temperature_vrsoc", "temperature_vrmem", "average_gfx_activity", "average_umc_activity",
               "average_mm_activity", "average_socket_power"),
        *_ENERGY,
        *_each(U16, "average_gfxclk_frequency", "average_socclk_frequency", "average_uclk_frequency",
               "average_vclk0_frequency", "average_dclk0_frequency", "average_vclk1_frequency",
               "average_dclk1_frequency", "current_gfxclk", "current_socclk", "current_uclk", "current_vclk0",
               "current_dclk0", "current_vclk1", "current_dclk1"),
        ("throttle_status", U32),
        *_each(U16, "current_fan_speed", "pcie_link_width", "pcie_link_speed", "padding"),
        *_ACTIVITY,
        *_array(U16, NUM_HBM_INSTANCES, "temperature_hbm"),
        ("firmware_timestamp", U64),
        *_each(U16, "voltage_soc", "voltage_gfx", "voltage_mem", "padding1"),
        ("indep_throttle_status", U64),
    ],
)  # fmt: skip
_V1_4_BEGIN = [*HEADER, *_HEAT_AND_POWER, *_array(U16, NUM_VCN, "vcn_activity")]
V1_4 = _structure(
    "V1_4",
    [*_V1_4_BEGIN, *_ENERGY, *_each(U32, "throttle_status", "gfxclk_lock_status"), *_LINKS, *_ACTIVITY, *_PCIE,
     *_XGMI, ("firmware_timestamp", U64), *_CLOCKS, ("padding", U16)],
)  # fmt: skip
V1_5 = _structure(
    "V1_5",
    [*_V1_4_BEGIN, *_array(U16, NUM_JPEG_ENG, "jpeg_activity"), *_ENERGY,
     *_each(U32, "throttle_status", "gfxclk_lock_status"), *_LINKS, *_ACTIVITY, *_PCIE, *_NAK, *_XGMI,
     ("firmware_timestamp", U64), *_CLOCKS, ("padding", U16)],
)  # fmt: skip
#: Linux 6.11's: the residencies in addition to 1.5's fields.
V1_6_FIRST = _structure(
    "V1_6_FIRST",
    [*_V1_4_BEGIN, *_array(U16, NUM_JPEG_ENG, "jpeg_activity"), *_ENERGY, *_RESIDENCIES,
     *_each(U32, "throttle_status", "gfxclk_lock_status"), *_LINKS, *_ACTIVITY, *_PCIE, *_NAK, *_XGMI,
     ("firmware_timestamp", U64), *_CLOCKS, ("padding", U16)],
)  # fmt: skip

_XCP = [
    *_array(U32, MAX_XCC, "gfx_busy_inst"),
    *_array(U16, NUM_JPEG_ENG, "jpeg_busy"),
    *_array(U16, NUM_VCN, "vcn_busy"),
    *_array(U64, MAX_XCC, "gfx_busy_acc"),
]
XCP = _structure("XCP", _XCP)
XCP_1 = _structure("XCP_1", [*_XCP, *_array(U64, MAX_XCC, "gfx_below_host_limit_acc")])
XCP_2 = _structure(
    "XCP_2",
    [*_array(U32, MAX_XCC, "gfx_busy_inst"), *_array(U16, NUM_JPEG_ENG_V1, "jpeg_busy"),
     *_array(U16, NUM_VCN, "vcn_busy"),
     *_array(U64, MAX_XCC, "gfx_busy_acc", "gfx_below_host_limit_ppt_acc", "gfx_below_host_limit_thm_acc",
             "gfx_low_utilization_acc", "gfx_below_host_limit_total_acc")],
)  # fmt: skip


def _with_partitions(name: str, xcp: Any, *, bandwidth: bool) -> Any:
    status = (
        [*_array(U16, NUM_XGMI_LINKS, "xgmi_link_status"), ("padding", U16)] if bandwidth else []
    )
    return _structure(
        name,
        [*HEADER, *_HEAT_AND_POWER, *([("mem_max_bandwidth", U64)] if bandwidth else []), *_ENERGY, *_RESIDENCIES,
         ("gfxclk_lock_status", U32), *_LINKS, *_ACTIVITY, *_PCIE, *_NAK, *_XGMI, *status,
         ("firmware_timestamp", U64), *_CLOCKS, ("num_partition", U16), ("xcp_stats", xcp * NUM_XCP),
         ("pcie_lc_perf_other_end_recovery", U32)],
    )  # fmt: skip


V1_6 = _with_partitions("V1_6", XCP, bandwidth=False)
V1_7 = _with_partitions("V1_7", XCP_1, bandwidth=True)
V1_8 = _with_partitions("V1_8", XCP_2, bandwidth=True)

STRUCTURES = {
    "1.3": V1_3, "1.4": V1_4, "1.5": V1_5, "1.6": V1_6, "1.6-first": V1_6_FIRST, "1.7": V1_7, "1.8": V1_8,
}  # fmt: skip


def pack(revision: str, values: Mapping[str, Value]) -> bytes:
    """Return a table of a fixed layout. `gfx_busy_inst/3`: of the fourth partition. KeyError for an unknown field."""
    structure = STRUCTURES[revision]
    table = structure.from_buffer(bytearray(b"\xff" * ctypes.sizeof(structure)))
    major, _, minor = revision.partition(".")
    table.structure_size, table.format_revision = ctypes.sizeof(structure), int(major)
    table.content_revision = int(minor.partition("-")[0])
    for name, value in values.items():
        field, _, partition = name.partition("/")
        target = table.xcp_stats[int(partition)] if partition else table
        if field not in dict(target._fields_):
            raise KeyError(f"gpu_metrics {revision} has no {name}")
        if isinstance(value, int):
            setattr(target, field, value)
        else:
            for i, element in enumerate(value):
                getattr(target, field)[i] = element
    return bytes(table)


def pack_described(
    values: Mapping[str, Value], *, counters: str = "I", units: int = 0, order: Sequence[str] = ()
) -> bytes:
    """Return a table that describes itself (revision 1.9). *counters*: type of COUNTERS, I or Q."""
    body = b""
    names = order or [name for name in ATTRIBUTES if name in values]
    for name in names:
        value = values[name]
        numbers = [value] if isinstance(value, int) else list(value)
        kind = counters if name in COUNTERS else _type_of(name)
        encoding = (
            units << 24 | TYPES.index(kind) << 20 | ATTRIBUTES.index(name) << 10 | len(numbers)
        )
        body += struct.pack(f"<Q{len(numbers)}{kind}", encoding, *numbers)
    size = 4 + 4 + len(body)
    return struct.pack("<HBBi", size, 1, 9, len(names)) + body


def _type_of(name: str) -> str:
    """Return the type that the driver of SMU 13.0.6 gives an attribute."""
    if name in ("gfx_busy_inst", "gfxclk_lock_status", "pcie_lc_perf_other_end_recovery"):
        return "I"
    wide = (
        "_acc",
        "_counter",
        "_accumulator",
        "_timestamp",
        "mem_max_bandwidth",
        "pcie_bandwidth_inst",
    )
    return "Q" if name.endswith(wide) else "H"
