"""Failure domains of a host, and the number of hosts out of service in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..declared.model import Declared


@dataclass(frozen=True, slots=True)
class FailureDomains:
    """A host's location, for budgets and shared causes; "" if unknown."""

    rack: str = ""
    power_domain: str = ""
    cooling_domain: str = ""
    leaf: str = ""
    spine: str = ""
    nvlink_domain: str = ""


NOWHERE = FailureDomains()
DOMAIN_FIELDS = tuple(FailureDomains.__dataclass_fields__)


class DomainSizes(NamedTuple):
    """A host's location. `among`: number of hosts in each of its domains."""

    place: FailureDomains
    among: tuple[int, ...]


def place_of(declared: Declared | None, host: str) -> FailureDomains:
    """Return the location of *host*; "" if unknown."""
    if declared is None:
        return NOWHERE
    declared_place = declared.place(host)
    return FailureDomains(*(getattr(declared_place, name) for name in DOMAIN_FIELDS))


class DomainCounts:
    """Numbers of hosts per domain; counted again when locations or hosts change."""

    def __init__(self) -> None:
        self._declared: Declared | None = None
        self._counted: tuple[int, int] | None = None
        self._counts: Counter[tuple[str, str]] = Counter()
        self._names: Sequence[str] = ()

    def update(self, declared: Declared | None, names: Sequence[str]) -> None:
        """Use *declared* and the fleet of *names* from now on."""
        self._declared, self._names = declared, names

    def sizes(self, host: str) -> DomainSizes:
        """Return the location of *host* with its domain sizes."""
        place = place_of(self._declared, host)
        if place == NOWHERE or self._declared is None:
            return DomainSizes(place, ())
        version = self._declared.places_version, len(self._names)
        if version != self._counted:
            self._counted, self._counts = version, self._count(self._declared)
        return DomainSizes(
            place, tuple(self._counts[name, getattr(place, name)] for name in DOMAIN_FIELDS)
        )

    def _count(self, declared: Declared) -> Counter[tuple[str, str]]:
        places = [declared.place(host) for host in self._names]
        return Counter((name, getattr(place, name)) for place in places for name in DOMAIN_FIELDS)
