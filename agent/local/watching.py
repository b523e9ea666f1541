"""A row of the policy over the last readings: for which devices it holds, and since when.

Pure: readings and clock are handed in. `table.py` says when a row is to be looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...fingerprints.catalogue import BY_NAME, PERIOD_SECONDS
from ...fingerprints.policy import Condition, Row
from ..latest import Readings
from .finding import Cleared, Finding

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
