/* An NVML that plays a scenario. Compiled against NVIDIA's published nvml.h, so that a wrong prototype or struct
 * does not compile. The format of scenarios: README.md of this folder. */

#include "fake_nvml.h"
#include "follow.h"
#include "nodes.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef LIBRARY_VERSION
#define LIBRARY_VERSION "" /* any driver */
#endif

static const char *const call_names[] = {CALLS(AS_TEXT) NULL};
static const char *const value_names[] = {VALUES(AS_TEXT) NULL};
static const char *const type_names[] = {"double", "uint", "ulong", "ull", "sll", "int", "ushort", "unknown", NULL};

struct gpu host;
static struct gpu *gpus;
static unsigned int gpu_count, told_count;
static int counts_told, users;
static int hides_gpus; /* initialized without attaching, on a driver that hides GPUs then */
static char drivers[8][80]; /* the version at each step; the last one stays */
static int driver_count;
static const char *step_text; /* the step file, mapped: a step costs no system call */
static unsigned long own_calls[CALL_COUNT], *calls = own_calls; /* count per function */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int step(void) { return step_text ? atoi(step_text) : 0; }

nvmlReturn_t said(const struct series *series, nvmlValue_t *value)
{
    if (!series->steps)
        return NVML_ERROR_NOT_SUPPORTED;
    int now = step();
    now = now < series->steps ? now : series->steps - 1;
    if (series->answer[now].code_set)
        return series->answer[now].code;
    *value = series->answer[now].value;
    return NVML_SUCCESS;
}

/* Memory of the current scenario, in chunks that are freed when another one is read. */
static struct chunk {
    struct chunk *next;
    size_t used;
    char bytes[16384];
} *chunks;

void *room(size_t size)
{
    size = (size + 15) / 16 * 16;
    if (!chunks || chunks->used + size > sizeof chunks->bytes) {
        struct chunk *new = malloc(sizeof *new);
        if (!new)
            abort();
        new->next = chunks;
        new->used = 0;
        chunks = new;
    }
    void *given = chunks->bytes + chunks->used;
    chunks->used += size;
    return memset(given, 0, size);
}

static void wait_for(const char *block)
{
    struct timespec moment = {0, 1000000};
    int from = 0, used = 0;
    if (sscanf(block, "at %d %n", &from, &used) == 1 && used) {
        if (step() < from)
            return;
        block += used;
    }
    const char *what = strchr(block, ' ') + 1;
    if (!strncmp(block, "fifo ", 5)) { /* its writer waits for this call, and this call for its closing */
        struct pollfd closing = {open(what, O_RDONLY | O_NONBLOCK), POLLIN, 0};
        /* Left open without a writer: a late writer must get an error, not wait forever. */
        if (closing.fd >= 0 && poll(&closing, 1, WAIT_MILLISECONDS_MAX) > 0)
            close(closing.fd);
    } else if (!strncmp(block, "file ", 5)) {
        for (int i = 0; i < WAIT_MILLISECONDS_MAX && access(what, F_OK); i++)
            nanosleep(&moment, NULL);
    } else if (!strncmp(block, "read ", 5)) { /* a FUSE file blocks this call until it answers */
        char byte;
        int opened = open(what, O_RDONLY);
        if (opened >= 0) {
            (void)!read(opened, &byte, 1);
            close(opened);
        }
    } else if (!strncmp(block, "crash ", 6)) {
        raise(SIGSEGV);
    } else {
        double seconds = atof(what);
        struct timespec span = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
        nanosleep(&span, NULL);
    }
}

/* A fault at the nth call of any function, counted from the request. */
static unsigned long entered, fault_at;
static int fault_code;
static char fault_block[256];

EXPORT unsigned long fake_nvml_entered(void) { return entered; }

EXPORT void fake_nvml_fault(unsigned long nth, int code, const char *block)
{
    fault_code = code;
    snprintf(fault_block, sizeof fault_block, "%s", block ? block : "");
    fault_at = nth ? entered + nth : 0;
}

/* The process' call slot (`Place` of ext/place_abi.pxd), if a test passes its address: compared at every call. The
 * first difference is stored as a message. */
struct place {
    unsigned long entered_ns, calls;
    char collector[32], device[64], call[88];
};
static const struct place *const *place;
static char misplaced[256];

EXPORT void fake_nvml_watch(const void *pointer)
{
    place = pointer;
    *misplaced = 0;
}

EXPORT const char *fake_nvml_misplaced(void) { return misplaced; }

