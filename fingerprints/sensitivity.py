"""Sensitivity of a workload to each component of a host, and its slowdown if a component is slow.

A step's time is split by the component that bounds it. If a component runs at a share `s` of its speed, its part takes
`1 / s` as long. Work that overlaps with computing costs nothing until the component needs longer than the whole step.
So memory-bound work tolerates a low SM clock, and work that rarely communicates tolerates a slow port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .demand import DEMANDS, QUANTILES
from .fingerprint import Fingerprint

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

#: Parts of a host whose speed a workload may depend on, in the order of all arrays here.
COMPONENTS = ("compute", "memory", "pcie", "nvlink", "network", "host_cpu", "storage")
COMPUTE, MEMORY, PCIE, NVLINK, NETWORK, HOST_CPU, STORAGE = range(len(COMPONENTS))

#: Share of the peak that a kernel reaches if nothing else limits it: of HBM bandwidth, and of the tensor cores
#: (assumed; the public figures of well-tuned training are 0.85 to 0.92, and 0.5 to 0.65).
MEMORY_REACHED, TENSOR_REACHED = 0.9, 0.6
#: If tasks wait for disks for at least this share of the time, stalls of the host count for storage, not for its cores.
DISK_PRESSURE_MIN = 0.05
#: Limit of the slowdown that is reported for a workload: a component that is almost unusable stops it.
SLOWDOWN_MAX = 20.0
SPEED_MIN = 0.01


class LinkRates(NamedTuple):
    """Bytes a second in one direction: a GPU's PCIe link, all its NVLinks, and its share of the host's ports."""

    pcie: float
    nvlink: float
    network: float


#: By a part of the model's name: vendors' data sheets, minus protocol overhead. Sixteen lanes of generation 4 and 5.
_RATES: Mapping[str, LinkRates] = {
    "A100": LinkRates(26e9, 300e9, 25e9),
    "H100": LinkRates(53e9, 450e9, 50e9),
    "H200": LinkRates(53e9, 450e9, 50e9),
    "B200": LinkRates(53e9, 900e9, 50e9),
}
_DEFAULT_RATES = _RATES["H100"]


def known_link_rates(gpu_model: str) -> LinkRates | None:
    """Return the rates of a GPU model; None for an unknown model."""
    return next((rates for model, rates in _RATES.items() if model in gpu_model), None)


class WorkloadNeeds(NamedTuple):
    """By COMPONENTS: the share of a step's time that each component bounds, and the share in which it is in use."""

    bound: tuple[float, ...]
    in_use: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class KnownWorkloads:
    """The needs and demands of jobs by name, a row for each run. Immutable.

    `needs`: bound and then in use. `demands`: (runs, DEMANDS, QUANTILES), NaN if unknown. `classes`: "" if unknown. `workload_ids`: equal
    for runs of one workload. `gpu_models`: "" if unknown.
    """

    names: Mapping[str, int] = field(default_factory=dict)
    descriptions: Sequence[str] = ()
    needs: Singles = field(
        default_factory=lambda: np.zeros((0, 2 * len(COMPONENTS)), dtype=np.float32)
    )
    demands: Singles = field(
        default_factory=lambda: np.zeros((0, len(DEMANDS), len(QUANTILES)), dtype=np.float32)
    )
    classes: Sequence[str] = ()
    workload_ids: Sequence[str] = ()
    gpu_models: Sequence[str] = ()

    def find(self, job: str) -> tuple[WorkloadNeeds, str] | None:
        """Return the needs of *job* and a text that names the run they are from; None for an unknown job."""
        if (at := self.names.get(job)) is None:
            return None
        row = self.needs[at].tolist()
        return WorkloadNeeds(
            tuple(row[: len(COMPONENTS)]), tuple(row[len(COMPONENTS) :])
        ), self.descriptions[at]


def needs_of(fingerprint: Fingerprint) -> WorkloadNeeds | None:
    """Return the needs of the workload of *fingerprint*; None if neither phases nor utilization are known."""
    compute, wait, stall, checkpoint = (
        fingerprint.value(f"{name}_ratio")
        for name in ("compute", "wait", "host_stall", "checkpoint")
    )
    if not isfinite(compute):
        compute, wait, stall = fingerprint.value("utilization_ratio"), nan, nan
        if not isfinite(compute):
            return None
    compute, wait, stall, checkpoint = (
        min(max(one, 0.0), 1.0) if isfinite(one) else 0.0
        for one in (compute, wait, stall, checkpoint)
    )
    bound, in_use = [0.0] * len(COMPONENTS), [0.0] * len(COMPONENTS)
    memory = _memory_share(fingerprint, compute)
    bound[COMPUTE], bound[MEMORY] = compute * (1.0 - memory), compute * memory
    rates = known_link_rates(fingerprint.gpu_model) or _DEFAULT_RATES
    for at, name in ((PCIE, "pcie"), (NVLINK, "nvlink"), (NETWORK, "nic")):
        # The fingerprint counts both directions.
        used = fingerprint.value(f"{name}_bytes_per_second") / (2.0 * rates[at - PCIE])
        in_use[at] = min(used, 1.0) if isfinite(used) and used > 0.0 else 0.0
    network, nvlink = in_use[NETWORK], in_use[NVLINK]
    if fingerprint.hosts > 1 and network + nvlink <= 0.0:
        network = 1.0  # no byte counters: a job on several hosts waits for the network
    if network + nvlink > 0.0:
        bound[NETWORK] = wait * network / (network + nvlink)
        bound[NVLINK] = wait - bound[NETWORK]
    bound[PCIE] = min(stall, in_use[PCIE])
    pressure = fingerprint.value("disk_pressure_ratio")
    cause = STORAGE if pressure >= DISK_PRESSURE_MIN else HOST_CPU
    bound[cause] += stall - bound[PCIE]
    bound[STORAGE] += checkpoint
    return WorkloadNeeds(tuple(bound), tuple(in_use))


def _memory_share(fingerprint: Fingerprint, compute: float) -> float:
    """Return the share of computing that memory bounds; 0 without data, so that a low clock has its full effect."""
    memory, tensor = (
        fingerprint.value(name) for name in ("memory_bandwidth_ratio", "tensor_ratio")
    )
    if not isfinite(memory) or compute <= 0.0:
        return 0.0
    by_memory = memory / MEMORY_REACHED
    by_tensor = tensor / TENSOR_REACHED if isfinite(tensor) else max(compute - by_memory, 0.0)
    total = by_memory + by_tensor
    return min(max(by_memory / total, 0.0), 1.0) if total > 0.0 else 0.0


def expected_slowdowns(
    needs: WorkloadNeeds, speeds: Singles, transfers: Mapping[int, Floats] | None = None
) -> Singles:
    """Return how much longer a step takes on each host, as a ratio: 0 for no change, 0.1 for a tenth.

    *speeds*: (hosts, components), 1 at full speed; NaN for a host without any data, whose slowdown is NaN, too.
    *transfers*: component -> by how much known transfers lengthen a step on each host, as (hosts) or, with several limits,
    (limits, hosts): the result has that shape.
    """
    known = np.maximum(speeds, SPEED_MIN)
    longer = 1.0 / known - 1.0
    bound = np.array(needs.bound, dtype=np.float32)
    in_use = np.array(needs.in_use, dtype=np.float32)
    exposed = np.maximum(np.maximum(bound * longer, in_use / known - 1.0), 0.0)
    total = exposed.sum(axis=1)
    for component, added in (transfers or {}).items():
        total = total + np.maximum(added - exposed[:, component], 0.0)
    return np.asarray(np.minimum(total, SLOWDOWN_MAX), dtype=np.float32)
