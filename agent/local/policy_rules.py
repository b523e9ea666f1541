"""Evaluates policy rows over the latest readings: for which devices each holds, and since when.

Pure: readings and clock come from the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import itemgetter
from typing import Protocol

from ...contract.faults.policy import Condition, FindingSeverity, PolicyRow
from ...contract.signal import PERIOD_SECONDS
from ...contract.signals import BY_NAME
from ..latest import TableSnapshot

# In most seconds no rule is due: only the deciding columns are compared with their last content,
# and nothing is unpacked.
Parts = tuple[bytes, ...]

_GRAVEST_FIRST = {severity: number for number, severity in enumerate(FindingSeverity)}
SECOND_NS = 1_000_000_000
#: A reading older than this number of its periods is not current.
PERIODS_MAX = 3
#: A finding ends if its device was not read for this time: it can no longer be confirmed.
UNREAD_SECONDS_MAX = 600.0
#: Devices per row, separately for once-well and for matched devices.
DEVICES_MAX = 4096
_EPOCH = BY_NAME["gpu.counter_epoch_count"]
_ENERGY = BY_NAME["gpu.energy_joules"]
_RECOVERY = BY_NAME["gpu.recovery_action_state"]
#: GPUs remembered. A host has at most 16.
GPUS_MAX = 256


class RuleTrigger(Protocol):
    """An evaluator of the readings of one `table`."""

    @property
    def table(self) -> str: ...
    @property
    def trigger_signals(self) -> tuple[str, ...]:
        """Signals of the table: an evaluation with unchanged readings finds nothing new."""
        ...

    @property
    def always_evaluate(self) -> bool:
        """Whether new readings must be evaluated even if unchanged."""
        ...


class TableTriggers:
    """The triggers of a table. `last_readings`: the readings of the last call of `due`."""

    def __init__(self, name: str, triggers: Sequence[RuleTrigger]) -> None:
        self.name, self.triggers = name, triggers
        self.last_readings: TableSnapshot | None = None
        self.always_due: Sequence[RuleTrigger] = triggers
        self._by_signal: dict[str, list[RuleTrigger]] = {}
        for trigger in triggers:
            for signal in trigger.trigger_signals:
                self._by_signal.setdefault(signal, []).append(trigger)
        self._shape: tuple[object, ...] = ()
        #: Functions that extract the deciding columns from readings of this shape.
        self._cells = self._valid = _parts(())
        self._last_cells: tuple[Parts, Parts] = ((), ())

    def due(self, readings: TableSnapshot) -> Sequence[RuleTrigger]:
        """Return the triggers that must evaluate *readings*, some of them twice."""
        self.last_readings, shape = readings, (readings.devices, readings.signal_ids)
        if shape != self._shape:
            self._shape = shape
            self._find_columns(readings)
        last_cells = self._last_cells
        self._last_cells = cells = self._cells(readings.cells), self._valid(readings.valid)
        if cells == last_cells:
            return self.always_due
        return [*self.always_due, *self._changed(last_cells)]

    def _find_columns(self, readings: TableSnapshot) -> None:
        """Find the columns of the deciding signals, and forget their last content."""
        columns = [readings.column(BY_NAME[name].signal_id) for name in self._by_signal]
        self._cells = _parts(cells for cells, _ in columns)
        self._valid = _parts(valid for _, valid in columns)
        self._last_cells = (), ()

    def _changed(self, last_cells: tuple[Parts, Parts]) -> Iterator[RuleTrigger]:
        """Yield the triggers of columns that differ from *last_cells*."""
        columns, columns_last = zip(*self._last_cells, strict=True), zip(*last_cells, strict=True)
        for triggers, now, before in zip_longest(self._by_signal.values(), columns, columns_last):
            if triggers and now != before:
                yield from triggers

    def refresh(self) -> None:
        """Update `always_due`, after the due triggers were evaluated."""
        self.always_due = [trigger for trigger in self.triggers if trigger.always_evaluate]


def _parts(slices: Iterable[slice]) -> Callable[[bytes], Parts]:
    """Return a getter of *slices*; two empty slices added make its result a tuple always."""
    return itemgetter(*slices, slice(0), slice(0))


@dataclass(frozen=True, slots=True)
class HostFinding:
    """A fault of a device. Times are boot time.

    `name` is the policy row's or the code's (`xid79`). `confirmed_ns` is the time of the last
    reading that shows the fault; for an active event the present time.
    """

    name: str
    device: str
    severity: FindingSeverity
    message: str
    action: str
    scope: str
    clears_when: str
    since_ns: int
    confirmed_ns: int
    enforceable: bool = False
    count: int = 1

    @property
    def sort_key(self) -> tuple[int, int, str, str]:
        """Sort key: gravest first, then newest first; stable."""
        return _GRAVEST_FIRST[self.severity], -self.since_ns, self.name, self.device

    @property
    def change_key(self) -> tuple[object, ...]:
        """All fields whose change is reported: all except the time of confirmation."""
        return self.name, self.device, self.severity, self.message, self.action, self.count


@dataclass(frozen=True, slots=True)
class ClearedFinding:
    """A finding that ended, and why."""

    finding: HostFinding
    cleared_ns: int
    reason: str


@dataclass(slots=True)
class MatchedDevice:
    """A device for which the row's condition holds, or did until a moment ago."""

    since_ns: int
    last_matched_ns: int  # last reading that matched
    recovered_ns: int = 0  # first reading after it that did not match; 0: none
    value: float = 0.0
    active: bool = False


