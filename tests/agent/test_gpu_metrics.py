"""Tables of the amdgpu driver: positions of values, with tables of an independent packer."""

from __future__ import annotations

import ctypes
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.agent.hardware import gpu_metrics
from gangline.agent.hardware.gpu_metrics import (
    ATTRIBUTE_NAMES,
    ATTRIBUTES_MAX,
    LAYOUTS,
    TABLE_BYTES_MAX,
    MetricsError,
    busy_name,
    layout_of,
)
from tests.amd_metrics import ATTRIBUTES, COUNTERS, STRUCTURES, pack, pack_described

#: A different value for each attribute.
VALUES = {name: 100 + number for number, name in enumerate(ATTRIBUTES[:48])} | {
    "gfx_busy_inst": list(range(8)),
    "xgmi_read_data_acc": [2**40 + link for link in range(8)],
    "current_gfxclk": [2000 + die for die in range(8)],
}


def read(data: bytes, name: str) -> list[int]:
    """Return the numbers of a field, by its position."""
    place = layout_of(data).fields[name]
    return list(struct.unpack_from(f"<{place.numbers}{place.type}", data, place.offset))


@pytest.mark.parametrize("revision", STRUCTURES)
def test_every_field_is_where_the_header_puts_it(revision: str) -> None:
    """Each revision moves fields: read by the previous layout, a temperature was a power."""
    structure = STRUCTURES[revision]
    declared = dict(structure._fields_)
    layout = layout_of(pack(revision, {}))
    assert (layout.size, layout.revision) == (ctypes.sizeof(structure), revision.partition("-")[0])
    for name, place in layout.fields.items():
        field, _, partition = name.partition("/")
        offset, owner = 0, structure
        if partition:
            owner = declared["xcp_stats"]._type_
            offset = structure.xcp_stats.offset + int(partition) * ctypes.sizeof(owner)
        descriptor = getattr(owner, field)
        expected = offset + descriptor.offset, descriptor.size
        assert (place.offset, place.numbers * place.element_bytes) == expected, name


@pytest.mark.parametrize("revision", STRUCTURES)
def test_a_number_comes_back_as_it_was_packed(revision: str) -> None:
    """One value in a table of all ones, field by field: any wrong read is detected."""
    for name in layout_of(pack(revision, {})).fields:
        declared = name.partition("/")[0]
        data = pack(revision, {name: [7] if _is_array(revision, declared, name) else 7})
        assert read(data, name)[0] == 7, name


def _is_array(revision: str, field: str, name: str) -> bool:
    owner = dict(STRUCTURES[revision]._fields_)
    kind = dict(owner["xcp_stats"]._type_._fields_)[field] if "/" in name else owner[field]
    return hasattr(kind, "_length_")


def test_the_sizes_are_those_of_the_kernel() -> None:
    """MI300 drivers report 3,872 bytes for 1.8; 1.6 had two layouts, distinguished by their size."""
    assert {(*key[:2], key[2]) for key in LAYOUTS} == {
        (1, 3, 120), (1, 4, 288), (1, 5, 360), (1, 6, 384), (1, 6, 1664), (1, 7, 2208), (1, 8, 3872),
    }  # fmt: skip


@pytest.mark.parametrize("counters", ["I", "Q"])
def test_a_table_that_describes_itself(counters: str) -> None:
    """Linux 6.18 counts residencies in 32 bits, its successors in 64: the table has the size."""
    data = pack_described(VALUES, counters=counters)
    layout = layout_of(data)
    assert set(ATTRIBUTE_NAMES.values()) <= set(layout.fields)
    for name in ATTRIBUTE_NAMES.values():
        value = VALUES[name]
        assert read(data, name) == ([value] if isinstance(value, int) else value), name
    assert layout.fields["ppt_residency_acc"].type == counters
    assert "ppt_residency_acc" in COUNTERS


@given(st.permutations(sorted(VALUES)))
@settings(max_examples=20, deadline=None)
def test_attributes_stand_in_any_order(order: list[str]) -> None:
    """The driver lists its firmware's attributes in no fixed order."""
    data = pack_described(VALUES, order=order, counters="Q")
    assert read(data, "curr_socket_power") == [VALUES["curr_socket_power"]]


