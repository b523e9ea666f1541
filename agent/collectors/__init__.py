"""Collectors: one module per source of signals, all listed in COLLECTORS."""

from __future__ import annotations

from collections.abc import Callable

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
FURTHER_TABLES = {"nvswitch_10s": "dcgm_1s", "nvswitch_link_10s": "dcgm_1s", "vgpu_10s": "dcgm_1s"}


def _gpu_1s(roots: Roots) -> Collector:
    from .gpu import GpuSecond

    return GpuSecond(roots)


def _gpu_10s(roots: Roots) -> Collector:
    from .gpu import GpuTenSeconds

    return GpuTenSeconds(roots)


def _gpu_60s(roots: Roots) -> Collector:
    from .gpu import GpuMinute

    return GpuMinute(roots)


def _gpu_fast_1s(roots: Roots) -> Collector:
    from .gpu_fast import GpuFast

    return GpuFast(roots)


def _gpu_fast_10s(roots: Roots) -> Collector:
    from .gpu_fast import GpuFastJobs

    return GpuFastJobs(roots)


def _nvlink_10s(roots: Roots) -> Collector:
    from .nvlink import NvLinkCollector

    return NvLinkCollector(roots)


def _c2c_10s(roots: Roots) -> Collector:
    from .nvlink import C2cLinkCollector

    return C2cLinkCollector(roots)


def _mig_10s(roots: Roots) -> Collector:
    from .mig import MigDevices

    return MigDevices(roots)


def _gpu_process_1s(roots: Roots) -> Collector:
    from .gpu_processes import GpuProcesses

    return GpuProcesses(roots)


def _gpu_job_1s(roots: Roots) -> Collector:
    from .gpu_processes import GpuJobs

    return GpuJobs(roots)


def _kubelet_10s(roots: Roots) -> Collector:
    from .kubelet import KubeletAllocations

    return KubeletAllocations(roots)


def _gpu_fabric_1s(roots: Roots) -> Collector:
    from .gpu_fabric import GpuFabric

    return GpuFabric(roots)


def _nvml_events_10s(roots: Roots) -> Collector:
    from .nvml_events import NvmlEvents

    return NvmlEvents(roots)


def _amdgpu_1s(roots: Roots) -> Collector:
    from .amdgpu import AmdGpuSecond

    return AmdGpuSecond(roots)


def _amdgpu_10s(roots: Roots) -> Collector:
    from .amdgpu import AmdGpuTenSeconds

    return AmdGpuTenSeconds(roots)


def _amdgpu_60s(roots: Roots) -> Collector:
    from .amdgpu import AmdGpuMinute

    return AmdGpuMinute(roots)


def _xgmi_10s(roots: Roots) -> Collector:
    from .amdgpu_parts import XgmiLinks

    return XgmiLinks(roots)


def _amdgpu_partition_10s(roots: Roots) -> Collector:
    from .amdgpu_parts import AmdPartitions

    return AmdPartitions(roots)


def _ras_10s(roots: Roots) -> Collector:
    from .amdgpu_parts import RasBlocks

    return RasBlocks(roots)


def _kfd_process_1s(roots: Roots) -> Collector:
    from .amdgpu_parts import KfdProcesses

    return KfdProcesses(roots)


def _dcgm_1s(roots: Roots) -> Collector:
    from .dcgm import DcgmListener

    return DcgmListener(roots)


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
    "gpu_1s": _gpu_1s,
    "gpu_10s": _gpu_10s,
    "gpu_60s": _gpu_60s,
    "nvlink_10s": _nvlink_10s,
    "c2c_10s": _c2c_10s,
    "mig_10s": _mig_10s,
    "amdgpu_1s": _amdgpu_1s,
    "amdgpu_10s": _amdgpu_10s,
    "amdgpu_60s": _amdgpu_60s,
    "xgmi_10s": _xgmi_10s,
    "amdgpu_partition_10s": _amdgpu_partition_10s,
    "ras_10s": _ras_10s,
    "gpu_process_1s": _gpu_process_1s,
    "kfd_process_1s": _kfd_process_1s,
    "gpu_job_1s": _gpu_job_1s,  # after the collectors that list processes
    "kubelet_10s": _kubelet_10s,
    "gpu_fabric_1s": _gpu_fabric_1s,
    "nvml_events_10s": _nvml_events_10s,
    "gpu_fast_1s": _gpu_fast_1s,
    "gpu_fast_10s": _gpu_fast_10s,  # after gpu_fast_1s, which samples
    "dcgm_1s": _dcgm_1s,
}
