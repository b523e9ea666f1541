"""Which of many entries mean a host, by its name and its place: thousands of them, asked of ten thousand hosts at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .hostset import BY_PLACE, Pattern, Selection

#: Names that all ranges together are written out to; what is beyond is matched, one after another.
NAMES_MAX = 200_000


class Index:
    """Looks up what `Selection.matches` would say of each. Never changed once it is made."""

    def __init__(self, selections: Iterable[Selection | None]) -> None:
        """Entries are known by their place in *selections*; None means nobody here."""
        self._names: defaultdict[str, list[int]] = defaultdict(list)
        self._places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._others: list[tuple[int, Pattern]] = []
        self._left = NAMES_MAX
        for number, selection in enumerate(selections):
            if selection is not None:
                self._add(number, selection)

    def _add(self, number: int, selection: Selection) -> None:
        for pattern in selection.patterns:
            if pattern.is_open or pattern.count > self._left:
                self._others.append((number, pattern))
                continue
            self._left -= pattern.count
            for name in pattern.names():
                self._names[name].append(number)
        for field, chosen in selection.places.items():
            for value in chosen:
                self._places[field, value].append(number)

    def of(self, host: str, place: object) -> list[int]:
        """Return which entries mean *host*, which stands at *place* (a `Place`), in their order."""
        found = set(self._names.get(host, ()))
        for field in BY_PLACE:
            found.update(self._places.get((field, getattr(place, field)), ()))
        found.update(number for number, pattern in self._others if pattern.matches(host))
        return sorted(found)
