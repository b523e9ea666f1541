"""Every reading that an NVML sweep can give: its unit, its accepted range, and its NVML call.

Names are the catalog's columns of the GPU tables. A reading may also come from a field, whose id
depends on the driver (`contract/nvml_fields.py`); then the call here is made only if the driver or
the GPU lacks the field. Calls with their own structs are in `nvml_sweep.pxd`.
"""

from __future__ import annotations

from typing import NamedTuple

#: Readings of calls with their own structs: reading -> its member of the enum in nvml_pass.pxd.
NAMED = {
    "temperature_celsius": "TEMPERATURE",
    "temperature_margin_celsius": "MARGIN",
    "utilization_ratio": "UTILIZATION",
    "memory_utilization_ratio": "MEMORY_UTILIZATION",
    "memory_used_bytes": "MEMORY_USED",
    "memory_free_bytes": "MEMORY_FREE",
    "memory_total_bytes": "MEMORY_TOTAL",
    "memory_reserved_bytes": "MEMORY_RESERVED",
    "bar1_used_bytes": "BAR1_USED",
    "bar1_total_bytes": "BAR1_TOTAL",
    "remapped_correctable_rows": "REMAPPED_CORRECTABLE",
    "remapped_uncorrectable_rows": "REMAPPED_UNCORRECTABLE",
    "remap_pending_state": "REMAP_PENDING",
    "remap_failed_state": "REMAP_FAILED",
    "remap_banks_max_count": "BANKS_MAX",
    "remap_banks_high_count": "BANKS_HIGH",
    "remap_banks_partial_count": "BANKS_PARTIAL",
    "remap_banks_low_count": "BANKS_LOW",
    "remap_banks_none_count": "BANKS_NONE",
    "sram_corrected_volatile_errors": "SRAM_CORRECTED_VOLATILE",
    "sram_parity_volatile_errors": "SRAM_PARITY_VOLATILE",
    "sram_secded_volatile_errors": "SRAM_SECDED_VOLATILE",
    "sram_corrected_lifetime_errors": "SRAM_CORRECTED_LIFETIME",
    "sram_parity_lifetime_errors": "SRAM_PARITY_LIFETIME",
    "sram_secded_lifetime_errors": "SRAM_SECDED_LIFETIME",
    "sram_l2_lifetime_errors": "SRAM_L2",
    "sram_sm_lifetime_errors": "SRAM_SM",
    "sram_pcie_lifetime_errors": "SRAM_PCIE",
    "sram_microcontroller_lifetime_errors": "SRAM_MCU",
    "sram_other_lifetime_errors": "SRAM_OTHER",
    "sram_threshold_exceeded_state": "SRAM_THRESHOLD",
    "sram_unique_uncorrected_count": "SRAM_PLACES",
    "sram_unique_uncorrected_errors": "SRAM_PLACES_ERRORS",
    "sram_unique_parity_count": "SRAM_PARITY_PLACES",
    "repair_channel_pending_state": "REPAIR_CHANNEL",
    "repair_tpc_pending_state": "REPAIR_TPC",
    "unrepairable_memory_state": "UNREPAIRABLE",
    "violation_thermal_check_nanoseconds": "VIOLATION_CHECK",
    "processes_count": "PROCESSES",
    "calls_failed_errors": "CALLS_FAILED",
    "slow_calls_failed_errors": "SLOW_CALLS_FAILED",
    "settings_calls_failed_errors": "SETTINGS_CALLS_FAILED",
    "lost_state": "LOST",
    "error_code_state": "ERROR_CODE",
}

#: Above any count: a greater value is a negative error code. 2 ** 62 nanoseconds are 146 years.
_COUNT_MAX = 1 << 62


class Reading(NamedTuple):
    """A reading. `raw_max` is the largest accepted value in NVML's unit; 0: any.

    `calls`: the NVML function, and its older name; `kinds`: further arguments, as constants of
    nvml.h. `second`: the reading in the second result of the same call.
    """

    name: str
    is_float: bool
    multiplier: float = 1
    divisor: float = 1
    raw_max: int = 0
    is_signed: bool = False
    calls: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    shape: str = "uint"  # uint, long (both may have kinds), pair
    second: str = ""
    #: The last value is kept between two turns of a slow call. False if it grows all the time.
    holds: bool = True
    #: Its field has unsigned 64 bits; a field of another type is another quantity.
    is_long: bool = False


def _clock(name: str, call: str, clock: str) -> Reading:
    """Return a clock's reading; NVML's unit is MHz."""
    return Reading(name, True, 1e6, 1, 100_000, calls=(call,), kinds=(f"NVML_CLOCK_{clock}",))


