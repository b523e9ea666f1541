"""Whom the new readings of a table give cause to look at them.

Of most seconds nobody: the few columns that decide are compared with what they were, and nothing is unpacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Protocol

from ...fingerprints.catalogue import BY_NAME
from ..latest import Readings

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