@dataclass(slots=True, eq=False)
class RuleState:
    """State of a policy row over successive readings.

    `table` is the first condition's; the row is evaluated when this table is read.
    `trigger_signals`: all signals of the row if they are in this table, else those of the first
    condition, or () if this condition uses another table too.
    """

    row: PolicyRow
    matched: dict[str, MatchedDevice] = field(default_factory=dict[str, MatchedDevice])
    once_well: set[str] = field(default_factory=set[str])
    table: str = field(init=False)
    trigger_signals: tuple[str, ...] = ()
    _evaluated_ns: int = -1  # time of the readings evaluated last
    _matches_none: bool = False  # the row holds for no device by these readings

    def __post_init__(self) -> None:
        first = self.row.when[0]
        self.table = BY_NAME[first.signal].table
        for signals in (first.signals, self.row.signals):
            if {BY_NAME[name].table for name in signals} == {self.table}:
                self.trigger_signals = signals

    @property
    def always_evaluate(self) -> bool:
        """Whether new readings must be evaluated even if unchanged."""
        return bool(self.matched) or not self._matches_none

    @property
    def _gap_ns(self) -> int:
        return _gap_ns(self.row.when[0].signal)

    def evaluate(
        self, readings: TableSnapshot, lookup: ReadingLookup, now_ns: int
    ) -> list[ClearedFinding]:
        """Evaluate the table's readings if they are new; return the cleared findings."""
        if readings.boottime_ns == self._evaluated_ns:
            return self.expire(now_ns)
        self._evaluated_ns = readings.boottime_ns
        cleared = list(self._evaluate(readings, lookup, now_ns))
        if now_ns - readings.boottime_ns > self._gap_ns:  # too old for `lookup`, so inconclusive:
            self._matches_none = False  # the next readings may be the same
        return cleared

    def _evaluate(
        self, readings: TableSnapshot, lookup: ReadingLookup, now_ns: int
    ) -> Iterable[ClearedFinding]:
        if now_ns < self.row.after_boot_seconds * SECOND_NS:
            self._classify(readings, lookup)  # records the devices that are well
            return ()
        if not self.matched and not self.row.once_otherwise and lookup.rule_out(self.row.when[1:]):
            self._matches_none = self.trigger_signals == self.row.signals
            return ()
        return self._update_matches(readings, lookup, now_ns)

    def _update_matches(
        self, readings: TableSnapshot, lookup: ReadingLookup, now_ns: int
    ) -> Iterator[ClearedFinding]:
        matching, recovered = self._classify(readings, lookup)
        for device, value in matching.items():
            self._note_match(device, value, readings.boottime_ns)
        for device in recovered:
            if (match := self.matched.get(device)) and self._note_recovery(
                match, readings.boottime_ns
            ):
                del self.matched[device]
                if match.active:
                    yield ClearedFinding(
                        self._finding(device, match), now_ns, "the fault can no longer be read"
                    )
        yield from self.expire(now_ns)

    def _classify(
        self, readings: TableSnapshot, lookup: ReadingLookup
    ) -> tuple[dict[str, float], list[str]]:
        """Return the matching devices with their readings, and the devices that do not match."""
        matching: dict[str, float] = {}
        recovered: list[str] = []
        row, first = self.row, self.row.when[0]
        holds = False
        for device, value in readings.values(BY_NAME[first.signal].signal_id):
            if not row.matches_device(device):
                continue
            if not first.holds(value, lookup.value(first.other, device) if first.other else None):
                recovered.append(device)
                if row.once_otherwise and len(self.once_well) < DEVICES_MAX:
                    self.once_well.add(device)
                continue
            holds |= not row.once_otherwise or device in self.once_well
            if not lookup.all_met(row.when[1:], device) or lookup.any_met(row.unless, device):
                recovered.append(device)
            elif not row.once_otherwise or device in self.once_well:
                matching[device] = value
        may_hold = bool(matching) if self.trigger_signals == row.signals else holds
        self._matches_none = bool(self.trigger_signals) and not may_hold
        return matching, recovered

    def _note_match(self, device: str, value: float, read_ns: int) -> None:
        match = self.matched.get(device)
        if match is None or (not match.active and read_ns - match.last_matched_ns > self._gap_ns):
            if match is None and len(self.matched) >= DEVICES_MAX:
                return
            match = self.matched[device] = MatchedDevice(read_ns, read_ns)
        match.last_matched_ns, match.recovered_ns, match.value = read_ns, 0, value
        match.active |= read_ns - match.since_ns >= self.row.for_seconds * SECOND_NS

    def _note_recovery(self, match: MatchedDevice, read_ns: int) -> bool:
        """Return whether *match* is over: if inactive at once, if active after leave_seconds."""
        match.recovered_ns = match.recovered_ns or read_ns
        return (
            not match.active or read_ns - match.recovered_ns >= self.row.leave_seconds * SECOND_NS
        )

    def expire(self, now_ns: int) -> list[ClearedFinding]:
        """Return the findings that end because their devices are no longer read."""
        cleared: list[ClearedFinding] = []
        for device, match in list(self.matched.items()):
            if (
                now_ns - max(match.last_matched_ns, match.recovered_ns)
                > UNREAD_SECONDS_MAX * SECOND_NS
            ):
                del self.matched[device]
                if match.active:
                    reason = f"it has not been read for {UNREAD_SECONDS_MAX / 60:.0f} minutes"
                    cleared.append(ClearedFinding(self._finding(device, match), now_ns, reason))
        return cleared

    def findings(self) -> Iterator[HostFinding]:
        for device, match in self.matched.items():
            if match.active:
                yield self._finding(device, match)

    def _finding(self, device: str, match: MatchedDevice) -> HostFinding:
        row = self.row
        return HostFinding(
            name=row.name,
            device=device,
            severity=row.severity,
            message=row.message.replace("{value}", f"{match.value:.4g}"),
            action=row.action,
            scope=row.scope,
            clears_when=_clears_when(row),
            since_ns=match.since_ns,
            confirmed_ns=match.last_matched_ns,
            enforceable=row.enforceable,
        )


