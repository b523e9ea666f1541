/* A GPU that follows a real process: it computes while the process wants a core, and waits while the process sleeps.
 *
 * Computing time is the time on a core plus the time in its queue (/proc/PID/schedstat, nanoseconds, of the main
 * thread): a process that shares its core needs longer for the same work, like a slow GPU. Energy depends only on
 * the process, so that all callers get the same value. */

#include "fake_nvml.h"
#include "follow.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POWER_SECONDS 0.1

static struct follow {
    int pid;
    double idle_watts, wait_watts, compute_watts, wait_share, units_max;
    char path[256];
    double begin_seconds; /* start of the process, since boot */
    int is_dead;
    struct followed last, before, recent; /* `before` is at least POWER_SECONDS old, `recent` is younger */
    struct answer answers[8];
} follows[GPUS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void follow_reset(void) { memset(follows, 0, sizeof follows); }

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    size_t count = file ? fread(text, 1, size - 1, file) : 0;
    if (file)
        fclose(file);
    text[count] = 0;
    return count > 0;
}

static double begin_of(int pid)
{
    char path[64], text[1024];
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    char *rest = read_text(path, text, sizeof text) ? strrchr(text, ')') : NULL;
    /* Field 22 of proc(5); the field after the name is the 3rd. */
    if (!rest || sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &ticks) != 1)
        return -1.0;
    return (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

int follow_line(int number, const char *rest)
{
    struct follow *one = number >= 0 ? &follows[number] : NULL;
    if (!one)
        return 1;
    memset(one, 0, sizeof *one);
    int found = sscanf(rest, "%d %lf %lf %lf %lf %lf %255s", &one->pid, &one->idle_watts, &one->wait_watts,
                       &one->compute_watts, &one->wait_share, &one->units_max, one->path);
    one->begin_seconds = begin_of(one->pid);
    one->is_dead = one->begin_seconds < 0.0;
    return one->pid <= 0 || (found != 4 && found != 7);
}

/* The current data of the process; after its exit, the last data. */
static struct followed look(struct follow *one)
{
    char path[64], text[128];
    unsigned long long runs_ns, waits_ns, units = 0;
    snprintf(path, sizeof path, "/proc/%d/schedstat", one->pid);
    if (one->is_dead || !read_text(path, text, sizeof text) || sscanf(text, "%llu %llu", &runs_ns, &waits_ns) != 2
        || begin_of(one->pid) != one->begin_seconds) {
        one->is_dead = 1;
        return one->last;
    }
    FILE *file = *one->path ? fopen(one->path, "r") : NULL;
    if (file) {
        if (fread(&units, sizeof units, 1, file) != 1)
            units = 0;
        fclose(file);
    }
    one->last = (struct followed){now_seconds(), (double)(runs_ns + waits_ns) * 1e-9, (double)units};
    return one->last;
}

static double duty(const struct followed *first, const struct followed *second)
{
    double seconds = second->seconds - first->seconds;
    double share = seconds > 0.0 ? (second->busy_seconds - first->busy_seconds) / seconds : 0.0;
    return share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
}

int follow_sample(int number, struct followed *sample)
{
    if (number < 0 || !follows[number].pid)
        return 0;
    pthread_mutex_lock(&lock);
    *sample = look(&follows[number]);
    if (follows[number].is_dead)
        sample->seconds = now_seconds();
    pthread_mutex_unlock(&lock);
    return 1;
}

double follow_percent(int number, const struct followed *first, const struct followed *second, int is_sm)
{
    const struct follow *one = &follows[number];
    double seconds = second->seconds - first->seconds;
    if (is_sm)
        return one->is_dead ? 0.0 : 100.0 * (one->wait_share + (1.0 - one->wait_share) * duty(first, second));
    if (one->units_max <= 0.0 || seconds <= 0.0)
        return 0.0;
    double share = (second->units - first->units) / seconds / one->units_max;
    return 100.0 * (share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share);
}

static void set(struct series *series, struct answer *answer, double value)
{
    *answer = (struct answer){.value.ullVal = (unsigned long long)(value + 0.5)};
    *series = (struct series){1, answer};
}

void follow_update(struct gpu *gpu, int number)
{
    struct follow *one = number >= 0 ? &follows[number] : NULL;
    if (!one || !one->pid)
        return;
    pthread_mutex_lock(&lock);
    struct followed now = look(one);
    double seconds = now_seconds(), lived = now.seconds - one->begin_seconds;
    double computing = one->compute_watts - one->wait_watts;
    double watts = one->idle_watts;
    double joules = one->is_dead && now.seconds <= 0.0
                        ? one->idle_watts * seconds
                        : one->idle_watts * (one->begin_seconds + (seconds - now.seconds)) + one->wait_watts * lived
                              + computing * now.busy_seconds;
    if (!one->is_dead) {
        if (one->recent.seconds <= 0.0)
            one->recent = one->before = (struct followed){one->begin_seconds, 0.0, 0.0};
        if (now.seconds - one->recent.seconds >= POWER_SECONDS) {
            one->before = one->recent;
            one->recent = now;
        }
        watts = one->wait_watts + computing * duty(&one->before, &now);
    }
    set(&gpu->values[VALUE_energy], &one->answers[0], 1000.0 * joules);
    set(&gpu->values[VALUE_power], &one->answers[1], 1000.0 * watts);
    set(&gpu->values[VALUE_utilization], &one->answers[2], one->is_dead ? 0.0 : 100.0);
    set(&gpu->fields[NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION], &one->answers[3], 1000.0 * joules);
    set(&gpu->fields[NVML_FI_DEV_POWER_AVERAGE], &one->answers[4], 1000.0 * watts);
    set(&gpu->fields[NVML_FI_DEV_POWER_INSTANT], &one->answers[5], 1000.0 * watts);
    pthread_mutex_unlock(&lock);
}
