"""The samplers that live, and who of them does what."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from .messages import GPU, PROCESSES_MAX, Action, EndSampler, Fork, Give, Task
from .quarantine import Unit

SECOND_NS = 1_000_000_000
#: What could not be done is tried again after this long, then ever later.
RESTART_NS, RESTART_NS_MAX = SECOND_NS, 60 * SECOND_NS
#: Of a lane that is late, so many looks are remembered.
LATE_LOOKS = 6


class Role(Enum):
    """What a process is for."""

    STANDBY = "standby"
    LANE = "lane"
    SOLO = "solo"
    ABANDONED = "abandoned"
    ENDING = "ending"


@dataclass(slots=True)
class Process:
    """A sampler that lives, as far as is known."""

    serial: int
    role: Role = Role.STANDBY
    task: Task | None = None
    unit: Unit | None = None  # of a solo one, and of one that was left behind
    given_ns: int = 0
    heard_ns: int = 0
    rounds: int = 0
    well_rounds: int = 0
    calls: int = -1
    calls_ns: int = 0
    warmed: bool = False
    killed: bool = False
    #: Devices that it never had in its hands: spared from the beginning.
    never: frozenset[str] = frozenset()

    @property
    def lane(self) -> str:
        """Its lane; of a standby that of the GPUs, whose driver it has made ready."""
        return self.task.lane if self.task else GPU

    @property
    def is_of_use(self) -> bool:
        """Whether it does something, or waits for it: it is neither left behind nor to end."""
        return self.role is not Role.ABANDONED and self.role is not Role.ENDING

    def may_hold(self, device: str | None) -> bool:
        """Say whether it may have a handle of a GPU, or, for None, of any or of their driver."""
        if device is None:  # one that was warm has the driver open, whatever it does now
            return self.warmed or (self.task is not None and self.lane == GPU)
        if self.task is None or self.lane != GPU:
            return False
        return (
            device == self.task.only_device if self.task.only_device else device not in self.never
        )

    def holds_any(self, devices: Iterable[str | None]) -> bool:
        """Say whether it may have a handle of any of these."""
        return any(map(self.may_hold, devices))


@dataclass(slots=True)
class Lane:
    """A lane, and who has it."""

    name: str
    serial: int = 0  # 0: nobody
    deaths: int = 0
    next_start_ns: int = 0
    late: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=LATE_LOOKS))
    known: tuple[str, ...] = ()  # its devices, where somebody told
    trials: int = 0  # of its driver


def later(times: int) -> int:
    """Return the wait after so many failures."""
    return min(RESTART_NS << min(times, 6), RESTART_NS_MAX)


class Crew:
    """Every process that was forked and has not ended."""

    def __init__(self, lanes: Iterable[str]) -> None:
        self.processes: dict[int, Process] = {}
        self.lanes = {name: Lane(name) for name in lanes}
        self._serial = 0
        self._fork_ns = self._fork_failures = 0

    def of(self, role: Role) -> list[Process]:
        """Return those that do this."""
        return [each for each in self.processes.values() if each.role is role]

    def of_lane(self, lane: str) -> Process | None:
        """Return the one that samples the lane."""
        return self.processes.get(self.lanes[lane].serial) if lane in self.lanes else None

    def free(self, now_ns: int) -> tuple[Process | None, list[Action]]:
        """Return the standby, or one that is forked now, or None where there can be no more."""
        if standby := self.of(Role.STANDBY):
            return standby[0], []
        if now_ns < self._fork_ns or len(self.processes) >= PROCESSES_MAX:
            return None, []
        self._serial += 1
        process = self.processes[self._serial] = Process(self._serial)
        return process, [Fork(process.serial)]

    def adopt(self, unit: Unit) -> Process:
        """Return one that was left behind in a unit before we were."""
        self._serial += 1
        task = Task(unit[0], only_device=unit[1])
        process = Process(self._serial, Role.ABANDONED, task, unit, killed=True)
        self.processes[process.serial] = process
        return process

    def give(self, process: Process, task: Task, now_ns: int) -> Action:
        """Have it do *task* from now on."""
        if process.task is None:
            process.never, process.rounds, process.heard_ns = task.spared, 0, now_ns
        process.never &= task.spared
        process.task, process.given_ns = task, now_ns
        return Give(process.serial, task)

    def vacate(self, process: Process) -> None:
        """Nobody has its lane any more, if it had one."""
        for lane in self.lanes.values():
            if lane.serial == process.serial:
                lane.serial = 0
                lane.late.clear()

    def end(self, process: Process, now_ns: int) -> Action:
        """Have it end."""
        self.vacate(process)
        process.role, process.given_ns = Role.ENDING, now_ns
        return EndSampler(process.serial)

    def restart_later(self, lane: str, now_ns: int) -> None:
        """A lane's process ended by itself: another one begins at once, and the next one later."""
        deaths = self.lanes[lane].deaths
        self.lanes[lane].next_start_ns = now_ns + (later(deaths - 1) if deaths else 0)
        self.lanes[lane].deaths += 1

    def failed(self, now_ns: int) -> None:
        """One ended before it said a word, or could not be forked: a host without a process to spare, perhaps."""
        self._fork_failures += 1
        self._fork_ns = now_ns + later(self._fork_failures)

    def works(self) -> None:
        """One has said a word."""
        self._fork_failures = 0