def _watts(name: str, *calls: str, second: str = "") -> Reading:
    """Return a power's reading; NVML's unit is mW."""
    shape = "pair" if second else "uint"
    return Reading(name, True, 1, 1e3, 100_000_000, calls=calls, shape=shape, second=second)


def _celsius(name: str, threshold: str = "", *, is_signed: bool = False) -> Reading:
    calls = ("nvmlDeviceGetTemperatureThreshold",) if threshold else ()
    kinds = (f"NVML_TEMPERATURE_THRESHOLD_{threshold}",) if threshold else ()
    return Reading(name, True, raw_max=1_000, is_signed=is_signed, calls=calls, kinds=kinds)


def _percent(name: str, call: str = "") -> Reading:
    """Return a share's reading; NVML returns percent, and a sampling period that is not used."""
    return Reading(name, True, 1, 100, 100, calls=(call,) if call else (), shape="pair")


def _bytes(name: str) -> Reading:
    return Reading(name, True, raw_max=1 << 50)


def _small(name: str, *calls: str, raw_max: int = 64) -> Reading:
    """Return the reading of a small gauge such as a generation or width."""
    return Reading(name, True, raw_max=raw_max, calls=calls)


def _state(
    name: str, *calls: str, raw_max: int = 1, shape: str = "uint", second: str = ""
) -> Reading:
    return Reading(name, False, raw_max=raw_max, calls=calls, shape=shape, second=second)


def _count(
    name: str, raw_max: int = _COUNT_MAX, *, holds: bool = True, is_long: bool = False
) -> Reading:
    return Reading(name, False, raw_max=raw_max, holds=holds, is_long=is_long)


def _ecc_total(name: str, error: str, counter: str) -> Reading:
    kinds = (f"NVML_MEMORY_ERROR_TYPE_{error}", f"NVML_{counter}_ECC")
    calls = ("nvmlDeviceGetTotalEccErrors",)
    return Reading(name, False, raw_max=_COUNT_MAX, calls=calls, kinds=kinds, shape="long")


