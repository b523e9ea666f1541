"""Collectors: one module per source of signals, all listed in COLLECTORS."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..collector import Collector
from ..hardware.files import Roots
from .clock import ClockTenSeconds
from .cpu import CpuMinute
from .disk import Disks, Filesystems
from .edac import edac_10s
from .host import HostMinute, HostSecond, HostTenSeconds
from .job_steps import JobSteps
from .kernel_log import KernelLog
from .link_details import LinkDetails
from .link_events import LinkListener
from .lustre import LustreMounts, LustreTargets
from .net import Bonds, net_1s, net_10s
from .network_fs import NfsMounts
from .nic_statistics import NicStatistics
from .numa import NumaCores, NumaTenSeconds, hugepages_10s
from .nvme import NvmeControllers, NvmeSmart
from .pcie import PcieTenSeconds
from .pcie_settings import PcieMinute
from .power import hwmon_1s, hwmon_10s, rapl_1s, rapl_10s
from .rdma import rdma_1s, rdma_10s
from .resctrl import l3_1s
from .settings import Services, SettingsMinute
from .tasks import BlockedTasks

__all__ = ["COLLECTORS", "FURTHER_TABLES", "SAME_TABLES", "Roots"]

#: Collectors that fill another collector's tables: name -> the collector with the names of the
#: tables.
SAME_TABLES = {
    "amdgpu_1s": "gpu_1s",
    "amdgpu_10s": "gpu_10s",
    "amdgpu_60s": "gpu_60s",
    "xgmi_10s": "nvlink_10s",
    "amdgpu_partition_10s": "mig_10s",
    "kfd_process_1s": "gpu_process_1s",
}
#: Further tables of a collector -> the collector that fills them.
FURTHER_TABLES = {
    "nvswitch_10s": "dcgm_1s",
    "nvswitch_link_10s": "dcgm_1s",
    "vgpu_10s": "dcgm_1s",
    "job_group_1s": "gpu_job_1s",
}


def _deferred(module: str, name: str) -> Callable[[Roots], Collector]:
    """Return a factory of the collector *name* that loads *module* only on a host with such GPUs."""

    def create(roots: Roots) -> Collector:
        collector: Collector = getattr(import_module(module, __name__), name)(roots)
        return collector

    return create


#: Every collector by name: device kind and pace, like its tables (exceptions: SAME_TABLES).
COLLECTORS: dict[str, Callable[[Roots], Collector]] = {
    "host_1s": HostSecond,
    "host_10s": HostTenSeconds,
    "host_60s": HostMinute,
    "cpu_60s": CpuMinute,
    "clock_10s": ClockTenSeconds,
    "settings_60s": SettingsMinute,
    "edac_10s": edac_10s,
    "numa_10s": NumaTenSeconds,
    "numa_60s": NumaCores,
    "l3_1s": l3_1s,
    "hugepages_10s": hugepages_10s,
    "pcie_10s": PcieTenSeconds,
    "pcie_60s": PcieMinute,
    "disk_1s": Disks,
    "filesystem_60s": Filesystems,
    "nvme_10s": NvmeControllers,
    "nvme_60s": NvmeSmart,
    "nfs_10s": NfsMounts,
    "lustre_10s": LustreMounts,
    "lustre_target_10s": LustreTargets,
    "tasks_10s": BlockedTasks,
    "step_1s": JobSteps,
    "service_60s": Services,
    "kernel_log_10s": KernelLog,
    "net_1s": net_1s,
    "net_10s": net_10s,
    "nic_10s": NicStatistics,
    "link_10s": LinkDetails,
    "bond_10s": Bonds,
    "rtnetlink_10s": LinkListener,
    "rdma_1s": rdma_1s,
    "rdma_10s": rdma_10s,
    "rapl_1s": rapl_1s,
    "rapl_10s": rapl_10s,
    "hwmon_1s": hwmon_1s,
    "hwmon_10s": hwmon_10s,
    "gpu_1s": _deferred(".gpu", "GpuSecond"),
    "gpu_10s": _deferred(".gpu", "GpuTenSeconds"),
    "gpu_60s": _deferred(".gpu", "GpuMinute"),
    "nvlink_10s": _deferred(".nvlink", "NvLinkCollector"),
    "c2c_10s": _deferred(".nvlink", "C2cLinkCollector"),
    "mig_10s": _deferred(".mig", "MigDevices"),
    "amdgpu_1s": _deferred(".amdgpu", "AmdGpuSecond"),
    "amdgpu_10s": _deferred(".amdgpu", "AmdGpuTenSeconds"),
    "amdgpu_60s": _deferred(".amdgpu", "AmdGpuMinute"),
    "xgmi_10s": _deferred(".amdgpu_parts", "XgmiLinks"),
    "amdgpu_partition_10s": _deferred(".amdgpu_parts", "AmdPartitions"),
    "ras_10s": _deferred(".amdgpu_parts", "RasBlocks"),
    "gpu_process_1s": _deferred(".gpu_processes", "GpuProcesses"),
    "kfd_process_1s": _deferred(".amdgpu_parts", "KfdProcesses"),
    "gpu_job_1s": _deferred(
        ".gpu_processes", "GpuJobs"
    ),  # after the collectors that list processes
    "kubelet_10s": _deferred(".kubelet", "KubeletAllocations"),
    "gpu_fabric_1s": _deferred(".gpu_fabric", "GpuFabric"),
    "nvml_events_10s": _deferred(".nvml_events", "NvmlEvents"),
    "gpu_fast_1s": _deferred(".gpu_fast", "GpuFast"),
    "gpu_fast_10s": _deferred(".gpu_fast", "GpuFastJobs"),  # after gpu_fast_1s, which samples
    "dcgm_1s": _deferred(".dcgm", "DcgmListener"),
}
