/* Values read every 10 s or more rarely: limits, thresholds, memory wear, modes. */

#include "fake_nvml.h"

#include <string.h>

UINT_CALL(nvmlDeviceGetPowerManagementLimit, unsigned int, power_limit_requested)
UINT_CALL(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, power_limit_default)
UINT_CALL(nvmlDeviceGetComputeMode, nvmlComputeMode_t, compute_mode)

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min, unsigned int *max)
{
    ENTER(nvmlDeviceGetPowerManagementLimitConstraints);
    SAY(power_limit_min);
    *min = value.uiVal;
    SAY(power_limit_max);
    *max = value.uiVal;
    return NVML_SUCCESS;
}

#define SAMPLED_CALL(call, name) \
    EXPORT nvmlReturn_t call(nvmlDevice_t device, unsigned int *share, unsigned int *period) \
    { \
        ENTER(call); \
        SAY(name); \
        *share = value.uiVal; \
        *period = 167000; \
        return NVML_SUCCESS; \
    }
SAMPLED_CALL(nvmlDeviceGetEncoderUtilization, encoder_utilization)
SAMPLED_CALL(nvmlDeviceGetDecoderUtilization, decoder_utilization)
SAMPLED_CALL(nvmlDeviceGetJpgUtilization, jpeg_utilization)
SAMPLED_CALL(nvmlDeviceGetOfaUtilization, optical_flow_utilization)

EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER(nvmlDeviceGetApplicationsClock);
    if (type != NVML_CLOCK_SM && type != NVML_CLOCK_MEM)
        return NVML_ERROR_INVALID_ARGUMENT;
    code = said(&gpu->values[type == NVML_CLOCK_SM ? VALUE_sm_application_clock : VALUE_memory_application_clock], &value);
    *clock = value.uiVal;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ENTER(nvmlDeviceGetBAR1MemoryInfo);
    SAY(bar1_total);
    memory->bar1Total = value.ullVal;
    SAY(bar1_used);
    memory->bar1Used = value.ullVal;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *held)
{
    ENTER(nvmlDeviceGetViolationStatus);
    if (policy != NVML_PERF_POLICY_THERMAL)
        return NVML_ERROR_NOT_SUPPORTED;
    SAY(violation_thermal);
    held->referenceTime = 0;
    held->violationTime = value.ullVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    ENTER(nvmlDeviceGetSramEccErrorStatus);
    if (status->version != nvmlEccSramErrorStatus_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
#define PUT(member, name) \
    SAY(name); \
    status->member = value.ullVal
    PUT(aggregateUncParity, sram_parity_aggregate);
    PUT(aggregateUncSecDed, sram_secded_aggregate);
    PUT(aggregateCor, sram_corrected_aggregate);
    PUT(volatileUncParity, sram_parity_volatile);
    PUT(volatileUncSecDed, sram_secded_volatile);
    PUT(volatileCor, sram_corrected_volatile);
    PUT(aggregateUncBucketL2, sram_l2);
    PUT(aggregateUncBucketSm, sram_sm);
    PUT(aggregateUncBucketPcie, sram_pcie);
    PUT(aggregateUncBucketMcu, sram_mcu);
    PUT(aggregateUncBucketOther, sram_other);
    SAY(sram_threshold);
    status->bThresholdExceeded = value.uiVal;
    return NVML_SUCCESS;
}

/* Without a buffer or with a small one, return only the number of places. */
EXPORT nvmlReturn_t nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts(nvmlDevice_t device, nvmlEccSramUniqueUncorrectedErrorCounts_t *counts)
{
    ENTER(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts);
    nvmlValue_t more = {0}, passed = {0}; /* places added since the first call, and skipped ones */
    unsigned int room = counts->entryCount, parity;
    if (counts->version != nvmlEccSramUniqueUncorrectedErrorCounts_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SAY(sram_unique_parity);
    parity = value.uiVal;
    SAY(sram_unique);
    counts->entryCount = value.uiVal;
    SAY(sram_unique_each);
    if (!counts->entries)
        return NVML_SUCCESS;
    said(&gpu->values[VALUE_sram_unique_more], &more);
    said(&gpu->values[VALUE_sram_unique_passed], &passed);
    counts->entryCount += more.uiVal;
    if (counts->entryCount > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = passed.uiVal; i < counts->entryCount; i++)
        counts->entries[i] = (nvmlEccSramUniqueUncorrectedErrorEntry_v1_t){i, 1, 2, 3, 4, i < parity, value.uiVal};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *banks)
{
    ENTER(nvmlDeviceGetRowRemapperHistogram);
    SAY(banks_max);
    banks->max = value.uiVal;
    SAY(banks_high);
    banks->high = value.uiVal;
    SAY(banks_partial);
    banks->partial = value.uiVal;
    SAY(banks_low);
    banks->low = value.uiVal;
    SAY(banks_none);
    banks->none = value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *status)
{
    ENTER(nvmlDeviceGetRepairStatus);
    if (status->version != nvmlRepairStatus_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SAY(repair_channel);
    status->bChannelRepairPending = value.uiVal;
    SAY(repair_tpc);
    status->bTpcRepairPending = value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlUnrepairableMemoryStatus_v1_t *status)
{
    ENTER(nvmlDeviceGetUnrepairableMemoryFlag_v1);
    nvmlValue_t versioned = {0}; /* nvidia-ml-py's layout: a version word first */
    SAY(unrepairable);
    if (said(&gpu->values[VALUE_unrepairable_versioned], &versioned) == NVML_SUCCESS && versioned.uiVal)
        (&status->bUnrepairableMemory)[1] = value.uiVal;
    else
        status->bUnrepairableMemory = value.uiVal;
    return NVML_SUCCESS;
}