_CLOCKS = (
    _clock("sm_clock_hertz", "nvmlDeviceGetClockInfo", "SM"),
    _clock("memory_clock_hertz", "nvmlDeviceGetClockInfo", "MEM"),
    _clock("graphics_clock_hertz", "nvmlDeviceGetClockInfo", "GRAPHICS"),
    _clock("video_clock_hertz", "nvmlDeviceGetClockInfo", "VIDEO"),
    _clock("sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", "SM"),
    _clock("memory_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", "MEM"),
    _clock("graphics_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", "GRAPHICS"),
    _clock("video_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", "VIDEO"),
    _clock("sm_application_clock_hertz", "nvmlDeviceGetApplicationsClock", "SM"),
    _clock("memory_application_clock_hertz", "nvmlDeviceGetApplicationsClock", "MEM"),
    Reading(
        "clock_event_reasons_flags", False, shape="long",
        # Renamed in driver 535; most drivers still export the older name.
        calls=("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
    *(
        _count(f"violation_{cause}_nanoseconds", holds=False, is_long=cause.startswith(("sw_", "hw_")))
        for cause in (
            "power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability", "base_clocks",
            "sw_thermal", "hw_thermal", "hw_power_brake",
        )
    ),
    _count("violation_thermal_check_nanoseconds", holds=False),
    _state("performance_state", "nvmlDeviceGetPerformanceState", raw_max=15),  # 32: NVML_PSTATE_UNKNOWN
)  # fmt: skip
_POWER = (
    _watts("power_watts", "nvmlDeviceGetPowerUsage"),
    _watts("power_average_watts"),
    _watts("module_power_watts"),
    _watts("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit"),
    _watts("power_limit_requested_watts", "nvmlDeviceGetPowerManagementLimit"),
    _watts("power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit"),
    _watts(
        "power_limit_min_watts",
        "nvmlDeviceGetPowerManagementLimitConstraints",
        second="power_limit_max_watts",
    ),
    _watts("power_limit_max_watts"),
    Reading(
        # Limit of 300 years at a kilowatt: after a garbled value the true one would look like a
        # reset.
        "energy_joules",
        True,
        1,
        1e3,
        10**16,
        calls=("nvmlDeviceGetTotalEnergyConsumption",),
        shape="long",
        holds=False,
    ),
    _celsius("temperature_celsius"),
    _celsius("memory_temperature_celsius"),
    _celsius("temperature_margin_celsius", is_signed=True),
    _celsius("temperature_slowdown_celsius", "SLOWDOWN"),
    _celsius("temperature_shutdown_celsius", "SHUTDOWN"),
    _celsius("temperature_max_celsius", "GPU_MAX"),
    _celsius("memory_temperature_max_celsius", "MEM_MAX"),
    *(
        _celsius(f"margin_at_{threshold}_celsius", is_signed=True)
        for threshold in ("shutdown", "slowdown", "memory_max", "max")
    ),
)
_USE = (
    _percent("utilization_ratio"),
    _percent("memory_utilization_ratio"),
    _percent("encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization"),
    _percent("decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization"),
    _percent("jpeg_utilization_ratio", "nvmlDeviceGetJpgUtilization"),
    _percent("optical_flow_utilization_ratio", "nvmlDeviceGetOfaUtilization"),
    *(_bytes(f"memory_{what}_bytes") for what in ("used", "free", "total", "reserved")),
    *(_bytes(f"bar1_{what}_bytes") for what in ("used", "total")),
    _small("processes_count", raw_max=65_536),
)
_MEMORY_ERRORS = (
    _ecc_total("ecc_corrected_volatile_errors", "CORRECTED", "VOLATILE"),
    _ecc_total("ecc_uncorrected_volatile_errors", "UNCORRECTED", "VOLATILE"),
    _ecc_total("ecc_corrected_lifetime_errors", "CORRECTED", "AGGREGATE"),
    _ecc_total("ecc_uncorrected_lifetime_errors", "UNCORRECTED", "AGGREGATE"),
    *(
        _count(f"ecc_{kind}_{span}_{place}_errors")
        for span in ("volatile", "lifetime")
        for kind in ("corrected", "uncorrected")
        for place in ("l1", "l2", "device", "register", "texture", "cbu")
        if (kind, place) != ("corrected", "cbu")
    ),
    *(_count(name) for name in NAMED if name.startswith("sram_") and name.endswith("_errors")),
    _count("sram_unique_uncorrected_count", 4096),
    _count("sram_unique_parity_count", 4096),
    _state("sram_threshold_exceeded_state"),
    _count("remapped_correctable_rows", 1 << 24),
    _count("remapped_uncorrectable_rows", 1 << 24),
    _state("remap_pending_state"),
    _state("remap_failed_state"),
    *(_small(name, raw_max=1 << 24) for name in NAMED if name.startswith("remap_banks")),
    _count("retired_corrected_pages", 1 << 24),
    _count("retired_uncorrected_pages", 1 << 24),
    _state("retirement_pending_state"),
    _state("repair_channel_pending_state"),
    _state("repair_tpc_pending_state"),
    _state("unrepairable_memory_state"),
    _state("recovery_action_state", raw_max=255),
)
_PCIE = (
    _small("pcie_generation_number", "nvmlDeviceGetCurrPcieLinkGeneration", raw_max=16),
    _small("pcie_generation_max_number", "nvmlDeviceGetMaxPcieLinkGeneration", raw_max=16),
    _small("pcie_width_lanes", "nvmlDeviceGetCurrPcieLinkWidth"),
    _small("pcie_width_max_lanes", "nvmlDeviceGetMaxPcieLinkWidth"),
    Reading("pcie_replays_count", False, raw_max=_COUNT_MAX, calls=("nvmlDeviceGetPcieReplayCounter",)),
    *(
        _count(f"pcie_{what}", holds=not what.endswith("_bytes"))
        for what in (
            "replay_rollovers_count", "recoveries_count", "naks_received_count", "naks_sent_count",
            "correctable_errors", "nonfatal_errors", "fatal_errors", "unsupported_request_errors",
            "receiver_errors", "bad_tlp_errors", "bad_dllp_errors", "lcrc_errors",
            "transmitted_bytes", "received_bytes",
        )
    ),
)  # fmt: skip
_SETTINGS = (
    _state("ecc_mode_state", "nvmlDeviceGetEccMode", shape="pair", second="ecc_mode_pending_state"),
    _state("ecc_mode_pending_state"),
    _state("mig_mode_state", "nvmlDeviceGetMigMode", shape="pair", second="mig_mode_pending_state"),
    _state("mig_mode_pending_state"),
    _state("persistence_mode_state", "nvmlDeviceGetPersistenceMode"),
    _state("compute_mode_state", "nvmlDeviceGetComputeMode", raw_max=3),
)
_OF_THE_SWEEP = (
    _count("calls_failed_errors"),
    _count("slow_calls_failed_errors"),
    _count("settings_calls_failed_errors"),
    _count("lost_state"),
    _count("error_code_state", 65_536),
)

ROWS = (*_CLOCKS, *_POWER, *_USE, *_MEMORY_ERRORS, *_PCIE, *_SETTINGS, *_OF_THE_SWEEP)
