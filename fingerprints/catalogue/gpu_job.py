"""Whose the processes on each GPU are, counted. Device: the GPU. Who they are in names travels as `gpu.process`."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(2370, "gpu_job.processes_count", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetComputeRunningProcesses_v3, ...Graphics..., ...MPSCompute...", "processes that NVML lists on the GPU", on_change=True),
    Signal(2371, "gpu_job.jobs_count", Kind.GAUGE, Pace.SECOND, "/proc/PID/cgroup", "distinct Slurm jobs and pods among them; more than one share the GPU", on_change=True),
    Signal(2372, "gpu_job.in_jobs_count", Kind.GAUGE, Pace.SECOND, "/proc/PID/cgroup", "processes of Slurm jobs and pods", on_change=True),
    Signal(2373, "gpu_job.others_count", Kind.GAUGE, Pace.SECOND, "/proc/PID/cgroup", "processes of units, sessions and containers that belong to no scheduler", on_change=True),
    Signal(2374, "gpu_job.unknown_count", Kind.GAUGE, Pace.SECOND, "/proc/PID", "processes of which it is not known whose they are: hidden, of another PID namespace, in no group that tells", on_change=True),
    Signal(2375, "gpu_job.dead_count", Kind.GAUGE, Pace.SECOND, "/proc/PID/stat", "processes that NVML lists and that have ended at two looks: zombies, or gone from /proc. The GPU does not come back by itself", on_change=True),
    Signal(2376, "gpu_job.dead_memory_bytes", Kind.GAUGE, Pace.SECOND, "nvmlProcessInfo_t.usedGpuMemory", "GPU memory of processes that have ended: held by nobody; missing where NVML does not say how much", on_change=True),
    Signal(2380, "gpu.process", Kind.EVENT, Pace.EVENT, "NVML, /proc/PID/cgroup, stat, status; the ranks' helper", "whose a process on the GPU is: job, pod, unit, rank; one event for each process on each GPU, told again as it changes and ends"),
    Signal(2381, "gpu.told_anew", Kind.EVENT, Pace.EVENT, "the agent", "from when on every gpu.process of the GPU (or gpu.allocation of the host) that holds was told anew, after a restart: what was last told before has ended"),
)
