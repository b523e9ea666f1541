"""What nvidia-ml-py makes of the same library: every reading of every GPU, as JSON, for each step.

Run as a program, with LD_LIBRARY_PATH at the stand-in: `reference.py SCENARIO STEPS`. It shares no code
with our binding; units are converted here once more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml as nv


def field(handle: Any, field_id: int) -> int:
    """Return one field's value, by the member of the union that its type names."""
    value = nv.nvmlDeviceGetFieldValues(handle, [field_id])[0]
    if value.nvmlReturn != nv.NVML_SUCCESS:
        raise nv.NVMLError(value.nvmlReturn)
    members = ["dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal"]
    return int(getattr(value.value, members[value.valueType]))


def ecc(handle: Any, error: int, counter: int) -> int:
    """Return a total of ECC errors."""
    return int(nv.nvmlDeviceGetTotalEccErrors(handle, error, counter))


CORRECTED, UNCORRECTED = nv.NVML_MEMORY_ERROR_TYPE_CORRECTED, nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
VOLATILE, AGGREGATE = nv.NVML_VOLATILE_ECC, nv.NVML_AGGREGATE_ECC

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
}


def read(handle: Any, name: str) -> Any:
    """Return one reading; None where NVML answers with an error."""
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
