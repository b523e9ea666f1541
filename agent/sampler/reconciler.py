"""Compares the samplers that run with the tasks that need one: starts, takeovers, retries and ends."""

from __future__ import annotations

from .collector_groups import GPU, PROCESSES_MAX
from .messages import Action, SamplerTask, WarmSampler
from .process_table import ProcessRole, ProcessTable, SamplerGroup, SamplerProcess
from .quarantine import TRY_NS, TRY_NS_MAX, Quarantine, QuarantinedUnit, QuarantineState

SECOND_NS = 1_000_000_000
#: Processes that sample a single unit, to retry it or because it is slow.
PROBES_MAX = 2
#: With this number of abandoned processes nothing is retried until a process among them ends.
ABANDONED_MAX = 10
PROBE_PERIOD_NS, SLOW_PERIOD_NS = SECOND_NS // 4, 10 * SECOND_NS


class Reconciler:
    """Maintains a sampler per group, a probe per due retry, and a standby."""

    def __init__(self, quarantine: Quarantine, table: ProcessTable) -> None:
        self._quarantine, self._table = quarantine, table
        self._warm_ns = self._warm_failures = 0
        #: Whether `reconcile` has nothing to do until the next event: time alone changes nothing.
        self.is_settled = False

    def warm_up_failed(self, now_ns: int) -> None:
        """Delay the next standby's warm-up, after a warm-up failed or hung."""
        self._warm_ns = now_ns + min(TRY_NS << min(self._warm_failures, 10), TRY_NS_MAX)
        self._warm_failures += 1

    def end_standbys(self, now_ns: int) -> list[Action]:
        """End the warmed standbys, whose libraries do not match the driver."""
        warmed = [
            standby for standby in self._table.with_role(ProcessRole.STANDBY) if standby.warmed
        ]
        return [self._table.end(standby, now_ns) for standby in warmed]

    def reconcile(self, now_ns: int) -> list[Action]:
        """Return the actions that are needed. Calling it again returns none."""
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
        """Return whether every group has its process, and a standby waits, warmed if allowed."""
        is_warm = [
            standby.warmed or GPU not in self._table.groups
            for standby in self._table.with_role(ProcessRole.STANDBY)
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
        standby, forked = self._table.take_standby(now_ns)
        if standby is not None:
            standby.role, group.serial = ProcessRole.GROUP, standby.serial
            actions += [*forked, self._table.assign(standby, task, now_ns)]
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
            return False  # the driver first, then its devices
        return (
            not device
            or group == GPU
            or (group, "", quarantined.collector) not in self._quarantine.units
        )

    def _has_room(self, group: str) -> bool:
        """Return whether a probe of *group* may start: one at a time, within both limits."""
        processes = self._table.with_role(ProcessRole.PROBE)
        probes = [probe for probe in processes if self.state_of(probe) is not QuarantineState.SLOW]
        busy = any(probe.group == group for probe in probes) or len(processes) >= PROBES_MAX
        return not busy and len(self._table.with_role(ProcessRole.ABANDONED)) < ABANDONED_MAX

    def state_of(self, process: SamplerProcess) -> QuarantineState:
        """Return the state of the unit that *process* probes."""
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
        """Return free devices for a retry of the driver, those not seen hung first."""
        quarantined = {
            unit[1]: unit_state
            for unit, unit_state in self._quarantine.units.items()
            if unit[0] == group and unit[1]
        }
        candidates = [name for name in self._table.groups[group].devices if name not in quarantined]
        candidates += [
            name for name, unit_state in quarantined.items() if not unit_state.abandoned_serial
        ]
        return [name for name in candidates if name not in self._quarantine.released]

    def _next_candidate(self, group: str) -> str:
        """Return the next candidate in turn; "": none is known."""
        candidates = self._candidates(group)
        self._table.groups[group].probes += 1
        return (
            candidates[(self._table.groups[group].probes - 1) % len(candidates)]
            if candidates
            else ""
        )
