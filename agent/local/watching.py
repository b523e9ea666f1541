"""A row of the policy over the last readings: for which devices it holds, and since when.

Pure: readings and clock are handed in. A row is looked at when its first signal was read anew; where that
signal's cells are those of the time before, and none was wrong then, nothing is unpacked.
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


@dataclass(slots=True)
class Watch:
    """What one row makes of the readings, second after second."""

    row: Row
    held: dict[str, Held] = field(default_factory=dict[str, Held])
    once_well: set[str] = field(default_factory=set[str])
    _read: Readings | None = None  # what the first condition was looked at in
    #: Of its cells and valid bytes, what `_signals` read.
    _parts: tuple[tuple[slice, slice], ...] = ()
    _quiet: bool = False  # by these the row holds for nobody
    _signals: tuple[
        str, ...
    ] = ()  # that decide it, all of one table: of the whole row, or its first condition's

    def __post_init__(self) -> None:
        first, others = self.row.when[0], (*self.row.when[1:], *self.row.unless)
        self._signals = _signals(first)
        whole = (*self._signals, *(name for each in others for name in _signals(each)))
        if len({BY_NAME[name].table for name in whole}) == 1:
            self._signals = whole

    @property
    def _gap_ns(self) -> int:
        return _gap_ns(self.row.when[0].signal)

    def look(self, tables: Mapping[str, Readings], now_ns: int) -> list[Cleared]:
        """Take the readings of now; return what is over by them."""
        first = self.row.when[0]
        readings, before = tables.get(BY_NAME[first.signal].table), self._read
        if readings is None or (before and readings.boottime_ns == before.boottime_ns):
            return self._unseen(now_ns) if self.held else []
        self._read = readings
        if self._are_alike(before, readings) and self._quiet and not self.held:
            return []
        if now_ns < self.row.after_boot_seconds * SECOND_NS:
            self._sorted(readings, Lookup(tables, now_ns))  # who is well is worth knowing
            return []
        return list(self._judge(readings, tables, now_ns))

    def _are_alike(self, before: Readings | None, readings: Readings) -> bool:
        """Say whether what decides the row reads as it did before."""
        if before is None or (before.devices, before.signal_ids) != (
            readings.devices,
            readings.signal_ids,
        ):
            self._parts = tuple(_parts(readings, self._signals))
            return False
        for cells, valid in self._parts:
            if readings.cells[cells] != before.cells[cells]:
                return False
            if readings.valid[valid] != before.valid[valid]:
                return False
        return True

    def _judge(
        self, readings: Readings, tables: Mapping[str, Readings], now_ns: int
    ) -> Iterator[Cleared]:
        wrong, well = self._sorted(readings, Lookup(tables, now_ns))
        for device, value in wrong.items():
            self._is_wrong(device, value, readings.boottime_ns)
        for device in well:
            if (held := self.held.get(device)) and self._is_well(held, readings.boottime_ns):
                del self.held[device]
                if held.stands:
                    yield Cleared(
                        self._finding(device, held), now_ns, "what was wrong is read no longer"
                    )
        yield from self._unseen(now_ns)

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
            holds = True
            if not others.all_hold(row.when[1:], device) or others.any_holds(row.unless, device):
                well.append(device)
            elif not row.once_otherwise or device in self.once_well:
                wrong[device] = value
        self._quiet = not (wrong if len(self._signals) > len(_signals(first)) else holds)
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

    def _unseen(self, now_ns: int) -> list[Cleared]:
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
        column = self._columns.get(signal)
        if column is None:
            column = self._columns[signal] = self._read(signal)
        value = column.get(device)
        return column.get(device.partition("/")[0]) if value is None else value

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

    def all_hold(self, conditions: Iterable[Condition], device: str) -> bool:
        return all(self._holds(condition, device) for condition in conditions)

    def any_holds(self, conditions: Iterable[Condition], device: str) -> bool:
        return any(self._holds(condition, device) for condition in conditions)


def _signals(condition: Condition) -> tuple[str, ...]:
    return (condition.signal, condition.other) if condition.other else (condition.signal,)


def _parts(readings: Readings, signals: Iterable[str]) -> Iterator[tuple[slice, slice]]:
    """Yield where what *signals* read lies: in the cells, and in the valid bytes."""
    rows = len(readings.devices)
    for name in signals:
        signal_id = BY_NAME[name].signal_id
        if signal_id in readings.signal_ids:
            at = readings.signal_ids.index(signal_id) * rows
            yield slice(8 * at, 8 * (at + rows)), slice(at, at + rows)


def _gap_ns(signal: str) -> int:
    return PERIODS_MAX * PERIOD_SECONDS[BY_NAME[signal].pace] * SECOND_NS


def _clears_when(row: Row) -> str:
    return (
        f"it is read to be well for {row.leave_seconds:.0f} s"
        if row.leave_seconds
        else "it is read to be well"
    )
