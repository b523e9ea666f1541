"""Events of simulated hosts: kernel lines of an incident, parsed by the agent's own rules, and the processes on GPUs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..agent.kernel_log.rules import classify
from ..contract.wire import telemetry_pb2
from .amd import KERNEL_LINES as AMD_KERNEL_LINES
from .faults import Ints
from .jobs import SimulatedJob
from .machine import GPU_ADDRESSES, GPUS, SimulatedMachine
from .noise import Floats
from .scenario import FaultClass
from .window import StepState

_UNKNOWN = "pid='<unknown>', name=<unknown>"
#: Class -> lines at the end of its onset; {gpu} is the address.
_KERNEL_LINES: dict[str, tuple[str, ...]] = {
    "nvlink": (
        "NVRM: Xid (PCI:{gpu}): 74, " + _UNKNOWN + ", NVLink: fatal error detected on link 0"
        "(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    ),
    "nvlink_switch": (
        "NVRM: Xid (PCI:{gpu}): 74, " + _UNKNOWN + ", NVLink: fatal error detected on link 0"
        "(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    ),
    "gsp_hang": (
        "NVRM: Xid (PCI:{gpu}): 119, "
        + _UNKNOWN
        + ", Timeout after 6s of waiting for RPC response "
        "from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x2080a02a 0x4).",
    ),
    "gpu_lost": ("NVRM: Xid (PCI:{gpu}): 79, " + _UNKNOWN + ", GPU has fallen off the bus.",),
    "gpu_fault": (
        "NVRM: Xid (PCI:{gpu}): 109, "
        + _UNKNOWN
        + ", Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x1c",
    ),
}
_HBM_LINES = (
    "NVRM: Xid (PCI:{gpu}): 48, " + _UNKNOWN + ", An uncorrectable double bit error (DBE) has been "
    "detected on GPU in the framebuffer at partition 5, subpartition 0.",
    "NVRM: Xid (PCI:{gpu}): 95, "
    + _UNKNOWN
    + ", Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
)
_REMAPPED_LINE = (
    "NVRM: Xid (PCI:{gpu}): 63, "
    + _UNKNOWN
    + ", Row Remapper: New row marked for remapping, reset gpu to activate."
)
_NOT_REMAPPED_LINE = (
    "NVRM: Xid (PCI:{gpu}): 64, "
    + _UNKNOWN
    + ", Row Remapper: All reserved rows for bank are remapped."
)

PROCESS_EVENT = "gpu.process"
FIRST_PID = 4000
#: Number of the first job beside another; it has the GPU of a single host.
NEIGHBOR_JOB_FIRST = 9000
#: A running process is reported again after this time (agent/collectors/change_events.py): else it counts as ended
#: after an hour.
REPEAT_SECONDS = 1800.0


def incident_events(
    each: FaultClass, machine: SimulatedMachine, cause: int, part: int, variant: float
) -> Iterator[telemetry_pb2.HealthEvent]:
    """Yield the agent's events for an incident of *each* at the end of its onset. No clock is set."""
    gpu = max(part, 0)
    texts: tuple[str, ...] = _KERNEL_LINES.get(each.name, ())
    if machine.is_amd:
        texts = AMD_KERNEL_LINES.get(each.name, ())
    elif each.name == "hbm":
        failed = variant < each.remap_failed_ratio
        texts = (*_HBM_LINES, _NOT_REMAPPED_LINE if failed else _REMAPPED_LINE)
    for text in texts:
        line = text.format(gpu=GPU_ADDRESSES[gpu].removesuffix(".0"))
        parsed = classify(line)
        if parsed is not None:
            yield telemetry_pb2.HealthEvent(
                event_id=_event_id(machine.name, cause, parsed.code),
                device_kind="gpu",
                device=machine.gpus[gpu],
                name=parsed.name,
                code=parsed.code,
                message=line,
                count=1,
                process_id=parsed.process_id,
                process_name=parsed.process_name,
                attributes=parsed.attributes,
            )


def _event_id(host: str, cause: int, code: int) -> str:
    """Return an event's id, which does not reveal its cause: only the truth log does."""
    return hashlib.blake2b(f"{host} {cause} {code}".encode(), digest_size=12).hexdigest()


