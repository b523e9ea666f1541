"""The host as a whole. Device: `host`."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(100, "host.cpu_user_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu user+nice", "share of all cores' time since the last reading"),
    Signal(101, "host.cpu_system_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu system+irq+softirq", "share of all cores' time in the kernel"),
    Signal(102, "host.cpu_idle_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu idle", "share of all cores' time with nothing to do"),
    Signal(103, "host.cpu_iowait_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu iowait", "share of all cores' time idle with I/O outstanding"),
    Signal(104, "host.cpu_steal_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu steal", "time the hypervisor gave to others"),
    Signal(105, "host.cpu_busiest_core_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpuN", "the busiest single core; a data loader pinned to one core hides in the mean"),
    Signal(106, "host.runnable_count", Kind.GAUGE, Pace.SECOND, "/proc/stat procs_running", "tasks that could run now"),
    Signal(107, "host.blocked_count", Kind.GAUGE, Pace.SECOND, "/proc/stat procs_blocked", "tasks in uninterruptible wait"),
    Signal(108, "host.context_switches_count", Kind.COUNTER, Pace.SECOND, "/proc/stat ctxt", "context switches since boot"),
    Signal(109, "host.cores_count", Kind.GAUGE, Pace.MINUTE, "/proc/stat cpuN lines", "online cores"),
    Signal(110, "host.pressure_cpu_some_ratio", Kind.GAUGE, Pace.SECOND, "/proc/pressure/cpu some avg10", "share of time some task waited for a core"),
    Signal(111, "host.pressure_memory_some_ratio", Kind.GAUGE, Pace.SECOND, "/proc/pressure/memory some avg10", "share of time some task waited for memory"),
    Signal(112, "host.pressure_memory_full_ratio", Kind.GAUGE, Pace.SECOND, "/proc/pressure/memory full avg10", "share of time all tasks waited for memory"),
    Signal(113, "host.pressure_io_some_ratio", Kind.GAUGE, Pace.SECOND, "/proc/pressure/io some avg10", "share of time some task waited for I/O"),
    Signal(114, "host.pressure_io_full_ratio", Kind.GAUGE, Pace.SECOND, "/proc/pressure/io full avg10", "share of time all tasks waited for I/O"),
    Signal(115, "host.memory_total_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/meminfo MemTotal", "memory of the host"),
    Signal(116, "host.memory_available_bytes", Kind.GAUGE, Pace.SECOND, "/proc/meminfo MemAvailable", "memory to be had without swapping"),
    Signal(117, "host.memory_dirty_bytes", Kind.GAUGE, Pace.SECOND, "/proc/meminfo Dirty", "written by programs, not yet by the disk; a checkpoint shows here"),
    Signal(118, "host.swap_used_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/meminfo SwapTotal-SwapFree", "memory swapped out"),
    Signal(119, "host.hugepages_free_pages", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/meminfo HugePages_Free", "reserved huge pages not in use"),
    Signal(120, "host.oom_kills_count", Kind.COUNTER, Pace.TEN_SECONDS, "/proc/vmstat oom_kill", "processes the kernel killed for memory", on_change=True),
    Signal(121, "host.uptime_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/uptime", "time since boot"),
    Signal(122, "host.load_1m_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/loadavg / cores", "run queue per core, one minute mean"),
    Signal(123, "host.cpu_frequency_hertz", Kind.GAUGE, Pace.TEN_SECONDS, "cpufreq scaling_cur_freq, mean of cores", "what the cores run at now"),
    Signal(124, "host.cpu_throttles_count", Kind.COUNTER, Pace.TEN_SECONDS, "cpu*/thermal_throttle/package_throttle_count, sum of packages", "times a CPU package braked for heat", on_change=True),
)
