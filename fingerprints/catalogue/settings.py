"""Settings of the host that decide speed. Device: `host`. What is a word rather than a number is in the inventory."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(1950, "settings.cpu_governor_other_ratio", Kind.GAUGE, Pace.MINUTE, "cpufreq/policyN/scaling_governor", "share of the frequency domains whose governor is not `performance`"),
    Signal(1951, "settings.cpu_energy_preference_other_ratio", Kind.GAUGE, Pace.MINUTE, "cpufreq/policyN/energy_performance_preference", "share of the frequency domains that are not to prefer performance over energy"),
    Signal(1952, "settings.smt_state", Kind.STATE, Pace.MINUTE, "cpu/smt/control", "0 off, 1 on, 2 off for good, 3 the processor has none, 4 the kernel cannot"),
    Signal(1953, "settings.turbo_state", Kind.STATE, Pace.MINUTE, "cpu/intel_pstate/no_turbo (turned round), else cpufreq/boost", "1: cores may run above their base frequency"),
    Signal(1954, "settings.idle_latency_max_microseconds", Kind.GAUGE, Pace.MINUTE, "cpuN/cpuidle/stateN/latency of states that are not disabled, first core of each package", "the longest that a core may take to wake from an idle state (C-state)"),
    Signal(1955, "settings.transparent_hugepages_state", Kind.STATE, Pace.MINUTE, "kernel/mm/transparent_hugepage/enabled", "0 never, 1 madvise, 2 always"),
    Signal(1956, "settings.transparent_hugepages_defrag_state", Kind.STATE, Pace.MINUTE, "kernel/mm/transparent_hugepage/defrag", "0 never, 1 madvise, 2 defer, 3 defer+madvise, 4 always (allocations may stall)"),
    Signal(1957, "settings.numa_balancing_flags", Kind.STATE, Pace.MINUTE, "/proc/sys/kernel/numa_balancing", "0 off, 1 pages follow their tasks, 2 between memory tiers; costs page faults"),
    Signal(1958, "settings.zone_reclaim_flags", Kind.STATE, Pace.MINUTE, "/proc/sys/vm/zone_reclaim_mode", "not 0: a full node reclaims its own pages before it asks the others"),
    Signal(1959, "settings.swappiness_number", Kind.GAUGE, Pace.MINUTE, "/proc/sys/vm/swappiness", "how readily the kernel swaps, 0 to 200"),
    Signal(1960, "settings.pcie_aspm_policy_state", Kind.STATE, Pace.MINUTE, "module/pcie_aspm/parameters/policy", "0 default (the firmware's), 1 performance, 2 powersave, 3 powersupersave"),
    Signal(1961, "settings.clocksource_state", Kind.STATE, Pace.MINUTE, "clocksource/clocksource0/current_clocksource", "0 another, 1 tsc, 2 arch_sys_counter, 3 kvm-clock, 4 Hyper-V, 10 hpet, 11 acpi_pm, 12 jiffies; from 10 on each look at the clock is slow: the kernel found the TSC unstable"),
    Signal(1962, "settings.gpu_peer_memory_state", Kind.STATE, Pace.MINUTE, "module/nvidia_peermem, module/nv_peer_mem; only with module/nvidia", "how RDMA may reach GPU memory by a module: 0 not, 1 nvidia_peermem, 2 nv_peer_mem"),
    Signal(1963, "settings.gpu_open_module_state", Kind.STATE, Pace.MINUTE, "/proc/driver/nvidia/version", "1: the driver's kernel modules are the open ones, which DMA-BUF needs to give RDMA GPU memory; 0: the closed ones"),
    Signal(1964, "settings.kernel_taint_flags", Kind.STATE, Pace.MINUTE, "/proc/sys/kernel/tainted", "what the kernel has gone through: 16 a machine check, 32 a bad page, 128 an oops, 512 a warning, 16384 a soft lockup; 1, 4096 and 8192 are modules"),
    Signal(1965, "settings.memory_maps_max_count", Kind.GAUGE, Pace.MINUTE, "/proc/sys/vm/max_map_count", "mappings that a process may have; a loader of many shards runs out"),
    Signal(1966, "settings.threads_max_count", Kind.GAUGE, Pace.MINUTE, "/proc/sys/kernel/threads-max", "threads that the host may have"),
    Signal(1967, "settings.process_ids_max_count", Kind.GAUGE, Pace.MINUTE, "/proc/sys/kernel/pid_max", "process ids that there are"),
    Signal(1968, "settings.open_files_count", Kind.GAUGE, Pace.MINUTE, "/proc/sys/fs/file-nr, first number", "file handles in use on the host"),
    Signal(1969, "settings.open_files_max_count", Kind.GAUGE, Pace.MINUTE, "/proc/sys/fs/file-nr, third number", "file handles that there may be"),
    Signal(1970, "settings.socket_receive_buffer_max_bytes", Kind.GAUGE, Pace.MINUTE, "/proc/sys/net/core/rmem_max", "largest receive buffer that a socket may ask for; NCCL over TCP"),
    Signal(1971, "settings.socket_send_buffer_max_bytes", Kind.GAUGE, Pace.MINUTE, "/proc/sys/net/core/wmem_max", "largest send buffer that a socket may ask for"),
    Signal(1972, "settings.cores_isolated_count", Kind.GAUGE, Pace.MINUTE, "cpu/isolated", "cores that the scheduler leaves alone (isolcpus)"),
)
