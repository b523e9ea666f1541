/* An NVML that plays a scenario. Compiled against NVIDIA's published nvml.h, so that each prototype and
 * struct is theirs: a slip here does not compile. What a scenario may say: README.md of this folder. */

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STEPS_MAX 64
#define FIELDS_MAX 400
#define GPUS_MAX 64
#define WAIT_MILLISECONDS_MAX 60000 /* a test that went wrong must end */
#define EXPORT __attribute__((visibility("default")))

/* Every function that can be told to fail or to block. */
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
    X(nvmlDeviceGetPerformanceState) X(nvmlDeviceGetComputeRunningProcesses_v3)

/* Every value that is not a field, in NVML's own unit. */
#define VALUES(X) \
    X(sm_clock) X(memory_clock) X(sm_clock_max) X(memory_clock_max) X(event_reasons) X(power) X(power_limit) \
    X(energy) X(temperature) X(slowdown) X(margin) X(utilization) X(memory_utilization) X(memory_total) \
    X(memory_reserved) X(memory_used) X(ecc_corrected_volatile) X(ecc_uncorrected_volatile) \
    X(ecc_corrected_aggregate) X(ecc_uncorrected_aggregate) X(remapped_correctable) \
    X(remapped_uncorrectable) X(remap_pending) X(remap_failed) X(pcie_generation) X(pcie_generation_max) \
    X(pcie_width) X(pcie_width_max) X(pcie_replays) X(performance_state) X(processes)

#define AS_CALL(name) CALL_##name,
#define AS_VALUE(name) VALUE_##name,
#define AS_TEXT(name) #name,
enum { CALLS(AS_CALL) CALL_COUNT };
enum { VALUES(AS_VALUE) VALUE_COUNT };
static const char *const call_names[] = {CALLS(AS_TEXT) NULL};
static const char *const value_names[] = {VALUES(AS_TEXT) NULL};
static const char *const type_names[] = {"double", "uint", "ulong", "ull", "sll", "int", "ushort", NULL};

/* What is answered at each step; the last holds on. No steps: not supported. */
struct series {
    int steps;
    unsigned char code_set[STEPS_MAX];
    nvmlReturn_t code[STEPS_MAX];
    nvmlValue_t value[STEPS_MAX];
};

struct gpu {
    char uuid[96], address[32], name[96], serial[30];
    struct series values[VALUE_COUNT], fields[FIELDS_MAX], errors[CALL_COUNT];
    nvmlValueType_t types[FIELDS_MAX];
    char blocks[CALL_COUNT][256]; /* "fifo PATH", "file PATH", "seconds N" */
};

static struct gpu host, *gpus; /* host: what is said before the first gpu, for calls without one */
static unsigned int gpu_count, told_count;
static int counts_told, users;
static char driver[80];
static const char *step_text; /* the step file, mapped: a step costs no system call */
static unsigned long calls[CALL_COUNT];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int step(void) { return step_text ? atoi(step_text) : 0; }

static nvmlReturn_t said(const struct series *series, nvmlValue_t *value)
{
    if (!series->steps)
        return NVML_ERROR_NOT_SUPPORTED;
    int now = step();
    now = now < series->steps ? now : series->steps - 1;
    if (series->code_set[now])
        return series->code[now];
    *value = series->value[now];
    return NVML_SUCCESS;
}

static void wait_for(const char *block)
{
    struct timespec moment = {0, 1000000};
    const char *what = strchr(block, ' ') + 1;
    if (!strncmp(block, "fifo ", 5)) { /* whoever opens it for writing waits for us, and we for its closing */
        struct pollfd closing = {open(what, O_RDONLY | O_NONBLOCK), POLLIN, 0};
        /* Left open when nobody came: who comes too late must find out, not wait for ever. */
        if (closing.fd >= 0 && poll(&closing, 1, WAIT_MILLISECONDS_MAX) > 0)
            close(closing.fd);
    } else if (!strncmp(block, "file ", 5)) {
        for (int i = 0; i < WAIT_MILLISECONDS_MAX && access(what, F_OK); i++)
            nanosleep(&moment, NULL);
    } else {
        double seconds = atof(what);
        struct timespec span = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
        nanosleep(&span, NULL);
    }
}

/* Count the call, block if told to, and answer what the call as a whole is to answer. */
static nvmlReturn_t enter(struct gpu *gpu, int call)
{
    nvmlValue_t code = {0};
    __atomic_add_fetch(&calls[call], 1, __ATOMIC_RELAXED);
    if (*gpu->blocks[call])
        wait_for(gpu->blocks[call]);
    if (gpu->errors[call].steps)
        said(&gpu->errors[call], &code);
    return (nvmlReturn_t)code.ullVal;
}

