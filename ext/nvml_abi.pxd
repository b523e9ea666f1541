# cython: language_level=3
"""The part of NVML's C ABI that we use; a test compares it with NVIDIA's header.

Names are the header's, so that the test can compare each line. Structs, version words and
prototypes: nvml.h of NVML 13.5 (older headers have the same, as far as they have them). Field ids
are not here: they differ between drivers (`contract/nvml_fields.py`). A versioned struct has
`sizeof | version << 24` in its first word (NVML_STRUCT_VERSION); a driver that does not know the
word returns ARGUMENT_VERSION_MISMATCH.
"""

ctypedef int nvmlReturn_t
ctypedef void *nvmlDevice_t
ctypedef unsigned int nvmlClockType_t
ctypedef unsigned int nvmlTemperatureSensors_t
ctypedef unsigned int nvmlTemperatureThresholds_t
ctypedef unsigned int nvmlPstates_t
ctypedef unsigned int nvmlMemoryErrorType_t
ctypedef unsigned int nvmlEccCounterType_t
ctypedef unsigned int nvmlValueType_t
ctypedef unsigned int nvmlEnableState_t
ctypedef unsigned int nvmlComputeMode_t
ctypedef unsigned int nvmlPerfPolicyType_t

cdef enum:
    NVML_SUCCESS = 0
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_INSUFFICIENT_SIZE = 7
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
    NVML_ERROR_DEPRECATED = 26
    NVML_ERROR_GPU_NOT_FOUND = 28
    NVML_INIT_FLAG_NO_GPUS = 1
    NVML_CLOCK_GRAPHICS = 0
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_CLOCK_VIDEO = 3
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_TEMPERATURE_THRESHOLD_MEM_MAX = 2
    NVML_TEMPERATURE_THRESHOLD_GPU_MAX = 3
    NVML_PERF_POLICY_THERMAL = 1
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_AGGREGATE_ECC = 1
    NVML_VALUE_TYPE_DOUBLE = 0
    NVML_VALUE_TYPE_UNSIGNED_INT = 1
    NVML_VALUE_TYPE_UNSIGNED_LONG = 2
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3
    NVML_VALUE_TYPE_SIGNED_LONG_LONG = 4
    NVML_VALUE_TYPE_SIGNED_INT = 5
    NVML_VALUE_TYPE_UNSIGNED_SHORT = 6
    NVML_DEVICE_UUID_V2_BUFFER_SIZE = 96
    NVML_DEVICE_NAME_V2_BUFFER_SIZE = 96
    NVML_DEVICE_SERIAL_BUFFER_SIZE = 30
    NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE = 80

cdef struct nvmlPciInfo_t:
    char busIdLegacy[16]
    unsigned int domain
    unsigned int bus
    unsigned int device
    unsigned int pciDeviceId
    unsigned int pciSubSystemId
    char busId[32]

cdef struct nvmlUtilization_t:
    unsigned int gpu
    unsigned int memory

cdef struct nvmlMemory_t:
    unsigned long long total
    unsigned long long free
    unsigned long long used

cdef struct nvmlMemory_v2_t:
    unsigned int version
    unsigned long long total
    unsigned long long reserved
    unsigned long long free
    unsigned long long used

cdef struct nvmlTemperature_t:
    unsigned int version
    nvmlTemperatureSensors_t sensorType
    int temperature

cdef struct nvmlMarginTemperature_t:
    unsigned int version
    int marginTemperature

cdef struct nvmlBAR1Memory_t:
    unsigned long long bar1Total
    unsigned long long bar1Free
    unsigned long long bar1Used

cdef struct nvmlViolationTime_t:
    unsigned long long referenceTime
    unsigned long long violationTime

cdef struct nvmlRowRemapperHistogramValues_t:
    unsigned int max
    unsigned int high
    unsigned int partial
    unsigned int low
    unsigned int none

cdef struct nvmlRepairStatus_t:
    unsigned int version
    unsigned int bChannelRepairPending
    unsigned int bTpcRepairPending

cdef struct nvmlUnrepairableMemoryStatus_v1_t:
    unsigned int bUnrepairableMemory

cdef struct nvmlEccSramErrorStatus_t:
    unsigned int version
    unsigned long long aggregateUncParity
    unsigned long long aggregateUncSecDed
    unsigned long long aggregateCor
    unsigned long long volatileUncParity
    unsigned long long volatileUncSecDed
    unsigned long long volatileCor
    unsigned long long aggregateUncBucketL2
    unsigned long long aggregateUncBucketSm
    unsigned long long aggregateUncBucketPcie
    unsigned long long aggregateUncBucketMcu
    unsigned long long aggregateUncBucketOther
    unsigned int bThresholdExceeded

cdef struct nvmlEccSramUniqueUncorrectedErrorEntry_v1_t:
    unsigned int unit
    unsigned int location
    unsigned int sublocation
    unsigned int extlocation
    unsigned int address
    unsigned int isParity
    unsigned int count

cdef struct nvmlEccSramUniqueUncorrectedErrorCounts_t:
    unsigned int version
    unsigned int entryCount
    nvmlEccSramUniqueUncorrectedErrorEntry_v1_t *entries

