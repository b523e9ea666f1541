/* A stand-in for libdcgm.so.3 and libdcgm.so.4 (-DMAJOR) that plays a scenario. See README.md.
 *
 * Layouts are written down here once more, from dcgm_structs.h: what the agent sends is held against them by its
 * version word, as the true library holds it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define VERSION(type, number) ((unsigned)(sizeof(type) | (unsigned)(number) << 24))

enum { OK = 0, BADPARAM = -1, UNINITIALIZED = -10, TIMEOUT = -11, VER_MISMATCH = -12, NO_DATA = -14, NOT_WATCHED = -16,
       CONNECTION_NOT_VALID = -21, MAX_LIMIT = -24, INSUFFICIENT_SIZE = -31 };
enum { GPUS_MAX = 32, LINES_MAX = 4096, LINE_BYTES = 1400, GROUPS_MAX = 64 };

typedef struct { unsigned version, persistAfterDisconnect, timeoutMs, addressIsUnixSocket; } ConnectParams;
typedef struct { unsigned entityGroupId, entityId; } Entity;
typedef struct {
    unsigned version, entityGroupId, entityId;
    unsigned short fieldId, fieldType;
    int status;
    unsigned unused;
    int64_t ts;
    union { int64_t i64; double dbl; char str[256]; char blob[4096]; } value;
} FieldValue;
typedef struct { char msg[1024]; unsigned code; } ErrorDetail;
typedef struct { unsigned system, health; ErrorDetail error; Entity entityInfo; } Incident;
#if MAJOR == 3
enum { INCIDENTS_MAX = 64, HEALTH_VERSION = 4 };
#else
enum { INCIDENTS_MAX = 1024, HEALTH_VERSION = 5 };
#endif
typedef struct { unsigned version, overallHealth, incidentCount; Incident incidents[INCIDENTS_MAX]; } HealthResponse;
typedef struct { unsigned version; uintptr_t groupId; unsigned systems; long long updateInterval; double maxKeepAge; } HealthSet;
typedef struct {
    unsigned version, condition;
    union { struct { long long timestamp; unsigned first, second; } any; } val;
#if MAJOR == 4
    unsigned gpuId;
#endif
} PolicyResponse;

static char lines[LINES_MAX][LINE_BYTES];
static int line_count, field_count, initialised;
static struct { unsigned group, entity, field; char type; long long ts; char text[256]; } fields_known[LINES_MAX];
static struct stat seen;
static unsigned registered;
#if MAJOR == 4
static int (*callback)(PolicyResponse *, uint64_t);
#else
static int (*callback_alone)(void *);
#endif
static char told[LINES_MAX];

static const char *folder_file(const char *ending)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s%s", getenv("GANGLINE_FAKE_DCGM"), ending);
    return path;
}

static void note(const char *words)
{
    static char path[4096];
    static int file = -1;
    const char *now = folder_file(".calls");
    if (file < 0 || strcmp(path, now)) {
        if (file >= 0)
            close(file);
        strcpy(path, now);
        file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    if (file >= 0)
        dprintf(file, "%s\n", words);
}

/* Read the scenario, unless it is the one that was read last: a true client parses no text. */
static void read_scenario(void)
{
    struct stat now;
    if (!stat(folder_file(""), &now) && now.st_ino == seen.st_ino && now.st_size == seen.st_size
        && now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(folder_file(""), "r");
    if (file)
        seen = now;
    line_count = field_count = 0;
    while (file && line_count < LINES_MAX && fgets(lines[line_count], LINE_BYTES, file)) {
        lines[line_count][strcspn(lines[line_count], "\n")] = 0;
        if (sscanf(lines[line_count], "field %u:%u %u %c %lld %255s", &fields_known[field_count].group,
                   &fields_known[field_count].entity, &fields_known[field_count].field, &fields_known[field_count].type,
                   &fields_known[field_count].ts, fields_known[field_count].text) == 6)
            field_count++; /* not among the lines: those are gone through by each call */
        else
            line_count++;
    }
    if (file)
        fclose(file);
}

static long number_of(const char *word, long otherwise)
{
    char form[64];
    long value = otherwise;
    snprintf(form, sizeof form, "%s %%ld", word);
    for (int i = 0; i < line_count; i++)
        if (sscanf(lines[i], form, &value) == 1)
            return value;
    return otherwise;
}

/* Read the scenario anew, note the call, and be as ill as it says. Returns what the call is to answer, or OK. */
static int enter(const char *call, uintptr_t handle, const char *arguments)
{
    char words[512], name[64], how[16], path[512];
    int code;
    read_scenario();
    snprintf(words, sizeof words, "%s%s%s", call, *arguments ? " " : "", arguments);
    note(words);
    for (int i = 0; i < line_count; i++) {
        if (sscanf(lines[i], "block %63s %15s %511s", name, how, path) >= 2 && (!strcmp(name, call) || *name == '*')) {
            if (!strcmp(how, "crash"))
                abort();
            for (int wait = 0; wait < 6000 && access(path, F_OK); wait++)
                usleep(10000);
        }
        if (sscanf(lines[i], "error %63s %d", name, &code) == 2 && (!strcmp(name, call) || *name == '*'))
            return code;
    }
    if (handle && (number_of("down", 0) || handle != (uintptr_t)(100 + number_of("generation", 0))))
        return CONNECTION_NOT_VALID;
    return OK;
}

static void *tell(void *unused)
{
    (void)unused;
    for (int i = 0; i < line_count; i++) {
        unsigned gpu, condition, first, second;
        long long ts;
        if (told[i] || sscanf(lines[i], "violation %u %x %lld %u %u", &gpu, &condition, &ts, &first, &second) != 5)
            continue;
        told[i] = 1;
        if (!(condition & registered))
            continue;
        PolicyResponse response = {.condition = condition};
        response.val.any.timestamp = ts;
        response.val.any.first = first;
        response.val.any.second = second;
#if MAJOR == 4
        response.gpuId = gpu;
        response.version = VERSION(PolicyResponse, 2);
        callback(&response, 0);
#else
        response.version = VERSION(PolicyResponse, 1);
        callback_alone(&response);
#endif
    }
    return NULL;
}

/* As the true library: from a thread of its own. Here the call waits for it, so that a test does not. */
static void tell_violations(void)
{
    pthread_t thread;
    if (registered && !pthread_create(&thread, NULL, tell, NULL))
        pthread_join(thread, NULL);
}

EXPORT int dcgmInit(void) { initialised = 1; return enter("dcgmInit", 0, ""); }
EXPORT int dcgmShutdown(void) { return enter("dcgmShutdown", 0, ""); }
EXPORT const char *errorString(int code)
{
    switch (code) {
    case TIMEOUT: return "Timeout";
    case VER_MISMATCH: return "API version mismatch";
    case NOT_WATCHED: return "Field is not being updated";
    case -34: return "The requested operation could not be completed because the affected resource is in use";
    case CONNECTION_NOT_VALID: return "Host engine connection invalid/disconnected";
    default: return code ? "Generic unspecified error" : "Success";
    }
}

/* Never to be called: they would run a host engine within the agent. */
static int forbidden(const char *call) { note(call); abort(); }
EXPORT int dcgmStartEmbedded(int mode, uintptr_t *handle) { (void)mode, (void)handle; return forbidden("dcgmStartEmbedded"); }
EXPORT int dcgmStartEmbedded_v2(void *params) { (void)params; return forbidden("dcgmStartEmbedded_v2"); }
EXPORT int dcgmEngineRun(unsigned short port, char *path, unsigned tcp)
{
    (void)port, (void)path, (void)tcp;
    return forbidden("dcgmEngineRun");
}
EXPORT int dcgmPolicySet(void) { return forbidden("dcgmPolicySet"); }
EXPORT int dcgmActionValidate_v2(void) { return forbidden("dcgmActionValidate_v2"); }

EXPORT int dcgmConnect_v2(const char *address, ConnectParams *params, uintptr_t *handle)
{
    char words[400];
    snprintf(words, sizeof words, "%s%s %u", params->addressIsUnixSocket ? "unix:" : "", address, params->timeoutMs);
    int code = enter("dcgmConnect_v2", 0, words);
    if (!initialised)
        return UNINITIALIZED;
    if (params->version != VERSION(ConnectParams, 2))
        return VER_MISMATCH;
    if (!code && number_of("down", 0))
        code = CONNECTION_NOT_VALID;
    registered = 0;
    *handle = code ? 0 : (uintptr_t)(100 + number_of("generation", 0));
    return code;
}
EXPORT int dcgmDisconnect(uintptr_t handle) { registered = 0; return enter("dcgmDisconnect", handle, ""); }

EXPORT int dcgmGetAllDevices(uintptr_t handle, unsigned *ids, int *count)
{
    int code = enter("dcgmGetAllDevices", handle, "");
    *count = 0;
    for (int i = 0; !code && i < line_count && *count < GPUS_MAX; i++)
        *count += sscanf(lines[i], "gpu %u", &ids[*count]) == 1;
    return code;
}

static long long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

/* Numbers apart by commas, and before them how many there are: the form of the list of vGPUs. */
static void fill_blob(FieldValue *value, const char *text)
{
    unsigned *numbers = (unsigned *)value->value.blob;
    char *end;
    for (*numbers = 0; *text && *numbers < 60; text = *end ? end + 1 : end) {
        numbers[*numbers + 1] = (unsigned)strtoul(text, &end, 10);
        if (end == text)
            return;
        ++*numbers;
    }
}

static void fill(FieldValue *value)
{
    value->status = NOT_WATCHED;
    for (int i = 0; i < field_count; i++) {
        const char *text = fields_known[i].text;
        if (fields_known[i].group != value->entityGroupId || fields_known[i].entity != value->entityId
            || fields_known[i].field != value->fieldId)
            continue;
        value->fieldType = (unsigned short)fields_known[i].type;
        value->status = OK;
        value->ts = fields_known[i].ts ? fields_known[i].ts : now_us();
        if (*text == '!')
            value->status = atoi(text + 1);
        else if (value->fieldType == 'd')
            value->value.dbl = strcmp(text, "blank") ? atof(text) : 140737488355328.0;
        else if (value->fieldType == 's')
            strcpy(value->value.str, strcmp(text, "blank") ? text : "<<<NULL>>>");
        else if (value->fieldType == 'b')
            fill_blob(value, text);
        else
            value->value.i64 = strcmp(text, "blank") ? atoll(text) : 0x7ffffffffffffff2;
    }
}

EXPORT int dcgmEntitiesGetLatestValues(uintptr_t handle, Entity *entities, unsigned entity_count, unsigned short *fields,
                                       unsigned field_count, unsigned flags, FieldValue *values)
{
    int code = enter("dcgmEntitiesGetLatestValues", handle, flags & 1 ? "live" : "");
    if (code)
        return code;
    for (unsigned i = 0; i < entity_count * field_count; i++) {
        values[i].version = VERSION(FieldValue, 2);
        values[i].entityGroupId = entities[i / field_count].entityGroupId;
        values[i].entityId = entities[i / field_count].entityId;
        values[i].fieldId = fields[i % field_count];
        fill(&values[i]);
    }
    tell_violations();
    return OK;
}

EXPORT int dcgmGetEntityGroupEntities(uintptr_t handle, unsigned group, unsigned *ids, int *count, unsigned flags)
{
    char words[16];
    int room = *count, found = 0;
    unsigned kind, id;
    snprintf(words, sizeof words, "%u", group);
    int code = enter("dcgmGetEntityGroupEntities", handle, words);
    (void)flags;
    for (int i = 0; !code && i < line_count; i++)
        if ((sscanf(lines[i], "entity %u %u", &kind, &id) == 2 && kind == group)
            || (group == 1 && sscanf(lines[i], "gpu %u", &id) == 1)) {
            if (found < room)
                ids[found] = id;
            found++;
        }
    *count = found;
    return code ? code : found > room ? INSUFFICIENT_SIZE : OK;
}

EXPORT int dcgmGroupCreate(uintptr_t handle, unsigned type, const char *name, uintptr_t *id)
{
    static uintptr_t last = 1000;
    *id = ++last;
    return type == 1 ? enter("dcgmGroupCreate", handle, name) : BADPARAM;
}
EXPORT int dcgmGroupAddEntity(uintptr_t handle, uintptr_t id, unsigned group, unsigned entity)
{
    char words[40];
    (void)id;
    snprintf(words, sizeof words, "%u %u", group, entity);
    return enter("dcgmGroupAddEntity", handle, words);
}

EXPORT int dcgmGroupGetAllIds(uintptr_t handle, uintptr_t *ids, unsigned *count)
{
    int code = enter("dcgmGroupGetAllIds", handle, "");
    unsigned long group;
    *count = 0;
    for (int i = 0; !code && i < line_count && *count < GROUPS_MAX; i++)
        if (sscanf(lines[i], "group %lu", &group) == 1)
            ids[(*count)++] = group;
    return code;
}

EXPORT int dcgmHealthGet(uintptr_t handle, uintptr_t group, unsigned *systems)
{
    unsigned long one;
    unsigned mask;
    int code = enter("dcgmHealthGet", handle, "");
    *systems = 0;
    for (int i = 0; !code && i < line_count; i++)
        if (sscanf(lines[i], "group %lu %x", &one, &mask) == 2 && one == group)
            *systems = mask;
    return code;
}

EXPORT int dcgmHealthCheck(uintptr_t handle, uintptr_t group, HealthResponse *response)
{
    unsigned long one;
    int code = enter("dcgmHealthCheck", handle, ""), at;
    if (response->version != VERSION(HealthResponse, HEALTH_VERSION))
        return VER_MISMATCH;
    response->incidentCount = response->overallHealth = 0;
    for (int i = 0; !code && i < line_count && response->incidentCount < INCIDENTS_MAX; i++) {
        Incident *to = &response->incidents[response->incidentCount];
        if (sscanf(lines[i], "incident %lu %u %u %x %u %u %n", &one, &to->entityInfo.entityGroupId,
                   &to->entityInfo.entityId, &to->system, &to->health, &to->error.code, &at) != 6 || one != group)
            continue;
        snprintf(to->error.msg, sizeof to->error.msg, "%s", lines[i] + at);
        if (to->health > response->overallHealth)
            response->overallHealth = to->health;
        response->incidentCount++;
    }
    return code;
}

EXPORT int dcgmHealthSet_v2(uintptr_t handle, HealthSet *set)
{
    int code = enter("dcgmHealthSet_v2", handle, "");
    return set->version == VERSION(HealthSet, 2) ? code : VER_MISMATCH;
}

EXPORT int dcgmFieldGroupCreate(uintptr_t handle, int count, unsigned short *fields, const char *name, uintptr_t *id)
{
    int code = enter("dcgmFieldGroupCreate", handle, name);
    (void)fields;
    *id = 7;
    return count > 0 ? code : BADPARAM;
}
EXPORT int dcgmFieldGroupDestroy(uintptr_t handle, uintptr_t id) { (void)id; return enter("dcgmFieldGroupDestroy", handle, ""); }
EXPORT int dcgmWatchFields(uintptr_t handle, uintptr_t group, uintptr_t fields, long long us, double keep, int samples)
{
    (void)group, (void)fields, (void)us, (void)keep, (void)samples;
    return enter("dcgmWatchFields", handle, "");
}
EXPORT int dcgmUnwatchFields(uintptr_t handle, uintptr_t group, uintptr_t fields)
{
    (void)group, (void)fields;
    return enter("dcgmUnwatchFields", handle, "");
}

#if MAJOR == 4
EXPORT int dcgmPolicyRegister_v2(uintptr_t handle, uintptr_t group, unsigned conditions,
                                 int (*updates)(PolicyResponse *, uint64_t), uint64_t user)
{
    (void)group, (void)user;
    callback = updates;
    registered = conditions;
    return enter("dcgmPolicyRegister_v2", handle, "");
}
#else
EXPORT int dcgmPolicyRegister(uintptr_t handle, uintptr_t group, unsigned conditions, int (*begun)(void *), int (*ended)(void *))
{
    (void)group, (void)ended;
    callback_alone = begun;
    registered = conditions;
    return enter("dcgmPolicyRegister", handle, "");
}
#endif

typedef struct { unsigned version; char build[512]; } VersionInfo;
static int tell_version(VersionInfo *info, const char *line, const char *otherwise)
{
    char form[64], text[64];
    if (info->version != VERSION(VersionInfo, 2))
        return VER_MISMATCH;
    snprintf(text, sizeof text, "%s", otherwise);
    snprintf(form, sizeof form, "%s %%63s", line);
    for (int i = 0; i < line_count; i++)
        sscanf(lines[i], form, text);
    snprintf(info->build, sizeof info->build, "version:%s;arch:x86_64;buildtype:Release;buildid:7", text);
    return 0;
}
EXPORT int dcgmVersionInfo(VersionInfo *info)
{
    int code = enter("dcgmVersionInfo", 0, "");
    return code ? code : tell_version(info, "library_version", MAJOR == 3 ? "3.3.8" : "4.4.2");
}
EXPORT int dcgmHostengineVersionInfo(uintptr_t handle, VersionInfo *info)
{
    int code = enter("dcgmHostengineVersionInfo", handle, "");
    return code ? code : tell_version(info, "engine_version", MAJOR == 3 ? "3.3.8" : "4.4.2");
}

/* For tests by ctypes: the version words as the stand-in checks them. */
EXPORT unsigned fake_dcgm_version_word(const char *name)
{
    if (!strcmp(name, "dcgmConnectV2Params_v2"))
        return VERSION(ConnectParams, 2);
    if (!strcmp(name, "dcgmVersionInfo_v2"))
        return VERSION(VersionInfo, 2);
    if (!strcmp(name, "dcgmFieldValue_v2"))
        return VERSION(FieldValue, 2);
    if (!strcmp(name, "dcgmHealthSetParams_v2"))
        return VERSION(HealthSet, 2);
    if (!strcmp(name, MAJOR == 3 ? "dcgmHealthResponse_v4" : "dcgmHealthResponse_v5"))
        return VERSION(HealthResponse, HEALTH_VERSION);
    if (MAJOR == 4 && !strcmp(name, "dcgmPolicyCallbackResponse_v2"))
        return VERSION(PolicyResponse, 2);
    return 0;
}
