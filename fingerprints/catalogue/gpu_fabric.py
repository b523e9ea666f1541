"""Each GPU's place in its NVLink fabric. Device: the GPU's UUID. Errors of the switches of an NVL72 rack do not
reach the kernel log of a compute tray: of them there is no data here, only what the GPUs feel of them."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(1480, "gpu_fabric.registration_state", Kind.STATE, Pace.SECOND, "nvmlDeviceGetGpuFabricInfoV.state", "1 not started, 2 in progress, 3 completed: only then can the GPU reach others", on_change=True),
    Signal(1481, "gpu_fabric.registration_status_code", Kind.STATE, Pace.SECOND, "nvmlDeviceGetGpuFabricInfoV.status, in state 3", "nvmlReturn_t of the registration: 0 is good", on_change=True),
    Signal(1482, "gpu_fabric.clique_number", Kind.STATE, Pace.SECOND, "nvmlDeviceGetGpuFabricInfoV.cliqueId, in state 3", "GPUs of one cluster and clique reach each other", on_change=True),
    Signal(1483, "gpu_fabric.health_flags", Kind.STATE, Pace.SECOND, "nvmlDeviceGetGpuFabricInfoV.healthMask", "the mask as it is; the fields below are cut from it", on_change=True),
    Signal(1484, "gpu_fabric.degraded_bandwidth_state", Kind.STATE, Pace.SECOND, "healthMask bits 0-1", "1: the GPU's NVLink bandwidth is degraded", on_change=True),
    Signal(1485, "gpu_fabric.route_recovery_state", Kind.STATE, Pace.SECOND, "healthMask bits 2-3", "1: a route is being recovered", on_change=True),
    Signal(1486, "gpu_fabric.route_unhealthy_state", Kind.STATE, Pace.SECOND, "healthMask bits 4-5", "1: a route is unhealthy", on_change=True),
    Signal(1487, "gpu_fabric.access_timeout_recovery_state", Kind.STATE, Pace.SECOND, "healthMask bits 6-7", "1: recovering from an access that timed out", on_change=True),
    Signal(1488, "gpu_fabric.incorrect_configuration_code", Kind.STATE, Pace.SECOND, "healthMask bits 8-11, drivers of NVML 13", "1 correct; 2 system GUID, 3 chassis serial, 4 no partition, 5 too few NVLinks, 6 GPU firmware, 7 location, 8 GPU state is wrong", on_change=True),
    Signal(1489, "gpu_fabric.health_summary_code", Kind.STATE, Pace.SECOND, "nvmlDeviceGetGpuFabricInfoV.healthSummary, drivers of NVML 13", "1 healthy, 2 unhealthy, 3 limited capacity", on_change=True),
)
