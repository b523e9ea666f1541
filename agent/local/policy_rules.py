"""A row of the policy over the last readings: for which devices it holds, and since when.

Pure: readings and clock are handed in. `policy_rules.py` says when a row is to be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import itemgetter
from typing import Protocol

from ...contract.host_policy import Condition, Row, Severity
from ...contract.signal import PERIOD_SECONDS
from ...contract.signals import BY_NAME
from ..latest import Readings

# ----------------------------------------------------------------------
# Whom the new readings of a table give cause to look at them.
#
# Of most seconds nobody: the few columns that decide are compared with what they were, and nothing
# is unpacked.

Parts = tuple[bytes, ...]


class Looker(Protocol):
    """Who judges the readings of one `table`."""

    @property
    def table(self) -> str: ...
    @property
    def decided_by(self) -> tuple[str, ...]:
        """Signals of the table: while these read as before, looking at them anew would find nothing."""
        ...

    @property
    def restless(self) -> bool:
        """Whether new readings are to be looked at even so."""
        ...


class Table:
    """Those who judge when one table is read. `read`: its readings that they looked at last."""

    def __init__(self, name: str, lookers: Sequence[Looker]) -> None:
        self.name, self.lookers = name, lookers
        self.read: Readings | None = None
        self.restless: Sequence[Looker] = lookers
        self._deciding: dict[str, list[Looker]] = {}  # signal -> whom it decides
        for looker in lookers:
            for signal in looker.decided_by:
                self._deciding.setdefault(signal, []).append(looker)
        self._shape: tuple[object, ...] = ()
        #: What cuts the deciding columns out of readings of this shape.
        self._cells = self._valid = _parts(())
        self._seen: tuple[Parts, Parts] = ((), ())

    def due(self, readings: Readings) -> Sequence[Looker]:
        """Return who is to look at these new readings; some may stand there twice."""
        self.read, shape = readings, (readings.devices, readings.signal_ids)
        if shape != self._shape:
            self._shape = shape
            self._find_columns(readings)
        last = self._seen
        self._seen = seen = self._cells(readings.cells), self._valid(readings.valid)
        if seen == last:
            return self.restless
        return [*self.restless, *self._changed(last)]

    def _find_columns(self, readings: Readings) -> None:
        """Learn where in such readings the deciding signals lie. What was seen before counts for nothing."""
        places = [readings.column(BY_NAME[name].signal_id) for name in self._deciding]
        self._cells = _parts(cells for cells, _ in places)
        self._valid = _parts(valid for _, valid in places)
        self._seen = (), ()

    def _changed(self, last: tuple[Parts, Parts]) -> Iterator[Looker]:
        """Yield whom those of the columns decide that do not read as *last*."""
        columns, columns_last = zip(*self._seen, strict=True), zip(*last, strict=True)
        for lookers, now, then in zip_longest(self._deciding.values(), columns, columns_last):
            if lookers and now != then:
                yield from lookers

    def settle(self) -> None:
        """Take note of who is to look each time, now that those who were due have."""
        self.restless = [looker for looker in self.lookers if looker.restless]


def _parts(slices: Iterable[slice]) -> Callable[[bytes], Parts]:
    """Return what cuts these parts out of bytes. Two empty ones stand behind: of a single one it would be no tuple."""
    return itemgetter(*slices, slice(0), slice(0))


# ----------------------------------------------------------------------
# One finding: something wrong with this host that a row of the policy names.

_GRAVEST_FIRST = {severity: number for number, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class Finding:
    """What stands against a device. Times are boot time.

    `name`: the row's, or of a code (`xid79`). `confirmed_ns`: when it was last known to be so: the last
    reading that shows it, or, of an event, now, for as long as nothing has ended it.
    """

    name: str
    device: str
    severity: Severity
    words: str
    action: str
    scope: str
    clears_when: str
    since_ns: int
    confirmed_ns: int
    enforceable: bool = False
    count: int = 1

    @property
    def weight(self) -> tuple[int, int, str, str]:
        """Sort key: gravest first, of those the newest, in an order that never wavers."""
        return _GRAVEST_FIRST[self.severity], -self.since_ns, self.name, self.device

    @property
    def told(self) -> tuple[object, ...]:
        """What makes it worth telling anew: all but the time that it was last confirmed at."""
        return self.name, self.device, self.severity, self.words, self.action, self.count


@dataclass(frozen=True, slots=True)
class Cleared:
    """A finding that is over, and why."""

    finding: Finding
    cleared_ns: int
    why: str


SECOND_NS = 1_000_000_000
#: So many periods without a reading, and what was read last says nothing of now.
PERIODS_MAX = 3
#: A finding whose device is not read any more is over after so long: nobody can say that it stands.
UNSEEN_SECONDS_MAX = 600.0
#: Devices remembered per row: those that were once well, and those that are not.
DEVICES_MAX = 4096


@dataclass(slots=True)
class Held:
    """A device for which the row's condition holds, or held a moment ago."""

    since_ns: int
    wrong_ns: int  # last reading that was wrong
    well_ns: int = 0  # first reading since that was well; 0: none
    value: float = 0.0
    stands: bool = False


