/* A GPU whose answers come from a real process (`follow` in README.md). */

#ifndef FOLLOW_H
#define FOLLOW_H

struct gpu;

/* State of the process at a moment: time, time in which it wanted to compute, and units of work. */
struct followed {
    double seconds, busy_seconds, units;
};

/* Take the line `follow PID IDLE_WATTS WAIT_WATTS COMPUTE_WATTS [WAIT_SHARE UNITS_PER_SECOND_MAX FILE]`: 0, or 1. */
int follow_line(int number, const char *rest);
void follow_reset(void);
/* Set the values of the GPU with that number to the current state; no effect if it follows no process. */
void follow_update(struct gpu *gpu, int number);
/* Fill *sample*; 0 if the GPU follows no process. */
int follow_sample(int number, struct followed *sample);
/* Answer SM (1) or tensor (0) activity between two samples, in percent. */
double follow_percent(int number, const struct followed *first, const struct followed *second, int is_sm);

#endif
