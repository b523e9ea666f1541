"""Selection of hosts by an entry (names, patterns, location), and indexes to look it up per host.

Thousands of entries that each select thousands of hosts are allowed. Hosts selected by the same
entries share one result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .host_placement import HostPlacement
from .patterns import HostPattern

#: Field of a location -> the key that selects by it.
PLACE_SELECTORS = {
    "rack": "racks",
    "power_domain": "power_domains",
    "cooling_domain": "cooling_domains",
    "leaf": "leaves",
    "spine": "spines",
    "nvlink_domain": "nvlink_domains",
}

#: Maximum cached results of a kind; then the cache is cleared.
CACHED_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Selection:
    """Hosts by name or by place: a host that matches any of them is selected."""

    patterns: tuple[HostPattern, ...] = ()
    places: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def matches(self, host: str, place: object) -> bool:
        """Return whether *host*, located at *place* (a `HostPlacement`), is selected."""
        if any(pattern.matches(host) for pattern in self.patterns):
            return True
        return any(getattr(place, name) in chosen for name, chosen in self.places.items())

    @property
    def description(self) -> str:
        """The selected hosts as text."""
        names = [pattern.text for pattern in self.patterns]
        names += [
            f"{name.replace('_', ' ')} {place_name}"
            for name, chosen in self.places.items()
            for place_name in sorted(chosen)
        ]
        return ", ".join(names)

    @property
    def names_hosts(self) -> bool:
        """Whether it selects hosts by their names only, not by location or wildcards."""
        return (
            bool(self.patterns)
            and not self.places
            and not any(pattern.has_wildcards for pattern in self.patterns)
        )

    @property
    def is_all(self) -> bool:
        """Whether every host is selected."""
        return any(set(pattern.text) == {"*"} for pattern in self.patterns)


EntryT = TypeVar("EntryT")


@dataclass(slots=True)
class EntryMatcher:
    """The entries that select each host. Equal sets of entries are the same tuple object."""

    _hosts: dict[int, dict[str, tuple[Any, ...]]] = field(default_factory=dict)
    _shared: dict[tuple[int, tuple[int, ...]], tuple[Any, ...]] = field(default_factory=dict)

    def match(
        self, host: str, place: HostPlacement, entries: tuple[EntryT, ...], index: SelectionIndex
    ) -> tuple[EntryT, ...]:
        """Return the *entries* that select *host*, located at *place*."""
        known = self._hosts.setdefault(id(entries), {})
        matching = known.get(host)
        if matching is None:
            numbers = index.entries_for(host, place)
            shared_key = id(entries), numbers
            matching = self._shared.get(shared_key)
            if matching is None:
                matching = self._shared[shared_key] = tuple(entries[number] for number in numbers)
            known[host] = matching
        return matching


class SelectionIndex:
    """Looks up `Selection.matches` for thousands of entries and hosts. Immutable."""

    def __init__(self, selections: Iterable[Selection | None]) -> None:
        """*selections*: entries are identified by their index; None selects no host."""
        self._names: defaultdict[str, list[int]] = defaultdict(list)
        self._places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._matched_patterns: list[tuple[int, HostPattern]] = []
        #: Host -> entries that select it by name, computed once.
        self._by_name: dict[str, tuple[int, ...]] = {}
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        for number, selection in enumerate(selections):
            for pattern in selection.patterns if selection is not None else ():
                if pattern.has_wildcards:
                    self._matched_patterns.append((number, pattern))
                for name in pattern.names:
                    self._names[name].append(number)
            if selection is not None:
                self._place(number, selection)
        #: Total cost of all matched patterns.
        self.match_cost = sum(pattern.match_cost for _, pattern in self._matched_patterns)

    def _place(self, number: int, selection: Selection) -> None:
        for column, chosen in selection.places.items():
            for value in chosen:
                self._places[column, value].append(number)

    def by_name(self, host: str) -> tuple[int, ...]:
        """Return the entries that select *host* by its name."""
        entries = self._by_name.get(host)
        if entries is None:
            matched = (n for n, p in self._matched_patterns if p.matches(host))
            numbers = tuple(sorted({*self._names.get(host, ()), *matched}))
            entries = self._by_name[host] = self._shared.setdefault(numbers, numbers)
        return entries

    def entries_for(self, host: str, place: object) -> tuple[int, ...]:
        """Return the entries that select *host* at *place* (a `HostPlacement`), in order."""
        named = self.by_name(host)
        placed = [
            at_place
            for field in PLACE_SELECTORS
            if (at_place := self._places.get((field, getattr(place, field))))
        ]
        return tuple(sorted({*named}.union(*placed))) if placed else named
