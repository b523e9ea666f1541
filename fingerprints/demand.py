"""Demand of a workload per shared resource."""

from __future__ import annotations

#: Resources that co-located workloads share, in the order of all arrays. The first GPU_RESOURCES are shared on a GPU, the
#: rest on a host.
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
GPU_RESOURCES = 5
QUANTILES = (0.5, 0.95, 0.99)