static void look_at_place(const struct gpu *gpu, int call)
{
    const char *address = gpu == &host || call == CALL_nvmlDeviceGetHandleByIndex_v2 ? "" : gpu->address;
    const struct gpu *parent = gpu != &host && parts_parent ? parts_parent(gpu) : NULL;
    if (parent)
        address = parent->address;
    if ((*place)->entered_ns && !strcmp((*place)->call, call_names[call]) && !strcmp((*place)->device, address))
        return;
    if (!*misplaced)
        snprintf(misplaced, sizeof misplaced, "%s of '%s' is called, the place is %s of '%s'%s", call_names[call], address,
                 (*place)->call, (*place)->device, (*place)->entered_ns ? "" : ", left");
}

/* Total microseconds of `cost` and `field_cost` lines in this process. */
static unsigned long spent;

EXPORT unsigned long fake_nvml_spent(void) { return spent; }

/* Use the processor for this time, like a driver's call. */
static void spend(unsigned int microseconds)
{
    struct timespec now, began;
    if (!microseconds)
        return;
    __atomic_add_fetch(&spent, microseconds, __ATOMIC_RELAXED);
    clock_gettime(CLOCK_MONOTONIC, &began);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - began.tv_sec) * 1000000 + (now.tv_nsec - began.tv_nsec) / 1000 < (long)microseconds);
}

nvmlReturn_t enter(struct gpu *gpu, int call)
{
    nvmlValue_t code = {0};
    if (place)
        look_at_place(gpu, call);
    __atomic_add_fetch(&calls[call], 1, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&entered, 1, __ATOMIC_RELAXED) == fault_at) {
        if (*fault_block)
            wait_for(fault_block);
        if (fault_code)
            return (nvmlReturn_t)fault_code;
    }
    if (gpu->blocks[call])
        wait_for(gpu->blocks[call]);
    spend(gpu->costs[call]);
    if (gpu->errors[call].steps)
        said(&gpu->errors[call], &code);
    return (nvmlReturn_t)code.ullVal;
}

EXPORT int fake_nvml_users(void) { return users; }

int gpu_number(nvmlDevice_t device)
{
    struct gpu *gpu = (struct gpu *)device;
    if (!gpus || gpu < gpus || gpu >= gpus + gpu_count || ((char *)gpu - (char *)gpus) % sizeof *gpu)
        return -1;
    return (int)(gpu - gpus);
}

nvmlReturn_t enter_device(nvmlDevice_t device, int call)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (gpu_number(device) < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    follow_update((struct gpu *)device, gpu_number(device));
    return enter((struct gpu *)device, call);
}

static int find(const char *const *names, const char *name)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], name))
            return i;
    return -1;
}

void parse_series(struct series *series, char *rest, int as_double)
{
    struct answer found[STEPS_MAX];
    memset(found, 0, sizeof found);
    series->steps = 0;
    for (char *word = strtok(rest, " \t\n"); word && series->steps < STEPS_MAX; word = strtok(NULL, " \t\n")) {
        struct answer *now = &found[series->steps++];
        if (!strcmp(word, "-") || *word == '!') {
            now->code_set = 1;
            now->code = *word == '!' ? (nvmlReturn_t)atoi(word + 1) : NVML_ERROR_NOT_SUPPORTED;
        } else if (as_double) {
            now->value.dVal = strtod(word, NULL);
        } else {
            now->value.ullVal = strtoull(word, NULL, 0);
        }
    }
    series->answer = room(series->steps * sizeof *found);
    memcpy(series->answer, found, series->steps * sizeof *found);
}

