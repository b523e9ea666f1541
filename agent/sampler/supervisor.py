"""State machine of the samplers: takeovers, abandoned processes, retries.

Observations and time in, actions out. Nothing here touches a process or a clock: the same machine
runs under the daemon and, an hour in a second, under a test. It guarantees, in any order of events
(tests/agent/sampler/test_supervisor.py):

- at most one process is abandoned in a unit, and no other enters the unit while that process lives;
- there are never more than `PROCESSES_MAX` samplers;
- a group skips only units that are in quarantine or released: a healthy device is missed during a
  takeover at most;
- a unit in quarantine is retried after 5 s, then after twice the last delay, up to ten minutes;
  brief recoveries do not shorten the delay. A driver that is considered hung because two of its
  devices hang is retried at once;
- a sampler that waits for a CPU, or was stopped, does not count as hung.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...ext.place import Seen
from .collector_groups import GPU
from .forkserver import StallReason
from .messages import Action, Kill, ReportEvent, ReportKind
from .process_table import ProcessRole, ProcessTable, SamplerProcess
from .quarantine import (
    QUARANTINE_NS,
    QUARANTINE_TRIES,
    UNITS_MAX,
    DeviceState,
    Quarantine,
    QuarantinedUnit,
    QuarantineState,
    Unit,
)
from .reconciler import PROBES_MAX, SECOND_NS, Reconciler
from .worker import RESTART_EXIT_CODE

#: Calls that open a device or a driver: this takes seconds without persistence mode.
OPENING_CALLS = ("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleBy", "nvmlDeviceGetCount")
OPENING_DEADLINE_NS = 5 * SECOND_NS
#: A call that has lasted for this long is checked again when its deadline ends,
CALL_AGE_NS_MIN = SECOND_NS // 5
#: but not before this time. It is also the period of checking a process that waits for a CPU.
CHECK_NS = SECOND_NS // 10
#: A process in no call that sends nothing for this long is stuck or stopped. Its first round may
#: open many devices.
SILENT_NS, SILENT_FIRST_NS = 3 * SECOND_NS, 15 * SECOND_NS
#: Wait for a process without a CPU. Beyond (a host whose /proc is wrong) the device counts as hung.
STARVED_NS_MAX = 10 * SECOND_NS
#: After this time an end request is followed by SIGKILL.
END_DEADLINE_NS = SECOND_NS
#: If the daemon itself did not run for this long (suspended host, stopped process), no call counts
#: as hung.
SUSPENDED_NS_MIN = 3 * SECOND_NS // 2
#: Longest round of a healthy probe. The first round opens the device and is not judged.
HEALTHY_SECONDS_MAX = 0.25
#: Healthy rounds that end the state SLOW.
HEALTHY_BATCHES = 3
#: A device is slow if a late group is found in it in LATE_CHECKS_MIN checks within LATE_NS.
LATE_CHECKS_MIN, LATE_NS = 4, 10 * SECOND_NS
#: After this number of batches the deaths of a group's earlier processes are forgotten.
STABLE_BATCHES = 30
#: The fork server's message on a sampler that requests another in its place.
RESTART_MESSAGE = f"ended with {RESTART_EXIT_CODE}"


class Supervisor:
    """The state machine. Methods return the actions that are needed now; none raises."""

    def __init__(
        self,
        groups: Mapping[str, Mapping[str, bool]],
        *,
        deadline_ns: int = 9 * SECOND_NS // 10,
        stall_reason: Callable[[int], StallReason | None] = lambda _: None,
    ) -> None:
        """*groups*: name -> collector -> whether it can exclude devices. *deadline_ns*: per call.

        *stall_reason* returns why the process with this serial stalls, except by its driver.
        """
        self._collectors = groups
        self._deadline_ns, self._stall_reason = deadline_ns, stall_reason
        self._quarantine, self._table = Quarantine(groups), ProcessTable(groups)
        self._reconciler = Reconciler(self._quarantine, self._table)
        self._checked_ns = self._resumed_ns = 0
        self._hanging_calls: list[DeviceState] = []  # calls past the deadline, not yet judged
        self.abandoned_count = self.takeovers_count = 0

    def inherit(self, now_ns: int, unit: Unit, call_state: Seen) -> int:
        """Add a process that an earlier agent abandoned; return its serial. Call before `start`.

        0: there is no such unit, or another process is known in it.
        """
        group, _, collector = unit
        collectors = self._collectors.get(group, {})
        is_known = bool(collectors) and (not collector or collector in collectors)
        if unit in self._quarantine.units or not is_known:
            return 0
        process = self._table.adopt(unit)
        message = f"a process of an earlier agent has not returned from {call_state.call}"
        abandoned = QuarantineState.ABANDONED
        self._quarantine.add(unit, abandoned, call_state, now_ns, message).postpone(now_ns)
        self._quarantine.mark_abandoned(unit, process.serial)
        return process.serial

    def start(self, now_ns: int, released: Mapping[str | None, int] | None = None) -> list[Action]:
        """Start every group and a standby, without the GPUs in *released*."""
        self._quarantine.released.update(released or {})
        self._checked_ns = self._resumed_ns = now_ns
        return self._reconciler.reconcile(now_ns)

    def set_devices(self, group: str, devices: Sequence[str]) -> None:
        """Set the names of a group's devices, from which a retry of its driver selects."""
        if group in self._table.groups:
            self._table.groups[group].devices = tuple(devices)[:UNITS_MAX]

    def check(self, now_ns: int, call_states: Mapping[int, Seen]) -> list[Action]:
        # If every check is this late, a hang still counts.
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
        """Record the device in which a group is late; if it repeats, the device is slow."""
        process, checks = self._table.of_group(group), self._table.groups[group].late_checks
        if process is None or (
            not process.batches and now_ns - process.assigned_ns < SILENT_FIRST_NS
        ):
            return []
        if self._stall_reason(process.serial):
            return []
        device = call_state.device if call_state.entered_ns else ""
        checks.append((now_ns, device))
        same = [
            checked_ns
            for checked_ns, late_device in checks
            if late_device == device and now_ns - checked_ns <= LATE_NS
        ]
        unit = self._quarantine.unit_of(group, device, call_state.collector)
        if not device or len(same) < LATE_CHECKS_MIN or self._quarantine.is_full(unit):
            return []
        message = (
            f"{device} is slow: {group} waited for it {len(same)} times, last in {call_state.call}"
        )
        quarantined = self._quarantine.add(unit, QuarantineState.SLOW, call_state, now_ns, message)
        quarantined.next_try_ns = now_ns
        self.takeovers_count += 1
        report = _report_event("slow", unit, call_state, message, 0)
        kill = self._abandon(process, unit)
        return [report, kill, *self._reconciler.reconcile(now_ns)]

    def batch_received(
        self, now_ns: int, serial: int, seconds: float, slow_devices: frozenset[str] = frozenset()
    ) -> list[Action]:
        """Handle a round; *seconds* is its duration. Its collectors cut *slow_devices* short."""
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
        """Sample slow devices separately, within the limit of probes.

        Their group cut them short, so it continues with the devices beyond the limit.
        """
        actions: list[Action] = []
        slow = QuarantineState.SLOW
        for device in sorted(slow_devices - self._quarantine.excluded_devices(process.group)):
            isolated = sum(unit.state is slow for unit in self._quarantine.units.values())
            unit = (process.group, device, "")
            if isolated >= PROBES_MAX - 1 or self._quarantine.is_full(unit):
                break
            message = (
                f"{device} is slow: {process.group} ended it early, because its neighbours waited"
            )
            call_state = Seen(0, 0, "", device, "")
            self._quarantine.add(unit, slow, None, now_ns, message).next_try_ns = now_ns
            actions.append(_report_event("slow", unit, call_state, message, 0))
        return [*actions, *self._reconciler.reconcile(now_ns)] if actions else []

    def died(self, now_ns: int, serial: int, message: str, call_state: Seen | None) -> list[Action]:
        """Handle the end of a process; *call_state*: its last call, None if the fork failed."""
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
        """End all processes of the previous fork server."""
        for process in self._table.processes.values():
            quarantined = self._quarantined_unit(process)
            if process.role is ProcessRole.PROBE and quarantined is not None:
                quarantined.probe_serial = 0
            if process.role is not ProcessRole.ABANDONED:
                self._table.end(process, now_ns)
        return self._reconciler.reconcile(now_ns)

    def release(self, now_ns: int, devices: frozenset[str] | None, seconds: float) -> list[Action]:
        """Release these GPUs, or all (None), until `resume` or for *seconds*."""
        until_ns = now_ns + int(seconds * 1e9)
        for device in [None] if devices is None else sorted(devices)[:UNITS_MAX]:
            self._quarantine.released[device] = until_ns
        return self._reconciler.reconcile(now_ns)

    def resume(self, now_ns: int, devices: frozenset[str] | None) -> list[Action]:
        """Resume these GPUs, or all; retry them at once: a repair may have fixed them."""
        for device in list(self._quarantine.released) if devices is None else devices:
            if self._quarantine.released.pop(device, None) is not None:
                self._quarantine.try_now(GPU, device, now_ns)
        return self._reconciler.reconcile(now_ns)

    def released(self) -> dict[str | None, int]:
        """Return GPU -> end of its release (boot time); None means all GPUs."""
        return dict(self._quarantine.released)

    def may_hold(self, devices: frozenset[str] | None) -> bool:
        """Return whether a process may hold handles of these GPUs; None: any GPU or the driver."""
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
        """The live processes by serial."""
        return self._table.processes

    @property
    def quarantined(self) -> Mapping[Unit, QuarantinedUnit]:
        return self._quarantine.units

    def state_of(self, process: SamplerProcess) -> QuarantineState:
        """Return the state of the unit that *process* probes."""
        return self._reconciler.state_of(process)

    def group_process(self, group: str) -> SamplerProcess | None:
        """Return the process that samples *group*, or None."""
        return self._table.of_group(group)

    @property
    def group_serials(self) -> set[int]:
        """Return the serials of the groups' processes."""
        return {group.serial for group in self._table.groups.values()}

    def states(self, now_ns: int) -> list[DeviceState]:
        """Return the units in quarantine or recently recovered, and the hanging calls."""
        if self._quarantine.is_empty and not self._hanging_calls:
            return []
        hanging = [
            call
            for call in self._hanging_calls
            if (call.group, call.device, "") not in self._quarantine.units
        ]
        return [*self._quarantine.states(now_ns), *hanging]

    def next_ns(self, now_ns: int, call_states: Mapping[int, Seen]) -> int | None:
        """Return when the next long call counts as hung; None: no long call."""
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
        group, device, collector, call = (
            process.group,
            call_state.device,
            call_state.collector,
            call_state.call,
        )
        is_driver = self._quarantine.unit_of(group, device, collector) == (group, "", "")
        return DeviceState(
            group=group,
            device=device,
            collector="" if is_driver else collector,
            state=QuarantineState.HUNG,
            call=call,
            hung_seconds=age_ns / 1e9,
            abandoned_count=self._quarantine.abandoned_total((group, device, "")),
            next_try_ns=0,
            message=f"has not returned for {age_ns / 1e9:.1f} s in {collector}: {call}",
        )

    def _replace_silent(
        self, process: SamplerProcess, call_state: Seen, now_ns: int
    ) -> list[Action]:
        """Replace a process that is stopped, or stuck in our own code: no call, no messages."""
        since = max(
            process.last_received_ns, process.assigned_ns, process.calls_ns, self._resumed_ns
        )
        silent_ns_max = SILENT_NS if process.batches else SILENT_FIRST_NS
        if process.task is None or now_ns - since <= silent_ns_max + process.task.period_ns:
            return []
        stall_reason = self._stall_reason(process.serial)
        unit = (process.group, "", call_state.collector)
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
        """Replace a process without blaming a device."""
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
        """Kill a process that did not end on request; exclude the device that it is stuck in."""
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
        """Abandon a group's process in *unit*, and exclude the unit until its retry."""
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
        """Return the report of a hang; if two devices of a driver hang, of the driver only."""
        group = unit[0]
        driver: Unit = (group, "", "") if group == GPU else (group, "", call_state.collector)
        duration_ns = now_ns - call_state.entered_ns
        recent = self._quarantine.recent(driver, now_ns)
        if unit == driver:  # no device, or a device of a collector that cannot exclude it
            return _report_event(
                "driver_hung" if group == GPU else "hung", unit, call_state, message, duration_ns
            )
        if not unit[1] or len(recent) < 2 or driver in self._quarantine.units:
            return _report_event("hung", unit, call_state, message, duration_ns)
        names = ", ".join(sorted(quarantined_device.unit[1] for quarantined_device in recent))
        message = f"the driver hangs as a whole: {names} did not answer, last in {call_state.call}"
        quarantined = self._quarantine.add(
            driver, QuarantineState.LEFT_ALONE, call_state, now_ns, message
        )
        quarantined.since_ns = min(quarantined_device.since_ns for quarantined_device in recent)
        quarantined.began_ns = min(quarantined_device.began_ns for quarantined_device in recent)
        is_first = not quarantined.tries
        quarantined.postpone(now_ns)
        if is_first:  # if only the two devices hang, the others are back within two seconds
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
        """Judge a unit by a round of its probe. *is_slow*: its group would cut the device short."""
        limit = HEALTHY_SECONDS_MAX if quarantined.unit[1] else self._deadline_ns / 1e9
        if seconds > limit or is_slow:
            process.healthy_batches = 0
            if quarantined.state is not QuarantineState.SLOW:
                quarantined.state = QuarantineState.SLOW
                quarantined.message = f"a round takes {seconds:.1f} s"
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
        kind=kind,
        group=group,
        device=device,
        collector=call_state.collector,
        call=call_state.call,
        seconds=duration_ns / 1e9,
        message=message,
    )
