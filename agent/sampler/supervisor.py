"""State machine of the samplers: which samples, which is abandoned, what is retried and when. Observations and time in, actions out.

Nothing here touches a process or a clock: the same machine runs under the daemon and, an hour in a second, under a test.
It guarantees, in any order of events (tests/agent/sampler/test_supervisor.py):

- at most one process is abandoned in a unit, and no other enters the unit while that one lives;
- there are never more than `PROCESSES_MAX` samplers;
- a lane skips only units that are in quarantine or released: a healthy device is missed during a takeover at most;
- a unit in quarantine is retried after 5 s, then after twice the last delay, up to ten minutes; brief recoveries do not
  shorten the delay. A driver that is considered hung because two of its devices hang is retried at once;
- a sampler that waits for a CPU, or was stopped, does not count as hung.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...ext.place import Seen
from .forkserver import StallReason
from .messages import (
    GPU,
    PROCESSES_MAX,
    Action,
    Kill,
    ReportEvent,
    ReportKind,
    SamplerTask,
    WarmSampler,
)
from .process_table import ProcessRole, ProcessTable, SamplerGroup, SamplerProcess
from .quarantine import (
    QUARANTINE_NS,
    QUARANTINE_TRIES,
    TRY_NS,
    TRY_NS_MAX,
    UNITS_MAX,
    DeviceState,
    Quarantine,
    QuarantinedUnit,
    QuarantineState,
    Unit,
)
from .worker import RESTART_EXIT_CODE

# ----------------------------------------------------------------------
# What should be, against what is: each lane has a sampler, each trial that is due one of its own,
# and one waits.

SECOND_NS = 1_000_000_000
#: Processes that look at a single device, to try it or because it is slow.
PROBES_MAX = 2
#: With this many left behind nothing is tried again until one of them has ended.
ABANDONED_MAX = 10
PROBE_PERIOD_NS, SLOW_PERIOD_NS = SECOND_NS // 4, 10 * SECOND_NS


class Reconciler:
    """Brings the processes to what the quarantine asks for."""

    def __init__(self, quarantine: Quarantine, table: ProcessTable) -> None:
        self._quarantine, self._table = quarantine, table
        self._warm_ns = self._warm_failures = 0
        #: Whether there is nothing to arrange until something happens: no time that passes changes anything.
        self.is_settled = False

    def warm_up_failed(self, now_ns: int) -> None:
        """Making ready failed or hung: the next standby does without, for a while."""
        self._warm_ns = now_ns + min(TRY_NS << min(self._warm_failures, 10), TRY_NS_MAX)
        self._warm_failures += 1

    def end_standbys(self, now_ns: int) -> list[Action]:
        """A sampler ended because its libraries are of another driver: the standby's are too."""
        warmed = [each for each in self._table.with_role(ProcessRole.STANDBY) if each.warmed]
        return [self._table.end(each, now_ns) for each in warmed]

    def reconcile(self, now_ns: int) -> list[Action]:
        """Return what brings it about. Asked again, it is nothing."""
        self._quarantine.expire(now_ns)
        actions: list[Action] = []
        for group in self._table.groups.values():
            actions += self._reconcile_group(group, now_ns)
        for quarantined in list(self._quarantine.units.values()):
            actions += self._reconcile_probe(quarantined, now_ns)
        actions += self._reconcile_standby(now_ns)
        self.is_settled = self._quarantine.is_empty and self._is_complete()
        return actions

    def _is_complete(self) -> bool:
        """Every lane has its process, and a standby waits, as ready as it can be."""
        is_warm = [
            each.warmed or GPU not in self._table.groups
            for each in self._table.with_role(ProcessRole.STANDBY)
        ]
        return any(is_warm) and all(map(self._table.of_group, self._table.groups))

    def _reconcile_group(self, group: SamplerGroup, now_ns: int) -> list[Action]:
        quarantine, process = self._quarantine, self._table.of_group(group.name)
        task = SamplerTask(
            group.name,
            quarantine.excluded_devices(group.name),
            quarantine.excluded_collectors(group.name),
        )
        actions: list[Action] = []
        if process is not None:
            if quarantine.is_open(group.name) and not process.may_hold_any(quarantine.released):
                same = process.task == task
                return [] if same else [self._table.assign(process, task, now_ns)]
            actions.append(self._table.end(process, now_ns))
        if not quarantine.is_open(group.name) or now_ns < group.next_start_ns:
            return actions
        found, forked = self._table.take_standby(now_ns)
        if found is not None:
            found.role, group.serial = ProcessRole.GROUP, found.serial
            actions += [*forked, self._table.assign(found, task, now_ns)]
        return actions

    def _reconcile_standby(self, now_ns: int) -> list[Action]:
        actions: list[Action] = []
        allowed = GPU in self._table.groups and self._quarantine.is_open(GPU)
        for process in self._table.with_role(ProcessRole.STANDBY):
            if process.warmed and not allowed:
                actions.append(self._table.end(process, now_ns))
        if (
            not self._table.with_role(ProcessRole.STANDBY)
            and len(self._table.processes) < PROCESSES_MAX - 1
        ):
            actions += self._table.take_standby(now_ns)[1]
        for process in self._table.with_role(ProcessRole.STANDBY):
            if allowed and now_ns >= self._warm_ns and not process.warmed:
                process.warmed = True
                actions.append(WarmSampler(process.serial))
        return actions

    # ---- one device by itself

    def _reconcile_probe(self, quarantined: QuarantinedUnit, now_ns: int) -> list[Action]:
        process = self._table.processes.get(quarantined.probe_serial)
        if process is None:
            due = now_ns >= quarantined.next_try_ns and self._may_probe(quarantined)
            return self._start_probe(quarantined, now_ns) if due else []
        if process.may_hold_any(self._quarantine.released):
            quarantined.probe_serial, quarantined.state = 0, QuarantineState.LEFT_ALONE
            return [self._table.end(process, now_ns)]
        task = self._probe_task(quarantined, process)
        return [] if process.task == task else [self._table.assign(process, task, now_ns)]

    def _may_probe(self, quarantined: QuarantinedUnit) -> bool:
        group, device, _ = quarantined.unit
        released = self._quarantine.released
        if quarantined.abandoned_serial or not self._has_room(group):
            return False
        if group == GPU and (None in released or device in released):
            return False
        if quarantined.is_driver:
            return bool(self._candidates(group)) or not self._knows_devices(group)
        if not self._quarantine.is_open(group):
            return False  # first the driver, then its devices
        return (
            not device
            or group == GPU
            or (group, "", quarantined.collector) not in self._quarantine.units
        )

    def _has_room(self, group: str) -> bool:
        """One trial of a lane at a time, few slow devices, and not too many left behind already."""
        processes = self._table.with_role(ProcessRole.PROBE)
        probes = [each for each in processes if self.state_of(each) is not QuarantineState.SLOW]
        busy = any(each.group == group for each in probes) or len(processes) >= PROBES_MAX
        return not busy and len(self._table.with_role(ProcessRole.ABANDONED)) < ABANDONED_MAX

    def state_of(self, process: SamplerProcess) -> QuarantineState:
        """Return the state of the unit that a process looks at."""
        quarantined = self._quarantine.units.get(process.unit) if process.unit else None
        return quarantined.state if quarantined else QuarantineState.WELL

    def _start_probe(self, quarantined: QuarantinedUnit, now_ns: int) -> list[Action]:
        process, forked = self._table.take_standby(now_ns)
        if process is None:
            return []
        process.role, process.unit = ProcessRole.PROBE, quarantined.unit
        quarantined.probe_serial = process.serial
        if quarantined.state is not QuarantineState.SLOW:
            quarantined.state = QuarantineState.TRIED
        return [
            *forked,
            self._table.assign(process, self._probe_task(quarantined, process), now_ns),
        ]

    def _probe_task(self, quarantined: QuarantinedUnit, process: SamplerProcess) -> SamplerTask:
        group, device, collector = quarantined.unit
        period_ns = SLOW_PERIOD_NS if quarantined.state is QuarantineState.SLOW else PROBE_PERIOD_NS
        if quarantined.is_driver:
            device = process.task.only_device if process.task else self._next_candidate(group)
        others = self._quarantine.excluded_devices(group) | frozenset(
            self._table.groups[group].devices
        )
        return SamplerTask(group, others - {device}, frozenset(), device, collector, period_ns)

    def _knows_devices(self, group: str) -> bool:
        has_quarantined = any(unit[0] == group and unit[1] for unit in self._quarantine.units)
        return has_quarantined or bool(self._table.groups[group].devices)

    def _candidates(self, group: str) -> list[str]:
        """Return the devices with which a driver can be tried: those not seen hung first, none that somebody is in."""
        quarantined = {
            unit[1]: e for unit, e in self._quarantine.units.items() if unit[0] == group and unit[1]
        }
        candidates = [name for name in self._table.groups[group].devices if name not in quarantined]
        candidates += [name for name, each in quarantined.items() if not each.abandoned_serial]
        return [name for name in candidates if name not in self._quarantine.released]

    def _next_candidate(self, group: str) -> str:
        """Return another one of them each time; empty: none is known."""
        candidates = self._candidates(group)
        self._table.groups[group].probes += 1
        return (
            candidates[(self._table.groups[group].probes - 1) % len(candidates)]
            if candidates
            else ""
        )


