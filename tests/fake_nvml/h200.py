"""An H200 as its driver (580.159.04) answered on 28 November: its fields, its idle values, and the
costs of calls.

Costs are microseconds: of each field requested alone, and of each call the mean over 33 s of a
training job's agent.
"""

from __future__ import annotations

from tests.fake_nvml.scenario import Gpu

DRIVER = "580.159.04"
#: Field -> microseconds; all others take 1 to 8.
FIELD_COSTS = {
    74: 396, 75: 764, 83: 3232, 94: 370, 95: 178, 169: 344, 173: 264, 174: 176, 175: 180, 176: 171, 177: 168,
    178: 179, 179: 159, 180: 171, 181: 171, 182: 172, 193: 450, 194: 2788, 197: 349, 198: 266, 251: 278, 252: 152,
    253: 142, 270: 704, 271: 675,
}  # fmt: skip
CALL_COSTS = {
    "nvmlDeviceGetFieldValues": 2,
    "nvmlDeviceGetMarginTemperature": 994,
    "nvmlDeviceGetMaxClockInfo": 1718,
    "nvmlDeviceGetApplicationsClock": 1892,
    "nvmlDeviceGetMigMode": 479,
    "nvmlDeviceGetClockInfo": 7,
    "nvmlDeviceGetUtilizationRates": 10,
    "nvmlDeviceGetViolationStatus": 634,
    "nvmlDeviceGetEccMode": 845,
    "nvmlDeviceGetTemperatureThreshold": 150,
    "nvmlDeviceGetRepairStatus": 306,
    "nvmlDeviceGetBAR1MemoryInfo": 275,
    "nvmlDeviceGetComputeRunningProcesses_v3": 20,
    "nvmlDeviceGetCurrentClocksEventReasons": 4,
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": 207,
    "nvmlDeviceGetMemoryInfo": 18,
    "nvmlDeviceGetMemoryInfo_v2": 13,
    "nvmlDeviceGetCurrPcieLinkWidth": 91,
    "nvmlDeviceGetCurrPcieLinkGeneration": 67,
    "nvmlDeviceGetMaxPcieLinkWidth": 8,
    "nvmlDeviceGetPerformanceState": 2,
    "nvmlDeviceGetTemperatureV": 2,
    "nvmlDeviceGetPersistenceMode": 17,
    "nvmlDeviceGetComputeMode": 6,
    "nvmlDeviceGetRemappedRows": 2,
    "nvmlDeviceGetEnforcedPowerLimit": 2,
    "nvmlGpmSampleGet": 244,
    "nvmlGpmMetricsGet": 23,
}
#: Time counters: the clock was limited only by low utilization and by the idle state.
_NANOSECONDS = {
    74: 0,
    75: 0,
    76: 0,
    77: 0,
    78: 54_078_412_768,
    79: 0,
    81: 44_584_919_104,
    269: 0,
    270: 0,
    271: 0,
}


def h200(
    uuid: str = "GPU-00000000-0000-4000-8000-000000000001", address: str = "0000:00:06.0"
) -> Gpu:
    """Return the idle GPU, with its costs."""
    gpu = Gpu(uuid, address, name="NVIDIA H200", serial="1650000000001")
    gpu.values |= {
        "sm_clock": 345, "graphics_clock": 345, "memory_clock": 3201, "video_clock": 765, "sm_clock_max": 1980,
        "graphics_clock_max": 1980, "memory_clock_max": 3201, "video_clock_max": 1545, "event_reasons": 1,
        "power": 77_806, "power_limit": 700_000, "temperature": 40, "slowdown": 89, "shutdown": 95, "memory_max": 95,
        "gpu_max": 87, "margin": 47, "utilization": 0, "memory_utilization": 0, "performance_state": 0,
        "pcie_generation": 5, "pcie_width": 16, "processes": 0, "remap_pending": 0, "remapped_uncorrectable": 0,
        "remapped_correctable": 0, "ecc_corrected_aggregate": 0, "ecc_uncorrected_aggregate": 0,
        "ecc_corrected_volatile": 0, "sram_threshold": 0, "repair_channel": 0, "sram_unique": 0, "mig_mode_pending": 0,
    }  # fmt: skip
    gpu.values |= {name: 0 for name in gpu.values if name.startswith("sram_")}
    for number in (*range(3, 29), 29, 30, 31, 94, 95, 169, *range(173, 183)):
        if number in gpu.fields:
            gpu.fields[number] = (gpu.fields[number][0], 0)
    gpu.fields |= {number: ("ull", value) for number, value in _NANOSECONDS.items()}
    gpu.fields |= {
        82: ("uint", 42), 83: ("ull", 5_146_083), 185: ("uint", 77_806), 186: ("uint", 77_556),
        197: ("uint", 1_624_779_436), 198: ("uint", 311_739_996), 230: ("uint", 0),
    }  # fmt: skip
    for number in (251, 252, 253):
        gpu.fields.pop(number, None)
    gpu.lines += [f"cost {call} {cost}" for call, cost in CALL_COSTS.items()]
    gpu.lines += [f"field_cost {number} {cost}" for number, cost in FIELD_COSTS.items()]
    return gpu
