"""NVML field ids by driver version: the id of each reading, and ids that are checked before use.

nvmlDeviceGetFieldValues takes numbers, and some numbers changed their meaning between driver branches: for a wrong
number it returns NVML_SUCCESS with another quantity. The table below was made from NVIDIA's published
headers and from nvidia-ml-py, each of which carries the ids of one driver:
nvidia-ml-py 12.535.161, 12.550.52/.89, 12.555.43, 12.560.30, 12.570.86/.172, 12.575.51, 13.580.65/.82/.126,
13.590.44/.48, 13.595.45, 13.610.43, 13.615.71; nvidia-nvml-dev-cu12 12.2 to 12.9; nvidia-nvml-dev 13.0 to 13.5.

The headers define the moved ids as follows (PWR_SMOOTHING_* are settings of the power smoothing feature):

| driver (header) | 251 | 252 | 253 | 269 | 270 | 271 |
|---|---|---|---|---|---|---|
| to 560 (12.6) | - | - | - | - | - | - |
| 570 (12.8) | smoothing enabled | privilege level | immediate ramp down | - | - | - |
| 575, 580.65 (12.9, 13.0.39) | SW thermal | HW thermal | HW power brake | preset profile | floor percent | ramp-up rate |
| 580.82 on (13.0.87, 13.1 on) | smoothing enabled | privilege level | immediate ramp down | SW thermal | HW thermal | HW power brake |

Ids 199 and 200 were exchanged between 12.560 and 12.570 as well; we use neither of these ids. A driver between two rows
(580.76, say) may follow either row, so these three readings are published only after a check of their meaning
(`agent/collectors/gpu_field_check.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

Version = tuple[int, ...]

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?")
#: nvmlClocksEventReason* of nvml.h.
SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x20, 0x40, 0x80

#: Assumed version of a driver whose version cannot be read: the newest. Moved fields are checked before use anyway.
NEWEST: Version = (9999,)
#: Memories of a GPU whose ECC errors have a field each.
_ECC_PLACES = ("l1", "l2", "device", "register", "texture")


@dataclass(frozen=True, slots=True)
class NvmlField:
    """A reading's field. `ids`: (first driver version, id) in order; older drivers do not have the field.

    `scope`: 1 asks for the whole module (a superchip's GPU and CPU), for fields that know scopes.
    `validation_flag`: the clock event reason that must be set while the field grows; 0: the id never moved.
    """

    reading: str
    ids: tuple[tuple[Version, int], ...]
    scope: int = 0
    validation_flag: int = 0

    def id_for(self, driver: Version) -> int:
        """Return the field's id in *driver*; 0 if that driver does not have the field."""
        return next((i for since, i in reversed(self.ids) if driver >= since), 0)


def _stable_field(reading: str, field_id: int, since: Version = (), scope: int = 0) -> NvmlField:
    return NvmlField(reading, ((since, field_id),), scope)


def _renumbered_field(reading: str, older: int, newer: int, validation_flag: int) -> NvmlField:
    return NvmlField(
        reading, (((575,), older), ((580, 82), newer)), validation_flag=validation_flag
    )


#: Ids 7 to 28 in this order. The convergence barrier unit (cbu) counts no corrected errors.
_ECC = tuple(
    _stable_field(name, field_id)
    for field_id, name in enumerate(
        (
            f"ecc_{kind}_{span}_{place}_errors"
            for span in ("volatile", "lifetime")
            for place, kind in (
                *product(_ECC_PLACES, ("corrected", "uncorrected")),
                ("cbu", "uncorrected"),
            )
        ),
        start=7,
    )
)

FIELDS = (
    _stable_field("ecc_corrected_volatile_errors", 3),
    _stable_field("ecc_uncorrected_volatile_errors", 4),
    _stable_field("ecc_corrected_lifetime_errors", 5),
    _stable_field("ecc_uncorrected_lifetime_errors", 6),
    *_ECC,
    _stable_field("retired_corrected_pages", 29),
    _stable_field("retired_uncorrected_pages", 30),
    _stable_field("retirement_pending_state", 31),
    _stable_field("violation_power_nanoseconds", 74),
    _stable_field("violation_thermal_nanoseconds", 75),
    _stable_field("violation_sync_boost_nanoseconds", 76),
    _stable_field("violation_board_limit_nanoseconds", 77),
    _stable_field("violation_low_utilization_nanoseconds", 78),
    _stable_field("violation_reliability_nanoseconds", 79),
    _stable_field("violation_base_clocks_nanoseconds", 81),
    _renumbered_field("violation_sw_thermal_nanoseconds", 251, 269, SW_THERMAL),
    _renumbered_field("violation_hw_thermal_nanoseconds", 252, 270, HW_THERMAL),
    _renumbered_field("violation_hw_power_brake_nanoseconds", 253, 271, HW_POWER_BRAKE),
    _stable_field("memory_temperature_celsius", 82),
    _stable_field("energy_joules", 83),
    _stable_field("pcie_replays_count", 94),
    _stable_field("pcie_replay_rollovers_count", 95),
    _stable_field("pcie_recoveries_count", 169),
    _stable_field("pcie_correctable_errors", 173),
    _stable_field("pcie_naks_received_count", 174),
    _stable_field("pcie_receiver_errors", 175),
    _stable_field("pcie_bad_tlp_errors", 176),
    _stable_field("pcie_naks_sent_count", 177),
    _stable_field("pcie_bad_dllp_errors", 178),
    _stable_field("pcie_nonfatal_errors", 179),
    _stable_field("pcie_fatal_errors", 180),
    _stable_field("pcie_unsupported_request_errors", 181),
    _stable_field("pcie_lcrc_errors", 182),
    _stable_field("power_average_watts", 185),
    _stable_field("power_watts", 186),
    _stable_field("module_power_watts", 186, scope=1),
    _stable_field("power_limit_min_watts", 187),
    _stable_field("power_limit_max_watts", 188),
    _stable_field("power_limit_default_watts", 189),
    _stable_field("power_limit_requested_watts", 192),
    _stable_field("margin_at_shutdown_celsius", 193),
    _stable_field("margin_at_slowdown_celsius", 194),
    _stable_field("margin_at_memory_max_celsius", 195),
    _stable_field("margin_at_max_celsius", 196),
    _stable_field("pcie_transmitted_bytes", 197, (555,)),
    _stable_field("pcie_received_bytes", 198, (555,)),
    _stable_field("recovery_action_state", 230, (570,)),
)

#: Reading -> the event reason its field must coincide with before it is published.
NEEDS_VALIDATION: dict[str, int] = {
    f.reading: f.validation_flag for f in FIELDS if f.validation_flag
}


def parse_driver_version(version: str) -> Version | None:
    """Return `580.65.06` as (580, 65, 6); None if *version* is not a driver version."""
    found = _VERSION.fullmatch(version.strip())
    return tuple(int(part) for part in found.groups(default="0")) if found else None


def fields_of(driver_version: str) -> dict[str, tuple[int, int]]:
    """Return reading -> (field id, scope id) for a driver, by its full version as NVML reports it."""
    driver = parse_driver_version(driver_version) or NEWEST
    found = {field.reading: (field.id_for(driver), field.scope) for field in FIELDS}
    return {reading: ids for reading, ids in found.items() if ids[0]}
