/* GPU performance monitoring: two samples of one GPU, and the scenario's metrics between them. */

#include "fake_nvml.h"
#include "follow.h"

#include <stdlib.h>

/* A scenario's `!1000`: the metric stays unchanged, as if the driver ignored it. */
#define PASSED_OVER ((nvmlReturn_t)1000)

struct nvmlGpmSample_st {
    struct gpu *gpu; /* NULL: no sample yet */
    int follows;     /* the number of the GPU, if it follows a process; else -1 */
    struct followed followed;
};

static const struct {
    unsigned int metric;
    int value;
} metrics[] = {
    {NVML_GPM_METRIC_SM_UTIL, VALUE_gpm_sm_util},
    {NVML_GPM_METRIC_SM_OCCUPANCY, VALUE_gpm_sm_occupancy},
    {NVML_GPM_METRIC_ANY_TENSOR_UTIL, VALUE_gpm_tensor_util},
    {NVML_GPM_METRIC_DRAM_BW_UTIL, VALUE_gpm_dram_util},
    {NVML_GPM_METRIC_PCIE_TX_PER_SEC, VALUE_gpm_pcie_tx},
    {NVML_GPM_METRIC_PCIE_RX_PER_SEC, VALUE_gpm_pcie_rx},
    {NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, VALUE_gpm_nvlink_rx},
    {NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, VALUE_gpm_nvlink_tx},
};
/* Allocated samples. */
static int samples_alive;

EXPORT int fake_nvml_gpm_samples(void) { return samples_alive; }

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    ENTER(nvmlGpmQueryDeviceSupport);
    if (support->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SAY(gpm_supported);
    support->isSupportedDevice = value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    nvmlReturn_t code = enter(&host, CALL_nvmlGpmSampleAlloc);
    if (code != NVML_SUCCESS)
        return code;
    *sample = calloc(1, sizeof(**sample));
    samples_alive += *sample != NULL;
    return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    free(sample);
    samples_alive--;
    return enter(&host, CALL_nvmlGpmSampleFree);
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    ENTER(nvmlGpmSampleGet);
    sample->gpu = gpu;
    sample->follows = follow_sample(gpu_number(device), &sample->followed) ? gpu_number(device) : -1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t sample)
{
    ENTER(nvmlGpmMigSampleGet);
    sample->gpu = parts_instance(gpu, instance);
    sample->follows = -1;
    return sample->gpu ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t metric(const nvmlGpmMetricsGet_t *asked, nvmlGpmMetric_t *wanted)
{
    nvmlValue_t value = {0};
    const struct nvmlGpmSample_st *first = asked->sample1, *second = asked->sample2;
    struct gpu *gpu = first->gpu;
    int is_sm = wanted->metricId == NVML_GPM_METRIC_SM_UTIL;
    if (first->follows >= 0 && (is_sm || wanted->metricId == NVML_GPM_METRIC_ANY_TENSOR_UTIL)) {
        wanted->value = follow_percent(first->follows, &first->followed, &second->followed, is_sm);
        return NVML_SUCCESS;
    }
    for (size_t i = 0; i < sizeof(metrics) / sizeof(*metrics); i++)
        if (metrics[i].metric == wanted->metricId) {
            nvmlReturn_t code = said(&gpu->values[metrics[i].value], &value);
            wanted->value = (double)value.ullVal;
            return code;
        }
    return NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *asked)
{
    if (asked->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!asked->sample1 || !asked->sample2 || !asked->sample1->gpu || asked->sample1->gpu != asked->sample2->gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = enter(asked->sample1->gpu, CALL_nvmlGpmMetricsGet);
    for (unsigned int i = 0; code == NVML_SUCCESS && i < asked->numMetrics; i++) {
        nvmlReturn_t said = metric(asked, &asked->metrics[i]);
        if (said != PASSED_OVER)
            asked->metrics[i].nvmlReturn = said;
    }
    return code;
}
