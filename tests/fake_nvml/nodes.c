/* The driver's device nodes, which the real library holds open: /dev/nvidiactl from its first user to its last,
 * /dev/nvidiaN from the first handle of a GPU until the last user has shut down. They are in the test's folder
 * $GANGLINE_FAKE_NVML_NODES; without it no node is opened. */

#include "nodes.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { CONTROL = 0, NODES_MAX = 65 };

static int opened[NODES_MAX]; /* descriptor + 1; 0: not open */

static void open_one(int which, const char *name)
{
    const char *folder = getenv("GANGLINE_FAKE_NVML_NODES");
    char path[4096];
    if (!folder || which >= NODES_MAX || opened[which])
        return;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    opened[which] = open(path, O_RDWR | O_CLOEXEC) + 1;
}

void nodes_open_control(void) { open_one(CONTROL, "nvidiactl"); }

void nodes_open_gpu(unsigned int minor)
{
    char name[32];
    snprintf(name, sizeof name, "nvidia%u", minor);
    open_one(CONTROL + 1 + (int)minor, name);
}

void nodes_close(void)
{
    for (int which = 0; which < NODES_MAX; which++)
        if (opened[which]) {
            close(opened[which] - 1);
            opened[which] = 0;
        }
}
