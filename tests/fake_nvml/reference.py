"""nvidia-ml-py's view of the same library: every reading of every GPU, as JSON, for each step.

Run as a program, with LD_LIBRARY_PATH at the stand-in: `reference.py SCENARIO STEPS`. It shares no
code with the project's binding; units are converted independently.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml as nv

CORRECTED, UNCORRECTED = nv.NVML_MEMORY_ERROR_TYPE_CORRECTED, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
VOLATILE, AGGREGATE = nv.NVML_VOLATILE_ECC, nv.NVML_AGGREGATE_ECC
#: Reading -> member of the SRAM's status.
SRAM = {
    "sram_corrected_volatile_errors": "volatileCor",
    "sram_parity_volatile_errors": "volatileUncParity",
    "sram_secded_volatile_errors": "volatileUncSecDed",
    "sram_corrected_lifetime_errors": "aggregateCor",
    "sram_parity_lifetime_errors": "aggregateUncParity",
    "sram_secded_lifetime_errors": "aggregateUncSecDed",
    "sram_l2_lifetime_errors": "aggregateUncBucketL2",
    "sram_sm_lifetime_errors": "aggregateUncBucketSm",
    "sram_pcie_lifetime_errors": "aggregateUncBucketPcie",
    "sram_microcontroller_lifetime_errors": "aggregateUncBucketMcu",
    "sram_other_lifetime_errors": "aggregateUncBucketOther",
}
PLACES = {
    "l1": "L1",
    "l2": "L2",
    "device": "DEV",
    "register": "REG",
    "texture": "TEX",
    "cbu": "CBU",
}


def field(handle: Any, field_id: int) -> int:
    """Return one field's value, by the union member of its type."""
    value = nv.nvmlDeviceGetFieldValues(handle, [field_id])[0]
    if value.nvmlReturn != nv.NVML_SUCCESS:
        raise nv.NVMLError(value.nvmlReturn)
    members = ["dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal"]
    return int(getattr(value.value, members[value.valueType]))


def scoped(handle: Any, field_id: int, scope: int) -> int:
    """Return one field's value of a scope."""
    value = nv.nvmlDeviceGetFieldValues(handle, [(field_id, scope)])[0]
    if value.nvmlReturn != nv.NVML_SUCCESS:
        raise nv.NVMLError(value.nvmlReturn)
    return int(value.value.uiVal)


def sram(handle: Any, member: str) -> int:
    """Return one member of the SRAM's error status."""
    status = nv.c_nvmlEccSramErrorStatus_v1_t()
    status.version = nv.nvmlEccSramErrorStatus_v1
    nv.nvmlDeviceGetSramEccErrorStatus(handle, nv.byref(status))
    return int(getattr(status, member))


def sram_places(handle: Any) -> Any:
    """Return the entries of SRAM places that lost data, requested as the header describes."""
    asked = nv.c_nvmlEccSramUniqueUncorrectedErrorCounts_v1_t()
    nv.nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(handle, nv.byref(asked))
    entry: Any = nv.c_nvmlEccSramUniqueUncorrectedErrorEntry_v1_t
    room = (entry * asked.entryCount)()
    asked.entries = nv.cast(room, nv.POINTER(entry))
    if asked.entryCount:
        nv.nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(handle, nv.byref(asked))
    return room


def unrepairable(handle: Any) -> int:
    """Return the flag by nvml.h's layout; nvidia-ml-py 13.615 reads the wrong bytes."""
    flag = nv.c_uint(0)
    nv._nvmlCheckReturn(
        nv._nvmlGetFunctionPointer("nvmlDeviceGetUnrepairableMemoryFlag_v1")(handle, nv.byref(flag))
    )
    return int(flag.value)


def ecc(handle: Any, error: int, counter: int) -> int:
    return int(nv.nvmlDeviceGetTotalEccErrors(handle, error, counter))


