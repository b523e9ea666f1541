"""Signals of GPUs: clocks, memory, faults, fabric, links, instances, processes and jobs."""

from ..signal import Kind, Pace, Signal

GPU_TEXT = """GPUs: NVIDIA's through NVML, AMD's through the kernel driver's sysfs files. Device: the GPU's UUID. For an AMD GPU it is
`GPU-` and its unique id, or its PCI address if it has none. Each die of an MI250X is a GPU.

A signal's pace is the fastest. NVML calls that take more than 0.2 ms (fields: 0.05 ms) take turns, so that NVML takes less
than 1 ms per second and GPU. Between two turns a gauge, a state or an error counter has its last value. Energy, throttling
times and PCIe bytes grow all the time, and are missing meanwhile. On an H200 a turn comes about every 50 s.

AMD's GPUs have rows in the same tables, under the same signals. The tables below give NVIDIA's sources; this one gives
AMD's. Names without a file are fields of `gpu_metrics` (revisions 1.3 to 1.8; 1.9 and later describe themselves):

| signal | of an AMD GPU |
|---|---|
| `sm_clock_hertz`, `memory_clock_hertz`, `video_clock_hertz` | `current_gfxclk`, the mean of the present compute dies; `current_uclk`; `current_vclk0` |
| `sm_clock_max_hertz`, `memory_clock_max_hertz` | the highest level of `pp_dpm_sclk`, `pp_dpm_mclk` |
| `power_watts`, `power_limit_watts`, `energy_joules` | `curr_socket_power`, else `average_socket_power`; hwmon `power1_cap`; `energy_accumulator`, 2^-16 J each |
| `temperature_celsius`, `memory_temperature_celsius`, `temperature_slowdown_celsius` | `temperature_hotspot`; `temperature_mem`; hwmon `temp2_crit` |
| `utilization_ratio`, `memory_utilization_ratio` | `average_gfx_activity`, `average_umc_activity` |
| `memory_used_bytes`, `memory_total_bytes`, `bar1_*` | `mem_info_vram_used`, `_total`; `mem_info_vis_vram_used`, `_total`: the part that the CPU can reach |
| `violation_power_`, `violation_hw_power_brake_`, `violation_thermal_nanoseconds` | `ppt_`, `prochot_residency_acc`; the longest of the three heat counters. Firmware cycles become time by `accumulation_counter` and the table's timestamp |
| `clock_event_reasons_flags` | reasons that applied for 5 % of the time since the previous table: 0x4 PPT, 0x20 heat of the socket or the HBM, 0x40 heat of voltage regulators, 0x80 PROCHOT. Revision 1.3: `indep_throttle_status`. Missing in 1.4 and 1.5, which give no reason |
| `pcie_*` | link and width, replays, roll-overs, recoveries, NAKs sent and received |
| `ecc_*_volatile_errors` | sums of the RAS blocks (below), except those of links |
| `retired_uncorrected_pages`, `retirement_pending_state` | `ras/gpu_vram_bad_pages`: retired (R); pending or not retirable (P, F) |
| `mig_mode_state` | 1: split into compute partitions (all but SPX) |

These have no counterpart and are missing:

- `recovery_action`, `performance_state`, `temperature_margin_celsius`, application clocks, `memory_reserved_bytes`
- row remaps (bad pages are the same loss), lifetime ECC counts and ECC counts by cache
- PCIe bytes, encoder and decoder
- the tables `gpu_fast`, `gpu_phase` and `gpu_fabric`

The second die of an MI250X has no power and no limit. Its clock is judged only while the firmware reports throttling.
Use of the VCN engines, `gfx_low_utilization_acc` and `gfx_below_host_limit_*_acc` are not read. On a host with GPUs of
both vendors, each table has rows of both, each GPU under its own key."""

