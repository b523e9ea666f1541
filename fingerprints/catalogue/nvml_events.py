"""NVML's event set, as one listener of the host. Device: `host`. The events themselves are of their GPUs."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(1490, "nvml_events.received_events", Kind.COUNTER, Pace.TEN_SECONDS, "nvmlEventSetWait_v2", "events that NVML delivered", on_change=True),
    Signal(1491, "nvml_events.told_by_kernel_log_events", Kind.COUNTER, Pace.TEN_SECONDS, "agent", "XIDs of them that the kernel log showed as well, and that were told from there, once", on_change=True),
    Signal(1492, "nvml_events.failed_waits_errors", Kind.COUNTER, Pace.TEN_SECONDS, "agent", "waits that ended in an error; the set is then made anew", on_change=True),
    Signal(2323, "nvml_events.driver_calls_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent", "calls into the driver that this agent has made, on all GPUs and on none", on_change=True),
    Signal(1495, "gpu.driver_event", Kind.EVENT, Pace.EVENT, "NVML events: ECC, MIG configuration, page retirement, poison, GPU unavailable, recovery action", "the driver reported it without an XID; NVML's event type in `code`"),
)