static int parse_call(struct gpu *gpu, const char *what, const char *name, const char *rest)
{
    char *kept = room(strlen(rest) + 1);
    strcpy(kept, rest);
    for (int call = 0; call < CALL_COUNT; call++) {
        if (strcmp(name, "*") && strcmp(name, call_names[call]))
            continue;
        if (!strcmp(what, "block")) {
            gpu->blocks[call] = kept;
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

static int parse_cost(struct gpu *gpu, const char *name, const char *rest)
{
    int call = find(call_names, name);
    return call < 0 || sscanf(rest, "%u", &gpu->costs[call]) != 1;
}

static int parse_field_cost(struct gpu *gpu, const char *rest)
{
    unsigned int id, microseconds;
    if (sscanf(rest, "%u %u", &id, &microseconds) != 2 || id >= FIELDS_MAX)
        return 1;
    gpu->field_costs[id] = microseconds;
    return 0;
}

static int parse_drivers(char *rest)
{
    driver_count = 0;
    for (char *word = strtok(rest, " \t\n"); word && driver_count < 8; word = strtok(NULL, " \t\n"))
        snprintf(drivers[driver_count++], sizeof *drivers, "%s", word);
    return !driver_count;
}

static const char *driver(void)
{
    int now = step();
    return drivers[now < driver_count ? now : driver_count - 1];
}

/* Drivers before 590.37 show no GPU to a process that initialized with NVML_INIT_FLAG_NO_ATTACH. */
static int is_before_590_37(void)
{
    int major = 0, minor = 0;
    sscanf(driver(), "%d.%d", &major, &minor);
    return major < 590 || (major == 590 && minor < 37);
}

/* Return 0, or 1 for an invalid line. */
static int parse_line(char *line)
{
    char word[64], name[64];
    int used = 0;
    struct gpu *gpu = gpu_count ? &gpus[gpu_count - 1] : &host;
    line[strcspn(line, "#\n")] = 0;
    if (sscanf(line, " %63s %n", word, &used) < 1)
        return 0;
    char *rest = line + used;
    int taken = parts_line ? parts_line(gpu, word, rest) : -1;
    if (taken >= 0)
        return taken;
    if (!strcmp(word, "gpu"))
        return gpu_count == GPUS_MAX
            || sscanf(rest, "%95s %31s", gpus[gpu_count].uuid, gpus[gpu_count].address) != 2 || !++gpu_count;
    if (!strcmp(word, "follow"))
        return follow_line((int)gpu_count - 1, rest);
    if (!strcmp(word, "driver"))
        return parse_drivers(rest);
    if (!strcmp(word, "uuid_at"))
        return sscanf(rest, "%d %95s", &gpu->other_from, gpu->other_uuid) != 2;
    if (!strcmp(word, "count"))
        return !(counts_told = sscanf(rest, "%u", &told_count) == 1);
    if (!strcmp(word, "name"))
        return snprintf(gpu->name, sizeof gpu->name, "%s", rest) < 1;
    if (!strcmp(word, "serial"))
        return snprintf(gpu->serial, sizeof gpu->serial, "%s", rest) < 1;
    if (!strcmp(word, "field"))
        return parse_field(gpu, rest);
    if (!strcmp(word, "field_cost"))
        return parse_field_cost(gpu, rest);
    if (!strcmp(word, "cost"))
        return sscanf(rest, "%63s %n", name, &used) < 1 || parse_cost(gpu, name, rest + used);
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

/* If the scenario has a `.calls` file, all processes count in it together. */
static void map_calls(const char *path)
{
    char name[4096];
    struct stat status;
    snprintf(name, sizeof name, "%s.calls", path);
    int opened = open(name, O_RDWR);
    if (opened < 0)
        return;
    if (calls == own_calls && !fstat(opened, &status) && status.st_size >= (off_t)sizeof own_calls) {
        void *mapped = mmap(NULL, sizeof own_calls, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
        calls = mapped == MAP_FAILED ? own_calls : mapped;
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
    while (chunks) {
        struct chunk *next = chunks->next;
        free(chunks);
        chunks = next;
    }
    /* Only used memory is cleared, because the process' memory is measured. */
    if (!gpus)
        gpus = calloc(GPUS_MAX, sizeof *gpus);
    memset(gpus, 0, (size_t)gpu_count * sizeof *gpus);
    memset(&host, 0, sizeof host);
    gpu_count = counts_told = 0;
    follow_reset();
    if (parts_reset)
        parts_reset();
    strcpy(drivers[0], "590.48.01");
    driver_count = 1;
    int bad = 0;
    for (int number = 1; fgets(line, sizeof line, file); number++)
        if (parse_line(line)) {
            fprintf(stderr, "%s:%d: not understood: %s\n", path, number, line);
            bad = 1;
        }
    fclose(file);
    map_step(path);
    map_calls(path);
    return bad ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

static nvmlReturn_t start(int call, unsigned int flags)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = users ? NVML_SUCCESS : load();
    /* The library's version differs from the driver's, like during a driver update. */
    if (code == NVML_SUCCESS && *LIBRARY_VERSION && strcmp(LIBRARY_VERSION, driver()))
        code = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (code == NVML_SUCCESS)
        code = enter(&host, call);
    if (code == NVML_SUCCESS && !users++) {
        nodes_open_control();
        hides_gpus = (flags & NVML_INIT_FLAG_NO_ATTACH) && is_before_590_37();
    }
    pthread_mutex_unlock(&lock);
    return code;
}

EXPORT unsigned long fake_nvml_calls(const char *name)
{
    int call = find(call_names, name);
    return call < 0 ? 0 : calls[call];
}

/* The names in the order of the counts, then NULL. */
EXPORT const char *fake_nvml_call_name(int call)
{
    return call >= 0 && call < CALL_COUNT ? call_names[call] : NULL;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    nvmlReturn_t code = start(CALL_nvmlInitWithFlags, flags);
    if (code == NVML_SUCCESS && !gpu_count && !(flags & NVML_INIT_FLAG_NO_GPUS)) {
        nvmlShutdown();
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    return code;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return start(CALL_nvmlInit_v2, 0); }

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t code = users ? enter(&host, CALL_nvmlShutdown) : NVML_SUCCESS;
    users -= users > 0;
    if (!users)
        nodes_close();
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
        snprintf(version, length, "%s", driver());
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    nvmlReturn_t code = users ? enter(&host, CALL_nvmlDeviceGetCount_v2) : NVML_ERROR_UNINITIALIZED;
    if (code == NVML_SUCCESS)
        *count = hides_gpus ? 0 : counts_told ? told_count : gpu_count;
    return code;
}

static nvmlReturn_t attach(struct gpu *gpu, int call, nvmlDevice_t *device)
{
    nvmlReturn_t code = enter(gpu, call);
    if (code == NVML_SUCCESS) {
        nodes_open_gpu((unsigned int)(gpu - gpus));
        *device = (nvmlDevice_t)gpu;
    }
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    return index < gpu_count && !hides_gpus ? attach(&gpus[index], CALL_nvmlDeviceGetHandleByIndex_v2, device) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    unsigned int asked[4] = {0}, own[4] = {0};
    if (!users)
        return NVML_ERROR_UNINITIALIZED;
    if (sscanf(bus_id, "%x:%x:%x.%x", &asked[0], &asked[1], &asked[2], &asked[3]) < 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < gpu_count && !hides_gpus; i++) {
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
    for (unsigned int i = 0; i < gpu_count && !hides_gpus; i++)
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

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length)
{
    ENTER(nvmlDeviceGetUUID);
    if (!*gpu->uuid)
        return NVML_ERROR_NOT_SUPPORTED;
    snprintf(text, length, "%s", *gpu->other_uuid && step() >= gpu->other_from ? gpu->other_uuid : gpu->uuid);
    return NVML_SUCCESS;
}

TEXT_CALL(nvmlDeviceGetName, name)
TEXT_CALL(nvmlDeviceGetSerial, serial)

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER(nvmlDeviceGetFieldValues);
    for (int i = 0; i < count; i++) {
        if (parts_field && parts_field(gpu, &values[i]))
            continue;
        unsigned int id = values[i].fieldId;
        if (id < FIELDS_MAX) {
            spend(gpu->field_costs[id]);
            values[i].latencyUsec = gpu->field_costs[id];
        }
        const struct series *series = id < FIELDS_MAX ? &gpu->fields[id] : NULL;
        if (values[i].scopeId == 1 && id == NVML_FI_DEV_POWER_INSTANT)
            series = &gpu->values[VALUE_module_power];
        values[i].nvmlReturn = series ? said(series, &values[i].value) : NVML_ERROR_INVALID_ARGUMENT;
        values[i].valueType = series ? gpu->types[id] : NVML_VALUE_TYPE_UNSIGNED_INT;
    }
    return NVML_SUCCESS;
}

static const int clock_values[][2] = {
    [NVML_CLOCK_GRAPHICS] = {VALUE_graphics_clock, VALUE_graphics_clock_max},
    [NVML_CLOCK_SM] = {VALUE_sm_clock, VALUE_sm_clock_max},
    [NVML_CLOCK_MEM] = {VALUE_memory_clock, VALUE_memory_clock_max},
    [NVML_CLOCK_VIDEO] = {VALUE_video_clock, VALUE_video_clock_max},
};

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER(nvmlDeviceGetClockInfo);
    if ((unsigned int)type > NVML_CLOCK_VIDEO)
        return NVML_ERROR_INVALID_ARGUMENT;
    code = said(&gpu->values[clock_values[type][0]], &value);
    *clock = value.uiVal;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER(nvmlDeviceGetMaxClockInfo);
    if ((unsigned int)type > NVML_CLOCK_VIDEO)
        return NVML_ERROR_INVALID_ARGUMENT;
    code = said(&gpu->values[clock_values[type][1]], &value);
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
    static const int which[] = {VALUE_shutdown, VALUE_slowdown, VALUE_memory_max, VALUE_gpu_max};
    ENTER(nvmlDeviceGetTemperatureThreshold);
    if ((unsigned int)threshold > NVML_TEMPERATURE_THRESHOLD_GPU_MAX)
        return NVML_ERROR_NOT_SUPPORTED;
    code = said(&gpu->values[which[threshold]], &value);
    *temperature = value.uiVal;
    return code;
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

/* Version 1 counts reserved memory as used. */
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
    unsigned int room = *count;
    if (parts_processes && parts_processes(gpu, 0, count, infos, &code))
        return code;
    SAY(processes);
    *count = value.uiVal;
    if (room < value.uiVal)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; infos && i < value.uiVal; i++)
        infos[i] = (nvmlProcessInfo_t){1000 + i, 1 << 20, 0xFFFFFFFF, 0xFFFFFFFF};
    return NVML_SUCCESS;
}
