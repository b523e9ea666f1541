"""What a GPU did within the last second, of samples taken eight times a second. Device: the GPU's UUID.

Phases of a workload last tens of milliseconds; a reading a second says only where one of them stood.
"""

from .signal import Kind, Pace, Signal

_CLOCK = "nvmlDeviceGetClockInfo(SM), 8 Hz"
_POWER = "field 186 NVML_FI_DEV_POWER_INSTANT, else nvmlDeviceGetPowerUsage, 8 Hz"
_REASONS = "nvmlDeviceGetCurrentClocksEventReasons, 8 Hz"

SIGNALS = (
    Signal(1300, "gpu_fast.samples_count", Kind.GAUGE, Pace.SECOND, "agent", "samples that the other columns of this row are made from; 8 when nothing was late"),
    Signal(1301, "gpu_fast.sm_clock_mean_hertz", Kind.GAUGE, Pace.SECOND, _CLOCK, "mean SM clock of the second"),
    Signal(1302, "gpu_fast.sm_clock_min_hertz", Kind.GAUGE, Pace.SECOND, _CLOCK, "lowest SM clock of the second: a brake of 100 ms shows here and nowhere else"),
    Signal(1303, "gpu_fast.sm_clock_max_hertz", Kind.GAUGE, Pace.SECOND, _CLOCK, "highest SM clock of the second"),
    Signal(1304, "gpu_fast.power_mean_watts", Kind.GAUGE, Pace.SECOND, _POWER, "mean power of the second"),
    Signal(1305, "gpu_fast.power_min_watts", Kind.GAUGE, Pace.SECOND, _POWER, "least power of the second: between two steps of a job"),
    Signal(1306, "gpu_fast.power_max_watts", Kind.GAUGE, Pace.SECOND, _POWER, "most power of the second"),
    Signal(1307, "gpu_fast.power_cap_ratio", Kind.GAUGE, Pace.SECOND, _REASONS, "share of the samples with the power limit as a reason (0x4)"),
    Signal(1308, "gpu_fast.thermal_ratio", Kind.GAUGE, Pace.SECOND, _REASONS, "share of the samples with heat as a reason, by software or hardware (0x20, 0x40)"),
    Signal(1309, "gpu_fast.power_brake_ratio", Kind.GAUGE, Pace.SECOND, _REASONS, "share of the samples with the power brake of the power supply as a reason (0x80)"),
    Signal(1320, "gpu_fast.sm_active_ratio", Kind.GAUGE, Pace.SECOND, "GPM 2 NVML_GPM_METRIC_SM_UTIL; Hopper and later", "mean share of the SMs that were busy"),
    Signal(1321, "gpu_fast.sm_active_min_ratio", Kind.GAUGE, Pace.SECOND, "GPM 2 NVML_GPM_METRIC_SM_UTIL; Hopper and later", "the same in the least busy eighth of the second"),
    Signal(1322, "gpu_fast.sm_active_max_ratio", Kind.GAUGE, Pace.SECOND, "GPM 2 NVML_GPM_METRIC_SM_UTIL; Hopper and later", "the same in the busiest eighth of the second"),
    Signal(1323, "gpu_fast.sm_occupancy_ratio", Kind.GAUGE, Pace.SECOND, "GPM 3 NVML_GPM_METRIC_SM_OCCUPANCY; Hopper and later", "mean share of the warps that were active"),
    Signal(1324, "gpu_fast.tensor_active_ratio", Kind.GAUGE, Pace.SECOND, "GPM 5 NVML_GPM_METRIC_ANY_TENSOR_UTIL; Hopper and later", "mean share of time the tensor cores worked: computing, not waiting"),
    Signal(1325, "gpu_fast.memory_bandwidth_ratio", Kind.GAUGE, Pace.SECOND, "GPM 10 NVML_GPM_METRIC_DRAM_BW_UTIL; Hopper and later", "mean share of the memory's bandwidth in use"),
    Signal(1326, "gpu_fast.pcie_transmitted_bytes_per_second", Kind.GAUGE, Pace.SECOND, "GPM 20 NVML_GPM_METRIC_PCIE_TX_PER_SEC; Hopper and later", "mean PCIe traffic from the GPU"),
    Signal(1327, "gpu_fast.pcie_received_bytes_per_second", Kind.GAUGE, Pace.SECOND, "GPM 21 NVML_GPM_METRIC_PCIE_RX_PER_SEC; Hopper and later", "mean PCIe traffic to the GPU"),
    Signal(1328, "gpu_fast.nvlink_received_bytes_per_second", Kind.GAUGE, Pace.SECOND, "GPM 60 NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC; Hopper and later", "mean NVLink traffic to the GPU, all links"),
    Signal(1329, "gpu_fast.nvlink_transmitted_bytes_per_second", Kind.GAUGE, Pace.SECOND, "GPM 61 NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC; Hopper and later", "mean NVLink traffic from the GPU, all links"),
)
