/* The floor of a sweep over AMD GPUs: reads only the same files through kept descriptors, and copies the same
 * table fields and numbers into an array. Compiled and run by bench/amd_sweep.py.
 *
 *     amd_floor FILES TURNS
 *
 * FILES has a path per line: `m` and a table of gpu_metrics 1.8, `n` and a file of one number, `r` and a RAS count
 * (a turn reads a tenth of these). Waits for a line on standard input before each of TURNS sweeps, and prints its CPU
 * time in nanoseconds. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILES_MAX 1024
#define TABLE_BYTES 4096
/* struct gpu_metrics_v1_8: offset, bytes and count of the fields that the agent reads each second. */
static const struct {
    int offset, bytes, count;
} fields[] = {
    {4, 2, 1}, {6, 2, 1}, {10, 2, 1}, {12, 2, 1}, {14, 2, 1}, {24, 8, 1}, {40, 4, 1}, {44, 4, 1}, {48, 4, 1},
    {52, 4, 1}, {56, 4, 1}, {60, 4, 1}, {288, 8, 1}, {296, 2, 8}, {336, 2, 1},
};

static struct {
    char kind;
    int descriptor;
} files[FILES_MAX];
static int count;
static uint64_t cells[FILES_MAX][32];

static void read_table(int at)
{
    static uint8_t data[TABLE_BYTES];
    if (pread(files[at].descriptor, data, sizeof data, 0) < 3872 || data[2] != 1 || data[3] != 8)
        return;
    for (unsigned i = 0; i < sizeof fields / sizeof *fields; i++) {
        uint64_t sum = 0;
        int known = 0;
        for (int k = 0; k < fields[i].count; k++) {
            uint64_t value = 0;
            memcpy(&value, data + fields[i].offset + k * fields[i].bytes, fields[i].bytes);
            if (value != (uint64_t)-1 >> (64 - 8 * fields[i].bytes))
                sum += value, known++;
        }
        cells[at][i] = known ? sum / known : 0;
    }
}

static void read_numbers(int at)
{
    static char text[TABLE_BYTES];
    ssize_t size = pread(files[at].descriptor, text, sizeof text - 1, 0);
    int found = 0;
    for (ssize_t i = 0; i < size && found < 32;) {
        uint64_t value = 0;
        while (i < size && (text[i] < '0' || text[i] > '9'))
            i++;
        if (i == size)
            break;
        while (i < size && text[i] >= '0' && text[i] <= '9')
            value = value * 10 + (uint64_t)(text[i++] - '0');
        cells[at][found++] = value;
    }
}

int main(int argument_count, char **arguments)
{
    char line[4096];
    FILE *list = argument_count == 3 ? fopen(arguments[1], "r") : NULL;
    while (list && count < FILES_MAX && fgets(line, sizeof line, list)) {
        line[strcspn(line, "\n")] = 0;
        files[count].kind = line[0];
        files[count].descriptor = open(line + 2, O_RDONLY | O_CLOEXEC);
        if (files[count].descriptor < 0) {
            fprintf(stderr, "amd_floor: %s\n", line + 2);
            return 1;
        }
        count++;
    }
    if (!count)
        return 2;
    for (int turn = 0; turn < atoi(arguments[2]) && fgets(line, sizeof line, stdin); turn++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
        int ras = 0;
        for (int i = 0; i < count; i++)
            if (files[i].kind == 'm')
                read_table(i);
            else if (files[i].kind == 'n' || ras++ % 10 == turn % 10)
                read_numbers(i);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
        printf("%lld\n", (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec);
        fflush(stdout);
    }
    fprintf(stderr, "%llu\n", (unsigned long long)cells[0][0]);
    return 0;
}
