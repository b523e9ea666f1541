"""Who is compared with whom: GPUs of the same model, simulated ones apart from real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .arrays import Codes, Flags, Floats
from .tables import Devices, DeviceTable

#: How well a clock tells the pace of work, as a share (assumed: memory-bound work hardly follows it).
CLOCK_ERROR = 0.01
#: Fewer computing GPUs of a model than this have no median worth the name.
PEERS_MIN = 4


class Speeds(NamedTuple):
    """Per GPU row: its clock over the median of its peers (NaN: unknown), and how many they are."""

    relative: Floats
    peers: Codes
    median_hertz: Floats
    error: Floats  # standard error of `relative` as a measure of the GPU's pace


class Herd(Protocol):
    """What is needed of a fleet."""

    shape_version: int
    attributes: list[dict[tuple[str, str], dict[str, str]]]
    devices: dict[str, Devices]
    tables: dict[str, DeviceTable]
    models: Models

    @property
    def simulated(self) -> Flags: ...


class Models:
    """The model of every GPU row as a number; -1 where its host did not say. Kept between calls."""

    def __init__(self) -> None:
        self._version = -1
        self._codes: Codes = np.zeros(0, dtype=np.int32)
        self._known: dict[str, int] = {}
        self._keys: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._numbers: NDArray[np.intp] = np.zeros(0, dtype=np.intp)

    def codes(self, fleet: Herd) -> Codes:
        """Return a code per GPU row."""
        if self._version != fleet.shape_version or self._codes.size != fleet.devices["gpu"].count:
            gpus = fleet.devices["gpu"]
            codes = [
                self._code(fleet.attributes[host].get(("gpu", name), {}))
                for host, name in zip(gpus.host.tolist(), gpus.names, strict=True)
            ]
            self._codes = np.array(codes, dtype=np.int32)
            self._version = fleet.shape_version
        return self._codes

    def numbers(self, keys: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return a number for each distinct key; the same array as before while they are the same."""
        if not np.array_equal(keys, self._keys):
            self._keys, self._numbers = keys, np.unique(keys, return_inverse=True)[1]
        return self._numbers

    def _code(self, attributes: Mapping[str, str]) -> int:
        name = attributes.get("name")  # "NVIDIA H100 80GB HBM3"
        return -1 if not name else self._known.setdefault(name, len(self._known))


def groups(fleet: Herd) -> NDArray[np.intp]:
    """Return the number of each GPU row's group of peers.

    Without a model from the inventory, GPUs with an equal highest SM clock stand together.
    """
    models = fleet.models.codes(fleet).astype(np.int64)
    highest = fleet.tables["gpu_10s"].gauge("sm_clock_max_hertz")
    megahertz = np.nan_to_num(highest / 1e6, nan=0.0).clip(0, 1e6).astype(np.int64)
    keys = np.where(models >= 0, models, -1 - megahertz)
    keys = keys * 2 + fleet.simulated[fleet.devices["gpu"].host]
    return fleet.models.numbers(keys)


def relative_speeds(fleet: Herd, clock: Floats) -> Speeds:
    """Compare *clock* (Hz while computing, NaN when it did not) with the median of the peers."""
    relative = np.full(clock.shape, np.nan)
    medians = np.full(clock.shape, np.nan)
    errors = np.full(clock.shape, np.nan)
    peers = np.zeros(clock.shape, dtype=np.int32)
    group = groups(fleet)
    computing = np.isfinite(clock)
    for number in np.unique(group):
        rows = np.flatnonzero((group == number) & computing)
        if rows.size < PEERS_MIN:
            continue
        medians[rows] = median = float(np.median(clock[rows]))
        peers[rows] = rows.size - 1
        if median > 0:
            relative[rows] = clock[rows] / median
            errors[rows] = _error(relative[rows])
    return Speeds(relative, peers, medians, errors)


def _error(relative: Floats) -> float:
    """Return the standard error of GPUs' paces, told from their clocks over the median of them all.

    That median is off by 1.2533 s / sqrt(n) (normal spread s, here from the median of absolute deviations).
    """
    spread = 1.4826 * float(np.median(np.abs(relative - 1.0)))
    return float(np.hypot(CLOCK_ERROR, 1.2533 * spread / np.sqrt(relative.size)))


def slowest(relative: Floats, hosts: Codes, count: int) -> Floats:
    """Return the least of *relative* for each of *count* hosts, NaN where none is known."""
    known = np.isfinite(relative)
    least = np.full(count, np.inf)
    np.minimum.at(least, hosts[known], relative[known])
    return np.where(np.isfinite(least), least, np.nan)
