/* Reads the file of `gangline mirror` (docs/slurm_plugins.md), as a plugin in C would: without parsing what it does not need.
 *
 *     cc -O2 -o mirror_reader mirror_reader.c
 *     mirror_reader FILE         how long it is valid, and how many nodes it has
 *     mirror_reader FILE NODE    also the record of a node, found by bisection
 *
 * Exit codes: 0; 1 the file is missing, stale, torn or planted: act as if there were none; 2 wrong usage; 4 no such node.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FIXED = 182, RECORD = 128, NAME = 64, TAIL = 22, LINE_MAX_BYTES = 344358, FILE_MAX_BYTES = 8732989 };
enum { VALID_SECONDS_MAX = 60, OTHERS_WRITE = S_IWGRP | S_IWOTH };

/* The bytes as one number, the first the highest, modulo a prime. */
static uint32_t checksum_of(const char *text, size_t length)
{
	uint64_t sum = 0;
	for (size_t at = 0; at < length; at++)
		sum = (sum << 8 | (unsigned char)text[at]) % 2654435761u;
	return sum;
}

/* The number at `offset`, of so many digits; -1 if it is none. */
static long digits(const char *text, size_t offset, int count, int base)
{
	char copy[16], *end;
	memcpy(copy, text + offset, count);
	copy[count] = 0;
	if (strspn(copy, base == 16 ? "0123456789abcdef" : "0123456789") != (size_t)count)
		return -1;
	return strtol(copy, &end, base);
}

/* Whether only root, we, or the owner of the folder could have written it. */
static int is_trusted(const char *path, const struct stat *file)
{
	char folder[4096];
	struct stat status;
	const char *slash = strrchr(path, '/');
	if (snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 2, slash ? path : "./") >= (int)sizeof folder)
		return 0;
	if (stat(folder, &status) || !S_ISREG(file->st_mode) || (file->st_mode | status.st_mode) & OTHERS_WRITE)
		return 0;
	return file->st_uid == 0 || file->st_uid == geteuid() || file->st_uid == status.st_uid;
}

/* Returns the number of nodes, and the first record; -1: as if there were no file. */
static long check(const char *text, size_t size, time_t now, const char **records)
{
	if (size < FIXED + TAIL || memcmp(text, "gangline-mirror 1 check=", 24) || memcmp(text + 33, "line=", 5))
		return -1;
	long sum = digits(text, 24, 8, 16), line = digits(text, 38, 7, 10), whole = digits(text, 51, 8, 10);
	long valid_until = digits(text, 92, 10, 10), nodes = digits(text, 109, 5, 10), record = digits(text, 122, 3, 10);
	if (sum < 0 || line < FIXED || line > LINE_MAX_BYTES || whole != (long)size || record != RECORD || nodes < 0)
		return -1;
	if (line + 1 + nodes * RECORD + TAIL != (long)size || text[line] != '\n')
		return -1;
	*records = text + line + 1;
	char tail[64];
	snprintf(tail, sizeof tail, "end %08lx %08x\n", sum, checksum_of(*records, nodes * RECORD));
	if (checksum_of(text + 33, line - 33) != (uint32_t)sum || memcmp(text + size - TAIL, tail, TAIL))
		return -1;
	return now < valid_until && valid_until - now <= VALID_SECONDS_MAX ? nodes : -1;
}

static const char *find(const char *records, long nodes, const char *name)
{
	char key[NAME + 1];
	snprintf(key, sizeof key, "%-64s", name);
	for (long low = 0, high = nodes; low < high;) {
		long middle = (low + high) / 2;
		int order = memcmp(key, records + middle * RECORD, NAME);
		if (!order)
			return records + middle * RECORD;
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

int main(int count, char **arguments)
{
	if (count < 2 || count > 3)
		return 2;
	struct stat status;
	int file = open(arguments[1], O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	if (file < 0 || fstat(file, &status) || !is_trusted(arguments[1], &status) || status.st_size > FILE_MAX_BYTES)
		return puts("not used"), 1;
	/* Read, not mapped: a file that is cut short while it is mapped kills the reader. */
	char *text = malloc(FILE_MAX_BYTES + 1);
	size_t size = 0;
	for (ssize_t got; text && (got = read(file, text + size, FILE_MAX_BYTES + 1 - size)) > 0;)
		size += got;
	const char *records;
	long nodes = text ? check(text, size, time(NULL), &records) : -1;
	if (nodes < 0)
		return puts("not used"), 1;
	printf("valid, %ld nodes\n", nodes);
	if (count == 2)
		return 0;
	const char *found = find(records, nodes, arguments[2]);
	if (!found)
		return puts("no such node"), 4;
	printf("%.*s\n", RECORD - 1, found);
	return 0;
}