cdef union nvmlValue_t:
    double dVal
    int siVal
    unsigned int uiVal
    unsigned long ulVal
    unsigned long long ullVal
    long long sllVal
    unsigned short usVal

cdef struct nvmlFieldValue_t:
    unsigned int fieldId
    unsigned int scopeId
    long long timestamp
    long long latencyUsec
    nvmlValueType_t valueType
    nvmlReturn_t nvmlReturn
    nvmlValue_t value

cdef struct nvmlProcessInfo_t:
    unsigned int pid
    unsigned long long usedGpuMemory
    unsigned int gpuInstanceId
    unsigned int computeInstanceId

# One pointer per symbol, with the symbol's name; NULL if the driver does not export it.
cdef struct Calls:
    nvmlReturn_t (*nvmlInitWithFlags)(unsigned int flags) noexcept nogil
    nvmlReturn_t (*nvmlInit_v2)() noexcept nogil
    nvmlReturn_t (*nvmlShutdown)() noexcept nogil
    const char *(*nvmlErrorString)(nvmlReturn_t result) noexcept nogil
    nvmlReturn_t (*nvmlSystemGetDriverVersion)(char *version, unsigned int length) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetCount_v2)(unsigned int *count) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetHandleByIndex_v2)(unsigned int index, nvmlDevice_t *device) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetHandleByPciBusId_v2)(const char *bus_id, nvmlDevice_t *device) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetPciInfo_v3)(nvmlDevice_t device, nvmlPciInfo_t *pci) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetUUID)(nvmlDevice_t device, char *uuid, unsigned int length) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetName)(nvmlDevice_t device, char *name, unsigned int length) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetSerial)(nvmlDevice_t device, char *serial, unsigned int length) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetFieldValues)(nvmlDevice_t device, int count, nvmlFieldValue_t *values) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetClockInfo)(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMaxClockInfo)(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetCurrentClocksEventReasons)(nvmlDevice_t device, unsigned long long *reasons) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetCurrentClocksThrottleReasons)(nvmlDevice_t device, unsigned long long *reasons) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetPowerUsage)(nvmlDevice_t device, unsigned int *power) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetEnforcedPowerLimit)(nvmlDevice_t device, unsigned int *limit) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetTotalEnergyConsumption)(nvmlDevice_t device, unsigned long long *energy) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetTemperatureV)(nvmlDevice_t device, nvmlTemperature_t *temperature) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetTemperature)(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *temperature) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetTemperatureThreshold)(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold, unsigned int *temperature) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMarginTemperature)(nvmlDevice_t device, nvmlMarginTemperature_t *margin) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetUtilizationRates)(nvmlDevice_t device, nvmlUtilization_t *utilization) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMemoryInfo)(nvmlDevice_t device, nvmlMemory_t *memory) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMemoryInfo_v2)(nvmlDevice_t device, nvmlMemory_v2_t *memory) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetTotalEccErrors)(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *count) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetRemappedRows)(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetCurrPcieLinkGeneration)(nvmlDevice_t device, unsigned int *generation) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMaxPcieLinkGeneration)(nvmlDevice_t device, unsigned int *generation) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetCurrPcieLinkWidth)(nvmlDevice_t device, unsigned int *width) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMaxPcieLinkWidth)(nvmlDevice_t device, unsigned int *width) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetPcieReplayCounter)(nvmlDevice_t device, unsigned int *replays) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetPerformanceState)(nvmlDevice_t device, nvmlPstates_t *state) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetComputeRunningProcesses_v3)(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetApplicationsClock)(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetPowerManagementLimit)(nvmlDevice_t device, unsigned int *limit) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetPowerManagementDefaultLimit)(nvmlDevice_t device, unsigned int *limit) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetPowerManagementLimitConstraints)(nvmlDevice_t device, unsigned int *min, unsigned int *max) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetEncoderUtilization)(nvmlDevice_t device, unsigned int *utilization, unsigned int *period) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetDecoderUtilization)(nvmlDevice_t device, unsigned int *utilization, unsigned int *period) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetJpgUtilization)(nvmlDevice_t device, unsigned int *utilization, unsigned int *period) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetOfaUtilization)(nvmlDevice_t device, unsigned int *utilization, unsigned int *period) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetBAR1MemoryInfo)(nvmlDevice_t device, nvmlBAR1Memory_t *memory) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetViolationStatus)(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *time) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetSramEccErrorStatus)(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetRowRemapperHistogram)(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetRepairStatus)(nvmlDevice_t device, nvmlRepairStatus_t *status) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetUnrepairableMemoryFlag_v1)(nvmlDevice_t device, nvmlUnrepairableMemoryStatus_v1_t *status) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetEccMode)(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetMigMode)(nvmlDevice_t device, unsigned int *current, unsigned int *pending) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetPersistenceMode)(nvmlDevice_t device, nvmlEnableState_t *mode) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetComputeMode)(nvmlDevice_t device, nvmlComputeMode_t *mode) noexcept nogil
    nvmlReturn_t (*nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts)(nvmlDevice_t device, nvmlEccSramUniqueUncorrectedErrorCounts_t *counts) noexcept nogil
