"""Who samples, who is left behind, what is tried again and when: observations and time in, actions out.

Nothing here touches a process or a clock: the same machine runs under the daemon and, an hour in a second, under a
test. What it guarantees, whatever happens and in any order (tests/agent/sampler/test_supervisor.py):

- at most one process is left behind in a unit, and none enters it while that one lives;
- there are never more than `PROCESSES_MAX` samplers;
- a lane spares what is unwell or released, and nothing else: a healthy device is out for the takeover at most;
- a unit that is unwell is tried after 5 s, then after twice as long each time, up to ten minutes; that it comes and
  goes does not shorten it. A driver that is taken for hung because two of its devices are is tried at once;
- who waits for a CPU, or was stopped, hangs in nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...ext.place import Seen
from .forkserver import Excuse
from .messages import GPU, PROCESSES_MAX, Action, Kill, Task, Tell, WarmSampler, What
from .process_table import Crew, Lane, Process, Role
from .quarantine import (
    LEFT_ALONE_NS,
    LEFT_ALONE_TRIES,
    TRY_NS,
    TRY_NS_MAX,
    UNITS_MAX,
    DeviceState,
    Sick,
    State,
    Unit,
    Ward,
)
from .worker import ANEW_CODE

# ----------------------------------------------------------------------
# What should be, against what is: each lane has a sampler, each trial that is due one of its own,
# and one waits.

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
                actions.append(WarmSampler(process.serial))
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


#: These open a device or a driver, which takes seconds where nobody keeps it open (no persistence mode).
OPENING_CALLS = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleBy", "nvmlDeviceGetCount")
OPENING_DEADLINE_NS = 5 * SECOND_NS
#: Of a call that lasts for so long already, it is looked again when its deadline ends.
YOUNG_NS = SECOND_NS // 5
#: But no sooner than after this: so often is it looked whether one that waits for a CPU has come out of its call.
LOOK_NS = SECOND_NS // 10
#: Who is in no call and says nothing for so long is stuck in itself, or stopped; in its first round it may open much.
SILENT_NS, SILENT_FIRST_NS = 3 * SECOND_NS, 15 * SECOND_NS
#: Who waits for a CPU is waited for; past this, as on a host whose /proc tells nonsense, the device is to blame after all.
STARVED_NS_MAX = 10 * SECOND_NS
#: An order to end is followed by a kill.
END_NS = SECOND_NS
#: A daemon that itself stood still for so long (a suspended host, a stopped process) has seen nobody hang.
STOOD_STILL_NS = 3 * SECOND_NS // 2
#: A solo round that takes no longer is well. The first one opens the device, and is not judged.
WELL_SECONDS = 0.25
#: So many of one that was slow.
WELL_ROUNDS = 3
#: A lane that is late is looked at; in the same device at so many looks within this long, that one is slow.
LATE_SAME, LATE_NS = 4, 10 * SECOND_NS
#: A lane that has come so far has nothing to make up for.
ROUNDS_WELL = 30
#: The nursery's words on one that asks for another in its place.
ANEW_WORDS = f"ended with {ANEW_CODE}"


class Supervisor:
    """See the module. Every method that returns actions returns all that is to be done now; none raises."""

    def __init__(
        self,
        lanes: Mapping[str, Mapping[str, bool]],
        *,
        deadline_ns: int = 9 * SECOND_NS // 10,
        excuse: Callable[[int], Excuse | None] = lambda _: None,
    ) -> None:
        """*lanes*: name -> collector -> whether it can spare devices. *deadline_ns*: of a call. *excuse*: why a process,
        by its serial, makes no progress, if that is not for its driver."""
        self._collectors = lanes
        self._deadline_ns, self._excuse = deadline_ns, excuse
        self._ward, self._crew = Ward(lanes), Crew(lanes)
        self._arranging = Arranging(self._ward, self._crew)
        self._look_ns = self._woke_ns = 0
        self._hanging: list[DeviceState] = []  # in a call that has longer than others
        self.abandoned_count = self.takeovers_count = 0

    # ---- what happens

    def inherit(self, now_ns: int, unit: Unit, place: Seen) -> int:
        """Note a process that an agent before this one left behind in a unit; return the serial by which it is known.
        0: there is no such unit, or one in it is known already. Before `start`."""
        lane, _, collector = unit
        collectors = self._collectors.get(lane, {})
        if unit in self._ward.sick or not collectors or (collector and collector not in collectors):
            return 0
        process = self._crew.adopt(unit)
        words = f"a process of an agent before this one has not returned from {place.call}"
        self._ward.take_in(unit, State.ABANDONED, place, now_ns, words).postpone(now_ns)
        self._ward.leave_behind(unit, process.serial)
        return process.serial

    def start(self, now_ns: int, released: Mapping[str | None, int] | None = None) -> list[Action]:
        """Begin: every lane, and a standby; without what is *released* already."""
        self._ward.released.update(released or {})
        self._look_ns = self._woke_ns = now_ns
        return self._arranging.arrange(now_ns)

    def know(self, lane: str, devices: Sequence[str]) -> None:
        """Take the names of a lane's devices, which a trial of its driver chooses from."""
        if lane in self._crew.lanes:
            self._crew.lanes[lane].known = tuple(devices)[:UNITS_MAX]

    def look(self, now_ns: int, seen: Mapping[int, Seen]) -> list[Action]:
        """Look where each process is."""
        # if that is how it always is, a hang is one all the same
        was_still = self._woke_ns == self._look_ns
        if now_ns - self._look_ns > STOOD_STILL_NS and not was_still:
            self._woke_ns = now_ns
        self._look_ns = now_ns
        self._hanging.clear()
        actions: list[Action] = []
        for process in list(self._crew.processes.values()):
            if (place := seen.get(process.serial)) is not None:
                actions += self._look_at(process, place, now_ns)
        if actions or not self._arranging.is_settled:
            actions += self._arranging.arrange(now_ns)
        return actions

    def late(self, now_ns: int, lane: str, seen: Seen) -> list[Action]:
        """A lane's turns did not come in time: note the device that it is in, which may be slow."""
        process, looks = self._crew.of_lane(lane), self._crew.lanes[lane].late
        if process is None or (not process.rounds and now_ns - process.given_ns < SILENT_FIRST_NS):
            return []
        if self._excuse(process.serial):
            return []
        device = seen.device if seen.entered_ns else ""
        looks.append((now_ns, device))
        same = [at for at, each in looks if each == device and now_ns - at <= LATE_NS]
        unit = self._ward.unit_of(lane, device, seen.collector)
        if not device or len(same) < LATE_SAME or self._ward.is_full(unit):
            return []
        words = f"{device} is slow: {lane} waited for it {len(same)} times, last in {seen.call}"
        self._ward.take_in(unit, State.SLOW, seen, now_ns, words).next_ns = now_ns
        self.takeovers_count += 1
        told = _tell("slow", unit, seen, words, 0)
        left = self._leave_behind(process, unit)
        return [told, left, *self._arranging.arrange(now_ns)]

    def heard(
        self, now_ns: int, serial: int, seconds: float, slow: frozenset[str] = frozenset()
    ) -> list[Action]:
        """A round of turns has come; together they took *seconds*, and would have longer but for devices cut short."""
        process = self._crew.processes.get(serial)
        if process is None or not process.is_of_use:
            return []
        process.heard_ns, process.rounds = now_ns, process.rounds + 1
        self._crew.works()
        if process.role is Role.LANE and process.rounds > ROUNDS_WELL:
            self._crew.lanes[process.lane].deaths = 0
        if process.role is Role.LANE and slow:
            return self._set_apart(process, slow, now_ns)
        sick = self._sick_of(process)
        if process.role is Role.SOLO and process.rounds > 1 and sick is not None:
            return self._judge(process, sick, seconds, now_ns, is_slow=sick.unit[1] in slow)
        return []

    def _set_apart(self, process: Process, slow: frozenset[str], now_ns: int) -> list[Action]:
        """Sample these by themselves, as long as there is room for a trial beside them. Their lane has cut them short,
        and so it goes on with those for which there is none."""
        actions: list[Action] = []
        for device in sorted(slow - self._ward.spared(process.lane)):
            apart = [each for each in self._ward.sick.values() if each.state is State.SLOW]
            unit = (process.lane, device, "")
            if len(apart) >= SOLO_MAX - 1 or self._ward.is_full(unit):
                break
            words = f"{device} is slow: {process.lane} cut it short, for its neighbours' sake"
            seen = Seen(0, 0, "", device, "")
            self._ward.take_in(unit, State.SLOW, None, now_ns, words).next_ns = now_ns
            actions.append(_tell("slow", unit, seen, words, 0))
        return [*actions, *self._arranging.arrange(now_ns)] if actions else []

    def died(self, now_ns: int, serial: int, words: str, seen: Seen | None) -> list[Action]:
        """A process has ended; *seen* is where it was then, None of one that could not even be forked."""
        process = self._crew.processes.pop(serial, None)
        if process is None:
            return []
        self._crew.vacate(process)
        actions: list[Action] = []
        sick = self._sick_of(process)
        if process.role is Role.ABANDONED and sick is not None:
            sick.let_go(now_ns)
        elif process.role is Role.SOLO and sick is not None:
            sick.solo, sick.words = 0, words
            sick.postpone(now_ns)
        elif process.role is Role.LANE:
            actions += self._lane_died(process, words, seen, now_ns)
        elif process.role is Role.STANDBY and process.warmed:
            self._arranging.not_warm(now_ns)
        if seen is None or (process.role is Role.STANDBY and not process.rounds):
            self._crew.failed(now_ns)
        return actions + self._arranging.arrange(now_ns)

    def _lane_died(
        self, process: Process, words: str, seen: Seen | None, now_ns: int
    ) -> list[Action]:
        if seen is not None and seen.entered_ns:
            unit = self._ward.unit_of(process.lane, seen.device, seen.collector)
            words = f"{words} in {seen.collector}: {seen.device} {seen.call}"
            return self._lose(process, unit, seen, words, now_ns)
        self._crew.restart_later(process.lane, now_ns)
        self.takeovers_count += 1
        return self._arranging.anew(now_ns) if words == ANEW_WORDS else []

    def orphaned(self, now_ns: int) -> list[Action]:
        """The nursery is gone and another one there: nobody that it forked is of use any more."""
        for process in self._crew.processes.values():
            sick = self._sick_of(process)
            if process.role is Role.SOLO and sick is not None:
                sick.solo = 0
            if process.role is not Role.ABANDONED:
                self._crew.end(process, now_ns)
        return self._arranging.arrange(now_ns)

    # ---- what is asked

    def release(self, now_ns: int, devices: frozenset[str] | None, seconds: float) -> list[Action]:
        """Let go of these GPUs, or of all, until they are taken back or that long has passed."""
        until_ns = now_ns + int(seconds * 1e9)
        for device in [None] if devices is None else sorted(devices)[:UNITS_MAX]:
            self._ward.released[device] = until_ns
        return self._arranging.arrange(now_ns)

    def resume(self, now_ns: int, devices: frozenset[str] | None) -> list[Action]:
        """Take these GPUs back, or all. What was repaired meanwhile need not wait for its trial."""
        for device in list(self._ward.released) if devices is None else devices:
            if self._ward.released.pop(device, None) is not None:
                self._ward.try_now(GPU, device, now_ns)
        return self._arranging.arrange(now_ns)

    def released(self) -> dict[str | None, int]:
        """Return what was let go -> until when (boot time); None stands for all GPUs."""
        return dict(self._ward.released)

    def held(self, devices: frozenset[str] | None) -> bool:
        """Say whether a process lives that may have a handle of these GPUs; None: of any, or of their driver."""
        wanted = (None,) if devices is None else devices
        return any(p.holds_any(wanted) for p in self._crew.processes.values())

    def leave_alone(self, now_ns: int, device: str, why: str) -> list[Action]:
        """Do not enter a GPU of which the driver said that it is ill; it is tried later by itself."""
        unit = (GPU, device, "")
        if GPU not in self._crew.lanes or self._ward.is_full(unit):
            return []
        known = self._ward.sick.get(unit)
        if known is not None and (known.abandoned or known.solo):
            return []
        sick = self._ward.take_in(unit, State.LEFT_ALONE, None, now_ns, why)
        sick.next_ns = max(sick.next_ns, now_ns + LEFT_ALONE_NS)
        sick.tries = max(sick.tries, LEFT_ALONE_TRIES)
        return self._arranging.arrange(now_ns)

    @property
    def processes(self) -> Mapping[int, Process]:
        """Everybody that lives, by serial."""
        return self._crew.processes

    @property
    def sick(self) -> Mapping[Unit, Sick]:
        """Everything that is not well."""
        return self._ward.sick

    def state_of(self, process: Process) -> State:
        """Return how it stands with the unit that a solo process looks at."""
        return self._arranging.state_of(process)

    def lane_process(self, lane: str) -> Process | None:
        """Return the one that samples the lane, if any does."""
        return self._crew.of_lane(lane)

    @property
    def lane_serials(self) -> set[int]:
        """Return who samples the lanes."""
        return {lane.serial for lane in self._crew.lanes.values()}

    def states(self, now_ns: int) -> list[DeviceState]:
        """Return what is not well, and for a minute what is well again."""
        if self._ward.is_empty and not self._hanging:
            return []
        hanging = [e for e in self._hanging if (e.lane, e.device, "") not in self._ward.sick]
        return [*self._ward.states(now_ns), *hanging]

    def next_ns(self, now_ns: int, seen: Mapping[int, Seen]) -> int | None:
        """Return when a call that lasts for a while already would be hung; None: there is none."""
        ends = [
            max(max(place.entered_ns, self._woke_ns) + self._deadline_of(place), now_ns + LOOK_NS)
            for serial, place in seen.items()
            if (process := self._crew.processes.get(serial))
            and process.is_of_use
            and place.entered_ns
            and now_ns - place.entered_ns >= YOUNG_NS
        ]
        return min(ends, default=None)

    # ---- within a look

    def _deadline_of(self, place: Seen) -> int:
        opening = place.call.startswith(OPENING_CALLS)
        return max(self._deadline_ns, OPENING_DEADLINE_NS) if opening else self._deadline_ns

    def _look_at(self, process: Process, place: Seen, now_ns: int) -> list[Action]:
        if place.calls != process.calls:
            process.calls, process.calls_ns = place.calls, now_ns
        if not place.entered_ns and now_ns - process.heard_ns < SILENT_NS and process.is_of_use:
            return []
        if process.role is Role.ABANDONED:
            sick = self._sick_of(process)
            if sick is not None and place.entered_ns:
                sick.hung_ns = now_ns - place.entered_ns
            return []
        if process.role is Role.ENDING:
            return self._see_end(process, place, now_ns)
        age_ns = now_ns - max(place.entered_ns, self._woke_ns) if place.entered_ns else 0
        if age_ns >= self._deadline_ns and (excuse := self._excuse(process.serial)):
            if excuse is Excuse.STOPPED and age_ns >= SILENT_NS:
                return self._replace(process, now_ns)
            if age_ns < STARVED_NS_MAX:
                return []
        if place.entered_ns and age_ns >= self._deadline_of(place):
            return self._hung(process, place, now_ns)
        if age_ns >= self._deadline_ns:
            self._hanging.append(self._hanging_in(process, place, age_ns))
        return self._silent(process, place, now_ns) if not place.entered_ns else []

    def _hanging_in(self, process: Process, place: Seen, age_ns: int) -> DeviceState:
        seconds, ever = age_ns / 1e9, self._ward.ever((process.lane, place.device, ""))
        words = f"has not returned for {seconds:.1f} s in {place.collector}: {place.call}"
        hung = State.HUNG
        whole = self._ward.unit_of(process.lane, place.device, place.collector)[1:] == ("", "")
        collector = "" if whole else place.collector
        return DeviceState(
            process.lane, place.device, collector, hung, place.call, seconds, ever, 0, words
        )

    def _silent(self, process: Process, place: Seen, now_ns: int) -> list[Action]:
        """Replace it if it is in no call and says nothing: stopped, or stuck in ourselves."""
        since = max(process.heard_ns, process.given_ns, process.calls_ns, self._woke_ns)
        patience = SILENT_NS if process.rounds else SILENT_FIRST_NS
        if process.task is None or now_ns - since <= patience + process.task.period_ns:
            return []
        excuse, unit = self._excuse(process.serial), (process.lane, "", place.collector)
        if excuse is Excuse.STARVED and now_ns - since < STARVED_NS_MAX:
            return []
        is_ours = process.role is Role.LANE and place.collector in self._collectors[process.lane]
        if excuse or not is_ours or self._ward.is_full(unit):
            return self._replace(process, now_ns)
        words = f"says nothing, in {place.collector}"
        self._ward.take_in(unit, State.LEFT_ALONE, place, now_ns, words).postpone(now_ns)
        self.takeovers_count += 1
        self._crew.end(process, now_ns)
        return [Kill(process.serial)]

    def _replace(self, process: Process, now_ns: int) -> list[Action]:
        """Have another one in its place; no device is to blame."""
        sick = self._sick_of(process)
        if process.role is Role.SOLO and sick is not None:
            sick.solo = 0
            sick.postpone(now_ns)
        elif process.role is Role.LANE:
            self._crew.restart_later(process.lane, now_ns)
            self.takeovers_count += 1
        self._crew.end(process, now_ns)
        return [Kill(process.serial)]

    def _see_end(self, process: Process, place: Seen, now_ns: int) -> list[Action]:
        """Kill one that was told to end and did not; if it is stuck in a device, nobody else is to be."""
        if process.killed or now_ns - process.given_ns < END_NS:
            return []
        process.killed = True
        unit = (process.lane, place.device, "")
        known = self._ward.sick.get(unit)
        if not place.entered_ns or not place.device or process.task is None:
            return [Kill(process.serial)]
        if self._ward.is_full(unit) or (known is not None and known.abandoned):
            return [Kill(process.serial)]
        words = f"did not return: {place.call}"
        self._ward.take_in(unit, State.LEFT_ALONE, place, now_ns, words).postpone(now_ns)
        return [self._leave_behind(process, unit)]

    # ---- somebody is lost in a unit

    def _hung(self, process: Process, place: Seen, now_ns: int) -> list[Action]:
        sick = self._sick_of(process)
        if process.role is Role.SOLO and sick is not None:
            sick.note(place, now_ns)
            sick.postpone(now_ns)
            return [self._leave_behind(process, sick.unit)]
        if process.role is Role.STANDBY:
            self._arranging.not_warm(now_ns)
            self._crew.end(process, now_ns)
            return [Kill(process.serial)]
        seconds = (now_ns - place.entered_ns) / 1e9
        where = f"{place.device} {place.call}".strip()
        words = f"did not return for {seconds:.1f} s in {place.collector}: {where}"
        unit = self._ward.unit_of(process.lane, place.device, place.collector)
        return self._lose(process, unit, place, words, now_ns)

    def _lose(
        self, process: Process, unit: Unit, place: Seen, words: str, now_ns: int
    ) -> list[Action]:
        """A lane's process is lost in *unit*: no other enters that, until it is tried again."""
        self.takeovers_count += 1
        if self._ward.is_full(unit):
            unit = (unit[0], "", "")
        self._ward.take_in(unit, State.LEFT_ALONE, place, now_ns, words).postpone(now_ns)
        lives = process.serial in self._crew.processes
        left = [self._leave_behind(process, unit)] if lives else []
        return [*left, self._told(unit, place, words, now_ns)]

    def _told(self, unit: Unit, place: Seen, words: str, now_ns: int) -> Action:
        """Say that a unit hangs; when others of its driver do, that the driver does, and only that."""
        lane = unit[0]
        whole: Unit = (lane, "", "") if lane == GPU else (lane, "", place.collector)
        duration_ns = now_ns - place.entered_ns
        lately = self._ward.lately(whole, now_ns)
        if unit == whole:  # nobody's device, or of a collector that cannot spare it
            return _tell("driver_hung" if lane == GPU else "hung", unit, place, words, duration_ns)
        if not unit[1] or len(lately) < 2 or whole in self._ward.sick:
            return _tell("hung", unit, place, words, duration_ns)
        names = ", ".join(sorted(each.unit[1] for each in lately))
        words = f"the driver hangs as a whole: {names} did not answer, last in {place.call}"
        sick = self._ward.take_in(whole, State.LEFT_ALONE, place, now_ns, words)
        sick.since_ns = min(each.since_ns for each in lately)
        sick.began_ns = min(each.began_ns for each in lately)
        is_first = not sick.tries
        sick.postpone(now_ns)
        if is_first:  # are they two by themselves, their neighbours are back within two seconds
            sick.next_ns = now_ns
        return _tell("driver_hung", whole, place, words, duration_ns)

    def _leave_behind(self, process: Process, unit: Unit) -> Action:
        self._crew.vacate(process)
        process.role, process.unit = Role.ABANDONED, unit
        self._ward.leave_behind(unit, process.serial)
        self.abandoned_count += 1
        return Kill(process.serial)

    def _judge(
        self, process: Process, sick: Sick, seconds: float, now_ns: int, *, is_slow: bool
    ) -> list[Action]:
        """Decide on a unit by a round of its own. *is_slow*: its collectors say that its lane would cut it short."""
        limit = WELL_SECONDS if sick.unit[1] else self._deadline_ns / 1e9
        if seconds > limit or is_slow:
            process.well_rounds = 0
            if sick.state is not State.SLOW:
                sick.state, sick.words = State.SLOW, f"a round takes {seconds:.1f} s"
            return self._arranging.arrange(now_ns)
        process.well_rounds += 1
        if sick.state is State.SLOW and process.well_rounds < WELL_ROUNDS:
            return []
        ended = self._crew.end(process, now_ns)
        self._ward.discharge(sick, now_ns)
        words = f"answers again after {(now_ns - sick.began_ns) / 1e9:.0f} s"
        place = Seen(sick.since_ns, 0, sick.collector, sick.unit[1], sick.call)
        what: What = "driver_answers" if sick.is_whole else "answers"
        told = _tell(what, sick.unit, place, words, now_ns - sick.began_ns)
        return [ended, told, *self._arranging.arrange(now_ns)]

    def _sick_of(self, process: Process) -> Sick | None:
        return self._ward.sick.get(process.unit) if process.unit else None


def _tell(what: What, unit: Unit, place: Seen, words: str, duration_ns: int) -> Tell:
    lane, device, _ = unit
    return Tell(what, lane, device, place.collector, place.call, duration_ns / 1e9, words)
