"""Who is compared with whom: GPUs alike in all that decides a clock, or, where those are too few, in less of it.

Simulated ones stand apart from real ones. A rack that is capped on purpose has peers of its own then, and is not slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .arrays import Codes, Flags, Floats, Indexes
from .devices import Devices
from .limited import LIMIT_WATTS
from .tables import DeviceTable

#: Fewer computing GPUs than this have no median worth the name.
PEERS_MIN = 4
#: Of fewer hosts a narrow group has none either: a host that was set wrong would be its own measure.
HOSTS_MIN = 3
#: Groups of one width that are looked at, the largest first: more would be an attack.
GROUPS_MAX = 256

#: What an inventory says -> in words.
MADE = {
    "name": "model", "board_part_number": "part", "vbios": "VBIOS", "driver": "driver", "ecc_mode": "ECC mode",
}  # fmt: skip
LIMIT, SETTING, MIG = "power limit", "clock setting", "MIG mode"
FIELDS = (*MADE.values(), LIMIT, SETTING, MIG)
#: From all of it to the model alone. A driver or a VBIOS moves clocks less than a limit does.
WIDTHS: tuple[frozenset[str], ...] = tuple(
    frozenset(FIELDS) - set(left_out)
    for left_out in (
        (), ("part", "VBIOS"), ("part", "VBIOS", "driver"), tuple(f for f in FIELDS if f != "model"),
    )
)  # fmt: skip
#: Limits within a bucket are one, and so are clock settings: in hertz (a step of NVIDIA's is 15 MHz).
SETTING_HERTZ = 15e6
#: Cells of a key: model's highest clock where there is no name, limit, setting, MIG, simulated.
_CEILING, _LIMIT, _SETTING, _MIG, _MAKE = 1, 14, 26, 38, 40
_TWELVE_BITS, _THIRTEEN_BITS, _MAKES_MAX = 0xFFF, 0x1FFF, 1 << 20
Keys = NDArray[np.int64]


class Level(NamedTuple):
    """GPUs alike in what `width` of WIDTHS says, group by group."""

    width: int
    hosts_min: int
    groups: list[Indexes]
    settled: Flags  # GPUs whose measure is a narrower group, though too few of that may compute


class Herd(Protocol):
    """What is needed of a fleet."""

    shape_version: int
    attributes: list[dict[tuple[str, str], dict[str, str]]]
    devices: dict[str, Devices]
    tables: dict[str, DeviceTable]
    peerage: Peerage

    @property
    def simulated(self) -> Flags: ...


class Peerage:
    """The groups of peers of a fleet. Kept between calls: they change when a host, a limit or a setting does."""

    def __init__(self) -> None:
        self._version = -1
        #: What each make is, by the names of MADE; and the make of every GPU row.
        self._known: dict[tuple[str, ...], int] = {}
        self._makes: Keys = np.zeros(0, dtype=np.int64)
        self._set: Keys = np.zeros(0, dtype=np.int64)
        self._levels: list[Level] = []
        self._cells: list[NDArray[Any]] = []  # what `_set` was made from

    def levels(self, fleet: Herd) -> list[Level]:
        """Return the groups, narrowest first."""
        is_new = (
            self._version != fleet.shape_version or self._makes.size != fleet.devices["gpu"].count
        )
        cells = _cells(fleet)
        if not is_new and all(map(np.array_equal, cells, self._cells)):
            return self._levels
        if is_new:
            self._makes = self._made(fleet)
            self._version = fleet.shape_version
        self._cells = [each.copy() for each in cells]
        settings = _settings(fleet, self._has_name())
        if is_new or not np.array_equal(settings, self._set):
            self._set = settings
            self._levels = list(self._sorted(fleet.devices["gpu"].host))
        return self._levels

    def make(self, row: int) -> dict[str, str]:
        """Return what is known of how a GPU was made, by the names of FIELDS."""
        said = list(self._known)[int(self._makes[row])]
        return {noun: text for noun, text in zip(MADE.values(), said, strict=True) if text}

    def _made(self, fleet: Herd) -> Keys:
        gpus, seen = fleet.devices["gpu"], dict[int, int]()
        nothing: dict[str, str] = {}
        makes = np.zeros(gpus.count, dtype=np.int64)
        for row, (host, name) in enumerate(zip(gpus.host.tolist(), gpus.names, strict=True)):
            attributes = fleet.attributes[host].get(("gpu", name), nothing)
            make = seen.get(id(attributes))  # hosts of one make share them
            if make is None:
                said = tuple(attributes.get(one, "") for one in MADE)
                if len(self._known) >= _MAKES_MAX:
                    said = ("",) * len(MADE) if said not in self._known else said
                make = seen[id(attributes)] = self._known.setdefault(said, len(self._known))
            makes[row] = make
        return makes

    def _has_name(self) -> Flags:
        named = np.array([bool(said[0]) for said in self._known], dtype=bool)
        return named[self._makes] if named.size else np.zeros(0, dtype=bool)

    def _sorted(self, hosts: Codes) -> Iterable[Level]:
        """Yield the levels; of two that part the GPUs alike the narrower one, with the wider one's right.

        Who shares a power limit with hosts enough is measured under that limit or not at all: a rack that is capped
        on purpose is no slower where most of it is idle.
        """
        found: list[tuple[int, NDArray[np.intp]]] = []
        for width, fields in enumerate(WIDTHS):
            numbers = np.unique(self._keys(fields), return_inverse=True)[1]
            if found and np.array_equal(numbers, found[-1][1]):
                continue
            found.append((width, numbers))
        last, numbers = found[-1]
        settled = np.zeros(hosts.size, dtype=bool)
        if LIMIT not in WIDTHS[last]:
            settled = _may_have_median(found[-2][1], hosts) & (
                _sizes(found[-2][1]) < _sizes(numbers)
            )
        for width, narrow in found[:-1]:
            yield Level(width, HOSTS_MIN, _groups(narrow), np.zeros_like(settled))
        yield Level(last, 1, _groups(numbers), settled)

    def _keys(self, fields: frozenset[str]) -> Keys:
        chosen = [at for at, noun in enumerate(MADE.values()) if noun in fields]
        codes: dict[tuple[str, ...], int] = {}
        alike = np.array(
            [
                codes.setdefault(tuple(said[at] for at in chosen), len(codes))
                for said in self._known
            ],
            dtype=np.int64,
        )
        keys = self._set & ((1 << _LIMIT) - 1)
        for noun, at, bits in ((LIMIT, _LIMIT, 12), (SETTING, _SETTING, 12), (MIG, _MIG, 2)):
            if noun in fields:
                keys = keys | (self._set & (((1 << bits) - 1) << at))
        return np.asarray(keys | (alike[self._makes] << _MAKE) if alike.size else keys)


def _cells(fleet: Herd) -> list[NDArray[Any]]:
    """Return the cells that settings are read from, as they are."""
    tables = fleet.tables
    found: list[NDArray[Any]] = [fleet.simulated]
    for name, column in (
        ("gpu_10s", "sm_clock_max_hertz"),
        ("gpu_10s", "power_limit_watts"),
        ("gpu_60s", "sm_application_clock_hertz"),
    ):
        found += [tables[name].raw(column).view(np.uint64), tables[name].known(column)]
    mode = tables["gpu_10s_changes"]
    return [*found, mode.state("mig_mode_state"), mode.known("mig_mode_state")]


def _settings(fleet: Herd, has_name: Flags) -> Keys:
    """Return what of a key readings tell. Without a model, GPUs with an equal highest SM clock stand together."""
    ten, minute = fleet.tables["gpu_10s"], fleet.tables["gpu_60s"]
    mode = fleet.tables["gpu_10s_changes"]
    megahertz = _whole(ten.gauge("sm_clock_max_hertz"), 1e6, _THIRTEEN_BITS)
    keys = np.where(has_name, 0, megahertz) << _CEILING
    keys |= _whole(ten.gauge("power_limit_watts"), LIMIT_WATTS, _TWELVE_BITS) << _LIMIT
    setting = minute.gauge("sm_application_clock_hertz")
    keys |= _whole(setting, SETTING_HERTZ, _TWELVE_BITS) << _SETTING
    mig = mode.known("mig_mode_state") * (1 + (mode.state("mig_mode_state") == 1))
    keys |= mig.astype(np.int64) << _MIG
    return np.asarray(keys | fleet.simulated[fleet.devices["gpu"].host])


def _whole(values: Floats, unit: float, most: int) -> Keys:
    """Return *values* in whole *unit*s; 0 where there is none."""
    return np.clip(np.rint(np.nan_to_num(values / unit, nan=0.0)), 0, most).astype(np.int64)


def _groups(numbers: NDArray[np.intp]) -> list[Indexes]:
    """Return the rows of each group that may have a median, the largest groups only."""
    if not numbers.size:
        return []
    counts = np.bincount(numbers)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(counts)
    large = np.argsort(-counts, kind="stable")[:GROUPS_MAX].tolist()
    return [order[ends[at] - counts[at] : ends[at]] for at in large if counts[at] >= PEERS_MIN]


def _may_have_median(numbers: NDArray[np.intp], hosts: Codes) -> Flags:
    """Say which GPUs are in a group that has a median when all of it computes."""
    if not numbers.size:
        return np.zeros(0, dtype=bool)
    most = int(hosts.max()) + 1
    of_hosts = np.bincount(np.unique(numbers * most + hosts) // most)
    return np.asarray((of_hosts[numbers] >= HOSTS_MIN) & (_sizes(numbers) >= PEERS_MIN), dtype=bool)


def _sizes(numbers: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return of each GPU how many its group has."""
    return np.bincount(numbers)[numbers]