@dataclass(slots=True, eq=False)
class Watch:
    """What one row makes of the readings, time after time.

    `table` is that of its first condition; the row is judged when this is read. `decided_by`: signals of this table,
    all that the row reads or those of its first condition; none where that reads another table too.
    """

    row: Row
    held: dict[str, Held] = field(default_factory=dict[str, Held])
    once_well: set[str] = field(default_factory=set[str])
    table: str = field(init=False)
    decided_by: tuple[str, ...] = ()
    _read_ns: int = -1  # of the readings that were looked at last
    _quiet: bool = False  # by these it holds for nobody

    def __post_init__(self) -> None:
        first = self.row.when[0]
        self.table = BY_NAME[first.signal].table
        for signals in (first.signals, self.row.signals):
            if {BY_NAME[name].table for name in signals} == {self.table}:
                self.decided_by = signals

    @property
    def restless(self) -> bool:
        """Whether new readings are to be looked at even if they are as before."""
        return bool(self.held) or not self._quiet

    @property
    def _gap_ns(self) -> int:
        return _gap_ns(self.row.when[0].signal)

    def look(self, readings: Readings, others: Lookup, now_ns: int) -> list[Cleared]:
        """Take the readings of its table, if they are new; return what is over by them."""
        if readings.boottime_ns == self._read_ns:
            return self.unseen(now_ns)
        self._read_ns = readings.boottime_ns
        over = list(self._take(readings, others, now_ns))
        if now_ns - readings.boottime_ns > self._gap_ns:  # as `others` has it, these say nothing:
            self._quiet = False  # the next may read the same, and will
        return over

    def _take(self, readings: Readings, others: Lookup, now_ns: int) -> Iterable[Cleared]:
        if now_ns < self.row.after_boot_seconds * SECOND_NS:
            self._sorted(readings, others)  # who is well is worth knowing
            return ()
        if not self.held and not self.row.once_otherwise and others.rule_out(self.row.when[1:]):
            self._quiet = self.decided_by == self.row.signals
            return ()
        return self._judge(readings, others, now_ns)

    def _judge(self, readings: Readings, others: Lookup, now_ns: int) -> Iterator[Cleared]:
        wrong, well = self._sorted(readings, others)
        for device, value in wrong.items():
            self._is_wrong(device, value, readings.boottime_ns)
        for device in well:
            if (held := self.held.get(device)) and self._is_well(held, readings.boottime_ns):
                del self.held[device]
                if held.stands:
                    yield Cleared(
                        self._finding(device, held), now_ns, "what was wrong is read no longer"
                    )
        yield from self.unseen(now_ns)

    def _sorted(self, readings: Readings, others: Lookup) -> tuple[dict[str, float], list[str]]:
        """Return the devices for which all holds, with the reading, and those for which not all does."""
        wrong: dict[str, float] = {}
        well: list[str] = []
        row, first = self.row, self.row.when[0]
        holds = False
        for device, value in readings.values(BY_NAME[first.signal].signal_id):
            if not row.concerns(device):
                continue
            if not first.holds(value, others.of(first.other, device) if first.other else None):
                well.append(device)
                if row.once_otherwise and len(self.once_well) < DEVICES_MAX:
                    self.once_well.add(device)
                continue
            holds |= not row.once_otherwise or device in self.once_well
            if not others.all_hold(row.when[1:], device) or others.any_holds(row.unless, device):
                well.append(device)
            elif not row.once_otherwise or device in self.once_well:
                wrong[device] = value
        may_hold = bool(wrong) if self.decided_by == row.signals else holds
        self._quiet = bool(self.decided_by) and not may_hold
        return wrong, well

    def _is_wrong(self, device: str, value: float, read_ns: int) -> None:
        held = self.held.get(device)
        if held is None or (not held.stands and read_ns - held.wrong_ns > self._gap_ns):
            if held is None and len(self.held) >= DEVICES_MAX:
                return
            held = self.held[device] = Held(read_ns, read_ns)
        held.wrong_ns, held.well_ns, held.value = read_ns, 0, value
        held.stands |= read_ns - held.since_ns >= self.row.for_seconds * SECOND_NS

    def _is_well(self, held: Held, read_ns: int) -> bool:
        """Say whether it is over: at once for what never stood, else when it was well for long enough."""
        held.well_ns = held.well_ns or read_ns
        return not held.stands or read_ns - held.well_ns >= self.row.leave_seconds * SECOND_NS

    def unseen(self, now_ns: int) -> list[Cleared]:
        """Return what is over because it is not read any more."""
        over: list[Cleared] = []
        for device, held in list(self.held.items()):
            if now_ns - max(held.wrong_ns, held.well_ns) > UNSEEN_SECONDS_MAX * SECOND_NS:
                del self.held[device]
                if held.stands:
                    why = f"it was not read any more for {UNSEEN_SECONDS_MAX / 60:.0f} minutes"
                    over.append(Cleared(self._finding(device, held), now_ns, why))
        return over

    def findings(self) -> Iterator[Finding]:
        """Yield what stands."""
        for device, held in self.held.items():
            if held.stands:
                yield self._finding(device, held)

    def _finding(self, device: str, held: Held) -> Finding:
        row = self.row
        return Finding(
            name=row.name,
            device=device,
            severity=row.severity,
            words=row.words.replace("{value}", f"{held.value:.4g}"),
            action=row.action,
            scope=row.scope,
            clears_when=_clears_when(row),
            since_ns=held.since_ns,
            confirmed_ns=held.wrong_ns,
            enforceable=row.enforceable,
        )


