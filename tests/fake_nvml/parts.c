/* NVLink, MIG, processes, fabric, events and data of the inventory. Its scenario lines: README.md of this folder. */

#include "fake_nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCOPED_MAX 8192
#define PROCESSES_MAX 4096
#define EVENTS_MAX 256
#define LINKS_MAX 18
#define TEXTS(X) X(vbios) X(part_number) X(inforom_image) X(inforom_oem) X(inforom_ecc) X(inforom_power) X(gsp_version)
#define AS_MEMBER(name) char name[64];
#define AS_LOOKUP(member) \
    if (!strcmp(name, #member)) \
        return part->member;

struct link {
    struct series state;
    int told, remote_type;
    char remote[32];
};

struct mig {
    int is, parent, first, last;
    unsigned int instance, compute, profile, start, size, slices, compute_slices, multiprocessors;
};

/* Data of a GPU in addition to `struct gpu`. A MIG device is a `gpu` of the scenario with a `mig` line. */
struct part {
    TEXTS(AS_MEMBER)
    struct link links[LINKS_MAX];
    struct mig mig;
    unsigned char cluster[16], platform[64];
    int platform_version;
};

static struct part parts[GPUS_MAX];
static struct scoped { int gpu; unsigned int id, scope; nvmlValueType_t type; struct series series; } *scoped;
static struct process { int gpu, list, first, last; nvmlProcessInfo_t info; } *processes;
static struct event { int gpu, step; unsigned long long type, data; } events[EVENTS_MAX], system_events[EVENTS_MAX];
static int scoped_count, process_count, event_count, delivered, system_event_count, system_delivered;
static unsigned long long registered[GPUS_MAX];
static nvmlDevice_t handles[GPUS_MAX]; /* of registered GPUs */
static int sets; /* allocated event sets */

#define SCOPED_PLACES (4 * SCOPED_MAX)
static unsigned short scoped_places[SCOPED_PLACES]; /* line number + 1; 0: none */
static unsigned short *scoped_place(int gpu, unsigned int id, unsigned int scope);

static int number(const struct gpu *gpu) { return gpu_number((nvmlDevice_t)gpu); }

void parts_reset(void)
{
    memset(parts, 0, sizeof parts);
    memset(registered, 0, sizeof registered);
    if (!scoped)
        scoped = calloc(SCOPED_MAX, sizeof *scoped);
    if (!processes)
        processes = calloc(PROCESSES_MAX, sizeof *processes);
    if (scoped_count)
        memset(scoped_places, 0, sizeof scoped_places);
    scoped_count = process_count = event_count = delivered = system_event_count = system_delivered = 0;
}

EXPORT int fake_nvml_event_sets(void) { return sets; }

static char *text_of(struct part *part, const char *name)
{
    TEXTS(AS_LOOKUP)
    return NULL;
}

static int hex(const char *digits, unsigned char *out, size_t room)
{
    size_t count = strlen(digits) / 2;
    for (size_t i = 0; i < count && i < room; i++)
        if (sscanf(digits + 2 * i, "%2hhx", &out[i]) != 1)
            return 1;
    return count > room;
}

static int scoped_line(int gpu, char *rest)
{
    static const char *const types[] = {"double", "uint", "ulong", "ull", "sll", "int", "ushort"};
    char type[16];
    int used;
    struct scoped *new = &scoped[scoped_count];
    if (scoped_count == SCOPED_MAX || sscanf(rest, "%u %u %15s %n", &new->scope, &new->id, type, &used) < 3)
        return 1;
    for (new->type = 0; new->type < 7 && strcmp(types[new->type], type);)
        new->type++;
    new->gpu = gpu;
    parse_series(&new->series, rest + used, new->type == NVML_VALUE_TYPE_DOUBLE);
    unsigned short *place = scoped_place(gpu, new->id, new->scope);
    scoped_count++;
    if (!*place) /* the first of two lines counts */
        *place = (unsigned short)scoped_count;
    return new->type == 7;
}

static int link_line(struct part *part, const char *word, char *rest)
{
    unsigned int link;
    int used;
    if (sscanf(rest, "%u %n", &link, &used) < 1 || link >= LINKS_MAX)
        return 1;
    part->links[link].told = 1;
    if (!strcmp(word, "link_state"))
        parse_series(&part->links[link].state, rest + used, 0);
    else
        return sscanf(rest + used, "%d %31s", &part->links[link].remote_type, part->links[link].remote) != 2;
    return 0;
}

/* `process LIST FIRST LAST PID MEMORY GI CI`: in a list (0 compute, 1 graphics, 2 MPS) from step FIRST to LAST. */
static int process_line(int gpu, const char *rest)
{
    struct process *new = &processes[process_count];
    if (process_count == PROCESSES_MAX)
        return 1;
    process_count++;
    new->gpu = gpu;
    return sscanf(rest, "%d %d %d %u %llu %u %u", &new->list, &new->first, &new->last, &new->info.pid,
                  &new->info.usedGpuMemory, &new->info.gpuInstanceId, &new->info.computeInstanceId) != 7;
}

static int mig_line(struct mig *mig, const char *rest)
{
    mig->is = 1;
    return sscanf(rest, "%d %d %d %u %u %u %u %u %u %u %u", &mig->parent, &mig->first, &mig->last, &mig->instance,
                  &mig->compute, &mig->profile, &mig->start, &mig->size, &mig->slices, &mig->compute_slices,
                  &mig->multiprocessors) != 11;
}

int parts_line(struct gpu *gpu, const char *word, char *rest)
{
    char name[32], value[160];
    int owner = number(gpu);
    struct part *part = owner < 0 ? &parts[GPUS_MAX - 1] : &parts[owner];
    if (!strcmp(word, "text")) {
        if (sscanf(rest, "%31s %63[^\n]", name, value) != 2 || !text_of(part, name))
            return 1;
        return snprintf(text_of(part, name), 64, "%s", value) < 1;
    }
    if (!strcmp(word, "scoped"))
        return scoped_line(owner, rest);
    if (!strcmp(word, "link_state") || !strcmp(word, "link_remote"))
        return link_line(part, word, rest);
    if (!strcmp(word, "mig"))
        return mig_line(&part->mig, rest);
    if (!strcmp(word, "process"))
        return process_line(owner, rest);
    if (!strcmp(word, "cluster"))
        return sscanf(rest, "%159s", value) != 1 || hex(value, part->cluster, sizeof part->cluster);
    if (!strcmp(word, "platform"))
        return sscanf(rest, "%d %159s", &part->platform_version, value) != 2
            || hex(value, part->platform, sizeof part->platform);
    if (!strcmp(word, "event")) {
        struct event *new = &events[event_count];
        new->gpu = owner;
        if (event_count == EVENTS_MAX)
            return 1;
        event_count++;
        return sscanf(rest, "%d %llu %llu", &new->step, &new->type, &new->data) != 3;
    }
    if (!strcmp(word, "system_event")) {
        unsigned int pci[3] = {0};
        struct event *new = &system_events[system_event_count];
        if (system_event_count == EVENTS_MAX || sscanf(rest, "%d %llu", &new->step, &new->type) != 2)
            return 1;
        sscanf(gpu->address, "%x:%x:%x", &pci[0], &pci[1], &pci[2]);
        new->data = pci[0] << 16 | pci[1] << 8 | pci[2];
        system_event_count++;
        return 0;
    }
    return -1;
}

/* The slot of a GPU's scoped field in a hash table, because these fields are read by the hundred. */
static unsigned short *scoped_place(int gpu, unsigned int id, unsigned int scope)
{
    unsigned int at = (unsigned int)gpu * 7919 + scope * 401 + id * 31;
    for (;; at++) {
        unsigned short *place = &scoped_places[at % SCOPED_PLACES];
        struct scoped *found = *place ? &scoped[*place - 1] : NULL;
        if (!found || (found->gpu == gpu && found->id == id && found->scope == scope))
            return place;
    }
}

int parts_field(struct gpu *gpu, nvmlFieldValue_t *field)
{
    unsigned short place = scoped_count ? *scoped_place(number(gpu), field->fieldId, field->scopeId) : 0;
    if (!place)
        return 0;
    field->nvmlReturn = said(&scoped[place - 1].series, &field->value);
    field->valueType = scoped[place - 1].type;
    return 1;
}

#define LINK(call) \
    ENTER(call); \
    struct part *part = &parts[number(gpu)]; \
    if (link >= LINKS_MAX || !part->links[link].told) \
        return NVML_ERROR_INVALID_ARGUMENT

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active)
{
    LINK(nvmlDeviceGetNvLinkState);
    code = said(&part->links[link].state, &value);
    *active = (nvmlEnableState_t)value.uiVal;
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type)
{
    LINK(nvmlDeviceGetNvLinkRemoteDeviceType);
    if (!*part->links[link].remote)
        return NVML_ERROR_NOT_SUPPORTED;
    *type = (nvmlIntNvLinkDeviceType_t)part->links[link].remote_type;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    LINK(nvmlDeviceGetNvLinkRemotePciInfo_v2);
    if (!*part->links[link].remote)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    sscanf(part->links[link].remote, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, NVML_DEVICE_PCI_BUS_ID_FMT_ARGS(pci));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    ENTER(nvmlDeviceGetMigMode);
    SAY(mig_mode);
    *current = value.uiVal;
    SAY(mig_mode_pending);
    *pending = value.uiVal;
    return NVML_SUCCESS;
}

UINT_CALL(nvmlDeviceGetMaxMigDeviceCount, unsigned int, mig_devices_max)

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    ENTER(nvmlDeviceGetMigDeviceHandleByIndex);
    for (int i = 0; i < GPUS_MAX; i++) {
        struct mig *found = &parts[i].mig;
        if (!found->is || found->parent != number(gpu) || step() < found->first || step() > found->last || index--)
            continue;
        *mig = (nvmlDevice_t)(gpu + (i - number(gpu)));
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

#define MIG(call) \
    ENTER(call); \
    struct mig *mig = &parts[number(gpu)].mig; \
    if (!mig->is) \
        return NVML_ERROR_INVALID_ARGUMENT

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    MIG(nvmlDeviceGetGpuInstanceId);
    *id = mig->instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    MIG(nvmlDeviceGetComputeInstanceId);
    *id = mig->compute;
    return NVML_SUCCESS;
}

const struct gpu *parts_parent(const struct gpu *gpu)
{
    const struct mig *mig = &parts[gpu_number((nvmlDevice_t)gpu)].mig;
    return mig->is ? gpu + (mig->parent - gpu_number((nvmlDevice_t)gpu)) : NULL;
}

struct gpu *parts_instance(struct gpu *gpu, unsigned int id)
{
    for (int i = 0; i < GPUS_MAX; i++)
        if (parts[i].mig.is && parts[i].mig.parent == number(gpu) && parts[i].mig.instance == id
            && step() >= parts[i].mig.first && step() <= parts[i].mig.last)
            return gpu + (i - number(gpu));
    return NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    ENTER(nvmlDeviceGetGpuInstanceById);
    *instance = (nvmlGpuInstance_t)parts_instance(gpu, id);
    return *instance ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    nvmlDevice_t device = (nvmlDevice_t)instance;
    MIG(nvmlGpuInstanceGetInfo);
    *info = (nvmlGpuInstanceInfo_t){NULL, mig->instance, mig->profile, {mig->start, mig->size}};
    return NVML_SUCCESS;
}

/* "This API currently only supports MIG device handles." */
EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    MIG(nvmlDeviceGetAttributes_v2);
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = mig->multiprocessors;
    attributes->gpuInstanceSliceCount = mig->slices;
    attributes->computeInstanceSliceCount = mig->compute_slices;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter, nvmlMemoryLocation_t location, unsigned long long *count)
{
    MIG(nvmlDeviceGetMemoryErrorCounter);
    if (type != NVML_MEMORY_ERROR_TYPE_UNCORRECTED || counter != NVML_VOLATILE_ECC || location != NVML_MEMORY_LOCATION_SRAM)
        return NVML_ERROR_NOT_SUPPORTED;
    SAY(sram_uncorrected);
    *count = value.ullVal;
    return NVML_SUCCESS;
}

