"""One file per source of signals, one method each, named in one visible table."""

from __future__ import annotations

from collections.abc import Callable

from ..collector import Collector
from ..hardware.files import Roots
from .disk import Disks, Filesystems, NvmeControllers, NvmeSmart
from .host import ClockTenSeconds, CpuMinute, HostMinute, HostSecond, HostTenSeconds, edac_10s
from .kernel_log import KernelLog
from .link_events import LinkListener
from .net import Bonds, LinkDetails, NicStatistics, net_1s, net_10s
from .network_fs import LustreMounts, LustreTargets, NfsMounts
from .numa import NumaCores, NumaTenSeconds, hugepages_10s
from .pcie import PcieMinute, PcieTenSeconds
from .power import hwmon_1s, hwmon_10s, rapl_1s, rapl_10s
from .rdma import rdma_1s, rdma_10s
from .settings import Services, SettingsMinute
from .tasks import BlockedTasks

__all__ = ["COLLECTORS", "Roots"]


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
    from .nvlink import GpuFabric

    return GpuFabric(roots)


def _nvml_events_10s(roots: Roots) -> Collector:
    from .nvml_events import NvmlEvents

    return NvmlEvents(roots)


def _dcgm_1s(roots: Roots) -> Collector:
    from .dcgm import DcgmListener

    return DcgmListener(roots)


#: Every collector by its name: device kind and pace, as in the tables that it fills.
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
    "gpu_process_1s": _gpu_process_1s,
    "gpu_job_1s": _gpu_job_1s,  # after the one that lists the processes
    "kubelet_10s": _kubelet_10s,
    "gpu_fabric_1s": _gpu_fabric_1s,
    "nvml_events_10s": _nvml_events_10s,
    "gpu_fast_1s": _gpu_fast_1s,
    "gpu_fast_10s": _gpu_fast_10s,  # after the one that samples
    "dcgm_1s": _dcgm_1s,
}
