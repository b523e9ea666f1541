"""Location of a host (rack, switches, NVLink domain) by each source, and merged."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class HostPlacement:
    """The location of a host; "" or () if unknown."""

    rack: str = ""
    power_domain: str = ""
    cooling_domain: str = ""
    leaf: str = ""
    spine: str = ""
    nvlink_domain: str = ""
    #: The leaf switch of each rail, if rails have switches of their own.
    rails: tuple[str, ...] = ()
    core: str = ""
    nvlink_subdomain: str = ""


NOWHERE = HostPlacement()
PLACE_FIELDS: tuple[str, ...] = tuple(place_field.name for place_field in fields(HostPlacement))


class PlaceSource(NamedTuple):
    """A host's location by one source."""

    #: By priority: file (people's own), topograph (its graph), label (registered by the host's
    #: agent), hardware (the NVLink fabric reported by its GPUs).
    source: str
    where: str  # the file with its line; "" if the host reported it
    place: HostPlacement


def merge_places(sources: tuple[PlaceSource, ...]) -> HostPlacement:
    """Return each field from the first source that has it."""
    values = {
        name: next(
            (value for source in sources if (value := getattr(source.place, name))),
            getattr(NOWHERE, name),
        )
        for name in PLACE_FIELDS
    }
    return HostPlacement(**values)
