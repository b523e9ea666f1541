"""The price of moving a neighbor away from a job: GPU-hours that the move costs and gives back, and a free target.

Advice for people: Gangline moves no job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from ...contract.text import counted
from ..arrays import Indexes
from ..fleet.fleet import Fleet
from ..model import HealthState
from ..scoring.reported_factors import (
    CHECKPOINT_INTERVAL_MINUTES,
    NOTHING_REPORTED,
    RESTART_FACTOR,
    RESTART_MINUTES,
    ReportedFactors,
)
from ..scoring.symptom import short
from .accumulator import ActiveRun

#: A slowdown counts for this long: how long both jobs go on is unknown.
HORIZON_HOURS = 24.0
#: A target has sent a frame within this time.
TARGET_AGE_NS_MAX = 60 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class NeighborMove:
    """A move of a neighbor. `targets`: a free host for each host that it leaves; empty: too few are free."""

    neighbor: str
    targets: tuple[str, ...]
    cost_gpu_hours: float
    gain_gpu_hours: float

    def __str__(self) -> str:
        """Return the price in a sentence."""
        gain = f"{_hours(self.gain_gpu_hours)} in {HORIZON_HOURS:g} h"
        if not self.targets:
            return f"the slowdown costs {gain}, and no host is free for job {self.neighbor}"
        to = ", ".join(self.targets[:3])
        return f"moving {self.neighbor} to {to} costs {_hours(self.cost_gpu_hours)} and gives back {gain}"


def _hours(gpu_hours: float) -> str:
    return f"{gpu_hours:.0f} GPU-hours" if gpu_hours >= 10.0 else f"{gpu_hours:.1f} GPU-hours"


def move_of(
    fleet: Fleet,
    pair: tuple[ActiveRun, ActiveRun],
    hosts: Sequence[int],
    slowdown: float,
    checkpoint_interval_seconds: float,
    reports: ReportedFactors = NOTHING_REPORTED,
) -> NeighborMove:
    """Return the price of moving a neighbor off the *hosts* that it shares with a job.

    *pair*: the job and the neighbor. *slowdown*: share of its speed that the job loses. *checkpoint_interval_seconds*:
    the neighbor's, NaN if unknown. The whole neighbor restarts and repeats half an interval of work on average.
    """
    run, neighbor = pair
    reported = reports.get(RESTART_FACTOR)
    restart_hours = reported.value if reported else RESTART_MINUTES[0] / 60.0
    interval_hours = checkpoint_interval_seconds / 3600.0
    if not isfinite(interval_hours) or interval_hours <= 0.0:
        interval_hours = CHECKPOINT_INTERVAL_MINUTES[0] / 60.0
    return NeighborMove(
        neighbor.job,
        _targets(fleet, neighbor, hosts),
        neighbor.gpus_held_max * (restart_hours + interval_hours / 2.0),
        run.gpus_held_max * slowdown * HORIZON_HOURS,
    )


def _targets(fleet: Fleet, neighbor: ActiveRun, hosts: Sequence[int]) -> tuple[str, ...]:
    """Return free hosts for the part of *neighbor* on *hosts*; empty if they are too few.

    A free host has no job, so that nothing there slows the neighbor. It is healthy and has as many GPUs of the same model.
    """
    needed = int(np.bincount(fleet.devices["gpu"].host[neighbor.all_rows]).max(initial=1))
    declared = fleet.declared.maintenance_windows(fleet.names, int(fleet.last_received_ns.max()))
    fresh_ns = int(fleet.last_received_ns.max()) - TARGET_AGE_NS_MAX
    free = (fleet.gpus >= needed) & (fleet.last_received_ns >= fresh_ns)
    free &= fleet.simulated == neighbor.simulated
    for name in set(neighbor.hosts) | {fleet.names[shared] for shared in hosts}:
        if (index := fleet.index.get(name)) is not None:
            free[index] = False
    names: list[str] = []
    for host in np.flatnonzero(free).tolist():
        if len(names) == len(hosts):
            break
        is_healthy = host not in declared and all(
            not symptom.active or symptom.worst.host_state is HealthState.HEALTHY
            for symptom in fleet.active_symptoms.get(host, {}).values()
        )
        if is_healthy and not fleet.jobs.on_host(host).jobs and _has_model(fleet, host, neighbor):
            names.append(fleet.names[host])
    return tuple(names) if len(names) == len(hosts) else ()


def _has_model(fleet: Fleet, host: int, neighbor: ActiveRun) -> bool:
    attributes = fleet.attributes[host]
    models = {
        device["name"]
        for (kind, _), device in attributes.items()
        if kind == "gpu" and "name" in device
    }
    return not neighbor.gpu_model or neighbor.gpu_model in models


def shared_part(fleet: Fleet, pair: tuple[ActiveRun, ActiveRun], host: int, resource: str) -> str:
    """Return the part of *host* that two runs share and that supplies *resource*, or the GPU that both use.

    *resource* itself if no part is known.
    """
    gpus = fleet.devices["gpu"]
    shared = np.intersect1d(pair[0].shared_rows, pair[1].shared_rows)
    shared = shared[gpus.host[shared] == host]
    if shared.size:
        return short(gpus.names[int(shared[0])])
    name, _, _ = resource.partition("_")
    if name == "pcie":
        own, other = (_switches(fleet, run.all_rows, host) for run in pair)
        both = sorted(own.keys() & other.keys())
        return f"PCIe switch {both[0]}" if both else resource
    if name == "nic":
        ports = fleet.tables["rdma_1s"].devices
        names = [
            port for port, at in zip(ports.names, ports.host.tolist(), strict=True) if at == host
        ]
        return (
            f"NIC {names[0]}"
            if len(names) == 1
            else f"{counted(len(names), 'NIC')}"
            if names
            else resource
        )
    return {
        "cores": "the host's cores",
        "memory_bandwidth": "the host's memory controllers",
        "disk": "the host's disks",
        "network_fs": "a network file system",
    }.get(resource, resource)


def _switches(fleet: Fleet, rows: Indexes, host: int) -> Mapping[str, int]:
    """Return the upstream port of the first PCIe switch above the GPUs *rows* on *host*, with the count of GPUs."""
    gpus, attributes = fleet.devices["gpu"], fleet.attributes[host]
    result: dict[str, int] = defaultdict(int)
    for row in rows.tolist():
        if gpus.host[row] == host:
            address = attributes.get(("gpu", gpus.names[row]), {}).get("pci_address", "")
            parents = attributes.get(("pcie", address), {}).get("parents", "").split()
            if len(parents) > 1:  # a port of a switch, and the switch's own port
                result[parents[1]] += 1
    return result