READ: dict[str, Callable[[Any], Any]] = {
    "sm_clock_hertz": lambda h: nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_SM) * 1e6,
    "memory_clock_hertz": lambda h: nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_MEM) * 1e6,
    "sm_clock_max_hertz": lambda h: nv.nvmlDeviceGetMaxClockInfo(h, nv.NVML_CLOCK_SM) * 1e6,
    "clock_event_reasons_flags": nv.nvmlDeviceGetCurrentClocksEventReasons,
    "violation_power_nanoseconds": lambda h: field(h, nv.NVML_FI_DEV_PERF_POLICY_POWER),
    "violation_thermal_nanoseconds": lambda h: field(h, nv.NVML_FI_DEV_PERF_POLICY_THERMAL),
    "violation_sync_boost_nanoseconds": lambda h: field(h, nv.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST),
    "power_watts": lambda h: field(h, nv.NVML_FI_DEV_POWER_INSTANT) / 1000,
    "power_average_watts": lambda h: nv.nvmlDeviceGetPowerUsage(h) / 1000,
    "power_limit_watts": lambda h: nv.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
    "energy_joules": lambda h: nv.nvmlDeviceGetTotalEnergyConsumption(h) / 1000,
    "temperature_celsius": lambda h: nv.nvmlDeviceGetTemperature(h, nv.NVML_TEMPERATURE_GPU),
    "memory_temperature_celsius": lambda h: field(h, nv.NVML_FI_DEV_MEMORY_TEMP),
    "temperature_margin_celsius": nv.nvmlDeviceGetMarginTemperature,
    "temperature_slowdown_celsius": lambda h: nv.nvmlDeviceGetTemperatureThreshold(
        h, nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    ),
    "utilization_ratio": lambda h: int(nv.nvmlDeviceGetUtilizationRates(h).gpu) / 100,
    "memory_utilization_ratio": lambda h: int(nv.nvmlDeviceGetUtilizationRates(h).memory) / 100,
    "memory_used_bytes": lambda h: nv.nvmlDeviceGetMemoryInfo(h).used,
    "memory_total_bytes": lambda h: nv.nvmlDeviceGetMemoryInfo(h).total,
    "memory_reserved_bytes": lambda h: nv.nvmlDeviceGetMemoryInfo(h, nv.nvmlMemory_v2).reserved,
    "ecc_corrected_volatile_errors": lambda h: ecc(h, CORRECTED, VOLATILE),
    "ecc_uncorrected_volatile_errors": lambda h: ecc(h, UNCORRECTED, VOLATILE),
    "ecc_corrected_lifetime_errors": lambda h: ecc(h, CORRECTED, AGGREGATE),
    "ecc_uncorrected_lifetime_errors": lambda h: ecc(h, UNCORRECTED, AGGREGATE),
    "remapped_correctable_rows": lambda h: nv.nvmlDeviceGetRemappedRows(h)[0],
    "remapped_uncorrectable_rows": lambda h: nv.nvmlDeviceGetRemappedRows(h)[1],
    "remap_pending_state": lambda h: nv.nvmlDeviceGetRemappedRows(h)[2],
    "remap_failed_state": lambda h: nv.nvmlDeviceGetRemappedRows(h)[3],
    "pcie_generation_number": nv.nvmlDeviceGetCurrPcieLinkGeneration,
    "pcie_generation_max_number": nv.nvmlDeviceGetMaxPcieLinkGeneration,
    "pcie_width_lanes": nv.nvmlDeviceGetCurrPcieLinkWidth,
    "pcie_width_max_lanes": nv.nvmlDeviceGetMaxPcieLinkWidth,
    "pcie_replays_count": nv.nvmlDeviceGetPcieReplayCounter,
    "performance_state": nv.nvmlDeviceGetPerformanceState,
    "recovery_action_state": lambda h: field(h, nv.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
    "processes_count": lambda h: len(nv.nvmlDeviceGetComputeRunningProcesses(h)),
    "graphics_clock_hertz": lambda h: nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_GRAPHICS) * 1e6,
    "video_clock_hertz": lambda h: nv.nvmlDeviceGetClockInfo(h, nv.NVML_CLOCK_VIDEO) * 1e6,
    "memory_clock_max_hertz": lambda h: nv.nvmlDeviceGetMaxClockInfo(h, nv.NVML_CLOCK_MEM) * 1e6,
    "graphics_clock_max_hertz": lambda h: (
        nv.nvmlDeviceGetMaxClockInfo(h, nv.NVML_CLOCK_GRAPHICS) * 1e6
    ),
    "video_clock_max_hertz": lambda h: nv.nvmlDeviceGetMaxClockInfo(h, nv.NVML_CLOCK_VIDEO) * 1e6,
    "sm_application_clock_hertz": lambda h: (
        nv.nvmlDeviceGetApplicationsClock(h, nv.NVML_CLOCK_SM) * 1e6
    ),
    "memory_application_clock_hertz": lambda h: (
        nv.nvmlDeviceGetApplicationsClock(h, nv.NVML_CLOCK_MEM) * 1e6
    ),
    "violation_board_limit_nanoseconds": lambda h: field(h, nv.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT),
    "violation_low_utilization_nanoseconds": lambda h: field(
        h, nv.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION
    ),
    "violation_reliability_nanoseconds": lambda h: field(h, nv.NVML_FI_DEV_PERF_POLICY_RELIABILITY),
    "violation_base_clocks_nanoseconds": lambda h: field(
        h, nv.NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS
    ),
    "violation_sw_thermal_nanoseconds": lambda h: field(
        h, nv.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    ),
    "violation_hw_thermal_nanoseconds": lambda h: field(
        h, nv.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    ),
    "violation_hw_power_brake_nanoseconds": lambda h: field(
        h, nv.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
    ),
    "violation_thermal_check_nanoseconds": lambda h: (
        nv.nvmlDeviceGetViolationStatus(h, nv.NVML_PERF_POLICY_THERMAL).violationTime
    ),
    "module_power_watts": lambda h: scoped(h, nv.NVML_FI_DEV_POWER_INSTANT, 1) / 1000,
    "power_limit_requested_watts": lambda h: nv.nvmlDeviceGetPowerManagementLimit(h) / 1000,
    "power_limit_default_watts": lambda h: nv.nvmlDeviceGetPowerManagementDefaultLimit(h) / 1000,
    "power_limit_min_watts": lambda h: field(h, nv.NVML_FI_DEV_POWER_MIN_LIMIT) / 1000,
    "power_limit_max_watts": lambda h: field(h, nv.NVML_FI_DEV_POWER_MAX_LIMIT) / 1000,
    "temperature_shutdown_celsius": lambda h: nv.nvmlDeviceGetTemperatureThreshold(
        h, nv.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
    ),
    "memory_temperature_max_celsius": lambda h: nv.nvmlDeviceGetTemperatureThreshold(
        h, nv.NVML_TEMPERATURE_THRESHOLD_MEM_MAX
    ),
    "temperature_max_celsius": lambda h: nv.nvmlDeviceGetTemperatureThreshold(
        h, nv.NVML_TEMPERATURE_THRESHOLD_GPU_MAX
    ),
    "margin_at_shutdown_celsius": lambda h: field(h, nv.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT),
    "margin_at_slowdown_celsius": lambda h: field(h, nv.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT),
    "margin_at_memory_max_celsius": lambda h: field(h, nv.NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT),
    "margin_at_max_celsius": lambda h: field(h, nv.NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT),
    "encoder_utilization_ratio": lambda h: nv.nvmlDeviceGetEncoderUtilization(h)[0] / 100,
    "decoder_utilization_ratio": lambda h: nv.nvmlDeviceGetDecoderUtilization(h)[0] / 100,
    "jpeg_utilization_ratio": lambda h: nv.nvmlDeviceGetJpgUtilization(h)[0] / 100,
    "optical_flow_utilization_ratio": lambda h: nv.nvmlDeviceGetOfaUtilization(h)[0] / 100,
    "memory_free_bytes": lambda h: nv.nvmlDeviceGetMemoryInfo(h).free,
    "bar1_used_bytes": lambda h: nv.nvmlDeviceGetBAR1MemoryInfo(h).bar1Used,
    "bar1_total_bytes": lambda h: nv.nvmlDeviceGetBAR1MemoryInfo(h).bar1Total,
    "retired_corrected_pages": lambda h: field(h, nv.NVML_FI_DEV_RETIRED_SBE),
    "retired_uncorrected_pages": lambda h: field(h, nv.NVML_FI_DEV_RETIRED_DBE),
    "retirement_pending_state": lambda h: field(h, nv.NVML_FI_DEV_RETIRED_PENDING),
    "repair_channel_pending_state": lambda h: nv.nvmlDeviceGetRepairStatus(h)[0],
    "repair_tpc_pending_state": lambda h: nv.nvmlDeviceGetRepairStatus(h)[1],
    "unrepairable_memory_state": unrepairable,
    "pcie_replay_rollovers_count": lambda h: field(h, nv.NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER),
    "pcie_recoveries_count": lambda h: field(h, nv.NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER),
    "pcie_naks_received_count": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED),
    "pcie_naks_sent_count": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_NAKS_SENT),
    "pcie_correctable_errors": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS),
    "pcie_nonfatal_errors": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR),
    "pcie_fatal_errors": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR),
    "pcie_unsupported_request_errors": lambda h: field(
        h, nv.NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ
    ),
    "pcie_receiver_errors": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR),
    "pcie_bad_tlp_errors": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_BAD_TLP),
    "pcie_bad_dllp_errors": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_BAD_DLLP),
    "pcie_lcrc_errors": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR),
    "pcie_transmitted_bytes": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_TX_BYTES),
    "pcie_received_bytes": lambda h: field(h, nv.NVML_FI_DEV_PCIE_COUNT_RX_BYTES),
    "ecc_mode_state": lambda h: nv.nvmlDeviceGetEccMode(h)[0],
    "ecc_mode_pending_state": lambda h: nv.nvmlDeviceGetEccMode(h)[1],
    "mig_mode_state": lambda h: nv.nvmlDeviceGetMigMode(h)[0],
    "mig_mode_pending_state": lambda h: nv.nvmlDeviceGetMigMode(h)[1],
    "persistence_mode_state": nv.nvmlDeviceGetPersistenceMode,
    "compute_mode_state": nv.nvmlDeviceGetComputeMode,
    "sram_threshold_exceeded_state": lambda h: sram(h, "bThresholdExceeded"),
    "sram_unique_uncorrected_count": lambda h: len(sram_places(h)),
    "sram_unique_uncorrected_errors": lambda h: sum(place.count for place in sram_places(h)),
    "sram_unique_parity_count": lambda h: sum(place.isParity for place in sram_places(h)),
}


