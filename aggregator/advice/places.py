"""Where hosts stand, as advice has it, and how many there are in each domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..declared.model import Declared
from .advisory import NOWHERE, Place

FIELDS = tuple(Place.__dataclass_fields__)


class Stand(NamedTuple):
    """A host's place. `among`: how many hosts stand in each domain of it, in the order of its fields."""

    place: Place
    among: tuple[int, ...]


def place_of(declared: Declared | None, host: str) -> Place:
    """Return where *host* stands; "" where nobody has said."""
    if declared is None:
        return NOWHERE
    told = declared.place(host)
    return Place(*(getattr(told, name) for name in FIELDS))


class Places:
    """Counts anew when places change, or hosts come."""

    def __init__(self) -> None:
        self._declared: Declared | None = None
        self._counted: tuple[int, int] | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._names: Sequence[str] = ()

    def take(self, declared: Declared | None, names: Sequence[str]) -> None:
        """Answer from now on by *declared* for a fleet of *names*."""
        self._declared, self._names = declared, names

    def of(self, host: str) -> Stand:
        """Return where *host* stands."""
        place = place_of(self._declared, host)
        if place == NOWHERE or self._declared is None:
            return Stand(place, ())
        version = self._declared.places_version, len(self._names)
        if version != self._counted:
            self._counted, self._counts = version, self._count(self._declared)
        return Stand(place, tuple(self._counts[name, getattr(place, name)] for name in FIELDS))

    def _count(self, declared: Declared) -> Counter[tuple[str, str]]:
        places = [declared.place(host) for host in self._names]
        return Counter((name, getattr(place, name)) for place in places for name in FIELDS)
