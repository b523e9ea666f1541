"""Processes on GPUs. Device: `GPU-uuid/PID`, under MIG `GPU-uuid/gi1/ci0/PID`."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(1470, "gpu_process.memory_used_bytes", Kind.GAUGE, Pace.SECOND, "nvmlDeviceGetComputeRunningProcesses_v3, ...Graphics..., ...MPSCompute...", "GPU memory that the process holds", on_change=True),
    Signal(1471, "gpu_process.kinds_flags", Kind.STATE, Pace.SECOND, "which of the three lists names it", "1 compute, 2 graphics, 4 client of an MPS server", on_change=True),
    Signal(1472, "gpu_process.start_nanoseconds", Kind.STATE, Pace.SECOND, "/proc/PID/stat field 22, from boot", "when the process started: with it the PID is one process, also when PIDs are dealt again", on_change=True),
    Signal(1473, "gpu_process.gpu_instance_number", Kind.STATE, Pace.SECOND, "nvmlProcessInfo_t.gpuInstanceId", "MIG GPU instance that it runs in", on_change=True),
    Signal(1474, "gpu_process.compute_instance_number", Kind.STATE, Pace.SECOND, "nvmlProcessInfo_t.computeInstanceId", "MIG compute instance that it runs in", on_change=True),
)
