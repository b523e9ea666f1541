"""Every signal, by id, by name and by table. Adding a signal is one row here plus its reader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..signal import PERIOD_SECONDS, Kind, Pace, Signal
from . import agent, gpu, host, network, pcie_storage

__all__ = [
    "BY_ID",
    "BY_NAME",
    "FORMER_EVENTS",
    "FORMER_TABLES",
    "PERIOD_SECONDS",
    "SIGNALS",
    "SIGNAL_GROUPS",
    "TABLES",
    "Kind",
    "Pace",
    "Signal",
    "SignalGroup",
    "index_of",
]

#: Name of a table in older agents -> its name here: older agents sampled it at another pace.
FORMER_TABLES = {"agent_1s": "agent_10s", "collector_1s": "collector_10s"}
#: Names of events of earlier versions, from their agents, spools and journals -> their names.
FORMER_EVENTS = {"gpu.told_anew": "gpu.full_report"}


class SignalGroup(NamedTuple):
    """One kind of source: a section of docs/signals.md."""

    name: str
    text: str
    signals: tuple[Signal, ...]


#: In the order that tables are listed in.
SIGNAL_GROUPS = (
    SignalGroup("agent", agent.AGENT_TEXT, agent.AGENT_SIGNALS),
    SignalGroup("probe", agent.PROBE_TEXT, agent.PROBE_SIGNALS),
    SignalGroup("host", host.HOST_TEXT, host.HOST_SIGNALS),
    SignalGroup("kernel log", host.KERNEL_LOG_TEXT, host.KERNEL_LOG_SIGNALS),
    SignalGroup("cpu", host.CPU_TEXT, host.CPU_SIGNALS),
    SignalGroup("clock", host.CLOCK_TEXT, host.CLOCK_SIGNALS),
    SignalGroup("settings", host.SETTINGS_TEXT, host.SETTINGS_SIGNALS),
    SignalGroup("numa", host.NUMA_TEXT, host.NUMA_SIGNALS),
    SignalGroup("l3", host.L3_TEXT, host.L3_SIGNALS),
    SignalGroup("hugepages", host.HUGEPAGES_TEXT, host.HUGEPAGES_SIGNALS),
    SignalGroup("pcie", pcie_storage.PCIE_TEXT, pcie_storage.PCIE_SIGNALS),
    SignalGroup("disk", pcie_storage.DISK_TEXT, pcie_storage.DISK_SIGNALS),
    SignalGroup("nvme", pcie_storage.NVME_TEXT, pcie_storage.NVME_SIGNALS),
    SignalGroup("nfs", pcie_storage.NFS_TEXT, pcie_storage.NFS_SIGNALS),
    SignalGroup("lustre", pcie_storage.LUSTRE_TEXT, pcie_storage.LUSTRE_SIGNALS),
    SignalGroup("tasks", host.TASKS_TEXT, host.TASKS_SIGNALS),
    SignalGroup("service", host.SERVICE_TEXT, host.SERVICE_SIGNALS),
    SignalGroup("net", network.NET_TEXT, network.NET_SIGNALS),
    SignalGroup("rdma", network.RDMA_TEXT, network.RDMA_SIGNALS),
    SignalGroup("power", host.POWER_TEXT, host.POWER_SIGNALS),
    SignalGroup("edac", host.EDAC_TEXT, host.EDAC_SIGNALS),
    SignalGroup("gpu", gpu.GPU_TEXT, gpu.GPU_SIGNALS),
    SignalGroup("gpu fabric", gpu.GPU_FABRIC_TEXT, gpu.GPU_FABRIC_SIGNALS),
    SignalGroup("gpu fast", gpu.GPU_FAST_TEXT, gpu.GPU_FAST_SIGNALS),
    SignalGroup("dcgm", gpu.DCGM_TEXT, gpu.DCGM_SIGNALS),
    SignalGroup("nvswitch", gpu.NVSWITCH_TEXT, gpu.NVSWITCH_SIGNALS),
    SignalGroup("vgpu", gpu.VGPU_TEXT, gpu.VGPU_SIGNALS),
    SignalGroup("gpu process", gpu.GPU_PROCESS_TEXT, gpu.GPU_PROCESS_SIGNALS),
    SignalGroup("gpu job", gpu.GPU_JOB_TEXT, gpu.GPU_JOB_SIGNALS),
    SignalGroup("job group", gpu.JOB_GROUP_TEXT, gpu.JOB_GROUP_SIGNALS),
    SignalGroup("step", gpu.STEP_TEXT, gpu.STEP_SIGNALS),
    SignalGroup("kubelet", host.KUBELET_TEXT, host.KUBELET_SIGNALS),
    SignalGroup("mig", gpu.MIG_TEXT, gpu.MIG_SIGNALS),
    SignalGroup("nvlink", gpu.NVLINK_TEXT, gpu.NVLINK_SIGNALS),
    SignalGroup("ras", gpu.RAS_TEXT, gpu.RAS_SIGNALS),
    SignalGroup("nvml events", gpu.NVML_EVENTS_TEXT, gpu.NVML_EVENTS_SIGNALS),
)
SIGNALS: tuple[Signal, ...] = tuple(signal for part in SIGNAL_GROUPS for signal in part.signals)


def _tables(signals: Iterable[Signal]) -> dict[str, tuple[Signal, ...]]:
    tables: dict[str, list[Signal]] = {}
    for signal in signals:
        if signal.kind is not Kind.EVENT:
            tables.setdefault(signal.table, []).append(signal)
    return {name: tuple(rows) for name, rows in tables.items()}


BY_ID: dict[int, Signal] = {s.signal_id: s for s in SIGNALS}
BY_NAME: dict[str, Signal] = {s.name: s for s in SIGNALS}

#: Table name -> its signals, in catalogue order: the columns of a block, a frame and a DuckDB table.
TABLES: dict[str, tuple[Signal, ...]] = _tables(SIGNALS)


_COLUMNS = {signal.name: i for signals in TABLES.values() for i, signal in enumerate(signals)}


def index_of(name: str) -> int:
    """Return the column of signal *name* within its table. KeyError for an unknown name, or an event's."""
    return _COLUMNS[name]