static nvmlReturn_t enter_device(nvmlDevice_t device, int call)
{
    struct gpu *gpu = (struct gpu *)device;
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (!gpus || gpu < gpus || gpu >= gpus + gpu_count || ((char *)gpu - (char *)gpus) % sizeof *gpu)
        return NVML_ERROR_INVALID_ARGUMENT;
    return enter(gpu, call);
}

/* ---- the scenario ---- */

static int find(const char *const *names, const char *name)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], name))
            return i;
    return -1;
}

/* `12`, `-3`, `0x40`, `1.5` of a double field; `-`: not supported; `!15`: nvmlReturn 15. */
static void parse_series(struct series *series, char *rest, int as_double)
{
    memset(series, 0, sizeof *series);
    for (char *word = strtok(rest, " \t\n"); word && series->steps < STEPS_MAX; word = strtok(NULL, " \t\n")) {
        int now = series->steps++;
        if (!strcmp(word, "-") || *word == '!') {
            series->code_set[now] = 1;
            series->code[now] = *word == '!' ? (nvmlReturn_t)atoi(word + 1) : NVML_ERROR_NOT_SUPPORTED;
        } else if (as_double) {
            series->value[now].dVal = strtod(word, NULL);
        } else {
            series->value[now].ullVal = strtoull(word, NULL, 0);
        }
    }
}

static int parse_call(struct gpu *gpu, const char *what, const char *name, const char *rest)
{
    for (int call = 0; call < CALL_COUNT; call++) {
        if (strcmp(name, "*") && strcmp(name, call_names[call]))
            continue;
        if (!strcmp(what, "block")) {
            snprintf(gpu->blocks[call], sizeof gpu->blocks[call], "%s", rest);
        } else {
            char copy[1024];
            snprintf(copy, sizeof copy, "%s", rest);
            parse_series(&gpu->errors[call], copy, 0);
        }
    }
    return strcmp(name, "*") && find(call_names, name) < 0;
}

static int parse_field(struct gpu *gpu, char *rest)
{
    char type[16];
    int id, used;
    if (sscanf(rest, "%d %15s %n", &id, type, &used) < 2 || id < 0 || id >= FIELDS_MAX || find(type_names, type) < 0)
        return 1;
    gpu->types[id] = (nvmlValueType_t)find(type_names, type);
    parse_series(&gpu->fields[id], rest + used, gpu->types[id] == NVML_VALUE_TYPE_DOUBLE);
    return 0;
}

/* Return 0, or 1 for a line that means nothing. */
static int parse_line(char *line)
{
    char word[64], name[64];
    int used = 0;
    struct gpu *gpu = gpu_count ? &gpus[gpu_count - 1] : &host;
    line[strcspn(line, "#\n")] = 0;
    if (sscanf(line, " %63s %n", word, &used) < 1)
        return 0;
    char *rest = line + used;
    if (!strcmp(word, "gpu"))
        return gpu_count == GPUS_MAX
            || sscanf(rest, "%95s %31s", gpus[gpu_count].uuid, gpus[gpu_count].address) != 2 || !++gpu_count;
    if (!strcmp(word, "driver"))
        return sscanf(rest, "%79s", driver) != 1;
    if (!strcmp(word, "count"))
        return !(counts_told = sscanf(rest, "%u", &told_count) == 1);
    if (!strcmp(word, "name"))
        return snprintf(gpu->name, sizeof gpu->name, "%s", rest) < 1;
    if (!strcmp(word, "serial"))
        return snprintf(gpu->serial, sizeof gpu->serial, "%s", rest) < 1;
    if (!strcmp(word, "field"))
        return parse_field(gpu, rest);
    if (!strcmp(word, "error") || !strcmp(word, "block"))
        return sscanf(rest, "%63s %n", name, &used) < 1 || parse_call(gpu, word, name, rest + used);
    if (find(value_names, word) < 0)
        return 1;
    parse_series(&gpu->values[find(value_names, word)], rest, 0);
    return 0;
}

static void map_step(const char *path)
{
    char name[4096];
    struct stat status;
    step_text = NULL;
    snprintf(name, sizeof name, "%s.step", path);
    int opened = open(name, O_RDONLY);
    if (opened < 0)
        return;
    if (!fstat(opened, &status) && status.st_size > 0) {
        void *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, opened, 0);
        step_text = mapped == MAP_FAILED ? NULL : mapped;
    }
    close(opened);
}