def of_sram(member: str) -> Callable[[Any], int]:
    return lambda h: sram(h, member)


def of_histogram(member: str) -> Callable[[Any], int]:
    return lambda h: int(getattr(nv.nvmlDeviceGetRowRemapperHistogram(h), member))


def of_field(name: str) -> Callable[[Any], int]:
    return lambda h: field(h, getattr(nv, name))


READ |= {name: of_sram(member) for name, member in SRAM.items()}
READ |= {
    f"remap_banks_{name}_count": of_histogram(name)
    for name in ("max", "high", "partial", "low", "none")
}
READ |= {
    f"ecc_{kind}_{span}_{place}_errors": of_field(f"NVML_FI_DEV_ECC_{bits}_{part}_{where}")
    for kind, bits in (("corrected", "SBE"), ("uncorrected", "DBE"))
    for span, part in (("volatile", "VOL"), ("lifetime", "AGG"))
    for place, where in PLACES.items()
    if (kind, place) != ("corrected", "cbu")
}


def read(handle: Any, name: str) -> Any:
    """Return one reading; None if NVML returns an error."""
    try:
        return READ[name](handle)
    except nv.NVMLError:
        return None


def main(scenario: str, steps: int) -> None:
    """Print one JSON object: driver version, devices, and step -> UUID -> reading -> value."""
    nv.nvmlInit()
    handles = [nv.nvmlDeviceGetHandleByIndex(i) for i in range(nv.nvmlDeviceGetCount())]
    uuids = [nv.nvmlDeviceGetUUID(h) for h in handles]
    played = []
    for step in range(steps):
        with Path(scenario + ".step").open("r+") as file:
            file.write(f"{step:04}\n")
        played.append(
            {u: {n: read(h, n) for n in READ} for u, h in zip(uuids, handles, strict=True)}
        )
    devices = [
        [nv.nvmlDeviceGetPciInfo(h).busId, u, nv.nvmlDeviceGetName(h), nv.nvmlDeviceGetSerial(h)]
        for u, h in zip(uuids, handles, strict=True)
    ]
    driver = nv.nvmlSystemGetDriverVersion()
    print(json.dumps({"driver": driver, "devices": devices, "steps": played}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
