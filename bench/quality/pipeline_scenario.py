"""One run of the third world as data: faults of hosts, behavior of the workload, jobs per host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shares = NDArray[np.float32]
Rows = NDArray[np.intp]

GPUS = 8
SLOT_SECONDS = 0.02
SLOTS_PER_SECOND = 50
FOREVER = 1e9

#: Faults of a host.
FAULT_KINDS = ("thermal", "power_cap", "silent_host", "silent_gpu", "pcie", "nic", "host_cpu")
#: Behavior of a workload or a site that no host causes.
CONTROL_KINDS = (
    "healthy", "sequence", "stages", "moe", "checkpoint_30s", "checkpoint_120s", "checkpoint_one_writer", "evaluation",
    "stall_all", "rotating_stalls", "slow_all", "starts", "ends", "mixed", "resize", "shared", "skewed", "agents_silent",
)  # fmt: skip


@dataclass(frozen=True)
class HostFault:
    """One fault of one host.

    *slowdown*: how much longer its part of a step takes at the fault's height.
    """

    kind: str
    slowdown: float
    host: int
    onset: float = 180.0
    heals: float = FOREVER
    gpu: int = 5  # with the fault, if it affects one GPU

    def strength(self, seconds: Floats) -> Floats:
        """Return the strength at *seconds*, 0 to 1: heat and cooling take about a minute."""
        is_on = (seconds >= self.onset) & (seconds < self.heals)
        if self.kind != "thermal":
            return is_on.astype(float)
        rise = 1 - np.exp(-np.maximum(seconds - self.onset, 0) / 40.0)
        fall = np.exp(-np.maximum(seconds - self.heals, 0) / 30.0)
        return np.asarray(np.where(seconds >= self.onset, np.minimum(rise, 1.0) * fall, 0.0))


@dataclass(frozen=True)
class GangScenario:
    """One run of the world. *control*: behavior of workload or site beside the faults."""

    seed: int
    faults: tuple[HostFault, ...] = ()
    control: str = ""
    hosts: int = 16
    seconds: int = 480
    onset: float = 180.0  # of the control
    has_gpm: bool = True
    is_attributed: bool = True
    is_reported: bool = True  # by ReportGangs
    #: (host, first second, last second) of an agent's silence.
    silences: tuple[tuple[int, float, float], ...] = ()
    #: Evidence that never arrives: names of `pipeline_readings.EVIDENCE`.
    withheld: frozenset[str] = frozenset()

    @property
    def culprits(self) -> frozenset[int]:
        return frozenset(fault.host for fault in self.faults)


@dataclass(frozen=True)
class GangRun:
    """A job on some GPUs for some time. *gpus*: flat numbers by (stage, replica, rank)."""

    job_id: int
    gpus: Rows
    begin: float
    end: float

    @property
    def hosts(self) -> tuple[int, ...]:
        return tuple(sorted(set((self.gpus.ravel() // GPUS).tolist())))