int parts_processes(struct gpu *gpu, int list, unsigned int *count, nvmlProcessInfo_t *infos, nvmlReturn_t *code)
{
    static const int told[] = {VALUE_compute_count, VALUE_graphics_count, VALUE_mps_count};
    unsigned int room = *count, found = 0;
    nvmlValue_t value = {0};
    if (said(&gpu->values[told[list]], &value) == NVML_SUCCESS) { /* garbage */
        *count = value.uiVal;
        *code = NVML_ERROR_INSUFFICIENT_SIZE;
        return 1;
    }
    int any = 0;
    for (int i = 0; i < process_count; i++) {
        struct process *process = &processes[i];
        any |= process->gpu == number(gpu);
        if (process->gpu != number(gpu) || process->list != list || step() < process->first || step() > process->last)
            continue;
        if (infos && found < room)
            infos[found] = process->info;
        found++;
    }
    *count = found;
    *code = found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    return any;
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    ENTER(nvmlDeviceGetGraphicsRunningProcesses_v3);
    parts_processes(gpu, 1, count, infos, &code);
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    ENTER(nvmlDeviceGetMPSComputeRunningProcesses_v3);
    parts_processes(gpu, 2, count, infos, &code);
    return code;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    ENTER(nvmlDeviceGetGpuFabricInfoV);
    /* A driver without a summary does not know version 3. */
    nvmlReturn_t newer = said(&gpu->values[VALUE_fabric_summary], &value);
    if (info->version != nvmlGpuFabricInfo_v2 && (info->version != nvmlGpuFabricInfo_v3 || newer != NVML_SUCCESS))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (info->version == nvmlGpuFabricInfo_v3)
        info->healthSummary = (unsigned char)value.uiVal;
    SAY(fabric_state);
    info->state = (nvmlGpuFabricState_t)value.uiVal;
    memcpy(info->clusterUuid, parts[number(gpu)].cluster, sizeof info->clusterUuid);
    SAY(fabric_status);
    info->status = (nvmlReturn_t)value.uiVal;
    SAY(fabric_clique);
    info->cliqueId = value.uiVal;
    SAY(fabric_health);
    info->healthMask = value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    ENTER(nvmlDeviceGetGpuFabricInfo);
    SAY(fabric_state);
    info->state = (nvmlGpuFabricState_t)value.uiVal;
    memcpy(info->clusterUuid, parts[number(gpu)].cluster, sizeof info->clusterUuid);
    SAY(fabric_status);
    info->status = (nvmlReturn_t)value.uiVal;
    SAY(fabric_clique);
    info->cliqueId = value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *info)
{
    ENTER(nvmlDeviceGetPlatformInfo);
    struct part *part = &parts[number(gpu)];
    if (!part->platform_version)
        return NVML_ERROR_NOT_SUPPORTED;
    if (info->version != (part->platform_version == 2 ? nvmlPlatformInfo_v2 : nvmlPlatformInfo_v1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memcpy(&info->ibGuid, part->platform, sizeof *info - sizeof info->version);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    nvmlReturn_t code = fake_nvml_users() ? enter(&host, CALL_nvmlEventSetCreate) : NVML_ERROR_UNINITIALIZED;
    if (code == NVML_SUCCESS) {
        *set = (nvmlEventSet_t)events;
        __atomic_add_fetch(&sets, 1, __ATOMIC_RELAXED);
    }
    return code;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    (void)set;
    __atomic_sub_fetch(&sets, 1, __ATOMIC_RELAXED);
    memset(registered, 0, sizeof registered);
    return fake_nvml_users() ? enter(&host, CALL_nvmlEventSetFree) : NVML_ERROR_UNINITIALIZED;
}

LONG_CALL(nvmlDeviceGetSupportedEventTypes, events_supported)

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ENTER(nvmlDeviceRegisterEvents);
    (void)set;
    SAY(events_supported);
    if (types & ~value.ullVal)
        return NVML_ERROR_NOT_SUPPORTED;
    registered[number(gpu)] = types;
    handles[number(gpu)] = device;
    return NVML_SUCCESS;
}

/* An event is delivered once its step is reached, in the order of the lines. */
EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds)
{
    struct timespec moment = {0, 1000000};
    (void)set;
    nvmlReturn_t code = fake_nvml_users() ? enter(&host, CALL_nvmlEventSetWait_v2) : NVML_ERROR_UNINITIALIZED;
    for (unsigned int i = 0;; i++) {
        nvmlValue_t error = {0};
        if (code == NVML_SUCCESS && said(&host.errors[CALL_nvmlEventSetWait_v2], &error) == NVML_SUCCESS)
            code = (nvmlReturn_t)error.ullVal;
        if (code != NVML_SUCCESS)
            return code;
        while (delivered < event_count && events[delivered].step <= step()) {
            struct event *event = &events[delivered++];
            if (!(registered[event->gpu] & event->type))
                continue;
            *data = (nvmlEventData_t){handles[event->gpu], event->type, event->data, 0xFFFFFFFF, 0xFFFFFFFF};
            return NVML_SUCCESS;
        }
        if (i >= milliseconds)
            return NVML_ERROR_TIMEOUT;
        nanosleep(&moment, NULL);
    }
}

