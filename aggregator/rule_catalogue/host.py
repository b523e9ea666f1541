"""Rules of the host: cores, memory, drives, file systems, clock, interfaces. Mostly WATCH.

Limits without a source are assumed; a healthy or idle host never reaches them.
"""

from ..model import HealthState, Reason
from ..rule_declaration import (
    RateRule,
    Rule,
    ThresholdRule,
    above,
    equals,
    farther_than,
    suspect_rule,
    watch_rule,
)

CPU = Rule(
    "host.cpu_pressure", HealthState.WATCH, Reason.HOST_CPU, "tasks wait for a core less often for a minute",
    enter_seconds=30.0, reads=("host.pressure_cpu_some_ratio",),
)
CPU_STEAL = Rule(
    "host.cpu_steal", HealthState.WATCH, Reason.HOST_CPU, "the hypervisor takes less for a minute",
    enter_seconds=30.0, reads=("host.cpu_steal_ratio",),
)
MEMORY = Rule(
    "host.memory_pressure", HealthState.WATCH, Reason.HOST_CPU, "all tasks wait for memory less often for a minute",
    enter_seconds=30.0, hazard_factor=2.0, reads=("host.pressure_memory_full_ratio",),
)
READ_ONLY = Rule(
    "filesystem.read_only", HealthState.WATCH, Reason.STORAGE, "the file system can be written again",
    leave_seconds=0.0, hazard_factor=5.0, reads=("filesystem.read_only_state",),
)
FULL = Rule(
    "filesystem.full", HealthState.WATCH, Reason.STORAGE, "the file system has more free space",
    leave_seconds=0.0, hazard_factor=1.5, reads=("filesystem.available_bytes", "filesystem.size_bytes"),
)
#: Repaired errors of a DIMM within ten minutes from which it is WATCH.
CORRECTED_MIN = 10.0
#: With a larger offset the logs of two hosts cannot be compared.
OFFSET_SECONDS = 0.1
#: Time for a time daemon to start after a boot.
UNSYNCHRONISED_SECONDS = 900.0
#: A link with this many carrier changes within ten minutes flaps: two losses are four changes.
CARRIER_CHANGES = 4.0
QUIET = "no further one within 10 minutes"
EDAC, NVME, NIC = "edac_10s_changes", "nvme_60s", "nic_10s_changes"
MEMORY_COUNTS = (
    RateRule(
        suspect_rule("edac.uncorrected", Reason.ECC_TREND, QUIET, 30.0, leave_seconds=300.0),
        EDAC, "uncorrected_errors", "lost data: uncorrectable host memory errors",
    ),
    RateRule(
        watch_rule("edac.corrected", Reason.ECC_TREND, "fewer than 10 within 10 minutes", 2.0, leave_seconds=300.0),
        EDAC, "corrected_errors", "corrected errors of host memory", CORRECTED_MIN,
    ),
)
MEMORY_STATES = (
    ThresholdRule(
        watch_rule("host.memory_corrupted", Reason.ECC_TREND, "the host boots", 2.0),
        "host_10s", "memory_corrupted_bytes", above(0.0),
        "had {value:,.0f} bytes of memory taken out of use because of errors",
    ),
)
DRIVE_COUNTS = (
    RateRule(
        watch_rule("nvme.media_errors", Reason.STORAGE, QUIET, 5.0, leave_seconds=300.0),
        NVME, "media_errors", "lost data that it could not correct",
    ),
)
DRIVE_STATES = (
    ThresholdRule(
        watch_rule("nvme.critical_warning", Reason.STORAGE, "the drive no longer warns", 3.0),
        NVME, "critical_warning_flags", above(0.0),
        "warns: flags {value:.0f} (1 spare, 2 temperature, 4 reliability, 8 read-only)",
    ),
    ThresholdRule(
        watch_rule("nvme.dead", Reason.STORAGE, "the controller is live for 60 s", 5.0, enter_seconds=5.0),
        "nvme_10s", "controller_state", equals(5, 6), "is dead: the kernel disabled it", "1",
    ),
)
CLOCKS = (
    ThresholdRule(
        watch_rule("clock.offset", Reason.CLOCK, "it is within 0.1 s for 60 s", 1.0, enter_seconds=60.0),
        "clock_10s", "offset_seconds", farther_than(OFFSET_SECONDS),
        "clock is off by {value:.3f} s", "within 0.1 s",
    ),
    ThresholdRule(
        watch_rule("clock.unsynchronised", Reason.CLOCK, "a time daemon synchronizes the clock", 1.0,
                   enter_seconds=UNSYNCHRONISED_SECONDS),
        "clock_10s", "synchronised_state", equals(0), "clock is not synchronized (no NTP, chrony or PTP)", "1",
    ),
)
NETWORK_COUNTS = (
    RateRule(
        watch_rule("net.flaps", Reason.RAIL_DOWN, "fewer than 4 changes within 10 minutes", 5.0, leave_seconds=300.0),
        "net_1s_changes", "carrier_changes_count", "network link flaps, carrier changes",
        CARRIER_CHANGES,
    ),
    RateRule(
        watch_rule("link.uncorrectable", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        "link_10s_changes", "fec_uncorrectable_errors",
        "network link lost blocks that FEC could not correct", 10.0,
    ),
    RateRule(  # infiniband-diags (ibcheckerrors) warns from 10 on
        watch_rule("rdma.symbol_errors", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        "rdma_1s_changes", "symbol_errors", "RDMA link had errors that it could not correct", 10.0,
    ),
    RateRule(
        watch_rule("nic.pause_storm", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        NIC, "pause_storm_errors_events", "sent pause frames to its switch until pauses were disabled",
    ),
    RateRule(
        watch_rule("nic.module", Reason.FABRIC, QUIET, 3.0, leave_seconds=300.0),
        NIC, "module_overheated_events", "network module was too hot",
    ),
)
BOND = ThresholdRule(
    Rule("bond.slave_down", HealthState.WATCH, Reason.RAIL_DOWN, "all its interfaces are up for 60 s",
         enter_seconds=15.0, hazard_factor=3.0, reads=("bond.slaves_count",)),
    "bond_10s", "slaves_up_count", above(-1.0),
    "bond runs on {value:.0f} of its interfaces; one is down", "all of them",
)
BOND_DOWN = ThresholdRule(
    suspect_rule("bond.down", Reason.RAIL_DOWN, "the bond has a carrier for 60 s", 20.0, enter_seconds=15.0),
    "bond_10s", "link_state", equals(0), "bond lost its carrier: none of its interfaces is up", "1",
)
#: Counter -> its priority.
PAUSE_COUNTERS = {f"priority_{priority}_transmitted_pause_frames": priority for priority in range(8)}
PAUSES = Rule(
    "nic.pauses", HealthState.WATCH, Reason.FABRIC, "it sends pause frames no more often than its peers for 60 s",
    enter_seconds=30.0, hazard_factor=1.5, counts=tuple(f"nic.{counter}" for counter in PAUSE_COUNTERS),
)
#: An ending process is listed for moments; a driver that frees 80 GB takes seconds (assumed).
DEAD = Rule(
    "gpu.held_by_the_dead", HealthState.DEGRADED, Reason.DRIVER_HUNG,
    "the driver lists no ended process: end those that inherited its /dev/nvidia* (`fuser -v /dev/nvidia*`) or the "
    "zombie's parent, or reset the GPU",
    enter_seconds=30.0, leave_seconds=10.0, hazard_factor=20.0,
    reads=("gpu_job.dead_count", "gpu_job.dead_memory_bytes"),
)