class ReadingLookup:
    """Readings of other signals, each column unpacked once. Old readings count as unknown."""

    def __init__(self, tables: Mapping[str, TableSnapshot], now_ns: int) -> None:
        self._tables, self._now_ns = tables, now_ns
        self._columns: dict[str, dict[str, float]] = {}

    def value(self, signal: str, device: str) -> float | None:
        """Return the reading for *device*, or for its part before "/"; None if unknown."""
        column = self._column(signal)
        value = column.get(device)
        return column.get(device.partition("/")[0]) if value is None else value

    def _column(self, signal: str) -> dict[str, float]:
        column = self._columns.get(signal)
        if column is None:
            column = self._columns[signal] = self._read(signal)
        return column

    def _read(self, signal: str) -> dict[str, float]:
        readings = self._tables.get(BY_NAME[signal].table)
        if readings is None or self._now_ns - readings.boottime_ns > _gap_ns(signal):
            return {}
        return dict(readings.values(BY_NAME[signal].signal_id))

    def _is_met(self, condition: Condition, device: str) -> bool:
        """Return whether *condition* is known to hold."""
        left = self.value(condition.signal, device)
        right = self.value(condition.other, device) if condition.other else None
        return left is not None and condition.holds(left, right)

    def rule_out(self, conditions: Iterable[Condition]) -> bool:
        """Return whether any of *conditions* holds for no device."""
        return any(
            not condition.other
            and not any(
                condition.holds(value, None) for value in self._column(condition.signal).values()
            )
            for condition in conditions
        )

    def all_met(self, conditions: Iterable[Condition], device: str) -> bool:
        return all(self._is_met(condition, device) for condition in conditions)

    def any_met(self, conditions: Iterable[Condition], device: str) -> bool:
        return any(self._is_met(condition, device) for condition in conditions)


