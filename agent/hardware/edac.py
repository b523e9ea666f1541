"""Memory controllers and DIMMs of EDAC (Documentation/driver-api/edac.rst, admin-guide/ras.rst)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .files import names_in

_CONTROLLER = re.compile(r"mc\d{1,4}$", re.ASCII)
_DIMM = re.compile(r"(dimm|rank)\d{1,4}$", re.ASCII)
_ROW = re.compile(r"csrow\d{1,4}$", re.ASCII)
_CHANNEL = re.compile(r"(ch\d{1,4})_ce_count$", re.ASCII)


@dataclass(frozen=True, slots=True)
class EdacLocation:
    """A place with error counts: controller, DIMM, or with old drivers row and channels."""

    folder: Path
    kind: str  # controller, dimm, row, channel
    prefix: str = ""  # prefix of file names: `ch0_` for a channel
    uncorrected: bool = True  # whether it counts uncorrected errors; a channel may not


def edac_locations(sys: Path) -> dict[str, EdacLocation]:
    """Return every location, by `mc0`, `mc0/dimm3`, `mc0/csrow2`, `mc0/csrow2/ch0`.

    Drivers that know DIMMs (or ranks) may show the same errors by row too; then the rows are left
    out.
    """
    folder = sys / "devices/system/edac/mc"
    locations: dict[str, EdacLocation] = {}
    for name in filter(_CONTROLLER.match, names_in(folder)):
        locations[name] = EdacLocation(folder / name, "controller")
        parts = names_in(folder / name)
        dimms = [part for part in parts if _DIMM.match(part)]
        for dimm in dimms:
            locations[f"{name}/{dimm}"] = EdacLocation(folder / name / dimm, "dimm")
        for row in () if dimms else filter(_ROW.match, parts):
            locations |= _row(f"{name}/{row}", folder / name / row)
    return locations


def _row(name: str, folder: Path) -> dict[str, EdacLocation]:
    files = names_in(folder)
    locations = {name: EdacLocation(folder, "row")}
    for channel in [match[1] for match in map(_CHANNEL.match, files) if match]:
        uncorrected = f"{channel}_ue_count" in files
        locations[f"{name}/{channel}"] = EdacLocation(folder, "channel", f"{channel}_", uncorrected)
    return locations