def test_attributes_of_tomorrow_are_passed_over() -> None:
    """Linux 7.0 added six; an older agent must find known attributes behind the new."""
    unknown = struct.pack("<Q3H", 2 << 20 | 900 << 10 | 3, 1, 2, 3)
    known = struct.pack("<QH", 2 << 20 | 3 << 10 | 1, 640)
    body = unknown + known
    data = struct.pack("<HBBi", 8 + len(body), 1, 9, 2) + body
    assert read(data, "curr_socket_power") == [640]
    assert list(layout_of(data).fields) == ["curr_socket_power"]


@pytest.mark.parametrize("partitions", [1, 2, 4, 8, 3, 0, 9])
def test_the_compute_dies_are_divided_among_the_partitions(partitions: int) -> None:
    """In CPX each partition has one of eight; if the number is not divisible nothing is claimed."""
    data = pack_described(VALUES | {"num_partition": partitions})
    fields = layout_of(data).fields
    if 8 % partitions if partitions else True:
        assert busy_name(0) not in fields
        return
    each = 8 // partitions
    dies = [die for number in range(partitions) for die in read(data, busy_name(number))]
    assert dies == list(range(8)) and fields[busy_name(0)].numbers == each


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes"),
        (b"\x01", "1 bytes"),
        (struct.pack("<HBB", 120, 1, 3), "says that it has 120 bytes, and 4 were read"),
        (struct.pack("<HBB", 2, 1, 3), "says that it has 2 bytes"),
        (struct.pack("<HBB", 200, 1, 3) + bytes(196), "of 120 bytes"),
        (struct.pack("<HBB", 120, 2, 4) + bytes(116), "reads tables of revision 1.3"),
        (struct.pack("<HBB", 120, 1, 10) + bytes(116), "upgrade the agent"),
        (struct.pack("<HBB", 60000, 1, 8) + bytes(59996), f"at most {TABLE_BYTES_MAX}"),
        (struct.pack("<HBB", 6, 1, 9) + b"\0\0", "ends before its number of attributes"),
        (struct.pack("<HBBi", 8, 1, 9, -1), "-1 attributes"),
        (struct.pack("<HBBi", 8, 1, 9, ATTRIBUTES_MAX + 1), "attributes, expected 1 to"),
        (struct.pack("<HBBi", 8, 1, 9, 3), "ends before attribute 0 of 3"),
        (struct.pack("<HBBiQ", 16, 1, 9, 1, 9 << 20 | 1), "of type 9"),
        (struct.pack("<HBBiQ", 16, 1, 9, 1, 2 << 20), "with 0 values"),
        (struct.pack("<HBBiQ", 16, 1, 9, 1, 6 << 20 | 1023), "ends within attribute 0"),
        (struct.pack("<HBBiQB", 17, 1, 9, 1, 900 << 10 | 1, 0), "no attribute that this agent reads"),
    ],
)  # fmt: skip
def test_what_is_no_table_has_words(data: bytes, message: str) -> None:
    """A short read, a future driver and garbage have different messages."""
    with pytest.raises(MetricsError, match=message):
        layout_of(data)


@given(st.binary(max_size=6000))
@settings(max_examples=300, deadline=None)
def test_garbage_never_raises_anything_else(data: bytes) -> None:
    """A broken driver's data must not end the lane."""
    try:
        layout = layout_of(data)
    except MetricsError:
        return
    for place in layout.fields.values():
        assert (
            place.offset >= 0 and place.offset + place.numbers * place.element_bytes <= layout.size
        )


@given(st.sampled_from(sorted(STRUCTURES)), st.integers(0, 3872), st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_a_changed_byte_or_a_cut_table(revision: str, at: int, byte: int) -> None:
    """Positions never lie outside the read data."""
    data = bytearray(pack(revision, {}))
    data[at % len(data)] = byte
    for part in (bytes(data), bytes(data[: at % len(data)])):
        try:
            layout = layout_of(part)
        except MetricsError:
            continue
        assert layout.size <= len(part)
        assert all(offset + len(text) <= len(part) for offset, text in layout.marks)


def test_the_limit_is_a_page() -> None:
    """The kernel cuts gpu_metrics at a page; a larger table would be a cut one."""
    assert gpu_metrics.TABLE_BYTES_MAX == 4096