def _gap_ns(signal: str) -> int:
    return PERIODS_MAX * PERIOD_SECONDS[BY_NAME[signal].pace] * SECOND_NS


def _clears_when(row: PolicyRow) -> str:
    return (
        f"it reads as healthy for {row.leave_seconds:.0f} s"
        if row.leave_seconds
        else "it reads as healthy"
    )


class GpuResetDetector:
    """Detects GPU resets: `counter_epoch_count` rises, or the energy falls. Times are boot time.

    The epoch continues across samplers and begins at 0 with each agent, so only a rise counts. The
    energy is kept across restarts of the agent.
    """

    #: The table of all signals used here.
    table = _EPOCH.table
    trigger_signals = (_EPOCH.name,)

    def __init__(self) -> None:
        self.last_reset_ns: dict[str, int] = {}
        self.energy_joules: dict[str, float] = {}
        #: GPU -> boot time of the last reading in which the driver asks for no recovery.
        self.no_recovery_ns: dict[str, int] = {}
        self._epochs: dict[str, float] = {}
        self.is_needed = False  # a finding is active that a reset would end

    @property
    def always_evaluate(self) -> bool:
        """Whether readings must be evaluated even if no epoch changed."""
        return self.is_needed or not self.energy_joules

    def update(self, readings: TableSnapshot) -> bool:
        """Evaluate new readings; return whether a GPU was reset."""
        before = dict(self.last_reset_ns)
        for gpu, epoch in readings.values(_EPOCH.signal_id):
            if epoch > self._epochs.get(gpu, epoch):
                self._note_reset(gpu, readings.boottime_ns)
            self._epochs[gpu] = epoch
        if self.always_evaluate:
            self._update_energy_and_recovery(readings)
        return self.last_reset_ns != before

    def _update_energy_and_recovery(self, readings: TableSnapshot) -> None:
        for gpu, energy in readings.values(_ENERGY.signal_id):
            if energy < self.energy_joules.get(gpu, energy):
                self._note_reset(gpu, readings.boottime_ns)
            if gpu in self.energy_joules or len(self.energy_joules) < GPUS_MAX:
                self.energy_joules[gpu] = energy
        self.no_recovery_ns = {
            gpu: readings.boottime_ns
            for gpu, action in readings.values(_RECOVERY.signal_id)
            if action == 0
        }

    def _note_reset(self, gpu: str, at_ns: int) -> None:
        if gpu in self.last_reset_ns or len(self.last_reset_ns) < GPUS_MAX:
            self.last_reset_ns[gpu] = at_ns

    def last_reset_of(self, device: str) -> int:
        """Return the boot time of a GPU's last reset; -1: none was seen.

        For other devices, such as an NVSwitch: the time since which every GPU was reset.
        """
        if device in self._epochs or device in self.last_reset_ns:
            return self.last_reset_ns.get(device, -1)
        return min((self.last_reset_ns.get(gpu, -1) for gpu in self._epochs), default=-1)
