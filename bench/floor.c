/* The floor of the agent's cost: the same files through kept descriptors and the same number of NVML calls,
 * without frames, spool and transport. Compiled and run by bench/agent_cost.py.
 *
 *     floor FILES_1S FILES_10S FILES_60S NVML_LIBRARY CALLS SECONDS
 *
 * The lists have a path per line; CALLS has lines like `nvmlDeviceGetClockInfo 10.2`: calls per GPU and second, as
 * the stand-in counted for the agent. Wakes TICKS times a second, like the agent's ring of GPU samples (-DTICKS=10).
 * Prints its readings, so that the compiler cannot remove them. */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

#define FILES_MAX 8192
#define GPUS_MAX 64
#define CALLS_MAX 128
/* The agent's longest file is /proc/stat of a large host. */
#define FILE_BYTES_MAX 65536

typedef struct {
    int count, descriptors[FILES_MAX];
} Files;

/* Arguments of a function after its device; others only get buffers for their answers. */
enum kind { ROOMS, NUMBERED, VERSIONED, FIELDS, LISTED, FREE };

typedef struct {
    enum kind kind;
    int number; /* a clock, a threshold */
    unsigned version;
    nvmlReturn_t (*call)();
    double per_tick, due;
} Call;

static const struct {
    const char *name;
    enum kind kind;
    int number;
    unsigned version;
} kinds[] = {
    {"nvmlDeviceGetClockInfo", NUMBERED, NVML_CLOCK_SM, 0},
    {"nvmlDeviceGetMaxClockInfo", NUMBERED, NVML_CLOCK_SM, 0},
    {"nvmlDeviceGetApplicationsClock", NUMBERED, NVML_CLOCK_SM, 0},
    {"nvmlDeviceGetTemperatureThreshold", NUMBERED, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, 0},
    {"nvmlDeviceGetViolationStatus", NUMBERED, NVML_PERF_POLICY_THERMAL, 0},
    {"nvmlDeviceGetTemperatureV", VERSIONED, 0, nvmlTemperature_v1},
    {"nvmlDeviceGetMarginTemperature", VERSIONED, 0, nvmlMarginTemperature_v1},
    {"nvmlDeviceGetMemoryInfo_v2", VERSIONED, 0, nvmlMemory_v2},
    {"nvmlDeviceGetSramEccErrorStatus", VERSIONED, 0, nvmlEccSramErrorStatus_v1},
    {"nvmlDeviceGetFieldValues", FIELDS, 0, 0},
    {"nvmlDeviceGetComputeRunningProcesses_v3", LISTED, 0, 0},
    {"nvmlDeviceGetGraphicsRunningProcesses_v3", LISTED, 0, 0},
    {"nvmlDeviceGetMPSComputeRunningProcesses_v3", LISTED, 0, 0},
    {"nvmlGpmSampleGet", FREE, 0, 0}, /* these need data that the bench's stand-in lacks */
    {"nvmlGpmMetricsGet", FREE, 0, 0},
    {"nvmlEventSetCreate", FREE, 0, 0},
    {"nvmlEventSetFree", FREE, 0, 0},
    {"nvmlEventSetWait_v2", FREE, 0, 0},
    {"nvmlDeviceGetHandleByPciBusId_v2", FREE, 0, 0},
    {NULL, ROOMS, 0, 0},
};

static Call calls[CALLS_MAX];
static int call_count;
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

/* Parse every number in the text, like the agent's readers; most files have one. */
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

static void add_call(void *library, const char *name, double per_second)
{
    int i = 0;
    while (kinds[i].name && strcmp(kinds[i].name, name))
        i++;
    if (kinds[i].kind == FREE || call_count == CALLS_MAX)
        return;
    calls[call_count++] = (Call){kinds[i].kind, kinds[i].number, kinds[i].version, symbol(library, name), per_second / TICKS, 0};
}

static void load(const char *path, const char *list)
{
    void *library = dlopen(path, RTLD_NOW);
    char name[256];
    double per_second;
    FILE *in = fopen(list, "r");
    if (!library || !in) {
        fprintf(stderr, "floor: %s\n", library ? list : dlerror());
        exit(1);
    }
    while (fscanf(in, "%255s %lf", name, &per_second) == 2)
        add_call(library, name, per_second);
    fclose(in);
    ((nvmlReturn_t(*)(void))symbol(library, "nvmlInit_v2"))();
    ((nvmlReturn_t(*)(unsigned *))symbol(library, "nvmlDeviceGetCount_v2"))(&gpus);
    nvmlReturn_t (*handle)(unsigned, nvmlDevice_t *) = symbol(library, "nvmlDeviceGetHandleByIndex_v2");
    gpus = gpus < GPUS_MAX ? gpus : GPUS_MAX;
    for (unsigned i = 0; i < gpus; i++)
        handle(i, &devices[i]);
}

/* The ring reads one field, the turn of each second ten. */
static void ask_fields(const Call *call, nvmlDevice_t device, int tick)
{
    static const unsigned ids[] = {186, 3, 4, 74, 75, 76, 82, 83, 185, 230};
    int count = tick ? 1 : sizeof ids / sizeof *ids;
    nvmlFieldValue_t values[sizeof ids / sizeof *ids] = {0};
    for (int i = 0; i < count; i++)
        values[i].fieldId = ids[i];
    call->call(device, count, values);
    for (int i = 0; i < count; i++)
        total += values[i].value.ullVal;
}

static void ask(const Call *call, nvmlDevice_t device, int tick)
{
    static unsigned rooms[5][4096];
    rooms[0][0] = call->version;
    switch (call->kind) {
    case FIELDS:
        ask_fields(call, device, tick);
        return;
    case NUMBERED:
        call->call(device, call->number, rooms[1]);
        total += rooms[1][0];
        return;
    case LISTED:
        rooms[0][0] = 64;
        call->call(device, rooms[0], rooms[1]);
        break;
    default:
        call->call(device, rooms[0], rooms[1], rooms[2], rooms[3], rooms[4]);
    }
    total += rooms[0][0];
}

static void sweep(int tick)
{
    for (int i = 0; i < call_count; i++)
        for (calls[i].due += calls[i].per_tick; calls[i].due >= 1; calls[i].due--)
            for (unsigned gpu = 0; gpu < gpus; gpu++)
                ask(&calls[i], devices[gpu], tick);
}

int main(int count, char **words)
{
    static Files files[3];
    static const int periods[] = {1, 10, 60};
    if (count != 7)
        return 2;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 0; i < 3; i++)
        open_all(words[1 + i], &files[i]);
    load(words[4], words[5]);
    printf("%d %d %d files, %u GPUs, %d calls\n", files[0].count, files[1].count, files[2].count, gpus, call_count);
    fflush(stdout);
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (int second = 0; second < atoi(words[6]); second++) {
        for (int i = 0; i < 3; i++)
            if (second % periods[i] == 0)
                read_all(&files[i]);
        for (int tick = 0; tick < TICKS; tick++) {
            sweep(tick);
            next.tv_nsec += 1000000000 / TICKS;
            if (next.tv_nsec >= 1000000000)
                next.tv_sec++, next.tv_nsec -= 1000000000;
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
        }
    }
    printf("%llu\n", total);
    return 0;
}
