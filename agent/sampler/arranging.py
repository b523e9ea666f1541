"""What should be, against what is: each lane has a sampler, each trial that is due one of its own, and one waits."""

from __future__ import annotations

from .actions import Action, Warm
from .codec import Task
from .crew import Crew, Lane, Process, Role
from .lanes import GPU, PROCESSES_MAX
from .ward import TRY_NS, TRY_NS_MAX, Sick, State, Ward

SECOND_NS = 1_000_000_000
#: Processes that look at a single device, to try it or because it is slow.
SOLO_MAX = 2
#: With so many left behind nothing is tried again until one of them has ended.
ABANDONED_MAX = 10
TRIAL_PERIOD_NS, SLOW_PERIOD_NS = SECOND_NS // 4, 10 * SECOND_NS


class Arranging:
    """Brings the crew to what the ward asks for."""

    def __init__(self, ward: Ward, crew: Crew) -> None:
        self._ward, self._crew = ward, crew
        self._warm_ns = self._warm_failures = 0
        #: Whether there is nothing to arrange until something happens: no time that passes changes anything.
        self.is_settled = False

    def not_warm(self, now_ns: int) -> None:
        """Making ready failed or hung: the next standby does without, for a while."""
        self._warm_ns = now_ns + min(TRY_NS << min(self._warm_failures, 10), TRY_NS_MAX)
        self._warm_failures += 1

    def anew(self, now_ns: int) -> list[Action]:
        """A sampler ended because its libraries are of another driver: the standby's are too."""
        standby = [each for each in self._crew.of(Role.STANDBY) if each.warmed]
        return [self._crew.end(each, now_ns) for each in standby]

    def arrange(self, now_ns: int) -> list[Action]:
        """Return what brings it about. Asked again, it is nothing."""
        self._ward.expire(now_ns)
        actions: list[Action] = []
        for lane in self._crew.lanes.values():
            actions += self._lane(lane, now_ns)
        for sick in list(self._ward.sick.values()):
            actions += self._solo(sick, now_ns)
        actions += self._standby(now_ns)
        self.is_settled = self._ward.is_empty and self._is_complete()
        return actions

    def _is_complete(self) -> bool:
        """Every lane has its process, and a standby waits, as ready as it can be."""
        is_warm = [
            each.warmed or GPU not in self._crew.lanes for each in self._crew.of(Role.STANDBY)
        ]
        return any(is_warm) and all(map(self._crew.of_lane, self._crew.lanes))

    def _lane(self, lane: Lane, now_ns: int) -> list[Action]:
        ward, process = self._ward, self._crew.of_lane(lane.name)
        task = Task(lane.name, ward.spared(lane.name), ward.left_out(lane.name))
        actions: list[Action] = []
        if process is not None:
            if ward.is_open(lane.name) and not process.holds_any(ward.released):
                same = process.task == task
                return [] if same else [self._crew.give(process, task, now_ns)]
            actions.append(self._crew.end(process, now_ns))
        if not ward.is_open(lane.name) or now_ns < lane.next_start_ns:
            return actions
        found, forked = self._crew.free(now_ns)
        if found is not None:
            found.role, lane.serial = Role.LANE, found.serial
            actions += [*forked, self._crew.give(found, task, now_ns)]
        return actions

    def _standby(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        allowed = GPU in self._crew.lanes and self._ward.is_open(GPU)
        for process in self._crew.of(Role.STANDBY):
            if process.warmed and not allowed:
                actions.append(self._crew.end(process, now_ns))
        if not self._crew.of(Role.STANDBY) and len(self._crew.processes) < PROCESSES_MAX - 1:
            actions += self._crew.free(now_ns)[1]
        for process in self._crew.of(Role.STANDBY):
            if allowed and now_ns >= self._warm_ns and not process.warmed:
                process.warmed = True
                actions.append(Warm(process.serial))
        return actions

    # ---- one device by itself

    def _solo(self, sick: Sick, now_ns: int) -> list[Action]:
        process = self._crew.processes.get(sick.solo)
        if process is None:
            due = now_ns >= sick.next_ns and self._may_try(sick)
            return self._try(sick, now_ns) if due else []
        if process.holds_any(self._ward.released):
            sick.solo, sick.state = 0, State.LEFT_ALONE
            return [self._crew.end(process, now_ns)]
        task = self._task(sick, process)
        return [] if process.task == task else [self._crew.give(process, task, now_ns)]

    def _may_try(self, sick: Sick) -> bool:
        lane, device, _ = sick.unit
        released = self._ward.released
        if sick.abandoned or not self._is_room(lane):
            return False
        if lane == GPU and (None in released or device in released):
            return False
        if sick.is_whole:
            return bool(self._candidates(lane)) or not self._knows_devices(lane)
        if not self._ward.is_open(lane):
            return False  # first the driver, then its devices
        return not device or lane == GPU or (lane, "", sick.collector) not in self._ward.sick

    def _is_room(self, lane: str) -> bool:
        """One trial of a lane at a time, few slow devices, and not too many left behind already."""
        solos = self._crew.of(Role.SOLO)
        trials = [each for each in solos if self.state_of(each) is not State.SLOW]
        busy = any(each.lane == lane for each in trials) or len(solos) >= SOLO_MAX
        return not busy and len(self._crew.of(Role.ABANDONED)) < ABANDONED_MAX

    def state_of(self, process: Process) -> State:
        """Return how it stands with the unit that a process looks at."""
        sick = self._ward.sick.get(process.unit) if process.unit else None
        return sick.state if sick else State.WELL

    def _try(self, sick: Sick, now_ns: int) -> list[Action]:
        process, forked = self._crew.free(now_ns)
        if process is None:
            return []
        process.role, process.unit = Role.SOLO, sick.unit
        sick.solo = process.serial
        if sick.state is not State.SLOW:
            sick.state = State.TRIED
        return [*forked, self._crew.give(process, self._task(sick, process), now_ns)]

    def _task(self, sick: Sick, process: Process) -> Task:
        lane, device, collector = sick.unit
        period_ns = SLOW_PERIOD_NS if sick.state is State.SLOW else TRIAL_PERIOD_NS
        if sick.is_whole:
            device = process.task.only_device if process.task else self._candidate(lane)
        others = self._ward.spared(lane) | frozenset(self._crew.lanes[lane].known)
        return Task(lane, others - {device}, frozenset(), device, collector, period_ns)

    def _knows_devices(self, lane: str) -> bool:
        sick = any(unit[0] == lane and unit[1] for unit in self._ward.sick)
        return sick or bool(self._crew.lanes[lane].known)

    def _candidates(self, lane: str) -> list[str]:
        """Return the devices with which a driver can be tried: those not seen hung first, none that somebody is in."""
        sick = {unit[1]: e for unit, e in self._ward.sick.items() if unit[0] == lane and unit[1]}
        free = [name for name in self._crew.lanes[lane].known if name not in sick]
        free += [name for name, each in sick.items() if not each.abandoned]
        return [name for name in free if name not in self._ward.released]

    def _candidate(self, lane: str) -> str:
        """Return another one of them each time; empty: none is known."""
        free = self._candidates(lane)
        self._crew.lanes[lane].trials += 1
        return free[(self._crew.lanes[lane].trials - 1) % len(free)] if free else ""