#define SYSTEM_CALL(call, request_version) \
    nvmlReturn_t code = fake_nvml_users() ? enter(&host, CALL_##call) : NVML_ERROR_UNINITIALIZED; \
    if (code == NVML_SUCCESS && request->version != request_version) \
        code = NVML_ERROR_ARGUMENT_VERSION_MISMATCH; \
    if (code != NVML_SUCCESS) \
        return code

EXPORT nvmlReturn_t nvmlSystemEventSetCreate(nvmlSystemEventSetCreateRequest_t *request)
{
    SYSTEM_CALL(nvmlSystemEventSetCreate, nvmlSystemEventSetCreateRequest_v1);
    request->set = (nvmlSystemEventSet_t)system_events;
    __atomic_add_fetch(&sets, 1, __ATOMIC_RELAXED);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemEventSetFree(nvmlSystemEventSetFreeRequest_t *request)
{
    __atomic_sub_fetch(&sets, 1, __ATOMIC_RELAXED);
    SYSTEM_CALL(nvmlSystemEventSetFree, nvmlSystemEventSetFreeRequest_v1);
    return request->set == (nvmlSystemEventSet_t)system_events ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlSystemRegisterEvents(nvmlSystemRegisterEventRequest_t *request)
{
    SYSTEM_CALL(nvmlSystemRegisterEvents, nvmlSystemRegisterEventRequest_v1);
    return request->eventTypes & ~3ull ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemEventSetWait(nvmlSystemEventSetWaitRequest_t *request)
{
    SYSTEM_CALL(nvmlSystemEventSetWait, nvmlSystemEventSetWaitRequest_v1);
    request->numEvent = 0;
    while (system_delivered < system_event_count && system_events[system_delivered].step <= step()
           && request->numEvent < request->dataSize) {
        struct event *event = &system_events[system_delivered++];
        request->data[request->numEvent++] = (nvmlSystemEventData_v1_t){event->type, (unsigned int)event->data};
    }
    return request->numEvent ? NVML_SUCCESS : NVML_ERROR_TIMEOUT;
}

static nvmlReturn_t copy(char *to, unsigned int length, const char *text)
{
    if (!*text)
        return NVML_ERROR_NOT_SUPPORTED;
    snprintf(to, length, "%s", text);
    return NVML_SUCCESS;
}

#define PART_TEXT_CALL(call, member) \
    EXPORT nvmlReturn_t call(nvmlDevice_t device, char *text, unsigned int length) \
    { \
        ENTER(call); \
        return copy(text, length, parts[number(gpu)].member); \
    }

PART_TEXT_CALL(nvmlDeviceGetVbiosVersion, vbios)
PART_TEXT_CALL(nvmlDeviceGetBoardPartNumber, part_number)
PART_TEXT_CALL(nvmlDeviceGetInforomImageVersion, inforom_image)
UINT_CALL(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture)
UINT_CALL(nvmlDeviceGetNumGpuCores, unsigned int, cores)
UINT_CALL(nvmlDeviceGetMemoryBusWidth, unsigned int, bus_width)
UINT_CALL(nvmlDeviceGetModuleId, unsigned int, module_id)
UINT_CALL(nvmlDeviceGetNumaNodeId, unsigned int, numa_node)
UINT_CALL(nvmlDeviceGetMinorNumber, unsigned int, minor_number)
UINT_CALL(nvmlDeviceGetBoardId, unsigned int, board_id)
UINT_CALL(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, persistence_mode)

EXPORT nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char *text, unsigned int length)
{
    ENTER(nvmlDeviceGetInforomVersion);
    struct part *part = &parts[number(gpu)];
    const char *texts[] = {part->inforom_oem, part->inforom_ecc, part->inforom_power};
    return (unsigned int)object < 3 ? copy(text, length, texts[object]) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *text)
{
    ENTER(nvmlDeviceGetGspFirmwareVersion);
    return copy(text, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE, parts[number(gpu)].gsp_version);
}

EXPORT nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int *enabled, unsigned int *usual)
{
    ENTER(nvmlDeviceGetGspFirmwareMode);
    SAY(gsp_mode);
    *enabled = *usual = value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER(nvmlDeviceGetCudaComputeCapability);
    SAY(compute_capability);
    *major = value.siVal / 10;
    *minor = value.siVal % 10;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    ENTER(nvmlDeviceGetEccMode);
    SAY(ecc_mode);
    *current = *pending = (nvmlEnableState_t)value.uiVal;
    if (said(&gpu->values[VALUE_ecc_mode_pending], &value) == NVML_SUCCESS)
        *pending = (nvmlEnableState_t)value.uiVal;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    nvmlValue_t value = {0};
    nvmlReturn_t code = fake_nvml_users() ? enter(&host, CALL_nvmlSystemGetCudaDriverVersion) : NVML_ERROR_UNINITIALIZED;
    if (code == NVML_SUCCESS)
        code = said(&host.values[VALUE_cuda_version], &value);
    *version = value.siVal;
    return code;
}

EXPORT nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *state)
{
    nvmlValue_t value = {0};
    nvmlReturn_t code = fake_nvml_users() ? enter(&host, CALL_nvmlSystemGetConfComputeState) : NVML_ERROR_UNINITIALIZED;
    if (code == NVML_SUCCESS)
        code = said(&host.values[VALUE_confidential], &value);
    *state = (nvmlConfComputeSystemState_t){0, value.uiVal, 0};
    return code;
}
