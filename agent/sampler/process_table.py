"""Table of live samplers and their roles."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from .messages import GPU, PROCESSES_MAX, Action, AssignTask, EndSampler, Fork, SamplerTask
from .quarantine import Unit

SECOND_NS = 1_000_000_000
#: What could not be done is tried again after this long, then ever later.
RESTART_NS, RESTART_NS_MAX = SECOND_NS, 60 * SECOND_NS
#: This many looks at a late group are remembered.
LATE_CHECKS_MAX = 6


class ProcessRole(Enum):
    """What a process is for."""

    STANDBY = "standby"
    GROUP = "lane"
    PROBE = "solo"
    ABANDONED = "abandoned"
    ENDING = "ending"


@dataclass(slots=True)
class SamplerProcess:
    """A sampler that lives, as far as is known."""

    serial: int
    role: ProcessRole = ProcessRole.STANDBY
    task: SamplerTask | None = None
    unit: Unit | None = None  # of a solo one, and of one that was abandoned
    assigned_ns: int = 0
    last_received_ns: int = 0
    batches: int = 0
    healthy_batches: int = 0
    calls: int = -1
    calls_ns: int = 0
    warmed: bool = False
    killed: bool = False
    #: Devices that it never had in its hands: spared from the beginning.
    never_held: frozenset[str] = frozenset()

    @property
    def group(self) -> str:
        """Its lane; of a standby that of the GPUs, whose driver it has made ready."""
        return self.task.group if self.task else GPU

    @property
    def is_active(self) -> bool:
        """Whether it does something, or waits for it: it is neither left behind nor to end."""
        return self.role is not ProcessRole.ABANDONED and self.role is not ProcessRole.ENDING

    def may_hold(self, device: str | None) -> bool:
        """Return whether it may have a handle of a GPU, or, for None, of any or of their driver."""
        if device is None:  # one that was warm has the driver open, whatever it does now
            return self.warmed or (self.task is not None and self.group == GPU)
        if self.task is None or self.group != GPU:
            return False
        return (
            device == self.task.only_device
            if self.task.only_device
            else device not in self.never_held
        )

    def may_hold_any(self, devices: Iterable[str | None]) -> bool:
        """Return whether it may have a handle of any of these."""
        return any(map(self.may_hold, devices))


@dataclass(slots=True)
class SamplerGroup:
    """A lane, and who has it."""

    name: str
    serial: int = 0  # 0: nobody
    deaths: int = 0
    next_start_ns: int = 0
    late_checks: deque[tuple[int, str]] = field(
        default_factory=lambda: deque(maxlen=LATE_CHECKS_MAX)
    )
    devices: tuple[str, ...] = ()  # its devices, if known
    probes: int = 0  # of its driver


def backoff_ns(failures: int) -> int:
    """Return the wait after this many failures."""
    return min(RESTART_NS << min(failures, 6), RESTART_NS_MAX)


class ProcessTable:
    """Every process that was forked and has not ended."""

    def __init__(self, groups: Iterable[str]) -> None:
        self.processes: dict[int, SamplerProcess] = {}
        self.groups = {name: SamplerGroup(name) for name in groups}
        self._serial = 0
        self._fork_ns = self._fork_failures = 0

    def with_role(self, role: ProcessRole) -> list[SamplerProcess]:
        """Return those that do this."""
        return [each for each in self.processes.values() if each.role is role]

    def of_group(self, group: str) -> SamplerProcess | None:
        """Return the one that samples the lane."""
        return self.processes.get(self.groups[group].serial) if group in self.groups else None

    def take_standby(self, now_ns: int) -> tuple[SamplerProcess | None, list[Action]]:
        """Return the standby, or one that is forked now, or None where there can be no more."""
        if standby := self.with_role(ProcessRole.STANDBY):
            return standby[0], []
        if now_ns < self._fork_ns or len(self.processes) >= PROCESSES_MAX:
            return None, []
        self._serial += 1
        process = self.processes[self._serial] = SamplerProcess(self._serial)
        return process, [Fork(process.serial)]

    def adopt(self, unit: Unit) -> SamplerProcess:
        """Return one that was abandoned in a unit before we were."""
        self._serial += 1
        task = SamplerTask(unit[0], only_device=unit[1])
        process = SamplerProcess(self._serial, ProcessRole.ABANDONED, task, unit, killed=True)
        self.processes[process.serial] = process
        return process

    def assign(self, process: SamplerProcess, task: SamplerTask, now_ns: int) -> Action:
        """Have it do *task* from now on."""
        if process.task is None:
            process.never_held, process.batches, process.last_received_ns = (
                task.excluded_devices,
                0,
                now_ns,
            )
        process.never_held &= task.excluded_devices
        process.task, process.assigned_ns = task, now_ns
        return AssignTask(process.serial, task)

    def free_group(self, process: SamplerProcess) -> None:
        """Nobody has its lane any more, if it had one."""
        for group in self.groups.values():
            if group.serial == process.serial:
                group.serial = 0
                group.late_checks.clear()

    def end(self, process: SamplerProcess, now_ns: int) -> Action:
        """Have it end."""
        self.free_group(process)
        process.role, process.assigned_ns = ProcessRole.ENDING, now_ns
        return EndSampler(process.serial)

    def schedule_restart(self, group: str, now_ns: int) -> None:
        """A lane's process ended by itself: another one begins at once, and the next one later."""
        deaths = self.groups[group].deaths
        self.groups[group].next_start_ns = now_ns + (backoff_ns(deaths - 1) if deaths else 0)
        self.groups[group].deaths += 1

    def start_failed(self, now_ns: int) -> None:
        """One ended before it said a word, or could not be forked: a host without a process to spare, perhaps."""
        self._fork_failures += 1
        self._fork_ns = now_ns + backoff_ns(self._fork_failures)

    def start_succeeded(self) -> None:
        """One has said a word."""
        self._fork_failures = 0
