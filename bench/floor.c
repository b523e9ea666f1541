/* The floor of the agent's cost: the same files through kept descriptors, the same NVML calls, at 1 Hz,
 * nothing else: no frame, no spool, no transport. Compiled and run by bench/agent_cost.py.
 *
 *     floor FILES_1S FILES_10S NVML_LIBRARY SECONDS
 *
 * The lists hold a path a line. Prints what it read, so that nothing can be optimised away. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

#define FILES_MAX 4096
#define GPUS_MAX 64
/* /proc/stat of a large host is the longest that the agent reads. */
#define FILE_BYTES_MAX 65536

typedef struct {
    int count, descriptors[FILES_MAX];
} Files;

static struct {
    nvmlReturn_t (*init)(void), (*count)(unsigned *), (*handle)(unsigned, nvmlDevice_t *);
    nvmlReturn_t (*clock)(nvmlDevice_t, nvmlClockType_t, unsigned *), (*clock_max)(nvmlDevice_t, nvmlClockType_t, unsigned *);
    nvmlReturn_t (*reasons)(nvmlDevice_t, unsigned long long *), (*utilization)(nvmlDevice_t, nvmlUtilization_t *);
    nvmlReturn_t (*temperature)(nvmlDevice_t, nvmlTemperature_t *), (*margin)(nvmlDevice_t, nvmlMarginTemperature_t *);
    nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t *), (*memory_2)(nvmlDevice_t, nvmlMemory_v2_t *);
    nvmlReturn_t (*state)(nvmlDevice_t, nvmlPstates_t *), (*processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
    nvmlReturn_t (*fields)(nvmlDevice_t, int, nvmlFieldValue_t *), (*limit)(nvmlDevice_t, unsigned *);
    nvmlReturn_t (*slowdown)(nvmlDevice_t, nvmlTemperatureThresholds_t, unsigned *);
    nvmlReturn_t (*rows)(nvmlDevice_t, unsigned *, unsigned *, unsigned *, unsigned *);
    nvmlReturn_t (*link[4])(nvmlDevice_t, unsigned *);
} nvml;

static unsigned gpus;
static nvmlDevice_t devices[GPUS_MAX];
static unsigned long long total;

static void open_all(const char *list, Files *files)
{
    char path[4096];
    FILE *in = fopen(list, "r");
    while (in && files->count < FILES_MAX && fgets(path, sizeof path, in)) {
        path[strcspn(path, "\n")] = 0;
        int descriptor = open(path, O_RDONLY | O_CLOEXEC);
        if (descriptor >= 0)
            files->descriptors[files->count++] = descriptor;
    }
    if (in)
        fclose(in);
}

/* Every number in the text, as the agent's readers must take them; most files hold one. */
static void read_all(const Files *files)
{
    static char text[FILE_BYTES_MAX];
    for (int i = 0; i < files->count; i++) {
        ssize_t size = pread(files->descriptors[i], text, sizeof text - 1, 0);
        for (ssize_t at = 0; at < size;) {
            unsigned long long value = 0;
            while (at < size && (text[at] < '0' || text[at] > '9'))
                at++;
            while (at < size && text[at] >= '0' && text[at] <= '9')
                value = value * 10 + (unsigned long long)(text[at++] - '0');
            total += value;
        }
    }
}

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "floor: %s has no %s\n", "the NVML library", name);
        exit(1);
    }
    return found;
}

