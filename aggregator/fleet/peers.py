"""Peer groups of GPUs that match in everything that affects the clock.

If too few GPUs match in everything, groups are wider. Simulated GPUs are never peers of real ones.
A rack that is capped on purpose has its own peers and does not count as slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..arrays import Codes, Flags, Floats, Indexes
from .devices import TopologySource
from .power_limits import LIMIT_WATTS
from .tables import DeviceTable

#: Minimum number of computing GPUs for a median.
PEERS_MIN = 4
#: Minimum hosts in a narrow group: a misconfigured host must not be its own measure.
HOSTS_MIN = 3
#: Limit of the groups per width, largest first, against hosts that invent values.
GROUPS_MAX = 256

#: Attribute of an inventory -> text.
MAKE_ATTRIBUTES = {
    "name": "model", "board_part_number": "part", "vbios": "VBIOS", "driver": "driver", "ecc_mode": "ECC mode",
}  # fmt: skip
LIMIT, SETTING, MIG = "power limit", "clock setting", "MIG mode"
FIELDS = (*MAKE_ATTRIBUTES.values(), LIMIT, SETTING, MIG)
#: From all fields to the model alone. A driver or a VBIOS affects clocks less than a limit does.
WIDTHS: tuple[frozenset[str], ...] = tuple(
    frozenset(FIELDS) - set(left_out)
    for left_out in (
        (), ("part", "VBIOS"), ("part", "VBIOS", "driver"), tuple(f for f in FIELDS if f != "model"),
    )
)  # fmt: skip
#: Limits and clock settings within a bucket count as equal; in hertz (NVIDIA's step is 15 MHz).
SETTING_HERTZ = 15e6
#: Offsets of bits: highest clock (without a name), limit, setting, MIG, make. Bit 0: simulated.
_CEILING, _LIMIT, _SETTING, _MIG, _MAKE = 1, 14, 26, 38, 40
_TWELVE_BITS, _THIRTEEN_BITS, _MAKES_MAX = 0xFFF, 0x1FFF, 1 << 20
Keys = NDArray[np.int64]


class PeerLevel(NamedTuple):
    """Groups of GPUs that are alike in WIDTHS[`width`]."""

    width: int
    hosts_min: int
    groups: list[Indexes]
    settled: Flags  # GPUs that a narrower group measures, even if too few of it compute


class PeerSource(TopologySource, Protocol):
    """The attributes of a fleet that peer groups depend on."""

    tables: dict[str, DeviceTable]
    peer_groups: PeerGroups

    @property
    def simulated(self) -> Flags: ...


class PeerGroups:
    """The peer groups of a fleet. Cached until a host, a limit or a setting changes."""

    def __init__(self) -> None:
        self._version = -1
        #: Number of each make by the values of MAKE_ATTRIBUTES, and the make of every GPU row.
        self._make_ids: dict[tuple[str, ...], int] = {}
        self._makes: Keys = np.zeros(0, dtype=np.int64)
        self._setting_keys: Keys = np.zeros(0, dtype=np.int64)
        self._levels: list[PeerLevel] = []
        self._cells: list[NDArray[Any]] = []  # inputs of `_setting_keys`

    def levels(self, fleet: PeerSource) -> list[PeerLevel]:
        """Return the groups, narrowest first."""
        is_new = (
            self._version != fleet.shape_version or self._makes.size != fleet.devices["gpu"].count
        )
        cells = _cells(fleet)
        if not is_new and all(map(np.array_equal, cells, self._cells)):
            return self._levels
        if is_new:
            self._makes = self._row_makes(fleet)
            self._version = fleet.shape_version
        self._cells = [cell_array.copy() for cell_array in cells]
        settings = _settings(fleet, self._has_name())
        if is_new or not np.array_equal(settings, self._setting_keys):
            self._setting_keys = settings
            self._levels = list(self._build_levels(fleet.devices["gpu"].host))
        return self._levels

    def make(self, row: int) -> dict[str, str]:
        """Return the known fields of a GPU's make."""
        values = list(self._make_ids)[int(self._makes[row])]
        return {
            noun: text for noun, text in zip(MAKE_ATTRIBUTES.values(), values, strict=True) if text
        }

    def _row_makes(self, fleet: PeerSource) -> Keys:
        gpus, make_by_attributes = fleet.devices["gpu"], dict[int, int]()
        nothing: dict[str, str] = {}
        makes = np.zeros(gpus.count, dtype=np.int64)
        for row, (host, name) in enumerate(zip(gpus.host.tolist(), gpus.names, strict=True)):
            attributes = fleet.attributes[host].get(("gpu", name), nothing)
            make = make_by_attributes.get(id(attributes))  # similar hosts share them
            if make is None:
                values = tuple(attributes.get(attribute, "") for attribute in MAKE_ATTRIBUTES)
                if len(self._make_ids) >= _MAKES_MAX:
                    values = (
                        ("",) * len(MAKE_ATTRIBUTES) if values not in self._make_ids else values
                    )
                make = make_by_attributes[id(attributes)] = self._make_ids.setdefault(
                    values, len(self._make_ids)
                )
            makes[row] = make
        return makes

    def _has_name(self) -> Flags:
        named = np.array([bool(values[0]) for values in self._make_ids], dtype=bool)
        return named[self._makes] if named.size else np.zeros(0, dtype=bool)

    def _build_levels(self, hosts: Codes) -> Iterable[PeerLevel]:
        """Yield the levels; of two that split the GPUs equally, only the narrower one.

        A GPU whose power limit is shared by enough hosts is measured under that limit or not at
        all: a rack capped on purpose must not look slow while most of it is idle.
        """
        levels: list[tuple[int, NDArray[np.intp]]] = []
        for width, fields in enumerate(WIDTHS):
            numbers = np.unique(self._keys(fields), return_inverse=True)[1]
            if levels and np.array_equal(numbers, levels[-1][1]):
                continue
            levels.append((width, numbers))
        last, numbers = levels[-1]
        settled = np.zeros(hosts.size, dtype=bool)
        if LIMIT not in WIDTHS[last]:
            settled = _may_have_median(levels[-2][1], hosts) & (
                _sizes_of_groups(levels[-2][1]) < _sizes_of_groups(numbers)
            )
        for width, narrow in levels[:-1]:
            yield PeerLevel(width, HOSTS_MIN, _groups(narrow), np.zeros_like(settled))
        yield PeerLevel(last, 1, _groups(numbers), settled)

    def _keys(self, fields: frozenset[str]) -> Keys:
        chosen = [index for index, noun in enumerate(MAKE_ATTRIBUTES.values()) if noun in fields]
        codes: dict[tuple[str, ...], int] = {}
        makes = (tuple(values[index] for index in chosen) for values in self._make_ids)
        make_codes = np.array([codes.setdefault(m, len(codes)) for m in makes], dtype=np.int64)
        keys = self._setting_keys & ((1 << _LIMIT) - 1)
        for noun, index, bits in ((LIMIT, _LIMIT, 12), (SETTING, _SETTING, 12), (MIG, _MIG, 2)):
            if noun in fields:
                keys = keys | (self._setting_keys & (((1 << bits) - 1) << index))
        return np.asarray(keys | (make_codes[self._makes] << _MAKE) if make_codes.size else keys)


