"""Demand of a workload per shared resource, as a distribution over its time: histograms, and their quantiles.

A mean hides the seconds in which two workloads meet, so readings are counted in bins. Two bins differ by a factor of
2 ** (1 / BINS_PER_OCTAVE), and a quantile is interpolated within its bin: its error is below 10 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Counts = npt.NDArray[np.uint32]
Indexes = npt.NDArray[np.intp]

#: Resources that co-located workloads share, in the order of all arrays. The first five are shared on a GPU, the rest on a
#: host.
SHARED_RESOURCES = (
    "sm",
    "hbm_bandwidth",
    "pcie_received",
    "pcie_transmitted",
    "nvlink",
    "nic_received",
    "nic_transmitted",
    "cores",
    "memory_bandwidth",
    "disk",
    "network_fs",
)
#: All numbers of a demand: the shared resources; tensor cores; bytes of HBM and of the page cache, which are divided and not
#: shared; and the ticks in which ports of the host had data to send and no credit.
DEMANDS = (*SHARED_RESOURCES, "tensor", "hbm_bytes", "page_cache_bytes", "nic_waits")
#: Shared resources of which a host may supply more than the highest rate that was seen.
MEASURED_RESOURCES = ("memory_bandwidth", "disk", "network_fs")
UNITS: Mapping[str, str] = {
    "sm": "ratio",
    "hbm_bandwidth": "ratio",
    "tensor": "ratio",
    "cores": "cores",
    "hbm_bytes": "bytes",
    "page_cache_bytes": "bytes",
    "nic_waits": "ticks_per_second",
}
#: Unit of the demands that UNITS does not name.
RATE_UNIT = "bytes_per_second"
QUANTILES = (0.5, 0.95, 0.99)

BINS_PER_OCTAVE, OCTAVES = 4, 17
#: The first bin holds everything below the floor, the last everything above 2 ** OCTAVES floors.
BINS = BINS_PER_OCTAVE * OCTAVES + 2
#: Smallest value that is distinguished from 0, by unit.
_FLOORS: Mapping[str, float] = {
    "ratio": 1e-4,
    "cores": 0.02,
    "bytes": 64e6,
    "ticks_per_second": 1e3,
    RATE_UNIT: 1e7,
}
FLOORS: Floats = np.array([_FLOORS[UNITS.get(name, RATE_UNIT)] for name in DEMANDS])
#: Bytes per second of a PCIe lane in one direction by generation: transfers per second x encoding / 8.
LANE_BYTES_PER_SECOND = (np.nan, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9)
#: With fewer readings a demand is unknown.
READINGS_MIN = 30
#: Counts are halved beyond this number, so that a run of months does not overflow.
COUNT_MAX = 1 << 31


def bins_of(demand: int, values: Floats) -> Indexes:
    """Return the bin of each value of the demand at index *demand* of DEMANDS."""
    with np.errstate(divide="ignore"):
        octaves = np.log2(np.maximum(values, 0.0) / FLOORS[demand])
    bins = np.floor(octaves * BINS_PER_OCTAVE) + 1
    return np.asarray(np.clip(np.nan_to_num(bins, neginf=0.0), 0, BINS - 1), dtype=np.intp)


def quantiles(counts: Counts, shares: Sequence[float] = QUANTILES) -> Floats:
    """Return the quantiles (demands, shares) of the histograms *counts* (DEMANDS, BINS).

    NaN with fewer than READINGS_MIN readings.
    """
    cumulative = np.cumsum(counts, axis=1, dtype=np.float64)
    total = cumulative[:, -1]
    result = np.full((counts.shape[0], len(shares)), np.nan)
    for at, share in enumerate(shares):
        rank = share * total
        bins = np.minimum((cumulative < rank[:, None]).sum(axis=1), BINS - 1)
        rows = np.arange(counts.shape[0])
        before = np.where(bins > 0, cumulative[rows, np.maximum(bins - 1, 0)], 0.0)
        within = (rank - before) / np.maximum(counts[rows, bins], 1)
        octaves = (bins - 1 + np.clip(within, 0.0, 1.0)) / BINS_PER_OCTAVE
        values = np.where(bins > 0, FLOORS * np.exp2(octaves), 0.0)
        result[:, at] = np.where(total >= READINGS_MIN, values, np.nan)
    return result


class HostSupply(NamedTuple):
    """Supply of each host, by node index; NaN if unknown.

    `values`: (hosts, SHARED_RESOURCES), per GPU for resources of GPUs. `hbm_bytes`: HBM of the smallest GPU. `switch`:
    bytes per second that GPUs behind one PCIe switch share; infinite if no two GPUs share a switch.
    """

    values: Singles = np.zeros((0, len(SHARED_RESOURCES)), dtype=np.float32)
    hbm_bytes: Singles = np.zeros(0, dtype=np.float32)
    switch: Singles = np.zeros(0, dtype=np.float32)

    def on_host(self, host: int) -> Floats:
        """Return the supply that workloads on separate GPUs of *host* share; infinite if they share nothing."""
        supply: Floats = self.values[host].astype(np.float64)
        for name in ("pcie_received", "pcie_transmitted"):
            supply[SHARED_RESOURCES.index(name)] = self.switch[host]
        supply[SHARED_RESOURCES.index("nvlink")] = np.inf  # every GPU has NVLinks of its own
        return supply
