"""The truth: which host had which fault when, and which hosts waited for it.

Only scoring reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt

from gangline.simulator.faults import EFFECTS, no_effect
from gangline.simulator.jobs import SimulatedJob
from gangline.simulator.machine import GPU_ADDRESSES, NIC_ADDRESSES, RDMA_PORTS
from gangline.simulator.scenario import FaultClass
from gangline.simulator.world import STEP_SECONDS, World

#: The judge counts over ten minutes: a fault that ended within this time is still reported rightly.
GRACE_SECONDS = 600.0
#: A host is healthy after a repair or a restart, and draining it is wrong. Earlier advice may still
#: be withdrawn within two steps.
BACK_SECONDS = 2 * STEP_SECONDS
#: Units of classes that affect a part: a GPU, or a port.
OF_GPU, OF_PORT = ("gpu_hour",), ("port_hour", "leaf_hour")

Seconds = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TrueFault:
    """The effect of one cause on one host. `parts`: names of the affected part; () for the host."""

    host: str
    cause: int
    each: FaultClass
    begin: float
    due: float  # end of the onset
    end: float
    parts: tuple[str, ...]
    is_shared: bool  # the cause also affected other hosts

    def is_active(self, seconds: float) -> bool:
        """Return whether the fault was active at *seconds*, or recently enough to be reported."""
        return self.begin <= seconds <= self.reportable_until

    @property
    def reportable_until(self) -> float:
        """Return until when the fault may be reported, in seconds of the world.

        A repair or a restart ends the fault when the host is back.
        """
        is_mended = self.each.sort == "faults" and self.each.ends in ("repair", "restart")
        return self.end + (BACK_SECONDS if is_mended else GRACE_SECONDS)

    def is_about(self, device: str) -> bool:
        """Return whether *device* is the affected part, or a part of it (`GPU-3f../link3`)."""
        return device.partition("/link")[0] in self.parts


class GroundTruth:
    """All faults on some hosts within a span."""

    def __init__(self, world: World, hosts: Sequence[int], begin: float, end: float) -> None:
        self._world, self._hosts, self._names = world, tuple(hosts), world.names
        self._begin, self._end = begin, end
        rows = world.schedule.rows
        selected = (rows["begin"] <= end) & (rows["end"] + GRACE_SECONDS >= begin)
        near = np.flatnonzero(selected)
        near = near[np.isin(rows["host"][near], np.array(hosts))]
        host_counts = np.bincount(rows["cause"]) if near.size else np.zeros(0, np.int64)
        result = (
            _true_fault(world, row, int(host_counts[int(row["cause"])])) for row in rows[near]
        )
        self.faults = tuple(fault for fault in result if fault.reportable_until >= begin)
        self.by_host: dict[str, list[TrueFault]] = {}
        for fault in self.faults:
            self.by_host.setdefault(fault.host, []).append(fault)

    def has(self, host: str) -> bool:
        return host in self._observed_hosts

    def of_cause(self, cause: int) -> tuple[TrueFault, ...]:
        """Return the faults of *cause* on these hosts."""
        return tuple(fault for fault in self.faults if fault.cause == cause)

    def active_faults(self, host: str, seconds: float, sort: str) -> list[TrueFault]:
        """Return the faults of *sort* that were active on *host*, or recently."""
        result = self.by_host.get(host, ())
        return [fault for fault in result if fault.each.sort == sort and fault.is_active(seconds)]

    def is_ill(self, host: str, seconds: float) -> bool:
        """Return whether *host* had an active or recent fault."""
        return bool(self.active_faults(host, seconds, "faults"))

    def share_a_cause(self, hosts: Sequence[str], seconds: float) -> bool:
        """Return whether one active or recent fault affected two of *hosts*."""
        causes = [
            {fault.cause for fault in self.active_faults(host, seconds, "faults")} for host in hosts
        ]
        return any(first & other for first, other in combinations(causes, 2))

    def victims(self, faults: Sequence[TrueFault]) -> set[str]:
        """Return the hosts without a fault that waited for *faults* within this span.

        Jobs that an earlier fault had killed do not count.
        """
        if EFFECTS[faults[0].each.name] is no_effect:
            return set()
        begin = max(faults[0].begin, self._begin)
        end = min(self._end, max(fault.end for fault in faults))
        end = min(end, self.dies(faults))
        jobs = [job for job in self._jobs(faults) if max(job.begin, begin) < min(job.end, end)]
        result = {host for job in jobs for host in job.hosts.tolist()} & {*self._hosts}
        ill = {fault.host for fault in self.faults if fault.each.sort == "faults"}
        return {self._names[host] for host in result} - ill

    def dies(self, faults: Sequence[TrueFault]) -> float:
        """Return when a job died of the cause of *faults*; infinite for never."""
        ends = [job.end for job in self._jobs(faults) if job.killed_by == faults[0].cause]
        return min(ends, default=float("inf"))

    def _jobs(self, faults: Sequence[TrueFault]) -> list[SimulatedJob]:
        schedule = self._world.schedule
        numbers = {
            n for fault in faults for n in schedule.jobs_by_host.get(self._index[fault.host], [])
        }
        return [schedule.jobs[number] for number in sorted(numbers)]

    def healthy_seconds(self, times: Seconds, step: float) -> float:
        """Return the host-seconds at *times* of present hosts without a fault."""
        return sum(
            float(self._is_healthy(host, times).sum()) * step
            for host in sorted(self._observed_hosts)
        )

    def undisturbed(self, times: Seconds, *but: str) -> frozenset[str]:
        """Return the hosts without a fault or a cause of the sorts *but* at all *times*."""
        return frozenset(
            host for host in self._observed_hosts if self._is_healthy(host, times, *but).all()
        )

    def _is_healthy(self, host: str, times: Seconds, *but: str) -> Flags:
        """Return when *host* was present without a fault or a cause of the sorts *but*."""
        is_healthy = np.ones(times.shape, bool)
        for fault in self.by_host.get(host, ()):
            if fault.each.sort in ("faults", *but):
                is_healthy &= ~((times >= fault.begin) & (times <= fault.reportable_until))
        for away in self._world.schedule.downtimes_by_host.get(self._index[host], []):
            is_healthy &= ~((times >= away.begin) & (times < away.end))
        return is_healthy

    @cached_property
    def _observed_hosts(self) -> frozenset[str]:
        return frozenset(self._names[host] for host in self._hosts)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: host for host, name in enumerate(self._names)}


def _true_fault(world: World, row: np.void, host_counts: int) -> TrueFault:
    fault_class = world.schedule.classes[int(row["cls"])]
    machine, begin = world.machines[int(row["host"])], float(row["begin"])
    times = begin, begin + float(row["onset"]), float(row["end"])
    parts = _parts(machine.gpus, fault_class, int(row["part"]))
    return TrueFault(machine.name, int(row["cause"]), fault_class, *times, parts, host_counts > 1)


def _parts(gpus: Sequence[str], each: FaultClass, part: int) -> tuple[str, ...]:
    if part < 0:
        return ()
    if each.per in OF_GPU:
        return gpus[part], GPU_ADDRESSES[part], f"gpu {GPU_ADDRESSES[part]}"
    if each.per in OF_PORT:
        return RDMA_PORTS[part], RDMA_PORTS[part].partition("/")[0], NIC_ADDRESSES[part]
    return ()


def node_days(world: World) -> float:
    """Return the days for which the hosts of *world* were present."""
    away = sum(
        min(downtime.end, world.seconds) - downtime.begin for downtime in world.schedule.downtimes
    )
    return (world.scenario.hosts * world.seconds - away) / 86400.0
