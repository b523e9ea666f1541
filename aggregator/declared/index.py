"""Which of many entries mean a host, by its name and its place: thousands of them, asked of ten thousand hosts at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .hostset import BY_PLACE, Pattern, Selection

#: Names that all ranges together are written out to; what is beyond is matched, one after another (`limits.PIECES_MAX`).
NAMES_MAX = 200_000


class Index:
    """Looks up what `Selection.matches` would say of each. Never changed once it is made."""

    def __init__(self, selections: Iterable[Selection | None]) -> None:
        """Entries are known by their place in *selections*; None means nobody here."""
        self._names: defaultdict[str, list[int]] = defaultdict(list)
        self._places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._others: list[tuple[int, Pattern]] = []
        #: Host -> who means it by its name: matched once for as long as we are.
        self._by_name: dict[str, tuple[int, ...]] = {}
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        closed: list[tuple[int, int, Pattern]] = []
        for number, selection in enumerate(selections):
            for pattern in selection.patterns if selection is not None else ():
                if pattern.is_open:
                    self._others.append((number, pattern))
                else:
                    closed.append((pattern.count, number, pattern))
            if selection is not None:
                self._place(number, selection)
        self._write_out(closed)
        #: Of all that are matched.
        self.pieces = sum(pattern.pieces for _, pattern in self._others)

    def _place(self, number: int, selection: Selection) -> None:
        for field, chosen in selection.places.items():
            for value in chosen:
                self._places[field, value].append(number)

    def _write_out(self, closed: list[tuple[int, int, Pattern]]) -> None:
        """Write out the names of patterns, those of the fewest first, as far as there is room."""
        left = NAMES_MAX
        for count, number, pattern in sorted(closed, key=lambda one: one[0]):
            if count > left:
                self._others.append((number, pattern))
                continue
            left -= count
            for name in pattern.names():
                self._names[name].append(number)

    def by_name(self, host: str) -> tuple[int, ...]:
        """Return which entries mean *host* by its name."""
        found = self._by_name.get(host)
        if found is None:
            matched = (number for number, pattern in self._others if pattern.matches(host))
            numbers = tuple(sorted({*self._names.get(host, ()), *matched}))
            found = self._by_name[host] = self._shared.setdefault(numbers, numbers)
        return found

    def of(self, host: str, place: object) -> tuple[int, ...]:
        """Return which entries mean *host*, which stands at *place* (a `Place`), in their order."""
        named = self.by_name(host)
        placed = [
            found
            for field in BY_PLACE
            if (found := self._places.get((field, getattr(place, field))))
        ]
        return tuple(sorted({*named}.union(*placed))) if placed else named
