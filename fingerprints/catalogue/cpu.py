"""Each core. Device: `cpu17`.

Once a minute, as a mean over that minute: at 1 s the cores of a large host would be thirty times the rows of its
GPUs. What one core does within a second shows in `host.cpu_busiest_core_ratio`, its number beside it.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(1890, "cpu.busy_ratio", Kind.GAUGE, Pace.MINUTE, "/proc/stat cpuN, all but idle and iowait", "share of the core's time since the last reading that it was wanted: it worked, or the hypervisor had given it to others"),
    Signal(1891, "cpu.system_ratio", Kind.GAUGE, Pace.MINUTE, "/proc/stat cpuN system+irq+softirq", "share of the core's time in the kernel"),
    Signal(1892, "cpu.interrupt_ratio", Kind.GAUGE, Pace.MINUTE, "/proc/stat cpuN irq+softirq", "share of the core's time in interrupts; a NIC whose queues all end on one core shows here"),
    Signal(1893, "cpu.steal_ratio", Kind.GAUGE, Pace.MINUTE, "/proc/stat cpuN steal", "share of the core's time that the hypervisor gave to others"),
    Signal(1894, "cpu.frequency_hertz", Kind.GAUGE, Pace.MINUTE, "cpuN/cpufreq/scaling_cur_freq, of 64 cores at most", "what the core runs at now; each may take 10 ms to read (x86 before Linux 5.18), so that of a larger host only each second, third ... core is asked"),
)
