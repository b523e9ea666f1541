"""Groups of collectors that share a sampler process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...contract.signal import Pace
from ..collector import Collector

GPU, HOST, DCGM = "gpu", "host", "dcgm"
#: Samplers of all kinds: three groups, a standby, probes of single devices, abandoned processes.
#: With the daemon, the fork server and the inventory's short-lived child these are all processes
#: of the agent.
PROCESSES_MAX = 16
#: Kinds of collectors that call NVML, read AMD's GPUs, or use results of such a collector.
GPU_KINDS = frozenset(
    {
        "gpu",
        "gpu_process",
        "gpu_job",
        "gpu_fabric",
        "gpu_fast",
        "nvlink",
        "c2c",
        "mig",
        "nvml_events",
        "amdgpu",
        "amdgpu_partition",
        "xgmi",
        "ras",
        "kfd_process",
    }
)
#: A group of its own: if the host engine hangs, neither NVML nor other drivers wait for it.
DCGM_COLLECTOR = "dcgm_1s"
CollectorGroups = Mapping[str, Sequence[Collector]]


def group_of(collector: Collector) -> str:
    """Return `gpu`, `dcgm`, `host`, or "" if the daemon runs the collector (the inventory)."""
    if collector.pace is Pace.BOOT:
        return ""
    if collector.name == DCGM_COLLECTOR:
        return DCGM if collector.enters_driver else ""
    if collector.name.rpartition("_")[0] in GPU_KINDS:
        return GPU
    return HOST if collector.enters_driver else ""


def group_collectors(collectors: Sequence[Collector]) -> dict[str, list[Collector]]:
    """Return the groups that have a collector, in starting order."""
    groups: dict[str, list[Collector]] = {GPU: [], HOST: [], DCGM: []}
    for collector in collectors:
        if group := group_of(collector):
            groups[group].append(collector)
    return {name: members for name, members in groups.items() if members}
