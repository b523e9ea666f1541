"""What of a simulated GPU does not change while the model runs, as nvidia-smi -q says it of an H100."""

from __future__ import annotations

from . import parts

#: Verified, as `gpu.violation_*_field_state` has it.
_VERIFIED = 2
_MIB = 1 << 20
#: Memory banks of an H100 with 80 GB: the sum of nvidia-smi's histogram.
BANKS = 2560

GPU: dict[str, float] = {
    "gpu.counter_epoch_count": 0,
    "gpu.memory_clock_hertz": parts.MEMORY_CLOCK_HERTZ,
    "gpu.sm_clock_max_hertz": parts.SM_CLOCK_MAX_HERTZ,
    "gpu.graphics_clock_max_hertz": parts.SM_CLOCK_MAX_HERTZ,
    "gpu.memory_clock_max_hertz": parts.MEMORY_CLOCK_HERTZ,
    "gpu.video_clock_max_hertz": 1545e6,
    "gpu.violation_sync_boost_nanoseconds": 0,
    "gpu.violation_sw_thermal_field_state": _VERIFIED,
    "gpu.violation_hw_thermal_field_state": _VERIFIED,
    "gpu.violation_hw_power_brake_field_state": _VERIFIED,
    "gpu.power_limit_watts": parts.POWER_LIMIT_WATTS,
    "gpu.power_limit_requested_watts": parts.POWER_LIMIT_WATTS,
    "gpu.power_limit_default_watts": parts.POWER_LIMIT_WATTS,
    "gpu.power_limit_min_watts": 200.0,
    "gpu.power_limit_max_watts": parts.POWER_LIMIT_WATTS,
    "gpu.temperature_slowdown_celsius": parts.TEMPERATURE_SLOWDOWN_CELSIUS,
    "gpu.temperature_max_celsius": parts.TEMPERATURE_MAX_CELSIUS,
    "gpu.temperature_shutdown_celsius": parts.TEMPERATURE_MAX_CELSIUS + 8,
    "gpu.margin_at_shutdown_celsius": -8.0,
    "gpu.margin_at_slowdown_celsius": (
        parts.TEMPERATURE_MAX_CELSIUS - parts.TEMPERATURE_SLOWDOWN_CELSIUS
    ),
    "gpu.margin_at_max_celsius": 0.0,
    "gpu.margin_at_memory_max_celsius": 0.0,
    "gpu.memory_total_bytes": parts.GPU_MEMORY_BYTES,
    "gpu.memory_reserved_bytes": 551 * _MIB,
    "gpu.bar1_total_bytes": 131072 * _MIB,
    "gpu.bar1_used_bytes": 4 * _MIB,
    "gpu.encoder_utilization_ratio": 0.0,
    "gpu.decoder_utilization_ratio": 0.0,
    "gpu.jpeg_utilization_ratio": 0.0,
    "gpu.optical_flow_utilization_ratio": 0.0,
    "gpu.pcie_generation_number": 5,
    "gpu.pcie_generation_max_number": 5,
    "gpu.pcie_width_lanes": 16,
    "gpu.pcie_width_max_lanes": 16,
    "gpu.performance_state": 0,
    "gpu.lost_state": 0,
    "gpu.mig_mode_state": 0,
    "gpu.mig_mode_pending_state": 0,
    "gpu.ecc_mode_state": 1,
    "gpu.ecc_mode_pending_state": 1,
    "gpu.persistence_mode_state": 1,
    "gpu.compute_mode_state": 0,
    "gpu.remap_failed_state": 0,
    "gpu.remap_banks_partial_count": 0,
    "gpu.remap_banks_low_count": 0,
    "gpu.remap_banks_none_count": 0,
    "gpu.sram_threshold_exceeded_state": 0,
    "gpu.repair_channel_pending_state": 0,
    "gpu.repair_tpc_pending_state": 0,
    "gpu.unrepairable_memory_state": 0,
    "gpu_fast.power_brake_ratio": 0.0,
    # Eight GPUs behind NVSwitches: registered, and Hopper tells no health of the fabric.
    "gpu_fabric.registration_state": 3,
    "gpu_fabric.registration_status_code": 0,
    "gpu_fabric.clique_number": 0,
}