#: These open a device or a driver, which takes seconds where nobody keeps it open (no persistence mode).
OPENING_CALLS = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleBy", "nvmlDeviceGetCount")
OPENING_DEADLINE_NS = 5 * SECOND_NS
#: Of a call that lasts for this long already, it is looked again when its deadline ends.
CALL_AGE_NS_MIN = SECOND_NS // 5
#: But no sooner than after this: so often is it looked whether one that waits for a CPU has come out of its call.
CHECK_NS = SECOND_NS // 10
#: Who is in no call and says nothing for this long is stuck in itself, or stopped; in its first round it may open much.
SILENT_NS, SILENT_FIRST_NS = 3 * SECOND_NS, 15 * SECOND_NS
#: Who waits for a CPU is waited for; past this, as on a host whose /proc tells nonsense, the device is to blame after all.
STARVED_NS_MAX = 10 * SECOND_NS
#: An order to end is followed by a kill.
END_DEADLINE_NS = SECOND_NS
#: A daemon that itself stood still for this long (a suspended host, a stopped process) has seen nobody hang.
SUSPENDED_NS_MIN = 3 * SECOND_NS // 2
#: A solo round that takes no longer is well. The first one opens the device, and is not judged.
HEALTHY_SECONDS_MAX = 0.25
#: This many of one that was slow.
HEALTHY_BATCHES = 3
#: A lane that is late is looked at; in the same device at this many looks within this long, that one is slow.
LATE_CHECKS_MIN, LATE_NS = 4, 10 * SECOND_NS
#: A lane that has come so far has nothing to make up for.
STABLE_BATCHES = 30
#: The fork server's words on one that asks for another in its place.
RESTART_MESSAGE = f"ended with {RESTART_EXIT_CODE}"


