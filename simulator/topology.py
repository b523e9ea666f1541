"""Location of each host: rack, power, cooling, leaf, spine, rails, NVLink domain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .machine import GPUS
from .scenario import FleetLayout

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HostLocation:
    """The location of one host, by name."""

    rack: str
    power_domain: str
    cooling_domain: str
    leaf: str  # the group of leaves; each rail has its own leaf in the group
    spine: str
    nvlink_domain: str
    rails: tuple[str, ...]  # the leaf of each port


class FleetTopology:
    """The layout of *hosts* hosts, in order; arrays are (hosts,)."""

    def __init__(self, layout: FleetLayout, hosts: int, nvlink_hosts: int = 1) -> None:
        """*nvlink_hosts*: hosts of an NVLink domain. Several hosts fill a rack, and racks fill a leaf group."""
        index = np.arange(hosts, dtype=np.int64)
        is_rack_scale = nvlink_hosts > 1
        rack_hosts = nvlink_hosts if is_rack_scale else layout.rack_hosts
        leaf_hosts = layout.leaf_hosts
        if is_rack_scale:
            leaf_hosts = rack_hosts * max(leaf_hosts // rack_hosts, 1)
        self.nvlink: Ints = index // nvlink_hosts
        self.rack: Ints = index // rack_hosts
        self.cooling: Ints = self.rack // layout.cooling_racks
        self.leaf: Ints = index // leaf_hosts
        self.spine: Ints = self.leaf // layout.spine_leaf_groups

    def location(self, host: int) -> HostLocation:
        rack, leaf = int(self.rack[host]), int(self.leaf[host])
        return HostLocation(
            rack=f"rack-{rack:03d}",
            power_domain=f"power-{rack:03d}",
            cooling_domain=f"cooling-{int(self.cooling[host]):02d}",
            leaf=f"leaf-{leaf:02d}",
            spine=f"spine-{int(self.spine[host])}",
            nvlink_domain=f"nvlink-{int(self.nvlink[host]):04d}",
            rails=tuple(f"leaf-{leaf:02d}-rail-{rail}" for rail in range(GPUS)),
        )
