"""Memory errors by DIMM, counted by the kernel's EDAC drivers."""

from __future__ import annotations

from collections.abc import Mapping

from ...contract.signal import Pace
from ..hardware import edac
from ..hardware.files import Roots
from .counter_files import (
    CollectorSpec,
    CounterDevice,
    CounterFileCollector,
    FileField,
)
from .host import _UNCORRECTED, EDAC_FIELDS


def fields_of(location: edac.EdacLocation) -> Mapping[str, FileField]:
    """Return the fields of a location.

    Most old drivers count uncorrected errors by row, not by channel.
    """
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
