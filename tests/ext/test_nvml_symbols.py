"""Drivers that lack a symbol, a version, or everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.contract.nvml_fields import fields_of
from gangline.ext import nvml
from gangline.ext.nvml import READINGS, Nvml, NvmlAbsent, NvmlError
from gangline.ext.nvml_readings import NAMED, ROWS
from tests.ext.sweeping import LIBRARY_READINGS, Sweeping, missing
from tests.fake_nvml.build import build
from tests.fake_nvml.fixtures import Play
from tests.fake_nvml.scenario import gpus

WITH_CALL = (
    {row.name for row in ROWS if row.calls}
    | set(NAMED)
    | {row.second for row in ROWS if row.second}
)
#: Readings that only come from a field.
FIELD_ONLY = {reading for reading in fields_of("590.48.01") if reading not in WITH_CALL}


def starting(*beginnings: str) -> set[str]:
    return {name for name in READINGS if name.startswith(beginnings)}


#: Function -> the readings without another source. Other functions have substitutes.
COSTS: dict[str, set[str]] = {
    "nvmlDeviceGetFieldValues": FIELD_ONLY,
    "nvmlDeviceGetClockInfo": {
        f"{name}_clock_hertz" for name in ("sm", "memory", "graphics", "video")
    },
    "nvmlDeviceGetMaxClockInfo": {
        f"{name}_clock_max_hertz" for name in ("sm", "memory", "graphics", "video")
    },
    "nvmlDeviceGetApplicationsClock": {
        "sm_application_clock_hertz",
        "memory_application_clock_hertz",
    },
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_watts"},
    "nvmlDeviceGetTemperatureThreshold": {
        "temperature_slowdown_celsius",
        "temperature_shutdown_celsius",
        "temperature_max_celsius",
        "memory_temperature_max_celsius",
    },
    "nvmlDeviceGetMarginTemperature": {"temperature_margin_celsius"},
    "nvmlDeviceGetUtilizationRates": {"utilization_ratio", "memory_utilization_ratio"},
    "nvmlDeviceGetEncoderUtilization": {"encoder_utilization_ratio"},
    "nvmlDeviceGetDecoderUtilization": {"decoder_utilization_ratio"},
    "nvmlDeviceGetJpgUtilization": {"jpeg_utilization_ratio"},
    "nvmlDeviceGetOfaUtilization": {"optical_flow_utilization_ratio"},
    "nvmlDeviceGetMemoryInfo": {"memory_used_bytes", "memory_free_bytes"},
    "nvmlDeviceGetMemoryInfo_v2": {"memory_reserved_bytes"},
    "nvmlDeviceGetBAR1MemoryInfo": starting("bar1_"),
    "nvmlDeviceGetRemappedRows": starting("remapped_", "remap_pending", "remap_failed"),
    "nvmlDeviceGetRowRemapperHistogram": starting("remap_banks_"),
    "nvmlDeviceGetSramEccErrorStatus": starting("sram_") - starting("sram_unique_"),
    "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts": starting("sram_unique_"),
    "nvmlDeviceGetRepairStatus": starting("repair_"),
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": {"unrepairable_memory_state"},
    "nvmlDeviceGetViolationStatus": {"violation_thermal_check_nanoseconds"},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation_number"},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"pcie_generation_max_number"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width_lanes"},
    "nvmlDeviceGetMaxPcieLinkWidth": {"pcie_width_max_lanes"},
    "nvmlDeviceGetPerformanceState": {"performance_state"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"processes_count"},
    "nvmlDeviceGetEccMode": {"ecc_mode_state", "ecc_mode_pending_state"},
    "nvmlDeviceGetMigMode": {"mig_mode_state", "mig_mode_pending_state"},
    "nvmlDeviceGetPersistenceMode": {"persistence_mode_state"},
    "nvmlDeviceGetComputeMode": {"compute_mode_state"},
}


def test_one_symbol_gives_no_more_than_it_costs() -> None:
    """A driver of another branch lacks some symbol: its effect is known for each."""
    assert set(COSTS) <= set(nvml.SYMBOLS)
    assert set().union(*COSTS.values()) < LIBRARY_READINGS


@pytest.mark.parametrize("symbol", sorted(set(nvml.SYMBOLS) - set(nvml.REQUIRED)))
def test_a_missing_symbol_costs_its_reading_only(symbol: str, folder: Path, play: Play) -> None:
    """A binding linked at build time does not even start under a driver one branch older."""
    gpu = gpus(1)[0]
    play([gpu])
    with Sweeping(str(build(folder, missing=[symbol])), [gpu.address]) as sweeping:
        assert sweeping.nvml.missing_symbols == {symbol}
        assert len(sweeping.nvml.devices()) == 1
        assert sweeping.nvml.driver_version() in ("590.48.01", "")
        readings = sweeping.read()[0]
    assert missing(readings) == COSTS.get(symbol, set())
    assert readings["calls_failed_errors"] == 0


def test_an_old_driver_gives_what_it_has(folder: Path, play: Play) -> None:
    """No fields, no versioned calls: the older calls return the same."""
    lacks = ["nvmlDeviceGetFieldValues", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetMemoryInfo_v2"]
    lacks += [
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMarginTemperature",
        "nvmlInitWithFlags",
    ]
    gpu = gpus(1)[0]
    play([gpu]).step(1)
    with Sweeping(str(build(folder, missing=lacks)), [gpu.address]) as sweeping:
        readings = sweeping.read()[0]
    assert missing(readings) == FIELD_ONLY | {"temperature_margin_celsius", "memory_reserved_bytes"}
    assert readings["power_watts"] == 629.45
    assert readings["energy_joules"] == 5000629.573
    assert readings["ecc_corrected_volatile_errors"] == 7
    assert readings["ecc_corrected_lifetime_errors"] == 19
    assert readings["pcie_replays_count"] == 9
    assert readings["temperature_celsius"] == 67
    assert readings["clock_event_reasons_flags"] == 4


VERSIONED: dict[str, set[str]] = {
    "nvmlDeviceGetTemperatureV": set(),  # nvmlDeviceGetTemperature
    "nvmlDeviceGetMarginTemperature": {"temperature_margin_celsius"},
    "nvmlDeviceGetMemoryInfo_v2": {"memory_reserved_bytes"},
    "nvmlDeviceGetSramEccErrorStatus": starting("sram_") - starting("sram_unique_"),
    "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts": starting("sram_unique_"),
    "nvmlDeviceGetRepairStatus": starting("repair_"),
}


@pytest.mark.parametrize("symbol", VERSIONED)
def test_an_unknown_version_has_an_older_call(symbol: str, library: str, play: Play) -> None:
    """ARGUMENT_VERSION_MISMATCH means an old driver, not a failing one."""
    gpu = gpus(1)[0]
    gpu.lines.append(f"error {symbol} 25")
    play([gpu])
    with Sweeping(library, [gpu.address]) as sweeping:
        readings = sweeping.read()[0]
    assert missing(readings) == VERSIONED[symbol]
    assert (readings["temperature_celsius"], readings["calls_failed_errors"]) == (41, 0)


def test_no_library_is_said_in_words(tmp_path: Path) -> None:
    """Most machines have no NVIDIA driver, which is not an error."""
    with pytest.raises(NvmlAbsent, match="cannot open shared object file"):
        Nvml(str(tmp_path / "libnvidia-ml.so.1"))
    (tmp_path / "text.so").write_text("not a library, but something of that name is there\n" * 4)
    with pytest.raises(NvmlAbsent, match=r"text\.so"):
        Nvml(str(tmp_path / "text.so"))


def test_a_library_that_is_no_nvml_is_refused(folder: Path) -> None:
    """A stub package for containers once contained an empty library of that name."""
    with pytest.raises(NvmlAbsent, match="lacks nvmlDeviceGetCount_v2"):
        Nvml(str(build(folder, missing=["nvmlDeviceGetCount_v2"])))


@pytest.mark.parametrize(("code", "message"), [(9, "Driver Not Loaded"), (18, "version mismatch")])
def test_a_driver_that_does_not_start(code: int, message: str, library: str, play: Play) -> None:
    """A driver during an update (18) is not a dead GPU."""
    play(gpus(1), host=f"error nvmlInitWithFlags {code}")
    with pytest.raises(NvmlError, match=message) as caught:
        Nvml(library)
    assert caught.value.code == code
