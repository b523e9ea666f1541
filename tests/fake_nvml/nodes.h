/* nodes.c: the device nodes that the real library holds open. */

#ifndef FAKE_NVML_NODES_H
#define FAKE_NVML_NODES_H

void nodes_open_control(void);
void nodes_open_gpu(unsigned int minor);
void nodes_close(void);

#endif
