/* Shared by the parts of the stand-in: a GPU, its scenario, and the start of a call.
 *
 * A file `x.c` of this folder with calls of its own names them in `x.h` (CALLS_X, VALUES_X below), so that a
 * scenario can make them fail or block and set their answers, without a parser of its own. */

#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <stddef.h>

#include "gpm.h"
#include "parts.h"

#define STEPS_MAX 64
#define FIELDS_MAX 400
#define GPUS_MAX 64
#define WAIT_MILLISECONDS_MAX 60000 /* a failed test must end */
#define EXPORT __attribute__((visibility("default")))

/* Every function that a scenario can make fail or block. */
#define CALLS(X) \
    X(nvmlInitWithFlags) X(nvmlInit_v2) X(nvmlShutdown) X(nvmlSystemGetDriverVersion) X(nvmlDeviceGetCount_v2) \
    X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetHandleByPciBusId_v2) X(nvmlDeviceGetHandleByUUID) \
    X(nvmlDeviceGetPciInfo_v3) X(nvmlDeviceGetUUID) X(nvmlDeviceGetName) X(nvmlDeviceGetSerial) \
    X(nvmlDeviceGetFieldValues) X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetMaxClockInfo) \
    X(nvmlDeviceGetCurrentClocksEventReasons) X(nvmlDeviceGetCurrentClocksThrottleReasons) \
    X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetEnforcedPowerLimit) X(nvmlDeviceGetTotalEnergyConsumption) \
    X(nvmlDeviceGetTemperatureV) X(nvmlDeviceGetTemperature) X(nvmlDeviceGetTemperatureThreshold) \
    X(nvmlDeviceGetMarginTemperature) X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetMemoryInfo) \
    X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetTotalEccErrors) X(nvmlDeviceGetRemappedRows) \
    X(nvmlDeviceGetCurrPcieLinkGeneration) X(nvmlDeviceGetMaxPcieLinkGeneration) \
    X(nvmlDeviceGetCurrPcieLinkWidth) X(nvmlDeviceGetMaxPcieLinkWidth) X(nvmlDeviceGetPcieReplayCounter) \
    X(nvmlDeviceGetPerformanceState) X(nvmlDeviceGetComputeRunningProcesses_v3) CALLS_SLOW(X) CALLS_PARTS(X) CALLS_GPM(X)

/* slow.c: values read every 10 s or more rarely. */
#define CALLS_SLOW(X) \
    X(nvmlDeviceGetApplicationsClock) X(nvmlDeviceGetPowerManagementLimit) \
    X(nvmlDeviceGetPowerManagementDefaultLimit) X(nvmlDeviceGetPowerManagementLimitConstraints) \
    X(nvmlDeviceGetEncoderUtilization) X(nvmlDeviceGetDecoderUtilization) X(nvmlDeviceGetJpgUtilization) \
    X(nvmlDeviceGetOfaUtilization) X(nvmlDeviceGetBAR1MemoryInfo) X(nvmlDeviceGetViolationStatus) \
    X(nvmlDeviceGetSramEccErrorStatus) X(nvmlDeviceGetRowRemapperHistogram) X(nvmlDeviceGetRepairStatus) \
    X(nvmlDeviceGetUnrepairableMemoryFlag_v1) X(nvmlDeviceGetComputeMode) \
    X(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts)
#define VALUES_SLOW(X) \
    X(graphics_clock) X(video_clock) X(graphics_clock_max) X(video_clock_max) X(sm_application_clock) \
    X(memory_application_clock) X(power_limit_requested) X(power_limit_default) X(power_limit_min) \
    X(power_limit_max) X(shutdown) X(gpu_max) X(memory_max) X(encoder_utilization) X(decoder_utilization) \
    X(jpeg_utilization) X(optical_flow_utilization) X(bar1_total) X(bar1_used) X(violation_thermal) \
    X(sram_corrected_volatile) X(sram_parity_volatile) X(sram_secded_volatile) X(sram_corrected_aggregate) \
    X(sram_parity_aggregate) X(sram_secded_aggregate) X(sram_l2) X(sram_sm) X(sram_pcie) X(sram_mcu) \
    X(sram_other) X(sram_threshold) X(sram_unique) X(sram_unique_parity) X(sram_unique_each) \
    X(sram_unique_more) X(sram_unique_passed) X(banks_max) X(banks_high) X(banks_partial) X(banks_low) X(banks_none) \
    X(repair_channel) X(repair_tpc) X(unrepairable) X(ecc_mode_pending) \
    X(compute_mode) X(module_power) X(unrepairable_versioned)

/* Every value that is not a field, in NVML's own unit. */
#define VALUES(X) \
    X(sm_clock) X(memory_clock) X(sm_clock_max) X(memory_clock_max) X(event_reasons) X(power) X(power_limit) \
    X(energy) X(temperature) X(slowdown) X(margin) X(utilization) X(memory_utilization) X(memory_total) \
    X(memory_reserved) X(memory_used) X(ecc_corrected_volatile) X(ecc_uncorrected_volatile) \
    X(ecc_corrected_aggregate) X(ecc_uncorrected_aggregate) X(remapped_correctable) \
    X(remapped_uncorrectable) X(remap_pending) X(remap_failed) X(pcie_generation) X(pcie_generation_max) \
    X(pcie_width) X(pcie_width_max) X(pcie_replays) X(performance_state) X(processes) VALUES_SLOW(X) VALUES_PARTS(X) VALUES_GPM(X)