GPU_SIGNALS = (
    Signal(1000, "gpu.sm_clock_hertz", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetClockInfo(SM)", "clock of the compute units"),
    Signal(1001, "gpu.memory_clock_hertz", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetClockInfo(MEM)", "clock of the memory"),
    Signal(1002, "gpu.sm_clock_max_hertz", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetMaxClockInfo(SM)", "highest SM clock"),
    Signal(1003, "gpu.clock_event_reasons_flags", Kind.STATE, Pace.SECOND, "nvmlDeviceGetCurrentClocksEventReasons (or ...ThrottleReasons)", "why the clock is not higher, as bits of nvml.h"),
    Signal(1004, "gpu.violation_power_nanoseconds", Kind.COUNTER, Pace.SECOND, "field 74 NVML_FI_DEV_PERF_POLICY_POWER", "time throttled by the power limit"),
    Signal(1005, "gpu.violation_thermal_nanoseconds", Kind.COUNTER, Pace.SECOND, "field 75 NVML_FI_DEV_PERF_POLICY_THERMAL", "time throttled by heat"),
    Signal(1006, "gpu.violation_sync_boost_nanoseconds", Kind.COUNTER, Pace.SECOND, "field 76 NVML_FI_DEV_PERF_POLICY_SYNC_BOOST", "time throttled by another GPU of its sync boost group"),
    Signal(1010, "gpu.power_watts", Kind.GAUGE, Pace.SECOND, "field 186 NVML_FI_DEV_POWER_INSTANT, else nvmlDeviceGetPowerUsage", "power now"),
    Signal(1013, "gpu.power_average_watts", Kind.GAUGE, Pace.TEN_SECONDS, "field 185 NVML_FI_DEV_POWER_AVERAGE", "power averaged over 1 s by the driver; the call takes milliseconds. For each second use gpu_fast.power_mean_watts"),
    Signal(1011, "gpu.power_limit_watts", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetEnforcedPowerLimit", "the limit in force"),
    Signal(1012, "gpu.energy_joules", Kind.GAUGE, Pace.SECOND, "field 83 NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, else nvmlDeviceGetTotalEnergyConsumption", "energy since the driver loaded"),
    Signal(1020, "gpu.temperature_celsius", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetTemperatureV(GPU), else nvmlDeviceGetTemperature", "die temperature"),
    Signal(1021, "gpu.memory_temperature_celsius", Kind.GAUGE, Pace.SECOND, "field 82 NVML_FI_DEV_MEMORY_TEMP", "HBM temperature"),
    Signal(1023, "gpu.temperature_margin_celsius", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetMarginTemperature", "distance to the thermal limit; below 0 the GPU is throttled"),
    Signal(1022, "gpu.temperature_slowdown_celsius", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetTemperatureThreshold(SLOWDOWN)", "temperature at which hardware slowdown begins"),
    Signal(1030, "gpu.utilization_ratio", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetUtilizationRates.gpu", "share of time a kernel was resident; 1.00 also while only waiting for others"),
    Signal(1031, "gpu.memory_utilization_ratio", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetUtilizationRates.memory", "share of time memory was read or written"),
    Signal(1032, "gpu.memory_used_bytes", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetMemoryInfo.used", "memory in use, including the driver's reserve"),
    Signal(1033, "gpu.memory_total_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetMemoryInfo.total", "total memory"),
    Signal(1034, "gpu.memory_reserved_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetMemoryInfo_v2.reserved", "memory that the driver reserves; part of the memory in use"),
    Signal(1040, "gpu.ecc_corrected_volatile_errors", Kind.COUNTER, Pace.SECOND, "field 3 NVML_FI_DEV_ECC_SBE_VOL_TOTAL, else nvmlDeviceGetTotalEccErrors", "repaired bit errors since the driver loaded", on_change=True),
    Signal(1041, "gpu.ecc_uncorrected_volatile_errors", Kind.COUNTER, Pace.SECOND, "field 4 NVML_FI_DEV_ECC_DBE_VOL_TOTAL, else nvmlDeviceGetTotalEccErrors", "lost data since the driver loaded", on_change=True),
    Signal(1042, "gpu.ecc_corrected_lifetime_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 5 NVML_FI_DEV_ECC_SBE_AGG_TOTAL, else nvmlDeviceGetTotalEccErrors", "repaired bit errors over the part's life", on_change=True),
    Signal(1043, "gpu.ecc_uncorrected_lifetime_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 6 NVML_FI_DEV_ECC_DBE_AGG_TOTAL, else nvmlDeviceGetTotalEccErrors", "lost data over the part's life", on_change=True),
    Signal(1050, "gpu.remapped_correctable_rows", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetRemappedRows", "rows replaced after repaired errors", on_change=True),
    Signal(1051, "gpu.remapped_uncorrectable_rows", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetRemappedRows", "rows replaced after lost data", on_change=True),
    Signal(1052, "gpu.remap_pending_state", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetRemappedRows.isPending", "1: a row is replaced at the next reset", on_change=True),
    Signal(1053, "gpu.remap_failed_state", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetRemappedRows.failureOccurred", "1: no spare row was left", on_change=True),
    Signal(1060, "gpu.pcie_generation_number", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetCurrPcieLinkGeneration", "PCIe generation now; falls when idle"),
    Signal(1061, "gpu.pcie_generation_max_number", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetMaxPcieLinkGeneration", "highest PCIe generation"),
    Signal(1062, "gpu.pcie_width_lanes", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetCurrPcieLinkWidth", "PCIe lanes now"),
    Signal(1063, "gpu.pcie_width_max_lanes", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetMaxPcieLinkWidth", "highest number of PCIe lanes"),
    Signal(1064, "gpu.pcie_replays_count", Kind.COUNTER, Pace.TEN_SECONDS, "field 94 NVML_FI_DEV_PCIE_REPLAY_COUNTER, else nvmlDeviceGetPcieReplayCounter", "PCIe packets sent again", width_bits=32, on_change=True),
    Signal(1070, "gpu.performance_state", Kind.STATE, Pace.SECOND, "nvmlDeviceGetPerformanceState", "0 is the fastest"),
    Signal(1071, "gpu.recovery_action_state", Kind.STATE, Pace.SECOND, "field 230 NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, where the driver has it", "action that the driver requests: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover the IMEX domain, 6 reset the PCIe bus, 7 reboot the system"),
    Signal(1080, "gpu.processes_count", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetComputeRunningProcesses", "compute processes on the GPU"),
    Signal(1090, "gpu.calls_failed_errors", Kind.COUNTER, Pace.SECOND, "agent", "NVML calls on this GPU that returned an error other than not-supported"),
    Signal(1092, "gpu.slow_calls_failed_errors", Kind.COUNTER, Pace.TEN_SECONDS, "agent", "the same, of the calls made every 10 s", on_change=True),
    Signal(1091, "gpu.lost_state", Kind.STATE, Pace.SECOND, "NVML_ERROR_GPU_IS_LOST", "1: fell off the bus"),
    Signal(1093, "gpu.error_code_state", Kind.STATE, Pace.SECOND, "nvmlReturn_t", "0: the GPU answers. Otherwise the NVML error code of a GPU that answers no call (16, reset required: from any call)", on_change=True),
    Signal(1095, "gpu.xid", Kind.EVENT, Pace.EVENT, "kernel log, NVML events", "the driver reported an XID; code in `code`"),
    Signal(1100, "gpu.counter_epoch_count", Kind.STATE, Pace.SECOND, "agent", "increases when this GPU's counters restart: driver reloaded, GPU reset, moved to another slot"),
    Signal(1101, "gpu.settings_calls_failed_errors", Kind.COUNTER, Pace.MINUTE, "agent", "as calls_failed_errors, of the calls made every 60 s"),
    Signal(1102, "gpu.graphics_clock_hertz", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetClockInfo(GRAPHICS)", "clock of the graphics engine"),
    Signal(1103, "gpu.video_clock_hertz", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetClockInfo(VIDEO)", "clock of the encoders and decoders"),
    Signal(1104, "gpu.memory_clock_max_hertz", Kind.GAUGE, Pace.MINUTE, "nvmlDeviceGetMaxClockInfo(MEM)", "highest memory clock"),
    Signal(1105, "gpu.graphics_clock_max_hertz", Kind.GAUGE, Pace.MINUTE, "nvmlDeviceGetMaxClockInfo(GRAPHICS)", "highest graphics clock"),
    Signal(1106, "gpu.video_clock_max_hertz", Kind.GAUGE, Pace.MINUTE, "nvmlDeviceGetMaxClockInfo(VIDEO)", "highest video clock"),
    Signal(1107, "gpu.sm_application_clock_hertz", Kind.GAUGE, Pace.MINUTE, "nvmlDeviceGetApplicationsClock(SM), where the driver still has it", "SM clock set for applications; below the maximum, somebody set it"),
    Signal(1108, "gpu.memory_application_clock_hertz", Kind.GAUGE, Pace.MINUTE, "nvmlDeviceGetApplicationsClock(MEM), where the driver still has it", "memory clock set for applications"),
    Signal(1110, "gpu.violation_board_limit_nanoseconds", Kind.COUNTER, Pace.SECOND, "field 77 NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT", "time throttled by the board's limit", on_change=True),
    Signal(1111, "gpu.violation_low_utilization_nanoseconds", Kind.COUNTER, Pace.SECOND, "field 78 NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION", "time with a lower clock because of low utilization", on_change=True),
    Signal(1112, "gpu.violation_reliability_nanoseconds", Kind.COUNTER, Pace.SECOND, "field 79 NVML_FI_DEV_PERF_POLICY_RELIABILITY", "time throttled by the reliability voltage limit", on_change=True),
    Signal(1113, "gpu.violation_base_clocks_nanoseconds", Kind.COUNTER, Pace.SECOND, "field 81 NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS", "time throttled below the base clock, for any reason", on_change=True),
    Signal(1114, "gpu.violation_sw_thermal_nanoseconds", Kind.COUNTER, Pace.SECOND, "field 251 or 269 NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, by driver; a value above zero once it has proved itself", "time throttled by software to keep GPU and memory below their limits", on_change=True),
    Signal(1115, "gpu.violation_hw_thermal_nanoseconds", Kind.COUNTER, Pace.SECOND, "field 252 or 270 NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, by driver; a value above zero once it has proved itself", "time throttled by hardware because of heat", on_change=True),
    Signal(1116, "gpu.violation_hw_power_brake_nanoseconds", Kind.COUNTER, Pace.SECOND, "field 253 or 271 NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, by driver; a value above zero once it has proved itself", "time throttled by hardware because of the external power brake", on_change=True),
    Signal(1117, "gpu.violation_sw_thermal_field_state", Kind.STATE, Pace.SECOND, "agent", "whether the field of violation_sw_thermal has the expected meaning: 0 unsupported, 1 unverified, 2 verified", on_change=True),
    Signal(1118, "gpu.violation_hw_thermal_field_state", Kind.STATE, Pace.SECOND, "agent", "whether the field of violation_hw_thermal has the expected meaning: 0 unsupported, 1 unverified, 2 verified", on_change=True),
    Signal(1119, "gpu.violation_hw_power_brake_field_state", Kind.STATE, Pace.SECOND, "agent", "whether the field of violation_hw_power_brake has the expected meaning: 0 unsupported, 1 unverified, 2 verified", on_change=True),
    Signal(1120, "gpu.power_limit_default_watts", Kind.GAUGE, Pace.MINUTE, "field 189 NVML_FI_DEV_POWER_DEFAULT_LIMIT, else nvmlDeviceGetPowerManagementDefaultLimit", "power limit after boot"),
    Signal(1121, "gpu.power_limit_min_watts", Kind.GAUGE, Pace.MINUTE, "field 187 NVML_FI_DEV_POWER_MIN_LIMIT, else nvmlDeviceGetPowerManagementLimitConstraints", "the lowest limit that can be set"),
    Signal(1122, "gpu.power_limit_max_watts", Kind.GAUGE, Pace.MINUTE, "field 188 NVML_FI_DEV_POWER_MAX_LIMIT, else nvmlDeviceGetPowerManagementLimitConstraints", "the highest limit that can be set"),
    Signal(1123, "gpu.power_limit_requested_watts", Kind.GAUGE, Pace.TEN_SECONDS, "field 192 NVML_FI_DEV_POWER_REQUESTED_LIMIT, else nvmlDeviceGetPowerManagementLimit", "power limit requested on this host"),
    Signal(1124, "gpu.module_power_watts", Kind.GAUGE, Pace.SECOND, "field 186 NVML_FI_DEV_POWER_INSTANT, scope 1", "power of the whole module, GPU and CPU, of a superchip"),
    Signal(1125, "gpu.violation_thermal_check_nanoseconds", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetViolationStatus(THERMAL), deprecated in NVML 13", "the same as violation_thermal from another source; if they differ, one of them is wrong", on_change=True),
    Signal(2700, "gpu.violation_socket_thermal_nanoseconds", Kind.COUNTER, Pace.SECOND, "AMD: gpu_metrics socket_thm_residency_acc", "time throttled by the heat of the package", on_change=True),
    Signal(2701, "gpu.violation_regulator_thermal_nanoseconds", Kind.COUNTER, Pace.SECOND, "AMD: gpu_metrics vr_thm_residency_acc", "time throttled by the heat of its voltage regulators", on_change=True),
    Signal(2702, "gpu.violation_memory_thermal_nanoseconds", Kind.COUNTER, Pace.SECOND, "AMD: gpu_metrics hbm_thm_residency_acc", "time throttled by the heat of its memory", on_change=True),
    Signal(1130, "gpu.temperature_shutdown_celsius", Kind.GAUGE, Pace.MINUTE, "nvmlDeviceGetTemperatureThreshold(SHUTDOWN)", "temperature at which it switches itself off"),
    Signal(1131, "gpu.memory_temperature_max_celsius", Kind.GAUGE, Pace.MINUTE, "nvmlDeviceGetTemperatureThreshold(MEM_MAX)", "memory temperature at which software throttles it"),
    Signal(1132, "gpu.temperature_max_celsius", Kind.GAUGE, Pace.MINUTE, "nvmlDeviceGetTemperatureThreshold(GPU_MAX)", "temperature at which it may be throttled below its base clock"),
    Signal(1133, "gpu.margin_at_shutdown_celsius", Kind.GAUGE, Pace.MINUTE, "field 193 NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT", "the temperature margin at which it may switch itself off"),
    Signal(1134, "gpu.margin_at_slowdown_celsius", Kind.GAUGE, Pace.MINUTE, "field 194 NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT", "the temperature margin at which hardware slowdown may begin"),
    Signal(1135, "gpu.margin_at_memory_max_celsius", Kind.GAUGE, Pace.MINUTE, "field 195 NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT", "the temperature margin at which software slowdown for the memory may begin"),
    Signal(1136, "gpu.margin_at_max_celsius", Kind.GAUGE, Pace.MINUTE, "field 196 NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT", "the temperature margin at which it may be throttled below its base clock"),
    Signal(1140, "gpu.encoder_utilization_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetEncoderUtilization", "share of time the video encoder was in use"),
    Signal(1141, "gpu.decoder_utilization_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetDecoderUtilization", "share of time the video decoder was in use"),
    Signal(1142, "gpu.jpeg_utilization_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetJpgUtilization", "share of time the JPEG engine was in use"),
    Signal(1143, "gpu.optical_flow_utilization_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetOfaUtilization", "share of time the optical flow engine was in use"),
    Signal(1144, "gpu.memory_free_bytes", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetMemoryInfo.free", "memory not in use"),
    Signal(1145, "gpu.bar1_used_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetBAR1MemoryInfo.bar1Used", "BAR1, the window into the memory for other PCIe devices: in use"),
    Signal(1146, "gpu.bar1_total_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetBAR1MemoryInfo.bar1Total", "BAR1: total size"),
    Signal(1150, "gpu.ecc_corrected_volatile_l1_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 7 NVML_FI_DEV_ECC_SBE_VOL_L1", "repaired bit errors in the L1 cache since the driver loaded", on_change=True),
    Signal(1151, "gpu.ecc_uncorrected_volatile_l1_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 8 NVML_FI_DEV_ECC_DBE_VOL_L1", "lost data in the L1 cache since the driver loaded", on_change=True),
    Signal(1152, "gpu.ecc_corrected_volatile_l2_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 9 NVML_FI_DEV_ECC_SBE_VOL_L2", "repaired bit errors in the L2 cache since the driver loaded", on_change=True),
    Signal(1153, "gpu.ecc_uncorrected_volatile_l2_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 10 NVML_FI_DEV_ECC_DBE_VOL_L2", "lost data in the L2 cache since the driver loaded", on_change=True),
    Signal(1154, "gpu.ecc_corrected_volatile_device_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 11 NVML_FI_DEV_ECC_SBE_VOL_DEV", "repaired bit errors in the device memory since the driver loaded", on_change=True),
    Signal(1155, "gpu.ecc_uncorrected_volatile_device_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 12 NVML_FI_DEV_ECC_DBE_VOL_DEV", "lost data in the device memory since the driver loaded", on_change=True),
    Signal(1156, "gpu.ecc_corrected_volatile_register_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 13 NVML_FI_DEV_ECC_SBE_VOL_REG", "repaired bit errors in the register file since the driver loaded", on_change=True),
    Signal(1157, "gpu.ecc_uncorrected_volatile_register_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 14 NVML_FI_DEV_ECC_DBE_VOL_REG", "lost data in the register file since the driver loaded", on_change=True),
    Signal(1158, "gpu.ecc_corrected_volatile_texture_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 15 NVML_FI_DEV_ECC_SBE_VOL_TEX", "repaired bit errors in the texture memory since the driver loaded", on_change=True),
    Signal(1159, "gpu.ecc_uncorrected_volatile_texture_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 16 NVML_FI_DEV_ECC_DBE_VOL_TEX", "lost data in the texture memory since the driver loaded", on_change=True),
    Signal(1160, "gpu.ecc_uncorrected_volatile_cbu_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 17 NVML_FI_DEV_ECC_DBE_VOL_CBU", "lost data in the convergence barrier unit since the driver loaded", on_change=True),
    Signal(1161, "gpu.ecc_corrected_lifetime_l1_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 18 NVML_FI_DEV_ECC_SBE_AGG_L1", "repaired bit errors in the L1 cache over the part's life", on_change=True),
    Signal(1162, "gpu.ecc_uncorrected_lifetime_l1_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 19 NVML_FI_DEV_ECC_DBE_AGG_L1", "lost data in the L1 cache over the part's life", on_change=True),
    Signal(1163, "gpu.ecc_corrected_lifetime_l2_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 20 NVML_FI_DEV_ECC_SBE_AGG_L2", "repaired bit errors in the L2 cache over the part's life", on_change=True),
    Signal(1164, "gpu.ecc_uncorrected_lifetime_l2_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 21 NVML_FI_DEV_ECC_DBE_AGG_L2", "lost data in the L2 cache over the part's life", on_change=True),
    Signal(1165, "gpu.ecc_corrected_lifetime_device_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 22 NVML_FI_DEV_ECC_SBE_AGG_DEV", "repaired bit errors in the device memory over the part's life", on_change=True),
    Signal(1166, "gpu.ecc_uncorrected_lifetime_device_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 23 NVML_FI_DEV_ECC_DBE_AGG_DEV", "lost data in the device memory over the part's life", on_change=True),
    Signal(1167, "gpu.ecc_corrected_lifetime_register_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 24 NVML_FI_DEV_ECC_SBE_AGG_REG", "repaired bit errors in the register file over the part's life", on_change=True),
    Signal(1168, "gpu.ecc_uncorrected_lifetime_register_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 25 NVML_FI_DEV_ECC_DBE_AGG_REG", "lost data in the register file over the part's life", on_change=True),
    Signal(1169, "gpu.ecc_corrected_lifetime_texture_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 26 NVML_FI_DEV_ECC_SBE_AGG_TEX", "repaired bit errors in the texture memory over the part's life", on_change=True),
    Signal(1170, "gpu.ecc_uncorrected_lifetime_texture_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 27 NVML_FI_DEV_ECC_DBE_AGG_TEX", "lost data in the texture memory over the part's life", on_change=True),
    Signal(1171, "gpu.ecc_uncorrected_lifetime_cbu_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 28 NVML_FI_DEV_ECC_DBE_AGG_CBU", "lost data in the convergence barrier unit over the part's life", on_change=True),
    Signal(1172, "gpu.sram_corrected_volatile_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.volatileCor", "repaired errors in SRAM since the driver loaded", on_change=True),
    Signal(1173, "gpu.sram_parity_volatile_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.volatileUncParity", "lost data in SRAM found by parity, since the driver loaded", on_change=True),
    Signal(1174, "gpu.sram_secded_volatile_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.volatileUncSecDed", "lost data in SRAM found by SEC-DED, since the driver loaded", on_change=True),
    Signal(1175, "gpu.sram_corrected_lifetime_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.aggregateCor", "repaired errors in SRAM over the part's life", on_change=True),
    Signal(1176, "gpu.sram_parity_lifetime_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.aggregateUncParity", "lost data in SRAM found by parity, over the part's life", on_change=True),
    Signal(1177, "gpu.sram_secded_lifetime_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.aggregateUncSecDed", "lost data in SRAM found by SEC-DED, over the part's life", on_change=True),
    Signal(1178, "gpu.sram_l2_lifetime_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.aggregateUncBucketL2", "lost data in SRAM: of the L2 cache", on_change=True),
    Signal(1179, "gpu.sram_sm_lifetime_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.aggregateUncBucketSm", "lost data in SRAM: of the SMs", on_change=True),
    Signal(1180, "gpu.sram_pcie_lifetime_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.aggregateUncBucketPcie", "lost data in SRAM: of PCIe", on_change=True),
    Signal(1181, "gpu.sram_microcontroller_lifetime_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.aggregateUncBucketMcu", "lost data in SRAM: of the microcontrollers", on_change=True),
    Signal(1182, "gpu.sram_other_lifetime_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.aggregateUncBucketOther", "lost data in SRAM: of the rest", on_change=True),
    Signal(1183, "gpu.sram_threshold_exceeded_state", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetSramEccErrorStatus.bThresholdExceeded", "1: more errors than the field diagnostic accepts", on_change=True),
    Signal(1190, "gpu.remap_banks_max_count", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetRowRemapperHistogram.max", "memory banks with no row replaced yet", on_change=True),
    Signal(1191, "gpu.remap_banks_high_count", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetRowRemapperHistogram.high", "memory banks with most of their spare rows left", on_change=True),
    Signal(1192, "gpu.remap_banks_partial_count", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetRowRemapperHistogram.partial", "memory banks with some spare rows left", on_change=True),
    Signal(1193, "gpu.remap_banks_low_count", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetRowRemapperHistogram.low", "memory banks with few spare rows left", on_change=True),
    Signal(1194, "gpu.remap_banks_none_count", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetRowRemapperHistogram.none", "memory banks with no spare row left", on_change=True),
    Signal(1195, "gpu.retired_corrected_pages", Kind.COUNTER, Pace.TEN_SECONDS, "field 29 NVML_FI_DEV_RETIRED_SBE", "pages taken out after repaired errors (GPUs before Ampere)", on_change=True),
    Signal(1196, "gpu.retired_uncorrected_pages", Kind.COUNTER, Pace.TEN_SECONDS, "field 30 NVML_FI_DEV_RETIRED_DBE", "pages taken out after lost data (GPUs before Ampere)", on_change=True),
    Signal(1197, "gpu.retirement_pending_state", Kind.STATE, Pace.TEN_SECONDS, "field 31 NVML_FI_DEV_RETIRED_PENDING", "1: a page is taken out at the next reset", on_change=True),
    Signal(1198, "gpu.repair_channel_pending_state", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetRepairStatus.bChannelRepairPending", "1: a memory channel is repaired at the next reset", on_change=True),
    Signal(1199, "gpu.repair_tpc_pending_state", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetRepairStatus.bTpcRepairPending", "1: a cluster of SMs is repaired at the next reset", on_change=True),
    Signal(1200, "gpu.unrepairable_memory_state", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetUnrepairableMemoryFlag_v1", "1: memory is broken and cannot be repaired: replace the GPU", on_change=True),
    Signal(1210, "gpu.pcie_replay_rollovers_count", Kind.COUNTER, Pace.TEN_SECONDS, "field 95 NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER", "packets abandoned after repeated replays", width_bits=32, on_change=True),
    Signal(1211, "gpu.pcie_recoveries_count", Kind.COUNTER, Pace.TEN_SECONDS, "field 169 NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER", "times the link left its working state to retrain", width_bits=32, on_change=True),
    Signal(1212, "gpu.pcie_naks_received_count", Kind.COUNTER, Pace.TEN_SECONDS, "field 174 NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED", "packets that the other side rejected", width_bits=32, on_change=True),
    Signal(1213, "gpu.pcie_naks_sent_count", Kind.COUNTER, Pace.TEN_SECONDS, "field 177 NVML_FI_DEV_PCIE_COUNT_NAKS_SENT", "packets that the GPU rejected", width_bits=32, on_change=True),
    Signal(1214, "gpu.pcie_correctable_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 173 NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS", "errors that the link repaired", width_bits=32, on_change=True),
    Signal(1215, "gpu.pcie_nonfatal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 179 NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR", "errors that cost a transaction", width_bits=32, on_change=True),
    Signal(1216, "gpu.pcie_fatal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 180 NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR", "errors that cost the link", width_bits=32, on_change=True),
    Signal(1217, "gpu.pcie_unsupported_request_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 181 NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ", "unsupported requests", width_bits=32, on_change=True),
    Signal(1218, "gpu.pcie_receiver_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 175 NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR", "symbols that could not be read", width_bits=32, on_change=True),
    Signal(1219, "gpu.pcie_bad_tlp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 176 NVML_FI_DEV_PCIE_COUNT_BAD_TLP", "damaged packets", width_bits=32, on_change=True),
    Signal(1220, "gpu.pcie_bad_dllp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 178 NVML_FI_DEV_PCIE_COUNT_BAD_DLLP", "damaged link control packets", width_bits=32, on_change=True),
    Signal(1221, "gpu.pcie_lcrc_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 182 NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR", "packets with a wrong checksum", width_bits=32, on_change=True),
    Signal(1222, "gpu.pcie_transmitted_bytes", Kind.COUNTER, Pace.SECOND, "field 197 NVML_FI_DEV_PCIE_COUNT_TX_BYTES, from driver 555", "bytes sent on PCIe; 32 bits: a rate exists only if fewer than 4.3 GB passed between two samples", width_bits=32),
    Signal(1223, "gpu.pcie_received_bytes", Kind.COUNTER, Pace.SECOND, "field 198 NVML_FI_DEV_PCIE_COUNT_RX_BYTES, from driver 555", "bytes received on PCIe; 32 bits: a rate exists only if fewer than 4.3 GB passed between two samples", width_bits=32),
    Signal(1230, "gpu.mig_mode_state", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetMigMode.currentMode", "1: split into instances", on_change=True),
    Signal(1231, "gpu.mig_mode_pending_state", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetMigMode.pendingMode", "the mode after the next reset", on_change=True),
    Signal(1232, "gpu.ecc_mode_state", Kind.STATE, Pace.MINUTE, "nvmlDeviceGetEccMode.current", "1: memory errors are detected and repaired"),
    Signal(1233, "gpu.ecc_mode_pending_state", Kind.STATE, Pace.MINUTE, "nvmlDeviceGetEccMode.pending", "the mode after the next reboot"),
    Signal(1234, "gpu.persistence_mode_state", Kind.STATE, Pace.MINUTE, "nvmlDeviceGetPersistenceMode", "1: the driver stays loaded while no process uses the GPU"),
    Signal(1235, "gpu.compute_mode_state", Kind.STATE, Pace.MINUTE, "nvmlDeviceGetComputeMode", "0 any process, 1 one thread, 2 prohibited, 3 one process"),
    Signal(1236, "gpu.sram_unique_uncorrected_count", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts.entryCount; Blackwell and later", "places in SRAM that lost data; few places with many errors point to broken cells", on_change=True),
    Signal(1237, "gpu.sram_unique_uncorrected_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts.entries.count, summed", "lost data in those places", on_change=True),
    Signal(1238, "gpu.sram_unique_parity_count", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts.entries.isParity, summed", "places whose loss parity detected", on_change=True),
    Signal(1290, "gpu.lost", Kind.EVENT, Pace.EVENT, "NVML_ERROR_GPU_IS_LOST", "a GPU fell off the bus, or came back: attribute `state` is `lost` or `back`"),
    Signal(2320, "gpu.driver_updating_state", Kind.STATE, Pace.SECOND, "agent: NVML_ERROR_LIB_RM_VERSION_MISMATCH", "1: library and driver are of different versions, a driver is being updated; the GPU cannot be queried, and is not lost", on_change=True),
    Signal(2321, "gpu.driver_calls_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent", "calls into the driver that this agent has made on the GPU, of all its samplers"),
    Signal(2322, "gpu.driver_calls_left_out_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent", "calls skipped because the limit of calls for a GPU was reached", on_change=True),
    Signal(2324, "gpu.driver_calls_capped", Kind.EVENT, Pace.EVENT, "agent", "the agent reached its limit of calls for the GPU and skips calls; reported once"),
    Signal(2325, "gpu.driver_binding", Kind.EVENT, Pace.EVENT, "nvmlSystemEventSetWait, where the driver has it", "the driver is being unbound from the GPU, which the agent closes, or was bound to it; `state` says which"),
)

GPU_FABRIC_TEXT = """Each GPU's place in its NVLink fabric. Device: the GPU's UUID. Errors of the switches of an NVL72
rack do not reach the kernel log of a compute tray. Only their effects on the GPUs are visible here."""

GPU_FABRIC_SIGNALS = (
    Signal(1480, "gpu_fabric.registration_state", Kind.STATE, Pace.SECOND, "nvmlDeviceGetGpuFabricInfoV.state", "1 not started, 2 in progress, 3 completed: only then can the GPU reach other GPUs", on_change=True),
    Signal(1481, "gpu_fabric.registration_status_code", Kind.STATE, Pace.SECOND, "nvmlDeviceGetGpuFabricInfoV.status, in state 3", "nvmlReturn_t of the registration: 0 is good", on_change=True),
    Signal(1482, "gpu_fabric.clique_number", Kind.STATE, Pace.SECOND, "nvmlDeviceGetGpuFabricInfoV.cliqueId, in state 3", "clique number; GPUs with the same cluster and clique reach each other", on_change=True),
    Signal(1483, "gpu_fabric.health_flags", Kind.STATE, Pace.SECOND, "nvmlDeviceGetGpuFabricInfoV.healthMask", "the raw mask; the fields below are parts of it", on_change=True),
    Signal(1484, "gpu_fabric.degraded_bandwidth_state", Kind.STATE, Pace.SECOND, "healthMask bits 0-1", "1: the GPU's NVLink bandwidth is degraded", on_change=True),
    Signal(1485, "gpu_fabric.route_recovery_state", Kind.STATE, Pace.SECOND, "healthMask bits 2-3", "1: a route is being recovered", on_change=True),
    Signal(1486, "gpu_fabric.route_unhealthy_state", Kind.STATE, Pace.SECOND, "healthMask bits 4-5", "1: a route is unhealthy", on_change=True),
    Signal(1487, "gpu_fabric.access_timeout_recovery_state", Kind.STATE, Pace.SECOND, "healthMask bits 6-7", "1: recovering from an access that timed out", on_change=True),
    Signal(1488, "gpu_fabric.incorrect_configuration_code", Kind.STATE, Pace.SECOND, "healthMask bits 8-11, drivers of NVML 13", "1 correct; 2 system GUID, 3 chassis serial, 4 no partition, 5 too few NVLinks, 6 GPU firmware, 7 location, 8 GPU state is wrong", on_change=True),
    Signal(1489, "gpu_fabric.health_summary_code", Kind.STATE, Pace.SECOND, "nvmlDeviceGetGpuFabricInfoV.healthSummary, drivers of NVML 13", "1 healthy, 2 unhealthy, 3 limited capacity", on_change=True),
)

GPU_FAST_TEXT = """The activity of a GPU within the last second, from ten samples a second (GPM: five). Device: the GPU's UUID.

Phases of a workload last tens of milliseconds, so one reading a second shows only one moment.
"""

_CLOCK = "nvmlDeviceGetClockInfo(SM), 10 Hz"
_POWER = "field 186 NVML_FI_DEV_POWER_INSTANT, else nvmlDeviceGetPowerUsage, 10 Hz"
_REASONS = "nvmlDeviceGetCurrentClocksEventReasons, 10 Hz"
_PARTS = "agent: the last steps, folded at their period, in parts of different work"
_PHASES = "agent, from the samples of the second (ext/phases)"

GPU_FAST_SIGNALS = (
    Signal(1300, "gpu_fast.samples_count", Kind.GAUGE, Pace.SECOND, "agent", "samples behind the other columns of this row (half as many of GPM); 10 if none was late"),
    Signal(1301, "gpu_fast.sm_clock_mean_hertz", Kind.GAUGE, Pace.SECOND, _CLOCK, "mean SM clock of the second"),
    Signal(1302, "gpu_fast.sm_clock_min_hertz", Kind.GAUGE, Pace.SECOND, _CLOCK, "lowest SM clock of the second; only this shows a throttle of 100 ms"),
    Signal(1303, "gpu_fast.sm_clock_max_hertz", Kind.GAUGE, Pace.SECOND, _CLOCK, "highest SM clock of the second"),
    Signal(1304, "gpu_fast.power_mean_watts", Kind.GAUGE, Pace.SECOND, _POWER, "mean power of the second"),
    Signal(1305, "gpu_fast.power_min_watts", Kind.GAUGE, Pace.SECOND, _POWER, "lowest power of the second: between two steps of a job"),
    Signal(1306, "gpu_fast.power_max_watts", Kind.GAUGE, Pace.SECOND, _POWER, "highest power of the second"),
    Signal(1307, "gpu_fast.power_cap_ratio", Kind.GAUGE, Pace.SECOND, _REASONS, "share of the samples with the power limit as a reason (0x4)"),
    Signal(1308, "gpu_fast.thermal_ratio", Kind.GAUGE, Pace.SECOND, _REASONS, "share of the samples with heat as a reason, by software or hardware (0x20, 0x40)"),
    Signal(1309, "gpu_fast.power_brake_ratio", Kind.GAUGE, Pace.SECOND, _REASONS, "share of the samples with the power brake of the power supply as a reason (0x80)"),
    Signal(1320, "gpu_fast.sm_active_ratio", Kind.GAUGE, Pace.SECOND, "GPM 2 NVML_GPM_METRIC_SM_UTIL; Hopper and later", "mean share of the SMs that were busy"),
    Signal(1321, "gpu_fast.sm_active_min_ratio", Kind.GAUGE, Pace.SECOND, "GPM 2 NVML_GPM_METRIC_SM_UTIL; Hopper and later", "the same in the least busy fifth of the second"),
    Signal(1322, "gpu_fast.sm_active_max_ratio", Kind.GAUGE, Pace.SECOND, "GPM 2 NVML_GPM_METRIC_SM_UTIL; Hopper and later", "the same in the busiest fifth of the second"),
    Signal(1323, "gpu_fast.sm_occupancy_ratio", Kind.GAUGE, Pace.SECOND, "GPM 3 NVML_GPM_METRIC_SM_OCCUPANCY; Hopper and later", "mean share of the warps that were active"),
    Signal(1324, "gpu_fast.tensor_active_ratio", Kind.GAUGE, Pace.SECOND, "GPM 5 NVML_GPM_METRIC_ANY_TENSOR_UTIL; Hopper and later", "mean share of time the tensor cores were active: computing, not waiting"),
    Signal(1325, "gpu_fast.memory_bandwidth_ratio", Kind.GAUGE, Pace.SECOND, "GPM 10 NVML_GPM_METRIC_DRAM_BW_UTIL; Hopper and later", "mean share of the memory's bandwidth in use"),
    Signal(1326, "gpu_fast.pcie_transmitted_bytes_per_second", Kind.GAUGE, Pace.SECOND, "GPM 20 NVML_GPM_METRIC_PCIE_TX_PER_SEC; Hopper and later", "mean PCIe traffic from the GPU"),
    Signal(1327, "gpu_fast.pcie_received_bytes_per_second", Kind.GAUGE, Pace.SECOND, "GPM 21 NVML_GPM_METRIC_PCIE_RX_PER_SEC; Hopper and later", "mean PCIe traffic to the GPU"),
    Signal(1328, "gpu_fast.nvlink_received_bytes_per_second", Kind.GAUGE, Pace.SECOND, "GPM 60 NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC; Hopper and later", "mean NVLink traffic to the GPU, all links"),
    Signal(1329, "gpu_fast.nvlink_transmitted_bytes_per_second", Kind.GAUGE, Pace.SECOND, "GPM 61 NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC; Hopper and later", "mean NVLink traffic from the GPU, all links"),
    Signal(1330, "gpu_fast.compute_ratio", Kind.GAUGE, Pace.SECOND, _PHASES, "share of the second in which the GPU computed: by its busy SMs, tensor cores or power, between the levels learned from its job"),
    Signal(1331, "gpu_fast.wait_ratio", Kind.GAUGE, Pace.SECOND, _PHASES, "share of the second in which it waited for others: a kernel is resident, at the power of waiting"),
    Signal(1332, "gpu_fast.host_stall_ratio", Kind.GAUGE, Pace.SECOND, _PHASES, "share of the second in which its job runs and no kernel was resident: the host prepares work or data"),
    Signal(1333, "gpu_fast.checkpoint_ratio", Kind.GAUGE, Pace.SECOND, _PHASES, "share of the second in which its job wrote a checkpoint: long at the power of waiting, at a regular cadence"),
    Signal(1334, "gpu_fast.idle_ratio", Kind.GAUGE, Pace.SECOND, _PHASES, "share of the second without a job: idle power, no kernel, no process"),
    Signal(1335, "gpu_fast.phase_confidence_ratio", Kind.GAUGE, Pace.SECOND, _PHASES, "confidence of these five shares; low while the job's power levels are unknown or not distinct"),
    Signal(1336, "gpu_fast.job_changes_count", Kind.GAUGE, Pace.TEN_SECONDS, _PHASES, "jobs that began on the GPU since the agent started; power levels are learned for each"),
    Signal(1337, "gpu_fast.compute_watts", Kind.GAUGE, Pace.TEN_SECONDS, _PHASES, "learned power of the job while it computes; if it cannot be told from waiting, the power over all its time"),
    Signal(1338, "gpu_fast.wait_watts", Kind.GAUGE, Pace.TEN_SECONDS, _PHASES, "learned power of the job while it waits with a kernel resident; missing if it cannot be told from computing, or if waits are too short for the reading"),
    Signal(1339, "gpu_fast.step_seconds", Kind.GAUGE, Pace.TEN_SECONDS, _PHASES, "period of the job's step; missing where the signals do not agree on one"),
    Signal(1340, "gpu_fast.step_confidence_ratio", Kind.GAUGE, Pace.TEN_SECONDS, _PHASES, "confidence of the period, compared with half and twice of it"),
    Signal(1341, "gpu_fast.checkpoint_interval_seconds", Kind.GAUGE, Pace.TEN_SECONDS, _PHASES, "seconds from one checkpoint of the job to the next; missing until three were seen"),
    Signal(1342, "gpu_fast.checkpoint_duration_seconds", Kind.GAUGE, Pace.TEN_SECONDS, _PHASES, "seconds that a checkpoint of the job takes"),
    Signal(1343, "gpu_fast.next_checkpoint_seconds", Kind.GAUGE, Pace.TEN_SECONDS, _PHASES, "predicted seconds until the next checkpoint; missing without a prediction"),
    Signal(1344, "gpu_fast.next_checkpoint_probability_ratio", Kind.GAUGE, Pace.TEN_SECONDS, _PHASES, "probability that it begins within a tenth of the interval of that moment"),
    Signal(1345, "gpu_fast.step_data_loading_ratio", Kind.GAUGE, Pace.TEN_SECONDS, _PARTS, "share of the step in which no kernel ran and data came over PCIe; this and the other parts are missing if the signals do not separate them, for steps shorter than 5 s, and without GPM"),
    Signal(1346, "gpu_fast.step_forward_ratio", Kind.GAUGE, Pace.TEN_SECONDS, _PARTS, "share of the step in which it computed before gradients moved over NVLink"),
    Signal(1347, "gpu_fast.step_backward_ratio", Kind.GAUGE, Pace.TEN_SECONDS, _PARTS, "share of the step in which it computed while gradients moved over NVLink"),
    Signal(1348, "gpu_fast.step_optimizer_ratio", Kind.GAUGE, Pace.TEN_SECONDS, _PARTS, "share of the step in which it was bound by memory without tensor cores, once, after backward"),
    Signal(2844, "gpu_fast.step_forward_backward_ratio", Kind.GAUGE, Pace.TEN_SECONDS, _PARTS, "share of the step in which it computed, forward and backward together: only the traffic over NVLink separates the two"),
    Signal(1349, "gpu_fast.step_parts_confidence_ratio", Kind.GAUGE, Pace.TEN_SECONDS, _PARTS, "confidence of the parts of the step: similarity of its steps, and contrast between the parts"),
)

JOB_GROUP_TEXT = """Use of the host by each job, from its control group, on hosts where several jobs hold GPUs. Device: the job's name, as in `ops.jobs`."""

JOB_GROUP_SIGNALS = (
    Signal(2850, "job_group.cpu_nanoseconds", Kind.COUNTER, Pace.SECOND, "cpu.stat usage_usec; version 1: cpuacct.usage", "time on cores, of all its processes"),
    Signal(2851, "job_group.read_bytes", Kind.COUNTER, Pace.SECOND, "io.stat rbytes; version 1: blkio.throttle.io_service_bytes_recursive", "bytes read from the host's disks"),
    Signal(2852, "job_group.written_bytes", Kind.COUNTER, Pace.SECOND, "io.stat wbytes; as read_bytes", "bytes written to the host's disks; with version 1 without buffered writes"),
    Signal(2853, "job_group.file_cache_active_bytes", Kind.GAUGE, Pace.SECOND, "memory.stat active_file; version 1: total_active_file", "page cache that is in use"),
)

GPU_JOB_TEXT = """Counts of processes on each GPU by owner. Device: the GPU. The names of owners are in the event `gpu.process`."""

GPU_JOB_SIGNALS = (
    Signal(2370, "gpu_job.processes_count", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetComputeRunningProcesses_v3, ...Graphics..., ...MPSCompute...", "processes that NVML lists on the GPU", on_change=True),
    Signal(2371, "gpu_job.jobs_count", Kind.GAUGE, Pace.SECOND, "/proc/PID/cgroup", "distinct Slurm jobs and pods among them; more than one share the GPU", on_change=True),
    Signal(2372, "gpu_job.in_jobs_count", Kind.GAUGE, Pace.SECOND, "/proc/PID/cgroup", "processes of Slurm jobs and pods", on_change=True),
    Signal(2373, "gpu_job.others_count", Kind.GAUGE, Pace.SECOND, "/proc/PID/cgroup", "processes of units, sessions and containers that belong to no scheduler", on_change=True),
    Signal(2374, "gpu_job.unknown_count", Kind.GAUGE, Pace.SECOND, "/proc/PID", "processes with an unknown owner: hidden, in another PID namespace, or in no known cgroup", on_change=True),
    Signal(2375, "gpu_job.dead_count", Kind.GAUGE, Pace.SECOND, "/proc/PID/stat", "processes that NVML lists and that have ended at two checks: zombies, or gone from /proc. The GPU is not freed by itself", on_change=True),
    Signal(2376, "gpu_job.dead_memory_bytes", Kind.GAUGE, Pace.SECOND, "nvmlProcessInfo_t.usedGpuMemory", "GPU memory of ended processes; missing if NVML does not report it", on_change=True),
    Signal(2380, "gpu.process", Kind.EVENT, Pace.EVENT, "NVML, /proc/PID/cgroup, stat, status; the ranks' helper", "owner of a process on the GPU: job, pod, unit, rank, and facts about its isolation; one event for each process on each GPU, sent again when it changes and ends"),
    Signal(2381, "gpu.full_report", Kind.EVENT, Pace.EVENT, "the agent", "start of a full report of gpu.process of the GPU (or gpu.allocation of the host) after a restart; anything reported only before has ended"),
    Signal(2382, "host.isolation", Kind.EVENT, Pace.EVENT, "/proc/PID, /sys/fs/cgroup", "two jobs of different tenants share what should keep them apart, with both jobs, the boundaries and the evidence; attribute `state` is `violated` or `ended`"),
)

STEP_TEXT = """Steps of the ranks of training jobs that report them ([torch](torch.md)). Device: `JOB/RANK`, or `JOB/pPID` if the rank
is unknown."""
_SLOT = "the rank's slot in /dev/shm/gangline"

STEP_SIGNALS = (
    Signal(2600, "step.steps_count", Kind.COUNTER, Pace.SECOND, _SLOT, "steps since the process began"),
    Signal(2601, "step.step_seconds", Kind.GAUGE, Pace.SECOND, _SLOT, "mean time of the steps of the last 10 s, or of the last longer step; missing once a step takes three times as long and 30 s: the job hangs"),
    Signal(2602, "step.spread_seconds", Kind.GAUGE, Pace.SECOND, _SLOT, "standard deviation of the time of the same steps; missing for fewer than three"),
    Signal(2603, "step.since_seconds", Kind.GAUGE, Pace.SECOND, "agent", "time since a step ended; in a job that hangs, the rank that stopped first has the longest"),
    Signal(2604, "step.rank_number", Kind.STATE, Pace.SECOND, _SLOT, "rank, as the launcher gave it"),
    Signal(2605, "step.world_count", Kind.GAUGE, Pace.SECOND, _SLOT, "ranks of the whole job, as the launcher gave them"),
    Signal(2606, "step.process_number", Kind.STATE, Pace.SECOND, "holder of the slot's lock, F_GETLK", "PID on the host"),
    Signal(2607, "step.user_number", Kind.STATE, Pace.SECOND, "owner of the slot", "user that the process runs as"),
)

GPU_PROCESS_TEXT = """Processes on GPUs. Device: `GPU-uuid/PID`, under MIG `GPU-uuid/gi1/ci0/PID`, in a partition of AMD's `GPU-id/gi1/PID`.
For AMD GPUs these are processes with queues or memory in `/sys/class/kfd/kfd/proc`, read every 10 s; memory is `vram_*`
there."""

GPU_PROCESS_SIGNALS = (
    Signal(1470, "gpu_process.memory_used_bytes", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetComputeRunningProcesses_v3, ...Graphics..., ...MPSCompute...", "GPU memory that the process holds", on_change=True),
    Signal(1471, "gpu_process.kinds_flags", Kind.STATE, Pace.SECOND, "which of the three lists names it", "1 compute, 2 graphics, 4 client of an MPS server", on_change=True),
    Signal(1472, "gpu_process.start_nanoseconds", Kind.STATE, Pace.SECOND, "/proc/PID/stat field 22, from boot", "start of the process; it identifies the process even if its PID is reused", on_change=True),
    Signal(1473, "gpu_process.gpu_instance_number", Kind.STATE, Pace.SECOND, "nvmlProcessInfo_t.gpuInstanceId", "MIG GPU instance that it runs in", on_change=True),
    Signal(1474, "gpu_process.compute_instance_number", Kind.STATE, Pace.SECOND, "nvmlProcessInfo_t.computeInstanceId", "MIG compute instance that it runs in", on_change=True),
)

MIG_TEXT = """MIG devices. Device: `MIG-uuid`; its GPU is in the inventory. The mode of each GPU is `gpu.mig_mode_state`.

Compute partitions of AMD GPUs (DPX, TPX, QPX, CPX) have rows here too: `GPU-id/xcp3`. Number, share of the memory,
compute units (`multiprocessors_count`) and dies come from KFD's topology, `sm_active_ratio` from `gfx_busy_inst`."""

MIG_SIGNALS = (
    Signal(1440, "mig.gpu_instance_number", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetGpuInstanceId", "GPU instance that it is in", on_change=True),
    Signal(1441, "mig.compute_instance_number", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetComputeInstanceId", "compute instance that it is", on_change=True),
    Signal(1442, "mig.profile_number", Kind.STATE, Pace.TEN_SECONDS, "nvmlGpuInstanceGetInfo.profileId", "profile of the GPU instance, as numbered on this GPU", on_change=True),
    Signal(1443, "mig.placement_start_number", Kind.STATE, Pace.TEN_SECONDS, "nvmlGpuInstanceGetInfo.placement.start", "first memory slice that the GPU instance occupies", on_change=True),
    Signal(1444, "mig.placement_slices_count", Kind.STATE, Pace.TEN_SECONDS, "nvmlGpuInstanceGetInfo.placement.size", "memory slices that the GPU instance occupies", on_change=True),
    Signal(1445, "mig.gpu_slices_count", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetAttributes.gpuInstanceSliceCount", "GPU slices of the GPU instance", on_change=True),
    Signal(1446, "mig.compute_slices_count", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetAttributes.computeInstanceSliceCount", "slices of the compute instance", on_change=True),
    Signal(1447, "mig.multiprocessors_count", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetAttributes.multiprocessorCount", "SMs that it may use", on_change=True),
    Signal(1448, "mig.ecc_sram_uncorrected_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetMemoryErrorCounter(UNCORRECTED, VOLATILE, SRAM)", "data lost in the instance's caches since the driver loaded; DRAM errors are not reported by instance", on_change=True),
    Signal(1449, "mig.memory_total_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetMemoryInfo.total of the MIG device", "total memory", on_change=True),
    Signal(1450, "mig.memory_used_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetMemoryInfo.used of the MIG device", "memory in use"),
    Signal(1451, "mig.sm_active_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "GPM 2 NVML_GPM_METRIC_SM_UTIL, by nvmlGpmMigSampleGet; Hopper and later", "mean share of the SMs of its GPU instance that were busy since the sample before"),
    Signal(1452, "mig.sm_occupancy_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "GPM 3 NVML_GPM_METRIC_SM_OCCUPANCY, by nvmlGpmMigSampleGet; Hopper and later", "mean share of the warps of its GPU instance that were active"),
    Signal(1453, "mig.tensor_active_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "GPM 5 NVML_GPM_METRIC_ANY_TENSOR_UTIL, by nvmlGpmMigSampleGet; Hopper and later", "mean share of time the tensor cores of its GPU instance worked"),
    Signal(1454, "mig.memory_bandwidth_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "GPM 10 NVML_GPM_METRIC_DRAM_BW_UTIL, by nvmlGpmMigSampleGet; Hopper and later", "mean share of its GPU instance's memory bandwidth in use"),
)

NVLINK_TEXT = """NVLinks of each GPU, and its links to a Grace CPU (C2C). Device: `GPU-uuid/link0`, `GPU-uuid/c2c0`.

XGMI links of AMD GPUs have rows here too. Bytes (`xgmi_read_data_acc`, `xgmi_write_data_acc`, KiB), state and speed
come from `gpu_metrics`. Errors count for all links of a GPU together: `crc_errors` of `GPU-id/xgmi` is the RAS block
`xgmi_wafl`."""

NVML_EVENTS_TEXT = """The host's only listener on NVML's event set. Device: `host`. The events themselves belong to their GPUs."""
NVML_EVENTS_SIGNALS = (
    Signal(1490, "nvml_events.received_events", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlEventSetWait_v2", "events that NVML delivered", on_change=True),
    Signal(1491, "nvml_events.told_by_kernel_log_events", Kind.COUNTER, Pace.TEN_SECONDS, "agent", "XIDs among them that the kernel log also showed, and that were reported once, from there", on_change=True),
    Signal(1492, "nvml_events.failed_waits_errors", Kind.COUNTER, Pace.TEN_SECONDS, "agent", "waits that ended in an error; the event set is then recreated", on_change=True),
    Signal(2323, "nvml_events.driver_calls_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent", "calls into the driver that this agent has made, on all GPUs and on none", on_change=True),
    Signal(1495, "gpu.driver_event", Kind.EVENT, Pace.EVENT, "NVML events: ECC, MIG configuration, page retirement, poison, GPU unavailable, recovery action", "the driver reported it without an XID; NVML's event type in `code`"),
)
RAS_TEXT = """Errors that the RAS blocks of AMD GPUs have counted since the driver loaded. Device: `GPU-id/umc`; `umc` is the memory,
`gfx` the compute units, `sdma` the copy engines, `xgmi_wafl` the links. They are read every 10 s, because each read
queries the firmware."""
RAS_SIGNALS = (
    Signal(2710, "ras.corrected_errors", Kind.COUNTER, Pace.TEN_SECONDS, "ras/*_err_count, ce", "errors that the block repaired", on_change=True),
    Signal(2711, "ras.uncorrected_errors", Kind.COUNTER, Pace.TEN_SECONDS, "ras/*_err_count, ue", "errors that it could not repair", on_change=True),
    Signal(2712, "ras.deferred_errors", Kind.COUNTER, Pace.TEN_SECONDS, "ras/*_err_count, de, from Linux 6.9", "lost data that has not been read yet", on_change=True),
)
DCGM_TEXT = """Data from DCGM's host engine (setting `dcgm`, docs/hardware.md). Device: `host`. Profiling metrics of GPUs before Hopper
are in `gpu_fast_1s`, under the signals that GPM fills on later ones. Silence of DCGM does not mean health."""
_DCGM_POLICY = "dcgmPolicyRegister; the agent sets no policy and no action"
DCGM_SIGNALS = (
    Signal(2800, "dcgm.connected_state", Kind.STATE, Pace.SECOND, "dcgmConnect_v2", "1: connected to a host engine; missing where none answers: the outcome of the collector dcgm_1s says why", on_change=True),
    Signal(2801, "dcgm.health_systems_flags", Kind.STATE, Pace.SECOND, "dcgmHealthGet, over all groups", "systems with a health watch: 0x1 PCIe, 0x2 NVLink, 0x4 PMU, 0x8 MCU, 0x10 memory, 0x20 SM, 0x40 InfoROM, 0x80 thermal, 0x100 power, 0x200 driver, 0x400 and 0x800 NVSwitch non-fatal and fatal, 0x1000 ConnectX", on_change=True),
    Signal(2802, "dcgm.incidents_state", Kind.STATE, Pace.SECOND, "dcgmHealthCheck", "incidents that DCGM's health watches report now", on_change=True),
    Signal(2803, "dcgm.reconnects_count", Kind.COUNTER, Pace.SECOND, "agent", "connections made to a host engine", on_change=True),
    Signal(2804, "dcgm.told_by_others_events", Kind.COUNTER, Pace.SECOND, "agent", "XIDs from DCGM that the kernel log or NVML also showed, and that were reported once, from there", on_change=True),
    Signal(2805, "dcgm.multiplexed_zeros_count", Kind.COUNTER, Pace.SECOND, "agent", "zeros of profiling fields that were left out, because another field used the counters at that moment", on_change=True),
    Signal(2806, "dcgm.lost_violations_events", Kind.COUNTER, Pace.SECOND, "agent", "policy violations lost because the queue was full", on_change=True),
    Signal(2810, "gpu.dcgm_failure", Kind.EVENT, Pace.EVENT, "dcgmHealthCheck", "a health watch of DCGM reports a failure; DCGM's error code is in `code`, its message and the system are in the attributes"),
    Signal(2811, "gpu.dcgm_warning", Kind.EVENT, Pace.EVENT, "dcgmHealthCheck", "the same, a warning"),
    Signal(2812, "gpu.dcgm_policy", Kind.EVENT, Pace.EVENT, _DCGM_POLICY, "a policy set in DCGM was violated; the condition is in `code`: 0x1 double bit ECC, 0x2 PCIe, 0x4 retired pages, 0x8 thermal, 0x10 power, 0x20 NVLink, 0x40 XID"),
    Signal(2813, "gpu.diagnostic", Kind.EVENT, Pace.EVENT, "gangline diag import", "result of a diagnostic of the GPU; code 0: all tests passed, 1: a test warned, 2: a test failed; the tests are in the attributes"),
)
NVSWITCH_TEXT = """NVSwitches of the host and their links, from DCGM's host engine. They need another client that watches these fields, or
`dcgm = "watch"`. Devices: the switch's PCI address, or `nvswitch0` with DCGM's number if the engine does not report the
address. A link is `0000:05:00.0/link12`. An SXID is the event `nvswitch.sxid`. Switches outside the host (NVL72) are
not seen from the host."""
VGPU_TEXT = """vGPUs of a hypervisor, from DCGM's host engine. Device: the vGPU's UUID, or `vgpu7` with DCGM's number."""


def _fec(symbols: int) -> Signal:
    return Signal(1356 + symbols, f"nvlink.fec_history_{symbols}_count", Kind.COUNTER, Pace.TEN_SECONDS, f"field {235 + symbols} NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_{symbols}", f"blocks in which error correction repaired {symbols} symbols; if counts move to higher bins, the link degrades")


NVLINK_SIGNALS = (
    Signal(1350, "nvlink.transmitted_data_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "field 138 NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, KiB", "payload sent over the link"),
    Signal(1351, "nvlink.received_data_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "field 139 NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, KiB", "payload received over the link"),
    Signal(1352, "nvlink.transmitted_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "field 202 NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES (NVLink 5)", "all bytes sent over the link"),
    Signal(1353, "nvlink.received_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "field 204 NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES (NVLink 5)", "all bytes received over the link"),
    Signal(1354, "nvlink.transmitted_packets", Kind.COUNTER, Pace.TEN_SECONDS, "field 201 NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS (NVLink 5)", "packets sent"),
    Signal(1355, "nvlink.received_packets", Kind.COUNTER, Pace.TEN_SECONDS, "field 203 NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS (NVLink 5)", "packets received"),
    *(_fec(symbols) for symbols in range(16)),
    Signal(1380, "nvlink.link_state", Kind.STATE, Pace.TEN_SECONDS, "field 165 NVML_FI_DEV_NVLINK_GET_STATE, else nvmlDeviceGetNvLinkState", "0 inactive, 1 active, 2 asleep, 3 active but no traffic allowed", on_change=True),
    Signal(1381, "nvlink.version_code", Kind.STATE, Pace.TEN_SECONDS, "field 166 NVML_FI_DEV_NVLINK_GET_VERSION", "nvmlNvlinkVersion_t: 4 is 3.0, 6 is 4.0, 7 is 5.0", on_change=True),
    Signal(1382, "nvlink.speed_bytes_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "field 164 NVML_FI_DEV_NVLINK_GET_SPEED, else NVML_FI_DEV_NVLINK_SPEED_MBPS_L*, _COMMON", "speed of the link in one direction", on_change=True),
    Signal(1383, "nvlink.replay_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 161 NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, else NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L* (before NVLink 5)", "transmissions that were repeated", on_change=True),
    Signal(1384, "nvlink.recovery_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 162 NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, else NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L* (before NVLink 5)", "times the link was retrained", on_change=True),
    Signal(1385, "nvlink.crc_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 163 NVML_FI_DEV_NVLINK_ERROR_DL_CRC (before NVLink 5)", "checksum errors", on_change=True),
    Signal(1386, "nvlink.crc_flit_errors", Kind.COUNTER, Pace.TEN_SECONDS, "fields NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L* (links 0-11)", "checksum errors of flow control", on_change=True),
    Signal(1387, "nvlink.crc_data_errors", Kind.COUNTER, Pace.TEN_SECONDS, "fields NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L* (links 0-11)", "checksum errors of data", on_change=True),
    Signal(1388, "nvlink.ecc_data_errors", Kind.COUNTER, Pace.TEN_SECONDS, "fields NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L* (links 0-11)", "bit errors of data that were repaired", on_change=True),
    Signal(1389, "nvlink.malformed_packets_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 206 NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS (NVLink 5)", "malformed packets received", on_change=True),
    Signal(1390, "nvlink.buffer_overrun_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 207 NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS (NVLink 5)", "packets discarded because there was no room", on_change=True),
    Signal(1391, "nvlink.receive_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 208 NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS (NVLink 5)", "packets received with errors", on_change=True),
    Signal(1392, "nvlink.receive_remote_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 209 NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS (NVLink 5)", "packets that the far side marked as bad", on_change=True),
    Signal(1393, "nvlink.receive_general_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 210 NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS (NVLink 5)", "packets with a wrong header", on_change=True),
    Signal(1394, "nvlink.local_link_integrity_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 211 NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS (NVLink 5)", "times that local errors exceeded a threshold", on_change=True),
    Signal(1395, "nvlink.transmit_discards_packets", Kind.COUNTER, Pace.TEN_SECONDS, "field 212 NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS (NVLink 5)", "packets with errors that were not sent", on_change=True),
    Signal(1396, "nvlink.link_recovery_successful_events", Kind.COUNTER, Pace.TEN_SECONDS, "field 213 NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS (NVLink 5)", "recoveries after which the link was up again", on_change=True),
    Signal(1397, "nvlink.link_recovery_failed_events", Kind.COUNTER, Pace.TEN_SECONDS, "field 214 NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS (NVLink 5)", "recoveries after which the link was declared down", on_change=True),
    Signal(1398, "nvlink.link_recovery_events", Kind.COUNTER, Pace.TEN_SECONDS, "field 215 NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS (NVLink 5)", "recoveries with any result", on_change=True),
    Signal(1399, "nvlink.effective_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 219 NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS (NVLink 5)", "errors left after correction", on_change=True),
    Signal(1400, "nvlink.effective_bit_error_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "field 220 NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER (NVLink 5), mantissa and exponent", "share of bits wrong after correction; 1.5e-254 means none", on_change=True),
    Signal(1401, "nvlink.symbol_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 221 NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS (NVLink 5)", "wrong symbols received", on_change=True),
    Signal(1402, "nvlink.symbol_bit_error_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "field 222 NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER (NVLink 5), mantissa and exponent", "share of symbols wrong", on_change=True),
    Signal(1430, "c2c.link_state", Kind.STATE, Pace.TEN_SECONDS, "field 171 NVML_FI_DEV_C2C_LINK_GET_STATUS", "0 inactive, 1 active", on_change=True),
    Signal(1431, "c2c.speed_max_bytes_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "field 172 NVML_FI_DEV_C2C_LINK_GET_MAX_BW", "highest speed between GPU and CPU", on_change=True),
    Signal(1432, "c2c.crc_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 231 NVML_FI_DEV_C2C_LINK_ERROR_INTR", "checksum errors", on_change=True),
    Signal(1433, "c2c.replay_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 232 NVML_FI_DEV_C2C_LINK_ERROR_REPLAY", "transmissions that were repeated", on_change=True),
    Signal(1434, "c2c.replay_back_to_back_errors", Kind.COUNTER, Pace.TEN_SECONDS, "field 233 NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B", "back-to-back replays", on_change=True),
    Signal(1435, "c2c.power_state", Kind.STATE, Pace.TEN_SECONDS, "field 234 NVML_FI_DEV_C2C_LINK_POWER_STATE", "0 full power, 1 low power", on_change=True),
)









def _switch(signal_id: int, name: str, kind: Kind, source: str, tells: str) -> Signal:
    return Signal(signal_id, name, kind, Pace.TEN_SECONDS, source, tells, on_change=True)


NVSWITCH_SIGNALS = (
    _switch(2814, "nvswitch.temperature_celsius", Kind.GAUGE, "DCGM field 858", "temperature of the switch"),
    _switch(2815, "nvswitch.temperature_slowdown_celsius", Kind.GAUGE, "DCGM field 859", "temperature at which it slows down"),
    _switch(2816, "nvswitch.temperature_shutdown_celsius", Kind.GAUGE, "DCGM field 860", "temperature at which it switches itself off"),
    _switch(2817, "nvswitch.power_watts", Kind.GAUGE, "DCGM fields 705, 706, 707", "power of its three rails (VDD, DVDD, HVDD); missing if one is missing"),
    _switch(2818, "nvswitch.voltage_volts", Kind.GAUGE, "DCGM field 701", "its voltage"),
    _switch(2819, "nvswitch.reset_required_state", Kind.STATE, "DCGM field 864", "1: it must be reset"),
    _switch(2830, "nvswitch_link.link_state", Kind.STATE, "DCGM field 870", "0 off, 1 safe, 2 active, 3 error, 4 inactive"),
    _switch(2831, "nvswitch_link.replay_errors", Kind.COUNTER, "DCGM field 784", "transmissions that were repeated"),
    _switch(2832, "nvswitch_link.recovery_errors", Kind.COUNTER, "DCGM field 785", "times the link was retrained"),
    _switch(2833, "nvswitch_link.flit_errors", Kind.COUNTER, "DCGM field 786", "errors of flow control"),
    _switch(2834, "nvswitch_link.crc_errors", Kind.COUNTER, "DCGM field 787", "checksum errors, all lanes"),
    _switch(2835, "nvswitch_link.ecc_errors", Kind.COUNTER, "DCGM field 788", "bit errors that were repaired, all lanes"),
)


VGPU_SIGNALS = (
    _switch(2840, "vgpu.memory_used_bytes", Kind.GAUGE, "DCGM field 525, MiB", "memory of the GPU in use by the virtual machine"),
    _switch(2841, "vgpu.license_state", Kind.STATE, "DCGM field 526", "1: licensed; 0: not licensed, and the driver slows it down"),
    _switch(2842, "vgpu.frame_rate_limit_hertz", Kind.GAUGE, "DCGM field 527", "maximum frames per second"),
    _switch(2843, "vgpu.type_number", Kind.STATE, "DCGM field 522", "vGPU type, by NVML's number"),
)
