/* gpm.c: GPU performance monitoring. Values are percent, or MiB a second. */

#ifndef GPM_H
#define GPM_H

#define CALLS_GPM(X) \
    X(nvmlGpmQueryDeviceSupport) X(nvmlGpmSampleAlloc) X(nvmlGpmSampleFree) X(nvmlGpmSampleGet) X(nvmlGpmMetricsGet) \
    X(nvmlGpmMigSampleGet)
#define VALUES_GPM(X) \
    X(gpm_supported) X(gpm_sm_util) X(gpm_sm_occupancy) X(gpm_tensor_util) X(gpm_dram_util) X(gpm_pcie_tx) \
    X(gpm_pcie_rx) X(gpm_nvlink_rx) X(gpm_nvlink_tx)

#endif
