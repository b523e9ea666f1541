"""One file per source of signals, one method each, named in one visible table."""

from __future__ import annotations

from collections.abc import Callable

from ..hardware.roots import Roots
from ..turn import Collector
from .disk import Disks, Filesystems
from .host import HostMinute, HostSecond, HostTenSeconds
from .net import net_1s, net_10s
from .numa import NumaCores, numa_10s
from .pcie import pcie_10s
from .power import RaplEnergy, hwmon_10s, rapl_10s
from .rdma import rdma_1s, rdma_10s

__all__ = ["COLLECTORS", "Roots"]


def _gpu_1s(roots: Roots) -> Collector:
    from .gpu import GpuSecond

    return GpuSecond(roots)


def _gpu_10s(roots: Roots) -> Collector:
    from .gpu import GpuTenSeconds

    return GpuTenSeconds(roots)


#: Every collector by its name: device kind and pace, as in the tables that it fills.
COLLECTORS: dict[str, Callable[[Roots], Collector]] = {
    "host_1s": HostSecond,
    "host_10s": HostTenSeconds,
    "host_60s": HostMinute,
    "numa_10s": numa_10s,
    "numa_60s": NumaCores,
    "pcie_10s": pcie_10s,
    "disk_1s": Disks,
    "filesystem_60s": Filesystems,
    "net_1s": net_1s,
    "net_10s": net_10s,
    "rdma_1s": rdma_1s,
    "rdma_10s": rdma_10s,
    "rapl_1s": RaplEnergy,
    "rapl_10s": rapl_10s,
    "hwmon_10s": hwmon_10s,
    "gpu_1s": _gpu_1s,
    "gpu_10s": _gpu_10s,
}
