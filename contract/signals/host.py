"""Signals of the host: CPU, memory, clock, settings, NUMA, power, tasks, services, kernel log, kubelet."""

from ..signal import Kind, Pace, Signal

HOST_TEXT = """The host as a whole. Device: `host`."""

HOST_SIGNALS = (
    Signal(100, "host.cpu_user_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu user+nice", "share of all cores' time since the last reading"),
    Signal(101, "host.cpu_system_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu system+irq+softirq", "share of all cores' time in the kernel"),
    Signal(102, "host.cpu_idle_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu idle", "share of all cores' time with nothing to do"),
    Signal(103, "host.cpu_iowait_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu iowait", "share of all cores' time idle with I/O outstanding"),
    Signal(104, "host.cpu_steal_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu steal", "share of all cores' time that the hypervisor gave to others"),
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
    Signal(116, "host.memory_available_bytes", Kind.GAUGE, Pace.SECOND, "/proc/meminfo MemAvailable", "memory available without swapping"),
    Signal(117, "host.memory_dirty_bytes", Kind.GAUGE, Pace.SECOND, "/proc/meminfo Dirty", "data written by programs and not yet on the disk; a checkpoint shows here"),
    Signal(118, "host.swap_used_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/meminfo SwapTotal-SwapFree", "memory swapped out"),
    Signal(119, "host.hugepages_free_pages", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/meminfo HugePages_Free", "reserved huge pages not in use"),
    Signal(120, "host.oom_kills_count", Kind.COUNTER, Pace.TEN_SECONDS, "/proc/vmstat oom_kill", "processes that the kernel killed because memory ran out", on_change=True),
    Signal(121, "host.uptime_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/uptime", "time since boot"),
    Signal(122, "host.load_1m_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/loadavg / cores", "run queue per core, one minute mean"),
    Signal(123, "host.cpu_frequency_hertz", Kind.GAUGE, Pace.TEN_SECONDS, "cpufreq scaling_cur_freq, mean of 32 cores at most", "present clock of the cores"),
    Signal(124, "host.cpu_throttles_count", Kind.COUNTER, Pace.TEN_SECONDS, "cpu*/thermal_throttle/package_throttle_count, sum of packages", "times a CPU package was throttled by heat", on_change=True),
    Signal(1870, "host.cpu_interrupt_ratio", Kind.GAUGE, Pace.SECOND, "/proc/stat cpu irq+softirq", "share of all cores' time in interrupts; also within host.cpu_system_ratio"),
    Signal(1871, "host.cpu_busiest_core_number", Kind.STATE, Pace.SECOND, "/proc/stat cpuN", "number of the busiest core"),
    Signal(1872, "host.cores_saturated_count", Kind.GAUGE, Pace.SECOND, "/proc/stat cpuN", "cores that were busy for at least 95 % of the time"),
    Signal(1873, "host.interrupts_count", Kind.COUNTER, Pace.SECOND, "/proc/stat intr", "interrupts since boot"),
    Signal(1874, "host.softirqs_count", Kind.COUNTER, Pace.SECOND, "/proc/stat softirq", "soft interrupts since boot"),
    Signal(1875, "host.pressure_cpu_some_microseconds", Kind.COUNTER, Pace.SECOND, "/proc/pressure/cpu some total", "time that some task waited for a core; exact, while avg10 lags"),
    Signal(1876, "host.pressure_memory_some_microseconds", Kind.COUNTER, Pace.SECOND, "/proc/pressure/memory some total", "time that some task waited for memory"),
    Signal(1877, "host.pressure_memory_full_microseconds", Kind.COUNTER, Pace.SECOND, "/proc/pressure/memory full total", "time that all tasks waited for memory"),
    Signal(1878, "host.pressure_io_some_microseconds", Kind.COUNTER, Pace.SECOND, "/proc/pressure/io some total", "time that some task waited for I/O"),
    Signal(1879, "host.pressure_io_full_microseconds", Kind.COUNTER, Pace.SECOND, "/proc/pressure/io full total", "time that all tasks waited for I/O"),
    Signal(1881, "host.cpu_frequency_min_hertz", Kind.GAUGE, Pace.TEN_SECONDS, "cpufreq scaling_cur_freq, lowest", "clock of the slowest core; an idle core may be slow"),
    Signal(1882, "host.cpu_frequency_max_hertz", Kind.GAUGE, Pace.TEN_SECONDS, "cpufreq scaling_cur_freq, highest", "clock of the fastest core; if it is slow on a busy host, the host is throttled"),
    Signal(1883, "host.cpu_core_throttles_count", Kind.COUNTER, Pace.TEN_SECONDS, "cpu*/thermal_throttle/core_throttle_count, sum of cores", "times a core was throttled by heat", on_change=True),
    Signal(1884, "host.cpu_throttled_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, "cpu*/thermal_throttle/package_throttle_total_time_ms, sum of packages", "how long CPU packages were throttled by heat", on_change=True),
    Signal(1886, "host.file_cache_active_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/meminfo Active(file)", "cached file data that was read more than once: the page cache in use"),
    Signal(1885, "host.memory_corrupted_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/meminfo HardwareCorrupted", "memory that the kernel retired after uncorrectable errors"),
)

CPU_TEXT = """Each core. Device: `cpu17`.

Values are means over a minute, because at 1 s the cores of a large host would have thirty times the rows of its GPUs.
The busiest core of each second is in `host.cpu_busiest_core_ratio` and `host.cpu_busiest_core_number`.
"""

CPU_SIGNALS = (
    Signal(1890, "cpu.busy_ratio", Kind.GAUGE, Pace.MINUTE, "/proc/stat cpuN, all but idle and iowait", "share of the core's time since the last reading in which it was needed: it worked, or the hypervisor gave it to others"),
    Signal(1891, "cpu.system_ratio", Kind.GAUGE, Pace.MINUTE, "/proc/stat cpuN system+irq+softirq", "share of the core's time in the kernel"),
    Signal(1892, "cpu.interrupt_ratio", Kind.GAUGE, Pace.MINUTE, "/proc/stat cpuN irq+softirq", "share of the core's time in interrupts; a NIC whose queues all end on one core shows here"),
    Signal(1893, "cpu.steal_ratio", Kind.GAUGE, Pace.MINUTE, "/proc/stat cpuN steal", "share of the core's time that the hypervisor gave to others"),
    Signal(1894, "cpu.frequency_hertz", Kind.GAUGE, Pace.MINUTE, "cpuN/cpufreq/scaling_cur_freq, of 64 cores at most", "present clock of the core. A read may take 10 ms (x86 before Linux 5.18), so larger hosts read only every second, third ... core"),
)

CLOCK_TEXT = """The system clock, as the kernel knows it. Device: `host`.

The kernel repeats the values of the daemon that adjusts its clock. chrony does not use the kernel's offset, but reports
its errors. A daemon that adjusts only the frequency (phc2sys) may leave the state unsynchronised.
"""

CLOCK_SIGNALS = (
    Signal(1940, "clock.offset_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "adjtimex(2) offset, ns with STA_NANO, else us", "the correction that the clock still needs; negative: it is ahead"),
    Signal(1941, "clock.error_estimated_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "adjtimex(2) esterror", "the daemon's estimate of the clock's error"),
    Signal(1942, "clock.error_max_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "adjtimex(2) maxerror", "largest possible error of the clock; the kernel raises it by 0.5 ms a second until the daemon's next update, up to 16 s"),
    Signal(1943, "clock.frequency_offset_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "adjtimex(2) freq, ppm / 2^16", "correction of the oscillator: 1e-6 is a microsecond a second"),
    Signal(1944, "clock.synchronised_state", Kind.STATE, Pace.TEN_SECONDS, "adjtimex(2) status without STA_UNSYNC", "1: a daemon synchronizes the clock; 0: none does"),
    Signal(1945, "clock.leap_state", Kind.STATE, Pace.TEN_SECONDS, "adjtimex(2) result", "0 none, 1 a second will be inserted today, 2 one will be left out, 3 it is being inserted, 4 it has been, 5 not synchronised"),
    Signal(1946, "clock.status_flags", Kind.STATE, Pace.TEN_SECONDS, "adjtimex(2) status", "STA_* of sys/timex.h: 1 PLL, 2 PPS frequency, 4 PPS time, 16 insert, 32 delete, 64 unsynchronised, 8192 nanoseconds, ..."),
    Signal(1947, "clock.tai_offset_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "adjtimex(2) tai", "TAI - UTC; 0 if unset"),
)

SETTINGS_TEXT = """Settings of the host that decide speed. Device: `host`. Settings that are text are in the inventory."""

SETTINGS_SIGNALS = (
    Signal(1950, "settings.cpu_governor_other_ratio", Kind.GAUGE, Pace.MINUTE, "cpufreq/policyN/scaling_governor", "share of the frequency domains whose governor is not `performance`"),
    Signal(1951, "settings.cpu_energy_preference_other_ratio", Kind.GAUGE, Pace.MINUTE, "cpufreq/policyN/energy_performance_preference", "share of the frequency domains that are not set to prefer performance over energy"),
    Signal(1952, "settings.smt_state", Kind.STATE, Pace.MINUTE, "cpu/smt/control", "0 off, 1 on, 2 off for good, 3 the processor has none, 4 the kernel cannot"),
    Signal(1953, "settings.turbo_state", Kind.STATE, Pace.MINUTE, "cpu/intel_pstate/no_turbo (turned round), else cpufreq/boost", "1: cores may run above their base frequency"),
    Signal(1954, "settings.idle_latency_max_microseconds", Kind.GAUGE, Pace.MINUTE, "cpuN/cpuidle/stateN/latency of states that are not disabled, first core of each package", "longest wake-up latency of an allowed idle state (C-state)"),
    Signal(1955, "settings.transparent_hugepages_state", Kind.STATE, Pace.MINUTE, "kernel/mm/transparent_hugepage/enabled", "0 never, 1 madvise, 2 always"),
    Signal(1956, "settings.transparent_hugepages_defrag_state", Kind.STATE, Pace.MINUTE, "kernel/mm/transparent_hugepage/defrag", "0 never, 1 madvise, 2 defer, 3 defer+madvise, 4 always (allocations may stall)"),
    Signal(1957, "settings.numa_balancing_flags", Kind.STATE, Pace.MINUTE, "/proc/sys/kernel/numa_balancing", "0 off, 1 pages follow their tasks, 2 between memory tiers; costs page faults"),
    Signal(1958, "settings.zone_reclaim_flags", Kind.STATE, Pace.MINUTE, "/proc/sys/vm/zone_reclaim_mode", "not 0: a full node reclaims its own pages before it uses other nodes"),
    Signal(1959, "settings.swappiness_number", Kind.GAUGE, Pace.MINUTE, "/proc/sys/vm/swappiness", "how readily the kernel swaps, 0 to 200"),
    Signal(1960, "settings.pcie_aspm_policy_state", Kind.STATE, Pace.MINUTE, "module/pcie_aspm/parameters/policy", "0 default (the firmware's), 1 performance, 2 powersave, 3 powersupersave"),
    Signal(1961, "settings.clocksource_state", Kind.STATE, Pace.MINUTE, "clocksource/clocksource0/current_clocksource", "0 another, 1 tsc, 2 arch_sys_counter, 3 kvm-clock, 4 Hyper-V, 10 hpet, 11 acpi_pm, 12 jiffies; from 10 on each read of the clock is slow: the kernel found the TSC unstable"),
    Signal(1962, "settings.gpu_peer_memory_state", Kind.STATE, Pace.MINUTE, "module/nvidia_peermem, module/nv_peer_mem; only with module/nvidia", "module that gives RDMA access to GPU memory: 0 none, 1 nvidia_peermem, 2 nv_peer_mem"),
    Signal(1963, "settings.gpu_open_module_state", Kind.STATE, Pace.MINUTE, "/proc/driver/nvidia/version", "1: the driver's kernel modules are the open ones, which DMA-BUF needs to give RDMA GPU memory; 0: the closed ones"),
    Signal(1964, "settings.kernel_taint_flags", Kind.STATE, Pace.MINUTE, "/proc/sys/kernel/tainted", "earlier problems of the kernel: 16 a machine check, 32 a bad page, 128 an oops, 512 a warning, 16384 a soft lockup; 1, 4096 and 8192 are modules"),
    Signal(1965, "settings.memory_maps_max_count", Kind.GAUGE, Pace.MINUTE, "/proc/sys/vm/max_map_count", "mappings that a process may have; a loader of many shards runs out"),
    Signal(1966, "settings.threads_max_count", Kind.GAUGE, Pace.MINUTE, "/proc/sys/kernel/threads-max", "threads that the host may have"),
    Signal(1967, "settings.process_ids_max_count", Kind.GAUGE, Pace.MINUTE, "/proc/sys/kernel/pid_max", "largest number of process ids"),
    Signal(1968, "settings.open_files_count", Kind.GAUGE, Pace.MINUTE, "/proc/sys/fs/file-nr, first number", "file handles in use on the host"),
    Signal(1969, "settings.open_files_max_count", Kind.GAUGE, Pace.MINUTE, "/proc/sys/fs/file-nr, third number", "largest number of file handles"),
    Signal(1970, "settings.socket_receive_buffer_max_bytes", Kind.GAUGE, Pace.MINUTE, "/proc/sys/net/core/rmem_max", "largest receive buffer that a socket may ask for; NCCL over TCP"),
    Signal(1971, "settings.socket_send_buffer_max_bytes", Kind.GAUGE, Pace.MINUTE, "/proc/sys/net/core/wmem_max", "largest send buffer that a socket may ask for"),
    Signal(1972, "settings.cores_isolated_count", Kind.GAUGE, Pace.MINUTE, "cpu/isolated", "cores that the scheduler leaves alone (isolcpus)"),
    Signal(1973, "settings.gpu_direct_storage_state", Kind.STATE, Pace.MINUTE, "module/nvidia_fs; only with module/nvidia", "1: storage reads and writes GPU memory without the host's memory (GPUDirect Storage)"),
)

NUMA_TEXT = """NUMA nodes. Device: `node0`."""

NUMA_SIGNALS = (
    Signal(200, "numa.memory_total_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "node/nodeN/meminfo MemTotal", "memory of the node"),
    Signal(201, "numa.memory_free_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "node/nodeN/meminfo MemFree", "memory free on the node"),
    Signal(202, "numa.hit_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat numa_hit", "pages allocated on the preferred node"),
    Signal(203, "numa.miss_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat numa_miss", "pages allocated here that prefer another node"),
    Signal(204, "numa.foreign_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat numa_foreign", "pages that prefer this node and came from another one"),
    Signal(205, "numa.cores_count", Kind.GAUGE, Pace.MINUTE, "node/nodeN/cpulist", "cores of the node"),
    Signal(1900, "numa.interleave_hit_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat interleave_hit", "pages of interleaved memory allocated on the intended node"),
    Signal(1901, "numa.local_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat local_node", "pages allocated here by a task that ran here"),
    Signal(1902, "numa.other_pages", Kind.COUNTER, Pace.TEN_SECONDS, "node/nodeN/numastat other_node", "pages allocated here by a task on another node, far from its memory"),
    Signal(1903, "numa.cpu_busy_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/stat cpuN of the node's cores", "share of the node's cores' time that was not idle, since the last reading"),
    Signal(1904, "numa.cpu_busiest_core_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/stat cpuN of the node's cores", "the busiest single core of the node"),
)

L3_TEXT = """Memory traffic of each L3 cache, where the kernel counts it (Intel RDT, AMD QoS, Arm MPAM) and resctrl is mounted. Device: `0`, and `GROUP/0` for the tasks of another control group; a host's traffic is the sum of all its devices."""

L3_SIGNALS = (
    Signal(1905, "l3.memory_bytes", Kind.COUNTER, Pace.SECOND, "resctrl/mon_data/mon_L3_NN/mbm_total_bytes", "bytes between the cache and memory, of this node and of others"),
    Signal(1906, "l3.local_memory_bytes", Kind.COUNTER, Pace.SECOND, "mbm_local_bytes", "the part from and to the memory of the cache's own node"),
)

HUGEPAGES_TEXT = """Huge pages of each NUMA node. Device: `node0/2048kB`."""

HUGEPAGES_SIGNALS = (
    Signal(1910, "hugepages.page_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "node/nodeN/hugepages/hugepages-SIZE", "size of one page"),
    Signal(1911, "hugepages.total_pages", Kind.GAUGE, Pace.TEN_SECONDS, "nr_hugepages", "pages reserved on the node"),
    Signal(1912, "hugepages.free_pages", Kind.GAUGE, Pace.TEN_SECONDS, "free_hugepages", "reserved pages not in use"),
    Signal(1913, "hugepages.surplus_pages", Kind.GAUGE, Pace.TEN_SECONDS, "surplus_hugepages", "pages above the reserve, taken from normal memory"),
)

EDAC_TEXT = """Errors of host memory, as the EDAC drivers count them. Device: `mc0/dimm3` (`mc0/csrow2` and `mc0/csrow2/ch0` with kernels that do not list DIMMs), and the controller `mc0` with the sum of its own.

The counters belong to the kernel's driver. They restart when it is loaded, and can be reset by hand.
"""

EDAC_SIGNALS = (
    Signal(1930, "edac.corrected_errors", Kind.COUNTER, Pace.TEN_SECONDS, "edac/mc/mcN/dimmN/dimm_ce_count; mcN/ce_count; csrowN/chN_ce_count", "memory errors that ECC corrected", width_bits=32, on_change=True),
    Signal(1931, "edac.uncorrected_errors", Kind.COUNTER, Pace.TEN_SECONDS, "edac/mc/mcN/dimmN/dimm_ue_count; mcN/ue_count; csrowN/ue_count; csrowN/chN_ue_count", "memory errors that ECC could not correct", width_bits=32, on_change=True),
    Signal(1932, "edac.corrected_unlocated_errors", Kind.COUNTER, Pace.TEN_SECONDS, "edac/mc/mcN/ce_noinfo_count", "corrected errors that the controller could not assign to a DIMM", width_bits=32, on_change=True),
    Signal(1933, "edac.uncorrected_unlocated_errors", Kind.COUNTER, Pace.TEN_SECONDS, "edac/mc/mcN/ue_noinfo_count", "uncorrected errors that the controller could not assign to a DIMM", width_bits=32, on_change=True),
)

POWER_TEXT = """Power and heat of the host. Device: RAPL zone (`intel-rapl:0`), or hwmon sensor by chip and the chip's device
(`coretemp@coretemp.0/temp1`): the numbers of hwmon folders change from boot to boot.

Power is read each second. Temperatures, fans and voltages are read every 10 s, because many reads query a device or
wake a core.
"""

POWER_SIGNALS = (
    Signal(700, "rapl.energy_joules", Kind.GAUGE, Pace.SECOND, "class/powercap/intel-rapl*/energy_uj, unwrapped at its max_energy_range_uj", "energy since the agent started"),
    Signal(701, "rapl.power_limit_watts", Kind.GAUGE, Pace.TEN_SECONDS, "constraint_0_power_limit_uw", "long-term cap of the package"),
    Signal(710, "hwmon.power_watts", Kind.GAUGE, Pace.SECOND, "class/hwmon/*/power*_input or _average", "power at a sensor; of the whole node if the BMC shows it over ACPI (`power_meter`)"),
    Signal(711, "hwmon.temperature_celsius", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/temp*_input", "temperature at a sensor"),
    Signal(712, "hwmon.temperature_critical_celsius", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/temp*_crit", "temperature that the sensor calls critical"),
    Signal(1920, "hwmon.fan_speed_hertz", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/fan*_input, rpm / 60", "rotations of a fan per second; 0: it does not turn"),
    Signal(1921, "hwmon.voltage_volts", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/in*_input", "voltage at a sensor"),
    Signal(1922, "hwmon.power_cap_watts", Kind.GAUGE, Pace.TEN_SECONDS, "class/hwmon/*/power*_cap", "power limit of the sensor's device"),
)

TASKS_TEXT = """Processes and threads that wait in the kernel and cannot be interrupted (state D). Device: `host`.

SIGKILL does not end a task in state D. A moment in this state is normal; a minute with a GPU open is a hang. Each pass
checks tasks that hold a GPU, are new or were blocked, and 512 of the others. Of three thousand tasks, one that blocks
is found within a minute.
"""

TASKS_SIGNALS = (
    Signal(2120, "tasks.processes_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc", "processes, including kernel threads; above 16384 not all are checked, and all counts are missing"),
    Signal(2121, "tasks.blocked_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/stat state D", "processes whose main thread is in uninterruptible wait, without kernel threads"),
    Signal(2122, "tasks.blocked_kernel_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/stat state D, PF_KTHREAD", "kernel threads in uninterruptible wait"),
    Signal(2123, "tasks.blocked_longest_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/stat at each look", "longest time that one task, by PID and start, was blocked at every check; without kernel threads"),
    Signal(2124, "tasks.blocked_gpu_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/task/TID/stat, /proc/PID/fd", "threads in uninterruptible wait of processes that have /dev/nvidiaN open: a hung driver or storage under a job"),
    Signal(2125, "tasks.blocked_gpu_longest_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/task/TID/stat, /proc/PID/fd", "longest time that one of them was blocked at every check"),
    Signal(2126, "tasks.gpu_holders_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/fd", "processes that have /dev/nvidiaN open, checked each minute; they may not use the GPU"),
    Signal(2127, "tasks.zombies_count", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/PID/stat state Z", "ended processes whose parent has not collected their status"),
    Signal(2128, "tasks.hung_detected_count", Kind.COUNTER, Pace.TEN_SECONDS, "/proc/sys/kernel/hung_task_detect_count", "tasks that the kernel reported as hung since boot; Linux 6.13 and later"),
)

SERVICE_TEXT = """Services that decide whether a GPU host can work. Device: the unit (`nvidia-fabricmanager`).

A service that is neither installed nor running has no row. Fabric Manager decides only where there are
NVSwitches (PCI class 0x0680 of vendor 0x10de): without it such a GPU starts no job.
"""

SERVICE_SIGNALS = (
    Signal(2140, "service.running_state", Kind.STATE, Pace.MINUTE, "unit files, cgroup of the unit, /proc/PID/stat, /run/systemd/units", "1 running (for a one-shot unit: active), 2 installed and not running; in a container its process is checked"),
    Signal(2141, "service.enabled_state", Kind.STATE, Pace.MINUTE, "*.wants, *.requires of systemd", "1: enabled at boot. With running_state 2, a 1 here means a failure, and a 0 a choice"),
    Signal(2142, "service.running_seconds", Kind.GAUGE, Pace.MINUTE, "/proc/PID/stat starttime of its oldest process", "time since its start; a decrease means a restart"),
)

KERNEL_LOG_TEXT = """The kernel log: counts of its reader, and the events made from its lines. Device of `kernel_log.*`: `host`."""

KERNEL_LOG_SIGNALS = (
    Signal(2200, "kernel_log.read_count", Kind.COUNTER, Pace.TEN_SECONDS, "/dev/kmsg", "records read since the agent started, of the kernel's and of others"),
    Signal(2201, "kernel_log.told_events", Kind.COUNTER, Pace.TEN_SECONDS, "agent.kernel_log", "events reported since the agent started; a storm of one incident counts once"),
    Signal(2202, "kernel_log.lost_count", Kind.COUNTER, Pace.TEN_SECONDS, "/dev/kmsg EPIPE, sequence numbers", "records that were overwritten before they were read, since the agent started"),
    Signal(2203, "kernel_log.not_understood_count", Kind.COUNTER, Pace.TEN_SECONDS, "/dev/kmsg EINVAL, agent.kernel_log", "records that are too long or malformed, since the agent started"),
    Signal(2204, "kernel_log.incidents_count", Kind.GAUGE, Pace.TEN_SECONDS, "agent.kernel_log", "incidents that may continue: their last line is less than 60 s old"),
    Signal(2210, "nvswitch.sxid", Kind.EVENT, Pace.EVENT, "kernel log: nvidia-nvswitch SXid; DCGM fields 782, 783, 856, 857", "an NVSwitch reported an SXID; code in `code`, link and severity in the attributes"),
    Signal(2212, "gpu.driver_message", Kind.EVENT, Pace.EVENT, "kernel log: NVRM", "the driver reported a serious problem without an XID; code 0: read its message, 1: the GPU's firmware or an engine does not respond, 2: the driver cannot initialize the GPU"),
    Signal(2227, "gpu.needs_reset", Kind.EVENT, Pace.EVENT, "kernel log: NVRM, nvidia-uvm, nvidia-modeset", "the driver reported, without an XID, that a GPU must be reset"),
    Signal(2228, "gpu.needs_reboot", Kind.EVENT, Pace.EVENT, "kernel log: NVRM, nvidia-uvm", "the driver reported, without an XID, that the host must reboot"),
    Signal(2720, "gpu.ras_error", Kind.EVENT, Pace.EVENT, "kernel log: amdgpu", "an AMD GPU's RAS reports errors: code 0 repaired, 1 not repaired, 2 deferred, 3 more bad pages than the driver's threshold; the block in `block`"),
    Signal(2721, "gpu.hang", Kind.EVENT, Pace.EVENT, "kernel log: amdgpu", "a queue of an AMD GPU does not advance: code 0: the driver resets it, 1: it recovered by itself, 2: the queue, its scheduler firmware (MES, HWS, KIQ) or the SMU does not respond"),
    Signal(2722, "gpu.reset", Kind.EVENT, Pace.EVENT, "kernel log: amdgpu", "the driver resets an AMD GPU; code 0: the reset begins, 1: it failed"),
    Signal(2213, "pcie.aer", Kind.EVENT, Pace.EVENT, "kernel log: AER, DPC, pciehp", "a PCIe error was reported; code 0: corrected, 1: non-fatal, 2: fatal or not recovered, or the link or card of a slot is gone"),
    Signal(2214, "host.hardware_error", Kind.EVENT, Pace.EVENT, "kernel log: GHES, BERT", "the firmware reported an error; code 0: recoverable, 1: fatal, 2: corrected, 3: information"),
    Signal(2215, "host.machine_check", Kind.EVENT, Pace.EVENT, "kernel log: mce", "a machine check; code 0: corrected, 1: uncorrected"),
    Signal(2216, "host.memory_error", Kind.EVENT, Pace.EVENT, "kernel log: EDAC, memory failure", "a memory error of a DIMM; code 0: corrected, 1: uncorrected"),
    Signal(2217, "rdma.driver_error", Kind.EVENT, Pace.EVENT, "kernel log: drivers of RDMA adapters (mlx5_core, bnxt_en, bnxt_re, ionic, ice, irdma, mana, hns3), netdev watchdog", "the driver reports a problem of its adapter: queues, firmware, cable, heat; code 0: an error, 1: the PCIe slot supplies less power than requested"),
    Signal(2218, "net.link_message", Kind.EVENT, Pace.EVENT, "kernel log: network drivers, bonding", "a driver says that a link changed; code 0: down, 1: up"),
    Signal(2219, "host.out_of_memory", Kind.EVENT, Pace.EVENT, "kernel log: mm/oom_kill", "a process was killed because memory ran out; its cgroup is in the attributes"),
    Signal(2220, "host.hung_task", Kind.EVENT, Pace.EVENT, "kernel log: hung_task, unregister_netdevice", "a task did not run for two minutes and more, or a network interface cannot be freed; code 0: under ten minutes, 1: ten minutes or longer"),
    Signal(2221, "host.lockup", Kind.EVENT, Pace.EVENT, "kernel log: watchdog, rcu", "a CPU is locked up; code 0: soft, 1: hard, 2: RCU stall, 3: soft, and it lasts for two minutes or longer"),
    Signal(2222, "filesystem.error", Kind.EVENT, Pace.EVENT, "kernel log: ext4, xfs, btrfs, jbd2, nfs, Lustre, LNet, ceph, beegfs", "a file system is damaged or unreachable; code 0: error, 1: it was remounted read-only, 2: one of its servers does not respond"),
    Signal(2223, "disk.error", Kind.EVENT, Pace.EVENT, "kernel log: block layer, nvme, ata, md", "a disk failed a request or does not answer; code 0: error, 1: the kernel removed or disabled it"),
    Signal(2224, "host.kernel_fault", Kind.EVENT, Pace.EVENT, "kernel log: BUG, Oops, panic", "the kernel itself failed and is no longer reliable"),
    Signal(2225, "host.kernel_log_lost", Kind.EVENT, Pace.EVENT, "/dev/kmsg", "records were overwritten before they were read; `count` is their number"),
    Signal(2226, "rdma.adapter_failed", Kind.EVENT, Pace.EVENT, "kernel log: mlx5_core, efa, bnxt_en, ionic, ice, mana, hns3", "an adapter's firmware does not answer, or its driver abandoned it; the attribute `state` is `back` when it answers again"),
)

KUBELET_TEXT = """The kubelet's allocations on this host. Device: `host`. The event `gpu.allocation` says which pod holds which GPU."""

KUBELET_SIGNALS = (
    Signal(2400, "kubelet.containers_count", Kind.GAUGE, Pace.TEN_SECONDS, "PodResourcesLister/List over pod-resources/kubelet.sock", "containers that hold a GPU, or a part of one", on_change=True),
    Signal(2401, "kubelet.gpus_count", Kind.GAUGE, Pace.TEN_SECONDS, "PodResourcesLister/List", "distinct GPUs and MIG devices that containers hold; they may not use them", on_change=True),
    Signal(2410, "gpu.allocation", Kind.EVENT, Pace.EVENT, "PodResourcesLister/List", "container that holds the GPU according to the kubelet; one event for each allocation, sent again when it ends"),
)