class Lookup:
    """Single readings of other signals, each column unpacked once; what is too old is not known."""

    def __init__(self, tables: Mapping[str, Readings], now_ns: int) -> None:
        self._tables, self._now_ns = tables, now_ns
        self._columns: dict[str, dict[str, float]] = {}

    def of(self, signal: str, device: str) -> float | None:
        """Return the reading of *signal* of *device*, or of the part before its "/"; None: not known."""
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

    def _holds(self, condition: Condition, device: str) -> bool:
        """Say whether *condition* is known to hold."""
        left = self.of(condition.signal, device)
        right = self.of(condition.other, device) if condition.other else None
        return left is not None and condition.holds(left, right)

    def rule_out(self, conditions: Iterable[Condition]) -> bool:
        """Say whether one of *conditions* holds for no device at all."""
        return any(
            not each.other
            and not any(each.holds(value, None) for value in self._column(each.signal).values())
            for each in conditions
        )

    def all_hold(self, conditions: Iterable[Condition], device: str) -> bool:
        return all(self._holds(condition, device) for condition in conditions)

    def any_holds(self, conditions: Iterable[Condition], device: str) -> bool:
        return any(self._holds(condition, device) for condition in conditions)


def _gap_ns(signal: str) -> int:
    return PERIODS_MAX * PERIOD_SECONDS[BY_NAME[signal].pace] * SECOND_NS


def _clears_when(row: Row) -> str:
    return (
        f"it is read to be well for {row.leave_seconds:.0f} s"
        if row.leave_seconds
        else "it is read to be well"
    )


# ----------------------------------------------------------------------
# When each GPU was last seen to be reset in this boot, and which driver asks for nothing any more.

_EPOCH = BY_NAME["gpu.counter_epoch_count"]
_ENERGY = BY_NAME["gpu.energy_joules"]
_RECOVERY = BY_NAME["gpu.recovery_action_state"]
#: GPUs remembered; a host has sixteen at the most.
GPUS_MAX = 256


class Resets:
    """A GPU was reset when its counters began anew (`counter_epoch_count` rose) or its energy fell.

    The epoch goes on from one sampler to the next and begins at 0 with each agent, so that only a rise counts;
    energy is kept over a restart of the agent. Times are boot time.
    """

    #: Of all that is read of it here.
    table = _EPOCH.table
    decided_by = (_EPOCH.name,)

    def __init__(self) -> None:
        self.at_ns: dict[str, int] = {}
        self.energy_joules: dict[str, float] = {}
        #: GPU -> boot time of the last reading by which its driver asked for no recovery.
        self.asks_for_nothing_ns: dict[str, int] = {}
        self._epochs: dict[str, float] = {}
        self.closely = False  # something stands that a reset would end

    @property
    def restless(self) -> bool:
        """Whether readings are to be looked at whose epochs are as before."""
        return self.closely or not self.energy_joules

    def look(self, readings: Readings) -> bool:
        """Take new readings; say whether a GPU was reset."""
        before = dict(self.at_ns)
        for gpu, epoch in readings.values(_EPOCH.signal_id):
            if epoch > self._epochs.get(gpu, epoch):
                self._was_reset(gpu, readings.boottime_ns)
            self._epochs[gpu] = epoch
        if self.restless:
            self._look_closely(readings)
        return self.at_ns != before

    def _look_closely(self, readings: Readings) -> None:
        for gpu, energy in readings.values(_ENERGY.signal_id):
            if energy < self.energy_joules.get(gpu, energy):
                self._was_reset(gpu, readings.boottime_ns)
            if gpu in self.energy_joules or len(self.energy_joules) < GPUS_MAX:
                self.energy_joules[gpu] = energy
        self.asks_for_nothing_ns = {
            gpu: readings.boottime_ns
            for gpu, action in readings.values(_RECOVERY.signal_id)
            if action == 0
        }

    def _was_reset(self, gpu: str, at_ns: int) -> None:
        if gpu in self.at_ns or len(self.at_ns) < GPUS_MAX:
            self.at_ns[gpu] = at_ns

    def of(self, device: str) -> int:
        """Return the boot time of the last reset of a GPU, -1: none was seen.

        Of anything else, as an NVSwitch, the time by which all GPUs of the host were.
        """
        if device in self._epochs or device in self.at_ns:
            return self.at_ns.get(device, -1)
        return min((self.at_ns.get(gpu, -1) for gpu in self._epochs), default=-1)