static nvmlReturn_t load(void)
{
    char line[4096];
    const char *path = getenv("GANGLINE_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    /* Only what was used is cleared: touching all of it would cost whoever loads us 25 MB. */
    if (!gpus)
        gpus = calloc(GPUS_MAX, sizeof *gpus);
    memset(gpus, 0, (size_t)gpu_count * sizeof *gpus);
    memset(&host, 0, sizeof host);
    gpu_count = counts_told = 0;
    strcpy(driver, "590.48.01");
    int bad = 0;
    for (int number = 1; fgets(line, sizeof line, file); number++)
        if (parse_line(line)) {
            fprintf(stderr, "%s:%d: not understood: %s\n", path, number, line);
            bad = 1;
        }
    fclose(file);
    map_step(path);
    return bad ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

static nvmlReturn_t start(int call)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = users ? NVML_SUCCESS : load();
    if (code == NVML_SUCCESS)
        code = enter(&host, call);
    if (code == NVML_SUCCESS)
        users++;
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- NVML ---- */

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

EXPORT unsigned long fake_nvml_calls(const char *name)
{
    int call = find(call_names, name);
    return call < 0 ? 0 : calls[call];
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    nvmlReturn_t code = start(CALL_nvmlInitWithFlags);
    if (code == NVML_SUCCESS && !gpu_count && !(flags & NVML_INIT_FLAG_NO_GPUS)) {
        nvmlShutdown();
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    return code;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return start(CALL_nvmlInit_v2); }

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = users ? enter(&host, CALL_nvmlShutdown) : NVML_SUCCESS;
    users -= users > 0;
    pthread_mutex_unlock(&lock);
    return code;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    nvmlReturn_t code = users ? enter(&host, CALL_nvmlSystemGetDriverVersion) : NVML_ERROR_UNINITIALIZED;
    if (code == NVML_SUCCESS)
        snprintf(version, length, "%s", driver);
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    nvmlReturn_t code = users ? enter(&host, CALL_nvmlDeviceGetCount_v2) : NVML_ERROR_UNINITIALIZED;
    if (code == NVML_SUCCESS)
        *count = counts_told ? told_count : gpu_count;
    return code;
}

static nvmlReturn_t attach(struct gpu *gpu, int call, nvmlDevice_t *device)
{
    nvmlReturn_t code = enter(gpu, call);
    if (code == NVML_SUCCESS)
        *device = (nvmlDevice_t)gpu;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    return index < gpu_count ? attach(&gpus[index], CALL_nvmlDeviceGetHandleByIndex_v2, device) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    unsigned int asked[4] = {0}, own[4] = {0};
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (sscanf(bus_id, "%x:%x:%x.%x", &asked[0], &asked[1], &asked[2], &asked[3]) < 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < gpu_count; i++) {
        sscanf(gpus[i].address, "%x:%x:%x.%x", &own[0], &own[1], &own[2], &own[3]);
        if (!memcmp(asked, own, 3 * sizeof *own))
            return attach(&gpus[i], CALL_nvmlDeviceGetHandleByPciBusId_v2, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    for (unsigned int i = 0; i < gpu_count; i++)
        if (!strcmp(uuid, gpus[i].uuid))
            return attach(&gpus[i], CALL_nvmlDeviceGetHandleByUUID, device);
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER(nvmlDeviceGetPciInfo_v3);
    memset(pci, 0, sizeof *pci);
    sscanf(gpu->address, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, pci->domain & 0xFFFF, pci->bus & 0xFF, pci->device & 0xFF);
    snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, NVML_DEVICE_PCI_BUS_ID_FMT_ARGS(pci));
    pci->pciDeviceId = 0x233010DE;
    pci->pciSubSystemId = 0x16C110DE;
    return NVML_SUCCESS;
}

TEXT_CALL(nvmlDeviceGetUUID, uuid)
TEXT_CALL(nvmlDeviceGetName, name)
TEXT_CALL(nvmlDeviceGetSerial, serial)

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER(nvmlDeviceGetFieldValues);
    for (int i = 0; i < count; i++) {
        unsigned int id = values[i].fieldId;
        values[i].nvmlReturn = id >= FIELDS_MAX ? NVML_ERROR_INVALID_ARGUMENT : said(&gpu->fields[id], &values[i].value);
        values[i].valueType = id >= FIELDS_MAX ? NVML_VALUE_TYPE_UNSIGNED_INT : gpu->types[id];
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER(nvmlDeviceGetClockInfo);
    if (type != NVML_CLOCK_SM && type != NVML_CLOCK_MEM)
        return NVML_ERROR_INVALID_ARGUMENT;
    code = said(&gpu->values[type == NVML_CLOCK_SM ? VALUE_sm_clock : VALUE_memory_clock], &value);
    *clock = value.uiVal;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER(nvmlDeviceGetMaxClockInfo);
    if (type != NVML_CLOCK_SM && type != NVML_CLOCK_MEM)
        return NVML_ERROR_INVALID_ARGUMENT;
    code = said(&gpu->values[type == NVML_CLOCK_SM ? VALUE_sm_clock_max : VALUE_memory_clock_max], &value);
    *clock = value.uiVal;
    return code;
}

LONG_CALL(nvmlDeviceGetCurrentClocksEventReasons, event_reasons)
LONG_CALL(nvmlDeviceGetCurrentClocksThrottleReasons, event_reasons)
UINT_CALL(nvmlDeviceGetPowerUsage, unsigned int, power)
UINT_CALL(nvmlDeviceGetEnforcedPowerLimit, unsigned int, power_limit)
LONG_CALL(nvmlDeviceGetTotalEnergyConsumption, energy)
UINT_CALL(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, pcie_generation)
UINT_CALL(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, pcie_generation_max)
UINT_CALL(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, pcie_width)
UINT_CALL(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, pcie_width_max)
UINT_CALL(nvmlDeviceGetPcieReplayCounter, unsigned int, pcie_replays)
UINT_CALL(nvmlDeviceGetPerformanceState, nvmlPstates_t, performance_state)

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature)
{
    ENTER(nvmlDeviceGetTemperatureV);
    if (temperature->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (temperature->sensorType != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    SAY(temperature);
    temperature->temperature = value.siVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *temperature)
{
    ENTER(nvmlDeviceGetTemperature);
    if (sensor != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    SAY(temperature);
    *temperature = value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold, unsigned int *temperature)
{
    ENTER(nvmlDeviceGetTemperatureThreshold);
    if (threshold != NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return NVML_ERROR_NOT_SUPPORTED;
    SAY(slowdown);
    *temperature = value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *margin)
{
    ENTER(nvmlDeviceGetMarginTemperature);
    if (margin->version != nvmlMarginTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SAY(margin);
    margin->marginTemperature = value.siVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    ENTER(nvmlDeviceGetUtilizationRates);
    SAY(utilization);
    utilization->gpu = value.uiVal;
    SAY(memory_utilization);
    utilization->memory = value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER(nvmlDeviceGetMemoryInfo_v2);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    SAY(memory_total);
    memory->total = value.ullVal;
    SAY(memory_reserved);
    memory->reserved = value.ullVal;
    SAY(memory_used);
    memory->used = value.ullVal;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

/* Version 1 counts what is reserved as used. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER(nvmlDeviceGetMemoryInfo);
    SAY(memory_total);
    memory->total = value.ullVal;
    SAY(memory_used);
    memory->used = value.ullVal;
    if (said(&gpu->values[VALUE_memory_reserved], &value) == NVML_SUCCESS)
        memory->used += value.ullVal;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, unsigned long long *count)
{
    static const int which[2][2] = {
        {VALUE_ecc_corrected_volatile, VALUE_ecc_corrected_aggregate},
        {VALUE_ecc_uncorrected_volatile, VALUE_ecc_uncorrected_aggregate},
    };
    ENTER(nvmlDeviceGetTotalEccErrors);
    if ((unsigned int)type > 1 || (unsigned int)counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    code = said(&gpu->values[which[type][counter]], &value);
    *count = value.ullVal;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed)
{
    ENTER(nvmlDeviceGetRemappedRows);
    SAY(remapped_correctable);
    *correctable = value.uiVal;
    SAY(remapped_uncorrectable);
    *uncorrectable = value.uiVal;
    SAY(remap_pending);
    *pending = value.uiVal;
    SAY(remap_failed);
    *failed = value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    ENTER(nvmlDeviceGetComputeRunningProcesses_v3);
    SAY(processes);
    unsigned int room = *count;
    *count = value.uiVal;
    if (room < value.uiVal)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; infos && i < value.uiVal; i++)
        infos[i] = (nvmlProcessInfo_t){1000 + i, 1 << 20, 0xFFFFFFFF, 0xFFFFFFFF};
    return NVML_SUCCESS;
}
