"""MIG devices. Device: `MIG-uuid`; its GPU is in the inventory. The mode of each GPU is `gpu.mig_mode_state`."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(1440, "mig.gpu_instance_number", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetGpuInstanceId", "GPU instance that it is in", on_change=True),
    Signal(1441, "mig.compute_instance_number", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetComputeInstanceId", "compute instance that it is", on_change=True),
    Signal(1442, "mig.profile_number", Kind.STATE, Pace.TEN_SECONDS, "nvmlGpuInstanceGetInfo.profileId", "profile of the GPU instance, as numbered on this GPU", on_change=True),
    Signal(1443, "mig.placement_start_number", Kind.STATE, Pace.TEN_SECONDS, "nvmlGpuInstanceGetInfo.placement.start", "first memory slice that the GPU instance occupies", on_change=True),
    Signal(1444, "mig.placement_slices_count", Kind.STATE, Pace.TEN_SECONDS, "nvmlGpuInstanceGetInfo.placement.size", "memory slices that the GPU instance occupies", on_change=True),
    Signal(1445, "mig.gpu_slices_count", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetAttributes.gpuInstanceSliceCount", "GPU slices of the GPU instance", on_change=True),
    Signal(1446, "mig.compute_slices_count", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetAttributes.computeInstanceSliceCount", "slices of the compute instance", on_change=True),
    Signal(1447, "mig.multiprocessors_count", Kind.STATE, Pace.TEN_SECONDS, "nvmlDeviceGetAttributes.multiprocessorCount", "SMs that it may use", on_change=True),
    Signal(1448, "mig.ecc_sram_uncorrected_errors", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlDeviceGetMemoryErrorCounter(UNCORRECTED, VOLATILE, SRAM)", "data lost in the instance's caches since the driver loaded; DRAM is not told by instance", on_change=True),
    Signal(1449, "mig.memory_total_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetMemoryInfo.total of the MIG device", "memory there is", on_change=True),
    Signal(1450, "mig.memory_used_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "nvmlDeviceGetMemoryInfo.used of the MIG device", "memory in use"),
    Signal(1451, "mig.sm_active_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "GPM 2 NVML_GPM_METRIC_SM_UTIL, by nvmlGpmMigSampleGet; Hopper and later", "mean share of the SMs of its GPU instance that were busy since the sample before"),
    Signal(1452, "mig.sm_occupancy_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "GPM 3 NVML_GPM_METRIC_SM_OCCUPANCY, by nvmlGpmMigSampleGet; Hopper and later", "mean share of the warps of its GPU instance that were active"),
    Signal(1453, "mig.tensor_active_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "GPM 5 NVML_GPM_METRIC_ANY_TENSOR_UTIL, by nvmlGpmMigSampleGet; Hopper and later", "mean share of time the tensor cores of its GPU instance worked"),
    Signal(1454, "mig.memory_bandwidth_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "GPM 10 NVML_GPM_METRIC_DRAM_BW_UTIL, by nvmlGpmMigSampleGet; Hopper and later", "mean share of its GPU instance's memory bandwidth in use"),
)
