"""The kernel log: what its reader counts, and the events that its lines become. Device of `kernel_log.*`: `host`."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(2200, "kernel_log.read_count", Kind.COUNTER, Pace.TEN_SECONDS, "/dev/kmsg", "records read since the agent started, of the kernel's and of others"),
    Signal(2201, "kernel_log.told_events", Kind.COUNTER, Pace.TEN_SECONDS, "agent.kernel_log", "events told since the agent started; a storm of one incident is one"),
    Signal(2202, "kernel_log.lost_count", Kind.COUNTER, Pace.TEN_SECONDS, "/dev/kmsg EPIPE, sequence numbers", "records that were overwritten before they were read, since the agent started"),
    Signal(2203, "kernel_log.not_understood_count", Kind.COUNTER, Pace.TEN_SECONDS, "/dev/kmsg EINVAL, agent.kernel_log", "records too long for the reader or not in the form of a record, since the agent started"),
    Signal(2204, "kernel_log.incidents_count", Kind.GAUGE, Pace.TEN_SECONDS, "agent.kernel_log", "incidents that may still go on: their last line is less than 60 s old"),
    Signal(2210, "nvswitch.sxid", Kind.EVENT, Pace.EVENT, "kernel log: nvidia-nvswitch SXid", "an NVSwitch reported an SXID; code in `code`, link and severity in the attributes"),
    Signal(2212, "gpu.driver_message", Kind.EVENT, Pace.EVENT, "kernel log: NVRM", "the driver said something of weight without an XID: a GPU that cannot be initialised, a firmware that does not answer"),
    Signal(2213, "pcie.aer", Kind.EVENT, Pace.EVENT, "kernel log: AER, DPC", "a PCIe error was reported; code 0: corrected, 1: non-fatal, 2: fatal"),
    Signal(2214, "host.hardware_error", Kind.EVENT, Pace.EVENT, "kernel log: GHES, BERT", "the firmware reported an error; code 0: recoverable, 1: fatal, 2: corrected, 3: information"),
    Signal(2215, "host.machine_check", Kind.EVENT, Pace.EVENT, "kernel log: mce", "a machine check; code 0: corrected, 1: uncorrected"),
    Signal(2216, "host.memory_error", Kind.EVENT, Pace.EVENT, "kernel log: EDAC, memory failure", "a memory error of a DIMM; code 0: corrected, 1: uncorrected"),
    Signal(2217, "rdma.driver_error", Kind.EVENT, Pace.EVENT, "kernel log: mlx5_core", "the driver is in trouble with its adapter: health, firmware, cable, power, heat"),
    Signal(2218, "net.link_message", Kind.EVENT, Pace.EVENT, "kernel log: network drivers, bonding", "a driver says that a link changed; code 0: down, 1: up"),
    Signal(2219, "host.out_of_memory", Kind.EVENT, Pace.EVENT, "kernel log: mm/oom_kill", "a process was killed for want of memory; its cgroup in the attributes"),
    Signal(2220, "host.hung_task", Kind.EVENT, Pace.EVENT, "kernel log: hung_task", "a task did not run for two minutes and more"),
    Signal(2221, "host.lockup", Kind.EVENT, Pace.EVENT, "kernel log: watchdog, rcu", "a CPU did not come back; code 0: soft, 1: hard, 2: RCU stall"),
    Signal(2222, "filesystem.error", Kind.EVENT, Pace.EVENT, "kernel log: ext4, xfs, btrfs, jbd2, nfs", "a file system is damaged or cut off; code 0: error, 1: it was made read-only"),
    Signal(2223, "disk.error", Kind.EVENT, Pace.EVENT, "kernel log: block layer, nvme, ata, md", "a disk failed a request or does not answer"),
    Signal(2224, "host.kernel_fault", Kind.EVENT, Pace.EVENT, "kernel log: BUG, Oops, panic", "the kernel itself failed; what it does from now on is not to be trusted"),
    Signal(2225, "host.kernel_log_lost", Kind.EVENT, Pace.EVENT, "/dev/kmsg", "records were overwritten before they were read; how many in `count`"),
)
