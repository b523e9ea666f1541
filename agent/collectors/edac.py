"""Memory errors by DIMM, as the kernel's EDAC drivers count them."""

from __future__ import annotations

from collections.abc import Mapping

from ...fingerprints.catalogue import Pace
from ..hardware import edac
from ..hardware.roots import Roots
from .folders import Device, FolderCollector, Plan, Source

_CORRECTED, _UNCORRECTED = "edac.corrected_errors", "edac.uncorrected_errors"
#: What stands at each kind of place. A channel of an old driver counts corrected errors only.
SOURCES: Mapping[str, Mapping[str, Source]] = {
    "controller": {
        _CORRECTED: Source("ce_count"),
        _UNCORRECTED: Source("ue_count"),
        "edac.corrected_unlocated_errors": Source("ce_noinfo_count"),
        "edac.uncorrected_unlocated_errors": Source("ue_noinfo_count"),
    },
    "dimm": {_CORRECTED: Source("dimm_ce_count"), _UNCORRECTED: Source("dimm_ue_count")},
    "row": {_CORRECTED: Source("ce_count"), _UNCORRECTED: Source("ue_count")},
    "channel": {_CORRECTED: Source("ce_count")},
}


def edac_10s(roots: Roots) -> FolderCollector:
    """Errors of each controller and DIMM."""

    def devices() -> list[Device]:
        return [
            Device(name, f"{place.folder}/{place.prefix}", SOURCES[place.kind])
            for name, place in edac.places(roots.sys).items()
        ]

    absent = (
        "no memory controller in /sys/devices/system/edac/mc: memory without ECC, a guest, or no EDAC driver "
        "(firmware that keeps errors to itself tells them in the kernel log)"
    )
    return FolderCollector(
        Plan(
            "edac_10s",
            Pace.TEN_SECONDS,
            ("edac_10s_changes",),
            devices,
            absent,
            list_seconds=60,
        )
    )
