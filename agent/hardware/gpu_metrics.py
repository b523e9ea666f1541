"""Parser of amdgpu's `gpu_metrics` table: finds each value by the version in the table's header.

Layouts: drivers/gpu/drm/amd/include/kgd_pp_interface.h (struct gpu_metrics_v1_3 to v1_8; offsets on
x86-64 and arm64, where the compiler aligns 8 bytes to 8). From revision 1.9 on the table describes
itself: DECLARE_SMU_METRICS_CLASS of drivers/gpu/drm/amd/pm/swsmu/smu_cmn.h puts 64 bits of encoding
before each value, packed. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

#: Maximum size of a sysfs attribute, a page; the rest of a file is ignored.
TABLE_BYTES_MAX = 4096
#: Self-describing tables have some 45 attributes; enum amdgpu_metrics_attr_id had 54 in Linux 7.0.
ATTRIBUTES_MAX = 256
HEADER_BYTES = 4
#: NUM_XCP and MAX_XCC of the driver.
PARTITIONS_MAX, COMPUTE_DIES_MAX = 8, 8
XGMI_LINKS_MAX = 8
FIRST_SELF_DESCRIBING = (1, 9)

_REVISION_1_3 = """
temperature_hotspot H 6; temperature_mem H 8; average_gfx_activity H 16; average_umc_activity H 18
average_socket_power H 22; energy_accumulator Q 24; system_clock_counter Q 32
current_gfxclk H 54; current_uclk H 58; current_vclk0 H 60; pcie_link_width H 74; pcie_link_speed H 76
firmware_timestamp Q 96; indep_throttle_status Q 112
"""
_REVISION_1_4 = """
temperature_hotspot H 4; temperature_mem H 6; curr_socket_power H 10; average_gfx_activity H 12
average_umc_activity H 14; energy_accumulator Q 24; system_clock_counter Q 32
pcie_link_width H 48; pcie_link_speed H 50; xgmi_link_width H 52; xgmi_link_speed H 54
pcie_l0_to_recov_count_acc Q 80; pcie_replay_count_acc Q 88; pcie_replay_rover_count_acc Q 96
xgmi_read_data_acc Q 104 8; xgmi_write_data_acc Q 168 8; firmware_timestamp Q 232
current_gfxclk H 240 8; current_vclk0 H 264 4; current_uclk H 280
"""
_REVISION_1_5 = """
temperature_hotspot H 4; temperature_mem H 6; curr_socket_power H 10; average_gfx_activity H 12
average_umc_activity H 14; jpeg_activity H 24 32; energy_accumulator Q 88; system_clock_counter Q 96
pcie_link_width H 112; pcie_link_speed H 114; xgmi_link_width H 116; xgmi_link_speed H 118
pcie_l0_to_recov_count_acc Q 144; pcie_replay_count_acc Q 152; pcie_replay_rover_count_acc Q 160
pcie_nak_sent_count_acc I 168; pcie_nak_rcvd_count_acc I 172
xgmi_read_data_acc Q 176 8; xgmi_write_data_acc Q 240 8; firmware_timestamp Q 304
current_gfxclk H 312 8; current_vclk0 H 336 4; current_uclk H 352
"""
#: In Linux 6.11; later kernels gave the same revision to another table, of another size.
_REVISION_1_6_FIRST = """
temperature_hotspot H 4; temperature_mem H 6; curr_socket_power H 10; average_gfx_activity H 12
average_umc_activity H 14; jpeg_activity H 24 32; energy_accumulator Q 88; system_clock_counter Q 96
accumulation_counter I 104; prochot_residency_acc I 108; ppt_residency_acc I 112; socket_thm_residency_acc I 116
vr_thm_residency_acc I 120; hbm_thm_residency_acc I 124
pcie_link_width H 136; pcie_link_speed H 138; xgmi_link_width H 140; xgmi_link_speed H 142
pcie_l0_to_recov_count_acc Q 168; pcie_replay_count_acc Q 176; pcie_replay_rover_count_acc Q 184
pcie_nak_sent_count_acc I 192; pcie_nak_rcvd_count_acc I 196
xgmi_read_data_acc Q 200 8; xgmi_write_data_acc Q 264 8; firmware_timestamp Q 328
current_gfxclk H 336 8; current_vclk0 H 360 4; current_uclk H 376
"""
_REVISION_1_6 = """
temperature_hotspot H 4; temperature_mem H 6; curr_socket_power H 10; average_gfx_activity H 12
average_umc_activity H 14; energy_accumulator Q 16; system_clock_counter Q 24
accumulation_counter I 32; prochot_residency_acc I 36; ppt_residency_acc I 40; socket_thm_residency_acc I 44
vr_thm_residency_acc I 48; hbm_thm_residency_acc I 52
pcie_link_width H 60; pcie_link_speed H 62; xgmi_link_width H 64; xgmi_link_speed H 66
pcie_l0_to_recov_count_acc Q 96; pcie_replay_count_acc Q 104; pcie_replay_rover_count_acc Q 112
pcie_nak_sent_count_acc I 120; pcie_nak_rcvd_count_acc I 124
xgmi_read_data_acc Q 128 8; xgmi_write_data_acc Q 192 8; firmware_timestamp Q 256
current_gfxclk H 264 8; current_vclk0 H 288 4; current_uclk H 304; num_partition H 306
"""
_REVISION_1_7 = """
temperature_hotspot H 4; temperature_mem H 6; curr_socket_power H 10; average_gfx_activity H 12
average_umc_activity H 14; energy_accumulator Q 24; system_clock_counter Q 32
accumulation_counter I 40; prochot_residency_acc I 44; ppt_residency_acc I 48; socket_thm_residency_acc I 52
vr_thm_residency_acc I 56; hbm_thm_residency_acc I 60
pcie_link_width H 68; pcie_link_speed H 70; xgmi_link_width H 72; xgmi_link_speed H 74
pcie_l0_to_recov_count_acc Q 104; pcie_replay_count_acc Q 112; pcie_replay_rover_count_acc Q 120
pcie_nak_sent_count_acc I 128; pcie_nak_rcvd_count_acc I 132
xgmi_read_data_acc Q 136 8; xgmi_write_data_acc Q 200 8; xgmi_link_status H 264 8; firmware_timestamp Q 288
current_gfxclk H 296 8; current_vclk0 H 320 4; current_uclk H 336; num_partition H 338
"""
#: enum amdgpu_metrics_attr_id: number -> name of the attributes that are read; others are skipped.
ATTRIBUTE_NAMES = {
    0: "temperature_hotspot", 1: "temperature_mem", 3: "curr_socket_power", 4: "average_gfx_activity",
    5: "average_umc_activity", 7: "energy_accumulator", 8: "system_clock_counter", 9: "accumulation_counter",
    10: "prochot_residency_acc", 11: "ppt_residency_acc", 12: "socket_thm_residency_acc", 13: "vr_thm_residency_acc",
    14: "hbm_thm_residency_acc", 16: "pcie_link_width", 17: "pcie_link_speed", 18: "xgmi_link_width",
    19: "xgmi_link_speed", 24: "pcie_l0_to_recov_count_acc", 25: "pcie_replay_count_acc",
    26: "pcie_replay_rover_count_acc", 27: "pcie_nak_sent_count_acc", 28: "pcie_nak_rcvd_count_acc",
    29: "xgmi_read_data_acc", 30: "xgmi_write_data_acc", 31: "xgmi_link_status", 32: "firmware_timestamp",
    33: "current_gfxclk", 35: "current_vclk0", 37: "current_uclk", 38: "num_partition", 40: "gfx_busy_inst",
    41: "jpeg_busy",
}  # fmt: skip
#: enum amdgpu_metrics_attr_type as types of `struct`.
ATTRIBUTE_TYPES = "BbHhIiQq"
_COUNT = struct.Struct("<i")
_ENCODING = struct.Struct("<Q")


class MetricsError(ValueError):
    """A table that cannot be read, with the reason."""


class FieldPlace(NamedTuple):
    """The place of a value in the table: *numbers* consecutive values of a `struct` type."""

    offset: int
    type: str
    numbers: int = 1

    @property
    def element_bytes(self) -> int:
        """Bytes of a number."""
        return struct.calcsize(f"<{self.type}")

    @property
    def end(self) -> int:
        """Offset after the last number."""
        return self.offset + self.numbers * self.element_bytes


class MetricsLayout(NamedTuple):
    """The fields of a table.

    A table has the same layout if it has all *marks* (offset, bytes) and the same size.
    """

    revision: str
    size: int
    fields: Mapping[str, FieldPlace]
    marks: tuple[tuple[int, bytes], ...]


# Fixed layouts: name, type of `struct`, offset, and the number of values if there are several.


def _fixed(text: str) -> dict[str, FieldPlace]:
    fields: dict[str, FieldPlace] = {}
    for row in filter(None, (part.strip() for part in text.replace("\n", ";").split(";"))):
        name, kind, *numbers = row.split()
        fields[name] = FieldPlace(int(numbers[0]), kind, int(numbers[1]) if numbers[1:] else 1)
    return fields


def _with_partitions(
    text: str, first: int, stride: int, jpeg_engines: int
) -> dict[str, FieldPlace]:
    """Add gfx_busy_inst and jpeg_busy of each partition's record (amdgpu_xcp_metrics*)."""
    fields = _fixed(text)
    for partition in range(PARTITIONS_MAX):
        offset = first + stride * partition
        fields[busy_name(partition)] = FieldPlace(offset, "I", COMPUTE_DIES_MAX)
        fields[f"jpeg_busy/{partition}"] = FieldPlace(offset + 32, "H", jpeg_engines)
    return fields