#define AS_CALL(name) CALL_##name,
#define AS_VALUE(name) VALUE_##name,
#define AS_TEXT(name) #name,
enum { CALLS(AS_CALL) CALL_COUNT };
enum { VALUES(AS_VALUE) VALUE_COUNT };

/* The answer at each step; the last one stays. No steps: not supported. Small, because the stand-in's memory is
 * measured as the agent's. */
struct series {
    int steps;
    struct answer {
        int code_set;
        nvmlReturn_t code;
        nvmlValue_t value;
    } *answer;
};

struct gpu {
    char other_uuid[96]; /* nvmlDeviceGetUUID's answer after a step */
    int other_from;
    char uuid[96], address[32], name[96], serial[30];
    struct series values[VALUE_COUNT], fields[FIELDS_MAX], errors[CALL_COUNT];
    nvmlValueType_t types[FIELDS_MAX];
    unsigned int costs[CALL_COUNT], field_costs[FIELDS_MAX]; /* microseconds */
    const char *blocks[CALL_COUNT]; /* "fifo PATH", "file PATH", "read PATH", "seconds N", "crash -"; NULL: none */
};

/* Lines before the first `gpu` apply to calls without a GPU. */
extern struct gpu host;

/* The number in the step file. */
int step(void);
/* Return memory that is valid until another scenario is read. */
void *room(size_t size);
/* The number of users that have initialized and not shut down. */
int fake_nvml_users(void);
/* The GPU's number in the scenario, in order of its lines; -1 for an unknown handle. */
int gpu_number(nvmlDevice_t device);
/* The answer of a series at this step: SUCCESS and the value, or its code. */
nvmlReturn_t said(const struct series *series, nvmlValue_t *value);
/* Count the call, block if requested, and return the code for the whole call. */
nvmlReturn_t enter(struct gpu *gpu, int call);
/* The same, after UNINITIALIZED without a user and INVALID_ARGUMENT for an invalid handle. */
nvmlReturn_t enter_device(nvmlDevice_t device, int call);
/* Parse `12`, `-3`, `0x40`, `1.5` (double); `-`: not supported; `!15`: nvmlReturn 15. Modifies *rest*. */
void parse_series(struct series *series, char *rest, int as_double);

/* Other files may define these; they take precedence over the scenario's own rules. */
/* Take a line of the scenario that begins with *word*: 0 taken, 1 invalid, -1 not for this file. */
__attribute__((weak)) int parts_line(struct gpu *gpu, const char *word, char *rest);
/* Forget earlier scenarios, before a new one is read. */
__attribute__((weak)) void parts_reset(void);
/* Answer one field (a scope id, say); return 0 to leave it to the scenario's `field` lines. */
__attribute__((weak)) int parts_field(struct gpu *gpu, nvmlFieldValue_t *field);
/* Answer a list of processes (0 compute); return 0 if the scenario has none. */
__attribute__((weak)) int parts_processes(struct gpu *gpu, int list, unsigned int *count, nvmlProcessInfo_t *infos, nvmlReturn_t *code);

/* Return the parent GPU of a MIG device; NULL for other GPUs. */
__attribute__((weak)) const struct gpu *parts_parent(const struct gpu *gpu);
/* Return the current MIG device of a GPU instance, with its values; NULL if none. */
struct gpu *parts_instance(struct gpu *gpu, unsigned int id);

/* Begin a call on a device: its blocking and its errors, then `gpu`. */
#define ENTER(call) \
    struct gpu *gpu = (struct gpu *)device; \
    nvmlValue_t value = {0}; \
    nvmlReturn_t code = enter_device(device, CALL_##call); \
    (void)gpu, (void)value; \
    if (code != NVML_SUCCESS) \
        return code
#define SAY(name) \
    if ((code = said(&gpu->values[VALUE_##name], &value)) != NVML_SUCCESS) \
        return code

#define UINT_CALL(call, type, name) \
    EXPORT nvmlReturn_t call(nvmlDevice_t device, type *out) \
    { \
        ENTER(call); \
        SAY(name); \
        *out = (type)value.uiVal; \
        return NVML_SUCCESS; \
    }
#define LONG_CALL(call, name) \
    EXPORT nvmlReturn_t call(nvmlDevice_t device, unsigned long long *out) \
    { \
        ENTER(call); \
        SAY(name); \
        *out = value.ullVal; \
        return NVML_SUCCESS; \
    }
#define TEXT_CALL(call, member) \
    EXPORT nvmlReturn_t call(nvmlDevice_t device, char *text, unsigned int length) \
    { \
        ENTER(call); \
        if (!*gpu->member) \
            return NVML_ERROR_NOT_SUPPORTED; \
        snprintf(text, length, "%s", gpu->member); \
        return NVML_SUCCESS; \
    }

#endif
