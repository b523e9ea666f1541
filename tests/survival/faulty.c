/* A disk and a clock that fail on command: LD_PRELOADed into the aggregator by the store's soak (faults.py).
 *
 * GANGLINE_FAULTS names a file of 32 bytes that both map: mode (u32), milliseconds of each fsync (u32), and how far
 * the wall clock is off (i64, ns). GANGLINE_FAULTS_UNDER: only what is below this folder fails.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { WELL, FULL, READ_ONLY, FSYNC_FAILS };
struct control { volatile uint32_t mode, fsync_ms; volatile int64_t clock_ns; };
static struct control none, *control = &none;
static const char *under = "/nowhere";

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("GANGLINE_FAULTS"), *folder = getenv("GANGLINE_FAULTS_UNDER");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, 32, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) control = map;
    if (folder) under = folder;
    close(fd);
}

static int ours_path(const char *path) { return path && !strncmp(path, under, strlen(under)); }

static int ours(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return ours_path(path);
}

static int refused(int fd) {
    if (control->mode != FULL && control->mode != READ_ONLY) return 0;
    if (!ours(fd)) return 0;
    errno = control->mode == FULL ? ENOSPC : EROFS;
    return 1;
}

static int refused_path(const char *path) {
    if (control->mode != READ_ONLY || !ours_path(path)) return 0;
    errno = EROFS;
    return 1;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t n) { REAL(write); return refused(fd) ? -1 : real(fd, data, n); }
ssize_t pwrite(int fd, const void *d, size_t n, off_t at) { REAL(pwrite); return refused(fd) ? -1 : real(fd, d, n, at); }
ssize_t pwrite64(int fd, const void *d, size_t n, off64_t at) { REAL(pwrite64); return refused(fd) ? -1 : real(fd, d, n, at); }
int rename(const char *a, const char *b) { REAL(rename); return refused_path(b) ? -1 : real(a, b); }
int unlink(const char *a) { REAL(unlink); return refused_path(a) ? -1 : real(a); }
int mkdir(const char *a, mode_t m) { REAL(mkdir); return refused_path(a) ? -1 : real(a, m); }
int ftruncate(int fd, off_t n) { REAL(ftruncate); return control->mode == READ_ONLY && refused(fd) ? -1 : real(fd, n); }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64); return control->mode == READ_ONLY && refused(fd) ? -1 : real(fd, n); }

static int slow(int fd) {
    if (!control->fsync_ms && control->mode != FSYNC_FAILS) return 0;
    if (!ours(fd)) return 0;
    struct timespec t = {control->fsync_ms / 1000, control->fsync_ms % 1000 * 1000000L};
    if (control->fsync_ms) nanosleep(&t, NULL);
    if (control->mode != FSYNC_FAILS) return 0;
    errno = EIO;
    return 1;
}

int fsync(int fd) { REAL(fsync); return slow(fd) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return slow(fd) ? -1 : real(fd); }

#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...) {                                \
        REAL(name);                                                             \
        va_list more; va_start(more, flags);                                    \
        mode_t mode = va_arg(more, mode_t); va_end(more);                       \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT) && refused_path(path)) return -1; \
        return real(path, flags, mode);                                         \
    }
OPEN(open)
OPEN(open64)

int clock_gettime(clockid_t clock, struct timespec *t) {
    REAL(clock_gettime);
    int rc = real(clock, t);
    int64_t off = control->clock_ns;
    if (!rc && off && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = t->tv_sec * 1000000000LL + t->tv_nsec + off;
        t->tv_sec = ns / 1000000000LL;
        t->tv_nsec = ns % 1000000000LL;
    }
    return rc;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    REAL(gettimeofday);
    int rc = real(t, zone);
    if (!rc && control->clock_ns) t->tv_sec += control->clock_ns / 1000000000LL;
    return rc;
}

time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
