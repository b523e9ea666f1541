"""NVSwitches, their links, and vGPUs, read from DCGM because NVML does not report them.

The engine is queried for switches only if the PCI bus has one, and for vGPUs only if a GPU is shared among virtual
machines.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...contract.block import Block
from ...ext import dcgm as library
from ...ext.dcgm import (
    ENTITY_GPU,
    ENTITY_LINK,
    ENTITY_SWITCH,
    ENTITY_VGPU,
    Dcgm,
    DcgmError,
    FieldValue,
)
from ..hardware import pci
from ..hardware.files import Roots, device_key
from .block_writer import put

#: Interval at which the parts, and whether their fields are watched, are looked up again.
LIST_NS = 60_000_000_000
#: Entities per call: each value takes 4 KiB of the client's memory.
ENTITIES_PER_CALL = 16
#: Capacity of a group in DCGM 3.
GROUP_ENTITIES_MAX = 64
#: DCGM_GPU_VIRTUALIZATION_MODE_HOST_VGPU of field 500: a hypervisor shares the GPU as vGPUs.
VIRTUALIZATION_MODE, HOST_VGPU = 500, 3
#: A GPU's vGPUs (a 32-bit count and 32-bit ids), and a vGPU's UUID.
VGPU_IDS, VGPU_UUID = 503, 523
#: PCI domain, bus, device and function of a switch.
SWITCH_ADDRESS = (866, 867, 868, 869)
#: Watts of VDD, DVDD and HVDD of a switch.
SWITCH_POWER = (705, 706, 707)
#: Fields with the code of the last SXID -> whether it is fatal; for switches, and for links.
SWITCH_SXIDS: Mapping[int, bool] = {856: True, 857: False}
LINK_SXIDS: Mapping[int, bool] = {782: True, 783: False}
#: DCGM's errors for entities that do not exist or cannot be listed.
NOTHING_THERE = (
    library.NOT_SUPPORTED,
    library.NO_DATA,
    library.NOT_WATCHED,
    library.MODULE_NOT_LOADED,
    library.FUNCTION_NOT_FOUND,
)

MEBIBYTE = 1 << 20
_TABLES = {
    ENTITY_SWITCH: "nvswitch_10s_changes",
    ENTITY_LINK: "nvswitch_link_10s_changes",
    ENTITY_VGPU: "vgpu_10s_changes",
}


class PartField(NamedTuple):
    """The signal that a field fills. Values outside `least` to `most` (DCGM's unit) are ignored."""

    signal: str
    scale: float = 1.0
    least: float = 0.0
    most: float = 2.0**63


SWITCH_FIELDS: Mapping[int, PartField] = {
    701: PartField("nvswitch.voltage_volts", 1e-3, 1, 100_000),
    858: PartField("nvswitch.temperature_celsius", 1.0, 1, 200),
    859: PartField("nvswitch.temperature_slowdown_celsius", 1.0, 1, 200),
    860: PartField("nvswitch.temperature_shutdown_celsius", 1.0, 1, 200),
    864: PartField("nvswitch.reset_required_state", 1, 0, 1),
}
#: Without throughput (780, 781, 861, 862): its unit depends on the library below DCGM (NSCQ:
#: mebibits).
LINK_FIELDS: Mapping[int, PartField] = {
    784: PartField("nvswitch_link.replay_errors"),
    785: PartField("nvswitch_link.recovery_errors"),
    786: PartField("nvswitch_link.flit_errors"),
    787: PartField("nvswitch_link.crc_errors"),
    788: PartField("nvswitch_link.ecc_errors"),
    870: PartField("nvswitch_link.link_state", 1, 0, 4),
}
VGPU_FIELDS: Mapping[int, PartField] = {
    522: PartField("vgpu.type_number"),
    525: PartField("vgpu.memory_used_bytes", MEBIBYTE, 0, 1 << 30),
    526: PartField("vgpu.license_state", 1, 0, 1),
    527: PartField("vgpu.frame_rate_limit_hertz", 1, 1, 10_000),
}
_SWITCH_ALL = (*SWITCH_FIELDS, *SWITCH_POWER, *SWITCH_SXIDS)
_LINK_ALL = (*LINK_FIELDS, *LINK_SXIDS)


class EngineParts:
    """The parts of the connected engine, and their readings. Every method raises DcgmError."""

    def __init__(self, roots: Roots) -> None:
        self.access_error = ""
        self._addresses = tuple(pci.nvswitches(roots.sys))
        self._vgpu_hosts: Sequence[int] = ()
        self._keys: dict[int, dict[int, str]] = {}
        self._blocks: dict[int, Block] = {}
        self._list_ns = 0
        self._watched: dict[int, bool] = {}  # kind of entity -> whether its fields have values

    def begin(self, virtualization: Iterable[FieldValue]) -> None:
        """Start a new connection. *virtualization*: field 500 of each GPU."""
        self._vgpu_hosts = [value.entity for value in virtualization if value.value == HOST_VGPU]
        self._list_ns, self._watched = 0, {}

    def addresses_of(self, group: int, entity: int) -> Sequence[str]:
        """Return the PCI addresses of a switch, or a link's switch, in the kernel log."""
        key = self.switch_key(group, entity)
        return (key,) if key in self._addresses else self._addresses

    def switch_key(self, group: int, entity: int) -> str:
        number = entity if group == ENTITY_SWITCH else link_parts(entity)[0]
        return self._keys.get(ENTITY_SWITCH, {}).get(number, f"nvswitch{number}")

    def read(self, dcgm: Dcgm, now_ns: int) -> tuple[list[Block], dict[int, list[FieldValue]]]:
        """Return the blocks of all parts, and the values of SXIDs by kind of entity."""
        if not self._addresses and not self._vgpu_hosts:
            return [], {}
        if now_ns >= self._list_ns:
            self._list_ns = now_ns + LIST_NS
            self._list(dcgm)
            self._watched = {}
        sxids: dict[int, list[FieldValue]] = {}
        for group, fields in (
            (ENTITY_SWITCH, _SWITCH_ALL),
            (ENTITY_LINK, _LINK_ALL),
            (ENTITY_VGPU, tuple(VGPU_FIELDS)),
        ):
            if self._watched.get(group, True):
                values = self._values(dcgm, group, list(self._keys.get(group, ())), fields)
                self._watched[group] = any(value.status == library.OK for value in values)
                self._fill(group, values)
                sxids[group] = [
                    value
                    for value in values
                    if value.field in SWITCH_SXIDS or value.field in LINK_SXIDS
                ]
        return list(self._blocks.values()), sxids

    def watch(self, dcgm: Dcgm, name: str, seconds: float) -> None:
        """Request a watch of the fields of switches and links.

        The engine watches vGPUs without a request.
        """
        if not self._addresses:
            return
        if not self._keys:
            self._list(dcgm)
        if not self._keys.get(ENTITY_SWITCH):
            return
        fields = (*_SWITCH_ALL, *SWITCH_ADDRESS)
        dcgm.watch_fields(library.ALL_SWITCHES, fields, f"{name}-nvswitches", seconds)
        links = list(self._keys.get(ENTITY_LINK, ()))
        for first in range(0, len(links), GROUP_ENTITIES_MAX):
            group_name = f"{name}-links-{first // GROUP_ENTITIES_MAX}"
            group = dcgm.create_group(
                group_name, ENTITY_LINK, links[first : first + GROUP_ENTITIES_MAX]
            )
            dcgm.watch_fields(group, _LINK_ALL, group_name, seconds)

    def _list(self, dcgm: Dcgm) -> None:
        switches: list[int] = []
        links: list[int] = []
        self.access_error = ""
        if self._addresses:
            switches = self._entities(dcgm, ENTITY_SWITCH)
            links = [i for i in self._entities(dcgm, ENTITY_LINK) if i & 0xFF == ENTITY_SWITCH]
        self._keys = {ENTITY_SWITCH: self._switch_keys(dcgm, switches)}
        self._keys[ENTITY_LINK] = {
            link: device_key(f"{self.switch_key(ENTITY_LINK, link)}/link{link_parts(link)[1]}")
            for link in links
        }
        self._keys[ENTITY_VGPU] = self._vgpu_keys(dcgm)
        for group, table in _TABLES.items():
            keys = tuple(self._keys[group].values())
            block = self._blocks.get(group)
            if keys != (block.devices if block else ()):
                self._blocks[group] = Block(table, keys)

    def _entities(self, dcgm: Dcgm, group: int) -> list[int]:
        try:
            return dcgm.entities(group)
        except DcgmError as error:
            if error.code == library.INSUFFICIENT_SIZE:
                self.access_error = "the engine has more than 1,024 links of NVLink: none is read"
            elif error.code not in NOTHING_THERE:
                raise
            return []

    def _switch_keys(self, dcgm: Dcgm, switches: Sequence[int]) -> dict[int, str]:
        keys = {number: f"nvswitch{number}" for number in switches}
        numbers: dict[int, list[int]] = {}
        for value in self._values(dcgm, ENTITY_SWITCH, switches, SWITCH_ADDRESS):
            if isinstance(value.value, int):
                numbers.setdefault(value.entity, []).append(value.value)
        for number, digits in numbers.items():
            if len(digits) == len(SWITCH_ADDRESS):
                domain, bus, device, function = digits
                address = f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"
                if address in self._addresses:
                    keys[number] = address
        return keys

    def _vgpu_keys(self, dcgm: Dcgm) -> dict[int, str]:
        keys: dict[int, str] = {}
        for value in self._values(dcgm, ENTITY_GPU, self._vgpu_hosts, [VGPU_IDS]):
            if isinstance(value.value, bytes):
                keys |= {number: f"vgpu{number}" for number in vgpu_ids(value.value)}
        for value in self._values(dcgm, ENTITY_VGPU, list(keys), [VGPU_UUID]):
            if isinstance(value.value, str) and value.value:
                keys[value.entity] = device_key(value.value)
        return keys

    def _values(
        self, dcgm: Dcgm, group: int, entities: Sequence[int], fields: Sequence[int]
    ) -> list[FieldValue]:
        values: list[FieldValue] = []
        try:
            for first in range(0, len(entities), ENTITIES_PER_CALL):
                batch = entities[first : first + ENTITIES_PER_CALL]
                values += dcgm.latest(batch, fields, group=group)
        except DcgmError as error:
            if error.code not in NOTHING_THERE:
                raise
        return values

    def _fill(self, group: int, values: Sequence[FieldValue]) -> None:
        block = self._blocks.get(group)
        if block is None:
            return
        block.clear()
        rows = {entity: row for row, entity in enumerate(self._keys[group])}
        watts: dict[int, list[float]] = {}
        for reading in values:
            field, value = _FIELDS[group].get(reading.field), reading.value
            if not isinstance(value, int | float):
                continue
            if field is not None and field.least <= value <= field.most:
                put(block, field.signal, rows[reading.entity], value * field.scale)
            elif reading.field in SWITCH_POWER and 0 <= value <= 10_000:
                watts.setdefault(reading.entity, []).append(value)
        for entity, rails in watts.items():
            if len(rails) == len(SWITCH_POWER):
                put(block, "nvswitch.power_watts", rows[entity], sum(rails))


_FIELDS: Mapping[int, Mapping[int, PartField]] = {
    ENTITY_SWITCH: SWITCH_FIELDS,
    ENTITY_LINK: LINK_FIELDS,
    ENTITY_VGPU: VGPU_FIELDS,
}


def link_parts(link: int) -> tuple[int, int]:
    """Return switch and index of a link.

    Its id (dcgm_link_t): kind in 8 bits, index in 8, switch in 16.
    """
    return link >> 16, link >> 8 & 0xFF


def vgpu_ids(blob: bytes) -> tuple[int, ...]:
    """Return the ids of a GPU's vGPUs, as far as the blob holds them."""
    if len(blob) < 4:
        return ()
    (count,) = struct.unpack_from("=I", blob)
    return struct.unpack_from(f"={min(count, len(blob) // 4 - 1)}I", blob, 4)