class _RankProcess(NamedTuple):
    """A process of a job on a GPU, by the GPU's index."""

    gpu: int
    pid: int
    job_id: str
    rank: int
    world_size: int

    def event(self, gpu: str, state: str, seconds: float) -> telemetry_pb2.HealthEvent:
        """Return its report. *gpu*: UUID; *seconds*: world time."""
        return telemetry_pb2.HealthEvent(
            event_id=f"/{gpu}//{self.pid}/{self.job_id}",
            device_kind="gpu",
            device=gpu,
            name=PROCESS_EVENT,
            revision=1 + int(seconds),
            count=1,
            process_id=self.pid,
            process_name="python",
            attributes={
                "state": state,
                "source": "slurm",
                "job_id": self.job_id,
                "rank": str(self.rank),
                "world_size": str(self.world_size),
            },
        )


class RankEvents:
    """Reported processes of some hosts. A silent host sends missed reports as soon as it reports again."""

    def __init__(
        self, machines: Sequence[SimulatedMachine], jobs: Sequence[SimulatedJob], hosts: Ints
    ) -> None:
        """*hosts*: indexes into *machines*, in the order of a moment's slots."""
        self._machines, self._jobs, self._hosts = machines, jobs, hosts
        self._reported_jobs: Ints = np.full(hosts.size, -1, np.int64)
        self._reported_neighbors: Ints = np.full(hosts.size, -1, np.int64)
        self._reported_seconds: Floats = np.zeros(hosts.size)

    def step(self, moment: StepState) -> Iterator[tuple[int, telemetry_pb2.HealthEvent]]:
        """Yield (host, event); no clock is set."""
        slots = self._hosts.size
        running, is_reachable = moment.jobs[:slots], ~moment.silent[:slots]
        neighbors = moment.neighbor_gpus[:slots]
        # Reports of an earlier boot are over.
        self._reported_jobs[moment.booted[:slots]] = -1
        self._reported_neighbors[moment.booted[:slots]] = -1
        changed = running != self._reported_jobs
        has_changed_neighbor = neighbors != self._reported_neighbors
        is_old = moment.seconds - self._reported_seconds >= REPEAT_SECONDS
        is_repeat_due = is_old & ((running >= 0) | (neighbors >= 0))
        is_due = is_reachable & (changed | has_changed_neighbor | is_repeat_due)
        for slot in np.flatnonzero(is_due).tolist():
            host = int(self._hosts[slot])
            job, neighbor = int(running[slot]), int(neighbors[slot])
            if changed[slot]:
                yield from self._events(host, int(self._reported_jobs[slot]), "ended", moment)
            if changed[slot] or is_repeat_due[slot]:
                yield from self._events(host, job, "running", moment)
            if has_changed_neighbor[slot]:
                before = int(self._reported_neighbors[slot])
                yield from self._neighbor_events(host, before, "ended", moment)
            yield from self._neighbor_events(host, neighbor, "running", moment)
            self._reported_jobs[slot], self._reported_seconds[slot] = job, moment.seconds
            self._reported_neighbors[slot] = neighbor

    def _events(
        self, host: int, number: int, state: str, moment: StepState
    ) -> Iterator[tuple[int, telemetry_pb2.HealthEvent]]:
        """Yield a report of each process of a job; none if *number* is -1."""
        if number < 0:
            return
        job, machine = self._jobs[number], self._machines[host]
        first, world_size = GPUS * int(np.searchsorted(job.hosts, host)), GPUS * job.hosts.size
        for gpu in range(GPUS):
            process = _RankProcess(gpu, FIRST_PID + gpu, str(1 + number), first + gpu, world_size)
            yield host, process.event(machine.gpus[gpu], state, moment.seconds)

    def _neighbor_events(
        self, host: int, gpu: int, state: str, moment: StepState
    ) -> Iterator[tuple[int, telemetry_pb2.HealthEvent]]:
        """Yield a report of the process of a host's other job; none if *gpu* is -1."""
        if gpu < 0:
            return
        process = _RankProcess(gpu, FIRST_PID + GPUS, str(NEIGHBOR_JOB_FIRST + host), 0, 1)
        yield host, process.event(self._machines[host].gpus[gpu], state, moment.seconds)
