"""Rules of the host that functions detect: cores, memory, file systems, bonds. Mostly WATCH.

Limits without a source are assumed; a healthy or idle host never reaches them.
"""

from ..model import HealthState, Reason
from ..rule_declaration import (
    Rule,
    ThresholdRule,
    above,
    equals,
    suspect_rule,
)
from .faults import BY_FUNCTION

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
READ_ONLY = BY_FUNCTION["filesystem.read_only"]
FULL = Rule(
    "filesystem.full", HealthState.WATCH, Reason.STORAGE, "the file system has more free space",
    leave_seconds=0.0, hazard_factor=1.5, reads=("filesystem.available_bytes", "filesystem.size_bytes"),
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
NIC = "nic_10s_changes"
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