def busy_name(partition: int) -> str:
    """Return the name of the field with the activity of each compute die of a partition."""
    return f"gfx_busy_inst/{partition}"


#: (revision, bytes of the table) -> its fields.
LAYOUTS: Mapping[tuple[int, int, int], Mapping[str, FieldPlace]] = {
    (1, 3, 120): _fixed(_REVISION_1_3),
    (1, 4, 288): _fixed(_REVISION_1_4),
    (1, 5, 360): _fixed(_REVISION_1_5),
    (1, 6, 384): _fixed(_REVISION_1_6_FIRST),
    (1, 6, 1664): _with_partitions(_REVISION_1_6, 312, 168, 32),
    (1, 7, 2208): _with_partitions(_REVISION_1_7, 344, 232, 32),
    (1, 8, 3872): _with_partitions(_REVISION_1_7, 344, 440, 40),
}


def layout_of(data: bytes) -> MetricsLayout:
    """Return a table's layout. Raises MetricsError if it is cut off or of an unknown revision."""
    if len(data) < HEADER_BYTES:
        raise MetricsError(
            f"gpu_metrics has {len(data)} bytes, less than its header of {HEADER_BYTES}"
        )
    size, major, minor = struct.unpack_from("<HBB", data)
    revision = f"{major}.{minor}"
    if len(data) < size or size < HEADER_BYTES:
        raise MetricsError(
            f"gpu_metrics {revision} says that it has {size} bytes, and {len(data)} were read"
        )
    if size > TABLE_BYTES_MAX:
        raise MetricsError(
            f"gpu_metrics {revision} has {size} bytes, at most {TABLE_BYTES_MAX} are read"
        )
    if (major, minor) == FIRST_SELF_DESCRIBING:
        return _self_described(data[:size], revision)
    fields = LAYOUTS.get((major, minor, size))
    if fields is None:
        known = sorted({f"{a}.{b}" for a, b, _ in LAYOUTS} | {"1.9"})
        sizes = [str(bytes_) for a, b, bytes_ in LAYOUTS if (a, b) == (major, minor)]
        expected = f"of {' or '.join(sizes)} bytes" if sizes else f"of revision {', '.join(known)}"
        raise MetricsError(
            f"gpu_metrics is of revision {revision} with {size} bytes, and this agent reads tables {expected}: "
            "upgrade the agent, and report the driver's version"
        )
    return MetricsLayout(revision, size, fields, ((0, data[:HEADER_BYTES]),))


