"""Memory controllers and their DIMMs, of EDAC (Documentation/driver-api/edac.rst, admin-guide/ras.rst)."""

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
class Place:
    """Where errors are counted: a controller, a DIMM, or with old drivers a row and its channels."""

    folder: Path
    kind: str  # controller, dimm, row, channel
    prefix: str = ""  # of the file names: `ch0_` for a channel


def places(sys: Path) -> dict[str, Place]:
    """Return every place, by `mc0`, `mc0/dimm3`, `mc0/csrow2`, `mc0/csrow2/ch0`.

    Drivers that know DIMMs (or ranks) may show the same errors by rows as well: then these are left out.
    """
    folder = sys / "devices/system/edac/mc"
    found: dict[str, Place] = {}
    for name in filter(_CONTROLLER.match, names_in(folder)):
        found[name] = Place(folder / name, "controller")
        parts = names_in(folder / name)
        dimms = [part for part in parts if _DIMM.match(part)]
        for dimm in dimms:
            found[f"{name}/{dimm}"] = Place(folder / name / dimm, "dimm")
        for row in () if dimms else filter(_ROW.match, parts):
            found |= _row(f"{name}/{row}", folder / name / row)
    return found


def _row(name: str, folder: Path) -> dict[str, Place]:
    channels = [match[1] for match in map(_CHANNEL.match, names_in(folder)) if match]
    return {
        name: Place(folder, "row"),
        **{f"{name}/{ch}": Place(folder, "channel", f"{ch}_") for ch in channels},
    }
