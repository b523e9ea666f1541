"""Every signal, by id, by name and by table. Adding a signal is one row here plus its reader."""

from __future__ import annotations

from collections.abc import Iterable

from . import (
    agent,
    clock,
    cpu,
    disk,
    edac,
    gpu,
    gpu_fabric,
    gpu_fast,
    gpu_job,
    gpu_process,
    host,
    hugepages,
    kernel_log,
    kubelet,
    lustre,
    mig,
    net,
    nfs,
    numa,
    nvlink,
    nvme,
    nvml_events,
    pcie,
    power,
    probe,
    rdma,
    service,
    settings,
    tasks,
)
from .signal import PERIOD_SECONDS, Kind, Pace, Signal

__all__ = [
    "BY_ID",
    "BY_NAME",
    "FORMER_TABLES",
    "PARTS",
    "PERIOD_SECONDS",
    "SIGNALS",
    "TABLES",
    "Kind",
    "Pace",
    "Signal",
    "index_of",
]

#: The files of this folder, one per kind of device, in the order that tables are listed in.
PARTS = (
    agent,
    probe,
    host,
    kernel_log,
    cpu,
    clock,
    settings,
    numa,
    hugepages,
    pcie,
    disk,
    nvme,
    nfs,
    lustre,
    tasks,
    service,
    net,
    rdma,
    power,
    edac,
    gpu,
    gpu_fabric,
    gpu_fast,
    gpu_process,
    gpu_job,
    kubelet,
    mig,
    nvlink,
    nvml_events,
)
SIGNALS: tuple[Signal, ...] = tuple(signal for part in PARTS for signal in part.SIGNALS)


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

#: What agents before this version call a table -> its name here: it was sampled at another pace then.
FORMER_TABLES = {"agent_1s": "agent_10s", "collector_1s": "collector_10s"}

_COLUMNS = {signal.name: i for signals in TABLES.values() for i, signal in enumerate(signals)}


def index_of(name: str) -> int:
    """Return the column of signal *name* within its table. KeyError for an unknown name, or an event's."""
    return _COLUMNS[name]