static void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "floor: %s\n", dlerror());
        exit(1);
    }
    nvml.init = symbol(library, "nvmlInit_v2");
    nvml.count = symbol(library, "nvmlDeviceGetCount_v2");
    nvml.handle = symbol(library, "nvmlDeviceGetHandleByIndex_v2");
    nvml.clock = symbol(library, "nvmlDeviceGetClockInfo");
    nvml.clock_max = symbol(library, "nvmlDeviceGetMaxClockInfo");
    nvml.reasons = symbol(library, "nvmlDeviceGetCurrentClocksEventReasons");
    nvml.utilization = symbol(library, "nvmlDeviceGetUtilizationRates");
    nvml.temperature = symbol(library, "nvmlDeviceGetTemperatureV");
    nvml.margin = symbol(library, "nvmlDeviceGetMarginTemperature");
    nvml.memory = symbol(library, "nvmlDeviceGetMemoryInfo");
    nvml.memory_2 = symbol(library, "nvmlDeviceGetMemoryInfo_v2");
    nvml.state = symbol(library, "nvmlDeviceGetPerformanceState");
    nvml.processes = symbol(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    nvml.fields = symbol(library, "nvmlDeviceGetFieldValues");
    nvml.limit = symbol(library, "nvmlDeviceGetEnforcedPowerLimit");
    nvml.slowdown = symbol(library, "nvmlDeviceGetTemperatureThreshold");
    nvml.rows = symbol(library, "nvmlDeviceGetRemappedRows");
    nvml.link[0] = symbol(library, "nvmlDeviceGetCurrPcieLinkGeneration");
    nvml.link[1] = symbol(library, "nvmlDeviceGetMaxPcieLinkGeneration");
    nvml.link[2] = symbol(library, "nvmlDeviceGetCurrPcieLinkWidth");
    nvml.link[3] = symbol(library, "nvmlDeviceGetMaxPcieLinkWidth");
    nvml.init();
    nvml.count(&gpus);
    for (unsigned i = 0; i < gpus && i < GPUS_MAX; i++)
        nvml.handle(i, &devices[i]);
}

static void fields(nvmlDevice_t device, const unsigned *ids, int count)
{
    nvmlFieldValue_t values[16] = {0};
    for (int i = 0; i < count; i++)
        values[i].fieldId = ids[i];
    nvml.fields(device, count, values);
    for (int i = 0; i < count; i++)
        total += values[i].value.ullVal;
}

static void sweep_fast(nvmlDevice_t device)
{
    static const unsigned ids[] = {3, 4, 74, 75, 76, 82, 83, 185, 186, 230};
    unsigned value = 0, count = 0;
    unsigned long long flags = 0;
    nvmlUtilization_t share = {0};
    nvmlTemperature_t heat = {.version = nvmlTemperature_v1};
    nvmlMarginTemperature_t margin = {.version = nvmlMarginTemperature_v1};
    nvmlMemory_t memory = {0};
    nvmlPstates_t state = 0;
    nvml.clock(device, NVML_CLOCK_SM, &value), total += value;
    nvml.clock(device, NVML_CLOCK_MEM, &value), total += value;
    nvml.reasons(device, &flags), total += flags;
    nvml.temperature(device, &heat), total += (unsigned)heat.temperature;
    nvml.margin(device, &margin), total += (unsigned)margin.marginTemperature;
    nvml.utilization(device, &share), total += share.gpu;
    nvml.memory(device, &memory), total += memory.used;
    nvml.state(device, &state), total += state;
    nvml.processes(device, &count, NULL), total += count;
    fields(device, ids, sizeof ids / sizeof *ids);
}

static void sweep_slow(nvmlDevice_t device)
{
    static const unsigned ids[] = {5, 6, 94};
    unsigned value = 0, more[3] = {0};
    nvmlMemory_v2_t memory = {.version = nvmlMemory_v2};
    nvml.clock_max(device, NVML_CLOCK_SM, &value), total += value;
    nvml.limit(device, &value), total += value;
    nvml.slowdown(device, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, &value), total += value;
    nvml.memory_2(device, &memory), total += memory.total;
    nvml.rows(device, &value, &more[0], &more[1], &more[2]), total += value;
    for (int i = 0; i < 4; i++)
        nvml.link[i](device, &value), total += value;
    fields(device, ids, sizeof ids / sizeof *ids);
}

int main(int count, char **words)
{
    static Files fast, slow;
    if (count != 5)
        return 2;
    open_all(words[1], &fast);
    open_all(words[2], &slow);
    load(words[3]);
    printf("%d %d files, %u GPUs\n", fast.count, slow.count, gpus);
    fflush(stdout);
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (int second = 0; second < atoi(words[4]); second++) {
        read_all(&fast);
        for (unsigned i = 0; i < gpus; i++)
            sweep_fast(devices[i]);
        if (second % 10 == 0) {
            read_all(&slow);
            for (unsigned i = 0; i < gpus; i++)
                sweep_slow(devices[i]);
        }
        next.tv_sec++;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    }
    printf("%llu\n", total);
    return 0;
}