def _cells(fleet: PeerSource) -> list[NDArray[Any]]:
    """Return the cells that settings are derived from."""
    tables = fleet.tables
    cells: list[NDArray[Any]] = [fleet.simulated]
    for name, column in (
        ("gpu_10s", "sm_clock_max_hertz"),
        ("gpu_10s", "power_limit_watts"),
        ("gpu_60s", "sm_application_clock_hertz"),
    ):
        cells += [tables[name].raw(column).view(np.uint64), tables[name].known(column)]
    mode = tables["gpu_10s_changes"]
    return [*cells, mode.state("mig_mode_state"), mode.known("mig_mode_state")]


def _settings(fleet: PeerSource, has_name: Flags) -> Keys:
    """Return each key's part from readings. Without a model the highest SM clock groups GPUs."""
    ten, minute = fleet.tables["gpu_10s"], fleet.tables["gpu_60s"]
    mode = fleet.tables["gpu_10s_changes"]
    megahertz = _quantized(ten.gauge("sm_clock_max_hertz"), 1e6, _THIRTEEN_BITS)
    keys = np.where(has_name, 0, megahertz) << _CEILING
    keys |= _quantized(ten.gauge("power_limit_watts"), LIMIT_WATTS, _TWELVE_BITS) << _LIMIT
    setting = minute.gauge("sm_application_clock_hertz")
    keys |= _quantized(setting, SETTING_HERTZ, _TWELVE_BITS) << _SETTING
    mig = mode.known("mig_mode_state") * (1 + (mode.state("mig_mode_state") == 1))
    keys |= mig.astype(np.int64) << _MIG
    return keys | fleet.simulated[fleet.devices["gpu"].host]


def _quantized(values: Floats, unit: float, most: int) -> Keys:
    """Return *values* in whole *unit*s; 0 if missing."""
    return np.clip(np.rint(np.nan_to_num(values / unit, nan=0.0)), 0, most).astype(np.int64)


def _groups(numbers: NDArray[np.intp]) -> list[Indexes]:
    """Return the rows of the largest groups with at least PEERS_MIN rows."""
    if not numbers.size:
        return []
    counts = np.bincount(numbers)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(counts)
    large = np.argsort(-counts, kind="stable")[:GROUPS_MAX].tolist()
    return [order[ends[g] - counts[g] : ends[g]] for g in large if counts[g] >= PEERS_MIN]


def _may_have_median(numbers: NDArray[np.intp], hosts: Codes) -> Flags:
    """Return which GPUs are in a group that has a median if all of it computes."""
    if not numbers.size:
        return np.zeros(0, dtype=bool)
    hosts_max = int(hosts.max()) + 1
    host_counts = np.bincount(np.unique(numbers * hosts_max + hosts) // hosts_max)
    return (host_counts[numbers] >= HOSTS_MIN) & (_sizes_of_groups(numbers) >= PEERS_MIN)


def _sizes_of_groups(numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.bincount(numbers)[numbers]
