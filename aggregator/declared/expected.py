"""What can be asked of a host's hardware, by the name it has in the file."""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """One number that a host must have."""

    low: float
    high: float
    tells: str
    whole: bool = True


#: Exactly so many, or where the name ends in `_min` so many at least.
ITEMS: dict[str, Item] = {
    "gpus": Item(0, 256, "GPUs"),
    "gpu_memory_gigabytes_min": Item(1, 10_000, "memory of each GPU, 10^9 bytes", whole=False),
    "gpu_pcie_width_lanes": Item(1, 32, "PCIe lanes of each GPU, as it and its slot can have them"),
    "gpu_pcie_generation": Item(
        1, 9, "PCIe generation of each GPU, as it and its slot can have it"
    ),
    "nvlinks_per_gpu": Item(0, 64, "NVLinks of each GPU, all of them up"),
    "rdma_ports": Item(0, 256, "RDMA ports that are up"),
    "rdma_port_gigabits_per_second": Item(
        1, 10_000, "speed of each RDMA port that is up", whole=False
    ),
    "numa_nodes": Item(1, 1024, "NUMA nodes"),
    "cpu_cores": Item(1, 100_000, "processors, as /proc/stat lists them (threads)"),
    "memory_gigabytes_min": Item(1, 1_000_000, "memory of the host, 10^9 bytes", whole=False),
    "nvme_drives": Item(0, 1024, "NVMe controllers"),
}
#: Patterns of which one must fit.
TEXTS: dict[str, str] = {
    "nvidia_drivers": "versions of the driver that are allowed, as 580.*",
    "kernels": "kernels that are allowed",
    "vbioses": "VBIOS versions of GPUs that are allowed",
}
