# cython: language_level=3
"""NVML's C ABI for the parts of a GPU: links, MIG, processes, fabric, events. See nvml_abi.pxd.

Names are the header's; a test compiles a program against NVIDIA's header and compares each line.
Structs and prototypes: nvml.h of NVML 13.5. The field ids below are the same in all headers.
"""

from nvml_abi cimport nvmlDevice_t, nvmlFieldValue_t, nvmlMemory_t, nvmlProcessInfo_t, nvmlReturn_t

ctypedef unsigned int nvmlEnableState_t
ctypedef unsigned int nvmlMemoryErrorType_t
ctypedef unsigned int nvmlEccCounterType_t
ctypedef unsigned int nvmlMemoryLocation_t
ctypedef unsigned char nvmlGpuFabricState_t
ctypedef void *nvmlGpuInstance_t
ctypedef void *nvmlEventSet_t
ctypedef void *nvmlSystemEventSet_t

cdef enum:
    NVML_ERROR_TIMEOUT = 10
    NVML_MEMORY_LOCATION_SRAM = 7
    NVML_FI_DEV_NVLINK_LINK_COUNT = 91
    NVML_FI_DEV_C2C_LINK_COUNT = 170
    NVML_GPU_FABRIC_UUID_LEN = 16
    NVML_NVLINK_BER_MANTISSA_SHIFT = 8
    NVML_NVLINK_BER_MANTISSA_WIDTH = 15
    NVML_NVLINK_BER_EXP_SHIFT = 0
    NVML_NVLINK_BER_EXP_WIDTH = 255
    nvmlSystemEventTypeGpuDriverUnbind = 1
    nvmlSystemEventTypeGpuDriverBind = 2

cdef struct nvmlGpuInstancePlacement_t:
    unsigned int start
    unsigned int size

cdef struct nvmlGpuInstanceInfo_t:
    nvmlDevice_t device
    unsigned int id
    unsigned int profileId
    nvmlGpuInstancePlacement_t placement

cdef struct nvmlDeviceAttributes_t:
    unsigned int multiprocessorCount
    unsigned int sharedCopyEngineCount
    unsigned int sharedDecoderCount
    unsigned int sharedEncoderCount
    unsigned int sharedJpegCount
    unsigned int sharedOfaCount
    unsigned int gpuInstanceSliceCount
    unsigned int computeInstanceSliceCount
    unsigned long long memorySizeMB

cdef struct nvmlGpuFabricInfo_t:
    unsigned char clusterUuid[NVML_GPU_FABRIC_UUID_LEN]
    nvmlReturn_t status
    unsigned int cliqueId
    nvmlGpuFabricState_t state

cdef struct nvmlGpuFabricInfo_v2_t:
    unsigned int version
    unsigned char clusterUuid[NVML_GPU_FABRIC_UUID_LEN]
    nvmlReturn_t status
    unsigned int cliqueId
    nvmlGpuFabricState_t state
    unsigned int healthMask

cdef struct nvmlGpuFabricInfo_v3_t:
    unsigned int version
    unsigned char clusterUuid[NVML_GPU_FABRIC_UUID_LEN]
    nvmlReturn_t status
    unsigned int cliqueId
    nvmlGpuFabricState_t state
    unsigned int healthMask
    unsigned char healthSummary

ctypedef nvmlGpuFabricInfo_v3_t nvmlGpuFabricInfoV_t

cdef struct nvmlEventData_t:
    nvmlDevice_t device
    unsigned long long eventType
    unsigned long long eventData
    unsigned int gpuInstanceId
    unsigned int computeInstanceId

cdef struct nvmlSystemEventSetCreateRequest_v1_t:
    unsigned int version
    nvmlSystemEventSet_t set

cdef struct nvmlSystemEventSetFreeRequest_v1_t:
    unsigned int version
    nvmlSystemEventSet_t set

cdef struct nvmlSystemRegisterEventRequest_v1_t:
    unsigned int version
    unsigned long long eventTypes
    nvmlSystemEventSet_t set

cdef struct nvmlSystemEventData_v1_t:
    unsigned long long eventType
    unsigned int gpuId

cdef struct nvmlSystemEventSetWaitRequest_v1_t:
    unsigned int version
    unsigned int timeoutms
    nvmlSystemEventSet_t set
    nvmlSystemEventData_v1_t *data
    unsigned int dataSize
    unsigned int numEvent

# One pointer per symbol, with the symbol's name; NULL if the driver does not export it.
cdef struct PartsCalls:
    nvmlReturn_t (*nvmlDeviceGetFieldValues)(nvmlDevice_t device, int count, nvmlFieldValue_t *values) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetNvLinkState)(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMigMode)(nvmlDevice_t device, unsigned int *current, unsigned int *pending) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMaxMigDeviceCount)(nvmlDevice_t device, unsigned int *count) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMigDeviceHandleByIndex)(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetUUID)(nvmlDevice_t device, char *uuid, unsigned int length) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetGpuInstanceId)(nvmlDevice_t device, unsigned int *id) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetComputeInstanceId)(nvmlDevice_t device, unsigned int *id) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetGpuInstanceById)(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance) noexcept nogil
    nvmlReturn_t (*nvmlGpuInstanceGetInfo)(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetAttributes_v2)(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMemoryInfo)(nvmlDevice_t device, nvmlMemory_t *memory) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMemoryErrorCounter)(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, nvmlMemoryLocation_t location, unsigned long long *count) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetComputeRunningProcesses_v3)(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetGraphicsRunningProcesses_v3)(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMPSComputeRunningProcesses_v3)(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetGpuFabricInfoV)(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetGpuFabricInfo)(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetSupportedEventTypes)(nvmlDevice_t device, unsigned long long *types) noexcept nogil
    nvmlReturn_t (*nvmlDeviceRegisterEvents)(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t events) noexcept nogil
    nvmlReturn_t (*nvmlEventSetCreate)(nvmlEventSet_t *events) noexcept nogil
    nvmlReturn_t (*nvmlEventSetWait_v2)(nvmlEventSet_t events, nvmlEventData_t *data, unsigned int milliseconds) noexcept nogil
    nvmlReturn_t (*nvmlEventSetFree)(nvmlEventSet_t events) noexcept nogil
    nvmlReturn_t (*nvmlSystemEventSetCreate)(nvmlSystemEventSetCreateRequest_v1_t *request) noexcept nogil
    nvmlReturn_t (*nvmlSystemRegisterEvents)(nvmlSystemRegisterEventRequest_v1_t *request) noexcept nogil
    nvmlReturn_t (*nvmlSystemEventSetWait)(nvmlSystemEventSetWaitRequest_v1_t *request) noexcept nogil
    nvmlReturn_t (*nvmlSystemEventSetFree)(nvmlSystemEventSetFreeRequest_v1_t *request) noexcept nogil
