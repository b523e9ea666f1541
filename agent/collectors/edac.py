"""Memory errors by DIMM, counted by the kernel's EDAC drivers."""

from __future__ import annotations

from collections.abc import Mapping

from ...contract.signal import Pace
from ..hardware import edac
from ..hardware.files import Roots
from .counter_files import CollectorSpec, CounterDevice, CounterFileCollector, FileField

_CORRECTED, _UNCORRECTED = "edac.corrected_errors", "edac.uncorrected_errors"
#: Fields of each kind of location.
EDAC_FIELDS: Mapping[str, Mapping[str, FileField]] = {
    "controller": {
        _CORRECTED: FileField("ce_count"),
        _UNCORRECTED: FileField("ue_count"),
        "edac.corrected_unlocated_errors": FileField("ce_noinfo_count"),
        "edac.uncorrected_unlocated_errors": FileField("ue_noinfo_count"),
    },
    "dimm": {_CORRECTED: FileField("dimm_ce_count"), _UNCORRECTED: FileField("dimm_ue_count")},
    "row": {_CORRECTED: FileField("ce_count"), _UNCORRECTED: FileField("ue_count")},
    "channel": {_CORRECTED: FileField("ce_count"), _UNCORRECTED: FileField("ue_count")},
}


def fields_of(location: edac.EdacLocation) -> Mapping[str, FileField]:
    """Return a location's fields. Most old drivers count uncorrected errors by row only."""
    fields = EDAC_FIELDS[location.kind]
    if location.uncorrected:
        return fields
    return {name: file_field for name, file_field in fields.items() if name != _UNCORRECTED}


def edac_10s(roots: Roots) -> CounterFileCollector:
    """Return the collector of memory errors per controller and DIMM, from EDAC drivers."""

    def devices() -> list[CounterDevice]:
        return [
            CounterDevice(name, f"{location.folder}/{location.prefix}", fields_of(location))
            for name, location in edac.edac_locations(roots.sys).items()
        ]

    no_data_reason = (
        "no memory controller in /sys/devices/system/edac/mc: memory without ECC, a guest, or no EDAC driver "
        "(firmware-first error handling reports errors in the kernel log)"
    )
    return CounterFileCollector(
        CollectorSpec(
            "edac_10s",
            Pace.TEN_SECONDS,
            ("edac_10s_changes",),
            devices,
            no_data_reason,
            list_seconds=60,
        )
    )
