"""Table of live samplers and their roles."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from .collector_groups import GPU, PROCESSES_MAX
from .messages import Action, AssignTask, EndSampler, Fork, SamplerTask
from .quarantine import Unit

SECOND_NS = 1_000_000_000
#: Delay after a first failure, and the upper limit of its doubling.
RESTART_NS, RESTART_NS_MAX = SECOND_NS, 60 * SECOND_NS
#: Checks of a late group that are remembered.
LATE_CHECKS_MAX = 6


class ProcessRole(Enum):
    """The role of a process."""

    STANDBY = "standby"
    GROUP = "lane"
    PROBE = "solo"
    ABANDONED = "abandoned"
    ENDING = "ending"


@dataclass(slots=True)
class SamplerProcess:
    """A sampler that is not known to have ended."""

    serial: int
    role: ProcessRole = ProcessRole.STANDBY
    task: SamplerTask | None = None
    unit: Unit | None = None  # only of a probe and an abandoned process
    assigned_ns: int = 0
    last_received_ns: int = 0
    batches: int = 0
    healthy_batches: int = 0
    calls: int = -1
    calls_ns: int = 0
    warmed: bool = False
    killed: bool = False
    #: Devices that it never opened: excluded since its first task.
    never_held: frozenset[str] = frozenset()

    @property
    def group(self) -> str:
        """Its group. A standby belongs to the GPUs, whose driver it has warmed up."""
        return self.task.group if self.task else GPU

    @property
    def is_active(self) -> bool:
        """Whether it has work or waits for work: neither abandoned nor ending."""
        return self.role is not ProcessRole.ABANDONED and self.role is not ProcessRole.ENDING

    def may_hold(self, device: str | None) -> bool:
        """Return whether it may hold a GPU's handle; None: a handle of any GPU or the driver."""
        if device is None:  # a warmed process has the driver open, regardless of its task
            return self.warmed or (self.task is not None and self.group == GPU)
        if self.task is None or self.group != GPU:
            return False
        return (
            device == self.task.only_device
            if self.task.only_device
            else device not in self.never_held
        )

    def may_hold_any(self, devices: Iterable[str | None]) -> bool:
        return any(map(self.may_hold, devices))


@dataclass(slots=True)
class SamplerGroup:
    """A group of collectors and its process."""

    name: str
    serial: int = 0  # 0: no process
    deaths: int = 0
    next_start_ns: int = 0
    late_checks: deque[tuple[int, str]] = field(
        default_factory=lambda: deque(maxlen=LATE_CHECKS_MAX)
    )
    devices: tuple[str, ...] = ()  # empty while unknown
    probes: int = 0  # probes of its driver


def backoff_ns(failures: int) -> int:
    """Return the delay after *failures* failures."""
    return min(RESTART_NS << min(failures, 6), RESTART_NS_MAX)


class ProcessTable:
    """All processes that were forked and have not ended."""

    def __init__(self, groups: Iterable[str]) -> None:
        self.processes: dict[int, SamplerProcess] = {}
        self.groups = {name: SamplerGroup(name) for name in groups}
        self._serial = 0
        self._fork_ns = self._fork_failures = 0

    def with_role(self, role: ProcessRole) -> list[SamplerProcess]:
        return [process for process in self.processes.values() if process.role is role]

    def of_group(self, group: str) -> SamplerProcess | None:
        """Return the process that samples *group*, or None."""
        return self.processes.get(self.groups[group].serial) if group in self.groups else None

    def take_standby(self, now_ns: int) -> tuple[SamplerProcess | None, list[Action]]:
        """Return the standby, else a new process; None at PROCESSES_MAX or before the retry."""
        if standby := self.with_role(ProcessRole.STANDBY):
            return standby[0], []
        if now_ns < self._fork_ns or len(self.processes) >= PROCESSES_MAX:
            return None, []
        self._serial += 1
        process = self.processes[self._serial] = SamplerProcess(self._serial)
        return process, [Fork(process.serial)]

    def adopt(self, unit: Unit) -> SamplerProcess:
        """Add and return a process that an earlier agent abandoned in *unit*."""
        self._serial += 1
        task = SamplerTask(unit[0], only_device=unit[1])
        process = SamplerProcess(self._serial, ProcessRole.ABANDONED, task, unit, killed=True)
        self.processes[process.serial] = process
        return process

    def assign(self, process: SamplerProcess, task: SamplerTask, now_ns: int) -> Action:
        if process.task is None:
            process.never_held = task.excluded_devices
            process.batches, process.last_received_ns = 0, now_ns
        process.never_held &= task.excluded_devices
        process.task, process.assigned_ns = task, now_ns
        return AssignTask(process.serial, task)

    def free_group(self, process: SamplerProcess) -> None:
        for group in self.groups.values():
            if group.serial == process.serial:
                group.serial = 0
                group.late_checks.clear()

    def end(self, process: SamplerProcess, now_ns: int) -> Action:
        self.free_group(process)
        process.role, process.assigned_ns = ProcessRole.ENDING, now_ns
        return EndSampler(process.serial)

    def schedule_restart(self, group: str, now_ns: int) -> None:
        """Schedule a restart after an unrequested end: the first at once, later ones delayed."""
        deaths = self.groups[group].deaths
        self.groups[group].next_start_ns = now_ns + (backoff_ns(deaths - 1) if deaths else 0)
        self.groups[group].deaths += 1

    def start_failed(self, now_ns: int) -> None:
        """Note a failed start: the fork failed (perhaps at a process limit), or no message came."""
        self._fork_failures += 1
        self._fork_ns = now_ns + backoff_ns(self._fork_failures)

    def start_succeeded(self) -> None:
        """Note that a process has sent a message."""
        self._fork_failures = 0
