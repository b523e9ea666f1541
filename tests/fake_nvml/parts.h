/* The calls and values of parts.c. */
#define CALLS_PARTS(X) \
    X(nvmlDeviceGetNvLinkState) X(nvmlDeviceGetNvLinkRemoteDeviceType) X(nvmlDeviceGetNvLinkRemotePciInfo_v2) \
    X(nvmlDeviceGetMigMode) X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMigDeviceHandleByIndex) \
    X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) X(nvmlDeviceGetGpuInstanceById) \
    X(nvmlGpuInstanceGetInfo) X(nvmlDeviceGetAttributes_v2) X(nvmlDeviceGetGraphicsRunningProcesses_v3) \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3) X(nvmlDeviceGetGpuFabricInfoV) X(nvmlDeviceGetGpuFabricInfo) \
    X(nvmlDeviceGetPlatformInfo) X(nvmlEventSetCreate) X(nvmlEventSetFree) X(nvmlEventSetWait_v2) \
    X(nvmlDeviceRegisterEvents) X(nvmlDeviceGetSupportedEventTypes) X(nvmlDeviceGetVbiosVersion) \
    X(nvmlDeviceGetBoardPartNumber) X(nvmlDeviceGetInforomVersion) X(nvmlDeviceGetInforomImageVersion) \
    X(nvmlDeviceGetGspFirmwareVersion) X(nvmlDeviceGetGspFirmwareMode) X(nvmlDeviceGetArchitecture) \
    X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetNumGpuCores) X(nvmlDeviceGetMemoryBusWidth) \
    X(nvmlDeviceGetModuleId) X(nvmlDeviceGetNumaNodeId) X(nvmlDeviceGetMinorNumber) X(nvmlDeviceGetBoardId) \
    X(nvmlDeviceGetEccMode) X(nvmlDeviceGetPersistenceMode) X(nvmlSystemGetCudaDriverVersion) \
    X(nvmlSystemGetConfComputeState) X(nvmlDeviceGetMemoryErrorCounter) \
    X(nvmlSystemEventSetCreate) X(nvmlSystemRegisterEvents) X(nvmlSystemEventSetWait) X(nvmlSystemEventSetFree)

#define VALUES_PARTS(X) \
    X(mig_mode) X(mig_mode_pending) X(mig_devices_max) X(fabric_state) X(fabric_status) X(fabric_clique) \
    X(fabric_health) X(events_supported) X(compute_count) X(graphics_count) X(mps_count) X(architecture) \
    X(compute_capability) X(cores) X(bus_width) X(module_id) X(numa_node) X(minor_number) X(board_id) \
    X(ecc_mode) X(persistence_mode) X(gsp_mode) X(cuda_version) X(confidential) \
    X(sram_uncorrected) X(fabric_summary)