class Supervisor:
    """See the module. Every method that returns actions returns all that must be done now; none raises."""

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, bool]],
        *,
        deadline_ns: int = 9 * SECOND_NS // 10,
        stall_reason: Callable[[int], StallReason | None] = lambda _: None,
    ) -> None:
        """*groups*: name -> collector -> whether it can spare devices. *deadline_ns*: of a call. *stall_reason*: why a process,
        by its serial, makes no progress, if that is not for its driver."""
        self._collectors = groups
        self._deadline_ns, self._stall_reason = deadline_ns, stall_reason
        self._quarantine, self._table = Quarantine(groups), ProcessTable(groups)
        self._reconciler = Reconciler(self._quarantine, self._table)
        self._checked_ns = self._resumed_ns = 0
        self._hanging_calls: list[DeviceState] = []  # in a call that has longer than others
        self.abandoned_count = self.takeovers_count = 0

    # ---- what happens

    def inherit(self, now_ns: int, unit: Unit, call_state: Seen) -> int:
        """Note a process that an agent before this one left behind in a unit; return the serial by which it is known.
        0: there is no such unit, or one in it is known already. Before `start`."""
        group, _, collector = unit
        collectors = self._collectors.get(group, {})
        if (
            unit in self._quarantine.units
            or not collectors
            or (collector and collector not in collectors)
        ):
            return 0
        process = self._table.adopt(unit)
        message = f"a process of an earlier agent has not returned from {call_state.call}"
        self._quarantine.add(unit, QuarantineState.ABANDONED, call_state, now_ns, message).postpone(
            now_ns
        )
        self._quarantine.mark_abandoned(unit, process.serial)
        return process.serial

    def start(self, now_ns: int, released: Mapping[str | None, int] | None = None) -> list[Action]:
        """Begin: every lane, and a standby; without what is *released* already."""
        self._quarantine.released.update(released or {})
        self._checked_ns = self._resumed_ns = now_ns
        return self._reconciler.reconcile(now_ns)

    def set_devices(self, group: str, devices: Sequence[str]) -> None:
        """Take the names of a lane's devices, which a trial of its driver chooses from."""
        if group in self._table.groups:
            self._table.groups[group].devices = tuple(devices)[:UNITS_MAX]

    def check(self, now_ns: int, call_states: Mapping[int, Seen]) -> list[Action]:
        """Look where each process is."""
        # if that is how it always is, a hang is one all the same
        was_suspended = self._resumed_ns == self._checked_ns
        if now_ns - self._checked_ns > SUSPENDED_NS_MIN and not was_suspended:
            self._resumed_ns = now_ns
        self._checked_ns = now_ns
        self._hanging_calls.clear()
        actions: list[Action] = []
        for process in list(self._table.processes.values()):
            if (call_state := call_states.get(process.serial)) is not None:
                actions += self._check_process(process, call_state, now_ns)
        if actions or not self._reconciler.is_settled:
            actions += self._reconciler.reconcile(now_ns)
        return actions

    def report_late(self, now_ns: int, group: str, call_state: Seen) -> list[Action]:
        """A lane's turns did not come in time: note the device that it is in, which may be slow."""
        process, checks = self._table.of_group(group), self._table.groups[group].late_checks
        if process is None or (
            not process.batches and now_ns - process.assigned_ns < SILENT_FIRST_NS
        ):
            return []
        if self._stall_reason(process.serial):
            return []
        device = call_state.device if call_state.entered_ns else ""
        checks.append((now_ns, device))
        same = [at for at, each in checks if each == device and now_ns - at <= LATE_NS]
        unit = self._quarantine.unit_of(group, device, call_state.collector)
        if not device or len(same) < LATE_CHECKS_MIN or self._quarantine.is_full(unit):
            return []
        message = (
            f"{device} is slow: {group} waited for it {len(same)} times, last in {call_state.call}"
        )
        self._quarantine.add(
            unit, QuarantineState.SLOW, call_state, now_ns, message
        ).next_try_ns = now_ns
        self.takeovers_count += 1
        report = _report_event("slow", unit, call_state, message, 0)
        kill = self._abandon(process, unit)
        return [report, kill, *self._reconciler.reconcile(now_ns)]

    def batch_received(
        self, now_ns: int, serial: int, seconds: float, slow_devices: frozenset[str] = frozenset()
    ) -> list[Action]:
        """A round of turns has come; together they took *seconds*, and would have longer but for devices cut short."""
        process = self._table.processes.get(serial)
        if process is None or not process.is_active:
            return []
        process.last_received_ns, process.batches = now_ns, process.batches + 1
        self._table.start_succeeded()
        if process.role is ProcessRole.GROUP and process.batches > STABLE_BATCHES:
            self._table.groups[process.group].deaths = 0
        if process.role is ProcessRole.GROUP and slow_devices:
            return self._isolate_slow(process, slow_devices, now_ns)
        quarantined = self._quarantined_unit(process)
        if process.role is ProcessRole.PROBE and process.batches > 1 and quarantined is not None:
            return self._judge_probe(
                process, quarantined, seconds, now_ns, is_slow=quarantined.unit[1] in slow_devices
            )
        return []

    def _isolate_slow(
        self, process: SamplerProcess, slow_devices: frozenset[str], now_ns: int
    ) -> list[Action]:
        """Sample these by themselves, as long as there is room for a trial beside them. Their lane has cut them short,
        and so it continues with those for which there is none."""
        actions: list[Action] = []
        for device in sorted(slow_devices - self._quarantine.excluded_devices(process.group)):
            isolated = [
                each
                for each in self._quarantine.units.values()
                if each.state is QuarantineState.SLOW
            ]
            unit = (process.group, device, "")
            if len(isolated) >= PROBES_MAX - 1 or self._quarantine.is_full(unit):
                break
            message = (
                f"{device} is slow: {process.group} ended it early, because its neighbours waited"
            )
            call_state = Seen(0, 0, "", device, "")
            self._quarantine.add(
                unit, QuarantineState.SLOW, None, now_ns, message
            ).next_try_ns = now_ns
            actions.append(_report_event("slow", unit, call_state, message, 0))
        return [*actions, *self._reconciler.reconcile(now_ns)] if actions else []

    def died(self, now_ns: int, serial: int, message: str, call_state: Seen | None) -> list[Action]:
        """A process has ended; *call_state* is where it was then, None of one that could not even be forked."""
        process = self._table.processes.pop(serial, None)
        if process is None:
            return []
        self._table.free_group(process)
        actions: list[Action] = []
        quarantined = self._quarantined_unit(process)
        if process.role is ProcessRole.ABANDONED and quarantined is not None:
            quarantined.abandoned_ended(now_ns)
        elif process.role is ProcessRole.PROBE and quarantined is not None:
            quarantined.probe_serial, quarantined.message = 0, message
            quarantined.postpone(now_ns)
        elif process.role is ProcessRole.GROUP:
            actions += self._group_process_died(process, message, call_state, now_ns)
        elif process.role is ProcessRole.STANDBY and process.warmed:
            self._reconciler.warm_up_failed(now_ns)
        if call_state is None or (process.role is ProcessRole.STANDBY and not process.batches):
            self._table.start_failed(now_ns)
        return actions + self._reconciler.reconcile(now_ns)

    def _group_process_died(
        self, process: SamplerProcess, message: str, call_state: Seen | None, now_ns: int
    ) -> list[Action]:
        if call_state is not None and call_state.entered_ns:
            unit = self._quarantine.unit_of(process.group, call_state.device, call_state.collector)
            message = f"{message} in {call_state.collector}: {call_state.device} {call_state.call}"
            return self._abandon_group_process(process, unit, call_state, message, now_ns)
        self._table.schedule_restart(process.group, now_ns)
        self.takeovers_count += 1
        return self._reconciler.end_standbys(now_ns) if message == RESTART_MESSAGE else []

    def fork_server_replaced(self, now_ns: int) -> list[Action]:
        """The fork server is gone and another one there: nobody that it forked is of use any more."""
        for process in self._table.processes.values():
            quarantined = self._quarantined_unit(process)
            if process.role is ProcessRole.PROBE and quarantined is not None:
                quarantined.probe_serial = 0
            if process.role is not ProcessRole.ABANDONED:
                self._table.end(process, now_ns)
        return self._reconciler.reconcile(now_ns)

    # ---- what is asked

    def release(self, now_ns: int, devices: frozenset[str] | None, seconds: float) -> list[Action]:
        """Release these GPUs, or of all, until they are taken back or that long has passed."""
        until_ns = now_ns + int(seconds * 1e9)
        for device in [None] if devices is None else sorted(devices)[:UNITS_MAX]:
            self._quarantine.released[device] = until_ns
        return self._reconciler.reconcile(now_ns)

    def resume(self, now_ns: int, devices: frozenset[str] | None) -> list[Action]:
        """Take these GPUs back, or all. What was repaired meanwhile need not wait for its trial."""
        for device in list(self._quarantine.released) if devices is None else devices:
            if self._quarantine.released.pop(device, None) is not None:
                self._quarantine.try_now(GPU, device, now_ns)
        return self._reconciler.reconcile(now_ns)

    def released(self) -> dict[str | None, int]:
        """Return what was released -> until when (boot time); None means all GPUs."""
        return dict(self._quarantine.released)

    def may_hold(self, devices: frozenset[str] | None) -> bool:
        """Return whether a process lives that may have a handle of these GPUs; None: of any, or of their driver."""
        wanted = (None,) if devices is None else devices
        return any(p.may_hold_any(wanted) for p in self._table.processes.values())

    def quarantine_gpu(self, now_ns: int, device: str, reason: str) -> list[Action]:
        """Do not call a GPU that the driver reported as faulty; it is retried later by itself."""
        unit = (GPU, device, "")
        if GPU not in self._table.groups or self._quarantine.is_full(unit):
            return []
        known = self._quarantine.units.get(unit)
        if known is not None and (known.abandoned_serial or known.probe_serial):
            return []
        quarantined = self._quarantine.add(unit, QuarantineState.LEFT_ALONE, None, now_ns, reason)
        quarantined.next_try_ns = max(quarantined.next_try_ns, now_ns + QUARANTINE_NS)
        quarantined.tries = max(quarantined.tries, QUARANTINE_TRIES)
        return self._reconciler.reconcile(now_ns)

    @property
    def processes(self) -> Mapping[int, SamplerProcess]:
        """Everybody that lives, by serial."""
        return self._table.processes

    @property
    def quarantined(self) -> Mapping[Unit, QuarantinedUnit]:
        """Everything that is not well."""
        return self._quarantine.units

    def state_of(self, process: SamplerProcess) -> QuarantineState:
        """Return the state of the unit that a solo process looks at."""
        return self._reconciler.state_of(process)

    def group_process(self, group: str) -> SamplerProcess | None:
        """Return the one that samples the lane, if any does."""
        return self._table.of_group(group)

    @property
    def group_serials(self) -> set[int]:
        """Return who samples the lanes."""
        return {group.serial for group in self._table.groups.values()}

    def states(self, now_ns: int) -> list[DeviceState]:
        """Return what is not well, and for a minute what is well again."""
        if self._quarantine.is_empty and not self._hanging_calls:
            return []
        hanging = [
            e for e in self._hanging_calls if (e.group, e.device, "") not in self._quarantine.units
        ]
        return [*self._quarantine.states(now_ns), *hanging]

    def next_ns(self, now_ns: int, call_states: Mapping[int, Seen]) -> int | None:
        """Return when a call that lasts for a while already would be hung; None: there is none."""
        ends = [
            max(
                max(call_state.entered_ns, self._resumed_ns) + self._deadline_of(call_state),
                now_ns + CHECK_NS,
            )
            for serial, call_state in call_states.items()
            if (process := self._table.processes.get(serial))
            and process.is_active
            and call_state.entered_ns
            and now_ns - call_state.entered_ns >= CALL_AGE_NS_MIN
        ]
        return min(ends, default=None)

    # ---- within a look

    def _deadline_of(self, call_state: Seen) -> int:
        opening = call_state.call.startswith(OPENING_CALLS)
        return max(self._deadline_ns, OPENING_DEADLINE_NS) if opening else self._deadline_ns

    def _check_process(
        self, process: SamplerProcess, call_state: Seen, now_ns: int
    ) -> list[Action]:
        if call_state.calls != process.calls:
            process.calls, process.calls_ns = call_state.calls, now_ns
        if (
            not call_state.entered_ns
            and now_ns - process.last_received_ns < SILENT_NS
            and process.is_active
        ):
            return []
        if process.role is ProcessRole.ABANDONED:
            quarantined = self._quarantined_unit(process)
            if quarantined is not None and call_state.entered_ns:
                quarantined.hung_ns = now_ns - call_state.entered_ns
            return []
        if process.role is ProcessRole.ENDING:
            return self._enforce_end(process, call_state, now_ns)
        age_ns = (
            now_ns - max(call_state.entered_ns, self._resumed_ns) if call_state.entered_ns else 0
        )
        if age_ns >= self._deadline_ns and (stall_reason := self._stall_reason(process.serial)):
            if stall_reason is StallReason.STOPPED and age_ns >= SILENT_NS:
                return self._replace(process, now_ns)
            if age_ns < STARVED_NS_MAX:
                return []
        if call_state.entered_ns and age_ns >= self._deadline_of(call_state):
            return self._handle_hang(process, call_state, now_ns)
        if age_ns >= self._deadline_ns:
            self._hanging_calls.append(self._hanging_call(process, call_state, age_ns))
        return (
            self._replace_silent(process, call_state, now_ns) if not call_state.entered_ns else []
        )

    def _hanging_call(self, process: SamplerProcess, call_state: Seen, age_ns: int) -> DeviceState:
        seconds, abandoned_total = (
            age_ns / 1e9,
            self._quarantine.abandoned_total((process.group, call_state.device, "")),
        )
        message = (
            f"has not returned for {seconds:.1f} s in {call_state.collector}: {call_state.call}"
        )
        hung = QuarantineState.HUNG
        driver = self._quarantine.unit_of(process.group, call_state.device, call_state.collector)[
            1:
        ] == ("", "")
        collector = "" if driver else call_state.collector
        return DeviceState(
            process.group,
            call_state.device,
            collector,
            hung,
            call_state.call,
            seconds,
            abandoned_total,
            0,
            message,
        )

    def _replace_silent(
        self, process: SamplerProcess, call_state: Seen, now_ns: int
    ) -> list[Action]:
        """Replace it if it is in no call and says nothing: stopped, or stuck in ourselves."""
        since = max(
            process.last_received_ns, process.assigned_ns, process.calls_ns, self._resumed_ns
        )
        silent_ns_max = SILENT_NS if process.batches else SILENT_FIRST_NS
        if process.task is None or now_ns - since <= silent_ns_max + process.task.period_ns:
            return []
        stall_reason, unit = (
            self._stall_reason(process.serial),
            (process.group, "", call_state.collector),
        )
        if stall_reason is StallReason.STARVED and now_ns - since < STARVED_NS_MAX:
            return []
        is_group_collector = (
            process.role is ProcessRole.GROUP
            and call_state.collector in self._collectors[process.group]
        )
        if stall_reason or not is_group_collector or self._quarantine.is_full(unit):
            return self._replace(process, now_ns)
        message = f"sends nothing, in {call_state.collector}"
        self._quarantine.add(
            unit, QuarantineState.LEFT_ALONE, call_state, now_ns, message
        ).postpone(now_ns)
        self.takeovers_count += 1
        self._table.end(process, now_ns)
        return [Kill(process.serial)]

    def _replace(self, process: SamplerProcess, now_ns: int) -> list[Action]:
        """Have another one in its place; no device is to blame."""
        quarantined = self._quarantined_unit(process)
        if process.role is ProcessRole.PROBE and quarantined is not None:
            quarantined.probe_serial = 0
            quarantined.postpone(now_ns)
        elif process.role is ProcessRole.GROUP:
            self._table.schedule_restart(process.group, now_ns)
            self.takeovers_count += 1
        self._table.end(process, now_ns)
        return [Kill(process.serial)]

    def _enforce_end(self, process: SamplerProcess, call_state: Seen, now_ns: int) -> list[Action]:
        """Kill a sampler that was asked to end and did not; if it is stuck in a device, no other must be."""
        if process.killed or now_ns - process.assigned_ns < END_DEADLINE_NS:
            return []
        process.killed = True
        unit = (process.group, call_state.device, "")
        known = self._quarantine.units.get(unit)
        if not call_state.entered_ns or not call_state.device or process.task is None:
            return [Kill(process.serial)]
        if self._quarantine.is_full(unit) or (known is not None and known.abandoned_serial):
            return [Kill(process.serial)]
        message = f"did not return: {call_state.call}"
        self._quarantine.add(
            unit, QuarantineState.LEFT_ALONE, call_state, now_ns, message
        ).postpone(now_ns)
        return [self._abandon(process, unit)]

    # ---- somebody is lost in a unit

    def _handle_hang(self, process: SamplerProcess, call_state: Seen, now_ns: int) -> list[Action]:
        quarantined = self._quarantined_unit(process)
        if process.role is ProcessRole.PROBE and quarantined is not None:
            quarantined.update_call(call_state, now_ns)
            quarantined.postpone(now_ns)
            return [self._abandon(process, quarantined.unit)]
        if process.role is ProcessRole.STANDBY:
            self._reconciler.warm_up_failed(now_ns)
            self._table.end(process, now_ns)
            return [Kill(process.serial)]
        seconds = (now_ns - call_state.entered_ns) / 1e9
        where = f"{call_state.device} {call_state.call}".strip()
        message = f"did not return for {seconds:.1f} s in {call_state.collector}: {where}"
        unit = self._quarantine.unit_of(process.group, call_state.device, call_state.collector)
        return self._abandon_group_process(process, unit, call_state, message, now_ns)

    def _abandon_group_process(
        self, process: SamplerProcess, unit: Unit, call_state: Seen, message: str, now_ns: int
    ) -> list[Action]:
        """A lane's process is lost in *unit*: no other enters that, until it is tried again."""
        self.takeovers_count += 1
        if self._quarantine.is_full(unit):
            unit = (unit[0], "", "")
        self._quarantine.add(
            unit, QuarantineState.LEFT_ALONE, call_state, now_ns, message
        ).postpone(now_ns)
        is_alive = process.serial in self._table.processes
        kill = [self._abandon(process, unit)] if is_alive else []
        return [*kill, self._hang_report(unit, call_state, message, now_ns)]

    def _hang_report(self, unit: Unit, call_state: Seen, message: str, now_ns: int) -> Action:
        """Say that a unit hangs; when others of its driver do, that the driver does, and only that."""
        group = unit[0]
        driver: Unit = (group, "", "") if group == GPU else (group, "", call_state.collector)
        duration_ns = now_ns - call_state.entered_ns
        recent = self._quarantine.recent(driver, now_ns)
        if unit == driver:  # nobody's device, or of a collector that cannot spare it
            return _report_event(
                "driver_hung" if group == GPU else "hung", unit, call_state, message, duration_ns
            )
        if not unit[1] or len(recent) < 2 or driver in self._quarantine.units:
            return _report_event("hung", unit, call_state, message, duration_ns)
        names = ", ".join(sorted(each.unit[1] for each in recent))
        message = f"the driver hangs as a whole: {names} did not answer, last in {call_state.call}"
        quarantined = self._quarantine.add(
            driver, QuarantineState.LEFT_ALONE, call_state, now_ns, message
        )
        quarantined.since_ns = min(each.since_ns for each in recent)
        quarantined.began_ns = min(each.began_ns for each in recent)
        is_first = not quarantined.tries
        quarantined.postpone(now_ns)
        if is_first:  # are they two by themselves, their neighbours are back within two seconds
            quarantined.next_try_ns = now_ns
        return _report_event("driver_hung", driver, call_state, message, duration_ns)

    def _abandon(self, process: SamplerProcess, unit: Unit) -> Action:
        self._table.free_group(process)
        process.role, process.unit = ProcessRole.ABANDONED, unit
        self._quarantine.mark_abandoned(unit, process.serial)
        self.abandoned_count += 1
        return Kill(process.serial)

    def _judge_probe(
        self,
        process: SamplerProcess,
        quarantined: QuarantinedUnit,
        seconds: float,
        now_ns: int,
        *,
        is_slow: bool,
    ) -> list[Action]:
        """Decide on a unit by a round of its own. *is_slow*: its collectors say that its lane would cut it short."""
        limit = HEALTHY_SECONDS_MAX if quarantined.unit[1] else self._deadline_ns / 1e9
        if seconds > limit or is_slow:
            process.healthy_batches = 0
            if quarantined.state is not QuarantineState.SLOW:
                quarantined.state, quarantined.message = (
                    QuarantineState.SLOW,
                    f"a round takes {seconds:.1f} s",
                )
            return self._reconciler.reconcile(now_ns)
        process.healthy_batches += 1
        if quarantined.state is QuarantineState.SLOW and process.healthy_batches < HEALTHY_BATCHES:
            return []
        ended = self._table.end(process, now_ns)
        self._quarantine.mark_recovered(quarantined, now_ns)
        message = f"answers again after {(now_ns - quarantined.began_ns) / 1e9:.0f} s"
        call_state = Seen(
            quarantined.since_ns, 0, quarantined.collector, quarantined.unit[1], quarantined.call
        )
        kind: ReportKind = "driver_answers" if quarantined.is_driver else "answers"
        report = _report_event(
            kind, quarantined.unit, call_state, message, now_ns - quarantined.began_ns
        )
        return [ended, report, *self._reconciler.reconcile(now_ns)]

    def _quarantined_unit(self, process: SamplerProcess) -> QuarantinedUnit | None:
        return self._quarantine.units.get(process.unit) if process.unit else None


def _report_event(
    kind: ReportKind, unit: Unit, call_state: Seen, message: str, duration_ns: int
) -> ReportEvent:
    group, device, _ = unit
    return ReportEvent(
        kind, group, device, call_state.collector, call_state.call, duration_ns / 1e9, message
    )