def _self_described(data: bytes, revision: str) -> MetricsLayout:
    fields: dict[str, FieldPlace] = {}
    marks = [(0, data[: HEADER_BYTES + _COUNT.size])]
    for place, number, encoding in _attributes(data, revision):
        name = ATTRIBUTE_NAMES.get(number, "")
        if name and name not in fields:
            fields[name] = place
            marks.append((place.offset - _ENCODING.size, encoding))
    if not fields:
        raise MetricsError(f"gpu_metrics {revision} has no attribute that this agent reads")
    if "gfx_busy_inst" in fields:
        fields |= _by_partition(data, fields)
    return MetricsLayout(revision, len(data), fields, tuple(marks))


def _attributes(data: bytes, revision: str) -> Iterator[tuple[FieldPlace, int, bytes]]:
    """Yield each attribute's place, number and encoding. Raises MetricsError beyond the table."""
    if len(data) < HEADER_BYTES + _COUNT.size:
        raise MetricsError(f"gpu_metrics {revision} ends before its number of attributes")
    (count,) = _COUNT.unpack_from(data, HEADER_BYTES)
    if not 0 < count <= ATTRIBUTES_MAX:
        raise MetricsError(
            f"gpu_metrics {revision} says that it has {count} attributes, expected 1 to {ATTRIBUTES_MAX}"
        )
    offset = HEADER_BYTES + _COUNT.size
    for index in range(count):
        if offset + _ENCODING.size > len(data):
            raise MetricsError(f"gpu_metrics {revision} ends before attribute {index} of {count}")
        (encoding,) = _ENCODING.unpack_from(data, offset)
        kind, number, values = (encoding >> 20) & 0xF, (encoding >> 10) & 0x3FF, encoding & 0x3FF
        if kind >= len(ATTRIBUTE_TYPES) or not values:
            raise MetricsError(
                f"gpu_metrics {revision}: attribute {index} is of type {kind} with {values} values"
            )
        place = FieldPlace(offset + _ENCODING.size, ATTRIBUTE_TYPES[kind], values)
        yield place, number, data[offset : place.offset]
        offset = place.offset + place.element_bytes * values
        if offset > len(data):
            raise MetricsError(f"gpu_metrics {revision} ends within attribute {index} of {count}")


def _by_partition(data: bytes, fields: Mapping[str, FieldPlace]) -> dict[str, FieldPlace]:
    """Return each partition's part of the compute dies' values, which are in partition order."""
    busy = fields["gfx_busy_inst"]
    partitions = 1
    if "num_partition" in fields:
        place = fields["num_partition"]
        (partitions,) = struct.unpack_from(f"<{place.type}", data, place.offset)
    if not 0 < partitions <= PARTITIONS_MAX or busy.numbers % partitions:
        return {}
    dies = busy.numbers // partitions
    return {
        busy_name(partition): FieldPlace(
            busy.offset + partition * dies * busy.element_bytes, busy.type, dies
        )
        for partition in range(partitions)
    }
