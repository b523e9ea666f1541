"""Expectations: hardware and versions that a host must have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .patterns import matches_pattern, wildcard_count
from .problems import SourceLocation
from .selection import CACHED_MAX, Selection

#: Patterns; one must match.
TEXTS: dict[str, str] = {
    "nvidia_drivers": "versions of the driver that are allowed, as 580.*",
    "kernels": "kernels that are allowed",
    "vbioses": "VBIOS versions of GPUs that are allowed",
}


@dataclass(slots=True)
class ExpectationIndex:
    """The expectation for hosts of a model, per set of entries that name hosts."""

    _known: dict[tuple[int, str], Expectation | None] = field(default_factory=dict)

    def find(
        self, named: tuple[Expectation, ...], model: str, expectations: Sequence[Expectation]
    ) -> Expectation | None:
        """Return the first of *named* for *model*, else the first for the model alone."""
        key = id(named), model
        if key not in self._known:
            if len(self._known) >= CACHED_MAX:
                self._known.clear()
            by_model = (e for e in expectations if e.selection is None)
            self._known[key] = next((e for e in (*named, *by_model) if e.fits(model)), None)
        return self._known[key]


class ExpectedItem(NamedTuple):
    """A number that a host must have."""

    low: float
    high: float
    description: str
    whole: bool = True


#: Exactly this number, or at least this number if the name ends in `_min`.
ITEMS: dict[str, ExpectedItem] = {
    "gpus": ExpectedItem(0, 256, "GPUs"),
    "gpu_memory_gigabytes_min": ExpectedItem(
        1, 10_000, "memory of each GPU, 10^9 bytes", whole=False
    ),
    "gpu_pcie_width_lanes": ExpectedItem(
        1, 32, "PCIe lanes of each GPU, as it and its slot can have them"
    ),
    "gpu_pcie_generation": ExpectedItem(
        1, 9, "PCIe generation of each GPU, as it and its slot can have it"
    ),
    "nvlinks_per_gpu": ExpectedItem(0, 64, "NVLinks of each GPU, all of them up"),
    "rdma_ports": ExpectedItem(0, 256, "RDMA ports that are up"),
    "rdma_port_gigabits_per_second": ExpectedItem(
        1, 10_000, "speed of each RDMA port that is up", whole=False
    ),
    "numa_nodes": ExpectedItem(1, 1024, "NUMA nodes"),
    "cpu_cores": ExpectedItem(1, 100_000, "processors, as /proc/stat lists them (threads)"),
    "memory_gigabytes_min": ExpectedItem(
        1, 1_000_000, "memory of the host, 10^9 bytes", whole=False
    ),
    "nvme_drives": ExpectedItem(0, 1024, "NVMe controllers"),
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """Hardware that a host must have; `items` by the names of `ITEMS`."""

    name: str
    model: str  # a pattern of its GPUs' model; "" for any
    selection: Selection | None  # None: any host
    items: Mapping[str, float]
    texts: Mapping[str, tuple[str, ...]]
    where: SourceLocation

    def fits(self, model: str) -> bool:
        """Return whether the entry applies to a host with mostly GPUs of *model*.

        *model* "": no GPU is seen. A host selected by name then lacks its GPUs.
        """
        if not self.model:
            return True
        if model:
            return matches_pattern(model, self.model)
        return self.selection is not None and self.selection.names_hosts

    @property
    def wildcard_count(self) -> int:
        """Number of wildcards besides those of its hosts."""
        return wildcard_count(self.model) + sum(
            wildcard_count(pattern) for patterns in self.texts.values() for pattern in patterns
        )
