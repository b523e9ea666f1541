"""Processes and threads that wait in the kernel and cannot be interrupted (state D). Device: `host`.

A task in D does not die of SIGKILL. A moment of it is ordinary; a minute with a GPU in hand is a hang.
Those that hold a GPU, are new or were blocked are looked at in each turn; of the others 512, so that of three
thousand one that blocks is seen within a minute.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(2120, "tasks.processes_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc", "processes, kernel threads among them; all counts are missing above 16384, when not all are looked at"),
    Signal(2121, "tasks.blocked_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/stat state D", "processes whose main thread is in uninterruptible wait, without the kernel's own"),
    Signal(2122, "tasks.blocked_kernel_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/stat state D, PF_KTHREAD", "kernel threads in uninterruptible wait"),
    Signal(2123, "tasks.blocked_longest_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/stat at each look", "longest time that one task, by PID and start, was found blocked at every look; without the kernel's own"),
    Signal(2124, "tasks.blocked_gpu_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/task/TID/stat, /proc/PID/fd", "threads in uninterruptible wait of processes that have /dev/nvidiaN open: a hung driver or storage under a job"),
    Signal(2125, "tasks.blocked_gpu_longest_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/task/TID/stat, /proc/PID/fd", "longest time that one of them was found blocked at every look"),
    Signal(2126, "tasks.gpu_holders_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/fd", "processes that have /dev/nvidiaN open, looked up each minute; holding is not using"),
    Signal(2127, "tasks.zombies_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/stat state Z", "ended processes that their parent has not taken notice of"),
    Signal(2128, "tasks.hung_detected_count", Kind.COUNTER, Pace.TEN_SECONDS, "/proc/sys/kernel/hung_task_detect_count", "tasks that the kernel itself found hung since boot; Linux 6.13 and later"),
)
