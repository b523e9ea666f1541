"""The simulated fleet: a job, GPUs, ports and machines stepped together, with faults that befall them."""

from __future__ import annotations

import numpy as np

from ...fingerprints.block import Block
from ...fingerprints.wire import telemetry_pb2
from ..kernel_log.table import classify
from . import faults, machines, parts
from .fast import Fast
from .faults import Fault
from .gpu_constants import GPU
from .gpus import Gpus
from .job import Job
from .memory_errors import MemoryErrors
from .nvlinks import BYTES_PER_PORT_BYTE, NvLinks
from .ports import Ports
from .tables import Tables

HOSTS_MAX = 512
#: Grid of the model's time: what NVML averages power over.
GRID_SECONDS = 0.1
#: A longer step is cut to this: a machine that slept does not owe hours of physics.
STEP_SECONDS_MAX = 60.0

Reading = tuple[str, list[Block], list[telemetry_pb2.HealthEvent]]


class SimulatedFleet:
    """*hosts* eight-GPU hosts in one job. The same seed and the same steps give the same bytes."""

    def __init__(
        self,
        seed: int,
        hosts: int,
        faults_after_seconds: float = 20.0,
        *,
        uptime_seconds: float = 3600.0,
    ) -> None:
        """Raises ValueError, in words, for what makes no fleet. *uptime_seconds*: the hosts' at start."""
        _check(seed, hosts, faults_after_seconds)
        draws = [np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(10)]
        for_faults, for_parts, for_job, for_gpus, for_memory, for_ports, for_machines = draws[:7]
        noise, for_fast, for_links = draws[7:]
        self.seed = seed
        self.machines = parts.build(hosts, for_parts)
        #: What goes wrong, when and how much. The fleet's readings never say it.
        self.truth: list[Fault] = faults.draw(for_faults, self.machines, faults_after_seconds)
        self._onset_seconds = for_faults.uniform(5.0, 7.0)
        self.job = Job(for_job, hosts, parts.GPUS)
        self.gpus = Gpus(for_gpus, noise, hosts)
        self.gpus.settle(self.job)
        self._fast = Fast(for_fast, self.gpus)
        self._links = NvLinks(for_links, hosts)
        self.memory = MemoryErrors(for_memory, noise, hosts)
        self.ports = Ports(for_ports, noise, hosts, self.job)
        self._around = machines.Machines(for_machines, noise, hosts, uptime_seconds)
        self._tables = Tables(self.machines)
        for signal, value in GPU.items():
            self._tables.put(signal, value)
        for part in (self.memory, self.ports, self._links, self._around):
            part.publish_constants(self._tables)
        self.now_seconds = 0.0
        self._stepped_seconds = -1.0  # when the last readings were taken; negative: never
        self._bursting = False
        self._burst_seconds = 0.0  # of this step
        self._begun: set[str] = set()
        self._events: list[tuple[int, telemetry_pb2.HealthEvent]] = []

    @property
    def names(self) -> list[str]:
        """The hosts' names, in order."""
        return [machine.name for machine in self.machines]

    def devices(self, host: str) -> list[telemetry_pb2.Device]:
        """Return what *host* registers with. KeyError for a host that is not of this fleet."""
        for machine in self.machines:
            if machine.name == host:
                return machine.inventory()
        raise KeyError(host)

    @staticmethod
    def labels(host: str) -> dict[str, str]:
        """Return what *host* says of its place: those of this fleet stand nowhere."""
        del host
        return {}

    def step(self, elapsed_seconds: float) -> list[Reading]:
        """Advance the model and return (host, blocks, events) of every host.

        Blocks are those of the collectors whose turn came: read them before the next step. Events
        have no clock and an id that is unique within this fleet only.
        """
        self._events = []
        end = self.now_seconds + min(max(elapsed_seconds, 0.0), STEP_SECONDS_MAX)
        while self.now_seconds < end - 1e-9:
            self._befall()
            self._advance(min(GRID_SECONDS, end - self.now_seconds))
        self.now_seconds = end
        self._befall()
        self._publish(end - max(self._stepped_seconds, 0.0))
        before, self._stepped_seconds = self._stepped_seconds, end
        return [
            (machine.name, self._tables.due(i, before, end), self._events_of(i))
            for i, machine in enumerate(self.machines)
        ]

    @staticmethod
    def offset_ns(host: int) -> int:
        """Return how far the wall clock of a host is off: those of this fleet are right."""
        del host
        return 0

    @staticmethod
    def is_away(host: int) -> bool:
        """Say whether a host is switched off: those of this fleet never are."""
        del host
        return False

    def _advance(self, seconds_max: float) -> None:
        stretch = self.job.advance(seconds_max, self.gpus.compute_speed(), self.ports.speed())
        self.gpus.advance(stretch)
        self._fast.advance(stretch)
        self.ports.advance(stretch)
        self._around.advance(stretch, self.job)
        self.now_seconds += stretch.seconds
        if self._bursting:
            self._burst_seconds += stretch.seconds

    def _publish(self, seconds: float) -> None:
        self.memory.advance(seconds)
        for fault in self.truth:
            if fault.kind == faults.ECC_XID95 and self._burst_seconds > 0:
                at = fault.host_index, fault.part_index
                self.memory.burst(*at, fault.amount, self._burst_seconds)
        self._burst_seconds = 0.0
        self._around.publish(self._tables, self.now_seconds, self.gpus.watts.sum(axis=1))
        nvlink_bytes = self.ports.moved_bytes * BYTES_PER_PORT_BYTE
        self._fast.publish(self._tables, self.ports.moved_bytes, nvlink_bytes)
        self._links.publish(self._tables, nvlink_bytes)
        self.gpus.publish(self._tables)
        self.memory.publish(self._tables)
        self.ports.publish(self._tables)

    def _events_of(self, host: int) -> list[telemetry_pb2.HealthEvent]:
        return [event for index, event in self._events if index == host]

    # Faults ------------------------------------------------------------------------------------

    def _befall(self) -> None:
        """Let each fault do what is due at this moment."""
        for fault in self.truth:
            age_seconds = self.now_seconds - fault.begins_seconds
            if age_seconds >= -1e-9:
                _BEFALL[fault.kind](self, fault, max(age_seconds, 0.0))

    def _thermal(self, fault: Fault, age_seconds: float) -> None:
        if self._first(fault.kind):
            at = fault.host_index, fault.part_index
            self.gpus.fail_cooling(*at, fault.amount, self._onset_seconds)

    def _retransmissions(self, fault: Fault, age_seconds: float) -> None:
        at = fault.host_index, fault.part_index
        self.ports.retransmissions_per_second[at] = fault.amount
        self.ports.strength[at] = min(age_seconds / faults.RDMA_GROWTH_SECONDS, 1.0)

    def _ecc(self, fault: Fault, age_seconds: float) -> None:
        self._bursting = age_seconds < faults.ECC_BURST_SECONDS - 1e-9
        if not self._bursting and self._first(fault.kind):
            at = fault.host_index, fault.part_index
            self.memory.fail(*at)
            self.gpus.lose(*at)
            self.job.lose(*at)
            self._around.kernels.tell_xid(fault.host_index, self.now_seconds)
            self._events.append((fault.host_index, self._xid(fault)))

    def _first(self, what: str) -> bool:
        """Say whether this is the first time that *what* is asked about."""
        first = what not in self._begun
        self._begun.add(what)
        return first

    def _xid(self, fault: Fault) -> telemetry_pb2.HealthEvent:
        address = parts.GPU_ADDRESSES[fault.part_index].removesuffix(".0")
        line = (
            f"NVRM: Xid (PCI:{address}): 95, pid='<unknown>', name=<unknown>, "
            "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"
        )
        notice = classify(line)
        assert notice is not None, "the agent itself reads no XID out of this line"
        return telemetry_pb2.HealthEvent(
            event_id=f"simulated-{self.seed}-{fault.host}-xid-95",
            device_kind="gpu",
            device=fault.device,
            name=notice.name,
            code=notice.code,
            message=line,
            count=1,
            process_id=notice.process_id,
            process_name=notice.process_name,
            attributes=notice.attributes,
        )


_BEFALL = {
    faults.THERMAL: SimulatedFleet._thermal,
    faults.RDMA_RETRANSMISSIONS: SimulatedFleet._retransmissions,
    faults.ECC_XID95: SimulatedFleet._ecc,
}


def _check(seed: int, hosts: int, faults_after_seconds: float) -> None:
    if seed < 0:
        raise ValueError(f"seed {seed}: expected 0 or more")
    if not 1 <= hosts <= HOSTS_MAX:
        raise ValueError(f"hosts {hosts}: expected 1 to {HOSTS_MAX}")
    if not 0 <= faults_after_seconds < float("inf"):
        raise ValueError(f"faults after {faults_after_seconds} s: expected 0 or more seconds")
